"""Random lives of a cache against a plain dict: restarts, power cuts, a full disk, compaction. And who reads its topic."""

import errno
from functools import partial
from random import Random

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.doors.cache import Cache
from quintet.broker.doors.cache_memory import OVERHEAD_BYTES
from quintet.broker.sections import CacheSection
from quintet.broker.topics import reads, specs
from quintet.delivery.lane import Lane
from quintet.log.base import Partition
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.batch import RecordBatch
from quintet.model.errors import QuintetError, VersionConflict
from quintet.model.tasks import start
from quintet.testing.line import Peer, SimBroker
from quintet.testing.sim import SimScheduler
from tests.broker.test_cache import SCOPE, SECOND, check_books, nobody

State = dict[bytes, tuple[bytes, int, int]]  # key -> value, expires, version
STARTING_US = 1_000  # that a start takes
KEYS = [b"k%d" % number for number in range(6)]


class Step:
    """A change that was asked for: what it does to the dict, and what became of it."""

    def __init__(self, key: bytes, row: tuple[bytes, int, int] | None) -> None:
        self.key = key
        self.row = row
        self.acknowledged = self.refused = False

    def told(self, error: Exception | None) -> None:
        assert not self.acknowledged
        assert not self.refused
        self.acknowledged, self.refused = error is None, error is not None


class Life:
    """A cache and the dict it should be. `sure` is what was acknowledged, `steps` what came behind it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.sim = SimBroker()
        self.sure: State = {}
        self.steps: list[Step] = []
        self.top = 0  # the highest version that was ever given
        self.sim.broker.caches.open(SCOPE)
        self.sim.scheduler.run_until_idle()

    @property
    def cache(self) -> Cache:
        return self.sim.broker.caches.open(SCOPE)

    def now(self) -> int:
        return self.sim.scheduler.now()

    def alive(self, state: State) -> State:
        return {key: row for key, row in state.items() if not 0 < row[1] <= self.now()}

    def states(self) -> list[State]:
        """What may be found after a power cut: all that was acknowledged, and any first part of the rest."""
        state = dict(self.sure)
        found = [dict(state)]
        for step in self.steps:
            if not step.refused:
                _apply(state, step)
                sure = step.acknowledged
                found = [dict(state)] if sure else [*found, dict(state)]
        return [self.alive(state) for state in found]

    def newest(self) -> State:
        return self.states()[-1]

    def settle_steps(self) -> None:
        for step in self.steps:
            assert step.acknowledged or step.refused
            if step.acknowledged:
                _apply(self.sure, step)
        self.steps = []

    def change(self) -> None:
        rng, cache, key = self.rng, self.cache, self.rng.choice(KEYS)
        before = self.newest().get(key)
        version = before[2] if before else 0
        wanted = rng.choice((None, None, version, version + 1))
        expires = rng.choice((0, 0, self.now() + rng.randrange(1, 4) * SECOND))
        step = Step(key, None)
        try:
            what = rng.randrange(4)
            if what == 0:
                existed, made = cache.delete(key, wanted, step.told)
                assert existed == (before is not None)
                if not made:  # there was nothing to delete, and nothing is under way
                    assert not existed
                    return
            elif what == 1:
                number, made = cache.increment(key, 1, rng.choice((None, expires)), self.now(), step.told)
                row = cache.entries[key]
                assert row[0] == b"%d" % number
                assert number == 1 + (int(before[0]) if before else 0)
                step.row = (row[0], row[1], made)
            else:
                value = b"%d" % rng.randrange(10 ** rng.randrange(1, 19))
                made = cache.put(key, value, expires, wanted, step.told)
                step.row = (value, expires, made)
        except VersionConflict as conflict:
            assert wanted != version
            assert (conflict.version, conflict.value) == (version, before[0] if before else None)
            return
        except QuintetError:  # the disk is full
            return
        assert made > self.top
        self.top = made
        self.steps.append(step)

    def check(self, wanted: State) -> None:
        now = self.now()
        for key in KEYS:
            row = wanted.get(key)
            assert self.cache.get(key, now) == (None if row is None else (row[0], row[2]))
        check_books(self.sim)

    def found(self) -> State:
        return {key: (row[0], row[1], row[3]) for key, row in self.cache.entries.items()}

    def cut_power(self) -> None:
        time = self.now() + STARTING_US
        self.sim.log.abandon()
        self.sim.disk.crash(self.rng)
        self.sim.scheduler = SimScheduler()
        self.sim.scheduler.time = time
        self.sim.start()


def _apply(state: State, step: Step) -> None:
    if step.row is None:
        state.pop(step.key, None)
    else:
        state[step.key] = step.row


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "CACHE_SEGMENT_BYTES", 4096)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", range(12))
def test_a_random_life_with_restarts_is_that_of_a_dict(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        for _ in range(life.rng.randrange(1, 12)):
            life.change()
            if life.rng.random() < 0.3:
                life.check(life.newest())
        full = life.rng.random() < 0.15
        if full:
            life.sim.disk.fail("pwritev", 1, errno.ENOSPC, times=1_000)
        life.sim.scheduler.run_until_idle()
        life.settle_steps()
        life.check(life.newest())
        life.sim.disk.heal()
        life.sim.advance(life.rng.choice((50_000, SECOND, 3 * SECOND)))
        life.check(life.newest())
        if life.rng.random() < 0.2:
            life.sim.stop()
            life.sim.scheduler.advance(STARTING_US)
            life.sim.start()
            assert life.found() == life.newest()


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", range(12))
def test_a_power_cut_leaves_at_least_what_was_acknowledged_in_order(seed: int) -> None:
    life = Life(1000 + seed)
    for _ in range(15):
        for _ in range(life.rng.randrange(3)):
            for _ in range(life.rng.randrange(1, 8)):
                life.change()
            life.sim.scheduler.run_until_idle()
            life.sim.advance(life.rng.choice((50_000, SECOND)))
        life.sim.scheduler.held = True
        for _ in range(life.rng.randrange(1, 12)):
            life.change()
            for _ in range(life.rng.randrange(3)):
                life.sim.scheduler.turn()
                if life.sim.scheduler.jobs and life.rng.random() < 0.5:
                    life.sim.scheduler.finish()
        possible = life.states()
        life.cut_power()
        found = life.found()
        assert found in possible
        life.sure, life.steps = found, []
        life.check(found)


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_during_eviction_leaves_a_cache_within_its_limit(seed: int) -> None:
    limit = 20 * (OVERHEAD_BYTES + 4)
    rng = Random(seed)
    sim = SimBroker(options=BrokerOptions(caches=CacheSection(memory_bytes=limit)))
    newest: dict[bytes, bytes] = {}
    for _ in range(5):
        cache = sim.broker.caches.open(SCOPE)
        for _ in range(rng.randrange(30, 60)):
            key, value = b"%02d" % rng.randrange(60), b"%02d" % rng.randrange(100)
            cache.put(key, value, 0, None, nobody)
            newest[key] = value
        sim.scheduler.run_until_idle()
        assert cache.tombstones_due
        assert len(cache.entries) == 20
        sim.log.abandon()
        sim.disk.crash(rng)
        sim.scheduler = SimScheduler()
        sim.start()
        cache = sim.broker.caches.open(SCOPE)
        assert len(cache.entries) == 20
        assert {key: row[0] for key, row in cache.entries.items()}.items() <= newest.items()
        check_books(sim)


# -- compaction, and other readers -------------------------------------------------------------------------------------


class Reader(Peer):
    """A sink that writes down what it is given."""

    def __init__(self) -> None:
        self.room_bytes = 1 << 20
        self.rows: list[tuple[int, bytes | None, bytes | None]] = []

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        self.rows += [(row[0], row[2], row[3]) for row in batch.rows(first, last)]


def through_a_lane(sim: SimBroker, partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    lane, reader = Lane(partition, 0), Reader()
    while lane.position < partition.visible:
        run = lane.take(7, sim.scheduler.now(), lambda: None)
        if run is None:
            sim.scheduler.run_until_idle()
            continue
        lane.sent(run, 0, reader, 0)
        reader.records(None, 0, *run)
    return reader.rows


def _extend(answer: list[RecordBatch], batches: list[RecordBatch] | None, error: Exception | None) -> None:
    assert error is None and batches is not None
    answer += batches


def through_fetches(sim: SimBroker, partition: Partition) -> list[tuple[int, bytes | None, bytes | None]]:
    found: list[tuple[int, bytes | None, bytes | None]] = []
    offset = 0
    while offset < partition.visible:
        answer: list[RecordBatch] = []
        start(reads.fetch(partition, offset, 10, 1 << 20)).then(partial(_extend, answer))
        sim.scheduler.run_until_idle()
        for batch in answer:
            first = batch.index_of(offset)
            found += [(row[0], row[2], row[3]) for row in batch.rows(first)]
            offset = batch.next_offset
    return found


@pytest.mark.usefixtures("small_segments")
def test_compaction_leaves_the_newest_and_everybody_reads_on() -> None:
    sim = SimBroker()
    cache = sim.broker.caches.open(SCOPE)
    rng = Random(8)
    wanted: dict[bytes, bytes] = {}
    for number in range(3_000):
        key, value = b"k%d" % rng.randrange(12), rng.randbytes(60)
        if rng.random() < 0.1:
            cache.delete(key, None, nobody)
            wanted.pop(key, None)
        else:
            cache.put(key, value, rng.choice((0, sim.scheduler.now() + 3600 * SECOND)), None, nobody)
            wanted[key] = value
        if number % 10 == 0:
            sim.advance(50_000)
    for number in range(20):  # of these the records themselves say that they are over
        cache.put(b"short-%d" % number, b"v", sim.scheduler.now() + SECOND, None, nobody)
    sim.scheduler.run_until_idle()
    sim.advance(2 * SECOND)
    for number in range(100):
        cache.put(b"filler", rng.randbytes(60), 0, None, nobody)
        if number % 10 == 0:
            sim.advance(50_000)
    sim.advance(2 * SECOND)
    assert sim.log.stats()["compactions"] >= 2
    partition = cache.topic.partitions[0]
    assert isinstance(partition, FilePartition)
    assert len(partition.segments) <= 6, "three thousand records were some eighty segments"
    for _ in range(2):
        for how in (through_a_lane, through_fetches):
            partition.cache.clear()
            rows = how(sim, partition)
            offsets = [row[0] for row in rows]
            assert offsets == sorted(set(offsets))
            live = {key: value for _, key, value in rows}
            assert {key: value for key, value in live.items() if key in wanted} == wanted
            assert not any(key in wanted or value for key, value in live.items() if key not in (*wanted, b"filler"))
        sim.restart()
        cache = sim.broker.caches.open(SCOPE)
        found = cache.topic.partitions[0]
        assert isinstance(found, FilePartition)
        partition = found
        assert {key: row[0] for key, row in cache.entries.items() if key != b"filler"} == wanted
    before = max(row[3] for _, row in cache.entries.items())
    assert cache.put(b"k", b"v", 0, None, nobody) > before


@pytest.mark.usefixtures("small_segments")
def test_compaction_drops_what_has_expired() -> None:
    sim = SimBroker()
    cache = sim.broker.caches.open(SCOPE)
    for number in range(200):
        cache.put(b"%d" % number, b"v" * 50, sim.scheduler.now() + SECOND, None, nobody)
        sim.scheduler.run_until_idle()
    sim.log.abandon()  # without tombstones: the records themselves know
    sim.scheduler = SimScheduler()
    sim.scheduler.advance(10 * SECOND)
    sim.start()
    cache = sim.broker.caches.open(SCOPE)
    assert not cache.entries
    for number in range(100):
        cache.put(b"kept", b"%d" % number * 20, 0, None, nobody)
        sim.advance(50_000)
    partition = cache.topic.partitions[0]
    assert isinstance(partition, FilePartition)
    partition.cache.clear()
    keys = [key for _, key, _ in through_fetches(sim, partition)]
    assert len([key for key in keys if key != b"kept"]) < 5
