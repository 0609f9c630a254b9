"""`quintet bench`: measures publish, end-to-end and fan-out loads against a broker, with percentiles.

Options and what is shown live here; the measuring is quintet.bench. With --rate, latency counts from the time a message
was due, so a stalled server cannot hide; without, the report says `closed loop`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from quintet.bench.targets import Target, schemes, target
from quintet.bench.wire import BenchError
from quintet.cli.terminal.output import echo
from quintet.model import extras

if TYPE_CHECKING:
    from quintet.bench.run import Outcome

SIZE_BYTES_MAX = 15 * 1024 * 1024
STAMP_BYTES = 8  # a payload that is timed end to end carries the time it was due
CONNECTIONS_MAX = 10_000
IN_FLIGHT_MAX = 1_000_000
RATE_MAX = 200_000.0  # messages per second that one scheduled publisher can still send on time
DEFAULT_COUNT = 1_000_000
DEFAULT_S = 10.0

Progress = Callable[[int], None]


class Shared(TypedDict):
    """The options all loads share."""

    url: str
    size: int
    count: int | None
    duration: float | None
    rate: float | None
    qos: int
    topic: str
    json_file: Path | None
    picture: Path | None


def _options(function: Callable[..., None]) -> Callable[..., None]:
    shared = [
        click.argument("url", envvar="QUINTET_URL", default="blipmq://:dev-key@127.0.0.1:5555"),
        click.option(
            "--size", type=click.IntRange(1, SIZE_BYTES_MAX), default=128, show_default=True, help="Bytes per message."
        ),
        click.option("--count", type=click.IntRange(1), help="Messages to publish, rounded up to whole writes."),
        click.option(
            "--duration",
            type=click.FloatRange(0.1, 3600),
            help="Seconds to run, instead of --count (e2e and fanout: with --rate).",
        ),
        click.option("--rate", type=click.FloatRange(1, RATE_MAX), help="Messages per second, on a fixed schedule."),
        click.option(
            "--qos", type=click.IntRange(0, 1), default=0, show_default=True, help="0: may be lost; 1: durable."
        ),
        click.option("--topic", default="bench", show_default=True, help="Topic to write to."),
        click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result as JSON."),
        click.option("--picture", type=click.Path(path_type=Path), help="Draw the result: a .png or .svg file."),
    ]
    for option in reversed(shared):
        function = option(function)
    return function


@click.group()
def bench() -> None:
    """Measure throughput and latency of a broker, with percentiles and a picture.

    \b
    quintet bench pub --qos 1 --connections 16 --in-flight 64
    quintet bench e2e --rate 10000 --duration 10 --picture latency.png
    quintet bench fanout --subscribers 16 --size 1024

    URL is that of a broker, such as blipmq://:dev-key@127.0.0.1:5555 (the default; or QUINTET_URL).
    """


@contextmanager
def _bar(what: str, total: int) -> Iterator[Progress | None]:
    """A progress bar on stderr if somebody looks at it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total or None)
        yield lambda done: bar.update(task, completed=done)


def _messages(count: int | None, duration: float | None, rate: float | None) -> int:
    """How many messages a run has whose length must be known beforehand."""
    if count is not None and duration is not None:
        raise click.UsageError("--count and --duration both say when to stop: give one.")
    if count is not None:
        return count
    if rate is not None:
        return max(1, int(rate * (duration or DEFAULT_S)))
    return DEFAULT_COUNT


def _check_stamp(size: int) -> None:
    if size < STAMP_BYTES:
        raise click.UsageError(
            f"--size must be at least {STAMP_BYTES}: the payload carries the time at which it was due."
        )


@bench.command()
@_options
@click.option("--connections", type=click.IntRange(1, CONNECTIONS_MAX), default=1, help="Publishing connections.")
@click.option("--in-flight", type=click.IntRange(1, IN_FLIGHT_MAX), default=4096, help="Unanswered messages on each.")
def pub(
    url: str,
    size: int,
    count: int | None,
    duration: float | None,
    rate: float | None,
    qos: int,
    topic: str,
    json_file: Path | None,
    picture: Path | None,
    connections: int,
    in_flight: int,
) -> None:
    """Publish, and wait until the broker has confirmed all (with --qos 1: as durable)."""
    from quintet.bench import run
    from quintet.bench.generators import Load

    _check_packages(picture)
    door = target(url)
    load = Load(door.wire, door.address, topic, size, qos)
    total = _messages(count, duration, rate)
    if rate is not None:
        _check_stamp(size)
        if connections != 1:
            raise click.UsageError("--rate uses one connection: leave --connections out.")
        with _bar("publishing on schedule", total) as progress:
            outcome = run.scheduled(load, rate, total, progress)
    else:
        depth = run.WINDOWS_UNDER_WAY if in_flight >= run.WINDOWS_UNDER_WAY else 1
        seconds = duration or 0.0
        with _bar("publishing", 0 if seconds else total) as progress:
            outcome = run.windows(
                load, connections, in_flight // depth, depth, seconds, 0 if seconds else total, progress
            )
    what: dict[str, object] = {
        "load": "pub",
        "connections": connections,
        "in_flight": in_flight if rate is None else None,
        "rate": rate,
    }
    _report(door, what | {"qos": qos}, outcome, json_file, picture)


def _flow(
    url: str,
    size: int,
    count: int | None,
    duration: float | None,
    rate: float | None,
    qos: int,
    topic: str,
    json_file: Path | None,
    picture: Path | None,
    subscribers: int,
    name: str,
) -> None:
    from quintet.bench import run
    from quintet.bench.generators import Load

    _check_stamp(size)
    _check_packages(picture)
    door = target(url)
    load = Load(door.wire, door.address, topic, size, qos)
    if duration is not None and rate is None:
        raise click.UsageError("--duration needs --rate here: without --rate a run ends after --count messages.")
    total = _messages(count, duration, rate)
    with _bar(f"{name}, to {subscribers}", total) as progress:
        if rate is not None:
            outcome = run.scheduled_flow(load, rate, total, subscribers, progress)
        else:
            outcome = run.flow(load, total, subscribers, sample=True, progress=progress)
    _report(door, {"load": name, "subscribers": subscribers, "qos": qos, "rate": rate}, outcome, json_file, picture)


@bench.command()
@_options
def e2e(**options: Unpack[Shared]) -> None:
    """One publisher to one subscriber, from the first write to the last delivery."""
    _flow(**options, subscribers=1, name="e2e")


@bench.command()
@_options
@click.option("--subscribers", type=click.IntRange(1, CONNECTIONS_MAX), default=16, help="Subscribers of the topic.")
def fanout(subscribers: int, **options: Unpack[Shared]) -> None:
    """One publisher to many subscribers; the rate counts deliveries."""
    _flow(**options, subscribers=subscribers, name="fanout")


def _check_packages(picture: Path | None) -> None:
    """Before a broker is loaded, and not when the figures are in."""
    extras.load("hdrh.histogram", "the command bench", "bench")
    if picture is not None:
        extras.load("matplotlib", "bench --picture", "bench")


@bench.command("doors")
def list_doors() -> None:
    """List the protocols that can be measured, each with a URL."""
    for name, door in schemes().items():
        echo(f"{name:10} {door.example}")


def _report(
    door: Target, what: dict[str, object], outcome: "Outcome", json_file: Path | None, picture: Path | None
) -> None:
    from rich.console import Console
    from rich.table import Table

    from quintet.bench.histogram import percentiles
    from quintet.bench.machine import facts, headline

    machine = facts()
    found = percentiles(outcome.latencies, outcome.loop)
    settings = ", ".join(f"{key} {value}" for key, value in what.items() if value is not None)
    table = Table(title=f"{door.url}: {settings}, {outcome.size} B\n{headline(machine)}", title_style="dim")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("messages", f"{outcome.messages:,}")
    table.add_row("seconds", f"{outcome.seconds:.3f}")
    table.add_row("messages/s", f"{outcome.rate:,.0f}")
    table.add_row("payload MB/s", f"{outcome.bytes_rate / 1e6:,.1f}", end_section=True)
    loop = "from the time it was due" if outcome.loop == "open" else "closed loop: hides stalls, use --rate"
    if found is not None:
        table.add_row("latency", loop)
        for name, value in found.at.items():
            table.add_row(name, f"{value:,.0f} µs")
        table.add_row("maximum", f"{found.maximum:,.0f} µs")
    Console().print(table)
    result = what | {
        "door": door.url,
        "size": outcome.size,
        "messages": outcome.messages,
        "seconds": outcome.seconds,
        "messages_per_second": outcome.rate,
        "latency_us": asdict(found) if found else None,
        "machine": machine,
    }
    if json_file is not None:
        _write(json_file, json.dumps(result, indent=1) + "\n")
    if picture is not None:
        from quintet.bench.picture import draw_latency

        curve = {f"{what['load']} ({outcome.loop} loop)": found.curve if found else []}
        title = f"{door.url}: {settings}, {outcome.size} B, {outcome.rate:,.0f} msg/s"
        draw_latency(picture, curve, title, headline(machine))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise BenchError(f"cannot write {path}: {error.strerror}. Choose another place.") from error
