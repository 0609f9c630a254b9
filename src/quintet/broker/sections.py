"""Defines the sections of the configuration that the broker itself is handed: delivery, limits, audit, telemetry, and those of doors.

Each is handed down whole by server.py to the part that uses it; config/ reads them into the tree of options. A key has its unit in its
type and its reason in its description. Times are seconds to whoever writes them and microseconds to the broker. No files are read
here: what a section says in files, a class of config/ adds.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr

from quintet.delivery.subscription import Policy
from quintet.model import limits
from quintet.model.sections import (
    DAY_SECONDS,
    Bytes,
    BytesMax,
    BytesMin,
    BytesPerSecond,
    Count,
    Durability,
    FractionalSeconds,
    PerMinute,
    PerSecond,
    Ratio,
    Renamed,
    Seconds,
    Section,
    Unbounded,
    microseconds,
)

QUOTA_RATE_MIN: Final = 1024  # bytes a second: below it not even acknowledgements and heartbeats would fit


def _no_less(rate: int) -> int:
    if 0 < rate < QUOTA_RATE_MIN:
        raise ValueError(
            f"{rate} bytes a second are too few for heartbeats: it is 0 (no limit), or {QUOTA_RATE_MIN} and more"
        )
    return rate


QuotaRate = Annotated[BytesPerSecond, AfterValidator(_no_less)]


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
    read_bytes_per_second_max: BytesPerSecond = Field(
        default=0, description="What its connections are sent per second, in bytes; deliveries and answers wait above."
    )
    storage_bytes_max: BytesMax = Field(
        default=0, description="What its topics may keep, in bytes; publishes to them are refused above."
    )


class QuotaSection(Section):
    """What each user may have for which `quintet quota set` says nothing else; administrators are free. 0 means no limit."""

    publish_bytes_per_second_max: QuotaRate = Field(
        default=0,
        description="What the connections of a user may send per second, in bytes; they are read from more slowly above.",
    )
    read_bytes_per_second_max: QuotaRate = Field(
        default=0,
        description="What the connections of a user are sent per second, in bytes; deliveries and answers wait above.",
    )
    connections_max: Unbounded = Field(default=0, description="Connections of a user open at once, and Flight streams.")
    topics_max: Unbounded = Field(default=0, description="Topics that a user may make; one more is refused.")
    storage_bytes_max: BytesMax = Field(
        default=0,
        description="What the topics that a user made may keep, in bytes; publishes to them are refused above.",
    )


class DeliverySection(Section):
    """How messages reach subscribers that acknowledge."""

    renamed = (
        Renamed("retry_backoff_ms", "retry_backoff_seconds", per=1000),
        Renamed("push_timeout_ms", "push_timeout_seconds", per=1000),
        Renamed("group_timeout_ms", "group_timeout_seconds", per=1000),
        Renamed("subscription_idle_days", "subscription_idle_seconds", times=DAY_SECONDS),
        Renamed("max_attempts", "attempts_max"),
    )

    retry_backoff_seconds: Annotated[FractionalSeconds, Field(ge=0.001)] = Field(
        default=0.5,
        description="Wait for the acknowledgement of a polled message before it is due again, in seconds; doubles with each "
        "attempt.",
    )
    push_timeout_seconds: Annotated[FractionalSeconds, Field(ge=0.001)] = Field(
        default=30.0,
        description="Wait for the acknowledgement of a pushed message, from when its consumer reached it, before it is sent "
        "again, in seconds.",
    )
    attempts_max: Count = Field(
        default=5, description="Deliveries of a message before it goes to the dead-letter topic."
    )
    in_flight_max: Count = Field(
        default=1_000, description="Messages delivered and not yet acknowledged, per partition of a subscription."
    )
    queue_messages_max: Unbounded = Field(
        default=0,
        description="Unsettled messages per QoS 1 subscription above which QoS 1 publishes to its topic are refused "
        "(NACK); 0: only the disk is the limit.",
    )
    dead_letter_suffix: str = Field(
        default="-dlq", description="Added to a topic's name to name its dead-letter topic.", min_length=1
    )
    group_timeout_seconds: Annotated[FractionalSeconds, Field(ge=1, le=300)] = Field(
        default=10.0,
        description="Silence after which a member of a consumer group loses its partitions, in seconds.",
    )
    keep_rejected: bool = Field(
        default=False, description="Whether what a schema refuses is also kept among the dead letters of its topic."
    )
    subscriptions_max: Count = Field(default=100_000, description="Subscriptions that may exist; one more is refused.")
    subscription_idle_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=30 * DAY_SECONDS, description="Time after which an unused subscription is forgotten, in seconds."
    )

    @property
    def policy(self) -> Policy:
        """What a subscription begins with: each may have another one."""
        return Policy(
            in_flight_max=self.in_flight_max,
            attempts_max=self.attempts_max,
            poll_backoff_us=microseconds(self.retry_backoff_seconds),
            push_timeout_us=microseconds(self.push_timeout_seconds),
        )

    @property
    def group_timeout_us(self) -> int:
        return microseconds(self.group_timeout_seconds)

    @property
    def subscription_idle_us(self) -> int:
        return microseconds(self.subscription_idle_seconds)


class LimitSection(Section):
    """What the broker protects itself with."""

    renamed = (
        Renamed("disk_floor_bytes", "disk_free_bytes_min"),
        Renamed("auth_failures_per_minute", "auth_failures_per_minute_max"),
    )

    disk_free_bytes_min: BytesMin | None = Field(
        default=None,
        description="Free disk space below which publishes are refused, in bytes; not set: 256 MiB, or 5 % of the disk "
        "if that is less.",
    )
    unsynced_bytes_max: Annotated[BytesMax, Field(ge=limits.BATCH_BYTES_MAX)] = Field(
        default=limits.UNSYNCED_BYTES_MAX,
        description="Bytes waiting for the disk above which publishers are not read from.",
    )
    tail_cache_bytes: Bytes = Field(
        default=limits.TAIL_CACHE_BYTES, description="Recent messages kept in memory for readers at the tail, in bytes."
    )
    memory_topics_bytes: Annotated[Bytes, Field(ge=limits.BATCH_BYTES_MAX)] = Field(
        default=limits.MEMORY_TOPICS_BYTES,
        description="What all memory topics together keep, in bytes; the oldest go first.",
    )
    output_bytes_max: Annotated[BytesMax, Field(ge=limits.BATCH_BYTES_MAX)] = Field(
        default=limits.OUTPUT_BYTES_MAX,
        description="Large answers and deliveries that readers have not taken yet, over all connections, in bytes; "
        "more of them wait.",
    )
    connections_max: Count = Field(default=10_000, description="Connections open at once over all listeners.")
    connections_per_address_max: Count = Field(default=1_000, description="Connections open at once from one address.")
    password_bytes_min: Annotated[BytesMin, Field(ge=1, le=limits.PASSWORD_BYTES_MAX)] = Field(
        default=limits.PASSWORD_BYTES_MIN_DEFAULT,
        description="Shortest password that can be set on the wire, in bytes; [[users]] are free to have shorter ones.",
    )
    audit_bytes: Annotated[Bytes, Field(ge=8 * limits.SEGMENT_BYTES_MIN)] = Field(
        default=limits.AUDIT_BYTES_DEFAULT,
        description="What the audit of logins, refusals and changes of rights keeps, in bytes.",
    )
    auth_failures_per_minute_max: PerMinute = Field(
        default=20, description="Failed logins from one address per minute, then it waits."
    )


class AuditSection(Section):
    """What can be proved afterwards: the chain over all records, its anchors, and who got and settled what."""

    chain: Literal["durable", "all", "off"] = Field(
        default="durable",
        description="Which topics are hash chains: durable: those with durability fsync; all: also interval and os.",
    )
    key_file: Path | None = Field(
        default=None,
        description="File with a key (one line) for the chain: without it nobody can continue or rewrite a chain.",
    )
    anchor_seconds: Annotated[Seconds, Field(ge=1, le=3600)] = Field(
        default=10, description="How often the heads of the chains are written to the anchors, in seconds."
    )
    anchor_file: Path | None = Field(
        default=None, description="File of the anchors, best on another disk. Not given: `anchors` in the data folder."
    )
    events: Literal["all", "acknowledged", "off"] = Field(
        default="all",
        description="Which deliveries leave a row in the audit: all, only those that must be acknowledged, or none.",
    )
    events_bytes: Annotated[Bytes, Field(ge=8 * limits.SEGMENT_BYTES_MIN)] = Field(
        default=limits.EVENTS_BYTES_DEFAULT,
        description="What the audit of deliveries and acknowledgements keeps, in bytes.",
    )


class TelemetrySection(Section):
    """Spans of sampled messages, exported to an OpenTelemetry collector. Needs quintet[otel]."""

    endpoint: str = Field(
        default="",
        description="Address of the collector's OTLP/HTTP receiver, as http://127.0.0.1:4318; without a path it is /v1/traces. "
        "Empty: the broker makes no spans. Headers and certificates are OpenTelemetry's own: OTEL_EXPORTER_OTLP_HEADERS, "
        "OTEL_EXPORTER_OTLP_CERTIFICATE.",
        pattern=r"^(https?://[^\s/]+(/\S*)?)?$",
    )
    service_name: str = Field(
        default="quintet", description="What traces call this broker (service.name).", min_length=1, max_length=255
    )
    sample_ratio: Ratio = Field(
        default=1.0,
        description="Share of the traces that the broker takes part in, of those whose publisher sampled them: chosen by the "
        "trace's id, so that all brokers choose the same. Messages without a sampled traceparent have no spans.",
    )
    spans_per_second_max: Annotated[PerSecond, Field(ge=4)] = Field(
        default=1_000, description="Spans per second; sampled messages above that have none, and are counted."
    )
    messages_max: Count = Field(
        default=10_000, description="Sampled messages followed at a time; the oldest is forgotten for one more."
    )
    queue_spans_max: Count = Field(
        default=10_000, description="Spans that wait for the collector; one more is dropped and counted."
    )

    @property
    def url(self) -> str:
        """Where spans are sent."""
        place = self.endpoint.partition("://")[2].partition("/")[2]
        return self.endpoint if place else f"{self.endpoint.rstrip('/')}/v1/traces"
