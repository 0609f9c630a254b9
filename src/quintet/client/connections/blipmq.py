"""The BlipMQ door: HELLO, AUTH, and then publishes under barriers and pushed deliveries.

A publish has no answer when it succeeds, so a PING behind it is the answer: its PONG says that every earlier QoS 1
publish of this connection is durable, and a failed one was NACKed with its correlation id before. All that is published
in one turn of the loop shares one write and one PING:

    PUBLISH PUBLISH PUBLISH ... PING  -->                one group
                                     <--  NACK* PONG     the group is settled

It asks for our own version first, which has words for credit, "still working" and giving back (ADR 14), and for version 2
where the server does not know that one.

A DELIVER frame does not name its subscription, therefore each subscription has a connection of its own.

Correlation ids that we choose have the top bit set. A NACK of an ACK carries the delivery tag, and the server's tags are
below that, so that a refused acknowledgement is never taken for the answer to a request.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, cast

from quintet import kernel
from quintet.client.core.base import (
    ClientConnection,
    Connector,
    Limits,
    Load,
    Outcome,
    PushConnection,
    Setup,
    SocketConnection,
    Target,
    Wanted,
    WriteTimeout,
    dial,
    shake_hands,
)
from quintet.client.core.errors import BadUrl, ServerError, SubscriptionEnded
from quintet.client.core.message import Rows, log
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint
from quintet.client.sources.push import PushSource
from quintet.model.errors import (
    AuthError,
    BadName,
    Forbidden,
    ProtocolError,
    QuintetError,
    StorageError,
    UnknownSubscription,
)
from quintet.protocols.blipmq import codec
from quintet.protocols.blipmq.errors import FATAL
from quintet.protocols.blipmq.frames import (
    ACK,
    CREDIT,
    DELAY_CONFIGURED,
    DELIVER,
    FRAME_BYTES_MAX,
    GIVE_BACK,
    NACK,
    NAMES,
    OURS,
    PONG,
    PUBLISH,
    TOPIC_BYTES_MAX,
    WORKING,
)

VERSIONS: Final = (OURS, 2)  # in the order they are asked for
IDS_FROM: Final = 1 << 63
HEARTBEAT_ID: Final = (1 << 64) - 1
ACKS_PER_WRITE: Final = 256  # single acknowledgements gathered at most before they are written
FAILURES_KEPT_MAX: Final = 1_000  # per publish call; a storm of NACKs beyond it is only counted
KEY_BYTES_MAX: Final = 65_535
U32_MAX: Final = (1 << 32) - 1


class Unspoken(ProtocolError):
    """The server does not speak the version that was asked for."""


# NACK code -> [(text it starts with, error, what to do)], first match wins.
_NACKS: Final[dict[int, tuple[tuple[str, type[QuintetError], str], ...]]] = {
    400: (
        ("empty topic", BadName, "a topic has 1 to 255 bytes of UTF-8 without NUL"),
        ("topic", BadName, "a topic has 1 to 255 bytes of UTF-8 without NUL"),
        ("", ProtocolError, "the server did not accept what this client sent: are their versions far apart?"),
    ),
    401: (
        ("invalid API key", AuthError, "put the key into the URL: blipmq://:KEY@host:port"),
        ("unauthenticated", AuthError, "put the key into the URL: blipmq://:KEY@host:port"),
        ("", Forbidden, "this API key may not do that; ask for the right on this topic"),
    ),
    404: (("", UnknownSubscription, "it was settled already, or belongs to another API key"),),
    426: (("", ProtocolError, "this client speaks BlipMQ version 2; the server is older"),),
    500: (
        ("durable publish failed", StorageError, "nothing was acknowledged; try again later, see the server's log"),
        ("", ServerError, "try again later, see the server's log"),
    ),
}


def error_of(code: int, text: str) -> QuintetError:
    """The typed error for a NACK. The document calls every 500 transient, so all of them are retryable."""
    for start, kind, hint in _NACKS.get(code, (("", ServerError, ""),)):
        if text.startswith(start):
            error = kind(f"{text} (NACK {code})", hint=hint)
            error.retryable = code == 500
            return error
    raise AssertionError("the last row of each code matches every text")


class _Call:
    """One publish call: which ids are its messages', and who waits."""

    __slots__ = ("done", "expires", "failures", "first", "load", "refused", "wait")

    def __init__(self, load: Load, wait: float, expires: float, done: "asyncio.Future[Outcome]") -> None:
        self.load = load
        self.wait = wait
        self.expires = expires
        self.done = done
        self.first = 0
        self.refused = 0
        self.failures: list[tuple[int, QuintetError]] = []

    def like(self, other: "_Call") -> bool:
        mine, its = self.load, other.load
        return mine.topic == its.topic and mine.qos == its.qos and mine.ttl_ms == its.ttl_ms


class _Group:
    """The calls that one PING settles, and the one timer for all of them."""

    __slots__ = ("calls", "ping", "watch")

    def __init__(self, ping: int, calls: list[_Call]) -> None:
        self.ping = ping
        self.calls = calls
        self.watch = WriteTimeout(calls)

    def settle(self) -> None:
        self.watch.end()
        for call in self.calls:
            if not call.done.done():
                call.done.set_result(Outcome(call.refused, tuple(call.failures)))


class BlipConnection(SocketConnection, PushConnection):
    """One BlipMQ connection, from HELLO on."""

    def __init__(self, where: str, target: Target, lost: Callable[[ClientConnection, QuintetError], None]) -> None:
        super().__init__(where, lost)
        self._target = target
        self._next_id = IDS_FROM
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._calls: list[_Call] = []  # published in this turn, not sent yet
        self._groups: deque[_Group] = deque()  # in the order of their PINGs
        self._acks: list[bytes] = []
        self._version = 0  # as agreed

    # -- handshake and requests ------------------------------------------------------------------------------------

    async def handshake(self, key: bytes) -> None:
        """HELLO and AUTH in one write; if HELLO is refused, its answer is the one that counts."""
        for version in VERSIONS:
            first, second = self._new_id(), self._new_id()
            answers = [self._expect(first), self._expect(second)]
            self.write(codec.hello(first, version) + codec.auth(second, key))
            greeted, known = await asyncio.gather(*answers, return_exceptions=True)
            if isinstance(greeted, Unspoken) and version != VERSIONS[-1]:
                continue
            for answer in (greeted, known):
                if isinstance(answer, BaseException):
                    raise answer
            self._version = version
            return

    async def subscribe(self, topic: str, qos: int) -> int:
        id = self._new_id()
        answer = self._expect(id)
        self.write(codec.subscribe(id, topic.encode(), qos))
        subscription = codec.parse_u64(await answer)
        if not subscription:
            raise ProtocolError("the server's answer to SUBSCRIBE holds no subscription id")
        return subscription

    def attach(self, subscription: int) -> None:
        self.write(codec.poll(self._new_id(), subscription))

    @property
    def words(self) -> bool:
        return self._version == OURS

    async def credit(self, subscription: int, count: int) -> float:
        id = self._new_id()
        answer = self._expect(id)
        self.write(codec.word(id, CREDIT, subscription, min(count, U32_MAX)))
        try:
            timeout_ms = codec.parse_u64(await answer)
        except UnknownSubscription:
            raise SubscriptionEnded(
                f"there is no subscription {subscription} of this API key",
                hint="it was idle for too long, or made with another key: subscribe without resume=",
            ) from None
        if timeout_ms is None:
            raise ProtocolError("the server's answer to CREDIT holds no time-out")
        return timeout_ms / 1000

    def working(self, subscription: int, tags: Sequence[int]) -> None:
        self._flush_acks()
        runs: list[tuple[int, int]] = []
        for tag in sorted(tags):
            if runs and sum(runs[-1]) == tag:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((tag, 1))
        self.write(b"".join(codec.word(tag, WORKING, subscription, count) for tag, count in runs))

    def nack(self, subscription: int, tags: Sequence[int], delay: float | None) -> None:
        self._flush_acks()
        argument = DELAY_CONFIGURED if delay is None else min(round(delay * 1000), DELAY_CONFIGURED - 1)
        self.write(b"".join(codec.word(tag, GIVE_BACK, subscription, argument) for tag in tags))

    async def barrier(self) -> None:
        self._flush_acks()
        id = self._new_id()
        answer = self._expect(id)
        self.write(codec.ping(id))
        await answer

    def _new_id(self, count: int = 1) -> int:
        id = self._next_id
        self._next_id += count
        return id

    def _expect(self, id: int) -> "asyncio.Future[bytes]":
        future = self._requests[id] = self._loop.create_future()
        future.add_done_callback(lambda _: self._requests.pop(id, None))
        return future

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        if self._lost is not None:
            raise self._lost
        done: asyncio.Future[Outcome] = self._loop.create_future()
        if not self._calls:
            self._loop.call_soon(self._flush_calls)
        self._calls.append(_Call(load, wait, self._loop.time() + wait, done))
        return done

    def _flush_calls(self) -> None:
        """All calls of this turn: neighbours of one kind in one kernel call, everything in one write."""
        calls, self._calls = self._calls, []
        if self._lost is not None:
            return
        parts: list[bytes] = []
        at = 0
        while at < len(calls):
            head, end = calls[at], at + 1
            while end < len(calls) and calls[end].like(head):
                end += 1
            parts.append(self._encode(calls[at:end]))
            at = end
        waiting = [call for call in calls if call.load.qos]
        if waiting:
            ping = self._new_id()
            parts.append(codec.ping(ping))
            group = _Group(ping, waiting)
            group.watch.check(self._loop)
            self._groups.append(group)
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))
        for call in calls:
            if not call.load.qos and not call.done.done():
                call.done.set_result(Outcome(0, ()))

    def _encode(self, calls: list[_Call]) -> bytes:
        head = calls[0].load
        values = head.values
        if len(calls) > 1:
            values = [value for call in calls for value in call.load.values]
        first = id = self._new_id(len(values))
        for call in calls:
            call.first = id
            id += len(call.load.values)
        return kernel.blip_publish(head.topic.encode(), head.qos, values, first, head.ttl_ms)

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def ack(self, subscription: int, tags: Sequence[int]) -> None:
        if self._lost is not None:
            raise self._lost
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks += [codec.ack(tag, subscription) for tag in tags]
        if len(tags) > 1 or len(self._acks) >= ACKS_PER_WRITE:
            self._flush_acks()

    def _flush_acks(self) -> None:
        if self._acks and self._lost is None:
            data = b"".join(self._acks)
            self._acks.clear()
            self.write(data)

    # -- receiving -------------------------------------------------------------------------------------------------

    def received(self, data: bytes | bytearray) -> tuple[int, int]:
        items, consumed, fatal = kernel.blip_received(data, 0, FRAME_BYTES_MAX)
        for item in items:
            kind = item[0]
            if kind in (DELIVER, PUBLISH):
                self._target.on_records(cast(bytes, item[1]).decode(errors="replace"), cast(Rows, item[2]))
            else:
                self._reply(cast(int, kind), cast(int, item[1]), cast(bytes, item[2]))
        if fatal:
            raise ProtocolError(
                f"{self._where} sent what is not a BlipMQ frame ({FATAL.get(fatal, 'malformed payload')})",
                hint="is this the BlipMQ port of a Quintet broker?",
            )
        rest = len(data) - consumed
        wanted = 4 + int.from_bytes(data[consumed : consumed + 4], "big") if rest >= 4 else 0
        return consumed, wanted

    def _reply(self, kind: int, id: int, payload: bytes) -> None:
        if kind == PONG:
            if self._groups and self._groups[0].ping == id:
                self._groups.popleft().settle()
            elif id != HEARTBEAT_ID:
                self._answer(id, payload)
        elif kind == ACK:
            self._answer(id, payload)
        elif kind == NACK:
            self._refused(id, payload)
        else:
            raise ProtocolError(f"{self._where} sent {NAMES[kind]}, which only clients send")

    def _answer(self, id: int, payload: bytes) -> None:
        waiting = self._requests.get(id)
        if waiting is not None and not waiting.done():
            waiting.set_result(payload)

    def _refused(self, id: int, payload: bytes) -> None:
        parsed = codec.parse_nack(payload)
        if parsed is None:
            raise ProtocolError(f"{self._where} sent a NACK that does not parse")
        waiting = self._requests.get(id)
        if waiting is not None:
            if not waiting.done():
                error = error_of(*parsed)
                waiting.set_exception(Unspoken(str(error), hint=error.hint) if parsed[0] == 426 else error)
        elif id < IDS_FROM:
            self._target.on_refused(id, error_of(*parsed))
        elif not self._blame(id, parsed):
            log.warning("the server refused something that nobody waits for: %s (NACK %d)", parsed[1], parsed[0])

    def _blame(self, id: int, nack: tuple[int, str]) -> bool:
        """Note a failed publish with the call it belongs to; its caller learns of it at the PONG."""
        group = next((group for group in self._groups if id < group.ping), None)
        if group is None:
            return False
        at = bisect_right(group.calls, id, key=lambda call: call.first) - 1
        call = group.calls[at]
        if at < 0 or not call.first <= id < call.first + len(call.load.values):
            return False
        call.refused += 1
        if call.refused <= FAILURES_KEPT_MAX:
            call.failures.append((id - call.first, error_of(*nack)))
        return True

    # -- the end ---------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        self.write(codec.ping(HEARTBEAT_ID))

    def abandon(self, error: QuintetError) -> None:
        waiting: list[asyncio.Future[bytes] | asyncio.Future[Outcome]] = [*self._requests.values()]
        for group in self._groups:
            group.watch.end()
            waiting += [call.done for call in group.calls]
        waiting += [call.done for call in self._calls]
        self._groups.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


class BlipConnector:
    """How to open BlipMQ connections."""

    name = "blipmq"
    limits = Limits(
        frame_overhead_bytes=9 + 1 + 4 + 2,
        frame_bytes_max=FRAME_BYTES_MAX,
        topic_bytes_max=TOPIC_BYTES_MAX,
        ttl_ms_max=(1 << 32) - 1,
        in_flight_max=1_000,
    )
    lacks: Final = {
        "request": "the FlyMQ door works by request and answer",
        "key": "the FlyMQ door carries keys",
        "partition": "the FlyMQ door has partitions",
        "delay": "the FlyMQ door delays messages",
        "schema": "the FlyMQ door checks schemas",
        "idempotent": "the FlyMQ door has idempotent producers",
        "compression": "the FlyMQ door compresses",
        "group": "the FlyMQ door has consumer groups",
        "start": "the FlyMQ door has consumer groups, and they have a start",
        "member": "the FlyMQ door has consumer groups, and they have members",
        "retry": "the broker delivers again by itself here, as configured; the FlyMQ door leaves it to the client",
        "filter": "the FlyMQ door filters on the server",
        "transaction": "the FlyMQ door has transactions",
        "fetch": "the FlyMQ door reads by offset",
        "replay": "the FlyMQ door reads what was there before",
        "durable": "the Felix door keeps positions by name",
        "kv": "the Felix door has a cache",
        "headers": "BlipMQ frames have no place for headers; put them into the value",
    }

    def for_bus(self, endpoint: Endpoint, name: str) -> Connector:
        return self

    async def open(
        self, setup: Setup, target: Target, lost: Callable[[ClientConnection, QuintetError], None]
    ) -> ClientConnection:
        endpoint = setup.endpoint
        key = endpoint.secret.encode()
        if len(key) > KEY_BYTES_MAX:
            raise BadUrl(f"the API key is longer than {KEY_BYTES_MAX} bytes")
        connection = BlipConnection(str(endpoint), target, lost)
        await dial(setup, connection)
        await shake_hands(setup, connection, connection.handshake(key))
        return connection

    def source(self, setup: Setup, wanted: Wanted) -> Source:
        return PushSource(setup, wanted.topic, qos=wanted.qos, resume=wanted.resume, credit=wanted.prefetch)


CONNECTOR: Final = BlipConnector()
