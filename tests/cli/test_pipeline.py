"""`quintet pipeline` and `quintet spark` as far as they need no Spark: lists, help, wrong words, status and stop, notebooks."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from quintet.cli import flight
from quintet.cli.main import cli
from quintet.flight.wire import PipelineReport
from quintet.spark.pipelines import PIPELINES
from quintet.spark.sessions import views
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.cli.conftest import Commands
from tests.spark.conftest import FlightServer, flying

SECRET = "flight://shop:hush@127.0.0.1:1"


@pytest.fixture(scope="module")
def door() -> Iterator[FlightServer]:
    with flying() as server:
        yield server


@pytest.fixture
def at(door: FlightServer, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Commands that find the Flight door by its variable."""
    monkeypatch.setenv(flight.VARIABLE, door.flight)
    return Commands(door.fly)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv(flight.VARIABLE, SECRET)
    return Commands("")


def report(door: FlightServer, **fields: object) -> bool:
    values = {"name": "archive-orders", "kind": "archive", "state": "running", "started_us": 1, **fields}
    with FlightConnection(target({"url": door.flight})) as link:
        return link.pipeline_report(PipelineReport(**values))  # type: ignore[arg-type]


# -- without Spark ----------------------------------------------------------------------------------------------------


def bare(*arguments: str, without: str) -> subprocess.CompletedProcess[str]:
    """The command in a Python that lacks some packages."""
    code = (
        f"import sys\nfor name in {without!r}.split(): sys.modules[name] = None\n"
        "from quintet.cli.main import main\nsys.argv[0] = 'quintet'\nmain()"
    )
    environment = {**os.environ, flight.VARIABLE: SECRET}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )


def test_the_list_needs_nothing() -> None:
    done = bare("pipeline", "list", "--json", without="pyspark pyarrow pandas numpy")
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)] == list(PIPELINES)


@pytest.mark.parametrize(
    ("arguments", "without", "said"),
    [
        (("pipeline", "run", "audit"), "pyspark", "Spark needs pyspark, which this Python"),
        (("pipeline", "run", "audit"), "blake3", "Spark needs blake3, which this Python"),
        (("spark", "sql", "select 1"), "pyspark pyarrow", "Spark needs pyarrow, pyspark, which this Python"),
    ],
)
def test_what_is_missing_is_said_in_a_line(arguments: tuple[str, ...], without: str, said: str) -> None:
    done = bare(*arguments, without=without)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert "quintet[spark]" in done.stderr


@pytest.mark.parametrize("arguments", [("pipeline", "status"), ("pipeline", "stop", "x")])
def test_what_asks_the_flight_door_names_its_extra(arguments: tuple[str, ...]) -> None:
    done = bare(*arguments, without="pyarrow")
    said = "quintet: the Flight door needs the package pyarrow, which is not installed (pip install 'quintet[flight]')"
    assert (done.returncode, done.stderr) == (1, f"{said}\n")


def test_status_needs_no_spark() -> None:
    done = bare("pipeline", "status", without="pyspark pandas")
    assert done.returncode == 1
    assert done.stderr.startswith("quintet: option url: no broker could be reached at 127.0.0.1:1")
    assert "hush" not in done.stderr


# -- run: words -------------------------------------------------------------------------------------------------------


def test_help_of_a_pipeline_is_made_of_its_options(nowhere: Commands) -> None:
    said = nowhere("pipeline", "run", "tests.spark.ticks", "--help").out
    assert "A pipeline of the tests' own" in said
    assert re.search(r"rows +number +100 +Rows of one batch\.", said)
    assert re.search(r"trigger +text +10s", said)
    assert "hush" not in said
    said = nowhere("pipeline", "run", "tests.spark.count", "-h").out
    assert re.search(r"topic +text +must be given +Only a word\.", said)
    said = nowhere("pipeline", "run", "--help").out
    assert "quintet pipeline run archive" in said
    assert "--restarts" in said
    for kind in PIPELINES:
        assert "what it is" in nowhere("pipeline", "run", kind, "--help").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument 'NAME'"),
        (("audi",), "there is no pipeline 'audi' (did you mean audit?)"),
        (("dedupe", "topik=a"), "there is no option 'topik' (did you mean topic?)"),
        (("dedupe", "to_topic=b"), "option topic is missing (The topic to read.)"),
        (("dedupe", "topic"), "'topic' is not an option of a pipeline (write KEY=VALUE"),
        (("dedupe", "topic=a"), "set to_topic or to_table, one of them"),
        (("dedupe", "topic=a", "to_topic=b", "--trigger", "often"), "'often' is no duration"),
        (
            ("dedupe", "topic=a", "to_topic=b", "max_per_trigger=x"),
            "option max_per_trigger: 'x' is wrong; it is a whole",
        ),
        (("dedupe", "topic=a", "to_topic=b", "--url", "http://x"), "option url: it names no Flight door"),
        (("dedupe", "--config", "nowhere.toml"), "nowhere.toml: cannot be read"),
        (("dedupe", "--restarts", "-1"), "--restarts"),
    ],
)
def test_wrong_words_are_exit_code_2(nowhere: Commands, arguments: tuple[str, ...], said: str) -> None:
    assert said in nowhere("pipeline", "run", *arguments, code=2).err


def test_credentials_of_the_environment_go_to_no_other_broker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from quintet.spark.pipelines.running import runner

    asked: list[dict[str, str]] = []

    def run(_kind: str, options: dict[str, str], **_: object) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.delenv(flight.VARIABLE, raising=False)
    commands = Commands("blipmq://:hush@home:5555")
    config = tmp_path / "options.toml"
    config.write_text('url = "flight://bob:pw@other"')
    commands("pipeline", "run", "audit", "topic=a")
    for where in (("--url", "flight://bob:pw@other"), ("url=flight://bob:pw@other",), ("--config", str(config))):
        commands("pipeline", "run", "audit", "topic=a", *where)
    assert asked[0]["token"] == "hush"
    assert asked[1:] == [{"topic": "a", "url": "flight://bob:pw@other"}] * 3


def test_no_broker_is_said_before_spark_starts(nowhere: Commands, tmp_path: Path) -> None:
    words = ("dedupe", "topic=a", "to_topic=b", "--restarts", "0", "--checkpoint", str(tmp_path / "c"))
    said = nowhere("pipeline", "run", *words, code=1).err
    assert said.startswith("dedupe-a: option url: no broker could be reached at 127.0.0.1:1 for 5 s; is it running")
    assert len(said.splitlines()) == 1


def test_wrong_credentials_end_it_at_once(at: Commands, door: FlightServer, tmp_path: Path) -> None:
    url = door.flight.replace("admin:admin", "admin:guess")
    words = ("dedupe", "topic=a", "to_topic=b", "--checkpoint", str(tmp_path / "c"), "--url", url)
    said = at("pipeline", "run", *words, code=1).err
    assert said.startswith("dedupe-a: options user and password: the broker at 127.0.0.1:")
    assert len(said.splitlines()) == 1
    assert "guess" not in said


# -- status and stop --------------------------------------------------------------------------------------------------


def test_status_and_stop(at: Commands, door: FlightServer) -> None:
    assert not report(door, rows_in=1_234, rows_per_second=56.7, batch_ms=1500.0, lag=89, detail="it was hot")
    shown = at("pipeline", "status")
    assert re.search(r"archive-orders +archive +running +1,234 +57 +1\.5 s +89 ", shown.out)
    assert shown.err == "archive-orders: it was hot\n"
    row = at("pipeline", "status", "archive-orders", "--json").json[0]
    assert (row["rows_in"], row["owner"], row["state"]) == (1234, "admin", "running")
    assert "there is no pipeline 'x'" in at("pipeline", "status", "x", code=1).err
    watched = at("pipeline", "status", "--watch", "--every", "1ms", "-n", "2").out
    assert watched.count("archive-orders") == 2
    lines = at("pipeline", "status", "-w", "--every", "1ms", "-n", "2", "--json").lines
    assert [json.loads(line)[0]["name"] for line in lines] == ["archive-orders"] * 2
    assert "asked to stop" in at("pipeline", "stop", "archive-orders").out
    assert report(door), "the answer to its next report"
    assert not report(door, state="stopped")
    assert "there is no pipeline 'x'" in at("pipeline", "stop", "x", code=1).err


def test_completion(at: Commands, door: FlightServer) -> None:
    report(door)

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        environment = {**os.environ, "_QUINTET_COMPLETE": "bash_complete", "COMP_WORDS": line}
        done = subprocess.run(
            [sys.executable, "-m", "quintet"],
            env={**environment, "COMP_CWORD": str(len(words) - 1)},
            capture_output=True,
            text=True,
            check=True,
        )
        return [row.partition(",")[2] for row in done.stdout.splitlines()]

    assert complete("quintet pipeline run aud") == ["audit"]
    assert complete("quintet pipeline run dedupe wit") == ["within="]
    assert complete("quintet pipeline stop arch") == ["archive-orders"]


def test_where_the_door_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(flight.VARIABLE, raising=False)
    monkeypatch.delenv("QUINTET_URL", raising=False)
    assert flight.access(None) == {"url": flight.URL_DEFAULT}
    assert flight.access("flight://h") == {"url": "flight://h"}
    for other, found in {
        "flymq://u:p%40@h:9092": {"url": "flight://u:p%40@h:8815"},
        "flymqs://u:p@[::1]:1?ca=a.pem": {"url": "flights://u:p@[::1]:8815?ca=a.pem"},
        "blipmq://:key@h": {"url": "flight://h:8815", "token": "key"},
        "flight://u:p@h:7": {"url": "flight://u:p@h:7"},
    }.items():
        monkeypatch.setenv("QUINTET_URL", other)
        assert flight.access(None) == found
    monkeypatch.setenv("QUINTET_URL", "http://x")
    with pytest.raises(click.UsageError):
        flight.access(None)
    monkeypatch.setenv(flight.VARIABLE, "flight://first")
    assert flight.access(None) == {"url": "flight://first"}


# -- spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ('select \';\' ; select "a;\\";"', ["select ';'", 'select "a;\\";"']),
        ("select * from `a;``b`; -- one; two\nselect 3", ["select * from `a;``b`", "-- one; two\nselect 3"]),
        (" ; /* a; b */ ;-- nothing", []),
        ("select 'it''s; so'", ["select 'it''s; so'"]),
    ],
)
def test_statements(text: str, found: list[str]) -> None:
    assert list(views.statements(text)) == found


def test_a_notebook_opens_its_session_as_told(
    nowhere: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = ("--master", "spark://host:7077", "--conf", "spark.executor.memory=2g", "--conf", "spark.ui.port=4050")
    nowhere("spark", "notebook", "orders", "--print", *told)
    line = "quintet.spark.session('spark://host:7077', conf={'spark.executor.memory': '2g', 'spark.ui.port': '4050'})"
    assert line in Path("orders.py").read_text()
    secret = ("--conf", "spark.hadoop.fs.s3a.secret.key=x", "--force")
    assert "would be visible in the notebook" in nowhere("spark", "notebook", "orders", "--print", *secret, code=2).err
    for wrong in ("spark.executor.memory", "executor.memory=2g"):
        said = nowhere("spark", "sql", "select 1", "--conf", wrong, code=2).err
        assert f"--conf '{wrong}' is not a setting of Spark" in said


def test_notebooks_hold_no_secret(nowhere: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    odd = 'a`b"c\\'
    for topic, name in (("orders", "orders"), (odd, "a_b_c_")):
        assert nowhere("spark", "notebook", topic, "--print").out == f"{name}.py\n"
        tree = ast.parse((tmp_path / f"{name}.py").read_text())
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert topic in texts
        assert nowhere("spark", "notebook", topic, "--print", "--jupyter").out == f"{name}.ipynb\n"
        page = json.loads((tmp_path / f"{name}.ipynb").read_text())
        for cell in page["cells"][1:]:
            ast.parse("".join(cell["source"]))
    assert "hush" not in "".join(path.read_text() for path in tmp_path.iterdir())
    assert "orders.py is there already" in nowhere("spark", "notebook", "orders", "--print", code=2).err
    nowhere("spark", "notebook", "orders", "--print", "--force")


def test_words_of_the_spark_commands(nowhere: Commands) -> None:
    assert "exclude each other" in nowhere("spark", "sql", "--json", "--csv", "select 1", code=2).err
    assert "there is no statement" in nowhere("spark", "sql", " ; ", code=2).err
    assert "no broker could be reached" in nowhere("spark", "sql", "-", data="select 1", code=1).err
    command = cli.get_command(click.Context(cli), "spark")
    assert isinstance(command, click.Group)
    assert list(command.commands) == ["sql", "notebook", "convert"]
    assert "'region' is not of the form storage.NAME=VALUE" in nowhere("spark", "convert", "t", "region=eu", code=2).err
    assert (
        "there is no lake table at t; only a Parquet table can be converted"
        in nowhere("spark", "convert", "t", code=1).err
    )
