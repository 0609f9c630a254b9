"""`quintet mcp`: runs a peer of the bus as an MCP server on stdin and stdout.

stdout carries JSON-RPC and nothing else; logs go to stderr. What the messages mean is in client/agents/mcp.py.
"""

import asyncio
import logging
import sys
from pathlib import Path

import click

from quintet.cli.messages.peer import URL_DEFAULT, with_secret
from quintet.cli.terminal import common, stdin
from quintet.client.agents.peer import peer
from quintet.client.agents.presence import Presence
from quintet.client.core.errors import BadName, BadUrl


@click.command()
@click.option(
    "--url", envvar="QUINTET_URL", default=URL_DEFAULT, help=f"URL of the broker (or QUINTET_URL) [{URL_DEFAULT}]."
)
@click.option("--name", help="Name to register, unless the URL has ?name=.")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File with the secret that peers share (or QUINTET_PEERBUS_SECRET holds it).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=10.0,
    show_default=True,
    help="Seconds to wait for each step.",
)
def mcp(url: str, name: str | None, secret_file: Path | None, timeout: float) -> None:
    """Serve MCP over stdio, so that an AI model is a peer of the bus: it has the tools bus.send, bus.broadcast, bus.peers and bus.drain.

    \b
    quintet mcp --name alice
    quintet mcp --url 'peerbuss://:TOKEN@broker.example:47821?name=alice' --secret-file secret

    In a host's configuration, with the secret that peers share in the environment:

    \b
    {"command": "quintet", "args": ["mcp", "--url", "peerbus://:TOKEN@127.0.0.1:47821?name=alice"],
     "env": {"QUINTET_PEERBUS_SECRET": "..."}}

    It starts without a broker and registers when there is one; it registers again when its name was freed. If another process
    takes the name over and over, it gives it up and says so. It ends when stdin does.
    """
    from quintet.client.agents.mcp import McpServer

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="quintet mcp: %(levelname)s %(message)s")
    out = sys.stdout.buffer

    def write(line: bytes) -> None:
        out.write(line)
        out.flush()

    async def session() -> None:
        where = with_secret(url, secret_file)
        presence = Presence(lambda: peer(where, name=name, timeout=timeout, give_way=True))

        async def serve() -> None:
            await McpServer(presence).run(stdin.chunks(), write)
            await presence.started()

        registered, serving = asyncio.create_task(presence.run()), asyncio.create_task(serve())
        try:
            await asyncio.wait((registered, serving), return_when=asyncio.FIRST_COMPLETED)
            if registered.done():
                await registered  # refused at the start: that is the end; given up later: the host is still answered
            await serving
        finally:
            for task in (registered, serving):
                task.cancel()
            await asyncio.gather(registered, serving, return_exceptions=True)

    try:
        asyncio.run(session())
    except (BadUrl, BadName) as error:
        raise common.wrong_usage(error) from error
    except KeyboardInterrupt:
        pass
