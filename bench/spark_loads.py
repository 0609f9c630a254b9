"""The loads of Spark: what is read or written, beside what, and the ratio to reach. Method and targets: README.md.

A load names jobs; `Run.compare` warms each of them up, runs them in turn, and keeps rows per second with the processor time of
everything that took part (this process and all below it: virtual machines, Python workers, brokers).
"""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.harness import OURS, Bench, Comparison, Figure
from bench.loads_fly import CONNECTIONS, IN_FLIGHT, WARMUP_S
from bench.peer_wires import KafkaWire
from bench.spark_child import MASTER, ROWS_PER_TRIGGER

from bench import closed_loop, fly, peers, spark_peers, spark_rows
from quintet.bench.flymq import FlymqWire
from quintet.bench.generators import Load
from quintet.bench.wire import BenchError
from quintet.flight import wire
from quintet.spark.sessions.views import Views
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC, SINK, PRODUCED, KAFKA_TOPIC = "bench.rows", "bench.sink", "bench.produced", "rows"
WARM_UPS = 4  # of each side; a quick run has fewer
SINK_BYTES = 128  # of a value that is written


@dataclass(slots=True)
class Timed(Figure):
    """A side's rates, with the processor seconds of each repetition and the rows of one."""

    rows: int = 0
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def note(self) -> str:
        if not any(self.cpu):
            return ""
        seconds = median(self.cpu)
        per = f", {self.rows / seconds / 1e6:.2f} Mrow/cpu-s" if self.rows and seconds else ""
        return f"{median(self.wall):.2f} s, {seconds:.2f} cpu-s{per}"


@dataclass(frozen=True, slots=True)
class Job:
    """One side of a load. What `call` returns is the rate where the job measures itself; without, the call is timed."""

    side: str
    rows: int
    call: Callable[[], float | None]
    counts: bool = True


def in_turn(
    jobs: Sequence[Job],
    repetitions: int,
    skip: Callable[[str, str], None],
    clock: Callable[[], float] = time.monotonic,
    cpu: Callable[[], float] = spark_peers.cpu_seconds,
    warm_ups: int = 1,
) -> list[Figure]:
    """Warm every job up (a virtual machine compiles what it finds hot, for seconds), then measure them in turn. A job that
    fails is left out from there on, loudly."""
    figures = {job.side: Timed(job.side, counts=job.counts, rows=job.rows) for job in jobs}
    failed: set[str] = set()
    for turn in range(-warm_ups, repetitions):
        for job in jobs:
            if job.side in failed:
                continue
            used, begin = cpu(), clock()
            try:
                rate = job.call()
            except Exception as error:  # whatever a job of Spark's may raise: the other loads go on
                failed.add(job.side)
                skip(job.side, _first_line(error))
                continue
            seconds, used = clock() - begin, cpu() - used
            if turn >= 0:
                figure = figures[job.side]
                figure.take(job.rows / seconds if rate is None else rate)
                figure.wall.append(seconds)
                figure.cpu.append(used)
    return [figure for figure in figures.values() if figure.values]


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Run:
    """One run: a broker with the rows in it, a session, and the Parquet files of the same rows. Made when first asked for."""

    def __init__(self, bench: Bench, rows: int) -> None:
        self.bench = bench
        self.rows = rows
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count()
        self._broker: peers.Server | None = None
        self._spark: SparkSession | None = None
        self._parquet: Path | None = None

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        if self._spark is not None:
            from quintet.spark.sessions import start

            self._spark.stop()
            machine = start.machine()
            if machine is not None:
                machine.end()
                machine.process.wait()
        self._stack.close()

    @property
    def broker(self) -> peers.Server:
        """A real server with the rows in its topic."""
        if self._broker is None:
            keep = {
                "QUINTET_TOPICS__RETENTION_SECONDS": "0"
            }  # the rows have times of their own, which are not of today
            self._broker = self._stack.enter_context(peers.quintet(self.bench.directory / "broker", keep, door="flymq"))
            self._create(TOPIC)
            self.bench.console.print(f"putting {self.rows:,} rows into {TOPIC} over Flight", highlight=False)
            begin = time.monotonic()
            spark_rows.load(self.link, TOPIC, self.rows)
            seconds = time.monotonic() - begin
            self.bench.console.print(f"done in {seconds:.1f} s ({self.rows / seconds / 1e6:.2f} M/s)", highlight=False)
        return self._broker

    @property
    def url(self) -> str:
        return f"flight://admin:admin@{self.broker.listeners['flight']}"

    @property
    def link(self) -> FlightConnection:
        return FlightConnection.of(target({"url": self.url}))

    @property
    def spark(self) -> "SparkSession":
        """The session of all our loads."""
        if self._spark is None:
            from bench.spark_tuples import TupleSource

            import quintet.spark

            # Workers import the source that yields tuples by its name.
            os.environ["PYTHONPATH"] = os.pathsep.join(
                [str(peers.REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
            self._spark = quintet.spark.session(MASTER, name="bench")
            self._spark.dataSource.register(TupleSource)
        return self._spark

    @property
    def parquet(self) -> Path:
        """The rows of the topic, all columns, written once by Spark: uncompressed, a file for each partition."""
        if self._parquet is None:
            path = self.bench.directory / "parquet"
            every = self.read(minPartitions=str(spark_rows.PARTITIONS))
            every.write.option("compression", "uncompressed").parquet(str(path))
            self.counted("the Parquet files", self.spark.read.parquet(str(path)).count(), self.rows)
            self._parquet = path
        return self._parquet

    def _create(self, topic: str) -> None:
        assert self._broker is not None
        with fly.connected(self._broker.address) as client:
            client.create_topics([topic], spark_rows.PARTITIONS, "fsync")

    def create(self, topic: str) -> None:
        """A topic with four partitions, whose records are on the disk before they are answered."""
        assert self.broker is not None
        self._create(topic)

    def read(self, source: str = "quintet", **more: str) -> "DataFrame":
        return self.spark.read.format(source).options(url=self.url, subscribe=TOPIC, **more).load()

    def stream(self, **more: str) -> "DataFrame":
        options = {"url": self.url, "subscribe": TOPIC, "startingOffsets": "earliest"}
        return self.spark.readStream.format("quintet").options(**options, **more).load()

    def fresh(self, kind: str) -> str:
        """A path that nobody used."""
        return str(self.bench.directory / f"{kind}{next(self._numbers):03d}")

    def counted(self, what: str, found: int, owed: int) -> None:
        """Too few or too many rows is a failed run."""
        if found != owed:
            raise BenchError(f"{what} should have {owed} rows and have {found}: the figures would mean nothing.")

    def compare(self, load: str, jobs: Sequence[Job], goal: float | None, unit: str = "row/s") -> None:
        """Measure jobs in turn and keep the comparison."""
        repetitions = self.bench.effort.repetitions

        def skip(side: str, why: str) -> None:
            self.bench.skip(f"{load} / {side}", why)

        figures = in_turn(jobs, repetitions, skip, warm_ups=min(WARM_UPS, repetitions))
        self.bench.add(Comparison(load, unit, figures, target=goal))


def into_nothing(frame: "DataFrame") -> None:
    """Every column of every row is made, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def ended(query: "StreamingQuery") -> None:
    """Wait for a query that ends by itself; what failed in it is raised."""
    query.awaitTermination()


# -- the loads --------------------------------------------------------------------------------------------------------


def parquet(run: Run) -> None:
    """batch read of all columns into a no-op sink, beside spark.read.parquet of the same rows"""
    files = str(run.parquet)
    run.counted("the topic", run.read().count(), run.rows)
    ours = Job(OURS, run.rows, lambda: into_nothing(run.read()))
    theirs = Job("spark.read.parquet, uncompressed", run.rows, lambda: into_nothing(run.spark.read.parquet(files)))
    run.compare("batch read, all columns, no-op sink", [ours, theirs], 0.8)


def tuples(run: Run) -> None:
    """the same beside a reader that yields tuples"""
    from bench.spark_tuples import NAME

    def slow() -> "DataFrame":
        return run.read(NAME, access="files")

    run.counted("the reader that yields tuples", slow().count(), run.rows)
    ours = Job(OURS, run.rows, lambda: into_nothing(run.read()))
    theirs = Job("a reader that yields tuples", run.rows, lambda: into_nothing(slow()))
    run.compare("the same beside tuples", [ours, theirs], 5.0)


def count(run: Run) -> None:
    """count with the offset column only, beside one column of the same Parquet"""
    files = str(run.parquet)

    def counting() -> None:
        run.counted("the count", run.read(columns="offset").count(), run.rows)

    ours = Job(OURS, run.rows, counting)
    one = Job("Parquet, one column", run.rows, lambda: into_nothing(run.spark.read.parquet(files).select("offset")))
    run.compare("count, offset column only", [ours, one], 0.5)


def columns(run: Run) -> None:
    """what each column of a read costs, alone and all together"""
    all_of_them = Job(OURS, run.rows, lambda: into_nothing(run.read()))
    jobs = [Job(name, run.rows, partial(_one_column, run, name)) for name in wire.COLUMNS]
    run.compare("one column, no-op sink, beside all columns", [all_of_them, *jobs], None)


def _one_column(run: Run, name: str) -> None:
    into_nothing(run.read(columns=name))


def sql(run: Run) -> None:
    """SQL that needs few columns: the topic by its name, a whole read of it, and the same Parquet"""
    views = Views(run.spark, {"url": run.url}, lambda: frozenset({TOPIC}))
    every = "whole_topic"
    for load, statement in (
        ("SQL, count by key", "select count(*) from (select key, count(*) from {table} group by key)"),
        ("SQL, count", "select count(*) from {table}"),
        ("SQL, length of values", "select sum(length(value)) from {table}"),
    ):

        def ours(statement: str = statement) -> None:
            views.query(statement.format(table=f"`{TOPIC}`")).collect()

        def whole(statement: str = statement) -> None:
            run.read().createOrReplaceTempView(every)
            run.spark.sql(statement.format(table=every)).collect()

        def files(statement: str = statement) -> None:
            run.spark.sql(statement.format(table=f"parquet.`{run.parquet}`")).collect()

        sides = (OURS, ours), ("a whole read", whole), ("Parquet", files)
        run.compare(load, [Job(side, run.rows, call, counts=side != "Parquet") for side, call in sides], None)


def transcode(run: Run) -> None:
    """sealed rows written to Parquet by pyarrow, without Spark, and what Spark reads of them"""
    own, place = str(run.parquet), run.fresh("transcoded")
    run.compare(
        "topic to Parquet by pyarrow, one process",
        [Job(OURS, run.rows, lambda: _transcode(run, run.fresh("transcoding")))],
        None,
    )
    _transcode(run, place)
    run.counted("the transcoded files", run.spark.read.parquet(place).count(), run.rows)
    jobs = [
        Job(OURS, run.rows, lambda: into_nothing(run.read())),
        Job("the same rows, transcoded", run.rows, lambda: into_nothing(run.spark.read.parquet(place))),
        Job("Spark's own Parquet", run.rows, lambda: into_nothing(run.spark.read.parquet(own))),
    ]
    run.compare("all columns, beside transcoded Parquet", jobs, None)


def _transcode(run: Run, place: str) -> None:
    """A file for each task of a read, as an executor would write it: the batches of the reader, uncompressed."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyspark.sql.datasource import CaseInsensitiveDict
    from pyspark.sql.pandas.types import to_arrow_schema

    from quintet.spark.source.source import QuintetSource

    source = QuintetSource(CaseInsensitiveDict({"url": run.url, "subscribe": TOPIC, "minPartitions": "4"}))
    reader = source.reader(source.schema())
    how = {"schema": to_arrow_schema(source.schema(), timezone="UTC"), "use_dictionary": ["topic", "origin"]}
    Path(place).mkdir()
    for number, task in enumerate(reader.partitions()):
        with pq.ParquetWriter(Path(place) / f"{number:03d}.parquet", compression="none", **how) as writer:
            for batch in reader.read(task):
                writer.write_batch(batch)


def streaming(run: Run) -> None:
    """streaming read, availableNow, to Parquet, beside the batch read to Parquet"""
    made: list[str] = []

    def stream() -> None:
        place = run.fresh("streamed")
        writing = run.stream().writeStream.format("parquet").option("checkpointLocation", run.fresh("checkpoint"))
        ended(writing.trigger(availableNow=True).start(place))
        made.append(place)

    ours = Job(f"{OURS} stream", run.rows, stream)
    batch = Job("batch read to Parquet", run.rows, lambda: run.read().write.parquet(run.fresh("batch")))
    run.compare("streaming read, availableNow, to Parquet", [ours, batch], 0.8)
    run.counted("the stream's files", run.spark.read.parquet(made[-1]).count(), run.rows)


def flight(run: Run) -> None:
    """over Flight on loopback, beside mapped segments"""
    ours = Job(f"{OURS} over Flight", run.rows, lambda: into_nothing(run.read(access="flight")))
    mapped = Job("mapped segments", run.rows, lambda: into_nothing(run.read(access="files")))
    run.compare("batch read over Flight", [ours, mapped], 0.5)


def write(run: Run) -> None:
    """streaming write of 128 B rows, beside the FlyMQ door's own produce rate"""
    prepared = _prepared(run)
    run.create(SINK)
    run.create(PRODUCED)
    turns = itertools.count(1)

    def ours() -> None:
        source = run.spark.readStream.schema("value binary").parquet(str(prepared))
        writing = source.writeStream.format("quintet").options(url=run.url, topic=SINK)
        ended(writing.option("checkpointLocation", run.fresh("checkpoint")).trigger(availableNow=True).start())
        run.counted("the topic that was written", spark_rows.ends(run.link, SINK), next(turns) * run.rows)

    def door() -> float:
        os.sync()  # dirty pages of the side before must not be written back in this one's time
        load = Load(FlymqWire(), run.broker.address, PRODUCED, SINK_BYTES, qos=1)
        seconds, more = run.bench.effort.seconds, {"partitions": spark_rows.PARTITIONS}
        return closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, seconds, WARMUP_S, **more).rate

    beside = f"the FlyMQ door's produce, durable, {CONNECTIONS} x {IN_FLIGHT} in flight"
    run.compare(
        f"streaming write of {SINK_BYTES} B rows", [Job(OURS, run.rows, ours), Job(beside, 0, door)], 0.5, "msg/s"
    )


def _prepared(run: Run) -> Path:
    """Files of rows to write, made without Spark."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = run.bench.directory / "prepared"
    place.mkdir()
    every = iter(spark_rows.batches(run.rows, SINK_BYTES))
    share = -(-run.rows // spark_rows.BATCH_ROWS // spark_rows.PARTITIONS) or 1  # batches of a file
    for number in itertools.count():
        some = [batch.select(["value"]) for batch in itertools.islice(every, share)]
        if not some:
            return place
        table = pa.Table.from_batches(some)
        pq.write_table(table, place / f"{number:03d}.parquet", compression="none", use_dictionary=False)
    raise AssertionError("count does not end")


def kafka(run: Run) -> None:
    """the same source job on Spark's Kafka connector with one local Kafka, batch and stream"""
    files = str(run.parquet)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(peers.kafka(run.bench.directory / "kafka"))
        KafkaWire().create_topic(server.address, KAFKA_TOPIC, spark_rows.PARTITIONS)
        log = run.bench.directory / "connector.log"
        theirs = stack.enter_context(spark_peers.connector(server, KAFKA_TOPIC, log))
        run.bench.console.print("putting the same rows into Kafka", highlight=False)
        theirs.ask("load", parquet=files)
        run.counted("Kafka's topic", int(theirs.ask("count")["rows"]), run.rows)

        def batch() -> float:
            return run.rows / float(theirs.ask("batch")["seconds"])

        def stream() -> float:
            return run.rows / float(theirs.ask("stream", checkpoint=run.fresh("checkpoint"))["seconds"])

        ours = Job(OURS, run.rows, lambda: into_nothing(run.read()))
        run.compare("the same on the Kafka connector", [ours, Job("kafka connector", run.rows, batch)], 2.0)
        ours = Job(OURS, run.rows, lambda: _stream_into_nothing(run))
        run.compare(
            "the same as a stream, availableNow, no-op sink", [ours, Job("kafka connector", run.rows, stream)], 2.0
        )


def _stream_into_nothing(run: Run) -> None:
    every = run.stream(maxOffsetsPerTrigger=str(ROWS_PER_TRIGGER))
    writing = every.writeStream.format("noop").option("checkpointLocation", run.fresh("checkpoint"))
    ended(writing.trigger(availableNow=True).start())


def audit(run: Run) -> None:
    """the pipeline audit, beside the plain read of the same rows"""
    from quintet.spark.pipelines import audit as pipeline

    def audited() -> None:
        result = pipeline.run(run.spark, pipeline.Options(url=run.url, topic=TOPIC))
        run.counted("the audit", sum(row[pipeline.COLUMNS.index("records")] for row in result.rows), run.rows)
        if not result.ok:
            raise BenchError(f"the audit found damage: {result.notes[0]}")

    ours = Job(f"{OURS} audit", run.rows, audited)
    plain = Job("plain read, all columns", run.rows, lambda: into_nothing(run.read()))
    run.compare("audit", [ours, plain], 0.5)


def start(run: Run) -> None:
    """how long a session takes: with an archive of classes, without, and as pyspark starts it alone"""
    blocked = run.bench.directory / "no-cache"
    blocked.write_text("a file where a folder is wanted: no archive can be kept here\n")
    ways = {
        f"{OURS} session, archive of classes": ("direct", {"XDG_CACHE_HOME": str(run.bench.directory / "cache")}),
        "the same without an archive": ("direct", {"XDG_CACHE_HOME": str(blocked)}),
        "spark-submit, as pyspark does it": ("submit", {}),
    }
    queries: dict[str, Figure] = {side: Figure(side) for side in ways}

    def job(side: str) -> Job:
        way, environment = ways[side]

        def call() -> float:
            said = spark_peers.started(way, **environment)
            queries[side].values.append(said["query"])
            return said["session"]

        return Job(side, 0, call)

    # Of the machine that spark-submit starts the processor time cannot be had: nobody here waits for it.
    jobs, skip = [job(side) for side in ways], lambda side, why: run.bench.skip(f"session start / {side}", why)
    figures = in_turn(jobs, run.bench.effort.repetitions, skip, cpu=lambda: 0.0)
    run.bench.add(Comparison("session start", "s", figures, "lower"))
    for figure in queries.values():
        del figure.values[:1]  # the warm-up
    run.bench.add(Comparison("first query of a session", "s", [one for one in queries.values() if one.values], "lower"))


LOADS: dict[str, Callable[[Run], None]] = {
    "parquet": parquet,
    "tuples": tuples,
    "count": count,
    "columns": columns,
    "sql": sql,
    "transcode": transcode,
    "streaming": streaming,
    "flight": flight,
    "write": write,
    "kafka": kafka,
    "audit": audit,
    "start": start,
}
