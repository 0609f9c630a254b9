"""Names the topics in the progress of streaming queries and adds the figures of their source.

Spark 4.3 writes the class and the address of an object there for every Python source, and no metrics; a Python source has no way
to say either. So the classes that pyspark makes progress of are given both, wherever pyspark shows it: lastProgress,
recentProgress, listeners. The Spark UI takes its text from the virtual machine and keeps Spark's own.

    records               offsets of this micro-batch
    bytes                 of these, in the log, by the mean size of the topic's records
    offsetsBehindLatest   records that were in the topics when the batch was planned, and are left for later ones
    maxOffsetsBehindLatest, bytesBehindLatest     of the slowest partition; of all

Metrics are strings, as those of Spark's own sources are. A source of somebody else is left as it is.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, Final

from quintet.spark.source.offsets import ID, RECORD_BYTES

SPARKS: Final = "PythonMicroBatchStream"  # in the description of every Python source
_MARK: Final = "_quintet_describes"


def names() -> None:
    """From now on; again does nothing."""
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    if getattr(StreamingQueryProgress.fromJson, _MARK, False):
        return
    from_json, from_java = StreamingQueryProgress.fromJson, StreamingQueryProgress.fromJObject

    @functools.wraps(from_json)
    def named(cls: type[StreamingQueryProgress], j: dict[str, Any]) -> StreamingQueryProgress:
        return from_json(described(j))

    @functools.wraps(from_java)
    def told(cls: type[StreamingQueryProgress], jprogress: Any) -> StreamingQueryProgress:
        made = from_java(jprogress)
        found = described(json.loads(jprogress.json()))
        for source, better in zip(made.sources, found["sources"], strict=True):
            source.update({name: better[name] for name in ("description", "metrics") if name in better})
            source._jprogress, source._jdict = None, better
        made._jprogress, made._jdict = None, found
        return made

    setattr(named, _MARK, True)
    StreamingQueryProgress.fromJson = classmethod(named)  # type: ignore[assignment,method-assign]  # as said above
    StreamingQueryProgress.fromJObject = classmethod(told)  # type: ignore[assignment,method-assign]


def described(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Spark's JSON of a query's progress, with our sources named."""
    return {**progress, "sources": [_source(each) for each in progress.get("sources", ())]}


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    latest, end = _topics(source.get("latestOffset")), _topics(source.get("endOffset"))
    if SPARKS not in str(source.get("description")) or not (latest or end):
        return dict(source)
    name = f"quintet[{','.join(sorted(latest | end))}]"
    return {**source, "description": name, "metrics": {**source.get("metrics", {}), **_metrics(source, latest, end)}}


def _metrics(
    source: Mapping[str, Any], latest: dict[str, dict[str, Any]], end: dict[str, dict[str, Any]]
) -> dict[str, str]:
    start = _topics(source.get("startOffset"))
    read = {name: sum(gaps(start.get(name), marks)) for name, marks in end.items()} if start else {}
    # Spark leaves the start of a query's first batch out: then what came out of it is what it had.
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


def gaps(reached: Mapping[str, Any] | None, until: Mapping[str, Any]) -> list[int]:
    """Records of each partition between two offsets of a topic; all of them, if the first ones are of another topic."""
    begin = reached if reached is not None and reached.get(ID) == until.get(ID) else {}
    return [max(0, int(at) - int(begin.get(number, 0))) for number, at in until.items() if number.isdigit()]


def _shared(records: int, end: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """A first batch's records by topic, in proportion to how far it went."""
    reached = {name: sum(gaps(None, marks)) for name, marks in end.items()}
    total = sum(reached.values())
    return {name: records * count // total for name, count in reached.items()} if total else {}


def _bytes(records: Mapping[str, int], latest: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(round(count * float(latest.get(name, {}).get(RECORD_BYTES, 0))) for name, count in records.items())


def _topics(offsets: object) -> dict[str, dict[str, Any]]:
    """Offsets of ours; none for null and for those of another source."""
    if isinstance(offsets, dict) and all(isinstance(marks, dict) and ID in marks for marks in offsets.values()):
        return dict(offsets)
    return {}
