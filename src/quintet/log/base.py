"""Defines the interface of the log: topics made of partitions that take batches and give them back in order.

The broker sees only this. An engine lives in its own folder; which one runs is decided in server.py. All calls are made
on the loop thread; slow work goes through the Scheduler's `offload`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from quintet import kernel
from quintet.kernel.items import UnwrittenAlone, WroteAlone
from quintet.model import limits
from quintet.model.batch import RecordBatch

Durability = Literal["fsync", "interval", "os", "memory"]

# done(base_offset, None) once durable at the topic's level, or done(-1, error): then nothing of it was kept. When it is
# called without an error, the header of the very batch that was passed to append holds its final base_offset (at 16) and
# timestamp (at 32), also when the batch was merged with others on its way.
Appended = Callable[[int, Exception | None], None]
# done(batches, None): batches that hold `offset` and what follows, possibly empty; or done([], error).
Fetched = Callable[[list[RecordBatch], Exception | None], None]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic is: written to `__topics`, handed to the engine. Times are microseconds; 0 means no limit."""

    id: int
    name: str
    partitions: int = 1
    durability: Durability = "fsync"
    retention_us: int = 0
    retention_bytes: int = 0
    compact: bool = False
    tombstone_us: int = 24 * 3600 * 1_000_000
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    memory_bytes: int = limits.MEMORY_TOPIC_BYTES_DEFAULT
    extra: dict[str, str] = field(default_factory=dict)
    identity: str = ""  # random, made with the topic: another topic of this name, or number, has another

    @property
    def is_strict(self) -> bool:
        """Is it written one batch at a time, each durable before the next, because a lost batch would change what others
        mean? The broker's own topics, and what is folded by its keys (ADR 15)."""
        return self.durability == "fsync" and (self.compact or self.id < limits.TOPIC_ID_FIRST_USER)


class SegmentFile(NamedTuple):
    """One segment file: it has the offsets from `base` to `next_offset` - 1, or what was kept of them. A batch that begins at
    or before what was asked for is at `position`, as long as the file has this `seed`."""

    path: str
    seed: int
    position: int
    base: int
    next_offset: int


class TopicFiles(NamedTuple):
    """What the folder of a topic says without its row. name "": no header checks out."""

    name: str
    partitions: int


class Held(Protocol):
    """Groups of records that the kernel appended in one call for somebody who waits for all of them."""

    def done(self) -> None:
        """Those that went one way (items.FlyHeld) are durable, or have a waiter of their own. Called once for each way."""

    def waiter(self, number: int) -> Appended | None:
        """Group `number` is to be waited for by itself, too. Called before the `done` of its way."""


class KernelWrites(Protocol):
    """What the kernel's sockets write by themselves: what a read that is alone appended to one partition in files (kernel/src/alone.rs)."""

    def may_write(self) -> int:
        """What they may write of the next read, if it is alone: for `kernel.Sockets.next`."""

    def wrote(self, wrote: WroteAlone) -> None:
        """They did: it is as durable as it promises, visible and answered. To be called before anything else is done."""

    def unwritten(self, ticket: int, ways: int, held: Held, why: UnwrittenAlone) -> None:
        """They tried: `held` hears what becomes of it, not before this call is over."""


class Partition(Protocol):
    """One ordered sequence of batches. Offsets are dense from 0 and never used twice."""

    topic_id: int
    number: int

    @property
    def tail(self) -> int | None:
        """Its number in `Log.tails`, where doors may append to it directly; None if they may not."""

    @property
    def loan(self) -> int | None:
        """Its number among those in files that lend themselves to `Log.tails`; None if it does not."""

    @property
    def start(self) -> int:
        """Lowest offset still kept."""

    @property
    def visible(self) -> int:
        """One past the last offset readers may see: everything below is as durable as the topic promises."""

    @property
    def end(self) -> int:
        """The offset the next append will get."""

    @property
    def failure(self) -> Exception | None:
        """Why appends are refused now, or None."""

    def append(self, batch: bytearray, done: Appended | None) -> int:
        """Take an unsealed batch; returns its base offset. Raises StorageError at once if the partition refuses.
        With done None nobody waits (QoS 0): it still becomes visible in order. done is never called inside append."""

    def append_read(self, batch: bytearray, done: Appended) -> int:
        """As `append` of all that one read brought this partition. If that read is alone (Scheduler.lone_read) and nothing is in the way, it
        is as durable as the topic promises when this returns its base offset, and visible at the latest when the turn ends; then `done` is
        not called. Otherwise -1, and `done` is called later."""

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        """Visible batches from the one that holds `offset` on, about max_bytes of them (at least one), if they are in
        memory; None if they are on disk (use fetch); [] if there are none."""

    def fetch(self, offset: int, max_bytes: int, done: Fetched) -> None:
        """The same from disk, never inside the call. Batches are checked; a corrupt range is quarantined, reported and
        skipped. Fewer than max_bytes may come at any time; up to 1 MiB that is in the page cache costs no thread."""

    def read_now(self, offset: int) -> list[RecordBatch]:
        """As fetch, but at once and blocking: for start-up only, while nothing is served."""

    def offset_at(self, timestamp: int) -> int:
        """Lowest offset whose record may have this time or a later one; `visible` if there is none."""

    def files(self, first: int, last: int) -> list[SegmentFile]:
        """Where the visible offsets first to last - 1 are on disk, in order, for log.mapped; [] for a partition in memory."""

    def bytes_from(self, offset: int) -> int:
        """About how many bytes are between `offset` and the end: cheap, for back-pressure only."""

    def watch(self, call: Callable[[], None]) -> None:
        """Call whenever `visible` moved."""

    def unwatch(self, call: Callable[[], None]) -> None:
        """Stop calling."""


class StagePart(NamedTuple):
    """One batch of a stage: where it will go, and where it lies in the stage."""

    topic_id: int
    partition: int
    position: int
    length: int
    rows: int


class Stage(Protocol):
    """Batches handed in and not yet published. `append`, `finish` and `discard` block, and are called from one thread at a
    time, which need not be the loop's; everything else is the loop's."""

    id: str
    owner: str
    writer: str
    epoch: int
    created: int
    rows: int
    bytes: int
    parts: list[StagePart]

    def append(self, topic_id: int, partition: int, batch: bytearray, rows: int) -> None:
        """Keep an unsealed batch for a partition."""

    def finish(self) -> None:
        """Make all of it durable: from here on it is there after a crash, too."""

    def discard(self) -> None:
        """Forget it and remove what was written."""


class Stages(Protocol):
    """The stages of an engine."""

    def open(self, id: str, owner: str, writer: str, epoch: int) -> Stage:
        """A new one, in nobody's sight yet."""

    def load(self) -> Sequence[Stage]:
        """Those that were finished before the last stop, once, at start; the others are removed."""

    def read(self, id: str, position: int, length: int, done: Callable[[bytes | BaseException], None]) -> None:
        """Consecutive parts of a finished stage, from the first one's position to the last one's end, checked."""

    def remove(self, ids: list[str]) -> None:
        """Remove these, now or soon; one that is not there is fine."""


class Log(Protocol):
    """An engine. `recover` is called once before anything else."""

    @property
    def identity(self) -> str:
        """Random, made at the first start and kept: another log has another one, a copy of this one has the same."""

    @property
    def stages(self) -> Stages:
        """What was handed in and is not yet in a topic."""

    @property
    def tails(self) -> kernel.Tails[RecordBatch]:
        """Where the kernel appends for doors; `tails_appended` must follow."""

    def tails_appended(self) -> None:
        """Something was appended to `tails`: it becomes visible at the end of this turn."""

    def tails_held(self, ticket: int, ways: int, held: Held) -> bool:
        """The kernel appended to partitions in files (items.FlyHeld). False: `held` hears of it when that is durable, and not before this
        call is over. True: the read that brought it is alone, so it was written at once: it is durable and visible, and `held`
        hears nothing."""

    @property
    def kernel_writes(self) -> "KernelWrites":
        """What the kernel's sockets have to know before and after they write what a read appended to files."""

    def find_held(self, find: Callable[[int], "Held"]) -> None:
        """By this call it is found who waits for a ticket that `tails_held` was not told of, because another one stood for it."""

    def open_topic(self, spec: TopicSpec) -> list[Partition]:
        """Open or create the partitions of a topic."""

    def alter_topic(self, spec: TopicSpec) -> None:
        """Take a changed spec: retention and the like, or a memory topic that becomes durable (what it holds is written
        out first). A durable topic does not become a memory one."""

    def when_durable(self, topic_id: int, done: Callable[[], None]) -> None:
        """done() once what a topic took over by `alter_topic` is as durable as it promises: at once, if that was written there.
        Nothing may be appended meanwhile."""

    def purge_topic(self, topic_id: int, done: Callable[[Exception | None], None]) -> None:
        """Remove all that is visible in a topic; its offsets go on. done(error) when it would stay gone after a restart: an
        append that is under way is waited for, and what comes later stays."""

    def delete_topic(self, topic_id: int) -> None:
        """Close and remove a topic and its files."""

    def check_sound(self, topic_id: int, name: str) -> None:
        """Raise TableDamaged if something of a topic is lost, as far as it was read, and no operator accepted that. `name` is
        what the error calls it."""

    def topic_ids(self) -> list[int]:
        """Numbers of the topics that have files, whether or not they were opened."""

    def files_of(self, topic_id: int) -> TopicFiles | None:
        """What the files under this number say of themselves; None if there are none."""

    def losses(self, topic_id: int) -> list[str]:
        """What check_sound would raise for: one line for each range, with its file."""

    def was_deleted(self, topic_id: int) -> bool:
        """Does the log itself remember that this topic was deleted? False also if it cannot tell."""

    @property
    def last_topic_id(self) -> int:
        """The highest topic number that any file in the log has: numbers are never used again."""

    @property
    def low_on_space(self) -> Exception | None:
        """Why only the broker's own tables may grow now, or None."""

    @property
    def unsynced_bytes(self) -> int:
        """Bytes accepted and not yet durable, over all partitions: the measure for back-pressure."""

    def maintain(self, now: int) -> None:
        """Retention, compaction, interval syncs, checkpoints, disk-full probes: called about every 100 ms."""

    def close(self, done: Callable[[], None]) -> None:
        """Flush and fsync everything, write the clean checkpoint, release the directory, then done()."""
