"""Time, turns and slow work as parameters: what the line asks of whoever runs it.

In the broker this is `net/loop.py` (uvloop and a few disk threads); in tests it is `testing/sim.py`, where time stands
still until it is told to move and disk work finishes when the test says so.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn, Protocol, TypeVar

T = TypeVar("T")


class Scheduler(Protocol):
    """The only source of time and concurrency below net/. All callbacks run on the one loop thread."""

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
