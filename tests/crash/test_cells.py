"""A cell over a real Kafka, thin: a leader killed, a leader stopped and woken, and what a node says of a WAL that cannot be one."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import peers
from quintet.log.replicated import kafka
from quintet.log.replicated.kafka import KafkaWal, WalAway, WalIdentity, WalOptions, WalRefused
from quintet.model.errors import StorageError
from tests.crash.cells import SMALL_JAVA, Cell

pytestmark = pytest.mark.crash
ANSWER_S = 60.0
AWAY = "127.0.0.1:1"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not any(peers.KAFKA_JARS.glob("kafka_2.13-*.jar")) or peers.find("java") is None:
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install)")
    with peers.kafka(tmp_path_factory.mktemp("kafka"), SMALL_JAVA) as started:
        yield f"{started.address[0]}:{started.address[1]}"


class Loop:
    """Takes what the threads of the transport hand over."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.calls.get(timeout=ANSWER_S)()


def weak(servers: str, topic: str) -> WalOptions:
    """What one broker can promise."""
    return WalOptions(servers, topic, replication=1, min_insync=1, flush_messages=0)


@pytest.mark.timeout(600)
def test_nothing_is_lost_when_a_leader_is_killed_or_stopped(servers: str, tmp_path: Path) -> None:
    cell = Cell(tmp_path, servers, "cell", seed=1)
    try:
        cell.take_over(stop=False)
        cell.take_over(stop=True)
        verdict = cell.judge()
    finally:
        cell.end()
    assert not verdict.bad, verdict
    assert verdict.acked > 1_000
    assert (cell.stops, cell.stale_answers) == (1, 0)
    assert cell.verified() == [0, 0, 0, 0]


def test_records_come_back_from_any_offset(servers: str) -> None:
    loop = Loop()
    wal = KafkaWal(weak(servers, "plain"), loop.calls.put)
    wal.prepare(None)
    wal.open()
    try:
        answers: list[tuple[int, str]] = []
        for number in range(20):
            wal.produce(b"%d" % number, lambda offset, error: answers.append((offset, error)))
        loop.until(lambda: len(answers) == 20)
        assert answers == [(number, "") for number in range(20)]
        found: list[tuple[int, bytes]] = []
        failures: list[StorageError] = []
        wal.read_from(15, lambda offset, record: found.append((offset, record)), failures.append, lambda: False)
        loop.until(lambda: len(found) == 5)
        assert found == [(number, b"%d" % number) for number in range(15, 20)]
        asked: list[bool] = []

        def full_at_first() -> bool:
            asked.append(not asked)
            return asked[-1]

        wal.read_from(18, lambda offset, record: found.append((offset, record)), failures.append, full_at_first)
        loop.until(lambda: len(found) == 7)
        assert asked[:2] == [True, False]
        wal.read_from(1_000, lambda offset, record: found.append((offset, record)), failures.append, lambda: False)
        loop.until(lambda: bool(failures))
        assert "no longer has WAL offset 1000" in str(failures[0])
    finally:
        wal.close()


def refusal(options: WalOptions, known: WalIdentity | None = None) -> str:
    with pytest.raises(WalRefused) as caught:
        KafkaWal(options, lambda call: None).prepare(known)
    return str(caught.value)


def test_a_wal_that_promises_less_is_refused_with_a_sentence(servers: str) -> None:
    known = KafkaWal(weak(servers, "checked"), lambda call: None).prepare(None)
    assert KafkaWal(weak(servers, "checked"), lambda call: None).prepare(known) == known
    assert "has 1 replicas; 3 are configured" in refusal(WalOptions(servers, "checked"))
    assert "cannot have 3 replicas" in refusal(WalOptions(servers, "three"))
    assert "has min.insync.replicas=1; the WAL needs 2" in refusal(WalOptions(servers, "checked", 1, 2, 0))
    assert "the WAL needs 1 (kafka-configs --alter" in refusal(WalOptions(servers, "checked", 1, 1, 1))
    moved = WalIdentity("elsewhere", known.topic)
    assert "this node's log belongs to elsewhere" in refusal(weak(servers, "checked"), moved)
    remade = WalIdentity(known.cluster, "another")
    assert "was deleted and made again" in refusal(weak(servers, "checked"), remade)


def test_kafka_that_is_away_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "ASK_S", 1.0)
    with pytest.raises(WalAway, match="does not answer within"):
        KafkaWal(weak(AWAY, "cell"), lambda call: None).prepare(None)


def test_only_options_of_identity_and_encryption_are_passed_on() -> None:
    with pytest.raises(WalRefused, match='option "acks" is not passed on to Kafka'):
        KafkaWal(WalOptions(AWAY, "cell", client={"acks": "1"}), lambda call: None)


def test_a_weaker_choice_is_named() -> None:
    assert WalOptions(AWAY, "cell").weaknesses() == []
    assert len(weak(AWAY, "cell").weaknesses()) == 3
