"""Caches: what they answer, what they refuse, what goes when there is no room, who may write to their topics."""

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest

from quintet import kernel
from quintet.broker.atomic.dead_letters import Failure
from quintet.broker.core import BrokerOptions
from quintet.broker.doors.cache import (
    EXPIRES_MAX_US,
    NUMBER_MAX,
    NUMBER_MIN,
    PREFIX_WATCHES_MAX,
    VERSION_SPAN,
    Cache,
    expires_at,
    name_of,
)
from quintet.broker.doors.cache_memory import OVERHEAD_BYTES, cost
from quintet.broker.doors.queues import DURABLE, Bearer
from quintet.broker.identity.access import Principal
from quintet.broker.identity.tokens import Claims
from quintet.broker.sections import CacheSection, Tenant
from quintet.broker.topics.catalog import CacheTopic, Topic
from quintet.model.errors import (
    BadName,
    BadRequest,
    Forbidden,
    LimitExceeded,
    StorageError,
    TooLarge,
    TopicNotFound,
    VersionConflict,
)
from quintet.model.tasks import start
from quintet.testing.line import Peer, SimBroker
from quintet.testing.sim import START_US
from tests.broker.parts import attempt

SCOPE = ("t", "n", "c")
SECOND = 1_000_000
FIRST = START_US + 1  # version of the first change in a cache that was just made
ANY = Principal("any", ("*",), ("*",))


class Told:
    """What `done` heard."""

    def __init__(self) -> None:
        self.heard: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.heard.append(error)


def nobody(_error: Exception | None) -> None:
    return


def made(caches: CacheSection | None = None, **tenants: Tenant) -> tuple[SimBroker, Cache]:
    sim = SimBroker(options=BrokerOptions(caches=caches or CacheSection(), tenants=tenants))
    return sim, sim.broker.caches.open(SCOPE)


def again(sim: SimBroker) -> Cache:
    sim.scheduler.run_until_idle()
    sim.restart()
    cache = sim.broker.caches.get(SCOPE)
    assert cache is not None
    return cache


def records(cache: Cache) -> list[tuple[bytes | None, bytes | None]]:
    """What its topic holds."""
    partition = cache.topic.partitions[0]
    found = []
    offset = partition.start
    while offset < partition.visible:
        for batch in partition.read_now(offset):
            found += [(row[2], row[3]) for row in batch.rows()]
            offset = batch.next_offset
    return found


def check_books(sim: SimBroker) -> None:
    """What is counted is what is there."""
    caches = sim.broker.caches
    every = list(caches._by_scope.values())
    assert caches.keys == sum(len(cache.entries) for cache in every)
    assert caches.bytes == sum(cost(key, row[0]) for cache in every for key, row in cache.entries.items())
    for pool in caches._pools.values():
        assert pool.bytes == sum(cache.bytes for cache in pool.caches.values())
    for cache in every:
        assert cache.timed == {key: row[1] for key, row in cache.entries.items() if row[1]}
        assert len(cache._sieve) == len(cache.entries) + len(cache._sieve._ghosts)


# -- reading and changing ----------------------------------------------------------------------------------------------


def test_a_put_is_seen_at_once_and_acknowledged_when_durable() -> None:
    sim, cache = made()
    told = Told()
    assert cache.put(b"k", b"v", 0, None, told) == FIRST
    assert cache.get(b"k", sim.scheduler.now()) == (b"v", FIRST)
    assert told.heard == []
    sim.scheduler.run_until_idle()
    assert told.heard == [None]
    cache.put(b"d", b"v", 0, None, told)
    assert cache.delete(b"d", None, told) == (True, FIRST + 2)
    assert cache.delete(b"never", None, told) == (False, 0)
    cache = again(sim)
    assert told.heard == [None] * 4
    assert cache.get(b"k", sim.scheduler.now()) == (b"v", FIRST)
    assert cache.get(b"d", sim.scheduler.now()) is None
    assert (sim.broker.caches.hits, sim.broker.caches.misses) == (1, 1)
    assert cache.put(b"k", b"w", 0, FIRST, told) == FIRST + 2 + VERSION_SPAN + 1, "the clock stood still"
    sim.scheduler.advance(3600 * SECOND)
    assert again(sim).put(b"k", b"w", 0, None, told) == sim.scheduler.now() + 1
    check_books(sim)


def test_its_records_carry_the_version_and_the_time_of_expiry() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 5 * EXPIRES_MAX_US, None, nobody)
    cache.put(b"", b"", sim.scheduler.now() + SECOND, None, nobody)
    cache.delete(b"k", FIRST, nobody)
    sim.scheduler.run_until_idle()
    rows = [row for batch in cache.topic.partitions[0].read_now(0) for row in batch.rows()]
    assert [(row[2], row[3], row[4], row[5]) for row in rows] == [
        (b"k", b"v", ((b"version", b"%d" % FIRST),), EXPIRES_MAX_US),
        (b"", b"", ((b"version", b"%d" % (FIRST + 1)),), sim.scheduler.now() + SECOND),
        (b"k", None, ((b"version", b"%d" % (FIRST + 2)),), 0),
    ]
    spec = cache.topic.spec
    assert (spec.name, spec.compact, spec.partitions) == ("cache/t/n/c", True, 1)
    assert again(sim).topic.spec == spec
    assert sim.broker.caches.open(SCOPE).get(b"", sim.scheduler.now()) == (b"", FIRST + 1)


def test_compare_and_set() -> None:
    sim, cache = made()
    with pytest.raises(VersionConflict, match="not there") as missing:
        cache.put(b"k", b"v", 0, 7, nobody)
    assert (missing.value.version, missing.value.value) == (0, None)
    first = cache.put(b"k", b"one", 0, 0, nobody)
    with pytest.raises(
        VersionConflict, match=f"is at version {FIRST}, not 0"
    ) as conflict:  # in the same turn: one of two wins
        cache.put(b"k", b"two", 0, 0, nobody)
    assert (conflict.value.version, conflict.value.value) == (first, b"one")
    second = cache.put(b"k", b"three", 0, first, nobody)
    with pytest.raises(VersionConflict):
        cache.delete(b"k", first, nobody)
    assert cache.get(b"k", sim.scheduler.now()) == (b"three", second)
    assert cache.delete(b"k", second, nobody)[0]
    assert again(sim).put(b"k", b"four", 0, 0, nobody) > second


def test_two_that_race_for_a_counter_both_count() -> None:
    sim, cache = made()
    wins = 0
    for _ in range(50):
        seen = [cache.get(b"n", sim.scheduler.now()) for _ in range(2)]
        for value, version in [found or (b"0", 0) for found in seen]:
            try:
                cache.put(b"n", b"%d" % (int(value) + 1), 0, version, nobody)
                wins += 1
            except VersionConflict:
                pass
    assert wins == 50
    assert again(sim).entries[b"n"][0] == b"50"


def test_increment() -> None:
    sim, cache = made()
    now = sim.scheduler.now()
    assert cache.increment(b"n", 5, None, now, nobody) == (5, FIRST)
    assert cache.increment(b"n", -7, now + SECOND, now, nobody) == (-2, FIRST + 1)
    assert cache.increment(b"n", 1, None, now, nobody) == (-1, FIRST + 2), "the time stays"
    assert cache.entries[b"n"][1] == now + SECOND
    assert cache.increment(b"n", 1, None, now + SECOND, nobody)[0] == 1, "what has expired counts as 0"
    cache.put(b"top", b"%d" % NUMBER_MAX, 0, None, nobody)
    cache.put(b"bottom", b"%d" % NUMBER_MIN, 0, None, nobody)
    before = {key: list(row) for key, row in cache.entries.items()}
    for key, delta in ((b"top", 1), (b"bottom", -1)):
        with pytest.raises(BadRequest, match="does not fit into 64 bits"):
            cache.increment(key, delta, None, now, nobody)
    assert {key: list(row) for key, row in cache.entries.items()} == before
    assert cache.increment(b"top", -1, None, now, nobody)[0] == NUMBER_MAX - 1
    assert again(sim).entries[b"top"][0] == b"%d" % (NUMBER_MAX - 1)


@pytest.mark.parametrize(
    "value", [b"", b"-", b"x", b"1.5", b" 1", b"+1", b"01", b"-0", b"1\n", b"9" * 19 + b"9", b"\xd9\xa1", b"1" * 5000]
)
def test_what_is_no_number_is_not_counted_with(value: bytes) -> None:
    _, cache = made()
    cache.put(b"n", value, 0, None, nobody)
    with pytest.raises(BadRequest, match="decimal number"):
        cache.increment(b"n", 1, None, 0, nobody)
    assert cache.entries[b"n"][0] == value


def test_sizes_and_times_that_are_refused() -> None:
    sim, cache = made(CacheSection(key_bytes_max=4, value_bytes_max=8))
    cache.put(b"1234", b"12345678", 0, None, nobody)
    for key, value in ((b"12345", b""), (b"", b"123456789")):
        with pytest.raises(TooLarge):
            cache.put(key, value, 0, None, nobody)
    with pytest.raises(BadRequest, match="cannot expire"):
        cache.put(b"k", b"", -1, None, nobody)
    sim.scheduler.run_until_idle()
    assert len(records(cache)) == 1


@pytest.mark.parametrize("ttl_ms", [2**63, 2**63 - 1, 2**62, 10**15])
def test_a_life_longer_than_time_can_be_told_does_not_overflow(ttl_ms: int) -> None:
    sim, cache = made()
    cache.put(b"k", b"v", expires_at(sim.scheduler.now(), ttl_ms), None, nobody)
    assert 0 < cache.entries[b"k"][1] <= EXPIRES_MAX_US
    assert again(sim).get(b"k", sim.scheduler.now()) == (b"v", FIRST)
    sim.advance(SECOND)
    assert sim.broker.caches.expired == 0


# -- watching ----------------------------------------------------------------------------------------------------------


def test_watches_are_called_when_a_change_is_applied() -> None:
    sim, cache = made(CacheSection(memory_bytes=2 * (OVERHEAD_BYTES + 2)))
    one: list[bytes] = []
    some: list[bytes] = []
    every: list[bytes] = []
    stops = [cache.watch(b"a1", None, one.append), cache.watch(None, b"a", some.append)]
    stops.append(cache.watch(None, None, every.append))
    cache.put(b"a1", b"", 0, None, nobody)
    cache.put(b"a2", b"", sim.scheduler.now() + SECOND, None, nobody)
    cache.put(b"b1", b"", 0, None, nobody)
    assert every == [b"a1", b"a2", b"a1", b"b1"], "evicted before the new one is there"
    sim.advance(2 * SECOND)
    cache.delete(b"b1", None, nobody)
    cache.delete(b"b1", None, nobody)
    assert every[4:] == [b"a2", b"b1"]
    assert one == [b"a1", b"a1"]
    assert some == [b"a1", b"a2", b"a1", b"a2"]
    for stop in [*stops, *stops]:
        stop()
    cache.put(b"a1", b"", 0, None, nobody)
    assert len(every) == 6
    for _ in range(PREFIX_WATCHES_MAX):
        cache.watch(None, b"x", every.append)
    with pytest.raises(LimitExceeded, match="watches"):
        cache.watch(None, b"x", every.append)
    cache.watch(b"x", None, every.append)


# -- the disk ----------------------------------------------------------------------------------------------------------


def test_what_the_disk_refuses_is_taken_back_through_a_line_of_changes() -> None:
    sim, cache = made()
    cache.put(b"k", b"durable", 0, None, nobody)
    cache.put(b"gone", b"durable", 0, None, nobody)
    sim.scheduler.run_until_idle()
    told, seen = Told(), list[bytes]()
    cache.watch(None, None, seen.append)
    cache.put(b"k", b"one", 0, None, told)
    cache.put(b"k", b"two", 0, None, told)
    cache.delete(b"k", None, told)
    cache.put(b"k", b"three", 0, 0, told)
    cache.delete(b"gone", None, told)
    cache.delete(b"gone", None, told)
    cache.put(b"fresh", b"v", 0, None, told)
    cache.increment(b"n", 1, None, 0, told)
    cache.increment(b"n", 1, None, 0, told)
    sim.disk.fail("pwritev", 1, errno.EIO, times=100)
    sim.scheduler.run_until_idle()
    assert len(told.heard) == 9
    assert all(isinstance(error, StorageError) for error in told.heard)
    assert {key: row[0] for key, row in cache.entries.items()} == {b"k": b"durable", b"gone": b"durable"}
    assert {b"k", b"gone", b"fresh", b"n"} <= set(seen[-4:])
    check_books(sim)
    with pytest.raises(StorageError):
        cache.put(b"k", b"v", 0, None, nobody)
    assert cache.get(b"k", 0) == (b"durable", FIRST)


def test_versions_that_were_refused_are_not_used_again() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    sim.disk.capacity = 0
    refused = cache.put(b"k", b"w" * 100_000, 0, None, nobody)
    sim.scheduler.run_until_idle()
    assert cache.get(b"k", 0) == (b"v", FIRST)
    sim.disk.capacity = 1 << 40
    sim.advance(3 * SECOND)
    assert cache.put(b"k", b"x", 0, FIRST, nobody) > refused


def test_a_cache_whose_topic_could_not_be_made_keeps_nothing() -> None:
    sim = SimBroker()
    sim.disk.fail("pwritev", 1, errno.EIO, times=100)
    cache = sim.broker.caches.open(SCOPE)
    told = Told()
    cache.put(b"k", b"v", 0, None, told)
    sim.scheduler.run_until_idle()
    assert len(told.heard) == 1
    assert isinstance(told.heard[0], StorageError)
    assert cache.deleted
    assert not cache.entries
    sim.disk.heal()
    sim.restart()
    sim.disk.fail("pwritev", 1, errno.ENOSPC, times=100)
    cache = sim.broker.caches.open(SCOPE)
    cache.put(b"k", b"v", 0, None, told)
    sim.scheduler.run_until_idle()
    assert cache.deleted
    sim.disk.heal()
    sim.advance(3 * SECOND)
    epoch = sim.broker.access.epoch
    second = sim.broker.caches.open(SCOPE)
    assert second is not cache
    assert sim.broker.access.epoch > epoch, "who remembers the first one looks again"
    second.put(b"k", b"w", 0, 0, told)
    assert again(sim).entries[b"k"][0] == b"w"
    check_books(sim)


# -- names, other doors, deletion --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scope",
    [
        ("", "n", "c"), ("t", "", "c"), ("t", "n", ""), ("t/u", "n", "c"), ("t", "n", "a/b"), ("t", "n\0", "c"),
        ("__t", "n", "c"), ("t", "n", "x" * 201), ("t" * 100, "n" * 100, "c" * 100), ("t", "n", "c-dlq"), ("t", "n", "\ud800"),
    ],
)  # fmt: skip
def test_bad_names(scope: tuple[str, str, str]) -> None:
    sim = SimBroker()
    with pytest.raises(BadName):
        sim.broker.caches.open(scope)
    assert len(sim.broker.caches) == len(sim.broker.topics) == 0


def test_caches_are_bounded() -> None:
    sim, _ = made(CacheSection(caches_max=2))
    sim.broker.caches.open(("t", "n", "d"))
    with pytest.raises(LimitExceeded, match="there are 2 caches"):
        sim.broker.caches.open(("t", "n", "e"))


def test_a_restart_forgets_a_cache_in_memory_and_its_subscriptions() -> None:
    sim, cache = made(CacheSection(durability="memory"))
    peer = Peer.__new__(Peer)
    peer.completed = lambda token, result, error: heard.append(error)  # type: ignore[method-assign]
    heard: list[Exception | None] = []
    sim.broker.subscribe(ANY, cache.topic.raw, 1, peer, None, door="blipmq")
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    assert heard == [None]
    assert cache.topic.in_memory, "a subscription does not make it a durable one"
    assert not again(sim).entries


def test_deleting_the_topic_empties_the_cache() -> None:
    sim, cache = made()
    seen: list[bytes] = []
    cache.watch(None, None, seen.append)
    cache.put(b"k", b"v", sim.scheduler.now() + SECOND, None, nobody)
    sim.scheduler.run_until_idle()
    late, told = Told(), Told()
    cache.put(b"late", b"v", 0, None, late)
    cache.delete(b"k", None, late)
    start(sim.broker.delete_topic(cache.topic.raw)).then(lambda _, error: told(error))
    assert not cache.entries
    assert cache.deleted
    with pytest.raises(TopicNotFound):
        cache.put(b"k", b"v", 0, None, nobody)
    fresh = sim.broker.caches.open(SCOPE)
    assert fresh is not cache
    assert fresh.put(b"new", b"v", 0, None, nobody) > 0
    sim.advance(2 * SECOND)
    assert told.heard == [None]
    assert len(late.heard) == 2
    assert seen == [b"k", b"late", b"k", b"late"]
    assert list(again(sim).entries) == [b"new"]
    check_books(sim)


def test_a_change_that_fails_after_a_deletion_brings_nothing_back() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    late, told = Told(), Told()
    cache.delete(b"k", None, late)
    start(sim.broker.delete_topic(cache.topic.raw)).then(lambda _, error: told(error))
    sim.disk.fail("pwritev", 1, errno.EIO)
    sim.scheduler.run_until_idle()
    assert told.heard == [None]
    assert isinstance(late.heard[0], StorageError)
    assert not cache.entries
    assert sim.broker.caches.bytes == 0


def test_a_deletion_that_the_disk_refuses_brings_the_keys_back() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    told = Told()
    start(sim.broker.delete_topic(cache.topic.raw)).then(lambda _, error: told(error))
    assert sim.broker.caches.get(SCOPE) is None
    sim.disk.fail("pwritev", 1, errno.EIO, times=100)
    sim.scheduler.run_until_idle()
    assert isinstance(told.heard[0], StorageError)
    assert sim.broker.caches.get(SCOPE) is cache
    assert cache.get(b"k", 0) == (b"v", FIRST)
    start(sim.broker.delete_topic(cache.topic.raw)).then(lambda _, error: told(error))
    assert isinstance(told.heard[1], StorageError)
    assert cache.get(b"k", 0) == (b"v", FIRST)
    check_books(sim)


def bearer() -> Bearer:
    claims = Claims("ann", b"key", frozenset(), 0)
    return Bearer(b"", claims, "ann", ANY, b"h" * 32)


def _publish(sim: SimBroker, topic: Topic) -> None:
    topic.publish(kernel.build([b"v"]), 1, True, None)


def _produce_idempotent(sim: SimBroker, topic: Topic) -> None:
    sim.broker.producers.append(topic, 0, kernel.build([b"v"]), lambda _offset, _error: None)


def _delay(sim: SimBroker, topic: Topic) -> None:
    due = sim.scheduler.now() + SECOND
    attempt(sim.broker.delays.produce("ann", topic, 0, b"k", b"v", (), due, b""), nobody)


def _transaction(sim: SimBroker, topic: Topic) -> None:
    id = sim.broker.transactions.begin("ann")
    sim.broker.transactions.produce("ann", id, topic, 0, b"k", b"v", b"")


def _intent(sim: SimBroker, topic: Topic) -> None:
    attempt(sim.broker.intents.commit([(topic, 0, kernel.build([b"v"]))], []), nobody)


WAYS: list[Callable[[SimBroker, Topic], object]] = [
    _publish, _produce_idempotent, _delay, _transaction, _intent,
    lambda sim, topic: sim.broker.publish_target(ANY, topic.raw, True),
    lambda sim, topic: sim.broker.publish_target(ANY, b"cache/t/n/another", True),
    lambda sim, topic: sim.broker.publish_target(ANY, b"cache/x", False),
    lambda sim, topic: sim.broker.create_topic(b"cache/t/n/another", 1),
    lambda sim, topic: sim.broker.subscribe(ANY, b"cache/t/n/another", 1, Peer.__new__(Peer), None, door="blipmq"),
    lambda sim, topic: sim.broker.queues.create(bearer(), topic.raw, DURABLE).send(None),
    lambda sim, topic: sim.broker.queues.create(bearer(), b"cache/t/n/another", 0).send(None),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_no_door_writes_to_the_topic_of_a_cache(way: Callable[[SimBroker, Topic], object]) -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    with pytest.raises(Forbidden, match="are the caches'") as refused:
        way(sim, cache.topic)
    assert "Felix door" in refused.value.hint
    sim.advance(2 * SECOND)
    assert records(cache) == [(b"k", b"v")]
    assert [topic.name for topic in sim.broker.topics.all()] == [name_of(SCOPE)]
    assert {key: row[0] for key, row in again(sim).entries.items()} == {b"k": b"v"}


def test_dead_letters_of_a_cache_are_kept_and_not_replayed_into_it() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    told, raw = Told(), cache.topic.raw
    row = (0, 0, b"k", b"v", (), 0, b"")
    start(sim.broker.dead.bury(raw, 0, 0, row, Failure("failed"), [])).then(lambda _, error: told(error))
    sim.scheduler.run_until_idle()
    assert told.heard == [None]
    letters = sim.broker.topics.find(b"cache/t/n/c-dlq")
    assert not isinstance(letters, CacheTopic)
    assert sim.broker.dead.counts(raw) == 1
    with pytest.raises(Forbidden):
        sim.broker.publish_target(ANY, letters.raw, True)
    start(sim.broker.dead.replay(raw, "0-0", None)).then(lambda _, error: told(error))
    sim.scheduler.run_until_idle()
    assert isinstance(told.heard[1], Forbidden)
    assert sim.broker.dead.counts(raw) == 1
    assert {key: row[0] for key, row in again(sim).entries.items()} == {b"k": b"v"}
    with pytest.raises(BadName, match="dead letters"):
        sim.broker.caches.open(("t", "n", "c-dlq"))


def test_versions_rise() -> None:
    _, cache = made()
    versions = [cache.put(b"%d" % (number % 3), b"", 0, None, nobody) for number in range(10)]
    assert all(one < other for one, other in pairwise(versions))
