"""The row of the Felix door: its options, its rights, how the sessions of its streams are made."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from quintet.model import limits
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.felix import frames
from quintet.protocols.options import Bytes, Count, Port, TlsListener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.protocols.base import StreamSession
    from quintet.protocols.felix.session import FelixStream


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

    @property
    def lets_in(self) -> str:
        return self.anonymous_role if self.open else ""


def _open(broker: "Broker", options: FelixListener) -> MakeSession:
    from quintet.protocols.felix.session import FelixSession

    chosen = frames.FelixOptions(
        frame_bytes_max=options.max_frame_bytes,
        open=options.open,
        anonymous_role=options.anonymous_role,
        auto_create=options.auto_create,
        subscriptions_max=options.subscriptions_max,
    )

    def make(stream: "FelixStream", peer: str, _address: str) -> "StreamSession":
        return FelixSession(broker, stream, broker.scheduler.monotonic(), chosen, peer)

    return make


def _dev_lines(dev: Development) -> list[str]:
    url = f"felix://:{dev.key}@{dev.address}{dev.trust}"
    return [
        f"{dev.command} sub --url '{url}' demo",
        f"{dev.command} pub --url '{url}' demo hello",
        f"{dev.command} kv put --url '{url}' greeting hello",
    ]


FELIX: Final = Door(
    name="felix",
    protocol="felix",
    title="Felix",
    about="The Felix door, over QUIC.",
    options=FelixListener,
    operations=frames.NAMES,
    rights=frames.RIGHTS,
    open=_open,
    transport="quic",
    dev={"open": True, "anonymous_role": "admin"},
    dev_only=("open",),
    reloads=("tls_*", "certificate_names", "issuer", "audience"),
    dev_lines=_dev_lines,
)
