"""The Felix session on a simulated broker: the laws of doors, both dialects, who may, publishing, bad input, limits."""

from typing import Any

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Acl
from quintet.broker.identity.tenant_tokens import TenantTokenOptions
from quintet.broker.sections import Tenant
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model import limits
from quintet.protocols.base import FLOWING, WAIT
from quintet.protocols.felix import codec, errors, frames
from quintet.protocols.felix.session import FelixSession
from tests.protocols.cases import DoorLaws
from tests.protocols.felix.helpers import (
    ALL,
    DEMO,
    KEY,
    OURS,
    PLAIN,
    PRIMARY,
    SECOND,
    FelixSim,
    Stream,
    batch,
    subscribe,
    token,
)

SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}
OPEN: dict[str, Any] = {"open": True, "anonymous_role": "open"}


def publish(*values: bytes, **more: Any) -> codec.PublishBatch | codec.Publish:
    if len(values) == 1:
        return codec.Publish(**SCOPE, payload=values[0], **more)
    return codec.PublishBatch(**SCOPE, payloads=list(values), **more)


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def values_of(sim: FelixSim, name: bytes = b"t1/default/demo") -> list[bytes]:
    topic = sim.broker.topics.get(name)
    if topic is None:
        return []
    found: list[Any] = []
    for partition in topic.partitions:
        at = 0
        while at < partition.visible:
            batches = partition.read(at, 1 << 20) or partition.read_now(at)
            found += [row[3] for one in batches for row in one.rows()]
            at = batches[-1].next_offset
    return found


# -- laws ---------------------------------------------------------------------------------------------------------------


def messages(*some: Any) -> bytes:
    return b"".join(m if isinstance(m, bytes) else codec.encode(m) for m in some)


class _Laws(DoorLaws):
    def make(self) -> Stream:
        return FelixSim().connect().stream()

    def run(self, chunks: list[int]) -> tuple[bytes, str | None]:
        stream = self.make()
        stream.feed(self.script(), chunks)
        stream.sim.scheduler.run_until_idle()
        return stream.take(), stream.reason()


class TestLawsPublished(_Laws):
    def script(self) -> bytes:
        return messages(
            codec.Auth(tenant_id="t1", token=KEY, client_flags=OURS, quintet=1),
            batch(b"a", b"b"),
            batch(b"c"),
            batch(b"d", request_id=7),
            codec.encode(publish(b"e", request_id=8, ack="per_message")),
            subscribe(subscription_id=3, request_id=1),
            codec.frame(b"{}", 0x0100),
            codec.frame(b"\0\0", frames.BATCH),
            codec.frame(bytes(8) + b"\x09", frames.BATCH | frames.ACKED),
            codec.CachePut(**CACHE, key="k", value=b"v"),
            codec.CacheGet(**CACHE, key="k"),
            codec.CacheGet(**CACHE, key="other"),
            codec.frame(codec.pack(batch(b"f", request_id=9)[12:]), frames.BATCH | frames.ACKED | frames.ZSTD),
            codec.frame(b'{"type":"nothing","request_id":5}'),
            codec.Unsubscribe(subscription_id=3, request_id=6),
            codec.Unsubscribe(subscription_id=3, request_id=7),
            batch(b"g", scope=("t1", "", "x")),
            codec.Auth(tenant_id="t1", token=KEY),
            batch(b"never"),
        )


class TestLawsDocument(_Laws):
    def make(self) -> Stream:
        return FelixSim(**OPEN).connect().stream()

    def script(self) -> bytes:
        return messages(
            codec.Subscribe(**SCOPE, request_id="s"),
            publish(b"a", ack="per_message", request_id="p"),
            publish(b"b", b"c", ack="per_batch"),
            batch(b"d"),
            codec.frame(b'{"type":"publish"}', 0xFF00),
            codec.frame(b"not json"),
            codec.CachePut(key="k", value=b"v"),
            codec.CacheGet(key="k"),
            codec.frame(b'{"type":"cache_delete","key":"k","request_id":"x"}'),
            b"FLX2",
        )


def test_answers_keep_the_order_of_requests_however_late_the_disk_is(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(batch(b"0", request_id=1))
    stream.feed(
        messages(
            batch(b"a", request_id=2), batch(b"x", request_id=3, scope=("", "", "__mine")), batch(b"b", request_id=4)
        )
    )
    assert stream.take() == b""  # the second is refused at once, and waits for the first
    assert [said[:2] for said in stream.said() if isinstance(said, tuple)] == [(0, 2), (1, 3)]


# -- who ----------------------------------------------------------------------------------------------------------------


def test_auth_is_answered_by_ok_or_by_the_flags_that_both_know(sim: FelixSim) -> None:
    sim.connect().auth(flags=None)
    sim.connect().auth(flags=PLAIN)
    stream = sim.connect().stream()
    ours = codec.Auth(tenant_id="t1", token=KEY, client_flags=0xFFFF, quintet=1)
    assert stream.ask(ours) == [codec.AuthOk(server_flags=0x5FF, quintet=1)]


@pytest.mark.parametrize("said", [None, 0, 2])
def test_flags_of_newer_published_clients_are_not_taken_for_ours(sim: FelixSim, said: int | None) -> None:
    """They have meanings of their own for bits 6 to 14: bit 6 is a key, not a packed payload."""
    stream = sim.connect().stream()
    newer = codec.Auth(tenant_id="t1", token=KEY, client_flags=0x7FFF, quintet=said)
    assert stream.ask(newer) == [codec.AuthOk(server_flags=frames.PUBLISHED_FLAGS)]
    (refused,) = stream.ask(codec.AckRanges(subscription_id=1, ranges=[]))
    assert refused == codec.Error(message="unexpected message type")
    assert stream.ask(kernel.felix_publish(codec.target(*DEMO), [b"x"], 1, 2, b"k", frames.KEYED)) == [(0, 1, "", 0)]
    assert stream.session.principal_name == "dev"


@pytest.mark.parametrize(
    "first", [batch(b"x"), publish(b"x"), codec.CacheGet(key="k"), codec.frame(b"junk"), subscribe()]
)
def test_nothing_before_auth(sim: FelixSim, first: Any) -> None:
    stream = sim.connect().stream()
    assert stream.ask(first) == [codec.Error(message="auth required")]
    assert stream.reason() == "auth required"
    assert stream.felix.close_code is None
    assert not sim.broker.topics.get(b"t1/default/demo")


def test_a_long_first_frame_is_not_waited_for(sim: FelixSim) -> None:
    stream = sim.connect().stream()
    stream.feed(frames.HEADER.pack(frames.MAGIC, 1, 0, limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1))
    assert stream.said() == [codec.Error(message="auth required")]


def test_a_wrong_key_is_counted_and_ends_the_stream(sim: FelixSim) -> None:
    stream = sim.connect().stream()
    assert stream.ask(codec.Auth(tenant_id="t1", token="wrong")) == [codec.Error(message="auth failed")]
    assert (stream.reason(), stream.session.auth_failures) == ("auth failed", 1)


def test_auth_of_the_wrong_shape_names_the_field(sim: FelixSim) -> None:
    for payload, field in (
        (b'{"type":"auth","tenant_id":1}', "tenant_id"),
        (b'{"type":"auth","tenant_id":"t"}', "token"),
    ):
        stream = sim.connect().stream()
        (said,) = stream.ask(codec.frame(payload))
        assert field in said.message
        assert stream.reason()


def test_auth_twice(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(codec.Auth(tenant_id="t1", token=KEY)) == [codec.Error(message="auth already established")]
    assert stream.reason() == "auth already established"


def test_five_seconds(sim: FelixSim) -> None:
    stream = sim.connect().stream()
    deadline = stream.session.deadline()
    assert deadline == sim.scheduler.monotonic() + limits.HANDSHAKE_US
    stream.session.tick(deadline - 1)
    assert stream.reason() is None
    stream.session.tick(deadline)
    assert stream.reason()


def test_a_tenants_token(sim: FelixSim) -> None:
    stream = sim.connect().auth(token(sim.now_s), PLAIN)
    assert stream.session.principal_name == "ann"
    assert stream.ask(batch(b"x", request_id=1)) == [(0, 1, "")]
    assert values_of(sim) == [b"x"]


def test_tenant_of_token_and_auth_must_agree(sim: FelixSim) -> None:
    stream = sim.connect().stream()
    ask = codec.Auth(tenant_id="t2", token=token(sim.now_s))
    assert stream.ask(ask) == [codec.Error(message="tenant mismatch")]
    assert stream.reason() == "tenant mismatch"


@pytest.mark.parametrize("scope", [("t2", "default", "demo"), ("", "", "demo"), ("", "", "t1/default/demo")])
def test_tenant_of_token_and_frame_must_agree(sim: FelixSim, scope: tuple[str, str, str]) -> None:
    for ask in (
        batch(b"x", request_id=1, scope=scope), subscribe(scope), batch(b"x", scope=scope),
        codec.Publish(tenant_id=scope[0], namespace=scope[1], stream=scope[2], payload=b"", ack="per_batch", request_id=1),
    ):  # fmt: skip
        stream = sim.connect().auth(token(sim.now_s), PLAIN)
        before = sim.broker.audit.recorded
        unacknowledged = isinstance(ask, bytes) and ask[7] == frames.BATCH
        assert stream.ask(ask)[-1:] == ([] if unacknowledged else [codec.Error(message="tenant mismatch")])
        assert stream.reason() == (None if unacknowledged else "tenant mismatch")
        assert sim.broker.audit.recorded == before + 1
    assert not sim.broker.topics.all()


def life_left(sim: FelixSim, stream: Stream) -> int:
    """Microseconds until the token of a stream expires, leeway included."""
    session = stream.session
    assert isinstance(session, FelixSession) and session._bearer is not None and session._bearer.claims is not None
    return session._bearer.claims.expires - sim.scheduler.now()


def test_an_expired_token_ends_stream_and_subscriptions(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(token(sim.now_s, life_s=100), PLAIN)
    stream.ask(subscribe(subscription_id=1))
    left = life_left(sim, stream)
    sim.advance(left - SECOND, SECOND)
    stream.session.tick(sim.scheduler.monotonic())
    assert stream.reason() is None and stream.session.deadline() == sim.scheduler.monotonic() + SECOND
    sim.advance(SECOND, SECOND)
    stream.session.tick(sim.scheduler.monotonic())
    stream._drain()
    assert stream.said() == [codec.Error(message="auth failed")]
    assert stream.reason() == "auth failed"
    assert connection.outlets[0].code == frames.REVOKED


def test_a_subscription_of_a_closed_stream_ends_with_its_token(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(token(sim.now_s, life_s=100), PLAIN)
    stream.feed(codec.encode(subscribe(subscription_id=1)))
    assert stream.finish() == [codec.Subscribed(subscription_id=1)]
    left = life_left(sim, stream)
    stream.close()
    sim.advance(left - SECOND, SECOND)
    assert connection.outlets[0].code is None
    sim.advance(6 * SECOND, SECOND)
    assert connection.outlets[0].code == frames.REVOKED


def test_changed_keys_of_tokens_are_looked_at_again(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(token(sim.now_s), PLAIN)
    stream.ask(subscribe(subscription_id=1))
    sim.broker.set_tenant_tokens(TenantTokenOptions(secrets=(b"another secret, just as long as the first",)))
    stream.recheck()
    assert stream.reason() == "auth failed"
    assert connection.outlets[0].code == frames.REVOKED


def test_a_revoked_key_ends_stream_and_subscriptions(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1))
    sim.broker.set_credentials([])
    assert stream.ask(batch(b"x")) == [codec.Error(message="auth failed")]
    assert stream.reason() == "auth failed"
    assert connection.outlets[0].code == frames.REVOKED
    assert not sim.broker.subscriptions.all()


def test_rights_that_were_taken_away_end_only_what_they_were_for(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(flags=PLAIN)
    stream.ask(subscribe(subscription_id=1), subscribe(("t1", "default", "other"), subscription_id=2))
    stream.ask(batch(b"x"))
    sim.broker.access.set_acl(Acl("t1/default/demo", users=("bob",)))
    stream.recheck()
    assert [outlet.code for outlet in connection.outlets] == [frames.REVOKED, None]
    assert stream.reason() is None
    assert stream.ask(batch(b"y", request_id=1)) == [(1, 1, "forbidden"), codec.Error(message="forbidden")]
    assert values_of(sim) == [b"x"]


def test_nothing_is_delivered_behind_a_change_of_rights(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(flags=PLAIN)
    stream.ask(subscribe(subscription_id=1), subscribe(("t1", "default", "other"), subscription_id=2))
    other = sim.connect("10.0.0.2:7").auth(flags=PLAIN)
    sim.broker.access.set_acl(Acl("t1/default/demo", users=("bob",)))
    other.ask(batch(b"b", scope=("t1", "default", "other")))
    sim.broker.topics.ensure(b"t1/default/demo", False).publish(kernel.build([b"secret"]), 1, False, None)
    sim.scheduler.run_until_idle()
    assert connection.outlets[1].take()[1:] == [(0, [b"b"])]
    assert connection.outlets[0].take() == [codec.Hello(subscription_id=1)]
    assert connection.outlets[0].code == frames.REVOKED


def FelixStreamOf(sim: FelixSim) -> Stream:
    return sim.connect("10.0.0.2:7").auth(flags=PLAIN)


# -- document clients ---------------------------------------------------------------------------------------------------


def test_a_document_client_where_the_listener_is_open() -> None:
    sim = FelixSim(**OPEN)
    connection = sim.connect()
    stream = connection.stream()
    assert stream.ask(codec.Subscribe(**SCOPE)) == [codec.Ok()]
    assert stream.session.deadline() is None
    assert connection.outlets[0].take() == [codec.Hello(subscription_id="1")]
    assert stream.ask(publish(b"a", ack="per_message"), publish(b"b", ack="none")) == [codec.Ok()]
    assert stream.ask(publish(b"c", b"d", ack="per_batch", request_id=5)) == [codec.Ok(request_id=5)]
    stream.ask(batch(b"e", b"f"))
    got = connection.outlets[0].take()
    assert {(event.tenant_id, event.namespace, event.stream) for event in got} == {DEMO}
    flat = [v for event in got for v in ([event.payload] if isinstance(event, codec.Event) else event.payloads)]
    assert flat == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_ids_of_document_clients_come_back_as_they_came() -> None:
    stream = FelixSim(**OPEN).connect().stream()
    for id in ("seven", "7", 7, 2**70, -1):
        assert stream.ask(publish(b"a", ack="per_message", request_id=id)) == [codec.Ok(request_id=id)]
        said = stream.ask(codec.CacheGet(key="none", request_id=id))
        assert said == [codec.CacheValue(key="none", value=None, request_id=id)]


def test_document_errors_have_the_id_and_the_stream_goes_on() -> None:
    sim = FelixSim(open=True, anonymous_role="guest")
    stream = sim.connect().stream()
    denied = codec.Error(request_id="x", message="unauthorized")
    assert stream.ask(publish(b"a", ack="per_message", request_id="x")) == [denied]
    assert stream.ask(codec.Subscribe(**SCOPE, request_id="x")) == [denied]
    assert stream.ask(codec.CacheGet(key="k", request_id="x")) == [denied]
    assert stream.ask(codec.frame(b'{"type":"nothing","request_id":"x"}')) == [
        codec.Error(request_id="x", message="unexpected message type")
    ]
    assert stream.reason() is None


def test_flags_that_the_document_does_not_know_are_passed_over() -> None:
    stream = FelixSim(**OPEN).connect().stream()
    payload = codec.encode(publish(b"a", ack="per_message"))[12:]
    assert stream.ask(codec.frame(payload, 0xFFFE)) == [codec.Ok()]
    assert stream.ask(codec.frame(batch(b"x")[12:], 0xFFFF)) == []
    assert values_of(stream.streams.sim) == [b"a", b"x"]


def test_where_the_listener_is_open_good_credentials_still_count() -> None:
    sim = FelixSim(open=True, anonymous_role="guest")
    assert sim.connect().auth(KEY).session.principal_name == "dev"
    assert sim.connect().auth(token(sim.now_s)).session.principal_name == "ann"
    assert sim.connect().auth("no such key").session.principal_name == "(anonymous)"
    assert sim.connect().auth("not.a.token").session.principal_name == "(anonymous)"


# -- publishing ---------------------------------------------------------------------------------------------------------


def test_an_acknowledged_publish_is_durable_and_others_leave_the_topic(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(batch(b"a"))
    assert sim.broker.topics.find(b"t1/default/demo").in_memory
    assert stream.ask(batch(b"b", request_id=1), batch(b"c")) == [(0, 1, "")]
    assert not sim.broker.topics.find(b"t1/default/demo").in_memory
    assert values_of(sim) == [b"a", b"b", b"c"]
    sim.restart()
    assert values_of(sim) == [b"a", b"b", b"c"]


def test_no_acknowledgement_before_the_disk_has_it(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(batch(b"a", request_id=1))
    stream.feed(batch(b"b", request_id=2))
    assert stream.take() == b""
    assert stream.session.congestion() in (FLOWING, WAIT)
    assert stream.said() == [(0, 2, "")]


def test_typed_answers_of_json_publishes(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(publish(b"a", request_id=7, ack="per_message")) == [codec.PublishOk(request_id=7)]
    assert stream.ask(publish(b"a", b"b", request_id=8, ack="per_batch")) == [codec.PublishOk(request_id=8)]
    assert stream.ask(publish(b"a", b"b", request_id=9)) == []
    assert stream.ask(publish(request_id=9, ack="per_batch")) == [codec.PublishOk(request_id=9)]
    assert stream.ask(publish(b"a", ack="per_message")) == [codec.Error(message=errors.MISSING_ID)]
    assert stream.ask(publish(b"a", b"b", ack="per_batch")) == [codec.Error(message=errors.MISSING_ID_BATCH)]
    bad = codec.Publish(tenant_id="t1", namespace="a/b", stream="c", payload=b"", request_id=1, ack="per_message")
    (said,) = stream.ask(bad)
    assert (said.request_id, said.message) == (1, "namespace: no / and no NUL")
    assert stream.reason() is None


def test_a_batch_of_nothing_is_acknowledged(sim: FelixSim) -> None:
    assert sim.connect().auth().ask(batch(request_id=4)) == [(0, 4, "")]


def test_topics_of_other_doors_by_their_own_names(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    assert stream.ask(batch(b"x", request_id=1, scope=("", "", "orders"))) == [(0, 1, "")]
    assert values_of(sim, b"orders") == [b"x"]


@pytest.mark.parametrize("name", ["cache/t1/default/primary", "__topics", ""])
def test_names_that_are_not_for_publishing(sim: FelixSim, name: str) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    stream.ask(codec.CachePut(**CACHE, key="k", value=b"v", request_id=1))
    said = stream.ask(batch(b"x", request_id=1, scope=("", "", name)))
    assert said[0][:2] == (1, 1)
    assert stream.ask(codec.CacheGet(**CACHE, key="x")) in ([], [codec.CacheValue(**CACHE, key="x", value=None)])


def test_without_auto_create_what_is_not_there_is_not_found() -> None:
    sim = FelixSim(auto_create=False)
    stream = sim.connect().auth(flags=PLAIN)
    text = "stream not found: tenant=t1 namespace=default stream=demo"
    assert stream.ask(batch(b"x", request_id=1)) == [(1, 1, text)]
    assert stream.ask(subscribe(subscription_id=1)) == [codec.Error(message=text)]
    gone = codec.Error(message="cache scope not found: t1/default/primary")
    assert stream.ask(codec.CacheGet(**CACHE, key="k")) == [gone]
    assert stream.ask(codec.CachePut(**CACHE, key="k", value=b"")) == [gone]
    sim.broker.create_topic(b"t1/default/demo", 1)
    sim.broker.caches.open(PRIMARY)
    assert stream.ask(batch(b"x", request_id=1)) == [(0, 1, "")]
    assert stream.ask(codec.CachePut(**CACHE, key="k", value=b"", request_id=2)) == [codec.CacheOk(request_id=2)]


def test_a_publish_without_acknowledgement_is_refused_once_until_taken() -> None:
    """To a document client."""
    stream = FelixSim(**OPEN).connect().stream()
    bad = batch(b"x", scope=("t1", "a/b", "c"))
    assert stream.ask(bad, bad, bad) == [codec.Error(message="namespace: no / and no NUL")]
    assert stream.ask(batch(b"x"), bad, bad) == [codec.Error(message="namespace: no / and no NUL")]


def test_forbidden_is_said_behind_what_is_owed_and_ends_the_stream(sim: FelixSim) -> None:
    sim.broker.access.set_acl(Acl("t1/default/demo", users=("bob",)))
    stream = sim.connect().auth(flags=PLAIN)
    other = ("t1", "default", "other")
    stream.feed(
        batch(b"a", request_id=1, scope=other) + batch(b"b", request_id=2) + batch(b"c", request_id=3, scope=other)
    )
    assert stream.reason() is None
    assert stream.said() == [(0, 1, ""), (1, 2, "forbidden"), codec.Error(message="forbidden")]
    assert stream.reason() == "forbidden"
    assert values_of(sim, b"t1/default/other") == [b"a"]


def test_packed_batches(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    whole = batch(*[b"x" * 1000] * 64, request_id=5)
    packed = codec.frame(codec.pack(whole[12:]), frames.BATCH | frames.ACKED | frames.ZSTD)
    assert stream.ask(packed) == [(0, 5, "")]
    assert stream.ask(codec.frame(codec.pack(batch(b"y")[12:]), frames.BATCH | frames.ZSTD)) == []
    assert len(values_of(sim)) == 65
    assert stream.ask(codec.frame(b"junk", frames.BATCH | frames.ZSTD)) == []
    (said,) = stream.ask(codec.frame(b"junk", frames.BATCH | frames.ACKED | frames.ZSTD))
    assert "zstd" in said.message


def test_packed_batches_only_where_they_were_negotiated(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=OURS & ~frames.ZSTD)
    packed = codec.frame(codec.pack(batch(b"y", request_id=7)[12:]), frames.BATCH | frames.ACKED | frames.ZSTD)
    ((status, _, text),) = stream.ask(packed)
    assert (status, text) == (1, "unsupported frame flags")
    assert stream.reason() is None


def test_many_packed_batches_let_others_have_their_turn() -> None:
    sim = FelixSim(frame_bytes_max=32 << 20)
    stream = sim.connect().auth()
    zeros = codec.frame(codec.pack(batch(bytes(12 << 20))[12:]), frames.BATCH | frames.ZSTD)
    stream.feed(zeros * 4)
    assert stream.held()
    topic = sim.broker.topics.find(b"t1/default/demo")
    assert topic.published == 3
    sim.scheduler.run_until_idle()
    assert not stream.held()
    assert topic.published == 4


# -- bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"FLX2",
        frames.HEADER.pack(frames.MAGIC, 2, 0, 0),
        frames.HEADER.pack(frames.MAGIC, 1, 0, frames.FRAME_BYTES_MAX + 1),
        frames.HEADER.pack(frames.MAGIC, 1, 1, 0xFFFFFFFF),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_malformed_header_shuts_the_connection(sim: FelixSim, header: bytes) -> None:
    for stream in (sim.connect().stream(), sim.connect().auth()):
        stream.feed(header)
        assert stream.felix.close_code == frames.PROTOCOL_ERROR
        assert "malformed header" in (stream.reason() or "")


@pytest.mark.parametrize(
    "flags", [0x0002, 0x0004, 0x0008, 0x0010, 0x0020, 0x0024, 0x0100, 0x8000, 0x0003, 0x0011, 0x0021]
)
def test_flags_that_no_client_sends(sim: FelixSim, flags: int) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    refusal = [] if flags & frames.BATCH else [codec.Error(message="unsupported frame flags")]
    assert stream.ask(codec.frame(b"{}", flags)) == refusal
    assert stream.ask(batch(b"x", request_id=1)) == [(0, 1, "")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "ends early"),
        (codec.target(*DEMO), "ends early"),
        (codec.target(*DEMO) + b"\xff\xff\xff\xff", "count"),
        (codec.target(*DEMO) + b"\0\0\0\1\xff\xff\xff\xff", "ends early"),
        (codec.target(*DEMO) + b"\0\0\0\0\0", "follow"),
        (b"\0\1\xff" + codec.target("n", "s", "")[:-2] + bytes(4), "UTF-8"),
    ],
)
def test_malformed_batches_are_refused_and_others_unaffected(sim: FelixSim, body: bytes, words: str) -> None:
    connection = sim.connect()
    stream, other = connection.auth(flags=PLAIN), connection.auth(flags=PLAIN)
    assert stream.ask(codec.frame(body, frames.BATCH)) == []
    ((status, id, text),) = stream.ask(codec.frame(b"\0\0\0\0\0\0\0\7\1" + body, frames.BATCH | frames.ACKED))
    assert (status, id) == (1, 7)
    assert words in text
    for one in (stream, other):
        assert one.ask(batch(b"x", request_id=1)) == [(0, 1, "")]


def test_bad_json_is_an_error_of_that_stream_only(sim: FelixSim) -> None:
    connection = sim.connect()
    stream, other = connection.auth(), connection.auth()
    for payload, words in (
        (b'{"type":"publish","request_id":4,"request_id":5}', "twice"), (b'{"a":' * 40 + b"1" + b"}" * 40, "deeper"),
        (b'{"type":"cache_get","key":7,"request_id":4}', "$.key"), (b'{"type":"publish","ack":"per_message"}', "`tenant_id`"),
        (b'{"type":"cache_get","key":"k","request_id":"text"}', "request_id"), (b"\xff", "JSON"),
    ):  # fmt: skip
        (said,) = stream.ask(codec.frame(payload))
        assert words in said.message
    assert stream.reason() is None
    assert other.ask(batch(b"x", request_id=1)) == [(0, 1, "")]


def test_our_messages_are_unknown_to_those_who_did_not_ask_for_them(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    for ask in (
        codec.AckRanges(subscription_id=1, ranges=[]), codec.Unsubscribe(subscription_id=1),
        codec.CacheDelete(**CACHE, key="k"), codec.CacheIncr(**CACHE, key="k", delta=1),
        codec.CacheGetMany(**CACHE, keys=[]), codec.CacheKeys(**CACHE), codec.CacheWatch(**CACHE),
    ):  # fmt: skip
        assert stream.ask(ask) == [codec.Error(message="unexpected message type")]


# -- limits and ends ----------------------------------------------------------------------------------------------------


def test_a_finished_stream_answers_what_it_owes_and_closes(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.feed(messages(batch(b"x", request_id=1), codec.CachePut(**CACHE, key="k", value=b"v", request_id=2)))
    stream.felix.ended(sim.scheduler.now())
    assert stream.reason() is None
    assert len(stream.said()) == 2
    assert stream.reason() == ""


def test_a_stream_that_is_gone_hears_nothing_of_what_it_asked(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.feed(
        messages(
            batch(b"x", request_id=1), codec.CachePut(**CACHE, key="k", value=b"v", request_id=2), subscribe(durable="d"),
            codec.CacheIncr(**CACHE, key="n", delta=1),
        )
    )  # fmt: skip
    stream.close()
    sim.scheduler.run_until_idle()
    assert connection.outlets[0].take()[0] == codec.Hello(subscription_id=1)  # it is the connection's, not the stream's
    connection.close()
    sim.scheduler.run_until_idle()


def test_a_tenant_is_slowed_down_to_its_rate() -> None:
    quota = Tenant(name="t", publish_bytes_per_second_max=10_000)
    sim = FelixSim(BrokerOptions(tenants={"t1": quota}))
    stream = sim.connect().auth()
    assert stream.ask(batch(bytes(5_000), request_id=1)) == [(0, 1, "")]
    assert not stream.held()
    assert stream.ask(batch(bytes(15_000), request_id=2)) == [(0, 2, "")]
    assert stream.held()
    assert stream.ask(batch(b"later", request_id=3)) == []
    other = sim.connect().auth(tenant="t2")
    assert other.ask(batch(bytes(15_000), request_id=1, scope=("t2", "n", "s"))) == [(0, 1, "")]
    sim.advance(2 * SECOND)
    assert stream.said() == [(0, 3, "")]


def test_quotas_of_a_tenant() -> None:
    quota = Tenant(name="t", connections_max=1, streams_max=1, subscriptions_max=1)
    sim = FelixSim(BrokerOptions(tenants={"t1": quota}))
    connection, shown = sim.connect(), token(sim.now_s)
    sim.connect().auth(flags=PLAIN)  # who has a key and names the tenant takes nothing away from it
    stream = connection.auth(shown, PLAIN)
    connection.auth(shown, PLAIN)  # another stream of the same connection counts once
    refused = sim.connect().stream()
    (said,) = refused.ask(codec.Auth(tenant_id="t1", token=shown))
    assert "limit" in said.message
    assert refused.reason()
    assert stream.ask(subscribe(subscription_id=1)) == [codec.Subscribed(subscription_id=1)]
    (said,) = stream.ask(subscribe(subscription_id=2))
    assert "subscriptions" in said.message
    ((status, _, text),) = stream.ask(batch(b"x", request_id=1, scope=("t1", "default", "second")))
    assert status == 1
    assert "streams" in text
    connection.close()
    sim.connect().auth(flags=PLAIN).ask(subscribe(subscription_id=1))
    assert sim.broker.tenants.subscriptions["t1"] == 1


def test_durability_that_the_configuration_fixes() -> None:
    rules = TopicPolicy(rules=[TopicRule("t1/*", durability="memory"), TopicRule("*")])
    sim = FelixSim(BrokerOptions(topics=rules))
    stream = sim.connect().auth()
    assert stream.ask(batch(b"a", request_id=1)) == [(0, 1, "")]
    assert sim.broker.topics.find(b"t1/default/demo").in_memory


def test_permissions_are_asked_for_each_kind(sim: FelixSim) -> None:
    reader = token(sim.now_s, permissions=(ALL[1],))
    stream = sim.connect().auth(reader, PLAIN)
    assert stream.ask(subscribe(subscription_id=1)) == [codec.Subscribed(subscription_id=1)]
    assert stream.ask(batch(b"x", request_id=1))[0] == (1, 1, "forbidden")
    assert stream.reason() == "forbidden"
