"""Defines the section of the FlyMQ door: what an operator may choose of its listeners."""

from typing import Annotated, Literal

from pydantic import Field

from quintet.model import limits
from quintet.protocols.options import BytesMax, Port, Renamed, TcpListener


class FlymqListener(TcpListener):
    """The FlyMQ door."""

    renamed = (Renamed("max_frame_bytes", "frame_bytes_max"),)

    port: Port = Field(default=9092, description="TCP port; 0 picks a free one, which --print-ready reports.")
    dialect: Literal["document", "sdk"] = Field(
        default="document",
        description="document: byte for byte as the protocol's document says; sdk: as its published clients read it.",
    )
    anonymous_role: str = Field(
        default="", description="Role of clients that do not log in. Empty: they must log in.", max_length=255
    )
    frame_bytes_max: Annotated[BytesMax, Field(ge=1024, le=32 * limits.MIB)] = Field(
        default=32 * limits.MIB, description="Largest payload accepted, in bytes; a larger one closes the connection."
    )

    @property
    def lets_in(self) -> str:
        return self.anonymous_role


class FlymqSdkListener(FlymqListener):
    """The FlyMQ door for published clients."""

    enabled: bool = Field(default=False, description="Whether this listener is opened; --dev opens it.")
    port: Port = Field(default=9192, description="TCP port; 0 picks a free one, which --print-ready reports.")
    dialect: Literal["document", "sdk"] = Field(default="sdk", description="As listeners.flymq.dialect.")
