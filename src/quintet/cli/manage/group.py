"""`quintet group`: lists consumer groups and their lag, and resets their offsets.

A group is a name on a topic. Where only the name is given and it is on one topic, that topic is meant. `lag --watch` samples
and works out from the samples how fast messages come and go, and when the group will have caught up.
"""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import (
    complete_group,
    complete_topic,
    json_option,
    lasting,
    manage,
    say,
    say_json,
    say_table,
    url_option,
    yes_option,
)
from quintet.client.manage import GroupInfo, Manage, PartitionLag, TopicInfo
from quintet.model.errors import GroupNotFound, QuintetError

if TYPE_CHECKING:
    from rich.table import Table

SAMPLES_KEPT: Final = 10  # the rates of --watch are over this many samples

group_argument: Final = click.argument("group", shell_complete=complete_group)
topic_option: Final = click.option(
    "--topic", shell_complete=complete_topic, help="Topic of the group, if several topics have a group of this name."
)


@click.group()
def group() -> None:
    """Consumer groups: members, lag, offsets.

    \b
    quintet group list
    quintet group lag billing --watch            how far behind, and when it will catch up
    quintet group reset billing --to -10m        read the last ten minutes again
    """


@group.command("list")
@url_option
@json_option
def list_groups(url: str, as_json: bool) -> None:
    """List the groups that you may see.

    \b
    quintet group list
    """
    found = manage(url, Manage.groups)
    if as_json:
        say_json([_plain(each) for each in found])
        return
    rows = [(each.group, each.topic, each.members, len(each.offsets)) for each in found]
    say_table(("group", "topic", ">members", ">partitions committed"), rows, "no groups; readers make them")


@group.command()
@url_option
@group_argument
@topic_option
@json_option
def describe(url: str, group: str, topic: str | None, as_json: bool) -> None:
    """Show a group's members, their partitions, and its committed offsets.

    \b
    quintet group describe billing
    """

    async def ask(broker: Manage) -> tuple[GroupInfo, list[PartitionLag]]:
        info = await broker.group(group, await _topic_of(broker, group, topic))
        return info, await broker.lag(info.topic, group)

    info, lags = manage(url, ask)
    if as_json:
        say_json(_plain(info) | {"lag": [common.plain(each) for each in lags]})
        return
    title = f"{info.group} on {info.topic}: {info.state}, generation {info.generation}, owned by {info.owner}"
    reader = {partition: member for member, partition in info.assigned}
    rows = [
        (each.partition, reader.get(each.partition, "-"), _committed(info, each), each.latest, each.lag)
        for each in lags
    ]
    say_table((">partition", "member", ">committed", ">next offset", ">lag"), rows, "", title)


def _committed(info: GroupInfo, lag: PartitionLag) -> object:
    return lag.committed if lag.partition in info.offsets else "-"


# -- lag --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One group on one topic at one moment."""

    at: float
    committed: int
    latest: int
    lag: int
    behind_s: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Messages per second in and out over some samples, and the seconds until there is no lag, if it shrinks."""

    rate_in: float
    rate_out: float
    eta_s: float | None

    @property
    def word(self) -> str:
        change = self.rate_out - self.rate_in
        if abs(change) < 0.05:
            return "steady"
        return f"shrinking {change:,.1f}/s" if change > 0 else f"growing {-change:,.1f}/s"


def trend(samples: Sequence[Sample]) -> Trend | None:
    """None before the second sample."""
    if len(samples) < 2 or samples[-1].at <= samples[0].at:
        return None
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    rate_in, rate_out = (last.latest - first.latest) / seconds, (last.committed - first.committed) / seconds
    shrinks = (first.lag - last.lag) / seconds
    eta = 0.0 if last.lag == 0 else last.lag / shrinks if shrinks > 0 else None
    return Trend(rate_in, rate_out, eta)


@group.command()
@url_option
@click.argument("group", required=False, shell_complete=complete_group)
@click.option("--topic", shell_complete=complete_topic, help="Only on this topic.")
@click.option("--watch", is_flag=True, help="Repeat, with rates and the estimated time to catch up.")
@click.option(
    "--every", type=common.Duration(), default="1s", show_default=True, help="With --watch: interval between samples."
)
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after this many samples.")
@json_option
def lag(
    url: str, group: str | None, topic: str | None, watch: bool, every: int, count: int | None, as_json: bool
) -> None:
    """Show how far groups are behind: in messages, and in seconds since the oldest message not yet committed.

    \b
    quintet group lag                            all groups
    quintet group lag billing                    one, partition by partition
    quintet group lag billing --watch            with trend, and time until it has caught up
    quintet group lag billing --json | jq '[.[].lag] | add'
    """
    if watch:
        try:
            manage(url, lambda broker: _watch(broker, group, topic, every / 1000, count, as_json))
        except KeyboardInterrupt:
            return
        return
    found = manage(url, lambda broker: _lags(broker, group, topic))
    if as_json:
        rows = [
            {"group": name, "topic": on} | common.plain_fields(each)
            for (name, on), lags in found.items()
            for each in lags
        ]
        say_json(rows)
        return
    lines: list[tuple[object, ...]] = []
    for (name, on), lags in found.items():
        if group is not None:
            lines += [_line(name, on, each) for each in lags]
        if group is None or len(lags) > 1:
            lines.append((name, on, "all", "", "", sum(each.lag for each in lags), _behind(lags)))
    columns = ("group", "topic", ">partition", ">committed", ">next offset", ">lag", ">behind")
    say_table(columns, lines, "no groups; readers make them")


def _line(name: str, topic: str, lag: PartitionLag) -> tuple[object, ...]:
    return name, topic, lag.partition, lag.committed, lag.latest, lag.lag, lasting(lag.lag_ms / 1000)


def _behind(lags: Sequence[PartitionLag]) -> str:
    return lasting(max((each.lag_ms for each in lags), default=0) / 1000)


Lags = dict[tuple[str, str], list[PartitionLag]]


async def _lags(broker: Manage, group: str | None, topic: str | None) -> Lags:
    """(group, topic) -> its partitions; a group that goes away meanwhile is left out."""
    wanted = [each for each in await broker.groups() if group in (None, each.group) and topic in (None, each.topic)]
    if group is not None and not wanted:
        raise _no_group(group, topic)
    found: Lags = {}
    for each in wanted:
        try:
            found[each.group, each.topic] = await broker.lag(each.topic, each.group)
        except QuintetError as error:
            if len(wanted) == 1 or not isinstance(error, LookupError):
                raise
    return found


async def _watch(
    broker: Manage, group: str | None, topic: str | None, every_s: float, count: int | None, as_json: bool
) -> None:
    from rich.live import Live

    loop = asyncio.get_running_loop()
    history: dict[tuple[str, str], deque[Sample]] = {}
    console = common.console()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        taken = 0
        while count is None or taken < count:
            if taken:
                await asyncio.sleep(every_s)
            taken += 1
            lags = await _lags(broker, group, topic)
            for where, each in lags.items():
                samples = history.setdefault(where, deque(maxlen=SAMPLES_KEPT))
                samples.append(_sample(loop.time(), each))
            history = {where: samples for where, samples in history.items() if where in lags}
            if as_json:
                for where, samples in history.items():
                    say_json(_sample_json(where, samples), line=True)
            elif console.is_terminal:
                live.update(_watch_table(history), refresh=True)
            else:
                console.print(_watch_table(history))


def _sample(at: float, lags: Sequence[PartitionLag]) -> Sample:
    return Sample(
        at,
        sum(each.committed for each in lags),
        sum(each.latest for each in lags),
        sum(each.lag for each in lags),
        max((each.lag_ms for each in lags), default=0) / 1000,
    )


def _sample_json(where: tuple[str, str], samples: Sequence[Sample]) -> dict[str, object]:
    found = trend(samples)
    return {
        "group": where[0],
        "topic": where[1],
        "lag": samples[-1].lag,
        "behind_s": samples[-1].behind_s,
        "in_per_s": found and round(found.rate_in, 3),
        "out_per_s": found and round(found.rate_out, 3),
        "eta_s": found and found.eta_s,
    }


def _watch_table(history: dict[tuple[str, str], deque[Sample]]) -> "Table":
    rows = []
    for (name, topic), samples in sorted(history.items()):
        found, last = trend(samples), samples[-1]
        rates = ("-", "-", "-") if found is None else (f"{found.rate_in:,.1f}", f"{found.rate_out:,.1f}", found.word)
        eta = "caught up" if last.lag == 0 else "-" if found is None else "not at this rate"
        if found is not None and found.eta_s is not None and last.lag:
            eta = lasting(found.eta_s)
        rows.append((name, topic, last.lag, lasting(last.behind_s), *rates, eta))
    return common.make_table(("group", "topic", ">lag", ">behind", ">in/s", ">out/s", "trend", ">caught up in"), rows)


# -- moving -----------------------------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """The offset of a group in one partition, before and after a reset."""

    topic: str
    partition: int
    before: int
    after: int


class Target(click.ParamType[tuple[str, int]]):
    """Where to move a group: (mode, value) as RESET_OFFSET has them."""

    name = "place"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        text = re.sub(r"^(offset|timestamp)[\s:=]+", r"\1 ", str(value).strip())
        if text in ("earliest", "latest"):
            return text, 0
        number = text.removeprefix("offset ")
        if number.isdecimal() and int(number) <= common.I64_MAX:
            return "offset", int(number)
        moment = None if text.startswith("offset ") else common.moment_ms(text.removeprefix("timestamp "))
        if moment is None:
            self.fail(
                f"{value!r} is not a position: write earliest, latest, an offset, -10m (ago), or a time such as 2026-11-15T12:00",
                param,
                ctx,
            )
        return "timestamp", moment


@group.command()
@url_option
@group_argument
@topic_option
@click.option("--to", "target", type=Target(), required=True, help="earliest, latest, N, -10m, or a time.")
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0, common.I32_MAX),
    multiple=True,
    help="Only this partition; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print the new offsets without setting them.")
@json_option
def reset(
    url: str,
    group: str,
    topic: str | None,
    target: tuple[str, int],
    partitions: tuple[int, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Set the committed offsets of a group that has no active members.

    \b
    quintet group reset billing --to earliest
    quintet group reset billing --to latest                    skip everything
    quintet group reset billing --to 4711 --partition 2        an offset of one partition
    quintet group reset billing --to -10m                      the last ten minutes again
    quintet group reset billing --to 2026-11-15T12:00 --dry-run

    A plain number is an offset; `timestamp 1763208000000` is milliseconds since 1970.
    """
    mode, value = target

    async def work(broker: Manage) -> list[Moved]:
        on = await _topic_of(broker, group, topic)
        before = (await broker.group(group, on)).offsets
        info = await broker.topic(on)
        chosen = list(partitions) or [each.id for each in info.partitions]
        after = await _plan(broker, info, mode, value, chosen)  # wrong for one partition: none is moved
        if not dry_run:
            after = await broker.reset(on, group, mode, value, chosen)
        return [Moved(on, partition, before.get(partition, 0), offset) for partition, offset in after.items()]

    found = manage(url, work)
    if as_json:
        places = [dict(zip(("topic", "partition", "from", "to"), row, strict=True)) for row in found]
        say_json({"group": group, "dry_run": dry_run, "partitions": places})
        return
    rows = [(*row, f"{row.after - row.before:+,}") for row in found]
    title = f"{group}: {'would be' if dry_run else 'is now'} here"
    say_table(("topic", ">partition", ">from", ">to", ">moved"), rows, "", title)


async def _plan(broker: Manage, info: TopicInfo, mode: str, value: int, partitions: Sequence[int]) -> dict[int, int]:
    """Where a reset would put each partition, without moving anything."""
    known = {each.id: each for each in info.partitions}
    found: dict[int, int] = {}
    for partition in partitions:
        if partition not in known:
            raise click.UsageError(f"{info.name} has the partitions 0 to {len(known) - 1}, not {partition}")
        here = known[partition]
        if mode == "offset" and value > here.newest:
            where = f"partition {partition} of {info.name} ends at {here.newest}, {value} is behind it"
            raise click.UsageError(f"{where}. Choose another, or other partitions with --partition; nothing was moved.")
        if mode == "timestamp":
            rows, _ = await broker.peek(info.name, partition, here.oldest, max=1, since_ms=value)
            found[partition] = rows[0].offset if rows else here.newest
        else:
            found[partition] = {"earliest": here.oldest, "latest": here.newest}.get(mode, value)
    return found


@group.command()
@url_option
@group_argument
@topic_option
@yes_option
@json_option
def delete(url: str, group: str, topic: str | None, yes: bool, as_json: bool) -> None:
    """Delete a group and its committed offsets.

    \b
    quintet group delete billing
    """
    common.confirm(f"Delete the group {group} and its committed offsets?", yes)

    async def work(broker: Manage) -> str:
        on = await _topic_of(broker, group, topic)
        await broker.delete_group(on, group)
        return on

    on = manage(url, work)
    say(as_json, {"group": group, "topic": on, "deleted": True}, f"{group} on {on}: deleted")


async def _topic_of(broker: Manage, group: str, topic: str | None) -> str:
    """The topic that is meant."""
    if topic is not None:
        return topic
    found = sorted(each.topic for each in await broker.groups() if each.group == group)
    if not found:
        raise _no_group(group, topic)
    if len(found) > 1:
        raise click.UsageError(f"{group} exists on {', '.join(found)}: choose one with --topic.")
    return found[0]


def _no_group(group: str, topic: str | None) -> GroupNotFound:
    where = f" on {topic}" if topic else ""
    return GroupNotFound(f"there is no group {group!r}{where} that you may see", hint="`quintet group list` shows them")


def _plain(info: GroupInfo) -> dict[str, object]:
    found: dict[str, object] = {
        "group": info.group,
        "topic": info.topic,
        "members": info.members,
        "offsets": [{"partition": partition, "offset": offset} for partition, offset in info.offsets.items()],
    }
    if info.state:
        assigned = [{"member": member, "partition": partition} for member, partition in info.assigned]
        found |= {"state": info.state, "generation": info.generation, "owner": info.owner, "assigned": assigned}
    return found
