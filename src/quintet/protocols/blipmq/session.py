"""From bytes to broker verbs and from records to bytes: one BlipMQ connection.

    state \\ frame    HELLO              AUTH              anything else
    FRESH            greet              400 no HELLO      401 unauthenticated
    GREETED          400 already        authenticate      401 unauthenticated
    READY            400 already        400 already       by type, below

Before READY frames are decoded one at a time and must be small; after it the kernel splits whole reads. A successful
PUBLISH has no reply on this wire; PING after it is the durability barrier: its PONG takes a slot behind them, so it
leaves when every publish before it on this connection is durable (or was answered by a NACK).

Version WHOLE is OURS with record sets (ADR 33): what it publishes and gets has key, headers, time and origin. Version OURS is version 2 with three words of the consumer, sent as NACK: credit, working, giving back (ADR 14). A subscription
is pushed there from its first credit on, not from its SUBSCRIBE on.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.identity.access import Principal
from quintet.broker.topics.catalog import Topic
from quintet.delivery.lane import Run
from quintet.delivery.subscription import Subscription
from quintet.kernel.items import BlipItem, BlipPublish, BlipSplit, DirectReader
from quintet.model import limits
from quintet.model.batch import AT_MOST_ONCE, RecordBatch
from quintet.model.errors import (
    AuthError,
    LimitExceeded,
    ProtocolError,
    QuintetError,
    TopicNotFound,
    message_of,
)
from quintet.protocols import records
from quintet.protocols.base import (
    CLAIM_BYTES_MIN,
    FLOWING,
    LARGE_BYTES,
    STALL,
    WAIT,
    Replies,
    SessionConnection,
    Slot,
    in_pieces,
)  # fmt: skip
from quintet.protocols.blipmq import codec, errors, frames
from quintet.protocols.blipmq.mapping import IDS, Publish, encode, offset_of, origin_of, pieces, refusal

# How frames of a version are laid out: OURS has those of 2; 3 is 2 with record sets.
LAYOUTS: Final = {1: 1, 2: 2, frames.OURS: 2, frames.WHOLE: 3}

FRESH: Final = "fresh"
GREETED: Final = "greeted"
READY: Final = "ready"

AUTH_FAILURES_MAX: Final = 10  # on one connection, then it is closed
SUBSCRIPTIONS_MAX: Final = 1_000  # made on one connection
POLL_BYTES_MAX: Final = limits.WRITE_HIGH_BYTES  # of answers to one run of POLLs; then the peer must take some
REPLIES_WAITING_MAX: Final = 10_000  # requests of one connection that wait for the disk; above it, it is not read from
SETS_KNOWN_MAX: Final = 20_000  # targets of record sets that a connection remembers
POLLS_AT_ONCE: Final = 256  # answered together; each may be a batch of its own in the log
_Group = tuple[int, bytearray, int]  # partition, batch and count of records of a set
_HEADER: Final = frames.HEADER.pack
_NOTHING_KNOWN: Final[kernel.Routes[Topic]] = kernel.Routes()  # of every session that has published nothing yet


class BlipSession:
    """See the table above. `sink` is the connection, for verbs that answer later."""

    holding = False  # every frame is taken when it is whole: late answers wait in their slots

    __slots__ = (
        "_append_sets", "_asked", "_broker", "_deadline", "_doing", "_epoch", "_frame_bytes_max", "_identity", "_layout", "_left", "_made", "_matching", "_origin", "_peer",
        "_polls", "_principal", "_reader", "_replies", "_routes", "_sets", "_sink", "_state", "_tails", "_targets", "_topic", "_touched", "_version", "auth_failures",
        "closing", "making", "principal_name", "quick_ack", "stopped", "take_output",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        sink: SessionConnection,
        monotonic: int,
        frame_bytes_max: int = frames.FRAME_BYTES_MAX,
        peer: str = "",
    ) -> None:
        self.closing: str | None = None
        self.principal_name: str | None = None
        self._broker = broker
        self._sink = sink
        self._state = FRESH
        self._version = self._layout = 1  # of the session; of its frames: OURS has those of 2
        self._frame_bytes_max = frame_bytes_max
        self._peer = peer
        self._deadline: int | None = monotonic + limits.HANDSHAKE_US
        self.auth_failures = self._made = 0
        # The last frame was an ACK, which has no answer. The published subscriber of version 1 writes it and its next POLL by
        # themselves, without TCP_NODELAY: its system keeps the POLL back until ours has acknowledged the ACK.
        self.quick_ack = False
        self._identity = ""
        self._principal: Principal | None = None
        self._origin = b""
        self._epoch = 0
        self._replies = Replies()
        self.take_output = self._replies.take
        self._tails = broker.tails
        self._routes: kernel.Routes[Topic] = _NOTHING_KNOWN  # where the kernel appends by itself
        self._targets: dict[tuple[bytes, int], Topic] | None = None  # where `_publish` does
        self._sets: dict[bytes, int] | None = None  # heads of RECORDS that the kernel takes apart, and partitions
        self._reader: DirectReader | None = None  # made of these, for the kernel
        self._append_sets = broker.traces is None  # sampled messages are looked for in headers, by TracedTopic.publish
        self._topic: Topic | None = None  # the last one published to
        self._touched: set[Subscription] | None = None
        self._left: list[BlipItem] | None = None  # requests for a later turn; their bytes are consumed
        self._polls: list[tuple[Subscription, list[int], Slot]] = []  # of version 1, not answered yet
        self.making = False  # an answer whose bytes are claimed
        self._matching = False  # a MATCH is under way
        self._doing = 0
        self._asked: int | bytes = 0  # the id of that request: as a number, or as the wire has it
        self.stopped = False

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def operation(self) -> str:
        return frames.NAMES.get(self._doing, "")

    @property
    def request(self) -> str:
        """The correlation id of that request, of many publishes the first. ACKs and POLLs come many at once and have none."""
        if self._doing in (frames.MALFORMED, frames.ACK, frames.POLL):
            return ""
        return str(self._asked if isinstance(self._asked, int) else int.from_bytes(self._asked, "big"))

    def receive(self, view: memoryview, now: int, split: BlipSplit | None = None) -> int:
        position = 0
        self.stopped = False
        while self.closing is None and not self.stopped:
            if self._state is not READY:
                before = position
                position = self._handshake(view, position)
                if position == before:
                    break
                self.stopped = position < len(view) and self._sink.turn_over()
                continue
            if self._epoch != self._broker.access.epoch and not self._still_welcome():
                break
            if self._left is not None:
                left, self._left = self._left, None
                self._act_all(left)
                continue
            if split is None:
                split = kernel.blip_append(
                    self._tails, self._routes, view, position, self._layout, self._frame_bytes_max, self._origin, now, self._sets,
                    self._append_sets,
                )  # fmt: skip
            pongs, items, end, fatal, appended_to, held = split
            split = None
            self._topic = self._topic if appended_to is None else appended_to
            if pongs:
                self._replies.put(pongs)
            if held is not None:
                self._hold(*held)
            elif appended_to is not None:
                self._broker.tails_appended()
            if items:
                self._act_all(items)
            if fatal and not self.stopped:  # else it is found again, behind what was left
                self.closing = errors.FATAL[fatal]
            if end == len(view) or end == position:
                return end
            position = end
            if self._sink.turn_over():
                self.stopped = True
        return position

    def _act_all(self, items: list[BlipItem]) -> None:
        """Those that the turn has time for. PINGs are not counted: all that one read can hold take less."""
        for number, item in enumerate(items, 1):
            self._doing = item[0]
            if item[0] == frames.PUBLISH:
                self._asked = item[4][:8]
                self._publish(item)
            elif item[0] == frames.PING:
                _, correlation_id, _ = item
                self._asked = correlation_id
                self._replies.put(_HEADER(frames.FRAME_BYTES_MIN, frames.PONG, correlation_id))
                continue
            else:
                self._act(item)
            while self._left is not None and not self._sink.turn_over():  # it did a part of its work
                (item,), self._left = self._left, None
                self._act(item)
            if self._left is not None or (number < len(items) and self._sink.turn_over()):
                self.stopped = True
                self._left = (self._left or []) + items[number:]
                return

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        assert isinstance(token, tuple)
        slot, number = token
        if error is not None:
            self._forget_targets()  # ask again: the topic may not be what was promised
            slot.errors = {**slot.errors, number: error}
        slot.missing -= 1
        if not slot.missing:
            self._replies.fill(slot, slot.answer())

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert callable(token), "every late verb of this session leaves a callable as its token"
        token(result, error)

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        assert isinstance(subscription, Subscription)
        if in_pieces(batch, first, last):
            for piece in pieces(self._layout, subscription, partition, batch, first, last, ()):
                self._replies.push(piece)
        else:
            self._replies.push(
                encode(self._layout, self._frame_bytes_max, subscription, partition, batch, first, last, b"")
            )

    @property
    def unanswered(self) -> int:
        return self._replies.waiting

    def congestion(self) -> int:
        if len(self._replies.slots) > REPLIES_WAITING_MAX:
            return WAIT
        if self._topic is None:
            return FLOWING
        if self._topic.waiting or self._broker.overloaded():
            return WAIT
        return STALL if self._topic.subscriptions and self._topic.overrun() else FLOWING

    def deadline(self) -> int | None:
        return self._deadline

    def tick(self, monotonic: int) -> None:
        if self._deadline is not None and monotonic >= self._deadline:
            self._deadline = None
            self.closing = "no authentication within 5 seconds"

    def closed(self) -> None:
        touched, self._touched = self._touched, None
        self._polls.clear()
        for subscription in touched or ():
            subscription.detach(self._sink)
        self._topic = None
        self._forget_targets()
        self._broker.quotas.leave(self._sink)
        del self._sink  # connection and session hold each other: no work for the collector

    # -- handshake -------------------------------------------------------------------------------------------------

    def _handshake(self, view: memoryview, position: int) -> int:
        try:
            frame = codec.decode(view, position, limits.UNAUTHENTICATED_FRAME_BYTES_MAX)
        except ProtocolError as error:
            self.closing = message_of(error)
            return position
        if frame is None:
            return position
        self._doing, self._asked = frame.type, frame.correlation_id
        if frame.type == frames.HELLO:
            self._hello(frame)
        elif frame.type == frames.AUTH:
            self._auth(frame)
        else:
            # Document, "HELLO / AUTH Handshake": non-HELLO/AUTH frames before auth complete yield NACK 401.
            self._nack(frame.correlation_id, errors.UNAUTHENTICATED)
            what = frames.NAMES.get(frame.type, f"frame {frame.type}")
            self._broker.audit.record("access.denied", "", "", "denied", self._peer, what)
        return frame.end

    def _hello(self, frame: codec.Frame) -> None:
        version = codec.parse_hello(frame.payload)
        if self._state is not FRESH:
            self._nack(frame.correlation_id, errors.HELLO_ALREADY)
        elif version is None:
            self._nack(frame.correlation_id, errors.HELLO_INVALID)
        # Document, "HELLO": another version is NACK 426; versions 2 and OURS are more than the document has.
        elif version not in frames.VERSIONS:
            self._nack(frame.correlation_id, errors.VERSION)
        else:
            self._state, self._version, self._layout = GREETED, version, LAYOUTS[version]
            self._replies.put(codec.ack(frame.correlation_id, 0))

    def _auth(self, frame: codec.Frame) -> None:
        key = codec.parse_auth(frame.payload)
        # Document, "AUTH": 400 without HELLO, 400 a second time, 400 if it does not parse, 401 for a wrong key; in this order.
        if self._state is FRESH:
            self._nack(frame.correlation_id, errors.HELLO_MISSING)
        elif self._state is READY:
            self._nack(frame.correlation_id, errors.AUTH_ALREADY)
        elif key is None:
            self._nack(frame.correlation_id, errors.AUTH_INVALID)
        else:
            try:
                self._identity, self._principal = self._broker.authenticate(key, self._peer)
                self._broker.quotas.join(self._sink, self._principal.name)
            except LimitExceeded as error:
                self._nack(frame.correlation_id, errors.to_nack(error))
                self.closing = message_of(error)
                return
            except AuthError:
                self._nack(frame.correlation_id, errors.AUTH_KEY)
                self.auth_failures += 1
                if self.auth_failures >= AUTH_FAILURES_MAX:
                    self.closing = "too many failed authentications"
                return
            self._state, self._deadline = READY, None
            self._epoch = self._broker.access.epoch
            self.principal_name = self._principal.name
            self._origin = origin_of(self._principal.name)
            self._replies.put(codec.ack(frame.correlation_id, 0))

    def _still_welcome(self) -> bool:
        """Access changed: take the rights as they are now, or leave."""
        self._epoch = self._broker.access.epoch
        self._principal = self._broker.access.current(self._identity)
        self._forget_targets()
        if self._principal is None:
            self.closing = "the API key was revoked"
            return False
        kept = set()
        for subscription in self._touched or ():
            if self._broker.subscription(self._principal, subscription.id) is subscription:
                kept.add(subscription)
            else:
                subscription.detach(self._sink)
        self._touched = kept
        return True

    # -- ready -----------------------------------------------------------------------------------------------------

    def _act(self, item: BlipItem) -> None:
        if item[0] == frames.ACK:
            _, subscription_id, ranges = item
            self._ack(subscription_id, ranges)
        elif item[0] == frames.POLL:
            _, subscription_id, ids = item
            self._poll(subscription_id, ids)
        elif item[0] == frames.MALFORMED:
            _, correlation_id, number = item
            self._nack(correlation_id, errors.MALFORMED[number])
        elif item[0] == frames.RECORDS and len(item) == 5:
            _, self._asked, head, partitions, groups = item
            self._publish_split(self._asked, head, partitions, groups)
        else:
            assert len(item) == 3
            self._act_on_frame(*item)

    def _act_on_frame(self, kind: int, correlation_id: int, payload: bytes) -> None:
        self._asked = correlation_id
        if kind == frames.SUBSCRIBE:
            self._subscribe(correlation_id, payload)
        elif kind == frames.NACK and self._version >= frames.OURS:
            self._word(correlation_id, payload)
        elif kind == frames.RECORDS:
            self._publish_records(correlation_id, payload)
        elif kind == frames.MATCH:
            self._match(correlation_id, payload)
        elif kind == frames.HELLO:
            self._nack(correlation_id, errors.HELLO_ALREADY)
        elif kind == frames.AUTH:
            self._nack(correlation_id, errors.AUTH_ALREADY)
        else:
            # PONG and NACK from a client mean nothing here and are passed over; so is DELIVER from version 2 on.
            assert kind in frames.NAMES, f"the kernel made an item of unknown type {kind}"

    def _publish(self, item: BlipPublish) -> None:
        _, qos, name, batch, ids = item
        targets = self._targets
        if targets is None:
            targets = self._targets = {}
        try:
            topic = targets.get((name, qos))
            if topic is None:
                assert self._principal is not None
                topic = targets[name, qos] = self._broker.publish_target(self._principal, name, qos > 0, self._peer)
            if qos == 0:
                # Document, "PUBLISH": no reply on success, and QoS 0 is enqueued in memory only.
                topic.publish(batch, len(ids) >> 3, False, None)
            else:  # "PUBLISH": QoS 1 is durable first; a failure is NACK 500 with the reason.
                slot = Publish(((ids, b""),))
                topic.publish(batch, len(ids) >> 3, True, partial(self._sink.appended, (slot, 0)))
                self._replies.add(slot)
            self._know(name, topic, qos)
        except QuintetError as error:
            targets.pop((name, qos), None)
            self._replies.put(refusal(ids, error))
            return
        self._topic = topic

    def _hold(self, ticket: int, groups: list[tuple[bytes, bytes]], ways: int) -> None:
        """The kernel has appended these to partitions in files."""
        slot = Publish(groups)
        slot.hold(ways, 0, self._sink.appended)
        if self._broker.tails_held(ticket, ways, slot) or not any([ids for ids, _ in groups]):
            self._replies.put(slot.answer())  # it is durable, or all of QoS 0
            slot.groups = ()
        else:  # nothing is told before this turn ends
            self._replies.add(slot)

    def _publish_records(self, correlation_id: int, payload: bytes) -> None:
        """A record set, which is taken whole or not at all; refused like a PUBLISH."""
        parsed = codec.parse_records(payload)
        if isinstance(parsed, int):
            return self._nack(correlation_id, errors.MALFORMED[parsed])
        qos, name, data = parsed
        assert self._principal is not None
        try:
            topic = self._broker.publish_target(self._principal, name, qos > 0, self._peer)
        except QuintetError as error:
            return self._nack(correlation_id, errors.to_nack(error))
        try:
            flags, now = 0 if qos else AT_MOST_ONCE, self._broker.scheduler.now()
            groups, _ = records.split(data, len(topic.partitions), self._origin, now, flags=flags)
        except QuintetError as error:
            return self._nack(correlation_id, errors.refused_set(error))
        if self._sets is None or len(self._sets) >= SETS_KNOWN_MAX:
            self._sets, self._reader = {}, None
        self._sets[payload[: frames.RECORDS_TOPIC_AT + len(name)]] = len(topic.partitions)
        return self._append_groups(correlation_id, topic, qos, groups)

    def _publish_split(self, correlation_id: int, head: bytes, partitions: int, groups: Sequence[_Group]) -> None:
        """The same of a set that the kernel has split, because one for the same target came before."""
        qos, name = head[0], head[frames.RECORDS_TOPIC_AT :]
        assert self._principal is not None
        try:
            topic = self._broker.publish_target(self._principal, name, qos > 0, self._peer)
            if partitions != len(topic.partitions):  # its keys chose among others
                self._forget_targets()
                what = f"topic {topic.name!r} was deleted and made again with {len(topic.partitions)} partitions"
                raise TopicNotFound(what, hint="publish again")
        except QuintetError as error:
            return self._nack(correlation_id, errors.to_nack(error))
        return self._append_groups(correlation_id, topic, qos, groups)

    def _append_groups(self, correlation_id: int, topic: Topic, qos: int, groups: Sequence[_Group]) -> None:
        """The batches of one record set. Whatever becomes of them, the set has one answer, and that only if it failed."""
        slot = done = None
        if qos:
            slot = Publish(((IDS.pack(correlation_id), b""),), len(groups))
            self._replies.add(slot)
            done = partial(self._sink.appended, (slot, 0))
        for partition, batch, count in groups:
            try:
                topic.publish(batch, count, qos > 0, done, partition)
            except QuintetError as error:
                if slot is None:
                    return self._nack(correlation_id, errors.to_nack(error))
                self.on_appended((slot, 0), 0, error)
        self._know(topic.raw, topic, qos)
        self._topic = topic
        return None

    def _know(self, name: bytes, topic: Topic, qos: int) -> None:
        """The next publishes to it, of this QoS, need no decision, if that is true of it now."""
        handle = topic.direct or topic.lent
        if handle is not None:
            if self._routes is _NOTHING_KNOWN:
                self._routes, self._reader = kernel.Routes(), None
            self._routes.add(name, handle, topic, qos > 0 and not topic.bounded)

    def _forget_targets(self) -> None:
        self._targets = self._sets = self._reader = None
        self._routes = _NOTHING_KNOWN

    @property
    def direct(self) -> DirectReader | None:
        if self._epoch != self._broker.access.epoch:
            return None  # rights changed: the next read is looked at first
        if self._reader is None and self._routes is not _NOTHING_KNOWN and kernel.DirectReader is not None:
            if self._sets is None:
                self._sets = {}
            self._reader = kernel.DirectReader.blip(
                self._tails,
                self._routes,
                self._layout,
                self._frame_bytes_max,
                self._origin,
                self._sets,
                self._append_sets,
            )
        return self._reader

    def adopt(self, unanswered: bytes | list[tuple[bytes, bytes]]) -> Publish | None:
        if isinstance(unanswered, bytes):
            self._replies.put(unanswered)
            return None
        slot = Publish(unanswered)
        slot.hold(1, 0, self._sink.appended)
        self._replies.add(slot)
        return slot

    def _subscribe(self, correlation_id: int, payload: bytes) -> None:
        parsed = codec.parse_subscribe(payload)
        # Document, "SUBSCRIBE": 400 for what does not parse, an empty topic, another QoS than 0 and 1; in this order.
        if parsed is None:
            return self._nack(correlation_id, errors.SUBSCRIBE_INVALID)
        topic, qos = parsed
        from_start = self._version >= frames.WHOLE and bool(qos & frames.FROM_START)
        qos = qos & ~frames.FROM_START if from_start else qos
        if not topic:
            return self._nack(correlation_id, errors.EMPTY_TOPIC)
        if qos not in (0, 1):
            return self._nack(correlation_id, errors.QOS)
        if b"\0" in topic:
            return self._nack(correlation_id, errors.TOPIC_NUL)
        if len(topic) > frames.TOPIC_BYTES_MAX:
            return self._nack(correlation_id, errors.TOPIC_LONG)
        if self._made >= SUBSCRIPTIONS_MAX:
            return self._nack(correlation_id, (500, f"more than {SUBSCRIPTIONS_MAX} subscriptions on one connection"))
        assert self._principal is not None
        slot = self._replies.reserve()
        try:
            token = partial(self._subscribed, slot, correlation_id)
            self._broker.subscribe(
                self._principal, topic, qos, self._sink, token, self._peer, door="blipmq", from_start=from_start
            )
            self._made += 1
        except QuintetError as error:
            self._replies.fill(slot, codec.nack(correlation_id, *errors.to_nack(error)))
        return None

    def _subscribed(self, slot: Slot, correlation_id: int, subscription: Subscription, error: Exception | None) -> None:
        if error is not None:
            self._replies.fill(slot, codec.nack(correlation_id, *errors.to_nack(error)))
            return
        # "SUBSCRIBE": the reply is ACK with the id of the new subscription.
        self._replies.fill(slot, codec.ack(correlation_id, subscription.id))
        if self._version >= frames.OURS:  # it begins with its credit
            return
        if self._principal is not None and self._broker.subscription(self._principal, subscription.id) is not None:
            self._attach(subscription)  # else the right to it was taken away while it was made

    def _attach(self, subscription: Subscription, credit: int = 0) -> None:
        """Remember who must be told when this connection goes; from version 2 on, start to push."""
        if self._touched is None:
            self._touched = set()
        self._touched.add(subscription)
        if self._version >= 2:
            subscription.grant(credit)
            subscription.attach(self._sink)

    def _match(self, correlation_id: int, payload: bytes) -> None:
        """The topics that match and that this key may subscribe to; no names while nothing changed."""
        parsed = codec.parse_match(payload)
        if parsed is None:
            return self._nack(correlation_id, errors.MATCH_INVALID)
        asked, patterns = parsed
        version, principal, access = self._broker.topics_version, self._principal, self._broker.access
        assert principal is not None
        if asked == version:
            return self._replies.put(codec.matched(correlation_id, version, None))
        if self._matching:
            return self._nack(correlation_id, errors.MATCH_BUSY)
        self._matching = True
        slot = self._replies.reserve()
        told = partial(self._sink.completed, partial(self._matched, slot, correlation_id, version))
        try:
            names = self._broker.matching_topics(patterns, lambda name: access.allowed(principal, "subscribe", name))
            self._broker.slices.finish(names).then(told)
        except QuintetError as error:
            self._matched(slot, correlation_id, version, None, error)
        return None

    def _matched(
        self, slot: Slot, correlation_id: int, version: int, names: list[str] | None, error: Exception | None
    ) -> None:
        self._matching = False
        if names is None:
            assert error is not None
            self._replies.fill(slot, codec.nack(correlation_id, *errors.to_nack(error)))
        else:
            self._replies.fill(slot, codec.matched(correlation_id, version, [name.encode() for name in names]))

    def _word(self, correlation_id: int, payload: bytes) -> None:
        """What a consumer says of a delivery that it does not acknowledge, or of how many it takes."""
        parsed = codec.parse_word(payload)
        if parsed is None or parsed[0] not in (frames.GIVE_BACK, frames.WORKING, frames.CREDIT, frames.GIVE_UP):
            return self._nack(correlation_id, errors.WORD_INVALID)
        word, subscription_id, argument = parsed
        assert self._principal is not None
        subscription = self._broker.subscription(self._principal, subscription_id)
        if subscription is None:
            return self._nack(correlation_id, errors.UNKNOWN)
        if word == frames.CREDIT:
            self._replies.put(codec.ack(correlation_id, subscription.push_timeout_us // 1000))
            return self._attach(subscription, argument)
        partition, offset = offset_of(correlation_id)
        if word == frames.WORKING:
            subscription.working(partition, offset, argument)
            return None
        delay_us = None if argument == frames.DELAY_CONFIGURED else argument * 1000
        if subscription.nack(partition, offset, 1, delay_us, give_up=word == frames.GIVE_UP):
            self._nack(correlation_id, errors.UNKNOWN)
        return None

    def _ack(self, subscription_id: int, ranges: list[tuple[int, int]]) -> None:
        assert self._principal is not None
        self.quick_ack = self._version == 1
        subscription = self._broker.subscription(self._principal, subscription_id)
        for number, (tag, count) in enumerate(ranges, 1):
            partition, offset = offset_of(tag)
            if subscription is None:
                unknown = list(range(offset, offset + count))
            else:
                # Document, "ACK": no reply on success; NACK 404 for a tag that is not known, or not of this subscription.
                unknown = subscription.ack(partition, offset, count)
            for missing in unknown:
                self._nack(tag + missing - offset, errors.UNKNOWN)
            if number < len(ranges) and self._sink.turn_over():
                self._left = [(frames.ACK, subscription_id, ranges[number:])]
                return

    def _poll(self, subscription_id: int, ids: list[int]) -> None:
        """One message per POLL; nothing at all when there is none, or when the subscription is not this key's."""
        assert self._principal is not None
        self.quick_ack = False
        subscription = self._broker.subscription(self._principal, subscription_id)
        # Document, "POLL": an unknown subscription has no error of its own, and no message means no reply.
        if subscription is None:
            return
        self._attach(subscription, subscription.consumer.credit if self._version >= frames.OURS else 0)
        if self._version == 1:
            self._polls.append((subscription, ids[:POLLS_AT_ONCE], self._replies.reserve()))
            if len(self._polls) == 1:
                self._answer_polls()
            if len(ids) > POLLS_AT_ONCE:
                self._left = [(frames.POLL, subscription_id, ids[POLLS_AT_ONCE:])]

    def _answer_polls(self) -> None:
        """One after the other, in their order: bytes that are claimed for an answer must not wait for one behind it."""
        while self._polls:
            subscription, ids, slot = self._polls[0]
            size = min(subscription.bytes_ahead(), self._frame_bytes_max + POLL_BYTES_MAX)
            if not self.making and size > CLAIM_BYTES_MIN:
                if not self._sink.claim(size, partial(self._poll_again, slot, True)):
                    return  # until there is room for so much output over all connections (ADR 16)
                self.making = True
            if not self._answer_poll(subscription, ids, slot):
                return

    def _poll_again(self, slot: Slot, granted: bool, _result: object, _error: Exception | None) -> None:
        """What the first poll waited for is there; a late word of the disk for one that was answered means nothing."""
        if self._polls and self._polls[0][2] is slot:
            self.making = self.making or granted
            self._answer_polls()

    def _answer_poll(self, subscription: Subscription, ids: list[int], slot: Slot) -> bool:
        """Fill the slot with up to len(ids) deliveries. False: what is on disk is waited for and asked again."""
        runs: list[tuple[int, Run]] = []
        if subscription in (self._touched or ()):  # else the right to it was taken away while it waited
            wake = partial(self._sink.completed, partial(self._poll_again, slot, False), None, None)
            meter = self._sink.meter
            most = POLL_BYTES_MAX if meter is None else min(POLL_BYTES_MAX, meter.answer_bytes_max)
            runs, more = subscription.poll(len(ids), self._sink, wake, most)
            if more and not runs:
                return False
        made: list[bytes] = []
        used = 0
        for partition, (batch, first, last) in runs:
            given = ids[used : used + last - first]
            if in_pieces(batch, first, last):
                made += pieces(self._layout, subscription, partition, batch, first, last, given)
            else:
                packed = b"".join(map(IDS.pack, given))
                made.append(
                    encode(self._layout, self._frame_bytes_max, subscription, partition, batch, first, last, packed)
                )
            used += last - first
        size = sum(map(len, made))
        if size >= POLL_BYTES_MAX and used < len(ids):  # there may be more for the rest, but not all at once
            self._polls[0] = (subscription, ids[used:], self._replies.behind(slot))
        else:
            del self._polls[0]
        self._replies.fill(slot, made if size > LARGE_BYTES else b"".join(made))
        if self.making:
            self.making = False
            if not size:
                self._sink.unclaim()
        return True

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _nack(self, correlation_id: int, reason: tuple[int, str]) -> None:
        self._replies.put(codec.nack(correlation_id, *reason))
