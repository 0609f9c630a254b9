"""Reads anchors: lines that say what the heads of all chains were at certain times, chained by hashes themselves.

Each line is one JSON object, compact, in this order:

    {"seq":7,"time":1763270000000000,"heads":[[16,0,1000,"9f..."]],"gone":[[17,0,500],[18,-1,0]],"prev":"ab..","hash":"cd.."}

heads: topic number, partition, the offset behind the last batch, its link. gone: offsets below the third number were
removed on purpose (retention); partition -1: the whole topic was deleted. prev is the hash of the line before. hash is the
blake3 of everything before `,"hash"`; with a key it is keyed, and a member "key" behind "time" names the key. The broker
writes them (embedded/anchoring.py); this file only reads and never decides what a difference means.
"""

import json
from dataclasses import dataclass, field
from typing import Final

import msgspec
from blake3 import blake3

from quintet.log.embedded.files.disk import Disk

Heads = list[tuple[int, int, int, str]]
Gone = list[tuple[int, int, int]]

ANCHORS_NAME: Final = "anchors"
OLD_SUFFIX: Final = ".old"  # of the file before this one: lines are kept in two files of bounded size
ALL_PARTITIONS: Final = -1
READS_MAX: Final = 3  # of both files: beside a running broker the one becomes the other while they are read
_FIRST_PREV: Final = blake3(b"quintet anchors 1\0").hexdigest()
_HASH: Final = b',"hash":"'
_END: Final = b'"}'


class AnchorsBroken(Exception):
    """A line does not follow from the one before it, or was changed."""


class KeyMissing(Exception):
    """It was made with a key that was not given."""


class Line(msgspec.Struct, frozen=True):
    """One line, of the right shape; whether it says the truth is another question. key: "" without one."""

    seq: int
    time: int
    heads: Heads
    gone: Gone
    prev: str
    hash: str
    key: str = ""


def pack_line(
    seq: int, time: int, heads: Heads, gone: Gone, prev: str, key: bytes = b"", key_name: str = ""
) -> tuple[bytes, str]:
    """One line with its end, and its hash."""
    fields: dict[str, object] = {"seq": seq, "time": time}
    if key:
        fields["key"] = key_name
    fields |= {"heads": heads, "gone": gone, "prev": prev}
    body = json.dumps(fields, separators=(",", ":")).encode()[:-1]
    digest = _digest(body, key)
    return body + _HASH + digest.encode() + _END + b"\n", digest


def _digest(body: bytes, key: bytes) -> str:
    return (blake3(body, key=key) if key else blake3(body)).hexdigest()


_decode = msgspec.json.Decoder(Line).decode


@dataclass(slots=True)
class Anchored:
    """What the lines of one or two files say. `torn`: bytes of an unfinished last line."""

    first_seq: int = 0
    seq: int = -1
    prev: str = _FIRST_PREV
    heads: dict[tuple[int, int], list[tuple[int, str]]] = field(default_factory=dict)
    starts: dict[tuple[int, int], int] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    hashes: dict[int, str] = field(default_factory=dict)
    keyed: bool = False
    torn: int = 0
    damaged: int = 0  # lines that were passed over by a start
    time: int = 0
    _places: dict[int, set[tuple[int, int]]] = field(
        default_factory=dict
    )  # beside a topic's first partition, if it has more

    @property
    def head(self) -> str:
        """SEQ:HASH of the last line; what to write down elsewhere."""
        return f"{self.seq}:{self.prev}" if self.seq >= 0 else ""

    def take(self, line: Line) -> None:
        """In the order of the lines: a topic that is deleted is so until a later line has a head of it."""
        self.seq, self.prev, self.time = line.seq, line.hash, line.time
        self.hashes[self.seq] = self.prev
        self.keyed = self.keyed or bool(line.key)
        for topic_id, partition, next_offset, link in line.heads:
            self.deleted.discard(topic_id)
            if partition:
                self._places.setdefault(topic_id, set()).add((topic_id, partition))
            self.heads.setdefault((topic_id, partition), []).append((next_offset, link))
        for topic_id, partition, start in line.gone:
            if partition == ALL_PARTITIONS:
                self._forget(topic_id)
            else:
                self._places.setdefault(topic_id, set()).add((topic_id, partition))
                known = self.starts.get((topic_id, partition), 0)
                self.starts[topic_id, partition] = max(start, known)

    def _forget(self, topic_id: int) -> None:
        self.deleted.add(topic_id)
        for place in ((topic_id, 0), *self._places.pop(topic_id, ())):
            self.heads.pop(place, None)
            self.starts.pop(place, None)


def parse(data: bytes, into: Anchored, keys: dict[str, bytes] | None, own_keys: dict[str, bytes] | None = None) -> None:
    """Take in the lines of one file. keys None: a line that does not check out is counted and passed over, and one made with
    a key that is not in own_keys is believed (the broker's own start). AnchorsBroken: a line was changed, taken out or put
    in; KeyMissing."""
    lines = data.split(b"\n")
    into.torn = len(lines.pop())
    for number, text in enumerate(lines, 1):
        line = _read(text)
        if keys is None and (line is None or not _is_whole(text, line, own_keys or {})):
            into.damaged += 1
            continue
        if line is None:
            raise AnchorsBroken(f"line {number} is not an anchor")
        if keys is not None:
            _check(text, line, number, into, keys)
        if into.seq < 0:
            into.first_seq = line.seq
        into.take(line)


def _read(text: bytes) -> Line | None:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _is_whole(text: bytes, line: Line, keys: dict[str, bytes]) -> bool:
    """Is its hash right? One bit of a number would move the end of a log."""
    if line.key and line.key not in keys:
        return True
    body, _, ending = text.rpartition(_HASH)
    return ending == line.hash.encode() + _END and _digest(body, keys[line.key] if line.key else b"") == line.hash


def _check(text: bytes, line: Line, number: int, before: Anchored, keys: dict[str, bytes]) -> None:
    body, _, ending = text.rpartition(_HASH)
    if line.key and line.key not in keys:
        raise KeyMissing(f"anchor {line.seq} was made with the key {line.key[:32]!a}")
    if keys and before.keyed and not line.key:
        raise AnchorsBroken(f"line {number}, anchor {line.seq}, was made without the key")
    key = keys[line.key] if line.key else b""
    if ending != line.hash.encode() + _END or _digest(body, key) != line.hash:
        raise AnchorsBroken(f"line {number}, anchor {line.seq}, was changed")
    if before.seq >= 0 and (line.seq != before.seq + 1 or line.prev != before.prev):
        raise AnchorsBroken(f"line {number}, anchor {line.seq}, does not follow anchor {before.seq}")
    if before.seq < 0 and line.seq == 0 and line.prev != _FIRST_PREV:
        raise AnchorsBroken("the first anchor does not begin a chain")


def load(
    disk: Disk, path: str, keys: dict[str, bytes] | None, own_keys: dict[str, bytes] | None = None
) -> Anchored | None:
    """The anchors of a file and of the one before it; None if there are none. Raises as parse."""
    for _ in range(READS_MAX):
        both = [disk.read_file(path + OLD_SUFFIX), disk.read_file(path)]
        if disk.read_file(path + OLD_SUFFIX) == both[0]:
            break
    if both == [None, None]:
        return None
    found = Anchored()
    for data in both:
        parse(data or b"", found, keys, own_keys)
    return found
