"""Defines what sections of the configuration are made of: the frozen table, and a type for each unit a key can have.

A section is a class in the layer that uses its values, and is handed down whole; config/ joins all of them to one tree. A key that
holds a number has one of the types below: it says what the number counts, and by that how the key must end. The rule is at the
opening of config/fields.py; tests/test_config_keys.py holds it. Only a broker loads this file: a client has no pydantic.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from quintet.model import limits

GIB: Final = 1024 * limits.MIB
DAY_SECONDS: Final = 24 * 3600
SECOND_US: Final = 1_000_000
_UNITS: Final = {"": 1, "B": 1, "KIB": limits.KIB, "MIB": limits.MIB, "GIB": GIB, "TIB": 1024 * GIB}

Durability = Literal["fsync", "interval", "os", "memory"]


class Unit(msgspec.Struct, frozen=True):
    """What a number counts. `ending` is how its key ends; `whole`: the ending is the whole key."""

    ending: str
    whole: bool = False


def _parse_bytes(value: object) -> object:
    """'16 MiB' and the like as a number of bytes; anything else is left for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("expected a number of bytes, or a text like '16 MiB' (B, KiB, MiB, GiB, TiB)")
    return int(match[1]) * _UNITS[match[2].upper()]


# A size: of a file, or of what is kept before the oldest goes.
Bytes = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=0), Unit("_bytes")]
# A bound on a size: what is larger is refused, or waits.
BytesMax = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=0), Unit("_bytes_max")]
BytesMin = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=0), Unit("_bytes_min")]
# A bound on a number of things: one more is refused, or waits. Unbounded: 0 is no bound.
Count = Annotated[int, Field(ge=1), Unit("_max")]
Unbounded = Annotated[int, Field(ge=0), Unit("_max")]
# The least number of things: with one less it is refused.
CountMin = Annotated[int, Field(ge=1), Unit("_min")]
# A bound on things in a time.
PerSecond = Annotated[int, Field(ge=0), Unit("_per_second_max")]
PerMinute = Annotated[int, Field(ge=1), Unit("_per_minute_max")]
BytesPerSecond = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=0), Unit("_bytes_per_second_max")]
# A time. Fractions are for what is shorter than a second.
Seconds = Annotated[int, Field(ge=0), Unit("_seconds")]
FractionalSeconds = Annotated[float, Field(ge=0, allow_inf_nan=False), Unit("_seconds")]
# A share of something.
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), Unit("_ratio")]
# Numbers that bound nothing.
Port = Annotated[int, Field(ge=0, le=65535), Unit("port", whole=True)]
Cells = Annotated[int, Field(ge=1, le=limits.CELLS_MAX), Unit("cells", whole=True)]
Partitions = Annotated[int, Field(ge=1, le=limits.PARTITIONS_MAX), Unit("partitions", whole=True)]


def microseconds(seconds: float) -> int:
    """A time of the configuration as the broker counts it."""
    return round(seconds * SECOND_US)


def units_of(field: FieldInfo) -> set[Unit]:
    """The units in a field's type."""
    return set(_units_in((field.annotation, *field.metadata)))


def _units_in(parts: tuple[Any, ...]) -> Iterator[Unit]:
    for part in parts:
        if isinstance(part, Unit):
            yield part
        yield from _units_in(get_args(part))


class Renamed(msgspec.Struct, frozen=True):
    """A key that has another name now. `per`: so many of the old unit are one of the new; `times`: the other way round."""

    old: str
    to: str
    per: int = 1
    times: int = 1

    def convert(self, value: Any) -> Any:
        """A value of the old key for the new one. What is no number is left for the new key's type to judge."""
        if self.per == self.times == 1:
            return value
        try:  # a variable of the environment is text
            number = float(value) if isinstance(value, str) else value
        except ValueError:
            return value
        if not isinstance(number, int | float):
            return value
        return number * self.times if self.per == 1 else number / self.per


class Section(BaseModel):
    """A table of the file. Frozen, and an unknown key is an error."""

    # defer_build: only the whole tree is ever checked, so no part of it needs a validator of its own (25 ms of a start).
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    renamed: ClassVar[tuple[Renamed, ...]] = ()
    """Old names of keys, which this release still takes, with a warning. The next one forgets them. A subclass lists its own."""

    @classmethod
    def old_names(cls) -> dict[str, Renamed]:
        """Old names of keys, those of base classes included."""
        found: dict[str, Renamed] = {}
        for base in reversed(cls.__mro__):
            found |= {renamed.old: renamed for renamed in base.__dict__.get("renamed", ())}
        return found


def section_of(annotation: object) -> type[Section] | None:
    """The section class in a field's annotation: itself, or the element of a tuple."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None
