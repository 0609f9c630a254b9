"""Writes the heads of all chains to the file of anchors, at intervals and before anything is removed on purpose.

Belongs to the loop thread; the file is written in a disk thread, one line at a time. Only heads that are durable are taken.
What retention or the deletion of a topic removes is noted first, so that a verifier knows that nobody else did. Where the
anchors cannot be written (a full disk, which retention may be about to cure) the removal goes on and the note is written
when it can be. A head that lies before one already anchored is never written: it is reported, as offsets do not go back.

    heads moved, notes --(anchor_us passed, or somebody waits)--> line --(written, synced)--> head, who waits is told
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.log import anchors
from quintet.log.anchors import ALL_PARTITIONS, OLD_SUFFIX, Anchored, Gone, Heads
from quintet.log.chain import key_name
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.place_rows import PlaceRows
from quintet.log.embedded.partitions.links import ChainHead
from quintet.log.embedded.partitions.roles import AnchoredPartition, place_number, place_of
from quintet.log.embedded.partitions.shared import Shared
from quintet.model import limits
from quintet.model.batch import LINK_BYTES
from quintet.model.errors import DataDirError

HEADS_AT_ONCE_MAX: Final = 4096  # of one line; the others come with the next
RETRY_US: Final = 1_000_000  # after a line that could not be written
FRESH_SUFFIX: Final = ".tmp"
OFFSET_BYTES: Final = 8  # of a packed head, before its link
HEAD_BYTES: Final = OFFSET_BYTES + LINK_BYTES
FILE_BYTES_MAX: Final = 16 * limits.MIB  # of each of the two files

Then = Callable[[], None]


class Anchoring:
    """One per engine that keeps anchors. `open` first."""

    def __init__(self, shared: Shared, path: str, every_us: int, file_bytes_max: int = FILE_BYTES_MAX) -> None:
        self._shared = shared
        self._path = path
        self._every_us = every_us
        self._bytes_max = file_bytes_max
        self._seq, self._prev = -1, ""
        self._position = 0
        self._heads = PlaceRows(HEAD_BYTES)  # the last one of each chain, packed: there may be 100,000
        self._starts: dict[tuple[int, int], int] = {}
        self._notes: Gone = []
        self._then: list[Then] = []
        self._accused: set[tuple[int, int]] = set()
        self._written_at = -every_us
        self._writing = self._failed = False
        self.lines = 0
        self.deleted: frozenset[int] = frozenset()  # topics, when it was opened

    @property
    def head(self) -> str:
        """SEQ:HASH of the last line, to be kept where whoever can write to this disk cannot; empty if there is none yet."""
        return f"{self._seq}:{self._prev}" if self._seq >= 0 else ""

    def open(self) -> None:
        """Read what is there; an unfinished last line is cut off. Blocks: for the start only."""
        disk = self._shared.disk
        try:
            key = self._shared.chain.key
            found = anchors.load(disk, self._path, None, {key_name(key): key} if key else {}) or Anchored()
            if found.torn:
                self._shared.report("anchors_torn", {"file": self._path, "bytes": found.torn})
            self._position = len(disk.read_file(self._path) or b"") - found.torn
        except OSError as error:
            raise DataDirError(f"{self._path}: cannot be used for anchors: {error.strerror or error}") from error
        self._seq, self._prev = found.seq, found.prev
        self._starts = found.starts
        self._heads.clear()
        for place, heads in found.heads.items():
            self._heads[place_number(*place)] = _pack_head(*max(heads))
        self.deleted = frozenset(found.deleted)
        if found.damaged:
            hint = "they do not count: quintet audit verify"
            self._shared.report("anchors_damaged", {"file": self._path, "lines": found.damaged, "hint": hint})

    def known_end(self, topic_id: int, partition: int) -> int:
        """The offset behind all that was anchored of a partition: none below it is given again. 0: nothing was."""
        known = self._heads.find(place_number(topic_id, partition))
        return int.from_bytes(known[:OFFSET_BYTES], "little") if known is not None else 0

    def has(self, topic_id: int, partition: int, head: ChainHead) -> bool:
        """Is this very head the last one that was anchored?"""
        known = self._heads.find(place_number(topic_id, partition))
        return known == head.next_offset.to_bytes(OFFSET_BYTES, "little") + head.link

    @property
    def topic_ids(self) -> set[int]:
        """Numbers that were given, as far as an anchor says so."""
        return {place_of(number)[0] for number in self._heads} | self.deleted

    # -- what is to be written -----------------------------------------------------------------------------------------

    def before_removal(self, topic_id: int, partition: int, start: int, then: Then) -> None:
        """Offsets below start are removed when then() is called. partition -1: the whole topic is."""
        self._notes.append((topic_id, partition, start))
        self._then.append(then)
        self._write()

    def maintain(self, monotonic: int) -> None:
        """About every 100 ms."""
        wait = RETRY_US if self._failed else self._every_us
        due = monotonic - self._written_at >= wait
        if due and self._shared.lending is not None:
            self._shared.lending.catch_up()
        if (due and (self._shared.heads_moved or self._notes)) or (self._then and not self._writing):
            self._write()

    def finish(self, done: Then) -> None:
        """Everything is durable and nothing more comes: the last lines, if anything moved."""
        self._then.append(partial(self._finished, done))
        self._write()

    def _finished(self, done: Then) -> None:
        if self._shared.heads_moved and not self._failed:  # more than go into one line
            self.finish(done)
        else:
            done()

    def _take(self) -> tuple[Heads, list[AnchoredPartition]]:
        """The heads that moved, as many as go into one line, and whose they are."""
        moved = self._shared.heads_moved
        heads: Heads = []
        owners: list[AnchoredPartition] = []
        while moved and len(heads) < HEADS_AT_ONCE_MAX:
            partition = moved.pop()
            place = (partition.topic_id, partition.number)
            head = next_offset, link = partition.links.durable
            if next_offset == 0 or self.has(*place, head):
                continue
            known = self._heads.find(place_number(*place))
            if known is not None and next_offset <= self.known_end(*place):
                self._accuse(place, self.known_end(*place), next_offset)
                continue
            if known is None and partition.start > self._starts.get(place, 0):
                self._notes.append((*place, partition.start))
            heads.append((*place, next_offset, link.hex()))
            owners.append(partition)
        if not moved:
            moved.clear()  # at a start all were in it: it keeps the room for them until then
        return heads, owners

    def _accuse(self, place: tuple[int, int], anchored: int, found: int) -> None:
        if place not in self._accused:
            self._accused.add(place)
            fields: dict[str, object] = {"topic_id": place[0], "partition": place[1]}
            hint = "something was cut off or made anew: quintet audit verify"
            self._shared.report("anchor_differs", fields | {"anchored": anchored, "found": found, "hint": hint})

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._writing:
            return
        now = self._shared.scheduler.now()
        heads, owners = self._take()
        notes = self._notes
        if not heads and not notes:
            self._tell()
            return
        self._notes, self._writing, self._written_at = [], True, self._shared.scheduler.monotonic()
        rolls = self._position >= self._bytes_max
        line_heads, line_notes = heads, notes
        if rolls:  # the new file says all there is to say, so the one before the last can go
            moved = {place_number(*head[:2]) for head in heads}
            line_heads = [
                (*place_of(number), *_unpack_head(head)) for number, head in self._heads.items() if number not in moved
            ]
            line_heads += heads
            line_notes = [*((*place, start) for place, start in self._starts.items()), *notes]
        key = self._shared.chain.key
        pack = partial(anchors.pack_line, self._seq + 1, now, line_heads, line_notes, self._prev, key, key_name(key))
        work = partial(_roll if rolls else _store, self._shared.disk, self._path, self._position, pack)
        waiting, self._then = self._then, []
        self._shared.scheduler.offload(work, partial(self._stored, heads, owners, notes, waiting))

    def _stored(
        self,
        heads: Heads,
        owners: list[AnchoredPartition],
        notes: Gone,
        waiting: list[Then],
        result: tuple[int, str] | BaseException,
    ) -> None:
        self._writing = False
        if isinstance(result, BaseException):
            self._notes = _joined(notes + self._notes)
            self._shared.heads_moved.update(owners)
            if not self._failed:  # said once: it is tried again until it works
                self._shared.report("anchors_failed", {"file": self._path, "error": str(result)})
            self._failed = True
        else:
            self._position, self._prev = result
            self._seq += 1
            self.lines += 1
            self._failed = False
            self._remember(heads, notes)
        for call in waiting:
            call()
        if self._then:
            self._write()

    def _remember(self, heads: Heads, notes: Gone) -> None:
        for topic_id, partition, next_offset, link in heads:
            self._heads[place_number(topic_id, partition)] = _pack_head(next_offset, link)
        for topic_id, partition, start in notes:
            if partition != ALL_PARTITIONS:
                self._starts[topic_id, partition] = max(start, self._starts.get((topic_id, partition), 0))
        deleted = {topic_id for topic_id, partition, _ in notes if partition == ALL_PARTITIONS}
        if deleted:
            for number in [number for number in self._heads if place_of(number)[0] in deleted]:
                del self._heads[number]
            self._starts = {place: known for place, known in self._starts.items() if place[0] not in deleted}

    def _tell(self) -> None:
        waiting, self._then = self._then, []
        for call in waiting:
            call()


def _pack_head(next_offset: int, link: str) -> bytes:
    """A link of another length, which only somebody else's line can have, is of no batch whatever it is made of."""
    return (next_offset.to_bytes(OFFSET_BYTES, "little") + bytes.fromhex(link)).ljust(HEAD_BYTES, b"\0")[:HEAD_BYTES]


def _unpack_head(packed: bytes) -> tuple[int, str]:
    return int.from_bytes(packed[:OFFSET_BYTES], "little"), packed[OFFSET_BYTES:].hex()


def _joined(notes: Gone) -> Gone:
    """One of each partition, with the highest start: the disk of the anchors may be full for days."""
    starts: dict[tuple[int, int], int] = {}
    for topic_id, partition, start in notes:
        starts[topic_id, partition] = max(start, starts.get((topic_id, partition), 0))
    return [(*place, start) for place, start in starts.items()]


def _store(disk: Disk, path: str, position: int, pack: Callable[[], tuple[bytes, str]]) -> tuple[int, str]:
    """Write one line durably; where the next one goes, and the hash."""
    line, digest = pack()
    if position == 0 and disk.read_file(path) is None:
        disk.close(disk.open(path, create=True, write=True))
        disk.fsync_dir(os.path.dirname(path) or ".")
    handle = disk.open(path, write=True)
    try:
        disk.truncate(handle, position)  # of what a line that failed may have left
        disk.pwritev(handle, [line], position)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    return position + len(line), digest


def _roll(disk: Disk, path: str, position: int, pack: Callable[[], tuple[bytes, str]]) -> tuple[int, str]:
    """As _store, to a new file. The full one is kept under another name; at every moment one of them is there, whole. Where it
    failed at the very end, the new file is there already: it is written again, and the full one stays what it is."""
    line, digest = pack()
    fresh = path + FRESH_SUFFIX
    if disk.read_file(fresh) is not None:
        disk.unlink(fresh)
    handle = disk.open(fresh, create=True, write=True)
    try:
        disk.pwritev(handle, [line], 0)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    full = disk.read_file(path)
    if full is not None and not full.startswith(line[: line.index(b",") + 1]):
        disk.rename(path, path + OLD_SUFFIX)
    disk.rename(fresh, path)
    disk.fsync_dir(os.path.dirname(path) or ".")
    return len(line), digest
