"""No operation without a right on the Felix door: every message type and every kind of frame, by every kind of principal with
an API key, a tenant's token or nothing, on streams and caches in every state, against the oracle of rights_world.py and one
of this file for what a token permits. That one is a table and a matcher of its own: it knows nothing of tenant_tokens.py.

What is refused must be refused, have no effect at all and be written down. The word of the wire closes the stream; so
everybody comes again for each cell, and whoever is revoked is let in, asks to stay, and is revoked under way.
"""

import os
import re
from random import Random
from typing import Any, ClassVar, Final

import pytest

from quintet.broker.audit.audit_log import Query
from quintet.broker.bearer import Bearer
from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import Access, Acl, Action, Principal
from quintet.broker.identity.tenant_tokens import TenantClaims, mint_tenant, secret_signer
from quintet.model.errors import Forbidden
from quintet.protocols.felix import codec, errors, frames
from tests.broker.test_access import oracle, some_name, some_pattern
from tests.interop.rights_world import MADE, USERS, Door, World, allowed, disagreements
from tests.protocols.felix.helpers import OURS, SECRET, Connection, FelixSim, Stream
from tests.wire import felix as wire

TRIPLES: Final = 100_000 if os.environ.get("QUINTET_TEST_LONG") else 10_000  # `make campaign` sees the more
SPACE: Final = ("felix", "x")
OTHER_SECRET: Final = b"a secret of somebody else, and long enough"
LIFE_S: Final = 36_000
FOREIGN: Final = 7  # the number of a subscription on another connection

NEEDS: Final = {
    "auth": "i", "publish": "w", "publish_batch": "w", "binary batch": "w", "acknowledged batch": "w", "subscribe": "r",
    "cache_put": "w", "cache_get": "r", "ack": "o", "nack": "o", "working": "o", "credit": "o", "unsubscribe": "o", "cache_delete": "w", "cache_incr": "w",
    "cache_get_many": "r", "cache_keys": "r", "cache_watch": "r", "stream_shards": "r", "cache_shards": "r", "counter_add": "w", "counter_get": "r",
    "cache_put_if": "w", "cache_delete_if": "w", "group_poll": "r", "group_ack": "r", "group_nack": "r",
    "match_topics": "k",
}  # fmt: skip
# One of these rights is enough.
EITHER: Final = {"stream_shards": ("subscribe", "publish"), "cache_shards": ("cache_get", "cache_put")}
SAID_BY_SERVERS: Final = (
    "auth_ok", "subscribed", "event_stream_hello", "event", "event_batch", "cache_value", "cache_ok", "publish_ok",
    "publish_error", "ok", "error", "subscribe_cursor_error", "cache_conflict", "cache_number", "cache_values",
    "cache_key_list", "cache_event", "lagged", "publish ack", "binary events", "stream_shards_view", "cache_shards_view", "counter_value",
    "cache_condition_result", "cache_watch_started", "group_records", "unsupported", "topic_list",
)  # fmt: skip
# Answers that are no refusal of a right: there is no such message, or no such thing of yours.
UNKNOWN: Final = ("unexpected message type", "unsupported frame flags", "unknown subscription")
# Frames that the document does not have: their flags mean nothing to who follows it, and what is left is malformed.
BEYOND_DOCUMENT: Final = frozenset({"acknowledged batch", "publish ack", "binary events"})

# What a token may permit -> for which of these operations it is enough. "r", "w" of streams and of caches.
GRANTS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "all": (
        ("stream.publish:stream:felix/*", "stream.subscribe:stream:felix/*", "cache.read:cache:felix/*",
         "cache.write:cache:felix/*"),
        "stream-w stream-r cache-r cache-w",
    ),
    "nothing": ((), ""),
    "publish": (("stream.publish:stream:felix/x/*",), "stream-w"),
    "subscribe": (("stream.subscribe:stream:*",), "stream-r"),
    "cache reads": (("cache.read:cache:felix/x/*",), "cache-r"),
    "cache writes": (("cache.write:cache:*/x/*",), "cache-w"),
    "managing": (("tenant.manage:tenant:felix", "ns.manage:namespace:felix/x", "stream.manage:stream:*"), ""),
    "another namespace": (("stream.publish:stream:felix/y/*", "cache.read:cache:felix/xx/*"), ""),
    "another tenant": (("stream.publish:stream:felix2/*", "stream.subscribe:stream:other/x/*"), ""),
    "the wrong kind": (("stream.publish:cache:felix/*", "cache.write:stream:felix/*"), ""),
    "half a name": (("stream.publish:stream:felix/x", "cache.read:cache:felix/x/"), ""),
}  # fmt: skip


def json_frame(operation: str, state: str, foreign: int = FOREIGN) -> dict[str, Any]:
    stream = {"tenant_id": "felix", "namespace": "x", "stream": state}
    cache = {"tenant_id": "felix", "namespace": "x", "cache": state}
    rest: dict[str, dict[str, Any]] = {
        "publish": stream | {"payload": "Mg==", "ack": "per_message"}, "subscribe": stream | {"start": "earliest"},
        "publish_batch": stream | {"payloads": ["Mg==", "Mw=="], "ack": "per_batch"},
        "cache_put": cache | {"key": "n", "value": "Mg=="}, "cache_get": cache | {"key": "n"},
        "cache_delete": cache | {"key": "n"}, "cache_incr": cache | {"key": "n", "delta": 1},
        "cache_get_many": cache | {"keys": ["n", "m"]}, "cache_watch": cache | {"prefix": ""}, "cache_keys": cache,
        "counter_add": cache | {"key": "n", "delta": 1}, "counter_get": cache | {"key": "n"},
        "cache_put_if": cache | {"key": "n", "value": "Mg==", "condition": "absent"}, "cache_shards": cache,
        "cache_delete_if": cache | {"key": "n", "version": 1}, "stream_shards": stream,
        "group_poll": stream | {"shard": 0, "group": "g", "max_records": 1},
        "group_ack": stream | {"shard": 0, "group": "g", "offset": 0},
        "group_nack": stream | {"shard": 0, "group": "g", "offset": 0},
        **{name: {"subscription_id": foreign, "ranges": [[0, 1]]} for name in ("ack", "nack", "working")},
        "match_topics": {"patterns": ["*"]},
        "credit": {"subscription_id": foreign, "credit": 1}, "unsubscribe": {"subscription_id": foreign, "delete": True},
    }  # fmt: skip
    return {"type": operation, **rest.get(operation, stream | {"payload": "Mg=="}), "request_id": 3}


def frame(operation: str, state: str, space: tuple[str, str] = SPACE) -> bytes:
    """The operation as bytes, packed here."""
    scope = (*space, state)
    packed = {
        "binary batch": wire.batch(scope, b"2"), "acknowledged batch": wire.batch(scope, b"2", request=3),
        "publish ack": wire.ack(0, 3), "binary events": wire.events(b"2"),
    }  # fmt: skip
    if operation in packed:
        return packed[operation]
    said = json_frame(operation, state)
    if "tenant_id" in said:
        said |= {"tenant_id": space[0], "namespace": space[1]}
    return wire.json_frame(said)


class FelixWorld(World):
    """Streams felix/x/STATE and caches of the same names, all with something in them; streams of bare names, too."""

    def __init__(self, **felix: Any) -> None:
        self._felix = felix
        super().__init__()
        for prefix in ("felix/x/", "cache/felix/x/"):
            self.rules(prefix)
        now_s = self.sim.scheduler.now() // 1_000_000
        self.now_s = now_s
        bruno = self.connect()
        stream = bruno.auth(self.keys["bruno"].decode())
        for space in (SPACE, ("", "")):
            for state in MADE:
                assert stream.ask(frame("acknowledged batch", state, space)) == [(0, 3, "")], state
        for state in MADE:
            (told,) = stream.ask(frame("cache_incr", state))
            assert state.endswith("-dlq") or isinstance(told, codec.CacheNumber), told
        wanted = codec.SubscribeOurs(
            tenant_id="felix", namespace="x", stream="there", subscription_id=FOREIGN, durable="d", start="earliest"
        )
        assert isinstance(stream.ask(wanted)[0], codec.Subscribed)
        self.streams: dict[str, Stream] = {}
        self.featured: dict[str, Stream] = {}  # of newer published clients
        self.revoke()

    def simulated(self, options: BrokerOptions) -> FelixSim:
        return FelixSim(options, **self._felix)

    def connect(self) -> Connection:
        assert isinstance(self.sim, FelixSim)
        return self.sim.connect("10.0.0.9:1")

    def tenant_token(self, who: str, grant: str = "all", **more: Any) -> str:
        claims = {
            "iss": "felix-auth", "aud": "felix-broker", "sub": "admin" if who == "stranger" else who, "tid": "felix",
            "exp": self.now_s + LIFE_S, "perms": list(GRANTS[grant][0]),
        } | more  # fmt: skip
        secret = OTHER_SECRET if who == "stranger" else SECRET
        return mint_tenant(claims, "HS256", secret_signer(secret)).decode()

    def state(self) -> object:
        caches = {
            scope: (cache.version, {key: entry[:2] + entry[3:] for key, entry in cache.entries.items()})
            for scope, cache in self.broker.caches._by_scope.items()
        }
        tenants = self.broker.tenants
        return super().state(), caches, +tenants.subscriptions, +tenants.published_bytes


class FelixDoor(Door):
    """By API key: streams and caches of a tenant's namespace. `credential` is what is shown in `auth`."""

    operations: ClassVar = NEEDS | dict.fromkeys(SAID_BY_SERVERS, "s")
    skip = frozenset({"worker", "__users"})
    changes_its_topic_alone = True
    space: ClassVar = SPACE

    def make(self) -> FelixWorld:
        return FelixWorld()

    def credential(self, world: FelixWorld, who: str) -> str:
        return world.keys[who].decode()

    def ready(self, world: Any, who: str) -> None:
        world.streams.clear()
        if who == "stranger":
            return
        if who == "revoked":
            world.revoke(enabled=True)
        connection = world.connect()
        world.streams[who] = connection.auth(self.credential(world, who), OURS, self.space[0])
        world.featured[who] = connection.featured(self.credential(world, who), self.space[0])
        if who == "revoked":
            world.revoke()

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        shown = codec.encode(
            codec.Auth(tenant_id=self.space[0], token=self.credential(world, who), client_flags=OURS, quintet=1)
        )
        asked, dropped = frame(operation, state, self.space), world.broker.publishes_dropped
        if operation == "auth":
            answers = world.connect().stream().ask(shown)
        elif who == "stranger":
            answers = world.connect().stream().ask(shown, asked)
        else:
            streams = world.featured if operation in frames.FEATURED else world.streams
            answers = streams[who].ask(asked)
        if world.broker.publishes_dropped > dropped:
            assert operation == "binary batch" and not answers, "nobody waits for an answer"
            return "forbidden"
        return self.judged(operation, who, answers)

    def allowed(self, operation: str, who: str, state: str) -> bool:
        if operation in EITHER:
            return any(self.allowed(name, who, state) for name in EITHER[operation])
        return super().allowed(operation, who, state)

    def judged(self, operation: str, who: str, answers: list[Any]) -> str:
        """What was refused, in the words of the wire; nothing if it was done."""
        texts = [answer.message for answer in answers if isinstance(answer, codec.Error | codec.PublishError)]
        texts += [answer[2] for answer in answers if isinstance(answer, tuple) and answer[0]]
        if not texts:
            assert answers or operation == "binary batch", "every other request is answered"
            return ""
        if who == "revoked" and operation != "auth" and texts == ["auth failed"]:
            return "revoked"
        if texts[-1].endswith("is reserved for dead letters"):
            return ""  # past the gate: no cache has such a name
        if operation.startswith("group_") and texts[-1].startswith(("there is no group", "topic not found")):
            return ""  # past the gate, too
        return texts[-1].partition(":")[0]

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        return answer == "revoked" or answer in UNKNOWN


class FelixBare(FelixDoor):
    """By API key, the topics of the other doors: tenant and namespace are empty."""

    operations: ClassVar = {
        name: NEEDS[name] for name in ("publish", "publish_batch", "binary batch", "acknowledged batch", "subscribe")
    }
    skip = frozenset({"worker"})
    space: ClassVar = ("", "")


class FelixTokens(FelixDoor):
    """By a tenant's token that permits everything, or less."""

    skip = frozenset({"__users"})

    def __init__(self, grant: str = "all") -> None:
        self.grant = grant

    def credential(self, world: FelixWorld, who: str) -> str:
        return world.tenant_token(who, self.grant)

    def allowed(self, operation: str, who: str, state: str) -> bool:
        need = self.operations[operation]
        if operation in EITHER or not super().allowed(operation, who, state) or need not in "rw":
            return super().allowed(operation, who, state)
        kind = "cache" if operation.startswith(("cache", "counter")) else "stream"
        return f"{kind}-{need}" in GRANTS[self.grant][1].split()


class FelixGrants(FelixTokens):
    """A few states and principals, for every other grant."""

    operations: ClassVar = NEEDS
    skip = frozenset({"__users", "there-dlq", "denied-dlq", "tenant.b-dlq", "tenantX", "guest", "revoked", "stranger"})


class FelixNobody(FelixDoor):
    """No `auth` at all: nothing is looked at."""

    skip = frozenset(USERS) | {"worker", "__users"}

    def ask(self, world: Any, operation: str, who: str, state: str) -> str:
        stream = world.connect().stream()
        if operation == "auth":
            return "auth required"  # there is none: FelixDoor has what a wrong one gets
        return self.judged(operation, who, stream.ask(frame(operation, state)))

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        return operation == "auth"


class FelixOpen(FelixNobody):
    """An open listener: whoever says no `auth` has the role that the configuration gives to nobody in particular."""

    operations: ClassVar = {name: need for name, need in FelixDoor.operations.items() if name != "auth"}

    def make(self) -> FelixWorld:
        return FelixWorld(open=True, anonymous_role="guest")

    def allowed(self, operation: str, who: str, state: str) -> bool:
        return operation not in frames.OURS | frames.FEATURED | BEYOND_DOCUMENT and allowed(
            self.operations[operation], "guest", state
        )

    def known_as(self, who: str) -> str:
        return "(anonymous)"

    def unaudited(self, operation: str, state: str, answer: str) -> bool:
        return answer in UNKNOWN or operation in BEYOND_DOCUMENT


# -- the matrices ------------------------------------------------------------------------------------------------------


def test_the_matrix_of_api_keys() -> None:
    wrong, count = disagreements(FelixDoor())
    more, others = disagreements(FelixBare())
    assert wrong + more == []
    assert count + others == len(frames.NAMES) * 7 * 9 + 5 * 7 * 10


def test_the_matrix_of_tokens() -> None:
    wrong, count = disagreements(FelixTokens())
    assert wrong == []
    assert count == len(frames.NAMES) * 8 * 9


@pytest.mark.parametrize("grant", [name for name in GRANTS if name != "all"])
def test_the_matrix_of_what_a_token_permits(grant: str) -> None:
    wrong, count = disagreements(FelixGrants(grant))
    assert wrong == []
    assert count == len(NEEDS) * 5 * 5


def test_the_matrix_of_nobody() -> None:
    wrong, count = disagreements(FelixNobody())
    more, others = disagreements(FelixOpen())
    assert wrong + more == []
    assert count + others == len(frames.NAMES) * 9 + (len(frames.NAMES) - 1) * 9


def test_the_table_says_what_the_oracle_says() -> None:
    words = {"i": "open", "r": "read", "w": "write", "o": "owner", "s": "server", "k": "known"}
    assert {name: words[need] for name, need in FelixDoor.operations.items()} == frames.RIGHTS
    assert set(frames.NAMES) == set(frames.RIGHTS) and len(frames.NAMES) == len(frames.RIGHTS)


# -- controls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["publish", "acknowledged batch", "subscribe", "cache_put", "cache_watch"])
def test_an_open_gate_is_caught(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Access, "allowed", lambda *_: True)
    wrong, _ = disagreements(FelixDoor(), [operation])
    assert any("let through" in line for line in wrong)
    assert any("had an effect" in line for line in wrong) or operation == "cache_watch", "a watch changes nothing"


def test_a_token_that_is_not_asked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TenantClaims, "allows", lambda *_: True)
    wrong, _ = disagreements(FelixGrants("cache reads"), ["publish", "cache_put"])
    assert any("let through" in line for line in wrong) and any("had an effect" in line for line in wrong)


@pytest.mark.parametrize("door", [FelixDoor(), FelixGrants("nothing")])
def test_a_refusal_that_is_not_written_down_is_caught(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "_refused", lambda *_: None)
    monkeypatch.setattr(Bearer, "_deny", lambda *_: None)
    wrong, _ = disagreements(door, ["publish"])
    assert any("not written down" in line for line in wrong)


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flaw", ["expired", "not yet", "forged", "disabled", "another tenant's", "audience", "issuer"])
def test_a_token_with_a_flaw_opens_nothing(flaw: str) -> None:
    world = FelixWorld()
    now = world.now_s
    token = {
        "expired": lambda: world.tenant_token("worker", exp=now - 3600),
        "not yet": lambda: world.tenant_token("worker", nbf=now + 3600),
        "forged": lambda: world.tenant_token("stranger"), "disabled": lambda: world.tenant_token("revoked"),
        "another tenant's": lambda: world.tenant_token("worker", tid="other"),
        "audience": lambda: world.tenant_token("worker", aud="somebody"),
        "issuer": lambda: world.tenant_token("worker", iss="somebody"),
    }[flaw]()  # fmt: skip
    for operation in NEEDS:
        world.tick()
        before, recorded = world.state(), world.broker.audit.recorded
        stream = world.connect().stream()
        shown = codec.encode(codec.Auth(tenant_id="felix", token=token, client_flags=OURS, quintet=1))
        (answer,) = stream.ask(shown, frame(operation, "there"))
        assert answer.message == (errors.TENANT_MISMATCH if flaw == "another tenant's" else errors.AUTH_FAILED)
        assert stream.reason() is not None
        assert world.state() == before and world.noted(recorded, "worker"), operation


def test_a_token_never_reaches_beyond_its_tenant() -> None:
    """Whatever it permits, and whoever its subject is: other tenants, bare topics, and what looks like its own."""
    world = FelixWorld()
    everything = world.tenant_token("admin", perms=[
        f"{action}:{kind}:*" for action, kind in (("stream.publish", "stream"), ("stream.subscribe", "stream"),
                                                  ("cache.read", "cache"), ("cache.write", "cache"))])  # fmt: skip
    spaces: tuple[tuple[str, str], ...] = (
        ("other", "x"),
        ("", ""),
        ("felix ", "x"),
        ("Felix", "x"),
        ("", "felix"),
        ("cache", "felix"),
    )
    for space in spaces:
        for operation, need in NEEDS.items():
            if need not in "rw":
                continue
            world.tick()
            before, recorded, dropped = world.state(), world.broker.audit.recorded, world.broker.publishes_dropped
            connection, featured = world.connect(), operation in frames.FEATURED
            stream = (
                connection.featured(everything, "felix") if featured else connection.auth(everything, OURS, "felix")
            )
            answers = stream.ask(frame(operation, "there", space))
            assert world.state() == before, (space, operation)
            if operation == "binary batch":  # nobody waits for an answer
                assert (answers, world.broker.publishes_dropped) == ([], dropped + 1), space
                continue
            assert FelixDoor().judged(operation, "admin", answers), (space, operation)
            named = space != ("", "felix") and space[0] != "cache"  # these are no names of streams at all
            if named and not (space == ("", "") and operation.startswith(("cache", "counter"))):
                assert stream.reason() == errors.TENANT_MISMATCH and world.noted(recorded, "admin"), (space, operation)


def test_who_signs_for_a_tenant_makes_no_administrator() -> None:
    """Its token may name one as its subject: groups of others stay closed to it, and are open to the one with a key."""
    world = FelixWorld()
    wanted = codec.SubscribeOurs(
        tenant_id="felix", namespace="x", stream="there", group="crew", start="earliest", request_id=3
    )
    bruno = world.connect().auth(world.keys["bruno"].decode(), OURS, "felix")
    assert isinstance(bruno.ask(wanted)[0], codec.Subscribed)
    world.tick()
    before = world.state()
    stream = world.connect().auth(world.tenant_token("admin"), OURS, "felix")
    (answer,) = stream.ask(wanted)
    assert isinstance(answer, codec.Error) and world.state() == before, answer
    admin = world.connect().auth(world.keys["admin"].decode(), OURS, "felix")
    assert isinstance(admin.ask(wanted)[0], codec.Subscribed)


# -- random triples ----------------------------------------------------------------------------------------------------

ACTIONS: Final = ("stream.publish", "stream.subscribe", "stream.manage", "cache.read", "cache.write", "ns.manage")
ASKED: Final[tuple[tuple[str, Action], ...]] = (
    ("stream.publish", "publish"), ("stream.subscribe", "subscribe"), ("cache.read", "subscribe"), ("cache.write", "publish"),
)  # fmt: skip


def permits(permissions: tuple[str, ...], tenant: str, permission: str, scope: tuple[str, str, str]) -> bool:
    """The oracle of tokens: a permission is an action and a pattern, `*` is anything, and all is within the tenant."""
    kind = permission[: permission.index(".")]
    if scope[0] != tenant:
        return False
    for each in permissions:
        action, colon, pattern = each.partition(":")
        if colon and action == permission:
            expression = ".*".join(re.escape(piece) for piece in pattern.split("*"))
            if re.fullmatch(expression, f"{kind}:" + "/".join(scope), re.DOTALL):
                return True
    return False


def some_part(rng: Random) -> str:
    part = some_name(rng).replace("/", "-").replace("*", "+").strip("_")
    return part or "o"


def some_permission(rng: Random, scope: tuple[str, str, str]) -> str:
    action = rng.choice(ACTIONS)
    kind = rng.choice((action[: action.index(".")], action[: action.index(".")], "stream", "cache"))
    text = f"{kind}:" + "/".join(part if rng.random() < 0.8 else some_part(rng) for part in scope)
    for _ in range(rng.choice((0, 1, 1, 2))):
        first = rng.randint(0, len(text))
        text = text[:first] + "*" + text[rng.randint(first, len(text)) :]
    return f"{action}:{text}"


def test_token_and_rights_agree_with_both_oracles() -> None:
    """Thousands of triples of principal with token, operation and scope; every refusal is written down."""
    rng = Random(20261116)
    sim = FelixSim()
    broker = sim.broker
    seen = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for _ in range(TRIPLES // 50):
        scope = ("t", some_part(rng), some_part(rng))
        acls = list({acl.pattern: acl for acl in (
            Acl(rng.choice(("t/", "cache/t/", "")) + some_pattern(rng), rng.random() < 0.3, rng.choice(((), ("a",))),
                rng.choice(((), ("r",)))) for _ in range(rng.choice((0, 1, 3))))}.values())  # fmt: skip
        for acl in acls:
            broker.access.set_acl(acl)
        given = [some_permission(rng, scope) for _ in range(10)]
        patterns = [some_patterns(rng, scope) for _ in range(6)]
        for _ in range(50):
            granted = tuple(rng.choices(given, k=rng.choice((0, 1, 2, 4))))
            principal = Principal(
                rng.choice("ab"), rng.choice(patterns), rng.choice(patterns), (), rng.choice(((), ("r",)))
            )
            asked = (rng.choice(("t", "t", "t", "u")), *scope[1:])
            permission, action = rng.choice(ASKED)
            name = ("cache/" if permission.startswith("cache") else "") + "/".join(asked)
            claims = TenantClaims(principal.name, "t", granted, 1 << 60)
            bearer = Bearer(broker, "10.0.0.1:1", "t", "subject:x", principal, b"", claims)
            token, rights = permits(granted, "t", permission, asked), oracle(principal, action, name, acls)
            before = broker.audit.recorded
            try:
                bearer.require(action, permission, asked, name)
                done = True
            except Forbidden:
                done = False
                sim.scheduler.advance(20_000)
            assert done is (token and rights), (granted, principal, asked, permission, acls)
            assert bearer.may(action, permission, asked, name) is done
            assert (broker.audit.recorded > before) is not done
            seen[token, rights] += 1
        for acl in acls:
            broker.access.drop_acl(acl.pattern)
    assert min(seen.values()) > TRIPLES // 50, seen
    assert broker.audit.query(Query(limit=1))[0][0].result == "denied"


def some_patterns(rng: Random, scope: tuple[str, str, str]) -> tuple[str, ...]:
    whole = rng.choice(("", "cache/")) + "/".join(scope)
    cut = whole[: rng.randint(0, len(whole))] + "*"
    return tuple(rng.choice((whole, cut, "*", some_pattern(rng))) for _ in range(rng.choice((0, 1, 2))))
