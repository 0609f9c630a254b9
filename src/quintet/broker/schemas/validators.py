"""Defines what the types of schemas share: the `Validator`, limits, reasons, the strict JSON reader.

Each type has a module of its own (json_schema.py, avro.py, protobuf.py) that compiles a definition, once, into a
`Validator` (compiling.py chooses). A definition that cannot be run in bounded time is refused when it is registered (`SchemaInvalid`); a message
that cannot be judged in bounded time is refused with that reason. Nothing here fetches, opens or imports anything a
definition names.
"""

import json
from typing import Protocol

from quintet import kernel
from quintet.model.json_value import Json

DEFINITION_BYTES_MAX = 256 * 1024
DEFINITION_DEPTH_MAX = 64  # nested objects and arrays of a JSON or Avro definition
DEFINITION_VALUES_MAX = 10_000  # in a JSON or Avro definition: strings, numbers, literals, objects and arrays
MESSAGE_BYTES_MAX = 1024 * 1024  # of a message that is checked
MESSAGE_VALUES_MAX = 10_000  # in a message that is checked, empty ones included; up to 1 us each
MESSAGE_DEPTH_MAX = 32  # nested objects and arrays of a JSON message, nested records of an Avro message
REASONS_MAX = 10  # per message or comparison
REASON_CHARS_MAX = 200
PATH_CHARS_MAX = 80  # of the names that lead to a field, in a reason


class Validator(Protocol):
    """A compiled definition. `check` gives the reasons against a message, none if it is valid; it never raises, and takes
    some milliseconds at most: what would take longer is refused, with that reason."""

    def check(self, message: bytes) -> list[str]: ...


def too_large(message: bytes | memoryview) -> list[str]:
    """The reason against a message that has too many bytes to be checked."""
    if len(message) <= MESSAGE_BYTES_MAX:
        return []
    return [f"the message has {len(message)} bytes, a schema check takes {MESSAGE_BYTES_MAX}"]


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


_DECODER = json.JSONDecoder(object_pairs_hook=_members, parse_float=_float, parse_constant=_constant)


def read_json(data: bytes, depth_max: int, values_max: int) -> Json:
    """JSON in UTF-8: no duplicate keys, no NaN, no infinity, no lone surrogates, no more nesting than `depth_max` and no
    more values than `values_max`. Both are counted by the kernel, before the parser makes an object of each."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NotStrictJson(f"not UTF-8 at byte {error.start}") from error
    values, depth = kernel.json_shape(data)
    if depth > depth_max:
        raise NotStrictJson(f"nested deeper than {depth_max} levels")
    if values > values_max:
        raise NotStrictJson(f"it has up to {values} values, the limit is {values_max}")
    try:
        value: Json = _DECODER.decode(text)
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


def _has_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
