"""Implements the Scheduler of the running broker: uvloop (or asyncio) for turns and timers, threads for disk work.

Disk work of one partition is strictly one job at a time (the log sees to that), so threads only overlap the waits of
different partitions. A finished job reaches the loop by one wake-up.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from quintet.net.turns import Turns, name_of

T = TypeVar("T")

DISK_THREADS = 4

Job = tuple[Callable[[], object], Callable[[Any], None]]  # the work, and who is told what it returned or raised


class LoopScheduler:
    """See model/scheduler.py. `close` ends the threads when all handed-in work is done."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: int = DISK_THREADS, turns: Turns | None = None
    ) -> None:
        self._loop = loop
        self.turns = turns or Turns(loop)
        self._calls: list[Callable[[], None]] = []  # calls for the end of this turn
        self._due = False  # a callback for them is scheduled
        self._gathering = False  # a callback runs that will run them itself
        self._running: object = None  # the call that ran last
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"quintet-disk-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    def soon(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        if not self._gathering:
            self._call_soon()

    def _call_soon(self) -> None:
        if not self._due:
            self._due = True
            self._loop.call_soon(self._turn)

    def gather(self) -> None:
        """A callback of the loop that brings many things about begins: what is wanted soon is done by its `run_gathered`, which
        must follow, and not only after another look at all sockets."""
        self._gathering = True

    def run_gathered(self) -> None:
        self._gathering = False
        self._run()

    def _turn(self) -> None:
        self._due = False
        self.turns.run(self._run)

    def _run(self) -> None:
        """What waits, in order; not what it wants soon in its turn. What one turn has no time for is done in the next."""
        calls, self._calls = self._calls, []
        for number, call in enumerate(calls, 1):
            self._running = call
            try:
                call()
            except Exception as error:
                self._loop.call_exception_handler({"message": f"in {call}", "exception": error})
            if self.turns.over() and number < len(calls):
                self._calls[:0] = calls[number:]
                self._call_soon()
                return

    def turn_facts(self) -> dict[str, object]:
        return {"callback": name_of(self._running)}

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_us / 1e6, self.turns.run, call)

    def offload(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._jobs.put((work, done))

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except BaseException as error:  # handed to the loop, which knows what it means
                result = error
            try:
                self._loop.call_soon_threadsafe(self.turns.run, done, result)
            except RuntimeError:
                return  # the loop is closed: the broker stops, and no caller waits for this
