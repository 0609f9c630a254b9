"""Bytes <-> objects of peerbus, one at a time. Knows no session state.

An envelope is never written anew: what is read here only decides where the very bytes go. So two readers must not be
able to see two different messages in them: a member twice, an unknown member (some readers ignore the case of names),
or text that is not UTF-8 is refused. What is written the plain way is recognised by writing it again, which costs less
than looking; everything else is read once more, slowly (model/envelope.py).
"""

from operator import attrgetter
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType, json

from quintet.model import envelope
from quintet.model.errors import ProtocolError
from quintet.model.strict_json import deeper
from quintet.protocols.peerbus import frames


class Frame(msgspec.Struct, rename={"sender": "from"}, gc=False):
    """Any object a peer may send. Members that are not there stay UNSET; `sender` is the member "from"."""

    protocol_version: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    sender: str | UnsetType = UNSET
    to: str | UnsetType = UNSET
    ts: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    body: msgspec.Raw | UnsetType = UNSET
    hmac: str | UnsetType = UNSET
    headers: msgspec.Raw | UnsetType = UNSET
    headers_hmac: str | UnsetType = UNSET
    type: str | UnsetType | None = UNSET
    token: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


_decode: Final = json.Decoder(Frame).decode
_encode: Final = json.Encoder().encode
_NAMES: Final = json.Decoder(dict[str, msgspec.Raw])
_required: Final = attrgetter(*("sender" if name == "from" else name for name in envelope.MEMBERS))


def decode(data: bytes) -> Frame:
    """The object in these bytes. ProtocolError if they are not one JSON object with members of the right types."""
    try:
        if not data.isascii():
            data.decode()
        return _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"not an object of this protocol: {error}") from None


def check_envelope(frame: Frame, data: bytes) -> None:
    """ProtocolError if other readers could see another envelope in these bytes than this one, or fail to read it."""
    if UNSET in _required(frame):  # document, 3: no member is omitted, absent values are explicit
        missing = [name for name, value in zip(envelope.MEMBERS, _required(frame), strict=True) if value is UNSET]
        raise ProtocolError(
            f"an envelope has the members {', '.join(envelope.MEMBERS)}; this one lacks {', '.join(missing)}"
        )
    if frame.type is not UNSET or frame.token is not UNSET or frame.name is not UNSET or _encode(frame) != data:
        envelope.parse(data, strict=False)  # no member twice, none spelled with escapes
        unknown = _NAMES.decode(data).keys() - set(envelope.MEMBERS) - set(envelope.OPTIONAL)
        if unknown:
            raise ProtocolError(f"an envelope has {len(unknown)} members that it should not have")
    if (frame.headers is UNSET) is not (frame.headers_hmac is UNSET):
        raise ProtocolError("headers and headers_hmac are members of an envelope together, or neither is")
    check_depth(data, frames.BODY_DEPTH_MAX + 1)


def check_depth(data: bytes, most: int = frames.BODY_DEPTH_MAX) -> None:
    """ProtocolError if a JSON text is nested deeper than that."""
    if deeper(data, most):
        raise ProtocolError(f"a body is nested more than {frames.BODY_DEPTH_MAX} deep")


def is_id(id: str) -> bool:
    """Whether a message may have this id: it becomes a delivery key, in which | divides id and name."""
    return id != "" and len(id.encode()) <= frames.ID_BYTES_MAX and id.isprintable() and "|" not in id


def deliver(key: str, value: bytes) -> bytes:
    """A deliver frame around the envelope as it is."""
    return b"%b%b%b%b}" % (frames.DELIVER_HEAD, _encode(key), frames.DELIVER_MIDDLE, value)


def peers(names: list[str]) -> bytes:
    return b'{"protocol_version":"v1","type":"peers","names":%b}' % _encode(names)


# -- the client's side ------------------------------------------------------------------------------------------------


def register(token: str, name: str) -> bytes:
    return _encode({"protocol_version": frames.VERSION, "type": frames.REGISTER, "token": token, "name": name})


def ack(key: str) -> bytes:
    return b'{"protocol_version":"v1","type":"ack","id":%b}' % _encode(key)


def ask_peers() -> bytes:
    return b'{"protocol_version":"v1","type":"peers"}'
