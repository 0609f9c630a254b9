"""The one stub of the kernel: native (`_native`, Rust) and pure (`pure.py`) have exactly these functions.

Functions over buffers, no I/O and no state; the classes Tails and CacheMemory, which have state; and in the native one the classes
QuicEndpoint, Sockets and DiskThreads, which have both. Batches are laid out as in docs/LOG_FORMAT.md section 3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from typing_extensions import Buffer

from quintet.kernel.items import (
    BlipHeld,
    BlipItem,
    CacheEntry,
    FastHeld,
    FastItem,
    FelixItem,
    FelixReply,
    FlyGroup,
    FlyHeld,
    FlyItem,
    LentSealed,
    QuicEvent,
    RecordGroups,
    RecordRow,
    RecordsRefused,
    UnwrittenAlone,
    WroteAlone,
)
from quintet.kernel.items import DirectReader as Reader

View = TypeVar("View")
Target = TypeVar("Target")

# What is lent (Tails.lend): topic_id, partition, base, seed and handle of the segment, position, limit, end, last time.
Terms = tuple[int, int, int, int, int, int, int, int, int]
Waiting = tuple[bytearray, int, int, int]  # batch, ticket, number of the group, base
# What was committed since somebody caught up with it, see Tails.catch_up_lent.
LentMoved = tuple[int, int, int, int, int, bytes | None, bool]
# What was recalled, see Tails.recall: not sealed, being written, position, end, last time, link.
Recalled = tuple[list[Waiting], tuple[int, list[bytearray], list[Waiting], bool] | None, int, int, int, bytes | None]
Link = bytes

# One column of headers for one record: ((name, value or None), ...)
Header = tuple[bytes, bytes | None]
Headers = Sequence[Header]
# (offset, timestamp, key, value, headers, expiry, origin)
Row = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...], int, bytes]

def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of data, continued from value."""

# -- record batches ---------------------------------------------------------------------------------------------------

def build(
    values: Sequence[bytes | memoryview | None],
    keys: Sequence[bytes | memoryview | None] | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    expiries: Sequence[int] | None = None,
    origin: bytes = b"",
    flags: int = 0,
) -> bytearray:
    """An unsealed batch (base_offset, timestamp, crc are zero) of these records. A column that would say nothing (keys
    all None, headers all empty, expiries all 0) is left out. Other threads run while one of 1 MiB or more is filled; nobody
    may write to what is viewed."""

def merge(batches: Sequence[Buffer], timestamp: int) -> bytearray:
    """One unsealed batch of the records of several, in order; all must have the same flags and no producer_id.

    Origin dictionaries are united (more than 255 different ones: ValueError). If any batch has a timestamp column, the
    others' records get `timestamp`. SPARSE batches are refused (ValueError)."""

def seal(batch: bytearray, base_offset: int, timestamp: int, seed: int) -> None:
    """Write base_offset, timestamp, max_timestamp and the checksum into an unsealed batch."""

def place(batch: bytearray, base_offset: int, timestamp: int) -> None:
    """As seal, without a checksum: for a batch that stays in memory. `reseal` gives it one when it goes to disk."""

def chain(batch: bytearray, base_offset: int, timestamp: int, seed: int, before: bytes, key: bytes) -> bytes:
    """As seal, for a batch of a chained log: it grows by its link (32 bytes, columns bit 7 CHAIN; one that has a link gets a
    new one), which is returned: blake3 of `before`, the link of the batch before it, and of everything between checksum
    and link, keyed if key has 32 bytes and not if it is empty. A batch over 64 MiB with its link: ValueError, nothing is
    changed."""

def follow(data: Buffer, start: int, stop: int, before: bytes, key: bytes) -> tuple[int, bytes]:
    """(position, link): the links of the batches in data[start:stop], each from the one before it, the first from
    `before`. position is where the first batch begins whose link is not right or that has none, or where there is no whole
    batch (stop, if all are right); link is the last one that was right. Checksums and columns are not looked at: walk
    does that."""

def check(data: Buffer, start: int, seed: int) -> int:
    """Length of the sound batch at `start`, or why there is none: 0 zeros (magic is 0), -1 cut short (the buffer ends
    before the batch does), -2 bad magic or header field, -3 checksum, -4 columns do not add up."""

def segment_head(
    data: Buffer, start: int, stop: int, end: int, topic_id: int, partition: int, name: bytes
) -> tuple[int, int, int, int, bytes] | None:
    """(seed, created, kind of chain, key id, last link) of the segment in data[start:stop] if all is as it should be: a header
    that checks out, of this topic and partition, from offset 0, and zeros from `end` on (counted from start). None if anything is
    not, or if `end` is not in it. The link is that of the last batch, empty without a chain."""

def walk(
    data: Buffer, start: int, stop: int, seed: int, verify: bool
) -> tuple[list[tuple[int, int, int, int, int]], int, int]:
    """([(position, length, base_offset, span, max_timestamp)], end, reason): the batches from start on, while each is
    sound and starts at or after the end of the one before it (offsets never fall). `end` is where walking stopped;
    reason is as from check (0 zeros or reached stop, -1 cut short, -2.., -5 offsets fell). With verify false only
    headers are looked at (no checksum, no columns)."""

def find(data: Buffer, start: int, stop: int, seed: int) -> int:
    """Position of the first sound batch at or after start (8-byte steps), or -1."""

def layout(batch: Buffer, start: int = 0) -> tuple[int, ...]:
    """Where each column is, relative to start: (origin_offsets, origin_data, origin_index, value_bitmap, value_offsets,
    value_data, key_bitmap, key_offsets, key_data, header_lists, header_count, name_offsets, name_data, hvalue_offsets,
    hvalue_data, timestamps, expiries, deltas, hvalue_bitmap, end); 0 where absent. header_count is m. ValueError if it does not add up;
    single entries are checked by `check`, and by `rows` and `blip_deliver` when they use them."""

def rows(batch: Buffer, first: int, last: int, view_above: int = 0) -> list[Row]:
    """Records number first to last-1 of a batch as Python objects: for slow paths only. With `view_above` (not 0) a value
    of more bytes is a memoryview of the batch: a copy of 31 MiB takes 10 ms."""

def select(batch: Buffer, keep: Sequence[int]) -> bytearray | None:
    """The batch with only the records whose numbers (rising) are in keep, offsets and times kept (SPARSE; span,
    base_offset and timestamp as before; timestamps unchanged): None if keep is empty. Must be sealed again with
    `reseal`."""

def reseal(batch: bytearray, seed: int) -> None:
    """Write the checksum of a batch whose offsets and times stay as they are: it moves to another segment."""

# -- Arrow ------------------------------------------------------------------------------------------------------------

def gather(
    data: Buffer,
    start: int,
    stop: int,
    seed: int,
    first: int,
    last: int,
    rows_max: int,
    bytes_max: int,
    columns: int,
    now: int,
) -> tuple[int, tuple[bytes | None, ...], int, int, int]:
    """(count, buffers, position, next_offset, reason): the records first <= offset < last of the batches in
    data[start:stop] as Arrow buffers. Left out are CONTROL batches, and records whose expiry is not 0 and not after `now`
    (0: none is left out for that).

    Batches wholly below `first` are hopped over by their headers, unchecked. Every other one is checked: the checksum with
    `seed` (-1: it comes from memory and has none) and all columns. Ends behind the batch with which there are rows_max
    rows (1 to 2**24) or bytes_max bytes (1 to 2**30) in the columns of bytes that were asked for, a header counting for 8
    more, at a batch that begins at or after `last`, at `stop`, at zeros, or before an unsound batch. reason is as from
    walk: 0, or why it is unsound.
    position is where the next call goes on: behind the last batch of which all was looked at. next_offset is the first
    offset not looked at; `last` when there is nothing more below it. Nothing says whether offsets between batches are
    missing. Before the origins come to over 64 MiB it ends, too, even within a batch.

    columns: bit 0 offset, 1 timestamp, 2 value, 3 key, 4 headers, 5 origin. buffers, each None if it was not asked for, the
    bitmaps also if nothing is null: 0 offset i64, 1 timestamp i64 (microseconds), 2 value bitmap, 3 value offsets i32
    (count + 1, from 0), 4 value bytes, 5 key bitmap, 6 key offsets, 7 key bytes, 8 header list offsets, 9 header name
    offsets, 10 header name bytes, 11 header value offsets, 12 header value bytes, 13 origin offsets, 14 origin bytes, 15 header value bitmap. Names
    and origins are made valid UTF-8: U+FFFD for what is not. Runs without the interpreter lock: data must not change."""

def scatter(
    count: int,
    value: tuple[Buffer | None, Buffer, Buffer],
    key: tuple[Buffer | None, Buffer, Buffer] | None,
    headers: tuple[Buffer, Buffer, Buffer, Buffer, Buffer, Buffer | None] | None,
    timestamps: Buffer | None,
    chosen: Buffer | None,
    partitions: int,
    turn: int,
    origin: bytes,
    flags: int,
    batch_bytes_max: int,
) -> list[tuple[int, bytearray, int]]:
    """[(partition, unsealed batch, its number of rows), ...]: `count` rows of Arrow columns as batches like those of build,
    partitions rising, rows in their order within a partition.

    value and key: (bitmap or None, i32 offsets, bytes); headers: (list offsets, name offsets, name bytes, value offsets,
    value bytes, value bitmap or None). Offsets need not begin at 0, and buffers may be longer than needed. What a null entry spans does not
    count. timestamps: i64, microseconds. chosen: i32, the partition of each row; -1, or chosen None: FNV-1a of the key
    modulo partitions (1 to 65536), and without a key or with an empty one `turn` modulo partitions. A partition out of
    range is a ValueError that names its row. A batch ends before it could pass batch_bytes_max (at most 64 MiB; one row
    always fits) or has 2**20 rows. Runs without the interpreter lock: the columns must not change."""

# -- BlipMQ -----------------------------------------------------------------------------------------------------------

def blip_split(
    data: Buffer,
    start: int,
    version: int,
    max_frame: int,
    origin: bytes,
    now: int,
    sets: dict[bytes, int] | None = None,
) -> tuple[list[BlipItem], int, int]:
    """Split a read into what the session must act on: (items, consumed, fatal).

    items, in wire order, each a tuple that starts with the frame type:
      (3, qos, topic, batch, ids)  publishes to one topic: an unsealed batch (flags AT_MOST_ONCE when qos is 0; expiry
                                   column when a TTL was given: now + ttl) and their correlation ids, packed `<Q`.
                                   Publishes between two other items are grouped by topic, order within a topic kept
                                   (a change of qos starts a new group, and so do 32 MiB or 2**20 records).
      (5, subscription, ranges)    a run of ACK frames for one subscription: ranges is [(first_tag, count), ...]
      (9, subscription, ids)       a run of POLL frames for one subscription: ids is a list of correlation ids
      (0, cid, error)              a malformed PUBLISH, ACK or POLL: error 1 invalid PUBLISH payload, 2 empty topic,
                                   3 invalid QoS value, 4 topic contains NUL byte, 5 topic too long (over 255 bytes),
                                   6 invalid ACK payload, 7 invalid POLL payload, 8 subscription_id must be non-zero (ACK or POLL)
      (11, cid, head, partitions, groups)  a RECORDS frame (version 3) whose head, [u8 qos][u16 n][topic] as on the wire, is in
                                   `sets`, which has the partitions of its topic, and whose record set is sound: groups as of
                                   records_split with partition -1, flags AT_MOST_ONCE when qos is 0
      (type, cid, payload)         any other known frame (1 HELLO, 2 AUTH, 4 SUBSCRIBE, 6 NACK, 7 PING, 8 PONG, 10 DELIVER when
                                   version is 2, and when it is 3 also 11 RECORDS and 12 MATCH): payload as bytes
    HELLO and AUTH (types 1 and 2) end the splitting after them, so that the session's new state counts for what follows.
    consumed: position behind the last whole frame taken. fatal: 0, or 1 length below 9, 2 length above max_frame,
    3 unknown frame type; the items before it are still good. For client-to-server use DELIVER is an unknown type in
    version 1. max_frame is 9 bytes to 32 MiB. Length and type are judged as soon as they are in, so a bad frame is fatal
    before it is whole."""

def blip_deliver(
    version: int,
    topic: bytes,
    qos: int,
    batch: Buffer,
    first: int,
    last: int,
    first_tag: int,
    ids: bytes,
    now: int,
) -> tuple[bytes, int]:
    """Delivery frames for records first..last-1 of a batch: (bytes, frames). Version 1: PUBLISH frames whose correlation
    id is the tag (qos 1) or the next of `ids` (packed `<Q`; qos 0). Version 2: DELIVER frames; tag 0 for qos 0. The tag
    of record i is first_tag + (offset of record i - offset of record `first`). Records whose expiry is not 0 and not
    after `now` are left out. A null value is sent as an empty one. Fewer ids than frames: ValueError."""

def blip_publish(topic: bytes, qos: int, values: Sequence[bytes], first_id: int, ttl_ms: int) -> bytes:
    """PUBLISH frames for a client, correlation ids rising from first_id (not rising when first_id is 0). ttl_ms 0: none;
    otherwise the version 2 TTL form."""

def blip_received(data: Buffer, start: int, max_frame: int) -> tuple[list[tuple[object, ...]], int, int]:
    """Split what a client reads: (items, consumed, fatal). A run of DELIVER or PUBLISH frames of one topic is
    (10 or 3, topic, [(cid, qos, value), ...]); any other known frame is (type, cid, payload). fatal as in
    blip_split, and 4 a malformed DELIVER or PUBLISH payload; consumed is then the start of that frame."""

def blip_append(
    tails: Tails[View],
    routes: Routes[Target],
    data: Buffer,
    start: int,
    version: int,
    max_frame: int,
    origin: bytes,
    now: int,
    sets: dict[bytes, int] | None = None,
    append_sets: bool = True,
) -> tuple[bytes, list[BlipItem], int, int, Target | None, BlipHeld | None]:
    """As blip_split, with what was done at once: (pongs, items, consumed, fatal, topic, held). Publishes to topics that `routes` knows
    and that are there in `tails` are appended (those of QoS 1 only where the route keeps) and PINGs are answered, and neither is
    among the items; until the first item: what comes behind that one comes out, too, so that nothing overtakes it. So are record
    sets whose head is in `sets`, with append_sets. `topic` is the one appended to last, or None.
    So are publishes and record sets (of up to 1 MiB of batches) to partitions in files that are lent and have room. `held` is then
    what is waited for, with the answers to PINGs behind it: see items.BlipHeld; `pongs` come before it."""

# -- the newest part of partitions in memory --------------------------------------------------------------------------

class Routes(Generic[Target]):
    """Topics that one connection may publish to."""
    def __init__(self) -> None: ...
    def add(self, name: bytes, handle: int, topic: Target, keeps: bool) -> None:
        """Publishes to this name may go to the topic of this handle (`Tails.add_topic`), as long as it is there. keeps: also
        those that must be kept and are answered. One more than 20,000 names: all others are forgotten, and asked for again."""
    def clear(self) -> None:
        """Rights may have changed: everything is asked again."""

class CacheMemory:
    """The keys of one cache, each with a row: value, expires (microseconds since 1970, 0: never), used, version (below 2**64). Rows and
    keys that are handed out are copies. Iterating gives the keys there are at that moment, in no order."""
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: bytes) -> bool: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __getitem__(self, key: bytes) -> CacheEntry: ...
    def __setitem__(self, key: bytes, row: CacheEntry) -> None: ...
    def get(self, key: bytes) -> CacheEntry | None:
        """Its row, whether it has expired or not. Not a use."""
    def pop(self, key: bytes) -> CacheEntry:
        """Forget it; KeyError if it is not there."""
    def set_used(self, key: bytes, used: bool) -> bool:
        """What it was before; KeyError if it is not there."""
    def clear(self) -> None: ...
    def items(self) -> list[tuple[bytes, CacheEntry]]: ...

class Tails(Generic[View]):
    """Partitions kept in memory, by number (slot). Batches appended in a turn become visible when it is sealed; all of them
    together, and each for itself, are bounded in bytes, and the oldest go first."""
    def __init__(self, view: Callable[[bytearray], View], bytes_max: int, object_bytes: int, freed_max: int) -> None:
        """view: makes what `read` hands out, once for each batch. object_bytes: what a batch costs beside its bytes. freed_max:
        batches that one call frees."""
    @property
    def bytes(self) -> int:
        """Kept, with what each batch costs beside them."""
    @property
    def dirty(self) -> bool:
        """Is there something to be sealed?"""
    def open(self, bytes_max: int) -> int:
        """A new empty one that keeps about bytes_max; its slot."""
    def close(self, slot: int) -> None:
        """Forget it and all it keeps; a topic it belongs to is closed. The slot may be used again."""
    def add_topic(self, slots: list[int], lent: bool = False) -> int:
        """A topic of these partitions: its handle, which is never used again. lent: the slots are those of `open_lent`."""
    def remove_topic(self, handle: int) -> None:
        """Whoever still has its handle does not reach it."""
    def published(self, handle: int) -> int:
        """Records that doors appended by themselves."""
    def append(self, slot: int, batch: bytearray, waits: bool) -> int:
        """Take an unsealed batch; its base offset. waits: offset and time are read in this very object after `seal`."""
    def seal(self, now: int) -> tuple[list[int], bool]:
        """The end of a turn: what was appended is merged, gets offset and time, and is visible. (slots that are watched and have
        moved, whether `trim` has more to do)"""
    def trim(self) -> bool:
        """Free some of what is over the bound of all, or was closed. True: there is more."""
    def drop_older(self, slot: int, before: int) -> bool:
        """Drop batches all of whose records are older, and what is over the bound of this one. True: there is more."""
    def read(self, slot: int, offset: int, max_bytes: int) -> list[View]:
        """Visible batches from the one that holds offset (or the oldest) on, about max_bytes of them, at least one."""
    def offset_at(self, slot: int, timestamp: int) -> int:
        """Base of the first batch with a record of this time or later; `visible` if there is none."""
    def set_watched(self, slot: int, watched: bool) -> None:
        """Should `seal` name it when it has moved?"""
    def state(self, slot: int) -> tuple[int, int, int, int]:
        """(start, visible, end, bytes)"""
    def take_counts(self) -> tuple[int, int, int, int]:
        """Since the last call: appends, batches, bytes of batches, batches dropped."""
    # Partitions in files. They are lent while nothing about them needs a decision; two ways lead to the disk: by the journal, and
    # inline, without a sync.
    def open_lent(self) -> int:
        """A slot for a partition in files; it is not lent yet."""
    def close_lent(self, slot: int) -> None:
        """Forget it; a topic it belongs to is closed. ValueError if it is lent. The slot may be used again."""
    def lend(self, slot: int, inline: bool, terms: Terms, link: Link, key: Link) -> None:
        """From now on doors may append: from offset `end` on, to bytes `position` to `limit` of the segment. link: of the batch
        before, empty if the log has no chain; key: as in `chain`."""
    def append_lent(self, slot: int, batch: bytearray, now: int, ticket: int) -> int | None:
        """Take an unsealed batch for who waits by this ticket; its base offset, or None if it is not lent or has no room. Like what
        doors append it gets its time now, or that of what is pending."""
    def extend_lent(self, slot: int, limit: int) -> None:
        """The segment may be written up to here."""
    def lent_end(self, slot: int) -> int:
        """The offset that the next append gets."""
    def dirty_lent(self, inline: bool) -> list[int]:
        """Slots with something to be sealed on this way."""
    def seal_lent(self, inline: bool, bytes_max: int, later: int, alone: bool = False) -> LentSealed:
        """(count, places, placed, table, body, unfit, appends): what was appended to `count` slots on this way since the last call, merged,
        with its offsets, links and checksums, to be written now. places are what goes into the segments, of the slots `placed`: those
        whose segment would lack more than `later` bytes, or more than an eighth of that of this call, with what it lacked before; of fewer
        than four inline all. table and body are the entries and the batches of a record of the journal: of all slots, inline of those
        without a place. unfit: slots that have no room for theirs, more than 32 KiB for the journal, or for which `bytes_max` is used up;
        they are to be recalled. alone: all of it goes to the segments and nothing to the journal. ValueError if what was sealed before is
        neither committed nor recalled."""
    def flying_lent(self, inline: bool) -> list[int]:
        """The slots of what was sealed last on this way, in its order, recalled meanwhile or not; none when it is committed."""
    def commit_lent(self, inline: bool, monotonic: int, how: int = 0) -> tuple[list[int], list[int]]:
        """What was sealed last on this way is written: `read_lent` finds it. What was recalled meanwhile is left out, what had no place
        in a segment is late. monotonic: the time, which does not fall. how: 1 if a record of the synced journal has it, 2 if it is
        synced in its segment, with all before it. (low, watched): slots that ended behind what `set_low_lent` said, and those that
        `set_watched_lent` named."""
    def set_watched_lent(self, slot: int, watched: bool) -> None:
        """Shall `commit_lent` name this slot?"""
    def set_low_lent(self, slot: int, low_at: int) -> None:
        """`commit_lent` names it when it ends behind this position. ValueError if it is not lent."""
    def lent_visible(self, slot: int) -> int:
        """The offset behind what is committed. ValueError if it is not lent."""
    def catch_up_lent(self, slot: int) -> LentMoved | None:
        """(position and base offset of the first, greatest time, end, visible, link, synced) of what was committed since the last call;
        None if nothing was. synced: all of it is, in the segment. ValueError if it is not lent."""
    def take_moved(self) -> list[int]:
        """Slots of the journal's way with links that were committed to and not caught up with since, as far as this did not name them."""
    def take_recorded(self) -> list[int]:
        """Slots of which something is in a record of the journal since the last call: to be called before one is closed."""
    def take_late(self, slot: int) -> tuple[int, list[bytearray]]:
        """(position, one buffer or none) of what is committed and not in the segment; from here on it counts as written. ValueError if it is not
        lent."""
    def tardy_lent(self, before: int, most: int) -> list[int]:
        """Slots that had something late at `before` and have it still, the oldest first. Each is named once."""
    @property
    def late_bytes(self) -> int:
        """Of all that is late."""
    def recall(self, slot: int) -> Recalled:
        """It is not lent any more: (what is not sealed, (position, buffers, who waits, whether it goes to the segment now) of what is
        being written or None, position, end, last time, link). ValueError if it is not lent, or something is late or not caught up with."""
    def keep_lent(self, slot: int, batch: bytearray) -> None:
        """Keep a visible batch, the newest of its partition, for `read_lent`; all share one bound, and the oldest go first."""
    def forget_lent(self, slot: int) -> None:
        """Keep nothing of it."""
    def read_lent(self, slot: int, offset: int, max_bytes: int) -> list[View] | None:
        """Kept batches from the one that holds offset on, about max_bytes of them; None if that one is not kept."""
    def set_lending(self, open: bool, bytes_max: int) -> None:
        """May doors append to what is lent? bytes_max: of all that is kept for `read_lent`."""
    @property
    def lent_unsynced(self) -> int:
        """Bytes appended to what is lent and not yet committed."""
    @property
    def lent_bytes(self) -> int:
        """Kept for `read_lent`, with what each batch costs beside them."""

# -- Fast TCP ---------------------------------------------------------------------------------------------------------

def fast_split(
    data: Buffer,
    start: int,
    payload_max: int,
    tokens: dict[bytes, bytes | None],
    topics: dict[int, tuple[int, int]],
    now: int,
    same: bytes | None,
) -> tuple[list[FastItem], int, int, bytes | None, bytes | None]:
    """Split a read into what the session must act on: (items, consumed, fatal, unknown, same). Call again from consumed,
    with the last `same`, until there are no items and nothing unknown.

    same: what a token of no bytes stands for (b"": nothing yet, at most 255 bytes). It follows the packets: one whose token
    is accepted (not None in `tokens`) changes it for those behind, one that is refused does not. Items and `unknown` carry
    the token that is meant. None: a token of no bytes is just that, and nothing is followed.

    items, in wire order, each a tuple that starts with the packet type:
      (3, jwt, topic_id, batch, count)  PUBLISHes with one token to one topic: an unsealed batch with the origin
                                        tokens[jwt]. topics[topic_id] is (batch flags, ttl_us): with a ttl (not 0) every
                                        record expires at now + ttl; an id that is not there has flags 0 and no expiry.
                                        batch is None if tokens[jwt] is None: the token was refused, nothing is built.
                                        PUBLISHes between two other items are grouped by topic, order within a topic kept
                                        (a change of token starts a new group, and so do 32 MiB or 2**20 records).
      (1, jwt, name, flags)             CREATE; name as bytes, unchecked
      (2, jwt, topic_id)                SUBSCRIBE
      (5, jwt, topic_id)                UNSUBSCRIBE
      (7, jwt, topic_id, new_key)       ROTATE_KEY; new_key as bytes, unchecked
      (0x70, version)                   EXTEND
    CREATE, ROTATE_KEY and EXTEND end the splitting after them: what follows may depend on them. A token that is not in
    `tokens` ends it as well: `unknown` is that token, and consumed the start of the first whole packet that carries it;
    the items before it are good. Add it and call again.
    consumed: position behind the last whole packet taken. fatal: 0, or 1 unknown or server-only type, 2 payload above
    payload_max (1 byte to 32 MiB); the items before it are still good. Both are judged as soon as their bytes are in, so
    a bad packet is fatal before it is whole, and before its token is looked up."""

def fast_append(
    tails: Tails[View],
    routes: Routes[Target],
    data: Buffer,
    start: int,
    payload_max: int,
    tokens: dict[bytes, bytes | None],
    topics: dict[int, tuple[int, int]],
    now: int,
    same: bytes | None,
    answered: bool,
) -> tuple[bytes, list[FastItem], int, int, bytes | None, bytes | None, Target | None, FastHeld | None]:
    """As fast_split, with what was done at once: (answers, items, consumed, fatal, unknown, same, topic, held). The PUBLISHes in
    front whose topic and token `routes` knows (by the topic's number in four bytes, big end first, and the token) and that are there
    in `tails` are appended, each answered by OK if `answered`, and are not among the items. `topic` is the one appended to last, or
    None. So are those to partitions in files that are lent and have room. `held` is then what is waited for, with the answers to
    it and to what is behind it: see items.FastHeld; `answers` come before it."""

def fast_deliver(topic_id: int, batch: Buffer, first: int, last: int, now: int) -> tuple[bytes, int]:
    """MESSAGE packets for records first..last-1 of a batch: (bytes, packets). Records whose expiry is not 0 and not after
    `now` are left out. A null value is sent as an empty one."""

def fast_publish(jwt: bytes, topic_id: int, values: Sequence[bytes]) -> bytes:
    """PUBLISH packets for a client. ValueError for a token over 255 bytes or a value over 32 MiB."""

def fast_received(data: Buffer, start: int, payload_max: int) -> tuple[list[tuple[Any, ...]], int, int]:
    """Split what a client reads: (items, consumed, fatal).

      (4, topic_id, [value, ...])             a run of MESSAGEs of one topic
      (6, topic_id, key)                      KEY_UPDATE; key as bytes
      (0x7E, request, topic_id, count)        a run of equal OKs; request is the packet type that is answered
      (0x7F, request, topic_id, code, message)  ERROR; message as bytes
    fatal as in fast_split, where every other type is unknown, and 3 an OK with a code or a message; consumed is then the
    start of that packet."""

# -- FlyMQ ------------------------------------------------------------------------------------------------------------

def fly_split(
    data: Buffer, start: int, max_frame: int, counts: dict[bytes, int], origin: bytes, now: int
) -> tuple[list[FlyItem], int, int, bytes | None]:
    """Split a read into what the session must act on: (items, consumed, fatal, unknown). At most one run of PRODUCE
    frames, then at most one other frame, or one record set alone; call again from consumed until there are no items and
    nothing unknown.

      (1, groups, order)    consecutive sound PRODUCE frames without compression (flags & 0x0E is 0). groups is
                            [(topic, partition, batch, count), ...], each an unsealed batch with `origin`, and with the
                            producer_id and first sequence of an idempotent producer; order is the group number of each
                            record in wire order, packed `<H`.
      (22, groups, order)   a PRODUCE_RECORDS of up to 1 MiB without compression, schema, delay and transaction, whose topic is in
                            counts and has the partition it asks for, and whose set is sound: groups and order as above,
                            by partition as records_split does it. An idempotent producer's is one group with its id
                            and sequence. Any other comes out as the next row says, for the session to judge.
      (op, flags, payload)  any other frame, and a PRODUCE that is compressed, whose payload has over 1 MiB or whose fields
                            do not add up (topic of 1 to 255 bytes, producer_id of 1 to 2**63 - 1). payload is bytes; one
                            of over 1 MiB is a view of `data`. Splitting stops behind it.

    counts tells the partitions of each topic. One that is not in it is `unknown`: consumed is then the start of the
    first frame that names it; add it and call again. 0 partitions: the topic was refused, all its records come in one
    group with partition -1 and no producer. A record belongs to the partition it asks for (sound or not); if it asks for
    -1, to FNV-1a (32 bit) of its key modulo the partitions, or without a key to -1: the session chooses. Records of one
    topic, partition and producer are one group, as long as the producer's sequences rise by one. A run ends before it
    would have over 16 MiB of frames or over 65,535 groups; a group has fewer than 2**20
    records. max_frame, the greatest payload, is 1 byte to 32 MiB. `now` must be microseconds since 1970, and no record
    is given an expiry: PRODUCE has no time to live.

    fatal: 0, or 1 bad magic, 2 unknown version, 3 length above max_frame, each judged as soon as its bytes are in; the
    items before it are still good."""

def fly_append(
    tails: Tails[View],
    routes: Routes[Target],
    data: Buffer,
    start: int,
    max_frame: int,
    counts: dict[bytes, int],
    origin: bytes,
    now: int,
    flags: int,
    append_sets: bool = True,
) -> tuple[bytes | FlyHeld, list[FlyItem], int, int, bytes | None, Target | None]:
    """As fly_split, with what was done at once: (answers, items, consumed, fatal, unknown, topic). A topic that `routes` knows and
    `tails` has open has as many partitions as there; counts is for the others. A run of PRODUCE frames whose
    topics are all known to `routes`, keep and are there in `tails`, with partitions that are there and no idempotent producer, is
    appended and answered as by fly_produced, and is not among the items. Its records get the time `now`, or that of the turn
    if it has one. So are record sets, with append_sets: several that come one behind the other, up to about 1 MiB. The last entry
    is the topic appended to last, or None.
    A run, or with append_sets a record set, with a group that goes to a partition in files which is lent and has room is not among
    the items either. All its groups that need no decision are appended, and instead of answers there is what they wait for: see
    items.FlyHeld. Such a set behind others that are answered is left for the next call."""

def fly_split_one(
    payload: Buffer, counts: dict[bytes, int], origin: bytes
) -> tuple[list[FlyGroup], bytes] | bytes | None:
    """The PRODUCE of this payload, without its header and of any length up to 32 MiB: (groups, order) as fly_split gives
    them, the name of its topic if counts does not have it, None if its fields do not add up. Nothing is copied before the
    topic is known. Other threads run while the key is hashed and the batch is filled; nobody may write to the payload."""

def cell_run(
    kind: int, view: Buffer, position: int, bytes_max: int, count: int, own: int, suffix: bytes, token: bytes
) -> tuple[int, int]:
    """(cell, end) of the publishes behind each other from `position` on that go to one of `count` cells by the hash of their plain
    names; the end is `position`, and the cell -1, if the first frame is none, or not all there. `kind`: 0 BlipMQ of version 1, 1 of
    later ones, 2 FlyMQ, 3 Fast. A name is plain without a slash, two underscores at its start and `suffix` at its end. A PING of
    BlipMQ goes with what is before it. Of Fast only packets with this token count, and for cell `own` those with an empty one."""

def fnv1a(key: Buffer) -> int:
    """FNV-1a, 32 bit; modulo the number of partitions it is the partition of a key. Other threads run while it hashes a
    long one."""

def fly_produced(groups: Sequence[tuple[bytes, int, Buffer | None, bytes]], order: bytes, flags: int) -> bytes:
    """The replies of a run, in its order. A group is (topic, partition, batch, error): with a batch, which is sealed or
    placed by now, the reply to its k-th record is RecordMetadata with base_offset + k and the batch's timestamp in
    milliseconds; without one it is `error`, a whole ERROR frame, for each of its records."""

def fly_fetch(
    batches: Sequence[Buffer],
    offset: int,
    max_records: int,
    max_bytes: int,
    now: int,
    op: int,
    flags: int,
    sdk: bool,
) -> tuple[bytes, int, int]:
    """(whole reply frame, count, next_offset): the records with at least this offset, in the order of the batches, until
    there are max_records or the payload would be over max_bytes (at most 1 GiB; one record is always taken if there is
    one). Those whose expiry is not 0 and not after `now` are left out. next_offset is the first offset that was not looked
    at: behind the last record taken or left out, behind a batch of which all was looked at, or `offset` itself. A null key
    or value has length 0. sdk chooses the layout of the SDKs over that of the document. The batches must not change
    meanwhile: a large reply is written without the interpreter lock."""

def fly_produce(
    topic: bytes,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes],
    partition: int,
    producer_id: int,
    first_sequence: int,
    flags: int,
) -> bytes:
    """PRODUCE frames for a client. producer_id 0: without the suffix of idempotent producers; otherwise sequences rise
    from first_sequence. An empty key is no key on this wire."""

def fly_received(data: Buffer, start: int, max_frame: int, sdk: bool) -> tuple[list[tuple[object, ...]], int, int]:
    """Split what a client reads: (items, consumed, fatal). A run of replies to PRODUCE is
    (1, [(topic, partition, offset, timestamp_ms), ...]), a reply to FETCH or FETCH_BINARY is
    (7 or 11, [(offset, key or None, value), ...], next_offset); any other frame, and a compressed one, is
    (op, flags, payload). fatal as in fly_split, and 4 a reply to PRODUCE or FETCH that does not add up; consumed is then
    the start of that frame. max_frame is 1 byte to 64 MiB."""

# -- Record sets ------------------------------------------------------------------------------------------------------
# Records with key, headers, time and origin, as the extended modes of all doors carry them: pure_records.py draws the bytes.

def records_split(
    data: Buffer, partition: int, partitions: int, origin: bytes, now: int, flags: int = 0
) -> RecordGroups | RecordsRefused:
    """What a publisher sent, as unsealed batches with `origin`: ([(partition, batch, count), ...], order). `partition` is for all
    of them; -1: each by its key, FNV-1a modulo `partitions`, and those without one are a group of partition -1. order
    has of each record the number of its group (u16, little-endian). An empty key is none. A TTL counts from `now`, microseconds
    since 1970; one of 0 is none. flags are those of build.

    If any of it is refused, all is, as (code, record, size): 1 it ends early, 2 bits (size) that a publisher does not set,
    3 no record, 4 over 2**20 records, 5 over 1,000 headers (size), 6 over 64 KiB of headers (size), 7 a name not of 1 to 255
    bytes (size), 8 a name that is not UTF-8, 9 one that begins with quintet- (size: which header). Over 32 MiB: ValueError."""

def records_pack(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes] | None = None,
    ttl_ms: int = 0,
    head: bytes = b"",
    tail: bytes = b"",
    lengths: Sequence[int] = (),
) -> bytes:
    """The record set of a publisher; headers as headers_pack gives them. Limits are the broker's to keep. `head` and `tail` stand
    around it: a whole frame without a copy. The u32 at each of the places `lengths` of the head grows by the size of the set;
    ValueError if it is not in the head, OverflowError if the sum does not fit."""

def headers_pack(given: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]) -> bytes:
    """Headers as a record set has them, with their count; empty if there are none. TypeError for anything else,
    OverflowError if a server would refuse them: too many, too long, a name that is empty, too long or reserved."""

def headers_unpack(data: bytes) -> tuple[tuple[str, bytes | None], ...]:
    """The headers again. U+FFFD stands for what is not UTF-8 in a name. ValueError if they do not add up."""

def records_deliver(
    batch: Buffer, first: int, last: int, now: int, base: int, bytes_max: int
) -> tuple[bytes, int, int]:
    """(set, count, following): records first..last-1 of a batch as a record set, each with the number base + its offset. Those
    whose expiry is not 0 and not after `now` (0: none) are left out. Ends before it would pass bytes_max, but not before its first
    record; following is the number in the batch of the first record that was not looked at."""

def records_received(data: Buffer, qos: int) -> list[RecordRow]:
    """[(number, qos, value, key or None, packed headers, timestamp, origin), ...]: what a server sent. A null value is an empty one.
    ValueError if it does not add up or has over 2**20 records."""

# -- Felix ------------------------------------------------------------------------------------------------------------
# In all of them frame_bytes_max, the greatest payload of a frame, is 1 byte to 32 MiB.

def felix_split(
    data: Buffer, start: int, frame_bytes_max: int, known: int, strict: bool, origin: bytes, now: int, key_flag: int = 0
) -> tuple[list[FelixItem], int, int]:
    """Split a read into what the session must act on: (items, consumed, fatal).

    known: the flag bits that may be on a frame. strict: a frame with another bit is refused; else other bits are masked
    away first. key_flag: which of them says that a batch has a key, 0x0040 (then none is packed) or 0x0100; 0: none does.

    items, in wire order:
      (1, target, batch, count, request_id, ack_mode)  a binary batch (0x0001: request_id -1 and ack_mode 0; 0x0009:
                          ack_mode 1 or 2). target is the wire's bytes: str16 tenant, str16 namespace, str16 stream, each
                          valid UTF-8. batch is unsealed, as build makes it, with `origin`; None if count is 0.
                          Neighbouring 0x0001 frames with one target are one item, until it would have over 32 MiB of
                          values or 2**20 records; 0x0009 is never merged.
                          With a key there is a seventh: the key (bytes), which every record has. Only neighbours with the
                          same key are merged, and the key counts with each value.
      (0, payload)        a JSON frame (flags 0); payload as bytes, unchecked
      (2, code, request_id)  a malformed batch: code 1 ends early, 2 count larger than what follows, 3 bytes behind the end,
                          4 ack mode not 1 or 2, 5 name not UTF-8, 6 over 2**20 records, 7 over 32 MiB with the key. request_id -1 if
                          there is none.
      (3, flags, request_id)  flags (as on the wire) that are not known, or not sensible from a client; request_id of one
                          that is an acknowledged batch beside that, else -1
      (4, flags, payload)  a batch that is still packed: flags 0x0041 or 0x0049, with a key 0x0141 or 0x0149
    consumed: position behind the last whole frame taken. fatal: 0, or 1 bad magic, 2 unknown version, 3 length above
    frame_bytes_max, each judged as soon as its bytes are in; the items before it are still good. `now` must be microseconds
    since 1970; no record is given an expiry."""

def felix_batch(payload: Buffer, flags: int, origin: bytes, now: int) -> FelixItem:
    """The item (1, ...) or (2, ...) of felix_split for the payload (at most 32 MiB) of one batch, already unpacked. flags
    are 0x0001 or 0x0009, with or without 0x0040 and 0x0100 (a key)."""

def felix_gets(
    data: Buffer,
    start: int,
    frame_bytes_max: int,
    scopes: dict[bytes, CacheMemory],
    now: int,
    bytes_max: int,
    versions: bool,
) -> tuple[bytes, int, int, int]:
    """Answer the run of whole JSON `cache_get` frames (flags 0) at start: (reply frames, consumed, hits, misses).

    scopes: tenant NUL namespace NUL cache (b"": a get without these three) -> the cache's memory. A hit sets used to True. An entry that has expired (0 < expires <= now) is a miss,
    and its value null. Fields may be in any order, white space is allowed, request_id is text or a whole number below 2**64
    and echoed as it came. With `versions` a hit has "version" at the end.
    It ends before the first frame that is not a plain get: something else, an escape, a field that is unknown, doubled, of
    the wrong type or missing, invalid UTF-8, a scope that is not in scopes, an answer over frame_bytes_max; and when the
    reply has bytes_max (at least 1)."""

def felix_append(
    tails: Tails[View],
    handle: int,
    target: bytes,
    data: Buffer,
    frame_bytes_max: int,
    origin: bytes,
    now: int,
    offsets: bool,
) -> tuple[bytes, int, int, bool] | None:
    """Append a read that is nothing but acknowledged publishes to one topic in memory, each a batch of its own, as felix_split and `build`
    make it: (answers, bytes of the batches, the last request_id, whether that publish came as JSON). The turn is to be sealed
    (`Log.tails_appended`), then the answers are true. target: the names of the topic as 0x0009 has them; handle: its Tails.add_topic.
    offsets: each answer has the offset of its first record, and the records have the time `now`.

    Publishes are 0x0009 without another flag, with at least one value; and JSON (flags 0) with type, tenant_id, namespace, stream, payload,
    request_id (a whole number below 2**64) and ack (per_message or per_batch), each once, in any order, without escapes, and
    nothing else. None, and nothing is appended: something else is in data, a frame is not whole or malformed, another target, or the handle is not that of
    an open topic in memory."""

def felix_deliver(
    batch: Buffer, first: int, last: int, now: int, offsets: bool, high: int, frame_bytes_max: int, keys: bool = False
) -> tuple[bytes, int, list[tuple[int, int, int]]]:
    """Event frames 0x0004 for records first..last-1 of a batch: (bytes, events, omitted). Records whose expiry is not 0 and not
    after `now` are left out; a null value is sent as an empty one. With offsets 0x0024, whose base offset has the bits of
    `high` set: a gap in the offsets begins a new frame. With keys, if the batch has any, 0x0104 or 0x0124: each value is
    behind its key. A frame ends before it would pass frame_bytes_max; a record that alone is longer is not in `bytes` but in
    `omitted`: (where in `bytes` it would stand, its number in the batch, the bytes its frame would have)."""

def felix_events(
    batch: Buffer, first: int, last: int, now: int, target_json: bytes, frame_bytes_max: int
) -> tuple[bytes, int, list[tuple[int, int, int]]]:
    """The same records as JSON frames: (bytes, events, omitted). `event` if one is in it, else `event_batch`: at most 64, and
    at most 64 KiB or frame_bytes_max of JSON; an event longer than 64 KiB has a frame of its own, and one longer than
    frame_bytes_max is in `omitted`. target_json are the fields behind "type", such as b'"tenant_id":"t","namespace":"n","stream":"s"'."""

def felix_publish(
    target: bytes,
    values: Sequence[bytes],
    request_id: int,
    ack_mode: int,
    key: bytes | None = None,
    key_flag: int = 0x0100,
) -> bytes:
    """One batch of a client: a frame 0x0001 (request_id -1 and ack_mode 0) or 0x0009 (ack_mode 1 or 2). target as in
    felix_split. With a key (at most 65,535 bytes) the frame has key_flag, 0x0040 or 0x0100, too. ValueError for over 2**20
    values or a payload over 32 MiB."""

def felix_received(data: Buffer, start: int, frame_bytes_max: int) -> tuple[list[FelixReply], int, int]:
    """Split what a client reads: (items, consumed, fatal).

      (4, subscription_id or -1, base_offset or -1, [value, ...])  events: 0x0002, 0x0004, 0x0022 or 0x0024;
                                                                   with 0x0100 a fifth: [key or None, ...]
      (0x10, status, request_id, message)                          the acknowledgement of a batch; message as str
      (0, payload)                                                 a JSON frame
      (0x40, flags, payload)                                       events that are still packed: flags 0x0044, 0x0064, 0x0144, 0x0164
    fatal as in felix_split, 4 a payload that does not add up (or has over 2**20 values), and 5 flags that no server may
    send; consumed is then the start of that frame."""

def json_fault(data: Buffer, depth_max: int) -> int:
    """What is wrong with a text, by the first fault in it: 0 nothing, 1 not one JSON object (RFC 8259) of UTF-8 with white
    space around it at most, 2 a duplicate key in an object (escapes are resolved), 3 deeper than depth_max (1 to 10,000;
    objects and arrays count, the outermost is 1), 4 more than 1,024 keys in an object, 5 more than 50,000 values, or more
    than 500,000 escapes in strings. Half of a surrogate pair is not UTF-8. Time is linear; other threads run while much is
    scanned, and must not write to it."""

def json_head(data: Buffer, depth_max: int) -> tuple[int, bytes]:
    """What json_fault finds, and the text that is the value of the object's own key "type": empty if there is a fault, no
    such key, another kind of value, or more than 64 bytes."""

def json_shape(data: Buffer) -> tuple[int, int]:
    """(values, depth) of a JSON text, sound or not: at most that many values are in it (one, and one for each comma and
    opening bracket outside of strings), nested that deep. Time is linear, and other threads run as in json_fault."""

# -- WebSocket --------------------------------------------------------------------------------------------------------

def ws_split(
    data: Buffer, start: int, max_bytes: int, frames_max: int
) -> tuple[list[bytes | tuple[int, bool, bytes]], int, int]:
    """Split what a WebSocket client sent: (items, consumed, fatal). A whole text message is its bytes; any other frame is
    (opcode, last, payload), opcode 0 continuation, 1 text (not the last piece), 2 binary, 8 close, 9 ping, 10 pong. Masks
    are taken off, UTF-8 is not looked at. Ends after frames_max frames (0: no limit).

    fatal: 0, or 1 a frame that RFC 6455 forbids a client (unknown opcode, reserved bits, no mask, a control frame in pieces
    or above 125 bytes), 2 a payload above max_bytes (1 byte to 1 GiB); each judged as soon as its bytes are in, before the
    payload. The items before it are still good, and consumed is the start of that frame."""

def ws_frame(opcode: int, payload: bytes) -> bytes:
    """A whole message from the server: its head, without a mask, and the payload. opcode: 0 to 15."""

# -- peerbus ----------------------------------------------------------------------------------------------------------

def peer_object(data: bytes) -> str | tuple[str, str, str, str] | None:
    """The object in one message of a peer, if it is plain (pure_peer.py draws it): of an `ack` the delivery key; of an envelope (id,
    from, to, ts). None: anything else, whether it is good or not; whoever asks has to look by itself.

    Of such an envelope everything is judged that can be told from its bytes: UTF-8, sound JSON without a name twice and at most 128 deep in the
    body, all nine members and no other, an id of 1 to 256 bytes of printable ASCII without | that only the broker would
    give, no source that only the broker has, and one recipient: neither `to` nor `kind` is that of a broadcast."""

def peer_split(
    data: Buffer, start: int, max_bytes: int, frames_max: int
) -> tuple[list[bytes | str | tuple[str, str, str, str, bytes] | tuple[int, bool, bytes]], int, int]:
    """As `ws_split`, and what is plain in it is read as `peer_object` does: of an `ack` the item is its delivery key, of an envelope (id, from, to,
    ts, its bytes)."""

def peer_deliver(batch: Buffer, first: int, last: int, lines: bool) -> tuple[list[str], bytes] | None:
    """Records first to last-1 of a mailbox: (their delivery keys, their deliver frames), as WebSocket text messages or as lines. None if one of
    them did not come in by this door, may be a broadcast, or cannot stand in its frame as it is, or if offsets are
    missing between them: whoever asks has to look at each."""

def peer_frame(key: bytes, value: bytes, lines: bool) -> bytes | None:
    """The deliver frame of one record that came in by this door, of its key and value: what `peer_deliver` makes of a batch with it alone. None:
    whoever asks has to look at it."""

# -- QUIC -------------------------------------------------------------------------------------------------------------

class QuicEndpoint:
    """One UDP socket that speaks QUIC, with a network thread of its own. In the native kernel only: `kernel.QuicEndpoint` is
    None in the pure one, and net/quic/twin.py has the same class on aioquic.

    No call waits for the network, except `close`; all are made by one thread, that of the loop. A connection is a number
    above 0 that this endpoint never uses again, a stream is its QUIC stream id. Without `certificate` the endpoint is a
    client. TLS 1.3 only, no 0-RTT, no tickets; no ALPN is asked for, and any that a client offers is taken. Certificates
    and keys are PEM texts.

    take() gives these events:

        (1, connection, peer)               CONNECTED: the handshake is done; peer is "ip:port" or "[ip]:port"
        (2, connection, stream, data, fin)  DATA: what was there of one stream; the first of a stream of the peer's announces it
        (3, connection, stream)             WRITABLE: queued is write_low or less, after it was above write_high
        (4, connection, stream, code)       STOPPED: the peer takes no more; what was queued is dropped, no SENT follows
        (5, connection, stream, code)       RESET: the peer gave its side up
        (6, connection, code, reason)       CLOSED: the last of a connection; code is -1 if no application closed it
        (7, connection, stream)             SENT: all of an ended stream is acknowledged, or it was reset here

    After a failure of the network thread all connections are CLOSED with its reason, and then every call raises
    RuntimeError."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        certificate: bytes = b"",
        key: bytes = b"",
        client_ca: bytes = b"",
        streams_max: int = 1024,
        uni_max: int = 0,
        idle_ms: int = 30_000,
        keep_alive_ms: int = 0,
        connections_max: int = 10_000,
        half_open_max: int = 1_000,
        retry_above: int = 100,
        stream_window: int = 1_048_576,
        connection_window: int = 4_194_304,
        send_window: int = 4_194_304,
        write_high: int = 262_144,
        write_low: int = 65_536,
    ) -> None:
        """Raises ValueError for certificates that cannot be used, OSError if the address cannot be bound. streams_max and
        uni_max: streams a peer may have open at once. Above half_open_max unfinished handshakes, or connections_max in all,
        new ones are refused; from retry_above unfinished ones on, a peer must first prove its address."""
    @property
    def address(self) -> tuple[str, int]:
        """As bound."""
    def fileno(self) -> int:
        """Readable while events wait."""
    def take(self, bytes_max: int) -> list[QuicEvent]:
        """Events in order, until they carry about bytes_max of data (one DATA has at most 4 MiB). At most 8 MiB wait here;
        then no stream is read, and the peers' windows fill up."""
    def hold(self) -> None:
        """A turn of the loop begins: what it does is for `flush`, which must come at its end, whatever happens; then its
        calls wake nobody one by one. An endpoint that is used this way may give the loop's thread work of the network thread
        to do, in `take` and `flush`, while there is little of it. Without `hold` every call is seen to at once."""
    def flush(self) -> None:
        """The end of what `hold` began. Little output is sent before it returns, more by the network thread."""
    def send(self, connection: int, stream: int, data: list[bytes], end: bool) -> int:
        """Queue bytes, long ones by reference; end: FIN behind them. Gives the bytes of this stream that QUIC has not taken
        yet, or -1 if the connection is gone or the stream cannot be written to (any more)."""
    def queued(self, connection: int, stream: int) -> int:
        """Bytes of this stream that QUIC has not taken yet, or -1 if there is no such stream."""
    def open(self, connection: int, bidirectional: bool) -> int:
        """The id of a new stream, which is opened when the peer's limit allows it; -1 if the connection is gone."""
    def pause(self, connection: int, stream: int, paused: bool) -> None:
        """Stop or go on reading a stream. What was read already still comes."""
    def reset(self, connection: int, stream: int, code: int) -> None:
        """RESET_STREAM: give up our sending side. SENT follows."""
    def stop(self, connection: int, stream: int, code: int) -> None:
        """STOP_SENDING: no more DATA or RESET of this stream comes."""
    def shut(self, connection: int, code: int, reason: bytes) -> None:
        """CONNECTION_CLOSE at once; queued data is lost. CLOSED follows."""
    def set_certificate(self, certificate: bytes, key: bytes, client_ca: bytes) -> None:
        """For new connections. Raises ValueError saying what is wrong; the old one stays then."""
    def set_accepting(self, accepting: bool) -> None:
        """Refuse new connections, or let them in again."""
    def connect(self, host: str, port: int, server_name: str, ca: bytes, certificate: bytes, key: bytes) -> int:
        """A connection as client: CONNECTED or CLOSED follows, and streams may be opened at once. host is an IP address or
        localhost. ca b"": the roots of this system; certificate b"": none is shown."""
    def figures(self) -> dict[str, int]:
        """accepted, refused, retries, half_open, connections (established), datagrams_in, datagrams_out, bytes_in,
        bytes_out, wakeups (of the loop)."""
    def close(self) -> None:
        """Close all connections, tell the peers, and wait for the thread to end."""

# -- sockets ----------------------------------------------------------------------------------------------------------

class DirectReader:
    """What a session has learnt, for `Sockets` to take its reads by (kernel/src/direct.rs). In the native kernel on Linux only. Arguments as
    of blip_append, fly_append and fast_append."""

    @property
    def seen(self) -> int:
        """The date of the last read; before it, and from `until` on, it takes none."""

    @staticmethod
    def blip(
        tails: Tails[View],
        routes: Routes[Target],
        layout: int,
        frame_bytes_max: int,
        origin: bytes,
        sets: dict[bytes, int],
        append_sets: bool,
    ) -> DirectReader: ...
    @staticmethod
    def fly(
        tails: Tails[View],
        routes: Routes[Target],
        frame_bytes_max: int,
        counts: dict[bytes, int],
        origin: bytes,
        append_sets: bool,
    ) -> DirectReader: ...
    @staticmethod
    def fast(
        tails: Tails[View],
        routes: Routes[Target],
        payload_bytes_max: int,
        tokens: dict[bytes, bytes | None],
        topics: dict[int, tuple[int, int]],
        same: bytes | None,
        answered: bool,
        seen: int,
        until: int,
    ) -> DirectReader: ...

class Sockets:
    """Sockets of TCP connections, waited for together (kernel/src/sockets.rs). In the native kernel on Linux only: elsewhere
    `kernel.Sockets` is None. All calls are made by the thread of the loop, and none of them waits but `next`, for the disk. An owner is what Python has for a
    connection; an id is good until `remove`."""

    def __init__(self, view: memoryview, high: int, low: int) -> None:
        """`view`: of the bytes that reads for readers go to. `high`, `low`: the marks of unsent output."""

    def fileno(self) -> int:
        """Readable when a socket has something."""

    def add(self, handle: int, owner: object) -> int: ...
    def remove(self, id: int) -> None:
        """Forget it. Its descriptor is the caller's to close; what its reads appended stays appended, and is answered to nobody."""

    def set_reading(self, id: int, reading: bool) -> None: ...
    def allow(self, id: int, reader: Reader | None, epoch: int, owed: bool) -> bool:
        """Reads may be taken by this reader while the epoch is this one. None: not any more. So it is also as soon as `next` has named its
        owner. owed: the owner has answers to send first, and says when it has none. Is more unsent now than the high mark?"""

    def wait(self) -> int:
        """A pass begins: how many sockets have something."""

    def next(
        self, now: int, epoch: int, direct: bool, may: int = -2, bytes_max: int = 0
    ) -> tuple[Any, int, Any, bool] | None:
        """Take reads until one comes that Python has to act on: (owner, size, split, measured). None: the pass is over. size > 0: so much
        was read into the view, and the session's own call gave `split`. -1: it is to be read. -2: its output fell to the low
        mark, or it cannot be sent to. -3: its reader raised `split`. Not `direct`: every socket is Python's to read. may: what a read
        appended to one partition in files, and not more than bytes_max, is written and committed before its answer is sent (kernel/src/alone.rs): to
        this slot of `Tails`, with a sync, or to any that needs none; -1: only to one that needs none; -2: not here."""

    def passed(self) -> tuple[int, int, bool, int, int, WroteAlone | None, UnwrittenAlone | None]:
        """What was appended since the last call: (number, reads, whether to memory topics, ticket, ways, ...). ways is not 0: part of it is in
        files. `ticket` stands for all of it at the log, and `release(number)` must follow when that is durable. Last, what `next` wrote
        by itself, which is answered; or what it could not, which is among the ways. To be called before Python does anything else."""

    def release(self, number: int) -> tuple[list[Any], list[Any]]:
        """Send the answers: (slots of what was taken over, owners with more unsent than the high mark)."""

    def owner_of(self, ticket: int) -> Any | None:
        """Whose read with this ticket is not answered and not taken over."""

    def slot_of(self, ticket: int) -> Any | None:
        """The slot that the read with this ticket was taken over by."""

    def unanswered(self, id: int) -> list[Any]:
        """Take over what is not answered, in its order: for `adopt` of the session (protocols/base.py::Direct). `adopted` must follow."""

    def adopted(self, id: int, slots: Sequence[Any | None]) -> None:
        """What `adopt` gave for each."""

    def send(self, id: int, data: Buffer) -> int:
        """How much is unsent then; -1: it cannot be sent to any more. What is unsent is held, not copied, and may not be written to."""

    def send_all(self, id: int, pieces: Sequence[Buffer]) -> int: ...
    def unsent(self, id: int) -> int:
        """As `send` gives it."""

    def moved(self, id: int) -> tuple[int, int]:
        """Bytes that readers took, and those of their answers."""

    def recv(self, id: int, view: memoryview) -> int | None:
        """Bytes read, 0 at the end, minus an errno; None: there is nothing now."""

# -- disk -------------------------------------------------------------------------------------------------------------

class DiskThreads:
    """Threads that write and sync files and never touch the interpreter. In the native kernel on Linux only: elsewhere
    `kernel.DiskThreads` is None. All calls are made by the thread of the loop."""

    def __init__(self, threads: int) -> None: ...
    def fileno(self) -> int:
        """Readable when there is something to `take`."""

    def submit(
        self,
        ticket: int,
        before: Sequence[tuple[int, Sequence[Buffer], int]],
        handle: int,
        buffers: Sequence[Buffer],
        position: int,
    ) -> None:
        """In a thread: pwritev to each (handle, buffers, position) of `before`, pwritev of the buffers, fdatasync of handle. The
        buffers cannot be resized until `take` names the ticket, and nobody may write to them. Jobs begin in their order; those
        of one file must not be under way together."""

    def take(self) -> list[tuple[int, int, int]]:
        """(ticket, step, errno) of what is done. errno 0: all of it. Otherwise the step that failed, counted from 0: each of
        `before`, the write, the sync; of a failed write any part may be there, and nothing behind it was tried."""

    def close(self) -> None:
        """Finish what was submitted, end the threads."""
