"""Names the type of a value that was read from JSON, and takes it apart without trusting its shape.

What is written as JSON needs no such type: a dict of objects will do, and the encoder refuses what it cannot write.
"""

from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]


def object_of(value: Json) -> JsonObject:
    """The members of an object; none of anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: Json) -> list[Json]:
    """The items of an array; none of anything else."""
    return value if isinstance(value, list) else []


def texts_of(value: Json) -> list[str]:
    """The strings among the items of an array."""
    return [item for item in list_of(value) if isinstance(item, str)]
