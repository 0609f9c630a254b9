"""From bytes to broker verbs and back: one bidirectional stream of a Felix connection.

    state \\ frame   auth                        another, listener open      another
    FRESH           PUBLISHED or "auth failed"  DOCUMENT, then by type      "auth required"
    PUBLISHED       "auth already established"  by type                     by type
    DOCUMENT        "auth already established"  by type

Answers to publishes, subscriptions and whatever has no request_id keep the order of their requests; answers of the cache
with a request_id do not wait for others. What ends a stream (the texts above, "tenant mismatch", "forbidden") is said behind
all that is still owed. A malformed header shuts the whole connection. Subscriptions belong to the connection (mapping.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec

from quintet import kernel
from quintet.broker.bearer import Bearer, TenantMismatch
from quintet.broker.consumers.polled_members import Poll
from quintet.broker.core import Broker
from quintet.broker.identity.access import ANONYMOUS
from quintet.broker.topics.catalog import ANY, Topic
from quintet.kernel.items import FelixItem
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.client_address import REQUEST_CHARS_MAX, request_text
from quintet.model.errors import AuthError, BadRequest, Forbidden, LimitExceeded, QuintetError, message_of
from quintet.model.keys import fnv1a
from quintet.protocols import records
from quintet.protocols.base import FLOWING, STALL, WAIT, Replies, SessionConnection, Slot, Streams, act_on
from quintet.protocols.felix import codec, errors, features, frames, long_json, matching
from quintet.protocols.felix.codec import Id, origin_of
from quintet.protocols.felix.consumer_requests import ConsumerRequests
from quintet.protocols.felix.feature_requests import HANDLERS
from quintet.protocols.felix.frames import Dialect
from quintet.protocols.felix.mapping import FelixPeer, Reach
from quintet.protocols.felix.section import FelixListener

FRESH: Final = "fresh"
PUBLISHED: Final = "published"
DOCUMENT: Final = "document"

HELD_US_MAX: Final = 1_000_000  # until one that must wait for its tenant's rate looks again
UNPACKED_BYTES_MAX: Final = 32 * limits.MIB  # of packed batches in one turn of the loop ...
QUICK_BYTES_MAX: Final = 64 * limits.KIB  # of a read of publishes that is answered in one call
JWT_DOTS: Final = 2


class FelixStream(SessionConnection, Protocol):
    """A stream of net/, as its session sees it."""

    @property
    def streams(self) -> Streams:
        """The connection it is of."""


class _Publish(Slot):
    """The reply slot of a publish on its way, and how its answer looks."""

    __slots__ = ("binary", "error", "missing", "partition", "request_id")

    def __init__(self, request_id: Id, binary: bool) -> None:
        self.data = None
        self.request_id = request_id
        self.binary = binary
        self.partition = 0
        self.missing = 1  # batches that are not durable yet
        self.error: Exception | None = None


class FelixSession(ConsumerRequests):
    """See the table above. `stream` is where it lives, for verbs that answer later."""

    __slots__ = (
        "_appends_to", "_deadline", "_held", "_known", "_leaving", "_left", "_named", "_origin", "_peer", "_request", "_state",
        "_targets", "_tenant", "_unpacked", "_unsaid", "auth_failures", "close_code", "closing", "operation", "principal_name", "take_output",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, stream: FelixStream, monotonic: int, options: FelixListener, peer: str = ""
    ) -> None:
        self.closing: str | None = None
        self.close_code: int | None = None
        self.principal_name: str | None = None
        self.auth_failures = 0
        streams = stream.streams
        if streams.shared is None:
            streams.shared = FelixPeer(broker, streams, options)
        assert isinstance(streams.shared, FelixPeer)
        self._shared = streams.shared
        self._broker = broker
        self._sink: SessionConnection = stream
        self._options = options
        self._peer = peer
        self._state = FRESH
        self._deadline: int | None = monotonic + limits.HANDSHAKE_US
        self._dialect = Dialect(True, 0)
        self._known = frames.BATCH  # flags that may be on a frame
        self._bearer: Bearer | None = None
        self._origin = b""
        self._epoch = 0
        self._replies = Replies()
        self.take_output = self._replies.take
        self._reach: Reach
        self._targets: dict[tuple[bytes, bool], tuple[Topic, str]] = {}  # the reach's, to be looked at without a call
        self._scopes: dict[bytes, kernel.CacheMemory] = {}
        self._topic: Topic | None = None  # the last one published to
        self._tenant = ""  # of the last publish that was above its tenant's rate
        self._held = False
        self.stopped = False
        self._made = 0  # bytes of answers from this read ...
        self._behind = 0  # ... and of all that wait behind others
        self._unpacked = 0
        self._late = 0  # answers that wait and have no slot
        self._polls: set[Poll] | None = set()
        self._leaving: str | None = None
        self._left: list[FelixItem] | None = None  # requests for a later turn; their bytes are consumed
        self.operation = ""
        self._request: Id = None  # of that request
        self._named: tuple[tuple[str, str, str], bytes] | None = None  # of the last publish in JSON, and as `target`
        self._unsaid = False  # the last unacknowledged publish was refused, and that was said
        self._appends_to: tuple[int, bytes, Topic, str] | None = None  # the kernel may: handle, names, tenant
        # For a read like the last one, which was nothing but gets, or acknowledged publishes to one topic in memory.
        self.quick: Callable[[bytes, int], bytes] | None = None

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def request(self) -> str:
        """The request_id of the request that was acted on last, of a batch -1 if it has none."""
        return "" if self._request == -1 else request_text(self._request)

    @property
    def holding(self) -> bool:
        return self._held or (self._behind >= frames.ANSWER_BYTES_MAX and self._replies.waiting > 0)

    def receive(self, view: memoryview, now: int) -> int:
        self.stopped, self._made, self.quick = False, 0, None
        self._behind = self._behind if self._replies.waiting else 0
        position = self._first(view, now) if self._state is FRESH else 0
        if self._bearer is not None and self._epoch != self._broker.access.epoch:
            self._look_again(self._bearer, now)
        size = len(view)
        if self._left is not None:
            self._act_all(self._left, now)
        while position < size and not (self._state is FRESH or self.stopped or self._held or self._going):
            if self._scopes and not self._replies.waiting:
                position = self._gets(view, position, now)
                if position == size or self._turn_is_over():
                    break
            end = codec.end_of_run(view, position)
            items, end, fatal = kernel.felix_split(
                view[:end], position, self._options.frame_bytes_max, self._known, self._state is PUBLISHED, self._origin, now,
                self._dialect.key_flag,
            )  # fmt: skip
            self._act_all(items, now)
            if fatal and not self._left:  # else it is found again, behind what was left
                self._shut(fatal)
            if end == position:
                break
            position = end
            if position < size:
                self._turn_is_over()
        if not self._going:
            if self._appends_to is not None and position == size and self._state is PUBLISHED:
                # If nothing of it is left, waits or holds, the next read may be answered in one call.
                self.quick = None if self.unanswered or self._held or self.stopped else self._answer_publishes
            return position
        self._close_if_done()
        return size

    @property
    def _going(self) -> bool:
        return self.closing is not None or self._leaving is not None

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        assert isinstance(token, _Publish)
        if error is not None:
            self._targets.clear()  # ask again: the topic may not be what was promised
        token.missing -= 1
        token.error = error = token.error or error
        if token.missing > 0:
            return
        place = codec.wire_offset(token.partition, offset) if error is None else None
        self._replies.fill(token, self._published(token, error, place))
        if self._leaving is not None:
            self._close_if_done()

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert callable(token), "every late verb of this session leaves a callable as its token"
        token(result, error)
        self._close_if_done()

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        raise AssertionError("records go to event streams")

    @property
    def unanswered(self) -> int:
        return self._replies.waiting + self._late

    def congestion(self) -> int:
        if self._replies.waiting + self._late > frames.REPLIES_WAITING_MAX:
            return WAIT
        if self._topic is None:
            return FLOWING
        if self._topic.waiting or self._broker.overloaded():
            return WAIT
        return STALL if self._topic.overrun() else FLOWING

    def deadline(self) -> int | None:
        return self._deadline

    def tick(self, monotonic: int) -> None:
        if self._deadline is None or monotonic < self._deadline:
            return
        self._deadline = None
        if self._bearer is None:
            self._replies.put(codec.encode(codec.Error(message=errors.AUTH_REQUIRED)))
            self.closing = self.closing or "no authentication within 5 seconds"
        elif self._bearer.expired(now := self._broker.scheduler.now()):
            self._look_again(self._bearer, now)
            self._close_if_done()
        else:
            self._deadline = self._bearer.check_at()

    def ended(self, now: int) -> None:
        self._leave("")
        self._close_if_done()

    def closed(self) -> None:
        self._topic = self.quick = self._appends_to = None
        polls, self._polls = self._polls or (), None
        for poll in polls:
            poll.cancel()
        if self._bearer is not None:
            self._reach.forget()
        del self._sink  # stream and session hold each other: no work for the collector

    def _leave(self, reason: str) -> None:
        """Take nothing more, and end when all that is owed is said. The first reason is the one that is told."""
        self.quick = None
        if self._leaving is None:
            self._leaving = reason

    def _close_if_done(self) -> None:
        if self._leaving is not None and self.closing is None and not self._replies.waiting and not self._late:
            self.closing = self._leaving

    def _shut(self, fatal: int) -> None:
        # Document, "Protocol Errors": a malformed header closes the stream with a code.
        self.closing = self.closing or errors.FATAL[fatal]
        self.close_code = frames.PROTOCOL_ERROR

    # -- who -------------------------------------------------------------------------------------------------------

    def _first(self, view: memoryview, now: int) -> int:
        """The first frame decides who speaks; nothing but `auth` is taken here."""
        most = self._options.frame_bytes_max
        end = codec.end_of_run(view, 0)
        items, consumed, fatal = kernel.felix_split(view[:end], 0, most, 0, True, b"", now)
        flags, length = frames.HEADER.unpack_from(view)[2:] if len(view) >= frames.HEADER.size else (0, 0)
        long = length > limits.UNAUTHENTICATED_FRAME_BYTES_MAX
        payload = items[0][1] if items and items[0][0] == frames.JSON_ITEM else None
        if fatal:
            self._shut(fatal)
        elif payload is not None and not long and codec.type_of(payload) == "auth":
            self._auth(payload, now)
            return consumed
        elif self._options.open and (items or flags):
            self.enter_open()
        elif not self._options.open and (items or flags or long):
            self._broker.audit.record("access.denied", "", "", "denied", self._peer, errors.AUTH_REQUIRED)
            self._refuse_text(errors.AUTH_REQUIRED)
        return 0

    def enter_open(self) -> None:
        """The listener lets everybody in, and the first frame is no `auth`."""
        self._deadline = None
        try:
            self._shared.enter(ANONYMOUS, "")
        except LimitExceeded as error:
            self._refuse_auth(error)
        else:
            self._enter(self._anonymous(""), DOCUMENT)

    @property
    def shared(self) -> FelixPeer:
        return self._shared

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def _anonymous(self, tenant: str) -> Bearer:
        identity, principal = self._broker.access.anonymous(self._options.anonymous_role)
        return Bearer(self._broker, self._peer, tenant, identity, principal, b"", None)

    def _auth(self, payload: bytes, now: int) -> None:
        try:
            ask = codec.decode(payload)
            assert isinstance(ask, codec.Auth), "its type was looked at before"
            if ask.client_flags is not None and not 0 <= ask.client_flags <= 0xFFFF:
                raise BadRequest("auth: client_flags is a number of 16 bits")
            bearer = self._identify(ask.token.encode(), ask.tenant_id, now)
            # Who has a key could name any tenant, and use up what it may have.
            self._shared.enter(bearer.owner, bearer.tenant if bearer.claims is not None else "")
        except QuintetError as error:
            self._refuse_auth(error)
            return
        flags, ours = codec.agreed(ask)
        self._dialect = dialect = Dialect(False, flags, ours is not None, ask.client_features)
        self._known = frames.BATCH | frames.ACKED | dialect.key_flag | (frames.ZSTD if dialect.zstd else 0)
        self._known |= frames.RECORDS if dialect.whole else 0
        self._enter(bearer, PUBLISHED)
        served = frames.SERVER_FEATURES if dialect.featured else None
        full = codec.AuthOk(server_flags=flags, server_features=served, quintet=ours)
        self._replies.put(codec.encode(codec.Ok() if ask.client_flags is None else full))

    def _refuse_auth(self, error: QuintetError) -> None:
        if isinstance(error, AuthError | Forbidden | BadRequest):
            self.auth_failures += 1
        self._refuse_text(errors.to_text(error))

    def _refuse_text(self, text: str) -> None:
        self._replies.put(codec.encode(codec.Error(message=codec.cut(text))))
        self._leave(text)

    def _identify(self, token: bytes, tenant: str, now: int) -> Bearer:
        """Whose token this is: a tenant's, an API key, or nobody's where the listener is open."""
        broker, access = self._broker, self._broker.access
        try:
            if token.count(b".") == JWT_DOTS:
                claims = broker.tenant_tokens.verify(token, now)
                identity, principal = access.subject(claims.subject)
                bearer = Bearer(broker, self._peer, claims.tenant, identity, principal, token, claims)
                if claims.tenant != tenant:
                    broker.audit.record("access.denied", principal.name, tenant, "denied", self._peer, "tenant")
                    raise TenantMismatch(f"the token is not of tenant {tenant!r}")
                return bearer
            identity, principal = access.authenticate(token)
        except AuthError:
            if not self._options.open:
                broker.audit.record("auth.failure", "", "", "denied", self._peer, "token")
                raise
            return self._anonymous(tenant)
        return Bearer(broker, self._peer, tenant, identity, principal, b"", None)

    def _enter(self, bearer: Bearer, state: str) -> None:
        self._bearer, self._state = bearer, state
        self._reach = Reach(bearer, self._options, self._dialect.document)
        self._targets, self._scopes = self._reach.targets, self._reach.scopes
        self._deadline = bearer.check_at()
        self._epoch = self._broker.access.epoch
        self.principal_name = bearer.principal.name
        self._origin = origin_of(bearer.principal.name)

    def _look_again(self, bearer: Bearer, now: int) -> None:
        """Access changed, or a token expired: take the rights as they are now, or leave, and all that it subscribed to."""
        self._epoch, self.quick, self._appends_to = self._broker.access.epoch, None, None
        self._reach.forget()
        if bearer.valid(now):
            self._deadline = bearer.check_at()
            self._shared.recheck(now)
        else:
            self._deadline = None
            self._shared.end_of(bearer)
            self._refuse_text(errors.AUTH_FAILED)

    # -- frames ----------------------------------------------------------------------------------------------------

    def _turn_is_over(self) -> bool:
        """Whether what is left of this read waits for a later one."""
        self.stopped = self.stopped or self._sink.turn_over()
        return self.stopped

    def _act_all(self, items: list[FelixItem], now: int) -> None:
        self._left = None
        if len(items) == 1:  # one request under way
            self._act(items[0], now)
            return
        self._left = act_on(items, self._act, now, self._sink.turn_over)
        self.stopped = self.stopped or self._left is not None

    def _act(self, item: FelixItem, now: int) -> None:
        if self._leaving is not None or self.closing is not None:
            return
        self.operation = "binary batch"
        if item[0] == frames.BATCH_ITEM:
            _, target, batch, count, request_id, _, *key = item
            self._request = request_id
            answer = _Publish(request_id, True) if request_id >= 0 else None
            self._publish(target, batch, count, answer, key=key[0] if key else None)
        elif item[0] == frames.JSON_ITEM:
            _, payload = item
            self._json(payload, now)
        elif item[0] == frames.MALFORMED_ITEM:
            _, number, request_id = item
            self._request = request_id
            self._refuse_batch(errors.MALFORMED[number], frames.BATCH, request_id)
        elif item[0] == frames.FLAGS_ITEM:
            _, flags, request_id = item
            self._refuse_batch(errors.FLAGS, flags, request_id)
        else:
            _, flags, payload = item
            self._unpack(flags, payload, now)

    def _refuse_batch(self, text: str, flags: int, request_id: int) -> None:
        """A binary frame that cannot be read: an acknowledged batch is answered by its id, any other batch not at all."""
        if request_id >= 0:
            self._replies.put(errors.published(request_id, True, BadRequest(text), self._dialect))
        elif flags & (frames.BATCH | frames.ACKED) == frames.BATCH and not self._dialect.document:
            self._drop()
        else:
            self._error(BadRequest(text), None)

    def _unpack(self, flags: int, payload: bytes, now: int) -> None:
        size = self._options.frame_bytes_max
        try:
            body = codec.unpack(payload, size) if flags & frames.ZSTD else payload
            size = len(body)
            if flags & frames.RECORDS:
                self._publish_records(*codec.parse_records(body, bool(flags & frames.ACKED)), now)
            else:
                self._act(kernel.felix_batch(body, flags, self._origin, now), now)
        except BadRequest as error:
            self._refuse_batch(message_of(error), flags & ~frames.RECORDS, -1)
        self._spend(size)  # one that is refused may have cost as much

    def _spend(self, size: int) -> None:
        """Work that a small frame asked for: after so much of it others have their turn."""
        self._unpacked += size
        if self._unpacked > UNPACKED_BYTES_MAX and not self._held:
            self._held = True
            self._broker.scheduler.soon(partial(self._sink.completed, self._hold, None, None))

    def _json(self, payload: bytes, now: int) -> None:
        dialect = self._dialect
        known = features.requests if dialect.featured else matching.requests if dialect.extended else codec.plain
        if len(payload) > long_json.JSON_HERE_BYTES_MAX:
            self._held = True
            self._late += 1
            told = partial(self._sink.completed, partial(self._decoded, payload))
            long_json.decode(payload, known, self._broker, lambda: hasattr(self, "_sink"), told)
            return
        try:
            ask = codec.decode_by(payload, known)
        except QuintetError as error:
            self._refuse_json(error, codec.publishes(payload), codec.id_of(payload))
        else:
            self._asked(payload, ask, now)

    def _decoded(self, payload: bytes, ask: msgspec.Struct | None, error: Exception | None) -> None:
        """A long message; of one that is not understood the id is not looked for."""
        self._late -= 1
        self._hold()
        if error is None:
            assert ask is not None
            self._asked(b"", ask, self._broker.scheduler.now())
        else:
            unreadable = isinstance(error, long_json.Unreadable)
            self._refuse_json(error, (False, True) if unreadable else codec.publishes(payload), None)

    def _asked(self, payload: bytes, ask: msgspec.Struct, now: int) -> None:
        request_id: Id = getattr(ask, "request_id", None)
        try:
            if self._state is PUBLISHED and request_id is not None and not codec.is_u64(request_id):
                request_id = None
                raise BadRequest("request_id: a number of 64 bits")
            self.operation = str(ask.__struct_config__.tag)
            self._request = request_id[:REQUEST_CHARS_MAX] if isinstance(request_id, str) else request_id
            _HANDLERS[type(ask)](self, ask, now)
        except QuintetError as error:
            request_id = codec.id_of(payload) if request_id is None else request_id
            self._refuse_json(error, codec.publish_of(ask), request_id)

    def _refuse_json(self, error: Exception, publish: tuple[bool, bool], request_id: Id) -> None:
        """`publish`: whether it is one, and whether it asks for an answer."""
        if isinstance(error, codec.UnknownType) and self._dialect.features & frames.UNSUPPORTED:
            self._unsupported(error, request_id)
            return
        if self._state is PUBLISHED:
            publishes, waits = publish
            if publishes and not waits:
                self._drop()
                return
            if publishes and codec.is_u64(request_id) and isinstance(error, QuintetError):
                self._refuse_publish(_Publish(request_id, False), error, request_id)
                return
        self._error(error, request_id)

    def _error(self, error: Exception, request_id: Id, slot: Slot | None = None) -> None:
        """Refused: said in the order of requests, and if it is about who may, it is the last that is said."""
        data = self._weighed(errors.encoded(error, self._dialect, request_id), None)
        say = self._replies.put if slot is None else partial(self._replies.fill, slot)
        say(data)
        self._leave_if_barred(error)

    def _leave_if_barred(self, error: Exception) -> None:
        if text := errors.closing(error, self._dialect):
            self._leave(text)

    # -- publish ---------------------------------------------------------------------------------------------------

    def _publish(
        self, target: bytes, batch: bytearray | None, count: int, answer: _Publish | None, request_id: Id = None,
        key: bytes | None = None,
    ) -> None:  # fmt: skip
        way = (target, answer is not None)
        if answer is None and way in self._reach.barred:
            self._drop()
            return
        try:
            topic, tenant = self._targets.get(way) or self._reach.target(way)
            if batch is None:
                if answer is not None:
                    self._replies.put(self._published(answer, None))
                return
            where = ANY if key is None else fnv1a(key) % len(topic.partitions)
            if answer is None:
                topic.publish(batch, count, False, None, where)
                self._unsaid = False
            elif topic.in_memory and not topic.waiting:
                # There is nothing to wait for: it is visible before this turn ends, and the answer leaves behind that.
                where = topic.publish(batch, count, True, None, where)
                ends = topic.partitions[where].end if self._dialect.ack_offsets else count
                self._replies.put(self._published(answer, None, codec.wire_offset(where, ends - count)))
                if key is None and not topic.bounded and (handle := topic.direct) is not None:
                    self._appends_to = handle, target, topic, tenant
            else:
                answer.partition = topic.publish(batch, count, True, partial(self._sink.appended, answer), where)
                self._replies.add(answer)
        except QuintetError as error:
            self._targets.pop(way, None)
            if answer is None and not self._dialect.document:
                self._drop_refused(way, error)
                return
            self._refuse_publish(answer, error, request_id)
            return
        self._topic = topic
        if tenant and self._broker.tenants.published(tenant, len(batch), self._broker.scheduler.monotonic()):
            self._tenant = tenant
            self._hold()

    def _answer_publishes(self, data: bytes, now: int) -> bytes:
        """A read of nothing but acknowledged publishes to the topic of the last one: all answers. Empty: `receive` takes it. Behind
        it `quick` is None if the stream must look whether it may be read on (`holding`, `congestion`)."""
        broker = self._broker
        if self._appends_to is None or self._epoch != broker.access.epoch or len(data) > QUICK_BYTES_MAX:
            return b""
        handle, target, topic, tenant = self._appends_to
        appended = kernel.felix_append(
            broker.tails, handle, target, data, self._options.frame_bytes_max, self._origin, now, self._dialect.ack_offsets
        )  # fmt: skip
        if appended is None:
            self._appends_to = None  # until the next publish that is like it
            return b""
        answers, size, self._request, is_json = appended
        self.operation = "publish" if is_json else "binary batch"
        broker.tails_appended()
        if tenant and broker.tenants.published(tenant, size, broker.scheduler.monotonic()):
            self._tenant, self.quick = tenant, None
            self._hold()
        elif (topic.subscriptions and topic.overrun()) or broker.overloaded():
            self.quick = None
        return answers

    def _refuse_publish(self, answer: _Publish | None, error: QuintetError, request_id: Id) -> None:
        """A document client's that nobody waits for is answered once until one is taken again: it may not even read."""
        # Document, "Application Errors": an error message on the same stream, with the reason.
        if answer is not None:
            self._replies.put(self._published(answer, error))
        if (answer is None and not self._unsaid) or errors.closing(error, self._dialect):
            self._replies.put(errors.encoded(error, self._dialect, request_id))
        self._unsaid = self._unsaid or answer is None
        self._leave_if_barred(error)

    def _drop_refused(self, way: tuple[bytes, bool], error: QuintetError) -> None:
        """A publish of a published client that asks for no answer. Clients take whatever comes for the answer to the next one
        that does: so nothing is said, and the stream goes on, for it may serve topics that its user has a right to. Each
        topic that is barred is asked for, and audited, once."""
        self._drop()
        if errors.closing(error, self._dialect):
            self._reach.barred.add(way)
            if len(self._reach.barred) > frames.BARRED_TARGETS_MAX:
                self._leave(f"published to more than {frames.BARRED_TARGETS_MAX} streams without the right to")

    def _drop(self) -> None:
        self._broker.publishes_dropped += 1

    def _publish_records(self, request_id: int, target: bytes, data: memoryview, now: int) -> None:
        """A record set: taken whole or not at all, answered once. Refused as any publish."""
        answer = _Publish(request_id, True) if request_id >= 0 else None
        way = (target, answer is not None)
        if answer is None and way in self._reach.barred:
            self._drop()
            return
        try:
            topic, tenant = self._targets.get(way) or self._reach.target(way)
            found = records.split(data, len(topic.partitions), self._origin, now)
            if answer is not None:
                answer.missing = len(found.groups)
                self._replies.add(answer)
            for partition, batch, count in found.groups:
                self._publish_group(topic, partition, batch, count, answer)
            self._unsaid = self._unsaid and answer is not None
        except QuintetError as error:
            self._targets.pop(way, None)
            if answer is None:
                self._drop_refused(way, error)
            else:
                self._refuse_publish(answer, error, None)
            return
        self._topic = topic
        if tenant and self._broker.tenants.published(tenant, len(data), self._broker.scheduler.monotonic()):
            self._tenant = tenant
            self._hold()

    def _publish_group(
        self, topic: Topic, partition: int, batch: bytearray, count: int, answer: _Publish | None
    ) -> None:
        if answer is None:
            topic.publish(batch, count, False, None, partition)
            return
        try:
            answer.partition = topic.publish(batch, count, True, partial(self._sink.appended, answer), partition)
        except QuintetError as error:
            self.on_appended(answer, 0, error)

    def _published(self, answer: _Publish, error: Exception | None, offset: int | None = None) -> bytes:
        return errors.published(answer.request_id, answer.binary, error, self._dialect, offset)

    def _hold(self, _result: object = None, _error: Exception | None = None) -> None:
        """Take nothing while a tenant's rate is overdrawn; look again in a while, unless the stream is gone."""
        monotonic = self._broker.scheduler.monotonic()
        self._unpacked = 0
        wait = self._broker.tenants.published(self._tenant, 0, monotonic) if self._tenant else 0
        self._held = wait > 0
        if self._held:
            again = partial(self._sink.completed, self._hold, None, None)
            self._broker.scheduler.later(min(wait, HELD_US_MAX), again)

    def _publish_json(self, ask: codec.Publish | codec.PublishBatch, _now: int) -> None:
        answer = None
        values = [ask.payload] if isinstance(ask, codec.Publish) else ask.payloads
        if ask.ack not in (None, "none"):
            if ask.request_id is None and not self._dialect.document:
                raise BadRequest(errors.MISSING_ID if isinstance(ask, codec.Publish) else errors.MISSING_ID_BATCH)
            answer = _Publish(ask.request_id, False)
        names, target = (ask.tenant_id, ask.namespace, ask.stream), b""
        if self._named is not None and self._named[0] == names:  # most streams publish to one topic
            target = self._named[1]
        else:
            target = codec.target(*names)
            self._named = (names, target)
        key, keys = ask.key, None
        if key is not None:
            if len(key) > frames.KEY_BYTES_MAX:
                raise BadRequest(f"key: {len(key)} bytes, at most {frames.KEY_BYTES_MAX}")
            if len(key) * len(values) + sum(map(len, values)) > frames.KEYED_BYTES_MAX:
                raise BadRequest(f"key: with it in every message more than {frames.KEYED_BYTES_MAX} bytes; send fewer")
            keys = [key] * len(values)
        headers = None
        if ask.headers:
            own = tuple([(name.encode(), text) for name, text in ask.headers])
            records.check(own)
            headers = [own] * len(values)
        batch = kernel.build(values, keys, headers, origin=self._origin) if values else None
        self._publish(target, batch, len(values), answer, ask.request_id, key)

    def _auth_again(self, _ask: codec.Auth, _now: int) -> None:
        raise errors.AlreadyKnown("a stream is authenticated once")


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    codec.Auth: FelixSession._auth_again,
    codec.Publish: FelixSession._publish_json,
    codec.PublishBatch: FelixSession._publish_json,
    codec.Subscribe: FelixSession._subscribe,
    codec.SubscribeOurs: FelixSession._subscribe,
    codec.CachePut: FelixSession._cache_put,
    codec.CachePutOurs: FelixSession._cache_put,
    codec.CacheGet: FelixSession._cache_get,
    codec.AckRanges: FelixSession._ack,
    codec.NackRanges: FelixSession._nack,
    codec.WorkingRanges: FelixSession._working,
    codec.Credit: FelixSession._credit,
    codec.Unsubscribe: FelixSession._unsubscribe,
    codec.CacheDelete: FelixSession._cache_delete,
    codec.CacheIncr: FelixSession._cache_incr,
    codec.CacheGetMany: FelixSession._cache_get_many,
    codec.CacheKeys: FelixSession._cache_keys,
    codec.CacheWatch: FelixSession._cache_watch,
    matching.MatchTopics: FelixSession._match_topics,
    **HANDLERS,
}
