"""The tail cache: what it keeps costs what is configured, and deleting a topic does not walk over other topics."""

import tracemalloc
from collections import deque
from collections.abc import Iterator

import pytest

from quintet import kernel
from quintet.log.embedded.partitions import shared as shared_module
from quintet.log.embedded.partitions.shared import FREED_AT_ONCE_MAX, OBJECT_BYTES, Shared, TailCache
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.testing.sim import SimDisk, SimScheduler


class Places(deque[TailCache]):
    """An order of eviction that may be used at both ends and never be walked over."""

    def __iter__(self) -> Iterator[TailCache]:
        raise AssertionError("the whole order of eviction was walked over")


def made(bound: int = 1 << 30) -> tuple[Shared, SimScheduler]:
    scheduler = SimScheduler()
    shared = Shared(SimDisk(), scheduler, lambda event, fields: None)
    shared.cache_bytes_max = bound
    shared.cache_order._unswept = Places()
    return shared, scheduler


def batch(offset: int, value_bytes: int = 20) -> RecordBatch:
    data = kernel.build([bytes(value_bytes)], [None])
    kernel.place(data, offset, 1_700_000_000_000_000 + offset)
    return RecordBatch(data)


@pytest.mark.parametrize("value_bytes", [1, 100, 1_000])
def test_a_full_cache_takes_the_memory_that_is_configured(value_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ENCODED_FOR_BYTES", 1 << 20)  # holds the newest batches too: less than the cache does
    bound = 4 << 20
    shared, _ = made(bound)
    caches = [TailCache(shared) for _ in range(10)]
    tracemalloc.start()
    try:
        number = 0
        while number < 2 * len(shared.cache_order) + 100 or shared.cache_bytes < 0.9 * bound:
            caches[number % 10].add(batch(1_000_000 + number, value_bytes))
            number += 1
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert shared.cache_bytes <= bound
    assert 0.7 * bound < taken < 1.15 * bound, f"{taken} bytes are kept, {bound} are configured"


def test_deleting_a_topic_does_not_walk_over_what_others_have_cached() -> None:
    shared, _ = made()
    other, doomed = TailCache(shared), [TailCache(shared) for _ in range(50)]
    for number in range(1_000):
        other.add(batch(number))
        doomed[number % 50].add(batch(number))
    before = shared.cache_bytes
    for cache in doomed:
        cache.clear()
    assert shared.cache_bytes == before // 2
    assert [kept.base_offset for kept in other.read(0, 1 << 30) or []] == list(range(1_000))
    assert all(cache.read(0, 1 << 20) is None for cache in doomed)


def test_places_of_deleted_topics_do_not_pile_up() -> None:
    shared, scheduler = made()
    TailCache(shared).add(batch(0))  # the oldest of all, and never evicted
    for _ in range(200):
        cache = TailCache(shared)
        for number in range(10):
            cache.add(batch(number))
        cache.clear()
        scheduler.run_until_idle()
    assert len(shared.cache_order) < 50
    assert shared.cache_order.stale == len(shared.cache_order) - 1


def test_eviction_goes_on_after_topics_were_deleted() -> None:
    size = batch(0).length + OBJECT_BYTES
    shared, _ = made(20 * size)
    doomed, cache = TailCache(shared), TailCache(shared)
    for number in range(10):
        doomed.add(batch(number))
        cache.add(batch(number))
    doomed.clear()
    for number in range(10, 100):
        cache.add(batch(number))
    kept = cache.read(80, 1 << 30)
    assert kept is not None and [found.base_offset for found in kept] == list(range(80, 100))
    assert cache.read(79, 1 << 20) is None
    assert shared.cache_bytes == 20 * size
    assert shared.cache_order.stale == 0


def test_one_large_batch_evicts_many_small_ones_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_module, "FREED_AT_ONCE_MAX", 100)
    shared, scheduler = made(1 << 20)
    cache = TailCache(shared)
    for number in range(1_500):
        cache.add(batch(number))
    kept = len(shared.cache_order)
    cache.add(batch(1_500, (1 << 20) - 10_000))
    assert len(shared.cache_order) == kept + 1 - 100
    scheduler.run_until_idle()
    assert shared.cache_bytes <= 1 << 20


def test_what_a_deleted_topic_had_cached_is_freed_in_slices() -> None:
    shared, scheduler = made()
    cache = TailCache(shared)
    one = batch(0)
    for _ in range(3 * FREED_AT_ONCE_MAX):
        cache.add(one)
    shared.memo_order.clear()
    held = cache._batches
    cache.clear()
    left = []
    while held:
        left.append(len(held))
        scheduler.turn()
    assert left == [3 * FREED_AT_ONCE_MAX, 2 * FREED_AT_ONCE_MAX, FREED_AT_ONCE_MAX]
