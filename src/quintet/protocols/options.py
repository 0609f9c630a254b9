"""What the options of a door are made of: the sections that listeners share, and the types of model/sections.py.

The section of a door is a class in its own folder (section.py); config/ joins them to one tree. Only a broker loads this: a client
has no pydantic.
"""

import ipaddress
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from quintet.model.sections import (
    Bytes,
    BytesMax,
    Count,
    FractionalSeconds,
    PerSecond,
    Port,
    Renamed,
    Seconds,
    Section,
    Unbounded,
)

__all__ = [
    "Bytes", "BytesMax", "Count", "FractionalSeconds", "Listener", "PerSecond", "Port", "QuicSection", "Renamed", "Seconds", "Section",
    "TcpListener", "TlsListener", "Unbounded", "WebSocketSection", "is_loopback", "split_address",
]  # fmt: skip


PORT_MAX: Final = 65_535


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def split_address(text: str) -> tuple[str, int]:
    """HOST and PORT of an address; ("", 0) if it is none. An IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return "", 0
    return (host, int(port)) if host and port.isascii() and port.isdecimal() and int(port) <= PORT_MAX else ("", 0)


class Listener(Section):
    """Where one door listens."""

    enabled: bool = Field(default=True, description="Whether this listener is opened.")
    host: str = Field(default="127.0.0.1", description="Address to bind: an IP address or localhost.", min_length=1)
    port: Port = Field(default=0, description="TCP port; 0 picks a free one, which --print-ready reports.")
    insecure: bool = Field(default=False, description="Allow plaintext on an address other machines can reach.")

    @property
    def encrypted(self) -> bool:
        return False

    @property
    def lets_in(self) -> str:
        """The role of clients that say nothing of who they are; empty: there is no such role."""
        return ""

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

    renamed: ClassVar[tuple[Renamed, ...]] = (Renamed("max_connections", "connections_max"),)

    connections_max: Count = Field(default=10_000, description="Connections open at once on this listener.")


class WebSocketSection(TcpListener):
    """What the doors over WebSocket share."""

    origins: tuple[str, ...] = Field(
        default=(), description="Web origins whose pages may connect, beside the listener's own; browsers say theirs."
    )
    ping_seconds: Annotated[Seconds, Field(ge=1)] = Field(
        default=30, description="Silence after which a peer is pinged, in seconds; two missed pings end the connection."
    )


class QuicSection(TlsListener):
    """What the doors over QUIC share: always TLS 1.3. Without tls_cert a door makes itself a certificate at its first start."""

    renamed: ClassVar[tuple[Renamed, ...]] = (
        Renamed("max_connections", "connections_max"),
        Renamed("retry_above", "unproven_handshakes_max"),
    )

    port: Port = Field(default=0, description="UDP port; 0 picks a free one, which --print-ready reports.")
    insecure: bool = Field(default=False, description="Of no effect here: QUIC is never plaintext.")
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain; read again on SIGHUP. Its first certificate must be no authority "
        "(CA:FALSE), or clients refuse it.",
    )
    connections_max: Count = Field(default=10_000, description="Connections open at once on this listener.")
    certificate_names: tuple[str, ...] = Field(
        default=("localhost", "127.0.0.1", "::1"),
        description="Names and addresses in the certificate the door makes itself when tls_cert is not set.",
        min_length=1,
    )
    streams_max: Annotated[Count, Field(le=65_535)] = Field(
        default=1024, description="Streams one connection may have open at once."
    )
    idle_seconds: Annotated[Seconds, Field(ge=5, le=3600)] = Field(
        default=30,
        description="Silence after which a connection is closed, in seconds. The door asks a quiet peer three times as often, "
        "and at least every 10 s, whether it is there: only one that does not answer is silent.",
    )
    unproven_handshakes_max: Unbounded = Field(
        default=100,
        description="Unfinished handshakes up to which clients need not prove their address first (stateless Retry).",
    )
    half_open_max: Count = Field(default=2_000, description="Unfinished handshakes; one more is refused.")

    @property
    def encrypted(self) -> bool:
        return True

    @property
    def open_to_strangers(self) -> bool:
        """Whether clients may send long frames before they authenticate."""
        return False
