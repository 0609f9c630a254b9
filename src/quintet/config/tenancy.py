"""Defines the sections of the Felix door beside its socket: caches, tenants, and the keys of their tokens."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from quintet.model import limits
from quintet.model.sections import Bytes, BytesMax, BytesPerSecond, Count, Durability, Renamed, Section, Unbounded


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
