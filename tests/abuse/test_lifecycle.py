"""Start, stop and reload under bad conditions: data directories that cannot be used, signals, certificates, keys."""

import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from quintet.log.embedded.engine import FORMAT_PREFIX, FORMAT_VERSION
from tests.abuse.process import Broker, config, fingerprint, one_line
from tests.crash import load, reader
from tests.crash.load import History, Load
from tests.wire import blipmq as wire
from tests.wire.blipmq import ACK, Client, Closed

DRAIN_S = 15.0  # the broker promises 10; the rest is for a busy machine
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
CONFIG = config(("alice", "bob"), rest="[limits]\ndisk_free_bytes_min = 0\n")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that a broker has written to and left cleanly."""
    with Broker(tmp_path_factory.mktemp("template"), CONFIG) as broker:
        with Client(broker.address).login(b"alice-key") as peer:
            peer.send(wire.publish(1, b"kept", b"x"))
            assert peer.barrier() == []
        broker.process.send_signal(signal.SIGTERM)
        assert broker.process.wait(DRAIN_S) == 0
    return broker.data


def folder_for(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def freeze(broker: Broker) -> None:
    """Stop it, and wait until its last thread has stopped: one may be in the middle of a write."""
    broker.process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + DRAIN_S
    while any(
        task.read_text().rpartition(")")[2].split()[0] != "T"
        for task in Path(f"/proc/{broker.process.pid}/task").glob("*/stat")
    ):
        assert time.monotonic() < deadline, "the broker did not stop"
        time.sleep(0.01)


# -- data directories ---------------------------------------------------------------------------------------------------


def test_a_locked_directory_is_refused_and_untouched(tmp_path: Path) -> None:
    with Broker(folder_for(tmp_path, "first"), CONFIG) as first:
        freeze(first)  # it keeps its lock and writes nothing while we compare
        before = fingerprint(first.data)
        second = Broker(folder_for(tmp_path, "second"), CONFIG, data=first.data)
        assert "in use by another broker" in one_line(second.refuses())
        assert fingerprint(first.data) == before
        first.process.send_signal(signal.SIGCONT)
        with Client(first.address).login(b"alice-key") as peer:
            assert peer.barrier() == []


def test_a_directory_of_a_newer_format_is_refused_and_untouched(tmp_path: Path, template: Path) -> None:
    data = shutil.copytree(template, tmp_path / "old")
    (data / "format").write_text(f"{FORMAT_PREFIX}{FORMAT_VERSION + 1}\n")
    before = fingerprint(data)
    said = one_line(Broker(folder_for(tmp_path, "new"), CONFIG, data=data).refuses())
    assert "newer" in said
    assert fingerprint(data) == before


def test_a_damaged_table_is_refused_until_its_loss_is_accepted(tmp_path: Path, template: Path) -> None:
    data = shutil.copytree(template, tmp_path / "old")
    table = data / f"topics/00000001/0/{0:020d}.seg"
    content = bytearray(table.read_bytes())
    content[600] ^= 1
    table.write_bytes(content)
    lines = Broker(folder_for(tmp_path, "first"), CONFIG, data=data).refuses().strip().splitlines()
    said = one_line(lines.pop())
    assert "table __topics is damaged" in said
    assert f"`quintet log repair {data}`" in said
    assert lines
    assert all('"level": "error"' in line for line in lines)
    command = (sys.executable, "-m", "quintet", "log", "repair", str(data))
    looked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert looked.returncode == 1
    assert "row made again: topic 'kept'" in looked.stdout
    assert table.read_bytes() == content
    assert subprocess.run([*command, "--accept-loss"], capture_output=True, check=False).returncode == 0
    with Broker(folder_for(tmp_path, "second"), CONFIG, data=data) as broker:
        with Client(broker.address).login(b"alice-key") as peer:
            peer.send(wire.publish(1, b"kept", b"more"))
            assert peer.barrier() == []
        locked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (locked.returncode, "in use by another broker" in locked.stderr) == (1, True)


@pytest.mark.parametrize("content", [b"\0" * 40, b"quintet-data one\n"])
def test_a_format_file_that_names_no_format_is_refused_and_untouched(
    tmp_path: Path, template: Path, content: bytes
) -> None:
    data = shutil.copytree(template, tmp_path / "old")
    (data / "format").write_bytes(content)
    before = fingerprint(data)
    one_line(Broker(folder_for(tmp_path, "new"), CONFIG, data=data).refuses())
    assert fingerprint(data) == before


def test_a_directory_of_somebody_else_is_refused_and_untouched(tmp_path: Path) -> None:
    data = folder_for(tmp_path, "photos")
    (data / "holiday.jpg").write_bytes(b"not ours")
    before = fingerprint(data)
    assert "not a Quintet data directory" in one_line(Broker(folder_for(tmp_path, "new"), CONFIG, data=data).refuses())
    assert fingerprint(data) == before


@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_an_unreadable_directory_is_refused_and_untouched(tmp_path: Path, mode: int) -> None:
    wrapper = NOBODY if os.geteuid() == 0 else ()
    if wrapper and shutil.which("setpriv") is None:
        pytest.skip("NOT PROVEN HERE: root reads everything, and setpriv is missing (apt install util-linux)")
    home = folder_for(tmp_path, "home")
    data = folder_for(home, "data")
    if wrapper:
        for path in (home, *tmp_path.parents):
            if path.stat().st_uid == os.geteuid() and "pytest" in str(path):
                path.chmod(0o755)
        tmp_path.chmod(0o755)
        os.chown(data, 65534, 65534)
    data.chmod(mode)
    broker = Broker(home, CONFIG, wrapper=wrapper, data=data)
    broker.config.chmod(0o644)
    said = broker.refuses()
    data.chmod(0o700)
    assert fingerprint(data) == {}
    assert str(data) in one_line(said)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    at = folder_for(tmp_path, "full")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", at], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"NOT PROVEN HERE: a small disk needs root: {done.stderr.strip()}")
    yield at
    subprocess.run(["umount", at], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError):
        while True:
            ballast.write(bytes(4096))


def test_a_full_disk_is_refused_and_untouched(full_disk: Path, tmp_path: Path) -> None:
    data = folder_for(full_disk, "data")
    fill(full_disk)
    before = fingerprint(full_disk)
    said = one_line(Broker(folder_for(tmp_path, "new"), CONFIG, data=data).refuses())
    assert "space" in said
    assert fingerprint(full_disk) == before


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with Broker(folder_for(tmp_path, "first"), CONFIG) as first:
        port = first.address.rpartition(":")[2]
        second = Broker(folder_for(tmp_path, "second"), CONFIG.replace("port = 0", f"port = {port}", 1))
        assert f":{port}" in one_line(second.refuses())


def test_a_bad_key_in_the_configuration_is_one_line_and_code_2(tmp_path: Path) -> None:
    broker = Broker(tmp_path, CONFIG + "\n[topics]\nsegment_byte = 1\n")
    assert "segment_bytes" in one_line(broker.refuses())
    assert broker.process.returncode == 2
    assert not broker.data.exists()


# -- stop ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_drains_and_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    history = History(int(number))
    text = config(("dev",), rest="[limits]\ndisk_free_bytes_min = 0\n")
    with Broker(tmp_path, text) as broker:
        history.subscribe(broker.address)
        running = Load(history, broker.address)
        running.wait_for(500)
        broker.process.send_signal(number)
        assert broker.process.wait(DRAIN_S) == 0
        running.join()
        assert "Traceback" not in broker.said()
        assert '"exception"' not in broker.said()
    assert not history.hangs
    found = reader.read(broker.data)
    verdict = load.judge(history, found)
    assert verdict.acked >= 500
    assert not verdict.bad, verdict
    assert not [torn for partition in found.values() for torn in partition.torn]
    settled = set(history.settled)
    with Broker(tmp_path, text) as again:
        assert not load.drain(history, again.address, found, load.unsettled(found, settled)).bad


# -- reload -------------------------------------------------------------------------------------------------------------


def test_a_broken_configuration_keeps_the_old_one_and_is_told(tmp_path: Path) -> None:
    with Broker(tmp_path, CONFIG) as broker, Client(broker.address).login(b"alice-key") as live:
        broken = ("this is [not TOML", config(()) + "\n[[keys]]\nnam = 1\n", CONFIG + "\n[limits]\nwrong = 1\n")
        for number, text in enumerate(broken, 1):
            broker.reload(text)
            broker.await_said("reload_refused", number)
            assert live.barrier() == []
            with Client(broker.address).login(b"bob-key") as peer:
                assert peer.barrier() == []
        broker.config.unlink()
        broker.reload()
        broker.await_said("reload_refused", len(broken) + 1)
        assert live.barrier() == []


def test_a_removed_key_ends_its_live_connection_and_a_new_key_works(tmp_path: Path) -> None:
    with (
        Broker(tmp_path, CONFIG) as broker,
        Client(broker.address).login(b"alice-key", version=2) as alice,
        Client(broker.address).login(b"bob-key") as bob,
    ):
        assert alice.ask(wire.subscribe(1, b"t")).kind == ACK
        broker.reload(config(("bob", "carol")))
        with pytest.raises(Closed):
            pytest.fail(f"evicted without a word was expected: {alice.read()}")
        assert "revoked" in broker.await_said('"who": "alice"')
        assert bob.barrier() == []
        with Client(broker.address) as again:
            assert again.ask(wire.hello(1, 1)).kind == ACK
            assert again.ask(wire.auth(2, b"alice-key")).refusal == (401, "invalid API key")
        with Client(broker.address).login(b"carol-key") as carol:
            assert carol.barrier() == []


def test_a_withdrawn_right_counts_for_the_live_connection(tmp_path: Path) -> None:
    with Broker(tmp_path, CONFIG) as broker, Client(broker.address).login(b"alice-key") as alice:
        alice.send(wire.publish(1, b"orders", b"x"))
        assert alice.barrier() == []
        text = CONFIG.replace('key = "alice-key"\n', 'key = "alice-key"\npublish = ["other"]\nsubscribe = []\n')
        broker.reload(text)
        broker.await_said('"event": "reloaded"')
        assert alice.ask(wire.publish(2, b"orders", b"x")).refusal[0] == 401
        assert alice.ask(wire.subscribe(3, b"orders")).refusal[0] == 401
        alice.send(wire.publish(4, b"other", b"x"))
        assert alice.barrier() == []


class Certificates:
    """One certificate file and its key, issued again and again by new authorities."""

    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "cert.pem", folder / "key.pem"
        self.listener = f'tls_cert = "{self.certificate}"\ntls_key = "{self.key}"\n'

    def issue(self) -> ssl.SSLContext:
        """New files; the context of a client that trusts them and nothing else."""
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.key.chmod(0o600)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context


def test_tls_works_and_new_certificates_count_for_new_connections(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    old = files.issue()
    with Broker(tmp_path, config(("alice",), files.listener)) as broker:
        with Client(broker.address, old).login(b"alice-key") as live:
            subscription = live.ask(wire.subscribe(1, b"tls")).number
            live.send(wire.publish(1, b"tls", bytes(300_000)))
            assert live.barrier() == []
            assert live.ask(wire.poll(1, subscription)).delivery[2] == bytes(300_000)
            files.certificate.write_text("not a certificate")
            broker.reload()
            broker.await_said("reload_refused")
            with Client(broker.address, old).login(b"alice-key") as peer:
                assert peer.barrier() == []
            new = files.issue()
            broker.reload()
            broker.await_said('"event": "reloaded"')
            with Client(broker.address, new).login(b"alice-key") as peer:
                assert peer.barrier() == []
            with pytest.raises(ssl.SSLCertVerificationError):
                Client(broker.address, old)
            assert live.barrier() == [], "the open connection goes on"
        with Client(broker.address) as plain, pytest.raises(Closed):
            plain.login(b"alice-key")


def test_a_silent_tls_client_is_closed(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    context = files.issue()
    with (
        Broker(tmp_path, config(("alice",), files.listener)) as broker,
        Client(broker.address) as silent,
        Client(broker.address, context) as shaken,
    ):
        for peer in (silent, shaken):
            with pytest.raises(Closed):
                peer.read(20)
