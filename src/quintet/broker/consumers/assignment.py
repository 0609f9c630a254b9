"""Assigns the partitions of a topic to the members of a group: one pure function, balanced, sticky, deterministic.

Balanced: counts differ by at most one. Sticky: a member that stays keeps what it has, up to its share, so no other
assignment that is balanced moves fewer partitions. The work depends on the number of partitions and not of members:
those in line behind the first idle ones cannot get anything, so they are not looked at, and a storm of joins is cheap.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TypeVar

M = TypeVar("M")


def spread(partitions: int, members: int, owning: Mapping[M, tuple[int, ...]], idle: Iterable[M]) -> dict[M, list[int]]:
    """What everybody in `owning` (members and what they had), and those of `idle` (members without any, in the order in
    which they are to get some) who get something, own from now on. `members` is how many there are in all."""
    share, larger = divmod(partitions, members)
    line = [*sorted(owning, key=lambda member: -len(owning[member])), *islice(idle, partitions)]
    shares = [share + 1 if rank < larger else share for rank in range(len(line))]
    result: dict[M, list[int]] = {}
    free = set(range(partitions))
    for member, limit in zip(line, shares, strict=True):
        kept = [number for number in owning.get(member, ()) if number < partitions][:limit]
        free.difference_update(kept)
        result[member] = kept
    rest = iter(sorted(free))
    for member, limit in zip(line, shares, strict=True):
        kept = result[member]
        kept.extend(islice(rest, limit - len(kept)))
        kept.sort()
    return result
