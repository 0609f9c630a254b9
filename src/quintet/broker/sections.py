"""Defines the sections of the configuration that the broker itself is handed: queues, peers, caches, tenants.

Each is handed down whole by server.py to the part that uses it; config/ reads them into the tree of options. A key has its unit in its
type and its reason in its description. Times are seconds to whoever writes them and microseconds to the broker. No files are read
here: what a section says in files, a class of config/ adds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr

from quintet.model import limits
from quintet.model.sections import (
    DAY_SECONDS,
    Bytes,
    BytesMax,
    BytesPerSecond,
    Count,
    Durability,
    Renamed,
    Seconds,
    Section,
    Unbounded,
    microseconds,
)


class QueueSection(Section):
    """What the listener of the Fast door says of queues."""

    require_create: bool = Field(
        default=False, description="Whether CREATE needs the permission `create`; else any valid token may."
    )
    expire_subscriptions: bool = Field(
        default=True, description="Whether deliveries stop when the token they were subscribed with expires."
    )
    key_updates: bool = Field(
        default=True, description="Whether subscribers are told a new key when it is rotated (in clear without TLS)."
    )
    rotation_grace_seconds: Seconds = Field(
        default=60,
        description="Time for subscribers to come back with a rotated key before they are evicted, in seconds.",
    )
    ttl_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=3600, description="Time to live of messages in topics made with the TTL flag, in seconds."
    )

    @property
    def rotation_grace_us(self) -> int:
        return microseconds(self.rotation_grace_seconds)

    @property
    def ttl_us(self) -> int:
        return microseconds(self.ttl_seconds)


class PeerSection(Section):
    """What peers of the peerbus door may do, whichever listener they come by."""

    renamed = (Renamed("name_idle_days", "name_idle_seconds", times=DAY_SECONDS),)

    verify: bool = Field(
        default=False,
        description="Whether the broker verifies signatures on entry, and drops what does not verify; needs the secret.",
    )
    sender_check: Literal["refuse", "carry"] = Field(
        default="refuse",
        description="What becomes of an envelope whose `from` is not the peer that sent it: refuse, or carry it as the "
        "published broker does.",
    )
    replay_window_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=600, description="How long ids of messages are remembered, in seconds; also over a restart."
    )
    replay_ids_max: Count = Field(default=1_000_000, description="Ids of messages remembered at once.")
    mailbox_messages_max: Count = Field(
        default=100_000, description="Messages waiting in one mailbox; one more is dropped and counted."
    )
    mailbox_bytes_max: BytesMax = Field(
        default=256 * limits.MIB, description="Bytes waiting in one mailbox; what comes above is dropped and counted."
    )
    mailbox_ttl_seconds: Seconds = Field(
        default=7 * DAY_SECONDS, description="Age at which a waiting message is dropped, in seconds; 0: never."
    )
    broadcast_ttl_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=DAY_SECONDS,
        description="Age at which a waiting copy of a broadcast is dropped, in seconds; mailbox_ttl_seconds if that is less.",
    )
    name_idle_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=30 * DAY_SECONDS,
        description="Time after which the name of a peer that does not come back is free again, in seconds.",
    )
    names_per_owner_max: Count = Field(
        default=1_000,
        description="Names one key or user may have. For one more, its name that was not used for longest is freed, unless "
        "all are connected or have messages waiting.",
    )
    _secret: bytes = PrivateAttr(default=b"")
    _keys: Mapping[str, Mapping[str, bytes]] = PrivateAttr(default_factory=dict)

    @property
    def secret(self) -> bytes:
        """The secret all peers share; empty if the broker was not given it."""
        return self._secret

    @property
    def keys(self) -> Mapping[str, Mapping[str, bytes]]:
        """Peer -> id of a key -> key. A peer that has any must sign with one of them."""
        return self._keys

    def with_keys(self, secret: bytes, keys: Mapping[str, Mapping[str, bytes]]) -> Self:
        """The same with these keys."""
        made = self.model_copy()
        made._secret, made._keys = secret, keys
        return made

    @property
    def replay_window_us(self) -> int:
        return microseconds(self.replay_window_seconds)

    @property
    def fresh_us(self) -> int:
        """How long an id is remembered: an envelope that is dated a window ahead is not stale for two."""
        return 2 * self.replay_window_us if self.verify or self._keys else self.replay_window_us

    @property
    def mailbox_ttl_us(self) -> int:
        return microseconds(self.mailbox_ttl_seconds)

    @property
    def broadcast_ttl_us(self) -> int:
        return microseconds(self.broadcast_ttl_seconds)

    @property
    def name_idle_us(self) -> int:
        return microseconds(self.name_idle_seconds)


class CacheSection(Section):
    """The caches. Each is a compacted topic `cache/TENANT/NAMESPACE/CACHE`, so it outlives a restart."""

    renamed = (
        Renamed("max_key_bytes", "key_bytes_max"),
        Renamed("max_value_bytes", "value_bytes_max"),
        Renamed("max_caches", "caches_max"),
    )

    durability: Durability = Field(
        default="fsync", description="When a put is answered, as topics.durability; memory forgets all at a restart."
    )
    memory_bytes: Bytes = Field(
        default=256 * limits.MIB, description="What all caches together keep, keys and overhead counted, in bytes."
    )
    eviction: Literal["sieve", "refuse"] = Field(
        default="sieve", description="At the limit: sieve drops what nobody asked for lately, refuse fails the put."
    )
    key_bytes_max: Annotated[BytesMax, Field(ge=1, le=64 * limits.KIB)] = Field(
        default=4 * limits.KIB, description="Longest key, in bytes."
    )
    value_bytes_max: Annotated[BytesMax, Field(ge=1, le=8 * limits.MIB)] = Field(
        default=2 * limits.MIB, description="Largest value, in bytes."
    )
    caches_max: Count = Field(default=1_000, description="Caches that may exist; one more is refused.")


class Tenant(Section):
    """The quotas of one tenant, and who signs its tokens. A tenant without a table has no quotas; 0 means no limit."""

    renamed = (
        Renamed("max_connections", "connections_max"),
        Renamed("max_streams", "streams_max"),
        Renamed("max_subscriptions", "subscriptions_max"),
        Renamed("max_caches", "caches_max"),
        Renamed("publish_bytes_per_second", "publish_bytes_per_second_max"),
    )

    name: str = Field(description="The tenant: the first part of its topics' names.", pattern=r"^[^/]{1,200}$")
    jwks_file: Path | None = Field(
        default=None, description="JSON Web Key Set with the Ed25519 keys its tokens are signed with; read on SIGHUP."
    )
    connections_max: Unbounded = Field(default=0, description="Connections of its tokens open at once.")
    streams_max: Unbounded = Field(default=0, description="Topics it may have.")
    subscriptions_max: Unbounded = Field(default=0, description="Subscriptions open at once.")
    caches_max: Unbounded = Field(default=0, description="Caches it may have.")
    cache_bytes: Bytes = Field(default=0, description="What its caches keep, in bytes; above it its own keys go first.")
    publish_bytes_per_second_max: BytesPerSecond = Field(
        default=0, description="What it may publish per second, in bytes; it is slowed down above."
    )
