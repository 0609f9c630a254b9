"""What goes from a cache by itself: keys that expire, and keys that make room. Limits hold, and the log follows."""

import errno
from random import Random

import pytest
from msgspec.structs import replace

from quintet import kernel
from quintet.broker.doors.cache_memory import GHOSTS_SLACK, OVERHEAD_BYTES, Deadlines, Sieve
from quintet.broker.sections import CacheSection, Tenant
from quintet.model.errors import LimitExceeded, StorageError
from tests.broker.test_cache import SCOPE, SECOND, Told, again, check_books, made, nobody, records

# -- time --------------------------------------------------------------------------------------------------------------


def test_what_has_expired_is_not_read_and_goes_by_itself() -> None:
    sim, cache = made()
    now = sim.scheduler.now()
    for number in range(10):
        cache.put(b"%d" % number, b"v", now + SECOND, None, nobody)
    cache.put(b"later", b"v", now + SECOND, None, nobody)
    cache.put(b"later", b"v", now + 10 * SECOND, None, nobody)
    cache.put(b"never", b"v", now + SECOND, None, nobody)
    cache.put(b"never", b"v", 0, None, nobody)
    assert cache.get(b"0", now + SECOND - 1) is not None
    assert cache.get(b"0", now + SECOND) is None
    sim.advance(2 * SECOND)
    assert sorted(cache.entries) == [b"later", b"never"]
    assert sim.broker.caches.expired == 10
    check_books(sim)
    sim.scheduler.run_until_idle()
    assert {key for key, value in records(cache) if value is None} == {b"%d" % number for number in range(10)}
    sim.advance(10 * SECOND)
    assert sorted(cache.entries) == [b"never"]


def test_a_start_does_not_take_up_what_expired_meanwhile() -> None:
    sim, cache = made()
    cache.put(b"old", b"first", 0, None, nobody)
    cache.put(b"old", b"v", sim.scheduler.now() + SECOND, None, nobody)
    cache.put(b"new", b"v", sim.scheduler.now() + 60 * SECOND, None, nobody)
    sim.scheduler.run_until_idle()
    sim.stop()
    sim.scheduler.advance(2 * SECOND)
    sim.start()
    assert list(sim.broker.caches.open(SCOPE).entries) == [b"new"]


def test_deadlines_that_move_leave_bounded_litter() -> None:
    sim, cache = made()
    deadlines = sim.broker.caches.deadlines
    rng = Random(4)
    for number in range(20_000):
        deadlines.set(cache, b"%d" % rng.randrange(20), 10**9 - number)
        assert len(deadlines) <= 2 * GHOSTS_SLACK + 100
    model = dict(cache.timed)
    for now in range(10**9 - 20_000, 10**9 + 1, 997):
        due = {key for _, key in deadlines.due(now, 1_000)}
        assert due == {key for key, at in model.items() if at <= now}
        model = {key: at for key, at in model.items() if at > now}
    assert not cache.timed


def test_due_keys_come_a_bounded_number_at_a_time() -> None:
    _, cache = made()
    deadlines = Deadlines()
    deadlines.open(cache)
    for number in range(100):
        deadlines.set(cache, b"%d" % number, number + 1)
    assert [len(deadlines.due(1_000, 30)) for _ in range(5)] == [30, 30, 30, 10, 0]


# -- memory ------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_keys_stay_within_the_limit() -> None:
    limit = 1_000_000
    sim, cache = made(CacheSection(memory_bytes=limit))
    for number in range(100_000):
        cache.put(b"key-%d" % number, b"v" * 20, 0, None, nobody)
        if number % 1_000 == 0:
            assert sim.broker.caches.bytes <= limit
            sim.advance(1)
    sim.advance(1)
    assert limit - 300 < sim.broker.caches.bytes <= limit
    assert sim.broker.caches.evicted == 100_000 - len(cache.entries)
    check_books(sim)
    kept = {key: row[0] for key, row in cache.entries.items()}
    live = dict(records(cache))
    assert {key: value for key, value in live.items() if value is not None} == kept, "all others have tombstones"
    assert {key: row[0] for key, row in again(sim).entries.items()} == kept


def test_sieve_keeps_what_is_asked_for() -> None:
    sim, cache = made(CacheSection(memory_bytes=100 * (OVERHEAD_BYTES + 8)))
    hot = [b"hot-%03d" % number for number in range(20)]
    for number in range(2_000):
        cache.put(b"new-%04d" % number, b"", 0, None, nobody)
        for key in hot:
            if cache.get(key, sim.scheduler.now()) is None:
                cache.put(key, b"", 0, None, nobody)
    assert sim.broker.caches.misses <= 3 * len(hot), "they were not lost again and again"
    check_books(sim)


def test_the_hand_looks_at_a_bounded_number_and_ghosts_do_not_heap_up() -> None:
    rows = kernel.CacheMemory()
    sieve = Sieve(rows)
    for number in range(5_000):
        key = b"%d" % number
        rows[key] = (b"", 0, True, 1)
        sieve.add(key)
    victim = sieve.victim()
    rows.pop(victim)
    assert sum(not row[2] for _, row in rows.items()) == 64, "not all five thousand were looked at"
    for number in range(200_000):
        key = b"ghost-%d" % number
        rows[key] = (b"", 0, False, 1)
        sieve.add(key)
        rows.pop(key)
        sieve.remove(key)
    assert len(sieve) <= 2 * len(rows) + 2 * GHOSTS_SLACK
    for key in list(rows):
        rows.pop(key)
        sieve.remove(key)
    rows[b"last"] = (b"", 0, True, 1)
    sieve.add(b"last")
    assert sieve.victim() == b"last"


def test_the_quota_of_a_tenant_takes_its_own_keys() -> None:
    each = OVERHEAD_BYTES + 10
    sim, cache = made(CacheSection(memory_bytes=100 * each), t=Tenant(name="t", cache_bytes=10 * each, caches_max=1))
    other = sim.broker.caches.open(("other", "n", "c"))
    for number in range(50):
        other.put(b"%010d" % number, b"", 0, None, nobody)
        cache.put(b"%010d" % number, b"", 0, None, nobody)
    assert (len(cache.entries), len(other.entries)) == (10, 50)
    with pytest.raises(LimitExceeded, match="larger than all caches of tenant 't'"):
        cache.put(b"k", b"v" * 10 * each, 0, None, nobody)
    with pytest.raises(LimitExceeded, match="tenant 't' has 1 caches, its limit is 1"):
        sim.broker.caches.open(("t", "n", "second"))
    assert sim.broker.caches.open(SCOPE) is cache
    for number in range(200):  # the others share what is left: who has most gives first
        other.put(b"%010d" % number, b"", 0, None, nobody)
    assert (len(cache.entries), len(other.entries)) == (10, 90)
    sim.broker.tenants.replace({"t": Tenant(name="t", cache_bytes=3 * each)})
    sim.advance(1)
    assert len(cache.entries) == 3
    check_books(sim)


def test_refusing_instead_of_evicting() -> None:
    each = OVERHEAD_BYTES + 1
    sim, cache = made(CacheSection(memory_bytes=2 * each, eviction="refuse"))
    cache.put(b"a", b"", 0, None, nobody)
    cache.put(b"b", b"", sim.scheduler.now() + SECOND, None, nobody)
    with pytest.raises(LimitExceeded, match="the caches are full"):
        cache.put(b"c", b"", 0, None, nobody)
    with pytest.raises(LimitExceeded, match="the caches are full"):
        cache.put(b"a", b"longer", 0, None, nobody)
    cache.put(b"a", b"", 0, None, nobody)
    sim.scheduler.advance(SECOND)
    cache.put(b"c", b"", 0, None, nobody)
    assert sorted(cache.entries) == [b"a", b"c"]
    assert sim.broker.caches.evicted == 0


def test_a_key_that_went_and_is_put_again_is_not_taken_by_its_tombstone() -> None:
    sim, cache = made(CacheSection(memory_bytes=500))
    cache.put(b"k", b"v", sim.scheduler.now() + SECOND, None, nobody)
    sim.scheduler.run_until_idle()
    sim.scheduler.advance(SECOND)
    assert cache.get(b"k", sim.scheduler.now()) is None
    cache.put(b"k", b"w", 0, None, nobody)
    sim.advance(1)
    assert list(again(sim).entries) == [b"k"]
    cache = sim.broker.caches.open(SCOPE)
    cache.put(b"j", b"", 0, None, nobody)
    cache.entries.set_used(b"k", False)
    cache.put(b"k", b"x" * 150, 0, None, nobody)  # the oldest key that nobody used: it makes room for itself
    assert list(cache.entries) == [b"k"]
    assert sim.broker.caches.evicted == 2
    sim.advance(1)
    assert {key: row[0] for key, row in again(sim).entries.items()} == {b"k": b"x" * 150}
    check_books(sim)


def test_a_lower_limit_is_respected_by_the_next_start() -> None:
    sim, cache = made()
    for number in range(100):
        cache.put(b"%02d" % number, b"v", 0, None, nobody)
    cache.put(b"large", b"v" * 5_000, 0, None, nobody)
    sim.scheduler.run_until_idle()
    sim.stop()
    sim.options = replace(sim.options, caches=CacheSection(memory_bytes=10 * (OVERHEAD_BYTES + 3)))
    sim.start()
    cache = sim.broker.caches.open(SCOPE)
    assert sorted(cache.entries) == [b"%02d" % number for number in range(90, 100)], "the newest"
    sim.advance(1)
    sim.restart()
    assert len(sim.broker.caches.open(SCOPE).entries) == 10
    check_books(sim)


def test_tombstones_that_the_disk_refuses_are_tried_again() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", sim.scheduler.now() + SECOND, None, nobody)
    sim.scheduler.run_until_idle()
    sim.disk.fail("pwritev", 1, errno.ENOSPC, times=10_000)
    sim.advance(3 * SECOND)
    assert not cache.entries
    assert cache.topic.partitions[0].failure is not None
    assert list(cache.tombstones_due) == [b"k"]
    sim.disk.heal()
    sim.advance(3 * SECOND)
    assert records(cache) == [(b"k", b"v"), (b"k", None)]
    assert not sim.broker.caches.with_tombstones_due


@pytest.mark.parametrize("under_way", [False, True])
def test_a_put_that_fails_leaves_an_evicted_key_to_its_tombstone(under_way: bool) -> None:
    sim, cache = made(CacheSection(memory_bytes=OVERHEAD_BYTES + 2))
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    cache.put(b"j", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    assert list(cache.tombstones_due) == [b"k"]
    if under_way:
        sim.broker.caches.flush()
        assert not cache.tombstones_due
    cache.delete(b"j", None, nobody)
    told = Told()
    cache.put(b"k", b"w", 0, None, told)
    cache.put(b"k", b"x", 0, None, told)
    sim.disk.fail("pwritev", 1, errno.ENOSPC, times=10_000)
    sim.scheduler.run_until_idle()
    assert isinstance(told.heard[0], StorageError)
    assert list(cache.entries) == [b"j"]
    assert list(cache.tombstones_due) == [b"k"]
    sim.disk.heal()
    sim.advance(3 * SECOND)
    assert records(cache)[-1] == (b"k", None)
    assert list(again(sim).entries) == [b"j"]
    check_books(sim)
