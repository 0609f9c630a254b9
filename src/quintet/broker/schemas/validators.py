"""Defines what the types of schemas share: the `Validator`, limits, reasons, readers of strict JSON.

Each type has a module of its own (json_schema.py, avro.py, protobuf.py) that compiles a definition, once, into a
`Validator` (compiling.py chooses). A definition that cannot be run in bounded time is refused when it is registered (`SchemaInvalid`); a message
that cannot be judged in bounded time is refused with that reason. Nothing here fetches, opens or imports anything a
definition names.
"""

from typing import Final, Protocol

from quintet.model.strict_json import StrictJson

DEFINITION_BYTES_MAX = 256 * 1024
DEFINITION_DEPTH_MAX = 64  # nested objects and arrays of a JSON or Avro definition
DEFINITION_VALUES_MAX = 10_000  # in a JSON or Avro definition: strings, numbers, literals, objects and arrays
MESSAGE_BYTES_MAX = 1024 * 1024  # of a message that is checked
MESSAGE_VALUES_MAX = 10_000  # in a message that is checked, empty ones included; up to 1 us each
MESSAGE_DEPTH_MAX = 32  # nested objects and arrays of a JSON message, nested records of an Avro message
REASONS_MAX = 10  # per message or comparison
REASON_CHARS_MAX = 200
PATH_CHARS_MAX = 80  # of the names that lead to a field, in a reason

read_definition: Final = StrictJson(DEFINITION_DEPTH_MAX, DEFINITION_VALUES_MAX).read
read_message: Final = StrictJson(MESSAGE_DEPTH_MAX, MESSAGE_VALUES_MAX).read


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
