"""The rows of the peerbus door, over WebSocket and in lines over TCP: their rights, how sessions are made."""

from typing import TYPE_CHECKING, Final

from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.peerbus import frames
from quintet.protocols.peerbus.section import PeerbusListener, PeerbusTcpListener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.protocols.base import Session, SessionConnection

_OPERATIONS: Final = (*frames.CONTROL, frames.ENVELOPE)


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
