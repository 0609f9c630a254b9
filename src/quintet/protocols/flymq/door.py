"""The rows of the FlyMQ door, one for each dialect: their options, their rights, how their sessions are made."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from quintet.model import limits
from quintet.protocols.door import Development, Door, MakeSession
from quintet.protocols.flymq import frames
from quintet.protocols.options import BytesMax, Port, Renamed, TcpListener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.protocols.base import Session, SessionConnection

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


def _open(broker: "Broker", options: FlymqListener) -> MakeSession:
    from quintet.protocols.flymq.session import FlyOptions, FlySession

    def make(connection: "SessionConnection", peer: str, address: str) -> "Session":
        chosen = FlyOptions(options.dialect, options.frame_bytes_max, options.anonymous_role, address)
        return FlySession(broker, connection, broker.scheduler.monotonic(), chosen, peer)

    return make


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


FLYMQ: Final = Door(
    name="flymq",
    protocol="flymq",
    title="FlyMQ",
    about="The FlyMQ door.",
    options=FlymqListener,
    operations=_OPERATIONS,
    rights=_Rights(),
    open=_open,
    dev_lines=_dev_lines,
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
    dev={"enabled": True},
    dev_lines=_sdk_dev_lines,
    ready=partial(_ready, "flymq-sdk"),
)
