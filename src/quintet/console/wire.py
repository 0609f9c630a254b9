"""Turns what the API answers into JSON that a browser reads without loss, and its questions into typed records.

A whole number beyond 2^53 is written as text: JavaScript would round it. Bytes are written as text where they are UTF-8 and as
base64 where they are not, and always say which.
"""

import base64
import dataclasses
import re
from typing import Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from quintet.model.errors import BadRequest

T = TypeVar("T")

SAFE_INTEGER: Final = (1 << 53) - 1
QUERY_BYTES_MAX: Final = 16 << 10
QUERY_FIELDS_MAX: Final = 32
BODY_BYTES_MAX: Final = 16 << 20  # a message of 10 MiB in base64, and its headers
SHOWN_BYTES_MAX: Final = 256 << 10  # of one key or value in an answer; the rest is downloaded


# Perhaps a number beyond 2^53, which begins with 9007; in a text it is found, too, and costs a walk.
_LARGE: Final = re.compile(rb"9[0-9]{15}|[0-9]{17}")


class Empty(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a request that has none."""


class Download(msgspec.Struct):
    """An answer that the browser keeps as a file and never shows."""

    name: str
    body: bytes

    def headers(self) -> list[tuple[bytes, bytes]]:
        name = "".join(
            letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in self.name
        )
        return [
            (b"content-type", b"application/octet-stream"),
            (b"content-disposition", f'attachment; filename="{name[:100]}"'.encode()),
            (b"cache-control", b"no-store"),
        ]


def lossless(value: object) -> object:
    """The same with large numbers as text. Structs, dataclasses and named tuples become objects."""
    if isinstance(value, bool | str | float | None):
        return value
    if isinstance(value, int):
        return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(value)
    if isinstance(value, dict):
        return {name: lossless(below) for name, below in value.items()}
    if isinstance(value, msgspec.Struct):
        return {name: lossless(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: lossless(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: lossless(below) for name, below in zip(value._fields, value, strict=True)}
    if isinstance(value, list | tuple):
        return [lossless(below) for below in value]
    raise AssertionError(f"{type(value)} is not answered")


def encode(value: object) -> bytes:
    """As JSON. Most answers have no number that needs care: then they are not walked through."""
    made = msgspec.json.encode(value)
    return msgspec.json.encode(lossless(value)) if _LARGE.search(made) else made


def shown(data: bytes | memoryview | None, most: int = SHOWN_BYTES_MAX) -> dict[str, object] | None:
    """Bytes for people: their size, the beginning as text or base64, and whether that is all."""
    if data is None:
        return None
    size = len(data)
    piece = bytes(data[:most])
    cut = size > most
    try:
        text = piece.decode()
    except UnicodeDecodeError as error:
        # A character that was cut in the middle does not make text binary.
        if not cut or error.start < len(piece) - 3:
            return {"size": size, "base64": base64.b64encode(piece).decode(), "cut": cut}
        text = piece[: error.start].decode()
    return {"size": size, "text": text, "cut": cut}


def asked_by_query(raw: bytes, kind: type[T]) -> T:
    """The fields of a query string as this record."""
    if len(raw) > QUERY_BYTES_MAX:
        raise BadRequest(f"the query has {len(raw)} bytes; the limit is {QUERY_BYTES_MAX}")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise BadRequest(f"the query cannot be read: {error}") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadRequest("a field is in the query twice")
    return _converted(fields, kind, strict=False)


def asked_by_body(raw: bytes, kind: type[T]) -> T:
    """The fields of a JSON object as this record."""
    try:
        return _within_64_bits(msgspec.json.decode(raw, type=kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request is not as it must be: {error}") from None


def _converted(fields: dict[str, str], kind: type[T], *, strict: bool) -> T:
    try:
        return _within_64_bits(msgspec.convert(fields, kind, strict=strict))
    except (msgspec.ValidationError, ValueError) as error:
        raise BadRequest(f"the request is not as it must be: {error}") from None


def _within_64_bits(record: T) -> T:
    """The same record; ValueError if a number in it is none that the log, a clock or the kernel could hold."""
    for value in msgspec.structs.astuple(record):  # type: ignore[arg-type]  # what is asked is a Struct
        parts = value if isinstance(value, list) else (value,)
        for part in parts:
            if isinstance(part, msgspec.Struct):
                _within_64_bits(part)
            elif isinstance(part, int) and not -(1 << 63) <= part < 1 << 63:
                raise msgspec.ValidationError(f"the number {str(part)[:40]} does not fit into 64 bits")
    return record


def whole(text: str) -> int:
    """A number that came as text because JavaScript would round it."""
    if not re.fullmatch(r"-?[0-9]{1,20}", text, re.ASCII):
        raise BadRequest(f"{text[:40]!r} is no whole number of up to 20 digits")
    return int(text)


def bytes_of(text: str | None, base64_text: str | None) -> bytes | None:
    """What a form sends: text, or base64, or nothing."""
    if base64_text is None:
        return None if text is None else text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(base64_text, validate=True)
    except ValueError as error:
        raise BadRequest(f"this is not base64: {error}") from None
