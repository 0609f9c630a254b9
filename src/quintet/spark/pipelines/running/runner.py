"""Runs a pipeline: makes the session, shows progress, restarts it after failures, and stops it when asked.

    starting ---> running ---> finished        it came to its end (trigger=now, or a pipeline that ends)
                  |  ^   +---> stopped         a signal, or a stop order of the broker
          failure |  | pause
                  v  |
               restarting ---> failed          a failure that a restart cannot cure, or too many failures

Clock, session, screen and the connection to the broker are parameters. failures.py explains errors, progress.py has the figures,
directories.py names and locks. Nothing here knows a particular pipeline.
"""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Final, Protocol

from quintet.flight.wire import PipelineReport
from quintet.spark import pipelines
from quintet.spark.failures import RESTARTS_NOW, Failure, Patience, explain
from quintet.spark.pipelines.base import NOW, Common, Result, Streaming, stop_on
from quintet.spark.pipelines.running import arguments as given
from quintet.spark.pipelines.running import directories as places
from quintet.spark.pipelines.running import sessions
from quintet.spark.pipelines.running.progress import Figures, ProgressPoller, Query, line
from quintet.spark.pipelines.running.reports import Reporter, Send, cut
from quintet.spark.source.options import target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_DONE: Final = 0
EXIT_FAILED: Final = 1
TICK_S: Final = 1.0
REPORT_S: Final = 2.0
LINE_S: Final = 10.0  # between two lines when the output is not a terminal
BATCH_ENDS_S: Final = 30.0  # how long a running batch may take to end before it is interrupted
DRAIN_S: Final = 0.1
GREETING_S: Final = "5"  # how long the first call waits for a broker that cannot be reached


class Clock(Protocol):
    def monotonic(self) -> float: ...  # seconds, only ever growing

    def today_us(self) -> int: ...  # microseconds since 1970

    def wait(self, event: threading.Event, seconds: float) -> bool: ...  # True: the event came


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def today_us(self) -> int:
        return time.time_ns() // 1000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


class Screen:
    """Shows a run to people. This one is for a log: notes, and a line of figures every ten seconds."""

    every_s = LINE_S  # between two calls of `show`

    def show(self, text: str) -> None:
        """Show the current figures."""
        self.note(text)

    def note(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def summary(self, report: PipelineReport, seconds: float) -> None:
        """Show the end of a streaming pipeline."""
        rate = report.rows_in / seconds if seconds else 0.0
        self.note(f"{report.name}: {report.state}, {report.rows_in:,} rows in {seconds:,.1f} s, {rate:,.0f}/s")

    def result(self, result: Result) -> None:
        """Show the result of a pipeline that ends by itself."""
        rows = ["\t".join(map(str, row)) for row in (result.columns, *result.rows)]
        sys.stdout.write("".join(f"{text}\n" for text in (result.title, *rows)))
        for text in (*result.notes, *result.pictures):
            self.note(text)

    def close(self) -> None:
        """Leave the terminal as it was."""


@dataclass(slots=True)
class Job:
    """A pipeline to run, and how."""

    kind: str
    module: ModuleType
    options: Common
    name: str
    restarts: int | None = None  # None: no limit
    verbose: bool = False

    @property
    def checkpoint(self) -> str:
        return self.options.checkpoint if isinstance(self.options, Streaming) else ""


@dataclass(slots=True)
class Runner:
    """One run of a job."""

    job: Job
    session: "Callable[[SparkSession | None], SparkSession]"  # the one to use, given the one used before
    send: Send
    screen: Screen = field(default_factory=Screen)
    clock: Clock = field(default_factory=RealClock)
    stop: threading.Event = field(default_factory=threading.Event)
    spark: "SparkSession | None" = None  # the session that it used last
    _watch: ProgressPoller = field(default_factory=ProgressPoller)
    _state: str = "starting"
    _detail: str = ""
    _restarts: int = 0
    _began: float = 0.0
    _began_us: int = 0
    _reported: float = float("-inf")
    _shown: float = float("-inf")
    _reporter: Reporter | None = None

    def go(self) -> int:
        """Run to the end, and return the exit code."""
        self._began, self._began_us = self.clock.monotonic(), self.clock.today_us()
        self._reporter = Reporter(self.send, self.stop)
        try:
            self._become("starting")
            return self._again(self._stream if hasattr(self.job.module, "start") else self._batch)
        finally:
            self._reporter.close()
            self.screen.close()

    # -- restarts -----------------------------------------------------------------------------------------------------

    def _again(self, attempt: "Callable[[SparkSession], int]") -> int:
        patience = Patience(self.job.restarts)
        while True:
            started = self.clock.monotonic()
            try:
                spark = self.spark = self.session(self.spark)
                return self._ended("stopped") if self.stop.is_set() else attempt(spark)
            except (
                Exception
            ) as error:  # of any kind: an unattended pipeline must not end by an error that nobody foresaw
                failure = explain(error)
            if self.stop.is_set():
                return self._ended("stopped")
            pause = None if failure.incurable else patience.failed(self.clock.monotonic() - started)
            if pause is None:
                return self._failed(failure, patience)
            self._restarts = patience.restarts
            self._say(f"{failure.sentence} Starting again from its checkpoint in {pause:g} s.", failure)
            self._become("restarting", failure.sentence)
            if self.clock.wait(self.stop, pause):
                return self._ended("stopped")

    def _failed(self, failure: Failure, patience: Patience) -> int:
        limit = patience.limit
        gave_up = (
            f" Gave up after {limit} restart{'' if limit == 1 else 's'}." if limit and not failure.incurable else ""
        )
        self._say(f"{failure.sentence}{gave_up}", failure)
        self._become("failed", failure.sentence)
        return EXIT_FAILED

    def _say(self, text: str, failure: Failure) -> None:
        self.screen.note(f"{self.job.name}: {text}")
        if self.job.verbose:
            self.screen.note(failure.detail)

    # -- streaming pipelines -----------------------------------------------------------------------------------------

    def _stream(self, spark: "SparkSession") -> int:
        others = {query.id for query in spark.streams.active}
        try:
            queries: Sequence[Query] = list(self.job.module.start(spark, self.job.options))
            self._watch.begin(len(queries))
            self._become("running")
            while not self.clock.wait(self.stop, TICK_S):
                active = [query.isActive for query in queries]
                self._watch.look(queries)
                for query in queries:
                    failed = None if query.isActive else query.exception()
                    if failed is not None:
                        raise failed
                if not any(active):
                    return self._ended("finished")
                self._tick()
            self._drain(queries)
            return self._ended("stopped")
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone, and with it the queries
                for left in list(spark.streams.active):
                    if left.id not in others:
                        left.stop()

    def _drain(self, queries: Sequence[Query]) -> None:
        """Wait a while for running batches to end. One that is interrupted is repeated at the next start."""
        self.screen.note(f"{self.job.name}: stopping when the running batch has ended")
        until = self.clock.monotonic() + BATCH_ENDS_S
        before = [_batch_id(query) for query in queries]
        never = threading.Event()
        for query, batch in zip(queries, before, strict=True):
            while query.isActive and query.status.get("isTriggerActive") and _batch_id(query) == batch:
                if self.clock.monotonic() >= until:
                    break
                self.clock.wait(never, DRAIN_S)
            query.stop()
        self._watch.look(queries)

    # -- pipelines that end by themselves -------------------------------------------------------------------------------------------

    def _batch(self, spark: "SparkSession") -> int:
        """Runs in a thread, so that signals and stop orders are handled meanwhile."""
        from pyspark.util import InheritableThread

        outcome: list[Result | BaseException] = []

        def work() -> None:
            stop_on(self.stop)
            try:
                outcome.append(self.job.module.run(spark, self.job.options))
            except BaseException as error:
                outcome.append(error)

        self._become("running")
        thread = InheritableThread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(TICK_S if not self.stop.is_set() else DRAIN_S)
            if self.stop.is_set():
                spark.sparkContext.cancelAllJobs()
            self._tick()
        found = outcome[0]
        if isinstance(found, BaseException):
            raise found
        self._become("finished" if found.ok else "failed", "" if found.ok else found.title)
        self.screen.close()
        self.screen.result(found)
        return EXIT_DONE if found.ok else EXIT_FAILED

    # -- what is shown and reported ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        monotonic = self.clock.monotonic()
        if monotonic - self._shown >= self.screen.every_s:
            self._shown = monotonic
            if isinstance(self.job.options, Streaming):
                text = line(self.job.name, self._state, self._watch.figures, self._restarts)
            else:
                text = f"{self.job.name}: {self._state}, {monotonic - self._began:.0f} s"
            trouble = self._reporter.trouble if self._reporter else ""
            self.screen.show(f"{text}, not reported: {trouble}" if trouble else text)
        if monotonic - self._reported >= REPORT_S:
            self._post()

    def _become(self, state: str, detail: str = "") -> None:
        self._state, self._detail = state, cut(detail)
        self._post()

    def _post(self) -> None:
        assert self._reporter is not None, "go() made it"
        self._reported = self.clock.monotonic()
        self._reporter.post(self.report())

    def report(self) -> PipelineReport:
        figures: Figures = self._watch.figures
        return PipelineReport(
            name=self.job.name,
            kind=self.job.kind,
            state=self._state,
            detail=self._detail,
            started_us=self._began_us,
            batches=figures.batches,
            rows_in=figures.rows_in,
            rows_out=figures.rows_out,
            rows_per_second=figures.rows_per_second,
            batch_ms=figures.batch_ms,
            lag=figures.lag,
            state_rows=figures.state_rows,
            state_bytes=figures.state_bytes,
            restarts=self._restarts,
        )

    def _ended(self, state: str) -> int:
        self._become(state)
        self.screen.close()
        took = self.clock.monotonic() - self._began
        if isinstance(self.job.options, Streaming):
            self.screen.summary(self.report(), took)
            self._note_waiting(state)
        else:
            self.screen.note(f"{self.job.name}: {state} after {took:.0f} s")
        return EXIT_DONE

    def _note_waiting(self, state: str) -> None:
        """After trigger=now, note what was read and not published because a watermark must pass first."""
        waiting: Callable[[Common, int], str] | None = getattr(self.job.module, "waiting", None)
        text = waiting(self.job.options, self._watch.figures.state_rows) if waiting and state == "finished" else ""
        if text:
            self.screen.note(f"{self.job.name}: {text}")


def _batch_id(query: Query) -> object:
    last = query.lastProgress
    return None if last is None else last["batchId"]


# -- from options to a run ----------------------------------------------------------------------------------------------


def prepare(
    kind: str,
    options: Mapping[str, object] | Common,
    *,
    name: str = "",
    checkpoint: str = "",
    restarts: int | None = None,
    verbose: bool = False,
) -> Job:
    """Check everything that can be checked without Spark. ConfigError says what is wrong."""
    module = pipelines.load(kind)
    if isinstance(options, Common):
        found = options
        name = name or (found.name if isinstance(found, Streaming) else kind)
    else:
        options = dict(options)
        said = name
        name = places.check_name(name or str(options.get("name") or places.default_name(kind, options)))
        if said and "name" in module.Options.__struct_encode_fields__:
            options["name"] = name
        if issubclass(module.Options, Streaming):
            options["name"] = name
            options["checkpoint"] = checkpoint or options.get("checkpoint") or str(places.state_folder(name))
        found = given.options(module, options)
    if restarts is None and not (isinstance(found, Streaming) and found.trigger != NOW):
        restarts = RESTARTS_NOW if isinstance(found, Streaming) else 0
    return Job(kind, module, found, name, restarts, verbose)


def run(
    kind: str,
    options: Mapping[str, object] | Common,
    *,
    name: str = "",
    checkpoint: str = "",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    restarts: int | None = None,
    verbose: bool = False,
    screen: Screen | None = None,
    spark: "SparkSession | None" = None,
) -> int:
    """Run a pipeline to its end, and return the exit code: 0 done or stopped, 1 failed.

    Args:
        kind: a name of PIPELINES, or the path of a module that is a pipeline.
        options: its Options, or a mapping of names to values.
        name: its name in `quintet pipeline status`; made of kind and topics unless given.
        checkpoint: directory of Spark's checkpoint; in the user's state directory unless given.
        restarts: the limit, counted anew after ten minutes without a failure. None: no limit, 5 for trigger=now.
        spark: a session to use, which is left open; without one, a session of its own on `master` with the settings `conf`.

    Raises:
        ConfigError: an option is unknown, missing or wrong.
        InUse: a pipeline of this name runs already.
    """
    from quintet.spark.source.connection import FlightConnection

    job = prepare(kind, options, name=name, checkpoint=checkpoint, restarts=restarts, verbose=verbose)
    screen = screen or Screen()
    access = job.options.access()
    with contextlib.ExitStack() as stack:
        if job.checkpoint:
            stack.enter_context(places.locked(job.name, job.checkpoint))
        connection = stack.enter_context(FlightConnection(target({**access, "retrySeconds": "0"})))
        stop = threading.Event()
        listen = stack.enter_context(_signals(stop))

        def session(before: "SparkSession | None") -> "SparkSession":
            if before is None:
                with FlightConnection(target({**access, "retrySeconds": GREETING_S})) as greeting:
                    greeting.login()  # so that wrong credentials fail before Spark has started
            found = spark or sessions.renewed(before, master, job.name, verbose, conf)
            listen()  # again: a new session installs a handler of SIGINT
            return found

        runner = Runner(job, session, connection.pipeline_report, screen, stop=stop)
        own = spark is None and not sessions.running()
        try:
            return runner.go()
        finally:
            if own and runner.spark is not None:
                sessions.end(runner.spark)


@contextlib.contextmanager
def _signals(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """SIGINT and SIGTERM set `stop`; a second one raises KeyboardInterrupt. Yields a function that installs the handlers again."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    def listen() -> None:
        for number in before:
            signal.signal(number, ask)

    here = threading.current_thread() is threading.main_thread()  # only the main thread may set handlers
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if here else {}
    listen()
    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
