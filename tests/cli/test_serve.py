"""`quintet serve` as a process: the ready line, signals, exit codes, and `quintet log` over what it leaves behind."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from quintet.figures import development_lines
from tests import forks

QUINTET = (sys.executable, "-m", "quintet")
DOORS = ("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FLIGHT", "FAST", "PEERBUS", "PEERBUS_TCP", "FELIX", "CONSOLE", "ADMIN")
FREE_PORTS = {f"QUINTET_LISTENERS__{door}__PORT": "0" for door in DOORS}
STOP_S = 10  # the promise of SIGTERM


class Running:
    """A broker that said it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"ended before it was ready: {process.communicate()[1]}"
        self.ready: dict[str, Any] = json.loads(line)
        self.url = f"blipmq://:dev-key@{self.ready['listeners']['blipmq']}"

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"http://{self.ready['listeners']['admin']}{path}", trust_env=False, timeout=60)

    def wait_for(self, event: str) -> dict[str, Any]:
        """The next log entry with this event."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{") and (entry := json.loads(line))["event"] == event:
                return dict(entry)
        raise AssertionError(f"ended without {event}")

    def stop(self) -> tuple[int, str]:
        """(exit code, the rest of stderr) after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        errors = self.process.communicate(timeout=STOP_S)[1]
        return self.process.returncode, errors


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environ: str) -> Running:
        command = [*QUINTET, "serve", "--data", str(tmp_path / "data"), "--print-ready", *arguments]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=os.environ | FREE_PORTS | environ,
        )
        processes.append(process)
        return Running(process)

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command beside the brokers, forked: those are started as users start them."""
    return forks.run(arguments, text=True, env=os.environ | environ, timeout=60)


def test_ready_answers_and_drains(start: Start) -> None:
    broker = start("--dev")
    assert broker.ready["ready"] is True
    assert set(broker.ready["listeners"]) == {door.lower().replace("_", "-") for door in DOORS}
    for name, address in broker.ready["listeners"].items():
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1"
        if name != "felix":  # over UDP nobody answers a mere knock
            socket.create_connection((host, int(port)), timeout=30).close()
    assert broker.get("/livez").status_code == 200
    ready = broker.get("/readyz?verbose")
    assert ready.status_code == 200, ready.text
    for check in (
        "listener:blipmq",
        "listener:flymq",
        "listener:flymq-sdk",
        "listener:felix",
        "listener:flight",
        "log",
        "disk",
        "draining",
    ):
        assert f"[+] {check}" in ready.text
    code, errors = broker.stop()
    assert code == 0, errors
    assert '"event": "stopped"' in errors


def test_dev_prints_a_line_to_copy_per_door(start: Start) -> None:
    broker = start("--dev")
    _, errors = broker.stop()
    assert f"quintet sub --url {broker.url}" in errors
    listeners = broker.ready["listeners"]
    assert f"quintet tail --url flymq://admin:admin@{listeners['flymq']} demo --follow" in errors
    assert f"port {listeners['flymq-sdk'].rpartition(':')[2]}, username='admin', password='admin'" in errors
    assert "Traceback" not in errors


def test_the_real_metrics_are_valid(start: Start) -> None:
    broker = start("--dev")
    assert run("pub", "--url", broker.url, "demo", "hello").returncode == 0
    text = broker.get("/metrics").text
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
    assert values["quintet_published_messages_total"] == 1
    promtool = shutil.which("promtool")
    if promtool is not None:
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_bad_reload_keeps_the_old_credentials(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text("[[keys]]\nname = 'a'\nkey = 'first'\n")
    broker = start("--dev", "--config", str(file))
    url = broker.url.replace("dev-key", "{}")
    file.write_text("[[keys]]\nname = 'a'\nkye = 'second'\n")
    broker.process.send_signal(signal.SIGHUP)
    refused = broker.wait_for("reload_refused")
    assert "did you mean keys[0].key?" in refused["error"]
    assert run("pub", "--url", url.format("first"), "demo", "x").returncode == 0
    file.write_text("[[keys]]\nname = 'a'\nkey = 'second'\n")
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for("reloaded")
    assert run("pub", "--url", url.format("second"), "demo", "x").returncode == 0
    assert run("pub", "--url", url.format("first"), "demo", "x").returncode != 0
    assert broker.stop()[0] == 0


def test_a_reload_says_what_was_taken_and_what_waits(start: Start, tmp_path: Path) -> None:
    """Also with the certificate of a door taken away, and its files: the door keeps what it has."""
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    file = tmp_path / "quintet.toml"
    tls = f"listeners.fast.tls_cert = '{tmp_path}/cert.pem'\nlisteners.fast.tls_key = '{tmp_path}/key.pem'\n"
    file.write_text(tls + "[[keys]]\nname = 'a'\nkey = 'first'\n")
    broker = start("--dev", "--config", str(file))
    file.write_text("[[keys]]\nname = 'a'\nkey = 'second'\n[topics]\npartitions = 3\n")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).unlink()
    broker.process.send_signal(signal.SIGHUP)
    assert broker.wait_for("reloaded")["taken"] == ["keys"]
    waits = ["listeners.fast.tls_cert", "listeners.fast.tls_key", "topics.partitions"]
    assert broker.wait_for("restart_needed")["options"] == waits
    broker.process.send_signal(signal.SIGHUP)
    assert broker.wait_for("reloaded")["taken"] == []
    assert broker.wait_for("restart_needed")["options"] == waits, "until it is started again"
    code, errors = broker.stop()
    assert code == 0 and "Traceback" not in errors, errors


def test_old_names_of_keys_are_logged_at_the_start_and_at_a_reload(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "quintet.toml"
    config.write_text("drain_timeout_s = 9\n")
    broker = start("--dev", "--config", str(config), QUINTET_TOPICS__MAX_TOPICS="50")
    variable = "environment variable QUINTET_TOPICS__MAX_TOPICS"
    first, second = broker.wait_for("option_renamed"), broker.wait_for("option_renamed")
    assert (first["level"], first["origin"], first["new"]) == ("warning", variable, "topics.topics_max")
    assert (second["origin"], second["old"], second["new"]) == (str(config), "drain_timeout_s", "drain_timeout_seconds")
    config.write_text("drain_timeout_s = 8\n[delivery]\nmax_attempts = 3\n")
    broker.process.send_signal(signal.SIGHUP)
    assert [broker.wait_for("option_renamed")["new"] for _ in range(3)] == [
        "topics.topics_max", "drain_timeout_seconds", "delivery.attempts_max",
    ]  # fmt: skip
    assert broker.wait_for("reloaded")["taken"] == ["drain_timeout_seconds"]
    assert broker.wait_for("restart_needed")["options"] == ["delivery.attempts_max"]
    assert broker.stop()[0] == 0


def test_a_bad_key_set_keeps_everything_as_it_was(start: Start, tmp_path: Path) -> None:
    file, keys = tmp_path / "quintet.toml", tmp_path / "jwks.json"
    config = "tokens.jwks_file = 'jwks.json'\n[[keys]]\nname = 'a'\nkey = '{}'\n"
    file.write_text(config.format("first"))
    keys.write_text('{"keys": []}')
    broker = start("--dev", "--config", str(file))
    url = broker.url.replace("dev-key", "{}")
    file.write_text(config.format("second"))
    keys.write_text('{"keys": [{"kty": "OKP", "d": "AA"}]}')
    broker.process.send_signal(signal.SIGHUP)
    assert "jwks.json: key 0 is a private key" in broker.wait_for("reload_refused")["error"]
    assert run("pub", "--url", url.format("first"), "demo", "x").returncode == 0
    assert run("pub", "--url", url.format("second"), "demo", "x").returncode != 0
    keys.write_text('{"keys": []}')
    broker.process.send_signal(signal.SIGHUP)
    broker.wait_for("reloaded")
    assert run("pub", "--url", url.format("second"), "demo", "x").returncode == 0
    assert broker.stop()[0] == 0


def test_a_data_folder_in_use_is_one_clear_line(start: Start, tmp_path: Path) -> None:
    start("--dev")
    second = run("serve", "--dev", "--data", str(tmp_path / "data"), **FREE_PORTS)
    assert second.returncode == 1
    lines = [line for line in second.stderr.splitlines() if line.startswith("quintet: ")]
    assert len(lines) == 1
    assert str(tmp_path / "data") in lines[0]
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize("door", ["BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FELIX", "FLIGHT", "CONSOLE", "ADMIN"])
def test_a_port_in_use_is_one_clear_line(tmp_path: Path, door: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM if door == "FELIX" else socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        if door != "FELIX":
            taken.listen()
        port = taken.getsockname()[1]
        environ = FREE_PORTS | {f"QUINTET_LISTENERS__{door}__PORT": str(port)}
        done = run("serve", "--dev", "--data", str(tmp_path / "data"), **environ)
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_log_verify_and_dump_read_what_was_published(start: Start, tmp_path: Path) -> None:
    broker = start("--dev")
    for text in ("one", "two", "three"):
        assert run("pub", "--url", broker.url, "demo", text).returncode == 0
    assert broker.stop()[0] == 0
    data = str(tmp_path / "data")
    sound = run("log", "verify", data, "--json")
    assert sound.returncode == 0, sound.stdout + sound.stderr
    assert json.loads(sound.stdout.splitlines()[-1])["summary"]["status"] == 0

    rows = [
        json.loads(line) for line in run("log", "dump", data, "--topic", "demo", "--format", "json").stdout.splitlines()
    ]
    assert [(row["offset"], row["value"]) for row in rows] == [(0, "one"), (1, "two"), (2, "three")]
    assert run("log", "dump", data, "--topic", "demo", "--from", "1", "--limit", "1", "--format", "hex").stdout == (
        f"demo/0@1 - {b'two'.hex()}\n"
    )
    assert "'three'" in run("log", "dump", data, "--topic", "demo", "--partition", "0").stdout
    assert run("log", "dump", data, "--partition", "7").stdout == ""
    missing = run("log", "dump", data, "--topic", "nothing")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "no topic 'nothing'" in missing.stderr

    pack = Path(data) / "packs" / "00000000.0"  # where the first segment of a small topic is
    pack.write_bytes(pack.read_bytes().replace(b"two", b"tow"))
    corrupt = run("log", "verify", data)
    assert corrupt.returncode == 1
    assert f"{data}/topics/00000016/0/{0:020d}.seg" in corrupt.stdout


def test_log_wants_a_data_folder(tmp_path: Path) -> None:
    for command in ("verify", "dump"):
        done = run("log", command, str(tmp_path))
        assert (done.returncode, done.stdout) == (1, "")
        assert "is not a data folder of Quintet" in done.stderr


def test_the_lines_to_copy_can_be_copied() -> None:
    doors = {"blipmq": "127.0.0.1:1", "flymq": "127.0.0.1:2", "felix": "127.0.0.1:4", "admin": "127.0.0.1:3"}
    text = development_lines(doors, {"felix": Path("data/the tls.pem")})
    commands = [
        shlex.split(line[11:], comments=True) for line in text.splitlines() if line[11:].strip() and "://" in line
    ]
    assert len(commands) == 8
    assert all("felix://:dev-key@127.0.0.1:4?ca=data/the%20tls.pem" in command for command in commands[-4:-1])
    assert not {character for words in commands for word in words for character in word} & set("()#'")
    assert text.index(" pub --url flymq://") < text.index(" tail --url flymq://"), "tail needs a topic that is there"
