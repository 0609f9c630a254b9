"""Finds and opens the Flight door for `quintet pipeline` and `quintet spark`. Knows no command."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from quintet.cli.terminal.common import COMPLETION_S, completions, wrong_usage
from quintet.client.core import url as urls
from quintet.client.core.errors import BadUrl
from quintet.model.errors import QuintetError
from quintet.model.extras import needed_by

if TYPE_CHECKING:
    from quintet.spark.source.connection import FlightConnection

T = TypeVar("T")

URL_DEFAULT: Final = "flight://admin:admin@127.0.0.1:8815"  # `quintet serve --dev`
VARIABLE: Final = "QUINTET_FLIGHT_URL"
RETRY_SECONDS: Final = "2"  # a command that only asks gives up soon

flight_url_option: Final = click.option(
    "--url",
    help=f"URL of the broker's Flight listener (or {VARIABLE}, or the host of QUINTET_URL) [{URL_DEFAULT}].",
)


def _settings(_ctx: click.Context, _param: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    from quintet.spark.sessions.settings import assignment

    return dict(map(assignment, words))


master_option: Final = click.option(
    "--master",
    help="Where Spark runs: local[2], spark://HOST:7077, k8s://..., yarn [spark-defaults.conf, or local[*]].",
)
conf_option: Final = click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="Spark setting, which overrides all others; repeatable.",
)


def access(url: str | None) -> dict[str, str]:
    """The options of a connection: url, and token where another door's URL brings one. --url, QUINTET_FLIGHT_URL, QUINTET_URL."""
    found = url or os.environ.get(VARIABLE)
    if found:
        return {"url": found}
    other = os.environ.get("QUINTET_URL")
    if not other:
        return {"url": URL_DEFAULT}
    try:
        end = urls.parse(other)
    except BadUrl as error:
        raise wrong_usage(error) from error
    if end.door == "flight":
        return {"url": other}
    host = f"[{end.host}]" if ":" in end.host else end.host
    files = [f"{name}={quote(value)}" for name in ("ca", "cert", "key") if (value := getattr(end, name))]
    query = f"?{'&'.join(files)}" if files else ""
    who = "" if end.door == "blipmq" else f"{quote(end.user, safe='')}:{quote(end.secret, safe='')}@"
    made = {"url": f"flight{'s' if end.tls else ''}://{who}{host}:{urls.SCHEMES['flight'].port}{query}"}
    return made | ({"token": end.secret} if end.door == "blipmq" and end.secret else {})


def ask(url: str | None, use: "Callable[[FlightConnection], T]", seconds: str = RETRY_SECONDS) -> T:
    """What the broker answers over its Flight door. Needs pyarrow, and no Spark."""
    with needed_by("the Flight door", "flight"):
        from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import OptionError, target

    try:
        with FlightConnection(target({**access(url), "retrySeconds": seconds})) as connection:
            return use(connection)
    except OptionError as error:
        raise click.UsageError(f"{error}.") from error


def complete(
    ctx: click.Context, use: "Callable[[FlightConnection], list[str]]", incomplete: str
) -> list[CompletionItem]:
    """Names from the broker, if one answers at once; a shell is no place for errors."""
    try:
        names = ask(ctx.params.get("url"), use, str(COMPLETION_S))
    except (QuintetError, OSError, click.UsageError):
        return []
    return completions(names, incomplete)
