"""Defines Sink: a connection as the broker and delivery see it. All callbacks to a connection go through it.

The connection in net/ implements it: it enters its session, then drains the session's output to the socket.
"""

from collections.abc import Callable
from typing import Protocol

from quintet.model.batch import RecordBatch


class Sink(Protocol):
    """Where results and records go. Delivery pulls: it asks for `room` before it reads the log. One that has no room because of a
    quota says so by `withheld`; who has no such attribute never has that reason."""

    def room(self) -> int:
        """Bytes the peer's socket buffer takes now; 0 or less: not now."""

    def park(self, call: Callable[[], None]) -> None:
        """Call once, when there is room again (never after the connection is gone)."""

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        """A publish is durable as promised, or failed."""

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        """Another verb that had to wait is done."""

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        """Records first..last-1 of a batch of a partition, for a subscription of this peer."""

    def evict(self, reason: str) -> None:
        """Close this connection politely: its credentials are no longer valid, or the broker stops."""
