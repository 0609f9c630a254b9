"""`quintet conn`, `quintet explain` and `quintet upgrade --check`, with a broker that runs."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintet.log.embedded.engine import FORMAT_VERSION
from tests.cli.conftest import Commands
from tests.client.server import Server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture
def live(server: Server, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("QUINTET_CONSOLE", f"http://admin:admin@{server.console}")
    return Commands(server.fly)


def test_a_connection_is_listed_shown_and_ended(server: Server, live: Commands) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(60)
        host, port = client.getsockname()
        peer = f"{host}:{port}"
        [row] = live("conn", "list", "--filter", peer, "--json").json
        assert (row["door"], row["who"], row["tls"]) == ("blipmq", None, "")
        assert peer in live("conn", "list").out
        assert "no connection has 'nowhere' in it" in live("conn", "list", "--filter", "nowhere").err
        shown = live("conn", "show", peer).out
        for words in (
            "blipmq",
            "not logged in",
            "last activity",
            "B/s, 0 B in all",
            "0 requests not answered",
            "TLS            none",
        ):
            assert words in shown
        assert live("conn", "show", str(row["id"]), "--json").json["peer"] == peer
        assert peer in live("conn", "list", "--sort", "in").out
        assert f"ended {peer}" in live("conn", "kick", peer, "--yes").out
        while client.recv(4096):  # it may be told why, and then it ends
            pass
    assert "no connection" in live("conn", "show", peer, code=1).err
    assert "kick" in live("audit", "--type", "auth.logout").out


def test_the_journey_of_a_message_is_shown(live: Commands, topic: str) -> None:
    live("pub", topic, "hello")
    live("sub", topic, "--group", "readers", "--from", "earliest", "--count", "1")
    found = live("explain", topic, "0@0", "--json").json
    assert [step["what"] for step in found["steps"]][:2] == ["published", "stored"]
    said = live("explain", topic, "0").out
    assert "flymq:admin" in said and "audit chain: batch from offset 0 on" in said
    assert "is not OFFSET" in live("explain", topic, "1@x", code=2).err
    assert live("explain", topic, "0@77", code=1).err
    assert live("explain", "no-such-topic", "0", code=1).err


def test_who_may_not_is_refused(server: Server, live: Commands, topic: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("s3cret-enough")
    live("user", "create", "bob", "--role", "consumer", "--password-file", str(tmp_path / "password"))
    bob = f"http://bob:s3cret-enough@{server.console}"
    assert "may not do this" in live("conn", "list", "--console", bob, code=1).err
    wrong = f"http://admin:wrong@{server.console}"
    assert live("conn", "list", "--console", wrong, code=1).err
    assert "no answer from the console" in live("conn", "list", "--console", "http://127.0.0.1:1", code=1).err
    assert "no URL of a console" in live("conn", "list", "--console", "ftp://x", code=2).err


def test_an_upgrade_is_checked_and_nothing_is_changed(live: Commands, tmp_path: Path) -> None:
    def verdicts(*arguments: str, code: int = 0) -> dict[str, str]:
        found = live("upgrade", "--check", "--data", str(tmp_path / "data"), "--json", *arguments, code=code).json
        return {one["subject"]: one["verdict"] + ": " + one["text"] for one in found}

    assert "no data folder yet" in verdicts()["data"]
    folder = Server(tmp_path, {})
    folder.start()
    try:
        Commands(folder.fly)("pub", "orders", "hello")
        assert "a broker runs in it" in verdicts()["broker"]
    finally:
        folder.stop()
    assert verdicts()["data"].startswith("ok") and "stopped cleanly" in verdicts()["broker"]
    format = tmp_path / "data" / "format"
    format.write_text("quintet-data 2\n")
    assert f"from 2 to {FORMAT_VERSION}" in verdicts()["data"]
    assert format.read_text() == "quintet-data 2\n"
    format.write_text(f"quintet-data {FORMAT_VERSION + 1}\n")
    assert verdicts(code=1)["data"].startswith("fail")
    (tmp_path / "old.toml").write_text("[topics]\nmax_topics = 10\n")
    (tmp_path / "bad.toml").write_text("[limits]\nno_such_key = 10\n")
    format.write_text(f"quintet-data {FORMAT_VERSION}\n")
    assert "topics.topics_max" in verdicts("--config", str(tmp_path / "old.toml"))["configuration"]
    assert "no_such_key" in live("upgrade", "--check", "--config", str(tmp_path / "bad.toml"), code=2).err
    assert "only --check" in live("upgrade", code=2).err
