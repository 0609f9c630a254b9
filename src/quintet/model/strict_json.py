"""Reads JSON that every reader understands alike, in bounds that are counted before anything is made of the text.

How deep a text is nested is asked in many places: each names its own bound and hands it in, and none counts brackets
itself (`tests/model/test_strict_json.py` walks all of them). The count is the kernel's, in linear time. Felix asks the
kernel for more at once, `json_fault`, and hands its bound to that.
"""

import json
from collections.abc import Callable
from typing import Final, NoReturn

from quintet import kernel
from quintet.model.json_value import Json, JsonObject


class NotStrictJson(ValueError):
    """Text that is not JSON, that two readers could understand differently, or that is over a bound; says where."""


def deeper(data: bytes, depth_max: int) -> bool:
    """Whether the objects and arrays of a text, sound or not, are more than `depth_max` within each other."""
    # Most texts have few brackets, and those are counted faster than their nesting.
    return data.count(b"[") + data.count(b"{") > depth_max and kernel.json_shape(data)[1] > depth_max


def more_values(data: bytes, values_max: int) -> int:
    """How many values a text has at most, if those are more than `values_max`; otherwise 0."""
    if len(data) <= values_max:  # each value has a byte of its own
        return 0
    values = kernel.json_shape(data)[0]
    return values if values > values_max else 0


class StrictJson:
    """A reader with its bounds: UTF-8, no duplicate keys, no NaN, no infinity, nothing behind the value.

    `parse_int` may refuse numbers; `half_pairs` lets strings have half of a surrogate pair, which no UTF-8 can hold."""

    __slots__ = ("_decode", "_depth_max", "_half_pairs", "_values_max")

    def __init__(
        self,
        depth_max: int,
        values_max: int | None = None,
        *,
        parse_int: Callable[[str], int] = int,
        half_pairs: bool = False,
    ) -> None:
        self._depth_max: Final = depth_max
        self._values_max: Final = values_max
        self._half_pairs: Final = half_pairs
        self._decode: Final = json.JSONDecoder(
            object_pairs_hook=_members, parse_int=parse_int, parse_float=_float, parse_constant=_constant
        ).decode

    def read(self, data: bytes) -> Json:
        """The value. NotStrictJson says what is wrong; it may quote the text."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise NotStrictJson(f"not UTF-8 at byte {error.start}") from error
        if deeper(data, self._depth_max):
            raise NotStrictJson(f"nested deeper than {self._depth_max} levels")
        if self._values_max is not None and (values := more_values(data, self._values_max)):
            raise NotStrictJson(f"it has up to {values} values, the limit is {self._values_max}")
        try:
            value: Json = self._decode(text)
        except json.JSONDecodeError as error:
            raise NotStrictJson(
                f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}" if text.strip() else "it is empty"
            ) from error
        except NotStrictJson:
            raise
        except ValueError as error:  # an integer with more digits than Python converts
            raise NotStrictJson(str(error).split(";", maxsplit=1)[0]) from error
        if not self._half_pairs and b"\\u" in data and _has_half_pair(value):
            raise NotStrictJson("a string has half of a surrogate pair")
        return value


def _members(pairs: list[tuple[str, Json]]) -> JsonObject:
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


def _constant(text: str) -> NoReturn:
    raise NotStrictJson(f"{text} is not JSON")


def _has_half_pair(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
