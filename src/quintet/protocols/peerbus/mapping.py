"""peerbus' nouns <-> ours: names <-> mailbox topics, records <-> envelopes with their delivery keys.

A record that came in by this door is its envelope, byte for byte. One that another door put into a mailbox becomes an
envelope made by the broker:

    id "q:IDENTITY:PARTITION:OFFSET"   from "DOOR:CLIENT", as the record's origin   to the mailbox's name   source "quintet"
    body: the value if it is one JSON text, else a JSON string if it is UTF-8, else {"base64":"..."}; of a record whose
    envelope no peer could read, {"too_large":{"topic","partition","offset","bytes"}}: where it is, for another door

IDENTITY is that of the topic: random and made with it, so an id never comes again when a mailbox is deleted and made anew, or
the data folder is. What only the broker may say of itself (such an id, that source, such a `from`) is refused from peers.
"""

import base64
import re
import unicodedata
from collections.abc import Container
from typing import Final

from msgspec import json

from quintet.broker.doors.mailbox import ORIGIN_PREFIX, TOPIC_PREFIX
from quintet.broker.topics.catalog import IDENTITY_BYTES
from quintet.model import envelope
from quintet.model.batch import Header, Row
from quintet.model.errors import BadName, ProtocolError
from quintet.model.strict_json import deeper
from quintet.protocols import records
from quintet.protocols.peerbus import codec, frames

SOURCE: Final = "quintet"
ID_PREFIX: Final = "q:"  # of ids of envelopes that the broker makes
_OWN_ID: Final = re.compile(rf"{ID_PREFIX}[0-9a-f]{{{2 * IDENTITY_BYTES}}}:[0-9]+:[0-9]+")
_LAST_US: Final = (
    253_402_300_799_999_999  # of the year 9999: no later time can be written; times are the publisher's to choose
)
_EVERYONE: Final = b'"*"'  # a broadcast has this in it; whoever spells it otherwise is refused when it comes in
_FORBIDDEN: Final = frozenset("|*/\\")
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def check_peer_name(name: str, doors: Container[str]) -> None:
    """BadName if no peer may have this name. The empty one has its own words and is not judged here. `doors` is what origins
    of records begin with."""
    size = len(name.encode())
    if size > frames.NAME_BYTES_MAX:
        raise BadName(f"a peer name has 1 to {frames.NAME_BYTES_MAX} bytes, this one has {size}")
    if _FORBIDDEN & set(name):
        raise BadName("a peer name has none of | * / and the backslash: they mean something in keys and topics")
    if any(unicodedata.category(letter) in _INVISIBLE for letter in name):
        raise BadName("a peer name has no control or invisible characters")
    first, colon, _ = name.casefold().partition(":")
    if first == SOURCE or (colon and first in doors):
        raise BadName(f"{name!r} is how the broker names who sent by another door: DOOR:CLIENT, or {SOURCE}")
    if name != name.strip() or unicodedata.normalize("NFC", name) != name:
        raise BadName("a peer name is in its one spelling (NFC), without blanks around it")


def is_reserved(id: str, source: str) -> bool:
    """Whether an envelope pretends to be one that the broker made: peers would take the genuine one for a duplicate."""
    return source == SOURCE or (id.startswith(ID_PREFIX) and _OWN_ID.fullmatch(id) is not None)


def is_everyone(to: str, data: bytes) -> bool:
    return to == envelope.EVERYONE and _EVERYONE in data


def own_delivery(row: Row, name: str) -> tuple[str, bytes] | None:
    """(delivery key, envelope) of a record that a peer put into the mailbox of `name`; None: another door did."""
    _, _, key, value, _, _, origin = row
    if key is None or value is None or not origin.startswith(ORIGIN_PREFIX):
        return None
    id = key.decode()
    if _EVERYONE in value and codec.decode(value).to == envelope.EVERYONE:
        return f"{id}|{name}", value
    return id, value


def made_delivery(
    row: Row, identity: str, partition: int, name: str, secret: bytes, bytes_max: int
) -> tuple[str, bytes]:
    """(delivery key, envelope) of any other record there; the topic has this identity. The envelope has at most `bytes_max`
    bytes: what a peer cannot read would be the end of its every connection."""
    offset, timestamp, _, value, headers, _, origin = row
    id = f"{ID_PREFIX}{identity}:{partition}:{offset}"
    sender = origin.decode(errors="replace") or SOURCE
    ts = envelope.rfc3339(min(max(timestamp, 0), _LAST_US))
    size = len(value or b"")
    if size <= bytes_max:
        made = envelope.sign(
            secret, id=id, sender=sender, to=name, ts=ts, body=body_of(value), source=SOURCE, headers=headers
        )
        if len(made) <= bytes_max:
            return id, made
    place = {"topic": TOPIC_PREFIX + name, "partition": partition, "offset": offset, "bytes": size}
    body = json.encode({"too_large": place})
    return id, envelope.sign(secret, id=id, sender=sender, to=name, ts=ts, body=body, source=SOURCE)


def headers_of(text: bytes) -> tuple[Header, ...]:
    """The headers of an envelope, of the text of that member. ProtocolError, or what records.check raises, if no record may
    have them."""
    found = envelope.headers_of(text)
    records.check(found)
    return found


def body_of(value: bytes | None) -> bytes:
    """Any value as one JSON text."""
    if value is None:
        return b"null"
    try:
        if value:
            text = envelope.text(value)
            if not deeper(text, frames.BODY_DEPTH_MAX):
                return text
    except ProtocolError:
        pass  # not JSON: it goes as a string
    try:
        return envelope.string(value.decode())
    except UnicodeDecodeError:
        return b'{"base64":"%b"}' % base64.b64encode(value)
