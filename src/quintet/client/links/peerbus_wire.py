"""Runs the one connection of a peerbus bus: registers, sends signed envelopes, takes deliveries and replies.

Lines over TCP are here; peerbus_ws.py carries the same objects in a WebSocket. Who connects, and when again, is decided in
peerbus.py; what becomes of a delivery in mailbox.py.
"""

import asyncio
import base64
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from secrets import token_hex
from typing import Final, NamedTuple

import msgspec

from quintet.client.core.base import ClientConnection, Fields, RequestConnection, SocketConnection
from quintet.client.core.errors import ConnectionLost, Unsupported
from quintet.client.core.headers import raw_pairs
from quintet.client.core.message import log
from quintet.client.core.publishing import Load, Outcome, PublishCall, PublishQueue, complete, fail
from quintet.client.sources.mailbox import TOPIC_PREFIX, Identity, PeerSource
from quintet.model import envelope
from quintet.model.errors import (
    AuthError,
    BadName,
    Busy,
    Forbidden,
    LimitExceeded,
    NameClaimed,
    ProtocolError,
    QuintetError,
    ShuttingDown,
    TooLarge,
)
from quintet.protocols.peerbus import codec, frames
from quintet.protocols.peerbus import errors as wire

EARLY_MAX: Final = 1_000  # deliveries kept before somebody subscribes ...


EARLY_BYTES_MAX: Final = 4 * 1024 * 1024  # ... and their bytes


ENVELOPE_BYTES_MAX: Final = frames.FRAME_BYTES_MAX - 1024  # a reader's bound is for the deliver frame around it


READ_BYTES_MAX: Final = 17 * 1024 * 1024  # the largest object a listener can be told to take, and what is around it


_TOKEN_HINT: Final = "put the token into the URL: peerbus://:TOKEN@HOST:47821?name=NAME"


# (close code, reason) -> the error, and what to do. What is not here is a lost connection.
_CLOSES: Final[dict[tuple[int, str], tuple[type[QuintetError], str]]] = {
    wire.TOKEN: (AuthError, _TOKEN_HINT),
    wire.REVOKED: (AuthError, _TOKEN_HINT),
    wire.CLAIMED: (NameClaimed, "choose another name: this one was registered with another token"),
    wire.NOT_ALLOWED: (Forbidden, "this token may not read the mailbox of that name"),
    wire.FREED: (Forbidden, "somebody deleted the mailbox; connect again to register anew"),
    wire.BAD_NAME: (BadName, "a name has 1 to 200 bytes, visible, without | * / and backslash"),
    wire.EMPTY_NAME: (BadName, "give the name: ?name=NAME in the URL, or name= to connect"),
    wire.VERSION: (ProtocolError, "the server speaks another version of peerbus"),
    wire.NOT_REGISTER: (ProtocolError, ""),
    wire.MALFORMED: (ProtocolError, ""),
    wire.NOT_TEXT: (ProtocolError, ""),
    wire.TAKEOVERS: (Busy, "somebody else connects with this name and token again and again"),
    wire.NAMES: (LimitExceeded, "end a connection, read what waits for a name, or raise peers.names_per_owner_max"),
    wire.TOO_BIG: (TooLarge, "split it"),
    wire.SHUTTING_DOWN: (ShuttingDown, "connect again when the broker is back"),
}


class _Deliver(msgspec.Struct, gc=False):
    """What a broker may send; members that are not ours to know are passed over."""

    type: str = ""
    delivery_key: str = ""
    names: tuple[str, ...] = ()
    envelope: msgspec.Raw = msgspec.Raw(b"")


_DELIVER: Final = b'"deliver"'


_decode: Final = msgspec.json.Decoder(_Deliver).decode


def body_of(value: bytes) -> bytes:
    """Any value as the body of an envelope: JSON as it is, other text as a JSON string, other bytes in base64."""
    with suppress(ProtocolError):
        if value:
            return envelope.text(value)
    try:
        return envelope.string(value.decode())
    except UnicodeDecodeError:
        return b'{"base64":"%b"}' % base64.b64encode(value)


class _Group(NamedTuple):
    """What one reply to `peers` completes: publish calls, and a request for the names."""

    calls: list[PublishCall]
    names: "asyncio.Future[Fields] | None"


class Wire(SocketConnection):
    """The registered connection that all views share, one object a line. Other parts of the client see its views only."""

    def __init__(self, where: str, me: Identity, mailbox: Callable[[], PeerSource | None] = lambda: None) -> None:
        super().__init__(where, lambda connection, error: self._tell(error))
        self.me = me
        self.views: list[View] = []
        self._mailbox = mailbox  # who takes deliveries now
        self.opened = self._loop.time()
        self._registered: asyncio.Future[None] = self._loop.create_future()
        self._publishes = PublishQueue(self._loop, self._send_calls, durable=False)
        self._groups: deque[_Group] = deque()  # in the order of their requests
        self._acks: list[str] = []
        self._early: list[tuple[str, bytes]] = []
        self._early_bytes = 0
        self.missed = False  # a delivery came without a subscription: it is delivered again on the next connection
        self._full = self._has_name = False
        self.unreadable = 0  # deliveries that are not JSON as it must be, or nested too deeply

    # -- objects ---------------------------------------------------------------------------------------------------

    def send(self, objects: Sequence[bytes]) -> None:
        self.write(b"\n".join(objects) + b"\n")

    def received(self, data: bytes | bytearray) -> tuple[int, int]:
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            line = bytes(data[at:end])
            at = end + 1
            if line.strip():
                self.object(line)
        if len(data) - at > READ_BYTES_MAX:
            raise ProtocolError(f"{self._where} sent a line of more than {READ_BYTES_MAX} bytes")
        return at, 0

    def object(self, data: bytes) -> None:
        """One JSON object of the broker."""
        try:
            got = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if _DELIVER in data and self._registered.done():  # it would come again with every connection, and end it
                self.unreadable += 1
                if str(self.unreadable).strip("0") == "1":  # 1, 10, 100, ...
                    log.warning("%s delivered what cannot be read: %s (%d so far)", self._where, error, self.unreadable)
                return
            raise ProtocolError(
                f"{self._where} sent what is not an object of peerbus: {error}",
                hint="is this a peerbus port of a Quintet broker?",
            ) from None
        if got.type == frames.DELIVER:
            self._deliver(got.delivery_key, bytes(got.envelope))
        elif got.type == frames.PEERS:
            self._peers(got.names)

    def _peers(self, names: tuple[str, ...]) -> None:
        if not self._registered.done():
            self._has_name = True
            self._registered.set_result(None)
        elif self._groups:
            group = self._groups.popleft()
            for call in group.calls:
                call.complete(durable=False)
            if group.names is not None:
                complete(group.names, {"names": list(names)})
            self._flow()

    def _deliver(self, key: str, data: bytes) -> None:
        if not key:
            log.warning("%s delivered a message without a delivery key: dropped", self._where)
        elif (source := self._mailbox()) is not None:
            source.delivered(key, data)
        elif len(self._early) < EARLY_MAX and self._early_bytes + len(data) <= EARLY_BYTES_MAX:
            self._early.append((key, data))
            self._early_bytes += len(data)
        else:
            self.missed = True

    def take_early(self) -> list[tuple[str, bytes]]:
        early, self._early, self._early_bytes = self._early, [], 0
        return early

    # -- what views ask for ----------------------------------------------------------------------------------------

    async def handshake(self, token: str) -> None:
        self.send([codec.register(token, self.me.name)])
        try:
            await self._registered
        except ConnectionLost as error:
            hint = "a wrong token, a name that belongs to another token, or not a peerbus port?"
            raise ConnectionLost(error.message, hint=error.hint or hint) from error

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        if self._lost is not None:
            raise self._lost
        recipient(load.topic)
        return self._publishes.add(load, wait)

    def _send_calls(self, calls: list[PublishCall]) -> None:
        objects: list[bytes] = []
        for call in calls:
            objects += self._sealed(call)
        waiting = [call for call in calls if call.load.qos]
        if waiting:
            objects.append(codec.ask_peers())
            self._ask(_Group(waiting, None))
        if objects:
            self.send(objects)

    def _sealed(self, call: PublishCall) -> list[bytes]:
        """The signed envelopes of a call; what is too large is noted with it."""
        me, to = self.me, recipient(call.load.topic)
        keys, lists, made = call.load.keys, call.load.headers, list[bytes]()
        now = envelope.rfc3339(round(datetime.now(UTC).timestamp() * 1_000_000))
        for at, value in enumerate(call.load.values):
            key = keys[at] if keys is not None else None
            id = token_hex(16) if key is None else key.decode(errors="replace")
            try:
                if not codec.is_id(id):
                    raise BadName(
                        "the broker would drop a message with this id without a word",
                        hint=f"an id has 1 to {frames.ID_BYTES_MAX} bytes, printable, without |",
                    )
                body = body_of(value)
                codec.check_depth(body)
                own = lists[at] if lists is not None else b""
                said = {"id": id, "sender": me.name, "to": to, "ts": now}
                data = envelope.sign(me.secret, **said, body=body, kid=me.kid, headers=raw_pairs(own))
                if len(data) > ENVELOPE_BYTES_MAX:
                    raise TooLarge(f"an envelope of {len(data)} bytes, over {ENVELOPE_BYTES_MAX}", hint="split it")
                made.append(data)
            except QuintetError as error:
                call.refuse(at, error)
        return made

    def _ask(self, group: _Group) -> None:
        self._groups.append(group)
        self._flow()

    def names(self) -> "asyncio.Future[Fields]":
        if self._lost is not None:
            raise self._lost
        self._publishes.flush()
        done: asyncio.Future[Fields] = self._loop.create_future()
        self._ask(_Group([], done))
        self.send([codec.ask_peers()])
        return done

    async def barrier(self) -> None:
        self._flush_acks()
        await self.names()

    def ack(self, keys: Sequence[str]) -> None:
        """Soon, together with what else is acknowledged in this turn."""
        if self._lost is not None:
            raise self._lost
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks += keys

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, []
        if acks and self._lost is None:
            self.send([codec.ack(key) for key in acks])

    def hold(self, full: bool) -> None:
        """The mailbox's queue is full, or no longer."""
        self._full = full
        self._flow()

    def _flow(self) -> None:
        """Replies come behind deliveries: while one is owed, reading goes on, and the queue may pass its bound by what
        the broker leaves unacknowledged."""
        if self._full and not self._groups:
            self.pause()
        else:
            self.resume()

    # -- the end ---------------------------------------------------------------------------------------------------

    def count_loss(self) -> int:
        """1 if it was registered and then closed without a reason, as a takeover does; only the first time."""
        counts, self._has_name = self._has_name and type(self._lost) is ConnectionLost, False
        return int(counts)

    async def ended(self) -> None:
        """Wait until there is no connection any more."""
        await self._gone.wait()

    def heartbeat(self) -> None:
        self._ask(_Group([], None))
        self.send([codec.ask_peers()])

    def abandon(self, error: QuintetError) -> None:
        groups, self._groups = self._groups, deque()
        if not self._registered.done():
            self._registered.set_exception(error)
            self._registered.exception()  # nobody waits for it if the caller was cancelled while it dialled
        for group in groups:
            for call in group.calls:
                call.fail(error)
            if group.names is not None:
                fail(group.names, error)
        self._publishes.fail(error)

    def _tell(self, error: QuintetError) -> None:
        views, self.views = self.views, []
        for view in views:
            view.end(error)


def closed_because(where: str, code: int, reason: str) -> QuintetError:
    """The typed error for a close frame."""
    kind, hint = _CLOSES.get((code, reason), (ConnectionLost, ""))
    return kind(f"{where} closed the connection: {reason or 'no reason given'} ({code})", hint=hint)


def recipient(topic: str) -> str:
    """Who a topic is the mailbox of; `*` for everyone."""
    name = topic.removeprefix(TOPIC_PREFIX)
    if name == topic or not name:
        raise BadName(
            f"peerbus reaches mailboxes only, and {topic!r} is none",
            hint=f"publish to {TOPIC_PREFIX}NAME, or to {TOPIC_PREFIX}* for everyone who is connected",
        )
    return name


class View(RequestConnection):
    """A wire as one channel sees it."""

    def __init__(self, shared: Wire, lost: Callable[[ClientConnection, QuintetError], None]) -> None:
        self.wire = shared
        self._on_lost = lost
        shared.views.append(self)

    def end(self, error: QuintetError) -> None:
        self._on_lost(self, error)

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        return self.wire.publish(load, wait)

    def request(self, name: str, fields: Fields) -> "asyncio.Future[Fields]":
        if name != "PEERS" or fields:
            raise Unsupported(f"peerbus has no operation {name}", hint="PEERS, without fields, is the one it has")
        return self.wire.names()

    @property
    def full(self) -> bool:
        return self.wire.full

    async def writable(self) -> None:
        await self.wire.writable()

    async def barrier(self) -> None:
        await self.wire.barrier()

    def pause(self) -> None:
        self.wire.hold(True)

    def resume(self) -> None:
        self.wire.hold(False)

    @property
    def lost(self) -> QuintetError | None:
        return self.wire.lost

    async def close(self) -> None:
        """The last one closes the wire."""
        if self in self.wire.views:
            self.wire.views.remove(self)
        if not self.wire.views:
            await self.wire.close()
