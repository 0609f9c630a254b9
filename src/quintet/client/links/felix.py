"""Speaks Felix: all of a bus is one QUIC connection, each ClientConnection a stream in it, each subscription a stream of the server.

    Channel (publishing) ---- FelixStream --+                       +-- stream: auth, then batches out and acks in
    Channel (subscription) -- FelixStream --+--- Trunk: Connection --+-- stream: auth, subscribe, acks out
    Channels of the cache --- FelixStream --+                       +-- event stream of the server: hello, then events in

A stream that ends does not end the others; its Channel opens another one in the same connection. When the connection ends,
all its streams end, and the first Channel that reconnects does so for all.

Acknowledgements, positions, groups, and operations of caches other than get and put are used only if the server says EXTENDED
in its answer to `auth`. With another server they are refused here, and the rest works. If a server does not answer with
`auth_ok`, the flags are those of the first version.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, cast

from quintet import kernel
from quintet.client.core.base import (
    CLOSE_S,
    ClientConnection,
    Connector,
    Fields,
    Limits,
    MatchConnection,
    Matched,
    PushConnection,
    RequestConnection,
    Setup,
    Target,
    Wanted,
)
from quintet.client.core.errors import BadUrl, Closed, ConnectionLost, SubscriptionEnded, TooLarge, Unsupported
from quintet.client.core.message import Rows, log
from quintet.client.core.publishing import Load, Outcome, PublishCall, PublishQueue, complete, fail, runs
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint
from quintet.client.links import quic
from quintet.client.links.felix_batches import Share, batches, is_whole
from quintet.client.links.felix_source import FelixSource, Names, OffsetGone
from quintet.client.links.felix_wire import (
    CLOSE_CODES,
    UNREADABLE,
    Inflow,
    decode_json,
    error_of,
    json_frame,
    unreadable,
)
from quintet.kernel.items import FelixReply
from quintet.model.errors import AuthError, ProtocolError, QuintetError, message_of
from quintet.model.limits import RECORD_TTL_MS_MAX
from quintet.protocols.felix import frames

ACKS_PER_WRITE: Final = 4_096  # single acknowledgements gathered at most before they are written
CONNECT_SHARE: Final = 0.9  # of the time a caller has, so that the reason comes before its timeout
LAST_WORDS_S: Final = 1.0  # for what a server says behind the moment at which it reads no more
HELLO_BYTES_MAX: Final = 4_096  # of the first frame of an event stream; a longer one is not a hello
TOO_SLOW: Final = 0x51  # an event stream that was reset because nobody read it


class EventReader:
    """An event stream of the server: it says whose it is in its first frame."""

    def __init__(self, trunk: "Trunk", stream: int) -> None:
        self._trunk = trunk
        self._stream = stream
        self._inflow = Inflow(trunk.where)
        self._owner: FelixStream | None = None

    waits = False

    def data(self, data: bytes, end: bool) -> None:
        try:
            for item in self._inflow.feed(data):
                if self._owner is not None:
                    self._owner.event(item)
                elif not self._read_hello(item):
                    return
            if self._owner is None and self._inflow.wanted > HELLO_BYTES_MAX:
                self._trunk.quic.forget(self._stream)
                return
        except UNREADABLE as error:
            if self._owner is not None:
                self._owner.fail(unreadable(self._trunk.where, error))
            self._trunk.quic.forget(self._stream)
            return
        if end and self._owner is not None:
            self._owner.finished()

    def _read_hello(self, item: FelixReply) -> bool:
        hello = decode_json(item[1]) if item[0] == 0 else {}
        owner = self._trunk.listeners.get(hello.get("subscription_id", -1))
        if hello.get("type") != "event_stream_hello" or owner is None or not owner.take_event_stream(self._stream):
            self._trunk.quic.forget(self._stream)  # of a subscription that was closed meanwhile, or has one
            return False
        self._owner = owner
        return True

    def drained(self) -> None:
        """Nothing is written here."""

    def stopped(self, code: int) -> None:
        """Alike."""

    def ended(self, code: int) -> None:
        if self._owner is not None:
            why = "nobody read it for too long" if code == TOO_SLOW else f"code {code:#x}"
            self._owner.fail(ConnectionLost(f"{self._trunk.where} broke off the subscription: {why}"))

    def gone(self, error: ConnectionLost) -> None:
        """The FelixStream is told by its own stream."""


class Trunk:
    """The QUIC connection that the streams of a bus share, and which stream a subscription belongs to."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.quic: quic.Connection = cast(quic.Connection, None)  # until `connect` is done
        self.listeners: dict[int, FelixStream] = {}
        self.streams: set[FelixStream] = set()
        self._ids = 0

    async def connect(self, setup: Setup) -> None:
        self.quic = await quic.connect(setup.endpoint, self._incoming, setup.timeout * CONNECT_SHARE)

    def _incoming(self, stream: int) -> quic.Flow:
        return EventReader(self, stream)

    def new_id(self) -> int:
        self._ids += 1
        return self._ids

    def leave(self, stream: "FelixStream") -> None:
        """With its last stream the connection is closed."""
        self.streams.discard(stream)
        if not self.streams:
            self.quic.close()


class FelixStream(PushConnection, RequestConnection, MatchConnection):
    """One stream of the connection, from `auth` on."""

    def __init__(
        self,
        trunk: Trunk,
        door: "FelixConnector",
        target: Target,
        lost: Callable[[ClientConnection, QuintetError], None],
    ) -> None:
        self._trunk = trunk
        self._door = door
        self._target = target
        self._on_lost = lost
        self._loop = asyncio.get_running_loop()
        self._inflow = Inflow(trunk.where)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._lost: QuintetError | None = None
        self._last_error: QuintetError | None = None
        self._flags = -1
        self._next_id = 0
        self._requests: dict[int, asyncio.Future[Fields]] = {}  # in the order they were asked
        self._owed: dict[int, list[Share]] = {}  # request -> whose messages are in its frame
        self._publishes = PublishQueue(self._loop, self._send_calls)
        self._acks: list[int] = []
        self.timeout = 0.0  # of acknowledgements; 0: the server did not say
        self._gone = asyncio.Event()
        self._out: list[bytes] = []  # written in this turn, not sent yet
        self._on_message: Callable[[Fields], None] | None = None
        self._topic = self._durable = ""
        self._qos = 0
        self._subscription = 0
        self._events = -1  # the event stream's number
        self._paused = False
        self._stream = trunk.quic.open(self)
        trunk.streams.add(self)

    # -- handshake and requests ------------------------------------------------------------------------------------

    async def handshake(self) -> None:
        """`auth` is the first frame of every stream; the answer says what the server can do."""
        message = {"type": "auth", "tenant_id": self._door.names.tenant, "token": self._door.token}
        answer = await self._ask({**message, "client_flags": self._door.flags, "quintet": frames.QUINTET})
        flags = answer.get("server_flags", frames.UNSAID_FLAGS)
        if answer.get("type") not in ("auth_ok", "ok") or not isinstance(flags, int):
            raise ProtocolError(f"{self._trunk.where} answered auth with {answer.get('type')!r}")
        ours = answer.get("quintet") == frames.QUINTET
        self._flags = flags & self._door.flags & (frames.SERVER_FLAGS if ours else frames.PUBLISHED_FLAGS)

    @property
    def extended(self) -> bool:
        """Whether the server knows acknowledgements, groups and the whole cache."""
        return bool(self._flags & frames.EXTENDED)

    def request(self, name: str, fields: Fields) -> "asyncio.Future[Fields]":
        if name in frames.OURS and not self.extended:
            raise Unsupported(f"{self._trunk.where} does not know {name}", hint="a Quintet broker does")
        self._publishes.flush()
        return self._ask({"type": name, **fields})

    async def match(self, patterns: Sequence[str], version: int) -> Matched:
        names = self._door.names
        asked = {"patterns": [names.pattern(text) for text in patterns], "version": version}
        answer = await self.request("match_topics", asked)
        found = [names.short(name) for name in answer["topics"] if names.reaches(name)] if answer["changed"] else None
        return Matched(int(answer["version"]), found)

    def _ask(self, message: Fields) -> "asyncio.Future[Fields]":
        if self._lost is not None:
            raise self._lost
        id = self._new_id()
        future = self._requests[id] = self._loop.create_future()
        future.add_done_callback(lambda _: self._requests.pop(id, None))
        self._write([json_frame(message if message["type"] == "auth" else {**message, "request_id": id})])
        return future

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _write(self, data: Sequence[bytes]) -> None:
        """Soon, together with what else is written in this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += data

    def _flush(self) -> None:
        data, self._out = self._out, []
        if data and self._lost is None and self._trunk.quic.send(self._stream, data):
            self._flowing.clear()

    async def barrier(self) -> None:
        """An `ack` of nothing is answered behind all that was sent before; what was published has its own answers."""
        self._publishes.flush()
        self._flush_acks()
        owed = [part[0].done for parts in self._owed.values() for part in parts]
        if self.extended:
            try:
                await self._ask({"type": "ack", "subscription_id": self._subscription, "ranges": []})
            except QuintetError:
                if self._lost is not None:
                    raise
        if owed:
            await asyncio.wait(owed)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        if self._lost is not None:
            raise self._lost
        if is_whole(load) and not self._flags & frames.RECORDS:
            raise Unsupported(
                f"{self._trunk.where} does not carry headers and ttl=", hint="a Quintet broker of this version does"
            )
        for key in load.keys or ():
            if key is not None and not self._flags & frames.KEYS:
                raise Unsupported(f"{self._trunk.where} does not know keys", hint="a Quintet broker does")
            if key is not None and len(key) > frames.KEY_BYTES_MAX:
                raise TooLarge(f"the key has {len(key)} bytes, the limit is {frames.KEY_BYTES_MAX}")
        return self._publishes.add(load, wait)

    def _send_calls(self, calls: list[PublishCall]) -> None:
        """All calls of this turn: neighbours of one topic and QoS in one frame, everything in one write."""
        for run in runs(calls, _like):
            found, owed = batches(run, self._door.names, self._flags, self._new_id)
            self._owed |= owed
            self._write(found)

    # -- subscribing and acknowledging -----------------------------------------------------------------------------

    async def subscribe(self, topic: str, qos: int, from_start: bool = False) -> int:
        raise AssertionError("FelixSource says more than a topic: see listen")

    def attach(self, subscription: int) -> None:
        raise AssertionError("a subscription of Felix ends with its connection; FelixSource subscribes again")

    async def listen(self, name: str, fields: Fields, on_message: Callable[[Fields], None], topic: str = "") -> Fields:
        """`subscribe` or `cache_watch`: the answer. Events go to the target, all else of the event stream to `on_message`."""
        self._trunk.listeners.pop(self._subscription, None)  # of an attempt that was refused
        id = self._subscription = self._trunk.new_id()
        self._on_message, self._topic = on_message, topic
        self._qos = int(fields.get("ack") == "explicit")
        self._durable = str(fields.get("durable", ""))
        self._trunk.listeners[id] = self
        answer = await self.request(name, {**fields, "subscription_id": id})
        self.timeout = float(answer.get("ack_timeout_ms") or 0) / 1000
        return answer

    def take_event_stream(self, stream: int) -> bool:
        """The event stream of this subscription is here; it has one."""
        if self._events >= 0:
            return False
        self._events = stream
        if self._paused:
            self._trunk.quic.pause(stream, True)
        return True

    def finished(self) -> None:
        """The server ended the event stream on purpose. Subscribing again under the same durable name would end the subscription
        of another client, which would do the same, without end."""
        what = f"{self._trunk.where} ended the subscription"
        if self._durable and self.extended:
            why = f"another client subscribed as durable {self._durable!r}, or the topic was deleted"
            self.fail(
                SubscriptionEnded(f"{what}: {why}", hint="one name is for one subscriber at a time; group= shares")
            )
        else:
            self.fail(ConnectionLost(what))

    def ack(self, subscription: int, tags: Sequence[int]) -> None:
        if self._lost is not None:
            raise self._lost
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks += tags
        if len(tags) > 1 or len(self._acks) >= ACKS_PER_WRITE:
            self._flush_acks()

    @property
    def extends_deadlines(self) -> bool:
        return self.timeout > 0

    async def credit(self, subscription: int, count: int) -> float:
        await self.request(
            "credit", {"subscription_id": self._subscription, "credit": min(count, frames.ACK_RECORDS_MAX)}
        )
        return self.timeout

    def in_progress(self, subscription: int, tags: Sequence[int]) -> None:
        self._send_ranges("working", tags)

    def nack(self, subscription: int, tags: Sequence[int], delay: float | None, dead: bool = False) -> None:
        fields: Fields = {} if delay is None else {"delay_ms": round(delay * 1000)}
        self._send_ranges("nack", tags, fields | ({"dead": True} if dead else {}))

    def _flush_acks(self) -> None:
        if not self._acks or self._lost is not None:
            return
        tags, self._acks = self._acks, []
        self._send_ranges("ack", tags)

    def _send_ranges(self, kind: str, said: Sequence[int], more: Fields | None = None) -> None:
        """Something about these messages: runs of offsets as [first, count]."""
        if kind != "ack":
            self._flush_acks()
        if self._lost is not None:
            return
        tags = sorted(set(said))
        while tags:
            some, tags = tags[:ACKS_PER_WRITE], tags[ACKS_PER_WRITE:]
            ranges: list[list[int]] = []
            for tag in some:
                if ranges and ranges[-1][0] + ranges[-1][1] == tag:
                    ranges[-1][1] += 1
                else:
                    ranges.append([tag, 1])
            said_of = {"type": kind, "subscription_id": self._subscription, "ranges": ranges}
            self._write([json_frame({**said_of, **(more or {})})])

    # -- receiving -------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        return bool(self._requests or self._owed)

    def data(self, data: bytes, end: bool) -> None:
        try:
            for item in self._inflow.feed(data):
                if item[0] == frames.ACK:
                    _, status, id, text = item
                    refused = error_of(text) if status else None
                    self._last_error = refused or self._last_error
                    self._confirmed(id, refused)
                elif item[0] == 0:
                    self._on_reply(decode_json(item[1]))
        except UNREADABLE as error:
            self.fail(unreadable(self._trunk.where, error))
            return
        if end:
            why = f": {self._last_error}" if self._last_error is not None else ""
            self.fail(ConnectionLost(f"{self._trunk.where} ended the stream{why}"))

    def _confirmed(self, id: int, error: QuintetError | None) -> None:
        for call, at, count in self._owed.pop(id, ()):
            if error is not None:
                call.refuse(at, error, count)
            call.answered(count)

    def _on_reply(self, message: Fields) -> None:
        kind, id = message.get("type"), message.get("request_id")
        if kind in ("error", "publish_error"):
            self._refused(id, error_of(str(message.get("message", "")), message.get("code")))
        elif kind == "subscribe_cursor_error":
            asked, there = message.get("requested"), message.get("available")
            what = "is no longer there" if message.get("reason") == "too_old" else "is not there yet"
            hint = f"the nearest that can be read is {there}"
            self._refused(id, OffsetGone(f"offset {asked} {what}", hint=hint, asked=asked, there=there))
        elif kind == "publish_ok" and id in self._owed:
            self._confirmed(cast(int, id), None)
        elif kind == "lagged":
            # On this stream it says that the event stream was reset. The channel subscribes again from where it was.
            self.fail(ConnectionLost(f"{self._trunk.where} broke off the subscription: nobody read it for too long"))
        else:
            waiting = self._requests.get(self._first() if id is None else cast(int, id))
            if waiting is not None:
                complete(waiting, message)

    def _first(self) -> int:
        """Answers without a number come in the order of the questions."""
        return next(iter(self._requests), 0)

    def _refused(self, id: object, error: QuintetError) -> None:
        known, self._last_error = self._last_error, error
        if isinstance(id, int) and id in self._owed:
            self._confirmed(id, error)
            return
        waiting = self._requests.get(id if isinstance(id, int) else self._first())
        if waiting is not None:
            fail(waiting, error)
        elif self._subscription or isinstance(error, AuthError):
            self.fail(error)
        elif known is None or error.message != known.message:  # otherwise it repeats an error that was already reported
            log.warning("the server refused something that nobody waits for: %s", error)

    def event(self, item: FelixReply) -> None:
        """One frame of the event stream."""
        if item[0] == frames.EVENTS:
            self._events_came(*item[2:])
        elif item[0] == frames.RECORDS:
            if self._lost is None and (rows := kernel.records_received(item[2], self._qos)):
                self._target.on_records(self._topic, cast(Rows, rows))
        elif item[0] == 0:
            message = decode_json(item[1])
            if message.get("type") == "event":
                self._events_came(message.get("offset", -1), [base64.b64decode(message["payload"])])
            elif message.get("type") == "event_batch":
                values = [base64.b64decode(payload) for payload in message["payloads"]]
                self._events_came(message.get("base_offset", -1), values)
            elif self._on_message is not None:
                self._on_message(message)

    def _events_came(self, base: int, values: list[bytes], keys: list[bytes | None] | None = None) -> None:
        if self._lost is not None or not values:
            return
        qos = self._qos
        rows: Rows
        if keys is None:
            rows = [(base + at if base >= 0 else -1, qos, value) for at, value in enumerate(values)]
        else:
            both = enumerate(zip(values, keys, strict=True))
            rows = [(base + at if base >= 0 else -1, qos, value, key) for at, (value, key) in both]
        self._target.on_records(self._topic, rows)

    # -- flow ------------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        return not self._flowing.is_set()

    async def writable(self) -> None:
        await self._flowing.wait()
        if self._lost is not None:
            raise self._lost

    def drained(self) -> None:
        self._flowing.set()

    def stopped(self, code: int) -> None:
        """Its last frames, with the reason, may still be in flight."""
        error = ConnectionLost(f"{self._trunk.where} reads no more of the stream (code {code:#x})")
        self._loop.call_later(LAST_WORDS_S, self.fail, error)

    def ended(self, code: int) -> None:
        self.fail(ConnectionLost(f"{self._trunk.where} broke off the stream (code {code:#x})"))

    def gone(self, error: ConnectionLost) -> None:
        code = error.close_code if isinstance(error, quic.Shut) else -1
        if code in CLOSE_CODES:
            kind, hint = CLOSE_CODES[code]
            self.fail(kind(f"{self._trunk.where} closed the connection: {message_of(error)}", hint=hint))
        else:
            self.fail(ConnectionLost(f"the connection to {self._trunk.where} ended: {error.message}", hint=error.hint))

    def pause(self) -> None:
        self._hold(True)

    def resume(self) -> None:
        self._hold(False)

    def _hold(self, paused: bool) -> None:
        if paused != self._paused and self._lost is None:
            self._paused = paused
            if self._events >= 0:
                self._trunk.quic.pause(self._events, paused)

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> QuintetError | None:
        return self._lost

    def fail(self, error: QuintetError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        self._flowing.set()
        self._gone.set()
        self._trunk.listeners.pop(self._subscription, None)
        calls = [part[0] for parts in self._owed.values() for part in parts]
        self._owed.clear()
        for call in calls:
            call.fail_with_refusal(error)
        self._publishes.fail(error)
        for future in list(self._requests.values()):
            fail(future, error)
        for stream in (self._stream, self._events):
            self._trunk.quic.forget(stream)
        self._on_lost(self, error)
        self._loop.call_soon(self._trunk.leave, self)

    async def close(self) -> None:
        """End the subscription, then the stream. Cancelled meanwhile, it still closes the stream."""
        try:
            if self._lost is None:
                await self._leave()
        finally:
            self.fail(Closed("the stream was closed here"))

    async def _leave(self) -> None:
        if self._subscription and self.extended:
            self._flush_acks()
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._ask({"type": "unsubscribe", "subscription_id": self._subscription})
            except (QuintetError, TimeoutError) as error:
                log.debug("leaving subscription %d: %s", self._subscription, error)
        self._publishes.flush()
        self._flush()
        self._trunk.quic.send(self._stream, [], end=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._gone.wait()  # the server ends its side when it has read all of ours
        except TimeoutError:
            log.debug("%s did not end its side of a stream", self._trunk.where)


def _like(one: Load, other: Load) -> bool:
    """May both be in one frame?"""
    same = (one.topic, one.qos, one.ttl_ms) == (other.topic, other.qos, other.ttl_ms)
    return same and is_whole(one) == is_whole(other)


class FelixConnector:
    """Opens streams to the Felix door; one for each bus, because all its streams share a QUIC connection."""

    name = "felix"
    limits = Limits(
        frame_overhead_bytes=8 + 1 + 3 * 2 + 4 + 4,
        frame_bytes_max=frames.FRAME_BYTES_MAX,
        topic_bytes_max=255,
        ttl_ms_max=RECORD_TTL_MS_MAX,
        in_flight_max=1_000,
    )
    lacks: Final = {
        "partition": "the FlyMQ door has partitions to choose",
        "delay": "the FlyMQ door delays messages",
        "schema": "the FlyMQ door checks schemas",
        "idempotent": "the FlyMQ door has idempotent producers",
        "compression": "?compression=zstd in the URL is for all that a bus sends",
        "member": "the FlyMQ door has members with names",
        "retry": "the broker delivers again by itself here, as configured; the FlyMQ door leaves it to the client",
        "filter": "the FlyMQ door filters on the server",
        "transaction": "the FlyMQ door has transactions",
        "fetch": "subscribe with start=OFFSET, or use the FlyMQ door",
        "replay": "subscribe with start='earliest', or use the FlyMQ door",
        "resume": "subscribe with durable=NAME, and with the same name again",
    }

    def __init__(self, endpoint: Endpoint | None = None) -> None:
        self.token = endpoint.secret if endpoint is not None else ""
        self.names = Names.of(endpoint) if endpoint is not None else Names("", "")
        packs = endpoint is not None and endpoint.compression == "zstd"
        self.flags = frames.SERVER_FLAGS if packs else frames.SERVER_FLAGS & ~frames.ZSTD
        self._trunk: Trunk | None = None
        self._lock = asyncio.Lock()

    def for_bus(self, endpoint: Endpoint, name: str) -> Connector:
        quic.endpoint_class()  # a missing package is reported by connect()
        return FelixConnector(endpoint)

    async def open(
        self, setup: Setup, target: Target, lost: Callable[[ClientConnection, QuintetError], None]
    ) -> ClientConnection:
        if setup.tls is not None:
            raise BadUrl("tls= is not for felix://", hint="QUIC has its own TLS: ?ca=FILE, ?cert=FILE and ?key=FILE")
        stream = FelixStream(await self._connected(setup), self, target, lost)
        try:
            await stream.handshake()
        except BaseException:
            await stream.close()
            raise
        return stream

    async def _connected(self, setup: Setup) -> Trunk:
        """The trunk there is, or a new one."""
        async with self._lock:
            trunk = self._trunk
            if trunk is None or trunk.quic.lost is not None:
                trunk = Trunk(str(setup.endpoint))
                await trunk.connect(setup)
                self._trunk = trunk
            return trunk

    def source(self, setup: Setup, wanted: Wanted) -> Source:
        return FelixSource(setup, wanted, self.names)


CONNECTOR: Final = FelixConnector()
