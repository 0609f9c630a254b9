"""Speaks Fast: EXTEND, so that every request has an answer and the token is sent once.

The document's own packets have no answers. EXTEND asks for OK and ERROR, so that a publish is confirmed when it is
durable and a refusal says why; a listener that does not know EXTEND closes the connection, which is said. Answers name
the request's type and topic and come in order for each of these pairs:

    (PUBLISH, orders)     call call call ...    OK and ERROR settle the first that is owed one
    (SUBSCRIBE, orders)   ask
    (EXTEND, 0)           ask                   also the heartbeat, and the barrier behind what is published

Messages are not acknowledged in this protocol: they are QoS 0 when they arrive, and a durable queue keeps what comes while
nobody is subscribed. A token stops being good: it expires, or the queue's key is rotated. `renew` puts another one in its
place, on every connection of the bus.

A packet without token means the last that the server accepted here. So packets carry the whole token until an answer has
said that it is good: what is sent meanwhile must not be taken under the one before it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Final, NamedTuple, cast
from weakref import WeakSet

from quintet import kernel
from quintet.client.bus import Bus
from quintet.client.core.base import (
    ClientConnection,
    Connector,
    Fields,
    Limits,
    PushConnection,
    RequestConnection,
    Setup,
    SocketConnection,
    Target,
    Wanted,
    dial,
    shake_hands,
)
from quintet.client.core.errors import BadUrl, ConnectionLost, ServerError, SubscriptionEnded, Unsupported
from quintet.client.core.message import Rows, log
from quintet.client.core.publishing import Load, Outcome, PublishCall, PublishQueue, runs, values_of
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint
from quintet.client.sources.push import PushSource
from quintet.model.errors import (
    AuthError,
    BadRequest,
    Forbidden,
    LimitExceeded,
    ProtocolError,
    QuintetError,
    Taken,
    TopicNotFound,
    WrongKey,
)
from quintet.model.keys import fnv1a
from quintet.model.limits import RECORD_TTL_MS_MAX
from quintet.protocols.fast import codec, frames
from quintet.protocols.fast import errors as wire

PAYLOAD_READ_MAX: Final = 32 * 1024 * 1024  # the largest a listener can be told to take
_LENGTH_BYTES: Final = 4  # of the size that ends the head of a record set
TOPIC_NONE: Final = 0  # of answers to EXTEND, and of the first packet that shows the token

_RENEW: Final = "take a fresh token (`quintet token mint`) and hand it to Queues(bus).renew, or put it into the URL"
# Code of an ERROR -> the error, and what to do.
_ERRORS: Final[dict[int, tuple[type[QuintetError], str]]] = {
    wire.BAD_REQUEST: (BadRequest, ""),
    wire.TOKEN: (AuthError, _RENEW),
    wire.FORBIDDEN: (Forbidden, "the token's permissions, or the rights of its subject, do not allow it"),
    wire.NO_TOPIC: (TopicNotFound, "make it first: Queues(bus).create(topic)"),
    wire.TAKEN: (Taken, "an exclusive queue has one subscriber; two names of one number cannot both be"),
    wire.ENDED: (SubscriptionEnded, _RENEW),
    wire.KEY: (WrongKey, _RENEW),
    wire.VERSION: (ProtocolError, "the server is older or newer than this client"),
    wire.LIMIT: (LimitExceeded, "raise the limit in the server's configuration"),
    wire.UNAVAILABLE: (ServerError, "try again later"),
}


def error_of(code: int, text: bytes) -> QuintetError:
    """The typed error for an ERROR packet."""
    kind, hint = _ERRORS.get(code, (ServerError, "see the server's log"))
    error = kind(f"{text.decode(errors='replace') or wire.CODES.get(code, 'refused')} (ERROR {code})", hint=hint)
    error.retryable = code == wire.UNAVAILABLE
    return error


class KeyUpdate(NamedTuple):
    """The key of a queue was rotated: fetch a token with the new one and `renew` before the grace is over."""

    topic: str
    key: str


class FastConnection(SocketConnection, PushConnection, RequestConnection):
    """One connection to the Fast door, from EXTEND on."""

    def __init__(
        self,
        setup: Setup,
        door: "FastConnector",
        target: Target,
        lost: Callable[[ClientConnection, QuintetError], None],
    ) -> None:
        super().__init__(str(setup.endpoint), lost)
        self._door = door
        self._target = target
        self._on_event = setup.on_event
        self._publishes = PublishQueue(self._loop, self._send_calls)
        self._owed: dict[tuple[int, int], deque[PublishCall]] = {}  # (request, topic) -> in the order of their answers
        self._subscribed: dict[int, str] = {}
        self._over: dict[int, QuintetError] = {}  # subscriptions that ended while a SUBSCRIBE was under way
        self._shown = b""  # the last token that was sent here
        self._good = False  # and it is known that the server accepted it
        self._whole = False  # the server knows record sets

    # -- requests --------------------------------------------------------------------------------------------------

    async def handshake(self) -> None:
        """EXTEND, and then the token, because a connection that shows none is closed."""
        try:
            try:
                await self._ask(frames.EXTEND, TOPIC_NONE, codec.extend(frames.WHOLE))
                self._whole = True
            except ProtocolError:  # an older broker
                await self._ask(frames.EXTEND, TOPIC_NONE, codec.extend())
        except ConnectionLost as error:
            hint = f"is {self._where} the Fast port of a Quintet broker? Others do not know EXTEND"
            raise ConnectionLost(error.message, hint=hint) from error
        await self._show()

    async def _show(self) -> None:
        """The whole token: UNSUBSCRIBE of no topic changes nothing, and every answer but a refused token says that it is
        good."""
        self._good = False
        token = self._jwt()
        with suppress(TopicNotFound, Forbidden, WrongKey):
            await self._ask(frames.UNSUBSCRIBE, TOPIC_NONE, codec.unsubscribe(token, TOPIC_NONE))
        self._good = self._shown == token  # unless another was sent since

    def _jwt(self) -> bytes:
        """What the next packet carries."""
        if self._shown != self._door.token:
            self._shown, self._good = self._door.token, False
        return b"" if self._good else self._shown

    async def _ask(self, request: int, topic: int, packet: bytes) -> None:
        """Send one packet and wait for its answer."""
        call = self._publishes.call(Load("", (b"",)), inf)
        self._publishes.flush()
        self._owed.setdefault((request, topic), deque()).append(call)
        self.write(packet)
        outcome = await call.done
        if outcome.failures:
            raise outcome.failures[0][1]

    def request(self, name: str, fields: Fields) -> "asyncio.Future[Fields]":
        if self._lost is not None:
            raise self._lost
        return self._loop.create_task(self._perform(name, dict(fields)))

    async def _perform(self, name: str, fields: Fields) -> Fields:
        """CREATE topic durable exclusive queue ttl, ROTATE_KEY topic key, RENEW token."""
        try:
            if name == "RENEW":
                await self._door.renew(str(fields.pop("token")))
            elif name == "CREATE":
                topic = str(fields.pop("topic")).encode()
                packet = codec.create(self._jwt(), topic, _flags(fields))
                await self._ask(frames.CREATE, fnv1a(topic), packet)
            elif name == "ROTATE_KEY":
                id = fnv1a(str(fields.pop("topic")).encode())
                packet = codec.rotate_key(self._jwt(), id, str(fields.pop("key")).encode())
                await self._ask(frames.ROTATE_KEY, id, packet)
            else:
                raise Unsupported(f"Fast has no operation {name}", hint="CREATE, ROTATE_KEY and RENEW are those it has")
        except KeyError as missing:
            raise TypeError(f"{name} needs {missing.args[0]}=") from None
        if fields:
            raise TypeError(f"{name} has no field {', '.join(fields)}")
        return {}

    async def subscribe(self, topic: str, qos: int, from_start: bool = False) -> int:
        id = fnv1a(topic.encode())
        self._subscribed[id] = topic
        await self._ask(frames.SUBSCRIBE, id, codec.subscribe(self._jwt(), id))
        return id

    async def renew(self) -> None:
        """Show the new token, also for what is subscribed here."""
        await self._show()
        for id in self._subscribed:
            await self._ask(frames.SUBSCRIBE, id, codec.subscribe(self._jwt(), id))

    def attach(self, subscription: int) -> None:
        raise AssertionError("a subscription of Fast ends with its connection; FastSource subscribes again")

    async def barrier(self) -> None:
        self._publishes.flush()
        owed = [call.done for calls in self._owed.values() for call in calls if call.load.qos]
        await self._ask(frames.EXTEND, TOPIC_NONE, codec.extend())
        if owed:
            await asyncio.wait(owed)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        if self._lost is not None:
            raise self._lost
        if not self._whole and _is_whole(load):
            raise Unsupported(
                f"{self._where} does not carry keys, headers and ttl=", hint="a broker that knows EXTEND 3 does"
            )
        return self._publishes.add(load, wait)

    def _send_calls(self, calls: list[PublishCall]) -> None:
        """All calls of this turn: neighbours of one topic in one kernel call, everything in one write."""
        jwt = self._jwt()
        parts: list[bytes] = []
        for run in runs(calls, _like):
            head = run[0].load
            id = fnv1a(head.topic.encode())
            if _is_whole(head):
                front = codec.records_head(jwt, id, 0)
                columns = (head.values, head.keys, head.headers)
                parts.append(kernel.records_pack(*columns, head.ttl_ms, front, b"", (len(front) - _LENGTH_BYTES,)))
                self._owed.setdefault((frames.RECORDS, id), deque()).extend(run)
                continue
            parts.append(kernel.fast_publish(jwt, id, values_of(run)))
            self._owed.setdefault((frames.PUBLISH, id), deque()).extend(run)
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def ack(self, subscription: int, tags: object) -> None:
        raise AssertionError("messages of Fast are not acknowledged")

    # -- receiving -------------------------------------------------------------------------------------------------

    def received(self, data: bytes | bytearray) -> tuple[int, int]:
        items, consumed, fatal = kernel.fast_received(data, 0, PAYLOAD_READ_MAX)
        for item in items:
            kind, *rest = item
            if kind == frames.MESSAGE:
                topic, values = cast(tuple[int, list[bytes]], tuple(rest))
                rows: Rows = [(0, 0, value) for value in values]
                self._target.on_records(self._subscribed.get(topic, f"#{topic:08x}"), rows)
            elif kind == frames.MESSAGES:
                topic, data = cast(tuple[int, bytes], tuple(rest))
                self._records(topic, data)
            elif kind == frames.OK:
                request, topic, count = cast(tuple[int, int, int], tuple(rest))
                self._answered(request, topic, count)
            elif kind == frames.ERROR:
                request, topic, code, text = cast(tuple[int, int, int, bytes], tuple(rest))
                if code == wire.ENDED:
                    self._ended(topic, error_of(code, text))
                else:
                    self._refused(request, topic, error_of(code, text))
            else:
                topic, key = cast(tuple[int, bytes], tuple(rest))
                self._key_updated(topic, key)
        if fatal:
            raise ProtocolError(
                f"{self._where} sent what is not a packet of Fast ({wire.FATAL.get(fatal, 'an OK with a text')})",
                hint="is this the Fast port of a Quintet broker?",
            )
        head = data[consumed : consumed + frames.MESSAGE_HEAD.size]
        whole = len(head) == frames.MESSAGE_HEAD.size and head[0] in (frames.MESSAGE, frames.MESSAGES)
        return consumed, frames.MESSAGE_HEAD.size + frames.MESSAGE_HEAD.unpack(head)[2] if whole else 0

    def _records(self, topic: int, data: bytes) -> None:
        try:
            rows = kernel.records_received(data, 0)
        except ValueError as error:
            raise ProtocolError(f"{self._where} sent a record set that cannot be read: {error}") from None
        self._target.on_records(self._subscribed.get(topic, f"#{topic:08x}"), cast(Rows, rows))

    def _answered(self, request: int, topic: int, count: int) -> None:
        if request == frames.SUBSCRIBE:
            self._over.pop(topic, None)
        owed = self._owed.get((request, topic))
        while count:
            if not owed:
                raise ProtocolError(
                    f"{self._where} answered {frames.NAMES.get(request, request)} more often than asked"
                )
            call = owed[0]
            some = min(count, call.left)
            call.answered(call.left if request == frames.RECORDS else some)  # a set has one answer
            count -= 1 if request == frames.RECORDS else some
            if not call.left:
                owed.popleft()
        if not owed:
            self._owed.pop((request, topic), None)

    def _refused(self, request: int, topic: int, error: QuintetError) -> None:
        owed = self._owed.get((request, topic))
        if owed:
            refused = owed[0].left if request == frames.RECORDS else 1
            owed[0].refuse(len(owed[0].load.values) - owed[0].left, error, refused)
            owed[0].answered(refused)
            if not owed[0].left:
                owed.popleft()
            if not owed:
                del self._owed[request, topic]
            if request == frames.SUBSCRIBE and topic in self._over:
                self.fail(self._over[topic])
        else:
            log.warning("the server refused something that nobody waits for: %s", error)

    def _ended(self, topic: int, error: QuintetError) -> None:
        """A subscription is over. That is no answer: a SUBSCRIBE that crossed it is still owed one, and begins it anew."""
        if self._owed.get((frames.SUBSCRIBE, topic)):
            self._over[topic] = error
        elif topic in self._subscribed:
            self.fail(error)

    def _key_updated(self, topic: int, key: bytes) -> None:
        name = self._subscribed.get(topic, f"#{topic:08x}")
        if self._on_event is None:
            log.warning("the key of %r was rotated: a token with the new one is needed, see Queues.renew", name)
        else:
            self._on_event(KeyUpdate(name, key.decode(errors="replace")))

    # -- the end ---------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        call = self._publishes.call(Load("", (b"",), 0), inf)
        self._owed.setdefault((frames.EXTEND, TOPIC_NONE), deque()).append(call)
        self.write(codec.extend())

    def abandon(self, error: QuintetError) -> None:
        calls = [call for owed in self._owed.values() for call in owed]
        self._owed.clear()
        for call in calls:
            call.fail_with_refusal(error)
            if not call.load.qos and not call.done.cancelled():
                call.done.exception()  # nobody waits for it: that it failed is known by other ways
        self._publishes.fail(error)


def _is_whole(load: Load) -> bool:
    """Does it need a record set?"""
    return load.headers is not None or load.keys is not None or load.ttl_ms > 0


def _like(one: Load, other: Load) -> bool:
    """May both be packets of one kernel call?"""
    return one.topic == other.topic and not (_is_whole(one) or _is_whole(other))


class FastSource(PushSource):
    """A subscription that ends with its connection, and is made again on the next."""

    async def _attach(self, connection: ClientConnection) -> None:
        assert isinstance(connection, FastConnection), "this door makes them"
        await connection.subscribe(self._topic, self._qos)

    @property
    def id(self) -> int:
        raise Unsupported("a subscription of Fast has no id", hint="a durable queue keeps what nobody has read")

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        """There is nothing to say: messages are not acknowledged here."""


class FastConnector:
    """How to open connections to the Fast door; one for each bus, because all its connections show the same token."""

    name = "fast"
    limits = Limits(
        frame_overhead_bytes=0,
        frame_bytes_max=frames.PAYLOAD_BYTES_MAX,
        topic_bytes_max=frames.NAME_BYTES_MAX,
        ttl_ms_max=RECORD_TTL_MS_MAX,
        in_flight_max=1,
    )
    lacks: Final = {
        "partition": "the FlyMQ door has partitions",
        "delay": "the FlyMQ door delays messages",
        "schema": "the FlyMQ door checks schemas",
        "idempotent": "the FlyMQ door has idempotent producers",
        "compression": "the FlyMQ door compresses",
        "ask": "a topic for replies would need a key that both sides have; the BlipMQ, FlyMQ and Felix doors ask",
        "group": "a queue made with queue=True shares its messages among subscribers; the FlyMQ door has groups",
        "start": "the FlyMQ door has consumer groups, and they have a start",
        "member": "the FlyMQ door has consumer groups, and they have members",
        "retry": "nothing is delivered again here: messages of Fast are not acknowledged",
        "filter": "the FlyMQ door filters on the server",
        "pattern": "the BlipMQ, FlyMQ and Felix doors find topics by a pattern",
        "transaction": "the FlyMQ door has transactions",
        "fetch": "the FlyMQ door reads by offset",
        "replay": "the FlyMQ door reads what was there before",
        "durable": "the Felix door keeps positions by name",
        "kv": "the Felix door has a cache",
        "resume": "a durable queue keeps what nobody has read; the BlipMQ door has ids to resume",
    }

    def __init__(self, token: str = "") -> None:
        self.token = _checked(token)
        self._links: WeakSet[FastConnection] = WeakSet()

    def for_bus(self, endpoint: Endpoint, name: str) -> Connector:
        if not endpoint.secret:
            raise BadUrl("the URL has no token", hint="fast://:TOKEN@HOST:7400; `quintet token mint` makes one")
        return FastConnector(endpoint.secret)

    async def renew(self, token: str) -> None:
        """From now on with this token: for what is sent, and for what is subscribed. A connection that refuses it does not
        keep the others from showing it; one that is lost comes back with it."""
        self.token = _checked(token)
        refused: QuintetError | None = None
        for connection in list(self._links):
            try:
                if connection.lost is None:
                    await connection.renew()
            except ConnectionLost:
                continue
            except QuintetError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    async def open(
        self, setup: Setup, target: Target, lost: Callable[[ClientConnection, QuintetError], None]
    ) -> ClientConnection:
        connection = FastConnection(setup, self, target, lost)
        await dial(setup, connection)
        await shake_hands(setup, connection, connection.handshake())
        self._links.add(connection)
        return connection

    def source(self, setup: Setup, wanted: Wanted) -> Source:
        return FastSource(setup, wanted.topic, qos=0, resume=None)


class Queues:
    """What only Fast has, on a bus of its door: queues with a key. `Queues(bus).create("jobs", queue=True)`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def create(
        self,
        topic: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        queue: bool = False,
        ttl: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Make a queue whose key is that of our token. Making it again with the same key does nothing.

        durable    it outlives the broker, and keeps what is published while nobody is subscribed
        exclusive  one subscriber at a time
        queue      each message goes to one of the subscribers; else to all of them
        ttl        messages are dropped at the age that the broker is configured with
        """
        flags = {"durable": durable, "exclusive": exclusive, "queue": queue, "ttl": ttl}
        await self._bus.request("CREATE", topic=topic, timeout=timeout, **flags)

    async def rotate(self, topic: str, key: str, *, timeout: float | None = None) -> None:
        """Change the key of a queue. Tokens with the old one, ours too, are good for nothing from now on: `renew`."""
        await self._bus.request("ROTATE_KEY", topic=topic, key=key, timeout=timeout)

    async def renew(self, token: str, *, timeout: float | None = None) -> None:
        """Use another token from now on, for what is published and for what is subscribed."""
        await self._bus.request("RENEW", token=token, timeout=timeout)


def _flags(fields: Fields) -> int:
    bits = (
        ("durable", frames.DURABLE), ("exclusive", frames.EXCLUSIVE), ("queue", frames.COMPETING), ("ttl", frames.TTL),
    )  # fmt: skip
    return sum(bit for name, bit in bits if fields.pop(name, False))


def _checked(token: str) -> bytes:
    data = token.encode()
    if len(data) > frames.TOKEN_BYTES_MAX:
        raise BadUrl(
            f"the token has {len(data)} bytes, and {frames.TOKEN_BYTES_MAX} fit into a packet",
            hint="mint it with fewer or shorter claims",
        )
    return data


CONNECTOR: Final = FastConnector()
