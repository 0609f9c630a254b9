"""Decodes Protobuf values by their message type: a whole batch is parsed as one message, then read column by column.

    field                            column                |  field                               column
    double, float, bool              float64, float32, bool|  enum                                string: the name, or the number
    int32, sint32, sfixed32          int32                 |                                      if it has none
    int64, sint64, sfixed64          int64                 |  message                             struct
    uint32, fixed32                  int64                 |  repeated, map                       list, map
    uint64, fixed64                  decimal128(20, 0)     |  google.protobuf.Timestamp           timestamp us UTC
    string, bytes                    string, binary        |  google.protobuf.Int64Value, ...     the column of its value
                                                           |  Struct, Value, ListValue, messages
                                                           |  without fields                      string: JSON text

A field with presence (proto3 `optional`, proto2, oneof, messages) that is not there is null; any other has its default.
A row is an error if its bytes do not parse, a required field is missing, a known field has another wire type than declared
(a parser keeps such a field as unknown), or it has fields and none of them is known. Fields with unknown numbers come from a newer
version and are left out. A message that contains itself cannot become columns.

The rows are framed as `repeated` field 1 of a message made for that, so that one call parses them all:

    | 0x0a | length (varint) | row 0 | 0x0a | length | row 1 | ...
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quintet.broker.schemas.protobuf import ProtobufSchema
from quintet.model.errors import SchemaInvalid
from quintet.spark.typed.columns import (
    COLUMNS_MAX,
    DEPTH_MAX,
    INT64,
    MISFITS,
    TIMESTAMP,
    Converted,
    List,
    Map,
    Member,
    Pick,
    Reasons,
    Shape,
    Struct,
    misfit,
    pick_each,
)

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

PARSED_TOGETHER_BYTES_MAX = 64 * 1024 * 1024  # of one framed batch; a larger one is parsed row by row

_CANNOT = "the Protobuf schema cannot become columns"
_PACKAGE = "quintet.typed.batch"
_TEXTS = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
}


class NotAColumn(ValueError):
    """A value that parses and does not fit its column."""


class ProtobufRows:
    """A compiled Protobuf schema."""

    def __init__(self, definition: str | bytes) -> None:
        self._broker = ProtobufSchema(definition.encode() if isinstance(definition, str) else definition)
        self._descriptor = self._broker.descriptor
        self._class = message_factory.GetMessageClass(self._descriptor)
        self._batch = _batch_class(self._descriptor)
        self._known = _Known(self._descriptor, {})
        self._count = 0
        if not self._descriptor.fields:
            raise SchemaInvalid(f"{_CANNOT}: {self._descriptor.full_name} has no fields")
        self._shape = self._struct(self._descriptor, ())
        self.schema = pa.schema([member.field for member in self._shape.members])
        self.indexes = _indexes(self._descriptor)

    def named(self, indexes: Sequence[int]) -> str:
        """The full name of the message with these indexes in the definition's file."""
        inside: Sequence[Descriptor] = list(self._descriptor.file.message_types_by_name.values())
        for index in indexes[:-1]:
            inside = inside[index].nested_types if index < len(inside) else ()
        return inside[indexes[-1]].full_name if indexes[-1] < len(inside) else "which is not in the schema"

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Reasons]:
        texts = values.to_pylist()
        reasons: Reasons = {}
        rows = self._together(texts)
        if rows is None:
            rows = self._one_by_one(texts, reasons)
        try:
            return self._shape.children(rows), reasons
        except MISFITS:
            # A value parses and does not fit its column: a proto2 string that is not UTF-8, an instant out of range.
            rows = self._probed(rows, [number for number in range(len(texts)) if number not in reasons], reasons)
            return self._shape.children(rows), reasons

    def _together(self, texts: Sequence[bytes]) -> list[Message] | None:
        """All rows parsed at once; None if one of them has to be looked at by itself."""
        if sum(map(len, texts)) > PARSED_TOGETHER_BYTES_MAX:
            return None
        batch = self._batch()
        try:
            batch.MergeFromString(b"".join(_framed(texts)))
        except DecodeError:
            return None
        if not batch.IsInitialized():
            return None
        size = batch.ByteSize()
        batch.DiscardUnknownFields()
        return list(_rows(batch)) if batch.ByteSize() == size else None

    def _one_by_one(self, texts: Sequence[bytes], reasons: Reasons) -> list[Message]:
        numbers = []
        rows: list[Message] = []
        for number, text in enumerate(texts):
            row = self._class()
            try:
                row.MergeFromString(text)
            except DecodeError:
                reasons[number] = partial(self._explain, text)
            else:
                numbers.append(number)
                rows.append(row)
        if reasons:
            together = self._together([texts[number] for number in numbers])
            if together is not None:
                return together
        return _sound(rows, numbers, reasons, self._judge)

    def _judge(self, row: Message) -> str | None:
        """What is wrong with a row that parses."""
        if not row.IsInitialized():
            missing = _missing_fields(row)
            return f"{missing[0] if missing else 'the value'}: the required field is missing"
        reason = self._known.mismatch(row, "", 0)
        if reason is None and len(UnknownFieldSet(row)):
            row.DiscardUnknownFields()
            if not row.ByteSize():
                reason = f"the value: no field of {self._descriptor.full_name} is there, only unknown ones"
        return reason

    def _probed(self, rows: Sequence[Message], numbers: Sequence[int], reasons: Reasons) -> list[Message]:
        """The rows that all columns take; `numbers` are their places in the batch."""
        return _sound(rows, numbers, reasons, self._probe)

    def _probe(self, row: Message) -> str | None:
        """The first field of a row that its column does not take."""
        found = misfit(self._shape, row)
        if found is None:
            return None
        path, error = found
        why = "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        return f"{path.lstrip('.') or 'the value'}: {why}"

    def _explain(self, text: bytes) -> str:
        """Why bytes do not parse, as the broker says it."""
        reasons = self._broker.check(text)
        return reasons[0] if reasons else "the value: it does not parse"

    # -- the definition --------------------------------------------------------------------------------------------

    def _struct(self, descriptor: Descriptor, within: tuple[str, ...]) -> Struct:
        if descriptor.full_name in within:
            raise SchemaInvalid(f"{_CANNOT}: {descriptor.full_name} contains itself")
        if len(within) >= DEPTH_MAX:
            raise SchemaInvalid(f"{_CANNOT}: messages are nested deeper than {DEPTH_MAX} levels")
        inner = (*within, descriptor.full_name)
        return Struct([self._member(field, inner) for field in descriptor.fields])

    def _member(self, field: FieldDescriptor, within: tuple[str, ...]) -> Member:
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise SchemaInvalid(f"{_CANNOT}: there are more than {COLUMNS_MAX} of them")
        if not field.is_repeated:
            return Member(field.name, self._value(field, within), _picker(field))
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
            return Member(field.name, Map(self._value(key, within), self._value(value, within)), _picker(field))
        return Member(field.name, List(self._value(field, within)), _picker(field))

    def _value(self, field: FieldDescriptor, within: tuple[str, ...]) -> Shape:
        """The column of one value of a field, whether it is repeated or not."""
        if field.enum_type is not None:
            return Converted(pa.string(), _enum_names(field.enum_type))
        message = field.message_type
        if message is None:
            return Shape(_SCALARS[field.type])
        if message.full_name == "google.protobuf.Timestamp":
            return Converted(TIMESTAMP, _micros)
        if message.full_name in _WRAPPERS:
            return Converted(_SCALARS[message.fields_by_name["value"].type], attrgetter("value"))
        if message.full_name in _TEXTS or not message.fields:
            return Converted(pa.string(), _json_text)
        return self._struct(message, within)


def _indexes(descriptor: Descriptor) -> tuple[int, ...]:
    """Where a message is in its file: its number among its neighbours, behind that of the message it is in."""
    outer = descriptor.containing_type
    among = list(descriptor.file.message_types_by_name.values()) if outer is None else list(outer.nested_types)
    number = [each.full_name for each in among].index(descriptor.full_name)
    return (*(() if outer is None else _indexes(outer)), number)


def _batch_class(descriptor: Descriptor) -> type[Message]:
    """A message with nothing but rows of this type, in the type's own pool."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3", dependency=[descriptor.file.name]
    )
    file.message_type.add(name="Batch").field.add(
        name="rows",
        number=1,
        label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{descriptor.full_name}",
    )
    pool = descriptor.file.pool
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise SchemaInvalid(f"{_CANNOT}: the package {_PACKAGE} is used for the batch of rows") from error
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Batch"))


_missing_fields = methodcaller("FindInitializationErrors")  # types-protobuf does not know it
_rows = attrgetter("rows")  # of a message that _batch_class made
_SHORT = [bytes((0x0A, length)) for length in range(0x80)]


def _framed(texts: Sequence[bytes]) -> Iterator[bytes]:
    for text in texts:
        length = len(text)
        if length < 0x80:
            yield _SHORT[length]
        else:
            head = bytearray((0x0A,))
            while length >= 0x80:
                head.append(length & 0x7F | 0x80)
                length >>= 7
            head.append(length)
            yield bytes(head)
        yield text


def _picker(field: FieldDescriptor) -> Pick:
    get = attrgetter(field.name)
    if field.is_repeated or not field.has_presence or field.is_required:
        return pick_each(get)
    name = field.name
    return lambda values: [get(value) if value.HasField(name) else None for value in values]


def _enum_names(enum: EnumDescriptor) -> Callable[[int], str]:
    names: Mapping[int, str] = {number: value.name for number, value in enum.values_by_number.items()}
    return lambda number: names.get(number) or str(number)


def _micros(instant: "Timestamp") -> int:
    micros: int = instant.seconds * 1_000_000 + instant.nanos // 1000
    if micros not in INT64:
        raise NotAColumn(f"the instant {instant.seconds} s is out of range")
    return micros


def _json_text(message: Message) -> str:
    try:
        return json_format.MessageToJson(message, indent=None, preserving_proto_field_name=True)
    except (json_format.Error, RecursionError) as error:
        raise NotAColumn(f"it has no JSON text: {error}") from error


class _Known:
    """The fields of a message type and of the message types inside it, by number: to find fields with another wire type."""

    def __init__(self, descriptor: Descriptor, made: dict[str, "_Known"]) -> None:
        made[descriptor.full_name] = self
        self._fields = dict(descriptor.fields_by_number)
        self._inside: list[tuple[FieldDescriptor, bool, _Known]] = []
        for field in descriptor.fields:
            message = field.message_type
            is_map = message is not None and message.GetOptions().map_entry
            if message is not None and is_map:
                message = message.fields_by_name["value"].message_type
            if message is not None:
                inner = made.get(message.full_name) or _Known(message, made)
                self._inside.append((field, is_map, inner))

    def mismatch(self, message: Message, path: str, depth: int) -> str | None:
        """The first known field that came with another wire type, here or in the messages inside."""
        unknowns = UnknownFieldSet(message)
        for number in range(len(unknowns)):
            unknown = unknowns[number]
            field = self._fields.get(unknown.field_number)
            if field is not None and not _aside(field, unknown.wire_type):
                return f"{path}{field.name}: it has another wire type than declared"
        if depth > DEPTH_MAX:
            return None
        for field, is_map, inner in self._inside:
            for key, item in _messages(message, field, is_map):
                reason = inner.mismatch(item, f"{path}{field.name}{key}.", depth + 1)
                if reason is not None:
                    return reason
        return None


def _aside(field: FieldDescriptor, wire_type: int) -> bool:
    """Whether a newer version may have written this: a number that a proto2 enum lacks (a varint), a map entry with one more field (bytes)."""
    if field.message_type is not None:
        return wire_type == 2 and field.message_type.GetOptions().map_entry
    return wire_type == 0 and field.enum_type is not None


def _messages(message: Message, field: FieldDescriptor, is_map: bool) -> Iterator[tuple[str, Message]]:
    """The messages in a field, each with what is put behind the field's name to say which."""
    if is_map:
        yield from ((f"[{key}]", item) for key, item in getattr(message, field.name).items())
    elif field.is_repeated:
        yield from ((f"[{number}]", item) for number, item in enumerate(getattr(message, field.name)))
    elif message.HasField(field.name):
        yield "", getattr(message, field.name)


def _sound(
    rows: Sequence[Message], numbers: Sequence[int], reasons: Reasons, judge: Callable[[Message], str | None]
) -> list[Message]:
    """The rows that `judge` accepts; the reasons of the others go to `reasons`, by row number."""
    sound = []
    for number, row in zip(numbers, rows, strict=True):
        reason = judge(row)
        if reason is None:
            sound.append(row)
        else:
            reasons[number] = reason
    return sound
