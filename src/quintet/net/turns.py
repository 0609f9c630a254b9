"""Cuts the loop thread's work into turns: ends a turn in time, calls the rest in a later one, measures each.

    begin ---- over()? ---- over()? ---- end          one callback of the loop; nested begins count as part of the first
                  |            |
                  |            +-- soon(call) --> at the end of the turn: by `finish` of the callback if it gathers, else by the next one
                  +-- later(call) --> a queue that every callback of ours shares, first come, first served

A session asks `over` between two frames and delivery asks for room, which is none when the turn is over (ADR 13). `over` is
judged by elapsed time, because its clock costs a tenth of that of processor time and a turn that was interrupted ends early,
which harms nobody. The histogram has processor time. Short turns are not worth its clock: below SHORT_S the elapsed time,
which is never less, puts a turn into the same first bucket.

Whom a turn has made output for is told once, when it ends (`owe`): many answers to one connection are one write.

A connection that is read alone gathers: what its requests want soon (append, seal, reply) is done before its callback returns.
Connections that are read in the same pass of the loop share one end of turn: one batch, one write, one sync for all of them.
Which of the two it is follows from the last pass that was counted (`_count_reads`).
"""

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import count
from time import perf_counter, thread_time
from typing import Final, Protocol

from quintet.model import limits
from quintet.model.histogram import Cells
from quintet.model.scheduler import LoneRead
from quintet.net.latencies import Latencies

TURN_S: Final = limits.TURN_US / 1e6
SHORT_S: Final = 0.001
SLOW_S: Final = 0.05  # of processor time: a turn above it is logged
MARK_S: Final = 0.001  # how old the last look at the processor's clock may be when a turn begins
LONE_READS: Final = 16  # after a pass with one read so many are taken to be alone, then a pass is counted again
FINISH_ROUNDS_MAX: Final = 6  # append, seal, write, tell the watchers, deliver: what a request brings about
CELLS: Final = Cells((SHORT_S, 0.002, 0.005, 0.01, 0.02, SLOW_S, 0.1, 0.2, 0.5, 1.0), shortest=SHORT_S)

Report = Callable[[str, dict[str, object]], None]


class Told(Protocol):
    """Who can say what a turn was for."""

    def turn_facts(self) -> dict[str, object]:
        """`door`, `operation`, `peer` and `who`, as far as they are known."""


class Debtor(Protocol):
    """Who has something to send at the end of a turn."""

    def send(self) -> None: ...


class Turns:
    """One for all parts that share a loop. Belongs to the loop thread."""

    __slots__ = (
        "_began", "_counted_from", "_counting", "_due", "_ending", "_ends", "_gathering", "_lone", "_loop", "_mark",
        "_marked_at", "_owing", "_queue", "_report", "_running", "_finishing", "begun", "calls", "connection_ids", "counts", "last", "latencies", "lone_read", "reads", "seconds", "worst",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Report | None = None) -> None:
        self._loop = loop
        self._report = report
        self._queue: deque[Callable[[], None]] = deque()
        self._due = False  # a callback for the queue is on its way
        self.calls: list[Callable[[], None]] = []  # for the end of this turn
        self._ending = False  # a callback for them is on its way
        self._gathering = False  # a callback runs that will run them itself
        self._finishing = False  # they run
        self.lone_read = LoneRead()
        self._running: object = None  # the one that ran last
        self._owing: list[Debtor] = []  # who sends when this turn ends
        self.reads = 0  # of TCP connections
        self._lone = LONE_READS
        self._counting = False  # the reads of this pass
        self._counted_from = 0
        self._began = 0.0  # 0: no turn is under way
        self._ends = math.inf
        self._mark = thread_time()
        self._marked_at = 0.0
        self.last: Told | None = None  # the connection that something was done for most recently, in this turn
        self.begun = 0  # turns so far
        self.connection_ids = count(1)  # of all doors: no two connections of one start have the same
        self.counts = [0] * len(CELLS)  # turns in each cell; the first has all short ones
        self.seconds = 0.0
        self.worst = 0.0
        self.latencies = Latencies()

    # -- one turn --------------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """A callback of the loop begins. False: it is part of one that has begun, whose `end` counts for both."""
        if self._began:
            return False
        self.begun += 1
        begins = self._began = perf_counter()
        self._ends = begins + TURN_S
        if begins - self._marked_at > MARK_S:
            self._mark, self._marked_at = thread_time(), begins
        return True

    @property
    def began(self) -> float:
        """When this turn began, by perf_counter; 0 outside of a turn."""
        return self._began

    def over(self) -> bool:
        """Leave the rest for a later turn. Never so outside of a turn."""
        return perf_counter() >= self._ends

    def end(self, call: object) -> None:
        """The callback whose `begin` said True ends; `call` is what it was."""
        if self._owing:
            self._send_all()
        last, self.last = self.last, None
        took = perf_counter() - self._began
        self._began, self._ends = 0.0, math.inf
        if took < SHORT_S:
            self.counts[0] += 1
            self.seconds += took
            return
        took = min(took, thread_time() - self._mark)
        self.counts[bisect_left(CELLS.edges, took)] += 1
        self.seconds += took
        self.worst = max(self.worst, took)
        if took > SLOW_S and self._report is not None:
            facts: dict[str, object] = {"callback": name_of(call)}
            for told in (last, getattr(call, "__self__", None)):
                facts |= getattr(told, "turn_facts", dict)()
            self._report("slow_turn", {**facts, "milliseconds": round(took * 1000)})

    def owe(self, debtor: Debtor) -> bool:
        """Call `send` once when this turn ends. False: no turn is under way, so send now."""
        if not self._began:
            return False
        self._owing.append(debtor)
        return True

    def _send_all(self) -> None:
        """Room that is given back may bring more to send."""
        while self._owing:
            owing, self._owing = self._owing, []
            for debtor in owing:
                debtor.send()

    def run(self, call: Callable[..., None], *arguments: object) -> None:
        """One callback of the loop."""
        if not self.begin():
            call(*arguments)
            return
        try:
            call(*arguments)
        finally:
            self.end(call)

    # -- the end of a turn -----------------------------------------------------------------------------------------

    def soon(self, call: Callable[[], None]) -> None:
        """Call at the end of this turn."""
        self.calls.append(call)
        if not self._gathering and not self._finishing:
            self._end_soon()

    def _end_soon(self) -> None:
        if not self._ending:
            self._ending = True
            self._loop.call_soon(self._end_turn)

    def gather(self) -> None:
        """A callback of the loop that brings many things about begins: what is wanted soon is done by its `finish`, which
        must follow, and not only in another callback."""
        self._gathering = True

    def gather_many(self) -> bool:
        """The same, where a callback reads several connections. False: a turn is being ended, which does all of it."""
        if self._finishing or self._gathering:
            return False
        self._gathering = True
        return True

    def alone(self, alone: bool) -> None:
        """Whether one connection is readable in this pass: whoever reads all of them knows it, and nothing is counted."""
        self._lone = LONE_READS if alone else 0

    def gather_if_alone(self) -> bool:
        """Gather, unless other connections are read in this pass of the loop, too, or a turn is being ended."""
        if self._finishing or self._gathering:
            return False
        if not self._lone:
            self._count_reads()
            return False
        self._lone -= 1
        if not self._lone:
            self._count_reads()
        self._gathering = self.lone_read.under_way = True
        return True

    def _count_reads(self) -> None:
        if not self._counting:
            self._counting, self._counted_from = True, self.reads
            self._loop.call_soon(self._counted)

    def _counted(self) -> None:
        self._counting = False
        self._lone = LONE_READS if self.reads == self._counted_from else 0

    def finish(self) -> None:
        """What waits, in order, then what that wants soon, at most FINISH_ROUNDS_MAX times. What one turn has no time for is done in
        the next."""
        self._gathering = self.lone_read.under_way = False
        if not self.calls:
            return
        self._finishing = True
        rounds = FINISH_ROUNDS_MAX
        while self.calls and rounds:
            rounds -= 1
            calls, self.calls = self.calls, []
            for number, call in enumerate(calls, 1):
                self._running = call
                try:
                    call()
                except Exception as error:
                    self._loop.call_exception_handler({"message": f"in {call}", "exception": error})
                if (number < len(calls) or self.calls) and self.over():
                    self.calls[:0] = calls[number:]
                    rounds = 0
                    break
        self._finishing = False
        if self.calls:
            self._end_soon()

    def _end_turn(self) -> None:
        self._ending = False
        self.run(self.finish)

    def turn_facts(self) -> dict[str, object]:
        return {"callback": name_of(self._running)}

    # -- later turns -----------------------------------------------------------------------------------------------

    def later(self, call: Callable[[], None]) -> None:
        """Call in a later turn, behind what waits already and after sockets were looked at."""
        self._queue.append(call)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Those that wait now, as many as one turn has time for; each puts itself behind the others if it is not done."""
        self.begin()
        call: Callable[[], None] | None = None
        try:
            for _ in range(len(self._queue)):
                call = self._queue.popleft()
                try:
                    call()
                except Exception as error:  # the other calls run all the same
                    self._loop.call_exception_handler({"message": f"in {call}", "exception": error})
                if self.over():
                    break
        finally:
            self.end(call)
            self._due = bool(self._queue)
            if self._due:
                self._loop.call_soon(self._go_on)


def name_of(call: object) -> str:
    """The function's name, for a log line."""
    while hasattr(call, "func"):  # functools.partial
        call = call.func
    return str(getattr(call, "__qualname__", None) or type(call).__qualname__)
