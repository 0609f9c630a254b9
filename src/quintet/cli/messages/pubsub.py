"""`quintet pub` and `quintet sub`: publish and subscribe, made for pipes.

stdout carries messages (sub) or the one line of the result (pub); everything said to a person goes to stderr. Input and
output go through in batches and in bounded memory. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

import click

from quintet.cli.terminal import common, stdin
from quintet.cli.terminal.output import echo, printable
from quintet.client.bus import Bus
from quintet.client.core.errors import Timeout, Unsupported
from quintet.client.core.message import Ack, MessageBatch
from quintet.client.core.subscription import Subscription
from quintet.model.errors import Forbidden, ProtocolError

URL_DEFAULT: Final = "blipmq://:dev-key@127.0.0.1:5555"
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024  # of --raw and of one line: no frame is larger
REPEAT_BATCH: Final = 10_000  # messages published at once by --count
REPEAT_BATCH_BYTES: Final = 4 * 1024 * 1024
SINGLE_BATCH: Final = 1_000  # messages under way at once where each is a request of its own
HANDLES_MAX: Final = 10_000  # of delayed messages, told by --json
SUB_BATCH: Final = 5_000  # messages written and acknowledged at once

_url = click.option(
    "--url",
    envvar="QUINTET_URL",
    help=f"The broker (or QUINTET_URL) [{URL_DEFAULT}, with an option of FlyMQ {common.URL_DEFAULT}].",
)
_qos = click.option(
    "--qos",
    type=click.IntRange(0, 1),
    default=1,
    show_default=True,
    help="0 at most once, 1 at least once and durable.",
)


@click.command()
@_url
@click.argument("topic", shell_complete=common.complete_topic)
@click.argument("values", nargs=-1)
@click.option("--lines", "form", flag_value="lines", default="lines", help="Each line of stdin is a message [default].")
@click.option("--raw", "form", flag_value="raw", help="All of stdin is one message.")
@click.option("--json-lines", "form", flag_value="json", help="Each line or value must be JSON; sent compact.")
@_qos
@click.option("--ttl", type=click.FloatRange(min=0.001), help="Seconds until the message expires.")
@click.option("--key", help="Messages of one key go to one partition, in order.")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="A header of the message; may be given several times. NAME alone has a null value.",
)
@click.option(
    "--partition",
    type=click.IntRange(0, common.I32_MAX),
    help="Partition to publish to, instead of the one that the key chooses (FlyMQ).",
)
@click.option("--delay", type=click.FloatRange(min=0.001), help="Seconds until the message is delivered (FlyMQ).")
@click.option("--schema", help="Registered schema that the message must fit (FlyMQ).")
@click.option("--count", type=click.IntRange(1), default=1, help="Publish the values this many times.")
@click.option(
    "--cancel",
    type=click.IntRange(0),
    help="Cancel the delayed message with this handle, as `pub --delay` printed it (FlyMQ).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=10.0,
    show_default=True,
    help="Seconds to wait for each batch.",
)
@common.json_option
def pub(
    url: str | None,
    topic: str,
    values: tuple[str, ...],
    form: str,
    qos: int,
    ttl: float | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    delay: float | None,
    schema: str | None,
    count: int,
    cancel: int | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Publish messages: the VALUES, or the lines of stdin when there are none (or the only one is -).

    \b
    quintet pub orders 'hello' 'world'           two messages
    tail -f app.log | quintet pub logs           one message per line, as they arrive
    quintet pub blobs --raw < picture.png        the whole file as one message
    jq -c '.[]' rows.json | quintet pub rows --json-lines
    quintet pub load x --count 100000            the same message many times

    \b
    quintet pub orders '{"total": 5}' --key customer-7 --header trace=4bf92f --header retry=0
    quintet pub orders '{"total": 5}' --key customer-7 --schema orders
    quintet pub reminders 'call back' --delay 3600

    \b
    quintet pub orders 'hello' --url fast://:TOKEN@127.0.0.1:7400
    quintet pub peerbus/bob '{"hello": 1}' --url 'peerbus://:dev-token@127.0.0.1:47821?name=alice'
    """
    url = _broker(url, {"--partition": partition, "--delay": delay, "--schema": schema, "--cancel": cancel})
    if cancel is not None:
        if values or delay is not None:
            raise click.UsageError("--cancel publishes nothing: leave out the values and --delay")
        common.manage(url, lambda broker: broker.cancel_delayed(topic, cancel), timeout)
        return common.say(
            as_json, {"topic": topic, "cancelled": cancel}, f"{topic}: delayed message {cancel} is cancelled"
        )
    from_stdin = values in ((), ("-",))
    _check(from_stdin, form, count)
    pairs = tuple(_header(text) for text in headers) or None
    options = Options(qos, timeout, common.typed(key), partition, ttl or None, delay or None, schema or None, pairs)
    batches = _input(values, from_stdin, form, count)
    sent = Sent(Ack(topic, 0, qos == 1))
    ending = "durable" if qos else "sent, not confirmed (QoS 0)"
    if qos and common.door_of(url) == "peerbus":
        ending = "read by the broker"  # all that this protocol can tell
    try:
        common.run(url, timeout, lambda bus: _send(bus, topic, batches, options, sent, common.door_of(url)))
    except KeyboardInterrupt:
        echo(f"quintet: interrupted; {_messages(sent.total)} to {topic}: {ending}", err=True)
        sys.exit(1)
    total, handles, last = sent.total, sent.handles, sent.last
    if delay is not None:
        ending += f", appears in {delay:g} s"
        ending += f" (--cancel {handles[0]} cancels it)" if len(handles) == 1 else ""
    found: dict[str, object] = {"topic": topic, "count": total, "durable": last.durable}
    if total == 1 and last.offset is not None:
        ending += f" at {last.partition}@{last.offset}"
        found |= {"partition": last.partition, "offset": last.offset}
    if handles:
        found["handles"] = handles
    return common.say(as_json, found, f"{_messages(total)} to {topic}: {ending}")


def _messages(number: int) -> str:
    return f"{number} message{'' if number == 1 else 's'}"


FELIX_TOO: Final = ("--group", "--from")  # options that two doors have
FELIX_URL: Final = "--url 'felix://:TOKEN@HOST:5000?ca=FILE'"


class Start(click.ParamType[str | int | datetime]):
    """`earliest`, `latest`, an offset, how long ago, or a time."""

    name = "start"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | int | datetime:
        text = str(value)
        if text in ("earliest", "latest"):
            return text
        if text.isdecimal():
            return int(text)
        found = common.moment_ms(text)
        if found is None:
            self.fail(
                f"{text!r} is not a position: write earliest, latest, an offset, -10m (ago), or a time such as 2026-11-15T12:00",
                param,
                ctx,
            )
        return datetime.fromtimestamp(found / 1000, UTC)


def _broker(url: str | None, of_flymq: dict[str, object]) -> str:
    """The URL, or the one of `quintet serve --dev` whose door has the options that are given."""
    given = [name for name, value in of_flymq.items() if value is not None]
    if url is not None and common.door_of(url) == "felix":
        given = [name for name in given if name not in FELIX_TOO]
    if url is None:
        return common.URL_DEFAULT if given else URL_DEFAULT
    if given and (door := common.door_of(url)) != "flymq":
        if given[0] in FELIX_TOO:
            raise click.UsageError(f"{given[0]} is for FlyMQ and Felix, not for {door}: {FELIX_URL}")
        raise click.UsageError(f"{given[0]} is for FlyMQ, not for {door}: --url flymq://USER:PASSWORD@HOST:9092")
    return url


def _header(text: str) -> tuple[str, bytes | None]:
    """NAME=VALUE, or NAME for a null."""
    name, equals, value = text.partition("=")
    return name, value.encode(errors="surrogateescape") if equals else None


def _check(from_stdin: bool, form: str, count: int) -> None:
    """Options that make no sense together."""
    if from_stdin and form != "raw" and count > 1:
        raise click.UsageError(
            "--count repeats values that are arguments, or one message read with --raw; it does not repeat the lines of stdin"
        )
    if not from_stdin and form == "raw":
        raise click.UsageError("--raw reads stdin: leave out the values")


class Options(NamedTuple):
    """How messages are published."""

    qos: int
    timeout: float
    key: bytes | None
    partition: int | None
    ttl: float | None
    delay: float | None
    schema: str | None
    headers: tuple[tuple[str, bytes | None], ...] | None

    async def publish(self, bus: Bus, topic: str, value: bytes) -> Ack:
        return await bus.publish(topic, value, **self._asdict())

    async def publish_batch(self, bus: Bus, topic: str, values: list[bytes]) -> Ack:
        told = {name: value for name, value in self._asdict().items() if name not in ("delay", "schema")}
        return await bus.publish_batch(topic, values, **told)


@dataclass(slots=True)
class Sent:
    """What was acknowledged so far; of delayed messages with their handles."""

    last: Ack
    total: int = 0
    handles: list[int] = field(default_factory=list)


async def _make_queue(bus: Bus, topic: str, door: str) -> None:
    """On the Fast door nothing is made by its first use: a topic needs a key, the token's. One that is there stays as it
    is; who may not make one may still use it."""
    if door == "fast":
        with suppress(Forbidden):
            await bus.request("CREATE", topic=topic, durable=True)


async def _send(
    bus: Bus, topic: str, batches: AsyncIterator[list[bytes]], options: Options, sent: Sent, door: str
) -> None:
    """Publish all of it. With a delay or a schema each message is a request."""
    await _make_queue(bus, topic, door)
    progress = Progress(f"to {topic}")
    async for batch in batches:
        if options.delay is None and options.schema is None:
            sent.last = await options.publish_batch(bus, topic, batch)
            sent.total += sent.last.count
            progress.show(sent.total)
            continue
        for start in range(0, len(batch), SINGLE_BATCH):
            some = batch[start : start + SINGLE_BATCH]
            acks = await asyncio.gather(*(options.publish(bus, topic, value) for value in some))
            room = HANDLES_MAX - len(sent.handles)
            sent.handles += [ack.handle for ack in acks if ack.handle is not None][:room]
            sent.last = acks[-1]
            sent.total += len(acks)
            progress.show(sent.total)
    progress.end()


@click.command()
@_url
@click.argument("topic", shell_complete=common.complete_topic)
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=click.FloatRange(min=0.001), help="Stop after this many seconds.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "raw", "hex"]),
    default="text",
    show_default=True,
    help="text: one line per message; json: one object per line; raw: only the bytes; hex: one line of hex per message.",
)
@_qos
@click.option("--resume", type=click.IntRange(1), help="Continue an earlier subscription, by its id (BlipMQ).")
@click.option(
    "--group",
    shell_complete=common.complete_group,
    help="Consumer group to join; the broker keeps its offsets (FlyMQ, Felix).",
)
@click.option("--durable", help="Name of a durable subscription; the broker keeps its position (Felix).")
@click.option(
    "--from",
    "start",
    type=Start(),
    help="Where to start: earliest, latest (FlyMQ, Felix), an offset, -10m, or a time (Felix). Ignored once a group has committed.",
)
@click.option("--member", help="Name of a static member, which keeps its partitions over a reconnect (FlyMQ).")
@click.option("--filter", "chosen", help="Only messages that match; `quintet tail --help` shows the syntax (FlyMQ).")
@click.option(
    "--headers",
    "with_headers",
    is_flag=True,
    help="text: time, origin, key and headers in lines that begin with #, before each message. json has them always.",
)
@click.option("--no-ack", is_flag=True, help="Do not acknowledge: the messages are delivered again later.")
def sub(
    url: str | None,
    topic: str,
    count: int | None,
    timeout: float | None,
    form: str,
    qos: int,
    resume: int | None,
    group: str | None,
    durable: str | None,
    start: str | int | datetime | None,
    member: str | None,
    chosen: str | None,
    with_headers: bool,
    no_ack: bool,
) -> None:
    """Receive messages of a topic, from now on, until --count, --timeout or Ctrl-C.

    \b
    quintet sub orders                           as they arrive, one per line
    quintet sub orders --count 1 --timeout 5     for scripts: exit code 1 if none came in 5 s
    quintet sub orders --format json | jq .value
    quintet sub orders --resume 12               continue subscription 12 where it stopped
    quintet sub blobs --format raw --count 1 > picture.png

    \b
    quintet sub orders --group billing           as a member of a group: each message goes to one member
    quintet sub orders --from earliest --filter '$.total == 5'
    quintet sub peerbus/bob --url 'peerbus://:dev-token@127.0.0.1:47821?name=bob'
    quintet sub orders --durable billing --from -10m --url 'felix://:dev-key@127.0.0.1:5000?ca=FILE'

    The id of the subscription is printed on stderr. With --count, the exit code is 1 if fewer messages arrive before --timeout or Ctrl-C.
    """
    broker = _broker(url, {"--group": group, "--from": start, "--member": member, "--filter": chosen})
    encode, door = _encoder(form, with_headers), common.door_of(broker)
    _check_felix(door, durable, start)
    seen = 0

    async def run(bus: Bus) -> None:
        nonlocal seen
        await _make_queue(bus, topic, door)
        async with bus.subscribe(
            topic, qos=qos, resume=resume, group=group, start=start, member=member, filter=chosen, durable=durable
        ) as subscription:
            echo(_told(subscription, door, topic, resume, group, durable), err=True)
            while count is None or seen < count:
                most = SUB_BATCH if count is None else min(SUB_BATCH, count - seen)
                batch = await subscription.get_batch(max=most, wait=0.0, timeout=float("inf"))
                sys.stdout.buffer.write(encode(batch))
                sys.stdout.buffer.flush()
                seen += len(batch)
                if not no_ack:
                    await batch.ack()

    async def limited(bus: Bus) -> None:
        try:
            async with asyncio.timeout(timeout):
                await run(bus)
        except Timeout:
            raise
        except TimeoutError:
            if count is not None:
                raise Timeout(f"{seen} of {count} messages came in {timeout:g} s") from None

    try:
        common.run(broker, 10.0, limited)
    except KeyboardInterrupt:
        if count is not None:
            echo(f"quintet: interrupted after {seen} of {count} messages", err=True)
            sys.exit(1)


def _encoder(form: str, with_headers: bool) -> Callable[[MessageBatch], bytes]:
    """How messages are written on stdout."""
    if with_headers and form in ("raw", "hex"):
        raise click.UsageError(
            f"--headers is for --format text, and json has them always; {form} has no place for them"
        )
    return _text_with_headers if with_headers and form == "text" else FORMATS[form]


def _check_felix(door: str, durable: str | None, start: str | int | datetime | None) -> None:
    """Options that only one door has."""
    if door != "felix" and (durable is not None or not isinstance(start, str | None)):
        what = "--durable" if durable is not None else "--from an offset or a time"
        raise click.UsageError(f"{what} is for Felix, not for {door}: {FELIX_URL}")


def _told(
    subscription: Subscription, door: str, topic: str, resume: int | None, group: str | None, durable: str | None
) -> str:
    """How to go on later."""
    if door == "felix":
        kept = "--group" if group else "--durable"
        name = group or durable
        return (
            f"{topic} (go on with {kept} {name})"
            if name
            else f"{topic}; where it ends is kept with --durable or --group"
        )
    if group is not None:
        held = sorted(subscription.assigned)
        numbers = f"partition{'' if len(held) == 1 else 's'} {', '.join(map(str, held)) or 'none yet'}"
        return f"group {group} on {topic}: {numbers} (go on with --group {group})"
    if resume is not None:
        return f"subscription {resume} to {topic}, resumed; if there is none or it is another key's, nothing comes"
    try:
        return f"subscription {subscription.id} to {topic} (go on with --resume {subscription.id})"
    except Unsupported as error:
        if door == "flymq":
            return f"all partitions of {topic}; where it ends is kept with --group only"
        return f"{topic}; {error.hint}"


# -- input ---------------------------------------------------------------------------------------------------------


async def _input(values: tuple[str, ...], from_stdin: bool, form: str, count: int) -> AsyncIterator[list[bytes]]:
    """What to publish, in batches."""
    if from_stdin and form != "raw":
        number = 0
        async for lines in stdin.lines(VALUE_BYTES_MAX, "--raw sends all of stdin as one"):
            batch = (
                [_compact(line, number + at) for at, line in enumerate(lines, 1) if line.strip()]
                if form == "json"
                else lines
            )
            number += len(lines)
            if batch:
                yield batch
        return
    once = [await _stdin_whole()] if from_stdin else [value.encode(errors="surrogateescape") for value in values]
    if form == "json":
        once = [_compact(value, at) for at, value in enumerate(once, 1)]
    size = max(sum(map(len, once)), 1)
    rounds = max(1, min(REPEAT_BATCH // len(once), REPEAT_BATCH_BYTES // size))
    while count:
        yield once * min(rounds, count)
        count -= min(rounds, count)


def _compact(line: bytes, number: int) -> bytes:
    import msgspec.json

    try:
        msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"line {number} is not JSON: {error}", hint="without --json-lines any text is fine"
        ) from None
    return msgspec.json.format(line, indent=-1)


async def _stdin_whole() -> bytes:
    data = bytearray()
    async for chunk in stdin.chunks():
        data += chunk
        if len(data) > VALUE_BYTES_MAX:
            raise ProtocolError(f"stdin is longer than {VALUE_BYTES_MAX} bytes, the largest message", hint="split it")
    return bytes(data)


# -- output --------------------------------------------------------------------------------------------------------


def _text(batch: MessageBatch) -> bytes:
    return b"\n".join(batch.values) + b"\n"


def _text_with_headers(batch: MessageBatch) -> bytes:
    """Lines that begin with # say what belongs to the message behind them."""
    lines: list[bytes] = []
    for message in batch:
        told = {"time": message.timestamp and message.timestamp.isoformat(), "origin": message.origin}
        said = [f"{name}={value}" for name, value in told.items() if value]
        if message.key is not None:
            said.append(f"key={message.key.decode(errors='backslashreplace')}")
        lines.append(f"# {' '.join(said)}".encode())
        for name, value in message.headers.pairs:
            text = "" if value is None else f": {value.decode(errors='backslashreplace')}"
            lines.append(printable(f"# {name}{text}").encode())
        lines.append(message.value)
    return b"\n".join(lines) + b"\n"


def _raw(batch: MessageBatch) -> bytes:
    return b"".join(batch.values)


def _hex(batch: MessageBatch) -> bytes:
    return "".join(f"{value.hex()}\n" for value in batch.values).encode()


def _json(batch: MessageBatch) -> bytes:
    """`value` is text; bytes that are not UTF-8 are `value_base64`."""
    lines: list[str] = []
    for message in batch:
        row: dict[str, object] = {"topic": message.topic, "qos": message.qos, "tag": message.tag}
        if message.offset is not None:
            row |= {"partition": message.partition, "offset": message.offset}
        if message.offset is not None or message.key is not None:
            row |= common.text_or_base64("key", message.key)
        if message.headers:
            pairs = message.headers.pairs
            row["headers"] = [{"name": name, **common.text_or_base64("value", value)} for name, value in pairs]
        if message.timestamp_us is not None:
            row |= {"timestamp_us": message.timestamp_us, "origin": message.origin}
        row |= message.envelope or {}
        row |= common.text_or_base64("value", message.value)
        lines.append(printable(json.dumps(row, ensure_ascii=False)))
    return ("\n".join(lines) + "\n").encode()


FORMATS: Final[dict[str, Callable[[MessageBatch], bytes]]] = {"text": _text, "json": _json, "raw": _raw, "hex": _hex}


class Progress:
    """One line on stderr that counts, if a person is there to see it."""

    EVERY_S: Final = 0.2

    def __init__(self, what: str) -> None:
        self._what = what
        self._on = sys.stderr.isatty()
        self._loop = asyncio.get_running_loop()
        self._start = self._shown = self._loop.time()

    def show(self, total: int) -> None:
        at = self._loop.time()
        if self._on and at - self._shown >= self.EVERY_S:
            self._shown = at
            click.echo(f"\r{total:,} {self._what}, {total / (at - self._start):,.0f}/s ", err=True, nl=False)

    def end(self) -> None:
        if self._on and self._shown > self._start:
            click.echo("\r\x1b[K", err=True, nl=False)
