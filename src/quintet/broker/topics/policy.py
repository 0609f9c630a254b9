"""Defines the rules by which topics are made: what the configuration says of a name. What is done by them is the catalog's."""

from collections.abc import Sequence

import msgspec

from quintet.log.base import Durability
from quintet.model import limits


class TopicRule(msgspec.Struct, frozen=True):
    """What the configuration says of names that match `pattern` (a name, or a prefix ending in `*`)."""

    pattern: str
    durability: Durability | None = None
    partitions: int = 1
    retention_us: int = 0
    retention_bytes: int = 0
    compact: bool = False
    segment_bytes: int = limits.SEGMENT_BYTES_DEFAULT
    memory_bytes: int = limits.MEMORY_TOPIC_BYTES_DEFAULT

    def matches(self, name: str) -> bool:
        return name == self.pattern or (self.pattern.endswith("*") and name.startswith(self.pattern[:-1]))


class TopicPolicy(msgspec.Struct, frozen=True):
    """The rules in the order they are tried, then the default rule (pattern `*`)."""

    rules: Sequence[TopicRule]
    durable: Durability = "fsync"  # of topics made by traffic that asks for durability
    topics_max: int = limits.TOPICS_MAX
    queue_messages_max: int = 0  # unsettled per QoS 1 subscription; 0: no limit
    cache_durability: Durability = "fsync"

    def rule_for(self, name: str) -> TopicRule:
        for rule in self.rules:  # asked for each of 100,000 topics at a start: a generator would cost twice as much
            if rule.matches(name):
                return rule
        raise AssertionError("the last rule is `*`")
