"""The sections of the doors: where each listens, and what only it has."""

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
    flight: FlightListener = Field(
        default=FlightListener(), description="The Arrow Flight door: columns for Spark, DuckDB, Polars, pandas."
    )
    admin: AdminListener = Field(default=AdminListener(), description="Health and metrics over HTTP.")
