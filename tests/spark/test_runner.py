"""The runner: options from words, what failed in a sentence, restarts with patience, locks, figures, and real queries."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quintet.flight.wire import PipelineReport
from quintet.model.errors import ConfigError, EpochDiffers, QuintetError
from quintet.spark import failures, pipelines
from quintet.spark.pipelines.base import Result
from quintet.spark.pipelines.running import arguments as given
from quintet.spark.pipelines.running import directories as places
from quintet.spark.pipelines.running import runner
from quintet.spark.pipelines.running.progress import Figures, ProgressPoller, lag, line
from quintet.spark.source.options import OptionError
from tests.spark import ticks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND = "tests.spark.ticks"
COUNT = "tests.spark.count"


# -- names and options ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", pipelines.PIPELINES)
def test_every_pipeline_is_one(kind: str) -> None:
    module = pipelines.load(kind)
    assert pipelines.summary(kind) == module.SUMMARY
    rows = given.described(module)
    assert all(row.description for row in rows), "each option says what it is"
    assert {"url", "user", "password", "token"} <= {row.name for row in rows}


def test_an_unknown_pipeline_has_a_neighbour() -> None:
    with pytest.raises(ConfigError, match="there is no pipeline 'archiv'") as found:
        pipelines.load("archiv")
    assert found.value.hint == "did you mean archive?"
    with pytest.raises(ConfigError, match="there is no pipeline"):
        pipelines.load("tests.spark.nothing")
    with pytest.raises(ConfigError, match="is not a pipeline"):
        pipelines.load("tests.spark.conftest")


def job(**options: Any) -> runner.Job:
    return runner.prepare(KIND, {"checkpoint": "x", **options})


def test_words_become_options() -> None:
    found = job(rows="7", by="a, b", fields='{"c": "int"}', trigger="now", max_per_trigger=5).options
    assert isinstance(found, ticks.Options)
    assert (found.rows, found.by, found.fields, found.max_per_trigger) == (7, ("a", "b"), {"c": "int"}, 5)
    assert given.words(["a=1", "max-per-trigger=2", "--b=c=d"]) == {"a": "1", "max_per_trigger": "2", "b": "c=d"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rws": "1"}, "there is no option 'rws' (did you mean rows?)"),
        ({"zzzzzz": "1"}, "there are url, user"),
        ({"rows": "many"}, "option rows: 'many' is wrong; it is a whole number"),
        ({"rows": "0"}, "option rows: '0' is wrong; "),
        ({"mode": "loud"}, "option mode: 'loud' is wrong; "),
        ({"fields": "c"}, "option fields: 'c' is wrong; it is a table"),
        ({"trigger": "soon"}, "'soon' is no duration"),
        ({"url": "http://user:hush@host"}, "option url: it names no Flight door"),
        ({"token": 1.5j}, "option token: "),
        ({"name": "a\nb"}, "printable characters --name"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        job(**options)
    text = f"{found.value} {found.value.hint}"
    for part in said.split(" --"):
        assert part in text
    assert "hush" not in text
    assert "1.5j" not in text


def test_what_is_missing_is_explained() -> None:
    with pytest.raises(ConfigError, match="option topic is missing") as found:
        runner.prepare(COUNT, {})
    assert found.value.hint == "Only a word."
    for word in ("x", "=x"):
        with pytest.raises(ConfigError, match="is not an option of a pipeline"):
            given.words([word])
    with pytest.raises(ConfigError, match="given twice"):
        given.words(["a=1", "a=2"])


def test_options_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.toml"
    file.write_text('rows = 3\nby = ["x"]\n[fields]\na = "int"\n')
    assert given.file(file) == {"rows": 3, "by": ["x"], "fields": {"a": "int"}}
    file.write_text("rows = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        given.file(file)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        given.file(tmp_path / "nowhere")


def test_options_are_described() -> None:
    rows = {row.name: row for row in given.described(ticks)}
    assert rows["rows"] == ("rows", "number", "100", "Rows of one batch.")
    assert rows["mode"].kind == "calm|wild"
    assert (rows["by"].kind, rows["by"].default, rows["fields"].kind) == ("a,b,c", "", "table")
    assert rows["name"].default is None


# -- names, folders, locks --------------------------------------------------------------------------------------------


def test_names_and_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert places.default_name("archive", {"topics": "a,b", "to": "x"}) == "archive-a,b"
    assert places.default_name("join", {"right": "r", "left": "l"}) == "join-l-r"
    assert places.default_name("my.own.thing", {}) == "thing"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert places.state_folder("join-l-r") == tmp_path / "quintet/pipelines/join-l-r"
    odd = {places.state_folder(name) for name in ("a/b", "a_b", "..", ".", "a b", "")}
    assert len(odd) == 6
    assert {folder.parent for folder in odd} == {tmp_path / "quintet/pipelines"}
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    assert places.state_folder("a").is_relative_to(Path.home())


def test_a_second_run_of_a_name_is_refused_and_a_stale_lock_is_not(tmp_path: Path) -> None:
    (tmp_path / places.LOCK).write_text("4194304\n")  # of a process that is gone
    with places.locked("a", str(tmp_path)):
        with pytest.raises(places.InUse, match=f"a runs already, as process {os.getpid()}") as found:
            runner.run(KIND, {"name": "a", "checkpoint": str(tmp_path)})
        assert "quintet pipeline stop a" in found.value.hint
    with places.locked("a", f"file://{tmp_path}"):
        assert (tmp_path / places.LOCK).read_text() == f"{os.getpid()}\n"
    with pytest.raises(ConfigError, match="cannot be used"), places.locked("a", str(tmp_path / places.LOCK / "x")):
        pass


# -- what failed ------------------------------------------------------------------------------------------------------


class Captured(Exception):
    """As pyspark has them: the text and the cause in attributes, because printing one asks the virtual machine."""

    def __init__(self, text: str, cause: "Captured | None" = None) -> None:
        super().__init__()
        self._desc, self._cause = text, cause

    def __str__(self) -> str:
        raise ConnectionRefusedError("the machine is gone")


Captured.__module__ = "pyspark.errors.exceptions.captured"


class AnalysisException(Captured):
    pass


AnalysisException.__module__ = Captured.__module__
TAIL = "\n SQLSTATE: 38000\n=== Streaming Query ===\nIdentifier: [id = fbc72c83]\nLogical Plan:\n+- x\n"
WORKER = "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "


@pytest.mark.parametrize(
    ("error", "sentence", "incurable"),
    [
        (OptionError("topic", "it is empty"), "option topic: it is empty.", True),
        (EpochDiffers("came again"), "came again.", True),
        (ValueError("say where"), "say where.", True),
        (RuntimeError("a"), "RuntimeError: a.", False),
        (
            ConnectionRefusedError(111, "refused"),
            "Spark's JVM has died, or does not answer any more.",
            False,
        ),
        (
            Captured(
                f"[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform "
                f"latestOffset: quintet.model.errors.EpochDiffers: a batch; with: others{TAIL}",
                Captured("org.apache.spark.SparkException: [X] "),
            ),
            "a batch; with: others.",
            True,
        ),
        (
            Captured(f"{WORKER}quintet.spark.source.options.OptionError: option failOnDataLoss: gone{TAIL}"),
            "option failOnDataLoss: gone.",
            True,
        ),
        (Captured(f"{WORKER}quintet.client.core.errors.ConnectionLost: is it up?{TAIL}"), "is it up?", False),
        (
            AnalysisException(
                "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: "
                f"quintet.client.core.errors.ConnectionLost: nobody{TAIL}"
            ),
            "nobody.",
            False,
        ),
        (
            Captured(
                f"{WORKER}Traceback (most recent call last):\n  File x, line 1, in read\n    y\n    ^\nKeyError: 'n'{TAIL}"
            ),
            "KeyError: 'n'.",
            False,
        ),
        (
            AnalysisException("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `a` cannot be. SQLSTATE: 42703; line 1"),
            "A column `a` cannot be.",
            True,
        ),
        (
            Captured(f"[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.{TAIL}"),
            "Concurrent update to the log.",
            True,
        ),
        (
            Captured(
                "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: "
                "Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): java.io.IOException: "
                "No space left on device\n\tat java.base/x.y(Z.java:1)\nDriver stacktrace:"
            ),
            "IO: No space left on device.",
            False,
        ),
    ],
)
def test_what_failed_is_a_sentence_and_a_verdict(error: Exception, sentence: str, incurable: bool) -> None:
    found = failures.explain(error)
    assert (found.sentence, found.incurable) == (sentence, incurable)


@pytest.mark.parametrize("name", sorted(failures.INCURABLE))
def test_incurable_errors_are_those_of_the_house(name: str) -> None:
    """A name that no class has would never be met."""
    import quintet.spark.lake.errors
    import quintet.spark.sessions.java
    import quintet.spark.sessions.start
    import quintet.spark.source.options
    from quintet.client.core import errors as client
    from quintet.model import errors as model

    homes = (
        model, client, quintet.spark.source.options, quintet.spark.sessions.java, quintet.spark.sessions.start, quintet.spark.lake.errors,
    )  # fmt: skip
    assert any(hasattr(home, name) for home in homes)
    text = f"{WORKER}quintet.somewhere.{name}: so it is{TAIL}"
    assert failures.explain(Captured(text)) == failures.Failure("so it is.", True, text)


def test_patience_doubles_forgives_and_ends() -> None:
    patience = failures.Patience(None)
    assert [patience.failed(0) for _ in range(9)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert patience.failed(failures.FORGIVEN_S - 1) == 60
    assert [patience.failed(failures.FORGIVEN_S), patience.failed(5)] == [1, 2]
    assert patience.restarts == 12
    short = failures.Patience(2)
    assert [short.failed(0), short.failed(0), short.failed(0)] == [1, 2, None]
    assert short.failed(failures.FORGIVEN_S) == 1
    assert failures.Patience(0).failed(0) is None


# -- the loop, by a clock of its own ----------------------------------------------------------------------------------


class FakeClock:
    """Time passes only where somebody waits for it. `plan` is called at each step."""

    def __init__(self, plan: Callable[[float], None] = lambda now: None) -> None:
        self.at, self.plan, self.waits = 0.0, plan, list[float]()

    def monotonic(self) -> float:
        return self.at

    def today_us(self) -> int:
        return 1_000_000 + int(self.at * 1e6)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.at += seconds
        self.waits.append(seconds)
        self.plan(self.at)
        return event.is_set()


class Notes(runner.Screen):
    """Remembers what was said."""

    every_s = 1.0

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.results: list[Result] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def result(self, result: Result) -> None:
        self.results.append(result)


class FakeProgress(dict[str, Any]):
    @property
    def json(self) -> str:
        import json

        return json.dumps(self)


class FakeQuery:
    """Runs a number of looks, then ends as it was told."""

    def __init__(self, looks: int, error: BaseException | None, active: "list[FakeQuery]") -> None:
        self.id, self.looks, self.error, self.busy = object(), looks, error, 3
        self.shelf = active
        active.append(self)
        self.recentProgress: list[FakeProgress] = []

    @property
    def isActive(self) -> bool:
        self.looks -= 1
        if self.looks < 0 and self in self.shelf:
            self.shelf.remove(self)
        return self in self.shelf

    @property
    def lastProgress(self) -> FakeProgress | None:
        return self.recentProgress[-1] if self.recentProgress else None

    @property
    def status(self) -> Mapping[str, Any]:
        self.busy -= 1
        return {"isTriggerActive": self.busy > 0}

    def exception(self) -> BaseException | None:
        return self.error

    def stop(self) -> None:
        if self in self.shelf:
            self.shelf.remove(self)


class FakeSpark:
    def __init__(self) -> None:
        self.streams = self
        self.active: list[FakeQuery] = []


class Bench:
    """A runner over fake queries: each attempt takes the next of `attempts` (looks until its end, how it ends)."""

    def __init__(
        self,
        attempts: Sequence[tuple[int, BaseException | None]],
        restarts: int | None = None,
        plan: Callable[["Bench", float], None] = lambda bench, now: None,
        verbose: bool = False,
    ) -> None:
        self.attempts, self.spark, self.reports = list(attempts), FakeSpark(), list[PipelineReport]()
        self.queries: list[FakeQuery] = []
        self.screen, self.clock = Notes(), FakeClock(lambda now: plan(self, now))
        made = runner.prepare(KIND, {"name": "t", "checkpoint": "x", "fail_once": "f"})
        bench = self

        class Module:
            @staticmethod
            def start(_spark: object, _options: object) -> list[FakeQuery]:
                looks, error = bench.attempts.pop(0)
                bench.queries = [
                    FakeQuery(looks, error, bench.spark.active),
                    FakeQuery(10**9, None, bench.spark.active),
                ]
                if looks == 0 and error is not None:
                    raise error
                if error is None:
                    bench.queries.pop().stop()
                return bench.queries

        made.module, made.restarts, made.verbose = Module, restarts, verbose  # type: ignore[assignment]
        self.runner = runner.Runner(made, self.session, self.send, self.screen, self.clock)

    def session(self, _before: object) -> Any:
        return self.spark

    def send(self, report: PipelineReport) -> bool:
        self.reports.append(report)
        return False

    def states(self) -> list[str]:
        found = [report.state for report in self.reports]
        return [state for at, state in enumerate(found) if at == 0 or found[at - 1] != state]


def test_a_failure_is_said_and_begun_again() -> None:
    bench = Bench([(4, RuntimeError("full")), (0, QuintetError("away", hint="wait")), (5, None)])
    assert bench.runner.go() == 0
    assert "t: RuntimeError: full. Starting again from its checkpoint in 1 s." in bench.screen.notes
    assert "t: away (wait). Starting again from its checkpoint in 2 s." in bench.screen.notes
    assert bench.screen.notes[-1].startswith("t: finished, 0 rows in ")
    assert bench.spark.active == [], "queries that did not fail are stopped with the one that did"
    assert (bench.reports[-1].state, bench.reports[-1].restarts) == ("finished", 2)
    assert {report.started_us for report in bench.reports} == {1_000_000}, "an order to stop is for the whole run"


def test_health_is_what_forgives() -> None:
    long = int(failures.FORGIVEN_S) * 3
    bench = Bench([(1, RuntimeError("a")), (1, RuntimeError("a")), (long, RuntimeError("b")), (1, None)], restarts=2)
    assert bench.runner.go() == 0
    pauses = [note.rpartition(" in ")[2] for note in bench.screen.notes if "Starting again" in note]
    assert pauses == ["1 s.", "2 s.", "1 s."]


@pytest.mark.parametrize(
    ("error", "restarts", "said"),
    [
        (OptionError("subscribe", "no topic x"), None, "t: option subscribe: no topic x."),
        (Captured(f"{WORKER}quintet.model.errors.AuthError: who?{TAIL}"), None, "t: who?"),
        (RuntimeError("a"), 0, "t: RuntimeError: a."),
        (RuntimeError("a"), 2, "t: RuntimeError: a. Gave up after 2 restarts."),
    ],
)
def test_the_end_of_patience(error: Exception, restarts: int | None, said: str) -> None:
    bench = Bench([(1, error)] * 5, restarts)
    assert bench.runner.go() == 1
    assert bench.screen.notes[-1] == said
    assert bench.reports[-1].state == "failed"
    assert bench.reports[-1].detail in said


def test_verbose_shows_all_of_it() -> None:
    bench = Bench([(0, RuntimeError("a"))], 0, verbose=True)
    assert bench.runner.go() == 1
    assert "in start" in bench.screen.notes[-1]


def test_an_order_to_stop_lets_the_batch_end() -> None:
    def plan(bench: Bench, now: float) -> None:
        if now >= 5:
            bench.runner.stop.set()

    bench = Bench([(10**6, None)], plan=plan)
    assert bench.runner.go() == 0
    assert bench.clock.waits[-2:] == [runner.DRAIN_S, runner.DRAIN_S], "until no batch was under way"
    assert (bench.reports[-1].state, bench.spark.active) == ("stopped", [])

    def always_busy(bench: Bench, now: float) -> None:
        bench.queries[0].busy = 9
        plan(bench, now)

    stuck = Bench([(10**6, None)], plan=always_busy)
    assert stuck.runner.go() == 0
    assert stuck.clock.at == pytest.approx(5 + runner.BATCH_ENDS_S, abs=1), "and no longer than that"
    waiting = Bench([(1, RuntimeError("a"))] * 9, plan=plan)
    assert waiting.runner.go() == 0, "while it waits to start again, too"
    assert waiting.reports[-1].state == "stopped"


def test_a_broker_that_is_away_stops_nothing_and_its_order_does() -> None:
    bench = Bench([(40, None)])
    calls = []

    def send(report: PipelineReport) -> bool:
        calls.append(report)
        raise QuintetError("nobody there")

    bench.runner.send = send
    assert bench.runner.go() == 0
    assert calls[-1].state == "finished"
    ordered = Bench([(10**9, None)], plan=lambda bench, now: time.sleep(0.001))  # the reporter is a thread
    ordered.runner.send = lambda report: report.state == "running"
    assert ordered.runner.go() == 0
    assert ordered.screen.notes[-1].startswith("t: stopped")


def test_a_pipeline_that_ends() -> None:
    for to, code, state in ((3, 0, "finished"), (10, 1, "failed"), (7, 1, "failed")):
        screen, reports = Notes(), list[PipelineReport]()
        made = runner.prepare(COUNT, {"topic": "a", "to": str(to)})
        assert (made.name, made.restarts, made.checkpoint) == ("count-a", 0, "")

        def send(report: PipelineReport, reports: list[PipelineReport] = reports) -> bool:
            reports.append(report)
            return False

        assert runner.Runner(made, lambda before: FakeSpark(), send, screen).go() == code  # type: ignore[arg-type,return-value]
        assert reports[-1].state == state
        assert [len(result.rows) for result in screen.results] == ([] if to == 7 else [to])
    assert screen.notes[-1] == "count-a: seven is not counted to."


def test_an_order_is_heard_while_a_pipeline_waits_for_its_time() -> None:
    made = runner.prepare(COUNT, {"topic": "a", "wait": "3600"})
    screen = Notes()
    going = runner.Runner(made, lambda before: Sleepy(), lambda report: report.state == "running", screen)  # type: ignore[arg-type,return-value]
    assert going.go() == 0
    assert screen.notes[-1].startswith("count-a: stopped after ")
    assert not screen.results


class Sleepy(FakeSpark):
    """A session with no job to cancel."""

    @property
    def sparkContext(self) -> "Sleepy":
        return self

    def cancelAllJobs(self) -> None:
        pass


def test_how_often_by_default() -> None:
    assert job().restarts is None
    assert job(trigger="now").restarts == failures.RESTARTS_NOW


# -- figures ----------------------------------------------------------------------------------------------------------


def progress(at: int, rows: int, ran: bool = True, **more: Any) -> FakeProgress:
    durations = {"addBatch": 5} if ran else {"triggerExecution": 1}
    base = {"timestamp": f"2026-01-01T00:00:{at:02}.000Z", "batchId": at, "numInputRows": rows, "durationMs": durations}
    return FakeProgress(base | {"processedRowsPerSecond": rows * 2.0, "batchDuration": 1500} | more)


def test_figures_count_each_trigger_once() -> None:
    query = FakeQuery(10**9, None, [])
    watch = ProgressPoller()
    watch.begin(1)
    assert watch.look([query]) == Figures()
    query.recentProgress += [progress(1, 10, sink={"numOutputRows": -1}), progress(2, 20, sink={"numOutputRows": 7})]
    watch.look([query])
    state = {"numRowsTotal": 3, "memoryUsedBytes": 2048}
    source = {"latestOffset": {"t": {"id": 1, "0": 12}}, "endOffset": {"t": {"id": 1, "0": 5}}}
    idle = {"stateOperators": [state, state], "sources": [source], "processedRowsPerSecond": float("nan")}
    query.recentProgress.append(progress(3, 0, ran=False, **idle))
    found = watch.look([query])
    assert (found.batches, found.rows_in, found.rows_out, found.rows_per_second) == (2, 30, 7, 0)
    assert (found.batch_ms, found.lag, found.state_rows, found.state_bytes) == (1500, 7, 6, 4096)
    watch.begin(1)
    assert watch.look([FakeQuery(10**9, None, [])]).rows_in == 30, "counts go on after a restart"
    assert line("t", "running", found, 1) == "t: running, 30 rows, 0/s, batch 1.5 s, lag 0, 1 restart"
    assert "state 6 rows 4.1 kB" in line("t", "running", Figures(state_rows=6, state_bytes=4096), 0)


@pytest.mark.parametrize(
    ("latest", "end", "rows"),
    [
        ({"t": {"id": 1, "0": 10, "1": 5}}, {"t": {"id": 1, "0": 4, "1": 9}}, 6),
        ({"t": {"id": 2, "0": 10}}, {"t": {"id": 1, "0": 4}}, 10),
        ({"t": {"id": 1, "0": 10}, "u": {"id": 2, "0": 3}}, {"t": {"id": 1, "0": 10}}, 3),
        ({"t": {"id": 1, "0": 10, "recordBytes": 57.5}}, {"t": {"id": 1, "0": 4}}, 6),
        (None, {"t": {"id": 1, "0": 4}}, 0),
        ({"a": 10}, {"a": 4}, 0),
        ("7", "5", 0),
    ],
)
def test_lag(latest: Any, end: Any, rows: int) -> None:
    assert lag({"latestOffset": latest, "endOffset": end}) == rows


# -- with Spark -------------------------------------------------------------------------------------------------------


def test_a_query_that_fails_goes_on_from_its_checkpoint(spark: "SparkSession", tmp_path: Path) -> None:
    match = tmp_path / "match"
    match.touch()
    made = runner.prepare(
        KIND, {"checkpoint": str(tmp_path / "c"), "name": "t", "trigger": "50ms", "fail_once": str(match)}
    )
    screen, reports = Notes(), list[PipelineReport]()

    def send(report: PipelineReport) -> bool:
        reports.append(report)
        return report.restarts > 0 and report.batches > 1

    assert runner.Runner(made, lambda before: spark, send, screen).go() == 0
    assert any("RuntimeError: the disk is on fire. Starting again" in note for note in screen.notes), screen.notes
    assert reports[-1].state == "stopped"
    assert reports[-1].rows_in >= 200
    assert [query.name for query in spark.streams.active] == []


def test_an_order_breaks_off_a_pipeline_that_would_take_for_ever(spark: "SparkSession") -> None:
    made = runner.prepare(COUNT, {"topic": "a", "busy": "true"})
    screen = Notes()
    assert runner.Runner(made, lambda before: spark, lambda report: report.state == "running", screen).go() == 0
    assert screen.notes[-1].startswith("count-a: stopped after ")
