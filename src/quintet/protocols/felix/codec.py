"""Bytes <-> messages of Felix, one at a time, for both sides. Knows no session state.

Each JSON message is a class below; its fields stand in the order they have on the wire, and what is None is left out. What
comes by the thousand (batches, cache gets, events) is split and written by the kernel (`felix_split`, `felix_batch`,
`felix_gets`, `felix_deliver`, `felix_events`, `felix_publish`, `felix_received`).
"""

import struct
from typing import Annotated, Final, Literal, Protocol

import msgspec

from quintet import kernel
from quintet.model import limits
from quintet.model.errors import BadName, BadRequest
from quintet.protocols.felix.frames import (
    ACK,
    ACK_CODE,
    ACK_OFFSET,
    ACK_RECORDS_MAX,
    BATCH,
    DEFAULT_SCOPE,
    HEADER,
    JSON_DEPTH_MAX,
    MAGIC,
    NAME_BYTES_MAX,
    OFFSET_MASK,
    OURS,
    PARTITION_SHIFT,
    PUBLISHED_FLAGS,
    QUINTET,
    SERVER_FLAGS,
    TEXT_BYTES_MAX,
    UNSAID_FLAGS,
    VERSION,
    ZSTD,
)

Id = int | str | None  # published clients have numbers, the document texts; both are given back as they came
Scope = tuple[str, str, str]  # tenant, namespace, stream or cache
Ack = Literal["none", "per_message", "per_batch"]
Version = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # of a key in a cache
PUBLISHES: Final = ("publish", "publish_batch")
U64_MAX: Final = (1 << 64) - 1
UNPACK_STEP_BYTES: Final = 1 << 20
CACHE_PREFIX: Final = "cache/"  # of the topics of caches, as broker/topics/catalog.py has it
ORIGIN_BYTES_MAX: Final = 200
WINDOW_LOG_MAX: Final = 25  # of a zstd frame: what unpacking may hold beside its output
_ACK_HEAD: Final = struct.Struct(">BQH")
_ACK_CODE: Final = struct.Struct(">HB")


class _Message(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


# -- client to server -------------------------------------------------------------------------------------------------


class Auth(_Message, kw_only=True, tag="auth"):
    tenant_id: str
    token: str
    client_flags: int | None = None
    client_features: int | None = None
    quintet: int | None = None


class _OfStream(_Message, kw_only=True):
    tenant_id: str
    namespace: str
    stream: str


# Names and values (base64, or null) in their order. A published client sends none; to one of ours they are as good as a record set.
JsonHeaders = list[tuple[str, bytes | None]]


class Publish(_OfStream, kw_only=True, tag="publish"):
    payload: bytes
    key: bytes | None = None
    headers: JsonHeaders | None = None
    request_id: Id = None
    ack: Ack | None = None


class PublishBatch(_OfStream, kw_only=True, tag="publish_batch"):
    payloads: list[bytes]
    key: bytes | None = None
    headers: JsonHeaders | None = None
    request_id: Id = None
    ack: Ack | None = None


class Start(msgspec.Struct, omit_defaults=True):
    """Where a subscription begins. `offset` alone is everybody's; the others are ours."""

    offset: int | None = None
    time_ms: int | None = None
    offsets: list[int] | None = None


class Subscribe(_OfStream, kw_only=True, tag="subscribe"):
    subscription_id: Id = None
    start: Literal["latest", "earliest"] | Start | None = None
    request_id: Id = None


class SubscribeOurs(Subscribe, kw_only=True, tag="subscribe"):
    ack: Literal["explicit", "none"] | None = None
    durable: str | None = None
    group: str | None = None
    credit: int | None = None


class _OfCache(_Message, kw_only=True):
    tenant_id: str | None = None
    namespace: str | None = None
    cache: str | None = None


class CachePut(_OfCache, kw_only=True, tag="cache_put"):
    key: str
    value: bytes
    request_id: Id = None
    ttl_ms: int | None = msgspec.field(
        default_factory=lambda: None
    )  # a factory: it is on the wire also when it is null


class CachePutOurs(CachePut, kw_only=True, tag="cache_put"):
    if_version: Version | None = None


class CacheGet(_OfCache, kw_only=True, tag="cache_get"):
    key: str
    request_id: Id = None


class AckRanges(_Message, kw_only=True, tag="ack"):
    subscription_id: int | str
    ranges: list[tuple[int, int]]
    request_id: Id = None


class NackRanges(_Message, kw_only=True, tag="nack"):
    subscription_id: int | str
    ranges: list[tuple[int, int]]
    delay_ms: int | None = None
    dead: bool = False
    request_id: Id = None


class WorkingRanges(_Message, kw_only=True, tag="working"):
    subscription_id: int | str
    ranges: list[tuple[int, int]]
    request_id: Id = None


class Credit(_Message, kw_only=True, tag="credit"):
    subscription_id: int | str
    credit: int
    request_id: Id = None


class Unsubscribe(_Message, kw_only=True, tag="unsubscribe"):
    subscription_id: int | str
    delete: bool = False
    request_id: Id = None


class CacheDelete(_OfCache, kw_only=True, tag="cache_delete"):
    key: str
    if_version: Version | None = None
    request_id: Id = None


class CacheIncr(_OfCache, kw_only=True, tag="cache_incr"):
    key: str
    delta: int
    ttl_ms: int | None = None
    request_id: Id = None


class CacheGetMany(_OfCache, kw_only=True, tag="cache_get_many"):
    keys: list[str]
    request_id: Id = None


class CacheKeys(_OfCache, kw_only=True, tag="cache_keys"):
    prefix: str = ""
    after: str = ""
    limit: int = 0
    request_id: Id = None


class CacheWatch(_OfCache, kw_only=True, tag="cache_watch"):
    key: str | None = None
    prefix: str | None = None
    subscription_id: Id = None
    request_id: Id = None


# -- server to client -------------------------------------------------------------------------------------------------


class AuthOk(_Message, kw_only=True, tag="auth_ok"):
    server_flags: int
    server_features: int | None = None
    quintet: int | None = None


class Subscribed(_Message, kw_only=True, tag="subscribed"):
    """`request_id`, `offsets` (where it begins, by partition), `ack_timeout_ms` and, below, `code` are for those who said
    EXTENDED."""

    subscription_id: int | str
    request_id: Id = None
    offsets: list[int] | None = None
    ack_timeout_ms: int | None = None


class Hello(_Message, kw_only=True, tag="event_stream_hello"):
    subscription_id: int | str


class Event(_OfStream, kw_only=True, tag="event"):
    payload: bytes
    offset: int | None = None


class EventBatch(_OfStream, kw_only=True, tag="event_batch"):
    payloads: list[bytes]
    base_offset: int | None = None


class CacheValue(_OfCache, kw_only=True, tag="cache_value"):
    key: str
    value: bytes | None
    request_id: Id = None
    version: int | None = None


class CacheOk(_Message, kw_only=True, tag="cache_ok"):
    request_id: Id = None
    version: int | None = None
    existed: bool | None = None


class PublishOk(_Message, kw_only=True, tag="publish_ok"):
    request_id: Id = None
    offset: int | None = None


class PublishError(_Message, kw_only=True, tag="publish_error"):
    request_id: Id = None
    message: str
    code: str | None = None
    retry: str | None = None


class Ok(_Message, kw_only=True, tag="ok"):
    request_id: Id = None


class Error(_Message, kw_only=True, tag="error"):
    request_id: Id = None
    message: str
    code: str | None = None
    retry: str | None = None


class CursorError(_Message, kw_only=True, tag="subscribe_cursor_error"):
    reason: Literal["too_old", "in_future"]
    requested: int
    available: int
    request_id: Id = None


class CacheConflict(_Message, kw_only=True, tag="cache_conflict"):
    request_id: Id = None
    key: str
    version: int
    value: bytes | None


class CacheNumber(_Message, kw_only=True, tag="cache_number"):
    request_id: Id = None
    key: str
    number: int
    version: int


class CacheValues(_Message, kw_only=True, tag="cache_values"):
    request_id: Id = None
    values: list[bytes | None]
    versions: list[int]


class CacheKeyList(_Message, kw_only=True, tag="cache_key_list"):
    request_id: Id = None
    keys: list[str]
    more: bool


class CacheEvent(_Message, kw_only=True, tag="cache_event"):
    key: str
    value: bytes | None
    version: int


class Lagged(_Message, kw_only=True, tag="lagged"):
    subscription_id: int | str
    missed: int
    next_offset: int


# -- JSON -------------------------------------------------------------------------------------------------------------

_REQUESTS: Final[tuple[type[_Message], ...]] = (
    Auth, Publish, PublishBatch, Subscribe, CachePut, CacheGet, AckRanges, NackRanges, WorkingRanges, Credit,
    Unsubscribe, CacheDelete, CacheIncr, CacheGetMany, CacheKeys, CacheWatch,
)  # fmt: skip


class _Head(msgspec.Struct):
    type: str


class _HeadId(msgspec.Struct):
    request_id: Id = None


class _HeadAck(msgspec.Struct):
    type: str
    ack: str | None = None


Decoders = dict[str, msgspec.json.Decoder[msgspec.Struct]]  # by the type of a message


def decoders(kinds: tuple[type[msgspec.Struct], ...]) -> Decoders:
    return {str(kind.__struct_config__.tag): msgspec.json.Decoder(kind) for kind in kinds}


_head: Final = msgspec.json.Decoder(_Head)
_head_id: Final = msgspec.json.Decoder(_HeadId)
_head_ack: Final = msgspec.json.Decoder(_HeadAck)
plain: Final = {name: found for name, found in decoders(_REQUESTS).items() if name not in OURS}
extended_too: Final = decoders((*_REQUESTS, SubscribeOurs, CachePutOurs))
_encode: Final = msgspec.json.Encoder().encode

FAULTS: Final = {
    1: "the payload is not one JSON object",
    2: "the JSON has a key twice",
    3: f"the JSON is nested deeper than {JSON_DEPTH_MAX}",
    4: "the JSON has more than 1,024 keys in one object",
    5: "the JSON has more than 50,000 values or 500,000 escapes",
}


class UnknownType(BadRequest):
    """A message of a type that nobody here knows, or that was not negotiated."""

    def __init__(self, type: str) -> None:
        super().__init__("unexpected message type")
        self.type = type


def decode_by(payload: bytes, decoders: Decoders) -> msgspec.Struct:
    """The message, by its type; or BadRequest naming the field that is wrong."""
    fault, type = kernel.json_head(payload, JSON_DEPTH_MAX)
    if fault:
        raise BadRequest(FAULTS[fault])
    kind = type.decode()
    try:
        decoder = decoders.get(kind)
        if decoder is None:
            raise UnknownType(_head.decode(payload).type)  # or what is wrong with it
        return decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{kind + ': ' if kind else ''}{error}") from error


def decode(payload: bytes, extended: bool = False) -> msgspec.Struct:
    """A client's message, or BadRequest naming the field that is wrong. `extended`: ours are known, too."""
    return decode_by(payload, extended_too if extended else plain)


def type_of(payload: bytes) -> str:
    """The type of a message, or nothing if it has none."""
    try:
        return "" if kernel.json_fault(payload, JSON_DEPTH_MAX) else _head.decode(payload).type
    except msgspec.DecodeError:
        return ""


def agreed(ask: Auth) -> tuple[int, int | None]:
    """The flags that both sides know, and QUINTET where those that are ours may be among them."""
    if ask.client_flags is None:
        return UNSAID_FLAGS, None
    if ask.quintet == QUINTET:
        return ask.client_flags & SERVER_FLAGS, QUINTET
    return ask.client_flags & PUBLISHED_FLAGS, None


def id_of(payload: bytes) -> Id:
    """The request_id of a message that is otherwise not understood, if it has one."""
    if kernel.json_fault(payload, JSON_DEPTH_MAX):
        return None
    try:
        return _head_id.decode(payload).request_id
    except msgspec.DecodeError:
        return None


def publish_of(ask: msgspec.Struct) -> tuple[bool, bool]:
    """As publishes, of a message that was decoded."""
    return isinstance(ask, Publish | PublishBatch), getattr(ask, "ack", None) not in (None, "none")


def publishes(payload: bytes) -> tuple[bool, bool]:
    """Whether a message is a publish, and whether it asks for an answer; as far as that can be told of a broken one."""
    if kernel.json_fault(payload, JSON_DEPTH_MAX):
        return False, True
    try:
        head = _head_ack.decode(payload)
    except msgspec.DecodeError:
        return type_of(payload) in PUBLISHES, True
    return head.type in PUBLISHES, head.ack not in (None, "none")


def frame(payload: bytes, flags: int = 0) -> bytes:
    return HEADER.pack(MAGIC, VERSION, flags, len(payload)) + payload


def encode(message: msgspec.Struct) -> bytes:
    """A JSON frame."""
    payload = _encode(message)
    return HEADER.pack(MAGIC, VERSION, 0, len(payload)) + payload


def is_u64(id: Id) -> bool:
    return isinstance(id, int) and 0 <= id <= U64_MAX


def end_of_run(view: memoryview, start: int) -> int:
    """Where what the kernel is given at a time ends: behind the binary batches from `start` on, or behind the one frame of
    another kind; where that is not whole, at the end of all. So large answers are made one by one, and many batches are
    no more than TURN_BYTES and one at a time."""
    size, end, most = len(view), start, start + limits.TURN_BYTES
    while size - end >= HEADER.size:
        magic, _, flags, length = HEADER.unpack_from(view, end)
        behind = end + HEADER.size + length
        if magic != MAGIC or behind > size:
            break
        if flags & (BATCH | ZSTD) != BATCH:
            return end if end > start else behind
        end = behind
        if end > most:
            break
    return end if end > start else size


class BadCursor(BadRequest):
    """A subscription that would begin before what is kept, or behind the end."""

    def __init__(self, reason: Literal["too_old", "in_future"], requested: int, available: int) -> None:
        words = "no longer kept: the first is" if reason == "too_old" else "not there yet: the next will be"
        super().__init__(f"offset {requested} is {words} {available}")
        self.reason: Literal["too_old", "in_future"] = reason
        self.requested = requested
        self.available = available


def starts(start: str | Start | None, kept: list[tuple[int, int]], extended: bool) -> list[int]:
    """Where a subscription begins in each partition, given (first kept, end) of each; [] is at all ends. Or BadCursor. One
    offset says nothing about the other partitions: they begin at the first that is kept, so that nothing is skipped."""
    if start is None or start == "latest":
        return []
    if start == "earliest":
        return [first for first, _ in kept]
    assert isinstance(start, Start)
    found = [first for first, _ in kept]
    if extended and start.offsets is not None:
        if len(start.offsets) != len(kept):
            raise BadRequest(f"start: offsets of {len(kept)} partitions are needed, {len(start.offsets)} were given")
        return [
            _checked(kept[number], offset, (number << PARTITION_SHIFT) + offset)
            for number, offset in enumerate(start.offsets)
        ]
    if start.offset is None:
        raise BadRequest("start: latest, earliest or an offset")
    number, offset = offset_of(start.offset, len(kept)) if len(kept) > 1 else (0, start.offset)
    found[number] = _checked(kept[number], offset, start.offset)
    return found


def _checked(kept: tuple[int, int], offset: int, requested: int) -> int:
    if not 0 <= requested <= U64_MAX:
        raise BadRequest("start: an offset is a number of 64 bits")
    if offset < kept[0]:
        raise BadCursor("too_old", requested, requested - offset + kept[0])
    if offset > kept[1]:
        raise BadCursor("in_future", requested, requested - offset + kept[1])
    return offset


# -- names ------------------------------------------------------------------------------------------------------------


def origin_of(client: str) -> bytes:
    """The origin of what this client publishes, as stored with its records."""
    return b"felix:" + client.encode()[:ORIGIN_BYTES_MAX]


def check_part(part: str, what: str) -> None:
    size = len(part.encode())
    if not 0 < size <= NAME_BYTES_MAX:
        raise BadName(f"{what}: 1 to {NAME_BYTES_MAX} bytes, this one has {size}")
    if "/" in part or "\0" in part:
        raise BadName(f"{what}: no / and no NUL")
    if part.startswith("__"):
        raise BadName(f"{what}: names that start with __ are the broker's own")


def topic_of(scope: Scope) -> str:
    """The topic of a stream, or BadName."""
    tenant, namespace, stream = scope
    if not tenant and not namespace:
        return stream
    for part, what in zip(scope, ("tenant_id", "namespace", "stream"), strict=True):
        check_part(part, what)
    name = f"{tenant}/{namespace}/{stream}"
    if name.startswith(CACHE_PREFIX):
        raise BadName("tenant_id: topics below cache/ are those of caches")
    return name


class AboutCache(Protocol):
    """A request that names a cache, of either kind of client."""

    @property
    def tenant_id(self) -> str | None: ...
    @property
    def namespace(self) -> str | None: ...
    @property
    def cache(self) -> str | None: ...


def cache_scope(ask: AboutCache, document: bool) -> Scope:
    """Which cache a request is about; a document client need not say."""
    given = (ask.tenant_id, ask.namespace, ask.cache)
    if None in given and not document:
        raise BadRequest("tenant_id, namespace and cache are needed")
    tenant, namespace, cache = (
        default if part is None else part for part, default in zip(given, DEFAULT_SCOPE, strict=True)
    )
    return tenant, namespace, cache


def check_credit(credit: int) -> None:
    if not 0 < credit <= ACK_RECORDS_MAX:
        raise BadRequest(f"credit: 1 to {ACK_RECORDS_MAX}")


def check_ours(ask: SubscribeOurs, offsets: bool, explicit: bool) -> None:
    """BadRequest for what cannot be asked for together. `offsets`: the client gets to know what it could acknowledge."""
    if explicit and not offsets:
        raise BadRequest("ack: a client acknowledges offsets, and this one did not ask for them (flag 0x0020 of auth)")
    if ask.group and ask.durable:
        raise BadRequest("durable: a member of a group has the group's position")
    if ask.credit is not None:
        check_credit(ask.credit)
    if ask.durable is not None:
        check_part(ask.durable, "durable")
    if ask.group is not None and not isinstance(ask.start, str | None):
        raise BadRequest("start: a group begins at earliest or latest, and then where it was")


def offset_of(wire: int, partitions: int) -> tuple[int, int]:
    """(partition, offset) of a number on the wire; BadRequest if it can be none."""
    if wire < 0 or wire > U64_MAX:
        raise BadRequest(f"offset {wire} is not a number of 64 bits")
    partition, offset = wire >> PARTITION_SHIFT, wire & OFFSET_MASK
    if partition >= partitions:
        raise BadRequest(f"offset {wire} is of partition {partition}, the stream has {partitions}")
    return partition, offset


def wire_offset(partition: int, offset: int) -> int:
    return partition << PARTITION_SHIFT | offset


def target_json(tenant: str, namespace: str, stream: str) -> bytes:
    """The fields of an event that say where it came from."""
    fields = zip(("tenant_id", "namespace", "stream"), (tenant, namespace, stream), strict=True)
    return b",".join(b'"' + name.encode() + b'":' + _encode(value) for name, value in fields)


# -- binary -----------------------------------------------------------------------------------------------------------


def publish_ack(
    request_id: int,
    text: str = "",
    failed: bool = False,
    offset: int | None = None,
    code: tuple[int, int] | None = None,
) -> bytes:
    """0x0010; with an offset 0x1010, with a code and whether to try again 0x0210."""
    said = cut(text).encode()
    body, flags = _ACK_HEAD.pack(failed, request_id, len(said)) + said, ACK
    if code is not None:
        body, flags = body + _ACK_CODE.pack(*code), flags | ACK_CODE
    if offset is not None:
        body, flags = body + offset.to_bytes(8, "big"), flags | ACK_OFFSET
    return frame(body, flags)


def target(tenant: str, namespace: str, stream: str) -> bytes:
    """The names of a stream as a binary batch has them. BadRequest if it could not have them."""
    parts = [part.encode() for part in (tenant, namespace, stream)]
    if max(map(len, parts)) > 0xFFFF:
        raise BadRequest("tenant_id, namespace, stream: at most 200 bytes each")
    return b"".join(struct.pack(">H", len(part)) + part for part in parts)


def parse_records(payload: bytes, acked: bool) -> tuple[int, bytes, memoryview]:
    """(request id or -1, target, record set) of a batch that carries one. BadRequest if its front does not add up."""
    start = at = 9 if acked else 0
    if acked and (len(payload) < start or payload[8] not in (1, 2)):
        raise BadRequest("a batch that ends early, or whose ack mode is not 1 or 2")
    for _ in range(3):
        end = at + 2 + int.from_bytes(payload[at : at + 2], "big")
        if len(payload) < end:
            raise BadRequest("a batch that ends within its names")
        try:
            payload[at + 2 : end].decode()
        except UnicodeDecodeError:
            raise BadRequest("a name that is not UTF-8") from None
        at = end
    request_id = int.from_bytes(payload[:8], "big") if acked else -1
    return request_id, payload[start:at], memoryview(payload)[at:]


def parse_target(data: bytes) -> tuple[str, str, str]:
    """The same back; the kernel has seen that it is three texts."""
    names, at = [], 0
    for _ in range(3):
        size = int.from_bytes(data[at : at + 2], "big")
        names.append(data[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return names[0], names[1], names[2]


def cut(text: str) -> str:
    """No longer than an error may be, and still UTF-8."""
    return text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")


def pack(payload: bytes) -> bytes:
    from quintet.model.zstd import compress

    return compress(payload, level=1)


def unpack(payload: bytes, most: int) -> bytes:
    """One zstd frame, of at most `most` bytes when unpacked; or BadRequest. Nothing is allocated for a lie."""
    from quintet.model.zstd import DecompressionParameter, ZstdDecompressor, ZstdError

    inflater = ZstdDecompressor(options={DecompressionParameter.window_log_max: WINDOW_LOG_MAX})
    pieces: list[bytes] = []
    size = 0
    try:
        while not inflater.eof:
            piece = inflater.decompress(payload, UNPACK_STEP_BYTES)
            if not piece and inflater.needs_input and not inflater.eof:
                raise BadRequest("the zstd frame is cut short")
            size += len(piece)
            if size > most:
                raise BadRequest(f"the zstd frame holds more than {most} bytes")
            pieces.append(piece)
            payload = b""
    except ZstdError as error:
        raise BadRequest(f"the payload is not a zstd frame: {error}") from error
    if inflater.unused_data:
        raise BadRequest("something follows the zstd frame")
    return b"".join(pieces)


def packed(frames: bytes, least: int, most: int) -> bytes:
    """Event frames with those payloads of least..most bytes packed that become smaller by it."""
    out, at = [], 0
    while at < len(frames):
        _, _, flags, size = HEADER.unpack_from(frames, at)
        end = at + HEADER.size + size
        small = pack(frames[at + HEADER.size : end]) if least <= size <= most else b""
        out.append(frame(small, flags | ZSTD) if small and len(small) < size else frames[at:end])
        at = end
    return b"".join(out)
