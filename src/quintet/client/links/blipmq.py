"""Speaks BlipMQ: HELLO, AUTH, then publishes confirmed by PING and PONG, and pushed deliveries.

A publish has no answer when it succeeds, so a PING behind it is the answer: its PONG says that every earlier QoS 1
publish of this connection is durable, and a failed one was NACKed with its correlation id before. All that is published
in one turn of the loop shares one write and one PING:

    PUBLISH PUBLISH PUBLISH ... PING  -->                one group
                                     <--  NACK* PONG     the group is settled

It asks for our own version first, which has words for credit, "still in progress" and giving back (ADR 14), and for version 2
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
from typing import Final, NamedTuple, cast

from quintet import kernel
from quintet.client.core.base import (
    ClientConnection,
    Connector,
    Limits,
    MatchConnection,
    Matched,
    PushConnection,
    Setup,
    SocketConnection,
    Target,
    Wanted,
    dial,
    shake_hands,
)
from quintet.client.core.errors import BadUrl, ServerError, SubscriptionEnded, Unsupported
from quintet.client.core.message import Rows, log
from quintet.client.core.publishing import Load, Outcome, PublishCall, PublishQueue, complete, fail, runs, values_of
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint
from quintet.client.sources.push import PushSource
from quintet.model.errors import (
    AuthError,
    BadName,
    BadRequest,
    Forbidden,
    LimitExceeded,
    NotLeader,
    ProtocolError,
    QuintetError,
    StorageError,
    UnknownSubscription,
)
from quintet.model.limits import RECORD_TTL_MS_MAX
from quintet.protocols.blipmq import codec
from quintet.protocols.blipmq.errors import FATAL
from quintet.protocols.blipmq.frames import (
    ACK,
    CREDIT,
    DELAY_CONFIGURED,
    DELIVER,
    FRAME_BYTES_MAX,
    FROM_START,
    GIVE_BACK,
    GIVE_UP,
    MATCH,
    NACK,
    NAMES,
    OURS,
    PONG,
    PUBLISH,
    RECORDS,
    TOPIC_BYTES_MAX,
    WHOLE,
    WORKING,
)

VERSIONS: Final = (WHOLE, OURS, 2)  # in the order they are asked for
IDS_FROM: Final = 1 << 63
HEARTBEAT_ID: Final = (1 << 64) - 1
ACKS_PER_WRITE: Final = 256  # single acknowledgements gathered at most before they are written
FRAME_READ_MAX: Final = 2 * FRAME_BYTES_MAX  # a delivery has more around the message than its publish had
KEY_BYTES_MAX: Final = 65_535
U32_MAX: Final = (1 << 32) - 1
_LENGTH_AT: Final = (0,)  # a frame begins with its length


class Unspoken(ProtocolError):
    """The server does not speak the version that was asked for."""


# How refusals of a record set begin (protocols/records.py).
_SET_REFUSALS: Final = ("record ", "a record set", "the name of header", "a header name")
# NACK code -> [(text it starts with, error, what to do)], first match wins.
_NACKS: Final[dict[int, tuple[tuple[str, type[QuintetError], str], ...]]] = {
    400: (
        ("empty topic", BadName, "a topic has 1 to 255 bytes of UTF-8 without NUL"),
        ("topic", BadName, "a topic has 1 to 255 bytes of UTF-8 without NUL"),
        *((start, BadRequest, "the text says which record, and why") for start in _SET_REFUSALS),
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
        ("not leader", NotLeader, "connect to the leader, or name several nodes in the URL"),
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


def _like(one: Load, other: Load) -> bool:
    """May both be frames of one kernel call?"""
    plain = not (_is_whole(one) or _is_whole(other))
    return plain and one.topic == other.topic and one.qos == other.qos and one.ttl_ms == other.ttl_ms


def _is_whole(load: Load) -> bool:
    """Does it need a record set?"""
    return load.headers is not None or load.keys is not None


class _Group(NamedTuple):
    """The calls that one PING completes."""

    ping: int
    calls: list[PublishCall]


class BlipConnection(SocketConnection, PushConnection, MatchConnection):
    """One BlipMQ connection, from HELLO on."""

    def __init__(self, where: str, target: Target, lost: Callable[[ClientConnection, QuintetError], None]) -> None:
        super().__init__(where, lost)
        self._target = target
        self._next_id = IDS_FROM
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._publishes = PublishQueue(self._loop, self._send_calls)
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

    async def subscribe(self, topic: str, qos: int, from_start: bool = False) -> int:
        id = self._new_id()
        answer = self._expect(id)
        self.write(codec.subscribe(id, topic.encode(), qos | FROM_START if from_start else qos))
        subscription = codec.parse_u64(await answer)
        if not subscription:
            raise ProtocolError("the server's answer to SUBSCRIBE holds no subscription id")
        return subscription

    def attach(self, subscription: int) -> None:
        self.write(codec.poll(self._new_id(), subscription))

    @property
    def extends_deadlines(self) -> bool:
        return self._version >= OURS

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

    def in_progress(self, subscription: int, tags: Sequence[int]) -> None:
        self._flush_acks()
        runs: list[tuple[int, int]] = []
        for tag in sorted(tags):
            if runs and sum(runs[-1]) == tag:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((tag, 1))
        self.write(b"".join(codec.word(tag, WORKING, subscription, count) for tag, count in runs))

    def nack(self, subscription: int, tags: Sequence[int], delay: float | None, dead: bool = False) -> None:
        self._flush_acks()
        argument = DELAY_CONFIGURED if delay is None else min(round(delay * 1000), DELAY_CONFIGURED - 1)
        word, argument = (GIVE_UP, 0) if dead else (GIVE_BACK, argument)
        self.write(b"".join(codec.word(tag, word, subscription, argument) for tag in tags))

    async def match(self, patterns: Sequence[str], version: int) -> Matched:
        if self._version < WHOLE:
            what = "patterns are known from BlipMQ version 0x5103 on"
            raise Unsupported(f"{self._where} speaks version {self._version:#x}: {what}", hint="update the broker")
        id = self._new_id()
        answer = self._expect(id)
        self.write(codec.match_topics(id, version, [text.encode() for text in patterns]))
        try:
            found = codec.parse_matched(await answer)
        except (ProtocolError, ServerError) as error:  # its NACK has a text and a code for many things
            if "pattern" in error.message:
                raise BadRequest(error.message) from None
            if "topics match" in error.message:
                raise LimitExceeded(error.message, hint="use a narrower pattern") from None
            raise
        if found is None:
            raise ProtocolError(f"{self._where} answered MATCH with what does not parse")
        return Matched(*found)

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
        if self._version < WHOLE and _is_whole(load):
            what = "keys and headers are carried from BlipMQ version 0x5103 on"
            raise Unsupported(f"{self._where} speaks version {self._version:#x}: {what}", hint="update the broker")
        return self._publishes.add(load, wait)

    def _send_calls(self, calls: list[PublishCall]) -> None:
        """All calls of this turn: neighbours of one kind in one kernel call, everything in one write."""
        alike = list(runs(calls, _like))
        for run in alike:
            for call in run:
                call.first = self._new_id(len(call.load.values))
        waiting = [call for call in calls if call.load.qos]
        pings = []
        if waiting:
            id = self._new_id()  # above those of what it completes
            pings.append(codec.ping(id))
            self._groups.append(_Group(id, waiting))
        if len(alike) == 1 and _is_whole(
            calls[0].load
        ):  # a set and its PING are made in one piece: joining them is a copy
            parts = [self._encode(calls, b"".join(pings))]
        else:
            parts = [self._encode(run) for run in alike] + pings
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def _encode(self, calls: Sequence[PublishCall], behind: bytes = b"") -> bytes:
        """Frames of one kind; with what comes behind a record set."""
        head, first = calls[0].load, calls[0].first
        if _is_whole(head):
            front = codec.records_head(first, head.topic.encode(), head.qos, 0)
            return kernel.records_pack(head.values, head.keys, head.headers, head.ttl_ms, front, behind, _LENGTH_AT)
        return kernel.blip_publish(head.topic.encode(), head.qos, values_of(calls), first, head.ttl_ms)

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
        items, consumed, fatal = kernel.blip_received(data, 0, FRAME_READ_MAX)
        for item in items:
            kind = item[0]
            if kind in (DELIVER, PUBLISH):
                self._target.on_records(cast(bytes, item[1]).decode(errors="replace"), cast(Rows, item[2]))
            elif kind == RECORDS:
                self._records(cast(bytes, item[2]))
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

    def _records(self, payload: bytes) -> None:
        parsed = codec.parse_records(payload)
        try:
            if isinstance(parsed, int):
                raise ValueError("its topic does not fit")
            qos, topic, data = parsed
            rows = kernel.records_received(data, qos)
        except ValueError as error:
            raise ProtocolError(f"{self._where} sent a record set that cannot be read: {error}") from None
        self._target.on_records(topic.decode(errors="replace"), cast(Rows, rows))

    def _reply(self, kind: int, id: int, payload: bytes) -> None:
        if kind == PONG:
            if self._groups and self._groups[0].ping == id:
                for call in self._groups.popleft().calls:
                    call.complete()
            elif id != HEARTBEAT_ID:
                self._answer(id, payload)
        elif kind in (ACK, MATCH):
            self._answer(id, payload)
        elif kind == NACK:
            self._refused(id, payload)
        else:
            raise ProtocolError(f"{self._where} sent {NAMES[kind]}, which only clients send")

    def _answer(self, id: int, payload: bytes) -> None:
        waiting = self._requests.get(id)
        if waiting is not None:
            complete(waiting, payload)

    def _refused(self, id: int, payload: bytes) -> None:
        parsed = codec.parse_nack(payload)
        if parsed is None:
            raise ProtocolError(f"{self._where} sent a NACK that does not parse")
        waiting = self._requests.get(id)
        if waiting is not None:
            error = error_of(*parsed)
            fail(waiting, Unspoken(error.message, hint=error.hint) if parsed[0] == 426 else error)
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
        if _is_whole(call.load):  # a set is refused as a whole
            call.refuse(0, error_of(*nack), len(call.load.values))
        else:
            call.refuse(id - call.first, error_of(*nack))
        return True

    # -- the end ---------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        self.write(codec.ping(HEARTBEAT_ID))

    def abandon(self, error: QuintetError) -> None:
        groups, self._groups = self._groups, deque()
        for call in (call for group in groups for call in group.calls):
            call.fail(error)
        self._publishes.fail(error)
        for future in list(self._requests.values()):
            fail(future, error)


class BlipConnector:
    """How to open BlipMQ connections."""

    name = "blipmq"
    limits = Limits(
        frame_overhead_bytes=9 + 1 + 4 + 2,
        frame_bytes_max=FRAME_BYTES_MAX,
        topic_bytes_max=TOPIC_BYTES_MAX,
        ttl_ms_max=RECORD_TTL_MS_MAX,
        in_flight_max=1_000,
    )
    lacks: Final = {
        "request": "the FlyMQ door works by request and answer",
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
        from_start = wanted.start == "earliest"  # of a topic that began to match (sources/many.py)
        return PushSource(
            setup, wanted.topic, qos=wanted.qos, resume=wanted.resume, credit=wanted.prefetch, from_start=from_start
        )


CONNECTOR: Final = BlipConnector()
