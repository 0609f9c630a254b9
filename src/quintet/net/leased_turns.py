"""Ends a leader whose lease is over before it answers anything: every callback of the loop that serves a peer begins a turn.

A process that was stopped and is woken reads its sockets before its timers run. What it would answer then may be older than what
another leader has acknowledged meanwhile (ADR 39). So the lease is looked at when a turn begins, and not by a timer.
"""

import asyncio
from collections.abc import Callable

from quintet.net.turns import Report, Turns


class LeasedTurns(Turns):
    """`guard` it once the node leads: from then on a turn that begins without a lease calls `lapsed`, which does not return."""

    __slots__ = ("_lapsed", "_may_answer")

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Report | None = None) -> None:
        super().__init__(loop, report)
        self._may_answer: Callable[[], bool] | None = None
        self._lapsed: Callable[[], None]

    def guard(self, may_answer: Callable[[], bool], lapsed: Callable[[], None]) -> None:
        self._may_answer, self._lapsed = may_answer, lapsed

    def begin(self) -> bool:
        if self._may_answer is not None and not self._may_answer():
            self._lapsed()
        return super().begin()
