"""Decides which offsets each micro-batch of a streaming query covers. reader.py reads them.

Spark keeps one StreamReader in a Python process of the driver and asks it, for each micro-batch, how far it may go; the tasks use
copies. startingOffsets (default latest) or startingTimestamp says where a new query starts; a query with a checkpoint goes on from
that. Topics and partitions that appear later are read from their beginning.

What a topic can do between two micro-batches, and what follows:

    it grows                                  the next offsets: maxOffsetsPerTrigger of them, or about a gigabyte
    it is new, or has new partitions          read from the beginning
    its retention passed what was not read    failOnDataLoss: an error, or read on from where it begins now
    it was deleted                            failOnDataLoss: an error, or it is left out
    it was deleted and made again             failOnDataLoss: an error, or the new one is read from its beginning
    another log is behind the url             the same: topics are compared by identity (offsets.py), not by name
    it is shorter than what was read          failOnDataLoss: an error, or read on from its end

In a cell, each answer may come from another node: every question names the offsets that the query has seen, and a follower that does not
have them does not answer. So a follower that is behind is not taken for a topic that lost records.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from quintet.flight import wire
from quintet.model.errors import QuintetError
from quintet.spark.source.columns import ReadColumns
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.offsets import RECORD_BYTES, Marks, Offsets, Saved, dump, load, share
from quintet.spark.source.options import (
    BYTES_PER_TRIGGER,
    OptionError,
    ReadOptions,
    complain,
    errors_without_trace,
    errors_without_trace_each,
)
from quintet.spark.source.reader import at_time, cut, gone, lost, positions, read_task, select, tasks, whole
from quintet.spark.source.spans import Span


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, options: ReadOptions, table: ReadColumns) -> None:
        self._options = options
        self._table = table
        self._frozen: dict[str, wire.TopicInfo] | None = None  # with availableNow: the topics as they were at the start
        self._compared = False  # what was noted at the start, with where the query is
        self._log = ""  # the log that answered last

    @errors_without_trace
    def initialOffset(self) -> Saved:
        options, connection = self._options, self._connection()
        topics = self._frozen if self._frozen is not None else select(options, connection)
        if options.starting_us is None:
            starts = positions("startingOffsets", options.starting or "latest", topics)
        else:
            starts = at_time(connection, topics, options.starting_us)
            if (
                self._frozen is not None
            ):  # otherwise a start after an end that was noted earlier would look like lost records
                self._frozen = self._known()
        return dump(
            {
                name: Marks(info.identity, tuple(starts[name, number] for number in range(len(info.partitions))))
                for name, info in topics.items()
            }
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.rows_per_trigger
        return ReadMaxRows(rows) if rows else ReadMaxBytes(BYTES_PER_TRIGGER)

    @errors_without_trace
    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._known()

    @errors_without_trace
    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> Saved:
        begin = load(start)
        if self._frozen is not None and not self._compared and any(map(self._is_behind, begin, begin.values())):
            self._frozen = self._known(begin)  # a follower noted less than the checkpoint has
        self._compared = True
        topics = self._frozen if self._frozen is not None else self._known(begin)
        begin = self._reconciled(begin, topics)
        backlog = {
            (name, number): part.end - max(offset, part.first)
            for name, info in topics.items()
            for number, (offset, part) in enumerate(zip(begin[name].at, info.partitions, strict=True))
        }
        rows = _allowed(limit, sum(backlog.values()), topics)
        taken = share(rows, backlog, sum(sum(marks.at) for marks in begin.values()))
        end: Offsets = {}
        for name, info in topics.items():
            marks = begin[name]
            # Past what retention removed, even if no record is left to read: `partitions` then reports the loss.
            at = [
                max(offset, part.first) + taken[name, number]
                for number, (offset, part) in enumerate(zip(marks.at, info.partitions, strict=True))
            ]
            end[name] = Marks(info.identity, tuple(at))
        return dump(end)

    @errors_without_trace
    def reportLatestOffset(self) -> dict[str, dict[str, str | int | float]] | None:
        """Only for the query's progress, so it may have what a checkpoint has not: the mean size of records (describe.py)."""
        topics = self._known()
        ends = {
            name: Marks(info.identity, tuple(part.end for part in info.partitions)) for name, info in topics.items()
        }
        return {name: {**marks, RECORD_BYTES: _record_bytes(topics[name])} for name, marks in dump(ends).items()}

    @errors_without_trace
    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        begin, until = load(start), load(end)
        topics = self._named(until)
        spans: list[Span] = []
        for name, marks in until.items():
            before, info = begin.get(name), topics.get(name)
            same = before is not None and info is not None and before.of(info) and marks.of(info)
            spans += self._spans(name, before.at if before is not None and same else (), marks, info)
        return tasks(self._options, self._table, spans)

    @errors_without_trace_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_task(self._options, self._table, partition)

    # -- internals -----------------------------------------------------------------------------------------------

    def _connection(self) -> FlightConnection:
        return FlightConnection.of(self._options.target)

    def _known(self, seen: Offsets | None = None) -> dict[str, wire.TopicInfo]:
        """The topics that exist now. `_reconciled` reports one that was named and is gone. seen: what a node must have to answer."""
        least = self._least(seen or {})
        return self._found(wire.Selection(self._options.topics, self._options.pattern, at_least=least))

    def _named(self, names: Mapping[str, Marks]) -> dict[str, wire.TopicInfo]:
        return self._found(wire.Selection(tuple(names), at_least=self._least(names))) if names else {}

    def _least(self, seen: Mapping[str, Marks]) -> tuple[wire.Least, ...]:
        if not self._options.target.read_from:
            return ()
        return tuple(
            wire.Least(name, marks.id if isinstance(marks.id, str) else "", marks.at) for name, marks in seen.items()
        )

    def _is_behind(self, name: str, marks: Marks) -> bool:
        info = (self._frozen or {}).get(name)
        return bool(self._options.target.read_from) and (
            info is None or any(at > part.end for at, part in zip(marks.at, info.partitions, strict=False))
        )

    def _found(self, selection: wire.Selection) -> dict[str, wire.TopicInfo]:
        found = self._connection().topics(selection)
        self._log = found.log
        return {info.name: info for info in found.topics}

    def _reconciled(self, begin: Offsets, topics: Mapping[str, wire.TopicInfo]) -> Offsets:
        """Where to go on in the topics that exist. New ones begin at their beginning; a loss is reported."""
        result: Offsets = {}
        for name, marks in begin.items():
            info = topics.get(name)
            if self._is_foreign(marks):
                self._foreign(name, marks)
            elif info is None:
                lost(self._options, f"topic {name} was deleted, or may no longer be read, while a query was reading it")
            elif not marks.of(info):
                lost(self._options, f"topic {name} was deleted and made again while a query was reading it")
            elif len(info.partitions) < len(marks.at):
                raise OptionError("checkpointLocation", f"its offsets name more partitions than {name} has")
            else:
                for number, (offset, part) in enumerate(zip(marks.at, info.partitions, strict=False)):
                    if offset > part.end:
                        lost(self._options, f"{name}/{number} ends at {part.end}, before {offset}, where the query is")
                at = [min(offset, part.end) for offset, part in zip(marks.at, info.partitions, strict=False)]
                result[name] = Marks(info.identity, (*at, *_firsts(info)[len(at) :]))
        for name, info in topics.items():
            result.setdefault(name, Marks(info.identity, _firsts(info)))
        return result

    def _is_foreign(self, marks: Marks) -> bool:
        return bool(self._log) and marks.log not in ("", self._log)

    def _foreign(self, name: str, marks: Marks) -> None:
        """Report that a position belongs to another log: its offsets mean nothing in this one."""
        lost(
            self._options,
            f"topic {name} in the checkpoint belongs to another log ({marks.log}); this broker has the log {self._log}: the "
            "broker behind the url was replaced, or its data folder was emptied",
            "use a new checkpointLocation, or set it to false to read what this broker has from its beginning",
        )

    def _spans(self, name: str, firsts: Sequence[int], end: Marks, info: wire.TopicInfo | None) -> list[Span]:
        """What a micro-batch reads of one topic. `firsts` has no entry for a partition that is new."""
        wanted = [
            (number, firsts[number] if number < len(firsts) else None, last) for number, last in enumerate(end.at)
        ]
        wanted = [(number, first, last) for number, first, last in wanted if (first or 0) < last]
        if not wanted:
            return []
        if self._is_foreign(end):
            self._foreign(name, end)
            return []
        if info is None or not end.of(info):
            lost(self._options, f"topic {name} was deleted before all of it was read")
            return []
        spans = []
        for number, first, last in wanted:
            part = info.partitions[number]
            if first is not None and first < part.first:
                lost(self._options, gone(name, number, first, min(part.first, last)))
            if last > part.end:
                lost(self._options, f"{name}/{number} ends at {part.end}, before {last}, which was to be read")
            spans.append(cut(whole(info, number), first or 0, last))
        return spans


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot be read: every method raises the error."""

    def __init__(self, error: QuintetError | OptionError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:
        complain(self._error)

    def getDefaultReadLimit(self) -> ReadLimit:
        complain(self._error)

    def initialOffset(self) -> Saved:
        complain(self._error)

    def latestOffset(self, start: Mapping[str, object], limit: ReadLimit) -> Saved:
        complain(self._error)

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[InputPartition]:
        complain(self._error)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        complain(self._error)


def _allowed(limit: ReadLimit, there: int, topics: Mapping[str, wire.TopicInfo]) -> int:
    """How many rows a micro-batch may have. A limit in bytes becomes rows by the mean size of the topics' records."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if not isinstance(limit, ReadMaxBytes):
        return there
    size, rows = map(sum, zip(*(_size(info) for info in topics.values()), strict=True)) if topics else (0, 0)
    return max(1, limit.max_bytes * rows // size) if size else there


def _size(info: wire.TopicInfo) -> tuple[int, int]:
    """Bytes and records of a topic."""
    return sum(part.bytes for part in info.partitions), sum(part.end - part.first for part in info.partitions)


def _record_bytes(info: wire.TopicInfo) -> float:
    size, rows = _size(info)
    return round(size / rows, 1) if rows else 0.0


def _firsts(info: wire.TopicInfo) -> tuple[int, ...]:
    return tuple(part.first for part in info.partitions)
