"""From bytes to broker verbs and from records to bytes: one Fast TCP connection, and what all of a listener share.

There is no handshake. Every request carries a token and is judged by it alone; the connection itself only knows whether
it has ever shown a valid one:

    state \\ packet   with a valid token    with another token   EXTEND                      server's own, unknown
    STRANGER         KNOWN, then as KNOWN  refused              answers, short tokens from  closed
    KNOWN            done or refused       refused              now on, as its version says closed

A STRANGER has 5 seconds and no payload above 16 KiB (unless the token before it is good). A refused request changes
nothing; a strict peer hears nothing of it, an extended one gets ERROR. The tokens of a listener are verified once and
remembered by their bytes (`FastDoor`); key, permission and rights are looked at for every group of packets: those of one
read with one token to one topic. Where the peer asked for it, an empty token means the last that was accepted on this
connection (`_same`): it saves the bytes of the token, not the judging.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.doors.queues import Bearer, Member
from quintet.broker.topics.catalog import Topic
from quintet.delivery.subscription import Subscription
from quintet.kernel.items import DirectReader, FastItem, FastSplit
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import AuthError, BadRequest, Forbidden, LimitExceeded, QuintetError, message_of
from quintet.model.rate import Bucket
from quintet.model.tasks import start
from quintet.protocols import records
from quintet.protocols.base import FLOWING, STALL, WAIT, Replies, SessionConnection, act_on, in_pieces
from quintet.protocols.fast import codec, errors, frames
from quintet.protocols.fast.mapping import Request, origin_of, topic_id
from quintet.protocols.fast.section import FastListener

TOKENS_MAX: Final = 10_000  # verified ones that a listener remembers
BUCKETS_MAX: Final = 10_000  # of rates, per listener
SUBSCRIPTIONS_MAX: Final = 1_000  # of one connection
LONG_PAYLOAD: Final = 2  # of errors.FATAL
EXTENDS: Final = re.compile(rb"(?:\x70[\x00-\xff])++")
BLOCKED_SUBSCRIBES_MAX: Final = 100  # of a connection without room; then it is not read from until it has read
NEVER: Final = 1 << 62  # microseconds since 1970
HELD_US_MAX: Final = 1_000_000  # until one that must wait for its rate looks again
REPLIES_WAITING_MAX: Final = 10_000  # requests of one connection that wait for the disk; above it, it is not read from


class FastDoor:
    """What the connections of one listener share: verified tokens, connections per subject, rates."""

    __slots__ = (
        "_buckets", "bearers", "broker", "epoch", "options", "origins", "refusals", "seen_at", "soonest", "subjects",
    )  # fmt: skip

    def __init__(self, broker: Broker, options: FastListener) -> None:
        self.broker = broker
        self.options = options
        self.origins: dict[
            bytes, bytes | None
        ] = {}  # for the kernel: None is a refused token, kept within one read only
        self.bearers: dict[bytes, Bearer] = {}
        self.refusals: dict[bytes, AuthError] = {}
        self.subjects: Counter[str] = Counter()
        self._buckets: dict[str, Bucket] = {}
        self.seen_at = 0
        self.soonest = 0  # when the first remembered token expires; 0: none does
        self.epoch = (0, 0)  # of the rights and of the secrets that tokens were judged by

    @property
    def limited(self) -> bool:
        return bool(self.options.subject_messages_per_second_max or self.options.address_messages_per_second_max)

    def refresh(self, now: int) -> None:
        """Forget what is no longer so: all tokens after a change of secrets or rights, or when the clock was set back (one
        may be too early again); those that have expired."""
        epoch = (self.broker.access.epoch, self.broker.tokens.epoch)
        back, self.seen_at = now < self.seen_at, now
        if back or epoch != self.epoch:
            self.epoch, self.soonest = epoch, 0
            self.origins.clear()
            self.bearers.clear()
        elif self.soonest and now >= self.soonest:
            for token in [t for t, b in self.bearers.items() if b.claims.expires and b.claims.expires <= now]:
                del self.bearers[token], self.origins[token]
            self.soonest = min((b.claims.expires for b in self.bearers.values() if b.claims.expires), default=0)

    def learn(self, token: bytes, now: int) -> Bearer | None:
        """Judge a token that is not remembered; None: it is refused, and `refusals` has the reason."""
        try:
            bearer = self.broker.queues.bearer(token, now)
        except AuthError as refused:
            self.refusals[token] = refused
            self.origins[token] = None
            return None
        if len(self.bearers) >= TOKENS_MAX:
            oldest = next(iter(self.bearers))
            del self.bearers[oldest], self.origins[oldest]
        self.bearers[token] = bearer
        self.origins[token] = origin_of(bearer.name)
        expires = bearer.claims.expires
        if expires and (not self.soonest or expires < self.soonest):
            self.soonest = expires
        return bearer

    def forget_refused(self) -> None:
        for token in self.refusals:
            self.origins.pop(token, None)
        self.refusals.clear()

    def buckets(self, subject: str, address: str, monotonic: int) -> list[Bucket]:
        """The rates that this subject from this address has to keep."""
        options = self.options
        found = []
        for key, rate in (("s:" + subject, options.subject_messages_per_second_max),
                          ("a:" + address, options.address_messages_per_second_max)):  # fmt: skip
            if rate:
                bucket = self._buckets.get(key)
                if bucket is None:
                    self._make_room(monotonic)
                    bucket = self._buckets[key] = Bucket(rate, monotonic)
                found.append(bucket)
        return found

    def _make_room(self, monotonic: int) -> None:
        if len(self._buckets) >= BUCKETS_MAX:
            for key in [key for key, bucket in self._buckets.items() if bucket.full(monotonic)]:
                del self._buckets[key]
            while len(self._buckets) >= BUCKETS_MAX:
                del self._buckets[next(iter(self._buckets))]


class FastSession:
    """See the table above. `sink` is the connection, for verbs that answer later."""

    __slots__ = (
        "_blocked", "_broker", "_deadline", "_doing", "_door", "_epoch", "_extended", "_left", "_members", "_payload_bytes_max", "_peer", "_refused",
        "_reader", "_reader_for", "_replies", "_routes", "_same", "_sink", "_slow", "_topic", "_whole", "auth_failures", "closing", "holding", "principal_name", "stopped", "take_output",
    )  # fmt: skip

    def __init__(self, door: FastDoor, sink: SessionConnection, monotonic: int, peer: str = "") -> None:
        self.closing: str | None = None
        self.principal_name: str | None = None
        self.auth_failures = 0
        self._door = door
        self._broker = door.broker
        self._sink = sink
        self._peer = peer
        self._extended = door.options.extended  # requests are answered
        # What an empty token means; b"": nothing yet; None: nothing, ever.
        self._same: bytes | None = b"" if self._extended else None
        self._whole = False  # messages go out as record sets
        self._deadline: int | None = monotonic + limits.HANDSHAKE_US
        self._payload_bytes_max = min(door.options.payload_bytes_max, limits.UNAUTHENTICATED_FRAME_BYTES_MAX)
        self._refused = 0
        self._replies = Replies()
        self.take_output = self._replies.take
        self._members: dict[int, Member] | None = None
        self._topic: Topic | None = None  # the last one published to
        self._routes: kernel.Routes[Topic] = kernel.Routes()  # where the kernel appends by itself
        self._reader: DirectReader | None = None  # made of these, for the kernel ...
        self._reader_for: tuple[object, ...] = ()  # ... of what else
        self._epoch = door.epoch  # when they were learnt
        self._slow: list[Bucket] = []
        self.holding = False  # by a rate; else every packet is taken when it is whole: late answers wait in their slots
        self._left: list[FastItem] | None = None  # requests for a later turn; their bytes are consumed
        self._doing = 0
        self.stopped = False
        self._blocked = 0  # SUBSCRIBEs while it had no room: what each left waits for room

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def operation(self) -> str:
        return frames.NAMES.get(self._doing, "")

    @property
    def extended(self) -> bool:
        return self._extended

    @property
    def same_token(self) -> bytes | None:
        """What an empty token means now; None: nothing."""
        return self._same

    def admits(self, token: bytes, now: int) -> bool:
        """Is this token good, and is its bearer welcome? For requests that go to another cell; one that is refused must be received
        here, which counts it."""
        self._door.refresh(now)
        bearer = self._door.bearers.get(token) or self._door.learn(token, now)
        return bearer is not None and (self.principal_name is not None or self._welcome(bearer))

    def receive(self, view: memoryview, now: int, split: FastSplit | None = None) -> int:
        door, position = self._door, 0
        self.stopped = False
        if self._reader is not None:
            door.seen_at = max(door.seen_at, self._reader.seen)
        while self.closing is None and not self.stopped:
            door.refresh(now)
            if self.principal_name is None and door.limited:
                self._greet(view, position, now)
            if self.holding:
                break
            if self._left is not None:
                self._left = act_on(self._left, self._act, now, self._sink.turn_over)
                self.stopped = self._left is not None
                continue
            most = self._payload_bytes_max
            if self._epoch != door.epoch or self._broker.draining:
                self._epoch = door.epoch
                self._routes.clear()
            if split is None:
                split = kernel.fast_append(
                    self._broker.tails, self._routes, view, position, most, door.origins, self._broker.queues.wire, now, self._same,
                    self._extended,
                )  # fmt: skip
            answers, items, end, fatal, unknown, self._same, appended_to, held = split
            split = None
            if appended_to is not None:
                self._doing = frames.PUBLISH
                if self._topic is not appended_to and (self._topic is None or not self._topic.waiting):
                    self._topic = appended_to
                if answers:
                    self._replies.put(answers)
                if held is not None:
                    self._wait_for(*held)
                else:
                    self._broker.tails_appended()
            extends = bool(items) and items[-1][0] == frames.EXTEND
            if items:
                self._left = act_on(items[:-1] if extends else items, self._act, now, self._sink.turn_over)
            if self._left is not None:  # what ended the split is found again, behind what was left
                position, self.stopped = end - frames.EXTEND_BYTES if extends else end, True
                break
            if extends:
                end = self._extend_all(view, end)
            if unknown is not None:
                door.learn(unknown, now)
            elif fatal and not (fatal == LONG_PAYLOAD and self._no_stranger(most, view, end, now)):
                self._close(errors.FATAL[fatal])
            elif not fatal and (end == len(view) or end == position):
                position = end
                break
            position = end
            if unknown is None:  # else what was learnt of it would be forgotten before it was of use
                self.stopped = position < len(view) and self._sink.turn_over()
        if door.refusals:
            door.forget_refused()
        if self._slow and not self.holding:
            self._hold()
        return position

    @property
    def direct(self) -> DirectReader | None:
        """Only for who is known, where no rates are kept, until rights change or the next token expires."""
        door, broker = self._door, self._broker
        if self._topic is None or self.principal_name is None or door.limited or kernel.DirectReader is None:
            return None
        if self._epoch != door.epoch or door.epoch != (broker.access.epoch, broker.tokens.epoch):
            return None
        made_for = (self._same, door.soonest, self._extended, self._payload_bytes_max)
        if self._reader is None or self._reader_for != made_for:
            self._reader_for = made_for
            self._reader = kernel.DirectReader.fast(
                self._broker.tails, self._routes, self._payload_bytes_max, door.origins, self._broker.queues.wire, self._same,
                self._extended, door.seen_at, door.soonest or NEVER,
            )  # fmt: skip
        return self._reader

    def adopt(self, unanswered: bytes | tuple[bytes, list[tuple[int, int]]]) -> Request | None:
        if isinstance(unanswered, bytes):
            self._replies.put(unanswered)
            return None
        oks, groups = unanswered
        slot = Request(frames.PUBLISH, groups, oks, self._extended)
        slot.hold(1, 0, self._sink.appended)
        self._replies.add(slot)
        return slot

    def _greet(self, view: memoryview, start: int, now: int) -> None:
        """The first packet of a connection, where rates are kept: if its bearer, or its address, has overdrawn one on other
        connections, this one waits, too, before anything is taken. Else it would pay to connect again."""
        token = codec.token_at(view, start)
        if token is None or view[start] == frames.EXTEND:
            return
        bearer = self._door.bearers.get(token) or self._door.learn(token, now)
        if bearer is not None and self._welcome(bearer):
            self._slow = self._door.buckets(bearer.name, self._address, self._broker.scheduler.monotonic())
            self._hold()

    def _hold(self, _result: object = None, _error: Exception | None = None) -> None:
        """Take nothing while a rate is overdrawn; look again in a while, unless the connection is gone."""
        monotonic = self._broker.scheduler.monotonic()
        self._slow = [bucket for bucket in self._slow if bucket.wait(monotonic)]
        self.holding = bool(self._slow)
        if self.holding:
            wait = max(bucket.wait(monotonic) for bucket in self._slow)
            again = partial(self._sink.completed, self._hold, None, None)
            self._broker.scheduler.later(min(wait, HELD_US_MAX), again)

    @property
    def _address(self) -> str:
        return self._peer.rpartition(":")[0]

    def _close(self, reason: str) -> None:
        """Shut when the output is sent; the first reason is the one that is told."""
        self.closing = self.closing or reason

    def _no_stranger(self, most: int, view: memoryview, start: int, now: int) -> bool:
        """A payload above `most`, which was a stranger's limit: what was done since, or the token before the payload, may
        say that this is none. A token that is refused here counts as in any other packet."""
        if self.principal_name is not None:
            return self._payload_bytes_max > most
        token = codec.token_at(view, start)
        if token is None:
            return False
        bearer = self._door.bearers.get(token) or self._door.learn(token, now)
        if bearer is None:
            topic = frames.TOPIC.unpack_from(view, start + 2 + len(token))[0]
            self._refuse(frames.PUBLISH, topic, 1, self._door.refusals[token], False)
            return False
        return self._welcome(bearer)

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        assert isinstance(token, tuple)
        slot, number = token
        if error is not None:
            slot.errors = {number: error, **slot.errors}
        slot.missing -= 1
        if not slot.missing:
            self._replies.fill(slot, slot.oks if not slot.errors else self._refuse_some(slot))

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert callable(token), "every late verb of this session leaves a callable as its token"
        token(result, error)

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        """MESSAGE packets. A whole batch looks the same to every subscriber: it is encoded once."""
        assert isinstance(subscription, Subscription)
        if self._whole:
            self._push_records(subscription, partition, batch, first, last)
            return
        if in_pieces(batch, first, last):
            for index in range(first, last):
                _, _, _, value, _, _, _ = batch.row(index)
                self._replies.push(codec.message_head(topic_id(subscription.topic_name), len(value or b"")))
                self._replies.push(value or b"")
            return
        whole = first == 0 and last == batch.count
        if whole and batch.memo is not None and (found := batch.memo.get("fast")) is not None:
            self._replies.push(found)
            return
        data, _ = kernel.fast_deliver(topic_id(subscription.topic_name), batch.buffer, first, last, 0)
        if whole and batch.memo is not None:
            batch.memo["fast"] = data
        self._replies.push(data)

    def _push_records(
        self, subscription: Subscription, partition: int, batch: RecordBatch, first: int, last: int
    ) -> None:
        """MESSAGES packets, alike."""
        whole = first == 0 and last == batch.count
        if whole and batch.memo is not None and (found := batch.memo.get("fast-records")) is not None:
            self._replies.push(found)
            return
        id, most = topic_id(subscription.topic_name), self._door.options.payload_bytes_max
        made = [codec.messages(id, data) for data, _, _ in records.sets(batch, first, last, 0, partition << 48, most)]
        data = b"".join(made)
        if whole and batch.memo is not None:
            batch.memo["fast-records"] = data
        self._replies.push(data)

    @property
    def unanswered(self) -> int:
        return self._replies.waiting

    def congestion(self) -> int:
        if len(self._replies.slots) > REPLIES_WAITING_MAX or self._blocked >= BLOCKED_SUBSCRIBES_MAX:
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
            self.closing = "no valid token within 5 seconds"

    def closed(self) -> None:
        members, self._members = self._members, None
        for member in list((members or {}).values()):
            self._broker.queues.leave(member)
        if self.principal_name is not None:
            subjects = self._door.subjects
            subjects[self.principal_name] -= 1
            if not subjects[self.principal_name]:
                del subjects[self.principal_name]
        self._topic = None
        self._broker.quotas.leave(self._sink)
        del self._sink  # connection and session hold each other: no work for the collector

    # -- requests --------------------------------------------------------------------------------------------------

    def _act(self, item: FastItem, now: int) -> None:
        if self.closing is not None:
            return
        assert item[0] != frames.EXTEND, "the session takes these out"
        self._doing = kind = item[0]
        jwt = item[1]
        topic = topic_id(item[2]) if item[0] == frames.CREATE else item[2]
        count = item[4] if item[0] == frames.PUBLISH else 1
        try:
            bearer = self._door.bearers.get(jwt)
            if bearer is None and jwt not in self._door.refusals:
                bearer = self._door.learn(jwt, now)  # it waited for this turn: what was known of it is forgotten
            if bearer is None:
                raise self._door.refusals[jwt]
            if self.principal_name is None and not self._welcome(bearer):
                return
            if item[0] == frames.PUBLISH:
                _, _, _, batch, _ = item
                assert batch is not None, "it is built for every token that was not refused"
                self._publish(bearer, jwt, topic, batch, count)
            elif item[0] == frames.RECORDS:
                _, _, _, data = item
                self._publish_records(bearer, topic, data, now)
            elif item[0] == frames.CREATE:
                _, _, name, flags = item
                self._create(bearer, topic, name, flags)
            elif item[0] == frames.ROTATE_KEY:
                _, _, _, key = item
                self._rotate(bearer, topic, key)
            elif kind == frames.SUBSCRIBE:
                self._subscribe(bearer, topic)
            else:
                assert kind == frames.UNSUBSCRIBE, f"the kernel made an item of unknown type {kind}"
                self._unsubscribe(bearer, topic)
        except QuintetError as error:
            answer = self._refuse(kind, topic, count, error, self._extended)
            if answer:
                self._replies.put(answer)

    def _welcome(self, bearer: Bearer) -> bool:
        """The first valid token: from now on this connection is somebody's. False: that one has too many."""
        self._deadline = None
        self.principal_name = bearer.name
        self._payload_bytes_max = self._door.options.payload_bytes_max
        self._door.subjects[bearer.name] += 1
        most = self._door.options.subject_connections_max
        if self._door.subjects[bearer.name] > most:
            self._close(f"more than {most} connections of {bearer.name}")
            return False
        try:
            self._broker.quotas.join(self._sink, bearer.name)
        except LimitExceeded as error:
            if self._extended:  # else the wire has no word for it
                self._replies.push(codec.error(self._doing or frames.PUBLISH, 0, *errors.to_error(error)))
            self._close(message_of(error))
            return False
        return True

    def _extend_all(self, view: memoryview, end: int) -> int:
        """The EXTEND that ends here and all that follow it, two bytes each, at once: anybody may send them, so they must
        cost little. Returns where they end."""
        found = EXTENDS.match(view, end - frames.EXTEND_BYTES)
        assert found is not None, "the kernel saw an EXTEND where there is none"
        if self.closing is None:
            versions = found[0][1::2]
            answers = {version: _extended(version) for version in set(versions)}
            self._replies.put(b"".join([answers[version] for version in versions]))
            self._whole = self._whole or frames.WHOLE in answers
            self._extended = self._extended or self._whole or frames.VERSION in answers
            if self._same is None and not answers.keys().isdisjoint(frames.VERSIONS):
                self._same = b""  # tokens shown before were not shown to be gone back to
        return found.end()

    def _publish(self, bearer: Bearer, jwt: bytes, id: int, batch: bytearray, count: int) -> None:
        # Document, "Authentication": PUBLISH and SUBSCRIBE need the queue_key of the topic and their permission, in every request.
        queue = self._broker.queues.authorize(bearer, id, "publish", self._peer)
        self._check_open()
        self._broker.quotas.check_storage(queue.topic)
        topic = queue.topic
        if self._extended or queue.durable:
            slot = self._request(frames.PUBLISH, id, count)
            topic.publish(batch, count, queue.durable, partial(self._sink.appended, (slot, 0)))
            self._replies.add(slot)
        else:
            topic.publish(batch, count, False, None)
        self._published(bearer, topic, count)
        if not self._door.limited and not (queue.durable and topic.bounded):
            handle = topic.direct or topic.lent
            if handle is not None:
                self._routes.add(frames.TOPIC.pack(id) + jwt, handle, topic, queue.durable)

    def _wait_for(self, ticket: int, oks: bytes, groups: list[tuple[int, int]], ways: int) -> None:
        """The kernel has appended these, the first of them to a partition in files."""
        slot = Request(frames.PUBLISH, groups, oks, self._extended)
        slot.hold(ways, 0, self._sink.appended)
        if self._broker.tails_held(ticket, ways, slot):
            if oks:
                self._replies.put(oks)
        elif self._extended or any([count for _, count in groups]):  # nothing is told before this turn ends
            self._replies.add(slot)

    def _published(self, bearer: Bearer, topic: Topic, count: int) -> None:
        """Note what congestion and rates are judged by."""
        if self._topic is None or not self._topic.waiting:  # one that waits for its row holds the publisher
            self._topic = topic
        if self._door.limited:
            monotonic = self._broker.scheduler.monotonic()
            for bucket in self._door.buckets(bearer.name, self._address, monotonic):
                bucket.take(count, monotonic)
                if bucket not in self._slow:
                    self._slow.append(bucket)

    def _publish_records(self, bearer: Bearer, id: int, data: bytes, now: int) -> None:
        """A record set: taken whole or not at all, answered once."""
        queue = self._broker.queues.authorize(bearer, id, "publish", self._peer)
        self._check_open()
        self._broker.quotas.check_storage(queue.topic)
        flags, ttl_us = self._broker.queues.wire.get(id, (0, 0))
        found = records.split(data, len(queue.topic.partitions), origin_of(bearer.name), now, flags=flags)
        count = sum(number for _, _, number in found.groups)
        slot = self._request(frames.RECORDS, id, 1, len(found.groups))
        self._replies.add(slot)
        for partition, batch, number in found.groups:
            if ttl_us:
                batch = records.expiring(batch, now + ttl_us)
            try:
                queue.topic.publish(batch, number, queue.durable, partial(self._sink.appended, (slot, 0)), partition)
            except QuintetError as error:
                self.on_appended((slot, 0), 0, error)
        self._published(bearer, queue.topic, count)

    def _create(self, bearer: Bearer, id: int, name: bytes, flags: int) -> None:
        self._check_open()
        try:
            name.decode()
        except UnicodeDecodeError as error:
            raise BadRequest("a topic name is UTF-8") from error
        # Document, "Authentication": CREATE binds the queue_key of its token to the new queue.
        slot = self._request(frames.CREATE, id, 1)
        self._replies.add(slot)
        start(self._broker.queues.create(bearer, name, flags, self._peer)).then(self._late(slot))

    def _rotate(self, bearer: Bearer, id: int, key: bytes) -> None:
        self._check_open()
        # Document, "0x07: ROTATE_KEY": the permission is `rotate`; KEY_UPDATE then goes to the subscribers that are still valid.
        slot = self._request(frames.ROTATE_KEY, id, 1)
        self._replies.add(slot)
        start(self._broker.queues.rotate(bearer, id, key, self._peer)).then(self._late(slot))

    def _late(self, slot: Request) -> Callable[[object, Exception | None], None]:
        """Back through the connection: it hands on nothing when it is gone, and sends what the session makes."""
        return partial(self._sink.completed, partial(self._answered, slot))

    def _answered(self, slot: Request, _result: object, error: Exception | None) -> None:
        """A request is durable, or could not be made so, or was refused."""
        self.on_appended((slot, 0), 0, error)

    def _subscribe(self, bearer: Bearer, id: int) -> None:
        if self._members is None:
            self._members = {}
        if id not in self._members and len(self._members) >= SUBSCRIPTIONS_MAX:
            raise LimitExceeded(f"more than {SUBSCRIPTIONS_MAX} subscriptions on one connection")
        queues = self._broker.queues
        member = queues.join(bearer, id, self._sink, partial(self._told, id), self._peer)
        self._members[id] = member
        self._ok(frames.SUBSCRIBE, id)
        queues.start(member)
        if self._sink.room() <= 0:
            self._blocked += 1
            if self._blocked == BLOCKED_SUBSCRIBES_MAX:
                self._sink.park(self._unblock)

    def _unblock(self) -> None:
        self._blocked = 0

    def _unsubscribe(self, bearer: Bearer, id: int) -> None:
        """Whoever has a valid token may end a subscription of this very connection."""
        member = None if self._members is None else self._members.pop(id, None)
        if member is None:
            self._broker.queues.authorize(bearer, id, "subscribe", self._peer)
        else:
            self._broker.queues.leave(member)
        self._ok(frames.UNSUBSCRIBE, id)

    def _told(self, id: int, key: object, error: Exception | None) -> None:
        """The broker speaks of a subscription: its key has changed, or it is over."""
        if error is None:
            assert isinstance(key, bytes)
            # Document, "0x06: KEY_UPDATE": only to those who are authorized, which the queue has looked at.
            self._replies.push(codec.key_update(id, key))
            return
        if self._members is not None:
            self._members.pop(id, None)
        if self._extended:
            self._replies.push(codec.error(frames.SUBSCRIBE, id, errors.ENDED, message_of(error)))

    # -- answers ---------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        self._broker.check_open()

    def _request(self, kind: int, id: int, count: int, missing: int = 1) -> Request:
        oks = codec.ok(kind, id) * count if self._extended else b""
        return Request(kind, ((id, count),), oks, self._extended, missing)

    def _refuse_some(self, slot: Request) -> bytes:
        """The answers to requests of which some could not be made durable, or were refused."""
        parts = []
        for number, (id, count) in enumerate(slot.groups):
            if (error := slot.errors.get(number)) is not None:
                parts.append(self._refuse(slot.kind, id, count, error, slot.answered))
            elif slot.answered:
                parts.append(codec.ok(slot.kind, id) * count)
        return b"".join(parts)

    def _ok(self, kind: int, id: int) -> None:
        if self._extended:
            self._replies.put(codec.ok(kind, id))

    def _refuse(self, kind: int, id: int, count: int, error: Exception, answered: bool) -> bytes:
        """Count what was refused; the ERRORs for it, if the peer wants them. Too many refusals of tokens, keys and rights
        end the connection, and the answers end where one packet at a time would have ended it."""
        self._broker.queues.refused += count
        if isinstance(error, AuthError | Forbidden):
            if isinstance(error, AuthError):
                self.auth_failures += 1
                name, what = self.principal_name or "", frames.NAMES[kind]
                self._broker.audit.record("auth.failure", name, f"fast:{id:08x}", "denied", self._peer, what)
            most = self._door.options.auth_failures_max
            self._refused += count
            if most and self._refused >= most:
                count -= self._refused - most
                self._close("too many refused requests")
        return codec.error(kind, id, *errors.to_error(error)) * count if answered else b""


def _extended(version: int) -> bytes:
    """The answer to EXTEND. Also a strict peer gets it: who sends EXTEND knows OK and ERROR."""
    if version in frames.VERSIONS:
        return codec.ok(frames.EXTEND, 0)
    text = f"version {version} is not spoken here, {' and '.join(map(str, frames.VERSIONS))} are"
    return codec.error(frames.EXTEND, 0, errors.VERSION, text)
