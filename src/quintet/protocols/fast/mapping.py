"""Fast's nouns <-> ours: topic numbers <-> names, who a record came from, requests that have no answer yet.

A number is FNV-1a (32 bits) of the name's UTF-8: clients compute it, no reply carries it.

    "test" -> afd071e5        "orders" -> 325e96ec        "demo" -> aefd3536
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from quintet.model.keys import fnv1a
from quintet.protocols.base import Holds

ORIGIN_BYTES_MAX: Final = 200  # of the subject in an origin
_NONE: Final[Mapping[int, Exception]] = MappingProxyType({})


@lru_cache(4096)
def topic_id(name: bytes) -> int:
    """The number of a topic name."""
    return fnv1a(name)


def origin_of(subject: str) -> bytes:
    """The origin of what this subject publishes, as stored with its records."""
    return b"fast:" + subject.encode()[:ORIGIN_BYTES_MAX]


class Request(Holds):
    """The reply slot of requests on their way: what is said if all goes well, (topic, count) of each group, how many words of them are to
    come, and which of them failed. Whether they are answered is known when they come: EXTEND speaks of what is behind it."""

    __slots__ = ("answered", "errors", "groups", "kind", "oks")

    def __init__(
        self, kind: int, groups: Sequence[tuple[int, int]], oks: bytes, answered: bool, missing: int = 1
    ) -> None:
        self.data = None
        self.kind = kind
        self.groups = groups
        self.oks = oks
        self.answered = answered
        self.missing = missing
        self.errors: Mapping[int, Exception] = _NONE
