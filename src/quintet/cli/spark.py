"""`quintet spark`: runs SQL over topics, and opens a notebook with a running query.

Every topic the user may read is a table by its name. Results go to stdout: a table, with --json one object a line, with --csv
comma-separated values. Bytes are shown as text where they are text; else as hex in a table, and as base64 elsewhere.
"""

import base64
import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from quintet.cli import flight
from quintet.cli.flight import conf_option, flight_url_option, master_option
from quintet.cli.terminal import common
from quintet.cli.terminal.common import say_table, text_or_base64
from quintet.cli.terminal.output import echo
from quintet.model import extras
from quintet.model.errors import ConfigError, QuintetError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from quintet.spark.sessions.views import Views
    from quintet.spark.source.connection import FlightConnection

LIMIT_ROWS: Final = 1_000  # of a table; --json and --csv have no limit unless --limit sets one


def _complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return flight.complete(ctx, lambda connection: sorted(_topics(connection)), incomplete)


def _topics(connection: "FlightConnection") -> frozenset[str]:
    from quintet.spark.sessions.views import names

    return names(connection)


@click.group()
def spark() -> None:
    """SQL over topics, and notebooks with a running query.

    \b
    quintet spark sql "select count(*) from orders"
    quintet spark sql --typed "select region, sum(total) from orders group by region"
    quintet spark notebook orders
    quintet spark convert lake/orders
    """


# -- sql --------------------------------------------------------------------------------------------------------------


@spark.command()
@click.argument("statement")
@flight_url_option
@master_option
@conf_option
@click.option("--typed", is_flag=True, help="Decode values into the columns of their registered schema.")
@click.option(
    "--limit", type=click.IntRange(1), help=f"Maximum number of rows [{LIMIT_ROWS}; with --json or --csv all]."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values.")
@click.option("--verbose", "-v", is_flag=True, help="Show Spark's log, and what its workers print.")
def sql(
    statement: str,
    url: str | None,
    master: str | None,
    conf: dict[str, str],
    typed: bool,
    limit: int | None,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
) -> None:
    """Run SQL over topics. Each is a table by its name: key, value, headers, topic, partition, offset, timestamp, origin.

    \b
    quintet spark sql "select partition, count(*), max(timestamp) from orders group by partition"
    quintet spark sql "select cast(value as string) from \\`orders.eu\\` where offset < 10"
    quintet spark sql --typed --csv "select * from orders" > orders.csv
    quintet spark sql - < report.sql

    STATEMENT - is read from stdin. Separate several with semicolons; put names with special characters in backticks.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other.")
    from quintet.spark.sessions import start

    start.check_packages()
    from quintet.spark.pipelines.running import sessions
    from quintet.spark.sessions import views

    text = sys.stdin.read(common.FILE_BYTES_MAX) if statement == "-" else statement
    wanted = list(views.statements(text))
    if not wanted:
        raise ConfigError("there is no statement", hint='try "select count(*) from TOPIC"')
    topics = flight.ask(url, _topics)  # before Spark is started: a wrong password is known at once
    own = not sessions.running()
    session = sessions.renewed(None, master, "quintet spark sql", verbose, conf)
    try:
        views.tell_apart(session, topics)
        tables = views.Views(session, flight.access(url), lambda: topics, typed, once=True)
        for each in wanted:
            _say(tables, each, limit, as_json, as_csv)
    finally:
        if own:
            sessions.end(session)


def _say(tables: "Views", statement: str, limit: int | None, as_json: bool, as_csv: bool) -> None:
    try:
        _say_rows(tables.sql(statement), limit, as_json, as_csv)
    except (QuintetError, BrokenPipeError):
        raise
    except Exception as error:  # of Java, of py4j: one sentence is all that a user can use
        raise tables.failed(error) from error


def _say_rows(frame: "DataFrame", limit: int | None, as_json: bool, as_csv: bool) -> None:
    names = frame.columns
    if not names:  # a command, such as CREATE VIEW
        return
    if not as_json and not as_csv:
        most = limit or LIMIT_ROWS
        rows = frame.limit(most + 1).collect()
        numbers = [kind in ("bigint", "int", "smallint", "tinyint", "double", "float") for _, kind in frame.dtypes]
        columns = [f">{name}" if number else name for name, number in zip(names, numbers, strict=True)]
        say_table(columns, [[_cell(value) for value in row] for row in rows[:most]], "no rows")
        if len(rows) > most:
            echo(f"the first {most:,} rows; --limit N shows more, --json and --csv all", err=True)
        return
    found: Iterable[Sequence[object]] = (frame.limit(limit) if limit else frame).toLocalIterator()
    if as_json:
        for row in found:
            echo(json.dumps(_plain_fields(names, row), ensure_ascii=False))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in found:
        writer.writerow([_text(value) for value in row])
    sys.stdout.flush()


def _cell(value: object) -> object:
    """For a table."""
    if isinstance(value, bytes | bytearray):
        return common.shown(bytes(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return "" if value is None else _text(value)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime | date):
        return value.isoformat()
    found = _plain(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _plain(value: object) -> object:
    """As JSON can hold it. Within lists and structures bytes are text, or base64 behind `base64:`."""
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return f"base64:{base64.b64encode(value).decode()}"
    if hasattr(value, "asDict"):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _plain_fields(names: Sequence[str], row: Sequence[object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in zip(names, row, strict=True):
        if isinstance(value, bytes | bytearray):
            found |= text_or_base64(name, bytes(value))
        else:
            found[name] = _plain(value)
    return found


# -- notebook ---------------------------------------------------------------------------------------------------------


@spark.command()
@click.argument("topic", shell_complete=_complete_topic)
@flight_url_option
@master_option
@conf_option
@click.option("--output", "-o", type=click.Path(path_type=Path), help="The file to write [TOPIC.py or TOPIC.ipynb].")
@click.option("--jupyter", is_flag=True, help="A Jupyter notebook instead of a marimo one.")
@click.option("--print", "only_write", is_flag=True, help="Only write the file and print its name.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def notebook(
    topic: str,
    url: str | None,
    master: str | None,
    conf: dict[str, str],
    output: Path | None,
    jupyter: bool,
    only_write: bool,
    force: bool,
) -> None:
    """Write a notebook with a streaming query over a topic: a chart of its message rate that updates itself.

    \b
    quintet spark notebook orders                     writes orders.py and opens it with marimo
    quintet spark notebook orders --jupyter           orders.ipynb
    quintet spark notebook orders --print             only writes it

    No password is written to the file: it reads QUINTET_FLIGHT_URL. --master and --conf are, so a --conf that looks like one is
    refused: spark-defaults.conf is the place for it.
    """
    from quintet.spark.sessions import notebook as pages

    suffix = ".ipynb" if jupyter else ".py"
    file = output or Path((re.sub(r"[^\w.-]", "_", topic).strip(".") or "topic") + suffix)
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already", hint="--force writes over it, --output names another one")
    try:
        file.write_text((pages.jupyter if jupyter else pages.marimo)(topic, master, conf))
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    if only_write:
        echo(str(file))
        return
    program = "jupyter" if jupyter else "marimo"
    command = [sys.executable, "-m", program, *(("lab",) if jupyter else ("edit",)), str(file)]
    if importlib.util.find_spec("jupyterlab" if jupyter else "marimo") is None:
        package = "jupyterlab" if jupyter else "marimo"
        hint = "pip install jupyterlab" if jupyter else extras.install("notebook")
        raise extras.PackageMissing(f"{file} is written, and {package} is not installed", hint=hint)
    environment = {**os.environ, flight.VARIABLE: flight.access(url)["url"]}
    sys.exit(subprocess.run(command, env=environment, check=False).returncode)


# -- lake tables ------------------------------------------------------------------------------------------------------


@spark.command()
@click.argument("path")
@click.argument("options", nargs=-1, metavar="[storage.NAME=VALUE]...")
def convert(path: str, options: tuple[str, ...]) -> None:
    """Make a Delta table of a Parquet table, in place. Nothing is copied; stop its writers first.

    \b
    quintet spark convert lake/orders
    quintet spark convert s3://bucket/orders storage.region=eu-central-1

    Then the same pipeline with the same checkpoint goes on with format=delta.
    """
    from quintet.spark import lake

    for word in options:
        if not word.startswith("storage.") or "=" not in word:
            raise click.UsageError(f"{word.partition('=')[0]!r} is not of the form storage.NAME=VALUE.")
    done = lake.convert(path, dict(word.partition("=")[::2] for word in options))
    echo(f"{path} is a Delta table now: {done.files} files with {done.rows:,} rows, {done.writers} writers go on")
