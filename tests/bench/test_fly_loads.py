"""The FlyMQ loads are honest: what the generators count is what the servers have, and a short answer fails a run.

Needs cargo, and Kafka (Java) for one of the tests; without them tests are skipped and say so. No test looks at a rate.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.fly import FlyClient, connected
from bench.peer_wires import KafkaWire

from bench import closed_loop, dialogues, floors, peers
from quintet.bench import run
from quintet.bench.flymq import FlymqWire, frame, str16
from quintet.bench.generators import Load, payload_of
from quintet.bench.targets import target
from quintet.bench.wire import BenchError

SECONDS, WARMUP_S = 0.2, 0.1
SIZE = 128
METADATA = 0x04
KAFKA = next(peer for peer in peers.PEER_TABLE if peer.name == "kafka")

needs_cargo = pytest.mark.skipif(
    closed_loop.working_cargo() is None, reason="NO CARGO: the Rust load generator is neither built nor tested"
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Server]:
    with peers.quintet(tmp_path_factory.mktemp("fly"), door="flymq") as server:
        yield server


def held(client: FlyClient, topic: str) -> list[int]:
    """How many messages each partition has: id, leader, oldest and newest of each behind the name and a count."""
    (answer,) = client.ask([frame(METADATA, str16(topic))])
    rows = answer[2 + len(topic) + 4 :]
    return [int.from_bytes(rows[at + 16 : at + 24], "big") for at in range(0, len(rows), 24)]


def test_the_python_generator_counts_what_the_server_has(ours: peers.Server) -> None:
    outcome = run.windows(Load(FlymqWire(), ours.address, "windows", SIZE), 2, 10, depth=2, count=1_000)
    with connected(ours.address) as client:
        assert sum(held(client, "windows")) == outcome.messages >= 1_000


@needs_cargo
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_our_count_is_the_generators(ours: peers.Server, durability: str) -> None:
    with connected(ours.address) as client:
        client.create_topics([durability], 1, durability)
        counted = closed_loop.rounds(Load(FlymqWire(), ours.address, durability, SIZE), 8, 4, SECONDS, WARMUP_S)
        assert 0 < counted.operations < counted.total
        assert held(client, durability) == [counted.total]


@needs_cargo
def test_each_connection_has_its_partition(ours: peers.Server) -> None:
    with connected(ours.address) as client:
        client.create_topics(["each"], 4, "os")
        closed_loop.fill(Load(FlymqWire(), ours.address, "each", SIZE), 8, 5, 3, partitions=4)
        assert held(client, "each") == [2 * 5 * 3] * 4


@needs_cargo
def test_runs_go_through_all_partitions_and_are_read_back(ours: peers.Server) -> None:
    topics, partitions, length = 6, 4, 16
    names = [f"turn.{number:05d}" for number in range(topics)]
    load = Load(FlymqWire(), ours.address, "turn", SIZE)
    shape = {"topics": topics, "partitions": partitions, "run": length}
    with connected(ours.address) as client:
        client.create_topics(names, partitions, "os")
        closed_loop.fill(load, 8, length, topics * partitions // 8, **shape)
        assert [held(client, name) for name in names] == [[length] * partitions] * topics
    counted = closed_loop.fetch(load, 1, 3, SECONDS, held=length, once=1, **shape)
    assert counted.total == counted.operations == topics * partitions * length
    # A frame's head, a count and the next offset in each answer; lengths of key and value and an offset in each row.
    answers = topics * partitions
    assert counted.bytes == answers * (8 + 4 + 8) + counted.total * (SIZE + 16)
    shape["run"] = 4
    assert closed_loop.fetch(load, 8, 2, SECONDS, WARMUP_S, held=length, **shape).operations > 0
    with pytest.raises(BenchError, match="16 messages came where 32 were asked for"):
        closed_loop.fetch(load, 1, 1, SECONDS, held=32, **(shape | {"run": 32}))


@needs_cargo
def test_sendfile_sends_what_fetch_read(ours: peers.Server, tmp_path: Path) -> None:
    load = Load(FlymqWire(), ours.address, "copied", SIZE)
    copy = tmp_path / "copy"
    with connected(ours.address) as client:
        client.create_topics(["copied"], 1, "os")
    closed_loop.fill(load, 1, 100, 5)
    read = closed_loop.fetch(load, 1, 2, SECONDS, run=100, held=500, once=1, save=str(copy))
    assert copy.stat().st_size == read.bytes
    assert copy.read_bytes().count(payload_of(SIZE)[4:]) == 500
    with floors.sendfile(copy) as address:
        assert closed_loop.drain(address).bytes == read.bytes


@needs_cargo
def test_the_echo_is_taken_for_a_server(ours: peers.Server, tmp_path: Path) -> None:
    said = dialogues.learn(dialogues.flymq_dialogue("sync", 100), ours.address)
    with floors.echo(tmp_path / "echo", said.exchanges) as bare:
        counted = closed_loop.rounds(Load(FlymqWire(), bare.address, "sync", 100), 1, 3, SECONDS, WARMUP_S)
    assert 0 < counted.operations <= counted.total


@needs_cargo
def test_a_refused_produce_ends_the_run(ours: peers.Server) -> None:
    with pytest.raises(BenchError, match="did not answer PRODUCE but"):
        closed_loop.rounds(Load(FlymqWire(), ours.address, "", SIZE), 1, 1, SECONDS)


@needs_cargo
def test_kafka_has_what_the_generator_counted(tmp_path: Path) -> None:
    if peers.version(KAFKA) is None:
        pytest.skip("NO KAFKA: the generator's count is not compared with its offsets")
    with peers.kafka(tmp_path / "kafka") as server:
        wire = KafkaWire()
        wire.create_topic(server.address, "loop", 2)
        counted = closed_loop.rounds(Load(wire, server.address, "loop", SIZE), 4, 8, SECONDS, WARMUP_S, partitions=2)
        assert 0 < counted.operations < counted.total
        assert sum(wire.held(server.address, "loop", partition) for partition in (0, 1)) == counted.total
        with pytest.raises(BenchError, match="Kafka refused with error 3"):
            closed_loop.rounds(Load(wire, server.address, "nowhere", SIZE), 1, 1, SECONDS)


def test_answers_may_come_in_any_pieces() -> None:
    wire = FlymqWire()
    stream = frame(1, str16("t"), bytes(28)) * 5
    for cut in range(len(stream) + 1):
        first, rest = wire.answered(1, stream[:cut])
        second, rest = wire.answered(1, rest + stream[cut:])
        assert (first + second, rest) == (5, b"")


def test_a_refusal_ends_the_run_with_its_words() -> None:
    refused = frame(0xFF, b"\0", str16("no such partition"))
    for data in (refused, frame(1, bytes(30)) + refused, frame(1, bytes(len(refused) - 8)) + refused):
        with pytest.raises(BenchError, match="0xff 'no such partition'"):
            FlymqWire().answered(1, data)


def test_a_wrong_password_is_said(ours: peers.Server) -> None:
    with pytest.raises(BenchError, match="AUTH as 'admin' refused"):
        FlymqWire(password="wrong").connect(ours.address)


def test_there_is_no_push_to_measure(ours: peers.Server) -> None:
    with pytest.raises(BenchError, match="no pushed delivery"):
        run.flow(Load(FlymqWire(), ours.address, "flow", SIZE), 10)


def test_a_url_names_user_and_password() -> None:
    found = target("flymq://ann:secret@localhost:7001")
    assert isinstance(found.wire, FlymqWire)
    assert (found.wire.user, found.wire.password, found.address) == ("ann", "secret", ("localhost", 7001))
    assert "secret" not in found.url
    assert target("flymq://localhost").address == ("localhost", 9092)
