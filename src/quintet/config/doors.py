"""Defines the sections of the doors: where each listens, and the options that only it has."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from quintet.config.fields import Bytes, Count, Port, Section, is_loopback
from quintet.model import limits


class Listener(Section):
    """Where one door listens."""

    enabled: bool = Field(default=True, description="Whether this listener is opened.")
    host: str = Field(default="127.0.0.1", description="Address to bind: an IP address or localhost.", min_length=1)
    port: Port = Field(default=0, description="TCP port; 0 picks a free one, which --print-ready reports.")
    insecure: bool = Field(default=False, description="Allow plaintext on an address other machines can reach.")

    @property
    def encrypted(self) -> bool:
        return False

    @model_validator(mode="after")
    def _plaintext_stays_home(self) -> Self:
        if self.enabled and not (is_loopback(self.host) or self.encrypted or self.insecure):
            how = "set tls_cert and tls_key, or " if "tls_cert" in type(self).model_fields else "set "
            raise ValueError(f"plaintext on {self.host!r}, which other machines can reach; {how}insecure = true")
        return self


class TlsListener(Listener):
    """What the doors with TLS share."""

    tls_cert: Path | None = Field(
        default=None, description="PEM file with the certificate chain; read again on SIGHUP."
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the private key; read again on SIGHUP.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file with the authorities of client certificates: then every client must show one of theirs.",
    )

    @property
    def encrypted(self) -> bool:
        return self.tls_cert is not None

    @model_validator(mode="after")
    def _whole_identity(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; only one of them is set")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: client certificates are shown within TLS")
        return self


class TcpListener(TlsListener):
    """What the doors over TCP share."""

    max_connections: Count = Field(default=10_000, description="Connections open at once on this listener.")


class BlipmqListener(TcpListener):
    """The BlipMQ door."""

    port: Port = Field(default=5555, description="TCP port; 0 picks a free one, which --print-ready reports.")
    max_frame_bytes: Annotated[Bytes, Field(ge=64, le=limits.BATCH_BYTES_MAX)] = Field(
        default=16 * limits.MIB, description="Largest frame accepted, in bytes; a larger one closes the connection."
    )


class FlymqListener(TcpListener):
    """The FlyMQ door."""

    port: Port = Field(default=9092, description="TCP port; 0 picks a free one, which --print-ready reports.")
    dialect: Literal["document", "sdk"] = Field(
        default="document",
        description="document: byte for byte as the protocol's document says; sdk: as its published clients read it.",
    )
    anonymous_role: str = Field(
        default="", description="Role of clients that do not log in. Empty: they must log in.", max_length=255
    )
    max_frame_bytes: Annotated[Bytes, Field(ge=1024, le=32 * limits.MIB)] = Field(
        default=32 * limits.MIB, description="Largest payload accepted, in bytes; a larger one closes the connection."
    )


class FlymqSdkListener(FlymqListener):
    """The FlyMQ door for published clients."""

    enabled: bool = Field(default=False, description="Whether this listener is opened; --dev opens it.")
    port: Port = Field(default=9192, description="TCP port; 0 picks a free one, which --print-ready reports.")
    dialect: Literal["document", "sdk"] = Field(default="sdk", description="As listeners.flymq.dialect.")


class FastListener(TcpListener):
    """The Fast TCP Pub/Sub door. Its tokens are signed with the secrets of [tokens]."""

    port: Port = Field(default=7400, description="TCP port; 0 picks a free one, which --print-ready reports.")
    mode: Literal["strict", "extended"] = Field(
        default="strict",
        description="strict: only packets of the document; extended: OK and ERROR answer every request. A client may ask "
        "for the latter by itself.",
    )
    max_payload_bytes: Annotated[Bytes, Field(ge=1, le=32 * limits.MIB)] = Field(
        default=16 * limits.MIB, description="Largest payload accepted, in bytes; a larger one closes the connection."
    )
    auth_failures_max: int = Field(
        default=10, ge=0, description="Refused tokens on one connection before it is closed; 0: never."
    )
    require_create: bool = Field(
        default=False, description="Whether CREATE needs the permission `create`; else any valid token may."
    )
    expire_subscriptions: bool = Field(
        default=True, description="Whether deliveries stop when the token they were subscribed with expires."
    )
    key_updates: bool = Field(
        default=True, description="Whether subscribers are told a new key when it is rotated (in clear without TLS)."
    )
    rotation_grace_seconds: int = Field(
        default=60,
        ge=0,
        description="Time for subscribers to come back with a rotated key before they are evicted, in seconds.",
    )
    ttl_seconds: Count = Field(
        default=3600, description="Time to live of messages in topics made with the TTL flag, in seconds."
    )
    subject_connections_max: Count = Field(
        default=1_000, description="Connections open at once for one subject of tokens."
    )
    subject_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages one subject may publish per second; it is slowed down above. 0: no limit.",
    )
    address_messages_per_second: int = Field(
        default=0,
        ge=0,
        description="Messages one address may publish per second; it is slowed down above. 0: no limit.",
    )


class PeerbusListener(TcpListener):
    """The peerbus door, over WebSocket."""

    port: Port = Field(default=47821, description="TCP port; 0 picks a free one, which --print-ready reports.")
    max_frame_bytes: Annotated[Bytes, Field(ge=4 * limits.KIB, le=16 * limits.MIB)] = Field(
        default=limits.MIB, description="Largest object accepted, in bytes; a larger one closes the connection."
    )
    origins: tuple[str, ...] = Field(
        default=(), description="Web origins whose pages may connect, beside the listener's own; browsers say theirs."
    )
    ping_seconds: Count = Field(
        default=30, description="Silence after which a peer is pinged, in seconds; two missed pings end the connection."
    )


class PeerbusTcpListener(TcpListener):
    """The peerbus door again: the same objects, one a line, over plain TCP."""

    enabled: bool = Field(default=False, description="Whether this listener is opened; --dev opens it.")
    port: Port = Field(default=47822, description="TCP port; 0 picks a free one, which --print-ready reports.")
    max_frame_bytes: Annotated[Bytes, Field(ge=4 * limits.KIB, le=16 * limits.MIB)] = Field(
        default=limits.MIB, description="As listeners.peerbus.max_frame_bytes."
    )


class FelixListener(TlsListener):
    """The Felix door: QUIC, so always TLS 1.3. Without tls_cert it makes itself a certificate at its first start."""

    port: Port = Field(default=5000, description="UDP port; 0 picks a free one, which --print-ready reports.")
    insecure: bool = Field(default=False, description="Of no effect here: QUIC is never plaintext.")
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain; read again on SIGHUP. Its first certificate must be no authority "
        "(CA:FALSE), or clients refuse it.",
    )
    max_connections: Count = Field(default=10_000, description="Connections open at once on this listener.")
    certificate_names: tuple[str, ...] = Field(
        default=("localhost", "127.0.0.1", "::1"),
        description="Names and addresses in the certificate the door makes itself when tls_cert is not set.",
        min_length=1,
    )
    open: bool = Field(
        default=False,
        description="Whether clients without a token, or with one nobody knows, are let in as `anonymous_role`; --dev "
        "does, and nothing else may.",
    )
    anonymous_role: str = Field(
        default="", description="Role of clients that are let in by `open`. Empty: none.", max_length=255
    )
    auto_create: bool = Field(
        default=True, description="Whether a stream or cache is made by its first use; else it must exist."
    )
    issuer: str = Field(default="felix-auth", description="What `iss` of a token must be; empty: it is not looked at.")
    audience: str = Field(
        default="felix-broker", description="What `aud` of a token must name; empty: it is not looked at."
    )
    max_frame_bytes: Annotated[Bytes, Field(ge=1024, le=32 * limits.MIB)] = Field(
        default=16 * limits.MIB, description="Largest payload of a frame, in bytes; a larger one closes the connection."
    )
    streams_max: Annotated[int, Field(ge=1, le=65_535)] = Field(
        default=1024, description="Streams one connection may have open at once."
    )
    subscriptions_max: Annotated[int, Field(ge=1, le=65_535)] = Field(
        default=4096, description="Subscriptions one connection may have at once."
    )
    idle_seconds: Annotated[int, Field(ge=5, le=3600)] = Field(
        default=30,
        description="Silence after which a connection is closed, in seconds. The door asks a quiet peer three times as often, "
        "and at least every 10 s, whether it is there: only one that does not answer is silent.",
    )
    retry_above: int = Field(
        default=100,
        ge=0,
        description="Unfinished handshakes above which clients must first prove their address (stateless Retry).",
    )
    half_open_max: Count = Field(default=2_000, description="Unfinished handshakes; one more is refused.")

    @property
    def encrypted(self) -> bool:
        return True


class FlightListener(TlsListener):
    """The Arrow Flight door."""

    enabled: bool = Field(
        default=True,
        description="Whether this listener is opened; it needs the packages of the extra `flight`, and stays shut without.",
    )
    port: Port = Field(default=8815, description="TCP port; 0 picks a free one, which --print-ready reports.")
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain; read at start, a reload does not reach this door.",
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the private key; read at start, a reload does not reach this door."
    )
    max_calls: Count = Field(default=256, description="Calls and streams under way at once; more are refused.")
    map_files: bool = Field(
        default=True,
        description="Whether readers on this machine are told where the segment files are, to read them in place.",
    )


class AdminListener(Listener):
    """Health and metrics over HTTP."""

    port: Port = Field(default=8080, description="TCP port; 0 picks a free one, which --print-ready reports.")


class Listeners(Section):
    """The doors."""

    blipmq: BlipmqListener = Field(default=BlipmqListener(), description="The BlipMQ door.")
    flymq: FlymqListener = Field(default=FlymqListener(), description="The FlyMQ door.")
    flymq_sdk: FlymqSdkListener = Field(
        default=FlymqSdkListener(), description="The FlyMQ door again, in the dialect of the published clients."
    )
    fast: FastListener = Field(default=FastListener(), description="The Fast TCP Pub/Sub door.")
    peerbus: PeerbusListener = Field(default=PeerbusListener(), description="The peerbus door, over WebSocket.")
    peerbus_tcp: PeerbusTcpListener = Field(
        default=PeerbusTcpListener(), description="The peerbus door again, one object a line over TCP."
    )
    felix: FelixListener = Field(default=FelixListener(), description="The Felix door, over QUIC.")
    flight: FlightListener = Field(
        default=FlightListener(), description="The Arrow Flight door: columns for Spark, DuckDB, Polars, pandas."
    )
    admin: AdminListener = Field(default=AdminListener(), description="Health and metrics over HTTP.")
