"""From bytes to broker verbs and back: one FlyMQ connection.

    state \\ frame    AUTH                      anything else
    FRESH            -> CHECKING               ERROR: authenticate first
    CHECKING         waits                     waits              (the password is being verified elsewhere)
    READY            the same user again       by the table in frames.py and the handlers in mapping.py

Replies come in the order of requests, and a request sees what the ones before it did: PRODUCE frames run on together,
any other request waits until everything before it is answered, and what follows waits for it (`holding`: the rest of the
bytes stays with the connection). What follows a large PRODUCE waits until a thread has built its batch. What becomes of a
run of PRODUCE frames is in producing.py. The one gate for rights is `_permit`; no handler is reached around it.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from quintet import kernel
from quintet.broker.audit.audit_log import Result
from quintet.broker.core import Broker
from quintet.broker.identity.access import ANONYMOUS, Action, Principal
from quintet.broker.slices import unless_unwanted
from quintet.broker.topics.long_polls import Wait
from quintet.kernel.items import DirectReader, FlyAppended, FlySplit
from quintet.log.base import Partition
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import (
    AuthError,
    BadRequest,
    Forbidden,
    LimitExceeded,
    PartitionNotFound,
    QuintetError,
    TooLarge,
    message_of,
)
from quintet.model.rights import Right
from quintet.model.tasks import Done, start
from quintet.protocols import records
from quintet.protocols.base import CLAIM_BYTES_MIN, FLOWING, WAIT, Replies, SessionConnection, Slot
from quintet.protocols.flymq import codec, errors, frames
from quintet.protocols.flymq.call import Call, Made
from quintet.protocols.flymq.mapping import HANDLERS
from quintet.protocols.flymq.producing import RUNS, Producing, Run
from quintet.protocols.flymq.record_requests import is_plain
from quintet.protocols.flymq.section import FlymqListener

T = TypeVar("T")

FRESH: Final = "fresh"
CHECKING: Final = "checking"
READY: Final = "ready"

PRODUCES: Final = (frames.PRODUCE, frames.PRODUCE_RECORDS)
RUN_ON: Final = frozenset({*PRODUCES, frames.CREATE_TOPIC})  # do not wait for the answers before: many share one sync
NEVER: Final = 1 << 62  # a deadline that does not come
AUTH_FAILURES_MAX: Final = 10  # on one connection, then it is closed
REPLIES_WAITING_MAX: Final = 1_000  # runs of PRODUCE that wait for the disk; above it, the connection is not read from
OUTPUT_BYTES_MAX: Final = limits.WRITE_HIGH_BYTES  # of answers to one read; then the peer must take some
# May be answered long after the gate was passed, with what only who may still read should see.
WAITING: Final = frozenset(
    {
        frames.FETCH,
        frames.FETCH_BINARY,
        frames.CONSUME,
        frames.CONSUME_ZERO_COPY,
        frames.PEEK,
        frames.FETCH_DLQ,
        frames.FETCH_RECORDS,
    }
)
RECORD_BYTES_MAX: Final = frames.FRAME_BYTES_MAX - (64 << 10)  # key and value: any answer that holds it fits a frame

# What the kernel hands back of a PRODUCE although its fields add up.
_UNSOUND: Final = "PRODUCE: a topic name has 1 to 255 bytes, and a producer id is between 1 and 2^63 - 1"


# What a row's right asks of the topic: one of these; nothing for rights that are checked elsewhere.
_NEEDS: Final[dict[Right, tuple[Action, ...]]] = {
    "open": (),
    "known": (),
    "owner": (),
    "read": ("subscribe",),
    "write": ("publish",),
    "manage": ("admin",),
    "read or write": ("subscribe", "publish"),
}


class Request(NamedTuple):
    """One frame that is not part of a run of PRODUCE frames."""

    code: int
    flags: int
    payload: bytes | memoryview


class FlySession:
    """See the table above. `sink` is the connection, for verbs that answer later."""

    __slots__ = (
        "_acting", "_address", "_broker", "_changing", "_checking_since", "_deadline", "_epoch", "_give_up", "_identity", "_made",
        "_next", "_now", "_options", "_origin", "_peer", "_principal", "_producing", "_replies", "_sink", "_state",
        "_turn_over", "_waiting", "auth_failures", "closing", "gone", "making", "operation", "principal_name", "take_output",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        sink: SessionConnection,
        monotonic: int,
        options: FlymqListener,
        peer: str = "",
        address: str = "",
    ) -> None:
        self.closing: str | None = None
        self.principal_name: str | None = None
        self.auth_failures = 0
        self.gone = False  # closed: nobody waits for an answer any more
        self._broker = broker
        self._sink = sink
        self._options = options
        self._address = address  # where clients reach this listener, for CLUSTER_METADATA
        self._peer = peer
        self._state = FRESH
        self._deadline: int | None = monotonic + limits.HANDSHAKE_US
        self._identity = ""
        self._principal: Principal | None = None
        self._origin = b""
        self._epoch = 0
        self._now = 0  # the date of the last receive
        self._replies = Replies()
        self.take_output = self._replies.take
        self._producing = Producing(broker, sink, self._replies, options.dialect, peer)
        self._next: Request | None = None  # the request that waits for those before it
        self._made = 0  # bytes of answers since the last read began
        self._turn_over = False  # the last read left frames for a later turn
        self.operation = ""
        self._acting = False  # a request other than PRODUCE is under way
        self.making = False  # ... and bytes are claimed for its answer
        self._waiting: Wait | None = None  # the long poll under way
        self._checking_since = 0  # on the monotonic clock
        self._give_up: Callable[[], None] | None = None  # no password need be checked for us any more
        self._changing = False  # it is a change of a password, perhaps of the own one: its answer goes out first
        if options.anonymous_role:
            try:
                broker.quotas.join(sink, ANONYMOUS)
            except LimitExceeded as refused:
                self.closing = message_of(refused)
            self._welcome(*broker.access.anonymous(options.anonymous_role))

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def holding(self) -> bool:
        """Whole frames may be left with the connection until the request under way is answered."""
        return not self._producing.unfinished and (self._acting or self._next is not None)

    @property
    def stopped(self) -> bool:
        return self._turn_over or self._producing.unfinished or self._made > OUTPUT_BYTES_MAX

    def receive(self, view: memoryview, now: int, split: FlySplit | None = None) -> int:
        position = self._made = 0
        self._turn_over = False
        self._now = now
        if self._state is READY and self._epoch != self._broker.access.epoch:
            self._still_welcome()  # also while a FETCH waits: whoever was revoked gets nothing any more
        if self._producing.unfinished and self.closing is None:
            self._producing.go_on()
            self._advance()
        producing = self._producing
        while self.closing is None:
            # `holding` or `stopped`, written out: it is asked twice a read, and a property is a function.
            if self._acting or self._next is not None or self._turn_over or producing.unfinished:
                break
            if self._made > OUTPUT_BYTES_MAX:
                break
            if self._state is not READY:
                before = position
                position = self._handshake(view, position)
                if position == before:
                    break
                self._turn_over = position < len(view) and self._sink.turn_over()
                continue
            if self._epoch != self._broker.access.epoch and not self._still_welcome():
                break  # the request before changed it
            if split is None:
                split = kernel.fly_append(
                    producing.tails, producing.routes, view, position, self._options.frame_bytes_max, producing.counts, self._origin,
                    now, frames.BINARY, producing.append_sets,
                )  # fmt: skip
            answers, items, end, fatal, unknown, appended_to = split
            split = None
            if appended_to is not None:
                if isinstance(answers, bytes):
                    self.operation = frames.OPERATIONS[answers[frames.CODE_AT]].name
                    producing.appended(appended_to, answers)
                else:
                    self.operation = frames.OPERATIONS[answers[-1]].name
                    producing.held(appended_to, answers)
            for code, what, rest in items:
                if isinstance(what, list):
                    assert isinstance(rest, bytes)
                    self.operation = frames.OPERATIONS[code].name
                    self._producing.run(what, rest, RUNS[code])
                else:
                    self._next = Request(code, what, rest)
                    self._advance()
            if unknown is not None:
                self._producing.resolve(unknown)
            elif fatal:
                self.closing = errors.FATAL[fatal]
            elif end in (position, len(view)):
                return end
            position = end
            if not self.stopped:
                self._turn_over = self._sink.turn_over()
        return position

    @property
    def direct(self) -> DirectReader | None:
        """Not while another request waits, which what comes behind must not overtake, nor before changed rights were looked at."""
        if self._state is not READY or self._acting or self._next is not None:
            return None
        if self._epoch != self._broker.access.epoch:
            return None
        return self._producing.direct(self._options.frame_bytes_max)

    def adopt(self, unanswered: bytes | tuple[FlyAppended, int]) -> Run | None:
        return self._producing.adopt(unanswered)

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        assert isinstance(token, tuple)
        run, number = token
        self._producing.produced(run, number, error)
        self._advance()

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert callable(token), "every late verb of this session leaves a callable as its token"
        token(result, error)
        self._advance()

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        raise AssertionError("FlyMQ has no push: nothing of this session subscribes to delivery")

    @property
    def unanswered(self) -> int:
        return self._replies.waiting

    def congestion(self) -> int:
        if len(self._replies.slots) > REPLIES_WAITING_MAX:
            return WAIT
        return WAIT if self._producing.behind() else FLOWING

    def deadline(self) -> int | None:
        """The clock of the handshake stands while the broker itself checks a password."""
        return self._deadline if self._deadline is None or self._state is not CHECKING else NEVER

    def tick(self, monotonic: int) -> None:
        if self._deadline is not None and monotonic >= self._deadline and self._state is not CHECKING:
            self._deadline = None
            self.closing = "no authentication within 5 seconds"

    def closed(self) -> None:
        self.gone = True
        if self._give_up is not None:
            self._give_up()
            self._give_up = None
        self._broker.groups.leave(self)
        self._producing.close()
        self._next = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._broker.quotas.leave(self._sink)
        del self._sink  # connection and session hold each other: no work for the collector

    # -- who -------------------------------------------------------------------------------------------------------

    def _handshake(self, view: memoryview, position: int) -> int:
        """One frame at a time, and small ones only; nothing is inflated for strangers."""
        left = len(view) - position
        if left and view[position] != frames.MAGIC:
            self.closing = errors.FATAL[1]
        elif left > 1 and view[position + 1] != frames.VERSION:
            self.closing = errors.FATAL[2]
        if self.closing is not None or left < frames.HEADER_BYTES:
            return position
        code, flags, length = (int(value) for value in frames.HEADER.unpack_from(view, position)[2:])
        if length > limits.UNAUTHENTICATED_FRAME_BYTES_MAX:
            self.closing = f"a frame of {length} bytes before authentication"
            return position
        if left < frames.HEADER_BYTES + length:
            return position
        start = position + frames.HEADER_BYTES
        self._next = Request(code, flags, bytes(view[start : start + length]))
        self._advance()
        return start + length

    def _authenticate(self, slot: Slot, operation: frames.Operation, ask: codec.Values) -> None:
        anonymous = self._identity.startswith("anonymous:")
        if self._state is READY and not anonymous and ask["user"] != self.principal_name:
            raise BadRequest(f"this connection is {self.principal_name}", hint="open another one for another user")
        before, self._state, self._acting = self._state, CHECKING, True
        self._checking_since = self._broker.scheduler.monotonic()
        user, password = ask["user"], ask["password"].encode()
        login = start(self._broker.users.authenticate_password(user, password, peer=self._peer))
        self._give_up = login.cancel
        login.then(partial(self._sink.completed, partial(self._authenticated, slot, operation, before, user)))

    def _authenticated(
        self, slot: Slot, operation: frames.Operation, before: str, user: str,
        result: tuple[str, Principal] | None, error: Exception | None,
    ) -> None:  # fmt: skip
        self._acting = False
        self._give_up = None
        self._state = before
        if self._deadline is not None:
            self._deadline += self._broker.scheduler.monotonic() - self._checking_since
        if error is None:
            assert result is not None
            try:
                self._broker.quotas.join(self._sink, result[1].name)
            except LimitExceeded as refused:
                error, self.closing = refused, message_of(refused)
        values: codec.Values = {"success": error is None, "error": "", "username": user, "roles": []}
        if error is None:
            assert result is not None
            self._welcome(*result)
            assert self._principal is not None
            values["roles"] = list(self._principal.roles)
        else:
            values["error"] = error.message if isinstance(error, QuintetError) else errors.INTERNAL[1]
            values["username"] = ""
            if isinstance(error, AuthError):
                self.auth_failures += 1
                if self.auth_failures >= AUTH_FAILURES_MAX:
                    self.closing = "too many failed authentications"
        self._replies.fill(slot, codec.encode_answer(operation, self._options.dialect, values, 0))

    def _welcome(self, identity: str, principal: Principal) -> None:
        if identity != self._identity:
            self._broker.groups.leave(self)  # what somebody without a name has joined is not this user's
        self._state, self._deadline = READY, None
        self._identity, self._principal = identity, principal
        self._epoch = self._broker.access.epoch
        self.principal_name = principal.name
        self._origin = origin_of(principal.name)
        self._producing.permit(principal, self._origin, self._epoch)

    def _still_welcome(self) -> bool:
        """Access changed: take the rights as they are now, or leave."""
        principal = self._broker.access.current(self._identity)
        if principal is None and self._changing:
            return True
        self._epoch = self._broker.access.epoch
        self._producing.permit(principal, self._origin, self._epoch)
        self._principal = principal
        if self._principal is None:
            self.closing = "the user was deleted, disabled, or has another password now"
        return self._principal is not None

    # -- everything else -------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Act on the request that waits, if nothing before it is unanswered."""
        if self._next is None or self._acting or self._producing.unfinished:
            return
        # What waits without being acted upon is PRODUCE and CREATE_TOPIC: another of these does not wait for their answers.
        if self._replies.waiting and self._next.code not in RUN_ON:
            return
        left = self.closing is not None
        if not left and self._state is READY and self._epoch != self._broker.access.epoch:
            left = not self._still_welcome()  # access changed while it waited
        if left:
            self._next = None
            return
        (code, flags, payload), self._next = self._next, None
        slot = self._replies.reserve()
        try:
            self._request(slot, code, flags, payload)
        except QuintetError as error:
            self._acting = self.making = False
            self._replies.fill(slot, errors.to_frame(error, self._options.dialect))

    def _request(self, slot: Slot, code: int, flags: int, payload: bytes | memoryview) -> None:
        operation = frames.OPERATIONS.get(code)
        if operation is None:
            raise BadRequest(f"unknown opcode: {code}")
        self.operation = operation.name
        if self._state is not READY and operation.right != "open":
            self._denied(operation.name, "")
            raise AuthError("authenticate first", hint="send AUTH (0x70) with a name and a password")
        compression = (flags & frames.COMPRESSION_MASK) >> frames.COMPRESSION_SHIFT
        if compression:
            if self._state is not READY:
                raise AuthError("compressed payloads are read after authentication only")
            most = self._options.frame_bytes_max
            try:
                payload = codec.inflate(compression, payload, min(most, frames.LARGE_BYTES))
            except TooLarge:
                if most <= frames.LARGE_BYTES:
                    raise
                work = partial(codec.inflate, compression, payload, most)
                return self._elsewhere(work, partial(self._inflated, slot, operation, flags))
        return self._act(slot, operation, flags, payload)

    def _elsewhere(self, work: Callable[[], T], done: Done[T]) -> None:
        """Tens of milliseconds: not on the loop, where all others wait."""
        self._acting = True
        told = partial(self._sink.completed, done)
        self._broker.elsewhere.finish(work, lambda: not self.gone).then(unless_unwanted(told))

    def _inflated(
        self, slot: Slot, operation: frames.Operation, flags: int, result: bytes | None, error: Exception | None
    ) -> None:
        self._acting = False
        if result is None:
            assert error is not None
            self._replies.fill(slot, errors.to_frame(error, self._options.dialect))
            return
        try:
            if self._epoch != self._broker.access.epoch and not self._still_welcome():
                raise AuthError("this user may no longer use the connection")
            self._act(slot, operation, flags, result)
        except QuintetError as refused:
            self._acting = False
            self._replies.fill(slot, errors.to_frame(refused, self._options.dialect))

    def _act(self, slot: Slot, operation: frames.Operation, flags: int, payload: bytes | memoryview) -> None:
        code = operation.code
        if code == frames.PRODUCE:
            return self._produce_one(slot, payload)
        ask = codec.decode_request(operation, payload)
        if code == frames.AUTH:
            return self._authenticate(slot, operation, ask)
        if self._state is not READY:  # WHOAMI: the other one that is open to all
            nobody: codec.Values = {"success": False, "username": "", "roles": [], "permissions": []}
            return self._replies.fill(slot, codec.encode_answer(operation, self._options.dialect, nobody, 0))
        self._permit(operation, ask)
        if len(payload) > RECORD_BYTES_MAX:
            _check_size(sum(len(ask.get(name, b"")) for name in ("key", "data", "value")))
        if code == frames.PRODUCE_RECORDS and is_plain(ask):
            return self._produce_records(slot, ask)
        accept = (flags & frames.ACCEPT_MASK) >> frames.ACCEPT_SHIFT
        if accept and accept not in frames.CODECS:
            raise BadRequest(f"compression {accept} is not known", hint="1 gzip, 2 lz4, 3 zstd, 4 snappy, 0 none")
        assert self._principal is not None
        call = Call(
            self._broker,
            self._principal,
            self,
            self._now,
            self._options,
            self._address,
            self._origin,
            self._peer,
            accept,
            code,
        )
        self._acting = code != frames.CREATE_TOPIC
        self._changing = code == frames.PASSWORD_CHANGE
        answered = partial(self._answered, slot, operation, call, ask, self._epoch)
        call.answer = partial(self._sink.completed, answered)
        call.claim = self._claim
        if self._sink.meter is not None:
            call.answer_bytes_max = self._sink.meter.answer_bytes_max
        try:
            made = HANDLERS[code](call, ask)
        except Forbidden:
            self._not_the_owner(operation, ask)
            raise
        if made is not None:
            answered(made, None)
        self._waiting = call.waiting
        return None

    def _claim(self, partition: Partition, offset: int, read: Callable[[], None]) -> None:
        """Read from `offset` on: now, or when there is room for such an answer over all connections (ADR 16)."""
        size = min(partition.bytes_from(offset), frames.FRAME_BYTES_MAX)
        if size <= CLAIM_BYTES_MIN:
            read()
        elif self._sink.claim(size, partial(self._granted, read)):
            self._granted(read)

    def _granted(self, read: Callable[[], None], _result: object = None, _error: Exception | None = None) -> None:
        self.making = True
        read()

    def _answered(
        self,
        slot: Slot,
        operation: frames.Operation,
        call: Call,
        ask: codec.Values,
        epoch: int,
        made: Made | None,
        error: Exception | None,
    ) -> None:
        """The reply of a handler: fields by the table, or a whole frame that the kernel made."""
        if error is None and isinstance(made, dict) and codec.is_made_in_steps(made):
            told = partial(self._sink.completed, partial(self._answered, slot, operation, call, ask, epoch))
            steps = codec.answer_steps(operation, self._options.dialect, made, call.accept)
            try:
                self._broker.slices.finish(steps, call.wanted).then(unless_unwanted(told))
                return
            except QuintetError as refused:
                error = refused
        if operation.code != frames.CREATE_TOPIC:  # otherwise a request behind it may be under way
            self._acting = self.making = False
            self._waiting = None
        del call.answer, call.claim  # they lead back to the call: no work for the collector
        if isinstance(error, Forbidden):
            self._not_the_owner(operation, ask)
        if error is None and epoch != self._broker.access.epoch and operation.code in WAITING:
            error = self._no_longer(operation, ask)
        if error is None and isinstance(made, dict):
            try:
                made = codec.answer_pieces(operation, self._options.dialect, made, call.accept)
            except QuintetError as refused:
                error = refused
        if error is not None:
            made = errors.to_frame(error, self._options.dialect)
        elif operation.code in frames.AUDITED:
            if operation.code == frames.DELETE_TOPIC:
                self._producing.forget_targets()  # a PRODUCE behind it makes the topic anew
            self._audit(frames.AUDITED[operation.code], resource_of(operation, ask), "success")
        if error is None:
            for first, last in call.given:
                self._broker.events.delivered("flymq", call.owner, ask["topic"], ask["partition"], first, last)
        assert made is not None and not isinstance(made, dict), "a handler that has no error has an answer"
        self._made += sum(map(len, made)) if isinstance(made, list) else len(made)
        self._replies.fill(slot, made)
        if self._changing:
            self._changing = False
            if self._epoch != self._broker.access.epoch:
                self._still_welcome()

    def _produce_one(self, slot: Slot, payload: bytes | memoryview) -> None:
        """A PRODUCE that was compressed, is large, or is not sound."""
        name = kernel.fly_split_one(payload, {}, self._origin)  # as no topic is known, it only looks for the name
        if name is None or len(payload) > RECORD_BYTES_MAX:
            ask = codec.decode_request(frames.OPERATIONS[frames.PRODUCE], payload)
            _check_size(len(ask["key"]) + len(ask["value"]))
        if not isinstance(name, bytes):
            raise BadRequest(_UNSOUND)
        count = self._producing.partitions_of(name)
        work = partial(kernel.fly_split_one, payload, {name: count}, self._origin)
        if len(payload) > frames.LARGE_BYTES:
            self._elsewhere(work, partial(self._built, slot, payload, name, count))
        else:
            self._built(slot, payload, name, count, work(), None)

    def _produce_records(self, slot: Slot, ask: codec.Values) -> None:
        """A record set without schema, delay and transaction; a thread takes a large one apart."""
        _check_size(len(ask["records"]))
        name, asked = ask["topic"].encode(), ask["partition"]
        count = self._producing.partitions_of(name)
        if not -1 <= asked < count:
            raise PartitionNotFound(f"partition {asked} out of range: topic {ask['topic']!r} has {count}")
        work = partial(records.split, ask["records"], count, self._origin, self._now, asked)
        if len(ask["records"]) > frames.LARGE_BYTES:
            self._elsewhere(work, partial(self._split, slot, ask, name, count))
        else:
            self._split(slot, ask, name, count, work(), None)

    def _split(
        self,
        slot: Slot,
        ask: codec.Values,
        name: bytes,
        count: int,
        made: records.Groups | None,
        failed: Exception | None,
    ) -> None:
        """Its batches are there. Rights and topic may not be what they were when it was begun."""
        self._acting = False
        try:
            if failed is not None:
                self._replies.fill(slot, errors.to_frame(failed, self._options.dialect))
            elif self._epoch != self._broker.access.epoch and not self._still_welcome():
                raise AuthError("this user may no longer use the connection")
            elif self._producing.counts.get(name) != count:
                self._produce_records(slot, ask)
            else:
                assert made is not None
                self._producing.run_records(name, made, ask.get("producer_id", 0), ask.get("sequence", 0))
                self._replies.fill(slot, b"")
        except QuintetError as refused:
            self._replies.fill(slot, errors.to_frame(refused, self._options.dialect))

    def _built(
        self, slot: Slot, payload: bytes | memoryview, name: bytes, count: int, made: object, failed: Exception | None
    ) -> None:
        """Its batch is there. Rights and topic may not be what they were when it was begun."""
        self._acting = False
        try:
            if failed is not None:
                self._replies.fill(slot, errors.to_frame(failed, self._options.dialect))
            elif self._epoch != self._broker.access.epoch and not self._still_welcome():
                raise AuthError("this user may no longer use the connection")
            elif self._producing.counts.get(name) != count:
                self._produce_one(slot, payload)
            else:
                assert isinstance(made, tuple), "its name and its fields were found before"
                self.operation = "PRODUCE"
                self._producing.run(*made)
                self._replies.fill(slot, b"")
        except QuintetError as refused:
            self._replies.fill(slot, errors.to_frame(refused, self._options.dialect))

    def _permit(self, operation: frames.Operation, ask: codec.Values) -> None:
        """The gate. Every operation has a row; what is refused here has had no effect and is written down."""
        principal, access = self._principal, self._broker.access
        assert principal is not None
        resource = resource_of(operation, ask)
        right = operation.right
        if right == "admin":
            allowed = access.may_administer(principal)
        else:
            needs = _NEEDS[right]
            allowed = not needs or any(access.allowed(principal, action, resource) for action in needs)
        if not allowed:
            self._denied(operation.name, resource)
            what = "needs an administrator" if right == "admin" else f"needs the right to {right} {resource!r}"
            hint = "" if right == "admin" else access.remedy(resource)
            raise Forbidden(f"{principal.name} may not {operation.name}: it {what}", hint=hint)

    def _no_longer(self, operation: frames.Operation, ask: codec.Values) -> Exception | None:
        """Access changed while the request waited: what has come meanwhile is only for who may still read it."""
        if not self._still_welcome():
            return AuthError("this user may no longer use the connection")
        try:
            self._permit(operation, ask)
        except Forbidden as refused:
            return refused
        return None

    def _not_the_owner(self, operation: frames.Operation, ask: codec.Values) -> None:
        """Behind the gate only a group says no, and does not write it down."""
        if "group" in ask:
            self._denied(operation.name, f"group:{ask['group']}")

    def _denied(self, action: str, resource: str) -> None:
        self._audit("access.denied", resource, "denied", action)

    def _audit(self, kind: str, resource: str, result: Result, action: str = "") -> None:
        self._broker.audit.record(kind, self.principal_name or "", resource, result, peer=self._peer, action=action)


def origin_of(client: str) -> bytes:
    """The origin of what this client publishes, as stored with its records."""
    return b"flymq:" + client.encode()[:200]


def resource_of(operation: frames.Operation, ask: codec.Values) -> str:
    """What a request is about, for the gate and the audit."""
    return str(ask.get(operation.resource, ""))


def _check_size(size: int) -> None:
    """A frame that could just be sent must not become an answer that is too long for every reader."""
    if size > RECORD_BYTES_MAX:
        raise TooLarge(f"a message of {size} bytes, the limit is {RECORD_BYTES_MAX} for key and value together")
