"""Defines the section of the Felix door: what an operator may choose of its listener."""

from typing import Annotated

from pydantic import Field

from quintet.model import limits
from quintet.protocols.options import BytesMax, Count, Port, QuicSection, Renamed


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
