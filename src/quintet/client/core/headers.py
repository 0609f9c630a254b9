"""Defines Headers, the headers of a message as its reader sees them, and encodes those that a publisher gives.

A name may come several times: the log keeps all of them, in their order. As a mapping Headers shows each name once, with its last
value, which is what a dict made of them has; `all` and `pairs` show the rest. A value is bytes, or None for a null.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from quintet import kernel
from quintet.client.core.errors import BadValue
from quintet.model import limits
from quintet.model.batch import Header
from quintet.model.errors import BadRequest, LimitExceeded, QuintetError, TooLarge

HeaderValue = str | bytes | None
# What publishers give: a mapping, or pairs where a name comes several times.
HeadersGiven = Mapping[str, HeaderValue] | Iterable[tuple[str, HeaderValue]]

Encoded = bytes  # as the wire has them (kernel.headers_pack); empty: none


class Headers(Mapping[str, bytes | None]):
    """The headers of a message, in their order."""

    __slots__ = ("_found", "_raw")

    def __init__(self, raw: Encoded = b"") -> None:
        self._raw = raw
        self._found: dict[str, bytes | None] | None = None

    def _as_dict(self) -> dict[str, bytes | None]:
        if self._found is None:
            self._found = dict(kernel.headers_unpack(self._raw))
        return self._found

    def __getitem__(self, name: str) -> bytes | None:
        return self._as_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_dict())

    def __len__(self) -> int:
        return len(self._as_dict())

    @property
    def raw(self) -> Encoded:
        """As the wire has them."""
        return self._raw

    @property
    def pairs(self) -> tuple[tuple[str, bytes | None], ...]:
        """All of them in order, a name that comes several times as often as it does. `publish` takes them as `headers=`."""
        return kernel.headers_unpack(self._raw)

    def all(self, name: str) -> list[bytes | None]:
        """Every value of this name, in order."""
        return [value for other, value in self.pairs if other == name]

    def text(self, name: str, default: str = "") -> str:
        """The last value of this name as UTF-8 text; the default if there is none, or a null."""
        value = self.get(name)
        return default if value is None else value.decode(errors="replace")

    def __repr__(self) -> str:
        return f"Headers({self._as_dict()!r})"


EMPTY: Final = Headers()
_U32: Final = struct.Struct(">I")
_pack: Final = kernel.headers_pack


def encode_headers(given: HeadersGiven | None) -> Encoded:
    """As the wire has them. Limits are judged here and not by the broker alone: it refuses a record set whole, and messages of other
    calls may be in the same one."""
    if not given:
        return b""
    # A dict, which most give, is asked for by its type: isinstance with an abstract class costs as much as all the rest.
    pairs = given if type(given) is dict else _pairs(given)
    try:
        return _pack(pairs)
    except OverflowError:
        raise _refusal(pairs) from None
    except (TypeError, ValueError) as error:
        raise _bad_type(pairs, error) from None


def _bad_type(given: HeadersGiven, error: Exception) -> BadValue:
    """Which header it is, if they can be looked at one by one."""
    hint = "headers= is a mapping, or pairs, of names (str) with values of str, bytes or None"
    with suppress(TypeError, ValueError):
        for name, value in given.items() if isinstance(given, Mapping) else given:
            if not isinstance(name, str):
                return BadValue(f"the header name {name!r} is of the type {type(name).__name__}", hint=hint)
            if value is not None and not isinstance(value, str | bytes):
                return BadValue(f"the header {name!r} has a value of the type {type(value).__name__}", hint=hint)
    return BadValue(f"headers= cannot be sent: {error}", hint=hint)


def _pairs(given: HeadersGiven) -> HeadersGiven:
    """What the kernel takes, and what can be looked at twice."""
    if isinstance(given, Headers):
        return given.pairs
    return dict(given) if isinstance(given, Mapping) else list(given)


def check_record_ttl(ttl_ms: int) -> int:
    """The same, if a record set has room for it; FlyMQ's PRODUCE_WITH_TTL takes longer ones."""
    if ttl_ms > limits.RECORD_TTL_MS_MAX:
        most = f"{limits.RECORD_TTL_MS_MAX / 1000:.0f} seconds together with headers, schema or delay"
        raise ValueError(f"ttl is at most {most}, not {ttl_ms / 1000:.0f}")
    return ttl_ms


def pack_pairs(pairs: Iterable[Header]) -> Encoded:
    """Headers that were received, as the wire has them: the broker's own may be among them, so no limit is judged."""
    parts = [
        _U32.pack(len(name)) + name + _U32.pack(0 if value is None else len(value) + 1) + (value or b"")
        for name, value in pairs
    ]
    return _U32.pack(len(parts)) + b"".join(parts) if parts else b""


def raw_pairs(encoded: Encoded) -> tuple[Header, ...]:
    """Names and values as bytes."""
    return tuple((name.encode(), value) for name, value in kernel.headers_unpack(encoded))


def _refusal(given: HeadersGiven) -> QuintetError:
    """What the broker would refuse them with."""
    pairs = [(name.encode(), value) for name, value in (given.items() if isinstance(given, Mapping) else given)]
    if len(pairs) > limits.HEADERS_MAX:
        return LimitExceeded(f"the message has {len(pairs):,} headers, the limit is {limits.HEADERS_MAX:,}")
    size = sum(len(name) + _size(value) for name, value in pairs)
    if size > limits.HEADERS_BYTES_MAX:
        most = f"the limit is {limits.HEADERS_BYTES_MAX:,} for names and values together"
        return TooLarge(f"the message has {size:,} bytes of headers, {most}", hint="put large data into the value")
    for name, _ in pairs:
        if not 0 < len(name) <= limits.HEADER_NAME_BYTES_MAX:
            return BadRequest(f"a header name has {len(name)} bytes, it needs 1 to {limits.HEADER_NAME_BYTES_MAX}")
        if name.startswith(limits.HEADER_PREFIX_RESERVED):
            hint = f"names that begin with {limits.HEADER_PREFIX_RESERVED.decode()} are the broker's own"
            return BadRequest(f"the header name {name.decode()!r} is reserved", hint=hint)
    raise AssertionError("the kernel refused headers that are within their limits")


def _size(value: HeaderValue) -> int:
    return len(value.encode() if isinstance(value, str) else value or b"")
