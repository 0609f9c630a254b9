"""Numbers what one consumer was handed, bounds it by its credit, and says since when the clock of a record runs (ADR 14).

A consumer has reached a record when everything it was handed before is settled or has timed out, or when it acknowledged
something that it was handed later. Until then the record waits, and no time runs out for it.

    handed over     1  2  3  4  5  6  7
    acknowledged    x     x  x                 the consumer passed 2 with the acknowledgement of 3; 5 is the oldest of the
                       ^        ^              rest, reached with the last acknowledgement; 6 and 7 wait
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from quintet.delivery.sink import Sink

STEPS_PER_TIMEOUT = 16  # how finely it is remembered when a record was passed: a clock starts late by one step at most
STEPS_KEPT_MAX = 64  # before those that no record needs any more are dropped
FLIGHTS_KEPT_MIN = (
    8  # so many are kept, landed or not: who has one in flight at a time would be looked through each time
)


class Flight:
    """Records handed to a peer together: one attempt, one deadline. Without a `consumer` its deadline is all there is: it was
    polled, or given back with a delay."""

    __slots__ = ("attempt", "left", "number", "offsets", "consumer", "sent_us", "sink", "wait_us")

    def __init__(
        self, attempt: int, offsets: Sequence[int], sink: Sink | None, consumer: "Consumer | None" = None
    ) -> None:
        self.attempt = attempt
        self.offsets = offsets
        self.sink = sink
        self.consumer = consumer
        self.left = len(offsets)  # of them, still in flight
        self.number = 0  # of the first of them, among all that the consumer was handed
        self.sent_us = 0
        self.wait_us = 0  # for the acknowledgement of a record that was reached

    def number_of(self, offset: int) -> int:
        offsets = self.offsets
        index = offset - offsets.start if isinstance(offsets, range) else bisect_right(offsets, offset) - 1
        return self.number + index


class Consumer:
    """What one consumer holds. Several subscriptions share one where they are one consumer's: its partitions of a group."""

    __slots__ = ("_flights", "_last_us", "_next", "_passed", "_passed_us", "_step_us", "credit", "held", "starving")

    def __init__(self, timeout_us: int) -> None:
        self.credit = 0  # the most it holds; 0: it has not said
        self.held = 0
        self._step_us = timeout_us // STEPS_PER_TIMEOUT
        self._next = 0
        self._flights: dict[
            int, Flight
        ] = {}  # by their numbers, in that order; those without a record left at times, too
        self._last_us = 0  # when it last acknowledged something, or something it had reached timed out
        self._passed: list[int] = []  # it acknowledged a record of this number or higher ...
        self._passed_us: list[int] = []  # ... at this time or up to one step later
        self.starving: dict[Callable[[], None], None] = {}  # who waits for credit

    # -- credit ----------------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Records it may still be handed."""
        return self.credit - self.held if self.credit else 1 << 30

    def starve(self, call: Callable[[], None]) -> None:
        """Call when there is credit again."""
        self.starving[call] = None

    def feed(self) -> None:
        """Credit may be free: who waits for it longest has the first turn."""
        while self.starving and self.room > 0:
            call = next(iter(self.starving))
            del self.starving[call]
            call()

    # -- the clock -------------------------------------------------------------------------------------------------

    def handed(self, flight: Flight, monotonic: int, wait_us: int) -> None:
        count = len(flight.offsets)
        flight.number, flight.sent_us, flight.wait_us = self._next, monotonic, wait_us
        self._flights[self._next] = flight
        self._next += count
        self.held += count
        kept = len(self._flights)
        if kept >= FLIGHTS_KEPT_MIN and kept & (kept - 1) == 0:  # at powers of two: as often as it pays
            self._flights = {number: other for number, other in self._flights.items() if other.left}

    def acknowledged(self, number: int, monotonic: int) -> None:
        """The record of this number; or, below 0, one it no longer holds."""
        self._last_us = monotonic
        if number < 0 or (self._passed and number <= self._passed[-1]):
            return
        if self._passed and monotonic - self._passed_us[-1] < self._step_us:
            self._passed[-1] = number
            return
        if len(self._passed) >= STEPS_KEPT_MAX:
            self._forget_steps()
        self._passed.append(number)
        self._passed_us.append(monotonic)

    def timed_out(self, monotonic: int) -> None:
        self._last_us = monotonic

    def since(self, flight: Flight, offset: int, oldest: bool) -> int | None:
        """When the clock of this record started; None: its consumer has not reached it. `oldest`: of its flight."""
        number = flight.number_of(offset)
        step = bisect_right(self._passed, number)
        if step < len(self._passed):
            return max(flight.sent_us, self._passed_us[step] + self._step_us)
        if oldest and self._oldest() is flight:
            return max(flight.sent_us, self._last_us)
        return None

    def _oldest(self) -> Flight | None:
        flights = self._flights
        while flights:
            number = next(iter(flights))
            if flights[number].left:
                return flights[number]
            del flights[number]
        return None

    def _forget_steps(self) -> None:
        oldest, last = self._oldest(), len(self._passed) - 1
        gone = last if oldest is None else min(bisect_right(self._passed, oldest.number), last)
        del self._passed[:gone], self._passed_us[:gone]
