"""`quintet status`, `top` and `doctor`: right figures of a real broker, and every planted fault is found."""

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from quintet.cli.operate import checks, status
from quintet.cli.operate.checks import Finding, file_system
from quintet.cli.operate.doctor import examine
from quintet.cli.operate.scrape import Labels, Sample, parse
from quintet.cli.operate.status import Change, held, human_bytes, topic_rows
from tests.cli.conftest import Commands
from tests.client.server import Server, running

WAIT_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def admin(server: Server) -> str:
    return f"http://127.0.0.1:{server.ports['admin']}"


# -- reading metrics --------------------------------------------------------------------------------------------------


def test_metrics_are_read_with_their_escapes() -> None:
    text = '# HELP a b\na_total{topic="x\\"y\\\\z\\n",door="d"} 3.0\nb 1e3\nbad line\nc nan-ish\nd{} 2\n'
    assert parse(text) == {
        "a_total": {(("door", "d"), ("topic", 'x"y\\z\n')): 3.0},
        "b": {(): 1000.0},
        "d": {(): 2.0},
    }


def test_a_rate_is_never_negative_after_a_restart() -> None:
    before, after = Sample(0.0, {"n": {(): 100.0}}), Sample(2.0, {"n": {(): 10.0}})
    assert Change(before, after).rate("n") == 0.0
    assert Change(after, Sample(4.0, {"n": {(): 30.0}})).rate("n") == 10.0


def test_status_names_who_is_held_back_by_a_quota() -> None:
    text = 'quintet_quota_held{kind="user",name="ann"} 1.0\nquintet_quota_held{kind="tenant",name="acme"} 0.0\n'
    assert held(Sample(0.0, parse(text))) == [("user", "ann")]


def test_topics_are_sorted_as_asked() -> None:
    def sample(at: float, a: float, b: float) -> Sample:
        published: dict[Labels, float] = {(("topic", "a"),): a, (("topic", "b"),): b}
        sizes: dict[Labels, float] = {(("topic", "a"),): 9.0, (("topic", "b"),): 2048.0}
        return Sample(at, {"quintet_topic_published_messages_total": published, "quintet_topic_bytes": sizes})

    change = Change(sample(0.0, 0, 0), sample(1.0, 5, 1))
    assert topic_rows(change, "rate") == [("a", "5", "9 B"), ("b", "1", "2.0 KiB")]
    assert [row[0] for row in topic_rows(change, "bytes")] == ["b", "a"]
    assert human_bytes(69 * 1024**3) == "69 GiB"


# -- a running broker -------------------------------------------------------------------------------------------------


def test_status_shows_a_broker_and_what_a_group_has_left(server: Server, admin: str) -> None:
    quintet = Commands(server.fly)
    quintet("pub", "--count", "7", "status-orders", "x")
    quintet("sub", "--group", "billing", "--from", "earliest", "--count", "2", "status-orders")
    deadline = time.monotonic() + WAIT_S
    behind: list[tuple[str, str, int]] = []
    while behind != [("status-orders", "billing", 5)]:  # what is shown of groups is some seconds old
        assert time.monotonic() < deadline, f"not shown within {WAIT_S} s; behind are {behind}"
        found = quintet("status", "--admin", admin, "--interval", "0.1", "--json").json
        behind = [(each["topic"], each["group"], each["messages"]) for each in found["groups"]["behind"]]
    assert found["ready"] and found["failing"] == []
    assert {door["door"] for door in found["doors"]} >= {"blipmq", "flymq", "felix"}
    assert next(door for door in found["doors"] if door["door"] == "felix")["certificate_days"] > 3000
    assert found["topics"] >= 1
    assert found["disk"]["free_bytes"] > 0 and found["process"]["memory_bytes"] > 0
    text = quintet("status", "--admin", admin, "--interval", "0.1").out
    assert ": ready, up " in text and "group billing on status-orders: 5 messages" in text


def test_failed_logins_are_counted_by_door(server: Server, admin: str) -> None:
    quintet = Commands(server.fly.replace("admin:admin", "admin:wrong"))
    quintet("topic", "list", code=1)
    doors = Commands(server.fly)("status", "--admin", admin, "--interval", "0.1", "--json").json["doors"]
    assert next(door for door in doors if door["door"] == "flymq")["auth_failures"] >= 1


def test_top_prints_one_screen_into_a_pipe(server: Server, admin: str) -> None:
    quintet = Commands(server.fly)
    quintet("pub", "top-topic", "x")
    text = quintet("top", "--admin", admin, "--interval", "0.2", "--sort", "name").out
    assert "top-topic" in text and text.count("topic, by name") == 1


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [("http://127.0.0.1:1", 1, "no answer from the admin listener"), ("ftp://x", 2, "write http://HOST:PORT")],
)
def test_a_wrong_admin_address_is_explained(url: str, code: int, says: str) -> None:
    assert says in Commands("")("status", "--admin", url, code=code).err


# -- the doctor -------------------------------------------------------------------------------------------------------


def found(*arguments: Path | None, admin: str | None = None) -> dict[str, list[Finding]]:
    """Findings by subject."""
    config, data = arguments
    by: dict[str, list[Finding]] = {}
    for finding in examine(config, data, False, admin):
        by.setdefault(finding.subject, []).append(finding)
    return by


def config(folder: Path, text: str) -> Path:
    file = folder / "quintet.toml"
    file.write_text(text)
    return file


def test_a_healthy_folder_has_no_failures(tmp_path: Path) -> None:
    findings = found(None, tmp_path / "new")
    assert not [
        each for group in findings.values() for each in group if each.verdict == "fail" and each.subject != "ports"
    ]
    assert all(each.advice for group in findings.values() for each in group if each.verdict != "ok")


def test_the_probe_of_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    (finding,) = found(None, tmp_path)["disk syncs"]
    assert "a sync of 4096 bytes takes" in finding.text
    assert list(tmp_path.iterdir()) == []


def test_flight_is_a_door_with_its_certificate(tmp_path: Path) -> None:
    made = trustme.CA().issue_cert("localhost", "127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=9.5))
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"TLS_CERT": str(tmp_path / "cert.pem"), "TLS_KEY": str(tmp_path / "key.pem")}
    with running(**{f"QUINTET_LISTENERS__FLIGHT__{name}": file for name, file in files.items()}) as server:
        change = status.observe(f"http://127.0.0.1:{server.ports['admin']}", 0.1)
        rows = {row["door"]: row for row in status.doors(change)}
    assert rows["flight"]["connections"] == 0 and rows["blipmq"]["certificate_days"] is None
    assert 9 < float(str(rows["flight"]["certificate_days"])) < 9.6


def test_each_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "quarantine.jsonl").write_text('{"file": "x", "position": 1}\n{"file": "y", "accepted": 1}\n')
    (data / "journal.a.damaged").touch()
    expired = trustme.CA().issue_cert("localhost", not_after=datetime.now(UTC) - timedelta(days=1))
    expired.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    expired.private_key_pem.write_to_path(tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = config(
            tmp_path,
            f'[topics]\ndurability = "os"\n[limits]\ndisk_free_bytes_min = "900 TiB"\ntail_cache_bytes = "900 TiB"\n'
            f'[listeners.blipmq]\nport = {port}\n[listeners.flymq]\ntls_cert = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\n'
            '[listeners.fast]\nhost = "0.0.0.0"\ninsecure = true\nport = 0\n',
        )
        monkeypatch.setattr(checks, "file_system", lambda _path: "tmpfs")
        findings = found(file, data)
    assert ("damage", "fail") in {(each.subject, each.verdict) for each in findings["damage"]}
    assert "1 damaged ranges, damaged journals journal.a.damaged" in findings["damage"][0].text
    assert findings["disk space"][0].verdict == "fail"
    assert findings["memory"][0].verdict == "warn"
    assert findings["file system"][0].verdict == "fail"
    (certificate,) = findings["certificate"]
    assert certificate.verdict == "fail" and "cert.pem expired" in certificate.text and "24 h ago" in certificate.text
    assert any(each.verdict == "fail" and f":{port}" in each.text for each in findings["ports"])
    said = " ".join(each.text for each in findings["settings"])
    assert "durability = os" in said and "listeners.fast is plaintext on 0.0.0.0" in said


def test_beside_a_running_broker_ports_are_left_alone(server: Server, admin: str) -> None:
    findings = found(None, server.folder / "data", admin=admin)
    assert "in use by a running broker" in findings["data"][0].text
    assert "ports" not in findings
    assert findings["broker"] == [Finding("broker", "ok", f"{admin} is ready")]


def test_a_broker_with_another_folder_is_not_a_failure_of_ports(server: Server, tmp_path: Path) -> None:
    """What a newcomer meets who types `quintet doctor` beside `make run`."""
    port = server.ports["admin"]
    findings = found(config(tmp_path, f"[listeners.admin]\nport = {port}\n"), tmp_path / "other")
    warning, state = findings["broker"]
    assert warning.verdict == "warn" and f":{port}" in warning.text and "--dev" in warning.advice
    assert state.verdict == "ok" and "ports" not in findings


def test_exit_codes_tell_failures_from_warnings(tmp_path: Path) -> None:
    quintet = Commands("")
    (tmp_path / "journal.b.damaged").touch()
    assert "damaged journals" in quintet("doctor", "--data", str(tmp_path), code=1).out
    quintet("doctor", "--config", str(config(tmp_path, "nonsense = 1\n")), code=2)


def test_the_file_system_of_a_path_is_that_of_its_mount() -> None:
    assert file_system(Path("/proc/self")) == "proc"
