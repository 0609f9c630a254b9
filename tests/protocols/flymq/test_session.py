"""The FlyMQ session on a simulated broker: laws of all doors, every operation in both dialects, order, states, lateness."""

import itertools
from typing import Any

import pytest

from quintet import kernel
from quintet.broker.audit.audit_log import Query
from quintet.broker.core import BrokerOptions
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.protocols.flymq import codec, frames
from quintet.protocols.flymq.mapping import HANDLERS
from quintet.protocols.flymq.section import FlymqListener
from quintet.protocols.flymq.session import AUTH_FAILURES_MAX, FlySession
from quintet.testing.line import Peer, SimBroker
from tests.protocols.cases import DoorLaws
from tests.protocols.flymq.helpers import (
    BY_NAME,
    DIALECTS,
    SECOND,
    Client,
    Refused,
    auth,
    error_of,
    make_sim,
    parse,
    raw,
    request,
)
from tests.protocols.flymq.tour import tour
from tests.wire.records import Record, pack


@pytest.fixture
def sim() -> SimBroker:
    return make_sim()


# -- laws ---------------------------------------------------------------------------------------------------------------


class FlyLaws(DoorLaws):
    dialect: frames.Dialect
    options: BrokerOptions | None = None

    def run(self, chunks: list[int]) -> tuple[bytes, str | None]:
        sim = make_sim(self.options)
        peer = Peer(
            sim, lambda b, s, n: FlySession(b, s, n, FlymqListener(dialect=self.dialect), address="127.0.0.1:9092")
        )
        peer.feed(self.script(), chunks)
        sim.scheduler.run_until_idle()
        return peer.take(), peer.session.closing


class CoreLaws(FlyLaws):
    """Runs of PRODUCE, keyed, refused and repeated ones among them, requests between them, then a fatal frame."""

    def script(self) -> bytes:
        def produce(value: bytes, topic: str = "t", key: bytes = b"", partition: int = 0) -> bytes:
            return request("PRODUCE", topic=topic, key=key, value=value, partition=partition)

        def sets(*given: Record, **fields: Any) -> bytes:
            asked: dict[str, Any] = {"topic": "t", "partition": 0, "records": pack(*given)}
            return request("PRODUCE_RECORDS", **asked | fields)

        once: dict[str, Any] = {
            "topic": "t",
            "key": b"",
            "value": b"once",
            "partition": 0,
            "producer_id": 5,
            "sequence": 0,
        }
        return (
            request("WHOAMI")
            + auth("admin", "wrong")
            + auth("admin")
            + produce(b"a") + produce(b"b") + produce(b"c", "u") + produce(b"bad", partition=9) + produce(b"d")
            + request("FETCH", topic="t", partition=0, offset=0, max=5)
            + request("PRODUCE", **once) + request("PRODUCE", **once)
            + raw(0x6E) + raw(1, b"\0") + produce(b"hidden", "__topics")
            + request("CONSUME", topic="t", partition=0, offset=99)
            + request("TXN_BEGIN")
            + sets(Record(b"s", None, ((b"h", b"1"),))) + produce(b"e") + sets(Record(b"s"), Record(None, b"k")) + sets(Record(b"s"), topic="u")
            + sets(Record(b"bad", None, ((b"quintet-x", b""),))) + sets(Record(b"s"), partition=9) + sets(Record(b"m"), topic="new")
            + sets(Record(b"once"), producer_id=6, sequence=0) + sets(Record(b"once"), producer_id=6, sequence=0)
            + sets(Record(b"late"), producer_id=0, sequence=0, schema="", delay_ms=5)
            + produce(b"e") + b"\xae"
        )  # fmt: skip


class TestCoreLawsDocument(CoreLaws):
    dialect = "document"


class TestCoreLawsSdk(CoreLaws):
    dialect = "sdk"


class TestCoreLawsInMemory(CoreLaws):
    """Where the kernel appends and answers."""

    dialect = "document"
    options = BrokerOptions(topics=TopicPolicy([TopicRule("*")], "memory"))


class EveryOperation(FlyLaws):
    """All of the table."""

    _script = b""

    def script(self) -> bytes:
        if not type(self)._script:
            type(self)._script = b"".join(tour(make_sim(), self.dialect).sent)
        return type(self)._script


class TestEveryOperationDocument(EveryOperation):
    dialect = "document"


class TestEveryOperationSdk(EveryOperation):
    dialect = "sdk"


# -- every operation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_operation_does_what_it_says(dialect: frames.Dialect) -> None:
    made = tour(make_sim(), dialect)
    assert made.seen == set(BY_NAME), "an operation without its happy path"


def test_every_operation_has_a_handler_and_a_right() -> None:
    assert set(HANDLERS) | {frames.PRODUCE, frames.AUTH} == set(frames.OPERATIONS)
    assert {op.right for op in frames.OPERATIONS.values() if op.name not in ("AUTH", "WHOAMI")}.isdisjoint({"open"})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_codes_that_are_no_operation_get_an_error(sim: SimBroker, dialect: frames.Dialect) -> None:
    client = Client(sim, "admin", dialect)
    for code in sorted(set(range(256)) - set(frames.OPERATIONS)):
        for payload in (b"", bytes(20)):
            (reply,) = client.exchange(raw(code, payload))
            assert error_of(reply, dialect).text == f"unknown opcode: {code}"
    assert client.ask("WHOAMI")["success"]


# -- order --------------------------------------------------------------------------------------------------------------


def test_replies_keep_their_order_whatever_completes_first() -> None:
    """Three produces to three topics in one run, a FETCH behind them: in all orders of disk completion, one output."""
    outputs = set()
    for order in itertools.permutations(range(3)):
        sim = make_sim()
        client = Client(sim, "admin")
        for name in ("t0", "t1", "t2"):
            client.produce(name, bytes(3_000))  # too much for a pack: each has a file, and so a job, of its own
        sim.scheduler.held = True
        run = b"".join(request("PRODUCE", topic=f"t{n}", key=b"", value=b"x", partition=0) for n in range(3))
        client.peer.feed(run + request("FETCH", topic="t2", partition=0, offset=0, max=9) + request("WHOAMI"))
        sim.scheduler.turn()
        assert len(sim.scheduler.jobs) == 3
        assert client.peer.take() == b"", "a reply left before its message was durable"
        jobs = list(sim.scheduler.jobs)
        for number in order:
            sim.scheduler.finish(sim.scheduler.jobs.index(jobs[number]))
        sim.scheduler.held = False
        sim.scheduler.run_until_idle()
        outputs.add(client.peer.take())
    (output,) = outputs
    replies = parse(output)
    assert [reply.code for reply in replies] == [1, 1, 1, 7, 0x72]
    found = codec.answer_layout(BY_NAME["FETCH"], "document").decode(memoryview(replies[3].payload))
    assert [m["value"] for m in found["messages"]] == [bytes(3_000), b"x"], "it sees what was before it"


def test_a_thousand_frames_in_one_read(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    one = request("PRODUCE", topic="t", key=b"", value=b"x", partition=0)
    replies = client.exchange((one * 9 + request("METADATA", topic="t")) * 100)
    assert [reply.code for reply in replies] == ([1] * 9 + [4]) * 100
    offsets = [client.read("PRODUCE", reply)["offset"] for reply in replies if reply.code == 1]
    assert offsets == list(range(900))
    newest = [client.read("METADATA", reply)["partitions"][0]["newest"] for reply in replies if reply.code == 4]
    assert newest == [9 * n for n in range(1, 101)]


def test_partitions_by_request_by_key_and_in_turn(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    client.ask("CREATE_TOPIC", topic="t", partitions=3)

    def place(key: bytes, partition: int) -> int:
        answer = client.ask("PRODUCE", topic="t", key=key, value=b"", partition=partition)
        return int(answer["partition"])

    assert [place(b"k", p) for p in (0, 1, 2)] == [0, 1, 2]
    assert [place(b"", -1) for _ in range(4)] == [0, 1, 2, 0]
    fnv = 2166136261
    for byte in b"key":
        fnv = (fnv ^ byte) * 16777619 & 0xFFFFFFFF
    assert {place(b"key", -1) for _ in range(4)} == {fnv % 3}
    ttl = client.ask("PRODUCE_WITH_TTL", topic="t", data=b"", ttl_ms=1000, key=b"key", partition=-1)
    assert ttl["partition"] == fnv % 3, "the same key goes the same way in every operation"


# -- states -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_comes_behind_auth_waits_for_it(sim: SimBroker, dialect: frames.Dialect) -> None:
    client = Client(sim, dialect=dialect)
    sim.scheduler.held = True
    produce = request("PRODUCE", topic="t", key=b"", value=b"x", partition=0)
    client.peer.feed(auth("admin") + produce + request("WHOAMI"))
    sim.scheduler.turn()
    assert client.peer.take() == b"" and client.peer.session.holding
    assert sim.broker.topics.get(b"t") is None, "nothing is done for whoever is not known yet"
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [reply.code for reply in parse(client.peer.take())] == [0x71, 1, 0x72]
    client = Client(sim, dialect=dialect)
    replies = client.exchange(auth("admin", "wrong") + produce + request("WHOAMI"))
    assert [reply.code for reply in replies] == [0x71, 0xFF, 0x72]
    assert not client.read("WHOAMI", replies[2])["success"]


def test_a_refused_client_may_try_again_but_not_for_ever(sim: SimBroker) -> None:
    client = Client(sim)
    for attempt in range(AUTH_FAILURES_MAX):
        assert client.peer.session.closing is None
        assert client.refused("AUTH", user="admin", password=f"guess {attempt}") == "AUTH"
    assert client.peer.session.closing == "too many failed authentications"
    assert client.peer.session.auth_failures == AUTH_FAILURES_MAX
    client = Client(sim)
    client.refused("AUTH", user="nobody", password="x")
    assert client.login("admin")["roles"] == ["admin"]


def test_a_connection_stays_who_it_is(sim: SimBroker) -> None:
    client = Client(sim, "conny")
    assert client.login("conny")["username"] == "conny"
    assert client.refused("AUTH", user="admin", password="password") == "E1101"
    assert client.ask("WHOAMI")["username"] == "conny"
    assert client.refused("AUTH", user="conny", password="wrong") == "AUTH"
    assert client.ask("WHOAMI")["username"] == "conny"


def test_whoever_came_without_a_name_may_give_one(sim: SimBroker) -> None:
    client = Client(sim, anonymous="guest")
    assert client.ask("WHOAMI")["roles"] == ["guest"]
    assert client.refused("PRODUCE", topic="t", key=b"", value=b"", partition=0) == "E1201"
    assert client.refused("AUTH", user="admin", password="wrong") == "AUTH"
    assert client.ask("WHOAMI")["roles"] == ["guest"]
    client.login("admin")
    assert client.produce("t", b"x") == [0]


def test_deadline_and_sizes_before_authentication(sim: SimBroker) -> None:
    client = Client(sim)
    deadline = client.peer.session.deadline()
    assert deadline == sim.scheduler.monotonic() + 5 * SECOND
    closings = []
    for now in (deadline - 1, deadline):
        client.peer.session.tick(now)
        closings.append(client.peer.session.closing)
    assert closings == [None, "no authentication within 5 seconds"]
    client = Client(sim)
    client.peer.feed(b"\xaf\x01\x70\x01" + (16 * 1024 + 1).to_bytes(4, "big"))
    assert client.peer.session.closing == "a frame of 16385 bytes before authentication"


@pytest.mark.parametrize("user", ["", "admin"])
@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"\xae", "0xAF"),
        (b"\xaf\x02", "version"),
        (b"\xaf\x01\x01\x01\x02\x00\x00\x01", "33554432|before authentication"),
        (b"\xaf\x01\x01\x01\xff\xff\xff\xff", "33554432|before authentication"),
    ],
)
def test_fatal_frames_close_without_a_word(sim: SimBroker, user: str, sent: bytes, why: str) -> None:
    client = Client(sim, user)
    client.peer.feed(sent)
    closing = client.peer.session.closing
    assert closing is not None and any(word in closing for word in why.split("|"))
    assert client.peer.take() == b""


def test_nothing_is_inflated_for_strangers(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[int] = []

    def inflate(number: int, data: bytes, most: int) -> bytes:
        touched.append(number)
        return data

    monkeypatch.setattr(codec, "inflate", inflate)
    client = Client(sim)
    for number in range(1, 8):
        for code in (*frames.OPERATIONS, 0x6E):
            (reply,) = client.exchange(raw(code, bytes(100), 1 | number << 1))
            assert reply.code == 0xFF
    assert touched == [] and client.peer.session.closing is None


def test_a_hash_is_computed_for_users_that_do_not_exist(sim: SimBroker) -> None:
    """What a login costs must not tell whether there is such a user: one offloaded hash, whoever asks."""
    sim.scheduler.held = True
    costs = {}
    for user, password in (
        ("admin", "wrong"),
        ("nobody", "wrong"),
        ("nobody", ""),
        ("admin", ""),
        ("ädmin", "x" * 2000),
    ):
        client = Client(sim)
        client.peer.feed(auth(user, password))
        sim.scheduler.turn()
        costs[user, password] = len(sim.scheduler.jobs)
        while sim.scheduler.jobs:
            sim.scheduler.finish()
            sim.scheduler.turn()
        (reply,) = parse(client.peer.take())
        assert b"invalid user name or password" in reply.payload
    assert set(costs.values()) == {1}


# -- rights that change -------------------------------------------------------------------------------------------------


def test_a_waiting_fetch_ends_with_a_message_or_with_its_time(sim: SimBroker) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.produce("t", b"old")
    ask = request("FETCH", topic="t", partition=0, offset=1, max=9, filter="", wait_ms=2000)
    reader.peer.feed(ask)
    sim.scheduler.run_until_idle()
    assert reader.peer.take() == b"" and reader.peer.session.holding
    admin.produce("t", b"new")
    (reply,) = parse(reader.peer.take())
    assert [m["value"] for m in reader.read("FETCH", reply)["messages"]] == [b"new"]
    reader.peer.feed(request("FETCH", topic="t", partition=0, offset=2, max=9, filter="", wait_ms=2000))
    sim.advance(2 * SECOND + 100_000)
    (reply,) = parse(reader.peer.take())
    assert reader.read("FETCH", reply) == {"messages": [], "next_offset": 2}


@pytest.mark.parametrize("change", ["delete", "password", "roles", "acl"])
def test_who_is_revoked_while_a_fetch_waits_gets_nothing_more(sim: SimBroker, change: str) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.produce("t", b"old")
    reader.peer.feed(request("FETCH", topic="t", partition=0, offset=1, max=9, filter="", wait_ms=30_000))
    user = {"user": "conny", "password": "", "old_password": "", "roles": ["consumer"], "enabled": True}
    if change == "delete":
        admin.ask("USER_UPDATE", **user | {"enabled": False})
    elif change == "password":
        admin.ask("PASSWORD_CHANGE", **user | {"password": "another one"})
    elif change == "roles":
        admin.ask("USER_UPDATE", **user | {"roles": ["producer"]})
    else:
        admin.ask("ACL_SET", topic="t", public=False, users=["bruno"], roles=[])
    reader.peer.session.receive(memoryview(b""), sim.scheduler.now())  # what Connection.recheck does
    if change in ("delete", "password"):
        assert reader.peer.session.closing is not None
    admin.produce("t", b"secret")
    assert b"secret" not in reader.peer.take()
    for _ in range(2):
        assert b"secret" not in reader.peer.exchange(request("FETCH", topic="t", partition=0, offset=0, max=9))


def test_a_refusal_is_not_remembered(sim: SimBroker) -> None:
    """What a topic was refused for may be over: each PRODUCE is judged anew, and each refusal written down."""
    options = BrokerOptions(topics=TopicPolicy([TopicRule("*")], topics_max=1))
    sim = make_sim(options)
    client = Client(sim, "admin")
    client.produce("first", b"x")
    assert client.refused("PRODUCE", topic="second", key=b"", value=b"", partition=0) == "E1400"
    client.ask("DELETE_TOPIC", topic="first")
    assert client.produce("second", b"x") == [0]
    reader = Client(sim, "conny")
    for _ in range(3):
        assert reader.refused("PRODUCE", topic="second", key=b"", value=b"", partition=0) == "E1201"
    events, total, _ = sim.broker.audit.query(Query(types=("access.denied",), user="conny"))
    assert total == 3 and {event.resource for event in events} == {"second"}


def test_refused_groups_of_one_run_do_not_hurt_each_other(sim: SimBroker) -> None:
    """Regression: the first refused partition made the session forget the topic the second one was about to look up."""
    client = Client(sim, "admin")
    client.produce("t", b"x")
    run = b"".join(request("PRODUCE", topic="t", key=b"", value=b"y", partition=p) for p in (7, 8, 0, -2, 2**31 - 1))
    replies = client.exchange(run)
    assert [reply.code for reply in replies] == [0xFF, 0xFF, 1, 0xFF, 0xFF]
    assert client.values("t") == [b"x", b"y"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("offset", [2**63 - 1, 2**63, 2**64 - 1])
def test_offsets_as_large_as_the_wire_allows(sim: SimBroker, dialect: frames.Dialect, offset: int) -> None:
    client = Client(sim, "admin", dialect)
    client.produce("t", b"x")
    past = {"messages": [], "next_offset": offset}
    for name in ("FETCH", "FETCH_BINARY"):
        assert client.ask(name, topic="t", partition=0, offset=offset, max=5) == past
        assert client.ask(name, topic="t", partition=0, offset=offset, max=5, filter="x") == past
    for name in ("CONSUME", "CONSUME_ZERO_COPY"):
        assert client.refused(name, topic="t", partition=0, offset=offset) == "E1304"
    assert client.refused("COMMIT", topic="t", group="g", partition=0, offset=offset) == "E1101"


def test_a_schema_s_id_does_not_go_around_the_rule_of_its_name(sim: SimBroker) -> None:
    admin, eve = Client(sim, "admin"), Client(sim, "eve")
    admin.ask("REGISTER_SCHEMA", name="secret", type="json", schema=b'{"type": "integer"}')
    admin.ask("ACL_SET", topic="secret", public=False, users=["bruno"], roles=[])
    for name in ("secret", "secret-v1"):
        assert eve.refused("VALIDATE_SCHEMA", name=name, message=b"1") == "E1201"
        assert eve.refused("PRODUCE_WITH_SCHEMA", topic="open", schema=name, data=b"1") == "E1201"
    assert eve.ask("LIST_SCHEMAS") == {"schemas": []}


def test_metadata_does_not_tell_which_topics_exist(sim: SimBroker) -> None:
    admin, guest = Client(sim, "admin"), Client(sim, "guste")
    admin.produce("there", b"x")
    told = set()
    for name in ("there", "not there"):
        for operation in ("CLUSTER_METADATA", "METADATA"):
            with pytest.raises(Refused) as refused:
                guest.ask(operation, topic=name)
            told.add((operation, refused.value.code, refused.value.text.replace(name, "")))
    assert len(told) == 2


def test_a_waiting_fetch_survives_the_end_of_its_topic(sim: SimBroker) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.produce("t", b"old")
    reader.peer.feed(request("FETCH", topic="t", partition=0, offset=1, max=9, filter="", wait_ms=1000))
    admin.ask("DELETE_TOPIC", topic="t")
    sim.advance(2 * SECOND)
    (reply,) = parse(reader.peer.take())
    assert reply.code in (7, 0xFF)
    assert reader.ask("WHOAMI")["success"]


def test_a_client_that_goes_away_leaves_nothing_behind(sim: SimBroker) -> None:
    admin, reader = Client(sim, "admin"), Client(sim, "conny")
    admin.ask("CREATE_TOPIC", topic="t", partitions=2)
    reader.ask("SUBSCRIBE", topic="t", group="g", partition=-1, mode="latest", member="")
    reader.peer.feed(request("FETCH", topic="t", partition=0, offset=0, max=9, filter="", wait_ms=1000))
    assert admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 1
    reader.close()
    admin.produce("t", b"x", partition=0)
    sim.advance(2 * SECOND)
    assert admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 0
    assert reader.peer.take() == b""


@pytest.mark.parametrize(
    "value", [b'"\x80"', b'{"a": "\xff"}', b"{\x80", b"[" * 5000, b'{"a": 1e999}', b'"\\ud800"', b""]
)
def test_no_message_can_spoil_a_filter_for_the_others(sim: SimBroker, value: bytes) -> None:
    """Regression: text that is not UTF-8 in a JSON message ended the connection of whoever filtered by a path."""
    client = Client(sim, "admin")
    client.produce("t", value, b'{"a": 5}')
    for text in ("$.a == 5", "$.a", '"a": 5'):
        for name, rest in (("FETCH", {}), ("PEEK", {"since_ms": 0})):
            found = client.ask(name, topic="t", partition=0, offset=0, max=9, filter=text, **rest)
            assert found["messages"][-1]["value"] == b'{"a": 5}' and found["next_offset"] == 2


def test_a_compressed_request_without_a_payload(sim: SimBroker) -> None:
    """Regression: an empty PRODUCE behind a compression ended the connection; an empty gzip was called cut short."""
    client = Client(sim, "admin")
    for number in frames.CODECS:
        (reply,) = client.exchange(raw(frames.PRODUCE, codec.compress(number, b""), 1 | number << 1))
        assert error_of(reply, "document").code == "E1100"
        (reply,) = client.exchange(raw(frames.WHOAMI, codec.compress(number, b""), 1 | number << 1))
        assert reply.code == frames.WHOAMI


@pytest.mark.parametrize("suffix", [(0, 0), (2**63, 0), (2**64 - 1, 0)])
def test_produces_that_the_kernel_hands_back(sim: SimBroker, suffix: tuple[int, int]) -> None:
    """Regression: fields that add up, and yet no PRODUCE: the session looked for a handler and found none."""
    client = Client(sim, "admin")
    fields: dict[str, Any] = {"topic": "t", "key": b"", "value": b"x", "partition": 0}
    odd = fields | {"producer_id": suffix[0], "sequence": suffix[1]}
    for wrong in (odd, fields | {"topic": "x" * 256}, fields | {"topic": "x" * 65_535}):
        assert client.refused("PRODUCE", **wrong) == "E1101"
        packed = codec.compress(1, request("PRODUCE", **wrong)[8:])
        (reply,) = client.exchange(raw(frames.PRODUCE, packed, 3))
        assert error_of(reply, "document").code == "E1101"
    assert client.produce("t", b"x") == [0]


@pytest.mark.parametrize("number", sorted(frames.CODECS))
def test_what_takes_long_to_inflate_is_not_inflated_on_the_loop(sim: SimBroker, number: int) -> None:
    client, other = Client(sim, "admin"), Client(sim, "bruno")
    client.produce("t", b"first")
    value = bytes(3 << 20)
    payload = request("PRODUCE", topic="t", key=b"", value=value, partition=0)[8:]
    sim.scheduler.held = True
    small = request("PRODUCE", topic="t", key=b"", value=b"behind it", partition=0)
    client.peer.feed(raw(frames.PRODUCE, codec.compress(number, payload), 1 | number << 1) + small)
    sim.scheduler.turn()
    assert client.peer.session.holding and len(sim.scheduler.jobs) == 1
    other.peer.feed(request("WHOAMI"))
    assert [reply.code for reply in parse(other.peer.take())] == [frames.WHOAMI], "others do not wait for it"
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [client.read("PRODUCE", reply)["offset"] for reply in parse(client.peer.take())] == [1, 2]
    assert client.values("t") == [b"first", value, b"behind it"]
    bomb = codec.compress(number, bytes(33 << 20))
    (reply,) = client.exchange(raw(frames.FETCH, bomb, 1 | number << 1))
    assert error_of(reply, "document").code == "E1402"
    assert client.ask("WHOAMI")["success"]


@pytest.mark.parametrize("name", ["PRODUCE", "PRODUCE_WITH_TTL"])
@pytest.mark.parametrize("large", ["key", "value"])
def test_a_large_message_is_built_on_a_thread(sim: SimBroker, name: str, large: str) -> None:
    """A fresh copy of 31 MiB takes 24 ms of the loop. What follows waits for it, and nobody else does."""
    client, other = Client(sim, "admin"), Client(sim, "bruno")
    client.produce("t", b"first")
    key, value = (bytes(3 << 20), b"v") if large == "key" else (b"k", bytes(3 << 20))
    message = {"key": key, "value": value} if name == "PRODUCE" else {"key": key, "data": value, "ttl_ms": 60_000}
    sim.scheduler.held = True
    small = request("PRODUCE", topic="t", key=b"", value=b"behind it", partition=0)
    client.peer.feed(request(name, topic="t", partition=0, **message) + small)
    sim.scheduler.turn()
    assert client.peer.session.holding and len(sim.scheduler.jobs) == 1
    assert sim.broker.topics.find(b"t").published == 1, "nothing of it is copied before"
    other.peer.feed(request("WHOAMI"))
    assert [reply.code for reply in parse(other.peer.take())] == [frames.WHOAMI]
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    replies = zip((name, "PRODUCE"), parse(client.peer.take()), strict=True)
    assert [client.read(kind, reply)["offset"] for kind, reply in replies] == [1, 2]
    assert client.values("t") == [b"first", value, b"behind it"]


def test_a_topic_made_anew_while_a_large_message_is_built(sim: SimBroker) -> None:
    """Its partition was chosen among those of the one before."""
    admin, writer = Client(sim, "admin"), Client(sim, "bruno")
    admin.ask("CREATE_TOPIC", topic="t", partitions=7)
    writer.produce("t", b"first", partition=0)
    value = bytes(3 << 20)
    sim.scheduler.held = True
    writer.peer.feed(request("PRODUCE", topic="t", key=b"key", value=value, partition=-1))
    assert len(sim.scheduler.jobs) == 1
    admin.peer.feed(request("DELETE_TOPIC", topic="t") + request("CREATE_TOPIC", topic="t", partitions=1))
    for _ in range(50):
        sim.scheduler.turn()
        while len(sim.scheduler.jobs) > 1:
            sim.scheduler.finish(len(sim.scheduler.jobs) - 1)
    assert len(sim.broker.topics.find(b"t").partitions) == 1
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    (reply,) = parse(writer.peer.take())
    assert writer.read("PRODUCE", reply)["partition"] == 0
    assert writer.values("t") == [value]


def test_a_large_message_that_is_refused_is_not_built(sim: SimBroker) -> None:
    conny = Client(sim, "conny")
    sim.scheduler.held = True
    conny.peer.feed(request("PRODUCE", topic="t", key=b"", value=bytes(3 << 20), partition=0))
    (reply,) = parse(conny.peer.take())
    assert error_of(reply, "document").code == "E1201"


def test_a_retry_of_a_large_message_is_not_built_again(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(sim, "admin")
    fields: dict[str, Any] = {"topic": "t", "key": b"", "value": bytes(3 << 20), "partition": 0}
    once = request("PRODUCE", **fields, producer_id=7, sequence=0)
    (first,) = client.exchange(once)
    monkeypatch.setattr(kernel, "build", None)
    (again,) = client.exchange(once)
    assert client.read("PRODUCE", again) == client.read("PRODUCE", first)


def test_revoked_while_its_payload_is_inflated(sim: SimBroker) -> None:
    admin, eve = Client(sim, "admin"), Client(sim, "eve")
    payload = request("PRODUCE", topic="t", key=b"", value=bytes(3 << 20), partition=0)[8:]
    sim.scheduler.held = True
    eve.peer.feed(raw(frames.PRODUCE, codec.compress(1, payload), 3))
    user: dict[str, Any] = {"user": "eve", "password": "", "old_password": "", "roles": ["producer"], "enabled": False}
    admin.peer.feed(request("USER_UPDATE", **user))
    for _ in range(20):
        sim.scheduler.turn()
        while len(sim.scheduler.jobs) > 1:
            sim.scheduler.finish(len(sim.scheduler.jobs) - 1)
    assert [reply.code for reply in parse(admin.peer.take())] == [frames.USER_UPDATE]
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert all(reply.code == frames.ERROR for reply in parse(eve.peer.take()))
    assert eve.peer.session.closing is not None and sim.broker.topics.get(b"t") is None


def test_a_reply_too_large_to_compress_goes_as_it_is(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    values = [bytes(300_000)] * 8
    client.produce("t", *values, partition=0)
    client.produce("large", bytes(2 << 20), partition=0)
    ask = request("FETCH", topic="t", partition=0, offset=0, max=100)
    (reply,) = client.exchange(ask[:3] + bytes((1 | 1 << 5,)) + ask[4:])
    body = codec.inflate(1, reply.payload, 4 << 20)
    assert reply.flags == 3 and int.from_bytes(body[:4], "big") == 3, "as many as are compressed at once"
    ask = request("FETCH", topic="large", partition=0, offset=0, max=100)
    (reply,) = client.exchange(ask[:3] + bytes((1 | 1 << 5,)) + ask[4:])
    assert reply.flags == 1 and len(reply.payload) > 2 << 20


def test_questions_about_the_audit_are_bounded(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    client.ask("CREATE_TOPIC", topic="t", partitions=1)
    query: dict[str, Any] = {
        "start_s": 0, "end_s": 0, "types": [], "user": "", "resource": "", "result": "", "search": "", "limit": 0, "skip": 0,
    }  # fmt: skip
    assert client.refused("AUDIT_QUERY", **query | {"search": "x" * 256}) == "E1101"
    assert client.ask("AUDIT_QUERY", **query | {"types": ["nothing"] * 9000})["total"] == 0
    found = client.ask("AUDIT_QUERY", **query | {"types": ["nothing", "topic.create"] * 4000})
    assert [event["type"] for event in found["events"]] == ["topic.create"]


def test_a_refused_request_makes_nothing(sim: SimBroker) -> None:
    """Regression: a topic, or a group, was made for a request that was refused right after."""
    client = Client(sim, "admin")
    client.produce("there", b"x")
    txn = {"txn_id": "txn-of-nobody"}
    assert client.refused("TXN_PRODUCE", **txn, topic="fresh", data=b"x") == "E1330"
    where = {"topic": "there", "group": "fresh", "partition": 0, "offset": 1, "generation": 0}
    assert client.refused("COMMIT", **where, **txn) == "E1330"
    for delay in (-1, 2**62, -(2**63)):
        assert client.refused("PRODUCE_DELAYED", topic="fresh", data=b"x", delay_ms=delay) == "E1101"
    assert client.refused("PRODUCE_WITH_TTL", topic="fresh", data=b"x", ttl_ms=0) == "E1101"
    assert client.refused("PRODUCE_WITH_SCHEMA", topic="fresh", schema="none", data=b"x") == "E1311"
    assert client.ask("LIST_TOPICS") == {"topics": ["there"]} and client.ask("LIST_GROUPS") == {"groups": []}


def test_a_name_given_late_does_not_keep_what_was_joined_without_one(sim: SimBroker) -> None:
    admin, client = Client(sim, "admin"), Client(sim, anonymous="consumer")
    admin.ask("CREATE_TOPIC", topic="t", partitions=2)
    client.ask("SUBSCRIBE", topic="t", group="g", partition=-1, mode="earliest", member="")
    assert admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 1
    client.login("conny")
    assert admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 0


@pytest.mark.parametrize("size", [codec.COPIED_BYTES_MAX, codec.COPIED_BYTES_MAX + 1, 3 << 20])
def test_large_messages_of_every_publishing_operation_arrive_whole(size: int) -> None:
    client = Client(make_sim(), "admin")
    assert client.ask("CREATE_TOPIC", topic="t", partitions=1)["success"]
    schema = b'{"type": "string"}'
    client.ask("REGISTER_SCHEMA", name="s", type="json", schema=schema)
    text = b'"' + b"x" * (size - 2) + b'"'
    client.ask("PRODUCE_WITH_TTL", topic="t", data=text, ttl_ms=1_000_000, key=b"k", partition=0)
    txn = client.ask("TXN_BEGIN")["txn_id"]
    client.ask("TXN_PRODUCE", txn_id=txn, topic="t", data=text, key=b"k", partition=0)
    client.ask("TXN_COMMIT", txn_id=txn)
    client.ask("PRODUCE_DELAYED", topic="t", data=text, delay_ms=0, key=b"k", partition=0)
    fits = size <= 1 << 20
    if fits:
        client.ask("PRODUCE_WITH_SCHEMA", topic="t", schema="s", data=text, key=b"k", partition=0)
    else:
        client.refused("PRODUCE_WITH_SCHEMA", topic="t", schema="s", data=text, key=b"k", partition=0)
    assert client.ask("VALIDATE_SCHEMA", name="s", message=text)["valid"] is fits
    client.sim.advance(2_000_000)
    for offset in range(3 + fits):
        assert client.ask("CONSUME", topic="t", partition=0, offset=offset)["value"] == text
