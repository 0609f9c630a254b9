"""Records which offsets of a lane were delivered and which acknowledged, as ranges, until the audit takes them.

A trail is one lane's. A run that goes on where the last one ended makes its range longer in place: a subscription that
keeps up costs two comparisons per run, however many records are in it. Nothing here knows what becomes of a move, nor the
time. All ranges are first <= offset < last, and may span offsets that have no record (expired, or compacted away).
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

Kind = Literal["deliver", "ack"]
NONE: Final = -1  # no range is open: no offset is below 0


class Move(NamedTuple):
    """Offsets first to last - 1 of a partition were handed to somebody, or settled by somebody."""

    event: Kind
    door: str
    who: str
    topic: str
    partition: int
    first: int
    last: int


class Trails:
    """The trails of one broker that have something to tell. `full` is called, from within a delivery, when there are more
    than `ranges_max` ranges that could not be joined: who is told takes them. `every`: also what needs no acknowledgement
    leaves a trail."""

    __slots__ = ("_full", "_ranges_max", "every", "moved", "ranges")

    def __init__(self, every: bool, ranges_max: int, full: Callable[[], None]) -> None:
        self.every = every
        self.moved: list[Trail] = []
        self.ranges = 0  # closed ones: each trail has at most two open ones beside them
        self._ranges_max = ranges_max
        self._full = full

    def closed_one(self) -> None:
        self.ranges += 1
        if self.ranges >= self._ranges_max:
            self._full()

    def take(self) -> list[Move]:
        """All moves, and none of them again. Of one lane: deliveries in their order, then acknowledgements by offset."""
        moved, self.moved, self.ranges = self.moved, [], 0
        return [move for trail in moved for move in trail.take()]


class Trail:
    """What was delivered and settled in one lane since the last time it was asked."""

    __slots__ = (
        "_acked", "_acks", "_begun", "_begun_ack", "_gifts", "_trails", "door", "every", "given", "partition", "topic", "who",
    )  # fmt: skip

    def __init__(self, trails: Trails, door: str, who: str, topic: str, partition: int) -> None:
        self._trails = trails
        self.every = trails.every
        self.door = door
        self.who = who
        self.topic = topic
        self.partition = partition
        self._begun = self.given = NONE  # the open range of deliveries: it ends before `given`
        self._begun_ack = self._acked = NONE  # and of acknowledgements
        self._gifts: list[tuple[int, int]] = []
        self._acks: list[tuple[int, int]] = []

    def delivered(self, first: int, last: int) -> None:
        """These were handed over. Where `first` is `given`, a lane moves that by itself: it is the common case."""
        self._moves()
        begun, given = self._begun, self.given
        self._begun, self.given = first, last
        if given != NONE:
            self._gifts.append((begun, given))
            self._trails.closed_one()

    def acked(self, first: int, last: int) -> None:
        """These were settled by their peer."""
        if first == self._acked:
            self._acked = last
            return
        self._moves()
        begun, acked = self._begun_ack, self._acked
        self._begun_ack, self._acked = first, last
        if acked != NONE:
            self._acks.append((begun, acked))
            self._trails.closed_one()

    def _moves(self) -> None:
        if self.given == NONE and self._acked == NONE:
            self._trails.moved.append(self)

    def take(self) -> list[Move]:
        """The moves, and nothing is open any more."""
        gifts, acks = self._gifts, self._acks
        if self.given != NONE:
            gifts.append((self._begun, self.given))
        if self._acked != NONE:
            acks.append((self._begun_ack, self._acked))
        self.given = self._acked = NONE
        self._gifts, self._acks = [], []
        given: list[Move] = [Move("deliver", self.door, self.who, self.topic, self.partition, *one) for one in gifts]
        return given + [Move("ack", self.door, self.who, self.topic, self.partition, *one) for one in joined(acks)]


def joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets in as few ranges as there can be, by offset."""
    if len(ranges) < 2:
        return ranges
    ranges.sort()
    found = [ranges[0]]
    for first, last in ranges[1:]:
        if first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found
