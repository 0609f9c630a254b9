"""Packs and parses what nodes say to each other: frames, the greeting, what a node knows of itself. Knows bytes only.

    frame   0        4      5
            | length | kind | body ...        length: of kind and body, little-endian

    HELLO   both sides, first: JSON of `Hello`        REFUSED  a sentence; the connection ends
    WHO     empty; answered by STATUS                 STATUS   JSON of `NodeSaid`
    COPY    empty; answered by FILE, DATA ..., DROPPED, at the end COPIED or REFUSED (copying.py)
    PLACE   JSON of `PlaceAsked`; answered by STATUS or REFUSED

Both sides say the protocol versions they speak in HELLO, and speak the newest they share. What a later version adds to JSON is
passed over. Before a peer has proved who it is, a frame has at most CONTROL_BYTES_MAX.
"""

import re
import struct
from enum import IntEnum
from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from quintet.model import limits
from quintet.model.errors import QuintetError

PROTOCOL_OLDEST: Final = 1
PROTOCOL_NEWEST: Final = 1
CONTROL_BYTES_MAX: Final = 64 * limits.KIB
DATA_BYTES_MAX: Final = limits.MIB
NODES_MAX: Final = 64  # that one node knows
_HEAD: Final = struct.Struct("<IB")
_KIND_BYTES: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # as cell.node

S = TypeVar("S", bound=msgspec.Struct)
Count = Annotated[
    int, msgspec.Meta(ge=0, le=(1 << 63) - 1)
]  # what a node says is bounded before anybody reckons with it
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class Kind(IntEnum):
    HELLO = 1
    REFUSED = 2
    WHO = 3
    STATUS = 4
    COPY = 5
    FILE = 6
    DATA = 7
    DROPPED = 8
    COPIED = 9
    PLACE = 10


class PeerRefused(QuintetError):
    """A node does not talk to another one: certificate, name, log or protocol are not what they must be. `reason` is counted."""

    code = "E1710"

    def __init__(self, message: str, *, reason: str = "protocol", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Hello(msgspec.Struct, frozen=True):
    """Who speaks. `instance` is random for each start: by it a node finds that it dialled itself."""

    node: str
    instance: str
    log: str  # identity of the log: nodes of another one have nothing to say; empty: a command of an operator, by a node's certificate
    address: str  # where it listens for nodes
    protocols: tuple[Count, Count] = (PROTOCOL_OLDEST, PROTOCOL_NEWEST)


class NodeSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says of itself. WAL offsets are those that come next; times are in microseconds or seconds as named."""

    node: str
    host: str = ""  # by which clients reach it
    role: str = ""
    epoch: Count = 0
    leader: str = ""
    applied: Count = 0
    synced: Count = 0  # everything below is in its files for good
    wal_begin: Count = 0  # what is below was trimmed
    wal_end: Count = 0
    lag_records: Count = 0
    lag_seconds: Seconds = 0.0
    version: str = ""  # of Quintet
    wal_reads: Count = 1  # the newest version of WAL records that it reads
    wal_writes: Count = 1  # the one that it writes, or would write if it led
    now_us: Count = 0  # its clock
    lease_seconds: Seconds = 0.0
    hold_seconds: Seconds = 0.0
    chain: str = ""  # which topics are chained, and a fingerprint of the chain's key
    certificate_expires: Seconds = 0.0  # Unix time; 0: it has none
    weaker: tuple[str, ...] = ()
    take_over_seconds: Seconds = 0.0  # how long the last one took that this node made; 0: none
    take_over_at: Seconds = 0.0  # Unix time
    nodes: tuple[tuple[str, str], ...] = ()  # (name, address) of those that answered it lately
    legs: str = ""  # HOST:PORT where it takes legs of other nodes, while it leads one of several cells
    wanted: str = ""  # the node that should lead this cell, as far as this one knows
    moved: str = ""  # where an operator moved it
    avoided: tuple[str, ...] = ()  # nodes that are drained


class PlaceAsked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an operator wants of the leader of a cell. None: as it is."""

    move: str | None = None  # to this node; empty: where it falls by itself
    drain: str | None = None  # this node shall lead nothing
    fill: str | None = None  # this node may lead again


class Stream(Protocol):
    """A blocking connection."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, size: int, /) -> bytes: ...


def send(stream: Stream, kind: Kind, body: bytes = b"") -> None:
    stream.sendall(_HEAD.pack(_KIND_BYTES + len(body), kind) + body)


def send_json(stream: Stream, kind: Kind, said: msgspec.Struct) -> None:
    send(stream, kind, msgspec.json.encode(said))


def receive(stream: Stream, bytes_max: int = CONTROL_BYTES_MAX) -> tuple[Kind, bytes]:
    """The next frame. ConnectionError at the end of the stream, PeerRefused for what is none, or a refusal that the peer sent."""
    length, number = _HEAD.unpack(_exactly(stream, _HEAD.size))
    if number not in Kind.__members__.values() or not _KIND_BYTES <= length <= _KIND_BYTES + bytes_max:
        raise PeerRefused(
            f"a frame of kind {number} with {length:,} bytes; known are kinds 1 to {max(Kind):d} of at most {bytes_max:,} bytes",
            hint="is something else connected to the cluster's port?",
        )
    body = _exactly(stream, length - _KIND_BYTES)
    if number == Kind.REFUSED:
        raise PeerRefused(f"the other node refused: {body.decode(errors='replace')}", reason="peer")
    return Kind(number), body


def expect(stream: Stream, wanted: Kind, bytes_max: int = CONTROL_BYTES_MAX) -> bytes:
    kind, body = receive(stream, bytes_max)
    if kind is not wanted:
        raise PeerRefused(f"{kind.name} came where {wanted.name} comes next")
    return body


def decode(body: bytes, wanted: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.MsgspecError as error:
        raise PeerRefused(f"no {wanted.__name__}: {error}") from None


def check_hello(own: Hello, theirs: Hello, certified: str) -> None:
    """certified: the name in their certificate; empty: there is none, on loopback. Raises PeerRefused."""
    if theirs.protocols[0] > PROTOCOL_NEWEST or theirs.protocols[1] < PROTOCOL_OLDEST:
        raise PeerRefused(
            f"{theirs.node} speaks versions {theirs.protocols[0]} to {theirs.protocols[1]} of the cluster's protocol, this node"
            f" {PROTOCOL_OLDEST} to {PROTOCOL_NEWEST}",
            hint="upgrade the older one",
        )
    if not _NAME.fullmatch(theirs.node):
        raise PeerRefused(f"{theirs.node[:64]!a} is no name of a node", reason="name", hint="see cell.node")
    if certified and certified != theirs.node:
        raise PeerRefused(
            f"a node says that it is {theirs.node}, and its certificate is of {certified}",
            reason="name",
            hint="cell.node and the certificate must name the same node",
        )
    if theirs.log != own.log and theirs.log and own.log:
        raise PeerRefused(
            f"{theirs.node} has the log {theirs.log}, this node {own.log}",
            reason="log",
            hint="both must name the same Kafka cluster and topic",
        )


def _exactly(stream: Stream, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = stream.recv(min(size, DATA_BYTES_MAX))
        if not part:
            raise ConnectionResetError("the other node closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
