"""Verifies and counts signatures of peerbus envelopes: the values of topics `peerbus/NAME`.

sound     the hmac is that of the shared secret over the envelope's canonical form
forged    a peer sent it, and its hmac is wrong, its id is not its key, it is for another peer, or it is not an envelope; the
          offset of the first one is reported
unsigned  the hmac is empty: its sender has no secret
peer      signed with a key of the peer's own ("kid:hex"), which cannot be verified with the shared secret
other     not an envelope: it was published by another door than peerbus; the broker makes an envelope when it delivers it
"""

from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.model import envelope
from quintet.model.errors import ProtocolError

PREFIX: Final = "peerbus/"
ORIGIN: Final = "peerbus:"  # how the origin of records begins that peers sent
COLUMNS: Final = ("key", "value", "offset", "origin")


class Signatures(msgspec.Struct, frozen=True, array_like=True):
    """How many of each kind. `at` is the offset of the first forged one, or -1."""

    sound: int = 0
    forged: int = 0
    unsigned: int = 0
    peer: int = 0
    other: int = 0
    at: int = -1

    def plus(self, following: "Signatures") -> "Signatures":
        return Signatures(
            self.sound + following.sound,
            self.forged + following.forged,
            self.unsigned + following.unsigned,
            self.peer + following.peer,
            self.other + following.other,
            following.at if self.at < 0 else self.at,
        )


NONE: Final = Signatures()


def judged(batch: pa.RecordBatch, name: str, secret: bytes) -> Signatures:
    """Count the signatures in records of this peer's mailbox, with the columns key, value, offset and origin."""
    counts = dict.fromkeys(("sound", "forged", "unsigned", "peer", "other"), 0)
    at = -1
    columns = (batch.column(each).to_pylist() for each in ("key", "value", "origin", "offset"))
    for key, value, origin, offset in zip(*columns, strict=True):
        kind = judge(key or b"", value or b"", name, secret) if origin.startswith(ORIGIN) else "other"
        counts[kind] += 1
        if kind == "forged" and at < 0:
            at = offset
    return Signatures(**counts, at=at)


def judge(key: bytes, value: bytes, name: str, secret: bytes) -> str:
    """The kind of one record that a peer sent to this peer. Its key must be the envelope's id."""
    try:
        found = envelope.parse(value, strict=False)
    except ProtocolError:
        return "forged"
    if found.id.encode() != key or found.to not in (name, envelope.EVERYONE):
        return "forged"
    if not found.hmac:
        return "unsigned"
    if ":" in found.hmac:
        return "peer"
    return "sound" if envelope.genuine(found, secret, value) else "forged"
