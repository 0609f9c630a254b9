"""Compiles Protobuf definitions into message classes, and refuses messages that do not parse or match no field.

A definition is the text of one .proto file (protofile.py), or a serialized FileDescriptorSet as `protoc -o` writes it, with
all imports. Messages are judged as the first message of the (last) file, unless a comment in the text names another:

    // quintet: message = shop.v1.Order

What is an error: bytes that do not parse, a missing proto2 `required` field, a known field with another wire type than
declared (a parser would put it aside as unknown), and a message of which no field is known although it has some. Fields
with unknown numbers beside known ones are fine: a newer writer has them. The empty message is valid if nothing is required.
"""

import importlib
import re
from collections.abc import Iterator
from typing import Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from quintet.broker.schemas import protofile
from quintet.broker.schemas.validators import bounded, clip, short_path, too_large
from quintet.broker.slices import Steps
from quintet.model.errors import SchemaInvalid

FIELDS_LOOKED_AT_MAX = 5_000  # of one message that does not fit, or has unknown fields; about 1 us each
UNCOUNTED_BYTES_MAX = 64 * 1024  # of a message that is parsed without counting its fields: some milliseconds at most
DEPTH_MAX = 100  # of nested messages: the parser's own limit
DESCRIPTORS_MAX = 64  # files in a FileDescriptorSet
WELL_KNOWN = frozenset(
    f"google/protobuf/{name}.proto"
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers", "descriptor")
)
TEXT_NAME = "schema.proto"

_CHOSEN = re.compile(r"^\s*//\s*quintet:\s*message\s*=\s*([\w.]+)\s*$", re.MULTILINE)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f]")
_WIRE_NAMES = {
    0: "a varint",
    1: "8 bytes",
    2: "a length and bytes",
    5: "4 bytes",
    3: "a group",
    4: "the end of a group",
}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPES = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64, FieldDescriptor.TYPE_FLOAT: _FIXED32, FieldDescriptor.TYPE_INT64: _VARINT,
    FieldDescriptor.TYPE_UINT64: _VARINT, FieldDescriptor.TYPE_INT32: _VARINT, FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_FIXED32: _FIXED32, FieldDescriptor.TYPE_BOOL: _VARINT, FieldDescriptor.TYPE_STRING: _LENGTH,
    FieldDescriptor.TYPE_MESSAGE: _LENGTH, FieldDescriptor.TYPE_BYTES: _LENGTH, FieldDescriptor.TYPE_UINT32: _VARINT,
    FieldDescriptor.TYPE_ENUM: _VARINT, FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64, FieldDescriptor.TYPE_SINT32: _VARINT, FieldDescriptor.TYPE_SINT64: _VARINT,
    FieldDescriptor.TYPE_GROUP: 3,
}  # fmt: skip


class _Message(Protocol):
    """What a message can do and its type does not say."""

    def FindInitializationErrors(self) -> list[str]: ...


class ProtobufSchema:
    """A compiled Protobuf schema. `descriptor` is the message type that messages are judged as."""

    def __init__(self, definition: bytes) -> None:
        pool = descriptor_pool.DescriptorPool()
        if _CONTROL.search(definition):
            file, chosen = _add_set(pool, definition), None
        else:
            file, chosen = _add_text(pool, definition)
        package = f"{file.package}." if file.package else ""
        if chosen is None:
            if not file.message_type:
                raise SchemaInvalid("the Protobuf schema is refused: it has no message")
            chosen = package + file.message_type[0].name
        try:
            self.descriptor: Descriptor = pool.FindMessageTypeByName(chosen)
        except KeyError as error:
            raise SchemaInvalid(clip(f"the Protobuf schema is refused: it has no message {chosen}")) from error
        self._class = message_factory.GetMessageClass(self.descriptor)

    def check(self, message: bytes) -> list[str]:
        if reasons := too_large(message):
            return reasons
        if len(message) > UNCOUNTED_BYTES_MAX and _has_many_fields(self.descriptor, message):
            return [
                f"the message has {len(message)} bytes with more than {FIELDS_LOOKED_AT_MAX} fields, which is too much "
                f"to check; without counting it may have {UNCOUNTED_BYTES_MAX} bytes"
            ]
        parsed = self._class()
        try:
            parsed.MergeFromString(message)
        except DecodeError:
            return bounded(_explain(self.descriptor, message) or ["the message: it does not parse"])
        if not parsed.IsInitialized():
            missing = cast(_Message, parsed).FindInitializationErrors()
            return bounded([f"{path}: the required field is missing" for path in missing])
        size = parsed.ByteSize()
        parsed.DiscardUnknownFields()
        if parsed.ByteSize() == size:
            return []
        reasons = _explain(self.descriptor, message)
        if not reasons and not parsed.ListFields():
            numbers = ", ".join(map(str, sorted({number for number, *_ in _fields(message, [0])})[:5]))
            reasons.append(f"the message: no field of {self.descriptor.full_name} is there, only fields {numbers}")
        return bounded(list(dict.fromkeys(reasons)))


def compile_steps(definition: bytes) -> Steps[ProtobufSchema]:
    """A ProtobufSchema. It has one step: 20,000 words and signs take some milliseconds."""
    yield
    return ProtobufSchema(definition)


def _add_text(
    pool: descriptor_pool.DescriptorPool, definition: bytes
) -> tuple[descriptor_pb2.FileDescriptorProto, str | None]:
    try:
        text = definition.decode()
    except UnicodeDecodeError as error:
        raise SchemaInvalid(f"the .proto is refused: not UTF-8 at byte {error.start}") from error
    file = protofile.parse(text, TEXT_NAME)
    _add(pool, file, set())
    chosen = _CHOSEN.search(text)
    return file, chosen[1] if chosen else None


def _add_set(pool: descriptor_pool.DescriptorPool, definition: bytes) -> descriptor_pb2.FileDescriptorProto:
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.MergeFromString(definition)
    except DecodeError as error:
        raise SchemaInvalid(
            "the Protobuf schema is refused: it is neither the text of a .proto file nor a FileDescriptorSet"
        ) from error
    if not 0 < len(files.file) <= DESCRIPTORS_MAX:
        raise SchemaInvalid(f"a FileDescriptorSet has 1 to {DESCRIPTORS_MAX} files, this one has {len(files.file)}")
    added: set[str] = set()
    for file in files.file:
        _add(pool, file, added)
    return files.file[-1]


def _add(pool: descriptor_pool.DescriptorPool, file: descriptor_pb2.FileDescriptorProto, added: set[str]) -> None:
    for path in file.dependency:
        if path not in added:
            if path not in WELL_KNOWN:
                raise SchemaInvalid(clip(f"the Protobuf schema is refused: it imports {path!r}, which is not in it"))
            module = importlib.import_module(path.removesuffix(".proto").replace("/", ".") + "_pb2")
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
            added.add(path)
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        why = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
        raise SchemaInvalid(clip(f"the Protobuf schema is refused: {why}")) from error
    added.add(file.name)


def _has_many_fields(descriptor: Descriptor, data: bytes) -> bool:
    """Are there more than FIELDS_LOOKED_AT_MAX fields, nested ones included? Groups are counted as what follows them, so
    that nothing can hide in one; bytes that are not fields are the parser's matter."""
    looked = 0
    waiting: list[tuple[Descriptor | None, int, int]] = [(descriptor, 0, len(data))]
    while waiting:
        kind, position, end = waiting.pop()
        try:
            while position < end:
                looked += 1
                if looked > FIELDS_LOOKED_AT_MAX:
                    return True
                tag, position = _varint(data, position)
                wire = tag & 7
                if wire == _VARINT:
                    _, position = _varint(data, position)
                elif wire in (_FIXED64, _FIXED32):
                    position += 8 if wire == _FIXED64 else 4
                elif wire == _LENGTH:
                    length, position = _varint(data, position)
                    field = None if kind is None else kind.fields_by_number.get(tag >> 3)
                    inside = None if field is None else field.message_type
                    if inside is not None or kind is None:
                        waiting.append((inside, position, min(position + length, end)))
                    position += length
                else:
                    kind = None  # a group: whose fields follow is not followed any more, so all that may be fields are
        except _Broken:
            continue
    return False


# -- why a message does not fit -----------------------------------------------------------------------------------------


class _Broken(Exception):
    """The bytes are not fields. `number` is that of the field they break in, 0 if that is not known."""

    number = 0


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if position >= len(data):
            raise _Broken("the message ends inside a number")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise _Broken("a varint has more than 10 bytes")


def _fields(data: bytes, looked: list[int]) -> Iterator[tuple[int, int, bytes]]:
    """(number, wire type, bytes) of each field; `looked` counts them over all nested messages."""
    position = 0
    while position < len(data):
        looked[0] += 1
        if looked[0] > FIELDS_LOOKED_AT_MAX:
            return
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if not number:
            raise _Broken("a field has the number 0")
        start = position
        try:
            if wire == _VARINT:
                _, position = _varint(data, position)
            elif wire in (_FIXED64, _FIXED32):
                position += 8 if wire == _FIXED64 else 4
            elif wire == _LENGTH:
                length, start = _varint(data, position)
                position = start + length
            else:
                raise _Broken(
                    f"field {number} has {_WIRE_NAMES.get(wire, f'wire type {wire}')}, which is not supported"
                )
            if position > len(data):
                raise _Broken(f"field {number} needs {position - start} bytes, {max(0, len(data) - start)} are left")
        except _Broken as broken:
            broken.number = number
            raise
        yield number, wire, data[start:position]


def _explain(descriptor: Descriptor, data: bytes) -> list[str]:
    """What a reader can be told about bytes that do not fit: field, what was expected, what was found."""
    reasons: list[str] = []
    looked = [0]
    waiting: list[tuple[Descriptor, bytes, str, int]] = [(descriptor, data, "", 0)]
    while waiting and looked[0] <= FIELDS_LOOKED_AT_MAX:
        descriptor, data, path, depth = waiting.pop()
        path = short_path(path)
        if depth > DEPTH_MAX:
            reasons.append(f"{path}: messages are nested deeper than {DEPTH_MAX} levels")
            continue
        try:
            for number, wire, value in _fields(data, looked):
                field = descriptor.fields_by_number.get(number)
                if field is None:
                    continue
                where = f"{path}.{field.name}".lstrip(".")
                expected = _WIRE_TYPES[field.type]
                if wire == expected == _LENGTH and field.message_type is not None:
                    waiting.append((field.message_type, value, where, depth + 1))
                elif wire == expected and field.type == FieldDescriptor.TYPE_STRING:
                    try:
                        value.decode()
                    except UnicodeDecodeError as error:
                        reasons.append(f"{where}: expected a string, it is not UTF-8 at its byte {error.start}")
                elif wire != expected and not (wire == _LENGTH and field.is_repeated and expected != _LENGTH):
                    reasons.append(
                        f"{where} (field {number}): expected {_WIRE_NAMES[expected]}, found {_WIRE_NAMES[wire]}"
                    )
        except _Broken as broken:
            field = descriptor.fields_by_number.get(broken.number)
            where = path if field is None else f"{path}.{field.name}".lstrip(".")
            reasons.append(f"{where or 'the message'}: {broken}")
    if looked[0] > FIELDS_LOOKED_AT_MAX:
        reasons.append(f"the message: more than {FIELDS_LOOKED_AT_MAX} fields, with unknown or broken ones among them")
    return reasons
