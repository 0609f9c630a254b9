"""Holds the files of a data directory still and finds the end of each partition at one time, the cut. Writes hard links only.

The broker may run meanwhile. What makes the result consistent (ADR 38):

1. Every segment gets a hard link, so neither retention nor compaction takes it away; what is on disk now is noted as `seen`.
2. The cut is a time, taken after that. Files that began since are linked, too.
3. A partition ends before its first batch that was not seen and is dated after the cut.

What a segment lacks because only the journal has it yet (ADR 29) is read as if it were in its place. The journal is read before each
look at the segments, so what it has no more is in them.

The broker begins an effect when its cause is durable, and dates each batch when it appends it. So if an effect is dated before the
cut, its cause was on disk before the cut. This needs a clock that does not go back: `Snapshot.check_clock` refuses a backup
in which it did. Where the clock went back before, `seen` keeps what has a date ahead of it.

If no broker runs, its lock is held instead, and nothing is linked.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from quintet import kernel
from quintet.log.anchors import OLD_SUFFIX
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.packs import PACKED_BYTES, with_packs
from quintet.log.embedded.files.segment import (
    HEADER_BYTES,
    Gap,
    Header,
    Run,
    parse_header,
    scan,
    segment_name,
)
from quintet.log.embedded.inspect import healed
from quintet.log.embedded.recovery import checkpoint
from quintet.log.embedded.recovery.directories import Mark, partitions, segment_bases
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.clocks import IN_ORDER_US
from quintet.model.errors import BackupError

FOLDER: Final = "backup"  # in the data directory: our lock, and the links while a backup is made
LISTINGS_MAX: Final = 10  # of one partition in which files vanish while they are linked
WINDOW_BYTES: Final = 64 * limits.KIB  # looked at first for the last batch below the durable mark
CLOCK_BACK_US: Final = 1_000  # less is the error of reading two clocks one after the other
_DATE: Final = re.compile(rb'"time":(\d+)')


class Clocks(NamedTuple):
    """Wall time and monotonic time in microseconds, and a wait in seconds."""

    now: Callable[[], int]
    monotonic: Callable[[], int]
    sleep: Callable[[float], None]


class Moved(Exception):
    """Files were replaced faster than they could be linked: take another snapshot."""


@dataclass(slots=True)
class Pinned:
    """One partition: its segment files by base offset, and the offset behind what was on disk when they were listed."""

    topic_id: int
    number: int
    path: str  # of its folder, relative to the data directory
    files: dict[int, str] = field(default_factory=dict)
    seen: int = 0


class Ended(NamedTuple):
    """Where a segment ends at the cut. `goes_on`: the next segment belongs to it, too."""

    position: int
    next_offset: int
    goes_on: bool
    damaged: list[str]


class Snapshot:
    """Use as a context: the links are removed at its end."""

    def __init__(self, directory: Path, disk: Disk, clocks: Clocks, anchors: Path | None = None) -> None:
        self.directory = str(directory)
        self.disk = disk
        self.running = True
        self.cut = self.begun = 0
        self.partitions: dict[tuple[int, int], Pinned] = {}
        self.stages: dict[str, str] = {}  # name -> path
        self.anchors: list[tuple[str, bytes]] = []
        self._clocks = clocks
        self._plain = disk
        self._packs = with_packs(disk)
        self._copied: dict[str, str] = {}  # packed segments by the paths of their copies
        self._linked: dict[str, str] = {}  # other segments by the paths of their links
        self._anchors = str(anchors or directory / "anchors")
        self._folder = f"{self.directory}/{FOLDER}"
        self._links = f"{self._folder}/links"
        self._locks: list[int] = []
        self._apart = 0

    def __enter__(self) -> "Snapshot":
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        try:
            self._locks.append(self._plain.lock(f"{self._folder}/lock"))
        except BlockingIOError:
            raise BackupError(
                f"{self.directory}: another backup of it is being made", hint="wait for its end"
            ) from None
        try:
            self._locks.append(self._plain.lock(f"{self.directory}/lock"))
            self.running = False
        except BlockingIOError:
            self.running = True
        try:
            shutil.rmtree(self._links, ignore_errors=True)  # of a backup that was killed
            os.mkdir(self._links, mode=0o700)
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._links, ignore_errors=True)
        for lock in reversed(self._locks):
            self._plain.close(lock)
        self._locks = []

    # -- taking it -----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        self.disk = self._healed()
        self._apart, self.begun = self._difference(), self._clocks.now()
        marks = checkpoint.load(self._plain, self.directory).marks
        ahead = 0
        for topic_id, number, path in partitions(self._plain, self.directory):
            pinned = self._pin(topic_id, number, path)
            ahead = max(ahead, self._see(pinned, marks.get((topic_id, number))))
        if self.running:
            self._wait_for(ahead)
        self._pin_stages()
        self.cut = self._clocks.now()
        if self.running:
            self.disk = self._healed()
        self._pin_stages()
        self.anchors = self._read_anchors()
        self._packs = with_packs(self._plain)  # it lists the packs once
        self._copy_again()
        for topic_id, number, path in partitions(self._plain, self.directory):
            known = self.partitions.get((topic_id, number))
            if known is None:
                self._pin(topic_id, number, path)
            else:
                self._pin_later(known, path)

    def _healed(self) -> Disk:
        """The disk with what only the journal has in its place. A running broker may take files away meanwhile."""
        for _ in range(LISTINGS_MAX):
            try:
                return healed(self._plain, self.directory, [], self._linked)
            except FileNotFoundError:
                continue
        raise Moved(self.directory)

    def _difference(self) -> int:
        return self._clocks.now() - self._clocks.monotonic()

    def check_clock(self) -> None:
        """Call when everything is copied: the cut divides nothing if the clock went back since the first look."""
        back = self._apart - self._difference()
        if self.running and back > CLOCK_BACK_US:
            raise BackupError(
                f"the clock was set back by {back / 1e6:.3f} s while the backup was made", hint="make it again"
            )

    def _wait_for(self, date: int) -> None:
        """If the clock went back a little, the broker dates batches as the last one until it is reached: wait for that."""
        left = date - self._clocks.now()
        if 0 < left <= IN_ORDER_US:
            self._clocks.sleep(left / 1e6)

    def _pin(self, topic_id: int, number: int, path: str) -> Pinned:
        relative = f"topics/{topic_id:08d}/{number}"
        pinned = self.partitions[topic_id, number] = Pinned(topic_id, number, relative)
        for _ in range(LISTINGS_MAX):
            try:
                pinned.files = {
                    base: self._pin_file(f"{path}/{segment_name(base)}", f"{topic_id}-{number}-{base}.seg")
                    for base in segment_bases(self._packs, path)
                }
            except FileNotFoundError:  # retention or compaction took it just now: what was linked may be half of either
                for link in Path(self._links).glob(f"{topic_id}-{number}-*.seg"):
                    link.unlink()
                continue
            return pinned
        raise Moved(path)

    def _pin_later(self, pinned: Pinned, path: str) -> None:
        """Link the segments that were begun since the first listing."""
        last = max(pinned.files, default=-1)
        for base in segment_bases(self._packs, path):
            if base > last:
                link = f"{pinned.topic_id}-{pinned.number}-{base}.seg"
                try:
                    pinned.files[base] = self._pin_file(f"{path}/{segment_name(base)}", link)
                except FileNotFoundError:
                    raise Moved(path) from None

    def _pin_file(self, path: str, link: str) -> str:
        if not self.running:
            return path
        target = f"{self._links}/{link}"
        try:
            os.link(path, target)
            self._linked[target] = path
        except FileNotFoundError:
            self._copy_packed(path, target)
            self._copied[target] = path
        except FileExistsError:
            return target
        except OSError as error:
            raise BackupError(
                f"{path}: no hard link can be made in {self._links}: {error.strerror or error}",
                hint="run it as the broker's user, on a file system with hard links; or stop the broker first",
            ) from error
        return target

    def _copy_packed(self, path: str, target: str) -> None:
        """A packed segment has no file to link: it is small, so its bytes are taken. FileNotFoundError if it is not there."""
        handle = self._packs.open(path)
        try:
            data = self._packs.pread(handle, PACKED_BYTES, 0)
        finally:
            self._packs.close(handle)
        Path(target).write_bytes(data)

    def _copy_again(self) -> None:
        """After the cut: what a packed segment took since it was copied, unless its room was given up meanwhile."""
        for target, path in self._copied.items():
            before = Path(target).read_bytes()
            try:
                self._copy_packed(path, target)
            except FileNotFoundError:
                continue
            if Path(target).read_bytes()[:HEADER_BYTES] != before[:HEADER_BYTES]:
                Path(target).write_bytes(before)

    def _pin_stages(self) -> None:
        folder = f"{self.directory}/stages"
        for name in self._plain.listdir(folder):
            if name.endswith(".stage") and name not in self.stages:
                try:
                    self.stages[name] = self._pin_file(f"{folder}/{name}", name)
                except FileNotFoundError:
                    continue  # published, or aborted

    def _read_anchors(self) -> list[tuple[str, bytes]]:
        """The lines of anchors up to the cut; the old file before the new one, which it may become meanwhile."""
        names = (("anchors" + OLD_SUFFIX, self._anchors + OLD_SUFFIX), ("anchors", self._anchors))
        for _ in range(LISTINGS_MAX):
            before = self._plain.read_file(names[0][1])
            found = [(name, self._plain.read_file(path)) for name, path in names]
            if found[0][1] == before:
                return [(name, _dated(data, self.cut)) for name, data in found if data is not None]
        raise Moved(self._anchors)

    # -- where a segment ends ------------------------------------------------------------------------------------------

    def _see(self, pinned: Pinned, mark: Mark | None) -> int:
        """Note what is on disk now; the date of the last batch."""
        base = max(pinned.files, default=-1)
        if base < 0:
            return 0
        pinned.seen, date, start = base, 0, HEADER_BYTES
        handle = self.disk.open(pinned.files[base])
        try:
            header = read_header(self.disk, handle)
            if header is None:
                return 0
            if mark is not None and mark.segment == base:
                pinned.seen, start = mark.next_offset, mark.position
            for part in scan(self.disk, handle, header.seed, start, self.disk.size(handle), pinned.seen):
                if isinstance(part, Run):
                    at, length, first, span, _ = part.entries[-1]
                    pinned.seen = first + span
                    date = RecordBatch(memoryview(part.data)[at : at + length]).timestamp
            return date or self._date_before(handle, header.seed, start)
        finally:
            self.disk.close(handle)

    def _date_before(self, handle: int, seed: int, end: int) -> int:
        """The date of the batch that ends at `end`; 0 if there is none."""
        size = WINDOW_BYTES
        while True:
            begin = max(HEADER_BYTES, end - size)
            data = self.disk.pread(handle, end - begin, begin)
            at = kernel.find(data, 0, len(data), seed)
            if at >= 0:
                entries, _, _ = kernel.walk(data, at, len(data), seed, True)
                place, length = entries[-1][:2]
                return RecordBatch(memoryview(data)[place : place + length]).timestamp
            if begin == HEADER_BYTES:
                return 0
            size *= 8

    def end_of(
        self, pinned: Pinned, base: int, handle: int, header: Header, start: int, expected: int, last: bool
    ) -> Ended:
        """Where the segment ends at the cut, read from `start`, where the batch of offset `expected` begins."""
        position, damaged = start, list[str]()
        name = f"{pinned.path}/{segment_name(base)}"
        for part in scan(self.disk, handle, header.seed, start, self.disk.size(handle), expected):
            if isinstance(part, Gap):
                writing = last and self.running and expected >= pinned.seen  # the broker is at it just now
                if part.reason == 0 or writing:
                    return Ended(position, expected, not last, damaged)
                damaged.append(f"{name} at byte {part.position}, found behind offset {expected}")
                position = part.resumes if part.resumes >= 0 else self.disk.size(handle)
                expected = max(expected, part.next_base)
                continue
            view = memoryview(part.data)
            for at, length, first, span, _ in part.entries:
                if first >= pinned.seen and RecordBatch(view[at : at + length]).timestamp > self.cut and self.running:
                    return Ended(part.origin + at, expected, False, damaged)
                position, expected = part.origin + at + length, first + span
        return Ended(position, expected, True, damaged)


def read_header(disk: Disk, handle: int) -> Header | None:
    """The header of a segment; None if it does not check out. BackupError for one of a newer version."""
    try:
        return parse_header(disk.pread(handle, HEADER_BYTES, 0))
    except ValueError as error:
        raise BackupError(f"{error}", hint="back up with the Quintet that wrote it, or a newer one") from None


def _dated(data: bytes, cut: int) -> bytes:
    """Lines of anchors up to the first that is dated after the cut."""
    kept = []
    for line in data.splitlines(keepends=True):
        found = _DATE.search(line)
        if not line.endswith(b"\n") or (found is not None and int(found[1]) > cut):
            break
        kept.append(line)
    return b"".join(kept)
