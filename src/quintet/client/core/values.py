"""Encodes what users publish, and decodes what they ask for: bytes, text, JSON, msgspec, dataclasses, pydantic.

msgspec is loaded when a value that is neither bytes nor text is met. pydantic is never imported: a model carries its own
serializer and validator (`__pydantic_serializer__`, `__pydantic_validator__`), also inside lists, dicts and dataclasses.
"""

from typing import Any, Final, TypeVar

from quintet.client.core.errors import BadValue

T = TypeVar("T")

SERIALIZER: Final = "__pydantic_serializer__"
VALIDATOR: Final = "__pydantic_validator__"
REASONS_MAX: Final = 3  # of a value that breaks many rules


def encode(value: object, topic: str = "") -> bytes:
    """bytes as they are, text as UTF-8, everything else as JSON. BadValue names the type and the topic."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    import msgspec.json

    try:
        if hasattr(type(value), SERIALIZER):
            return bytes(getattr(value, SERIALIZER).to_json(value))
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        where = f" to {topic!r}" if topic else ""
        raise BadValue(
            f"a {type(value).__name__} cannot be published{where}: {error}",
            hint="publish bytes, text, a pydantic model, a msgspec Struct, a dataclass, or what JSON can say",
        ) from error


def _plain(value: object) -> object:
    """Of a type that msgspec does not know."""
    if hasattr(type(value), SERIALIZER):
        return getattr(value, SERIALIZER).to_python(value, mode="json")
    raise TypeError(f"JSON has nothing for a {type(value).__name__}")


def decode(data: bytes, kind: type[T], topic: str = "") -> T:
    """JSON as this type, checked: a pydantic model, a msgspec Struct, a dataclass, list[int] ... BadValue names the field, the
    type and the topic; what pydantic or msgspec said is its cause."""
    import msgspec.json

    try:
        if hasattr(kind, VALIDATOR):
            made: T = getattr(kind, VALIDATOR).validate_json(data)
            return made
        return msgspec.json.decode(data, type=kind, dec_hook=_made)
    except (ValueError, RecursionError) as error:
        name = getattr(kind, "__name__", str(kind))
        where = f" of {topic!r}" if topic else ""
        hint = "publish what fits, or decode as another type; `msg.value` has the bytes"
        raise BadValue(f"the message{where} is no {name}: {_reasons(error)}", hint=hint) from error


def _made(kind: type[Any], value: object) -> object:
    """Of a type that msgspec does not know."""
    if hasattr(kind, VALIDATOR):
        try:
            return getattr(kind, VALIDATOR).validate_python(value)
        except ValueError as error:
            raise ValueError(_reasons(error)) from error
    raise TypeError(f"messages cannot be decoded as {kind.__name__}")


def _reasons(error: Exception) -> str:
    """As `field: what is wrong`, for pydantic's many lines as for msgspec's one."""
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return str(error)
    found = [
        f"{'.'.join(map(str, row['loc'])) or 'it'}: {row['msg']}"
        for row in listed(include_url=False, include_input=False)
    ]
    more = f" and {len(found) - REASONS_MAX} more" if len(found) > REASONS_MAX else ""
    return "; ".join(found[:REASONS_MAX]) + more
