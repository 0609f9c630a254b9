"""`quintet status` shows a broker on one screen, `quintet top` shows its busiest topics, groups and doors, live.

Both read the admin listener twice and show what changed in between as rates. They know nothing that /metrics does not say, so
what they show is what a dashboard shows.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from quintet.cli.operate.scrape import Sample, admin_option, readiness, scrape
from quintet.cli.terminal.common import console, json_option, lasting, make_table, say_json, say_table
from quintet.cli.terminal.output import echo

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUPS_SHOWN: Final = 5
ROWS_DEFAULT: Final = 15
DAY_S: Final = 86_400
SORTS: Final = ("rate", "bytes", "name")
FLIGHT: Final = ("flight",)
NOT_READY: Final = 1  # exit code


def human_bytes(size: float) -> str:
    """As df -h writes it, with the unit's name."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


class Change:
    """Two samples, and what happened between them."""

    def __init__(self, before: Sample, after: Sample) -> None:
        self.before, self.after = before, after
        self.seconds = max(after.at - before.at, 1e-3)

    def rate(self, name: str) -> float:
        """A second, over all labels. A broker that was started anew meanwhile begins at 0."""
        return max(self.after.one(name) - self.before.one(name), 0.0) / self.seconds

    def rates(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        before = self.before.by(name, *labels)
        return {
            key: max(value - before.get(key, 0.0), 0.0) / self.seconds
            for key, value in self.after.by(name, *labels).items()
        }


def observe(admin: str, seconds: float) -> Change:
    before = scrape(admin)
    time.sleep(seconds)
    return Change(before, scrape(admin))


@click.command()
@admin_option
@click.option(
    "--interval", type=click.FloatRange(0.1, 60), default=1.0, help="Seconds over which rates are measured [1]."
)
@json_option
def status(admin: str, interval: float, as_json: bool) -> None:
    """Show a broker on one screen.

    \b
    quintet status                                     the broker on this machine
    quintet status --admin http://10.0.0.5:8080
    quintet status --json | jq .disk.free_bytes

    Exit code 1: the broker answers and is not ready; the failing checks are the last lines.
    """
    change = observe(admin, interval)
    ready, failing = readiness(admin)
    found = facts(change, ready, failing)
    if as_json:
        say_json(found)
    else:
        _print(found, change)
    sys.exit(0 if ready else NOT_READY)


def facts(change: Change, ready: bool, failing: list[str]) -> dict[str, object]:
    """What `--json` prints."""
    now = change.after
    started = now.one("process_start_time_seconds")
    lags = now.by("quintet_group_lag_messages", "topic", "group")
    ages = now.by("quintet_group_lag_seconds", "topic", "group")
    behind = sorted(((lag, key) for key, lag in lags.items() if lag), reverse=True)
    return {
        "ready": ready,
        "failing": failing,
        "version": now.label("quintet_build_info", "version"),
        "kernel": now.label("quintet_build_info", "kernel"),
        "up_seconds": max(time.time() - started, 0.0) if started else 0.0,
        "cell": cell_facts(now),
        "cells": [
            {"cell": cell, **facts}
            for cell, said in now.by_cell("quintet_cell_info").items()
            if cell and (facts := cell_facts(said)) is not None
        ],
        "doors": doors(change),
        "messages": {
            "in_per_second": change.rate("quintet_published_messages_total"),
            "out_per_second": change.rate("quintet_delivered_messages_total"),
            "in_flight": now.one("quintet_in_flight_messages"),
            "dead_lettered": now.one("quintet_dead_lettered_messages_total"),
        },
        "topics": now.one("quintet_topics"),
        "groups": {
            "count": now.one("quintet_groups"),
            "behind": [
                {"topic": key[0], "group": key[1], "messages": lag, "seconds": ages.get(key, 0.0)}
                for lag, key in behind[:GROUPS_SHOWN]
            ],
        },
        "held": [{"kind": kind, "name": name} for kind, name in held(now)],
        "disk": {
            "free_bytes": now.one("quintet_disk_free_bytes"),
            "size_bytes": now.one("quintet_disk_size_bytes"),
            "unsynced_bytes": now.one("quintet_log_unsynced_bytes"),
            "damaged_ranges": now.one("quintet_log_damaged_ranges"),
            "refused_appends": now.one("quintet_log_refused_appends_total"),
            "syncs_per_second": change.rate("quintet_log_fsyncs_total"),
        },
        "process": {
            "processor": change.rate("process_cpu_seconds_total"),
            "memory_bytes": now.one("process_resident_memory_bytes"),
            "open_files": now.one("process_open_fds"),
            "open_files_max": now.one("process_max_fds"),
        },
    }


def cell_facts(now: Sample) -> dict[str, object] | None:
    """Of a node of a cell; None: the log is on this machine only."""
    role = now.label("quintet_cell_info", "role")
    if not role:
        return None
    return {
        "node": now.label("quintet_cell_info", "node"),
        "role": role,
        "leader": now.label("quintet_cell_info", "leader"),
        "leader_host": now.label("quintet_cell_info", "leader_host"),
        "epoch": int(now.one("quintet_cell_epoch")),
        "wal_offset": int(now.one("quintet_cell_wal_offset")),
        "lag_records": int(now.one("quintet_cell_lag_records")),
        "lag_seconds": now.one("quintet_cell_lag_seconds"),
        "wal_records": int(now.one("quintet_cell_wal_records")),
        "take_over_seconds": now.one("quintet_cell_take_over_seconds"),
        "weaker": [key[0] for key in now.by("quintet_cell_weaker", "what")],
    }


def _cell_lines(cell: dict[str, object]) -> list[str]:
    leader = f"{cell['leader']} at {cell['leader_host']} leads" if cell["leader"] else "no leader is known"
    lines = [
        f"{'cell ' + str(cell.get('cell', '')):<10}{cell['node']} is {cell['role']} in epoch {cell['epoch']}, {leader}; WAL offset {cell['wal_offset']:,},"
        f" lag {cell['lag_records']:,} records, {cell['lag_seconds']:.1f} s"
    ]
    lines[0] += f"; took over in {cell['take_over_seconds']:.1f} s" if cell["take_over_seconds"] else ""
    weaker = cell["weaker"]
    assert isinstance(weaker, list)
    return lines + [f"weaker    {what}" for what in weaker]


def doors(change: Change) -> list[dict[str, object]]:
    now = change.after
    received = change.rates("quintet_received_bytes_total", "door")
    sent = change.rates("quintet_sent_bytes_total", "door")
    refused = now.by("quintet_connections_refused_total", "door")
    failures = now.by("quintet_auth_failures_total", "door")
    expiries = now.by("quintet_certificate_expires_timestamp_seconds", "door")
    open_now = now.by("quintet_connections", "door")
    if "quintet_flight_streams" in now.values:  # streams in place of connections, with figures of their own
        open_now[FLIGHT] = now.one("quintet_flight_streams")
        received[FLIGHT] = change.rate("quintet_flight_put_bytes_total")
        sent[FLIGHT] = change.rate("quintet_flight_read_bytes_total")
        refused[FLIGHT] = now.one("quintet_flight_refused_total")
    return [
        {
            "door": key[0],
            "connections": int(count),
            "in_bytes_per_second": received.get(key, 0.0),
            "out_bytes_per_second": sent.get(key, 0.0),
            "refused": int(refused.get(key, 0)),
            "auth_failures": int(failures.get(key, 0)),
            "certificate_days": (expiries[key] - time.time()) / DAY_S if key in expiries else None,
        }
        for key, count in open_now.items()
    ]


def _print(found: dict[str, object], change: Change) -> None:
    now, rate = change.after, change.rate
    state = "ready" if found["ready"] else "NOT READY"
    up = lasting(float(str(found["up_seconds"])))
    echo(f"quintet {found['version']} ({found['kernel']} kernel): {state}, up {up}")
    cells = found["cells"] or [found["cell"]]
    assert isinstance(cells, list)
    for cell in filter(None, cells):
        for line in _cell_lines(cell):
            echo(line)
    say_table(
        ("door", ">connections", ">in", ">out", ">refused", ">failed logins", ">certificate"), door_rows(change), ""
    )
    echo(
        f"messages  in {rate('quintet_published_messages_total'):,.0f}/s, out {rate('quintet_delivered_messages_total'):,.0f}/s,"
        f" in flight {now.one('quintet_in_flight_messages'):,.0f}, dead letters since its start {now.one('quintet_dead_lettered_messages_total'):,.0f}"
    )
    echo(f"topics    {now.one('quintet_topics'):,.0f}, groups {now.one('quintet_groups'):,.0f}")
    for _, line in group_lines(now)[:GROUPS_SHOWN]:
        echo(f"behind    {line}")
    for kind, name in held(now)[:GROUPS_SHOWN]:
        echo(f"held back {kind} {name}, by its quota: `quintet quota show {kind} {name}`")
    free, size = now.one("quintet_disk_free_bytes"), now.one("quintet_disk_size_bytes")
    share = f" ({free / size:.0%})" if size else ""
    echo(
        f"disk      {human_bytes(free)} free of {human_bytes(size)}{share}, {rate('quintet_log_fsyncs_total'):,.0f} syncs/s,"
        f" {human_bytes(now.one('quintet_log_unsynced_bytes'))} waiting, damaged ranges {now.one('quintet_log_damaged_ranges'):,.0f}"
    )
    echo(
        f"process   {rate('process_cpu_seconds_total'):.0%} of a core, {human_bytes(now.one('process_resident_memory_bytes'))},"
        f" {now.one('process_open_fds'):,.0f} of {now.one('process_max_fds'):,.0f} files open"
    )
    failing = found["failing"]
    assert isinstance(failing, list)
    for line in failing:
        echo(f"failing   {line}")


def door_rows(change: Change) -> list[tuple[object, ...]]:
    return [
        (
            door["door"],
            door["connections"],
            f"{human_bytes(float(str(door['in_bytes_per_second'])))}/s",
            f"{human_bytes(float(str(door['out_bytes_per_second'])))}/s",
            door["refused"],
            door["auth_failures"],
            "-" if door["certificate_days"] is None else f"{float(str(door['certificate_days'])):,.0f} days",
        )
        for door in doors(change)
    ]


def held(now: Sample) -> list[tuple[str, ...]]:
    """(user or tenant, name) of those that wait for their rate."""
    return sorted(key for key, waits in now.by("quintet_quota_held", "kind", "name").items() if waits)


def group_lines(now: Sample) -> list[tuple[float, str]]:
    """(lag, a line) of the groups that are behind, the worst first."""
    ages = now.by("quintet_group_lag_seconds", "topic", "group")
    lags = now.by("quintet_group_lag_messages", "topic", "group")
    return [
        (lag, f"group {key[1]} on {key[0]}: {lag:,.0f} messages, the oldest {lasting(ages.get(key, 0.0))} old")
        for key, lag in sorted(lags.items(), key=lambda each: -each[1])
        if lag
    ]


# -- top --------------------------------------------------------------------------------------------------------------


@click.command()
@admin_option
@click.option("--interval", type=click.FloatRange(0.2, 60), default=2.0, help="Seconds between two looks [2].")
@click.option("--sort", type=click.Choice(SORTS), default="rate", help="Order of the topics [rate].")
@click.option("--rows", type=click.IntRange(1, 1000), default=ROWS_DEFAULT, help=f"Topics shown [{ROWS_DEFAULT}].")
@click.option("--count", type=click.IntRange(1), help="Stop after so many screens; a pipe gets one unless it says so.")
def top(admin: str, interval: float, sort: str, rows: int, count: int | None) -> None:
    """Show the busiest topics, groups and doors, live.

    \b
    quintet top                                        in a terminal: s changes the order, q ends it
    quintet top --sort bytes --rows 40
    quintet top --count 1 > now.txt
    """
    from rich.live import Live

    screen = console()
    if not screen.is_terminal:
        count = count or 1
    before = scrape(admin)
    shown = 0
    with (
        keys() as pressed,
        Live(console=screen, auto_refresh=False, screen=screen.is_terminal and count is None) as live,
    ):
        while count is None or shown < count:
            key = pressed(interval)
            if key == "q":
                return
            if key == "s":
                sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
            after = scrape(admin)
            page = top_page(Change(before, after), sort, rows)
            if after.at - before.at >= interval / 2:  # a key was pressed at once: keep the longer span
                before = after
            shown += 1
            if screen.is_terminal:
                live.update(page, refresh=True)
            else:
                screen.print(page)


def top_page(change: Change, sort: str, rows: int) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    rate, now = change.rate, change.after
    head = (
        f"quintet {now.label('quintet_build_info', 'version')}: in {rate('quintet_published_messages_total'):,.0f}/s,"
        f" out {rate('quintet_delivered_messages_total'):,.0f}/s, {now.one('quintet_connections'):,.0f} connections,"
        f" {rate('process_cpu_seconds_total'):.0%} of a core, {human_bytes(now.one('process_resident_memory_bytes'))}"
    )
    doors_table = make_table(
        ("door", ">connections", ">in", ">out", ">refused", ">failed logins", ">certificate"), door_rows(change)
    )
    topics = make_table((f"topic, by {sort}", ">messages/s", ">kept"), topic_rows(change, sort)[:rows])
    behind = [line for _, line in group_lines(now)[:GROUPS_SHOWN]]
    return Group(Text(head), doors_table, topics, *(Text(f"behind: {line}") for line in behind))


def topic_rows(change: Change, sort: str) -> list[tuple[object, ...]]:
    rates = {key[0]: value for key, value in change.rates("quintet_topic_published_messages_total", "topic").items()}
    sizes = {key[0]: value for key, value in change.after.by("quintet_topic_bytes", "topic").items()}
    orders: dict[str, Callable[[str], tuple[float, str]]] = {
        "rate": lambda name: (-rates.get(name, 0.0), name),
        "bytes": lambda name: (-sizes.get(name, 0.0), name),
        "name": lambda name: (0.0, name),
    }
    names = sorted({*rates, *sizes}, key=orders[sort])
    return [(name, f"{rates.get(name, 0.0):,.0f}", human_bytes(sizes.get(name, 0.0))) for name in names]


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Waits for a key for so many seconds; "" if none was pressed. Without a terminal it only waits."""
    if not sys.stdin.isatty():

        def waited(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield waited
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def pressed(seconds: float) -> str:
        readable, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if readable else ""

    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
