"""ALTER_TOPIC, PURGE_TOPIC, MATCH_TOPICS, many CREATE_TOPIC at once, and a topic that METADATA makes."""

import errno

import pytest

from quintet import kernel
from quintet.broker.sections import DeliverySection
from quintet.model.errors import TopicNotFound
from quintet.protocols.flymq import frames
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import SECOND, Client, make_sim, power_cut, request

DEAD = DeliverySection().dead_letter_suffix


@pytest.fixture
def sim() -> SimBroker:
    return make_sim()


def alter(client: Client, durability: str = "", retention_ms: int = -1, retention_bytes: int = -1) -> dict[str, object]:
    return client.ask(
        "ALTER_TOPIC", topic="t", durability=durability, retention_ms=retention_ms, retention_bytes=retention_bytes
    )


def test_a_topic_is_altered_and_says_what_it_is_now(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    client.ask("CREATE_TOPIC", topic="t", partitions=2)
    before = alter(client)
    assert before == {"partitions": 2, "durability": "fsync", "retention_ms": 0, "retention_bytes": 0}
    assert alter(client, "interval", 5_000) == before | {"durability": "interval", "retention_ms": 5_000}
    assert alter(client, retention_bytes=9) == before | {
        "durability": "interval", "retention_ms": 5_000, "retention_bytes": 9,
    }  # fmt: skip
    assert alter(client, "fsync", 0, 0) == before
    assert client.refused("ALTER_TOPIC", topic="t", durability="never", retention_ms=-1, retention_bytes=-1) == "E1101"
    assert client.refused("ALTER_TOPIC", topic="t", durability="", retention_ms=-2, retention_bytes=-1) == "E1101"
    assert client.refused("ALTER_TOPIC", topic="u", durability="", retention_ms=-1, retention_bytes=-1) == "E1301"


def test_a_look_at_a_memory_topic_does_not_make_it_durable(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    topic = sim.broker.topics.ensure(b"t", durable=False)
    assert alter(client)["durability"] == "memory"
    assert client.refused("ALTER_TOPIC", topic="t", durability="", retention_ms=5_000, retention_bytes=-1) == "E1101"
    assert topic.in_memory
    assert alter(client, "os", 5_000) == {
        "partitions": 1, "durability": "os", "retention_ms": 5_000, "retention_bytes": 0,
    }  # fmt: skip
    assert not topic.in_memory


def test_a_change_that_the_log_refuses_is_not_made_and_leaves_no_row(sim: SimBroker) -> None:
    """A memory topic whose messages cannot be written out stays what it was: behind a restart there is no row of it."""
    client = Client(sim, "admin")
    client.ask("CREATE_TOPIC", topic="other", partitions=1)  # so that the next folder made is that of the topic
    topic = sim.broker.topics.ensure(b"t", durable=False)
    topic.publish(kernel.build([b"kept"]), 1, False, None)
    sim.scheduler.run_until_idle()
    sim.disk.fail("mkdir", 1, errno.ENOSPC)
    assert client.refused("ALTER_TOPIC", topic="t", durability="os", retention_ms=5_000, retention_bytes=-1) == "E1501"
    assert topic.in_memory and not topic.waiting and client.values("t") == [b"kept"]
    sim.disk.heal()
    power_cut(sim, 1)
    with pytest.raises(TopicNotFound):
        sim.broker.topics.find(b"t")


def test_a_purged_topic_is_empty_and_goes_on_at_its_offset(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    client.ask("CREATE_TOPIC", topic="t", partitions=1)
    for number in range(3):
        client.ask("PRODUCE", topic="t", key=b"", value=b"%d" % number, partition=0)
    assert client.ask("PURGE_TOPIC", topic="t") == {"success": True, "message": "purged"}
    (partition,) = client.ask("METADATA", topic="t")["partitions"]
    assert (partition["oldest"], partition["newest"]) == (3, 3)
    assert client.ask("PRODUCE", topic="t", key=b"", value=b"new", partition=0)["offset"] == 3
    found = client.ask("FETCH", topic="t", partition=0, offset=3, max=10)
    assert [(row["offset"], row["value"]) for row in found["messages"]] == [(3, b"new")]
    assert client.ask("PURGE_TOPIC", topic="t")["success"] and client.ask("PURGE_TOPIC", topic="t")["success"]
    assert client.refused("PURGE_TOPIC", topic="nowhere") == "E1301"
    assert client.refused("PURGE_TOPIC", topic="t" + DEAD) == "E1101"


def test_topics_are_matched_once_for_each_version(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    for name in ("shop.a", "shop.b", "other"):
        client.ask("CREATE_TOPIC", topic=name, partitions=1)
    found = client.ask("MATCH_TOPICS", patterns=["shop.*"], version=0)
    assert (found["changed"], found["topics"]) == (True, ["shop.a", "shop.b"])
    again = client.ask("MATCH_TOPICS", patterns=["shop.*"], version=found["version"])
    assert again == {"version": found["version"], "changed": False, "topics": []}
    client.ask("CREATE_TOPIC", topic="shop.c", partitions=1)
    later = client.ask("MATCH_TOPICS", patterns=["shop.*"], version=found["version"])
    assert (later["changed"], later["topics"]) == (True, ["shop.a", "shop.b", "shop.c"])
    client.ask("DELETE_TOPIC", topic="shop.a")
    assert client.ask("MATCH_TOPICS", patterns=["regex:shop.[ab]"], version=0)["topics"] == ["shop.b"]
    assert client.refused("MATCH_TOPICS", patterns=["regex:("], version=0) == "E1101"
    assert client.refused("MATCH_TOPICS", patterns=[], version=0) == "E1101"


def test_what_one_may_not_read_does_not_match(sim: SimBroker) -> None:
    admin, stranger = Client(sim, "admin"), Client(sim, "guste")
    for name in ("shop.a", "shop.secret"):
        admin.ask("CREATE_TOPIC", topic=name, partitions=1)
    admin.ask("ACL_SET", topic="shop.a", public=True, users=[], roles=[])
    admin.ask("ACL_SET", topic="shop.secret", public=False, users=["admin"], roles=[])
    assert stranger.ask("MATCH_TOPICS", patterns=["shop.*"], version=0)["topics"] == ["shop.a"]
    before = stranger.ask("MATCH_TOPICS", patterns=["shop.*"], version=0)["version"]
    admin.ask("ACL_SET", topic="shop.secret", public=True, users=[], roles=[])
    assert stranger.ask("MATCH_TOPICS", patterns=["*"], version=before)["topics"] == ["shop.a", "shop.secret"]


def test_metadata_makes_a_topic_for_who_may_read_it(sim: SimBroker) -> None:
    admin = Client(sim, "admin")
    assert admin.refused("METADATA", topic="t") == "E1301"
    assert len(admin.ask("METADATA", topic="t", make=True)["partitions"]) == 1
    assert admin.ask("METADATA", topic="t")["topic"] == "t"
    writer = Client(sim, "paula")
    assert writer.refused("METADATA", topic="u", make=True) in ("E1201", "E1301")
    assert admin.refused("METADATA", topic="u") == "E1301"


def syncs_of_creations(sim: SimBroker, count: int) -> int:
    """Creations in one write, a message to the last topic and a list behind them: answered in order."""
    client = Client(sim, "admin")
    creations = [request("CREATE_TOPIC", topic=f"t{number:03d}", partitions=1) for number in range(count)]
    before = sim.disk.calls["fdatasync"]
    last = f"t{count - 1:03d}"
    replies = client.exchange(
        b"".join(creations) + request("PRODUCE", topic=last, key=b"", value=b"x", partition=0) + request("LIST_TOPICS")
    )
    assert len(replies) == count + 2
    assert all(client.read("CREATE_TOPIC", reply)["success"] for reply in replies[:count])
    assert client.read("PRODUCE", replies[count])["offset"] == 0
    assert len(client.read("LIST_TOPICS", replies[count + 1])["topics"]) == count
    return sim.disk.calls["fdatasync"] - before


def test_creations_sent_together_share_a_sync(sim: SimBroker) -> None:
    """One of the rows, one of the audit's, one of the message; a sync for each was 100 (the control)."""
    assert syncs_of_creations(sim, 50) <= 6


def test_creations_that_wait_for_each_other_would_be_seen(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.protocols.flymq.session.RUN_ON", frozenset({frames.PRODUCE}))
    assert syncs_of_creations(sim, 50) > 50


def test_a_creation_behind_one_that_the_disk_refuses_has_its_own_answer(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    sim.disk.fail("pwritev", 1, errno.ENOSPC)
    replies = client.exchange(
        request("CREATE_TOPIC", topic="t", partitions=1)
        + request("CREATE_TOPIC", topic="bad", partitions=-1)
        + request("PRODUCE", topic="t", key=b"", value=b"x", partition=0)
    )
    assert [reply.code == frames.ERROR for reply in replies] == [True, True, True]
    sim.disk.heal()
    sim.advance(3 * SECOND)
    assert client.ask("CREATE_TOPIC", topic="t", partitions=1)["success"]
