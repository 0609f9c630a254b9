"""Models the files of a node in a cell, and says what a WAL comes to: both written apart from the code they judge.

The model is strict: an offset that is used twice, a hole, a link that does not continue, an intent without its sealed stage, a stage
that is sealed without all of its parts, a purge of what is not there and a partition that begins where it has rows raise Wrong.
A kill keeps the files and takes back the mark's position in the WAL; a power cut also takes any part of what was not synced.
"""

import hashlib
import struct
from random import Random

from quintet.log.replicated.fold import Fold
from quintet.log.replicated.records import Entry, EntryKind, Kind, WalRecord, offset_of, parse, removed_of, stage_of
from quintet.model.errors import CorruptData

INTENTS = 1  # the topic of intents: a value names a stage
_BASE = struct.Struct("<Q")
LINK_BYTES = 8
Place = tuple[int, int]  # topic, partition


class Wrong(Exception):
    """A promise was broken."""


def link(before: bytes, base: int, value: bytes) -> bytes:
    return hashlib.blake2b(before + _BASE.pack(base) + value, digest_size=LINK_BYTES).digest()


def batch_entry(place: Place, base: int, value: bytes, before: bytes) -> Entry:
    return Entry(EntryKind.BATCH, *place, _BASE.pack(base) + link(before, base, value) + value)


class Files:
    """Partitions as lists of (value, link)."""

    def __init__(self) -> None:
        self.partitions: dict[Place, list[tuple[bytes, bytes]]] = {(INTENTS, 0): []}
        self.starts: dict[Place, int] = {}  # where it was purged, or begun
        self.parts: dict[str, set[int]] = {}  # of stages that are not sealed
        self.stages: set[str] = set()  # sealed
        self.removed: set[str] = set()  # whose files are still there
        self.mark(Fold())

    def mark(self, fold: Fold) -> None:
        """Everything is synced up to this place of the WAL."""
        self.fold = fold.copy()
        self._synced = {place: len(rows) for place, rows in self.partitions.items()}
        self._starts = dict(self.starts)
        self.stages -= self.removed  # files go when a mark has the removal
        self.removed = set()
        self._stages = set(self.stages)
        self._parts = {stage: set(parts) for stage, parts in self.parts.items()}

    def restart(self) -> None:
        """What only a process knew is gone."""
        self.removed = set()

    def cut_power(self, rng: Random) -> None:
        for place in [*self.partitions]:
            kept = self._synced.get(place)
            if kept is None:
                if rng.random() < 0.5:
                    del self.partitions[place]
                    continue
                kept = 0
            rows = self.partitions[place]
            begun = sum(1 for value, _ in rows if not value)
            del rows[rng.randint(kept, len(rows)) :]
            if len(rows) < begun:  # the file that says where it begins is gone
                rows.clear()
            if rng.random() < 0.5 and self.starts.get(place, 0) > begun:  # what was purged since the mark is back
                self.starts[place] = max(self._starts.get(place, 0), begun)
            if not rows or not self.starts.get(place):
                self.starts.pop(place, None)
        self.starts = {place: start for place, start in self.starts.items() if place in self.partitions}
        self.parts = {stage: set(parts) for stage, parts in self._parts.items()}
        self.stages = {stage for stage in self.stages if stage in self._stages or rng.random() < 0.5}

    def end(self, place: Place) -> tuple[int, bytes]:
        """The next offset and the last link."""
        rows = self.partitions[place]
        return len(rows), rows[-1][1] if rows else b""

    def apply(self, entries: tuple[Entry, ...], fold: Fold) -> None:
        """fold: behind the record that has them."""
        for entry in entries:
            self._apply(entry)
        if any(entry.kind is EntryKind.TOPIC_DELETED for entry in entries):
            self.mark(fold)  # a node that read the deleted topic's batches again would find no place for them

    def _apply(self, entry: Entry) -> None:
        if entry.kind is EntryKind.BATCH:
            self._append((entry.topic_id, entry.partition), entry.body)
        elif entry.kind is EntryKind.TOPIC:
            for partition in range(entry.partition):
                self.partitions.setdefault((entry.topic_id, partition), [])
        elif entry.kind is EntryKind.TOPIC_DELETED:
            self.partitions = {place: rows for place, rows in self.partitions.items() if place[0] != entry.topic_id}
            self.starts = {place: start for place, start in self.starts.items() if place[0] != entry.topic_id}
        elif entry.kind is EntryKind.PURGED:
            self._purge((entry.topic_id, entry.partition), offset_of(entry))
        elif entry.kind is EntryKind.BEGUN:
            self._begin((entry.topic_id, entry.partition), offset_of(entry))
        elif entry.kind is EntryKind.STAGE:
            stage, position, _ = stage_of(entry)
            if stage not in self.stages:
                self.parts.setdefault(stage, set()).add(position)
        elif entry.kind is EntryKind.STAGE_SEALED:
            self._seal(*stage_of(entry)[:2])
        elif entry.kind is EntryKind.STAGES_REMOVED:
            self.removed |= {*removed_of(entry)}

    def _purge(self, place: Place, end: int) -> None:
        if end > len(self.partitions[place]):
            raise Wrong(f"{place} is purged below {end} and has {len(self.partitions[place])}")
        if end:
            self.starts[place] = max(self.starts.get(place, 0), end)

    def _begin(self, place: Place, base: int) -> None:
        rows = self.partitions[place]
        if not rows:
            rows += [(b"", b"")] * base
            self.starts[place] = base
        elif len(rows) < base:
            raise Wrong(f"{place} begins at {base} and has {len(rows)}")

    def _seal(self, stage: str, parts: int) -> None:
        if stage in self.stages:
            return
        if self.parts.pop(stage, set()) != {*range(parts)}:
            raise Wrong(f"stage {stage} is sealed without all of its {parts} parts")
        self.stages.add(stage)

    def _append(self, place: Place, body: bytes) -> None:
        (base,) = _BASE.unpack_from(body)
        found, value = body[_BASE.size : _BASE.size + LINK_BYTES], body[_BASE.size + LINK_BYTES :]
        rows = self.partitions.get(place)
        if rows is None:
            raise Wrong(f"a batch for {place}, which is not there")
        if base < len(rows):
            if rows[base] != (value, found):
                raise Wrong(f"{place} has another batch at offset {base}")
            return
        if base > len(rows):
            raise Wrong(f"{place} has a hole from {len(rows)} to {base}")
        if found != link(rows[-1][1] if rows else b"", base, value):
            raise Wrong(f"{place}: the link at offset {base} does not continue the chain")
        if place[0] == INTENTS and value.decode() not in self.stages:
            raise Wrong(f"an intent names stage {value!r}, which is not there")
        rows.append((value, found))


def truth(wal: list[bytes]) -> Files:
    """What a whole WAL comes to, by the rules as ADR 39 has them."""
    files, highest, in_force, following = Files(), 0, 0, 0
    for data in wal:
        record = _parsed(data)
        if record is None:
            continue
        if record.kind is Kind.CLAIM:
            if record.epoch > highest:
                highest = in_force = record.epoch
                following = 0
        elif record.epoch == in_force and record.sequence == following:
            following += 1
            files.apply(record.entries, Fold())
    return files


def _parsed(data: bytes) -> WalRecord | None:
    try:
        return parse(data)
    except CorruptData:
        return None
