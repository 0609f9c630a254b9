"""Parses the text of a .proto file into a FileDescriptorProto: one pass over its tokens, no disk, nothing imported.

Written here because the protobuf package has no parser, protoc works on files only, and the pure-Python parser on ANTLR
takes 14 ms per KiB of text, on the thread that serves everybody. What is understood: proto2 and proto3, messages, enums,
maps, oneofs, optional, reserved, extension ranges, nested types, and imports of google/protobuf/*.proto. Services, options
and extensions of options are read and left out. Editions, groups and other extensions are refused by name. What the names
refer to, and whether names and numbers are used twice, is checked by the descriptor pool afterwards.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate

from google.protobuf import descriptor_pb2

from quintet.broker.schemas.validators import clip
from quintet.model.errors import SchemaInvalid

TOKENS_MAX = 20_000  # about 1 us each
NESTING_MAX = 16  # messages in messages
FIELD_NUMBER_MAX = (1 << 29) - 1
FIELD_NUMBERS_OWN = range(19_000, 20_000)  # protobuf keeps these for itself
ENUM_NUMBERS = range(-(1 << 31), 1 << 31)

_TOKEN = re.compile(
    r"""\s++|//[^\n]*+|/\*.*?\*/|"""
    r"""(?P<text>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')|(?P<word>[A-Za-z_.][\w.]*+|\d[\w.]*+)|(?P<sign>[-+{}\[\]()<>=;,:/])""",
    re.DOTALL | re.ASCII,
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TYPE_NAME = re.compile(r"\.?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "double": Field.TYPE_DOUBLE, "float": Field.TYPE_FLOAT, "int64": Field.TYPE_INT64, "uint64": Field.TYPE_UINT64,
    "int32": Field.TYPE_INT32, "fixed64": Field.TYPE_FIXED64, "fixed32": Field.TYPE_FIXED32, "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING, "bytes": Field.TYPE_BYTES, "uint32": Field.TYPE_UINT32,
    "sfixed32": Field.TYPE_SFIXED32, "sfixed64": Field.TYPE_SFIXED64, "sint32": Field.TYPE_SINT32,
    "sint64": Field.TYPE_SINT64,
}  # fmt: skip
KEY_TYPES = frozenset(SCALARS) - {"double", "float", "bytes"}
LABELS = {
    "optional": Field.LABEL_OPTIONAL,
    "required": Field.LABEL_REQUIRED,
    "repeated": Field.LABEL_REPEATED,
}


def parse(text: str, name: str) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a .proto text; SchemaInvalid with the line if it is none."""
    return _Parser(text, name).file()


class _Parser:
    """Tokens and where they stand; one method per construct of the language."""

    def __init__(self, text: str, name: str) -> None:
        self._tokens = list(_tokens(text))
        self._text = text
        self._at = 0
        self._proto3 = False
        self._file = descriptor_pb2.FileDescriptorProto(name=name)

    # -- tokens ----------------------------------------------------------------------------------------------------

    def _fail(self, why: str, back: int = 1) -> SchemaInvalid:
        number = min(max(self._at - back, 0), len(self._tokens) - 1)
        place = self._tokens[number][1] if self._tokens else 0
        return SchemaInvalid(clip(f"the .proto is refused: line {self._text.count(chr(10), 0, place) + 1}: {why}"))

    def _peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        if not token:
            raise self._fail("the text ends in the middle", 2)
        return token

    def _take(self, wanted: str) -> bool:
        if self._peek() == wanted:
            self._at += 1
            return True
        return False

    def _expect(self, wanted: str) -> None:
        token = self._next()
        if token != wanted:
            raise self._fail(f"expected {wanted!r}, found {token!r}")

    def _name(self, what: str) -> str:
        token = self._next()
        if not _NAME.fullmatch(token):
            raise self._fail(f"expected the name of {what}, found {token!r}")
        return token

    def _type(self) -> str:
        token = self._next()
        if not _TYPE_NAME.fullmatch(token):
            raise self._fail(f"expected a type, found {token!r}")
        return token

    def _string(self) -> str:
        token = self._next()
        if token[0] not in "\"'":
            raise self._fail(f"expected a string, found {token!r}")
        return token[1:-1]

    def _number(self, within: range, what: str) -> int:
        sign = -1 if self._take("-") else 1
        token = self._next()
        try:
            number = sign * (int(token, 8) if re.fullmatch("0[0-7]+", token) else int(token, 0))
        except ValueError:
            raise self._fail(f"expected {what}, found {token!r}") from None
        if number not in within:
            raise self._fail(f"{what} is between {within[0]} and {within[-1]}, this is {number}")
        return number

    # -- the language ----------------------------------------------------------------------------------------------

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        while self._peek():
            token = self._next()
            if token == "syntax":
                self._expect("=")
                syntax = self._string()
                if syntax not in ("proto2", "proto3") or self._at != 3:
                    raise self._fail(f"the first line says proto2 or proto3, not {syntax!r}")
                self._proto3 = syntax == "proto3"
                self._file.syntax = syntax
                self._expect(";")
            elif token == "package":
                self._file.package = self._type()
                self._expect(";")
            elif token == "import":
                self._import()
            elif token == "message":
                self._message(self._file.message_type.add(), 1)
            elif token == "enum":
                self._enum(self._file.enum_type.add())
            elif token == "option":
                self._skip_statement()
            elif token == "service":
                self._name("a service")
                self._skip_block()
            elif token == "extend":
                self._extend()
            elif token != ";":
                raise self._fail(f"expected a message, an enum, an import or an option, found {token!r}")
        return self._file

    def _import(self) -> None:
        if self._peek() in ("public", "weak"):
            self._next()
        path = self._string()
        if not re.fullmatch(r"google/protobuf/[a-z_]+\.proto", path):
            raise self._fail(
                f"{path!r} cannot be imported: nothing is fetched, and only google/protobuf/*.proto is here"
            )
        self._file.dependency.append(path)
        self._expect(";")

    def _extend(self) -> None:
        name = self._type().lstrip(".")
        if not re.fullmatch(r"google\.protobuf\.\w+Options", name):
            raise self._fail(f"extensions of {name} are not supported; write the fields into the message")
        self._skip_block()

    def _skip_statement(self) -> None:
        depth = 0
        while True:
            token = self._next()
            if token in "{[(":
                depth += 1
            elif token in "}])":
                depth -= 1
            elif token == ";" and depth <= 0:
                return

    def _skip_block(self) -> None:
        self._expect("{")
        depth = 1
        while depth:
            token = self._next()
            depth += (token == "{") - (token == "}")

    def _message(self, message: descriptor_pb2.DescriptorProto, depth: int) -> None:
        if depth > NESTING_MAX:
            raise self._fail(f"messages are nested deeper than {NESTING_MAX} levels")
        message.name = self._name("a message")
        self._expect("{")
        while not self._take("}"):
            token = self._next()
            if token == "message" and _NAME.fullmatch(self._peek()) and self._after() == "{":
                self._message(message.nested_type.add(), depth + 1)
            elif token == "enum" and self._after() == "{":
                self._enum(message.enum_type.add())
            elif token == "oneof" and self._after() == "{":
                self._oneof(message)
            elif token == "option":
                self._skip_statement()
            elif token == "reserved":
                self._reserved(message)
            elif token == "extensions":
                self._ranges(message, extensions=True)
            elif token == "extend":
                self._extend()
            elif token == "map" and self._peek() == "<":
                self._map(message)
            elif token != ";":
                self._at -= 1
                self._field(message, None)
        self._check_reserved(message)
        # Synthetic oneofs of proto3 `optional` come after the real ones.
        if self._proto3:
            for field in message.field:
                if field.proto3_optional:
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")

    def _after(self) -> str:
        return self._tokens[self._at + 1][0] if self._at + 1 < len(self._tokens) else ""

    def _field(self, message: descriptor_pb2.DescriptorProto, oneof: int | None) -> None:
        field = message.field.add(label=Field.LABEL_OPTIONAL)
        label = self._peek()
        labelled = label in LABELS and oneof is None
        if labelled:
            self._next()
            field.label = LABELS[label]
            field.proto3_optional = self._proto3 and label == "optional"
            if label == "required" and self._proto3:
                raise self._fail("proto3 has no required fields")
        elif oneof is None and not self._proto3:
            raise self._fail(f"expected required, optional or repeated (this is proto2), found {label!r}", 0)
        kind = self._type()
        if kind == "group":
            raise self._fail("groups are not supported; use a message")
        if oneof is not None:
            field.oneof_index = oneof
        self._finish_field(field, kind, "a field")

    def _finish_field(self, field: Field, kind: str, what: str) -> None:
        if kind in SCALARS:
            field.type = SCALARS[kind]
        elif kind:
            field.type_name = kind
        field.name = self._name(what)
        self._expect("=")
        field.number = self._number(range(1, FIELD_NUMBER_MAX + 1), f"the number of field {field.name}")
        if field.number in FIELD_NUMBERS_OWN:
            raise self._fail(f"field numbers from 19000 to 19999 are protobuf's own, {field.name} is {field.number}")
        if self._take("["):
            self._field_options(field)
        self._expect(";")

    def _field_options(self, field: Field) -> None:
        """Only `packed` changes what is on the wire; the others are read over."""
        depth = 1
        before = two_before = ""
        while depth:
            token = self._next()
            depth += (token in ("[", "{")) - (token in ("]", "}"))
            if two_before == "packed" and before == "=" and token in ("true", "false"):
                field.options.packed = token == "true"
            two_before, before = before, token

    def _oneof(self, message: descriptor_pb2.DescriptorProto) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._name("a oneof"))
        self._expect("{")
        while not self._take("}"):
            if self._take("option"):
                self._skip_statement()
            elif not self._take(";"):
                self._field(message, index)

    def _map(self, message: descriptor_pb2.DescriptorProto) -> None:
        self._expect("<")
        key = self._type()
        if key not in KEY_TYPES:
            raise self._fail(f"the key of a map is an integer, a bool or a string, not {key}")
        self._expect(",")
        value = self._type()
        self._expect(">")
        field = message.field.add(label=Field.LABEL_REPEATED, type=Field.TYPE_MESSAGE)
        self._finish_field(field, "", "a map")
        entry = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        field.type_name = entry
        nested = message.nested_type.add(name=entry)
        nested.options.map_entry = True
        nested.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=SCALARS[key])
        second = nested.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL)
        if value in SCALARS:
            second.type = SCALARS[value]
        else:
            second.type_name = value

    def _enum(self, enum: descriptor_pb2.EnumDescriptorProto) -> None:
        enum.name = self._name("an enum")
        self._expect("{")
        while not self._take("}"):
            token = self._next()
            if token == "option":
                if self._peek() == "allow_alias":
                    enum.options.allow_alias = True
                self._skip_statement()
            elif token == "reserved":
                self._skip_statement()
            elif token != ";":
                if not _NAME.fullmatch(token):
                    raise self._fail(f"expected the name of a value of enum {enum.name}, found {token!r}")
                self._expect("=")
                enum.value.add(name=token, number=self._number(ENUM_NUMBERS, f"the number of {token}"))
                if self._take("["):
                    self._field_options(Field())
                self._expect(";")
        numbers = [value.number for value in enum.value]
        if not numbers or (self._proto3 and numbers[0] != 0):
            raise self._fail(
                f"enum {enum.name} needs a value" + (", and the first is 0 in proto3" if self._proto3 else "")
            )
        if len(set(numbers)) < len(numbers) and not enum.options.allow_alias:
            raise self._fail(f"enum {enum.name} uses a number twice without option allow_alias = true")

    # -- reserved --------------------------------------------------------------------------------------------------

    def _reserved(self, message: descriptor_pb2.DescriptorProto) -> None:
        if self._peek()[:1] not in ('"', "'"):
            self._ranges(message, extensions=False)
            return
        while True:
            message.reserved_name.append(self._string())
            if not self._take(","):
                break
        self._expect(";")

    def _ranges(self, message: descriptor_pb2.DescriptorProto, extensions: bool) -> None:
        numbers = range(1, FIELD_NUMBER_MAX + 1)
        while True:
            start = end = self._number(numbers, "a field number")
            if self._take("to"):
                end = FIELD_NUMBER_MAX if self._take("max") else self._number(numbers, "a field number")
            if end < start:
                raise self._fail(f"the range {start} to {end} goes down")
            if extensions:
                message.extension_range.add(start=start, end=end + 1)
            else:
                message.reserved_range.add(start=start, end=end + 1)
            if not self._take(","):
                break
        if extensions and self._take("["):
            self._field_options(Field())
        self._expect(";")

    def _check_reserved(self, message: descriptor_pb2.DescriptorProto) -> None:
        names = set(message.reserved_name)
        numbers = Reserved(message)
        for field in message.field:
            if field.name in names or field.number in numbers:
                raise self._fail(f"field {field.name} = {field.number} of {message.name} is reserved")


class Reserved:
    """The reserved numbers of a message, found without looking at every range."""

    def __init__(self, message: descriptor_pb2.DescriptorProto) -> None:
        ranges = sorted((reserved.start, reserved.end) for reserved in message.reserved_range)
        self._starts = [start for start, _ in ranges]
        self._ends = list(accumulate((end for _, end in ranges), max))

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number)
        return place > 0 and number < self._ends[place - 1]


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    position = 0
    count = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            line = text.count("\n", 0, position) + 1
            raise SchemaInvalid(
                clip(f"the .proto is refused: line {line}: {text[position : position + 10]!r} is unexpected")
            )
        if match.lastgroup:
            count += 1
            if count > TOKENS_MAX:
                raise SchemaInvalid(f"the .proto is refused: more than {TOKENS_MAX} words and signs")
            yield match[0], position
        position = match.end()
