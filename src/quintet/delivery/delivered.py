"""Records which offsets of a lane were delivered and which acknowledged, as ranges, until the audit takes them.

LaneRanges are one lane's. A run that goes on where the last one ended makes its range longer in place: a subscription that
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


class DeliveredRanges:
    """What was delivered and acknowledged by the lanes of one broker. `full` is called, from within a delivery, when there are more
    than `ranges_max` ranges that could not be joined: whoever is called takes them. `every`: also what needs no acknowledgement
    is recorded."""

    __slots__ = ("_full", "_ranges_max", "every", "moved", "ranges")

    def __init__(self, every: bool, ranges_max: int, full: Callable[[], None]) -> None:
        self.every = every
        self.moved: list[LaneRanges] = []
        self.ranges = 0  # closed ones: each lane has at most two open ones beside them
        self._ranges_max = ranges_max
        self._full = full

    def closed_one(self) -> None:
        self.ranges += 1
        if self.ranges >= self._ranges_max:
            self._full()

    def take(self) -> list[Move]:
        """All moves, and none of them again. Of one lane: deliveries in their order, then acknowledgements by offset."""
        moved, self.moved, self.ranges = self.moved, [], 0
        return [move for lane in moved for move in lane.take()]


class LaneRanges:
    """What was delivered and settled in one lane since the last time it was asked."""

    __slots__ = (
        "_acked", "_acks", "_begun", "_begun_ack", "_all", "_delivered", "delivered_end", "door", "every", "partition", "topic", "who",
    )  # fmt: skip

    def __init__(self, all_lanes: DeliveredRanges, door: str, who: str, topic: str, partition: int) -> None:
        self._all = all_lanes
        self.every = all_lanes.every
        self.door = door
        self.who = who
        self.topic = topic
        self.partition = partition
        self._begun = self.delivered_end = NONE  # the open range of deliveries: it ends before `delivered_end`
        self._begun_ack = self._acked = NONE  # and of acknowledgements
        self._delivered: list[tuple[int, int]] = []
        self._acks: list[tuple[int, int]] = []

    def delivered(self, first: int, last: int) -> None:
        """These were handed over. Where `first` is `delivered_end`, a lane moves that by itself: it is the common case."""
        self._moves()
        begun, end = self._begun, self.delivered_end
        self._begun, self.delivered_end = first, last
        if end != NONE:
            self._delivered.append((begun, end))
            self._all.closed_one()

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
            self._all.closed_one()

    def _moves(self) -> None:
        if self.delivered_end == NONE and self._acked == NONE:
            self._all.moved.append(self)

    def take(self) -> list[Move]:
        """The moves, and nothing is open any more."""
        delivered, acks = self._delivered, self._acks
        if self.delivered_end != NONE:
            delivered.append((self._begun, self.delivered_end))
        if self._acked != NONE:
            acks.append((self._begun_ack, self._acked))
        self.delivered_end = self._acked = NONE
        self._delivered, self._acks = [], []
        moves: list[Move] = [
            Move("deliver", self.door, self.who, self.topic, self.partition, *one) for one in delivered
        ]
        return moves + [Move("ack", self.door, self.who, self.topic, self.partition, *one) for one in joined(acks)]


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
