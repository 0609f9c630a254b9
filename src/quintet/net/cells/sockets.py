"""Binds the addresses of the doors once for each process that will accept there (SO_REUSEPORT), in the process that starts them all.

The sockets are kept by that process, too: while a cell starts again, connections wait in its queue, and the share of the others
stays what it is. Before, each address is bound alone: two brokers of one user must not share it by accident.
"""

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from quintet.net.doors import cannot_listen
from quintet.net.sockets import BACKLOG
from quintet.protocols.door import AnyDoor, Options


class Links(NamedTuple):
    """Where one cell's process accepts from the others."""

    legs: socket.socket
    handed: socket.socket


def bind_all(doors: Iterable[tuple[AnyDoor, Options]], cells: int) -> list[dict[str, socket.socket]]:
    """A socket for each of these doors, for each cell. OSError says which address cannot be had."""
    found: list[dict[str, socket.socket]] = [{} for _ in range(cells)]
    for door, options in doors:
        try:
            family, address = _alone(options.host, options.port)
            for sockets in found:
                made = sockets[door.name] = _socket(family)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                made.bind(address)
                made.listen(BACKLOG)
        except OSError as error:
            close_all(found)
            raise cannot_listen(door.name, options.host, options.port, error) from error
    return found


def link_path(folder: Path, cell: int) -> str:
    return str(folder / f"cell-{cell}")


def handed_path(folder: Path, cell: int) -> str:
    return str(folder / f"handed-{cell}")


def flight_path(folder: Path, cell: int) -> str:
    """The Flight door of a cell's process, for that of cell 0."""
    return str(folder / f"flight-{cell}")


def flight_lead_path(folder: Path, cell: int) -> str:
    """Over nodes: the Flight door of the cell's leader, wherever it is."""
    return str(folder / f"flight-lead-{cell}")


def console_path(folder: Path, cell: int) -> str:
    """What answers for the console of cell 0; over nodes at the cell's leader, wherever it is."""
    return str(folder / f"console-{cell}")


def bind_links(folder: Path, cells: int) -> list[Links]:
    """The sockets between processes, in a folder of this user alone. What connects while a cell starts waits for it."""
    return [
        Links(
            listen_between(link_path(folder, cell)),
            listen_between(handed_path(folder, cell), socket.SOCK_SEQPACKET),
        )
        for cell in range(cells)
    ]


def listen_between(path: str, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)  # of this cell's process before it was started again
    made = socket.socket(socket.AF_UNIX, kind)
    made.setblocking(False)
    made.bind(path)
    made.listen(BACKLOG)
    return made


def close_all(sockets: Iterable[dict[str, socket.socket]]) -> None:
    for each in sockets:
        for made in each.values():
            made.close()


def _alone(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """The address, with a port if it was 0; OSError if somebody listens there."""
    rows = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = rows[0]
    with _socket(family) as probe:
        probe.bind(address)
        name = probe.getsockname()
        return family, (str(name[0]), int(name[1]))


def _socket(family: socket.AddressFamily) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.setblocking(False)
    return made
