"""Defines the section of the peerbus door: what an operator may choose of its listeners."""

from typing import Annotated

from pydantic import Field

from quintet.model import limits
from quintet.protocols.options import BytesMax, Port, Renamed, TcpListener, WebSocketSection


class PeerbusListener(WebSocketSection):
    """The peerbus door, over WebSocket."""

    renamed = (Renamed("max_frame_bytes", "frame_bytes_max"),)

    port: Port = Field(default=47821, description="TCP port; 0 picks a free one, which --print-ready reports.")
    frame_bytes_max: Annotated[BytesMax, Field(ge=4 * limits.KIB, le=16 * limits.MIB)] = Field(
        default=limits.MIB, description="Largest object accepted, in bytes; a larger one closes the connection."
    )


class PeerbusTcpListener(TcpListener):
    """The peerbus door again: the same objects, one a line, over plain TCP."""

    renamed = (Renamed("max_frame_bytes", "frame_bytes_max"),)

    enabled: bool = Field(default=False, description="Whether this listener is opened; --dev opens it.")
    port: Port = Field(default=47822, description="TCP port; 0 picks a free one, which --print-ready reports.")
    frame_bytes_max: Annotated[BytesMax, Field(ge=4 * limits.KIB, le=16 * limits.MIB)] = Field(
        default=limits.MIB, description="As listeners.peerbus.frame_bytes_max."
    )
