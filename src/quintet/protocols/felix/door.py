"""The row of the Felix door: its options, its rights, how the sessions of its streams are made."""

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from quintet.model import limits
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.felix import frames
from quintet.protocols.options import BytesMax, Count, Port, QuicSection, Renamed

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.protocols.base import StreamSession
    from quintet.protocols.felix.session import FelixStream


class FelixListener(QuicSection):
    """The Felix door: QUIC, so always TLS 1.3. Without tls_cert it makes itself a certificate at its first start."""

    renamed = (Renamed("max_frame_bytes", "frame_bytes_max"),)

    port: Port = Field(default=5000, description="UDP port; 0 picks a free one, which --print-ready reports.")
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
    frame_bytes_max: Annotated[BytesMax, Field(ge=1024, le=32 * limits.MIB)] = Field(
        default=16 * limits.MIB, description="Largest payload of a frame, in bytes; a larger one closes the connection."
    )
    subscriptions_max: Annotated[Count, Field(le=65_535)] = Field(
        default=4096, description="Subscriptions one connection may have at once."
    )

    @property
    def open_to_strangers(self) -> bool:
        return self.open

    @property
    def lets_in(self) -> str:
        return self.anonymous_role if self.open else ""


def _open(broker: "Broker", options: FelixListener) -> MakeSession:
    from quintet.protocols.felix.session import FelixSession

    chosen = frames.FelixOptions(
        frame_bytes_max=options.frame_bytes_max,
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
