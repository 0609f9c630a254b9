"""Time, turns and slow work as parameters: what the line asks of whoever runs it.

In the broker this is `net/loop.py` (uvloop and a few disk threads); in tests it is `testing/sim.py`, where time stands
still until it is told to move and disk work finishes when the test says so.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NoReturn, Protocol, TypeVar

from quintet.kernel.buffer import Buffer

T = TypeVar("T")


class Write(Protocol):
    """Bytes that go to one place of a file and are synced there, after others that are not synced (files/disk.DurableWrite). A call
    makes all of it, waits, and raises what failed. If `handle` is one of the operating system, who has it may do the same with other
    means and say what failed."""

    @property
    def handle(self) -> int:
        """Of the operating system; -1: only a call will do."""

    @property
    def before(self) -> Sequence[tuple[int, Sequence[Buffer], int]]:
        """(handle, buffers, position) to be written first."""

    @property
    def buffers(self) -> Sequence[Buffer]: ...

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int:
        """Bytes of everything that is written."""

    @property
    def waiters(self) -> int:
        """How many appends wait for it."""

    def __call__(self) -> None: ...

    def failure(self, step: int, code: int) -> Exception:
        """What a call would have raised if this step failed with this errno. Steps are counted from 0: each of `before`, the write,
        the sync."""


class LoneRead:
    """Whether the loop acts on a read that is the only one of its pass (ADR 32). What that appends need not wait for the end of the
    turn to be sealed and written: nobody else will add to it. An attribute and no method: it is looked at once a message."""

    __slots__ = ("under_way",)

    def __init__(self) -> None:
        self.under_way = False


class Scheduler(Protocol):
    """The only source of time and concurrency below net/. All callbacks run on the one loop thread."""

    @property
    def lone_read(self) -> LoneRead: ...

    def now(self) -> int:
        """Wall time: microseconds since 1970. Only for what people wrote as a date; it may jump either way."""

    def monotonic(self) -> int:
        """Microseconds since some start, never back and never ahead: for every duration, time-out and age."""

    def soon(self, call: Callable[[], None]) -> None:
        """Run at the end of this turn of the loop, after everything that arrived in it."""

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        """Run once, not before delay_us have passed."""

    def offload(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run blocking disk work elsewhere, then done(result or the exception it raised) on the loop."""

    def write(self, work: Write, done: Callable[[BaseException | None], None]) -> None:
        """Write and sync with as little ado as possible (ADR 30), then done(None, or what failed) on the loop, later than this
        call. Writes of one file are made one at a time: who hands in the next waits for the one before."""

    def write_at_once(self, work: Write) -> float | None:
        """The same before this call returns, if a lone read is acted on and nobody else wants the loop (ADR 30): how many seconds it
        took, or None: it was not made. Raises what failed."""

    def may_write_at_once(self) -> bool:
        """Would `write_at_once` make a small write of one append now, for a lone read? Then the kernel may make it (ADR 51)."""

    def wrote_at_once(self, seconds: float) -> None:
        """The kernel has made it, in so many seconds."""


def call_each(scheduler: Scheduler, calls: Iterable[Callable[[], object]]) -> None:
    """Call all of them in order. One that raises stops none of the others: its exception is raised alone, at the end of
    the turn, where the scheduler reports it."""
    for call in calls:
        try:
            call()
        except Exception as error:
            raise_soon(scheduler, error)


def raise_soon(scheduler: Scheduler, error: Exception) -> None:
    """Raise at the end of the turn, so that whoever goes on now is not stopped."""
    scheduler.soon(partial(_raise, error))


def _raise(error: Exception) -> NoReturn:
    raise error
