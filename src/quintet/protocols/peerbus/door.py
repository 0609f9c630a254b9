"""The rows of the peerbus door, over WebSocket and in lines over TCP: their options, rights, how sessions are made."""

from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from quintet.model import limits
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.options import BytesMax, Port, Renamed, TcpListener, WebSocketSection
from quintet.protocols.peerbus import frames

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.protocols.base import Session, SessionConnection

_OPERATIONS: Final = (*frames.CONTROL, frames.ENVELOPE)


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


def _open(broker: "Broker", options: PeerbusListener | PeerbusTcpListener) -> MakeSession:
    """Messages of a WebSocket are framed already, lines are not."""
    from quintet.protocols.peerbus.session import PeerSession

    framed, most = isinstance(options, PeerbusTcpListener), options.frame_bytes_max

    def make(connection: "SessionConnection", peer: str, _address: str) -> "Session":
        begun = broker.scheduler.monotonic()
        return PeerSession(broker, connection, begun, framed=framed, frame_bytes_max=most, peer=peer)

    return make


def _dev_lines(dev: Development) -> list[str]:
    url = f"peerbus://:{dev.peer_token}@{dev.address}"
    return [
        f"export QUINTET_PEERBUS_SECRET={dev.peer_secret}",
        f"{dev.command} peer listen --url '{url}?name=bob'",
        f"{dev.command} peer send bob hello --url '{url}?name=alice'",
    ]


PEERBUS: Final = Door(
    name="peerbus",
    protocol="peerbus",
    title="peerbus",
    about="The peerbus door, over WebSocket.",
    options=PeerbusListener,
    operations=_OPERATIONS,
    rights=frames.RIGHTS,
    open=_open,
    transport="websocket",
    dev_lines=_dev_lines,
)
PEERBUS_TCP: Final = Door(
    name="peerbus-tcp",
    protocol="peerbus",
    title="peerbus",
    about="The peerbus door again, one object a line over TCP.",
    options=PeerbusTcpListener,
    operations=_OPERATIONS,
    rights=frames.RIGHTS,
    open=_open,
    dev={"enabled": True},
)
