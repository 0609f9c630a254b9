"""The Fast session on a simulated broker: the laws of doors, the gates every request passes, both modes, limits."""

import itertools
from collections.abc import Callable

import pytest

from quintet.broker.identity.access import Acl, Credential, hash_secret
from quintet.broker.identity.tokens import TokenOptions, mint
from quintet.broker.sections import QueueSection
from quintet.model import limits
from quintet.model.errors import StorageError
from quintet.protocols.fast import errors, frames
from quintet.protocols.fast.frames import CREATE, EXTEND, PUBLISH, ROTATE_KEY, SUBSCRIBE, UNSUBSCRIBE
from quintet.protocols.fast.mapping import topic_id
from quintet.protocols.fast.session import SUBSCRIPTIONS_MAX, TOKENS_MAX
from tests.protocols.cases import DoorLaws
from tests.protocols.fast.helpers import ALL, DEMO, SECOND, SECRET, FastPeer, FastSim, Reply, publish, token
from tests.wire import fast as wire

ANN = token()
OTHER = topic_id(b"other")


@pytest.fixture
def sim() -> FastSim:
    return FastSim()


# -- laws ---------------------------------------------------------------------------------------------------------------


class _Laws(DoorLaws):
    def make(self) -> FastSim:
        return FastSim()

    def run(self, chunks: list[int]) -> tuple[bytes, str | None]:
        sim = self.make()
        peer = FastPeer(sim)
        peer.feed(self.script(), chunks)
        sim.scheduler.run_until_idle()
        return peer.take(), peer.session.closing


class TestLawsStrict(_Laws):
    def script(self) -> bytes:
        return (
            wire.create(ANN, b"demo", frames.DURABLE)
            + wire.subscribe(ANN, DEMO)
            + publish(ANN, b"a", b"b")
            + publish(token(key="wrong"), b"refused")
            + wire.create(ANN, b"other")
            + wire.subscribe(ANN, OTHER)
            + wire.rotate_key(ANN, OTHER, b"k2")
            + publish(token(key="k2"), b"c", topic=OTHER)
            + b"\x04"
        )


class TestLawsExtended(_Laws):
    """OK and ERROR of one topic keep their order; so here the topics take turns only where a packet parts them."""

    def script(self) -> bytes:
        return (
            wire.extend(9)
            + wire.extend()
            + wire.create(ANN, b"demo", frames.DURABLE)
            + wire.create(token(key="k2"), b"demo")
            + publish(ANN, b"a", b"b")
            + publish(token(sub="bob", permissions=["subscribe"]), b"refused", b"too")
            + publish(ANN, b"c")
            + wire.subscribe(ANN, OTHER)
            + wire.create(ANN, b"", 0)
            + wire.create(ANN, b"\xff", 0)
            + wire.create(b"not.a.token", b"demo", 0)
            + wire.rotate_key(ANN, DEMO, b"")
            + wire.rotate_key(ANN, DEMO, b"k1")
            + wire.unsubscribe(ANN, OTHER)
            + wire.rotate_key(ANN, DEMO, b"k2")
            + publish(ANN, b"old key")
            + publish(token(key="k2"), b"d")
            + wire.extend()
        )


class TestLawsOfTheLimit(_Laws):
    """The tenth refusal ends it wherever the reads were cut."""

    def script(self) -> bytes:
        return wire.extend() + wire.create(ANN, b"demo") + publish(token(key="no"), *[b"x"] * 25) + wire.extend()


def test_the_law_of_the_limit_is_not_empty() -> None:
    output, closing = TestLawsOfTheLimit().run([])
    assert closing == "too many refused requests"
    assert output.count(bytes((frames.ERROR, PUBLISH))) == 10


def test_answers_keep_their_order_whatever_completes_first() -> None:
    """Publishes to three topics with a barrier behind each: in all orders of disk completion, one output."""
    outputs = set()
    names = (b"t0", b"t1", b"t2")
    for order in itertools.permutations(range(3)):
        sim = FastSim()
        peer = sim.peer(*[wire.create(ANN, name, frames.DURABLE) for name in names], extended=True)
        for name in names:  # too much for a pack: each has a file, and so a job, of its own
            peer.exchange(publish(ANN, bytes(3_000), topic=topic_id(name)))
        sim.scheduler.held = True
        for name in names:
            peer.feed(publish(ANN, b"x", topic=topic_id(name)) + wire.extend())
        sim.scheduler.turn()
        jobs = list(sim.scheduler.jobs)
        assert len(jobs) == 3
        assert peer.take() == b"", "an answer left before its publish was durable"
        for number in order:
            sim.scheduler.finish(sim.scheduler.jobs.index(jobs[number]))
        outputs.add(peer.take())
    assert outputs == {b"".join(wire.ok(PUBLISH, topic_id(name)) + wire.ok(EXTEND, 0) for name in names)}


# -- the seven packets, strict ------------------------------------------------------------------------------------------


def test_the_sequence_of_the_document(sim: FastSim) -> None:
    owner, reader = sim.peer(), sim.peer()
    owner.exchange(wire.create(ANN, b"demo"))
    assert reader.exchange(wire.subscribe(token("bob"), DEMO)) == b""
    assert owner.exchange(wire.publish(ANN, DEMO, b"hello")) == b""
    assert reader.take() == wire.message(DEMO, b"hello")
    owner.exchange(wire.rotate_key(ANN, DEMO, b"fresh"))
    assert reader.take() == wire.key_update(DEMO, b"fresh")
    owner.exchange(wire.publish(token(key="fresh"), DEMO, b"again"))
    assert reader.take() == wire.message(DEMO, b"again"), "still authorised within the grace"
    assert owner.take() == b"", "who does not subscribe gets neither messages nor keys"
    reader.exchange(wire.unsubscribe(token("bob", key="fresh"), DEMO))
    owner.exchange(wire.publish(token(key="fresh"), DEMO, b"unheard"))
    assert reader.take() == b""


def test_a_publisher_that_subscribes_gets_its_own_messages_and_key(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"), wire.subscribe(ANN, DEMO))
    assert peer.exchange(publish(ANN, b"mine")) == wire.message(DEMO, b"mine")
    assert peer.exchange(wire.rotate_key(ANN, DEMO, b"k2")) == wire.key_update(DEMO, b"k2")


def test_all_of_it_pipelined_in_one_read(sim: FastSim) -> None:
    peer = sim.peer()
    data = wire.create(ANN, b"demo", frames.DURABLE) + wire.subscribe(ANN, DEMO) + publish(ANN, b"1", b"2", b"3")
    assert peer.exchange(data) == b"".join(wire.message(DEMO, v) for v in (b"1", b"2", b"3"))


def test_subscribing_again_is_one_copy(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"), *[wire.subscribe(ANN, DEMO)] * 3)
    assert peer.exchange(publish(ANN, b"once")) == wire.message(DEMO, b"once")


def test_a_strict_peer_hears_nothing_of_refusals(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"))
    bad = token(key="wrong")
    for packet in (
        publish(bad, b"x"),
        wire.subscribe(bad, DEMO),
        wire.unsubscribe(bad, DEMO),
        wire.rotate_key(bad, DEMO, b"k"),
        wire.create(bad, b"demo"),
        wire.subscribe(ANN, 77),
        wire.publish(b"garbage", DEMO, b"x"),
    ):
        assert peer.exchange(packet) == b""
        assert peer.session.closing is None
    assert sim.broker.queues.refused == 7
    assert sim.broker.topics.find(b"demo").published == 0


def test_extend_speaks_of_what_comes_behind_it(sim: FastSim) -> None:
    peer = sim.peer()
    replies = peer.ask(wire.create(ANN, b"demo", 1) + publish(ANN, b"x") + wire.extend() + publish(ANN, b"y"))
    assert replies == [Reply(EXTEND, 0, 0), Reply(PUBLISH, DEMO, 0)]


# -- the gates ----------------------------------------------------------------------------------------------------------

CELLS: list[tuple[str, Callable[[bytes], bytes], int, str]] = [
    ("create", lambda t: wire.create(t, b"new"), CREATE, ""),
    ("subscribe", lambda t: wire.subscribe(t, DEMO), SUBSCRIBE, "subscribe"),
    ("publish", lambda t: wire.publish(t, DEMO, b"x"), PUBLISH, "publish"),
    ("unsubscribe", lambda t: wire.unsubscribe(t, DEMO), UNSUBSCRIBE, "subscribe"),
    ("rotate", lambda t: wire.rotate_key(t, DEMO, b"k9"), ROTATE_KEY, "rotate"),
]


@pytest.mark.parametrize(("packet", "kind", "right"), [cell[1:] for cell in CELLS], ids=[cell[0] for cell in CELLS])
def test_every_request_passes_every_gate(packet: Callable[[bytes], bytes], kind: int, right: str) -> None:
    """(what is wrong with the token or its bearer) -> the code, for every packet; and with nothing wrong it is done."""
    sim = FastSim()
    sim.peer(wire.create(ANN, b"demo"))
    sim.broker.access.set_acl(Acl("demo", users=("ann", "mallory")))
    sim.broker.access.set_acl(Acl("new", users=("ann", "mallory")))
    others = tuple(word for word in ALL if word != right)
    cases = {
        errors.TOKEN: token("ann", secret=b"x" * 32),
        errors.FORBIDDEN: token("eve"),
    }
    if kind != CREATE:
        cases[errors.KEY] = token("ann", key="guess")
    for code, jwt in cases.items():
        peer = sim.peer(extended=True)
        (reply,) = peer.ask(packet(jwt))
        assert (reply.request, reply.code) == (kind, code), peer.texts
    if right:
        (reply,) = sim.peer(extended=True).ask(packet(token("ann", permissions=others)))
        assert reply.code == errors.FORBIDDEN
    sim.broker.access.set_user("mallory", 1, ("guest",))
    (reply,) = sim.peer(extended=True).ask(packet(token("mallory")))
    assert reply.code == errors.FORBIDDEN, "the user of the subject's name has fewer rights than the token says"
    sim.broker.access.drop_user("mallory")
    (reply,) = sim.peer(extended=True).ask(packet(token("ann", permissions=(right,) if right else ())))
    assert reply.code == 0


def test_create_can_be_kept_to_those_who_may() -> None:
    sim = FastSim(QueueSection(require_create=True))
    peer = sim.peer(extended=True)
    assert peer.ask(wire.create(token(permissions=["publish", "subscribe"]), b"demo"))[0].code == errors.FORBIDDEN
    assert sim.broker.topics.get(b"demo") is None
    assert peer.ask(wire.create(token(permissions=["create"]), b"demo"))[0].code == 0


@pytest.mark.parametrize("name", [b"", b"__topics", b"a\0b", b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80"])
def test_names_that_no_door_may_use(sim: FastSim, name: bytes) -> None:
    before = len(sim.broker.topics)
    (reply,) = sim.peer(extended=True).ask(wire.create(ANN, name))
    assert reply.code in (errors.BAD_REQUEST, errors.FORBIDDEN)
    assert len(sim.broker.topics) == before
    assert len(sim.broker.queues) == 0


def test_each_packet_is_judged_by_its_own_token(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"), wire.create(token(key="k2"), b"other"), extended=True)
    assert peer.ask(publish(ANN, b"x"))[0].code == 0
    assert peer.ask(publish(ANN, b"x", topic=OTHER))[0].code == errors.KEY
    assert peer.ask(publish(token("bob", "k2"), b"x", topic=OTHER))[0].code == 0
    assert peer.session.principal_name == "ann", "the first valid token named the connection"
    rows = [r for topic in (b"demo", b"other") for r in sim.broker.topics.find(topic).partitions[0].read(0, 9999) or []]
    assert [batch.rows()[0][6] for batch in rows] == [b"fast:ann", b"fast:bob"]


def test_what_a_right_takes_away_is_refused_from_the_next_packet_on(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    assert peer.ask(publish(ANN, b"x"))[0].code == 0
    sim.broker.access.set_acl(Acl("demo", users=("bob",)))
    assert peer.ask(publish(ANN, b"x"))[0].code == errors.FORBIDDEN
    sim.broker.access.drop_acl("demo")
    sim.broker.set_tokens(TokenOptions(secrets=(b"another secret, long enough for HS256",)))
    assert peer.ask(publish(ANN, b"x"))[0].code == errors.TOKEN


def test_a_remembered_token_is_forgotten_when_it_expires(sim: FastSim) -> None:
    jwt = token(exp=sim.now_s() + 10)
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    assert peer.ask(publish(jwt, b"x"))[0].code == 0
    sim.advance(60 * SECOND, step_us=SECOND)
    assert peer.ask(publish(jwt, b"x"))[0].code == 0, "within the leeway"
    sim.advance(11 * SECOND, step_us=SECOND)
    assert peer.ask(publish(jwt, b"x"))[0].code == errors.TOKEN
    assert peer.ask(publish(ANN, b"x"))[0].code == 0


def test_tokens_are_remembered_within_a_bound(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.protocols.fast.session.TOKENS_MAX", 5)
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    for number in range(20):
        jwt = token(f"u{number}")
        assert [r.code for r in peer.ask(publish(jwt, b"a", b"b"))] == [0, 0]
        assert len(sim.door.bearers) == len(sim.door.origins) <= 5
    assert TOKENS_MAX == 10_000
    assert peer.ask(publish(b"no token", b"x"))[0].code == errors.TOKEN
    assert len(sim.door.origins) == 5, "refused ones are not remembered"
    assert not sim.door.refusals


# -- strangers and limits -----------------------------------------------------------------------------------------------


def test_a_stranger_has_five_seconds(sim: FastSim) -> None:
    peer = sim.peer(wire.extend(), b"\x03\x10partial")
    deadline = peer.session.deadline()
    assert deadline == sim.scheduler.monotonic() + limits.HANDSHAKE_US
    reasons = []
    for now in (deadline - 1, deadline):
        peer.session.tick(now)
        reasons.append(peer.session.closing)
    assert reasons == [None, "no valid token within 5 seconds"]
    known = sim.peer(wire.subscribe(ANN, 1))
    assert known.session.deadline() is None, "a valid token is enough, whatever came of the request"


def test_a_stranger_cannot_make_us_hold_a_large_payload(sim: FastSim) -> None:
    sim.peer(wire.create(ANN, b"demo"))
    large = bytes(limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1)
    stranger = sim.peer()
    stranger.feed(wire.publish(b"nobody", DEMO, large)[:300])
    assert stranger.session.closing == errors.FATAL[2]
    known = sim.peer(extended=True)
    assert known.ask(publish(ANN, large))[0].code == 0, "the token before the payload vouches for it"


@pytest.mark.parametrize("kind", [0, 4, 6, 8, 0x6F, 0x71, 0x7D, 0x7E, 0x7F, 0x80, 0xFF])
def test_types_that_no_client_may_send_close(sim: FastSim, kind: int) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"))
    peer.feed(bytes((kind,)))
    assert peer.session.closing == errors.FATAL[1]


def test_a_payload_above_the_limit_closes_before_it_is_there() -> None:
    sim = FastSim(payload_bytes_max=100)
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    assert peer.ask(publish(ANN, bytes(100)))[0].code == 0
    peer.feed(wire.publish(ANN, DEMO, bytes(101))[: 2 + len(ANN) + 8])
    assert peer.session.closing == errors.FATAL[2]


def test_refusals_close_after_their_limit_and_never_without_one() -> None:
    for most, expected in ((3, "too many refused requests"), (0, None)):
        sim = FastSim(auth_failures_max=most)
        peer = sim.peer(wire.create(ANN, b"demo"))
        for _ in range(2):
            peer.feed(wire.subscribe(token(key="guess"), DEMO))
        assert peer.session.closing is None
        for _ in range(5):
            peer.feed(wire.subscribe(token(key="guess"), DEMO))
        assert peer.session.closing == expected


def test_an_unknown_topic_is_no_failed_authentication(sim: FastSim) -> None:
    peer = sim.peer(*[wire.subscribe(ANN, 5)] * 50, extended=True)
    assert peer.session.closing is None
    assert peer.session.auth_failures == 0


def test_connections_of_one_subject_are_counted() -> None:
    sim = FastSim(subject_connections_max=2)
    one, two = sim.peer(wire.create(ANN, b"demo")), sim.peer(wire.subscribe(ANN, DEMO))
    third = sim.peer(publish(ANN, b"x"))
    assert third.session.closing == "more than 2 connections of ann"
    assert sim.broker.topics.find(b"demo").published == 0
    third.close()
    other = sim.peer(wire.subscribe(token("bob"), DEMO))
    assert other.session.closing is None
    one.close()
    assert sim.peer(wire.subscribe(ANN, DEMO)).session.closing is None
    assert two.session.closing is None
    assert dict(sim.door.subjects) == {"ann": 2, "bob": 1}


def test_rates_hold_back_and_drop_nothing() -> None:
    sim = FastSim(subject_messages_per_second_max=10, address_messages_per_second_max=25)
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    assert not peer.held()
    assert len(peer.ask(publish(ANN, *[b"x"] * 20))) == 20
    assert peer.held()
    same = sim.peer(publish(ANN, b"x"), address="10.0.0.2:9")
    assert same.held(), "the same subject from elsewhere shares the rate"
    sim.advance(SECOND // 2)
    assert peer.held()
    sim.advance(SECOND)
    assert not peer.held()
    neighbour = sim.peer(publish(token("bob"), *[b"x"] * 8), address="10.0.0.1:77")
    assert not neighbour.held()
    neighbour.exchange(publish(token("eve"), *[b"x"] * 9) + publish(token("joe"), *[b"x"] * 9))
    assert neighbour.held(), "several subjects of one address share its rate"
    assert sim.broker.topics.find(b"demo").published == 47


def test_subscriptions_of_one_connection_are_bounded(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.protocols.fast.session.SUBSCRIPTIONS_MAX", 2)
    names = [b"a", b"b", b"c"]
    peer = sim.peer(*[wire.create(ANN, name) for name in names], extended=True)
    codes = [peer.ask(wire.subscribe(ANN, topic_id(name)))[0].code for name in names]
    assert codes == [0, 0, errors.LIMIT]
    assert peer.ask(wire.subscribe(ANN, topic_id(b"a")))[0].code == 0
    assert SUBSCRIPTIONS_MAX == 1_000


def test_a_stopping_broker_takes_nothing(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    sim.broker.draining = True
    assert peer.ask(publish(ANN, b"x"))[0].code == errors.UNAVAILABLE
    assert peer.ask(wire.create(ANN, b"new"))[0].code == errors.UNAVAILABLE


def test_what_the_disk_refuses_is_told(sim: FastSim) -> None:
    """OK means durable; and the broker's trouble is no failed authentication."""
    peer = sim.peer(wire.create(ANN, b"demo", frames.DURABLE), extended=True)
    sim.scheduler.held = True
    peer.feed(publish(ANN, b"x", b"y"))
    sim.scheduler.turn()
    peer.look()
    assert peer.replies == [], "OK left before the disk had it"
    sim.scheduler.held = False
    assert peer.ask(b"") == [Reply(PUBLISH, DEMO, 0)] * 2
    partition = sim.broker.topics.find(b"demo").partitions[0]
    partition._failure = StorageError("pulled out")  # type: ignore[attr-defined]
    assert [r.code for r in peer.ask(publish(ANN, b"z"))] == [errors.UNAVAILABLE]
    assert peer.session.auth_failures == 0


# -- whom a token speaks of ----------------------------------------------------------------------------------------------


def test_a_token_without_a_subject_is_taken(sim: FastSim) -> None:
    """The document asks for queue_key and permissions; sub is only in its examples."""
    nobody = mint(SECRET, {"queue_key": "k1", "permissions": ["publish", "subscribe"]}, typ=False)
    peer = sim.peer(extended=True)
    assert peer.ask(wire.create(nobody, b"demo", 0))[0].code == 0
    assert peer.ask(wire.subscribe(nobody, DEMO))[0].code == 0
    assert peer.ask(publish(nobody, b"hello"))[0].code == 0
    assert peer.got() == [b"hello"] and peer.session.principal_name == "(no subject)"


def test_times_with_a_fraction_are_taken(sim: FastSim) -> None:
    peer = sim.peer(extended=True)
    fresh = token(exp=sim.now_s() + 0.5, iat=sim.now_s() - 0.25)
    assert peer.ask(wire.create(fresh, b"demo", 0))[0].code == 0
    stale = token(exp=sim.now_s() - 60.5)
    assert peer.ask(publish(stale, b"x"))[0].code == errors.TOKEN


def test_a_subject_with_the_name_of_a_limited_key_may_no_more_than_it(sim: FastSim) -> None:
    limited = Credential("reader", hash_secret(b"r"), publish=(), subscribe=("demo",))
    sim.broker.set_credentials([limited])
    ann, peer = sim.peer(extended=True), sim.peer(extended=True)
    for name in (b"demo", b"secret"):
        assert ann.ask(wire.create(token(), name, 0))[0].code == 0
    reader = token("reader")
    assert peer.ask(publish(reader, b"x"))[0].code == errors.FORBIDDEN
    assert peer.ask(wire.subscribe(reader, topic_id(b"secret")))[0].code == errors.FORBIDDEN
    assert peer.ask(wire.subscribe(reader, DEMO))[0].code == 0
    assert peer.session.principal_name == "(token) reader"


def test_a_large_message_is_delivered_whole_behind_the_same_head() -> None:
    large = bytes(range(256)) * (3 << 12)
    peer = FastSim().peer(wire.create(token(), b"demo"), wire.subscribe(token(), DEMO))
    peer.feed(publish(token(), b"small", large, b"last"))
    assert peer.got() == [b"small", large, b"last"]
