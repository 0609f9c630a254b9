"""Bounds the bytes of record batches that readers of the Flight door have not taken, and ends who takes nothing (ADR 16).

A stream holds the cost of a batch from before it is read until gRPC asks for the next one, which it does when the batch is
with the transport. gRPC's thread is then inside a blocking write that Python cannot interrupt and pyarrow cannot cancel:
the way to end such a stream is to shut its TCP connection, which is found by its peer's address among the open sockets.

    nobody waits for room     a stream that holds one batch, once it was read, for WRITE_STALL_US is ended
    somebody waits            for PRESSED_STALL_US
"""

import math
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from typing import Final

from quintet.model import limits
from quintet.model.errors import ShuttingDown
from quintet.net.flow_control import PRESSED_STALL_US

COST_PER_BYTE: Final = (
    5  # of a batch: its columns, Arrow's payload and gRPC's slices of it, measured on 64 stalled readers
)
PRESSED_STALL_S: Final = PRESSED_STALL_US / 1e6
STALL_S: Final = limits.WRITE_STALL_US / 1e6
WATCH_S: Final = 0.5  # between looks at who stalls

Ended = Callable[[str], None]


class Held:
    """One batch of one stream on its way out."""

    __slots__ = ("peer", "since", "size")

    def __init__(self, peer: str, size: int, since: float) -> None:
        self.peer = peer
        self.size = size
        self.since = since


class Outgoing:
    """Shared by the threads of all streams. `stalled` is told the address of who was ended."""

    def __init__(self, bytes_max: int, stalled: Ended) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.waiting = 0
        self._stalled = stalled
        self._closed = ""  # why
        self._room = threading.Condition()
        self._held: set[Held] = set()
        threading.Thread(target=self._watch, name="quintet-flight-stalls", daemon=True).start()

    def hold(self, peer: str, batch_bytes: int) -> Held:
        """Wait until there is room to read one more batch of up to this size. One is let through whatever its size when nothing else is held."""
        size = COST_PER_BYTE * batch_bytes
        with self._room:
            self.waiting += 1
            try:
                while self.used and self.used + size > self.bytes_max and not self._closed:
                    self._room.wait()
            finally:
                self.waiting -= 1
            if self._closed:
                raise ShuttingDown(self._closed, hint="connect again, and go on at this offset")
            held = Held(peer, size, math.inf)  # while the broker reads it, the reader is not to blame
            self._held.add(held)
            self.used += size
        return held

    def made(self, held: Held, batch_bytes: int) -> None:
        """The batch was read: it has this size, and from now on the reader has to take it."""
        with self._room:
            self.used += COST_PER_BYTE * batch_bytes - held.size
            held.size, held.since = COST_PER_BYTE * batch_bytes, time.monotonic()
            self._room.notify_all()

    def release(self, held: Held) -> None:
        with self._room:
            if held in self._held:
                self._held.remove(held)
                self.used -= held.size
                self._room.notify_all()

    def _watch(self) -> None:
        """A thread of its own: to find a connection among thousands takes longer than a turn of the loop may."""
        with self._room:
            while not self._closed:
                self._room.wait(WATCH_S)
                self._end_stalled()

    def close(self, reason: str) -> None:
        """reason: what is said to whoever waits for room."""
        with self._room:
            self._closed = reason
            self._room.notify_all()

    def _end_stalled(self) -> None:
        oldest = time.monotonic() - (PRESSED_STALL_S if self.waiting else STALL_S)
        for held in [held for held in self._held if held.since < oldest]:
            held.since = time.monotonic()  # it goes when its thread notices: not to be ended twice meanwhile
            if shut(held.peer):
                self._stalled(held.peer)


def shut(peer: str) -> bool:
    """Shut the TCP connection of this process whose other end is `peer` (host:port); False if there is none."""
    found = False
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if _text(copy.getpeername()) == peer:
                    copy.shutdown(socket.SHUT_RDWR)
                    found = True
        except OSError:
            continue  # closed meanwhile, or not connected
    return found


def _text(address: object) -> str:
    """As gRPC names a peer, without the family: an address of version 6 in brackets."""
    if not isinstance(address, tuple):
        return ""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]  # gRPC takes version 4 on sockets of version 6
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
