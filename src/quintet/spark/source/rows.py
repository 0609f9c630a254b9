"""Turns record batches of the log into batches with the columns that Spark expects, on an executor.

Without a schema only types are cast. With one, values are decoded, and the option onDecodeError says what happens to a row that does
not decode. It is never lost in silence:

    null         it stays, with nulls in the typed columns and its cause in decode_error; a warning counts such rows
    fail         the read fails with the offset of the row and its cause
    deadletter   it is left out, and `handle_bad_rows` asks the broker to copy the record to the dead letters of its topic: once, however
                 often a task is repeated

A row whose value is null (a tombstone) stays, with nulls in the typed columns.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.client.core.errors import Forbidden, OffsetNotFound
from quintet.flight import wire
from quintet.spark.source.columns import ReadColumns
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import OptionError
from quintet.spark.typed import decoder

REJECTS_AT_ONCE: Final = 500  # records in one request
CAUSE_LETTERS_MAX: Final = 1_000

_log = logging.getLogger("quintet.spark")


class Shape:
    """Turns the batches of one task: `shaped` for each batch, `handle_bad_rows` after it, `finish` at the end."""

    def __init__(self, table: ReadColumns, newer: tuple[str, ...] = ()) -> None:
        self._table = table
        self._arrow = table.arrow
        typed = table.typed
        self._decoder = (
            None
            if typed is None
            else decoder(typed.kind, typed.definition, (*newer, *typed.older), prefix=typed.prefix, ids=typed.ids)
        )
        self._bad: list[tuple[int, str]] = []  # offset and cause, since the last `handle_bad_rows`
        # Topic and partition -> how many rows did not decode, the offset of the first and its cause.
        self._counts: dict[tuple[str, int], tuple[int, int, str]] = {}

    def shaped(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch with the columns that Spark expects; nothing if no row is left."""
        columns = self._table.columns
        arrays = [batch.column(name) for name in columns]
        if self._decoder is not None and self._table.typed is not None:
            made, causes = self._decoder.decode(batch.column("value"))
            arrays += [made.column(name) for name in self._table.typed.fields]
            if self._table.causes:
                arrays.append(pa.nulls(len(batch), pa.string()) if causes is None else causes)
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
        assert self._table.typed is not None
        bad = causes.is_valid()
        said = zip(offsets.filter(bad).to_pylist(), causes.filter(bad).to_pylist(), strict=True)
        self._bad += [(offset, cause[:CAUSE_LETTERS_MAX]) for offset, cause in said]
        if self._table.typed.on_error == "null":
            return arrays
        good = causes.is_null()
        return [array.filter(good) for array in arrays]

    def handle_bad_rows(self, connection: FlightConnection, topic: str, partition: int) -> None:
        """Apply onDecodeError to the rows of this partition that did not decode since the last call."""
        bad, self._bad = self._bad, []
        if not bad or self._table.typed is None:
            return
        offset, cause = bad[0]
        match self._table.typed.on_error:
            case "fail":
                raise OptionError(
                    "onDecodeError",
                    f"offset {offset} of {topic}/{partition} does not decode: {cause}; null reads such rows with nulls and "
                    "the cause in decode_error, deadletter copies them to the dead letters",
                )
            case "deadletter":
                try:
                    _reject(connection, topic, partition, bad)
                except Forbidden as error:
                    raise OptionError(
                        "onDecodeError",
                        f"the dead letters of {topic} cannot be written: {error}; set it to null or fail",
                    ) from None
            case _:
                count, first, why = self._counts.get((topic, partition), (0, offset, cause))
                self._counts[topic, partition] = (count + len(bad), first, why)

    def finish(self) -> None:
        """Log how many rows have nulls because they did not decode."""
        for (topic, partition), (count, offset, cause) in self._counts.items():
            _log.warning(
                "quintet: %d rows of %s/%d did not decode and have nulls in the typed columns; the first is offset %d: %s",
                *(count, topic, partition, offset, cause),
            )


def _reject(connection: FlightConnection, topic: str, partition: int, bad: list[tuple[int, str]]) -> None:
    for begin in range(0, len(bad), REJECTS_AT_ONCE):
        some = bad[begin : begin + REJECTS_AT_ONCE]
        rejects = [wire.Reject(partition, offset, cause) for offset, cause in some]
        try:
            connection.reject(wire.RejectRequest(topic, tuple(rejects)))
        except OffsetNotFound:
            _one_by_one(connection, topic, rejects)


def _one_by_one(connection: FlightConnection, topic: str, rejects: list[wire.Reject]) -> None:
    """A record that expired or was removed since it was read cannot be copied, and must not stop the others."""
    for reject in rejects:
        with contextlib.suppress(OffsetNotFound):
            connection.reject(wire.RejectRequest(topic, (reject,)))
