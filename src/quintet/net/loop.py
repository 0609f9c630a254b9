"""Implements the Scheduler of the running broker: uvloop (or asyncio) for turns and timers, threads for disk work.

Disk work of one partition is strictly one job at a time (the log sees to that), so threads only overlap the waits of
different partitions. A finished job reaches the loop by one wake-up. Durable writes are made without the interpreter: by the
loop itself (disk_writes.py says when) or by threads of the kernel, which it has only if it is native and on Linux.

    write -> _writes --(end of the calls of this turn)--> alone, small, quick: here
                                                     +--> kernel.DiskThreads, or our threads --> done
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from quintet import kernel
from quintet.model.scheduler import Write
from quintet.net.disk_writes import LoneWrites
from quintet.net.turns import Turns

T = TypeVar("T")

DISK_THREADS = 4

Written = Callable[[BaseException | None], None]
Job = tuple[Callable[[], object], Callable[[Any], None]]  # the work, and who is told what it returned or raised


class LoopScheduler:
    """See model/scheduler.py. `close` ends the threads when all handed-in work is done."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: int = DISK_THREADS, turns: Turns | None = None
    ) -> None:
        self._loop = loop
        self.turns = turns or Turns(loop)
        self.soon = self.turns.soon
        self.lone_read = self.turns.lone_read
        self._writes: list[tuple[Write, Written]] = []  # to be made at the end of this turn
        self._lone = LoneWrites()
        self._tickets: dict[int, tuple[Write, Written, float]] = {}  # writes under way elsewhere, and when they began
        self._ticket = 0
        self._writers = kernel.DiskThreads(threads) if kernel.DiskThreads is not None and threads else None
        if self._writers is not None:
            loop.add_reader(self._writers.fileno(), self.turns.run, self._writes_done)
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

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        self._loop.call_later(delay_us / 1e6, self.turns.run, call)

    def offload(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self._jobs.put((work, done))

    # -- durable writes ------------------------------------------------------------------------------------------------

    def write(self, work: Write, done: Written) -> None:
        self._writes.append((work, done))
        if len(self._writes) == 1:
            self.soon(self._start_writes)  # behind the calls that want more of them

    def write_at_once(self, work: Write) -> float | None:
        turns, lone, began = self.turns, self._lone, perf_counter()
        if not turns.lone_read.under_way or self._writes or self._tickets:
            return None
        if not lone.allow(work, turns.begun, turns.seconds, began):
            return None
        try:
            work()
        finally:
            took = perf_counter() - began
            self.wrote_at_once(took)
        return took

    def may_write_at_once(self) -> bool:
        turns = self.turns
        return not (self._writes or self._tickets) and self._lone.allow_small(
            turns.begun, turns.seconds, perf_counter()
        )

    def wrote_at_once(self, seconds: float) -> None:
        turns, lone = self.turns, self._lone
        lone.begin(turns.begun, turns.seconds, perf_counter() - seconds)
        lone.made(seconds)
        turns.latencies.written.observe(seconds)

    def _start_writes(self) -> None:
        """Make or hand out what is to be written."""
        writes, self._writes = self._writes, []
        turns, lone, monotonic = self.turns, self._lone, perf_counter()
        alone = (
            len(writes) == 1 and not self._tickets and lone.allow(writes[0][0], turns.begun, turns.seconds, monotonic)
        )
        lone.begin(turns.begun, turns.seconds, monotonic)
        for work, done in writes:
            if alone:
                result = _attempt(work)
                took = perf_counter() - monotonic
                lone.made(took)
                self.turns.latencies.written.observe(took)
                done(result)
            else:
                self._hand_out(work, done, monotonic)

    def _hand_out(self, work: Write, done: Written, monotonic: float) -> None:
        ticket = self._ticket = self._ticket + 1
        self._tickets[ticket] = (work, done, monotonic)
        if self._writers is not None and work.handle >= 0:
            self._writers.submit(ticket, work.before, work.handle, work.buffers, work.position)
        else:
            self.offload(partial(_attempt, work), partial(self._write_done, ticket))

    def _writes_done(self) -> None:
        """The kernel's threads made some."""
        assert self._writers is not None
        self.turns.gather()
        for ticket, step, code in self._writers.take():
            failure = self._tickets[ticket][0].failure(step, code) if code else None
            self.soon(partial(self._write_done, ticket, failure))
        self.turns.finish()

    def _write_done(self, ticket: int, result: BaseException | None) -> None:
        _, done, began = self._tickets.pop(ticket)
        took = perf_counter() - began
        self._lone.made(took, callbacks=1)
        self.turns.latencies.written.observe(took)
        done(result)

    # -- threads -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        if self._writers is not None:
            self._loop.remove_reader(self._writers.fileno())
            self._writers.close()
            self._writers = None

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


def _attempt(work: Write) -> BaseException | None:
    try:
        work()
    except BaseException as error:  # handed to the log, which knows what it means
        return error
    return None
