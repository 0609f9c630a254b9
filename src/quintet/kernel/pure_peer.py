"""Objects of peerbus in pure Python: reading and writing what is plain. Same results as the native twin.

    {"protocol_version":"v1","type":"ack","id":"KEY"}
    {"protocol_version":"v1","id":"S","from":"S","to":"S","ts":"S","source":"S","kind":"S","body":RAW,"hmac":"S"}
    {"protocol_version":"v1","type":"deliver","delivery_key":"KEY","envelope":ENVELOPE}

Plain is what most clients write: these members in this order, no blanks between them, no escapes in their texts. Whatever else an
object may be is decided by protocols/peerbus, so nothing is ever refused here. No I/O, no clock, no state.
"""

import re

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import SPARSE, head_of, rows, view_of
from quintet.kernel.pure_felix_json import is_sound
from quintet.kernel.pure_ws import TEXT, ws_frame, ws_split

_S = rb'"([^"\\\x00-\x1f]*)"'
_ACK = re.compile(rb'\{"protocol_version":"v1","type":"ack","id":%b\}' % _S)
_ENVELOPE = re.compile(
    rb'\{"protocol_version":"v1","id":%b,"from":%b,"to":%b,"ts":%b,"source":%b,"kind":%b,"body":(.*),"hmac":%b\}'
    % (_S, _S, _S, _S, _S, _S, _S),
    re.DOTALL,
)
_ID_BYTES_MAX = 256
_DEPTH_MAX = 128  # of a body
_OWN_ID = b"q:"  # only the broker may give such ids, and this source
_OWN_SOURCE = b"quintet"
_EVERYONE = b"*"
_BROADCAST = b"broadcast"
_ORIGIN = b"peerbus:"  # of records that came in by this door


def peer_object(data: bytes) -> str | tuple[str, str, str, str] | None:
    acknowledged = _ACK.fullmatch(data)
    if acknowledged is not None:
        return _text(acknowledged[1])
    found = _ENVELOPE.fullmatch(data)
    if found is None:
        return None
    id, sender, to, ts, source, kind, body, _ = found.groups()
    is_id = 1 <= len(id) <= _ID_BYTES_MAX and _is_key(id) and b"|" not in id
    if not is_id or id.startswith(_OWN_ID) or to in (b"", _EVERYONE) or source == _OWN_SOURCE or kind == _BROADCAST:
        return None
    if _text(data) is None or not is_sound(body.decode(), _DEPTH_MAX):
        return None
    return id.decode(), sender.decode(), to.decode(), ts.decode()


def peer_split(
    data: Buffer, start: int, max_bytes: int, frames_max: int
) -> tuple[list[bytes | str | tuple[str, str, str, str, bytes] | tuple[int, bool, bytes]], int, int]:
    items, consumed, fatal = ws_split(data, start, max_bytes, frames_max)
    return [_read(item) if isinstance(item, bytes) else item for item in items], consumed, fatal


def _read(data: bytes) -> bytes | str | tuple[str, str, str, str, bytes]:
    found = peer_object(data)
    return data if found is None else found if isinstance(found, str) else (*found, data)


def peer_deliver(batch: Buffer, first: int, last: int, lines: bool) -> tuple[list[str], bytes] | None:
    found = rows(batch, first, last)
    if head_of(view_of(batch), 0).columns & SPARSE:
        return None
    keys, frames = [], []
    for _, _, key, value, _, _, origin in found:
        if key is None or value is None or not origin.startswith(_ORIGIN):
            return None
        frame = peer_frame(key, value, lines)
        if frame is None:
            return None
        keys.append(key.decode())
        frames.append(frame)
    return keys, b"".join(frames)


def peer_frame(key: bytes, value: bytes, lines: bool) -> bytes | None:
    if not _is_key(key) or b'"*"' in value or (lines and b"\n" in value):
        return None
    said = b'{"protocol_version":"v1","type":"deliver","delivery_key":"%b","envelope":%b}' % (key, value)
    return said + b"\n" if lines else ws_frame(TEXT, said)


def _is_key(text: bytes) -> bool:
    return all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in text)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
