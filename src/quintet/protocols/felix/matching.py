"""Defines match_topics and topic_list: which topics match a pattern, for clients that said EXTENDED.

Patterns are the broker's (broker/topics/patterns.py) and match names of topics: `tenant/namespace/stream`, or one name alone. The
handler is in consumer_requests.py. Nothing here decides who may see a topic: that is the bearer's.
"""

from typing import Final

import msgspec

from quintet.protocols.felix import codec
from quintet.protocols.felix.codec import Id, Scope

_PARTS: Final = 3  # of a stream's name


class MatchTopics(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type", tag="match_topics"):
    """`version` is that of the answer before: while nothing changed since, the next one has no names."""

    patterns: list[str]
    version: int = 0
    request_id: Id = None


class TopicList(msgspec.Struct, kw_only=True, tag_field="type", tag="topic_list"):
    request_id: Id = None
    version: int
    changed: bool
    topics: list[str]


requests: Final = codec.extended_too | codec.decoders((MatchTopics,))


def scope_of(topic: str) -> Scope:
    """Which stream a topic is: the way back from codec.topic_of."""
    parts = topic.split("/")
    return (parts[0], parts[1], parts[2]) if len(parts) == _PARTS else ("", "", topic)
