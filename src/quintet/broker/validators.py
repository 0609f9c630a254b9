"""From a schema's definition to something that judges messages: limits, the strict JSON reader, one table of types.

Each type has a module of its own (json_schema.py, avro.py, protobuf.py) that compiles a definition, once, into a
`Validator`. A definition that cannot be run in bounded time is refused when it is registered (`SchemaInvalid`); a message
that cannot be judged in bounded time is refused with that reason. Nothing here fetches, opens or imports anything a
definition names.
"""

import json
import re
from collections.abc import Callable
from typing import Protocol

from quintet.model.errors import SchemaInvalid

DEFINITION_BYTES_MAX = 256 * 1024
DEFINITION_DEPTH_MAX = 64  # nested objects and arrays of a JSON or Avro definition
MESSAGE_DEPTH_MAX = 32  # nested objects and arrays of a JSON message, nested records of an Avro message
REASONS_MAX = 10  # per message or comparison
REASON_CHARS_MAX = 200
PATH_CHARS_MAX = 80  # of the names that lead to a field, in a reason


class Validator(Protocol):
    """A compiled definition. `check` gives the reasons against a message, none if it is valid; it never raises."""

    def check(self, message: bytes) -> list[str]: ...


def compile_schema(type: str, definition: bytes) -> Validator:
    """The validator of a definition; SchemaInvalid with the reason if it is not a schema of that type."""
    from quintet.broker import avro, json_schema, protobuf

    makers: dict[str, Callable[[bytes], Validator]] = {
        "json": json_schema.JsonSchema,
        "avro": avro.AvroSchema,
        "protobuf": protobuf.ProtobufSchema,
    }
    if len(definition) > DEFINITION_BYTES_MAX:
        raise SchemaInvalid(
            f"the definition has {len(definition)} bytes, the limit is {DEFINITION_BYTES_MAX}",
            hint="split the schema, or remove what is only documentation",
        )
    return makers[type](definition)


def clip(text: str) -> str:
    """A reason on one line, cut at its limit: it may quote what an enemy wrote."""
    line = "".join(c if c.isprintable() else "?" for c in text[: REASON_CHARS_MAX + 1])
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 3] + "..."


def short_path(path: str) -> str:
    """The end of a path, so that a reason has room for what is wrong there."""
    return path if len(path) <= PATH_CHARS_MAX else f"...{path[-PATH_CHARS_MAX:]}"


def bounded(reasons: list[str]) -> list[str]:
    """At most REASONS_MAX reasons; the last one says how many were left out."""
    if len(reasons) > REASONS_MAX:
        left_out = len(reasons) - REASONS_MAX + 1
        reasons = [*reasons[: REASONS_MAX - 1], f"and {left_out} more"]
    return [clip(reason) for reason in reasons]


class NotStrictJson(ValueError):
    """Text that is not JSON, or that two readers could understand differently; says where."""


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NotStrictJson(f"the key {name!r} is there twice in one object")
            seen.add(name)
    return members


def _float(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise NotStrictJson(f"the number {text[:40]} does not fit a double")
    return number


def _constant(text: str) -> object:
    raise NotStrictJson(f"{text} is not JSON")


# Possessive, and an open string runs to the end of the text: each character is looked at once, whatever the text is.
_STRUCTURE = re.compile(r'[\[\]{}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_float=_float, parse_constant=_constant)


def read_json(data: bytes, depth_max: int) -> object:
    """JSON in UTF-8: no duplicate keys, no NaN, no infinity, no lone surrogates, no more nesting than `depth_max`."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotStrictJson(f"not UTF-8 at byte {error.start}") from error
    # Brackets inside strings make this count too high, never too low: only then is the value itself looked at.
    may_be_deep = data.count(b"[") + data.count(b"{") > depth_max
    if may_be_deep:
        _check_depth(text, depth_max)
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise NotStrictJson(
            f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}" if text.strip() else "it is empty"
        ) from error
    except NotStrictJson:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        raise NotStrictJson(str(error).split(";", maxsplit=1)[0]) from error
    if b"\\u" in data and _has_surrogate(value):
        raise NotStrictJson("a string has half of a surrogate pair")
    return value


def _check_depth(text: str, depth_max: int) -> None:
    """Refuse nesting before the parser recurses into it."""
    depth = 0
    for match in _STRUCTURE.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > depth_max:
                raise NotStrictJson(f"nested deeper than {depth_max} levels")
        elif match[0] in "]}":
            depth -= 1


def _has_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
