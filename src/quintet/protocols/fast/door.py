"""The row of the Fast TCP Pub/Sub door: its rights, how its sessions are made."""

from typing import TYPE_CHECKING, Final

from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.fast import frames
from quintet.protocols.fast.section import FastListener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.model.cells import CellMap
    from quintet.protocols.base import Session, SessionConnection
    from quintet.protocols.fast.session import FastSession
    from quintet.protocols.routing import Router


def _open(broker: "Broker", options: FastListener) -> MakeSession:
    from quintet.protocols.fast.session import FastDoor, FastSession

    shared = FastDoor(broker, options)

    def make(connection: "SessionConnection", peer: str, _address: str) -> "Session":
        return FastSession(shared, connection, broker.scheduler.monotonic(), peer)

    return make


def _route(cells: "CellMap", own: int, options: FastListener, session: "FastSession") -> "Router":
    from quintet.protocols.fast.routing import FastRouter

    return FastRouter(cells, own, options.payload_bytes_max, session)


def _dev_lines(dev: Development) -> list[str]:
    url = f"fast://:$TOKEN@{dev.address}"
    return [
        f"export TOKEN=$({dev.command} token mint --dev --sub ann --queue-key k1)",
        f"{dev.command} sub --url {url} keyed",
        f"{dev.command} pub --url {url} keyed hello",
    ]


FAST: Final = Door(
    name="fast",
    protocol="fast",
    title="Fast",
    about="The Fast TCP Pub/Sub door.",
    options=FastListener,
    operations=frames.NAMES,
    rights=frames.RIGHTS,
    open=_open,
    route=_route,
    dev_lines=_dev_lines,
)
