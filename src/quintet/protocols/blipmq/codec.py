"""Bytes <-> control frames of BlipMQ, one at a time. Knows no session state.

Publishes, deliveries, acknowledgements and polls come by the thousand and are split and encoded by the kernel
(`blip_split`, `blip_deliver`); what is here is the handshake and the single replies, for both sides.
"""

from collections.abc import Sequence
from typing import NamedTuple

from quintet.model.errors import ProtocolError
from quintet.protocols.blipmq.frames import (
    ACK,
    ACK_FRAME,
    AUTH,
    DELIVER,
    DELIVER_HEAD,
    FRAME_BYTES_MIN,
    HEADER,
    HELLO,
    MATCH,
    MATCH_ASKED,
    MATCH_FOUND,
    NACK,
    NACK_HEAD,
    PING,
    POLL,
    PONG,
    PUBLISH,
    PUBLISH_HEAD,
    RECORDS,
    SUBSCRIBE,
    TOPIC_BYTES_MAX,
    U16,
    U64,
    WORD,
)


class Frame(NamedTuple):
    """One whole frame and where the next one starts."""

    type: int
    correlation_id: int
    payload: bytes
    end: int


def decode(view: memoryview, start: int, frame_bytes_max: int) -> Frame | None:
    """The frame at start, or None if it is not all there yet. ProtocolError before anything is allocated for a lie."""
    if len(view) - start < 4:
        return None
    length = int.from_bytes(view[start : start + 4], "big")
    # Document, "Frame Layout": a length of 0, below 9 or above the largest frame closes the connection.
    if length < FRAME_BYTES_MIN:
        raise ProtocolError(f"frame length {length} is below {FRAME_BYTES_MIN}")
    if length > frame_bytes_max:
        raise ProtocolError(f"frame length {length} is above {frame_bytes_max}")
    # "Frame Types": an unknown one is a decode error, and closes the connection.
    if len(view) - start >= 5 and not 0 < view[start + 4] <= DELIVER:
        raise ProtocolError(f"unknown frame type 0x{view[start + 4]:02x}")
    end = start + 4 + length
    if len(view) < end:
        return None
    _, kind, correlation_id = HEADER.unpack_from(view, start)
    return Frame(kind, correlation_id, bytes(view[start + HEADER.size : end]), end)


def encode(kind: int, correlation_id: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(FRAME_BYTES_MIN + len(payload), kind, correlation_id) + payload


def hello(correlation_id: int, version: int) -> bytes:
    return encode(HELLO, correlation_id, U16.pack(version))


def auth(correlation_id: int, key: bytes) -> bytes:
    return encode(AUTH, correlation_id, U16.pack(len(key)) + key)


def subscribe(correlation_id: int, topic: bytes, qos: int) -> bytes:
    return encode(SUBSCRIBE, correlation_id, U16.pack(len(topic)) + topic + bytes((qos,)))


def poll(correlation_id: int, subscription_id: int) -> bytes:
    return encode(POLL, correlation_id, U64.pack(subscription_id))


def ping(correlation_id: int) -> bytes:
    return encode(PING, correlation_id)


def pong(correlation_id: int) -> bytes:
    return encode(PONG, correlation_id)


def ack(correlation_id: int, subscription_id: int) -> bytes:
    return ACK_FRAME.pack(17, ACK, correlation_id, subscription_id)


def nack(correlation_id: int, code: int, text: str) -> bytes:
    message = text.encode()[:1024]
    return NACK_HEAD.pack(13 + len(message), NACK, correlation_id, code, len(message)) + message


def delivery_head(layout: int, topic: bytes, qos: int, correlation_id: int, size: int) -> bytes:
    """What stands before a message of `size` bytes in the frame that delivers it: PUBLISH in version 1, DELIVER from 2 on,
    whose correlation id is its tag. The kernel writes whole frames; this is for a message that is too large to be copied."""
    if layout == 1:
        kind, head = PUBLISH, PUBLISH_HEAD.pack(qos, len(topic)) + topic
    else:
        kind, head = DELIVER, DELIVER_HEAD.pack(qos, correlation_id, len(topic)) + topic
    return HEADER.pack(FRAME_BYTES_MIN + len(head) + size, kind, correlation_id) + head


def records_head(correlation_id: int, topic: bytes, qos: int, size: int) -> bytes:
    """What stands before a record set of `size` bytes, published or delivered, in version WHOLE. It begins with its length."""
    head = PUBLISH_HEAD.pack(qos, len(topic)) + topic
    return HEADER.pack(FRAME_BYTES_MIN + len(head) + size, RECORDS, correlation_id) + head


def records(correlation_id: int, topic: bytes, qos: int, data: bytes) -> bytes:
    """A frame with a record set."""
    return records_head(correlation_id, topic, qos, len(data)) + data


def match_topics(correlation_id: int, version: int, patterns: Sequence[bytes]) -> bytes:
    """A client's MATCH; a pattern has at most 65,535 bytes here, and fewer at the broker."""
    return encode(MATCH, correlation_id, MATCH_ASKED.pack(version, len(patterns)) + _texts(patterns))


def matched(correlation_id: int, version: int, names: Sequence[bytes] | None) -> bytes:
    """A server's MATCH; None: as at the version that was asked with."""
    head = MATCH_FOUND.pack(version, names is not None, len(names or ()))
    return encode(MATCH, correlation_id, head + _texts(names or ()))


def _texts(texts: Sequence[bytes]) -> bytes:
    return b"".join(U16.pack(len(text)) + text for text in texts)


def word(correlation_id: int, what: int, subscription_id: int, argument: int) -> bytes:
    """A client's NACK of version OURS."""
    return encode(NACK, correlation_id, WORD.pack(what, subscription_id, argument))


# -- payloads: None is "malformed", the caller knows the text ------------------------------------------------------


def parse_hello(payload: bytes) -> int | None:
    """Exactly [u16 version]."""
    return U16.unpack(payload)[0] if len(payload) == 2 else None


def parse_auth(payload: bytes) -> bytes | None:
    """Exactly [u16 n][n bytes of UTF-8]."""
    if len(payload) < 2 or U16.unpack_from(payload)[0] != len(payload) - 2:
        return None
    return payload[2:] if _is_utf8(payload[2:]) else None


def parse_subscribe(payload: bytes) -> tuple[bytes, int] | None:
    """[u16 n][topic][u8 qos]; bytes after it are tolerated, as the reference does."""
    if len(payload) < 3:
        return None
    n = U16.unpack_from(payload)[0]
    if len(payload) < n + 3 or not _is_utf8(payload[2 : 2 + n]):
        return None
    return payload[2 : 2 + n], payload[2 + n]


def parse_records(payload: bytes) -> tuple[int, bytes, memoryview] | int:
    """(qos, topic, record set), or the number of what is wrong, as of a PUBLISH (errors.MALFORMED)."""
    if len(payload) < PUBLISH_HEAD.size:
        return 1
    qos, n = PUBLISH_HEAD.unpack_from(payload)
    end = PUBLISH_HEAD.size + n
    topic = payload[PUBLISH_HEAD.size : end]
    if len(payload) < end or not _is_utf8(topic):
        return 1
    if not topic or qos > 1 or b"\0" in topic or n > TOPIC_BYTES_MAX:
        return 2 if not topic else 3 if qos > 1 else 4 if b"\0" in topic else 5
    return qos, topic, memoryview(payload)[end:]


def parse_match(payload: bytes) -> tuple[int, list[str]] | None:
    """(version, patterns) of a client's MATCH."""
    if len(payload) < MATCH_ASKED.size:
        return None
    version, count = MATCH_ASKED.unpack_from(payload)
    patterns = _parse_texts(payload, MATCH_ASKED.size, count)
    return None if patterns is None else (version, patterns)


def parse_matched(payload: bytes) -> tuple[int, list[str] | None] | None:
    """(version, names or None) of a server's MATCH."""
    if len(payload) < MATCH_FOUND.size:
        return None
    version, changed, count = MATCH_FOUND.unpack_from(payload)
    names = _parse_texts(payload, MATCH_FOUND.size, count)
    return None if names is None else (version, names if changed else None)


def _parse_texts(payload: bytes, at: int, count: int) -> list[str] | None:
    """So many texts of UTF-8, to the last byte."""
    if count * U16.size > len(payload) - at:
        return None
    found: list[str] = []
    for _ in range(count):
        if at + U16.size > len(payload):
            return None
        (size,) = U16.unpack_from(payload, at)
        at += U16.size
        raw = payload[at : at + size]
        if len(raw) < size or not _is_utf8(raw):
            return None
        found.append(raw.decode())
        at += size
    return found if at == len(payload) else None


def parse_nack(payload: bytes) -> tuple[int, str] | None:
    if len(payload) < 4:
        return None
    code, n = U16.unpack_from(payload)[0], U16.unpack_from(payload, 2)[0]
    return (code, payload[4 : 4 + n].decode(errors="replace")) if len(payload) >= 4 + n else None


def parse_word(payload: bytes) -> tuple[int, int, int] | None:
    """(word, subscription id, argument) of a client's NACK of version OURS."""
    return WORD.unpack(payload) if len(payload) == WORD.size else None


def parse_u64(payload: bytes) -> int | None:
    return int(U64.unpack(payload)[0]) if len(payload) == 8 else None


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
