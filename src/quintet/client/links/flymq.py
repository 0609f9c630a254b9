"""Speaks FlyMQ: AUTH, and then requests whose answers come in their order.

    PRODUCE PRODUCE ... FETCH PRODUCE -->           all that is asked in one turn of the loop is one write
                                     <--  RECORD RECORD ... ERROR FETCH RECORD

No frame carries a number, so what was asked waits in line (`_Sent`, `_Ask`) and each answer belongs to its head. Fields
are encoded and decoded by the table of protocols/flymq/frames.py; PRODUCE and FETCH go through the kernel. Nothing here
knows of groups, transactions or retries: those are made of requests elsewhere.
"""

import asyncio
import difflib
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, TypeAlias, cast

from quintet import kernel
from quintet.client.core.base import (
    ClientConnection,
    Connector,
    FetchConnection,
    Fetched,
    Fields,
    Limits,
    MatchConnection,
    Matched,
    Setup,
    SocketConnection,
    Target,
    Wanted,
    dial,
    shake_hands,
)
from quintet.client.core.errors import (
    AuthError,
    BadUrl,
    Busy,
    ProtocolError,
    ServerError,
    TooLarge,
    Unsupported,
    from_server,
)
from quintet.client.core.headers import check_record_ttl
from quintet.client.core.message import Rows
from quintet.client.core.publishing import (
    Load,
    Outcome,
    PublishCall,
    PublishQueue,
    Run,
    WriteTimeout,
    columns_of,
    complete,
    fail,
    runs,
)
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint
from quintet.client.sources.group import GroupSource
from quintet.model.errors import QuintetError
from quintet.protocols.flymq import codec, frames
from quintet.protocols.flymq.codec import Layout
from quintet.protocols.flymq.errors import FATAL, INTERNAL

SET_BYTES_MAX: Final = 256 * 1024  # of values of several calls in one record set: as much as a producer ships at once
COMPRESS_BYTES_MIN: Final = 1024  # a smaller message is not worth it
CREDENTIAL_BYTES_MAX: Final = 65_535

BY_NAME: Final = {operation.name: operation for operation in frames.OPERATIONS.values()}
COMPRESSION: Final = {"none": 0} | {name: number for number, name in frames.CODECS.items()}
# PRODUCE_RECORDS by hand, as its row in the table says; a test holds them together.
_U16: Final = struct.Struct(">H")
_PLACE: Final = struct.Struct(">iI")  # partition, length of the set
_LENGTH_BYTES: Final = 4  # of the last field of a frame's head, and of that of a set
_PRODUCER: Final = struct.Struct(">QI")
_ONE_GROUP: Final = struct.Struct(">IiQIqI")  # 1, partition, offset, count, time, no order
_FETCHED: Final = struct.Struct(">QI")
PARTITION_SHIFT: Final = 48
_PRODUCE: Final = codec.layout(BY_NAME["PRODUCE"].asks[0])
_CODE: Final = re.compile(r"(.*) \[(E\d{4})\]", re.DOTALL)
_DIALECT_HINT: Final = "is this the FlyMQ port of a Quintet broker, and ?dialect= the one of its listener?"
_FETCHES: Final = (frames.FETCH, frames.FETCH_BINARY)
# What a field that may be left off is when one behind it is given; 0 or empty otherwise.
_LEFT_OFF: Final = {"partition": -1}
_TEXT_BYTES_MAX: Final = {"str8": 255, "str16": 65_535}
_EMPTY: Final[dict[str, object]] = {"str8": "", "str16": "", "bytes32": b"", "bool": False}


def encode(name: str, fields: Fields) -> tuple[frames.Operation, bytes]:
    """The operation and its payload: by the first layout that these fields fill. ValueError says which do not."""
    operation = BY_NAME.get(name)
    if operation is None:
        near = difflib.get_close_matches(name.upper(), BY_NAME, n=1)
        raise ValueError(f"FlyMQ has no operation {name!r}" + (f": did you mean {near[0]}?" if near else ""))
    wrong = ""
    for text in operation.asks:
        layout = codec.layout(text)
        names = {node.name for node, _ in layout.names()}
        needed = {node.name for node, optional in layout.names() if not optional}
        missing, unknown = sorted(needed - fields.keys()), sorted(fields.keys() - names)
        if not missing and not unknown:
            return operation, _payload(name, layout, fields)
        wrong = wrong or f"missing: {', '.join(missing) or 'nothing'}; not known: {', '.join(unknown) or 'nothing'}"
    raise ValueError(f"{name} has the fields {' or '.join(map(repr, operation.asks))} ({wrong})")


def _payload(name: str, layout: Layout, fields: Fields) -> bytes:
    values = dict(fields)
    if values.get("filter") == "" and "wait_ms" not in values and name != "PEEK":
        del values["filter"]  # a lone empty one is the mark of published clients, see FlyMQ's README
    for node, _ in layout.names():
        if node.name in fields and isinstance(node, codec.Text):
            most = _TEXT_BYTES_MAX.get(node.kind, frames.FRAME_BYTES_MAX)
            raw = fields[node.name]
            size = len(raw.encode() if isinstance(raw, str) else raw)
            if size > most:
                raise TooLarge(f"{name}: {node.name} has {size} bytes, at most {most} fit")
    _complete(layout.tail, values)
    try:
        return layout.encode(values)
    except (struct.error, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: a field has a value that its kind cannot hold: {error}") from None


def _complete(tail: Layout | None, values: Fields) -> bool:
    """A bracket is all or nothing, and so are those around it: what is missing beside a given field is empty. Whether
    the bracket is there."""
    if tail is None:
        return False
    there = _complete(tail.tail, values) or any(node.name in values for node in tail.nodes)
    if there:
        for node in tail.nodes:
            kind = node.kind if isinstance(node, (codec.Text, codec.Scalar)) else ""
            values.setdefault(node.name, _LEFT_OFF.get(node.name, _EMPTY.get(kind, 0)))
    return there


def error_of(dialect: str, payload: bytes) -> QuintetError:
    """The typed error of an ERROR frame. The sdk dialect has a number; in the document the text ends with the code."""
    sdk = dialect == "sdk"
    fields = codec.layout(frames.ERROR_LAYOUT["sdk" if sdk else "document"]).decode(memoryview(payload))
    if sdk:
        return from_server(f"E{fields['code']}", fields["message"])
    match = _CODE.fullmatch(fields["message"])
    return from_server(match[2], match[1]) if match else from_server("", fields["message"])


def _like(one: Load, other: Load) -> bool:
    """May both be frames of one kernel call?"""
    return (
        not (one.producer_id or other.producer_id)
        and one.topic == other.topic
        and one.partition == other.partition
        and one.compression == other.compression
        and one.ttl_ms == other.ttl_ms
        and (one.headers is None) == (other.headers is None)
    )


def _sets(run: Sequence[PublishCall]) -> Iterator[Sequence[PublishCall]]:
    """Calls whose messages are one record set each. The broker takes a large one apart in a thread, and by way of Python."""
    first = size = 0
    for at, call in enumerate(run if len(run) > 1 else ()):
        more = sum(map(len, call.load.values))
        if at > first and size + more > SET_BYTES_MAX:
            yield run[first:at]
            first, size = at, 0
        size += more
    yield run[first:]


_Answer: TypeAlias = "asyncio.Future[Any]"  # Fields, or Fetched where rows are wanted


class _Ask:
    """A request: the answer goes to `done`, as fields by name or, for a fetch, as rows."""

    __slots__ = ("done", "fields", "operation", "plain")

    def __init__(self, operation: frames.Operation, fields: Fields, done: "_Answer | None", plain: bool) -> None:
        self.operation = operation
        self.fields = fields
        self.done = done
        self.plain = plain

    def complete(self, result: object) -> None:
        if self.done is not None:
            complete(self.done, result)

    def fail(self, error: QuintetError) -> None:
        """The connection is lost."""
        if self.done is not None:
            fail(self.done, error)

    def refuse(self, error: QuintetError) -> None:
        """The server answered with an error."""
        self.fail(error)


class _Records(_Ask):
    """A PRODUCE_RECORDS: publish calls whose messages are one record set."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Sequence[PublishCall]) -> None:
        super().__init__(BY_NAME["PRODUCE_RECORDS"], {}, None, False)
        self._calls = calls

    def complete(self, result: object) -> None:
        self.placed(_places(cast(Fields, result)))

    def placed(self, places: Sequence[tuple[int, int, int] | None]) -> None:
        if len(self._calls) == 1 and isinstance(places, Run) and len(places) == self._calls[0].left:
            self._calls[0].run = places
            self._calls[0].answered(len(places))
            return
        at = 0
        for call in self._calls:
            count = len(call.load.values)
            call.places += places[at : at + count]
            at += count
            call.answered(count)

    def fail(self, error: QuintetError) -> None:
        for call in self._calls:
            call.fail(error)

    def refuse(self, error: QuintetError) -> None:
        if "unknown opcode" in str(error):
            error = Unsupported("this server has no place for headers", hint="a Quintet broker of this version has")
        for call in self._calls:
            count = len(call.load.values)
            call.refuse(0, error, count)
            call.places += [None] * count
            call.answered(count)


def _places(answer: Fields) -> list[tuple[int, int, int] | None]:
    """(partition, offset, time) of each record of a set."""
    groups = answer["groups"]
    runs_of = [
        [(row["partition"], row["offset"] + at, row["timestamp_ms"]) for at in range(row["count"])] for row in groups
    ]
    if len(runs_of) == 1:
        return list(runs_of[0])
    each = [iter(run) for run in runs_of]
    order = answer["order"]
    return [next(each[number]) for number in struct.unpack(f">{len(order) // 2}H", order)]


class FlyConnection(SocketConnection, FetchConnection, MatchConnection):
    """One FlyMQ connection, from AUTH on."""

    def __init__(
        self,
        where: str,
        dialect: frames.Dialect,
        compression: int,
        lost: Callable[[ClientConnection, QuintetError], None],
    ) -> None:
        super().__init__(where, lost)
        self._dialect: frames.Dialect = dialect
        self._compression = compression
        self._line: deque[PublishCall | _Ask] = deque()  # what waits for its answer, in the order of asking
        self._parts: list[bytes] = []  # asked in this turn of the loop and not written yet
        self._due = False  # _flush is called at the end of this turn
        self._publishes = PublishQueue(self._loop, self._send_calls, answers_all=True)
        self._whole = True  # the server knows FETCH_RECORDS, as far as is known

    # -- asking ----------------------------------------------------------------------------------------------------

    async def handshake(self, user: str, password: str) -> None:
        """AUTH; without a user name, whatever the listener gives to strangers."""
        if not user:
            who = await self.request("WHOAMI", {})
            if not who["success"] and not who["username"]:  # this listener has no role for clients without a name
                raise AuthError(
                    f"{self._where}: authenticate first",
                    hint="put name and password into the URL: flymq://USER:PASSWORD@host",
                )
            return
        answer = await self.request("AUTH", {"user": user, "password": password})
        if answer["success"]:
            return
        text = answer["error"]
        if "wait to be checked" in text:
            raise Busy(f"{self._where}: {text}", hint="many clients log in at once; it is tried again")
        if text == INTERNAL[1]:
            raise ServerError(f"{self._where}: {text}", hint="see the server's log")
        raise AuthError(f"{self._where}: {text}", hint="put name and password into the URL: flymq://USER:PASSWORD@host")

    def request(self, name: str, fields: Fields) -> "asyncio.Future[Fields]":
        operation, payload = encode(name, fields)
        return self._ask(operation, payload, fields, False)

    def fetch(self, fields: Fields) -> "asyncio.Future[Fetched]":
        operation, payload = encode("FETCH_RECORDS" if self._whole else "FETCH", fields)
        return self._ask(operation, payload, fields, True)

    def _ask(self, operation: frames.Operation, payload: bytes, fields: Fields, plain: bool) -> "_Answer":
        if self._lost is not None:
            raise self._lost
        done: _Answer = self._loop.create_future()
        self._queue(operation, payload, _Ask(operation, fields, done, plain))
        return done

    def _queue(self, operation: frames.Operation, payload: bytes, ask: _Ask) -> None:
        if len(payload) > frames.FRAME_BYTES_MAX:
            raise TooLarge(f"{operation.name} has {len(payload)} bytes, a frame holds {frames.FRAME_BYTES_MAX}")
        squeeze = self._compression if operation.code != frames.AUTH else 0
        self._soon()
        self._publishes.flush()
        self._parts.append(_accepting(codec.frame(operation.code, payload, squeeze), squeeze))
        self._line.append(ask)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._publishes.flush()
        self._due = False
        self._write_parts()

    def _write_parts(self) -> None:
        parts, self._parts = self._parts, []
        if parts and self._lost is None:
            self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    async def barrier(self) -> None:
        await self.request("WHOAMI", {})

    async def match(self, patterns: Sequence[str], version: int) -> Matched:
        answer = await self.request("MATCH_TOPICS", {"patterns": list(patterns), "version": version})
        return Matched(answer["version"], answer["topics"] if answer["changed"] else None)

    # -- publishing ------------------------------------------------------------------------------------------------

    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        if self._lost is not None:
            raise self._lost
        if load.ttl_ms and load.headers is None:
            return self._publish_with_ttl(load, wait)
        check_record_ttl(load.ttl_ms)
        return self._publishes.add(load, wait)

    def _send_calls(self, calls: list[PublishCall]) -> None:
        """The calls of this turn: neighbours of one kind in one kernel call. What else is asked in it is written with them."""
        for run in runs(calls, _like):
            loads = [call.load for call in run]
            if loads[0].headers is None:
                self._line.extend(run)
                self._parts.append(self._encode(loads))
            else:
                for part in _sets(run):
                    self._line.append(_Records(part))
                    self._parts.append(self._encode_records([call.load for call in part]))
        if not self._due:
            self._write_parts()

    def _encode(self, loads: list[Load]) -> bytes:
        head = loads[0]
        values, keys, _ = columns_of(loads)
        squeeze = self._compression if head.compression is None else COMPRESSION[head.compression]
        if squeeze and max(map(len, values)) >= COMPRESS_BYTES_MIN:
            return self._encode_compressed(head, values, keys, squeeze)
        return kernel.fly_produce(
            head.topic.encode(), keys, values, head.partition, head.producer_id, head.sequence, frames.BINARY
        )

    def _encode_records(self, loads: list[Load]) -> bytes:
        head = loads[0]
        columns = columns_of(loads)
        topic = head.topic.encode()
        place = b"%b%b%b" % (_U16.pack(len(topic)), topic, _PLACE.pack(head.partition, 0))
        producer = _PRODUCER.pack(head.producer_id, head.sequence) if head.producer_id else b""
        squeeze = self._compression if head.compression is None else COMPRESSION[head.compression]
        if squeeze and sum(map(len, columns[0])) >= COMPRESS_BYTES_MIN:
            payload = kernel.records_pack(*columns, head.ttl_ms, place, producer, (len(place) - _LENGTH_BYTES,))
            return codec.frame(frames.PRODUCE_RECORDS, payload, squeeze)
        rest = len(place) + len(producer)
        front = frames.HEADER.pack(frames.MAGIC, frames.VERSION, frames.PRODUCE_RECORDS, frames.BINARY, rest) + place
        lengths = (frames.HEADER_BYTES - _LENGTH_BYTES, len(front) - _LENGTH_BYTES)
        made = kernel.records_pack(*columns, head.ttl_ms, front, producer, lengths)
        if len(made) - frames.HEADER_BYTES > frames.FRAME_BYTES_MAX:
            raise TooLarge(f"PRODUCE_RECORDS has {len(made):,} bytes, a frame holds {frames.FRAME_BYTES_MAX:,}")
        return made

    def _encode_compressed(
        self, head: Load, values: Sequence[bytes], keys: Sequence[bytes | None] | None, squeeze: int
    ) -> bytes:
        parts = []
        for number, value in enumerate(values):
            fields: Fields = {"topic": head.topic, "key": (keys[number] if keys else None) or b"", "value": value}
            fields["partition"] = head.partition
            if head.producer_id:
                fields |= {"producer_id": head.producer_id, "sequence": head.sequence + number}
            parts.append(codec.frame(frames.PRODUCE, _PRODUCE.encode(fields), squeeze))
        return b"".join(parts)

    def _publish_with_ttl(self, load: Load, wait: float) -> "asyncio.Future[Outcome]":
        """Messages that expire have an operation of their own, one request each."""
        sent = self._publishes.call(load, wait)
        WriteTimeout([sent], self._loop)

        def told(answer: "asyncio.Future[Fields]") -> None:
            error = answer.exception()
            if error is None:
                fields = answer.result()
                sent.places.append((fields["partition"], fields["offset"], fields["timestamp_ms"]))
                sent.answered(1)
            elif isinstance(error, QuintetError) and self._lost is None:
                _refuse(sent, error)
                sent.answered(1)
            else:
                sent.fail(error)

        for number, value in enumerate(load.values):
            key = (load.keys[number] if load.keys else None) or b""
            fields: Fields = {"topic": load.topic, "data": value, "ttl_ms": load.ttl_ms, "key": key}
            self.request("PRODUCE_WITH_TTL", fields | {"partition": load.partition}).add_done_callback(told)
        return sent.done

    # -- receiving -------------------------------------------------------------------------------------------------

    def received(self, data: bytes | bytearray) -> tuple[int, int]:
        consumed = self._take(data)
        rest = len(data) - consumed
        if rest < frames.HEADER_BYTES:
            return consumed, 0
        return consumed, frames.HEADER_BYTES + int.from_bytes(data[consumed + 4 : consumed + 8], "big")

    def _take(self, data: bytes | bytearray) -> int:
        items, consumed, fatal = kernel.fly_received(data, 0, frames.FRAME_BYTES_MAX, self._dialect == "sdk")
        for item in items:
            code = cast(int, item[0])
            if code == frames.PRODUCE and isinstance(item[1], list):
                self._records(item[1])
            elif code in _FETCHES and isinstance(item[1], list):
                self._fetched(code, item[1], cast(int, item[2]))
            else:
                self._answer(code, cast(int, item[1]), cast(bytes, item[2]))
        if fatal:
            raise ProtocolError(
                f"{self._where} sent what is not a FlyMQ answer ({FATAL.get(fatal, 'its fields do not add up')})",
                hint=_DIALECT_HINT,
            )
        return consumed

    def _records(self, rows: list[tuple[bytes, int, int, int]]) -> None:
        """Answers to PRODUCE: each call at the head of the line takes its share."""
        at = 0
        while at < len(rows):
            head = self._head(frames.PRODUCE)
            if isinstance(head, _Ask):
                topic, partition, offset, time = rows[at]
                head.complete(_record(head.fields, topic, partition, offset, time))
                at += 1
                self._line.popleft()
                continue
            end = min(at + head.left, len(rows))
            head.places += [row[1:] for row in rows[at:end]]
            self._took(head, end - at)
            at = end

    def _fetched(self, code: int, found: list[tuple[int, bytes | None, bytes]], following: int) -> None:
        head = self._head(code)
        if not isinstance(head, _Ask):
            raise ProtocolError(f"{self._where} answered PRODUCE with a run of messages")
        self._line.popleft()
        if head.plain:
            base = head.fields["partition"] << PARTITION_SHIFT
            rows: Rows = [(base | offset, 1, value, key) for offset, key, value in found]
            head.complete(Fetched(rows, following))
            return
        messages = [{"offset": offset, "key": key or b"", "value": value} for offset, key, value in found]
        head.complete({"messages": messages, "next_offset": following})

    def _fetched_records(self, payload: bytes) -> None:
        """The answer to FETCH_RECORDS: next_offset, and a record set behind its length."""
        head = self._line.popleft()
        assert isinstance(head, _Ask), "_head has seen it"
        try:
            following, size = _FETCHED.unpack_from(payload)
            if _FETCHED.size + size != len(payload):
                raise ValueError("its length is not that of the frame")
            rows = kernel.records_received(memoryview(payload)[_FETCHED.size :], 1)
        except (ValueError, struct.error) as error:
            raise ProtocolError(f"{self._where} answered FETCH_RECORDS with what is no record set: {error}") from None
        head.complete(Fetched(cast(Rows, rows), following))

    def _answer(self, code: int, flags: int, payload: bytes) -> None:
        squeezed = (flags & frames.COMPRESSION_MASK) >> frames.COMPRESSION_SHIFT
        if squeezed:
            try:
                payload = codec.inflate(squeezed, payload, frames.FRAME_BYTES_MAX)
            except TooLarge as error:
                raise ProtocolError(f"{self._where} sent an answer that nobody has room for: {error}") from None
            whole = frames.HEADER.pack(frames.MAGIC, frames.VERSION, code, frames.BINARY, len(payload)) + payload
            self._take(whole)
            return
        if code == frames.ERROR:
            self._refused(error_of(self._dialect, payload))
            return
        head = self._head(code)
        if not isinstance(head, _Ask):
            raise ProtocolError(f"{self._where} answered PRODUCE with operation 0x{code:02x}")
        if code == frames.FETCH_RECORDS and head.plain:
            self._fetched_records(payload)
            return
        if isinstance(head, _Records) and len(payload) == _ONE_GROUP.size:
            number, partition, offset, count, time, order = _ONE_GROUP.unpack(payload)
            if number == 1 and not order:
                self._line.popleft()
                head.placed(Run(partition, offset, count, time))
                return
        try:
            fields = codec.answer_layout(head.operation, self._dialect).decode(memoryview(payload))
        except codec.Malformed as error:
            what = f"{self._where} answered {head.operation.name} in another layout than {self._dialect}: {error}"
            raise ProtocolError(what, hint=_DIALECT_HINT) from None
        self._line.popleft()
        head.complete(fields)

    def _refused(self, error: QuintetError) -> None:
        if not self._line:
            raise ProtocolError(f"{self._where} sent an error that nothing was asked for: {error}")
        head = self._line[0]
        if isinstance(head, _Ask):
            self._line.popleft()
            if head.operation.code == frames.FETCH_RECORDS and head.plain and "unknown opcode" in str(error):
                self._whole = False  # an older broker: ask as any client does
                operation, asked = encode("FETCH", head.fields)
                self._queue(operation, asked, _Ask(operation, head.fields, head.done, True))
                return
            head.refuse(error)
            return
        _refuse(head, error)
        self._took(head, 1)

    def _head(self, code: int) -> "PublishCall | _Ask":
        """Whose answer this is. The line is in order, so anything else is the end of this connection."""
        if not self._line:
            raise ProtocolError(f"{self._where} sent an answer (0x{code:02x}) that nothing was asked for")
        head = self._line[0]
        wanted = frames.PRODUCE if isinstance(head, PublishCall) else head.operation.answer_code
        if wanted != code:
            raise ProtocolError(f"{self._where} answered operation 0x{wanted:02x} with 0x{code:02x}")
        return head

    def _took(self, head: PublishCall, count: int) -> None:
        """The call at the head of the line has so many answers; with its last one it leaves the line."""
        if head.left == count:
            self._line.popleft()
        head.answered(count)

    # -- the end ---------------------------------------------------------------------------------------------------

    def heartbeat(self) -> None:
        operation = BY_NAME["WHOAMI"]
        self._queue(operation, b"", _Ask(operation, {}, None, True))

    def abandon(self, error: QuintetError) -> None:
        line = list(self._line)
        self._line.clear()
        self._parts.clear()
        for waiting in line:
            waiting.fail(error)
        self._publishes.fail(error)


def _accepting(frame: bytes, compression: int) -> bytes:
    """The frame, asking for an answer compressed alike."""
    if not compression:
        return frame
    return frame[:3] + bytes((frame[3] | compression << frames.ACCEPT_SHIFT,)) + frame[4:]


def _refuse(call: PublishCall, error: QuintetError) -> None:
    """The next message of a call was refused: it has no place."""
    call.refuse(len(call.places), error)
    call.places.append(None)


def _record(ask: Fields, topic: bytes, partition: int, offset: int, time: int) -> Fields:
    """The answer to a PRODUCE that was asked for by its name. The kernel leaves the sizes out: they are the asker's."""
    return {
        "topic": topic.decode(),
        "partition": partition,
        "offset": offset,
        "timestamp_ms": time,
        "key_size": len(ask["key"]) or -1,
        "value_size": len(ask["value"]),
    }


class FlyConnector:
    """How to open FlyMQ connections."""

    name = "flymq"
    limits = Limits(
        frame_overhead_bytes=2 + 4 + 4 + 4 + 12,
        frame_bytes_max=frames.FRAME_BYTES_MAX,
        topic_bytes_max=255,
        ttl_ms_max=10 * 365 * 86_400_000,
        in_flight_max=100_000,
    )
    lacks: Final = {
        "durable": "the Felix door keeps positions by name",
        "kv": "the Felix door has a cache",
        "qos=0": "every FlyMQ message is durable when it is answered; the BlipMQ door has qos=0",
        "resume": "a FlyMQ group is resumed by its name: group=; the BlipMQ door has ids to resume",
    }

    def for_bus(self, endpoint: Endpoint, name: str) -> Connector:
        return self

    async def open(
        self, setup: Setup, target: Target, lost: Callable[[ClientConnection, QuintetError], None]
    ) -> ClientConnection:
        endpoint = setup.endpoint
        for what, text in (("user name", endpoint.user), ("password", endpoint.secret)):
            if len(text.encode()) > CREDENTIAL_BYTES_MAX:
                raise BadUrl(f"the {what} is longer than {CREDENTIAL_BYTES_MAX} bytes")
        dialect: frames.Dialect = "sdk" if endpoint.dialect == "sdk" else "document"
        connection = FlyConnection(str(endpoint), dialect, COMPRESSION[endpoint.compression], lost)
        await dial(setup, connection)
        await shake_hands(setup, connection, connection.handshake(endpoint.user, endpoint.secret))
        return connection

    def source(self, setup: Setup, wanted: Wanted) -> Source:
        return GroupSource(setup, wanted)


CONNECTOR: Final = FlyConnector()
