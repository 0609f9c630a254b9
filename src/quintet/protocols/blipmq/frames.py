"""The frames of BlipMQ as data: types, sizes, texts. No logic.

+------------+---------------+--------------------+---------+
| u32 length | u8 frame_type | u64 correlation_id | payload |    all big-endian; length counts what follows it
+------------+---------------+--------------------+---------+
"""

import struct
from typing import Final

from quintet.model.rights import Right

HELLO: Final = 0x01  # [u16 version]
AUTH: Final = 0x02  # [u16 n][key]
PUBLISH: Final = 0x03  # [u8 qos][u16 n][topic][message]; version 2: qos bit 0x80 = [u32 ttl_ms] follows the qos byte
SUBSCRIBE: Final = (
    0x04  # [u16 n][topic][u8 qos]; version WHOLE: qos bit FROM_START = from the first message that is there
)
ACK: Final = 0x05  # [u64 subscription_id]
NACK: Final = (
    0x06  # [u16 code][u16 n][text]; version OURS, from a client: [u16 word][u64 subscription_id][u32 argument]
)
PING: Final = 0x07  # empty
PONG: Final = 0x08  # empty
POLL: Final = 0x09  # [u64 subscription_id]
DELIVER: Final = 0x0A  # version 2, server to client: [u8 qos][u64 tag][u16 n][topic][message]
RECORDS: Final = 0x0B  # version WHOLE, both ways: [u8 qos][u16 n][topic][record set]
# version WHOLE; a client's: [u64 version][u16 count]([u16 n][pattern])*; a server's: [u64 version][u8 changed][u32 count]([u16 n][topic])*
MATCH: Final = 0x0C

NAMES: Final = {
    HELLO: "HELLO",
    AUTH: "AUTH",
    PUBLISH: "PUBLISH",
    SUBSCRIBE: "SUBSCRIBE",
    ACK: "ACK",
    NACK: "NACK",
    PING: "PING",
    PONG: "PONG",
    POLL: "POLL",
    DELIVER: "DELIVER",
    RECORDS: "RECORDS",
    MATCH: "MATCH",
}

# The words of a client's NACK in version OURS: what it says of a delivery, or of a subscription, without acknowledging.
GIVE_BACK: Final = 1  # correlation id: the tag; argument: milliseconds until it comes again, or DELAY_CONFIGURED
WORKING: Final = 2  # correlation id: the first tag; argument: how many behind each other
CREDIT: Final = 3  # attach; argument: the most that is not acknowledged; answered by ACK [u64 time-out in ms]
GIVE_UP: Final = 4  # correlation id: the tag; argument: 0; it becomes a dead letter now
DELAY_CONFIGURED: Final = 0xFFFFFFFF  # as `delivery.retry_backoff_seconds` says
WORD: Final = struct.Struct(">HQI")

# What a client needs to send it. PONG of a client is passed over, whoever it is; NACK in the published versions, too.
RIGHTS: Final[dict[int, Right]] = {
    HELLO: "open",
    AUTH: "open",
    PUBLISH: "write",
    SUBSCRIBE: "read",
    ACK: "owner",
    NACK: "owner",
    PING: "known",
    PONG: "known",
    POLL: "owner",
    DELIVER: "server",
    RECORDS: "write",
    MATCH: "known",  # answered with those that one may subscribe to
}

MALFORMED: Final = 0  # not a frame: how the kernel marks a payload that does not parse

FRAME_BYTES_MIN: Final = 9  # of the length field: type and correlation id
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
OURS: Final = 0x5102  # version 2 and the words of a consumer; far from the numbers that BlipMQ may give out
WHOLE: Final = 0x5103  # OURS, and records with key, headers, time and origin (ADR 33), and patterns of topics (ADR 34)
VERSIONS: Final = (1, 2, OURS, WHOLE)
TOPIC_BYTES_MAX: Final = 255
RECORDS_TOPIC_AT: Final = 3  # in its payload
RECORDS_OVERHEAD_BYTES: Final = 13 + 3 + TOPIC_BYTES_MAX  # of a RECORDS frame beside its set

HEADER: Final = struct.Struct(">IBQ")
U16: Final = struct.Struct(">H")
U64: Final = struct.Struct(">Q")
ACK_FRAME: Final = struct.Struct(">IBQQ")
NACK_HEAD: Final = struct.Struct(">IBQHH")
FROM_START: Final = 0x80
MATCH_ASKED: Final = struct.Struct(">QH")
MATCH_FOUND: Final = struct.Struct(">QBI")
PUBLISH_HEAD: Final = struct.Struct(">BH")
DELIVER_HEAD: Final = struct.Struct(">BQH")
