"""Packs and parses the records of a cell's write-ahead log (WAL). Knows bytes only; which records count is fold.py's affair.

    0       4     8         9      10       12      16      24         32
    | magic | crc | version | kind | node   | count | epoch | sequence | instance (8) | node's name | entries ...

    entry   0      4        8          12          16
            | kind | length | topic_id | partition | body ...

The checksum covers everything behind it. `node` is the length of the name, `count` the number of entries. `sequence` numbers the
data records of one epoch from 0. `instance` is random for each start of a process: a claim of the process before is not its own.

A version is raised when an older build could not do the right thing with a record. The leader writes the newest version that all nodes
it knows can read (`Replica.version`), so what a version adds is written only from then on.

One data record holds all that one turn wrote, in order. A record without entries renews the lease (a heartbeat). A claim may have
one entry: the address that its node advertises.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict
from enum import IntEnum
from typing import Any, Final, NamedTuple

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.model import limits
from quintet.model.errors import CorruptData, StorageError

VERSION: Final = 1  # the newest that this build reads and writes
VERSION_OLDEST: Final = 1  # that it writes, for nodes that are not upgraded yet
VERSION_AT: Final = 8  # of a record's bytes
NODE_BYTES_MAX: Final = 255
RECORD_BYTES_MAX: Final = limits.BATCH_BYTES_MAX + limits.MIB  # one batch of any size; of small ones many
INSTANCE_BYTES: Final = 8
_MAGIC: Final = b"QWL1"
_HEADER: Final = struct.Struct("<4sIBBHIQQ8s")
_ENTRY: Final = struct.Struct("<B3xIII")
_U32: Final = struct.Struct("<I")
_OFFSET: Final = struct.Struct("<Q")
_STAGE: Final = struct.Struct("<QB")  # position, or size; length of the id, which follows
_CHECKED_FROM: Final = 8  # the checksum covers the rest
assert _HEADER.size == 40
assert _ENTRY.size == 16


class Kind(IntEnum):
    CLAIM = 1
    DATA = 2


class EntryKind(IntEnum):
    BATCH = 1  # a batch with offset, time and link; its checksum has the seed of the leader's segment and is made anew
    TOPIC = 2  # the whole spec of a topic that was made or changed
    TOPIC_DELETED = 3
    STAGE = 4  # bytes of the file of a stage, and where they belong
    STAGES_REMOVED = 5
    STAGE_SEALED = 6  # all of its file was shipped: an intent may name it from here on
    PURGED = 7  # what a partition has below an offset is gone
    BEGUN = 8  # a partition that was in memory is durable from this offset on: it has nothing before it
    ADVERTISED = 9  # in a claim: the host by which others reach the node
    RELEASED = 10  # the last entry of a leader: it answers nobody any more, so nobody need wait out its lease
    PLACED = 11  # how topics are shared out among cells, and where an operator wants this one


class Entry(NamedTuple):
    """One thing that a turn wrote."""

    kind: EntryKind
    topic_id: int
    partition: int
    body: bytes


class WalRecord(NamedTuple):
    """One record of the WAL. A claim has sequence 0, and no entry but an address."""

    kind: Kind
    epoch: int
    sequence: int
    node: str
    instance: bytes
    entries: tuple[Entry, ...] = ()


class Placement(NamedTuple):
    """What the WAL says of where its cell belongs. Only with several cells."""

    layout: str  # number of cells and places of prefixes: the same on all nodes
    node: str = ""  # where an operator moved it; empty: where it falls by itself
    avoided: tuple[str, ...] = ()  # nodes that are drained


_KINDS: Final = {int(kind): kind for kind in Kind}
_ENTRY_KINDS: Final = {int(kind): kind for kind in EntryKind}


class WalError(StorageError):
    """What is wrong with the WAL, or with the way to it. Its text begins with its code: docs/CLUSTER.md says what to do for each."""

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"


class NewerRecord(WalError):
    """A record of a later version: this node cannot know what it changes, so it reads no further."""

    code = "E1510"


class OtherLayout(WalError):
    """This node would look for topics in other cells than the WAL has them in."""

    code = "E1519"


def pack(record: WalRecord, version: int = VERSION_OLDEST) -> bytes:
    node = record.node.encode()
    if len(node) > NODE_BYTES_MAX:
        raise ValueError(f"the node's name has {len(node)} bytes, the limit is {NODE_BYTES_MAX}")
    fields = (record.kind, len(node), len(record.entries), record.epoch, record.sequence, record.instance)
    parts: list[bytes] = [_HEADER.pack(_MAGIC, 0, version, *fields), node]
    for kind, topic_id, partition, body in record.entries:
        parts += (_ENTRY.pack(kind, len(body), topic_id, partition), body)
    data = bytearray(b"".join(parts))
    _U32.pack_into(data, 4, kernel.crc32c(memoryview(data)[_CHECKED_FROM:]))
    return bytes(data)


def digest(data: bytes) -> int:
    """Tells one record from another: its header has the checksum of all of it, and who wrote it when. 0 is no record's."""
    return kernel.crc32c(data[: _HEADER.size]) or 1


def parse(data: bytes, newest: int = VERSION) -> WalRecord:
    """newest: the newest version that is read. Raises CorruptData for what no node of a cell wrote, NewerRecord for what a later version did."""
    if len(data) < _HEADER.size or data[:4] != _MAGIC:
        raise CorruptData(f"{len(data)} bytes in the WAL are no record of a cell")
    _, crc, version, kind, length, count, epoch, sequence, instance = _HEADER.unpack_from(data)
    if crc != kernel.crc32c(memoryview(data)[_CHECKED_FROM:]):
        raise CorruptData("a record of the WAL has a wrong checksum")
    if version > newest or kind not in _KINDS:
        raise NewerRecord(
            f"a record of the WAL has version {version} and kind {kind}; this node reads versions up to {newest}",
            hint="upgrade this node: it stops here and loses nothing",
        )
    at = _HEADER.size + length
    node = data[_HEADER.size : at].decode()
    entries: list[Entry] = []
    for _ in range(count):
        number, size, topic_id, partition = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if number not in _ENTRY_KINDS:
            raise NewerRecord(f"an entry of the WAL has kind {number}", hint="upgrade this node")
        entries.append(Entry(_ENTRY_KINDS[number], topic_id, partition, data[at : at + size]))
        at += size
    return WalRecord(_KINDS[kind], epoch, sequence, node, instance, tuple(entries))


def entry_bytes(entry: Entry) -> int:
    """How much a record grows by an entry."""
    return _ENTRY.size + len(entry.body)


def batch(topic_id: int, partition: int, sealed: bytes) -> Entry:
    return Entry(EntryKind.BATCH, topic_id, partition, sealed)


def topic(spec: TopicSpec) -> Entry:
    return Entry(EntryKind.TOPIC, spec.id, 0, json.dumps(asdict(spec), separators=(",", ":")).encode())


def spec_of(entry: Entry) -> TopicSpec:
    return TopicSpec(**json.loads(entry.body))


def topic_deleted(topic_id: int) -> Entry:
    return Entry(EntryKind.TOPIC_DELETED, topic_id, 0, b"")


def stages_removed(ids: Sequence[str]) -> Entry:
    return Entry(EntryKind.STAGES_REMOVED, 0, 0, "\n".join(ids).encode())


def stage_part(id: str, position: int, data: bytes) -> Entry:
    return Entry(EntryKind.STAGE, 0, 0, _STAGE.pack(position, len(id)) + id.encode() + data)


def stage_sealed(id: str, size: int) -> Entry:
    return Entry(EntryKind.STAGE_SEALED, 0, 0, _STAGE.pack(size, len(id)) + id.encode())


def stage_of(entry: Entry) -> tuple[str, int, bytes]:
    """(id, position, bytes) of a part; (id, size, nothing) of the entry that seals a stage."""
    position, length = _STAGE.unpack_from(entry.body)
    at = _STAGE.size + length
    return entry.body[_STAGE.size : at].decode(), position, entry.body[at:]


def removed_of(entry: Entry) -> list[str]:
    return entry.body.decode().split("\n")


def purged(topic_id: int, partition: int, end: int) -> Entry:
    return Entry(EntryKind.PURGED, topic_id, partition, _OFFSET.pack(end))


def begun(topic_id: int, partition: int, base: int) -> Entry:
    return Entry(EntryKind.BEGUN, topic_id, partition, _OFFSET.pack(base))


def offset_of(entry: Entry) -> int:
    """Of a partition that was purged, or begun."""
    return int(_OFFSET.unpack(entry.body)[0])


def advertised(host: str) -> Entry:
    return Entry(EntryKind.ADVERTISED, 0, 0, host.encode())


def host_of(claim: WalRecord) -> str:
    """What the node of a claim advertises; "" if it does not."""
    return next((entry.body.decode() for entry in claim.entries if entry.kind is EntryKind.ADVERTISED), "")


def released(successor: str) -> Entry:
    """successor: who shall claim at once; empty: anybody."""
    return Entry(EntryKind.RELEASED, 0, 0, successor.encode())


def successor_of(record: WalRecord) -> str | None:
    """Whom the leader named when it left; None: it did not leave."""
    found = (entry.body.decode() for entry in record.entries if entry.kind is EntryKind.RELEASED)
    return next(found, None)


def placed(placement: Placement) -> Entry:
    return Entry(EntryKind.PLACED, 0, 0, json.dumps(placement._asdict(), separators=(",", ":")).encode())


def placement_of(said: dict[str, Any]) -> Placement:
    return Placement(said["layout"], said["node"], tuple(said["avoided"]))
