"""On an executor: record batches as they come out of the log become the ones that Spark was promised.

Without a schema that is at most a change of type names. With one, values are decoded; a row that does not decode is left out
and noted, and `reject` sends the notes to the broker, which copies each of those records to the dead letters of its topic
once, however often a task is repeated. A row whose value is null (a tombstone) stays, with nulls in the typed columns.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.client.errors import OffsetNotFound
from quintet.flight import wire
from quintet.spark.link import Link
from quintet.spark.table import Table
from quintet.spark.typed import decoder

REJECTS_AT_ONCE: Final = 500  # records in one request
CAUSE_LETTERS_MAX: Final = 1_000


class Shape:
    """Turns the batches of one task; rejects of the current part are kept until `reject`."""

    def __init__(self, table: Table, newer: tuple[str, ...] = ()) -> None:
        self._table = table
        self._arrow = table.arrow
        typed = table.typed
        self._decoder = None if typed is None else decoder(typed.kind, typed.definition, (*newer, *typed.older))
        self._rejects: list[tuple[int, str]] = []

    def shaped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch as Spark wants it; nothing if no row is left."""
        columns = self._table.columns
        arrays = [batch.column(name) for name in columns]
        if self._decoder is not None and self._table.typed is not None:
            made, causes = self._decoder.decode(batch.column("value"))
            arrays += [made.column(name) for name in self._table.typed.fields]
            if causes is not None and causes.null_count < len(causes):
                arrays = self._kept(arrays, batch.column("offset"), causes)
        if arrays and not len(arrays[0]):
            return
        yield pa.RecordBatch.from_arrays(
            [
                array if array.type == field.type else array.cast(field.type)
                for array, field in zip(arrays, self._arrow, strict=True)
            ],
            schema=self._arrow,
        )

    def _kept(self, arrays: list[pa.Array], offsets: pa.Array, causes: pa.Array) -> list[pa.Array]:
        bad = causes.is_valid()
        said = zip(offsets.filter(bad).to_pylist(), causes.filter(bad).to_pylist(), strict=True)
        self._rejects += [(offset, cause[:CAUSE_LETTERS_MAX]) for offset, cause in said]
        good = causes.is_null()
        return [array.filter(good) for array in arrays]

    def reject(self, link: Link, topic: str, partition: int) -> None:
        """Send what did not decode since the last call; all of it was of this partition."""
        notes, self._rejects = self._rejects, []
        for begin in range(0, len(notes), REJECTS_AT_ONCE):
            some = notes[begin : begin + REJECTS_AT_ONCE]
            rejects = [wire.Reject(partition, offset, cause) for offset, cause in some]
            try:
                link.reject(wire.RejectRequest(topic, tuple(rejects)))
            except OffsetNotFound:
                _one_by_one(link, topic, rejects)


def _one_by_one(link: Link, topic: str, rejects: list[wire.Reject]) -> None:
    """A record that expired or was removed since it was read has no copy to keep, and must not keep others from theirs."""
    for reject in rejects:
        with contextlib.suppress(OffsetNotFound):
            link.reject(wire.RejectRequest(topic, (reject,)))
