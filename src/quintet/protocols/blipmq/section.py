"""Defines the section of the BlipMQ door: what an operator may choose of its listener."""

from typing import Annotated

from pydantic import Field

from quintet.model import limits
from quintet.protocols.options import BytesMax, Port, Renamed, TcpListener


class BlipmqListener(TcpListener):
    """The BlipMQ door."""

    renamed = (Renamed("max_frame_bytes", "frame_bytes_max"),)

    port: Port = Field(default=5555, description="TCP port; 0 picks a free one, which --print-ready reports.")
    frame_bytes_max: Annotated[BytesMax, Field(ge=64, le=limits.BATCH_BYTES_MAX)] = Field(
        default=16 * limits.MIB, description="Largest frame accepted, in bytes; a larger one closes the connection."
    )
