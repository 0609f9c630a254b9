"""`quintet pipeline`: lists, runs, watches and stops pipelines. Shows only; quintet.spark.pipelines runs them.

`list` needs neither Spark nor pyarrow, `status` and `stop` need pyarrow only. stdout carries the answer: the table or JSON of
a pipeline that ends, the last figures of one that went on; how far it is goes to stderr, one line that is drawn anew on a
terminal and one every ten seconds elsewhere.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click
import msgspec
from click.shell_completion import CompletionItem

from quintet.cli import flight
from quintet.cli.flight import conf_option, flight_url_option, master_option
from quintet.cli.terminal import common
from quintet.cli.terminal.common import json_option, lasting, say, say_json, say_table
from quintet.cli.terminal.output import echo
from quintet.model.errors import BadRequest, QuintetError

if TYPE_CHECKING:
    from rich.status import Status

    from quintet.flight.wire import PipelineReport, Pipelines, PipelineStatus
    from quintet.spark.pipelines.base import Result
    from quintet.spark.pipelines.running.runner import Screen

SILENT_S: Final = 15.0  # a pipeline reports more often than that
TERMINAL_S: Final = 1.0
SPINNER: Final = "dots"
UP: Final = ("starting", "running", "restarting")


@click.group()
def pipeline() -> None:
    """Data pipelines on Spark: run, watch, stop.

    \b
    quintet pipeline list
    quintet pipeline run archive topics=orders path=lake/orders
    quintet pipeline run archive --help             the options of one
    quintet pipeline run aggregate --config orders.toml
    quintet pipeline run audit topic=orders         ends by itself, exit code 1 if something is wrong
    quintet pipeline status --watch
    quintet pipeline stop archive-orders
    """


@pipeline.command("list")
@json_option
def list_pipelines(as_json: bool) -> None:
    """List the built-in pipelines.

    \b
    quintet pipeline list
    """
    from quintet.spark.pipelines import PIPELINES, summary

    rows = [(name, summary(name)) for name in PIPELINES]
    if as_json:
        say_json([{"name": name, "summary": text} for name, text in rows])
    else:
        say_table(("pipeline", "what it does"), rows, "")


# -- run --------------------------------------------------------------------------------------------------------------


def _complete_kind(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from quintet.spark.pipelines import PIPELINES, summary

    return [CompletionItem(name, help=summary(name)) for name in PIPELINES if name.startswith(incomplete)]


def _complete_option(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from quintet.spark import pipelines
    from quintet.spark.pipelines.running import arguments as given

    try:
        module = pipelines.load(ctx.params.get("kind") or "")
    except (QuintetError, ImportError):
        return []
    rows = [row for row in given.described(module) if row.name.startswith(incomplete)]
    return [CompletionItem(f"{row.name}=", help=row.description) for row in rows]


@pipeline.command(add_help_option=False)
@click.argument("kind", metavar="NAME", required=False, shell_complete=_complete_kind)
@click.argument("options", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=_complete_option)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with options; KEY=VALUE overrides it.")
@flight_url_option
@master_option
@conf_option
@click.option("--name", help="Name of this run [NAME and its topics].")
@click.option("--checkpoint", help="Directory of the checkpoint [in your state directory, by name].")
@click.option("--trigger", help="now: process what is there, then stop; or an interval: 500ms, 10s, 5m [10s].")
@click.option(
    "--restarts",
    type=click.IntRange(0),
    help="Give up after this many restarts in a row [never; 5 with --trigger now].",
)
@click.option("--verbose", "-v", is_flag=True, help="Show Spark's log, what its workers print, and stack traces.")
@json_option
@click.option(
    "-h", "--help", "wants_help", is_flag=True, help="Show this message; after NAME: the options of that pipeline."
)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    kind: str | None,
    options: tuple[str, ...],
    config: Path | None,
    url: str | None,
    wants_help: bool,
    as_json: bool,
    master: str | None,
    conf: dict[str, str],
    name: str | None,
    checkpoint: str | None,
    trigger: str | None,
    restarts: int | None,
    verbose: bool,
) -> None:
    """Run a pipeline until it ends, or until Ctrl-C.

    \b
    quintet pipeline run archive topics=orders,payments path=lake
    quintet pipeline run dedupe topic=orders to_topic=orders-clean within=1h --name clean-orders
    quintet pipeline run decode topic=orders to_table=lake/orders --trigger now
    quintet pipeline run audit topic=orders --json
    quintet pipeline run my.own.module topic=orders          a pipeline of yours

    A pipeline that fails starts again from its checkpoint, after 1, 2, 4 ... 60 seconds. The first Ctrl-C (or SIGTERM)
    lets it finish the current batch.
    """
    if wants_help and kind is None:
        echo(ctx.get_help())
        return
    if kind is None:
        raise click.UsageError("Missing argument 'NAME': `quintet pipeline list` shows them.")
    if wants_help:
        _help(kind)
        return
    from quintet.spark.sessions import start

    start.check_packages()
    from quintet.spark.pipelines.running import arguments as given
    from quintet.spark.pipelines.running import runner

    found: dict[str, object] = {**(given.file(config) if config else {}), **given.words(options)}
    found |= {"url": url} if url else {}
    found |= {"trigger": trigger} if trigger else {}
    if "url" not in found:  # credentials from the environment are used only for the broker that the environment names
        found = flight.access(None) | found
    code = runner.run(
        kind,
        found,
        name=name or "",
        checkpoint=checkpoint or "",
        master=master,
        conf=conf,
        restarts=restarts,
        verbose=verbose,
        screen=_screen(as_json),
    )
    sys.exit(code)


def _help(kind: str) -> None:
    from quintet.spark import pipelines
    from quintet.spark.pipelines.running import arguments as given

    module = pipelines.load(kind)
    echo(f"Usage: quintet pipeline run {kind} [KEY=VALUE]... [OPTIONS]\n")
    echo(f"{(module.__doc__ or module.SUMMARY).strip()}\n")
    rows = [
        (row.name, row.kind, "must be given" if row.default is None else row.default, row.description)
        for row in given.described(module)
        if row.name not in ("name", "checkpoint")
    ]
    say_table(("KEY", "VALUE", "default", "what it is"), rows, "")
    echo("\nOptions for all pipelines: quintet pipeline run --help")


def _screen(as_json: bool) -> "Screen":
    """What shows a run: defined here, because its base must not be loaded by --help."""
    from quintet.spark.pipelines.running.runner import LINE_S, Screen

    class CommandScreen(Screen):
        def __init__(self) -> None:
            self._live: Status | None = None
            self.every_s = LINE_S
            if sys.stderr.isatty():
                from rich.console import Console

                self.every_s = TERMINAL_S
                self._live = Console(stderr=True).status("starting Spark", spinner=SPINNER)
                self._live.start()

        def show(self, text: str) -> None:
            if self._live is None:
                self.note(text)
            else:
                from rich.text import Text

                self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))

        def note(self, text: str) -> None:
            shown = "\n".join(line if line.isprintable() else ascii(line)[1:-1] for line in text.splitlines())
            if self._live is None:
                echo(shown, err=True)
            else:
                self._live.console.print(shown, markup=False, highlight=False, soft_wrap=True)

        def summary(self, report: "PipelineReport", seconds: float) -> None:
            if as_json:
                say_json(msgspec.to_builtins(report) | {"seconds": round(seconds, 3)})
                return
            rate = report.rows_in / seconds if seconds else 0.0
            what = f"{report.rows_in:,} rows in {report.batches:,} batch{'' if report.batches == 1 else 'es'}, {lasting(seconds)}, {rate:,.0f} rows/s"
            echo(f"{report.name}: {report.state}, {what}")

        def result(self, result: "Result") -> None:
            _say_result(result, as_json)

        def close(self) -> None:
            if self._live is not None:
                self._live.stop()
                self._live = None

    return CommandScreen()


def _say_result(result: "Result", as_json: bool) -> None:
    """A table on a terminal, tab-separated values elsewhere; notes to stderr."""
    names = [name.removeprefix(">") for name in result.columns]
    if as_json:
        rows = [dict(zip(names, row, strict=True)) for row in result.rows]
        more = {"notes": list(result.notes), "pictures": list(result.pictures)}
        echo(json.dumps({"title": result.title, "ok": result.ok, "rows": rows} | more, indent=2, default=str))
        return
    if sys.stdout.isatty():
        echo(result.title)
        if result.rows:
            say_table(_aligned(result), result.rows, "")
    elif result.columns:
        for row in (names, *result.rows):
            echo("\t".join(_field(value) for value in row))
    for text in (*([] if sys.stdout.isatty() else [result.title]), *result.notes):
        echo(text, err=True)
    for path in result.pictures:
        echo(f"drawn: {path}", err=True)


def _aligned(result: "Result") -> list[str]:
    """Columns of numbers are aligned to the right."""
    numeric = [all(isinstance(row[at], int | float) for row in result.rows) for at in range(len(result.columns))]
    return [
        f">{name}" if number and not name.startswith(">") else name
        for name, number in zip(result.columns, numeric, strict=True)
    ]


def _field(value: object) -> str:
    """One field of a line of tab-separated values."""
    text = "" if value is None else str(value)
    return text if text.isprintable() else ascii(text)[1:-1]


# -- status and stop --------------------------------------------------------------------------------------------------


def _complete_name(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return flight.complete(
        ctx, lambda connection: [each.report.name for each in connection.pipelines().pipelines], incomplete
    )


@pipeline.command()
@click.argument("name", required=False, shell_complete=_complete_name)
@flight_url_option
@click.option("--watch", "-w", is_flag=True, help="Repeat until Ctrl-C.")
@click.option("--every", type=common.Duration(), default="2s", show_default=True, help="With --watch: interval.")
@click.option("-n", "--count", type=click.IntRange(1), help="With --watch: stop after this many.")
@json_option
def status(name: str | None, url: str | None, watch: bool, every: int, count: int | None, as_json: bool) -> None:
    """Show the pipelines that report to a broker, from any machine that can reach it.

    \b
    quintet pipeline status
    quintet pipeline status archive-orders --watch
    quintet pipeline status --json | jq '.[] | select(.lag > 1000) | .name'
    """
    if not watch:
        _show(flight.ask(url, lambda connection: connection.pipelines()), name, as_json, line=False)
        return
    try:
        _watch(name, url, every / 1000, count, as_json)
    except KeyboardInterrupt:
        return


def _watch(name: str | None, url: str | None, every_s: float, count: int | None, as_json: bool) -> None:
    from rich.live import Live

    screen = common.console()
    with Live(console=screen, auto_refresh=False, transient=False) as live:
        taken = 0
        while count is None or taken < count:
            if taken:
                time.sleep(every_s)
            taken += 1
            found = flight.ask(url, lambda connection: connection.pipelines())
            if as_json:
                _show(found, name, as_json, line=True)
                continue
            table = common.make_table(COLUMNS, [_row(each, found.now_us) for each in _chosen(found, name)])
            if screen.is_terminal:
                live.update(table, refresh=True)
            else:
                screen.print(table)


COLUMNS: Final = (
    "name", "kind", "state", ">rows", ">rows/s", ">batch", ">lag", ">state rows", ">restarts", "running for", "owner",
)  # fmt: skip


def _show(found: "Pipelines", name: str | None, as_json: bool, *, line: bool) -> None:
    chosen = _chosen(found, name)
    if as_json:
        rows = [
            msgspec.to_builtins(each.report) | {"owner": each.owner, "silent_s": (found.now_us - each.seen_us) / 1e6}
            for each in chosen
        ]
        say_json(rows, line=line)
        return
    if name is not None and not chosen:
        _nothing(name)
    say_table(COLUMNS, [_row(each, found.now_us) for each in chosen], "no pipelines; `quintet pipeline run` starts one")
    for each in chosen:
        if each.report.detail:
            echo(f"{each.report.name}: {each.report.detail}", err=True)


def _chosen(found: "Pipelines", name: str | None) -> "list[PipelineStatus]":
    return [each for each in found.pipelines if name in (None, each.report.name)]


def _row(each: "PipelineStatus", now_us: int) -> tuple[object, ...]:
    report, silent_s = each.report, (now_us - each.seen_us) / 1e6
    up = report.state in UP
    state = f"{report.state}, silent for {lasting(silent_s)}" if up and silent_s > SILENT_S else report.state
    ran_s = max(0, (now_us if up else each.seen_us) - report.started_us) / 1e6
    batch = lasting(report.batch_ms / 1000) if report.batch_ms >= 1000 else f"{report.batch_ms:.0f} ms"
    return (
        report.name, report.kind, state, report.rows_in, f"{report.rows_per_second:,.0f}", batch, report.lag,
        report.state_rows, report.restarts, lasting(ran_s), each.owner,
    )  # fmt: skip


def _nothing(name: str) -> NoReturn:
    raise BadRequest(f"there is no pipeline {name!r}", hint="`quintet pipeline status` lists those that report")


@pipeline.command()
@click.argument("name", shell_complete=_complete_name)
@flight_url_option
@json_option
def stop(name: str, url: str | None, as_json: bool) -> None:
    """Ask a running pipeline to stop; it finishes the current batch first.

    \b
    quintet pipeline stop archive-orders
    """
    flight.ask(url, lambda connection: connection.pipeline_stop(name))
    say(as_json, {"name": name, "asked": True}, f"{name}: asked to stop when the batch under way has ended")
