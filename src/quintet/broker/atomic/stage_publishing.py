"""Appends the staged batches of a committed intent to their topics, in order and a bounded amount at a time.

A stage may be far larger than memory. One read is under way at a time, so that the batches of a partition are appended in
the order they were staged in; appends are under way for WINDOW_BYTES at most. What a partition refuses comes back here and
is read again, and nothing behind it is appended before it: a restart relies on that order (`Intents._missing`). What the disk
lost of a stage is reported, and the rest goes on.
"""

from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from quintet.log.base import Stages
from quintet.model.errors import CorruptData

READ_BYTES_MAX: Final = 8 << 20  # of one read, unless one batch is larger
WINDOW_BYTES: Final = 32 << 20  # appended and not yet durable
ENTRY_GAP_BYTES: Final = 1024  # parts this close together are read in one go


class Part(NamedTuple):
    """One batch of an intent: its place there, and where it lies."""

    place: int
    stage: str
    position: int
    length: int


Append = Callable[[int, bytearray], None]
Lost = Callable[[int, Exception], None]
Wait = Callable[[Exception, Callable[[], None]], None]


class Carry:
    """The parts of one intent that are still to be appended. `append(place, batch)` is answered by `landed` or `refused`;
    `lost(place, why)` for a part that is gone; `wait(error, again)` when the disk has to be asked again later."""

    __slots__ = ("_append", "_flying", "_lost", "_paused", "_queue", "_reading", "_single", "_stages", "_wait")

    def __init__(self, stages: Stages, parts: Iterable[Part], append: Append, lost: Lost, wait: Wait) -> None:
        self._stages = stages
        self._queue = list(parts)  # a heap: what comes back has its place among them
        heapify(self._queue)
        self._append = append
        self._lost = lost
        self._wait = wait
        self._flying = 0
        self._reading = False
        self._paused = False  # the disk refused something: nothing is tried until it is asked again
        self._single = False  # something in the last read was bad: one part at a time until it is found

    def go(self) -> None:
        if self._reading or self._paused or not self._queue or self._flying >= WINDOW_BYTES:
            return
        group = [heappop(self._queue)]
        while not self._single and self._queue and _adjoins(group, self._queue[0]):
            group.append(heappop(self._queue))
        self._reading = True
        first, last = group[0], group[-1]
        length = last.position + last.length - first.position
        self._stages.read(first.stage, first.position, length, partial(self._read, group))

    def _read(self, group: list[Part], data: bytes | BaseException) -> None:
        self._reading = False
        if isinstance(data, (CorruptData, FileNotFoundError)):
            self._bad(group, data)
        elif isinstance(data, BaseException):
            self._put_back(group)
            error = data if isinstance(data, Exception) else CorruptData(str(data))
            self._pause(error)
        else:
            self._single = False
            for number, part in enumerate(group):
                if self._paused:  # one before it was refused
                    self._put_back(group[number:])
                    return
                begin = part.position - group[0].position
                self._flying += part.length
                self._append(part.place, bytearray(memoryview(data)[begin : begin + part.length]))
            self.go()

    def _bad(self, group: list[Part], error: Exception) -> None:
        self._single = len(group) > 1
        if self._single:
            self._put_back(group)
        else:
            self._lost(group[0].place, error)
        self.go()

    def _put_back(self, parts: Iterable[Part]) -> None:
        for part in parts:
            heappush(self._queue, part)

    def landed(self, length: int) -> None:
        """An append is over, well or with an error that needs no second try."""
        self._flying -= length
        self.go()

    def refused(self, part: Part, error: Exception) -> None:
        """A partition did not take it: again later, before what comes behind it."""
        self._flying -= part.length
        heappush(self._queue, part)
        self._pause(error)

    def _pause(self, error: Exception) -> None:
        if not self._paused:
            self._paused = True
            self._wait(error, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self.go()


def _adjoins(group: list[Part], part: Part) -> bool:
    last = group[-1]
    gap = part.position - (last.position + last.length)
    small = part.position + part.length - group[0].position <= READ_BYTES_MAX
    return part.stage == last.stage and 0 <= gap < ENTRY_GAP_BYTES and small
