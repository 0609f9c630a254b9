"""`quintet peer`: sends and receives as a peer of the bus, made for scripts and pipes.

stdout carries messages, ids or names; what is said to a person goes to stderr. A message that `listen` writes is
acknowledged after it is written. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import msgspec

from quintet.cli.terminal import common, stdin
from quintet.cli.terminal.output import echo, printable
from quintet.client.agents.peer import Peer, PeerMessage, peer
from quintet.client.agents.pipe import pipe
from quintet.client.core.errors import BadName, BadUrl, Timeout
from quintet.model import envelope
from quintet.model.errors import ProtocolError

URL_DEFAULT: Final = "peerbus://:dev-token@127.0.0.1:47821"  # `quintet serve --dev`
LINE_BYTES_MAX: Final = 1024 * 1024  # the protocol's own bound

_url = click.option(
    "--url", envvar="QUINTET_URL", default=URL_DEFAULT, help=f"URL of the broker (or QUINTET_URL) [{URL_DEFAULT}]."
)
_name = click.option("--name", help="Name to register, unless the URL has ?name=.")
_secret = click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File with the secret that peers share (or QUINTET_PEERBUS_SECRET holds it).",
)
_timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=10.0,
    show_default=True,
    help="Seconds to wait for each step.",
)


def run(
    url: str,
    name: str | None,
    secret_file: Path | None,
    timeout: float,
    use: Callable[[Peer], Awaitable[None]],
) -> None:
    """Run with an open peer. What the user typed wrongly is a usage error."""

    async def session() -> None:
        async with peer(with_secret(url, secret_file), name=name, timeout=timeout) as me:
            await use(me)

    try:
        asyncio.run(session())
    except (BadUrl, BadName) as error:
        raise common.wrong_usage(error) from error


def with_secret(url: str, file: Path | None) -> str:
    if file is None:
        return url
    return f"{url}{'&' if '?' in url else '?'}secret_file={quote(str(file), safe='')}"


def json_or_text(value: bytes) -> object:
    """JSON to the letter if it is, else the text."""
    try:
        return msgspec.Raw(envelope.text(value))
    except ProtocolError:
        return value.decode(errors="replace")


@click.group()
def peer_group() -> None:
    """Exchange messages between named peers over the protocol peerbus.

    \b
    export QUINTET_PEERBUS_SECRET=$(cat secret)  # what all peers share; at least 32 bytes
    quintet peer listen --name bob               as they arrive, one object per line
    quintet peer send bob '{"text": "hello"}' --name alice
    quintet peer broadcast '"lunch?"' --name alice
    quintet peer list --name alice

    A name has one connection: a new one with the same name and token replaces it.
    """


@peer_group.command("list")
@_url
@_name
@_secret
@_timeout
@common.json_option
def list_peers(url: str, name: str | None, secret_file: Path | None, timeout: float, as_json: bool) -> None:
    """List the connected peers, your own name included.

    \b
    quintet peer list --name alice
    """

    async def use(me: Peer) -> None:
        names = await me.peers(timeout=timeout)
        common.say(as_json, {"self": me.name, "peers": names}, "\n".join(names))

    run(url, name, secret_file, timeout, use)


@peer_group.command()
@_url
@_name
@_secret
@_timeout
@click.option("--id", help="Id of the message; the broker accepts each id of a sender once.")
@click.argument("to")
@click.argument("body", required=False)
def send(
    url: str, name: str | None, secret_file: Path | None, timeout: float, id: str | None, to: str, body: str | None
) -> None:
    """Send BODY to the peer TO, or each line of stdin when there is none. What is not JSON is sent as a string.

    \b
    quintet peer send bob '{"text": "hello"}' --name alice
    tail -f app.log | quintet peer send bob --name logger

    The id of each message is printed when the broker has read it. The broker does not say whether the peer exists.
    """
    if to == "*":
        raise click.UsageError("'*' stands for all peers: use `quintet peer broadcast`.")
    _send_all(url, name, secret_file, timeout, body, id, lambda me, value, id: me.send(to, value, id=id))


@peer_group.command()
@_url
@_name
@_secret
@_timeout
@click.option("--id", help="Id of the message; the broker accepts each id of a sender once.")
@click.argument("body", required=False)
def broadcast(
    url: str, name: str | None, secret_file: Path | None, timeout: float, id: str | None, body: str | None
) -> None:
    """Send BODY, or each line of stdin, to every other connected peer.

    \b
    quintet peer broadcast '{"text": "hello, all"}' --name alice
    """
    _send_all(url, name, secret_file, timeout, body, id, lambda me, value, id: me.broadcast(value, id=id))


def _send_all(
    url: str,
    name: str | None,
    secret_file: Path | None,
    timeout: float,
    body: str | None,
    id: str | None,
    one: Callable[[Peer, object, str | None], Awaitable[str]],
) -> None:
    if body is None and id is not None:
        raise click.UsageError("--id is for one message, and stdin has many.")

    async def use(me: Peer) -> None:
        if body is not None:
            echo(await one(me, json_or_text(body.encode(errors="surrogateescape")), id))
            return
        async for lines in stdin.lines(LINE_BYTES_MAX, "a message has at most 1 MiB"):
            for line in lines:
                if line.strip():
                    echo(await one(me, json_or_text(line), None))

    run(url, name, secret_file, timeout, use)


@peer_group.command()
@_url
@_name
@_secret
@click.option("--count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", type=click.FloatRange(min=0.001), help="Stop after this many seconds.")
@click.option("--no-ack", is_flag=True, help="Do not acknowledge: the messages are delivered again later.")
def listen(
    url: str, name: str | None, secret_file: Path | None, count: int | None, timeout: float | None, no_ack: bool
) -> None:
    """Write each message as a line of JSON, until --count, --timeout or Ctrl-C.

    \b
    quintet peer listen --name bob
    quintet peer listen --name bob --count 1 --timeout 5 | jq .body

    With --count, the exit code is 1 if fewer messages arrive before --timeout.
    """
    seen = 0

    async def read(me: Peer) -> None:
        nonlocal seen
        echo(f"listening as {me.name}", err=True)
        while count is None or seen < count:
            message = await me.receive(timeout=float("inf"))
            out = sys.stdout.buffer
            out.write(_line(message))
            out.flush()
            seen += 1
            if not no_ack:
                await message.ack()

    async def use(me: Peer) -> None:
        try:
            async with asyncio.timeout(timeout):
                await read(me)
        except Timeout:
            raise
        except TimeoutError:
            if count is not None:
                raise Timeout(f"{seen} of {count} messages came in {timeout:g} s") from None

    try:
        run(url, name, secret_file, 10.0, use)
    except KeyboardInterrupt:
        if count is not None:
            echo(f"quintet: interrupted after {seen} of {count} messages", err=True)
            sys.exit(1)


def _line(message: PeerMessage) -> bytes:
    row = {"id": message.id, "from": message.sender, "to": message.to, "ts": message.ts, "source": message.source}
    row["kind"] = message.kind
    return b'%b, "body": %b}\n' % (printable(json.dumps(row, ensure_ascii=False)).encode()[:-1], message.raw)


@peer_group.command()
@_url
@_name
@click.option(
    "--linger",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Seconds to keep receiving after stdin has ended.",
)
def stdio(url: str, name: str | None, linger: float) -> None:
    """Connect a program that speaks peerbus itself: objects on stdin go to the broker, those of the broker to stdout, one per
    line and unchanged. The program signs, verifies and acknowledges.

    \b
    quintet peer stdio --name bob                sends the register message for you, with the token of the URL
    my-adapter | quintet peer stdio --url peerbuss://HOST:47821 | my-reader

    Without a name, the first line of stdin must be the register message.
    """
    out = sys.stdout.buffer

    def write(data: bytes) -> None:
        out.write(data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
        out.flush()

    async def session() -> None:
        lines = stdin.lines(LINE_BYTES_MAX, "the protocol's objects have at most 1 MiB")
        await pipe(url, lines, write, name=name or "", linger=linger)

    try:
        asyncio.run(session())
    except (BadUrl, BadName) as error:
        raise common.wrong_usage(error) from error
    except KeyboardInterrupt:
        pass
