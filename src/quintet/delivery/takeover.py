"""Delivers what is left of a backlog to a peer that has read further: a Sink that skips what the peer already has.

    offsets of a partition     position ... until ... then ...
    the peer                   gets them   has them   gets them

The peer reads a topic from `until` on and is at `then` when it takes over a backlog that is behind `until`. It gets what
is left of that, in its order, and goes on at `then`: nothing is lost, and nothing comes twice.
"""

from collections.abc import Callable

from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Subscription
from quintet.model.batch import RecordBatch


class Takeover:
    """In front of `sink`, for one subscription. `had` is partition -> (until, then)."""

    __slots__ = ("_had", "_sink")

    def __init__(self, sink: Sink, had: dict[int, tuple[int, int]]) -> None:
        self._sink = sink
        self._had = had

    def room(self) -> int:
        return self._sink.room()

    def park(self, call: Callable[[], None]) -> None:
        self._sink.park(call)

    @property
    def withheld(self) -> bool:
        return getattr(self._sink, "withheld", False)

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        had = self._had.get(partition)
        if had is None:
            self._sink.records(subscription, partition, batch, first, last)
            return
        until, then = (_at(batch, offset, first, last) for offset in had)
        for start, end in ((first, until), (then, last)):
            if start < end:
                self._sink.records(subscription, partition, batch, start, end)
        if until < last:  # what the peer has need not even be read
            assert isinstance(subscription, Subscription)
            lane = subscription.lanes[partition]
            lane.position = max(lane.position, had[1])
            del self._had[partition]

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("a backlog publishes nothing")

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError("a backlog asks for nothing")

    def evict(self, reason: str) -> None:
        self._sink.evict(reason)


def _at(batch: RecordBatch, offset: int, first: int, last: int) -> int:
    """The index of the first record from `offset` on, between `first` and `last`."""
    return first if offset <= batch.offset(first) else min(last, batch.index_of(offset))
