"""Shares one subscription among several peers: a Sink that hands each record to exactly one of its members.

    subscription.pump -> Share.room (the most any member has) -> Share.records -> a piece of the run for each member

A run is cut into as many pieces as there are members with room, and the next run begins with the next member, so nobody
has to read faster than it can and nobody is left out. Records of one piece keep their order; between members there is
none. Nothing is queued here: without room anywhere the subscription parks until one member has some.
"""

from collections.abc import Callable
from functools import partial

from quintet.delivery.sink import Sink
from quintet.model.batch import RecordBatch


class Share:
    """Competing consumers, as one Sink."""

    __slots__ = ("_call", "_members", "_parked", "_turn", "given")

    def __init__(self) -> None:
        self.given: Callable[[Sink, int, int, int], None] | None = None  # told who got which: partition, first, last
        self._members: list[Sink] = []
        self._parked: set[Sink] = set()  # members that will call back: each is asked once, however often we park
        self._call: Callable[[], None] | None = None
        self._turn = 0

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Sink) -> None:
        """A new member; if all others are full, it is given what they cannot take."""
        if member not in self._members:
            self._members.append(member)
            self._wake()

    def remove(self, member: Sink) -> None:
        """What it was handed is gone with it; it is given nothing more."""
        if member in self._members:
            self._members.remove(member)
        self._parked.discard(member)

    # -- the Sink --------------------------------------------------------------------------------------------------

    def room(self) -> int:
        return max((member.room() for member in self._members), default=0)

    def park(self, call: Callable[[], None]) -> None:
        self._call = call
        for member in self._members:
            if member not in self._parked:
                self._parked.add(member)
                member.park(partial(self._has_room, member))

    @property
    def withheld(self) -> bool:
        """No member is full: their quotas hold back what they would get."""
        return all(getattr(member, "withheld", False) for member in self._members)

    def _has_room(self, member: Sink) -> None:
        self._parked.discard(member)
        if member in self._members:
            self._wake()

    def _wake(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        takers = self._takers()[: last - first]
        size, more = divmod(last - first, len(takers))
        self._turn = self._members.index(takers[more - 1]) + 1  # behind the last one that got one more than others
        for number, member in enumerate(takers):
            end = first + size + (number < more)
            if self.given is not None:
                self.given(member, partition, batch.offset(first), batch.offset(end - 1) + 1)
            member.records(subscription, partition, batch, first, end)
            first = end

    def _takers(self) -> list[Sink]:
        """Members with room, the next in turn first; that one alone if the turn of the loop ended since room was asked for."""
        start = self._turn % len(self._members)
        members = self._members[start:] + self._members[:start]
        return [member for member in members if member.room() > 0] or members[:1]

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("a share publishes nothing")

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError("a share asks for nothing")

    def evict(self, reason: str) -> None:
        for member in list(self._members):
            member.evict(reason)
