"""Uses an installed quintet through one door: publishes a message and consumes it. Runs in an environment of its own.

    python uses.py URL TOPIC          with quintet.connect
    python uses.py --sync URL TOPIC   with quintet.sync.connect, after the other one
    python uses.py --helps            every command's --help, in one process
    python uses.py --commands         the command lines of the JSON on stdin, one after the other; the outcomes as JSON

Needs nothing but the standard library and what is installed there; an error ends it with a traceback, which no test wants.
"""

import asyncio
import contextlib
import io
import json
import os
import sys
import traceback

import quintet

WAIT_S = 60.0


# Long enough to be compressed, where a URL asks for it; peerbus carries JSON, so a text comes back in quotes.
MESSAGE = "a message " * 1_000


async def use(url: str, topic: str) -> None:
    async with quintet.connect(url, timeout=WAIT_S) as bus:
        await prepare(bus, url, topic)
        async with bus.subscribe(topic) as messages:
            await bus.publish(topic, MESSAGE)
            found = await messages.get(timeout=WAIT_S)
            assert found.text().strip('"') == MESSAGE
            with contextlib.suppress(quintet.errors.Unsupported):  # Fast has no acknowledgements
                await found.ack()


async def prepare(bus: quintet.Bus, url: str, topic: str) -> None:
    """Two doors subscribe to what is there, and to nothing else."""
    if url.startswith("fast:"):
        from quintet.client.links.fast import Queues

        await Queues(bus).create(topic)
    elif url.startswith("flymq:"):
        await bus.publish(topic, "the first")


def use_blocking(url: str, topic: str) -> None:
    """On a topic that is there."""
    with quintet.sync.connect(url, timeout=WAIT_S) as bus, bus.subscribe(topic) as messages:
        bus.publish(topic, MESSAGE)
        assert messages.get(timeout=WAIT_S).text().strip('"') == MESSAGE


def show_helps() -> int:
    """Every group and command, asked for its help; how many there are."""
    import click

    from quintet.cli.main import cli

    def walk(command: click.Command, path: tuple[str, ...]) -> int:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            cli.main([*path, "--help"], prog_name="quintet")
        assert "Usage: quintet" in out.getvalue(), f"quintet {' '.join(path)} --help said {out.getvalue()!r}"
        shown = 1
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None, name
                shown += walk(below, (*path, name))
        return shown

    return walk(cli, ())


def run_commands(lines: list[list[str]]) -> list[dict[str, object]]:
    """What each left behind. A traceback that would reach the user is in `err`."""
    from quintet.cli.main import main

    found = []
    for arguments in lines:
        sys.argv = ["quintet", *arguments]
        code: object = None
        with (
            contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            try:
                main()
            except SystemExit as end:
                code = end.code
            except BaseException:
                traceback.print_exc()
        out.seek(0)
        found.append({"code": code or 0, "out": out.read(), "err": err.getvalue()})
    return found


if __name__ == "__main__":
    if sys.argv[1] == "--commands":
        asked = json.load(sys.stdin)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)  # commands that read a pipe find its end
        sys.stdin = open(0)  # noqa: SIM115
        outcomes = run_commands(asked)
        json.dump(outcomes, sys.stdout)
    elif sys.argv[1] == "--helps":
        sys.stdout.write(f"{show_helps()}\n")
    elif sys.argv[1] == "--sync":
        use_blocking(*sys.argv[2:])
    else:
        asyncio.run(use(*sys.argv[1:]))
