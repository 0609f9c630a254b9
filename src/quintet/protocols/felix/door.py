"""The row of the Felix door: its rights, how the sessions of its streams are made."""

from typing import TYPE_CHECKING, Final

from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.felix import frames
from quintet.protocols.felix.section import FelixListener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.model.cells import CellMap
    from quintet.protocols.base import StreamSession
    from quintet.protocols.felix.session import FelixSession, FelixStream
    from quintet.protocols.routing import Router


def _open(broker: "Broker", options: FelixListener) -> MakeSession:
    from quintet.protocols.felix.session import FelixSession

    def make(stream: "FelixStream", peer: str, _address: str) -> "StreamSession":
        return FelixSession(broker, stream, broker.scheduler.monotonic(), options, peer)

    return make


def _route(cells: "CellMap", own: int, options: FelixListener, session: "FelixSession") -> "Router":
    from quintet.protocols.felix.routing import FelixRouter

    return FelixRouter(cells, own, options, session)


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
    route=_route,
    dev={"open": True, "anonymous_role": "admin"},
    dev_only=("open",),
    reloads=("tls_*", "certificate_names", "issuer", "audience"),
    dev_lines=_dev_lines,
)
