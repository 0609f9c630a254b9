"""`quintet tail`: shows the messages of a topic. Nothing is consumed, committed or moved.

Messages come by PEEK, which tells their time, expiry, headers and origin. With --hex they come by FETCH, and the frames
themselves are shown: a connection that keeps each reply's bytes stands in for the client's own.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Final, cast

import click

from quintet.cli.terminal import common, hexview
from quintet.cli.terminal.common import json_option, shown, text_or_base64, topic_argument, url_option
from quintet.cli.terminal.output import echo
from quintet.client.core import url as urls
from quintet.client.core.base import Connector, Setup, deadline, dial, shake_hands
from quintet.client.core.errors import TopicNotFound
from quintet.client.core.hosts import Hosts, in_turn
from quintet.client.core.url import Endpoint
from quintet.client.links.flymq import COMPRESSION, CONNECTOR, FlyConnection
from quintet.client.manage import Manage, Peeked, TopicInfo
from quintet.protocols.flymq import frames

PAGE_MESSAGES: Final = 500
SHOWN_BEFORE: Final = 10  # messages of each partition to begin with, unless --from says otherwise
LAST_MAX: Final = 10_000  # the same, at the most
POLL_S: Final = 0.25
VALUE_CHARS: Final = 200


class Start(click.ParamType[tuple[str, int]]):
    """(earliest|latest|offset|time, number)."""

    name = "place"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        text = str(value)
        if text in ("earliest", "latest"):
            return text, 0
        if text.isdecimal() and int(text) <= common.I64_MAX:
            return "offset", int(text)
        moment = common.moment_ms(text)
        if moment is None:
            self.fail(
                f"{value!r} is not a position: write earliest, latest, an offset, -10m (ago), or a time such as 2026-11-15T12:00",
                param,
                ctx,
            )
        return "time", moment


@click.command()
@url_option
@topic_argument
@click.option("--from", "start", type=Start(), help="earliest, latest, an offset, -10m, or a time.")
@click.option("--filter", "chosen", default="", help="key:K, text:T, regex:R, $.json.path, $.path == 5, or a text.")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new messages, until Ctrl-C.")
@click.option("--partition", type=click.IntRange(0, common.I32_MAX), help="Only this partition.")
@click.option("--hex", "as_hex", is_flag=True, help="Show the frames on the wire, field by field.")
@json_option
def tail(
    url: str,
    topic: str,
    start: tuple[str, int] | None,
    chosen: str,
    count: int | None,
    follow: bool,
    partition: int | None,
    as_hex: bool,
    as_json: bool,
) -> None:
    """Read a topic without consuming: time, partition, offset, key, value, and the protocol it was published with.

    \b
    quintet tail orders                          the last ten of each partition
    quintet tail orders --follow                 and what comes
    quintet tail orders --from -10m --filter '$.total == 5'
    quintet tail orders --from earliest -n 100 --json | jq .value
    quintet tail orders --from 4711 --partition 2 -n 1
    quintet tail orders --hex -n 1               the frames on the wire, field by field

    --json prints one object per line. Filters run in the broker; without --from and --follow they search the whole topic.
    """

    async def work(broker: Manage) -> None:
        info = await _topic(broker, topic, follow)
        numbers = [each.id for each in info.partitions]
        if partition is not None and partition not in numbers:
            raise click.UsageError(f"{topic} has the partitions 0 to {len(numbers) - 1}, not {partition}.")
        begin = start or (("earliest", 0) if chosen and not follow else ("last", min(count or SHOWN_BEFORE, LAST_MAX)))
        if begin[0] == "latest" and not follow:
            begin = ("last", SHOWN_BEFORE)
        positions = await _positions(broker, info, begin, partition)
        look = _Look(broker, topic, positions, chosen, count, follow, as_json)
        if begin[0] == "last" and not as_hex:
            await _last(look)
        await (_frames(look, url) if as_hex else _messages(look))

    try:
        common.manage(url, work)
    except KeyboardInterrupt:
        return


async def _topic(broker: Manage, topic: str, follow: bool) -> TopicInfo:
    """The topic; with --follow also one that somebody is yet to make."""
    told = False
    while True:
        try:
            return await broker.topic(topic)
        except TopicNotFound:
            if not follow:
                raise
        if not told:
            echo(f"{topic} is not there yet, waiting for it", err=True)
            told = True
        await asyncio.sleep(POLL_S)


class _Look:
    """What is asked for, and the offset each partition is at."""

    def __init__(
        self,
        broker: Manage,
        topic: str,
        positions: dict[int, int],
        chosen: str,
        left: int | None,
        follow: bool,
        as_json: bool,
    ) -> None:
        self.broker, self.topic, self.positions, self.chosen = broker, topic, positions, chosen
        self.left, self.follow, self.as_json = left, follow, as_json

    async def rounds(self) -> AsyncIterator[list[int]]:
        """The partitions with something to read: until all is read that was there, then with --follow what comes."""
        while self.left != 0:
            info = await self.broker.topic(self.topic)
            ends = {each.id: each.newest for each in info.partitions}
            while self.left != 0 and (behind := [at for at in self.positions if self.positions[at] < ends[at]]):
                yield behind
            if not self.follow:
                return
            sys.stdout.flush()
            await asyncio.sleep(POLL_S)

    def page(self, most: int) -> int:
        return most if self.left is None else min(most, self.left)

    def go_on(self, partition: int, following: int) -> None:
        """Never stay, whatever a broker says."""
        self.positions[partition] = max(following, self.positions[partition] + 1)

    def took(self, number: int) -> None:
        if self.left is not None:
            self.left = max(self.left - number, 0)


async def _positions(broker: Manage, info: TopicInfo, begin: tuple[str, int], partition: int | None) -> dict[int, int]:
    """The first offset of each partition."""
    kind, number = begin
    found = {}
    for each in info.partitions:
        if partition not in (None, each.id):
            continue
        if kind == "time":
            rows, _ = await broker.peek(info.name, each.id, each.oldest, max=1, since_ms=number)
            found[each.id] = rows[0].offset if rows else each.newest
        else:
            last = max(each.newest - number, each.oldest)
            found[each.id] = {"earliest": each.oldest, "latest": each.newest, "last": last}.get(kind, number)
    return found


async def _last(look: _Look) -> None:
    """What each partition's position leaves, all partitions together in the order of times, the last ones only."""
    follow, look.follow, count, look.left = look.follow, False, look.left, None
    rows = [row async for page in _read(look) for row in page]
    look.follow, look.left = follow, count
    rows.sort(key=lambda row: row.timestamp_ms)
    for row in rows[-count if count is not None else 0 :]:
        _say(row, look.as_json)
    look.took(len(rows))


async def _messages(look: _Look) -> None:
    """A page of each partition at a time, each page in the order of times."""
    async for rows in _read(look):
        for row in rows:
            _say(row, look.as_json)
        look.took(len(rows))


async def _read(look: _Look) -> AsyncIterator[list[Peeked]]:
    async for behind in look.rounds():
        most = look.page(PAGE_MESSAGES)
        asked = await asyncio.gather(
            *(
                look.broker.peek(look.topic, number, look.positions[number], max=most, filter=look.chosen)
                for number in behind
            )
        )
        for number, (_, following) in zip(behind, asked, strict=True):
            look.go_on(number, following)
        yield sorted((row for found, _ in asked for row in found), key=lambda row: row.timestamp_ms)[: look.left]


def _say(row: Peeked, as_json: bool) -> None:
    if as_json:
        found: dict[str, object] = {"partition": row.partition, "offset": row.offset, "timestamp_ms": row.timestamp_ms}
        found |= text_or_base64("key", row.key or None) | text_or_base64("value", row.value)
        found |= {"origin": row.origin, "expiry_ms": row.expiry_ms or None}
        found["headers"] = [text_or_base64("name", name) | text_or_base64("value", text) for name, text in row.headers]
        common.say_json(found, line=True)
        return
    place = f"{row.partition}@{row.offset}"
    door = row.origin.partition(":")[0] or "-"
    key = click.style(shown(row.key, 40), fg="cyan") if row.key else "-"
    more = f"  {click.style(f'expires {common.when(row.expiry_ms)}', dim=True)}" if row.expiry_ms else ""
    hexview.show(
        f"{click.style(common.when(row.timestamp_ms), dim=True)}  {place:>10}  {door:7}  {key}  "
        f"{shown(row.value, VALUE_CHARS)}{more}"
    )


# -- frames -----------------------------------------------------------------------------------------------------------


class _KeepingConnection(FlyConnection):
    """A connection that keeps the bytes it received."""

    kept = b""

    def received(self, data: bytes | bytearray) -> tuple[int, int]:
        consumed, wanted = super().received(data)
        self.kept += data[:consumed]
        return consumed, wanted


async def _frames(look: _Look, url: str) -> None:
    """FETCH replies as they come over the wire, one partition after the other."""
    endpoint = urls.parse(url)
    dialect: frames.Dialect = "sdk" if endpoint.dialect == "sdk" else "document"
    kind: hexview.Kind = "reply (sdk)" if dialect == "sdk" else "reply"

    async def dialled(host: Endpoint, seconds: float) -> _KeepingConnection:
        setup = Setup(host, cast(Connector, CONNECTOR), "", seconds, False, None)
        made = _KeepingConnection(str(host), dialect, COMPRESSION[host.compression], lambda _connection, _error: None)
        async with deadline(seconds, f"connecting to {host}"):
            await dial(setup, made)
            await shake_hands(setup, made, made.handshake(host.user, host.secret))
        return made

    connection = await in_turn(Hosts(endpoint), endpoint, common.TIMEOUT_S, dialled)
    try:
        async for behind in look.rounds():
            for number in behind:
                if look.left == 0:
                    break
                connection.kept = b""
                fields: dict[str, object] = {"topic": look.topic, "partition": number, "offset": look.positions[number]}
                found = await connection.request(
                    "FETCH", fields | {"max": look.page(SHOWN_BEFORE), "filter": look.chosen}
                )
                for each in hexview.dissect_all(connection.kept, kind):
                    _say_frame(each, look.as_json)
                look.go_on(number, found["next_offset"])
                look.took(len(found["messages"]))
    finally:
        await connection.close()


def _say_frame(found: hexview.Dissection, as_json: bool) -> None:
    if found.name != "FETCH":  # the connection's own heartbeat
        return
    if as_json:
        common.say_json(hexview.as_json(found), line=True)
        return
    for line in hexview.lines(found):
        hexview.show(line)
    echo()
