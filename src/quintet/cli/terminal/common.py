"""Shares code between commands that talk to a broker: the URL, an open bus, tables and JSON, times and passwords.

stdout carries the answer, as a table for people or with --json as one JSON value (streams: one a line); everything else
said to a person goes to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from quintet.cli.terminal.output import echo
from quintet.client.bus import Bus, connect
from quintet.client.core import url as urls
from quintet.client.core.errors import BadName, BadUrl
from quintet.client.manage import Manage
from quintet.model.errors import ConfigError, QuintetError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")

URL_DEFAULT: Final = "flymq://admin:admin@127.0.0.1:9092"  # `quintet serve --dev`
TIMEOUT_S: Final = 10.0
COMPLETION_S: Final = 1.0  # a shell waits for it
PIPE_COLUMNS: Final = 1_000  # a table in a pipe is not folded
WORD_COLUMNS: Final = 24  # a longer word is folded in a narrow terminal
CELL_COLUMNS: Final = 3  # around the words of a cell
FILE_BYTES_MAX: Final = 32 * 1024 * 1024  # no frame is larger
PASSWORD_BYTES_MAX: Final = 64 * 1024
I32_MAX: Final = (1 << 31) - 1
I64_MAX: Final = (1 << 63) - 1

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_BYTES: Final = re.compile(r"(\d+)\s*(?:([kmgt])(i)?b?|b)?", re.IGNORECASE)

url_option: Final = click.option(
    "--url",
    envvar="QUINTET_URL",
    default=URL_DEFAULT,
    help=f"URL of the broker, of several nodes as ...@a:9092,b:9092 (or QUINTET_URL) [{URL_DEFAULT}].",
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


# -- running ----------------------------------------------------------------------------------------------------------


def run(url: str, timeout: float, use: Callable[[Bus], Awaitable[T]]) -> T:
    """Run with an open bus, on uvloop if it is installed. What the user typed wrongly is a usage error."""

    async def session() -> T:
        async with connect(url, timeout=timeout) as bus:
            return await use(bus)

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        pass
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(session())
    except (BadUrl, BadName) as error:
        raise wrong_usage(error) from error
    except ValueError as error:
        if isinstance(error, QuintetError):
            raise
        raise click.UsageError(f"{error}.") from error  # the client raises it for an argument without meaning


def manage(url: str, use: Callable[[Manage], Awaitable[T]], timeout: float = TIMEOUT_S) -> T:
    """Run with the broker's management, which goes through the FlyMQ door."""
    door = door_of(url)
    if door != "flymq":
        raise click.UsageError(
            f"This command needs FlyMQ, and the URL is of {door}: use --url flymq://USER:PASSWORD@HOST:9092"
        )
    return run(url, timeout, lambda bus: use(Manage(bus)))


def door_of(url: str) -> str:
    """The door that a URL names."""
    return endpoint_of(url).door


def endpoint_of(url: str) -> urls.Endpoint:
    try:
        return urls.parse(url)
    except BadUrl as error:
        raise wrong_usage(error) from error


def wrong_usage(error: QuintetError) -> click.UsageError:
    return click.UsageError(str(error) if error.hint else f"{error}.")


def confirm(question: str, yes: bool) -> None:
    """Go on only if somebody says yes. Without a terminal --yes must say it."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: add --yes.")
    click.confirm(question, abort=True, err=True)


# -- completion -------------------------------------------------------------------------------------------------------


def _complete(
    ctx: click.Context, ask: Callable[[Manage], Awaitable[Iterable[str]]], incomplete: str
) -> list[CompletionItem]:
    """Names from the broker, if one answers at once; a shell is no place for errors."""
    url = ctx.params.get("url") or os.environ.get("QUINTET_URL") or URL_DEFAULT
    try:
        names = manage(url, ask, COMPLETION_S)
    except (QuintetError, OSError, click.UsageError):
        return []
    return completions(names, incomplete)


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(set(names)) if name.startswith(incomplete)]


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _complete(ctx, lambda broker: broker.topics(), incomplete)


def complete_group(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    async def names(broker: Manage) -> list[str]:
        return [each.group for each in await broker.groups()]

    return _complete(ctx, names, incomplete)


topic_argument: Final = click.argument("topic", shell_complete=complete_topic)


# -- words of the user ------------------------------------------------------------------------------------------------


class Duration(click.ParamType[int]):
    """`90s`, `1h30m`, `500ms`, or seconds; milliseconds as a result."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = duration_ms(str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration: write 500ms, 90s, 10m, 1h30m, 7d, or seconds", param, ctx)
        return found


class Size(click.ParamType[int]):
    """`512KiB`, `10MB`, `1g`, or bytes."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _BYTES.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size: write 1048576, 512KiB, 10MB or 1GiB", param, ctx)
        base = 1024 if match[3] or not match[2] else 1000
        return int(match[1]) * int(base ** " kmgt".index((match[2] or " ").lower()))


class Moment(click.ParamType[int]):
    """`-10m` (ago), `2026-11-15T12:00` (with or without a zone), or milliseconds since 1970; these as a result."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = moment_ms(str(value))
        if found is None:
            self.fail(
                f"{value!r} is not a time: write -10m (ago), 2026-11-15T12:00, or milliseconds since 1970", param, ctx
            )
        return found


def duration_ms(text: str) -> int | None:
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return round(float(text) * 1000)
    if not text or _DURATION.sub("", text):
        return None
    return round(sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text)) * 1000)


def moment_ms(text: str) -> int | None:
    if text.startswith("-"):
        ago = duration_ms(text[1:])
        return None if ago is None else now_ms() - ago
    if text.isdecimal():
        return int(text) if int(text) <= I64_MAX // 1000 else None
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)


def read_password(file: Path | None, prompt: str, confirm: bool) -> str:
    """A password from a file, typed twice, or the first line of stdin; never an argument, which everybody can see."""
    if file is not None and str(file) != "-":
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    elif file is None and sys.stdin.isatty():
        return str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    else:
        text = sys.stdin.readline(PASSWORD_BYTES_MAX)
    password = text.split("\n", 1)[0].removesuffix("\r")
    if not password:
        raise ConfigError(f"{prompt}: it is empty", hint="type it, pipe it to stdin, or give --password-file")
    return password


def read_file(file: Path) -> bytes:
    """All of a file, or with - of stdin."""
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(FILE_BYTES_MAX + 1)
        else:
            with file.open("rb") as source:
                data = source.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"{file} is too large: one request holds {FILE_BYTES_MAX} bytes")
    return data


def typed(value: str | None) -> bytes | None:
    """An argument as its bytes."""
    return None if value is None else value.encode(errors="surrogateescape")


# -- words for the user -----------------------------------------------------------------------------------------------


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """A field of JSON for bytes: `name` if they are UTF-8, else `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def plain(value: object) -> object:
    """A dataclass, or a list of them, as JSON can hold it."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return plain_fields(value) if is_dataclass(value) else value


def plain_fields(value: object) -> dict[str, object]:
    """A dataclass as JSON can hold it."""
    assert is_dataclass(value)
    found: dict[str, object] = {}
    for each in fields(value):
        item = getattr(value, each.name)
        if isinstance(item, bytes):
            found |= text_or_base64(each.name, item)
        else:
            found[each.name] = plain(item)
    return found


def say_json(value: object, *, line: bool = False) -> None:
    echo(json.dumps(value, ensure_ascii=False, indent=None if line else 2))


def say(as_json: bool, value: dict[str, object], text: str) -> None:
    """The one line of a result."""
    if as_json:
        say_json(value)
    else:
        echo(text)


def make_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> "Table":
    """A rich table; columns whose name begins with > are numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    bold = "" if os.environ.get("NO_COLOR") else "bold"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style=bold)
    for name in columns:
        title = name.removeprefix(">")
        side: Literal["left", "right"] = "left" if title is name else "right"
        table.add_column(title, justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    return table


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text if text.isprintable() else ascii(text)[1:-1]  # so that a name cannot control the terminal


def say_table(columns: Sequence[str], rows: Sequence[Sequence[object]], nothing: str, title: str = "") -> None:
    """A table, or one line that says why there is none."""
    if not rows:
        echo(nothing, err=True)
        return
    if title:
        echo(title)
    screen, table = console(), make_table(columns, rows)
    widths = _widths(
        [[str(column.header), *(_cell(row[at]) for row in rows)] for at, column in enumerate(table.columns)]
    )
    spare = screen.width - sum(narrow + CELL_COLUMNS for narrow, _ in widths)
    needed = 0
    for column, (narrow, whole) in zip(table.columns, widths, strict=True):
        more = max(0, min(whole - narrow, spare))
        column.width = narrow + more
        spare -= more
        needed += column.width + CELL_COLUMNS
    screen.width = max(screen.width, needed)
    screen.print(table)


def _widths(columns: Iterable[Sequence[str]]) -> list[tuple[int, int]]:
    """Of each column: the width that folds no short word, and the one that folds nothing. Where not even the first is
    there, lines run over the end of the terminal and stay readable."""
    return [
        (min(max(len(word) for cell in cells for word in cell.split()), WORD_COLUMNS), max(map(len, cells)))
        for cells in columns
    ]


def console() -> "Console":
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)


def when(ms: int) -> str:
    """A time in the zone of this machine."""
    try:
        local = datetime.fromtimestamp(ms / 1000, UTC).astimezone()
        return local.replace(tzinfo=None).isoformat(" ", "milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def shown(data: bytes, most: int = 60) -> str:
    """Bytes on one line: text as it is if it can be printed, else hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data[: most // 2].hex()}" + ("..." if len(data) > most // 2 else "")
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= most else f"{text[: most - 3]}..."


def lasting(seconds: float) -> str:
    """A duration for people."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes / 60
    return f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"
