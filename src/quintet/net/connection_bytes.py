"""Holds bytes of a connection that are not the session's yet, or no more: pages for a large frame, pieces of output, what a peer has not taken.

Functions only; what they are for is in connection.py.
"""

import asyncio
import fcntl
import mmap
import socket
import sys
import termios

from quintet.model import limits

JOINED_BYTES_MAX = limits.MIB  # of output in pieces: before Python 3.12 asyncio joins them, one more copy
GATHERED_BYTES_MAX = 64 * limits.KIB  # pushed in one turn: above this it is written before the turn ends

# Private: pages added to a shared mapping have no memory behind them.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}


def mapped(size: int) -> mmap.mmap:
    """Pages that take memory when they are written to. A bytearray writes zeros, and growing it may copy it: 21 ms at 31 MiB."""
    return mmap.mmap(-1, size, **_PRIVATE)


def doubled(full: mmap.mmap) -> mmap.mmap:
    size = len(full)
    try:
        full.resize(2 * size)
    except (OSError, SystemError):  # only Linux moves pages
        larger = mapped(2 * size)
        larger[:size] = full[:]
        return larger
    return full


def queued_bytes(of: socket.socket | None) -> int:
    """Written to the socket and not acknowledged by its peer. 0 where the system cannot be asked (not Linux, not TCP)."""
    if of is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(of.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def write_pieces(transport: asyncio.Transport, pieces: list[bytes], size: int) -> None:
    if size <= GATHERED_BYTES_MAX:
        transport.write(b"".join(pieces))
    elif size <= JOINED_BYTES_MAX:
        transport.writelines(pieces)
    else:
        for piece in pieces:
            transport.write(piece)
