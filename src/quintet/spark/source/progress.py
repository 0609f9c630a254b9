"""Shows streaming queries on the broker: commits the end of each micro-batch as the offsets of a group.

The group is `groupIdPrefix` (spark-quintet), a dash, and the name of the query, or its id if it has none. These positions are
for people and dashboards: a query starts again from its checkpoint, never from its group. The source itself cannot commit them, because
Spark tells it neither about the last batch nor which query it belongs to. A listener is told both.

Spark gives a listener the offsets, but neither url nor credentials. When a query starts, they are taken from its plan in the JVM of
this process and kept in memory until it ends. So any session with this listener shows its queries, however they were made. With
Spark Connect there is no such plan, and nothing is published.

A broker that cannot be reached or refuses must never harm a query: a failure is logged once per query, and the next batch
tries again. The query's own progress has the lag, too (`latestOffset` and `endOffset`).
"""

import dataclasses
import json
import logging
import threading
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from quintet.flight import wire
from quintet.model.errors import QuintetError
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.offsets import load
from quintet.spark.source.options import OptionError, ReadOptions, read_options

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]  # py4j ships no types
    from pyspark.sql import SparkSession

SOURCE: Final = "quintet"
STREAMING_RELATION: Final = "StreamingRelationV2"
RETRY_SECONDS_MAX: Final = 2.0  # later events wait for the one that waits for a broker

_log = logging.getLogger("quintet.spark")


class Progress(StreamingQueryListener):
    """Publishes the progress of every query of a session that reads topics."""

    def __init__(self, spark: "SparkSession") -> None:
        super().__init__()
        self._spark = spark
        self._queries: dict[
            str, list[ReadOptions | None]
        ] = {}  # run id -> the options of each source; None: not a topic
        self._complained: set[str] = set()
        self.published = threading.Condition()  # notified after each commit, for tests and runners
        self.commits = 0

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        try:
            sources = sources_of(self._spark, str(event.id))
        except Exception as error:  # Spark's internals: another release may keep the plan elsewhere
            _log.warning("quintet: the progress of query %s cannot be shown on the broker: %r", event.id, error)
            return
        if any(sources):
            self._queries[str(event.runId)] = sources

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        run = str(progress.runId)
        sources = self._queries.get(run)
        if sources is None:
            return
        for options, source in zip(sources, progress.sources, strict=False):
            if options is not None and source.endOffset:
                try:
                    publish(options, progress.name or str(progress.id), source.endOffset)
                except (QuintetError, OptionError, ValueError) as error:
                    if run not in self._complained:
                        self._complained.add(run)
                        _log.warning("quintet: the progress of query %s was not published: %s", progress.id, error)
                    continue
                with self.published:
                    self.commits += 1
                    self.published.notify_all()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was read, so nothing changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._queries.pop(str(event.runId), None)
        self._complained.discard(str(event.runId))


_attached: "dict[int, Progress]" = {}


def attach(spark: "SparkSession") -> Progress:
    """Show the queries of a session on the broker. A second call for a session does nothing."""
    key = id(spark._jsparkSession)
    listener = _attached.get(key)
    if listener is None:
        listener = _attached[key] = Progress(spark)
        spark.streams.addListener(listener)
    return listener


def publish(options: ReadOptions, query: str, end: str) -> None:
    """Commit the end of a micro-batch as the offsets of the query's group."""
    marks = load(json.loads(end))
    target = dataclasses.replace(options.target, retry_seconds=min(options.target.retry_seconds, RETRY_SECONDS_MAX))
    if marks:
        offsets = {topic: dict(enumerate(found.at)) for topic, found in marks.items()}
        FlightConnection.of(target).group_commit(wire.GroupCommit(f"{options.group_prefix}-{query}", offsets))


def sources_of(spark: "SparkSession", query: str) -> list[ReadOptions | None]:
    """The options of each source of a query that has just started, in the order in which its progress lists them."""
    java = spark._jsparkSession.streams().get(query)
    leaves = java.streamingQuery().analyzedPlan().collectLeaves()
    found: list[ReadOptions | None] = []
    seen: list[JavaObject] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if not leaf.getClass().getSimpleName().startswith("Streaming") or any(leaf.equals(other) for other in seen):
            continue
        seen.append(leaf)
        ours = leaf.getClass().getSimpleName() == STREAMING_RELATION and leaf.sourceName().lower() == SOURCE
        options = leaf.extraOptions().asCaseSensitiveMap() if ours else None
        found.append(None if options is None else read_options({str(k): str(options[k]) for k in options}))
    return found
