"""Ships what a turn staged to the WAL, and lets it go to the disk when it is confirmed.

Stands in the place of the committer of an embedded log. A partition offers itself twice: with what it staged, which is shipped in
one record with all others of that turn; and with what was confirmed, which it writes to its own files.

    staged -> offer -> one WAL record -> confirmed -> write -> visible, acknowledged
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.partitions.commit import Committer
from quintet.log.embedded.partitions.roles import Chunk, Committable
from quintet.log.embedded.partitions.shared import Report
from quintet.log.replicated.records import RECORD_BYTES_MAX, Entry, batch, entry_bytes
from quintet.model import limits
from quintet.model.errors import StorageError
from quintet.model.scheduler import Scheduler

SHIPPED_BYTES_MAX = RECORD_BYTES_MAX - 64 * limits.KIB  # of the entries of one record
Ship = Callable[[Sequence[Entry]], int]


class Shippable(Committable, Protocol):
    """A partition whose chunks are shipped before they are written."""

    def take_staged(self) -> list[Chunk]:
        """What is staged; from here on it is on its way to the WAL."""

    def confirm(self) -> None:
        """All that was taken counts: write it."""

    @property
    def end(self) -> int: ...


class Shipment:
    """What waits for one WAL record: partitions whose last batch is in it, and calls."""

    __slots__ = ("calls", "entries", "partitions", "size")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.partitions: list[Shippable] = []
        self.calls: list[Callable[[], None]] = []
        self.size = 0


class Shipping(Committer):
    """`ship` and `failed` are set by the engine before anything is offered."""

    __slots__ = ("_changes", "_removals", "_staged", "_under_way", "_writable", "failed", "ship", "touched")

    def __init__(self, disk: Disk, scheduler: Scheduler, report: Report) -> None:
        super().__init__(disk, scheduler, report)
        self.ship: Ship
        self.failed: Callable[[StorageError], None]
        self.touched: set[Shippable] = set()  # partitions that were written to since the engine took them
        self._staged: list[Shippable] = []
        self._writable: list[Shippable] = []
        self._changes: list[tuple[Entry, Callable[[], None]]] = []
        self._removals: list[tuple[Entry, Callable[[], None]]] = []
        self._under_way: dict[int, Shipment] = {}

    def change(self, entry: Entry, then: Callable[[], None]) -> None:
        """Ship an entry before the batches of this turn, which may need it; then() when it counts."""
        self._changes.append((entry, then))
        self._turn_soon()

    def remove(self, entry: Entry, then: Callable[[], None]) -> None:
        """Ship an entry behind the batches of this turn; then() when it counts."""
        self._removals.append((entry, then))
        self._turn_soon()

    def offer_staged(self, partition: Shippable) -> None:
        self._staged.append(partition)
        self._turn_soon()

    def offer_confirmed(self, partition: Shippable) -> None:
        self._writable.append(partition)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._scheduler.soon(self._turn)

    def pump(self) -> None:
        writable, self._writable = self._writable, []
        for partition in writable:
            partition.write_direct()
        if self._staged or self._changes or self._removals:
            self._ship_staged()

    def _ship_staged(self) -> None:
        staged, self._staged = self._staged, []
        changes, self._changes = self._changes, []
        removals, self._removals = self._removals, []
        shipment = Shipment()
        for entry, then in changes:
            shipment = self._add(shipment, entry)
            shipment.calls.append(then)
        for partition in staged:
            for chunk in partition.take_staged():
                for buffer in chunk.buffers:
                    shipment = self._add(shipment, batch(partition.topic_id, partition.number, bytes(buffer)))
            shipment.partitions.append(partition)
        for entry, then in removals:
            shipment = self._add(shipment, entry)
            shipment.calls.append(then)
        self._send(shipment)

    def _add(self, shipment: Shipment, entry: Entry) -> Shipment:
        """The shipment that has the entry: the next one, if this one is full."""
        size = entry_bytes(entry)
        if shipment.entries and shipment.size + size > SHIPPED_BYTES_MAX:
            self._send(shipment)
            shipment = Shipment()
        shipment.entries.append(entry)
        shipment.size += size
        return shipment

    def _send(self, shipment: Shipment) -> None:
        self._under_way[self.ship(shipment.entries)] = shipment

    def confirmed(self, sequence: int) -> None:
        """The record counts."""
        shipment = self._under_way.pop(sequence, None)
        if shipment is None:
            return  # a heartbeat
        for partition in shipment.partitions:
            partition.confirm()
        for call in shipment.calls:
            call()
