"""The contract between a connection (net/) and a session (protocols/x/), and the ordered replies all doors share.

A session is a state machine over bytes. The connection is its only caller and drains `take_output` after its calls, at the latest when
the turn ends, so output made because of another client's publish is never left lying. Every chunking of the same bytes gives the same
output, and replies keep the order of their requests however late durability completes: that is what `Replies` is for.

What a session owes beside its methods, and is owed:

    rights      It keeps the identity of its login, the principal, and `broker.access.epoch` of that moment. `receive` compares the
                epochs first. If they differ it asks `access.current(identity)` again, forgets what it remembered by the old rights
                (targets of publishes), and leaves subscriptions that `broker.subscription` does not give it any more; with no
                principal left it sets `closing`. A client that only listens is told by a `receive` of no bytes: the server calls
                `recheck` of every connection when the epoch has changed. Over QUIC, `shared.recheck(now)` does it for subscriptions
                whose stream is closed. What expires by a date (a token) is the session's own to look at.
    quotas      When a client has logged in, `broker.quotas.join(connection, name)` counts the connection for its user; LimitExceeded is
                answered as the wire can, and ends it. `closed` calls `quotas.leave`. Rates are kept by the connection alone (ADR 41).
    credit      A subscription that is attached pushes into `on_records` while the sink has room and its consumer has credit:
                `subscription.grant(n)` says how many unsettled records the client takes, 0 as many as configured. A session that
                grants nothing is bounded by room and delivery.in_flight_max.
    settling    `subscription.ack`, `nack`, `working`; each returns, or passes over, what is not this reader's to settle. There is no call
                that says "a record you hold was settled by other means": a record that timed out, was buried or was given to
                another reader is not pending here any more, and the session learns it from the return value of the acknowledgement.
                A subscription that was removed with its topic raises the epoch, so the session finds it gone when it looks again.
    skipping    Records that expired or were removed by retention are never pushed; a lane's `skipped` counts them, for a wire that
                tells its reader (Felix: lagged).
    deadlines   `deadline` is asked for at every sweep of the listener, as long as there is one. A session that had none and gets one
                again is not looked at by itself: only the WebSocket part needs that, and calls `watch` of its connection.
    the end     `closing` is drained and then shuts the transport; `closed` comes exactly once, also after a fault, and leaves every
                subscription (`broker.leave`, or `detach`). After it no callback enters the session.

Four members are read only where a session has them: `direct` (class Direct), `quick_ack` (the peer waits for the acknowledgement of TCP itself), `making`
(SessionConnection.claim), and over QUIC `quick`: None, or what answers a whole read in one call, (bytes, now) to the answer. It gives
nothing if `receive` has to take the read; what it answers owes nothing, is true when the turn ends, and leaves nothing. If it is None behind
an answer, the stream looks at `holding` and `congestion`, as behind `receive`.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from quintet.broker.identity.metering import Meter
from quintet.delivery.sink import Sink
from quintet.kernel.items import DirectReader
from quintet.model import limits
from quintet.model.batch import RecordBatch

LARGE_BYTES: Final = limits.MIB  # of a batch: below it a copy costs less than looking at its records one by one
LARGE_RECORDS_MAX: Final = 16
CLAIM_BYTES_MIN: Final = 64 * limits.KIB  # an answer of no more than this needs no claim

ALL: Final = -1  # in place of the number of a group: those that the kernel appended

Item = TypeVar("Item")

FLOWING: Final = 0
STALL: Final = 1
WAIT: Final = 2


class Slot:
    """A place in the order of replies, taken when a request is read and filled when its answer is known."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data: bytes | list[bytes] | None = None


class Holds(Slot):
    """A slot of what several appends are for. What the kernel appended to partitions in files in one call (log.base.Held) is told to the
    session by `on_appended`: with (slot, ALL) once for each way that it went, with (slot, number) of each group that came back."""

    __slots__ = ("missing", "told")
    missing: int  # words that are still to come
    told: Callable[[object, int, Exception | None], None]

    def hold(self, ways: int, others: int, told: Callable[[object, int, Exception | None], None]) -> None:
        """Wait for these ways, and for `others` that the session publishes itself."""
        self.missing = ways.bit_count() + others
        self.told = told

    def done(self) -> None:
        self.told((self, ALL), 0, None)

    def waiter(self, number: int) -> Callable[[int, Exception | None], None] | None:
        self.missing += 1
        return partial(self.told, (self, number))


class Replies:
    """Replies leave in the order of their slots, the first unfilled one holds back all behind it.

    reserve() -> Slot      a request whose answer comes later
    put(bytes)             an answer known now; goes straight out when nothing waits before it
    fill(slot, bytes)      the late answer; b"" for success that the wire does not show
    """

    __slots__ = ("_out", "_waiting", "slots")

    def __init__(self) -> None:
        self.slots = self._waiting = deque[Slot]()  # those not yet let out: for who asks once a read how many there are
        self._out: list[bytes] = []

    def put(self, data: bytes) -> None:
        if not self._waiting:
            self._out.append(data)
            return
        slot = Slot()
        slot.data = data
        self._waiting.append(slot)

    def reserve(self) -> Slot:
        slot = Slot()
        self._waiting.append(slot)
        return slot

    def add(self, slot: Slot) -> None:
        self._waiting.append(slot)

    def behind(self, slot: Slot) -> Slot:
        """A second slot right behind one that is not filled: for an answer that is made in parts."""
        rest = Slot()
        self._waiting.insert(self._waiting.index(slot) + 1, rest)
        return rest

    def fill(self, slot: Slot, data: bytes | list[bytes]) -> None:
        assert slot.data is None, "a reply slot is filled once"
        slot.data = data
        waiting = self._waiting
        while waiting and (ready := waiting[0].data) is not None:
            waiting.popleft().data = b""  # whoever still holds the slot does not hold the bytes
            if isinstance(ready, list):
                self._out += ready
            elif ready:
                self._out.append(ready)

    def push(self, data: bytes) -> None:
        """Send now, out of the order of replies: for frames the server sends by itself."""
        self._out.append(data)

    @property
    def waiting(self) -> int:
        """Replies not yet let out: the measure of how much this peer has in flight."""
        return len(self._waiting)

    def take(self) -> list[bytes]:
        out = self._out
        if out:
            self._out = []
        return out


def in_pieces(batch: RecordBatch, first: int, last: int) -> bool:
    """Should records first..last-1 be sent one by one, values as views of the batch (RecordBatch.row)? A copy of a large value
    keeps the loop too long: 0.8 ms a MiB where its pages are fresh."""
    return batch.length > LARGE_BYTES and last - first <= LARGE_RECORDS_MAX


def act_on(
    items: list[Item], act: Callable[[Item, int], None], now: int, over: Callable[[], bool]
) -> list[Item] | None:
    """Act on requests in their order until the turn is over; those that wait for a later one, or None."""
    for number, item in enumerate(items, 1):
        act(item, now)
        if number < len(items) and over():
            return items[number:]
    return None


class Session(Protocol):
    """One connection's side of a protocol."""

    closing: str | None
    """Why the transport must be shut after draining, or None. Empty: the peer asked for it, and nothing is said."""

    @property
    def auth_failures(self) -> int:
        """Failed authentications so far: the listener counts them per address."""

    @property
    def principal_name(self) -> str | None:
        """Who is on the other side once authenticated, else None."""

    @property
    def holding(self) -> bool:
        """True while whole frames are left unconsumed until a late answer: the connection reads nothing meanwhile, and
        offers what is left again when this has turned False."""

    @property
    def stopped(self) -> bool:
        """True when the last `receive` left whole frames because its answers are large or because the turn is over
        (SessionConnection.turn_over): the connection drains, and offers the rest again, which may be no bytes at all, in a turn
        that is not over and as soon as the peer has room."""

    @property
    def operation(self) -> str:
        """The name of the request that was acted on last, for the log. Where the wire has ids of requests, a session also has
        `request`: the id of that one, as text (model/client_address.py::request_text if the client chose it)."""

    @property
    def unanswered(self) -> int:
        """Requests that were acted on and whose answers are not known yet, as far as the wire has answers."""

    def receive(self, view: memoryview, now: int) -> int:
        """All bytes not yet consumed; returns how many are consumed now. `view` is written to again after the call, except
        for a frame of more than limits.READ_BUFFER_BYTES that was consumed: views of that one may be kept, and hold all of
        its buffer. `now` is a date: it judges tokens, delays and
        expiry. What lasts (rates, windows, time-outs) is measured by the scheduler's monotonic clock."""

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        """A publish became durable at the level its topic promises, or failed."""

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        """Another verb that had to wait (subscribe, a read from disk) is done."""

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        """Delivery pushes records first..last-1 of a batch: encode them into the output."""

    def congestion(self) -> int:
        """FLOWING, or whether to stop reading from this peer: for a moment (STALL: a subscriber of what it publishes is
        behind) or until it is over (WAIT: the disk is behind, or too many of its requests wait for their answer)."""

    def deadline(self) -> int | None:
        """When `tick` must be called next, by the monotonic clock, or None."""

    def tick(self, monotonic: int) -> None:
        """The deadline has passed."""

    def take_output(self) -> list[bytes]:
        """What to send now, drained after the calls above, at the latest when the turn ends."""

    def closed(self) -> None:
        """The transport is gone: let go of everything held at the broker."""


class Direct(Session, Protocol):
    """A session whose publishes the kernel may take out of the socket by itself, as long as nothing else is under way (ADR 54)."""

    @property
    def direct(self) -> DirectReader | None:
        """What the kernel reads by; None: nothing is known yet. A session that forgets what it knows makes another one."""

    def receive(self, view: memoryview, now: int, split: Any = None) -> int:
        """`split`: what the session's own call of the kernel gave for this view, which it then does not make again."""

    def adopt(self, unanswered: Any) -> Holds | None:
        """A read that the kernel appended is answered by this session from now on: a slot behind those that wait already, whose `done` is
        called once, when all of it is durable. Bytes are answers that wait for nothing: they are put behind those, and None is given."""


class SessionConnection(Sink, Protocol):
    """A connection, or a stream, as its session sees it."""

    meter: Meter | None
    """What its bytes are charged to; `broker.quotas` sets it, for the connection that joined."""

    def turn_over(self) -> bool:
        """Asked between two frames: True when the rest has to wait for a later turn of the loop (ADR 13). A session has no
        clock; `stopped` says that it left something."""

    def claim(self, size: int, token: object) -> bool:
        """Asked before records are read for an answer of more than CLAIM_BYTES_MIN. True: up to `size` bytes may be made
        now. False: later, then `on_completed(token, None, None)` is called (ADR 16). A session that has claimed says by
        `making` that the answer is not made: until then the bytes stay its own, whatever else is sent."""

    def unclaim(self) -> None:
        """The answer turned out to be nothing. One that is sent needs no such call."""


class StreamSession(Session, Protocol):
    """One bidirectional stream's side of a protocol, where a connection carries many streams (QUIC)."""

    close_code: int | None
    """Not None: the whole connection is shut with this code, `closing` is its reason. None: `closing` ends this stream
    only, behind the output."""

    def ended(self, now: int) -> None:
        """The peer finished its side and nothing more will be received, not even the rest of a frame: answer what
        waits, then set `closing` to the empty text."""


class Outlet(Protocol):
    """A stream this side opened and only writes to."""

    def room(self) -> int:
        """Bytes it may take now; zero or less: park, and come again."""

    def park(self, call: Callable[[], None]) -> None:
        """Call once when there is room again; never if the stream is gone before."""

    def send(self, data: list[bytes]) -> None:
        """Queue bytes. After the stream is gone this does nothing."""

    def end(self) -> None:
        """Finish the stream behind what was sent. `gone` is not called any more."""

    def reset(self, code: int) -> None:
        """Drop what is not sent and tell the peer so. `gone` is not called any more."""


TOO_SLOW: Final = 0x51  # the peer read nothing of an outlet for WRITE_STALL_US: it was reset
LOST: Final = -1  # the connection of an outlet ended


class Streams(Protocol):
    """A connection of many streams, as the sessions of its streams see it."""

    peer: str
    meter: Meter | None
    """As SessionConnection has it: of the connection, for all of its streams."""
    shared: object | None
    """The protocol's own state of the connection, set by its first session; `shared.closed()` is called at its end."""

    def open(self, gone: Callable[[int], None]) -> Outlet:
        """A new outlet. `gone` is called at most once, with the code of the peer that stopped it, TOO_SLOW, or LOST."""

    def shut(self, code: int, reason: str) -> None:
        """Close the connection with this code. What was sent in the same turn is not waited for."""

    def fault(self, where: str, error: Exception) -> None:
        """Something of this connection raised in a call from the broker: report it and close the connection."""


__all__ = [
    "FLOWING",
    "LOST",
    "STALL",
    "TOO_SLOW",
    "WAIT",
    "Direct",
    "Outlet",
    "Replies",
    "Session",
    "SessionConnection",
    "Sink",
    "Slot",
    "StreamSession",
    "Streams",
    "act_on",
    "in_pieces",
]  # fmt: skip
