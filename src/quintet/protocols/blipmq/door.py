"""The row of the BlipMQ door: its rights, how its sessions are made."""

from typing import TYPE_CHECKING, Final

from quintet.protocols.blipmq import frames
from quintet.protocols.blipmq.section import BlipmqListener
from quintet.protocols.door import Development, Door, MakeSession

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.model.cells import CellMap
    from quintet.protocols.base import Session, SessionConnection
    from quintet.protocols.routing import Router


def _open(broker: "Broker", options: BlipmqListener) -> MakeSession:
    from quintet.protocols.blipmq.session import BlipSession

    monotonic, frame_bytes_max = broker.scheduler.monotonic, options.frame_bytes_max

    def make(connection: "SessionConnection", peer: str, _address: str) -> "Session":
        return BlipSession(broker, connection, monotonic(), frame_bytes_max, peer)

    return make


def _route(cells: "CellMap", own: int, options: BlipmqListener, session: "Session") -> "Router":
    from quintet.protocols.blipmq.routing import BlipRouter

    return BlipRouter(cells, own, options.frame_bytes_max, session)


def _dev_lines(dev: Development) -> list[str]:
    url = f"blipmq://:{dev.key}@{dev.address}"
    return [
        f"{dev.command} sub --url {url} demo        # API key {dev.key}",
        f"{dev.command} pub --url {url} demo hello",
    ]


BLIPMQ: Final = Door(
    name="blipmq",
    protocol="blipmq",
    title="BlipMQ",
    about="The BlipMQ door.",
    options=BlipmqListener,
    operations=frames.NAMES,
    rights=frames.RIGHTS,
    open=_open,
    route=_route,
    dev_lines=_dev_lines,
)
