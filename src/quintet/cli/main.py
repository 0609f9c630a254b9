"""Defines the root of the `quintet` command: one table of commands, each loaded when it is used.

`quintet --help` must start at once, so this file imports click and nothing else; a command's module is imported when it
runs. Failures end here too: a ConfigError is one line and exit code 2, any other QuintetError one line and 1. A package that
is not installed is such a failure, whichever import of whichever command wanted it.
"""

import importlib
import json
import os
import platform
import sys
from typing import Final, NamedTuple, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem, get_completion_class

from quintet import __version__
from quintet.model import extras
from quintet.model.errors import ConfigError, QuintetError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2


class Row(NamedTuple):
    """Where a command lives, and what --help says about it without loading it."""

    target: str
    help: str


COMMANDS: Final = {
    "serve": Row("quintet.cli.serve:serve", "Run the broker."),
    "status": Row("quintet.cli.operate.status:status", "A running broker on one screen."),
    "top": Row("quintet.cli.operate.status:top", "Busiest topics, groups and doors, live."),
    "doctor": Row("quintet.cli.operate.doctor:doctor", "Find what is wrong with a broker or its machine."),
    "health": Row("quintet.cli.operate.health:health", "Ask a broker whether it is ready."),
    "cluster": Row("quintet.cli.operate.cluster:cluster", "Nodes of a cell: certificates, status, findings."),
    "cell": Row("quintet.cli.operate.cell:cell", "Several cells over Kafka: who leads them; move and drain."),
    "conn": Row("quintet.cli.operate.conn:conn", "Connections of a running broker: list, show, kick."),
    "explain": Row("quintet.cli.operate.conn:explain", "The journey of one message."),
    "upgrade": Row(
        "quintet.cli.operate.upgrade:upgrade", "What this version would do with a data folder and a configuration."
    ),
    "pub": Row("quintet.cli.messages.pubsub:pub", "Publish messages."),
    "sub": Row("quintet.cli.messages.pubsub:sub", "Receive messages."),
    "kv": Row("quintet.cli.messages.kv:kv", "Key-value cache with expiry and versions."),
    "peer": Row("quintet.cli.messages.peer:peer_group", "Exchange messages between named peers (peerbus)."),
    "mcp": Row("quintet.cli.messages.mcp:mcp", "MCP server on stdio: lets an AI model send and receive messages."),
    "tail": Row("quintet.cli.messages.tail:tail", "Read a topic without consuming."),
    "topic": Row("quintet.cli.manage.topic:topic", "Create, list, describe and delete topics."),
    "group": Row("quintet.cli.manage.group:group", "Consumer groups: members, lag, offsets."),
    "schema": Row("quintet.cli.manage.schema:schema", "Schemas: register, show, validate."),
    "dlq": Row("quintet.cli.messages.dlq:dlq", "Dead letters: browse, replay, purge."),
    "txn": Row("quintet.cli.messages.txn:txn", "Transactions: all messages or none."),
    "user": Row("quintet.cli.manage.user:user", "Users and their passwords."),
    "acl": Row("quintet.cli.manage.user:acl", "Access rules of topics and groups."),
    "role": Row("quintet.cli.manage.user:role", "Roles and their permissions."),
    "quota": Row(
        "quintet.cli.manage.quota:quota", "What users and tenants may have: rates, connections, topics, storage."
    ),
    "token": Row("quintet.cli.manage.token:token", "Tokens for Fast and Felix: create, inspect, generate keys."),
    "audit": Row("quintet.cli.folder.audit:audit", "Audit log: who did what."),
    "pipeline": Row("quintet.cli.pipeline:pipeline", "Data pipelines on Spark: run, watch, stop."),
    "spark": Row("quintet.cli.spark:spark", "SQL over topics, and notebooks with a running query."),
    "bench": Row("quintet.cli.bench:bench", "Measure throughput and latency of a broker."),
    "config": Row("quintet.cli.manage.config:config", "Write, check and explain the configuration."),
    "protocol": Row("quintet.cli.protocol:protocol", "Wire protocols: list operations, decode frames."),
    "log": Row("quintet.cli.folder.log:log", "Verify, read and repair a data folder."),
    "backup": Row("quintet.cli.folder.backup:backup", "Back up a data folder while its broker runs."),
    "restore": Row("quintet.cli.folder.backup:restore", "Restore a backup into a new data folder."),
    "profile": Row("quintet.cli.manage.profile:profile", "Name brokers, so that a URL and a password are typed once."),
    "completion": Row("quintet.cli.main:completion", "Print the completion script for a shell."),
}


EXTRAS: Final = {
    "serve": "server",
    "bench": "bench",
    "pipeline": "spark",
    "spark": "spark",
}  # named first to their users


# Commands that reach no broker by a URL: a profile means nothing to them, and a broken one does not stop them.
LOCAL: Final = frozenset({
    "serve", "health", "status", "top", "doctor", "cluster", "cell", "conn", "explain", "upgrade", "token", "audit", "config", "protocol", "log", "backup", "restore", "profile",
    "completion",
})  # fmt: skip


class LazyGroup(click.Group):
    """A group whose commands are rows of a table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{COMMANDS[cmd_name].target} is not a command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            near = [name for name in COMMANDS if args[0].startswith(name)]
            import difflib  # late: 1 ms, for who makes a mistake

            near = near or difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ImportError as error:
            name = ctx.invoked_subcommand or ""
            found = extras.missing(error, f"the command {name}" if name else "this command", EXTRAS.get(name, ""))
            if found is None:
                raise
            raise found from error

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        rows = [CompletionItem(name, help=row.help) for name, row in COMMANDS.items() if name.startswith(incomplete)]
        return rows + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])


def versions() -> dict[str, object]:
    """What a bug report needs."""
    from quintet import kernel

    return {
        "version": __version__,
        "python": platform.python_version(),
        "kernel": "native" if kernel.NATIVE else "pure",
        "platform": platform.platform(),
    }


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--profile", envvar="QUINTET_PROFILE", help="Use the broker of this profile (or QUINTET_PROFILE).")
@click.option("--version", is_flag=True, help="Print the version and which kernel is in use.")
@click.option("--json", "as_json", is_flag=True, help="With --version: as JSON.")
@click.pass_context
def cli(ctx: click.Context, profile: str | None, version: bool, as_json: bool) -> None:
    """One message broker, five wire protocols, one durable log.

    \b
    quintet serve --dev                         a broker on this machine, ready to try
    quintet sub orders --count 1                wait for one message
    quintet pub orders 'hello'                  send it
    quintet tail orders --from -10m             read without consuming
    quintet profile add prod --url URL          then: quintet --profile prod topic list
    quintet config init > quintet.toml          every option with its default
    quintet log verify /var/lib/quintet         check every byte of a data folder

    Exit codes: 0 done, 1 failed at run time, 2 wrong usage or configuration.
    """
    if version:
        facts = versions()
        click.echo(
            json.dumps(facts)
            if as_json
            else f"quintet {facts['version']} (Python {facts['python']}, kernel {facts['kernel']})"
        )
    elif ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    elif ctx.invoked_subcommand not in LOCAL:
        typed = ctx.get_parameter_source("profile") is ParameterSource.COMMANDLINE
        if typed or not os.environ.get("QUINTET_URL"):
            use_profile(ctx, profile, ctx.invoked_subcommand)


def use_profile(ctx: click.Context, name: str | None, command: str) -> None:
    """Take the broker of this profile, or of the one in use, where a command is given no --url: every command reads QUINTET_URL, and
    those of Spark QUINTET_FLIGHT_URL before it."""
    from quintet.cli.terminal import profiles

    if name is None and not profiles.file().exists():
        return
    found = profiles.load()
    name = name or found.used
    if not name:
        return
    url = found.url(name, command)
    variable = "QUINTET_FLIGHT_URL" if url.startswith("flight") else "QUINTET_URL"
    before = os.environ.get(variable)
    os.environ[variable] = url

    @ctx.call_on_close
    def _restore() -> None:
        if before is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = before


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    quintet completion bash > ~/.local/share/bash-completion/completions/quintet
    quintet completion zsh > "${fpath[1]}/_quintet"
    quintet completion fish > ~/.config/fish/completions/quintet.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    click.echo(kind(cli, {}, "quintet", "_QUINTET_COMPLETE").source())


def line_of(error: QuintetError) -> str:
    """What is said of it."""
    from quintet.cli.terminal.output import printable

    return printable(f"quintet: {error}")


def fail(error: QuintetError) -> NoReturn:
    """One line on stderr, and the exit code that belongs to the error."""
    click.echo(line_of(error), err=True)
    sys.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def main() -> NoReturn:
    """The console script."""
    try:
        cli.main(prog_name="quintet")
    except QuintetError as error:
        fail(error)
    raise AssertionError("click leaves by SystemExit")
