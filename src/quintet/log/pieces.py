"""Splits the verification of an audit chain into pieces for several processes: prepare, follow, join.

A piece is one segment file. Its header has the link before its first batch, so it can be followed without the files before it
(chain.py); joining asks whether each file begins where the one before it ended. All of it together says what
chain.verify_directory says, but for naming: a batch that was put in or taken out at the very edge of a file is named by
the edge. Reads only.

    prepare  keys and anchors, then plan: all files, in order, each with the heads that anchors claim in it     where it begins
    follow   one file: the work                                                    anywhere
    join     begins and ends, partition by partition                               where it began
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import msgspec

from quintet.log import anchors, chain
from quintet.log.anchors import Anchored, AnchorsBroken, KeyMissing
from quintet.log.chain import Break, CannotCheck, Head, Keys, PartitionVerdict, genesis
from quintet.log.embedded.files.disk import Disk, OsDisk
from quintet.log.embedded.files.packs import with_packs
from quintet.log.embedded.files.segment import segment_name
from quintet.log.embedded.recovery.directories import partitions, segment_bases
from quintet.model.errors import DataDirError


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """One file to be followed. `last`: the one that may be being written."""

    directory: str
    topic_id: int
    partition: int
    base: int
    last: bool
    size: int
    heads: tuple[Head, ...]


class Followed(msgspec.Struct, frozen=True, array_like=True):
    """What one file came to. `broken` has the fields of chain.Break. `gone`: it was removed before it could be followed."""

    topic_id: int
    partition: int
    base: int
    next_offset: int = 0
    rows: int = 0
    size: int = 0
    keyed: bool = False
    begins: bytes = b""
    ends: bytes = b""
    tail: int = 0
    anchored: int = 0
    broken: tuple[str, int, int, int, str, str] | None = None
    cannot: str = ""
    gone: bool = False


@dataclass(slots=True)
class Chains:
    """What is to be followed of a folder, and what it comes to. Without anything to follow there may be a verdict already."""

    folder: str
    pieces: list[Piece] = field(default_factory=list)
    keys: Keys = field(default_factory=dict)
    anchored: Anchored | None = None
    partitions: list[PartitionVerdict] = field(default_factory=list)
    broken: list[Break] = field(default_factory=list)
    cannot: str = ""

    def conclude(self, followed: Iterable[Followed]) -> None:
        """All pieces were followed."""
        if self.broken or self.cannot:
            return
        try:
            self.partitions = join(self.folder, self.pieces, followed, self.anchored)
        except CannotCheck as error:
            self.cannot = str(error)
            return
        self.broken = [each.broken for each in self.partitions if each.broken is not None]
        chained = any(each.rows for each in self.partitions)
        if self.keys and not self.broken and chained and not any(each.keyed for each in self.partitions):
            self.broken = [Break(self.folder, 0, 0, 1, "rewritten", "nothing here was made with the key")]

    @property
    def ok(self) -> bool:
        return not self.broken and not self.cannot

    @property
    def notes(self) -> list[str]:
        """What is to be said."""
        if self.cannot:
            return [f"the chains cannot be checked: {self.cannot}"]
        if self.broken:
            return [f"chain broken: {each}" for each in self.broken]
        rows = sum(each.rows for each in self.partitions)
        files = sum(each.segments - each.unchained for each in self.partitions)
        said = f"chains: {rows} records in {files} files follow from each other"
        if self.anchored is None or not self.anchored.head:
            return [f"{said}; there are no anchors to hold them to"]
        heads = sum(each.anchored for each in self.partitions)
        return [f"{said}, and agree with {heads} anchored heads; the last anchor is {self.anchored.head}"]


def prepare(folder: str, anchor_file: str = "", secret: bytes = b"", disk: Disk | None = None) -> Chains:
    """What is to be followed of a data folder. `anchor_file`: if it is not in the folder; `secret`: what the key file holds."""
    disk = disk or OsDisk()
    if not disk.is_dir(f"{folder}/topics"):
        raise DataDirError(f"{folder} is not a data folder of Quintet: there is no folder 'topics' in it")
    key = chain.derive_key(secret) if secret else b""
    found = Chains(folder, keys={chain.key_id(key): key} if key else {})
    try:
        named = {chain.key_name(key): key} if key else {}
        path = anchor_file or f"{folder}/{anchors.ANCHORS_NAME}"
        found.anchored = anchors.load(disk, path, named)
        if anchor_file and found.anchored is None:
            found.cannot = f"there are no anchors in {anchor_file}"
        else:
            found.pieces = plan(disk, folder, found.anchored)
            _pardon(found.anchored, anchors.load(disk, path, named))
    except KeyMissing as error:
        found.cannot = str(error)
    except AnchorsBroken as error:
        found.broken = [Break("the anchors", 0, 0, 1, "rewritten", str(error))]
    return found


def _pardon(anchored: Anchored | None, later: Anchored | None) -> None:
    """What a running broker removed while the files were listed is noted by now."""
    if anchored is not None and later is not None:
        anchored.starts = later.starts
        anchored.heads = {place: heads for place, heads in anchored.heads.items() if place[0] not in later.deleted}


def plan(disk: Disk, directory: str, anchored: Anchored | None) -> list[Piece]:
    """All files there are. Read the anchors before: then what they claim must be in the files."""
    pieces = []
    disk = with_packs(disk)
    for topic_id, number, path in sorted(partitions(disk, directory)):
        bases = segment_bases(disk, path)
        heads = _heads(anchored, topic_id, number)
        for place, base in enumerate(bases):
            last = place == len(bases) - 1
            claimed = tuple(
                head
                for head in heads
                if (head[0] > base or (place == 0 and head[0] == base)) and (last or head[0] <= bases[place + 1])
            )
            pieces.append(Piece(path, topic_id, number, base, last, _size(disk, path, base), claimed))
    return pieces


def _heads(anchored: Anchored | None, topic_id: int, partition: int) -> list[Head]:
    return [] if anchored is None else anchored.heads.get((topic_id, partition), [])


def _size(disk: Disk, path: str, base: int) -> int:
    try:
        handle = disk.open(f"{path}/{segment_name(base)}")
    except FileNotFoundError:
        return 0
    try:
        return disk.size(handle)
    finally:
        disk.close(handle)


def follow(piece: Piece, keys: Keys, disk: Disk | None = None) -> Followed:
    """The work. Raises nothing that a file could cause."""
    disk = disk or OsDisk()
    place = (piece.topic_id, piece.partition, piece.base)
    try:
        found = chain.verify_segment(
            disk, piece.directory, piece.topic_id, piece.partition, piece.base, piece.last, keys, piece.heads
        )
    except FileNotFoundError:
        return Followed(*place, gone=True)
    except CannotCheck as error:
        return Followed(*place, cannot=str(error))
    except OSError as error:
        return Followed(*place, cannot=f"{piece.directory}/{segment_name(piece.base)}: {error.strerror or error}")
    one, broken = found.followed, found.followed.broken
    return Followed(
        *place,
        next_offset=one.next_offset,
        rows=one.rows,
        size=one.size,
        keyed=one.keyed,
        begins=found.begins,
        ends=found.ends,
        tail=one.tail,
        anchored=one.anchored,
        broken=None
        if broken is None
        else (broken.file, broken.position, broken.first, broken.last, broken.kind, broken.what),
    )


def join(
    directory: str, pieces: Sequence[Piece], followed: Iterable[Followed], anchored: Anchored | None
) -> list[PartitionVerdict]:
    """What each partition comes to. CannotCheck: a key is missing, or files went while they were followed."""
    found = {(each.topic_id, each.partition, each.base): each for each in followed}
    verdicts = []
    for (topic_id, number), group in groupby(pieces, lambda piece: (piece.topic_id, piece.partition)):
        verdicts.append(_partition(list(group), found, anchored, PartitionVerdict(topic_id, number)))
    seen = {(each.topic_id, each.partition) for each in pieces}
    wanted = set() if anchored is None else anchored.heads.keys()
    for topic_id, number in sorted(wanted - seen):
        assert anchored is not None
        last = anchored.heads[topic_id, number][-1][0]
        if last > anchored.starts.get((topic_id, number), 0):
            lost = Break(
                f"{directory}/topics/{topic_id:08d}/{number}",
                0,
                0,
                last,
                "truncated",
                "an anchor says that they were there",
            )
            verdicts.append(PartitionVerdict(topic_id, number, broken=lost))
    return verdicts


def _partition(
    pieces: list[Piece],
    found: dict[tuple[int, int, int], Followed],
    anchored: Anchored | None,
    verdict: PartitionVerdict,
) -> PartitionVerdict:
    before: Followed | None = None
    verdict.start = pieces[0].base
    start = 0 if anchored is None else anchored.starts.get((verdict.topic_id, verdict.partition), 0)
    if _heads(anchored, verdict.topic_id, verdict.partition) and pieces[0].base > start:
        path = f"{pieces[0].directory}/{segment_name(pieces[0].base)}"
        verdict.broken = Break(path, 0, start, pieces[0].base, "missing", "the log began earlier when it was anchored")
    for piece in pieces:
        one = found[piece.topic_id, piece.partition, piece.base]
        path = f"{piece.directory}/{segment_name(piece.base)}"
        if one.cannot:
            raise CannotCheck(one.cannot)
        if one.gone:
            raise CannotCheck(f"{path} went while it was to be followed: run it again")
        verdict.segments += 1
        verdict.unchained += not one.begins
        verdict.rows += one.rows
        verdict.size += one.size
        verdict.anchored += one.anchored
        verdict.keyed = verdict.keyed or one.keyed
        verdict.next_offset, verdict.link, verdict.tail = one.next_offset, one.ends, one.tail
        if verdict.broken is None:
            verdict.broken = _edge(piece, path, before, one) or (Break(*one.broken) if one.broken else None)
        before = one
    return verdict


def _edge(piece: Piece, path: str, before: Followed | None, one: Followed) -> Break | None:
    """Does a file go on where the one before it ended?"""
    base = piece.base
    chained = one.begins or (before is not None and before.ends)
    if chained and before is not None and before.broken is None and before.next_offset != base:
        first, behind = sorted((before.next_offset, base))
        kind = "missing" if base > before.next_offset else "inserted"
        return Break(path, 0, first, behind, kind, f"the file before it ends at offset {before.next_offset}")
    if before is None or before.broken is not None:
        return None
    if before.ends and not one.begins and one.next_offset > base:
        return Break(path, 0, base, base + 1, "unchained", "batches without links behind chained ones")
    if before.keyed and one.begins and not one.keyed:
        return Break(path, 0, base, base + 1, "rewritten", "made without the key, behind what was made with it")
    expected = before.ends or genesis(piece.topic_id, piece.partition)
    if one.begins and one.begins != expected:
        return Break(path, 480, base, base + 1, "rewritten", "the file does not continue what is before it")
    return None
