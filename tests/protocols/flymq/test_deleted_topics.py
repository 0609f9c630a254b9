"""Where parts of the broker meet: topics that go while others hold them, waits that are over, disks that are nearly full."""

import errno
import gc
import weakref

import pytest

from quintet import kernel
from quintet.model.errors import TopicNotFound
from quintet.protocols.flymq import frames
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import SECOND, Client, Reply, error_of, make_sim, parse, request


@pytest.fixture
def sim() -> SimBroker:
    return make_sim()


def code_of(reply: Reply) -> str:
    return error_of(reply, "document").code if reply.code == frames.ERROR else "OK"


def once(sequence: int, value: bytes = b"v", topic: str = "t") -> bytes:
    return request("PRODUCE", topic=topic, key=b"", value=value, partition=0, producer_id=7, sequence=sequence)


# -- topics that are deleted ------------------------------------------------------------------------------------------


def test_an_idempotent_message_to_a_topic_that_was_deleted_is_answered(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "paula")
    writer.produce("t", b"1")
    admin.ask("DELETE_TOPIC", topic="t")
    assert [code_of(reply) for reply in writer.exchange(once(0))] == ["OK"], "it makes it anew"
    old = sim.broker.topics.find(b"t")
    admin.ask("DELETE_TOPIC", topic="t")
    batch = kernel.build([b"v"], origin=b"test:1")
    with pytest.raises(TopicNotFound):  # whoever still holds the topic is told, and does not wait for ever
        sim.broker.producers.append(old, 0, batch, lambda _offset, _error: None)
    assert sim.broker.producers._opening == {}


def test_who_published_to_a_topic_finds_the_one_made_in_its_place(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "paula")
    assert writer.produce("t", b"old", partition=0) == [0]
    admin.ask("DELETE_TOPIC", topic="t")
    admin.ask("CREATE_TOPIC", topic="t", partitions=3)
    assert writer.produce("t", b"new", partition=2) == [0]
    assert admin.values("t", 2) == [b"new"]


def test_producers_of_deleted_topics_are_forgotten(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "paula")
    producers = sim.broker.producers
    for number in range(3):
        assert code_of(writer.exchange(once(0, topic=f"t{number}"))[0]) == "OK"
        sim.advance(2 * SECOND)  # a snapshot is saved: nothing of it is waiting to be
        admin.ask("DELETE_TOPIC", topic=f"t{number}")
    assert (len(producers._known), len(producers._where), len(producers._table)) == (0, 0, 0)


def test_a_topic_deleted_with_an_idempotent_message_on_its_way(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "paula")
    sim.scheduler.held = True
    writer.peer.feed(once(0) + once(1))
    sim.scheduler.run_until_idle()
    admin.peer.feed(request("DELETE_TOPIC", topic="t"))
    sim.scheduler.run_until_idle()
    sim.scheduler.held = False
    sim.advance(2 * SECOND)
    assert len(parse(writer.peer.take())) == 2, "both are answered, whatever became of them"
    assert [code_of(reply) for reply in parse(admin.peer.take())] == ["OK"]
    assert sim.broker.producers._known == {}


def test_a_memory_topic_deleted_while_it_becomes_durable_stays_deleted(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "paula")
    sim.broker.topics.ensure(b"m", durable=False)
    sim.scheduler.held = True
    writer.peer.feed(request("PRODUCE", topic="m", key=b"", value=b"1", partition=0))
    sim.scheduler.run_until_idle()
    admin.peer.feed(request("DELETE_TOPIC", topic="m"))
    sim.scheduler.run_until_idle()
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [code_of(reply) for reply in parse(writer.peer.take())] == ["E1301"]
    assert [code_of(reply) for reply in parse(admin.peer.take())] == ["OK"]
    sim.restart()
    assert sim.broker.topics.get(b"m") is None


def test_a_topic_deleted_while_it_is_made_and_the_disk_refuses_both(sim: SimBroker) -> None:
    admin, other = Client(sim, "admin"), Client(sim, "admin")
    sim.scheduler.held = True
    admin.peer.feed(request("CREATE_TOPIC", topic="n", partitions=1))
    sim.scheduler.run_until_idle()
    other.peer.feed(request("DELETE_TOPIC", topic="n"))
    sim.disk.fail("pwritev", 1, errno.EIO, 100)
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [code_of(reply) for client in (admin, other) for reply in parse(client.peer.take())] == ["E1502", "E1502"]
    assert sim.broker.topics.get(b"n") is None


def test_a_refused_deletion_leaves_the_topic_there(sim: SimBroker) -> None:
    admin = Client(sim, "admin")
    admin.produce("t", b"1")
    sim.disk.fail("pwritev", 1, errno.ENOSPC)
    assert admin.refused("DELETE_TOPIC", topic="t") == "E1501"
    assert admin.values("t") == [b"1"]
    sim.advance(3 * SECOND)
    assert admin.produce("t", b"2") == [1]


def test_a_deletion_that_a_table_refuses_is_answered_once(sim: SimBroker) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.produce("t", b"1")
    reader.ask("COMMIT", topic="t", group="g", partition=0, offset=1)
    sim.disk.fail("pwritev", 1, errno.EIO)
    assert reader.refused("COMMIT", topic="t", group="g", partition=0, offset=1) != "OK"  # __groups takes nothing more
    assert admin.refused("DELETE_TOPIC", topic="t").startswith("E15")
    assert admin.values("t") == [b"1"]


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_wait_that_is_over(sim: SimBroker) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.produce("t", b"0")
    for offset in range(1, 20):
        reader.peer.feed(request("FETCH", topic="t", partition=0, offset=offset, max=9, filter="", wait_ms=30_000))
        admin.produce("t", b"next")
        assert len(parse(reader.peer.take())) == 1
    assert len(sim.broker._long_polls) == 0
    assert len(sim.scheduler._timers) < 5, "waits that end together share a timer"
    reader.close()
    gone = weakref.ref(reader.peer)
    del reader
    gc.collect()
    assert gone() is None, "a timer still holds the connection"


def test_waits_end_in_their_time_and_never_before(sim: SimBroker) -> None:
    admin, first, second = Client(sim, "admin"), Client(sim, "conny"), Client(sim, "conny")
    admin.produce("t", b"0")
    for client, wait_ms in ((first, 100), (second, 105)):
        client.peer.feed(request("FETCH", topic="t", partition=0, offset=1, max=9, filter="", wait_ms=wait_ms))
    sim.scheduler.advance(99_999)
    sim.scheduler.run_until_idle()
    assert first.peer.take() == second.peer.take() == b""
    sim.scheduler.advance(15_001)
    sim.scheduler.run_until_idle()
    assert len(parse(first.peer.take())) == len(parse(second.peer.take())) == 1


# -- a disk that is nearly full ---------------------------------------------------------------------------------------


def leave_free(sim: SimBroker, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes are left, the floor is 256 MiB."""
    monkeypatch.setattr(sim.log, "_floor_bytes", 256 << 20)
    monkeypatch.setattr(sim.disk, "free_bytes", lambda _path: (free, 1 << 40))


def test_nothing_for_later_is_taken_below_the_floor_of_the_disk(
    sim: SimBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's own tables may still grow there: that room is for offsets and rights, not for messages in disguise."""
    admin = Client(sim, "admin")
    admin.produce("t", b"1")
    open_one = admin.ask("TXN_BEGIN")["txn_id"]
    admin.ask("TXN_PRODUCE", txn_id=open_one, topic="t", data=b"in time")
    leave_free(sim, 1 << 20, monkeypatch)
    sim.advance(3 * SECOND)
    assert sim.log.low_on_space is not None, "the disk is not low: the test tests nothing"
    assert admin.refused("PRODUCE_DELAYED", topic="t", data=b"x", delay_ms=5000) == "E1501"
    assert admin.refused("TXN_PRODUCE", txn_id=open_one, topic="t", data=b"x") == "E1501"
    assert admin.refused("TXN_COMMIT", txn_id=open_one) == "E1501"
    leave_free(sim, 1 << 30, monkeypatch)
    sim.advance(3 * SECOND)
    admin.ask("TXN_COMMIT", txn_id=open_one)
    assert admin.values("t") == [b"1", b"in time"]


def test_delayed_messages_that_must_wait_are_reported_together(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Client(sim, "admin")
    for _ in range(20):
        admin.ask("PRODUCE_DELAYED", topic="t", data=b"x", delay_ms=1000)
    leave_free(sim, 1 << 20, monkeypatch)
    sim.advance(4 * SECOND)
    told = [fields for event, fields in sim.reports if event == "delayed_wait"]
    assert told and all(fields["messages"] == 20 for fields in told), told[:3]
    leave_free(sim, 1 << 30, monkeypatch)
    sim.advance(4 * SECOND)
    assert admin.values("t") == [b"x"] * 20
