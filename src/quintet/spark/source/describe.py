"""Adds the names of topics and the metrics of our source to the progress of streaming queries.

For a Python source Spark 4.3 shows the class and address of an object as its description, and no metrics, and a source cannot set
either. So the classes by which pyspark shows progress are changed: lastProgress, recentProgress and listeners have both. The Spark
UI gets its text from the JVM, where nothing is changed.

    records               records of this micro-batch
    bytes                 their bytes in the log, by the mean size of the topic's records
    offsetsBehindLatest   records that were in the topics when the batch was planned, and are left for later batches
    maxOffsetsBehindLatest, bytesBehindLatest     of the slowest partition; of all

Metrics are strings, like those of Spark's own sources. Other sources are left as they are.
"""

import functools
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypedDict

from quintet.spark.source.offsets import ID, RECORD_BYTES

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # py4j ships no types
    from pyspark.sql.streaming.listener import StreamingQueryProgress

SPARKS: Final = "PythonMicroBatchStream"  # in the description of every Python source
_MARK: Final = "_quintet_describes"

TopicOffsets = Mapping[str, str | int | float]  # an entry of offsets.dump, with RECORD_BYTES in a latest offset


class SourceProgress(TypedDict, total=False):
    """What we use of one source in it. The offsets may be those of another kind of source."""

    description: str
    startOffset: object
    endOffset: object
    latestOffset: object
    numInputRows: int
    metrics: dict[str, str]


class StateProgress(TypedDict, total=False):
    numRowsTotal: int
    memoryUsedBytes: int


class SinkProgress(TypedDict, total=False):
    numOutputRows: int


class QueryProgress(TypedDict, total=False):
    """What we use of Spark's JSON of a query's progress."""

    timestamp: str  # when the trigger began
    numInputRows: int
    processedRowsPerSecond: float
    batchDuration: int  # ms
    durationMs: dict[str, int]  # by step
    sources: list[SourceProgress]
    stateOperators: list[StateProgress]
    sink: SinkProgress


def names() -> None:
    """Change pyspark's classes from now on. A second call does nothing."""
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    if getattr(StreamingQueryProgress.fromJson, _MARK, False):
        return
    from_json, from_java = StreamingQueryProgress.fromJson, StreamingQueryProgress.fromJObject

    @functools.wraps(from_json)
    def named(cls: "type[StreamingQueryProgress]", j: QueryProgress) -> "StreamingQueryProgress":
        return from_json(dict(described(j)))

    @functools.wraps(from_java)
    def told(cls: "type[StreamingQueryProgress]", jprogress: "JavaObject") -> "StreamingQueryProgress":
        made = from_java(jprogress)
        found = described(json.loads(jprogress.json()))
        for source, better in zip(made.sources, found["sources"], strict=True):
            source.update({name: better[name] for name in ("description", "metrics") if name in better})
            source._jprogress, source._jdict = None, dict(better)
        made._jprogress, made._jdict = None, dict(found)
        return made

    setattr(named, _MARK, True)
    StreamingQueryProgress.fromJson = classmethod(named)  # type: ignore[assignment,method-assign]  # why: see above
    StreamingQueryProgress.fromJObject = classmethod(told)  # type: ignore[assignment,method-assign]


def described(progress: QueryProgress) -> QueryProgress:
    """Spark's JSON of a query's progress, with our sources named."""
    return {**progress, "sources": [_source(each) for each in progress.get("sources", ())]}


def _source(source: SourceProgress) -> SourceProgress:
    latest, end = _topics(source.get("latestOffset")), _topics(source.get("endOffset"))
    if SPARKS not in str(source.get("description")) or not (latest or end):
        return source
    name = f"quintet[{','.join(sorted(latest | end))}]"
    return {**source, "description": name, "metrics": {**source.get("metrics", {}), **_metrics(source, latest, end)}}


def _metrics(
    source: SourceProgress, latest: Mapping[str, TopicOffsets], end: Mapping[str, TopicOffsets]
) -> dict[str, str]:
    start = _topics(source.get("startOffset"))
    read = {name: sum(gaps(start.get(name), marks)) for name, marks in end.items()} if start else {}
    # Spark leaves out the start of a query's first batch: then count the rows that Spark read.
    records = sum(read.values()) if start else int(source.get("numInputRows", 0))
    behind = {name: gaps(end.get(name), marks) for name, marks in latest.items()}
    left = {name: sum(each) for name, each in behind.items()}
    return {
        "records": str(records),
        "bytes": str(_bytes(read, latest) if start else _bytes(_shared(records, end), latest)),
        "offsetsBehindLatest": str(sum(left.values())),
        "maxOffsetsBehindLatest": str(max((gap for each in behind.values() for gap in each), default=0)),
        "bytesBehindLatest": str(_bytes(left, latest)),
    }


def gaps(reached: TopicOffsets | None, until: TopicOffsets) -> list[int]:
    """Records of each partition between two offsets of a topic; all of them, if the first ones are of another topic."""
    begin = reached if reached is not None and reached.get(ID) == until.get(ID) else {}
    return [max(0, int(at) - int(begin.get(number, 0))) for number, at in until.items() if number.isdigit()]


def _shared(records: int, end: Mapping[str, TopicOffsets]) -> dict[str, int]:
    """The records of a first batch by topic, in proportion to the offsets it reached."""
    reached = {name: sum(gaps(None, marks)) for name, marks in end.items()}
    total = sum(reached.values())
    return {name: records * count // total for name, count in reached.items()} if total else {}


def _bytes(records: Mapping[str, int], latest: Mapping[str, TopicOffsets]) -> int:
    return sum(round(count * float(latest.get(name, {}).get(RECORD_BYTES, 0))) for name, count in records.items())


def _topics(offsets: object) -> dict[str, TopicOffsets]:
    """Offsets of our source by topic; empty for null and for those of another source."""
    if isinstance(offsets, dict) and all(isinstance(marks, dict) and ID in marks for marks in offsets.values()):
        return dict(offsets)
    return {}
