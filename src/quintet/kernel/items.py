"""Types of what the kernel's splitters hand to sessions: tuples whose first entry says which one it is.

`_native.pyi` says what they mean. They stay plain tuples: a class of its own for each would cost the splitters more than the
sessions gain, which unpack them into names at once.
"""

from typing import Any, Literal, Protocol

BlipPublish = tuple[Literal[3], int, bytes, bytearray, bytes]  # qos, topic, batch, ids
BlipAcks = tuple[Literal[5], int, list[tuple[int, int]]]  # subscription, ranges of tags
BlipPolls = tuple[Literal[9], int, list[int]]  # subscription, ids
BlipMalformed = tuple[Literal[0], int, int]  # id, error
BlipFrame = tuple[Literal[1, 2, 4, 6, 7, 8, 10, 11, 12], int, bytes]  # id, payload
BlipRecords = tuple[
    Literal[11], int, bytes, int, list[tuple[int, bytearray, int]]
]  # id, head, partitions, (partition, batch, count) of each
# What the kernel appended to partitions in files: ticket, (ids to refuse it by, packed `<Q`, none for QoS 0; pongs behind it) of each
# group or set, ways as of FlyHeld
BlipHeld = tuple[int, list[tuple[bytes, bytes]], int]
BlipItem = BlipRecords | BlipPublish | BlipAcks | BlipPolls | BlipMalformed | BlipFrame
# What blip_append gives; fly_append and fast_append have the like
BlipSplit = tuple[bytes, list[BlipItem], int, int, Any, BlipHeld | None]

FastPublish = tuple[Literal[3], bytes, int, bytearray | None, int]  # token, topic, batch, count
FastCreate = tuple[Literal[1], bytes, bytes, int]  # token, name, flags
FastSubscribe = tuple[Literal[2, 5], bytes, int]  # token, topic; 5 is UNSUBSCRIBE
FastRotate = tuple[Literal[7], bytes, int, bytes]  # token, topic, the new key
FastExtend = tuple[Literal[0x70], int]  # version
FastRecords = tuple[Literal[0x71], bytes, int, bytes]  # token, topic, record set
# What the kernel appended to partitions in files, and to memory behind that: ticket, the answers to all of it, (topic, count) of each
# group, ways as of FlyHeld. count is 0 if nobody waits to hear of it: it is neither answered nor to be kept
FastHeld = tuple[int, bytes, list[tuple[int, int]], int]
FastItem = FastRecords | FastPublish | FastCreate | FastSubscribe | FastRotate | FastExtend
FastSplit = tuple[bytes, list[FastItem], int, int, bytes | None, bytes | None, Any, FastHeld | None]

FlyGroup = tuple[bytes, int, bytearray, int]  # topic, partition, batch, count
FlyRun = tuple[Literal[1], list[FlyGroup], bytes]  # groups, the group of each record
FlyRecords = tuple[Literal[0x16], list[FlyGroup], bytes]  # the same of one record set
FlyFrame = tuple[int, int, bytes | memoryview]  # operation, flags, payload
FlyItem = FlyRun | FlyRecords | FlyFrame
FlyPlaced = tuple[bytes, int, bytearray, bytes]  # topic, partition, batch, error: a group as fly_produced takes it


class FlyAppended(Protocol):
    """What the kernel tells of a run that it appended to partitions in files."""

    @property
    def answers(self) -> bytes | None:
        """To all of it, with the offsets and times it will have, or None if groups were left. Not to be used if one came back."""

    @property
    def order(self) -> bytes:
        """The group of each record."""

    def groups(self) -> list[FlyPlaced]: ...


# A run of PRODUCE frames, or a record set, of which the kernel appended groups to partitions in files: ticket, the run, (number, count)
# of the groups that it left, ways (1: by the journal, 2: inline, 3: both), operation
FlyHeld = tuple[int, FlyAppended, list[tuple[int, int]], int, int]
FlySplit = tuple[bytes | FlyHeld, list[FlyItem], int, int, bytes | None, Any]

LentPlace = tuple[int, list[bytearray], int]  # handle, buffers, position
# What was sealed of partitions in files, see Tails.seal_lent: count, places, placed, table, body, unfit, appends.
LentSealed = tuple[int, list[LentPlace], list[int], bytes, bytes, list[int], int]
# What the kernel wrote by itself for a read that was alone: slot, seconds of write and sync (None: it needs no sync), low, watched, appends.
WroteAlone = tuple[int, float | None, list[int], list[int], int]
# What it did not: what was sealed, or None and the slots without room for it; the step that failed (0: write, 1: sync) and its errno.
UnwrittenAlone = tuple[LentSealed | None, list[int], int, int]


class DirectReader(Protocol):
    """What a session gives the kernel to take reads by (kernel.DirectReader, where there is one)."""

    @property
    def seen(self) -> int:
        """The date of the last read."""


RecordGroups = tuple[
    list[tuple[int, bytearray, int]], bytes
]  # (partition, batch, count) of each, the group of each record
RecordsRefused = tuple[int, int, int]  # code, record, size
# number, qos, value, key, packed headers, timestamp, origin
RecordRow = tuple[int, int, bytes, bytes | None, bytes, int, bytes]

FelixBatch = tuple[Literal[1], bytes, bytearray | None, int, int, int]  # target, batch, count, request_id, ack_mode
FelixKeyed = tuple[Literal[1], bytes, bytearray | None, int, int, int, bytes]  # the same, and the key of all records
FelixJson = tuple[Literal[0], bytes]  # payload
FelixMalformed = tuple[Literal[2], int, int]  # error, request_id
FelixFlags = tuple[Literal[3], int, int]  # flags, request_id
FelixPacked = tuple[Literal[4], int, bytes]  # flags, payload
# An entry of a cache, as kernel.CacheMemory keeps it: value, expires in microseconds since 1970 (0: never), whether it was used
# since the hand of SIEVE passed, version.
CacheEntry = tuple[bytes, int, bool, int]
# What a server sends a client.
FelixEvents = tuple[Literal[4], int, int, list[bytes]]  # subscription or -1, base offset or -1, values
FelixKeyedEvents = tuple[Literal[4], int, int, list[bytes], list[bytes | None]]  # the same, and their keys
FelixAck = tuple[Literal[0x10], int, int, str]  # status, request_id, message
FelixPackedEvents = tuple[Literal[0x40], int, bytes]  # flags, payload
FelixRecords = tuple[Literal[0x400], int, bytes]  # flags, record set; made of a packed one, or one as it came
FelixReply = FelixRecords | FelixEvents | FelixKeyedEvents | FelixAck | FelixJson | FelixPackedEvents
FelixItem = FelixBatch | FelixKeyed | FelixJson | FelixMalformed | FelixFlags | FelixPacked

QuicEvent = tuple[Any, ...]  # kind, number of the connection, and what net/quic/events.py says of the kind
# As a socket gives it: two parts, or four of IPv6. The last is what Python says where it was built without IPv6.
SocketAddress = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]
