"""Checks every batch of a stopped data directory, for `quintet log verify` and `quintet log dump`. Read-only.

Works on files alone, without configuration: below and above the durable mark alike. A torn tail of the last segment is
named but is no corruption; the next start cuts it off. What the journal holds and a power cut took from a segment is seen
as if it were there: the next start puts it back. Headers are compared with the folders they lie in and with `__topics`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from quintet.log.embedded import stages
from quintet.log.embedded.files import identity
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.packs import with_packs
from quintet.log.embedded.files.segment import (
    HEADER_BYTES,
    REASONS,
    Owner,
    Run,
    Segment,
    misplaced,
    parse_header,
    parse_index,
    salvage_seed,
    scan,
)
from quintet.log.embedded.files.torn import is_torn
from quintet.log.embedded.recovery import checkpoint, journal
from quintet.log.embedded.recovery.directories import partitions, segment_bases
from quintet.model import limits
from quintet.model.batch import RecordBatch, Row

TOPICS_TABLE: Final = 1  # docs/LOG_FORMAT.md section 1: JSON rows with id and name


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not check out. Only `corrupt` ones make verify fail (exit status 1)."""

    file: str
    position: int
    length: int
    what: str
    corrupt: bool

    def __str__(self) -> str:
        kind = "corrupt" if self.corrupt else "note"
        return f"{kind}: {self.file} at byte {self.position}, {self.length} bytes: {self.what}"


@dataclass(slots=True)
class Summary:
    """Filled while verify runs. `status` is what the command exits with."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    findings: int = 0
    status: int = 0


def verify(disk: Disk, directory: str, summary: Summary) -> Iterator[Finding]:
    """Go through the whole directory; findings come as they are found."""
    for finding in _verify(disk, directory, summary):
        summary.findings += 1
        summary.status = max(summary.status, int(finding.corrupt))
        yield finding


class _Healed:
    """A disk on which the journal was replayed, without writing: what reading calls need, the rest as it was."""

    sees_packs: Final = True

    def __init__(self, disk: Disk, patches: dict[str, list[tuple[int, bytes]]], names: Mapping[str, str]) -> None:
        self._disk = disk
        self._patches = patches
        self._names = names
        self._opened: dict[int, list[tuple[int, bytes]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str) -> int:
        patches = self._patches.get(self._names.get(path, path), [])
        try:
            handle = self._disk.open(path)
        except FileNotFoundError:
            if not patches:
                raise
            handle = min([0, *self._opened]) - 1  # a packed segment that only the journal has
        self._opened[handle] = patches
        return handle

    def close(self, handle: int) -> None:
        del self._opened[handle]
        if handle >= 0:
            self._disk.close(handle)

    def listdir(self, path: str) -> list[str]:
        inside = {found[len(path) + 1 :].split("/")[0] for found in self._patches if found.startswith(f"{path}/")}
        return sorted({*self._disk.listdir(path), *inside})

    def size(self, handle: int) -> int:
        ends = [position + len(data) for position, data in self._opened[handle]]
        return max([self._disk.size(handle) if handle >= 0 else 0, *ends])

    def pread(self, handle: int, size: int, position: int) -> bytes:
        patches = self._opened[handle]
        data = self._disk.pread(handle, size, position) if handle >= 0 else b""
        if not patches:
            return data
        mended = bytearray(data)
        for start, patch in patches:
            first, last = max(start, position), min(start + len(patch), position + size)
            if first < last:
                mended.extend(bytes(max(last - position - len(mended), 0)))
                mended[first - position : last - position] = patch[first - start : last - start]
        return bytes(mended)


def healed(disk: Disk, directory: str, findings: list[Finding], names: Mapping[str, str] | None = None) -> Disk:
    """The disk as the next start will see it, and what is to be said about the journal. names: of segments by those of their hard
    links. Beside a running broker it has everything that was durable before: what is not in the journal any more is in its segment."""

    def told(kind: str, fields: dict[str, object]) -> None:
        place = cast(int, fields.get("position", 0))
        what = "the header of the journal does not check out" if kind == "journal_rejected" else str(fields["what"])
        findings.append(Finding(str(fields["file"]), place, 0, what, True))

    disk = with_packs(disk)
    patches: dict[str, list[tuple[int, bytes]]] = {}
    found = journal.load(disk, directory, told)
    for path, group in journal.waiting(disk, directory, checkpoint.load(disk, directory).marks, found).items():
        try:
            handle = disk.open(path)
        except FileNotFoundError:
            handle = -1
        try:
            for entry in group:
                try:
                    whole = handle < 0
                    position, data = (entry.position, entry.data) if whole else journal.lacking(disk, handle, entry)
                except ValueError as error:
                    findings.append(Finding(path, entry.position, len(entry.data), f"journal: {error}", True))
                    continue
                if data:
                    patches.setdefault(path, []).append((position, data))
                    what = "in the journal only; the next start puts it back"
                    findings.append(Finding(path, position, len(data), what, False))
        finally:
            if handle >= 0:
                disk.close(handle)
    return cast(Disk, _Healed(disk, patches, {} if names is None else names)) if patches else disk


def _verify(disk: Disk, directory: str, summary: Summary) -> Iterator[Finding]:
    findings: list[Finding] = []
    disk = healed(disk, directory, findings)
    yield from findings
    known = disk.read_file(f"{directory}/{identity.NAME}")
    if known is not None and not identity.parse(known):
        yield Finding(f"{directory}/{identity.NAME}", 0, len(known), "does not hold the identity of a log", True)
    marks = checkpoint.load(disk, directory)
    for name in marks.rejected:
        yield Finding(f"{directory}/{name}", 0, 0, "checkpoint does not check out and is ignored", True)
    names = _names(disk, directory)
    there = partitions(disk, directory)
    for topic, number, path in there:
        bases = segment_bases(disk, path)
        owner, reached = Owner(topic, number, names.get(topic, "")), bases[-1] if bases else 0
        for base, following in zip(bases, [*bases[1:], None], strict=False):  # of no segments there is no pair
            for part in _segment(disk, path, base, following, owner):
                if isinstance(part, Finding):
                    yield part
                else:
                    summary.batches += 1
                    summary.records += part.count
                    summary.bytes += part.length
                    reached = max(reached, part.next_offset)
            summary.segments += 1
        mark = marks.marks.get((topic, number))
        if mark is not None and mark.next_offset > reached:
            yield Finding(path, 0, 0, f"offsets {reached} to {mark.next_offset - 1} are lost, by the checkpoint", True)
    yield from _folders(directory, names, {topic for topic, _, _ in there}, marks)
    for file, position, length, what in stages.damages(disk, directory):
        yield Finding(file, position, length, what, True)


def _names(disk: Disk, directory: str) -> dict[int, str]:
    """Topics by their rows, as far as these can be read."""
    rows: dict[bytes, tuple[int, str]] = {}
    for _, _, (_, _, key, value, *_) in dump(disk, directory, TOPICS_TABLE):
        try:
            found = json.loads(value) if value is not None else None
            if found is None:
                rows.pop(key or b"", None)
            else:
                rows[key or b""] = (int(found["id"]), str(found["name"]))
        except (ValueError, KeyError, TypeError):
            continue
    return dict(rows.values())


def _folders(directory: str, names: dict[int, str], there: set[int], marks: checkpoint.Checkpoint) -> Iterator[Finding]:
    """Folders and rows that do not go together. A folder may be what a crash left of a deletion: the next start tells."""
    for topic in sorted(there - set(names)):
        if names and topic >= limits.TOPIC_ID_FIRST_USER:
            what = "no row in __topics: deleted, or its row is lost (quintet log repair)"
            yield Finding(f"{directory}/topics/{topic:08d}", 0, 0, what, False)
    lost = {topic for (topic, _), mark in marks.marks.items() if mark.next_offset and topic in names} - there
    for topic in sorted(lost):
        what = f"the folder of topic {names[topic]!a} is gone, which had records by the checkpoint"
        yield Finding(f"{directory}/topics/{topic:08d}", 0, 0, what, True)


def dump(disk: Disk, directory: str, topic_id: int | None = None) -> Iterator[tuple[int, int, Row]]:
    """Every sound record: (topic_id, partition, row)."""
    disk = healed(disk, directory, [])
    for topic, number, path in partitions(disk, directory):
        if topic_id is not None and topic != topic_id:
            continue
        bases = segment_bases(disk, path)
        reached = 0
        for base, following in zip(bases, [*bases[1:], None], strict=False):  # of no segments there is no pair
            for part in _segment(disk, path, base, following, Owner(topic, number)):
                if isinstance(part, RecordBatch) and part.next_offset > reached:
                    reached = part.next_offset
                    for row in part.rows():
                        yield topic, number, row


def _segment(
    disk: Disk, directory: str, base: int, following: int | None, owner: Owner
) -> Iterator[Finding | RecordBatch]:
    segment = Segment(directory, base, 0)
    path = segment.path
    handle = disk.open(path)
    try:
        size = disk.size(handle)
        data = disk.pread(handle, HEADER_BYTES, 0)
        try:
            header = parse_header(data)
        except ValueError as error:
            yield Finding(path, 12, 4, str(error), True)
            return
        wrong = misplaced(header, owner) if header is not None else ""
        if wrong:
            yield Finding(path, 0, size, wrong, True)
            return
        if header is not None and header.base == base:
            segment.seed = header.seed
        else:
            yield Finding(path, 0, HEADER_BYTES, REASONS[-7], True)
            segment.seed = salvage_seed(data + disk.pread(handle, size, HEADER_BYTES), base) or 0
            if segment.seed == 0:
                return
        expected = base
        for part in scan(disk, handle, segment.seed, HEADER_BYTES, size, base):
            if isinstance(part, Run):
                expected = part.entries[-1][2] + part.entries[-1][3]
                view = memoryview(part.data)
                yield from (RecordBatch(view[at : at + length]) for at, length, _, _, _ in part.entries)
            elif part.resumes >= 0:
                length = part.resumes - part.position
                what = f"{REASONS[part.reason]}; offsets {expected} to {part.next_base - 1} are lost"
                yield Finding(path, part.position, length, what, True)
                expected = part.next_base
            elif part.reason != 0:
                what = f"{REASONS[part.reason]}, nothing sound behind it"
                corrupt = following is not None or _was_whole(disk, handle, segment, part.position, size, owner)
                yield Finding(path, part.position, size - part.position, what, corrupt)
        if following is not None and expected < following:
            yield Finding(path, size, 0, f"offsets {expected} to {following - 1} are lost", True)
    finally:
        disk.close(handle)
    yield from _index(disk, segment)


def _was_whole(disk: Disk, handle: int, segment: Segment, position: int, size: int, owner: Owner) -> bool:
    """Of the broker's own topics only what lacks something is torn; of others nobody can tell."""
    if owner.topic_id >= limits.TOPIC_ID_FIRST_USER:
        return False
    return not is_torn(disk.pread(handle, size - position, position), position, segment.seed)


def _index(disk: Disk, segment: Segment) -> Iterator[Finding]:
    path = segment.path.removesuffix(".seg") + ".idx"
    data = disk.read_file(path)
    if data is not None and parse_index(data, segment.seed) is None:
        yield Finding(path, 0, len(data), "index does not check out; it is made again when needed", True)
