"""Decides whether one schema may follow another: asks `reads(reader, writer)` in the directions a mode names.

    mode       the question is asked as
    backward   the new schema reads what the old one wrote (the default)
    forward    the old schema reads what the new one writes
    full       both
    none       not at all

The answers are reasons; none means yes. They are conservative: what cannot be shown is refused, and named. JSON Schema is
in compatibility_json.py. Here are Avro, by the resolution rules of its specification, and Protobuf, by what the wire keeps.
"""

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from quintet.broker.schemas.avro import NAMED, AvroDefinition, AvroSchema, AvroType, type_name
from quintet.broker.schemas.compatibility_json import Comparison as JsonComparison
from quintet.broker.schemas.json_schema import JsonSchema
from quintet.broker.schemas.protobuf import ProtobufSchema
from quintet.broker.schemas.protofile import Reserved
from quintet.broker.schemas.validators import Validator, bounded
from quintet.broker.slices import Steps, finish

COMPARISONS_MAX = 2_500  # pairs of types looked at, in each direction; about 5 us each
NAMES_PER_COMPARISON = 20  # names of fields or symbols that cost as much as a pair


def incompatibilities(mode: str, old: Validator, new: Validator) -> list[str]:
    """Why `new` may not follow `old`; empty if it may."""
    return finish(incompatibility_steps(mode, old, new))


def incompatibility_steps(mode: str, old: Validator, new: Validator) -> Steps[list[str]]:
    """As incompatibilities, one direction at a time."""
    if mode == "none":
        return []
    yield
    if type(old) is not type(new):
        return ["the type of the schema changed: start a new subject, or set the compatibility to none"]
    reasons: list[str] = []
    if mode in ("backward", "full"):
        reasons += [f"new cannot read old: {reason}" for reason in reads(new, old)]
        yield
    if mode in ("forward", "full"):
        reasons += [f"old cannot read new: {reason}" for reason in reads(old, new)]
        yield
    if isinstance(old, ProtobufSchema) and isinstance(new, ProtobufSchema):
        reasons += _reserved(old.descriptor, new.descriptor)
    return bounded(list(dict.fromkeys(reasons)))


def reads(reader: Validator, writer: Validator) -> list[str]:
    """Why `reader` could not read everything that fits `writer`."""
    if isinstance(reader, AvroSchema) and isinstance(writer, AvroSchema):
        return _Avro(reader, writer).reasons
    if isinstance(reader, ProtobufSchema) and isinstance(writer, ProtobufSchema):
        return _Protobuf(reader.descriptor, writer.descriptor).reasons
    assert isinstance(reader, JsonSchema)
    assert isinstance(writer, JsonSchema)
    return JsonComparison(reader.schema, writer.schema).reasons


# -- Avro ---------------------------------------------------------------------------------------------------------------

# reader: writers it also reads
PROMOTIONS: dict[str, frozenset[str]] = {
    "long": frozenset(("int",)),
    "float": frozenset(("int", "long")),
    "double": frozenset(("int", "long", "float")),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}


class _TooMuch(Exception):
    """The budget of a comparison is spent."""


class _Avro:
    """The resolution rules: a reader's type against a writer's, a recursive pair once."""

    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader_named = reader.named
        self._writer_named = writer.named
        self._open: set[tuple[str, str]] = set()
        self._compared = 0
        try:
            self.reasons = [] if reader.schema == writer.schema else self._compare(reader.schema, writer.schema, "")
        except _TooMuch:
            self.reasons = [f"more than {COMPARISONS_MAX} pairs of types to compare: too much to be shown"]

    def _compare(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        self._spend(1)
        reader, writer = self._plain(reader, self._reader_named), self._plain(writer, self._writer_named)
        if isinstance(writer, list):  # whatever branch was written must be readable
            return [reason for branch in writer for reason in self._compare(reader, branch, path)]
        if isinstance(reader, list):
            if any(not self._compare(branch, writer, path) for branch in reader):
                return []
            return [f"{_at(path)}: the reader's union has no branch for {type_name(writer)}"]
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if written in PROMOTIONS.get(kind, ()):
                return []
            return [f"{_at(path)}: {type_name(writer)} cannot be read as {type_name(reader)}"]
        if isinstance(reader, str) or isinstance(writer, str):  # a primitive, and both the same
            return []
        if kind == "array":
            return self._compare(reader["items"], writer["items"], f"{path}[]")
        if kind == "map":
            return self._compare(reader["values"], writer["values"], f"{path}{{}}")
        return self._named(reader, writer, path)

    def _spend(self, count: int) -> None:
        self._compared += count
        if self._compared > COMPARISONS_MAX:
            raise _TooMuch

    def _plain(self, schema: AvroType, named: dict[str, AvroDefinition]) -> AvroType:
        """Without its braces, if it is a primitive; the definition, if it is a name."""
        while isinstance(schema, dict) and schema["type"] not in NAMED and schema["type"] not in ("array", "map"):
            schema = schema["type"]
        return named.get(schema, schema) if isinstance(schema, str) else schema

    def _named(self, reader: AvroDefinition, writer: AvroDefinition, path: str) -> list[str]:
        pair = (reader["name"], writer["name"])
        if pair in self._open:  # a recursive type: it is as compatible as the rest of it turns out to be
            return []
        self._open.add(pair)
        if not _same_name(reader, writer):
            found = [
                f"{_at(path)}: {writer['name']} cannot be read as {reader['name']}: the names differ, with no alias"
            ]
        elif reader["type"] == "enum":
            self._spend((len(reader["symbols"]) + len(writer["symbols"])) // NAMES_PER_COMPARISON)
            found = _enum(reader, writer, path)
        elif reader["type"] == "fixed":
            sizes = (reader["size"], writer["size"])
            found = (
                [] if sizes[0] == sizes[1] else [f"{_at(path)}: fixed of {sizes[1]} bytes, the reader has {sizes[0]}"]
            )
        else:
            found = self._fields(reader, writer, path)
        self._open.discard(pair)
        return found

    def _fields(self, reader: AvroDefinition, writer: AvroDefinition, path: str) -> list[str]:
        self._spend((len(reader["fields"]) + len(writer["fields"])) // NAMES_PER_COMPARISON)
        written = {field["name"]: field for field in writer["fields"]}
        found: list[str] = []
        for field in reader["fields"]:
            names = [field["name"], *field.get("aliases", [])]
            match = next((written[name] for name in names if name in written), None)
            where = f"{path}.{field['name']}"
            if match is not None:
                found += self._compare(field["type"], match["type"], where)
            elif "default" not in field:
                found.append(f"{_at(where)}: the writer has no such field and the reader has no default for it")
        return found


def _kind(schema: AvroType) -> str:
    kind = schema["type"] if isinstance(schema, dict) else schema
    return "record" if kind == "error" else str(kind)


def _same_name(reader: AvroDefinition, writer: AvroDefinition) -> bool:
    """By the name without its namespace, as the specification has it, or by one of the reader's aliases."""
    last = writer["name"].rpartition(".")[2]
    names = [reader["name"], *reader.get("aliases", [])]
    return any(name.rpartition(".")[2] == last for name in names)


def _enum(reader: AvroDefinition, writer: AvroDefinition, path: str) -> list[str]:
    if "default" in reader:
        return []
    known = set(reader["symbols"])
    gone = [symbol for symbol in writer["symbols"] if symbol not in known]
    return [f"{_at(path)}: the reader's enum has no {', '.join(gone[:5])} and no default"] if gone else []


def _at(path: str) -> str:
    return path.lstrip(".") or "the schema"


# -- Protobuf -----------------------------------------------------------------------------------------------------------

F = FieldDescriptor
# reader: writers whose every value it can hold, and finds in the same place on the wire
HOLDS: dict[int, frozenset[int]] = {
    F.TYPE_INT64: frozenset((F.TYPE_INT32, F.TYPE_UINT32, F.TYPE_BOOL, F.TYPE_ENUM)),
    F.TYPE_UINT64: frozenset((F.TYPE_UINT32, F.TYPE_BOOL)),
    F.TYPE_INT32: frozenset((F.TYPE_BOOL, F.TYPE_ENUM)),
    F.TYPE_UINT32: frozenset((F.TYPE_BOOL,)),
    F.TYPE_SINT64: frozenset((F.TYPE_SINT32,)),
    F.TYPE_BYTES: frozenset((F.TYPE_STRING, F.TYPE_MESSAGE)),
}
TYPE_NAMES: dict[int, str] = {
    int(number): name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
}  # fmt: skip


class _Protobuf:
    """Field numbers of a reader's message against a writer's, each pair of messages once."""

    def __init__(self, reader: Descriptor, writer: Descriptor) -> None:
        self.reasons: list[str] = []
        if reader.full_name != writer.full_name:
            self.reasons.append(
                f"the message type is {reader.full_name}, the writer's is {writer.full_name}; if it is not the first of "
                "its file, name it in a comment: // quintet: message = its.Name"
            )
            return
        seen = {(reader.full_name, writer.full_name)}
        waiting = [(reader, writer)]
        for mine, theirs in waiting:  # grows while it is walked
            self._messages(mine, theirs)
            for number, field in mine.fields_by_number.items():
                other = theirs.fields_by_number.get(number)
                if other is not None and field.message_type is not None and other.message_type is not None:
                    pair = (field.message_type.full_name, other.message_type.full_name)
                    if pair not in seen and len(seen) < COMPARISONS_MAX:
                        seen.add(pair)
                        waiting.append((field.message_type, other.message_type))

    def _messages(self, reader: Descriptor, writer: Descriptor) -> None:
        written = writer.fields_by_number
        for number, field in reader.fields_by_number.items():
            where = f"{reader.full_name}.{field.name} = {number}"
            other = written.get(number)
            if other is not None:
                self.reasons += [f"{where}: {reason}" for reason in _field(field, other)]
            elif field.is_required:
                self.reasons.append(f"{where}: it is required, and the writer does not have it")
        for oneof in reader.oneofs:
            held = [written[field.number] for field in oneof.fields if field.number in written]
            groups = {None if f.containing_oneof is None else f.containing_oneof.name for f in held}
            if len(held) > 1 and (None in groups or len(groups) > 1):
                names = ", ".join(field.name for field in held)
                self.reasons.append(
                    f"{reader.full_name}.{oneof.name}: the writer may set {names} together, not one of them"
                )


def _field(reader: FieldDescriptor, writer: FieldDescriptor) -> list[str]:
    found = []
    if reader.type != writer.type and writer.type not in HOLDS.get(reader.type, ()):
        found.append(f"{TYPE_NAMES[writer.type]} cannot be read as {TYPE_NAMES[reader.type]}")
    if reader.is_required and not writer.is_required:
        found.append("it is required, and the writer may leave it out")
    if writer.is_repeated and not reader.is_repeated:
        found.append("the writer has many, the reader keeps one")
    if reader.is_repeated and not writer.is_repeated and _is_map(reader):
        found.append("the reader has a map, the writer a single message")
    if reader.message_type is not None and writer.message_type is not None and _is_map(reader) != _is_map(writer):
        found.append("one is a map and the other is not")
    if reader.enum_type is not None and writer.enum_type is not None and reader.enum_type.is_closed:
        known = set(reader.enum_type.values_by_number)
        gone = [value.name for number, value in writer.enum_type.values_by_number.items() if number not in known]
        if gone:
            found.append(f"the reader's enum {reader.enum_type.name} has no {', '.join(gone[:5])}")
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _reserved(old: Descriptor, new: Descriptor) -> list[str]:
    """Numbers and names that the old version set aside stay unused, also in nested messages."""
    found: list[str] = []
    waiting = [(old, new)]
    for before, now in waiting:  # grows while it is walked
        proto = descriptor_pb2.DescriptorProto()
        before.CopyToProto(proto)
        numbers, names = Reserved(proto), set(proto.reserved_name)
        found += [
            f"{now.full_name}.{field.name} = {field.number}: the last version reserved it"
            for field in now.fields
            if field.number in numbers or field.name in names
        ]
        nested = before.nested_types_by_name
        waiting += [(nested[inner.name], inner) for inner in now.nested_types if inner.name in nested]
    return found
