"""Verifies the audit chain: defines a batch's link and checks the links of files. Reads only; needs no broker.

Every batch of a chained partition ends with its link, a hash of the link before it and of the batch (docs/LOG_FORMAT.md,
section 3). So the record is its own row of the audit: it cannot be there without its row, nor the row without it. Links
alone show what was changed inside a log. That its end was cut off, or all of it made anew, shows only against an anchor
(anchors.py), and that the anchors were too, only against the head of the anchors that somebody kept elsewhere, or by a key.

A break is the first batch that does not fit. Its name is a guess at what was done to the files. That
something was done is certain.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from blake3 import blake3

from quintet import kernel
from quintet.log.anchors import Anchored, AnchorsBroken, KeyMissing
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.packs import with_packs
from quintet.log.embedded.files.segment import (
    HEADER_BYTES,
    REASONS,
    Entry,
    Gap,
    Header,
    Run,
    all_zero,
    parse_header,
    scan,
    segment_name,
)
from quintet.log.embedded.recovery.directories import partitions, segment_bases
from quintet.model.batch import placed, span_of

PLAIN: Final = 1
KEYED: Final = 2
KEY_SECRET_BYTES_MIN: Final = 32
LOOKS_MAX: Final = 3  # at one partition: beside a running broker a file can change while it is read
_KEY_CONTEXT: Final = "quintet 2026 audit chain key"

Keys = dict[int, bytes]
Head = tuple[int, str]


def genesis(topic_id: int, partition: int) -> bytes:
    """The link before the first batch of a chain."""
    return blake3(b"quintet chain 1\0" + struct.pack("<II", topic_id, partition)).digest()


def derive_key(secret: bytes) -> bytes:
    """The key of the chain from what is in the key file. ValueError if that is too short."""
    if len(secret) < KEY_SECRET_BYTES_MIN:
        raise ValueError(f"the key of the audit chain has {len(secret)} bytes, it needs {KEY_SECRET_BYTES_MIN}")
    return blake3(secret, derive_key_context=_KEY_CONTEXT).digest()


def key_id(key: bytes) -> int:
    """Names a key without giving it away."""
    return int.from_bytes(blake3(b"quintet chain key id\0", key=key).digest(length=4), "little")


def key_name(key: bytes) -> str:
    return f"{key_id(key):08x}" if key else ""


class Break(msgspec.Struct, frozen=True):
    """The first batch that does not fit: where it is, the offsets it has or lacks (first to last - 1), and what is wrong."""

    file: str
    position: int
    first: int
    last: int
    kind: str
    what: str

    def __str__(self) -> str:
        place = f"{self.file} at byte {self.position}" if self.position else self.file
        offsets = f"offset {self.first}" if self.last == self.first + 1 else f"offsets {self.first} to {self.last - 1}"
        return f"{self.kind}: {offsets} in {place}: {self.what}"


class CannotCheck(Exception):
    """There is no verdict: a key is missing, or a newer broker wrote this."""


class PartitionVerdict(msgspec.Struct):
    """What was followed of one partition. `tail`: bytes behind the last sound batch that may be one being written."""

    topic_id: int
    partition: int
    name: str = ""
    segments: int = 0
    unchained: int = 0  # segments without a chain, before the first one that has it
    keyed: bool = False
    rows: int = 0
    size: int = 0  # bytes of the batches that were followed
    start: int = 0
    next_offset: int = 0
    link: bytes = b""
    tail: int = 0
    anchored: int = 0  # anchored heads that were found to be right
    broken: Break | None = None


class Verdict(msgspec.Struct):
    """What a whole directory comes to. status: 0 sound, 1 broken, 2 cannot be checked."""

    partitions: list[PartitionVerdict] = msgspec.field(default_factory=list)
    anchors: Anchored | None = None
    broken: Break | None = None
    cannot: str = ""

    @property
    def status(self) -> int:
        return 1 if self.broken is not None else 2 if self.cannot else 0

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)


class _Broken(Exception):
    def __init__(self, found: Break) -> None:
        super().__init__(str(found))
        self.found = found


class _Follower:
    """Goes through the segments of one partition in their order, with the heads that anchors claim."""

    def __init__(
        self, disk: Disk, directory: str, verdict: PartitionVerdict, keys: Keys, heads: Sequence[Head]
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._keys = keys
        self._heads = sorted(heads)
        self._claimed = 0  # heads below this number were looked at
        self.verdict = verdict
        self.link = b""  # none yet: nothing was chained so far
        self.expected = -1

    def segment(self, base: int, last: bool) -> None:
        """Follow one file. Raises _Broken, or CannotCheck."""
        path = f"{self._directory}/{segment_name(base)}"
        handle = self._disk.open(path)
        try:
            size = self._disk.size(handle)
            header = self._header(handle, path, base, size, last)
            if header is not None:
                self._begin(header, path)
                self._follow(handle, header, path, size, last)
        finally:
            self._disk.close(handle)

    def _header(self, handle: int, path: str, base: int, size: int, last: bool) -> Header | None:
        data = self._disk.pread(handle, HEADER_BYTES, 0)
        try:
            header = parse_header(data)
        except ValueError as error:
            raise CannotCheck(f"{path}: {error}: use a newer quintet") from None
        if header is None:
            if last and all_zero(self._disk.pread(handle, size, HEADER_BYTES)):
                return None  # it was being made: recovery removes it. What an anchor claims of it is missed in the end
            raise _Broken(Break(path, 0, base, base + 1, "damaged", REASONS[-7]))
        verdict = self.verdict
        if (header.topic_id, header.partition, header.base) != (verdict.topic_id, verdict.partition, base):
            what = f"the file is of topic number {header.topic_id}, partition {header.partition}, offset {header.base}"
            raise _Broken(Break(path, 0, base, base + 1, "swapped", what))
        if self.expected >= 0 and base != self.expected and (header.chain.kind or self.link):
            first, behind = sorted((self.expected, base))
            kind = "missing" if base > self.expected else "inserted"
            raise _Broken(Break(path, 0, first, behind, kind, f"the file before it ends at offset {self.expected}"))
        return header

    def _begin(self, header: Header, path: str) -> None:
        """Does the file go on where the one before it ended?"""
        verdict, base = self.verdict, header.base
        verdict.name = header.name
        kind, wanted, link = header.chain
        if kind == 0:
            if self.link:
                raise _Broken(Break(path, 0, base, base + 1, "unchained", "batches without links behind chained ones"))
            return
        if kind == KEYED and wanted not in self._keys:
            raise CannotCheck(f"{path}: the chain was made with the key {wanted:08x}, which was not given")
        if self._keys and verdict.keyed and kind != KEYED:
            raise _Broken(
                Break(path, 0, base, base + 1, "rewritten", "made without the key, behind what was made with it")
            )
        begins = not self.link and (base == 0 or verdict.unchained > 0)
        before = genesis(header.topic_id, header.partition) if begins else self.link
        if before and link != before:
            raise _Broken(Break(path, 480, base, base + 1, "rewritten", "the file does not continue what is before it"))
        verdict.keyed = verdict.keyed or kind == KEYED
        self.link = link
        self._skip_heads(path, base)

    def _skip_heads(self, path: str, base: int) -> None:
        """Anchored heads below what is kept cannot be looked at; one at the very start can."""
        heads = self._heads
        while self._claimed < len(heads) and heads[self._claimed][0] < base:
            claimed = heads[self._claimed][0]
            if claimed > self.verdict.start:
                what = f"an anchor says that what is before it was chained up to offset {claimed}"
                raise _Broken(Break(path, 0, self.verdict.start, claimed, "rewritten", what))
            self._claimed += 1

    def _follow(self, handle: int, header: Header, path: str, size: int, last: bool) -> None:
        verdict, disk = self.verdict, self._disk
        verdict.segments += 1
        self.expected = header.base
        chained = header.chain.kind != 0
        key = self._keys[header.chain.key_id] if header.chain.kind == KEYED else b""
        if not chained:
            verdict.unchained += 1
        else:
            self._look_at_start(path)
        for part in scan(disk, handle, header.seed, HEADER_BYTES, size, header.base):
            if isinstance(part, Run):
                if chained:
                    self._run(part, path, key)
                self.expected = part.entries[-1][2] + part.entries[-1][3]
            else:
                self._gap(handle, part, path, size, last)
                break
        verdict.next_offset = self.expected

    def _look_at_start(self, path: str) -> None:
        while self._claimed < len(self._heads) and self._heads[self._claimed][0] == self.expected:
            self._claim(path, 0, self.expected, self.expected + 1)

    def _claim(self, path: str, position: int, first: int, last: int) -> None:
        """The chain has come to where an anchor was taken."""
        next_offset, link = self._heads[self._claimed]
        if link != self.link.hex():
            what = f"not what the anchor of offset {next_offset} says: this, or something before it, was made anew"
            raise _Broken(Break(path, position, first, last, "rewritten", what))
        self._claimed += 1
        self.verdict.anchored += 1

    def _run(self, run: Run, path: str, key: bytes) -> None:
        """Follow the links of sound batches, from one anchored head to the next."""
        data, entries = run.data, run.entries
        number = 0
        while number < len(entries):
            stop = len(entries)
            if self._claimed < len(self._heads):
                stop = bisect_left(entries, self._heads[self._claimed][0], number, key=_behind) + 1
                stop = min(stop, len(entries))
            at, end = entries[number][0], entries[stop - 1][0] + entries[stop - 1][1]
            reached, self.link = kernel.follow(data, at, end, self.link, key)
            if reached != end:
                bad = next(index for index in range(number, stop) if entries[index][0] >= reached)
                self._count(run, number, bad)
                place, _, base, span, _ = entries[bad]
                what = "its link does not follow from what is in it and the link before: one of them is not what it was"
                raise _Broken(Break(path, run.origin + place, base, base + span, "edited", what))
            self._count(run, number, stop)
            entry = entries[stop - 1]
            self.expected = _behind(entry)
            while self._claimed < len(self._heads) and self._heads[self._claimed][0] <= self.expected:
                if self._heads[self._claimed][0] < self.expected:
                    what = f"an anchor was taken at offset {self._heads[self._claimed][0]}, where no batch ends"
                    raise _Broken(Break(path, run.origin + entry[0], entry[2], self.expected, "rewritten", what))
                self._claim(path, run.origin + entry[0], entry[2], self.expected)
            number = stop

    def _count(self, run: Run, first: int, stop: int) -> None:
        self.verdict.rows += sum([entry[3] for entry in run.entries[first:stop]])
        self.verdict.size += sum([entry[1] for entry in run.entries[first:stop]])
        if first < stop:
            self.verdict.link = self.link

    def _gap(self, handle: int, gap: Gap, path: str, size: int, last: bool) -> None:
        """The bytes do not go on as a log does."""
        if gap.resumes < 0 and gap.reason == 0:
            return
        data = self._disk.pread(handle, size - gap.position, gap.position)
        header = parse_header(self._disk.pread(handle, HEADER_BYTES, 0))
        seed = header.seed if header is not None else 0
        if kernel.check(data, 0, seed) <= 0:
            if gap.resumes < 0 and last:
                self.verdict.tail = len(data)
                return
            behind = max(gap.next_base, self.expected + 1)
            raise _Broken(Break(path, gap.position, self.expected, behind, "damaged", REASONS[gap.reason]))
        base, span = placed(data).base_offset, span_of(data)
        if base > self.expected:
            kind = "swapped" if self._finds(data, seed) else "missing"
            raise _Broken(Break(path, gap.position, self.expected, base, kind, f"offset {base} follows"))
        raise _Broken(Break(path, gap.position, base, base + span, "duplicated", f"offset {self.expected} must follow"))

    def _finds(self, data: bytes, seed: int) -> bool:
        """Is the batch that is missing further behind?"""
        start = 0
        while start < len(data):
            entries, end, _ = kernel.walk(data, start, len(data), seed, True)
            if any(entry[2] == self.expected for entry in entries):
                return True
            if end == start:
                return False
            start = end
        return False

    def finish(self, path: str) -> None:
        """All files were followed: did they come as far as the anchors say?"""
        if self._claimed < len(self._heads):
            wanted = self._heads[-1][0]
            first = min(max(self.expected, 0), wanted - 1)
            chained = bool(self.link) or self.verdict.segments == 0
            kind, what = (
                ("truncated", "an anchor says that they were there")
                if chained
                else (
                    "rewritten",
                    "an anchor says that they were chained",
                )
            )
            raise _Broken(Break(path, 0, first, wanted, kind, what))


def _behind(entry: Entry) -> int:
    return entry[2] + entry[3]


def verify_partition(
    disk: Disk,
    directory: str,
    topic_id: int,
    partition: int,
    keys: Keys,
    heads: Sequence[Head] = (),
    start: int = 0,
) -> PartitionVerdict:
    """Follow one partition. heads: what anchors claim; start: below it offsets were removed on purpose. CannotCheck."""
    verdict = PartitionVerdict(topic_id, partition)
    disk = with_packs(disk)
    follower = _Follower(disk, directory, verdict, keys, heads)
    bases = segment_bases(disk, directory)
    verdict.start = bases[0] if bases else 0
    try:
        if heads and bases and bases[0] > start:
            path = f"{directory}/{segment_name(bases[0])}"
            raise _Broken(Break(path, 0, start, bases[0], "missing", "the log began earlier when it was anchored"))
        for number, base in enumerate(bases):
            follower.segment(base, number == len(bases) - 1)
        follower.finish(f"{directory}/{segment_name(bases[-1])}" if bases else directory)
    except _Broken as broken:
        verdict.broken = broken.found
    return verdict


class SegmentVerdict(msgspec.Struct):
    """One file followed by itself: from the link it begins with (b"": it has no chain) to the link it ends with."""

    followed: PartitionVerdict
    begins: bytes
    ends: bytes


def verify_segment(
    disk: Disk, directory: str, topic_id: int, partition: int, base: int, last: bool, keys: Keys, heads: Sequence[Head] = ()
) -> SegmentVerdict:  # fmt: skip
    """Follow one file, with the heads that anchors claim in it. Whether it continues the file before it is for who knows both
    (pieces.py). FileNotFoundError, CannotCheck."""
    found = SegmentVerdict(PartitionVerdict(topic_id, partition, start=base), b"", b"")
    disk = with_packs(disk)
    follower = _Follower(disk, directory, found.followed, keys, heads)
    path = f"{directory}/{segment_name(base)}"
    try:
        follower.segment(base, last)
        nothing = genesis(topic_id, partition).hex()  # is all that may be claimed of a file without links
        if last or (not follower.link and any(link != nothing for _, link in heads)):
            follower.finish(path)  # of others the next file begins later than this one ends, and that is named
    except _Broken as broken:
        found.followed.broken = broken.found
    handle = disk.open(path)
    try:
        header = parse_header(disk.pread(handle, HEADER_BYTES, 0))
    finally:
        disk.close(handle)
    if header is not None and header.chain.kind:
        found.begins, found.ends = header.chain.link, follower.link
    return found


def partition_count(disk: Disk, directory: str) -> int:
    """How many partitions a data directory has: what `verify_directory` goes through."""
    return sum(1 for _ in partitions(disk, directory))


def verify_directory(
    disk: Disk,
    directory: str,
    keys: Keys,
    read_anchors: Callable[[], Anchored | None],
    head: str = "",
    progress: Callable[[PartitionVerdict], None] = lambda verdict: None,
) -> Verdict:
    """Follow all partitions of a data directory. `read_anchors` is called again before a break is believed: a running broker
    may have removed files on purpose meanwhile. head: SEQ:HASH of an anchor that somebody kept elsewhere."""
    verdict = Verdict()
    disk = with_packs(disk)
    try:
        verdict.anchors = anchored = read_anchors()
        _check_head(anchored, head)
        there = {(topic_id, number): path for topic_id, number, path in partitions(disk, directory)}
        wanted = set() if anchored is None else anchored.heads.keys()
        for topic_id, number in sorted(there.keys() | wanted):
            path = there.get((topic_id, number), f"{directory}/topics/{topic_id:08d}/{number}")
            found = _look_again(disk, path, topic_id, number, keys, read_anchors, anchored)
            verdict.partitions.append(found)
            progress(found)
            if found.broken is not None and verdict.broken is None:
                verdict.broken = found.broken
        _check_key(verdict, directory, keys)
    except (CannotCheck, KeyMissing) as error:
        verdict.cannot = str(error)
    except OSError as error:
        verdict.cannot = f"{error.filename or directory}: {error.strerror or error}"
    except AnchorsBroken as error:
        verdict.broken = Break("the anchors", 0, 0, 1, "rewritten", str(error))
    return verdict


def _look_again(
    disk: Disk,
    path: str,
    topic_id: int,
    number: int,
    keys: Keys,
    read_anchors: Callable[[], Anchored | None],
    anchored: Anchored | None,
) -> PartitionVerdict:
    """What is wrong at one look and right at the next was being written, or removed on purpose."""
    found = PartitionVerdict(topic_id, number)
    for _ in range(LOOKS_MAX):
        place = (topic_id, number)
        heads = anchored.heads.get(place, []) if anchored is not None else []
        start = anchored.starts.get(place, 0) if anchored is not None else 0
        deleted = anchored is not None and topic_id in anchored.deleted
        try:
            found = verify_partition(disk, path, topic_id, number, keys, heads, start)
        except FileNotFoundError as error:
            if deleted:  # on purpose, and just now
                return found
            found.broken = Break(path, 0, start, start + 1, "missing", f"a file is gone: {error.filename}")
        if found.broken is None:
            return found
        anchored = read_anchors()
    return found


def _check_head(anchored: Anchored | None, head: str) -> None:
    if not head:
        return
    seq, _, digest = head.partition(":")
    if not seq.isdecimal() or not digest:
        raise CannotCheck(f"{head!r} is no head of anchors: it is SEQ:HASH")
    if anchored is None or anchored.seq < int(seq):
        last = "there are none" if anchored is None or anchored.seq < 0 else f"they end at {anchored.seq}"
        raise AnchorsBroken(f"anchor {seq} is gone: {last}")
    if int(seq) < anchored.first_seq:
        raise CannotCheck(f"anchor {seq} is no longer kept: they begin at {anchored.first_seq}")
    if anchored.hashes.get(int(seq)) != digest:
        raise AnchorsBroken(f"anchor {seq} is not the one that was kept")


def _check_key(verdict: Verdict, directory: str, keys: Keys) -> None:
    made_with_it = any(each.keyed for each in verdict.partitions) or (
        verdict.anchors is not None and verdict.anchors.keyed
    )
    if keys and verdict.broken is None and verdict.rows and not made_with_it:
        what = "nothing here was made with the key: all of it was made anew, or the key is for something else"
        verdict.broken = Break(directory, 0, 0, 1, "rewritten", what)
