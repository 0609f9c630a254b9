"""The frames of Felix as data: flags, message types, rights, sizes, codes. No logic.

 0       4         6       8         12
| magic | version | flags | length  | payload |      big-endian; length counts the payload

flags    payload                                                                     who sends it
0x0000   one JSON object; its first field is `type`                                  both
0x0001   str16 tenant, str16 namespace, str16 stream, u32 count, bytes32 * count     client, not answered
0x0009   u64 request_id, u8 ack_mode (1 per message, 2 per batch), then as 0x0001    client, answered by 0x0010
0x0010   u8 status (0 ok, 1 error), u64 request_id, str16 text                       server
0x0004   u32 count, bytes32 * count: events of the stream that the hello named       server
0x0024   u64 base_offset, u32 count, bytes32 * count                                 server
0x0002   u64 subscription_id, then as 0x0004; 0x0022 with offsets                    nobody here; a client knows them
0x0040   on 0x0001, 0x0009: str16 key before the tenant, the key of every message    client
0x0200   on 0x0010 with status 1: u16 code, u8 retry behind the text (errors.py)      server, where the client said so in `auth`
0x1000   on 0x0010 with status 0: u64 offset of the first message behind the text    server, where the client said so in `auth`

Where `auth` says `"quintet":1`, these bits mean something else:

0x0040   on 0x0001, 0x0009, 0x0004, 0x0024: the payload is one zstd frame of it      both, where both said so in `auth`
0x0080   on no frame: in `auth` and `auth_ok` it stands for the messages that are ours (OURS below)
0x0100   on 0x0001, 0x0009: str16 key before the tenant; on 0x0004, 0x0024: before each length u32 size of the key + 1 (0: it
         has none) and the key                                                       both, where both said so in `auth`
0x0400   on 0x0001, 0x0009: a record set in place of count and values; on 0x0004: a record set in place of all, whose numbers are
         the offsets                                                                 both, where both said so in `auth`
"""

import struct
from typing import Final

from quintet.model import limits
from quintet.model.rights import Right

MAGIC: Final = 0x464C5831
VERSION: Final = 1
HEADER: Final = struct.Struct(">IHHI")
LENGTH_AT: Final = 8  # in the header: the bytes behind it, u32

BATCH: Final = 0x0001
EVENTS_OF: Final = 0x0002
EVENTS: Final = 0x0004
ACKED: Final = 0x0008
ACK: Final = 0x0010
OFFSETS: Final = 0x0020
KEYED: Final = 0x0040
ZSTD: Final = 0x0040  # the same bit, for who says QUINTET in `auth`
EXTENDED: Final = 0x0080
KEYS: Final = 0x0100
RECORDS: Final = 0x0400  # key, headers, time and origin of each message (ADR 33)
ACK_CODE: Final = 0x0200
ACK_OFFSET: Final = 0x1000
PUBLISHED_FLAGS: Final = 0x127F  # those of the published client that are known here
SERVER_FLAGS: Final = 0x05FF  # with ours, for who says QUINTET in `auth`
QUINTET: Final = 1
UNSAID_FLAGS: Final = 0x0007  # of a client whose `auth` advertises nothing

# Features: what a published client asks for beyond the document, and by which bit of `server_features` it knows that we serve
# it. A client's own bits (`client_features`) say what it can read.
CACHE_DELETE: Final = 0x0000_0004
CONSUMER_GROUP: Final = 0x0000_0008
STREAM_SHARDS: Final = 0x0000_0020
CACHE_WATCH: Final = 0x0000_0040
CACHE_WATCH_RETAINED: Final = 0x0000_0080
COUNTERS: Final = 0x0000_0100
CACHE_SHARDS: Final = 0x0000_0400
ERROR_CODES: Final = 0x0000_0800
UNSUPPORTED: Final = 0x0000_2000
ACK_ON_COMMIT: Final = 0x0008_0000
CACHE_CONDITIONAL: Final = 0x0200_0000
SERVER_FEATURES: Final = (
    CACHE_DELETE | CONSUMER_GROUP | STREAM_SHARDS | CACHE_WATCH | CACHE_WATCH_RETAINED | COUNTERS | CACHE_SHARDS | ERROR_CODES
    | UNSUPPORTED | ACK_ON_COMMIT | CACHE_CONDITIONAL
)  # fmt: skip

# Message types, each with what it needs. "owner" is a subscription of the same connection; the right to its topic was
# asked for when it was made, and is asked again whenever rights change.
RIGHTS: Final[dict[str, Right]] = {
    "auth": "open",
    "publish": "write",
    "publish_batch": "write",
    "binary batch": "write",  # 0x0001
    "acknowledged batch": "write",  # 0x0009
    "subscribe": "read",
    "cache_put": "write",
    "cache_get": "read",
    "ack": "owner",
    "nack": "owner",
    "working": "owner",
    "credit": "owner",
    "unsubscribe": "owner",
    "cache_delete": "write",
    "cache_incr": "write",
    "cache_get_many": "read",
    "cache_keys": "read",
    "cache_watch": "read",
    "match_topics": "known",  # answered with those that one may subscribe to
    "auth_ok": "server",
    "subscribed": "server",
    "event_stream_hello": "server",
    "event": "server",
    "event_batch": "server",
    "cache_value": "server",
    "cache_ok": "server",
    "publish_ok": "server",
    "publish_error": "server",
    "ok": "server",
    "error": "server",
    "subscribe_cursor_error": "server",
    "cache_conflict": "server",
    "cache_number": "server",
    "cache_values": "server",
    "cache_key_list": "server",
    "cache_event": "server",
    "topic_list": "server",
    "lagged": "server",
    "stream_shards": "read",  # or write: who publishes by key asks for it, too
    "cache_shards": "read",
    "counter_add": "write",
    "counter_get": "read",
    "cache_put_if": "write",
    "cache_delete_if": "write",
    "group_poll": "read",
    "group_ack": "read",
    "group_nack": "read",
    "stream_shards_view": "server",
    "cache_shards_view": "server",
    "counter_value": "server",
    "cache_condition_result": "server",
    "cache_watch_started": "server",
    "group_records": "server",
    "unsupported": "server",
    "publish ack": "server",  # 0x0010
    "binary events": "server",  # 0x0004, 0x0024
}
# Only where both sides said EXTENDED; to anybody else these are unknown.
OURS: Final = frozenset({
    "ack", "nack", "working", "credit", "unsubscribe", "cache_delete", "cache_incr", "cache_get_many", "cache_keys", "cache_watch",
    "match_topics",
})  # fmt: skip
# Only where `auth` has client_features, and then cache_delete and cache_watch too, in a form of their own.
FEATURED: Final = frozenset({
    "stream_shards", "cache_shards", "counter_add", "counter_get", "cache_put_if", "cache_delete_if", "group_poll", "group_ack",
    "group_nack",
})  # fmt: skip
REQUESTS: Final = (
    frozenset({"auth", "publish", "publish_batch", "subscribe", "cache_put", "cache_get"}) | OURS | FEATURED
)  # fmt: skip
NAMES: Final = (
    *REQUESTS, "stream_shards_view", "cache_shards_view", "counter_value", "cache_condition_result", "cache_watch_started",
    "group_records", "unsupported", "binary batch", "acknowledged batch", "auth_ok", "subscribed", "event_stream_hello", "event", "event_batch",
    "cache_value", "cache_ok", "publish_ok", "publish_error", "ok", "error", "subscribe_cursor_error", "cache_conflict",
    "cache_number", "cache_values", "cache_key_list", "cache_event", "topic_list", "lagged", "publish ack", "binary events",
)  # fmt: skip

# The items of kernel.felix_split.
JSON_ITEM: Final = 0
BATCH_ITEM: Final = 1
MALFORMED_ITEM: Final = 2
FLAGS_ITEM: Final = 3
PACKED_ITEM: Final = 4

# Application codes: of the whole connection, and of a stream that was reset.
PROTOCOL_ERROR: Final = 0x46
LIMIT: Final = 0x4C
REVOKED: Final = 0x52

FRAME_BYTES_MAX: Final = 16 * limits.MIB
VALUES_BYTES_MAX: Final = 5 * limits.MIB  # of one cache_get_many, as JSON: 2 ms a MiB to write
JSON_DEPTH_MAX: Final = 32
NAME_BYTES_MAX: Final = 200  # of a tenant, a namespace, a stream, a cache
SUBSCRIPTION_ID_BYTES_MAX: Final = 256  # of a text as an id
TEXT_BYTES_MAX: Final = 1_024  # of what an error says
GROUP_RECORDS_MAX: Final = 256  # claimed by one group_poll
GROUP_WAIT_MS_MAX: Final = 30_000  # that a group_poll may wait for the first
SCANNED_PER_TURN_MAX: Final = 10_000  # keys of a cache, of which a new watcher wants the state
KEYS_MAX: Final = 10_000  # of one cache_get_many, and of one answer to cache_keys
ACK_RECORDS_MAX: Final = 65_536  # settled by one `ack`
ANSWER_BYTES_MAX: Final = limits.MIB  # made from one read; then the peer has to take it first
REPLIES_WAITING_MAX: Final = 10_000  # requests of one stream that wait for the disk; above it, it is not read from
SUBSCRIPTIONS_MAX: Final = 4_096  # of one connection
SCOPES_MAX: Final = 256  # caches that one stream remembers its rights to
TARGETS_MAX: Final = 1_024  # topics that one stream remembers
KEY_BYTES_MAX: Final = 0xFFFF  # of a message, as many as a binary batch can say
KEYED_BYTES_MAX: Final = 32 * limits.MIB  # of the messages of one publish, each with its key
BARRED_TARGETS_MAX: Final = (
    64  # topics that one stream may try to publish to without the right, where nobody waits for an answer
)
ZSTD_BYTES_MIN: Final = 256  # of an event frame's payload: below it, packing does not pay
ZSTD_BYTES_MAX: Final = limits.MIB  # above it, packing would keep the loop too long: 4 to 7 ms a MiB
DELAY_MS_MAX: Final = 30 * 86_400_000  # of a message that is given back
TTL_MS_MAX: Final = 1 << 53  # 285,000 years: what no number of JavaScript exceeds
PARTITION_SHIFT: Final = 48
OFFSET_MASK: Final = (1 << PARTITION_SHIFT) - 1
DEFAULT_SCOPE: Final = ("default", "default", "default")  # of a cache request that names none, as the document's do


class Dialect:
    """How one client wants its events: as JSON, as batches, with offsets, with keys, packed; whether the acknowledgement of
    its publishes says the offset; and whether it knows our messages."""

    __slots__ = (
        "ack_codes", "ack_offsets", "document", "extended", "featured", "features", "key_flag", "keys", "offsets", "versions", "whole",
        "zstd",
    )  # fmt: skip

    def __init__(self, document: bool, flags: int, ours: bool = False, features: int | None = None) -> None:
        """`ours`: it said QUINTET, and the flags mean what we mean by them. `features`: those it knows of (features.py), if
        it said so in `auth`."""
        self.document = document
        self.offsets = bool(flags & OFFSETS)
        self.ack_codes = bool(flags & ACK_CODE) and not ours
        self.ack_offsets = bool(flags & ACK_OFFSET) and not ours
        self.zstd = ours and bool(flags & ZSTD)
        self.extended = ours and bool(flags & EXTENDED)
        self.keys = ours and bool(flags & KEYS)
        self.whole = ours and bool(flags & RECORDS)
        self.featured = features is not None and not ours
        self.features = features or 0 if self.featured else 0
        self.versions = self.extended or bool(self.features & CACHE_CONDITIONAL)  # with the values of caches
        # On a frame of its own. Published clients send it whatever was negotiated.
        self.key_flag = 0 if document else flags & KEYS if ours else KEYED


def most_values(frame_bytes_max: int) -> int:
    """Bytes of all values of one cache_get_many, as JSON."""
    return min(frame_bytes_max // 2, VALUES_BYTES_MAX)
