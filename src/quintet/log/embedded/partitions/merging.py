"""Chooses which waiting batches become one batch (small ones of one kind, in their order), and answers their waiters.

Shared by partitions on disk and in memory. What merging does to bytes is the kernel's affair; this only chooses.
"""

from typing import Final

from quintet import kernel
from quintet.log.base import Appended
from quintet.model import limits
from quintet.model.batch import SPARSE, kind_of
from quintet.model.scheduler import Scheduler, raise_soon

MERGE_INPUT_BYTES_MAX: Final = 64 * limits.KIB  # a larger batch goes as it is: copying it would cost more than it saves
MERGE_OUTPUT_BYTES_MAX: Final = limits.MIB


Pending = tuple[bytearray, Appended | None, int]


def place_waiters(group: list[Pending], now: int) -> None:
    """Offset and time into the batches that went into a merged one: whoever waits reads them there."""
    for batch, done, base in group:
        if done is not None:
            kernel.place(batch, base, now)


def answer_waiters(scheduler: Scheduler, waiters: list[Pending], error: Exception | None = None) -> None:
    """Tell each its offset, or the error. One that raises stops none of the others: they wait for their own answer."""
    for _, done, base in waiters:
        if done is not None:
            try:
                done(base if error is None else -1, error)
            except Exception as fault:
                raise_soon(scheduler, fault)


def merge_groups(pending: list[Pending]) -> list[list[Pending]]:
    """Runs of small batches of one kind, which may become one batch; all others alone. Order is kept."""
    groups: list[list[Pending]] = []
    kind, room = -1, 0
    for item in pending:
        batch = item[0]
        size = len(batch)
        flags, columns, producer = kind_of(batch)
        mergeable = size <= MERGE_INPUT_BYTES_MAX and not columns & SPARSE and not producer
        if mergeable and flags == kind and size <= room:
            groups[-1].append(item)
            room -= size
        else:
            groups.append([item])
            kind, room = (flags, MERGE_OUTPUT_BYTES_MAX - size) if mergeable else (-1, 0)
    return groups
