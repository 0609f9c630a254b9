"""What happens between the gate and the effect: rights that go, members that are replaced, connections that close; and
messages that only just fit into a frame."""

import errno
from typing import Any

import pytest

from quintet.broker.identity.access import Acl
from quintet.protocols.blipmq import frames as blip
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.flymq import codec, frames
from quintet.protocols.flymq.session import RECORD_BYTES_MAX
from quintet.testing.line import Peer, SimBroker
from tests.protocols.flymq.helpers import Client, error_of, make_sim, parse, payload_of, raw, request


@pytest.fixture
def sim() -> SimBroker:
    return make_sim()


def user(name: str, **changes: Any) -> dict[str, Any]:
    return {"user": name, "password": "", "old_password": "", "roles": [], "enabled": True} | changes


def acl(topic: str, *users: str) -> dict[str, Any]:
    return {"topic": topic, "public": False, "users": list(users), "roles": []}


# -- rights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recheck", [True, False], ids=["told", "not told yet"])
def test_a_waiting_request_is_not_acted_on_for_who_was_revoked(sim: SimBroker, recheck: bool) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "bruno")
    writer.produce("t", b"0")
    sim.scheduler.held = True
    behind = request("PRODUCE_WITH_TTL", topic="t", data=b"late", ttl_ms=60_000)
    writer.peer.feed(request("PRODUCE", topic="t", key=b"", value=b"1", partition=0) + behind)
    sim.scheduler.turn()
    admin.peer.feed(request("USER_UPDATE", **user("bruno", enabled=False)))
    if recheck:
        writer.peer.session.receive(memoryview(b""), sim.scheduler.now())
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert writer.peer.session.closing is not None
    admin.peer.take()
    assert admin.values("t") == [b"0", b"1"]


def test_a_request_that_waits_behind_others_has_the_rights_of_now(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "bruno")
    writer.produce("t", b"0")
    writer.produce("other", b"0")
    sim.scheduler.held = True
    behind = request("PRODUCE_WITH_TTL", topic="t", data=b"late", ttl_ms=60_000)
    writer.peer.feed(request("PRODUCE", topic="other", key=b"", value=b"1", partition=0) + behind)
    sim.scheduler.turn()
    admin.peer.feed(request("USER_UPDATE", **user("bruno", roles=["consumer"])))
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    done, refused = parse(writer.peer.take())
    assert done.code == frames.PRODUCE and error_of(refused, "document").code == "E1201"
    admin.peer.take()
    assert admin.values("t") == [b"0"]


def test_a_transaction_is_not_committed_without_the_right_to_write(sim: SimBroker) -> None:
    admin, writer = Client(sim, "admin"), Client(sim, "bruno")
    id = writer.ask("TXN_BEGIN")["txn_id"]
    for topic in ("kept", "taken"):
        writer.ask("TXN_PRODUCE", txn_id=id, topic=topic, data=b"x")
    admin.ask("ACL_SET", **acl("taken", "eve"))
    assert writer.refused("TXN_COMMIT", txn_id=id) == "E1201"
    assert (admin.values("kept"), admin.values("taken")) == ([], [])
    admin.ask("ACL_DELETE", topic="taken")
    writer.ask("TXN_COMMIT", txn_id=id)
    assert (admin.values("kept"), admin.values("taken")) == ([b"x"], [b"x"])
    admin.ask("ACL_SET", **acl("taken", "eve"))
    assert writer.ask("TXN_COMMIT", txn_id=id)["success"], "what was committed is, whatever came after"


def test_a_subscription_made_while_its_right_goes_is_not_pushed_to(sim: SimBroker) -> None:
    """Over BlipMQ, by a rule set over FlyMQ."""
    admin = Client(sim, "admin")
    admin.produce("t", b"0")
    peer = Peer(sim, BlipSession)
    hello = blip.HEADER.pack(11, blip.HELLO, 1) + b"\0\2"
    key = b"dev-key"
    login = blip.HEADER.pack(11 + len(key), blip.AUTH, 2) + len(key).to_bytes(2, "big") + key
    peer.exchange(hello + login)
    sim.scheduler.held = True
    peer.feed(blip.HEADER.pack(13, blip.SUBSCRIBE, 3) + b"\0\1t\0")
    sim.scheduler.run_until_idle()
    sim.broker.access.set_acl(Acl("t", users=("eve",)))
    peer.session.receive(memoryview(b""), sim.scheduler.now())  # as every 50 ms after a change
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert len(sim.broker.subscriptions) == 1, "nothing was subscribed: the test tests nothing"
    peer.take()
    admin.produce("t", b"secret")
    assert b"secret" not in peer.take()


def test_a_rule_for_dead_letters_is_not_evaded_through_their_source(sim: SimBroker) -> None:
    admin, reader, eve = Client(sim, "admin"), Client(sim, "bruno"), Client(sim, "eve")
    admin.produce("orders", b"secret")
    admin.ask("DEAD_LETTER", topic="orders", partition=0, offset=0, error="no")
    assert len(reader.ask("FETCH_DLQ", topic="orders", max=9)["messages"]) == 1, (
        "who may read the source may, by itself"
    )
    admin.ask("ACL_SET", **acl("orders-dlq", "eve"))
    assert reader.refused("FETCH", topic="orders-dlq", partition=0, offset=0, max=9) == "E1201"
    assert reader.refused("FETCH_DLQ", topic="orders", max=9) == "E1201"
    assert reader.refused("REPLAY_DLQ", topic="orders", message_id="0-0") == "E1201"
    assert len(eve.ask("FETCH_DLQ", topic="orders", max=9)["messages"]) == 1
    assert len(admin.ask("FETCH_DLQ", topic="orders", max=9)["messages"]) == 1


# -- transactions -----------------------------------------------------------------------------------------------------


def test_a_begin_that_is_refused_fences_nobody(sim: SimBroker) -> None:
    writer = Client(sim, "bruno")
    id = writer.ask("TXN_BEGIN", transactional_id="p", timeout_ms=0)["txn_id"]
    assert writer.refused("TXN_BEGIN", transactional_id="p", timeout_ms=2**32 - 1) == "E1101"
    assert writer.ask("TXN_COMMIT", txn_id=id)["success"]


def test_nobody_takes_the_room_of_all_open_transactions(sim: SimBroker) -> None:
    writer, other = Client(sim, "bruno"), Client(sim, "eve")
    ids = [writer.ask("TXN_BEGIN")["txn_id"] for _ in range(5)]
    data = bytes(15 << 20)
    for id in ids[:4]:
        writer.ask("TXN_PRODUCE", txn_id=id, topic="t", data=data)
    assert writer.refused("TXN_PRODUCE", txn_id=ids[4], topic="t", data=data) == "E1400"
    other.ask("TXN_PRODUCE", txn_id=other.ask("TXN_BEGIN")["txn_id"], topic="t", data=data)
    writer.ask("TXN_ROLLBACK", txn_id=ids[0])
    writer.ask("TXN_PRODUCE", txn_id=ids[4], topic="t", data=data)
    for id in ids[1:]:
        writer.ask("TXN_ROLLBACK", txn_id=id)
    assert sim.broker.transactions._bytes_of.keys() == {"eve"}


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [-1, 0], ids=["joining", "plain"])
def test_who_leaves_before_its_group_is_made_is_not_in_it(sim: SimBroker, partition: int) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.produce("t", b"0")
    sim.scheduler.held = True
    reader.peer.feed(request("SUBSCRIBE", topic="t", group="g", partition=partition, mode="earliest"))
    sim.scheduler.run_until_idle()
    reader.close()
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 0
    assert reader.peer.session not in sim.broker.groups._groups_of_member


def test_a_member_without_its_partition_commits_no_offset_in_transactions(sim: SimBroker) -> None:
    """Else its successor, who began where the last commit was, does the same work once more: two commits of one input."""
    first, second = Client(sim, "bruno"), Client(sim, "bruno")
    first.produce("in", b"0", b"1", partition=0)
    first.produce("out", b"")
    join: dict[str, Any] = {"topic": "in", "group": "g", "partition": -1, "mode": "earliest"}
    generation = first.ask("SUBSCRIBE", **join)["generation"]
    id = first.ask("TXN_BEGIN")["txn_id"]
    first.ask("TXN_PRODUCE", txn_id=id, topic="out", data=b"of 0 and 1")
    offset = {"topic": "in", "group": "g", "partition": 0, "offset": 2, "generation": generation}
    first.ask("COMMIT", **offset, txn_id=id)
    sim.advance(11_000_000)  # silent for too long, and out
    assert second.ask("SUBSCRIBE", **join)["assigned"] == [{"partition": 0, "offset": 0}]
    assert first.refused("TXN_COMMIT", txn_id=id) == "E1321"
    assert first.ask("TXN_ROLLBACK", txn_id=id)["success"]
    assert second.values("out") == [b""]


@pytest.mark.parametrize("fails", [False, True], ids=["written", "refused"])
def test_a_successor_begins_where_a_commit_under_way_ends(sim: SimBroker, fails: bool) -> None:
    first, second = Client(sim, "bruno"), Client(sim, "bruno")
    first.produce("in", b"0", b"1", partition=0)
    first.produce("out", b"")
    join: dict[str, Any] = {"topic": "in", "group": "g", "partition": -1, "mode": "earliest"}
    generation = first.ask("SUBSCRIBE", **join)["generation"]
    id = first.ask("TXN_BEGIN")["txn_id"]
    first.ask("TXN_PRODUCE", txn_id=id, topic="out", data=b"of 0 and 1")
    first.ask("COMMIT", topic="in", group="g", partition=0, offset=2, generation=generation, txn_id=id)
    sim.scheduler.held = True
    first.peer.feed(request("TXN_COMMIT", txn_id=id))
    sim.scheduler.run_until_idle()
    first.close()
    second.peer.feed(request("SUBSCRIBE", **join))
    sim.scheduler.run_until_idle()
    assert second.peer.take() == b"", "whether it begins behind the commit is not known yet"
    if fails:
        sim.disk.fail("pwritev", 1, errno.ENOSPC)
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    (reply,) = parse(second.peer.take())
    assert second.read("SUBSCRIBE", reply)["assigned"] == [{"partition": 0, "offset": 0 if fails else 2}]
    assert second.values("out") == ([b""] if fails else [b"", b"of 0 and 1"])


def test_a_group_without_its_topic_is_ones_own_before_anybody_elses(sim: SimBroker) -> None:
    admin, bruno, eve = Client(sim, "admin"), Client(sim, "bruno"), Client(sim, "eve")
    admin.produce("a", b"0")
    admin.produce("b", b"0")
    eve.ask("COMMIT", topic="a", group="g", partition=0, offset=1)
    bruno.ask("COMMIT", topic="b", group="g", partition=0, offset=1)
    assert bruno.ask("DESCRIBE_GROUP", 1, group="g")["topic"] == "b"
    assert eve.ask("DESCRIBE_GROUP", 1, group="g")["topic"] == "a"
    assert Client(sim, "conny").refused("DESCRIBE_GROUP", 1, group="g") == "E1201"


# -- compressed messages ----------------------------------------------------------------------------------------------


def test_compressed_messages_share_a_sync_and_keep_their_order(sim: SimBroker) -> None:
    writer = Client(sim, "bruno")
    writer.produce("t", b"0", partition=0)

    def message(value: bytes, kind: int) -> bytes:
        payload = payload_of("PRODUCE", topic="t", key=b"", value=value, partition=0)
        packed = codec.compress(kind, payload) if kind else payload
        return raw(frames.PRODUCE, packed, frames.BINARY | kind << frames.COMPRESSION_SHIFT)

    sim.scheduler.held = True
    large = bytes(2 << 20)  # is inflated by a thread: what follows waits for that, and for nothing else
    values = [b"1", b"2", b"3", b"4", large, b"6"]
    kinds = [1, 0, 2, 3, 1, 4]
    writer.peer.feed(b"".join(message(value, kind) for value, kind in zip(values, kinds, strict=True)))
    assert sim.broker.topics.find(b"t").published == 5, "all before the large one are on their way, without any sync"
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    replies = parse(writer.peer.take())
    assert [writer.read("PRODUCE", reply)["offset"] for reply in replies] == [1, 2, 3, 4, 5, 6]
    assert Client(sim, "conny").values("t") == [b"0", *values]


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_what_was_taken_can_be_read_whatever_its_size(sim: SimBroker) -> None:
    admin = Client(sim, "admin")
    admin.produce("t", bytes(RECORD_BYTES_MAX - 1), key=b"k")
    assert len(admin.values("t")[0]) == RECORD_BYTES_MAX - 1
    peek = {"topic": "t", "partition": 0, "max": 9, "since_ms": 0, "filter": ""}
    assert len(admin.ask("PEEK", **peek, offset=0)["messages"]) == 1
    assert len(admin.ask("CONSUME", topic="t", partition=0, offset=0)["value"]) == RECORD_BYTES_MAX - 1
    too_large = bytes(RECORD_BYTES_MAX)
    assert admin.refused("PRODUCE", topic="t", key=b"k", value=too_large, partition=0) == "E1402"
    assert admin.refused("PRODUCE_WITH_TTL", topic="t", data=too_large, ttl_ms=9, key=b"k", partition=0) == "E1402"
    assert admin.produce("t", b"small") == [1], "the connection goes on"


def test_small_messages_before_a_large_one_do_not_make_an_answer_too_long(sim: SimBroker) -> None:
    admin = Client(sim, "admin")
    small, large = bytes(3_000_000), bytes(30 << 20)
    admin.produce("t", small, key=b"k", partition=0)
    admin.produce("t", large, key=b"k", partition=0)
    for offset in (0, 1):
        admin.ask("DEAD_LETTER", topic="t", partition=0, offset=offset, error="no")
    peek = {"topic": "t", "partition": 0, "max": 9, "since_ms": 0, "filter": ""}
    fetch = {"topic": "t", "partition": 0, "max": 9, "filter": "key:k"}
    for name, ask in (("PEEK", peek), ("FETCH", fetch)):
        found = admin.ask(name, **ask, offset=0)
        assert (len(found["messages"]), found["next_offset"]) == (1, 1), name
        assert len(admin.ask(name, **ask, offset=1)["messages"][0]["value"]) == len(large)
    (letter,) = admin.ask("FETCH_DLQ", topic="t", max=9)["messages"]
    assert len(letter["data"]) == len(small)
    (other,) = admin.ask("FETCH_DLQ", topic="t", max=9, after=letter["id"])["messages"]
    assert len(other["data"]) == len(large)
