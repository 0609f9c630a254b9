"""The Rust load generator is honest: what it counts is what the servers have, and its bytes are those of the others.

Needs cargo, and Redis for one of the tests; without them the tests are skipped and say so. No test looks at a rate.
"""

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peer_wires import RedisWire

from bench import closed_loop, peers
from quintet.bench import flymq
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.flymq import FlymqWire
from quintet.bench.generators import Load, encode_varied
from quintet.bench.wire import BenchError, Wire
from tests.bench.counts import published

SECONDS, WARMUP_S = 0.2, 0.1
CONNECTIONS, IN_FLIGHT = 8, 4
SIZE = 128
ACK = b"\0\0\0\x11\x05" + bytes(16)
# Nobody else dials this: a client of another test may still look for its broker on the port we are given.
ALONE = "127.0.0.9"
# How many bytes a generator opens with, and what a server answers to them.
HANDSHAKES = {
    "quintet blipmq": (2 * 13 + 2 + 2 + len("dev-key"), 2 * ACK),
    "quintet flymq": (8 + 2 * (2 + len("admin")), flymq.frame(flymq.AUTH_RESPONSE, b"\1", bytes(8))),
    "redis streams": (6, b"+PONG\r\n"),
}

pytestmark = pytest.mark.skipif(
    closed_loop.working_cargo() is None, reason="NO CARGO: the Rust load generator is neither built nor tested"
)


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[peers.Server]:
    with peers.quintet(tmp_path / "quintet") as server:
        yield server


def test_our_count_is_the_generators(ours: peers.Server) -> None:
    load = Load(BlipmqWire(), ours.address, "loop", SIZE, qos=1)
    assert published(ours) == 0
    counted = closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, SECONDS, WARMUP_S)
    assert 0 < counted.operations < counted.total
    assert counted.total % IN_FLIGHT == 0
    assert 0 < counted.p50_us <= counted.p99_us
    assert published(ours) == counted.total


def redis_says(address: tuple[str, int], command: bytes) -> bytes:
    with socket.create_connection(address) as sock:
        sock.sendall(command + b"\r\nQUIT\r\n")
        with sock.makefile("rb") as answer:
            return answer.read()


def test_redis_has_what_the_generator_counted(tmp_path: Path) -> None:
    if peers.find("redis-server") is None:
        pytest.skip("NO REDIS: the generator's count is not compared with XLEN")
    with peers.redis(tmp_path / "redis", durable=True) as server:
        load = Load(RedisWire(), server.address, "loop", SIZE, qos=1)
        counted = closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, SECONDS, WARMUP_S)
        assert 0 < counted.operations < counted.total
        assert redis_says(server.address, b"XLEN loop") == b":%d\r\n+OK\r\n" % counted.total


@pytest.mark.parametrize("wire", [BlipmqWire(), RedisWire(), FlymqWire()], ids=["blipmq", "redis", "flymq"])
def test_its_rounds_are_those_of_the_python_generator(wire: Wire) -> None:
    """A listener of our own that answers the handshake and keeps what comes next."""
    asked, answer = HANDSHAKES[wire.name]
    with socket.create_server((ALONE, 0)) as listener:
        load = Load(wire, listener.getsockname(), "loop", SIZE, qos=1)
        wanted = bytes(encode_varied(load, IN_FLIGHT)) + wire.barrier(1)
        words = closed_loop.command(load, 1, IN_FLIGHT, SECONDS, WARMUP_S)
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            sock, _ = listener.accept()
            with sock, sock.makefile("rb") as stream:
                assert len(stream.read(asked)) == asked
                sock.sendall(answer)
                assert stream.read(len(wanted)) == wanted
            said, why = process.communicate()
        assert process.returncode == 1
        assert b'"errors":1' in said
        assert b"closed a connection" in why or b"failed" in why


def test_a_refused_publish_ends_the_run(ours: peers.Server) -> None:
    with pytest.raises(BenchError, match="sent no PONG but"):
        closed_loop.rounds(Load(BlipmqWire(), ours.address, "", SIZE, qos=1), 1, 1, SECONDS)


def test_without_cargo_the_python_generator_takes_over(
    ours: peers.Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    closed_loop.program.cache_clear()
    try:
        assert closed_loop.generator() == closed_loop.PYTHON
        assert "no cargo here" in capsys.readouterr().out
        counted = closed_loop.rounds(Load(BlipmqWire(), ours.address, "loop", SIZE, qos=1), 2, IN_FLIGHT, SECONDS)
        assert counted.total == counted.operations == published(ours)
    finally:
        closed_loop.program.cache_clear()
