"""Checks the names of topics: what may be one, which are the broker's own, which are those of caches, whose they are."""

from typing import NoReturn

from quintet.broker.identity.access import INTERNAL_PREFIX
from quintet.model import limits
from quintet.model.errors import BadName, Forbidden

CACHE_PREFIX = "cache/"
CACHE_SLASHES = 3  # cache/TENANT/NAMESPACE/NAME


def text_of(raw: bytes) -> str:
    """A name as a client sent it, as text; BadName if it is none. Doors hand over the very bytes."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadName(f"a topic name is UTF-8, this one is not at byte {error.start}") from None


def check_name(raw: bytes) -> str:
    """A topic name as text, or BadName with the reason. `__` names are the broker's own."""
    if not raw or len(raw) > limits.TOPIC_NAME_BYTES_MAX:
        raise BadName(f"a topic name has 1 to {limits.TOPIC_NAME_BYTES_MAX} bytes, this one has {len(raw)}")
    name = text_of(raw)
    if "\0" in name:
        raise BadName("a topic name must not contain a NUL byte")
    if name.startswith(INTERNAL_PREFIX):
        raise BadName(f"names that start with {INTERNAL_PREFIX!r} are reserved for the broker")
    return name


def refuse_cache(name: str) -> NoReturn:
    """A door may not write to this name."""
    raise Forbidden(
        f"topic {name!r} is not written to by messages: names that begin with {CACHE_PREFIX!r} are the caches'",
        hint="put into the cache through the Felix door, or choose another name; reading it is allowed",
    )


def is_cache_name(name: str) -> bool:
    """Is it cache/TENANT/NAMESPACE/NAME?"""
    return name.startswith(CACHE_PREFIX) and name.count("/") == CACHE_SLASHES


def tenant_of(name: str) -> str:
    """The tenant whose topic it is, of TENANT/NAMESPACE/STREAM; "": nobody's."""
    parts = name.split("/")
    return parts[0] if len(parts) == 3 else ""
