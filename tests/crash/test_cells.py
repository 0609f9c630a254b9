"""A cell over a real Kafka, thin: a leader killed, a leader stopped and woken, and what a node says of a WAL that cannot be one."""

import queue
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quintet.cli.operate import scrape
from quintet.client.blocking import sync
from quintet.log.replicated import kafka
from quintet.log.replicated.kafka import KafkaWal, WalAway, WalIdentity, WalOptions, WalRefused
from quintet.log.replicated.trimming import WalTrimmed
from quintet.model.errors import QuintetError, StorageError
from tests.crash.cells import STAGED_ROWS, Cell
from tests.wire.blipmq import Client, Closed

pytestmark = pytest.mark.crash
ANSWER_S = 60.0
AWAY = "127.0.0.1:1"


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
        check_roles(cell)
        staged = cell.stage()  # handed to a leader that is killed, committed at the next one
        cell.take_over(stop=False)
        cell.commit(staged)
        cell.take_over(stop=True)
        verdict = cell.judge()
        codes = [node.terminate() for node in cell.nodes]
    finally:
        cell.end()
    assert codes == [0, 0], "a leader and a follower stop when they are told to"
    assert not verdict.bad, verdict
    assert verdict.acked > 1_000
    assert (cell.stops, cell.stale_answers) == (1, 0)
    assert cell.verified() == [0, 0, 0, 0]
    expected = sorted(b"row %d" % number for number in range(STAGED_ROWS))
    assert [sorted(rows) for rows in cell.staged_rows()] == [expected, expected]


def check_roles(cell: Cell) -> None:
    """What two nodes say of themselves, one of which leads. On a busy machine the role may move while they are asked."""
    until = time.monotonic() + ANSWER_S
    while True:
        try:
            return roles_are_right(cell)
        except (AssertionError, ValueError, KeyError, Closed, OSError, QuintetError):
            if time.monotonic() > until:
                raise
        for node in cell.nodes:
            node.supervise()
        time.sleep(0.5)


def roles_are_right(cell: Cell) -> None:
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    names = {node: f"n{number}" for number, node in enumerate(cell.nodes)}
    assert leader.ready()[0] == 200
    assert f"[+] cell: {names[leader]} is leader in epoch" in leader.ready()[1]
    code, text = follower.ready()
    assert code == 503
    assert f"{names[leader]} at {leader.door.partition(':')[0]} leads" in text
    assert "its doors lead to the leader's" in text
    for node, role in ((leader, "leader"), (follower, "follower")):
        said = node.status()
        assert (said["node"], said["role"], said["leader"]) == (names[node], role, names[leader])
        assert said["epoch"] >= 1
        assert said["wal_offset"] >= 1
        assert len(said["weaker"]) == 3, "a weaker choice is not kept to oneself"
    assert follower.address == ""
    peer = Client(follower.door).login()  # answered by the leader: the follower has no broker
    counted = scrape.scrape(f"http://{follower.admin}").values
    peer.close()
    assert counted["quintet_forwarded_connections"][("door", "blipmq"),] >= 1
    assert counted["quintet_forwarded_accepted_total"][("door", "blipmq"),] >= 1
    with sync.connect(f"flymq://admin:admin@{leader.listener('flymq')}") as bus:
        told = bus.request("CLUSTER_STATUS")
    [node] = told["nodes"]
    assert (told["cluster_id"], told["node_id"], node["role"]) == ("cell", names[leader], "leader")
    assert node["address"].partition(":")[0] == leader.door.partition(":")[0], "where clients reach it"


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


def test_a_trimmed_wal_says_where_it_begins(servers: str) -> None:
    loop = Loop()
    wal = KafkaWal(weak(servers, "trimmed"), loop.calls.put)
    wal.prepare(None)
    wal.open()
    try:
        answers: list[int] = []
        for number in range(20):
            wal.produce(b"%d" % number, lambda offset, error: answers.append(offset))
        loop.until(lambda: len(answers) == 20)
        assert (wal.begin, wal.trim(15), wal.begin) == (0, 15, 15)
        assert wal.trim(3) == 15, "what is gone is gone"
        again = KafkaWal(weak(servers, "trimmed"), loop.calls.put)
        again.prepare(None)
        assert again.begin == 15
        found: list[tuple[int, bytes]] = []
        failures: list[StorageError] = []
        wal.read_from(15, lambda offset, record: found.append((offset, record)), failures.append, lambda: False)
        loop.until(lambda: len(found) == 5)
        assert found == [(number, b"%d" % number) for number in range(15, 20)]
        wal.read_from(3, lambda offset, record: found.append((offset, record)), failures.append, lambda: False)
        loop.until(lambda: bool(failures))
        assert isinstance(failures[0], WalTrimmed)
        assert "the WAL begins at offset 15, this node has 3: copy from a peer" in str(failures[0])
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
    with pytest.raises(WalAway, match=r"^E1513: Kafka at 127\.0\.0\.1:1 does not answer"):
        KafkaWal(weak(AWAY, "cell"), lambda call: None).prepare(None)


def test_only_options_of_identity_and_encryption_are_passed_on() -> None:
    with pytest.raises(WalRefused, match='option "acks" is not passed on to Kafka'):
        KafkaWal(WalOptions(AWAY, "cell", client={"acks": "1"}), lambda call: None)


def test_a_weaker_choice_is_named() -> None:
    assert WalOptions(AWAY, "cell").weaknesses() == []
    assert len(weak(AWAY, "cell").weaknesses()) == 3
