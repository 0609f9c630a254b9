"""From objects to broker verbs and from records to objects: one peerbus connection, whatever it comes by.

    state \\ frame    register                        ack        peers      envelope   no object
    FRESH            judge, below                    close      close      close      close 1007
    BINDING          (nothing is read meanwhile)
    REGISTERED       passed over                     settle     reply      route      passed over, counted
    TAKEN_OVER       passed over                     settle     passed over

    register is judged in this order: type, version, name, token, right and owner, row durable, bound; the first that
    fails is the close code (errors.py). The reply is `peers`, then everything that waits is delivered. TAKEN_OVER lasts
    LATE_ACKS_US: acknowledgements that were under way when another connection took the name still count.

`receive` takes objects one a line; over WebSocket net/websocket.py hands over whole messages with `receive_message` and
calls `end_read` behind the last of a read. A session never closes anything: `closing` and `close_code` say how it ends.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import UNSET, UnsetType

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.doors.mailbox import TOPIC_PREFIX, AppendedLetter, Mailbox
from quintet.broker.identity.access import Principal
from quintet.delivery.subscription import Subscription
from quintet.model import envelope, limits
from quintet.model.batch import RecordBatch, Row
from quintet.model.client_address import REQUEST_CHARS_MAX, request_text
from quintet.model.errors import (
    AuthError,
    BadName,
    Forbidden,
    LimitExceeded,
    NameClaimed,
    ProtocolError,
    QuintetError,
    message_of,
)
from quintet.protocols.base import FLOWING, WAIT, SessionConnection
from quintet.protocols.peerbus import codec, errors, frames
from quintet.protocols.peerbus.mapping import (
    check_peer_name,
    headers_of,
    is_everyone,
    is_reserved,
    made_delivery,
    own_delivery,
)

FRESH: Final = "fresh"
BINDING: Final = "binding"
REGISTERED: Final = "registered"
TAKEN_OVER: Final = "taken over"

TEXT: Final = 1  # opcode of a WebSocket text message
PLAIN_ENVELOPE: Final = 5  # parts of what kernel.peer_split makes of one

PARTITION_SHIFT: Final = 48  # place = partition << 48 | offset
_OFFSETS: Final = (1 << PARTITION_SHIFT) - 1
_BLANKS: Final = bytes.maketrans(b"\r\n", b"  ")
LATE_ACKS_US: Final = (
    250_000  # a client's kernel may hold a small write back until ours confirms the one before: 40 ms or more
)
LIGHT_MAX: Final = 16  # acknowledgements between two looks at whether the turn is over: each costs little more
ASKED_MAX: Final = 1_000  # `peers` that wait for the disk; above it, the connection is not read from
REPLIES_BYTES_MAX: Final = limits.MIB  # of answers to `peers` that are made, or owed: above it, the next frames wait
BLANKS_AT_ONCE: Final = 1_024  # empty lines between two looks at whether the turn is over
TARGETS_MAX: Final = 10_000  # recipients one session remembers the right to write to

Split = Callable[[Any, int, int, int], tuple[Sequence[Any], int, int]]  # kernel.ws_split, or one that also reads


class PeerSession:
    """See the table above. `sink` is the connection; `framed`: objects are lines."""

    __slots__ = (
        "_acked", "_asked", "_light", "_broker", "_deadline", "_envelope_bytes_max", "_epoch", "_frame_bytes_max", "_id", "_identity", "_lines", "_mailbox", "_peer",
        "_pending", "_principal", "_said", "_scanned", "_sent", "_sink", "_state", "_targets", "auth_failures", "close_code", "closing", "holding",
        "message_bytes_max", "operation", "out", "principal_name", "split", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        sink: SessionConnection,
        monotonic: int,
        *,
        framed: bool = True,
        frame_bytes_max: int = frames.FRAME_BYTES_MAX,
        peer: str = "",
    ) -> None:
        self.closing: str | None = None
        self.close_code = 0
        self.principal_name: str | None = None
        self.auth_failures = 0
        self._broker = broker
        self._sink = sink
        self._lines = framed
        self._frame_bytes_max = frame_bytes_max
        self._envelope_bytes_max = frame_bytes_max - frames.DELIVER_BYTES_MAX
        self._peer = peer
        self._state = FRESH
        self._deadline: int | None = monotonic + limits.HANDSHAKE_US
        self._identity = ""
        self._principal: Principal | None = None
        self._epoch = 0
        self._mailbox: Mailbox | None = None
        self.out: list[bytes] = []  # frames that nobody has taken yet
        self._scanned = 0  # bytes of an unfinished line that have no end of line in them
        self._pending: dict[str, int | list[int]] | None = None  # delivery key -> place, or places, oldest first
        self._asked = 0  # `peers` that are not answered yet
        self._said = 0  # bytes of answers to `peers` in this read
        self.stopped = False
        self.operation = ""
        self._id = ""  # of that request, its beginning
        self._acked: list[int] | None = None  # places acknowledged in this read
        self._sent = False  # an envelope was taken in this read
        self._light = 0  # acknowledgements since the last look at the turn; 0: something else was taken since
        self.holding = False  # until the name is bound, or answers that are owed are made
        # Of one object: whoever has not registered gets little memory.
        self.message_bytes_max = limits.UNAUTHENTICATED_FRAME_BYTES_MAX
        self._targets: dict[str, Mailbox] | None = None
        self.split: Split = kernel.ws_split

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def request(self) -> str:
        """The id of the object that was acted on last."""
        return request_text(self._id)

    @property
    def enough(self) -> bool:
        """No further object in this read: the turn is over, or the answers are large (a question is small and its answer
        is as large as the names of all peers)."""
        if 0 < self._light < LIGHT_MAX:
            return False
        self._light = 0
        return self._said > REPLIES_BYTES_MAX or self.holding or self._sink.turn_over()

    def receive(self, view: memoryview, now: int) -> int:
        self.stopped = False
        if not self._still_welcome() or self.holding:
            return 0
        if bytes(view[self._scanned :]).find(b"\n") < 0:
            self._unfinished(len(view))
            return 0
        try:
            return self._lines_of(bytes(view), now)
        finally:
            self.end_read()

    def _lines_of(self, data: bytes, now: int) -> int:
        """How much of this was taken."""
        at = self._scanned = blank = 0
        while self.closing is None:
            end = data.find(b"\n", at)
            if end < 0:
                self._unfinished(len(data) - at)
                break
            if end - at > self.message_bytes_max:
                self.close(errors.TOO_BIG)
                break
            line = data[at:end].strip(b" \t\r")
            at = end + 1
            if line:
                self.receive_message(line, now)
                if self.enough:
                    self.stopped = not self.holding
                    break
            else:
                blank += 1
                if blank % BLANKS_AT_ONCE == 0 and self._sink.turn_over():
                    self.stopped = True
                    break
        return at

    def _unfinished(self, size: int) -> None:
        """The last line has no end yet: what was looked at is not looked at again."""
        self._scanned = size
        if size > self.message_bytes_max:
            self.close(errors.TOO_BIG)

    def receive_message(self, data: bytes, now: int) -> None:
        """One whole object. The connection calls `end_read` when it has handed over all of a read."""
        broker = self._broker
        if self.closing is not None or (self._epoch != broker.access.epoch and not self._still_welcome()):
            return
        found = kernel.peer_object(data) if self._state is REGISTERED else None
        if found is None:
            self._object(data, now)
        else:
            self.receive_plain((found if isinstance(found, str) else (*found, data),), now)

    def receive_plain(self, items: Sequence[object], now: int) -> int:
        """Objects of a read as kernel.peer_split has them; how many of them were taken: those before the first one that is not plain, or that is left for
        a later turn."""
        broker = self._broker
        if self.closing is not None or (self._epoch != broker.access.epoch and not self._still_welcome()):
            return 0
        taken = 0
        for item in items:
            # The one before may have ended it, which mypy does not see.
            if taken and (self.closing is not None or (not 0 < self._light < LIGHT_MAX and self.enough)):  # type: ignore[redundant-expr]
                break
            if isinstance(item, str):
                self.operation, self._id = frames.ACK, item[:REQUEST_CHARS_MAX]
                self._light += 1
                self._ack(item)
            elif isinstance(item, tuple) and len(item) == PLAIN_ENVELOPE:
                # To one peer, and the kernel has judged all of it that `_envelope` would.
                id, claimed, to, ts, data = item
                self.operation, self._id = "envelope", id[:REQUEST_CHARS_MAX]
                self._light = 0
                recipient = self._targets.get(to) if self._targets is not None else None
                if len(data) > self._envelope_bytes_max:
                    self._object(data, now)  # which says so
                elif (recipient is not None and not recipient.gone) or (recipient := self._target(to)) is not None:
                    assert self._mailbox is not None
                    self._sent = True
                    broker.peers.send(self._mailbox, recipient, id, claimed, ts, data, now)
            else:
                break
            taken += 1
        return taken

    def receive_binary(self) -> None:
        """A message that is not text: wrong as the first one, and nothing to us later."""
        if self._state is FRESH and self.closing is None:
            self.close(errors.NOT_TEXT)

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("peers.py appends for its senders: no session waits for one")

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert callable(token), "every late verb of this session leaves a callable as its token"
        token(error)

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        assert isinstance(subscription, Subscription)
        assert self._mailbox is not None
        if self._mailbox.gone:  # its topic has no identity any more
            return
        if self._pending is None:
            self._pending = {}
        pending, above = self._pending, partition << PARTITION_SHIFT
        if isinstance(batch, AppendedLetter):
            frame = kernel.peer_frame(batch.letter[1], batch.letter[2], self._lines)
            plain = None if frame is None else ([batch.letter[1].decode()], frame)
        else:
            plain = kernel.peer_deliver(batch.buffer, first, last, self._lines)
        if plain is not None:
            keys, frames = plain
            place = above | batch.base_offset + first
            for key in keys:
                if key not in pending:
                    pending[key] = place
                else:
                    _also(pending, key, place)
                place += 1
            self.out.append(frames)
            return
        for row in batch.rows(first, last):
            key, value = own_delivery(row, self._mailbox.name) or self._made(row, partition)
            offset, _, _, _, _, _, _ = row
            place = above | offset
            if key not in pending:
                pending[key] = place
            else:
                _also(pending, key, place)
            if self._lines and b"\n" in value:
                # Ends of lines within an envelope are blanks between tokens: any other blank says the same.
                value = value.translate(_BLANKS)
            self._say(codec.deliver(key, value))

    def _made(self, row: Row, partition: int) -> tuple[str, bytes]:
        """Of a record that another door put into the mailbox."""
        assert self._mailbox is not None
        name, secret = self._mailbox.name, self._broker.peers.secret
        return made_delivery(row, self._mailbox.identity, partition, name, secret, self._envelope_bytes_max)

    @property
    def unanswered(self) -> int:
        return self._asked

    def congestion(self) -> int:
        return WAIT if self._asked > ASKED_MAX or self._broker.overloaded() else FLOWING

    def deadline(self) -> int | None:
        return self._deadline

    def tick(self, monotonic: int) -> None:
        if self._deadline is not None and monotonic >= self._deadline:
            self._deadline = None
            self.close(errors.NO_HANDSHAKE)

    def take_output(self) -> list[bytes]:
        out = self.out
        if out:
            self.out = []
        return out

    def closed(self) -> None:
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            self._broker.peers.release(mailbox, self)
        self._targets = self._pending = None
        self._broker.quotas.leave(self._sink)
        del self._sink  # connection and session hold each other: no work for the collector

    def close(self, how: errors.Close) -> None:
        """End the connection with this code and reason."""
        if self.closing is None:
            self.close_code, self.closing = how

    # -- handshake -------------------------------------------------------------------------------------------------

    def _object(self, data: bytes, now: int) -> None:
        """Any object, plain or not."""
        self._light = 0
        try:
            frame = codec.decode(data)
        except ProtocolError as error:
            if self._state is FRESH:
                self.close(errors.MALFORMED)
            else:
                self._broker.peers.drop("bad_envelope", self._mailbox, message_of(error), self._peer)
            return
        self._id = frame.id[:REQUEST_CHARS_MAX] if isinstance(frame.id, str) else ""
        self.operation = "envelope" if frame.type is UNSET or frame.type not in frames.CONTROL else frame.type or ""
        if self._state is FRESH:
            self._register(frame)
        elif frame.type is UNSET or frame.type not in frames.CONTROL:
            if self._state is REGISTERED:
                self._envelope(frame, data, now)
        elif frame.type == frames.ACK:
            self._ack(frame.id)
        elif frame.type == frames.PEERS and self._state is REGISTERED:
            self._tell_peers()
        # Document, 2.1 and 2.4: a second register and a deliver from a client are ignored.

    def _register(self, frame: codec.Frame) -> None:
        # Document, 2.1: the first frame is a register; step 1: what is wrong with it closes the connection with its reason.
        if frame.type != frames.REGISTER:
            return self.close(errors.NOT_REGISTER)
        if frame.protocol_version != frames.VERSION:
            return self.close(errors.VERSION)
        name, token = frame.name or "", frame.token or ""
        if not name:
            return self.close(errors.EMPTY_NAME)
        try:
            check_peer_name(name, self._broker.doors)
            self._identity, self._principal = self._broker.authenticate(token.encode(), self._peer)
        except BadName:
            return self.close(errors.BAD_NAME)
        except AuthError:
            self.auth_failures += 1
            return self.close(errors.TOKEN)
        self._epoch = self._broker.access.epoch
        if self._broker.draining:
            return self.close(errors.SHUTTING_DOWN)
        try:
            self._broker.quotas.join(self._sink, self._principal.name)
            if self._broker.peers.find(name) is None:
                self._broker.quotas.check_topic(self._principal.name, "")  # each name has a mailbox, which is a topic
        except LimitExceeded as error:
            return self.close((errors.NAMES[0], message_of(error)))
        try:
            self._mailbox = self._broker.peers.register(name, self._principal, self._peer)
        except QuintetError as error:
            if isinstance(error, NameClaimed):
                who, topic = self._principal.name, TOPIC_PREFIX + name
                self._broker.audit.record("access.denied", who, topic, "denied", self._peer, "register")
            return self.close(errors.of_register(error))
        self._state, self.holding = BINDING, True
        if self._mailbox.registered.pending:
            self._mailbox.registered.then(partial(self._sink.completed, self._registered))
        else:
            self._registered(None)
        return None

    def _registered(self, error: Exception | None) -> None:
        """The name is this owner's for good, or could not be kept."""
        mailbox = self._mailbox
        assert mailbox is not None and self._principal is not None
        self.holding = False
        if error is not None or mailbox.gone:
            self._mailbox, self._state = None, FRESH
            self.close(errors.of_register(error) if error is not None else errors.FREED)
            return
        self._state, self._deadline, self.split = REGISTERED, None, kernel.peer_split
        self.message_bytes_max = self._frame_bytes_max
        self.principal_name = self._principal.name
        # Document, 2.1, steps 4 and 5: the reply is a peers frame, then everything pending is delivered.
        self._broker.peers.bind(mailbox, self)
        self._say(self._listing())
        mailbox.attach(self._sink)

    def lost_name(self, freed: bool) -> None:
        """See Holder. Who is taken over is dropped without a word, as the published broker does, as soon as what it had
        acknowledged could arrive."""
        if freed:
            self.close(errors.FREED)
            self._sink.evict(errors.FREED[1])
        else:
            # Document, 2.1, step 2: the same token takes the name over; another one was refused by peers.register.
            self._state, self.split = TAKEN_OVER, kernel.ws_split
            self._broker.scheduler.later(LATE_ACKS_US, partial(self._sink.completed, self._give_way, None, None))

    def _give_way(self, _error: Exception | None) -> None:
        self.close(errors.TAKEN_OVER)

    def _still_welcome(self) -> bool:
        """Access changed: take the rights as they are now, or leave."""
        access = self._broker.access
        if self._epoch == access.epoch or self._mailbox is None:
            return self.closing is None
        self._epoch = access.epoch
        self._targets = None
        self._principal = access.current(self._identity)
        if self._principal is None:
            self.close(errors.REVOKED)
        elif not access.allowed(self._principal, "subscribe", TOPIC_PREFIX + self._mailbox.name):
            self.close(errors.NOT_ALLOWED)
        return self.closing is None

    # -- registered ------------------------------------------------------------------------------------------------

    def _envelope(self, frame: codec.Frame, data: bytes, now: int) -> None:
        peers, sender, id, to = self._broker.peers, self._mailbox, frame.id or "", frame.to or ""
        assert sender is not None and self._principal is not None
        everyone = is_everyone(to, data)
        try:
            codec.check_envelope(frame, data)
            headers = () if frame.headers is UNSET else headers_of(bytes(frame.headers))
        except QuintetError as error:
            peers.drop("bad_envelope", sender, message_of(error), self._peer, self.request)
            return
        # Document, 3: id and to are not empty, the version is exactly ours, and only a broadcast is for everyone.
        # With its deliver frame around it, it is no larger than what a peer may be sent.
        fits = len(data) <= self._envelope_bytes_max
        well_formed = codec.is_id(id) and to and frame.protocol_version == frames.VERSION
        if not fits or not well_formed or everyone is not (frame.kind == envelope.BROADCAST):
            why = self._fault(id, to, frame, len(data), fits)
            peers.drop("bad_envelope", sender, why, self._peer, self.request)
            return
        if is_reserved(id, frame.source or ""):
            why = f"id {id!r} or source {frame.source!r} is one that only the broker gives"
            peers.drop("reserved", sender, why, self._peer, self.request)
            return
        # Document, 3, "Broker routing": routed by the name of the connection; a broadcast has a row for each recipient.
        claimed, ts = frame.sender or "", frame.ts or ""
        self._sent = True
        if everyone:
            peers.broadcast(sender, self._principal, id, claimed, ts, data, now, headers)
        elif (recipient := self._target(to)) is not None:
            peers.send(sender, recipient, id, claimed, ts, data, now, headers)

    def _fault(self, id: str, to: str, frame: codec.Frame, size: int, fits: bool) -> str:
        """What is wrong with an envelope that has all members."""
        if not fits:
            return f"an envelope has {size} bytes, the limit is {self._envelope_bytes_max} (frame_bytes_max less its deliver frame)"
        if not codec.is_id(id):
            return f"an id has 1 to {frames.ID_BYTES_MAX} bytes, printable, without |"
        if not to or frame.protocol_version != frames.VERSION:
            return f"to is {to!r} and protocol_version {frame.protocol_version!r}: a name, and {frames.VERSION!r}"
        return f"to is {to!r} and kind {frame.kind!r}: {envelope.BROADCAST!r} is for '*', and '*' for it alone"

    def _target(self, to: str) -> Mailbox | None:
        """The mailbox of a recipient that this peer may write to; counted if there is none."""
        if self._targets is None or len(self._targets) > TARGETS_MAX:
            self._targets = {}
        found = self._targets.get(to)
        if found is not None and not found.gone:
            return found
        found = self._broker.peers.find(to)
        # Document, 3, "Broker routing": for a name that was never registered it is dropped, for one that is offline it waits.
        if found is None or not found.durable:
            self._broker.peers.drop("unknown_recipient")
            return None
        assert self._principal is not None
        try:
            self._broker.access.require(self._principal, "publish", TOPIC_PREFIX + to, self._peer)
        except Forbidden:
            self._broker.peers.drop("forbidden")
            return None
        try:
            if found.topic is not None:
                self._broker.quotas.check_storage(found.topic)
        except LimitExceeded as error:
            self._broker.peers.drop("quota", found, message_of(error))
            return None
        self._targets[to] = found
        return found

    def _tell_peers(self) -> None:
        """The reply comes behind all that was sent before it, and when that is durable: the wire has no other word for it."""
        stored = self._broker.peers.all_stored()
        if stored.pending:
            self._asked += 1
            self.holding = self._owes_much()
            stored.then(partial(self._sink.completed, self._all_durable))
        else:
            listing = self._listing()
            self._said += len(listing)
            self._say(listing)

    def _listing(self) -> bytes:
        """Who is connected, as all are told: written once for every change."""
        peers = self._broker.peers
        if peers.listed is None:
            peers.listed = codec.peers(peers.names())
        return peers.listed

    def _owes_much(self) -> bool:
        return self._asked * len(self._listing()) > REPLIES_BYTES_MAX

    def _all_durable(self, _error: Exception | None) -> None:
        self._asked -= 1
        self.holding = self._owes_much()
        self._say(self._listing())

    def _ack(self, key: str | UnsetType) -> None:
        """Only what was delivered to this very peer is settled; anything else is a late or a foreign one, and passed over."""
        place = self._pending.pop(key, None) if self._pending and key else None
        if place is None:
            return
        if isinstance(place, list):
            first, *others = place
            assert self._pending is not None and isinstance(key, str)
            self._pending[key] = others[0] if len(others) == 1 else others
            place = first
        if self._acked is None:
            self._acked = []
        self._acked.append(place)

    def end_read(self) -> None:
        """Settle what this read acknowledged, and have written what it sent, whatever went wrong before: what was taken is not this session's alone."""
        self._said = 0
        try:
            acked = self._acked
            if acked is not None:
                self._acked = None
                subscription = None if self._mailbox is None else self._mailbox.subscription
                if subscription is not None:
                    if len(acked) == 1:
                        subscription.ack(acked[0] >> PARTITION_SHIFT, acked[0] & _OFFSETS, 1)
                    else:
                        _settle(subscription, acked)
        finally:
            if self._sent:
                self._sent = False
                self._broker.peers.read_taken()

    def _say(self, data: bytes) -> None:
        """One object, framed as the connection wants it."""
        self.out.append(data + b"\n" if self._lines else kernel.ws_frame(TEXT, data))


def _settle(subscription: Subscription, acked: list[int]) -> None:
    """These places, run by run."""
    acked.sort()
    first = last = acked[0]
    for place in acked[1:]:
        if place != last + 1:
            subscription.ack(first >> PARTITION_SHIFT, first & _OFFSETS, last - first + 1)
            first = place
        last = place
    subscription.ack(first >> PARTITION_SHIFT, first & _OFFSETS, last - first + 1)


def _also(pending: dict[str, int | list[int]], key: str, place: int) -> None:
    """Two messages of different senders with the same id: each acknowledgement settles one of them, the older first."""
    known = pending[key]
    if isinstance(known, list):
        known.append(place)
    else:
        pending[key] = [known, place]
