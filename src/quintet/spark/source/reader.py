"""Plans the tasks of a read on the driver, and reads the record batches of a task on an executor.

    driver     select -> bounds -> narrow (pushed filters) -> tasks (split or packed) -> locate
    executor   for each part of the task: open_range -> shape -> Spark

A task has the ranges of offsets to read and the segment files that the broker named for them. `open_range` is the only place that
knows how to get the bytes: from the broker's files, mapped, or over Flight. Files are only a faster way: records that they do not
have any more are asked of the broker, which knows whether they are lost.

The stream reader (stream.py) plans in its own way and shares everything from `tasks` on.
"""

import itertools
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from quintet.client.core.errors import BadRequest, OffsetNotFound
from quintet.flight import columns as arrow_columns
from quintet.flight import wire
from quintet.log import mapped
from quintet.model.errors import CorruptData, DataLost, QuintetError
from quintet.model.limits import PARTITIONS_MAX
from quintet.spark.source.columns import ReadColumns, newer
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.narrow import Narrowing
from quintet.spark.source.options import (
    EARLIEST,
    LATEST,
    OptionError,
    ReadOptions,
    Start,
    errors_without_trace,
    errors_without_trace_each,
)
from quintet.spark.source.rows import Shape
from quintet.spark.source.spans import MappedSpan, Span

PACK_ROWS: Final = 50_000  # a task takes more partitions until it has this many rows
PACK_BYTES: Final = 16 << 20  # or this many bytes
LOCATE_RANGES_MAX: Final = 5_000  # in one request
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger("quintet.spark")


class Task(InputPartition):
    """What one Spark task reads, and the versions of its schema that are newer than its columns."""

    value: tuple[MappedSpan, ...]

    def __init__(self, parts: tuple[MappedSpan, ...], newer: tuple[str, ...] = ()) -> None:
        super().__init__(parts)
        self.newer = newer

    def __repr__(self) -> str:
        return "Task(" + ", ".join(f"{s.topic}/{s.partition}[{s.first}:{s.last}]" for s, _, _ in self.value) + ")"


# -- on the driver ----------------------------------------------------------------------------------------------------


def lost(options: ReadOptions, what: str, remedy: str = "set it to false to go on with what is there") -> None:
    """Report records that should be read and are gone: OptionError if failOnDataLoss is true, a warning if not."""
    if options.fail_on_data_loss:
        raise OptionError("failOnDataLoss", f"{what}; {remedy}")
    _log.warning("quintet: %s; going on because failOnDataLoss is false", what)


def select(options: ReadOptions, connection: FlightConnection) -> dict[str, wire.TopicInfo]:
    """The topics to read, by name. One that was named must exist; a pattern may match nothing yet."""
    try:
        found = connection.topics(wire.Selection(options.topics, options.pattern, _named(options)))
    except BadRequest as error:
        raise OptionError("subscribePattern" if options.pattern else "subscribe", str(error)) from None
    if found.missing:
        raise OptionError(
            "subscribe",
            f"there is no topic {', '.join(map(repr, found.missing))} that this user may read; create it first, "
            "or use subscribePattern, which waits for topics",
        )
    return {info.name: info for info in found.topics}


def _named(options: ReadOptions) -> tuple[wire.Least, ...]:
    """What a follower must have: the offsets that the options name."""
    if not options.target.read_from:
        return ()
    ends: dict[str, dict[int, int]] = {}
    for start in (options.starting, options.ending):
        for topic, partitions in start.items() if isinstance(start, dict) else ():
            for number, offset in partitions.items():
                known = ends.setdefault(topic, {})
                known[number] = max(known.get(number, 0), offset, 0)
    return tuple(
        wire.Least(topic, "", tuple(known.get(number, 0) for number in range(max(known) + 1)))
        for topic, known in ends.items()
        if max(known) < PARTITIONS_MAX
    )


def whole(info: wire.TopicInfo, partition: int) -> Span:
    part = info.partitions[partition]
    return Span(info.name, info.id, partition, part.first, part.end, part.bytes, info.identity)


def cut(span: Span, first: int, last: int) -> Span:
    """The records of a span that are in first <= offset < last, and their share of its bytes."""
    first, last = max(span.first, first), min(span.last, last)
    if first >= last:
        return span._replace(first=first, last=first, bytes=0)
    return span._replace(first=first, last=last, bytes=span.bytes * (last - first) // max(1, span.rows))


def positions(name: str, start: Start, topics: dict[str, wire.TopicInfo]) -> dict[tuple[str, int], int]:
    """The offset of every partition that startingOffsets or endingOffsets (`name`) names."""
    found = {}
    if isinstance(start, dict):
        for topic in start:
            if topic not in topics:
                raise OptionError(name, f"it names the topic {topic!r}, which is not read here")
    for topic, info in topics.items():
        said = start.get(topic, {}) if isinstance(start, dict) else {}
        for partition in said:
            if partition >= len(info.partitions):
                raise OptionError(name, f"{topic} has {len(info.partitions)} partitions, there is no {partition}")
        for number, part in enumerate(info.partitions):
            if isinstance(start, dict) and number not in said:
                raise OptionError(name, f"{topic}/{number} is missing; name every partition (-2: earliest, -1: latest)")
            offset = said.get(number, EARLIEST if start == "earliest" else LATEST)
            if offset > part.end:
                raise OptionError(name, f"{topic}/{number} ends at {part.end}, there is no offset {offset}")
            found[topic, number] = {EARLIEST: part.first, LATEST: part.end}.get(offset, offset)
    return found


def at_time(connection: FlightConnection, topics: Iterable[str], at_us: int) -> dict[tuple[str, int], int]:
    """Of every partition the first offset whose record is not older."""
    return {
        (topic, partition): offset
        for topic in topics
        for partition, offset in enumerate(connection.offsets_for_time(topic, at_us))
    }


def bounds(options: ReadOptions, connection: FlightConnection, topics: dict[str, wire.TopicInfo]) -> list[Span]:
    """The ranges of a batch read, by its options."""
    if options.starting_us is None:
        starts = positions("startingOffsets", options.starting or "earliest", topics)
    else:
        starts = at_time(connection, topics, options.starting_us)
    if options.ending_us is None:
        ends = positions("endingOffsets", options.ending, topics)
    else:
        ends = at_time(connection, topics, options.ending_us)
    spans = []
    for topic, info in topics.items():
        for partition, part in enumerate(info.partitions):
            first, last = starts[topic, partition], ends[topic, partition]
            if first < part.first and first < last:
                lost(options, gone(topic, partition, first, part.first))
            spans.append(cut(whole(info, partition), first, last))
    return spans


def gone(topic: str, partition: int, first: int, last: int) -> str:
    return (
        f"{topic}/{partition} begins at offset {last} now: the records {first} to {last - 1} were removed "
        "by its retention before they were read"
    )


def tasks(options: ReadOptions, table: ReadColumns, spans: Sequence[Span]) -> list[InputPartition]:
    """The spans as tasks, each with the files that hold its records."""
    connection = FlightConnection.of(options.target)
    spans = [span for span in spans if span.rows > 0]
    if not spans:
        return []
    versions = newer(table, connection)
    groups = [[piece] for piece in split(spans, options.tasks_min)] if options.tasks_min else pack(spans)
    located = iter(locate(options, connection, [span for group in groups for span in group]))
    return [Task(tuple(next(located) for _ in group), versions) for group in groups]


def pack(spans: Sequence[Span]) -> list[list[Span]]:
    """Group small partitions, because starting a task costs more than reading a few rows; a partition is never in two tasks."""
    groups: list[list[Span]] = []
    rows = size = 0
    for span in spans:
        if not groups or rows >= PACK_ROWS or size >= PACK_BYTES:
            groups.append([])
            rows = size = 0
        groups[-1].append(span)
        rows += span.rows
        size += span.bytes
    return groups


def split(spans: Sequence[Span], least: int) -> list[Span]:
    """At least so many spans (if there are as many rows), each partition cut in proportion to its rows."""
    total = sum(span.rows for span in spans)
    pieces = []
    for span in spans:
        count = min(span.rows, max(1, -(-least * span.rows // total)))
        edges = [span.first + span.rows * number // count for number in range(count + 1)]
        pieces += [cut(span, first, last) for first, last in itertools.pairwise(edges)]
    return pieces


def locate(options: ReadOptions, connection: FlightConnection, spans: Sequence[Span]) -> list[MappedSpan]:
    """Ask the broker for the files of the spans, in as few calls as there are topics."""
    if options.access == "flight":
        return [MappedSpan(span) for span in spans]
    parts: dict[int, MappedSpan] = {}
    by_topic: dict[str, list[int]] = {}
    for number, span in enumerate(spans):
        by_topic.setdefault(span.topic, []).append(number)
    for topic, numbers in by_topic.items():
        for begin in range(0, len(numbers), LOCATE_RANGES_MAX):
            some = numbers[begin : begin + LOCATE_RANGES_MAX]
            ranges = tuple(wire.Range(spans[n].partition, spans[n].first, spans[n].last) for n in some)
            found = connection.locate(wire.LocateRequest(topic, ranges))
            for number, files in zip(some, found.files, strict=True):
                same = found.machine is not None and found.identity == spans[number].identity and bool(files)
                if not same and options.access == "files":
                    raise OptionError(
                        "access",
                        f"the broker names no files for {topic}: it is in memory, or the broker's map_files is off; "
                        "access=auto reads it over Flight",
                    )
                parts[number] = MappedSpan(spans[number], found.machine if same else None, files if same else ())
    return [parts[number] for number in range(len(spans))]


# -- on an executor ---------------------------------------------------------------------------------------------------


def same_machine(machine: wire.Machine) -> bool:
    """Whether the broker's paths are its files on this machine, too: the same boot id, the same lock file, and the same log by the
    file `identity` beside the lock, because a directory that was emptied may get the same inode again."""
    try:
        here = BOOT_ID.read_text().strip()
        lock = os.stat(machine.lock_path)
    except OSError:
        return False
    same = here == machine.boot_id and (lock.st_dev, lock.st_ino) == (machine.lock_device, machine.lock_inode)
    return same and mapped.log_of(os.path.dirname(machine.lock_path)) == machine.log


def open_range(
    options: ReadOptions, part: MappedSpan, columns: tuple[str, ...], asked: dict[str, str]
) -> Iterator[pa.RecordBatch]:
    """The records of a part, in order, from files if possible. The batches may have more columns. Adds to `asked` the topics that were
    read from the broker, with the identities they should have."""
    span = part.span
    first = span.first
    if part.machine is not None and part.files and same_machine(part.machine) and _readable(part.files):
        first = yield from _from_files(options, part, columns)
        # Otherwise the files may have been another log's. Spark takes no rows of a task that fails.
        if not same_machine(part.machine):
            raise OptionError(
                "access", f"the data folder of the broker was replaced while {span.topic} was read; run it again"
            )
    if first >= span.last:
        return
    if options.access == "files":
        raise OptionError(
            "access",
            f"the files of {span.topic}/{span.partition} do not have offset {first} here; are they on this machine, readable "
            "for this user, and not removed by retention? access=auto asks the broker then",
        )
    asked[span.topic] = span.identity
    yield from _from_broker(options, span._replace(first=first), columns)


def _readable(files: Iterable[wire.SegmentFile]) -> bool:
    """Whether this user may read the files. Removed ones do not count: log.mapped finds where their records are now."""
    return all(os.access(file.path, os.R_OK) or not os.path.exists(file.path) for file in files)


def _from_files(
    options: ReadOptions, part: MappedSpan, columns: tuple[str, ...]
) -> Generator[pa.RecordBatch, None, int]:
    """Yields what the files have, and returns the first offset that they do not have, or have only damaged."""
    span, following = part.span, part.span.first
    if not options.fail_on_data_loss:
        columns = _with_offset(columns)
    found = mapped.read(
        part.files,
        span.id,
        span.partition,
        span.first,
        span.last,
        columns=arrow_columns.bits(columns),
        rows_max=wire.ROWS_PER_BATCH,
        now=time.time_ns() // 1000,
        name=span.topic,
    )
    try:
        for gathered in found:
            batch = arrow_columns.to_batch(gathered, span.topic, span.partition, columns)
            if not options.fail_on_data_loss:
                following = _behind(batch)
            yield batch
    except DataLost as error:
        return error.first
    except CorruptData:
        if options.fail_on_data_loss:
            raise
        return following
    return span.last


def _from_broker(options: ReadOptions, span: Span, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read over Flight. The first attempt fails on lost records, so that they are reported before they are skipped."""
    connection = FlightConnection.of(options.target)
    ticket = wire.Ticket(span.topic, span.partition, span.first, span.last, _with_offset(columns))
    following = span.first
    try:
        for batch in connection.read(ticket):
            following = _behind(batch)
            yield batch
    except QuintetError as error:
        damaged = error.code == CorruptData.code and not options.fail_on_data_loss
        if not damaged and not isinstance(error, OffsetNotFound):
            raise
        lost(options, f"{span.topic}/{span.partition}, {following} to {span.last - 1}: {error}")
        yield from connection.read(msgspec.structs.replace(ticket, first=following, fail_on_data_loss=False))


def _with_offset(columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in wire.COLUMNS if name in columns or name == "offset")


def _behind(batch: pa.RecordBatch) -> int:
    """The offset after the last row."""
    return int(batch.column("offset")[batch.num_rows - 1].as_py()) + 1


def read_task(options: ReadOptions, table: ReadColumns, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """All record batches of a task. If there are no tasks, Spark makes one of its own, which is empty."""
    if not isinstance(task, Task):
        return
    connection = FlightConnection.of(options.target)
    shape = Shape(table, task.newer)
    asked: dict[str, str] = {}
    for part in task.value:
        for batch in open_range(options, part, table.needed, asked):
            yield from shape.shaped(batch)
            shape.handle_bad_rows(connection, part.span.topic, part.span.partition)
    shape.finish()
    if asked:
        _still_the_same(connection, asked)


def _still_the_same(connection: FlightConnection, asked: dict[str, str]) -> None:
    """OptionError if a topic was replaced while it was read. A ticket has only the topic's name, and a name may be used again, an
    identity never. The task fails whatever failOnDataLoss says; the next plan finds the new topic and applies failOnDataLoss."""
    least = tuple(wire.Least(*known) for known in asked.items()) if connection.target.read_from else ()
    found = connection.topics(wire.Selection(tuple(asked), at_least=least)).topics
    now = {info.name: info.identity for info in found}
    for topic, identity in asked.items():
        if now.get(topic) != identity:
            raise OptionError(
                "failOnDataLoss", f"topic {topic} was deleted, or made again, while it was read; run it again"
            )


# -- what Spark calls -------------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """One batch read. Its ranges are decided when Spark asks for partitions."""

    def __init__(self, options: ReadOptions, table: ReadColumns) -> None:
        self._options = options
        self._table = table
        self._narrowing = Narrowing(table.columns)

    @errors_without_trace
    def partitions(self) -> Sequence[InputPartition]:
        options, connection = self._options, FlightConnection.of(self._options.target)
        spans = self._narrowing.spans(bounds(options, connection, select(options, connection)))
        if self._narrowing.since_us is not None and spans:
            since = at_time(connection, dict.fromkeys(span.topic for span in spans), self._narrowing.since_us)
            spans = [cut(span, since[span.topic, span.partition], span.last) for span in spans]
        return tasks(options, self._table, spans)

    @errors_without_trace_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_task(self._options, self._table, partition)


class PushingReader(BatchReader):
    """A batch read that takes filters. Only for sessions that push filters: in others Spark refuses such a reader."""

    @errors_without_trace
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._narrowing.push(filters)
