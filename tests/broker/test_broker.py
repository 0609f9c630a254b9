"""The broker's own promises on a simulated disk: topics and their durability, tables, rights, idle subscriptions."""

import ast
import re
from pathlib import Path
from random import Random

import pytest

from quintet import kernel
from quintet.broker import core
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Credential, Principal, hash_secret
from quintet.broker.sections import DeliverySection
from quintet.broker.topics.names import check_name
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model.errors import AuthError, BadName, Forbidden, LimitExceeded, ShuttingDown
from quintet.protocols.doors import PROTOCOLS
from quintet.testing.line import SimBroker
from quintet.testing.sim import SimScheduler

ANY = Principal("any")
DAY = 24 * 3600 * 1_000_000


def append(sim: SimBroker, name: bytes, value: bytes, durable: bool) -> list[tuple[int, Exception | None]]:
    told: list[tuple[int, Exception | None]] = []
    topic = sim.broker.publish_target(ANY, name, durable)
    topic.publish(
        kernel.build([value], origin=b"test:any"), 1, durable, lambda offset, error: told.append((offset, error))
    )
    sim.scheduler.run_until_idle()
    return told


def durability(sim: SimBroker, name: bytes) -> str:
    topic = sim.broker.topics.get(name)
    assert topic is not None
    return topic.spec.durability


def values(sim: SimBroker, name: bytes) -> list[bytes | None]:
    topic = sim.broker.topics.get(name)
    assert topic is not None
    return [row[3] for batch in topic.partitions[0].read_now(0) for row in batch.rows()]


def cut_power(sim: SimBroker, seed: int) -> None:
    sim.log.abandon()
    sim.disk.crash(Random(seed))
    sim.scheduler = SimScheduler()
    sim.start()


def test_a_memory_topic_becomes_durable_with_its_first_durable_use() -> None:
    sim = SimBroker()
    append(sim, b"t", b"volatile", durable=False)
    assert durability(sim, b"t") == "memory"
    assert append(sim, b"t", b"kept", durable=True) == [(1, None)]
    assert durability(sim, b"t") == "fsync"
    cut_power(sim, 3)
    assert values(sim, b"t") == [b"volatile", b"kept"]


def test_a_rule_of_the_configuration_is_not_overruled_by_traffic() -> None:
    rules = [TopicRule("fast*", durability="memory"), TopicRule("*")]
    sim = SimBroker(options=BrokerOptions(topics=TopicPolicy(rules)))
    append(sim, b"fast/1", b"x", durable=True)
    assert durability(sim, b"fast/1") == "memory"


@pytest.mark.parametrize("seed", range(25))
def test_an_acknowledged_first_publish_and_its_topic_survive_a_power_cut(seed: int) -> None:
    sim = SimBroker()
    for number in range(4):
        assert append(sim, b"topic-%d" % number, b"v", durable=True) == [(0, None)]
    cut_power(sim, seed)
    for number in range(4):
        assert values(sim, b"topic-%d" % number) == [b"v"]


def test_a_topic_number_is_never_used_again() -> None:
    sim = SimBroker()
    append(sim, b"a", b"v", durable=True)
    first = sim.broker.topics.get(b"a")
    sim.restart()
    append(sim, b"b", b"v", durable=True)
    second = sim.broker.topics.get(b"b")
    assert first is not None
    assert second is not None
    assert second.spec.id > first.spec.id


def test_topics_are_bounded() -> None:
    sim = SimBroker(options=BrokerOptions(topics=TopicPolicy([TopicRule("*")], topics_max=2)))
    append(sim, b"a", b"v", durable=False)
    append(sim, b"b", b"v", durable=False)
    with pytest.raises(LimitExceeded, match="topic 'c' was not made"):
        append(sim, b"c", b"v", durable=False)


@pytest.mark.parametrize("raw", [b"", b"x" * 256, b"\xff", b"a\0b", b"__topics"])
def test_bad_names(raw: bytes) -> None:
    with pytest.raises(BadName):
        check_name(raw)


@pytest.mark.parametrize("name", ["..", "/", "../../etc/passwd", "a\\b", "\u202eevil", "e\u0301", "é", "con"])
def test_hostile_names_are_just_names_and_never_paths(name: str) -> None:
    sim = SimBroker()
    assert append(sim, name.encode(), b"v", durable=True) == [(0, None)]
    sim.restart()
    assert values(sim, name.encode()) == [b"v"]
    assert all(part.isdecimal() for part in sim.disk.listdir("/data/topics"))


def test_rights_are_checked_by_name_and_prefix() -> None:
    principal = Principal("p", publish=("orders", "logs/*"), subscribe=())
    assert principal.may("publish", "orders")
    assert principal.may("publish", "logs/a")
    assert not principal.may("publish", "orders2")
    assert not principal.may("subscribe", "orders")
    assert not Principal("root").may("publish", "__credentials")
    sim = SimBroker()
    with pytest.raises(Forbidden, match="p may not publish on topic 'other'"):
        sim.broker.publish_target(principal, b"other", True)


def test_credentials_live_in_the_log_as_hashes_and_are_replaced_whole() -> None:
    sim = SimBroker(keys={"a": "key-a", "b": "key-b"})
    sim.broker.set_credentials([Credential("a", hash_secret(b"key-a"))])
    sim.scheduler.run_until_idle()
    assert sim.broker.authenticate(b"key-a")[1].name == "a"
    with pytest.raises(AuthError):
        sim.broker.authenticate(b"key-b")
    folder = "/data/topics/00000002/0"
    stored = b"".join(sim.disk.read_file(f"{folder}/{name}") or b"" for name in sim.disk.listdir(folder))
    assert b"key-a" not in stored
    assert hash_secret(b"key-a").encode() in stored


def test_an_idle_subscription_is_forgotten_and_said_so() -> None:
    sim = SimBroker(options=BrokerOptions(delivery=DeliverySection(subscription_idle_seconds=86_400)))
    topic = sim.broker.topics.ensure(b"t", durable=True)
    sim.broker.subscriptions.create("dev", topic, 1, door="blipmq")
    sim.scheduler.run_until_idle()
    sim.advance(2 * DAY, step_us=DAY)
    assert len(sim.broker.subscriptions) == 0
    assert not topic.subscriptions
    assert [event for event, _ in sim.reports] == ["subscription_expired"]
    sim.restart()
    assert len(sim.broker.subscriptions) == 0


def test_a_draining_broker_refuses_publishes() -> None:
    sim = SimBroker()
    sim.broker.draining = True
    with pytest.raises(ShuttingDown):
        sim.broker.publish_target(ANY, b"t", True)


# -- who asks what ------------------------------------------------------------------------------------------------------


def asked(files: list[Path]) -> set[str]:
    """The attributes of the broker that these files name."""
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
                if owner in ("broker", "_broker"):
                    found.add(node.attr)
    return found


def test_a_session_asks_what_the_table_of_verbs_lists() -> None:
    table = re.findall(r"^    (\w+) {2,}((?:\w+,\s+)*\w+)$", core.__doc__ or "", re.MULTILINE)
    rows = {door: set(re.split(r",\s+", names)) for door, names in table}
    assert rows.keys() == {"every", *PROTOCOLS}
    assert all(hasattr(SimBroker().broker, name) for name in set().union(*rows.values()))
    root = Path(core.__file__).parents[1] / "protocols"
    for door in PROTOCOLS:
        assert asked([*(root / door).glob("*.py")]) - rows["every"] == rows.get(door, set()), door
    example = Path(__file__).parents[2] / "examples" / "line_door.py"
    assert asked([example]) <= rows["every"]
    assert {"access", "listen", "leave"} <= asked([example]), "nothing would be found"
