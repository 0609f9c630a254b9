"""Kafka in trouble: slow, full, with an authorisation error. Each gives a clear sentence with a code, and goes on by itself where it can.

Away and wrong settings are in test_cells.py; a full disk of Kafka and a Kafka that was restored from a backup in test_kafka_disks.py.
One broker for all of it: anybody may do anything on its plain listener, and the user `quintet` what tests grant it by SASL.
"""

import contextlib
import queue
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bench import peers
from quintet.log.replicated import kafka
from quintet.log.replicated.kafka import KafkaWal, WalAway, WalNotStored, WalOptions, WalRefused
from quintet.log.replicated.records import WalError
from tests.crash import load, reader
from tests.crash.cells import SMALL_JAVA, NodeProcess, shared_port
from tests.crash.load import History

pytestmark = pytest.mark.crash
ANSWER_S = 60.0
TURN_S = 0.1
OTHER_CLUSTER = "Bk3sIYrSQsGJx0jXkq7q2A"
PASSWORD = "right"
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_quintet="{PASSWORD}" user_stranger="{PASSWORD}";'
)
Granted = Callable[..., None]


class Secured:
    """A broker with two listeners."""

    def __init__(self, folder: Path) -> None:
        self.sasl_port = peers.free_port()
        self._more = (
            f"listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port},CONTROLLER://127.0.0.1:{{control}}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.sasl_plaintext.plain.sasl.jaas.config={JAAS}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "super.users=User:ANONYMOUS\n"
        )
        self._running = peers.kafka(folder, SMALL_JAVA, self._more)

    def __enter__(self) -> "Secured":
        server = self._running.__enter__()
        self.process = server.process
        self.plain = f"127.0.0.1:{server.address[1]}"
        self.sasl = f"127.0.0.1:{self.sasl_port}"
        return self

    def __exit__(self, *found: object) -> None:
        self.process.send_signal(signal.SIGCONT)
        self._running.__exit__(None, None, None)

    def grant(self, topic: str, *operations: str) -> None:
        from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, and not in its __all__
            AclBinding,
            AclOperation,
            AclPermissionType,
            AdminClient,
            ResourcePatternType,
            ResourceType,
        )

        place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:quintet", "*")
        rules = [AclBinding(*place, AclOperation[name], AclPermissionType.ALLOW) for name in operations]
        admin = AdminClient({"bootstrap.servers": self.plain})
        for made in admin.create_acls(rules).values():
            made.result(ANSWER_S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")
    with Secured(tmp_path_factory.mktemp("kafka")) as started:
        yield started


class Reports:
    """Takes what a WAL hands over, and what it reports."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.said: list[tuple[str, dict[str, object]]] = []

    def report(self, event: str, fields: dict[str, object]) -> None:
        self.said.append((event, fields))

    def until(self, done: Callable[[], bool]) -> None:
        until = time.monotonic() + ANSWER_S
        while not done():
            assert time.monotonic() < until, self.said
            try:
                self.calls.get(timeout=TURN_S)()
            except queue.Empty:
                continue

    def troubles(self) -> list[str]:
        return [f"{fields['code']}: {fields['problem']}" for event, fields in self.said if event == "wal_trouble"]


def options(servers: str, topic: str, **client: str) -> WalOptions:
    """What one broker can promise."""
    return WalOptions(servers, topic, replication=1, min_insync=1, flush_messages=0, client=client)


def as_user(broker: Secured, topic: str, password: str = PASSWORD) -> WalOptions:
    identity = {"sasl.mechanism": "PLAIN", "sasl.username": "quintet", "sasl.password": password}
    return options(broker.sasl, topic, **{"security.protocol": "sasl_plaintext", **identity})


def prepared(chosen: WalOptions) -> str:
    with pytest.raises(WalError) as caught:
        KafkaWal(chosen, lambda call: None).prepare(None)
    return str(caught.value)


def test_a_wrong_password_is_said_to_be_wrong(broker: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "ASK_S", 3.0)
    said = prepared(as_user(broker, "cell", "wrong"))
    assert said.startswith(f"E1512: Kafka at {broker.sasl} does not accept who this node is")
    assert said.endswith("(check cell.sasl_* and cell.tls_*)")


def test_missing_rights_are_named_and_granted_ones_work_by_themselves(broker: Secured) -> None:
    mine = as_user(broker, "granted")
    assert "E1512: " in (said := prepared(mine)) and 'does not let this node use topic "granted"' in said
    assert "grant its user Describe, Create, DescribeConfigs, Read and Write" in said
    broker.grant("granted", "DESCRIBE", "CREATE", "DESCRIBE_CONFIGS", "READ")
    loop, answers = Reports(), list[tuple[int, str]]()
    wal = KafkaWal(mine, loop.calls.put, loop.report)
    wal.prepare(None)
    wal.open()
    try:
        wal.produce(b"first", lambda offset, error: answers.append((offset, error)))
        loop.until(lambda: bool(answers))
        assert answers[0][0] == -1
        assert any(said.startswith("E1512: ") and "does not let this node use" in said for said in loop.troubles())
        broker.grant("granted", "WRITE")
        while answers[-1][1]:  # each is a claim: a node tries again by itself
            answers.append((-2, ""))  # not answered yet
            wal.produce(b"again", lambda offset, error: answers.append((offset, error)))
            loop.until(lambda: answers[-1][0] != -2)
        assert answers[-1][0] == 0, "nothing that was refused is there"
        loop.until(lambda: loop.said[-1][0] == "wal_well")
    finally:
        wal.close()


def test_a_full_kafka_is_told_from_one_that_is_away() -> None:
    from confluent_kafka import KafkaError

    loop = Reports()
    wal = KafkaWal(options("kafka:9092", "cell"), loop.calls.put, loop.report)
    for code, kind, words in (
        (KafkaError.KAFKA_STORAGE_ERROR, WalNotStored, "E1514: Kafka at kafka:9092 stores nothing"),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, WalNotStored, "E1514"),
        (KafkaError.NOT_ENOUGH_REPLICAS, WalNotStored, "E1514"),
        (KafkaError._ALL_BROKERS_DOWN, WalAway, "E1513: Kafka at kafka:9092 does not answer"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, WalAway, 'E1513: Kafka at kafka:9092 has no topic "cell"'),
        (KafkaError.POLICY_VIOLATION, WalRefused, "E1512: Kafka at kafka:9092 refuses topic"),
    ):
        wal._heard(KafkaError(code))
        loop.calls.get()()
        assert loop.troubles()[-1].startswith(words), loop.troubles()
        assert kind.code in words
    wal._heard(KafkaError(KafkaError.KAFKA_STORAGE_ERROR))
    loop.calls.get()()
    assert len(loop.said) == 6, "a sentence is said once"


@pytest.mark.timeout(600)
def test_a_leader_over_a_slow_kafka_ends_and_leads_again(broker: Secured, tmp_path: Path) -> None:
    history = History(1)
    node = NodeProcess(tmp_path, 0, (broker.plain, "slow"), shared_port(), sabotage=False)
    try:
        address = leading(node)
        running = load.Load(history, address, consume=False)
        running.wait_for(200)
        broker.process.send_signal(signal.SIGSTOP)
        assert node.process.wait(ANSWER_S) == 75
        running.stop()
        assert "node n0 left its cell: E1516: its lease is over: Kafka confirmed nothing for 4 s" in node.said()
        node.start()
        assert node.process.wait(ANSWER_S) == 1
        assert f"quintet: E1513: Kafka at {broker.plain} does not answer" in node.said()
        broker.process.send_signal(signal.SIGCONT)
        publish_when_it_leads(history, node)
        verdict = load.judge(history, load.topics_of(reader.read(node.data)))
        assert not verdict.bad, verdict
        assert verdict.acked > 200
        assert node.terminate() == 0
    finally:
        broker.process.send_signal(signal.SIGCONT)
        node.end()


def leading(node: NodeProcess) -> str:
    until = time.monotonic() + ANSWER_S
    while not node.address:
        assert time.monotonic() < until, node.said()[-2000:]
        assert node.process.poll() is None, node.said()[-2000:]
        time.sleep(TURN_S)
    return node.address


def publish_when_it_leads(history: History, node: NodeProcess) -> None:
    """A Kafka that wakes up on a busy machine may be too slow once more, and the node ends once more: then it is started again."""
    until = time.monotonic() + ANSWER_S
    while True:
        node.supervise()
        with contextlib.suppress(OSError):
            if node.address:
                history.probe(node.address)
                return
        assert time.monotonic() < until, node.said()[-2000:]
        time.sleep(TURN_S)


@pytest.mark.timeout(600)
def test_another_cluster_behind_the_addresses_ends_readers_and_leaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")
    monkeypatch.setattr(kafka, "CLUSTER_S", 0.5)
    loop, ended = Reports(), dict[str, str]()

    def note(name: str, error: Exception) -> None:
        ended.setdefault(name, str(error))

    wals: dict[str, KafkaWal] = {}
    with peers.kafka(tmp_path / "one", SMALL_JAVA) as one:
        servers = f"127.0.0.1:{one.address[1]}"
        for name in ("reads", "leads"):
            wal = wals[name] = KafkaWal(options(servers, "cell"), loop.calls.put, loop.report)
            wal.on_replaced = partial(note, name)
            wal.prepare(None)
            wal.open()
        answers = list[int]()
        wals["leads"].produce(b"first", lambda offset, error: answers.append(offset))
        wals["reads"].read_from(0, lambda offset, record: answers.append(offset), lambda error: None, lambda: False)
        loop.until(lambda: answers == [0, 0])
        time.sleep(4 * kafka.CLUSTER_S)
        assert not ended, "it is the same cluster"
    try:
        (tmp_path / "other").mkdir()
        shutil.copy(tmp_path / "one" / "ports.json", tmp_path / "other")
        monkeypatch.setattr(peers, "KAFKA_CLUSTER", OTHER_CLUSTER)
        with peers.kafka(tmp_path / "other", SMALL_JAVA):
            loop.until(lambda: ended.keys() == wals.keys())
    finally:
        for wal in wals.values():
            wal.close()
    for said in ended.values():
        assert said.startswith(f"E1512: {servers} is the Kafka cluster {OTHER_CLUSTER}; this node's log belongs to")


def test_a_kafka_that_is_away_later_is_said_to_be_once() -> None:
    loop = Reports()
    wal = KafkaWal(options("127.0.0.1:1", "cell"), loop.calls.put, loop.report)
    wal.open()
    wal.read_from(0, lambda offset, record: None, lambda error: None, lambda: False)
    try:
        loop.until(lambda: bool(loop.said))
        assert loop.troubles()[0].startswith("E1513: Kafka at 127.0.0.1:1 does not answer")
        assert len(set(loop.troubles())) == len(loop.troubles())
    finally:
        wal.close()
