"""The record of a door: everything the rest of Quintet has to know of one protocol, in one row.

Each folder exports its rows in `door.py`; `doors.py` lists them, and `plugins.doors` of the configuration adds others. The
sections of the configuration, the listeners, the check of rights, metrics, health, reloads and the lines of `--dev` follow from
the row. A door says how sessions are made; sockets, TLS, QUIC and WebSocket frames are net/'s.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import msgspec

from quintet.model.errors import NotLeader
from quintet.model.rights import check_rights
from quintet.protocols.options import Listener

if TYPE_CHECKING:
    from quintet.broker.core import Broker
    from quintet.model.cells import CellMap
    from quintet.protocols.routing import Router

O = TypeVar("O", bound=Listener)  # noqa: E741  # the options of a door

# tcp: bytes. websocket: whole text messages (net/websocket.py::Messages). quic: a session for each stream (StreamSession).
Transport = Literal["tcp", "websocket", "quic"]

# (connection or stream, address of the client, address of the listener) -> the session of a new connection or stream. What the
# first is depends on the transport, so its type is the door's to say: SessionConnection, or what a QUIC stream has beside it.
MakeSession = Callable[[Any, str, str], Any]


class Development(msgspec.Struct, frozen=True):
    """What a line of `--dev` is made from: the command, where the door listens, and credentials everybody knows."""

    command: str
    address: str
    key: str
    user: str
    password: str
    peer_token: str
    peer_secret: str
    trust: str = ""  # "?ca=FILE" for a URL where the door made its own certificate


def _no_lines(_dev: Development) -> list[str]:
    return []


class Door(msgspec.Struct, Generic[O], frozen=True, kw_only=True):
    """One listener of one protocol. Rows without defaults are asked of every door."""

    name: str
    """In metrics, logs and `--print-ready`. With _ for each - it is the key of its section: [listeners.NAME]."""
    protocol: str
    """Its folder, and what the origins of its records begin with. Two doors of one protocol have the same."""
    title: str
    """What `--dev` writes before its lines."""
    about: str
    """What its section is, in a sentence."""
    options: type[O]
    """Its section. Every field has a default and a description with its unit; the default of `port` is its port."""
    operations: Collection[Hashable]
    rights: Mapping[Any, str]
    """Operation -> a word of model/rights.py. No door opens while an operation of any of them has none."""
    open: Callable[["Broker", O], MakeSession]
    """Called once when the door opens: what sessions share is made here. The result makes a session for each connection. It
    imports its session itself, because commands that only read the configuration need the rows and no sessions."""
    transport: Transport = "tcp"
    """What its section is made of: of tcp it is a TcpListener, of websocket a WebSocketSection, of quic a QuicSection."""
    dev: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Options that `--dev` sets where nothing else does."""
    dev_only: tuple[str, ...] = ()
    """Options that let everybody in: a start refuses them without `--dev`."""
    reloads: tuple[str, ...] = ()
    """Options, or patterns of them, that SIGHUP takes. Another certificate of a TCP door is taken without being listed."""
    dev_lines: Callable[[Development], list[str]] = _no_lines
    """Lines to copy for `--dev`."""
    last_words: Callable[[NotLeader, O], bytes] | None = None
    """What a node that does not lead answers where it cannot forward: to whatever a client asks first. None: it closes."""
    route: "Callable[[CellMap, int, O, Any], Router] | None" = None
    """(cells, own cell, options, session) -> what says which cell the frames of a connection, or of a stream, are for, where a broker has
    several. None: the door reaches what is in cell 0, where it is."""
    ready: Callable[[O, str], tuple[str, dict[str, str]] | None] = lambda _options, _address: None
    """An event for the log when it is open, of these options at this address; or None."""

    @property
    def key(self) -> str:
        """The name of its section."""
        return self.name.replace("-", "_")

    @property
    def in_every_process(self) -> bool:
        """Of a broker with several cells. A door of QUIC is cell 0's, and its streams reach the others."""
        return self.route is not None and self.transport != "quic"

    @property
    def port(self) -> int:
        """Where it listens unless the configuration says otherwise."""
        return int(self.options.model_fields["port"].default)

    def check(self) -> None:
        """ConfigError if its table of rights is not whole."""
        check_rights(self.name, self.operations, self.rights)


AnyDoor = Door[Any]
Options = Any  # the section of such a door: an object of its `options`, with the members that its transport asks for
