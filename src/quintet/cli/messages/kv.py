"""`quintet kv`: reads and writes the broker's caches, made for scripts and pipes.

stdout carries values, versions and numbers; what is said to a person goes to stderr. Exit codes: 0 done, 1 failed or the key
is not there, 2 wrong usage.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.output import echo
from quintet.client.bus import Bus
from quintet.client.core.errors import Timeout, VersionConflict
from quintet.client.kv import Cache, Change

T = TypeVar("T")

# `quintet serve --dev` in this folder: it keeps the certificate that it made with its data
URL_DEFAULT: Final = "felix://:dev-key@127.0.0.1:5000?ca=.quintet/tls/felix-certificate.pem"
CACHE_DEFAULT: Final = "default"

_url = click.option(
    "--url", envvar="QUINTET_URL", default=URL_DEFAULT, help=f"URL of the broker (or QUINTET_URL) [{URL_DEFAULT}]."
)
_cache = click.option(
    "--cache", default=CACHE_DEFAULT, show_default=True, help="Cache to use: its name, or tenant/namespace/name."
)
_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the answer.",
)
_if_version = click.option(
    "--if-version", type=click.IntRange(0), help="Only if the key has this version; 0: only if it does not exist."
)


def run(url: str, cache: str, timeout: float, use: Callable[[Cache], Awaitable[T]]) -> T:
    """Run with a cache. A key at another version is a failure that names it."""
    door = common.door_of(url)
    if door != "felix":
        raise click.UsageError(
            f"This command needs Felix, and the URL is of {door}: use --url felix://:TOKEN@HOST:5000?ca=FILE"
        )

    async def work(bus: Bus) -> T:
        return await use(bus.kv(cache))

    return common.run(url, timeout, work)


@click.group()
def kv() -> None:
    """Key-value cache of the broker, with expiry and versions.

    \b
    quintet kv put greeting hello                     its version is printed
    quintet kv get greeting
    quintet kv put session:7 "$DATA" --ttl 15m        expires after 15 minutes
    quintet kv incr visits
    quintet kv watch --prefix session: --count 1      wait for a change
    quintet kv del greeting
    """


@kv.command()
@_url
@_cache
@click.argument("key")
@_timeout
@common.json_option
def get(url: str, cache: str, key: str, timeout: float, as_json: bool) -> None:
    """Print the value of KEY unchanged; exit code 1 if it does not exist.

    \b
    quintet kv get greeting
    quintet kv get picture > picture.png
    quintet kv get greeting --json | jq .version
    """
    found = run(url, cache, timeout, lambda there: there.entry(key, timeout=timeout))
    if found is None:
        echo(f"quintet: {key} is not there", err=True)
        sys.exit(1)
    value, version = found
    if as_json:
        return common.say_json({"key": key, "version": version, **common.text_or_base64("value", value)})
    out = sys.stdout.buffer
    out.write(value + b"\n" if sys.stdout.isatty() else value)
    out.flush()
    return None


@kv.command()
@_url
@_cache
@click.argument("key")
@click.argument("value", required=False)
@click.option("--file", type=click.Path(path_type=Path), help="File that holds the value; - is stdin.")
@click.option("--ttl", type=common.Duration(), help="Time until the key expires: 90s, 15m, 1h30m, or seconds.")
@_if_version
@_timeout
@common.json_option
def put(
    url: str,
    cache: str,
    key: str,
    value: str | None,
    file: Path | None,
    ttl: int | None,
    if_version: int | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Store VALUE under KEY and print its new version.

    \b
    quintet kv put greeting hello
    quintet kv put picture --file picture.png --ttl 1d
    quintet kv put leader "$HOSTNAME" --if-version 0 --ttl 30s      the first one wins
    """
    if (value is None) == (file is None):
        raise click.UsageError("Give a value, or --file.")
    data = common.read_file(file) if file is not None else common.typed(value)
    seconds = None if ttl is None else ttl / 1000
    try:
        version = run(
            url,
            cache,
            timeout,
            lambda there: there.put(key, data, ttl=seconds, if_version=if_version, timeout=timeout),
        )
    except VersionConflict as error:
        _conflict(error)
    common.say(as_json, {"key": key, "version": version}, str(version))


def _conflict(error: VersionConflict) -> NoReturn:
    echo(f"quintet: {error}", err=True)
    sys.exit(1)


@kv.command("del")
@_url
@_cache
@click.argument("key")
@_if_version
@_timeout
@common.json_option
def delete(url: str, cache: str, key: str, if_version: int | None, timeout: float, as_json: bool) -> None:
    """Delete KEY; exit code 1 if it does not exist.

    \b
    quintet kv del greeting
    quintet kv del leader --if-version 17
    """
    try:
        existed = run(url, cache, timeout, lambda there: there.delete(key, if_version=if_version, timeout=timeout))
    except VersionConflict as error:
        _conflict(error)
    common.say(as_json, {"key": key, "existed": existed}, f"{key} is {'gone' if existed else 'not there'}")
    if not existed:
        sys.exit(1)


@kv.command()
@_url
@_cache
@click.argument("key")
@click.argument("delta", type=int, default=1)
@click.option("--ttl", type=common.Duration(), help="Time until the key expires: 90s, 15m, 1h30m, or seconds.")
@_timeout
@common.json_option
def incr(url: str, cache: str, key: str, delta: int, ttl: int | None, timeout: float, as_json: bool) -> None:
    """Add DELTA (1) to the number under KEY and print the sum; a missing key counts as 0.

    \b
    quintet kv incr visits
    quintet kv incr stock -- -3
    quintet kv incr attempts:7 --ttl 1m
    """
    seconds = None if ttl is None else ttl / 1000
    number = run(url, cache, timeout, lambda there: there.incr(key, delta, ttl=seconds, timeout=timeout))
    common.say(as_json, {"key": key, "number": number}, str(number))


@kv.command()
@_url
@_cache
@click.argument("key", required=False)
@click.option("--prefix", help="Watch all keys with this prefix instead of one key.")
@click.option("--count", type=click.IntRange(1), help="Stop after this many changes.")
@click.option("--timeout", type=click.FloatRange(min=0.001), help="Stop after this many seconds.")
def watch(url: str, cache: str, key: str | None, prefix: str | None, count: int | None, timeout: float | None) -> None:
    """Print changes from now on, one JSON object per line, until --count, --timeout or Ctrl-C; null: the key was deleted.

    \b
    quintet kv watch greeting --count 1
    quintet kv watch --prefix session: | jq -r .key
    quintet kv watch                                  every key of the cache
    """
    if key is not None and prefix is not None:
        raise click.UsageError("Give a key, or --prefix.")
    seen = 0

    async def changes(there: Cache) -> None:
        nonlocal seen
        async with there.watch(key, prefix=prefix) as found:
            echo(f"watching {there.name}", err=True)
            async for change in found:
                echo(_line(change))
                seen += 1
                if seen == count:
                    return

    async def limited(there: Cache) -> None:
        try:
            async with asyncio.timeout(timeout):
                await changes(there)
        except Timeout:
            raise
        except TimeoutError:
            if count is not None:
                raise Timeout(f"{seen} of {count} changes came in {timeout:g} s") from None

    try:
        run(url, cache, 10.0, limited)
    except KeyboardInterrupt:
        if count is not None:
            sys.exit(1)


def _line(change: Change) -> str:
    row = {"key": change.key, "version": change.version, **common.text_or_base64("value", change.value)}
    return json.dumps(row, ensure_ascii=False)
