"""The contract between a connection that reaches several cells (net/cells/front.py) and what a protocol knows of its frames (ADR 44).

A router looks at the frames of one connection just closely enough to say which cell each is for. It decides nothing else: rights,
limits and faults of a frame are judged by the session of the cell that gets it. A frame that it does not understand is for the
session of its own process. Routers have no sockets and no clock.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

EVERY: Final = -1  # all cells are asked, and `merge` makes one answer of theirs
REFUSED: Final = -2  # nobody is asked: `data` is the answer

Parts = dict[int, bytes]  # what each cell has sent while it was asked


class Run(NamedTuple):
    """Frames that stand behind each other and go to one place."""

    cell: int
    end: int
    data: bytes | None = None  # in place of the frames themselves
    each: dict[int, bytes] | None = None  # of EVERY: the frame for each cell
    merge: Callable[[Parts], bytes] | None = None  # of EVERY


class Router(Protocol):
    """One connection's. `position` is where a frame begins."""

    needs_login: bool
    """False: each request says by itself who asks."""
    at_once: bool
    """Is a login answered within the call that receives it? Then another process can go on with the client."""
    reached: set[int]
    """Cells where this connection has a session beside its own; net/ keeps it."""

    @property
    def login(self) -> bytes:
        """The frames by which a session of another cell becomes what this connection is."""

    def frame_end(self, view: memoryview, position: int) -> int:
        """Where the frame ends; `position` if it is not all there, the end of the view if it is none."""

    def note(self, frame: memoryview) -> None:
        """The session has taken this frame before anybody was logged in."""

    def is_own(self, view: memoryview, now: int) -> bool:
        """Is all of it whole publishes for our own cell, as most reads are? False: it may be, and `run` knows."""

    def run(self, view: memoryview, position: int, now: int) -> Run:
        """The next whole frames that go to one place; its end is `position` if there is none."""


def frames_in(data: bytes, end_of: Callable[[bytes, int], int]) -> list[bytes]:
    """Whole frames behind each other, as a session sent them."""
    found, at = [], 0
    while at < len(data):
        end = end_of(data, at)
        found.append(data[at:end])
        at = end
    return found
