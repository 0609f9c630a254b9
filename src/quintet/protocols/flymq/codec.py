"""From layouts to bytes and back: the one encoder and decoder of every operation in frames.py.

A layout's text is compiled once. Decoding is strict (every byte must belong to a field, text must be UTF-8, a count must
fit into the bytes that are there before anything is allocated for it) and says which field was wrong. Values are plain:
int, bool, str, bytes, lists, and dicts for structures.
"""

import mmap
import re
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from quintet.model.errors import ProtocolError, QuintetError, TooLarge
from quintet.protocols.flymq import frames

_SCALARS: Final = {"bool": ">?", "i32": ">i", "u32": ">I", "i64": ">q", "u64": ">Q"}
_LENGTHS: Final = {"str8": ">B", "str16": ">H", "bytes32": ">I"}
_TOKENS: Final = re.compile(r"\s*(\(\{|\}\)|\*16|[\[\]{}*+#!:]|\w+)")
_COMPRESS_BYTES_MIN: Final = 1024  # a smaller reply is not worth it
COMPRESS_BYTES_MAX: Final = 1 << 20  # a larger one takes too long for everybody else, and goes as it is
COPIED_BYTES_MAX: Final = 1 << 18  # a larger answer is sent from where it was written: a copy of 31 MiB takes 10 ms
_INFLATE_STEP_BYTES: Final = 1 << 18
REQUEST_ITEMS_MAX: Final = 10_000  # in one list of a request: each costs far more here than its two bytes on the wire

Values = dict[str, Any]  # fields by name; which, and of which type, a layout says, and no type checker can
Fields = Mapping[str, Any]  # the same, only read


class Malformed(ProtocolError):
    """A payload that does not have the layout of its operation. The connection goes on."""


# -- layouts ----------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """Some bytes of a frame and what they mean, for people to look at."""

    start: int
    end: int
    name: str
    value: object


Spans = Generator[Span, None, int]


class Node(ABC):
    """One field. `read` gives the position behind it; `spans` does too, and yields what it read on the way."""

    name: str
    least: int  # bytes it takes at the very least

    def spans(self, data: memoryview, at: int, found: Values, path: str) -> Spans:
        end = self.read(data, at, found)
        yield Span(at, end, path, found[self.name])
        return end

    @abstractmethod
    def read(self, data: memoryview, at: int, found: Values) -> int:
        """Put its value into `found`; Malformed if it is not there."""

    @abstractmethod
    def write(self, values: Fields, out: bytearray) -> None:
        """Append its bytes."""


class Scalar(Node):
    """bool, i32, u32, i64, u64."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.kind = name, kind
        self._struct = struct.Struct(_SCALARS[kind])
        self.least = self._struct.size

    def read(self, data: memoryview, at: int, found: Values) -> int:
        end = at + self.least
        if end > len(data):
            raise Malformed(f"{self.name}: {self.least} bytes are needed, {len(data) - at} are left")
        if self.kind == "bool" and data[at] > 1:
            raise Malformed(f"{self.name}: a bool is 0 or 1, not {data[at]}")
        (found[self.name],) = self._struct.unpack_from(data, at)
        return end

    def write(self, values: Fields, out: bytearray) -> None:
        out += self._struct.pack(values[self.name])


class Text(Node):
    """str8, str16, bytes32: a length, then that many bytes."""

    def __init__(self, name: str, kind: str, filled: bool) -> None:
        self.name, self.kind, self._filled = name, kind, filled
        self._length = struct.Struct(_LENGTHS[kind])
        self.least = self._length.size + filled
        self._most = (1 << 8 * self._length.size) - 1
        self.copied_bytes_max = COPIED_BYTES_MAX  # more of bytes32 stays a view when it is read

    def read(self, data: memoryview, at: int, found: Values) -> int:
        start = at + self._length.size
        if start > len(data):
            raise Malformed(f"{self.name}: its length field is cut short")
        size = int(self._length.unpack_from(data, at)[0])
        end = start + size
        if end > len(data):
            raise Malformed(f"{self.name}: {size} bytes are announced, {len(data) - start} are there")
        if self._filled and not size:
            raise Malformed(f"{self.name}: must not be empty")
        if self.kind == "bytes32":
            found[self.name] = data[start:end] if size > self.copied_bytes_max else bytes(data[start:end])
            return end
        try:
            found[self.name] = str(data[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"{self.name}: is not UTF-8 ({error.reason} at byte {error.start})") from None
        return end

    def spans(self, data: memoryview, at: int, found: Values, path: str) -> Spans:
        end = self.read(data, at, found)
        start = at + self._length.size
        yield Span(at, start, f"{path} length", end - start)
        if end > start:
            yield Span(start, end, path, found[self.name])
        return end

    def write(self, values: Fields, out: bytearray) -> None:
        value = values[self.name]
        raw = value.encode() if isinstance(value, str) else value  # not copied: it may have 31 MiB
        if len(raw) > self._most:
            if self.kind == "bytes32":
                raise TooLarge(f"{self.name}: {len(raw)} bytes do not fit into one frame")
            raw = raw[: self._most].decode(errors="ignore").encode()
        out += self._length.pack(len(raw))
        if len(raw) > COPIED_BYTES_MAX and isinstance(out, Parts):
            out.large.append((len(out), raw))
        else:
            out += raw


class Parts(bytearray):
    """An answer that is being written. A value of more than COPIED_BYTES_MAX is not copied into it, only noted with the
    place it belongs to."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.large: list[tuple[int, bytes]] = []

    def pieces(self) -> list[bytes]:
        """What to send, in order."""
        view, start, found = memoryview(self), 0, []
        for place, raw in self.large:
            found += [cast(bytes, view[start:place]), raw]
            start = place
        return [*found, cast(bytes, view[start:])] if start < len(self) else found


class Count(Node):
    """`rows#`: the count of a list whose items follow elsewhere."""

    form: Final = struct.Struct(">I")
    least = 4

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self, data: memoryview, at: int, found: Values) -> int:
        if at + 4 > len(data):
            raise Malformed(f"{self.name}: its count is cut short")
        (found[f"#{self.name}"],) = self.form.unpack_from(data, at)
        return at + 4

    def spans(self, data: memoryview, at: int, found: Values, path: str) -> Spans:
        end = self.read(data, at, found)
        yield Span(at, end, f"{path} count", found[f"#{self.name}"])
        return end

    def write(self, values: Fields, out: bytearray) -> None:
        out += self.form.pack(len(values[self.name]))


class Items(Node):
    """A list: its count (unless it stands elsewhere), then items: structures, or one scalar or text each."""

    def __init__(self, name: str, item: "Layout | Node", counted: str, framed: bool) -> None:
        self.name, self.item, self._framed = name, item, framed
        self._count = {"*": struct.Struct(">I"), "*16": struct.Struct(">H")}.get(counted)
        self.most = 1 << 32
        self.least = self._count.size if self._count else 0

    def read(self, data: memoryview, at: int, found: Values) -> int:
        count, at = self._counted(data, at, found)
        items: list[object] = []
        for _ in range(count):
            if self._framed:
                value, at = _unframe(self.name, self.item, data, at)
                items.append(value)
            elif isinstance(self.item, Layout):
                value, at = self.item.take(data, at)
                items.append(value)
            else:
                one: Values = {}
                at = self.item.read(data, at, one)
                items.append(one[self.item.name])
        found[self.name] = items
        return at

    def _counted(self, data: memoryview, at: int, found: Values) -> tuple[int, int]:
        """How many there are, and where they begin; never more than the bytes that are there can hold."""
        if self._count is None:
            count = found.pop(f"#{self.name}")
        else:
            if at + self._count.size > len(data):
                raise Malformed(f"{self.name}: its count is cut short")
            (count,) = self._count.unpack_from(data, at)
            at += self._count.size
        if count > self.most:
            raise Malformed(f"{self.name}: {count} are announced, a request may have {self.most}")
        least = self.item.least + (4 if self._framed else 0)
        if count * least > len(data) - at:
            raise Malformed(f"{self.name}: {count} are announced, {len(data) - at} bytes cannot hold them")
        return count, at

    def spans(self, data: memoryview, at: int, found: Values, path: str) -> Spans:
        count, start = self._counted(data, at, found)
        if start > at:
            yield Span(at, start, f"{path} count", count)
        for number in range(count):
            here = f"{path}[{number}]"
            if self._framed:
                start = yield from _framed_spans(self.name, self.item, data, start, here)
            else:
                start = yield from self.item.spans(data, start, {}, here)
        return start

    def write(self, values: Fields, out: bytearray) -> None:
        items = values[self.name]
        if self._count is not None:
            out += self._count.pack(len(items))
        for item in items:
            self._put(item, out)

    def _put(self, item: object, out: bytearray) -> None:
        if isinstance(self.item, Layout):
            assert isinstance(item, Mapping)
            if self._framed:
                _frame(self.item, item, out)
            else:
                self.item.put(item, out)
        else:
            self.item.write({self.item.name: item}, out)

    def write_steps(self, items: Iterable[object], out: bytearray, count_at: int | None) -> Iterator[None]:
        """As write, of a list that is made while it is written: a step for each item, and for each None, which is none.
        `count_at` is where its count stands, if that is elsewhere."""
        at, count = len(out), 0
        if self._count is not None:
            out += self._count.pack(0)
        for item in items:
            if item is not None:
                count += 1
                self._put(item, out)
                if len(out) > frames.FRAME_BYTES_MAX:
                    raise TooLarge(f"the answer has more than {frames.FRAME_BYTES_MAX} bytes: ask for less")
            yield
        form = self._count or Count.form
        form.pack_into(out, at if count_at is None else count_at, count)


class Framed(Node):
    """`name:({...})`: one structure behind its length."""

    least = 4

    def __init__(self, name: str, item: "Layout") -> None:
        self.name, self.item = name, item

    def read(self, data: memoryview, at: int, found: Values) -> int:
        found[self.name], at = _unframe(self.name, self.item, data, at)
        return at

    def spans(self, data: memoryview, at: int, found: Values, path: str) -> Spans:
        return (yield from _framed_spans(self.name, self.item, data, at, path))

    def write(self, values: Fields, out: bytearray) -> None:
        _frame(self.item, values[self.name], out)


def _unframe(name: str, item: "Layout | Node", data: memoryview, at: int) -> tuple[Values, int]:
    assert isinstance(item, Layout)
    if at + 4 > len(data):
        raise Malformed(f"{name}: its length is cut short")
    end = at + 4 + int.from_bytes(data[at : at + 4], "big")
    if end > len(data):
        raise Malformed(f"{name}: it ends behind the payload")
    return item.decode(data[at + 4 : end]), end


def _framed_spans(name: str, item: "Layout | Node", data: memoryview, at: int, path: str) -> Spans:
    _, end = _unframe(name, item, data, at)
    yield Span(at, at + 4, f"{path} length", end - at - 4)
    yield from item.spans(data[:end], at + 4, {}, path)
    return end


def _frame(item: "Layout", value: Fields, out: bytearray) -> None:
    body = bytearray()
    item.put(value, body)
    out += len(body).to_bytes(4, "big")
    out += body


class Layout:
    """A line of fields; `tail` is the bracket at its end, if it has one."""

    def __init__(self, nodes: list[Node], tail: "Layout | None") -> None:
        self.nodes = nodes
        self.tail = tail
        self.least = sum(node.least for node in nodes)

    def take(self, data: memoryview, at: int) -> tuple[Values, int]:
        found: Values = {}
        at = self._read(data, at, found)
        return found, at

    def _read(self, data: memoryview, at: int, found: Values) -> int:
        for node in self.nodes:
            at = node.read(data, at, found)
        if self.tail is not None and at < len(data):
            at = self.tail._read(data, at, found)
        return at

    def spans(self, data: memoryview, at: int, found: Values, path: str) -> Spans:
        """What `take` reads, field by field; Malformed comes behind the fields before it."""
        for node in self.nodes:
            at = yield from node.spans(data, at, found, f"{path}.{node.name}" if path else node.name)
        if self.tail is not None and at < len(data):
            at = yield from self.tail.spans(data, at, found, path)
        return at

    def put(self, values: Fields, out: bytearray) -> None:
        for node in self.nodes:
            node.write(values, out)
        if self.tail is not None and self.tail.nodes[0].name in values:
            self.tail.put(values, out)

    def put_steps(self, values: Fields, out: bytearray) -> Iterator[None]:
        """As put, with a pause behind each item of a list that is made while it is written."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            if not isinstance(values[node.name], Iterator):
                node.write(values, out)
            elif isinstance(node, Count):
                counts[node.name] = len(out)
                out += node.form.pack(0)
            else:
                assert isinstance(node, Items), "only lists are made while they are written"
                yield from node.write_steps(values[node.name], out, counts.get(node.name))
        if self.tail is not None and self.tail.nodes[0].name in values:
            yield from self.tail.put_steps(values, out)

    def decode(self, data: memoryview) -> Values:
        found, end = self.take(data, 0)
        if end != len(data):
            raise Malformed(f"{len(data) - end} bytes too many at its end")
        return found

    def encode(self, values: Fields) -> bytes:
        out = bytearray()
        self.put(values, out)
        return bytes(out)

    def names(self) -> Iterator[tuple[Node, bool]]:
        """Every field in order, and whether it may be left off."""
        for node in self.nodes:
            yield node, False
        if self.tail is not None:
            for node, _ in self.tail.names():
                yield node, True


@lru_cache(maxsize=256)
def layout(text: str) -> Layout:
    """The compiled form of a line as frames.py describes them."""
    tokens = _TOKENS.findall(text)
    found, rest = _parse(tokens, 0, "")
    assert rest == len(tokens), f"{text!r} does not parse behind token {rest}"
    return found


@lru_cache(maxsize=256)
def request_layout(text: str) -> Layout:
    """The same for what strangers send: its lists are bounded. A record set stays a view: it is split at once, or kept with its frame."""
    found, _ = _parse(_TOKENS.findall(text), 0, "")
    waiting = [found]
    while waiting:
        for node, _ in waiting.pop().names():
            if isinstance(node, Items):
                node.most = REQUEST_ITEMS_MAX
            if isinstance(node, Text) and node.name == "records":
                node.copied_bytes_max = 0
            item = getattr(node, "item", None)
            if isinstance(item, Layout):
                waiting.append(item)
    return found


def _parse(tokens: list[str], at: int, closing: str) -> tuple[Layout, int]:
    nodes: list[Node] = []
    tail: Layout | None = None
    while at < len(tokens) and tokens[at] != closing:
        if tokens[at] == "[":
            tail, at = _parse(tokens, at + 1, "]")
            at += 1
            continue
        node, at = _field(tokens, at)
        nodes.append(node)
    return Layout(nodes, tail), at


def _field(tokens: list[str], at: int) -> tuple[Node, int]:
    name = tokens[at]
    if tokens[at + 1] == "#":
        return Count(name), at + 2
    assert tokens[at + 1] == ":", f"a field is name:kind, not {tokens[at : at + 3]}"
    kind = tokens[at + 2]
    at += 3
    following = tokens[at] if at < len(tokens) else ""
    if kind in ("{", "({"):
        item, at = _parse(tokens, at, "})" if kind == "({" else "}")
        following = tokens[at + 1] if at + 1 < len(tokens) else ""
        if following in ("*", "*16", "+"):
            return Items(name, item, following, kind == "({"), at + 2
        return Framed(name, item), at + 1
    if following in ("*", "*16"):
        return Items(name, _plain(name, kind, False), following, False), at + 1
    return _plain(name, kind, following == "!"), at + (following == "!")


def _plain(name: str, kind: str, filled: bool) -> Node:
    return Scalar(name, kind) if kind in _SCALARS else Text(name, kind, filled)


# -- frames -----------------------------------------------------------------------------------------------------------


_VIEWED: Final = frozenset({"data", "key", "message", "records", "schema", "value"})


def decode_request(operation: frames.Operation, payload: bytes | memoryview) -> Values:
    """The fields of a request: the first of its layouts that the payload fits exactly.

    Large bytes are copied once, not once for each layout. A large message, key or schema stays a view of the payload: a
    copy of 31 MiB takes up to 40 ms of the loop, and most of them are built into a batch or refused for their size.
    """
    data = memoryview(payload)
    first: Malformed | None = None
    for text in operation.asks:
        try:
            found = request_layout(text).decode(data)
        except Malformed as error:
            first = first or error
            continue
        for name in [name for name, value in found.items() if isinstance(value, memoryview) and name not in _VIEWED]:
            found[name] = bytes(found[name])
        return found
    raise Malformed(f"{operation.name}: {first}") from None


def answer_layout(operation: frames.Operation, dialect: frames.Dialect) -> Layout:
    return layout(operation.answer if dialect == "document" else operation.answer_sdk)


def encode_answer(operation: frames.Operation, dialect: frames.Dialect, values: Fields, codec: int) -> bytes:
    """A whole reply frame, compressed when the client asked for it and it is worth it."""
    made = answer_pieces(operation, dialect, values, codec)
    return b"".join(made) if isinstance(made, list) else made


def answer_pieces(
    operation: frames.Operation, dialect: frames.Dialect, values: Fields, codec: int
) -> bytes | list[bytes]:
    """As encode_answer, in pieces if it has a large value."""
    out = Parts(frames.HEADER_BYTES)
    answer_layout(operation, dialect).put(values, out)
    return _headed(operation.answer_code, out, codec)


def is_made_in_steps(values: Fields) -> bool:
    """Is one of its lists made while it is written?"""
    return any(isinstance(value, Iterator) for value in values.values())


def answer_steps(
    operation: frames.Operation, dialect: frames.Dialect, values: Fields, codec: int
) -> Generator[None, None, bytes | list[bytes]]:
    """As answer_pieces, in steps."""
    out = Parts(frames.HEADER_BYTES)
    yield from answer_layout(operation, dialect).put_steps(values, out)
    return _headed(operation.answer_code, out, codec)


def _headed(code: int, out: Parts, codec: int) -> bytes | list[bytes]:
    """The frame whose payload stands in `out` behind the room for its header."""
    size = len(out) - frames.HEADER_BYTES + sum(len(raw) for _, raw in out.large)
    if (codec and size <= COMPRESS_BYTES_MAX) or size > frames.FRAME_BYTES_MAX:
        return frame(code, b"".join(out.pieces())[frames.HEADER_BYTES :], codec)
    frames.HEADER.pack_into(out, 0, frames.MAGIC, frames.VERSION, code, frames.BINARY, size)
    return out.pieces() if out.large else bytes(out) if size <= COPIED_BYTES_MAX else cast(bytes, out)


def frame(code: int, payload: bytes | bytearray, codec: int = 0) -> bytes:
    """One frame; `codec` as in the flags' accept bits."""
    flags = frames.BINARY
    if codec and _COMPRESS_BYTES_MIN <= len(payload) <= COMPRESS_BYTES_MAX:
        payload = compress(codec, payload)
        flags |= codec << frames.COMPRESSION_SHIFT
    if len(payload) > frames.FRAME_BYTES_MAX:
        raise TooLarge(f"the answer has {len(payload)} bytes, a frame holds {frames.FRAME_BYTES_MAX}: ask for less")
    return frames.HEADER.pack(frames.MAGIC, frames.VERSION, code, flags, len(payload)) + payload


def error_frame(dialect: frames.Dialect, code: str, message: str) -> bytes:
    """ERROR. The sdk dialect has a number, ours without its letter; the document has a text only, so the code ends it."""
    if dialect == "sdk":
        values: Values = {"code": int(code[1:]), "message": message}
    else:
        values = {"success": False, "message": f"{message} [{code}]"}
    return frame(frames.ERROR, layout(frames.ERROR_LAYOUT[dialect]).encode(values))


# -- compression ------------------------------------------------------------------------------------------------------


def inflate(codec: int, data: bytes | memoryview, most: int) -> bytes:
    """The payload behind a compressed one, never more than `most` bytes: TooLarge is raised when the limit is passed,
    not when the whole is there. Malformed if it is no such thing, or nothing we know."""
    name = frames.CODECS.get(codec)
    if name is None:
        raise Malformed(f"compression {codec} is not known: 1 gzip, 2 lz4, 3 zstd, 4 snappy")
    kind: type[QuintetError]
    try:
        return _INFLATE[name](data, most)
    except TooLarge as error:
        kind, why = TooLarge, str(error)
    except Exception as error:  # four libraries, each with exceptions of its own
        kind, why = Malformed, f"the payload is not {name}: {error}"
    raise kind(why)  # another one, whose frames do not hold what was inflated so far


def _bounded(name: str, size: int, most: int) -> None:
    if size > most:
        raise TooLarge(f"the {name} payload inflates to more than {most} bytes")


def _room(most: int) -> mmap.mmap:
    """Memory to inflate into: a page costs nothing before it is written, and all of it is given back when it is closed,
    which a heap that many threads share does not do."""
    return mmap.mmap(-1, max(most, 1))


def _gunzip(data: bytes | memoryview, most: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    with _room(most) as room:
        while not inflater.eof:
            piece = inflater.decompress(data, _INFLATE_STEP_BYTES)
            if not (piece or inflater.unconsumed_tail or inflater.eof):
                raise ValueError("it is cut short")
            _bounded("gzip", room.tell() + len(piece), most)
            room.write(piece)
            data = inflater.unconsumed_tail
        if inflater.unused_data:
            raise ValueError("something follows it")
        return room[: room.tell()]


def _unlz4(data: bytes | memoryview, most: int) -> bytes:
    """The frame format."""
    from cramjam import DecompressionError, lz4

    with _room(most) as room:
        try:
            size = lz4.decompress_into(data, room)
        except DecompressionError as error:
            _bounded("lz4", most + ("whole buffer" in str(error)), most)
            raise
        _bounded("lz4", size, most)
        return room[:size]


def _unzstd(data: bytes | memoryview, most: int) -> bytes:
    from quintet.model.zstd import DecompressionParameter, ZstdDecompressor

    inflater = ZstdDecompressor(options={DecompressionParameter.window_log_max: 25})
    with _room(most) as room:
        while not inflater.eof:
            piece = inflater.decompress(data, _INFLATE_STEP_BYTES)
            if not piece and inflater.needs_input and not inflater.eof:
                raise ValueError("it is cut short")
            _bounded("zstd", room.tell() + len(piece), most)
            room.write(piece)
            data = b""
        if inflater.unused_data:
            raise ValueError("something follows it")
        return room[: room.tell()]


def _unsnappy(data: bytes | memoryview, most: int) -> bytes:
    """The raw format: it begins with the length of what comes out, so nothing is allocated for a lie."""
    from cramjam import snappy

    size = shift = 0
    for at, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if at == 4:
            raise ValueError("its length does not end")
    _bounded("snappy", size, most)
    return bytes(snappy.decompress_raw(data))


_INFLATE: Final = {"gzip": _gunzip, "lz4": _unlz4, "zstd": _unzstd, "snappy": _unsnappy}


def compress(codec: int, data: bytes | bytearray) -> bytes:
    name = frames.CODECS[codec]
    if name == "gzip":
        deflater = zlib.compressobj(level=1, wbits=31)
        return deflater.compress(data) + deflater.flush()
    if name == "lz4":
        from cramjam import lz4

        return bytes(lz4.compress(data, level=1))
    if name == "zstd":
        from quintet.model.zstd import compress as zstd_compress

        return zstd_compress(data, level=1)
    from cramjam import snappy

    return bytes(snappy.compress_raw(data))
