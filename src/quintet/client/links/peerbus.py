"""The peerbus door: one registered connection for each bus, signed envelopes out, verified ones in.

A name is bound to one connection: a second one with the same name takes it over. So all links of a bus are views of one
Wire, and when it is lost the first view that comes back dials for all of them:

    Channel (publishing) --- View --+
                                    +--- Wire: register, then envelopes, acks and `peers` out; delivers and `peers` in
    Channel (mailbox) ------ View --+         over WebSocket, or one object a line (peerbus+tcp)

The protocol has no answer to an envelope. A `peers` request behind it is the answer: its reply says that the broker has
read all that was sent before, and (ours) that what it took is on disk. It does not say that it took it: a recipient that
nobody knows, a full mailbox, a wrong signature are passed over without a word. So no publish is called durable here.

What becomes of a delivery is decided in mailbox.py; one without a delivery key is dropped here, because it could never be
acknowledged, and so is one that cannot be read: neither ends the connection.
"""

import asyncio
import base64
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from random import uniform
from secrets import token_hex
from typing import Final

import msgspec

from quintet.client.core.base import (
    Door,
    Fields,
    Limits,
    Link,
    Load,
    Outcome,
    RequestLink,
    Setup,
    StreamLink,
    Target,
    Wanted,
    Watch,
    dial,
    shake_hands,
)
from quintet.client.core.errors import BadUrl, ConnectionLost, Unsupported
from quintet.client.core.message import log
from quintet.client.core.subscription import Source
from quintet.client.core.url import Endpoint
from quintet.client.sources.mailbox import PENDING_MAX, TOPIC_PREFIX, Identity, PeerSource
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
    Taken,
    TooLarge,
)
from quintet.model.extras import load
from quintet.protocols.peerbus import codec, frames
from quintet.protocols.peerbus import errors as wire

SECRET_VARIABLE: Final = "QUINTET_PEERBUS_SECRET"
EARLY_MAX: Final = 1_000  # deliveries kept before somebody subscribes ...
EARLY_BYTES_MAX: Final = 4 * 1024 * 1024  # ... and their bytes
ENVELOPE_BYTES_MAX: Final = frames.FRAME_BYTES_MAX - 1024  # a reader's bound is for the deliver frame around it
READ_BYTES_MAX: Final = 17 * 1024 * 1024  # the largest object a listener can be told to take, and what is around it
STEADY_S: Final = 5.0  # a connection that ends sooner is followed by a pause: two with one name would fight for it
FIGHT_FIRST_S: Final = 0.1
FIGHT_MAX_S: Final = 5.0
FIGHT_LOSSES_MAX: Final = 3  # in a row, each soon after the register; then who gives way gives the name up

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


class _Call:
    """One publish call that waits for the reply behind it."""

    __slots__ = ("done", "expires", "failures", "load", "wait")

    def __init__(self, load: Load, wait: float, expires: float, done: "asyncio.Future[Outcome]") -> None:
        self.load = load
        self.wait = wait
        self.expires = expires
        self.done = done
        self.failures: list[tuple[int, QuintetError]] = []

    def settle(self) -> None:
        if not self.done.done():
            self.done.set_result(Outcome(len(self.failures), tuple(self.failures), durable=False))


class _Group:
    """What one reply to `peers` settles: publish calls, and whoever wants to know the names."""

    __slots__ = ("calls", "names", "watch")

    def __init__(self, calls: list[_Call], names: "asyncio.Future[Fields] | None") -> None:
        self.calls = calls
        self.names = names
        self.watch = Watch(calls)


class Wire(StreamLink):
    """The registered connection that all views share, one object a line. Only views are links to others."""

    def __init__(self, where: str, me: Identity, mailbox: Callable[[], PeerSource | None] = lambda: None) -> None:
        super().__init__(where, lambda link, error: self._tell(error))
        self.me = me
        self.views: list[View] = []
        self._mailbox = mailbox  # who takes deliveries now
        self.opened = self._loop.time()
        self._registered: asyncio.Future[None] = self._loop.create_future()
        self._calls: list[_Call] = []  # published in this turn, not sent yet
        self._groups: deque[_Group] = deque()  # in the order of their requests
        self._acks: list[str] = []
        self._early: list[tuple[str, bytes]] = []
        self._early_bytes = 0
        self.missed = False  # a delivery came that nobody could take: it comes again with the next connection
        self._full = self._has_name = False
        self.no_key = 0  # deliveries without a delivery key
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
            group.watch.end()
            for call in group.calls:
                call.settle()
            if group.names is not None and not group.names.done():
                group.names.set_result({"names": list(names)})
            self._flow()

    def _deliver(self, key: str, data: bytes) -> None:
        if not key:
            self.no_key += 1
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
            raise ConnectionLost(str(error), hint=error.hint or hint) from error

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        if self._lost is not None:
            raise self._lost
        recipient(load.topic)
        done: asyncio.Future[Outcome] = self._loop.create_future()
        if not self._calls:
            self._loop.call_soon(self._flush_calls)
        self._calls.append(_Call(load, wait, self._loop.time() + wait, done))
        return done

    def _flush_calls(self) -> None:
        calls, self._calls = self._calls, []
        if not calls or self._lost is not None:
            return
        objects: list[bytes] = []
        for call in calls:
            objects += self._sealed(call)
        waiting = [call for call in calls if call.load.qos]
        if waiting:
            objects.append(codec.ask_peers())
            self._ask(_Group(waiting, None))
        if objects:
            self.send(objects)
        for call in calls:
            if not call.load.qos:
                call.settle()

    def _sealed(self, call: _Call) -> list[bytes]:
        """The signed envelopes of a call; what is too large is noted with it."""
        me, to = self.me, recipient(call.load.topic)
        keys, made = call.load.keys, []
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
                data = envelope.sign(me.secret, id=id, sender=me.name, to=to, ts=now, body=body, kid=me.kid)
                if len(data) > ENVELOPE_BYTES_MAX:
                    raise TooLarge(f"an envelope of {len(data)} bytes, over {ENVELOPE_BYTES_MAX}", hint="split it")
                made.append(data)
            except QuintetError as error:
                call.failures.append((at, error))
        return made

    def _ask(self, group: _Group) -> None:
        group.watch.look(self._loop)
        self._groups.append(group)
        self._flow()

    def names(self) -> "asyncio.Future[Fields]":
        if self._lost is not None:
            raise self._lost
        self._flush_calls()
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
        """1 if it was registered and then dropped without a word, as who is taken over is; only the first time."""
        counts, self._has_name = self._has_name and type(self._lost) is ConnectionLost, False
        return int(counts)

    async def ended(self) -> None:
        """Wait until there is no connection any more."""
        await self._gone.wait()

    def heartbeat(self) -> None:
        self._ask(_Group([], None))
        self.send([codec.ask_peers()])

    def abandon(self, error: QuintetError) -> None:
        waiting: list[asyncio.Future[Outcome] | asyncio.Future[Fields]] = [call.done for call in self._calls]
        for group in self._groups:
            group.watch.end()
            waiting += [call.done for call in group.calls]
            if group.names is not None:
                waiting.append(group.names)
        self._groups.clear()
        if not self._registered.done():
            self._registered.set_exception(error)
        for future in waiting:
            if not future.done():
                future.set_exception(error)

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


class View(RequestLink):
    """A wire as one channel sees it."""

    def __init__(self, shared: Wire, lost: Callable[[Link, QuintetError], None]) -> None:
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


class PeerDoor:
    """How to open links to peerbus; one for each bus, because all its links share a connection."""

    name = "peerbus"
    limits = Limits(
        frame_overhead_bytes=0,
        frame_bytes_max=ENVELOPE_BYTES_MAX,
        topic_bytes_max=len(TOPIC_PREFIX) + frames.NAME_BYTES_MAX,
        ttl_ms_max=1,
        in_flight_max=PENDING_MAX,
    )
    lacks: Final = {
        "partition": "a mailbox has one; the FlyMQ door has partitions",
        "delay": "the FlyMQ door delays messages",
        "schema": "the FlyMQ door checks schemas",
        "idempotent": "the broker knows a message by its id: publish again with the same key=",
        "compression": "the FlyMQ door compresses",
        "group": "a mailbox has one reader; the FlyMQ door has consumer groups",
        "start": "a mailbox begins with what nobody has acknowledged",
        "member": "the FlyMQ door has consumer groups, and they have members",
        "retry": "what is not acknowledged comes again with the next connection; the FlyMQ door leaves it to the client",
        "filter": "the FlyMQ door filters on the server",
        "transaction": "the FlyMQ door has transactions",
        "fetch": "the FlyMQ door reads by offset",
        "replay": "the FlyMQ door reads what was there before",
        "durable": "the Felix door keeps positions by name",
        "kv": "the Felix door has a cache",
        "headers": "an envelope has no place for headers; put them into the body",
        "ttl": "the broker has one for all mailboxes; the BlipMQ and FlyMQ doors have one for each message",
        "resume": "a mailbox goes on by itself, with what nobody has acknowledged",
    }

    def __init__(self, me: Identity | None = None) -> None:
        self.me = me or Identity("", b"", False)
        self._wire: Wire | None = None
        self._source: PeerSource | None = None  # who reads the mailbox, through reconnects
        self._lock = asyncio.Lock()
        self._pause = 0.0
        self._losses = 0
        self.give_way = False

    def for_bus(self, endpoint: Endpoint, name: str) -> Door:
        check_packages(endpoint)
        return PeerDoor(identity(endpoint, name))

    async def open(self, setup: Setup, target: Target, lost: Callable[[Link, QuintetError], None]) -> Link:
        if not isinstance(target, PeerSource) or target is self._source:
            async with self._lock:
                return View(await self._connected(setup), lost)
        if self._source is not None:
            hint = "iterate over one subscription with several tasks, or connect with another name"
            raise Taken(f"the mailbox of {self.me.name} is read by another subscription of this bus", hint=hint)
        self._source = target  # before anything is dialled: a broker delivers at once
        try:
            async with self._lock:
                if self._wire is not None and self._wire.lost is None:
                    for key, data in self._wire.take_early():
                        target.delivered(key, data)
                    if self._wire.missed:
                        self._wire.fail(
                            ConnectionLost("messages came before anybody subscribed: they are asked for again")
                        )
                return View(await self._connected(setup), lost)
        except BaseException:
            self.leave(target)
            raise

    async def _connected(self, setup: Setup) -> Wire:
        """The wire there is, or a new one."""
        if self._wire is None or self._wire.lost is not None:
            await self._wait(setup)
            return await self._dial(setup)
        return self._wire

    # -- see mailbox.Post ------------------------------------------------------------------------------------------

    def ack(self, keys: Sequence[str]) -> None:
        if self._wire is not None and self._wire.lost is None:
            self._wire.ack(keys)

    def hold(self, full: bool) -> None:
        if self._wire is not None:
            self._wire.hold(full)

    def leave(self, source: PeerSource) -> None:
        if self._source is source:
            self._source = None
            self.hold(False)

    # -- connecting ------------------------------------------------------------------------------------------------

    async def _wait(self, setup: Setup) -> None:
        """Two who are given one name would take it from each other without end: each lets the other be for a while."""
        last = self._wire
        if last is None or asyncio.get_running_loop().time() - last.opened > STEADY_S:
            self._pause, self._losses = 0.0, 0
            return
        self._losses += last.count_loss()
        if self.give_way and self._losses >= FIGHT_LOSSES_MAX:
            hint = "another process uses this name and token: end it, or give one of them another name, and start again"
            raise NameClaimed(f"another connection took the name {self.me.name!r} {self._losses} times", hint=hint)
        self._pause = min(max(self._pause * 2, FIGHT_FIRST_S), FIGHT_MAX_S, setup.timeout / 2)
        await asyncio.sleep(uniform(self._pause / 2, self._pause))

    async def _dial(self, setup: Setup) -> Wire:
        endpoint = setup.endpoint
        if endpoint.lines:
            shared = Wire(str(endpoint), self.me, lambda: self._source)
            await dial(setup, shared)
        else:
            from quintet.client.links import peerbus_ws

            shared = wire = peerbus_ws.SocketWire(str(endpoint), self.me, lambda: self._source)
            await peerbus_ws.dial_socket(setup, wire)
        self._wire = shared  # deliveries may come with the answer to the register, and want to be acknowledged
        await shake_hands(setup, shared, shared.handshake(endpoint.secret))
        return shared

    def source(self, setup: Setup, wanted: Wanted) -> Source:
        if wanted.topic != TOPIC_PREFIX + self.me.name:
            raise BadName(
                f"peerbus reads one mailbox, that of its own name, and {wanted.topic!r} is not it",
                hint=f"subscribe to {TOPIC_PREFIX}{self.me.name}, or connect with another name",
            )
        return PeerSource(setup, self.me, self)


def check_packages(endpoint: Endpoint) -> None:
    """WebSocket is spoken by a package; lines over TCP need none."""
    if not endpoint.lines:
        load("picows", "peerbus:// over WebSocket", "peerbus")


def identity(endpoint: Endpoint, name: str) -> Identity:
    """Who we are by the URL, the argument and the environment; BadUrl says what is missing."""
    if endpoint.name and name and endpoint.name != name:
        raise BadUrl(f"the URL says name={endpoint.name}, and connect says {name}", hint="leave one of them out")
    who = endpoint.name or name
    if not who:
        raise BadUrl("a peer needs a name", hint="peerbus://:TOKEN@HOST:47821?name=NAME, or name= to connect")
    secret = _secret(endpoint)
    if not secret and endpoint.verify == "on":
        raise BadUrl(
            "messages of peers are signed with a secret they share, and there is none",
            hint=f"?secret_file=FILE or {SECRET_VARIABLE}; ?verify=off takes whatever comes",
        )
    if endpoint.kid and endpoint.verify == "on":
        raise BadUrl(
            "who signs with a key of its own cannot verify what others sign with theirs",
            hint="the broker verifies: add ?verify=off",
        )
    return Identity(who, secret, endpoint.verify == "on", endpoint.kid)


def _secret(endpoint: Endpoint) -> bytes:
    if endpoint.secret_file is None:
        where, data = SECRET_VARIABLE, os.environ.get(SECRET_VARIABLE, "").encode()
    else:
        where = endpoint.secret_file
        try:
            data = Path(where).read_bytes().split(b"\n", 1)[0].strip()
        except OSError as error:
            raise BadUrl(f"cannot read the secret in secret_file={where}: {error.strerror}") from error
    if data and len(data) < envelope.SECRET_BYTES_MIN:
        raise BadUrl(f"the secret in {where} has {len(data)} bytes, it needs {envelope.SECRET_BYTES_MIN}")
    return data


DOOR: Final = PeerDoor()
