"""Delayed messages: never early, never twice, never lost, whatever happens to clock, power, disk and topic."""

import contextlib
import errno
import gc
import tracemalloc
from collections import Counter
from functools import partial
from random import Random

import pytest

from quintet.broker.atomic import delays as module
from quintet.broker.atomic.delays import DelayedSent, Delays
from quintet.broker.atomic.intent_rows import Records
from quintet.broker.topics.catalog import ANY, Topic
from quintet.log.base import Durability
from quintet.model import limits
from quintet.model.errors import (
    BadRequest,
    LimitExceeded,
    OffsetNotFound,
    PartitionNotFound,
    QuintetError,
    StorageFull,
    TooLarge,
)
from quintet.model.keys import fnv1a
from quintet.model.tasks import Verb, start
from quintet.testing.sim import START_US, SimDisk
from tests.broker.parts import SECOND, Parts, Told, attempt

DAY = 24 * 3600 * SECOND


class Handles(list[tuple[int, Exception | None]]):
    """A `done` that remembers handles."""

    def __call__(self, handle: int, error: Exception | None) -> None:
        self.append((handle, error))


def produce(verb: Verb[int], told: Handles) -> None:
    """An error that comes at once is raised."""
    over: list[int] = []
    attempt(_remembering(verb, over), lambda error: told(-1 if error is not None else over[0], error))


async def _remembering(verb: Verb[int], results: list[int]) -> None:
    results.append(await verb)


def later(
    parts: Parts,
    value: bytes,
    delay_us: int,
    name: bytes = b"t",
    key: bytes | None = None,
    partition: int = ANY,
    owner: str = "me",
    told: Handles | None = None,
) -> Handles:
    told = Handles() if told is None else told
    topic = parts.topics.ensure(name, durable=True)
    due = parts.scheduler.now() + delay_us
    verb = parts.delays.produce(owner, topic, partition, key, value, ((b"h", b"1"),), due, b"test:me")
    produce(verb, told)
    return told


def kept(parts: Parts, value: bytes, delay_us: int, name: bytes = b"t", owner: str = "me") -> int:
    told = later(parts, value, delay_us, name, owner=owner)
    parts.scheduler.run_until_idle()
    [(handle, error)] = told
    assert error is None
    return handle


def test_it_goes_out_at_its_time_as_it_was_made() -> None:
    parts = Parts()
    later(parts, b"x", 2 * SECOND, key=b"k")
    parts.advance(2 * SECOND - 50_000)
    assert parts.values(b"t") == []
    assert len(parts.delays) == 1
    parts.advance(50_000)
    [(offset, timestamp, key, value, headers, expiry, origin)] = parts.rows(b"t")
    assert (offset, key, value, headers, expiry, origin) == (0, b"k", b"x", ((b"h", b"1"),), 0, b"test:me")
    assert timestamp == START_US + 2 * SECOND
    assert (len(parts.delays), parts.delays.kept_bytes, parts.delays.delivered) == (0, 0, 1)


def test_order_is_that_of_due_times_and_then_of_arrival() -> None:
    parts = Parts()
    for value, delay in ((b"late", 3), (b"first", 1), (b"second", 1), (b"middle", 2)):
        later(parts, value, delay * SECOND)
    parts.scheduler.run_until_idle()
    parts.scheduler.advance(10 * SECOND)
    parts.advance(50_000)
    assert parts.values(b"t") == [b"first", b"second", b"middle", b"late"]


def test_partition_by_key_as_asked_or_in_turn() -> None:
    parts = Parts(partitions=3)
    for value in range(6):
        later(parts, b"turn", 0, b"many")
        later(parts, b"key", 0, b"many", key=b"k%d" % value)
    later(parts, b"asked", 0, b"many", key=b"k", partition=2)
    parts.advance(SECOND)
    topic = parts.topic(b"many")
    by_partition = [[row for batch in p.read_now(0) for row in batch.rows()] for p in topic.partitions]
    assert [sum(row[3] == b"turn" for row in rows) for rows in by_partition] == [2, 2, 2]
    for number, rows in enumerate(by_partition):
        assert all(fnv1a(row[2] or b"") % 3 == number for row in rows if row[3] == b"key")
    assert any(row[3] == b"asked" for row in by_partition[2])
    for number in (3, -2):
        with pytest.raises(PartitionNotFound):
            later(parts, b"x", 0, b"many", partition=number)


def test_origins_of_one_partition_keep_their_order() -> None:
    parts = Parts()
    topic = parts.topic(b"t")
    for number in range(9):
        origin = b"test:%d" % (number % 2)
        produce(
            parts.delays.produce("me", topic, 0, None, b"%d" % number, (), parts.scheduler.now(), origin), Handles()
        )
    parts.advance(SECOND)
    assert [(row[3], row[6]) for row in parts.rows(b"t")] == [(b"%d" % n, b"test:%d" % (n % 2)) for n in range(9)]


def test_a_clock_put_back_delivers_nothing_early_and_loses_nothing() -> None:
    parts = Parts()
    kept(parts, b"x", 10 * SECOND)
    due = parts.scheduler.now() + 10 * SECOND
    parts.advance(5 * SECOND)
    parts.scheduler.jump(-3600 * SECOND)
    parts.advance(60 * SECOND, step_us=SECOND)
    assert parts.values(b"t") == []
    parts.scheduler.jump(due - parts.scheduler.now())
    parts.advance(50_000)
    assert parts.values(b"t") == [b"x"]
    first = kept(parts, b"y", 10 * SECOND)
    parts.scheduler.jump(-3600 * SECOND)
    assert kept(parts, b"z", 10 * SECOND) > first


def test_a_restart_keeps_handles_times_and_order() -> None:
    parts = Parts()
    handles = [kept(parts, b"%d" % number, (5 - number) * SECOND) for number in range(4)]
    parts.cut(1)
    parts = Parts(parts.disk, time=parts.scheduler.time)
    assert len(parts.delays) == 4
    attempt(parts.delays.cancel("me", False, "t", handles[2]), told := Told())
    parts.scheduler.run_until_idle()
    assert told == [None]
    parts.advance(10 * SECOND)
    assert parts.values(b"t") == [b"3", b"1", b"0"]
    assert kept(parts, b"n", 0) > max(handles)


def test_only_the_owner_or_a_privileged_one_cancels_and_only_in_its_topic() -> None:
    parts = Parts()
    handle = kept(parts, b"x", SECOND)
    texts = set()
    for owner, name, number in (("other", "t", handle), ("me", "u", handle), ("me", "t", handle + 1)):
        with pytest.raises(OffsetNotFound) as error:
            attempt(parts.delays.cancel(owner, False, name, number), Told())
        texts.add(str(error.value).replace(str(number), "N").replace("'u'", "'t'"))
    assert len(texts) == 1
    attempt(parts.delays.cancel("other", True, "t", handle), told := Told())
    with pytest.raises(OffsetNotFound):
        attempt(parts.delays.cancel("me", False, "t", handle), Told())
    parts.advance(2 * SECOND)
    assert told == [None]
    assert parts.values(b"t") == []
    assert (len(parts.delays), parts.delays.kept_bytes, parts.delays.cancelled) == (0, 0, 1)


def test_what_is_on_its_way_cannot_be_cancelled() -> None:
    parts = Parts()
    handle = kept(parts, b"x", SECOND)
    parts.scheduler.advance(SECOND)
    parts.delays.tick(parts.scheduler.now())
    with pytest.raises(OffsetNotFound):
        attempt(parts.delays.cancel("me", False, "t", handle), Told())
    parts.scheduler.run_until_idle()
    assert parts.values(b"t") == [b"x"]
    with pytest.raises(OffsetNotFound):
        attempt(parts.delays.cancel("me", False, "t", handle), Told())


def test_a_refused_cancellation_leaves_it_waiting() -> None:
    parts = Parts()
    handle = kept(parts, b"x", SECOND)
    parts.disk.fail("pwritev", 1, errno.ENOSPC)
    attempt(parts.delays.cancel("me", False, "t", handle), told := Told())
    parts.scheduler.run_until_idle()
    assert [type(error) for error in told] == [StorageFull]
    parts.advance(5 * SECOND)
    assert parts.values(b"t") == [b"x"]
    assert len(parts.delays) == 0


@pytest.mark.parametrize("fate", ["deleted", "made again"])
def test_of_a_deleted_topic_it_becomes_a_dead_letter(fate: str) -> None:
    parts = Parts()
    kept(parts, b"x", SECOND)
    parts.topics.delete(b"t")
    parts.scheduler.run_until_idle()
    if fate == "made again":
        parts.publish(b"t", b"new")
    parts.advance(3 * SECOND)
    assert parts.values(b"t") == ([b"new"] if fate == "made again" else [])
    [row] = parts.rows(b"t-dlq")
    headers = dict(row[4])
    assert (row[3], headers[b"h"], headers[b"quintet-dead-cause"]) == (b"x", b"1", b"topic deleted")
    assert (len(parts.delays), parts.delays.orphaned) == (0, 1)


def test_a_topic_in_memory_gets_it_after_a_restart() -> None:
    durability: Durability = "memory"
    parts = Parts(durability=durability)
    kept(parts, b"x", SECOND, b"lossy")
    parts.cut(1)
    parts = Parts(parts.disk, time=parts.scheduler.time, durability=durability)
    parts.advance(2 * SECOND)
    topic = parts.topics.get(b"lossy")
    assert topic is not None
    assert [row[3] for batch in topic.partitions[0].read(0, 1000) or [] for row in batch.rows()] == [b"x"]


# -- bounds --------------------------------------------------------------------------------------------------------


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    for delay in (-2 * SECOND, 365 * DAY + 1):
        with pytest.raises(BadRequest, match="out of range"):
            later(parts, b"x", delay)
    later(parts, b"x", 365 * DAY)
    later(parts, b"x", 0)
    monkeypatch.setattr(module, "MESSAGE_BYTES_MAX", 1000)
    with pytest.raises(TooLarge):
        later(parts, bytes(1000), 0)
    monkeypatch.undo()
    parts.scheduler.run_until_idle()
    assert len(parts.delays) == 2
    small = Delays(
        parts.delayed_rows, parts.topics, parts.intents, parts.dead, parts.scheduler, parts.report,
        delayed_max=3, delayed_bytes_max=2500,
    )  # fmt: skip
    topic, due = parts.topic(b"t"), parts.scheduler.now() + SECOND
    with pytest.raises(LimitExceeded):
        produce(small.produce("me", topic, 0, None, bytes(1500), (), due, b""), Handles())
    produce(small.produce("me", topic, 0, None, b"x", (), due, b""), Handles())
    with pytest.raises(LimitExceeded):
        produce(small.produce("me", topic, 0, None, b"x", (), due, b""), Handles())


def test_one_tick_takes_a_bounded_number_and_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECORDS_PER_TICK_MAX", 3)
    monkeypatch.setattr(module, "BYTES_PER_TICK_MAX", 2500)
    parts = Parts()
    for number in range(7):
        later(parts, b"%d" % number, 0)
    later(parts, bytes(5000), 0)
    later(parts, b"end", 0)
    parts.scheduler.run_until_idle()
    sizes = []
    for _ in range(5):
        before = len(parts.values(b"t"))
        parts.advance(50_000)
        sizes.append(len(parts.values(b"t")) - before)
    assert sizes == [3, 3, 1, 1, 1]


def test_cancelling_does_not_fill_the_heap() -> None:
    parts = Parts()
    for _ in range(6):
        for handle in [kept(parts, b"x", DAY) for _ in range(400)]:
            attempt(parts.delays.cancel("me", False, "t", handle), Told())
        parts.scheduler.run_until_idle()
    assert len(parts.delays) == 0
    assert parts.delays.heap_size <= module.RECORDS_PER_TICK_MAX + 400


# -- disks and power -----------------------------------------------------------------------------------------------


def test_a_message_the_disk_refuses_is_not_kept() -> None:
    parts = Parts()
    parts.topic(b"t")
    parts.disk.fail("pwritev", 1, errno.ENOSPC)
    told = later(parts, b"x", 0)
    parts.scheduler.run_until_idle()
    assert [(handle, type(error)) for handle, error in told] == [(-1, StorageFull)]
    parts.advance(3 * SECOND)
    assert parts.values(b"t") == []
    assert (len(parts.delays), parts.delays.kept_bytes) == (0, 0)


@pytest.mark.parametrize("nth", range(1, 6))
def test_a_full_disk_while_delivering(nth: int) -> None:
    parts = Parts()
    for number in range(3):
        kept(parts, b"%d" % number, SECOND)
    parts.publish(b"other", b"warm")
    parts.scheduler.advance(SECOND)
    parts.disk.fail("pwritev", nth, errno.ENOSPC)
    parts.advance(50_000)
    parts.disk.heal()
    parts.advance(6 * SECOND)
    assert parts.values(b"t") == [b"0", b"1", b"2"]
    assert (len(parts.delays), parts.delays.kept_bytes, parts.intents.unfinished) == (0, 0, 0)
    parts.log.abandon()
    parts.disk.kill()
    parts = Parts(parts.disk, time=parts.scheduler.time)
    parts.advance(3 * SECOND)
    assert parts.values(b"t") == [b"0", b"1", b"2"]


def test_a_partition_that_refuses_does_not_hold_up_the_others() -> None:
    parts = Parts()
    kept(parts, b"stuck", SECOND, b"bad")
    kept(parts, b"fine", SECOND, b"good")
    parts.publish(b"bad", b"warm")
    parts.disk.fail("fdatasync", 1, errno.EIO)
    parts.publish(b"bad", b"breaks it")
    parts.advance(3 * SECOND)
    assert parts.values(b"good") == [b"fine"]
    assert len(parts.delays) == 1
    parts.log.abandon()
    parts.disk.kill()
    parts = Parts(parts.disk, time=parts.scheduler.time)
    parts.advance(SECOND)
    assert parts.values(b"bad").count(b"stuck") == 1


def workload(disk: SimDisk, told: dict[bytes, Handles], cancelled: dict[bytes, Told]) -> int:
    """Messages with many delays, some cancelled, one topic deleted; the returned time is when it ended."""
    parts = Parts(disk)
    for number in range(10):
        value = b"%d" % number
        told[value] = Handles()
        with contextlib.suppress(QuintetError):
            name = b"gone" if number % 4 == 3 else b"t"
            later(parts, value, (number * 7 % 5) * SECOND // 2, name, told=told[value])
            parts.scheduler.run_until_idle()
            if number == 5:
                cancelled[b"4"] = Told()
                attempt(parts.delays.cancel("me", False, "t", told[b"4"][0][0]), cancelled[b"4"])
            if number == 7:
                parts.topics.delete(b"gone")
        parts.advance(SECOND // 4)
    parts.advance(2 * SECOND, step_us=SECOND // 2)
    return parts.scheduler.time


def outcome(parts: Parts) -> Counter[bytes | None]:
    return Counter([*parts.values(b"t"), *parts.values(b"gone"), *parts.values(b"gone-dlq")])


def check(parts: Parts, told: dict[bytes, Handles], cancelled: dict[bytes, Told]) -> list[str]:
    found = outcome(parts)
    wrong = [f"{value!r} is there {count} times" for value, count in found.items() if count > 1]
    for value, handles in told.items():
        stored = bool(handles) and handles[0][1] is None
        gone = cancelled.get(value, Told()) == [None]
        maybe = value in cancelled or value == b"3"  # a topic deleted after delivery took it along
        if stored and not gone and not maybe and found[value] != 1:
            wrong.append(f"{value!r} is lost")
        if gone and found[value]:
            wrong.append(f"{value!r} was cancelled")
    if parts.intents.unfinished or len(parts.delays):
        wrong.append(f"{parts.intents.unfinished} unfinished, {len(parts.delays)} waiting")
    return wrong


def test_power_lost_at_every_call() -> None:
    disk = SimDisk()
    told: dict[bytes, Handles] = {}
    cancelled: dict[bytes, Told] = {}
    workload(disk, told, cancelled)
    total = disk.total_calls
    assert total > 100
    for at in range(1, total + 1):
        disk, told, cancelled = SimDisk(seed=at), {}, {}
        disk.stop_at = at
        with contextlib.suppress(OSError):
            workload(disk, told, cancelled)
        disk.crash(Random(at))
        parts = Parts(disk, time=START_US + 20 * SECOND)
        parts.advance(SECOND)
        assert check(parts, told, cancelled) == [], f"cut at call {at}"
        before = outcome(parts)
        parts.log.abandon()
        disk.kill()
        parts = Parts(disk, time=START_US + 40 * SECOND)
        parts.advance(SECOND)
        assert outcome(parts) == before, f"cut at call {at}"


def _publish(topic: Topic, number: int, batch: bytearray) -> None:
    topic.publish(batch, 1, False, None, number)


def test_rows_taken_away_before_they_are_sent_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: the effect as a step of its own loses messages, and the check above sees it."""

    def careless(delays: Delays, now: int) -> None:
        appends, sent, _ = delays._appends(delays._take_due(now))
        if not sent:
            return
        start(delays._sent(DelayedSent([row.handle for row in sent])))
        for topic, number, batch in appends:
            assert isinstance(batch, Records)
            delays._scheduler.soon(partial(_publish, topic, number, batch.build()))

    monkeypatch.setattr(Delays, "tick", careless)
    caught = 0
    for at in range(40, 160, 3):
        disk = SimDisk(seed=at)
        told: dict[bytes, Handles] = {}
        cancelled: dict[bytes, Told] = {}
        disk.stop_at = at
        with contextlib.suppress(OSError):
            workload(disk, told, cancelled)
        disk.crash(Random(at))
        parts = Parts(disk, time=START_US + 20 * SECOND)
        parts.advance(SECOND)
        caught += bool(check(parts, told, cancelled))
    assert caught >= 2


@pytest.mark.parametrize(("size", "headers"), [(10, 0), (100, 3), (1_000, 0)])
def test_what_waits_is_counted_as_it_costs(size: int, headers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """175 MiB were taken by 10 MB of messages that counted as 30."""
    monkeypatch.setattr(limits, "ENCODED_FOR_BYTES", 1)
    parts = Parts()
    topic, due = parts.topic(b"t"), parts.scheduler.now() + DAY
    parts.log._shared.cache_bytes_max = 1
    made = Random(1)
    tracemalloc.start()
    try:
        for number in range(3_000):
            said = tuple((made.randbytes(8), made.randbytes(8)) for _ in range(headers))
            produce(
                parts.delays.produce("me", topic, 0, None, made.randbytes(size), said, due + number, b"o"), Handles()
            )
            if number % 100 == 0:
                parts.scheduler.run_until_idle()
        parts.scheduler.run_until_idle()
        gc.collect()
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, "*/testing/sim.py")])
        taken = sum(found.size for found in traces.statistics("filename"))
    finally:
        tracemalloc.stop()
    counted = parts.delays.kept_bytes
    assert 0.6 * counted < taken < 1.1 * counted, f"{taken} bytes are kept, {counted} are counted"
