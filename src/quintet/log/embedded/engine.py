"""Runs the embedded engine: keeps topics in one data directory. log.base.Log says what it promises.

Opens and locks the directory, hands out partitions, and does the housekeeping that spans them: checkpoints, retention,
compaction, quarantine. How a batch gets to disk is partition.py's affair.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final, cast

from quintet.log.anchors import ALL_PARTITIONS
from quintet.log.base import Held, Partition, TopicFiles, TopicSpec
from quintet.log.chain import KEYED
from quintet.log.embedded import compact
from quintet.log.embedded.anchoring import Anchoring
from quintet.log.embedded.files import identity
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.log.embedded.files.packs import FOLDER as PACKS_FOLDER
from quintet.log.embedded.files.packs import with_packs
from quintet.log.embedded.files.segment import HEADER_BYTES, Damage, Owner
from quintet.log.embedded.partitions import commit, upkeep
from quintet.log.embedded.partitions.links import ChainMode, ChainPolicy
from quintet.log.embedded.partitions.lone import LoneLending
from quintet.log.embedded.partitions.memory import MemoryPartition, MemoryTails
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.shared import Report, Shared
from quintet.log.embedded.partitions.unsynced import UnsyncedJournal
from quintet.log.embedded.recovery import checkpoint, journal
from quintet.log.embedded.recovery import directories as recovery
from quintet.log.embedded.recovery.directories import Mark, Opened
from quintet.log.embedded.stages import FileStages
from quintet.model import limits
from quintet.model.errors import DataDirError, StorageError, StorageFull, TableDamaged
from quintet.model.histogram import Histogram
from quintet.model.scheduler import Scheduler

FORMAT_PREFIX: Final = "quintet-data "
# What a first start that failed may leave behind beside empty folders of topics and packs: the next one goes on with it.
LEFT_OVER: Final = frozenset({"lock", "lost+found", "format.tmp", identity.NAME, f"{identity.NAME}.tmp"})
FORMAT_VERSION: Final = 5  # a journal for os topics (ADR 29); 4: packs; 3: null header values; 2: chained segments
ANCHOR_INTERVAL_US: Final = 10_000_000
CHECKPOINT_INTERVAL_US: Final = 1_000_000
RETENTION_INTERVAL_US: Final = 1_000_000
RETAINED_AT_ONCE_MAX: Final = 128  # partitions looked at in one call of maintain: 10,000 take four seconds
SYNC_ALL_PARTITIONS: Final = 256  # from so many on a start after a crash syncs the whole file system at once
START_BYTES_MIN: Final = 256 * limits.KIB  # free, to begin a new data directory
FLOOR_BYTES_DEFAULT: Final = 256 * limits.MIB  # free, or nothing more is appended
FLOOR_SHARE_DEFAULT: Final = 0.05  # of the disk, if that is less: a small disk is not refused altogether
LOSSES_SHOWN_MAX: Final = 3  # ranges named by a start that is refused


class EmbeddedLog:
    """One data directory, one process. `recover` first; then open_topic for every topic there is."""

    partition_type: type[FilePartition] = FilePartition  # what a topic in files is made of
    is_refilled = False  # does another log give again what was written here and not synced?

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        scheduler: Scheduler,
        report: Report,
        *,
        tail_cache_bytes: int = limits.TAIL_CACHE_BYTES,
        memory_topics_bytes: int = limits.MEMORY_TOPICS_BYTES,
        disk_floor_bytes: int | None = 0,
        journal_threshold: int = commit.THRESHOLD_PARTITIONS,
        journal_bytes: int = journal.JOURNAL_BYTES,
        open_files_max: int = upkeep.OPEN_FILES_MAX,
        sync_all_partitions: int = SYNC_ALL_PARTITIONS,
        chain: ChainMode = "durable",
        chain_key: bytes = b"",
        anchor_file: str = "",
        anchor_us: int = ANCHOR_INTERVAL_US,
        packs: bool = True,
    ) -> None:
        """packs: small partitions begin in shared files (ADR 31). disk_floor_bytes: None for the default. chain_key: 32 bytes, or none. anchor_file: where the heads of the chains are anchored; empty: nowhere."""
        self._directory = str(directory)
        self._disk = disk = with_packs(disk, writes=True)
        self._packs = packs
        self._scheduler = scheduler
        self._report = report
        self._shared = Shared(disk, scheduler, report)
        self._shared.cache_bytes_max = tail_cache_bytes
        self._memory = MemoryTails(self._shared, memory_topics_bytes)
        self.tails, self.tails_appended = self._memory.tails, self._memory.read_appended
        self._cache_bytes_max = tail_cache_bytes
        self._lend()
        self._shared.committer.directory = self._unsynced_journal.directory = self._directory
        self._shared.committer.threshold = journal_threshold
        self._shared.committer.bytes = journal_bytes
        self._shared.upkeep.open_files_max = open_files_max
        self._sync_all_partitions = sync_all_partitions
        self._floor_bytes = disk_floor_bytes
        self._shared.quarantine = self._quarantine
        self._shared.chain = ChainPolicy(chain, chain_key)
        self._anchors = Anchoring(self._shared, anchor_file, anchor_us) if anchor_file else None
        if self._anchors is not None:
            self._shared.before_removal = self._anchors.before_removal
        self.identity = ""  # `recover` reads it, or makes it
        self.stages: FileStages = FileStages(self._shared, self._directory)
        self._topics: dict[int, list[MemoryPartition | FilePartition]] = {}
        self._checkpoint = checkpoint.Checkpoint()
        self._known_damage: set[tuple[str, int]] = set()
        self._accepted: dict[
            tuple[str, int], int
        ] = {}  # file and position -> the offset up to which a loss is accepted
        self._losses: dict[int, dict[tuple[str, int], Damage]] = {}  # of each topic: what is lost and not accepted
        self._quarantine_lines: list[bytes] = []
        self.damaged_journals: list[str] = []  # names; what only they had is lost, and nobody knows of which topics
        self._closed: Callable[[], None] | None = None
        self._lock = -1
        self._durable = False  # was everything there made durable at the start?
        self._folders: set[int] = set()  # topics with a directory of their own when the log was opened
        self._found_last = 0  # the highest number of a topic in any file then
        self._checkpoint_owed = self._writing_checkpoint = self._writing_quarantine = self._closing = False
        self._retaining: list[MemoryPartition | FilePartition] = []  # still to be looked at in this round
        self._rolls_seen = 0
        self._last_topic_id = 0  # of those opened here, also if it was deleted: no number is given twice
        self._last_checkpoint, self._last_retention = -CHECKPOINT_INTERVAL_US, -RETENTION_INTERVAL_US

    # -- starting ------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Lock the directory, check its format, load the marks. Raises DataDirError: then nothing was touched."""
        disk, directory = self._disk, self._directory
        try:
            if not disk.is_dir(directory):
                disk.mkdir(directory)
                disk.fsync_dir(os.path.dirname(directory) or ".")
            names = disk.listdir(directory)
            empty = {name for name in ("topics", PACKS_FOLDER) if not disk.below.listdir(f"{directory}/{name}")}
            if "format" not in names and set(names) - LEFT_OVER - empty:
                raise DataDirError(f"{directory}: not empty and not a Quintet data directory: name another one")
            written = self._check_format(disk.read_file(f"{directory}/format"))
            identity.read(disk, directory)  # what is damaged is said before anything is touched
            if "format" not in names and disk.free_bytes(directory)[0] < START_BYTES_MIN:
                raise DataDirError(f"{directory}: no space left on the disk: free some, or name another directory")
            self._lock = disk.lock(f"{directory}/lock")
            if written != FORMAT_VERSION:  # a broker that does not know a bit must not take its batch for a torn tail
                replace_file(disk, directory, "format", f"{FORMAT_PREFIX}{FORMAT_VERSION}\n".encode())
            self.identity = identity.read(disk, directory) or identity.make(disk, directory)
            self.stages.log = self.identity
            if disk.mkdir(f"{directory}/topics") | disk.mkdir(f"{directory}/{PACKS_FOLDER}"):
                disk.fsync_dir(directory)
            self._checkpoint = checkpoint.load(disk, directory)
            self._make_durable(any(name in journal.NAMES for name in names))
            known = disk.read_file(f"{directory}/quarantine.jsonl") or b""
            if self._anchors is not None:
                self._anchors.open()
        except BlockingIOError:
            raise DataDirError(f"{directory}: in use by another broker: stop it or name another directory") from None
        except StorageError:
            raise
        except OSError as error:
            if self._lock >= 0 and "format" not in names:
                self._leave_no_trace()
            self.abandon()
            raise DataDirError(f"{directory}: cannot be used as a data directory: {error.strerror or error}") from error
        for name in self._checkpoint.rejected:
            self._report("checkpoint_rejected", {"file": f"{directory}/{name}"})
        self._load_known_damage(known)

    def _make_durable(self, journaled: bool) -> None:
        """What a process that was killed left in the page cache is served from here on, so it must not go any more. Each
        file is synced when it is opened; if they are many, one call does it for all, where the system has one that tells
        of errors. It waits for everything else on the disk too, so a few files do without."""
        disk, directory = self._disk, self._directory
        replayed, files, damaged = 0, list[str](), set[str]()

        def told(kind: str, fields: dict[str, object]) -> None:
            if kind in ("journal_rejected", "journal_damaged"):
                damaged.add(os.path.basename(str(fields["file"])))
            self._report(kind, fields)

        if journaled:
            replayed, files = journal.replay(disk, directory, self._checkpoint.marks, told)
        self._folders = {int(name) for name in disk.below.listdir(f"{directory}/topics") if name.isdecimal()}
        self._durable = not self._checkpoint.clean and self._has_many_partitions() and disk.sync_all(directory)
        if not self._durable and (journaled or not self._checkpoint.clean):
            disk.sync_packs(directory)
        if journaled:
            journal.finish_replay(disk, directory, [] if self._durable else files, damaged)
        disk.remove_empty(directory)
        self._found_last = max(self.topic_ids(), default=0)
        self.damaged_journals = [name for name in disk.listdir(directory) if name.endswith(journal.DAMAGED)]
        if replayed:
            self._report("journal_replayed", {"entries": replayed})
        if not self._durable:
            self._shared.directories.mark_unsynced(f"{directory}/topics")

    def _has_many_partitions(self) -> bool:
        found = 0
        for topic_id in self._folders:
            found += len(self._disk.below.listdir(f"{self._directory}/topics/{topic_id:08d}"))
            if found >= self._sync_all_partitions:
                return True
        return False

    def _leave_no_trace(self) -> None:
        """A new directory could not be set up: take back the files made so far, as far as the disk lets us."""
        for name in ("format.tmp", "format", f"{identity.NAME}.tmp", identity.NAME, "lock"):
            with contextlib.suppress(OSError):
                if self._disk.read_file(f"{self._directory}/{name}") is not None:
                    self._disk.unlink(f"{self._directory}/{name}")

    def _check_format(self, data: bytes | None) -> int:
        """Its number; 0 if there is none yet."""
        if data is None:
            return 0
        text = data.decode(errors="replace").strip()
        number = text.removeprefix(FORMAT_PREFIX)
        if not text.startswith(FORMAT_PREFIX) or not number.isdecimal():
            raise DataDirError(f"{self._directory}/format: does not name a Quintet data format: restore it")
        if int(number) > FORMAT_VERSION:
            raise DataDirError(
                f"{self._directory}: format {number} is newer than {FORMAT_VERSION}: use a newer Quintet"
            )
        return int(number)

    def _load_known_damage(self, lines: bytes) -> None:
        for line in lines.splitlines():
            try:
                found = json.loads(line)
                key = (str(found["file"]), int(found["position"]))
                self._known_damage.add(key)
                if found.get("accepted"):
                    self._accepted[key] = max(int(found["next_offset"]), self._accepted.get(key, 0))
            except (ValueError, KeyError, TypeError):
                continue  # a torn last line: that range is reported again

    @property
    def clean_start(self) -> bool:
        """Did the broker before us stop cleanly?"""
        return self._checkpoint.clean

    def losses(self, topic_id: int) -> list[str]:
        found = self._losses.get(topic_id, {})
        return [str(found[key]) for key in sorted(found)]

    def check_sound(self, topic_id: int, name: str) -> None:
        losses = self.losses(topic_id)
        losses += [f"{self._directory}/{file}: rows that only the journal had" for file in self.damaged_journals]
        if not losses:
            return
        text = "; ".join(losses[:LOSSES_SHOWN_MAX])
        self._report("table_damaged", {"table": name, "ranges": len(losses), "what": text})
        raise TableDamaged(
            f"{name} is damaged and the broker does not start: {text}. What was written there is lost, and what it"
            " replaced or removed would count again",
            hint=f"restore the folder, or see what is lost and accept it with `quintet log repair {self._directory}`",
        )

    def accept_losses(self, topic_ids: Iterable[int]) -> None:
        """From now on, and after a restart, what was lost of these topics and with the journal is as it is. Blocks."""
        for name in self.damaged_journals:
            kept = name.removesuffix(journal.DAMAGED) + journal.ACCEPTED
            self._disk.rename(f"{self._directory}/{name}", f"{self._directory}/{kept}")
        if self.damaged_journals:
            self._disk.fsync_dir(self._directory)
            self.damaged_journals = []
        accepted = [damage for topic_id in topic_ids for damage in self._losses.pop(topic_id, {}).values()]
        lines = []
        for damage in accepted:
            file = damage.path.removeprefix(self._directory + "/")
            self._accepted[file, damage.position] = damage.next_sound
            lines.append(json.dumps(damage.line() | {"file": file, "accepted": self._scheduler.now()}).encode() + b"\n")
        if lines:
            self._disk.append_file(f"{self._directory}/quarantine.jsonl", b"".join(lines))

    def was_deleted(self, topic_id: int) -> bool:
        return self._anchors is not None and topic_id in self._anchors.deleted

    def files_of(self, topic_id: int) -> TopicFiles | None:
        return recovery.topic_files(self._disk, f"{self._directory}/topics/{topic_id:08d}")

    def topic_ids(self) -> list[int]:
        """Numbers of the topics that have files."""
        return [int(name) for name in self._disk.listdir(f"{self._directory}/topics") if name.isdecimal()]

    def disk_space(self) -> tuple[int, int]:
        """(free, size) in bytes of the file system; zeros if it cannot be asked."""
        try:
            return self._disk.free_bytes(self._directory)
        except OSError:
            return 0, 0

    @property
    def low_on_space(self) -> Exception | None:
        """Why only the broker's own tables may grow now, or None."""
        return self._shared.low

    @property
    def failure(self) -> Exception | None:
        """Why some partition refuses appends now, or None."""
        failures = (partition.failure for partitions in self._topics.values() for partition in partitions)
        return next((failure for failure in failures if failure is not None), self._shared.low)

    # -- topics --------------------------------------------------------------------------------------------------------

    def tails_held(self, ticket: int, ways: int, held: Held) -> bool:
        if self._memory.tails.dirty:
            self._memory.seal_soon()
        assert self._shared.lending is not None
        return self._shared.lending.write_read(ticket, ways, held)

    def find_held(self, find: Callable[[int], Held]) -> None:
        if self._shared.lending is not None:
            self._shared.lending.find_held = find

    def _lend(self) -> None:
        """Let partitions in files lend themselves to the kernel."""
        committer = self._shared.committer
        lending = LoneLending(self.tails, self._scheduler, committer, self._disk.below)
        self._shared.lending = committer.lending = self.kernel_writes = lending
        lending.collect = committer.collect
        self._unsynced_journal = UnsyncedJournal(self._disk, self._scheduler, self._report, lending.flush_since)
        lending.unsynced = self._unsynced_journal
        committer.observe = self._shared.durable.observe
        self._bound_lending()

    def _bound_lending(self) -> None:
        """What the kernel keeps for readers, and what is kept here, have one bound; low on space, doors append by way of Python,
        which refuses."""
        tails, most = self.tails, self._cache_bytes_max
        tails.set_lending(self._shared.low is None, most // 2)
        self._shared.cache_bytes_max = max(most - tails.lent_bytes, most // 2)

    def _path(self, topic_id: int, number: int) -> str:
        return f"{self._directory}/topics/{topic_id:08d}/{number}"

    def open_topic(self, spec: TopicSpec) -> list[Partition]:
        opened = self._topics.get(spec.id)
        if opened is None:
            opened = self._topics[spec.id] = []
            self._last_topic_id = max(self._last_topic_id, spec.id)
            if not self._durable and spec.id in self._folders:  # perhaps made by a process that was killed
                self._shared.directories.mark_unsynced(f"{self._directory}/topics/{spec.id:08d}")
        elif len(opened) < spec.partitions:
            opened = self._topics[spec.id] = opened[:]  # the one that was handed out stays as it is
        for number in range(len(opened), spec.partitions):
            if spec.durability == "memory":
                opened.append(MemoryPartition(self._shared, self._memory, spec, number))
            else:
                opened.append(self._open_partition(spec, number))
        if len(opened) == 1:
            opened = self._topics[spec.id] = opened[:]  # a list that grew has room for four
        if spec.durability == "memory":
            return [self._current(partition) for partition in opened]
        return cast(list[Partition], opened)  # the same one: nobody changes it, and there may be 100,000

    @staticmethod
    def _current(partition: MemoryPartition | FilePartition) -> Partition:
        if isinstance(partition, MemoryPartition) and partition.successor is not None:
            return partition.successor
        return partition

    def _open_partition(self, spec: TopicSpec, number: int) -> FilePartition:
        directory = self._path(spec.id, number)
        mark = self._checkpoint.marks.get((spec.id, number))
        floor = self._anchors.known_end(spec.id, number) if self._anchors is not None else 0
        owner, refilled = Owner(spec.id, number, spec.name), self.is_refilled
        strict = spec.is_strict and not refilled
        try:
            found = None
            if spec.id > self._found_last and mark is None and not floor:
                found = Opened(packable=True)
            elif spec.id not in self._folders:
                found = recovery.open_packed(self._disk, self._directory, directory, mark, owner, floor)
            opened = found or recovery.open_partition(
                self._disk, directory, mark, owner, durable=self._durable, strict=strict, floor=floor, refilled=refilled
            )
            opened.packable = opened.packable and self._is_packable(spec)
            if opened.segments and not opened.segments[-1].named:
                if (
                    not self._durable and not opened.segments[-1].packed
                ):  # packs were synced before: there is no directory
                    self._shared.directories.mark_unsynced(directory)
                    self._shared.directories.sync(directory)
                opened.segments[-1].named = True
            partition = self.partition_type(self._shared, spec, number, directory, opened)
            partition.renew_begun()
        except StorageError:
            raise
        except OSError as error:
            raise DataDirError(f"{directory}: cannot be recovered: {error.strerror or error}") from error
        for torn in opened.torn:
            self._shared.stats["torn_tails"] += 1
            self._report("torn_tail", torn)
        if opened.damages:
            self._quarantine(opened.damages)
        if opened.segments and opened.segments[-1].chain.kind == KEYED and not self._shared.chain.key:
            hint = "give [audit] key_file again: from here on anybody can continue the chain, and a verifier says so"
            self._report("chain_key_missing", {"directory": directory, "hint": hint})
        head = partition.links.durable
        if head.next_offset and not (self._anchors is not None and self._anchors.has(spec.id, number, head)):
            self._shared.heads_moved.add(partition)
        return partition

    def _is_packable(self, spec: TopicSpec) -> bool:
        """May its partitions begin in packs? Not what is compacted, for that makes files anew, and not the broker's own."""
        return self._packs and not spec.compact and spec.id >= limits.TOPIC_ID_FIRST_USER

    def alter_topic(self, spec: TopicSpec) -> None:
        partitions = self._topics[spec.id]
        for number, partition in enumerate(partitions):
            if isinstance(partition, MemoryPartition) and spec.durability != "memory":
                begun = Opened(packable=self._is_packable(spec))
                fresh = self.partition_type(self._shared, spec, number, self._path(spec.id, number), begun)
                partition.hand_over(fresh)
                partitions[number] = fresh
            elif isinstance(partition, FilePartition) and spec.durability == "memory":
                raise DataDirError(f"topic {spec.name}: a durable topic does not become a memory topic")
            else:
                partition.spec = spec
                if isinstance(partition, FilePartition) and spec.durability == "interval":
                    if partition.is_lent:
                        partition.recall()  # it is lent again by what it promises now
                    self._shared.upkeep.sync_soon(partition)
        self.open_topic(spec)

    def when_durable(self, topic_id: int, done: Callable[[], None]) -> None:
        done()  # alter_topic has written it out

    def purge_topic(self, topic_id: int, done: Callable[[Exception | None], None]) -> None:
        partitions = [self._current(partition) for partition in self._topics[topic_id]]
        left = len(partitions)
        first: Exception | None = None

        def one_done(error: Exception | None) -> None:
            nonlocal left, first
            left, first = left - 1, first or error
            if not left:
                done(first)

        for partition in partitions:
            if isinstance(partition, MemoryPartition):
                partition.purge(one_done)
            elif isinstance(partition, FilePartition):
                compact.purge(self._shared, partition, one_done)

    def delete_topic(self, topic_id: int) -> None:
        partitions = self._topics.pop(topic_id, [])
        self._checkpoint_owed = True
        numbers = range(len(partitions)) if partitions else range(limits.PARTITIONS_MAX)
        for number in numbers:
            self._checkpoint.marks.forget(topic_id, number)
        waiting = len(partitions)

        def one_down() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                self._shared.committer.forget(partitions)
                self._shared.heads_moved.difference_update(partitions)
                remove = partial(self._scheduler.offload, partial(self._remove_files, topic_id), self._files_removed)
                if any(isinstance(partition, FilePartition) and partition.links.room for partition in partitions):
                    self._shared.before_removal(topic_id, ALL_PARTITIONS, 0, remove)
                else:
                    remove()

        for partition in partitions:
            if isinstance(partition, FilePartition):
                self._shared.upkeep.forget(partition)
                partition.cache.clear()
            partition.shut(one_down)
        if not partitions:
            waiting = 1
            one_down()

    def _remove_files(self, topic_id: int) -> None:
        disk, topic = self._disk, f"{self._directory}/topics/{topic_id:08d}"
        partitions = disk.listdir(topic)
        if not partitions and not disk.is_dir(topic):
            return
        for partition in partitions:
            for name in disk.listdir(f"{topic}/{partition}"):
                disk.unlink(f"{topic}/{partition}/{name}")
            disk.rmdir(f"{topic}/{partition}")
        disk.rmdir(topic)
        self._shared.directories.forget(topic)
        disk.fsync_dir(f"{self._directory}/topics")

    def _files_removed(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._report("delete_failed", {"error": str(result)})

    @property
    def last_topic_id(self) -> int:
        marked = (topic_id for topic_id, _ in self._checkpoint.marks)
        anchored: Iterable[int] = self._anchors.topic_ids if self._anchors is not None else ()
        return max(*marked, *anchored, self._found_last, self._last_topic_id)

    @property
    def unsynced_bytes(self) -> int:
        return self._shared.unsynced + self._memory.tails.lent_unsynced  # asked with every read of a publisher

    @property
    def anchor_head(self) -> str:
        """SEQ:HASH of the last anchor, to be kept elsewhere; empty if there is none."""
        return self._anchors.head if self._anchors is not None else ""

    @property
    def durable(self) -> Histogram:
        """How long appends took to become durable."""
        return self._shared.durable

    def stats(self) -> dict[str, int]:
        """Counters since the start, and gauges: plain numbers for the metrics endpoint."""
        self._memory.count()
        found = dict(self._shared.stats)
        found["journal_records"] = self._shared.committer.records + self._unsynced_journal.records
        found["cache_bytes"] = self._shared.cache_bytes + self.tails.lent_bytes
        found["unsynced_bytes"] = self.unsynced_bytes
        found["anchors"] = self._anchors.lines if self._anchors is not None else 0
        found["damaged_ranges"] = len(self._known_damage)
        found["partitions"] = sum(len(partitions) for partitions in self._topics.values())
        return found

    # -- housekeeping --------------------------------------------------------------------------------------------------

    def maintain(self, now: int) -> None:
        monotonic = self._scheduler.monotonic()
        if monotonic - self._last_retention >= RETENTION_INTERVAL_US:
            self._last_retention = monotonic
            self._disk.close_packs()
            self._shared.read_buffers.release_idle()
            if self._is_ours():
                self._look_at_the_disk()
            if not self._retaining:
                self._retaining = [partition for found in self._topics.values() for partition in found]
        self._bound_lending()
        self._retain(now)
        self._shared.upkeep.maintain(monotonic)
        self._shared.committer.maintain()
        if self._anchors is not None:
            self._anchors.maintain(monotonic)
        rolled = self._shared.stats["rolls"] != self._rolls_seen
        if self._shared.lending is not None and monotonic - self._last_checkpoint >= CHECKPOINT_INTERVAL_US:
            self._shared.lending.move_marks()
        moved = self._shared.marks_moved or self._checkpoint_owed
        if moved and (rolled or monotonic - self._last_checkpoint >= CHECKPOINT_INTERVAL_US):
            self._last_checkpoint = monotonic
            self._rolls_seen = self._shared.stats["rolls"]
            self._write_checkpoint(clean=False)

    def _is_ours(self) -> bool:
        """Is the directory still the one that was locked? If not, what is appended would be lost: it is refused."""
        if self._lock < 0 or self._disk.holds(self._lock, f"{self._directory}/lock"):
            return True
        if not isinstance(self._shared.low, DataDirError):
            self._shared.low = DataDirError(
                f"{self._directory}: the data folder was removed or replaced while the broker ran: the append was refused",
                hint="stop this broker; it writes nothing to the folder that is there now",
            )
            self._report("directory_replaced", {"directory": self._directory})
            self._bound_lending()
        return False

    def _look_at_the_disk(self) -> None:
        """Refuse appends before the disk is really full; take them again when clearly more than the floor is free."""
        free, total = self._disk.free_bytes(self._directory)
        floor = self._floor_bytes
        if floor is None:
            floor = min(FLOOR_BYTES_DEFAULT, int(total * FLOOR_SHARE_DEFAULT))
        enough = floor + min(floor, FLOOR_BYTES_DEFAULT, max(total - floor, 0) // 2)
        if free < floor and self._shared.low is None:
            self._shared.low = StorageFull(
                f"{free} bytes are left on the disk, the floor is {floor} (limits.disk_free_bytes_min): the append was refused",
                hint=f"free some space: the log takes appends again by itself when {enough} bytes are free",
            )
            self._report("storage_full", {"directory": self._directory, "free": free, "floor": floor})
        elif self._shared.low is not None and free >= enough:
            self._shared.low = None
            self._report("storage_resumed", {"directory": self._directory, "free": free})

    def _retain(self, now: int) -> None:
        due, self._retaining = self._retaining[:RETAINED_AT_ONCE_MAX], self._retaining[RETAINED_AT_ONCE_MAX:]
        for partition in due:
            if isinstance(partition, MemoryPartition):
                partition.maintain(now)
            elif partition.topic_id in self._topics:
                compact.maintain(self._shared, partition, now)

    def _write_checkpoint(self, clean: bool, then: Callable[[], None] | None = None) -> None:
        if self._writing_checkpoint:
            return
        moved, self._shared.marks_moved = self._shared.marks_moved, set()
        for partition in moved:
            if partition.mark is not None and partition.topic_id in self._topics:
                self._checkpoint.marks.set(partition.topic_id, partition.number, partition.mark)
        generation = self._checkpoint.generation + 1
        name = checkpoint.NAMES[self._checkpoint.name == checkpoint.NAMES[0]]
        entries = self._checkpoint.marks.entries.joined()
        if (
            self._last_topic_id and self._last_topic_id not in self._topics
        ):  # deleted: this is what remembers the number
            entries += checkpoint.pack_entry(self._last_topic_id, 0, Mark(0, HEADER_BYTES, 0))
        data = checkpoint.pack(generation, clean, entries)
        self._writing_checkpoint = True
        self._checkpoint_owed = False
        work = partial(checkpoint.store, self._disk, self._directory, name, data)
        self._scheduler.offload(work, partial(self._checkpoint_written, generation, name, then))

    def _checkpoint_written(
        self, generation: int, name: str, then: Callable[[], None] | None, result: BaseException | None
    ) -> None:
        self._writing_checkpoint = False
        if result is None:
            self._checkpoint.generation, self._checkpoint.name = generation, name
            self._shared.stats["checkpoints"] += 1
        else:
            self._checkpoint_owed = True
            self._report("checkpoint_failed", {"file": name, "error": str(result)})
        if then is not None:
            then()
        elif self._closing:
            self._close_checkpoint()

    def _quarantine(self, damages: list[Damage]) -> None:
        """Name a corrupt range once: in quarantine.jsonl and to whoever listens."""
        for damage in damages:
            key = (damage.path.removeprefix(self._directory + "/"), damage.position)
            if damage.loses and self._accepted.get(key, -1) < damage.next_sound:
                self._losses.setdefault(int(key[0].split("/")[1]), {})[key] = damage
            if key in self._known_damage:
                continue
            self._known_damage.add(key)
            line = damage.line() | {"file": key[0], "found": self._scheduler.now()}
            self._shared.stats["quarantined_ranges"] += 1
            self._quarantine_lines.append(json.dumps(line).encode() + b"\n")
            self._report("corrupt_range", line)
        if self._quarantine_lines and not self._writing_quarantine:
            self._writing_quarantine = True
            data, self._quarantine_lines = b"".join(self._quarantine_lines), []
            path = f"{self._directory}/quarantine.jsonl"
            self._scheduler.offload(partial(self._disk.append_file, path, data), self._quarantine_written)

    def _quarantine_written(self, result: BaseException | None) -> None:
        self._writing_quarantine = False
        if isinstance(result, OSError) and result.errno not in (errno.ENOSPC, errno.EDQUOT):
            self._report("quarantine_failed", {"error": str(result)})
        self._quarantine([])

    # -- stopping ------------------------------------------------------------------------------------------------------

    def close(self, done: Callable[[], None]) -> None:
        self._is_ours()  # says so, if it is not; then every write by a name fails
        partitions = [partition for found in self._topics.values() for partition in found]
        waiting = len(partitions) + 1

        def one_down() -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                self._closed = done
                if self._anchors is not None:
                    self._anchors.finish(self._end)
                else:
                    self._end()

        def shut_all() -> None:
            for partition in partitions:
                partition.shut(one_down)
            one_down()

        for partition in partitions:
            if isinstance(partition, FilePartition):
                partition.stop_appends()
        self._shared.committer.sync_packed(shut_all)

    def _end(self) -> None:
        self._closing = True
        if not self._writing_checkpoint:
            self._close_checkpoint()

    def _close_checkpoint(self) -> None:
        self._closing = False
        self._write_checkpoint(clean=True, then=partial(self._shared.committer.close, self._release))

    def _release(self) -> None:
        self._disk.close_packs()
        self._disk.close(self._lock)
        self._lock = -1
        assert self._closed is not None
        self._closed()

    def abandon(self) -> None:
        """For a start that failed, and for tests: let go of the lock without writing anything."""
        if self._lock >= 0:
            self._disk.close(self._lock)
            self._lock = -1
