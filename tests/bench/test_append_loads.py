"""The loads of the append path are honest: what generators count is what servers have, and the floors keep what they answer.

Needs cargo, and nats-server and RabbitMQ for one test each; without them tests are skipped and say so. No test looks at a rate.
"""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench.dialogues import DIALOGUES, SIZE, blipmq_dialogue, learn
from bench.fly import connected
from bench.harness import Side
from bench.loads_doors import address_of
from bench.loads_many import PREFIX, fill
from bench.peer_wires import NatsWire, RabbitWire
from bench.side_by_side import APPEND, LOADS

from bench import closed_loop, floors, peers
from quintet.bench import run
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.flymq import FlymqWire
from quintet.bench.generators import Load, payload_of
from quintet.bench.machine import open_files, processor_seconds
from quintet.bench.wire import BenchError, read_until
from tests.bench.counts import published

SECONDS, WARMUP_S = 0.2, 0.1
RATE = 500.0
RABBITMQ = next(peer for peer in peers.PEER_TABLE if peer.name == "rabbitmq")

needs_cargo = pytest.mark.skipif(
    closed_loop.working_cargo() is None, reason="NO CARGO: the Rust load generator is neither built nor tested"
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.quintet(tmp_path_factory.mktemp("append")) as server:
        yield server


@needs_cargo
@pytest.mark.parametrize("door", DIALOGUES)
def test_a_message_alone_is_counted_at_every_door(ours: peers.Server, tmp_path: Path, door: str) -> None:
    make, address = DIALOGUES[door], address_of(ours, door)
    said = learn(make(0), address)
    for number in (1, 2):  # a second client must not be given what the first one left
        before = published(ours)
        counted = closed_loop.scripted(door, address, 1, SECONDS, WARMUP_S, said.options(make(number)))
        assert 0 < counted.operations < counted.total == published(ours) - before
    with floors.echo(tmp_path / "echo", said.exchanges) as echo:
        assert closed_loop.scripted(door, echo.address, 1, SECONDS, WARMUP_S, said.options()).operations > 0
        assert processor_seconds(echo.pid) > 0


@needs_cargo
@pytest.mark.parametrize("connections", [1, 8])
def test_the_synced_floor_keeps_what_it_answers(ours: peers.Server, tmp_path: Path, connections: int) -> None:
    said = learn(blipmq_dialogue(), ours.address)
    with floors.synced(tmp_path / "floor", said.exchanges) as floor:
        counted = closed_loop.scripted("floor", floor.address, connections, SECONDS, WARMUP_S, said.options())
    assert counted.total > 0
    kept = (tmp_path / "floor" / "filled").read_bytes()
    assert kept.count(payload_of(SIZE)) == counted.total


@needs_cargo
def test_an_answer_unlike_the_first_one_ends_the_run(ours: peers.Server) -> None:
    said = learn(blipmq_dialogue(), ours.address)
    unnamed = replace(said.dialogue, request=BlipmqWire().encode("", b"x", 1, 1))
    with pytest.raises(BenchError, match="did not answer as it did before"):
        closed_loop.scripted("refused", ours.address, 1, SECONDS, WARMUP_S, said.options(unnamed))


@needs_cargo
def test_a_schedule_sends_what_was_due(ours: peers.Server) -> None:
    before = published(ours)
    load = Load(FlymqWire(), address_of(ours, "flymq"), "scheduled", SIZE, qos=1)
    counted = closed_loop.scheduled(load, 3, RATE, SECONDS, WARMUP_S)
    assert counted.total == int(RATE * (SECONDS + WARMUP_S)) == published(ours) - before
    # The message that is due at the very end of the warm-up is in or out by a nanosecond.
    assert counted.operations in (int(RATE * SECONDS), int(RATE * SECONDS) + 1)
    assert 0 < counted.p50_us <= counted.p99_us <= counted.p999_us


@pytest.mark.parametrize(("topics", "length", "passes"), [(1, 1, 4_001), (7, 1, 1_001), (3, 5, 2)])
def test_passes_that_share_a_write_are_all_sent(ours: peers.Server, topics: int, length: int, passes: int) -> None:
    before = published(ours)
    load = Load(BlipmqWire(), ours.address, f"pass{topics}", SIZE, qos=1)
    outcome = run.rotating(load, topics, length, passes)
    assert outcome.messages == topics * length * passes == published(ours) - before


def test_nats_delivers_what_the_generator_counted(tmp_path: Path) -> None:
    if peers.find("nats-server") is None:
        pytest.skip("NO NATS: the generator's count is not compared with what a subscriber gets")
    with peers.nats(tmp_path / "nats", jetstream=False) as server, NatsWire().connect(server.address) as sock:
        NatsWire().subscribe(sock, "spread.*", 0)
        outcome = run.rotating(Load(NatsWire(), server.address, "spread", 16), 5, 1, 20)
        last = b"MSG spread.00004 1 16\r\n"
        got = read_until(sock, lambda data: data.count(last) == 20 and data.endswith(b"\r\n"), "every message")
    assert got.count(b"MSG spread.") == outcome.messages == 100


@needs_cargo
def test_rabbitmq_has_what_the_generator_counted(tmp_path: Path) -> None:
    if peers.version(RABBITMQ) is None:
        pytest.skip("NO RABBITMQ: the generator's count is not compared with its queue's")
    wire = RabbitWire()
    with peers.rabbitmq(tmp_path / "rabbitmq") as server:
        load = Load(wire, server.address, "loop", SIZE, qos=1)
        rounds = closed_loop.rounds(load, 4, 8, SECONDS, WARMUP_S)
        assert wire.held(server.address, "loop") == rounds.total > 0
        counted = closed_loop.scheduled(load, 2, RATE, SECONDS, WARMUP_S)
        assert wire.held(server.address, "loop") == rounds.total + counted.total
        with pytest.raises(BenchError, match="does not say what 'nowhere' holds"):
            wire.held(server.address, "nowhere")


@needs_cargo
def test_each_of_many_topics_gets_one_message(ours: peers.Server) -> None:
    before = published(ours)
    server = replace(ours, address=address_of(ours, "flymq"))
    fill(Side("ours", FlymqWire(), server, True), 100, SIZE)
    assert published(ours) - before == 100
    with connected(server.address) as client:
        assert [client.fetch(f"{PREFIX}.{number:05d}", 0, 0, 10) for number in (0, 42, 99)] == [1, 1, 1]


def test_open_files_are_counted() -> None:
    held = "import sys; files = [open(sys.executable) for _ in range(int(sys.argv[1]))]; print(); sys.stdin.read()"

    def count(files: int) -> int:
        arguments = [sys.executable, "-c", held, str(files)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            counted = open_files(process.pid)
            process.communicate()
        return counted

    assert count(7) - count(0) == 7


def test_the_loads_of_the_append_path_are_loads() -> None:
    assert set(APPEND) <= set(LOADS)
