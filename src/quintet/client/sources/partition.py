"""Counts one partition of a subscription that fetches: what was read, what is acknowledged, what is committed."""

from collections import deque


class AssignedPartition:
    """One partition that is read here."""

    __slots__ = ("acked", "committed", "floor", "number", "outstanding", "position")

    def __init__(self, number: int, offset: int) -> None:
        self.number = number
        self.position = offset  # the next offset to fetch
        self.floor = offset  # all before it is acknowledged
        self.committed = offset  # what the server knows of that
        self.outstanding: deque[int] = deque()  # offsets fetched and not known to be acknowledged up to, in order
        self.acked: set[int] = set()  # of those, the acknowledged ones

    def ack_through(self, offset: int) -> None:
        self.acked.update(other for other in self.outstanding if other <= offset)

    def advance(self) -> int:
        """Move the floor over what is acknowledged without a gap; over how many messages."""
        outstanding, acked = self.outstanding, self.acked
        before = len(outstanding)
        while outstanding and outstanding[0] in acked:
            offset = outstanding.popleft()
            acked.remove(offset)
            self.floor = offset + 1
        if not outstanding:
            self.floor = self.position
        return before - len(outstanding)
