"""The messages of newer published clients, which the protocol's document does not have; sent where `auth` named features.

The bits are in frames.py. Field names and shapes are those of the published clients, and so are two that we have in a form of
our own for those who say QUINTET: `cache_delete` answers with what was removed, `cache_watch` counts in offsets.
"""

from typing import Final, Literal

import msgspec

from quintet.protocols.felix import codec
from quintet.protocols.felix.codec import Id


class _Message(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    pass


class _OfStream(_Message, kw_only=True):
    tenant_id: str
    namespace: str
    stream: str


class _OfCache(_Message, kw_only=True):
    tenant_id: str
    namespace: str
    cache: str


# -- client to server -------------------------------------------------------------------------------------------------


class StreamShards(_OfStream, kw_only=True, tag="stream_shards"):
    request_id: int


class CacheShards(_OfCache, kw_only=True, tag="cache_shards"):
    request_id: int


class CacheDelete(_OfCache, kw_only=True, tag="cache_delete"):
    key: str
    request_id: Id = None


class CacheWatch(_OfCache, kw_only=True, tag="cache_watch"):
    key: str | None = None
    prefix: str | None = None
    shard: int | None = None
    from_offset: int | None = None
    retained: bool = False
    subscription_id: Id = None


class CounterAdd(_OfCache, kw_only=True, tag="counter_add"):
    key: str
    delta: int
    request_id: int


class CounterGet(_OfCache, kw_only=True, tag="counter_get"):
    key: str
    request_id: int


class AtVersion(msgspec.Struct):
    version: int


class CachePutIf(_OfCache, kw_only=True, tag="cache_put_if"):
    key: str
    value: bytes
    condition: Literal["absent"] | AtVersion
    request_id: int
    ttl_ms: int | None = None


class CacheDeleteIf(_OfCache, kw_only=True, tag="cache_delete_if"):
    key: str
    version: int
    request_id: int


class _OfGroup(_OfStream, kw_only=True):
    shard: int
    group: str
    request_id: int


class GroupPoll(_OfGroup, kw_only=True, tag="group_poll"):
    max_records: int
    wait_ms: int = 0


class GroupAck(_OfGroup, kw_only=True, tag="group_ack"):
    offset: int


class GroupNack(_OfGroup, kw_only=True, tag="group_nack"):
    offset: int


# -- server to client -------------------------------------------------------------------------------------------------


class StreamShardsView(_Message, kw_only=True, tag="stream_shards_view"):
    shards: int
    request_id: int


class CacheShardsView(_Message, kw_only=True, tag="cache_shards_view"):
    shards: int
    request_id: int


class CounterValue(_Message, kw_only=True, tag="counter_value"):
    """Without a value: nobody ever added to it."""

    value: int | None = None
    request_id: int


class CacheConditionResult(_Message, kw_only=True, tag="cache_condition_result"):
    applied: bool
    version: int | None = None
    request_id: int


class CacheWatchStarted(_Message, kw_only=True, tag="cache_watch_started"):
    subscription_id: int | str
    resume_offset: int
    resnapshot: bool
    retained_count: int | None = None


class CacheEvent(_Message, kw_only=True, tag="cache_event"):
    key: str
    value: bytes | None = None
    offset: int
    expires_at_millis: int


class GroupRecord(msgspec.Struct):
    offset: int
    payload: bytes
    attempts: int


class GroupRecords(_Message, kw_only=True, tag="group_records"):
    records: list[GroupRecord]
    request_id: int


class Unsupported(_Message, kw_only=True, tag="unsupported"):
    request_type: str
    request_id: int | None = None


_REQUESTS: Final[tuple[type[_Message], ...]] = (
    StreamShards, CacheShards, CacheDelete, CacheWatch, CounterAdd, CounterGet, CachePutIf, CacheDeleteIf, GroupPoll, GroupAck,
    GroupNack,
)  # fmt: skip
requests: Final = codec.plain | codec.decoders(_REQUESTS)
