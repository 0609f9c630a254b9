"""The one stub of the kernel: native (`_native`, Rust) and pure (`pure.py`) have exactly these names.

Functions over buffers, no I/O and no state. Batches are laid out as in docs/LOG_FORMAT.md section 3.
"""

from collections.abc import Sequence

from typing_extensions import Buffer

# One column of headers for one record: ((name, value), ...)
Headers = Sequence[tuple[bytes, bytes]]
# (offset, timestamp, key, value, headers, expiry, origin)
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes], ...], int, bytes]

def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of data, continued from value."""

# -- record batches ---------------------------------------------------------------------------------------------------

def build(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    expiries: Sequence[int] | None = None,
    origin: bytes = b"",
    flags: int = 0,
) -> bytearray:
    """An unsealed batch (base_offset, timestamp, crc are zero) of these records. A column that would say nothing (keys
    all None, headers all empty, expiries all 0) is left out."""

def merge(batches: Sequence[Buffer], timestamp: int) -> bytearray:
    """One unsealed batch of the records of several, in order; all must have the same flags and no producer_id.

    Origin dictionaries are united (more than 255 different ones: ValueError). If any batch has a timestamp column, the
    others' records get `timestamp`. SPARSE batches are refused (ValueError)."""

def seal(batch: bytearray, base_offset: int, timestamp: int, seed: int) -> None:
    """Write base_offset, timestamp, max_timestamp and the checksum into an unsealed batch."""

def place(batch: bytearray, base_offset: int, timestamp: int) -> None:
    """As seal, without a checksum: for a batch that stays in memory. `reseal` gives it one when it goes to disk."""

def check(data: Buffer, start: int, seed: int) -> int:
    """Length of the sound batch at `start`, or why there is none: 0 zeros (magic is 0), -1 cut short (the buffer ends
    before the batch does), -2 bad magic or header field, -3 checksum, -4 columns do not add up."""

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
    hvalue_data, timestamps, expiries, deltas, end); 0 where absent. header_count is m. ValueError if it does not add up;
    single entries are checked by `check`, and by `rows` and `blip_deliver` when they use them."""

def rows(batch: Buffer, first: int, last: int) -> list[Row]:
    """Records number first to last-1 of a batch as Python objects: for slow paths only."""

def select(batch: Buffer, keep: Sequence[int]) -> bytearray | None:
    """The batch with only the records whose numbers (rising) are in keep, offsets and times kept (SPARSE; span,
    base_offset and timestamp as before; timestamps unchanged): None if keep is empty. Must be sealed again with
    `reseal`."""

def reseal(batch: bytearray, seed: int) -> None:
    """Write the checksum of a batch whose offsets and times stay as they are: it moves to another segment."""

# -- BlipMQ -----------------------------------------------------------------------------------------------------------

def blip_split(
    data: Buffer, start: int, version: int, max_frame: int, origin: bytes, now: int
) -> tuple[list[tuple[int, ...] | tuple[object, ...]], int, int]:
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
      (type, cid, payload)         any other known frame (1 HELLO, 2 AUTH, 4 SUBSCRIBE, 6 NACK, 7 PING, 8 PONG, and 10
                                   DELIVER when version is 2): payload as bytes
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
