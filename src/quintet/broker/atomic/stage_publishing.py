"""Appends the staged batches of a committed intent to their topics, in order and a bounded amount at a time.

A stage may be far larger than memory. One read is under way at a time, so that the batches of a partition are appended in
the order they were staged in; appends are under way for WINDOW_BYTES at most. What a partition refuses comes back here and
is read again, and nothing behind it is appended before it: a restart relies on that order (`Intents._missing`). What the disk
lost of a stage is reported, and the rest goes on.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from quintet.log.base import Stages
from quintet.model.errors import CorruptData
from quintet.model.tasks import Promise, Verb, start

READ_BYTES_MAX: Final = 8 << 20  # of one read, unless one batch is larger
WINDOW_BYTES: Final = 32 << 20  # appended and not yet durable
ENTRY_GAP_BYTES: Final = 1024  # parts this close together are read in one go


class Part(NamedTuple):
    """One batch of an intent: its place there, and where it lies."""

    place: int
    stage: str
    position: int
    length: int


Append = Callable[[int, bytearray], Verb[None]]
Lost = Callable[[int, Exception], None]
Wait = Callable[[Exception], Verb[None]]


async def carry_over(stages: Stages, parts: Iterable[Part], append: Append, lost: Lost, wait: Wait) -> None:
    """Append all of these parts of one intent. `append(place, batch)` raises if it is refused; `lost(place, why)` is told of
    a part that is gone; `wait(error)` returns when the disk is to be asked again."""
    queue = list(parts)
    heapify(queue)  # what is refused has its place among them
    flying = 0  # bytes
    refusals: list[Exception] = []  # the disk refused something: nothing is tried until it is asked again
    single = False  # something in the last read was bad: one part at a time until it is found
    over: Promise[None] = Promise()  # of the append that is over next

    async def append_one(part: Part, batch: bytearray) -> None:
        nonlocal flying, over
        try:
            await append(part.place, batch)
        except Exception as error:
            refusals.append(error)
            heappush(queue, part)
        flying -= part.length
        ended, over = over, Promise()
        ended.resolve(None)

    while queue or flying:
        if refusals:
            await wait(refusals[0])
            refusals.clear()
        elif not queue or flying >= WINDOW_BYTES:
            await over
        else:
            group = _take_group(queue, 1 if single else len(queue))
            first, last = group[0], group[-1]
            try:
                data = await _read(stages, first.stage, first.position, last.position + last.length - first.position)
            except (CorruptData, FileNotFoundError) as error:
                single = len(group) > 1
                if single:
                    _put_back(queue, group)
                else:
                    lost(first.place, error)
                continue
            except Exception as error:
                refusals.append(error)
                _put_back(queue, group)
                continue
            single = False
            for number, part in enumerate(group):
                if refusals:  # one before it was refused
                    _put_back(queue, group[number:])
                    break
                begin = part.position - first.position
                flying += part.length
                start(append_one(part, bytearray(memoryview(data)[begin : begin + part.length])))


async def _read(stages: Stages, stage: str, position: int, length: int) -> bytes:
    promise: Promise[bytes] = Promise()

    def done(data: bytes | BaseException) -> None:
        if isinstance(data, BaseException):
            promise.fail(data if isinstance(data, Exception) else RuntimeError(repr(data)))
        else:
            promise.resolve(data)

    stages.read(stage, position, length, done)
    return await promise


def _take_group(queue: list[Part], most: int) -> list[Part]:
    """The next part, and those behind it that are read with it."""
    group = [heappop(queue)]
    while len(group) < most and queue and _adjoins(group, queue[0]):
        group.append(heappop(queue))
    return group


def _put_back(queue: list[Part], parts: Iterable[Part]) -> None:
    for part in parts:
        heappush(queue, part)


def _adjoins(group: list[Part], part: Part) -> bool:
    last = group[-1]
    gap = part.position - (last.position + last.length)
    small = part.position + part.length - group[0].position <= READ_BYTES_MAX
    return part.stage == last.stage and 0 <= gap < ENTRY_GAP_BYTES and small
