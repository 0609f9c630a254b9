"""Fast's nouns <-> ours: topic numbers <-> names, who a record came from.

A number is FNV-1a (32 bits) of the name's UTF-8: clients compute it, no reply carries it.

    "test" -> afd071e5        "orders" -> 325e96ec        "demo" -> aefd3536
"""

from functools import lru_cache
from typing import Final

from quintet.model.keys import fnv1a

ORIGIN_BYTES_MAX: Final = 200  # of the subject in an origin


@lru_cache(4096)
def topic_id(name: bytes) -> int:
    """The number of a topic name."""
    return fnv1a(name)


def origin_of(subject: str) -> bytes:
    """The origin of what this subject publishes, as stored with its records."""
    return b"fast:" + subject.encode()[:ORIGIN_BYTES_MAX]
