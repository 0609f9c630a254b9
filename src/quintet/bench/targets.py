"""Turns the URL of `quintet bench` into what is loaded: which protocol, where, with which credentials."""

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from quintet.bench.blipmq import BlipmqWire
from quintet.bench.flymq import FlymqWire
from quintet.bench.wire import Address, BenchError, Wire


@dataclass(frozen=True, slots=True)
class Target:
    """A door to load: which wire, where."""

    wire: Wire
    address: Address
    url: str


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a URL scheme becomes a wire: make(user, password)."""

    make: Callable[[str, str], Wire]
    port: int
    example: str


def schemes() -> dict[str, Scheme]:
    """The doors that can be loaded, by URL scheme."""
    return {
        "blipmq": Scheme(
            lambda user, password: BlipmqWire(key=password or user or "dev-key"),
            5555,
            "blipmq://:dev-key@127.0.0.1:5555",
        ),
        "flymq": Scheme(
            lambda user, password: FlymqWire(user or "admin", password or "admin"),
            9092,
            "flymq://admin:admin@127.0.0.1:9092",
        ),
    }


def target(url: str) -> Target:
    """Parse a URL such as blipmq://:KEY@HOST:PORT."""
    table = schemes()
    parts = urlsplit(url)
    door = table.get(parts.scheme)
    if door is None:
        known = ", ".join(entry.example for entry in table.values())
        raise BenchError(f"no load generator for the scheme {parts.scheme!r} in {url!r}. Use one of: {known}")
    if "," in parts.netloc.rpartition("@")[2]:
        raise BenchError(f"{url!r} names several hosts; a load goes to one. Write it as in {door.example}")
    try:
        port = parts.port
    except ValueError as error:
        raise BenchError(f"bad port in {url!r}: {error}. Write it as in {door.example}") from error
    wire = door.make(unquote(parts.username or ""), unquote(parts.password or ""))
    host = parts.hostname or "127.0.0.1"
    shown = f"{parts.scheme}://{host}:{port or door.port}"
    return Target(wire, (host, port or door.port), shown)
