"""Nobody gets at another's subscriptions, durable names, groups, answers and cache entries by naming their ids (S10).

Hostile clients know everything of a third: the numbers of its subscriptions, its names, its request ids, its versions. One
has every right to the shared stream and cache of the same tenant, one is of another tenant, one sits on a stream of the
very connection of the victim. They replay what is real and guess what is near. QUINTET_GUESSES says how often.
"""

import os
from random import Random
from typing import Any

import pytest

from quintet.broker.audit.audit_log import AUDIT_TOPIC
from quintet.broker.bearer import Bearer
from quintet.broker.consumers.coordinator import Groups
from quintet.broker.identity.access import Acl
from quintet.model.errors import UnknownSubscription
from quintet.protocols.felix import codec
from quintet.protocols.felix.mapping import Feed
from quintet.protocols.felix.session import FelixSession
from tests.protocols.felix.helpers import ALL, OURS, Connection, FelixSim, Stream, batch, subscribe, token

GUESSES = int(os.environ.get("QUINTET_GUESSES", "100000" if os.environ.get("QUINTET_TEST_LONG") else "20000"))
PIPELINED = 50
LOUD = 0.8  # share of the rounds that are one guess which ends its stream; the others are PIPELINED that do not
SHARED = ("t1", "default", "shared")
VAULT = ("t1", "default", "vault")
NUMBERS = (7, 8, 9)  # the victim's subscriptions: durable, of a group, a watch
EVERYWHERE = tuple(permission.replace("t1/*", "*") for permission in ALL)
SECRET = b"secret"


class Victim:
    """Has one of everything."""

    def __init__(self, sim: FelixSim) -> None:
        self.sim = sim
        for name in ("t1/default/vault", "cache/t1/default/vault"):
            sim.broker.access.set_acl(Acl(name, users=("bruno",)))
        self.connection = sim.connect("10.0.0.7:7")
        self.stream = self.connection.auth("bruno-key")
        values = [b"%d" % number for number in range(9)]
        assert self.stream.ask(batch(*values, request_id=1, scope=SHARED)) == [(0, 1, "")]
        assert self.stream.ask(batch(SECRET, request_id=2, scope=VAULT)) == [(0, 2, "")]
        (put,) = self.stream.ask(_put(VAULT, "k", SECRET, 3))
        self.version = put.version
        told = self.stream.ask(
            subscribe(SHARED, subscription_id=NUMBERS[0], durable="theirs", start="earliest", request_id=4),
            subscribe(SHARED, subscription_id=NUMBERS[1], group="theirs", start="earliest", request_id=5),
            _cache(codec.CacheWatch, VAULT, prefix="", subscription_id=NUMBERS[2], request_id=6),
        )
        assert [type(each) for each in told] == [codec.Subscribed] * 3
        self.ack(0, 3)
        self.outlets = {outlet.take()[0].subscription_id: outlet for outlet in self.connection.outlets}
        assert set(self.outlets) == set(NUMBERS)

    def ack(self, first: int, count: int) -> None:
        for number in NUMBERS[:2]:
            ask = codec.AckRanges(subscription_id=number, ranges=[(first, count)], request_id=10)
            assert self.stream.ask(ask) == [codec.Ok(request_id=10)]

    def state(self) -> object:
        """The log, and what is the victim's."""
        topics = self.sim.log._topics.items()
        return {(id, p.number): p.end for id, ps in topics for p in ps if id != AUDIT_TOPIC[0]}, self.own()

    def own(self) -> object:
        """The places of its subscriptions, its group among them, its cache, and what it was told meanwhile: nothing."""
        broker = self.sim.broker
        places = {
            s.id: [(lane.position, lane.pending) for lane in s.lanes]
            for s in broker.subscriptions.all()
            if s.owner == "bruno"
        }
        cache = broker.caches.get(VAULT)
        assert cache is not None
        entries = {key: (entry[0], entry[3]) for key, entry in cache.entries.items()}
        told = [(number, outlet.over, outlet.take()) for number, outlet in self.outlets.items()]
        return places, entries, told, self.stream.said()

    def still_works(self) -> None:
        self.ack(3, 2)
        (answer,) = self.stream.ask(_put(VAULT, "k", b"new", 11, if_version=self.version))
        assert isinstance(answer, codec.CacheOk)
        (event,) = self.outlets[NUMBERS[2]].take()
        assert (event.key, event.value) == ("k", b"new")
        assert self.stream.ask(batch(b"more", request_id=12, scope=SHARED)) == [(0, 12, "")]
        for number in NUMBERS[:2]:
            assert self.outlets[number].take() == [(9, [b"more"])]


def _cache(kind: Any, scope: tuple[str, str, str], **fields: Any) -> Any:
    return kind(tenant_id=scope[0], namespace=scope[1], cache=scope[2], **fields)


def _put(scope: tuple[str, str, str], key: str, value: bytes, request_id: int, **more: Any) -> Any:
    return _cache(codec.CachePutOurs, scope, key=key, value=value, request_id=request_id, **more)


class Hostile:
    """One attacker; a stream that was ended is replaced by another."""

    def __init__(self, sim: FelixSim, connection: Connection, tenant: str, name: str) -> None:
        self.sim = sim
        self.tenant = tenant
        self._connection = connection
        self._token = token(sim.now_s, tenant, EVERYWHERE, name, life_s=10**6)
        self._stream: Stream | None = None

    def stream(self) -> Stream:
        if self._stream is None or self._stream.reason() is not None:
            if self._stream is not None:
                self._stream.close()
                self._connection.streams.remove(self._stream)
            self._stream = self._connection.auth(self._token, OURS, self.tenant)
        return self._stream

    def ask(self, *messages: Any) -> list[Any]:
        return self.stream().ask(*messages)


def some_id(rng: Random) -> Any:
    return rng.choice((*NUMBERS, *NUMBERS, rng.randrange(12), rng.randrange(1 << 64), "7", "theirs", "8"))


def quiet_guess(rng: Random) -> Any:
    """A guess whose refusal leaves the stream open."""
    number = rng.randrange(1, 13)
    if rng.random() < 0.5:
        first = rng.choice((0, 3, 3, rng.randrange(12), rng.randrange(1 << 48)))
        ranges = [(first, rng.choice((1, 1, 6, 9, 1000)))]
        return codec.AckRanges(subscription_id=some_id(rng), ranges=ranges, request_id=rng.choice((None, number)))
    return codec.Unsubscribe(subscription_id=some_id(rng), delete=rng.random() < 0.5, request_id=number)


def loud_guess(rng: Random, victim: Victim) -> Any:
    """A guess that ends its stream."""
    number, key = rng.randrange(1, 13), rng.choice(("k", "k", "", "kk"))
    version = max(0, victim.version + rng.choice((0, 0, 0, 1, -1, rng.randrange(1000), -victim.version)))
    return rng.choice((
        _put(VAULT, key, b"evil", number, if_version=version), _put(VAULT, key, b"evil", number),
        _cache(codec.CacheDelete, VAULT, key=key, if_version=version, request_id=number),
        _cache(codec.CacheIncr, VAULT, key=key, delta=1, request_id=number),
        _cache(codec.CacheGet, VAULT, key=key, request_id=number),
        _cache(codec.CacheGetMany, VAULT, keys=[key, "k"], request_id=number),
        _cache(codec.CacheWatch, VAULT, prefix="", subscription_id=NUMBERS[2], request_id=number),
        subscribe(VAULT, durable="theirs", start="earliest", subscription_id=NUMBERS[0], request_id=number),
        subscribe(VAULT, start="earliest", request_id=number), batch(b"evil", request_id=number, scope=VAULT),
        batch(b"evil", scope=VAULT), subscribe(SHARED, group="theirs", start="earliest", request_id=number),
        subscribe(SHARED, group="theirs", start="latest", subscription_id=NUMBERS[1], request_id=number),
    ))  # fmt: skip


def answered_well(answer: Any) -> bool:
    """Whether this is anything but a refusal."""
    if isinstance(answer, tuple):
        return bool(answer[0] == 0)
    return not isinstance(answer, codec.Error | codec.PublishError)


def attack(guesses: int, seed: int) -> list[Any]:
    """What was not refused, or told a secret, or changed anything of the victim's."""
    rng = Random(seed)
    sim = FelixSim(keys={"bruno": "bruno-key"})
    victim = Victim(sim)
    crowd = [
        Hostile(sim, sim.connect("10.0.0.8:1"), "t1", "eve"),
        Hostile(sim, sim.connect("10.0.0.9:1"), "t2", "mallory"),
        Hostile(sim, victim.connection, "t1", "eve"),
    ]
    before, got = victim.state(), []
    done = 0
    while done < guesses:
        hostile = rng.choice(crowd)
        asked = [loud_guess(rng, victim)] if rng.random() < LOUD else [quiet_guess(rng) for _ in range(PIPELINED)]
        got += [answer for answer in hostile.ask(*asked) if answered_well(answer)]
        done += len(asked)
        if got or victim.state() != before:
            return [*got, "the victim noticed"]
        sim.scheduler.advance(1_000)
    assert len(victim.connection.outlets) == len(NUMBERS), "no guess opened an event stream"
    victim.still_works()
    return got


def test_guesses_and_replays_of_anothers_ids_get_nothing() -> None:
    assert attack(GUESSES, 1) == []


def test_a_missing_check_of_the_owner_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybodys(self: FelixSession, id: int | str) -> Feed:
        feed = self._shared.feed(id)
        if feed is None:
            raise UnknownSubscription(f"unknown subscription: {id}")
        return feed

    monkeypatch.setattr(FelixSession, "_own", anybodys)
    assert attack(2_000, 2) != []


def test_rights_that_are_not_asked_for_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bearer, "require", lambda *_: None)
    assert attack(2_000, 3) != []


def test_a_group_that_anybody_may_join_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    admit = Groups.admit
    monkeypatch.setattr(Groups, "admit", lambda self, actor, _may, topic, group: admit(self, actor, True, topic, group))
    assert attack(2_000, 4) != []


# -- names that are the same -------------------------------------------------------------------------------------------


def test_a_durable_name_is_its_owners() -> None:
    """Whoever uses the same name has a subscription of its own: what one settles, the other still gets."""
    sim = FelixSim(keys={"bruno": "bruno-key"})
    victim = Victim(sim)
    before = victim.own()
    eve = Hostile(sim, sim.connect(), "t1", "eve")
    (said,) = eve.ask(subscribe(SHARED, durable="theirs", start="earliest", subscription_id=7, request_id=1))
    assert isinstance(said, codec.Subscribed) and said.offsets == [0]
    assert eve.ask(codec.AckRanges(subscription_id=7, ranges=[(0, 9)], request_id=2)) == [codec.Ok(request_id=2)]
    assert eve.ask(codec.Unsubscribe(subscription_id=7, delete=True, request_id=3)) == [codec.Ok(request_id=3)]
    assert victim.own() == before
    victim.still_works()


@pytest.mark.parametrize("what", ["durable", "group"])
def test_a_subject_of_a_token_is_not_the_user_of_that_name(what: str) -> None:
    """Whoever signs for a tenant can name any subject. What is kept under a name is kept by tenant, too."""
    sim = FelixSim(keys={"bruno": "bruno-key"})
    victim = Victim(sim)
    before = victim.own()
    twin = Hostile(sim, sim.connect(), "t1", "bruno")
    answers = twin.ask(subscribe(SHARED, **{what: "theirs"}, start="earliest", subscription_id=7, request_id=1))
    twin.ask(codec.AckRanges(subscription_id=7, ranges=[(0, 9)], request_id=2))
    twin.ask(codec.Unsubscribe(subscription_id=7, delete=True, request_id=3))
    assert victim.own() == before, answers
    victim.still_works()
