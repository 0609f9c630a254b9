"""`quintet schema`: registers, lists and checks JSON Schema, Avro and Protobuf schemas."""

import sys
from pathlib import Path
from typing import Final

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import json_option, manage, plain, say, say_json, say_table, url_option, yes_option
from quintet.cli.terminal.output import echo
from quintet.client.manage import Manage

TYPES: Final = ("json", "avro", "protobuf")
MODES: Final = ("backward", "forward", "full", "none")
SUFFIXES: Final = {".json": "json", ".avsc": "avro", ".proto": "protobuf"}

name_argument: Final = click.argument("name")


@click.group()
def schema() -> None:
    """Schemas: register, show, validate.

    \b
    quintet schema register orders order.schema.json
    quintet schema validate orders '{"total": 5}'
    quintet schema list
    quintet pub orders '{"total": 5}' --schema orders
    """


@schema.command()
@url_option
@name_argument
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--type",
    "kind",
    type=click.Choice(TYPES),
    help="Type of the schema, if the file does not end in .json, .avsc or .proto.",
)
@click.option(
    "--compat", type=click.Choice(MODES), help="How compatible a new version must be with the last one [backward]."
)
@json_option
def register(url: str, name: str, file: Path, kind: str | None, compat: str | None, as_json: bool) -> None:
    """Register a new version. FILE is .json (JSON Schema), .avsc or .proto, or - for stdin with --type.

    \b
    quintet schema register orders order.json
    quintet schema register clicks click.avsc --compat full
    curl -s https://example.org/schema | quintet schema register orders - --type json
    """
    chosen = kind or SUFFIXES.get(file.suffix)
    if chosen is None:
        raise click.UsageError(
            f"{file}: the name does not tell the type of the schema; add --type json, avro or protobuf."
        )
    definition = common.read_file(file)
    version = manage(url, lambda broker: broker.register_schema(name, chosen, definition, compat or ""))
    say(as_json, {"name": name, "type": chosen, "version": version}, f"{name}: version {version} ({chosen})")


@schema.command()
@url_option
@name_argument
@click.option("--version", type=click.IntRange(1), help="Version to print instead of the latest.")
@json_option
def get(url: str, name: str, version: int | None, as_json: bool) -> None:
    """Print the definition of a schema.

    \b
    quintet schema get orders
    quintet schema get orders --version 1 > order-v1.json
    """
    found = manage(url, lambda broker: broker.schema(name, version or 0))
    if as_json:
        say_json(plain(found))
        return
    echo(f"{found.id}: {found.type}, {found.compatibility} compatible", err=True)
    echo(found.definition.decode(errors="replace"))


@schema.command("list")
@url_option
@click.argument("name", required=False)
@json_option
def list_schemas(url: str, name: str | None, as_json: bool) -> None:
    """List all versions, of one name or of all.

    \b
    quintet schema list
    quintet schema list orders
    """
    found = manage(url, lambda broker: broker.schemas(name or ""))
    if as_json:
        say_json(plain(found))
        return
    rows = [(each.id, each.type, each.version) for each in found]
    what = f"no schema {name!r}" if name else "no schemas"
    say_table(("id", "type", ">version"), rows, f"{what}; `quintet schema register {name or 'NAME'} FILE` adds one")


@schema.command()
@url_option
@name_argument
@click.argument("messages", nargs=-1)
@click.option("--file", type=click.Path(path_type=Path), help="One message: all of this file (Avro, Protobuf).")
@json_option
def validate(url: str, name: str, messages: tuple[str, ...], file: Path | None, as_json: bool) -> None:
    """Validate MESSAGES: arguments, a --file, or the lines of stdin. Exit code 1 if one is not valid.

    \b
    quintet schema validate orders '{"total": 5}'
    quintet schema validate orders < messages.jsonl
    quintet schema validate clicks-v2 --file click.bin

    NAME is a schema (its latest version) or an id such as orders-v2.
    """
    if file is not None:
        values = [common.read_file(file)]
    elif messages:
        values = [message.encode(errors="surrogateescape") for message in messages]
    else:
        values = [line for line in common.read_file(Path("-")).splitlines() if line]

    async def work(broker: Manage) -> list[list[str]]:
        return [await broker.validate(name, value) for value in values]

    reasons = manage(url, work)
    if as_json:
        say_json([{"valid": not each, "errors": each} for each in reasons])
    else:
        for number, each in enumerate(reasons, 1):
            for reason in each:
                echo(f"message {number}: {reason}")
        bad = sum(map(bool, reasons))
        echo(f"{len(reasons) - bad} of {len(reasons)} fit {name}")
    if any(reasons):
        sys.exit(1)


@schema.command()
@url_option
@name_argument
@click.option("--version", type=click.IntRange(1), help="Version to delete; without it, all versions are deleted.")
@yes_option
@json_option
def delete(url: str, name: str, version: int | None, yes: bool, as_json: bool) -> None:
    """Delete a version, or all versions.

    \b
    quintet schema delete orders --version 1
    quintet schema delete orders --yes
    """
    what = f"version {version} of {name}" if version else f"all versions of {name}"
    common.confirm(f"Delete {what}?", yes)
    manage(url, lambda broker: broker.delete_schema(name, version or 0))
    say(as_json, {"name": name, "version": version, "deleted": True}, f"{what}: deleted")


@schema.command()
@url_option
@name_argument
@click.argument("mode", type=click.Choice(MODES), required=False)
@json_option
def compat(url: str, name: str, mode: str | None, as_json: bool) -> None:
    """Show or set how compatible a new version must be with the last one.

    \b
    quintet schema compat orders                 backward
    quintet schema compat orders full
    """

    async def work(broker: Manage) -> str:
        latest = await broker.schema(name)
        if mode is not None and mode != latest.compatibility:
            await broker.register_schema(name, latest.type, latest.definition, mode)
            latest = await broker.schema(name)
        return latest.compatibility

    found = manage(url, work)
    say(as_json, {"name": name, "compatibility": found}, f"{name}: {found}")
