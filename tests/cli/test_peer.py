"""`quintet peer`, and `quintet pub` and `sub` through the two doors, against a real broker."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.model import envelope
from quintet.protocols.peerbus import codec
from tests import forks
from tests.cli.conftest import Commands
from tests.client.server import Server

SECRET = "0123456789abcdef0123456789abcdef"
BOTH = pytest.mark.parametrize("lines", [False, True], ids=["websocket", "lines"])
WAIT_S = 60


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)


@contextmanager
def process_of(*arguments: str) -> Iterator[forks.Process]:
    """The command as a process with pipes; gone at the end."""
    process = forks.command(arguments, text=True, env={**os.environ, SECRET_VARIABLE: SECRET}, ahead=forks.PEER)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def listening(url: str, *arguments: str) -> Iterator[forks.Process]:
    with process_of("peer", "listen", "--url", url, *arguments) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("listening as ")
        yield process


def test_send_listen_broadcast_list(quintet: Commands, broker: Server) -> None:
    alice, bob = broker.peer("cli.alice"), broker.peer("cli.bob", lines=True)
    with listening(bob, "--count", "3") as process:
        assert quintet("peer", "list", "--json", url=alice).json == {
            "self": "cli.alice",
            "peers": ["cli.alice", "cli.bob"],
        }
        assert quintet("peer", "list", url=alice).lines == ["cli.alice", "cli.bob"]
        id = quintet("peer", "send", "cli.bob", '{"n": 1.50}', "--id", "one", url=alice).out.strip()
        assert id == "one"
        quintet("peer", "send", "cli.bob", "not JSON", url=alice)
        quintet("peer", "broadcast", "[3]", url=alice)
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["body"] for row in rows] == [{"n": 1.5}, "not JSON", [3]]
    assert '"body": {"n":1.50}' in out, "a body is sent to the letter"
    assert [(row["id"] == "one", row["from"], row["to"], row["kind"]) for row in rows] == [
        (True, "cli.alice", "cli.bob", "msg"),
        (False, "cli.alice", "cli.bob", "msg"),
        (False, "cli.alice", "*", "broadcast"),
    ]


def test_lines_of_stdin_and_messages_that_wait(quintet: Commands, broker: Server) -> None:
    bob = broker.peer("cli.later")
    quintet("peer", "list", url=bob)  # known from now on
    with process_of("peer", "send", "cli.later", "--url", broker.peer("cli.sender")) as process:
        out, err = process.communicate('1\n\n"two"\nthree', timeout=WAIT_S)
        assert (process.returncode, len(out.split()), err) == (0, 3, "")
    looked = quintet("peer", "listen", "--count", "3", "--no-ack", url=bob)
    assert [json.loads(line)["body"] for line in looked.lines] == [1, "two", "three"]
    again = quintet("peer", "listen", "--count", "3", "--timeout", "10", url=bob)
    assert again.out == looked.out
    too_few = quintet("peer", "listen", "--count", "1", "--timeout", "0.2", url=bob, code=1)
    assert "0 of 1 messages came" in too_few.err
    quintet("peer", "listen", "--timeout", "0.1", url=bob)


def test_wrong_usage(quintet: Commands, broker: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = broker.peer("x").partition("?")[0]
    assert "needs a name" in quintet("peer", "list", url=nameless, code=2).err
    assert "broadcast" in quintet("peer", "send", "*", "1", url=broker.peer("x"), code=2).err
    assert "--id" in quintet("peer", "send", "bob", "--id", "1", url=broker.peer("x"), code=2).err
    assert "the URL is of flymq" in quintet("peer", "list", "--name", "x", url=broker.fly, code=2).err
    assert "invalid bearer token" in quintet("peer", "list", url=broker.peer("x", token="no"), code=1).err
    monkeypatch.delenv(SECRET_VARIABLE)
    assert "secret_file" in quintet("peer", "list", url=broker.peer("x"), code=2).err
    file = tmp_path / "the secret"
    file.write_text(SECRET + "\n")
    assert "cli.x" in quintet("peer", "list", "--name", "cli.x", "--secret-file", str(file), url=nameless).out


@BOTH
def test_a_pipe_for_other_programs(quintet: Commands, broker: Server, lines: bool) -> None:
    name = f"cli.pipe.{lines}"
    url = broker.peer(name, lines=lines)
    letter = envelope.sign(SECRET.encode(), id="1", sender=name, to=name, ts="", body=b'"to myself"')
    with process_of("peer", "stdio", "--url", url, "--linger", "0.2") as process:
        assert process.stdin is not None and process.stdout is not None
        assert name in json.loads(process.stdout.readline())["names"]
        process.stdin.write(letter.decode() + "\n")
        process.stdin.flush()
        got = json.loads(process.stdout.readline())
        assert (got["type"], got["delivery_key"], got["envelope"]["body"]) == ("deliver", "1", "to myself")
        process.stdin.write(codec.ack("1").decode() + "\n" + codec.ask_peers().decode() + "\n")
        process.stdin.close()
        process.stdin = None
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (0, "")
        assert json.loads(out)["type"] == "peers"
    assert "0 of 1" in quintet("peer", "listen", "--count", "1", "--timeout", "0.3", url=url, code=1).err


def test_a_pipe_whose_register_is_refused(broker: Server) -> None:
    with process_of("peer", "stdio", "--url", broker.peer("x").partition("?")[0]) as process:
        assert process.stdin is not None
        process.stdin.write(codec.register("wrong", "x").decode() + "\n")
        process.stdin.flush()
        assert process.wait(WAIT_S) == 1
        assert process.stderr is not None
        assert "invalid bearer token (1008)" in process.stderr.read()


def test_pub_and_sub_through_peerbus(quintet: Commands, broker: Server) -> None:
    bob = broker.peer("cli.subscriber")
    quintet("peer", "list", url=bob)
    sent = quintet("pub", "peerbus/cli.subscriber", "hello", '{"n":1}', url=broker.peer("cli.publisher"))
    assert sent.out == "2 messages to peerbus/cli.subscriber: read by the broker\n"
    got = quintet("sub", "peerbus/cli.subscriber", "--count", "2", "--format", "json", url=bob)
    rows = [json.loads(line) for line in got.lines]
    assert [row["value"] for row in rows] == ['"hello"', '{"n":1}']
    assert {row["origin"] for row in rows} == {"cli.publisher"}
    assert "mailbox" in got.err or "name of its peer" in got.err
    assert "one mailbox" in quintet("sub", "orders", "--count", "1", url=bob, code=2).err


def test_pub_and_sub_through_fast(quintet: Commands, broker: Server) -> None:
    assert quintet("pub", "cli.fast", "a", "b", url=broker.fast).out == "2 messages to cli.fast: durable\n"
    got = quintet("sub", "cli.fast", "--count", "2", url=broker.fast)
    assert got.lines == ["a", "b"], "the queue was made by its first use, durable, and kept them"
    other = f"fast://:{broker.token('eve', 'another key')}@127.0.0.1:{broker.ports['fast']}"
    assert "another key" in quintet("pub", "cli.fast", "x", url=other, code=1).err
    assert quintet("pub", "cli.fast", "a", "--ttl", "1", url=broker.fast).out == "1 message to cli.fast: durable\n"
