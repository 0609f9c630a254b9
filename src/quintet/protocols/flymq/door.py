"""The rows of the FlyMQ door, one for each dialect: their rights, how their sessions are made."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from quintet.model.errors import NotLeader
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.section import FlymqListener, FlymqSdkListener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.model.cells import CellMap
    from quintet.protocols.base import Session, SessionConnection
    from quintet.protocols.routing import Router

_OPERATIONS: Final = frames.NAMES.keys() - {frames.AUTH_RESPONSE, frames.ERROR}
# For whom each dialect is: a client of the other one cannot read its answers.
_CLIENTS: Final = {
    "document": "clients written from FlyMQ's document, and Quintet's own",
    "sdk": "the published Go and Python clients of FlyMQ (pyflymq)",
}


class _Rights(Mapping[int, str]):
    """The rights in the rows of the operations, where sessions read them, too."""

    def __getitem__(self, code: int) -> str:
        return frames.OPERATIONS[code].right

    def __iter__(self) -> Iterator[int]:
        return iter(frames.OPERATIONS)

    def __len__(self) -> int:
        return len(frames.OPERATIONS)


def _open(broker: "Broker", options: FlymqListener) -> MakeSession:
    from quintet.protocols.flymq.session import FlySession

    def make(connection: "SessionConnection", peer: str, address: str) -> "Session":
        return FlySession(broker, connection, broker.scheduler.monotonic(), options, peer, address)

    return make


def _route(cells: "CellMap", own: int, options: FlymqListener, session: "Session") -> "Router":
    from quintet.protocols.flymq.routing import FlyRouter

    return FlyRouter(cells, own, options, session)


def _dev_lines(dev: Development) -> list[str]:
    url = f"flymq://{dev.user}:{dev.password}@{dev.address}"
    return [
        f"{dev.command} pub --url {url} demo hello --key k   # and clients written from its document",
        f"{dev.command} tail --url {url} demo --follow",
    ]


def _sdk_dev_lines(dev: Development) -> list[str]:
    host, _, port = dev.address.rpartition(":")
    login = f"username={dev.user!r}, password={dev.password!r}"
    return [f"published Go and Python clients (pyflymq), here only: host {host}, port {port}, {login}"]


def _ready(name: str, options: FlymqListener, address: str) -> tuple[str, dict[str, str]]:
    dialect = options.dialect
    return "flymq_clients", {
        "listener": name,
        "address": address,
        "dialect": dialect,
        "clients": _CLIENTS[dialect],
    }


def _last_words(error: NotLeader, options: FlymqListener) -> bytes:
    from quintet.protocols.flymq.errors import to_frame

    return to_frame(error, options.dialect)


FLYMQ: Final = Door(
    name="flymq",
    protocol="flymq",
    title="FlyMQ",
    about="The FlyMQ door.",
    options=FlymqListener,
    operations=_OPERATIONS,
    rights=_Rights(),
    open=_open,
    route=_route,
    dev_lines=_dev_lines,
    last_words=_last_words,
    ready=partial(_ready, "flymq"),
)
FLYMQ_SDK: Final = Door(
    name="flymq-sdk",
    protocol="flymq",
    title="FlyMQ",
    about="The FlyMQ door again, in the dialect of the published clients.",
    options=FlymqSdkListener,
    operations=_OPERATIONS,
    rights=_Rights(),
    open=_open,
    route=_route,
    dev={"enabled": True},
    dev_lines=_sdk_dev_lines,
    last_words=_last_words,
    ready=partial(_ready, "flymq-sdk"),
)
