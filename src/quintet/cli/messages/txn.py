"""`quintet txn`: publishes messages of several topics, and commits offsets, all together or not at all.

`run` reads and checks its whole input before it begins, and rolls back whatever goes wrong. The other commands are the steps,
for scripts; the broker rolls back what is left open.
"""

import asyncio
import base64
import binascii
import contextlib
import json
from pathlib import Path
from typing import Final, NamedTuple

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import json_option, manage, say, topic_argument, url_option
from quintet.client.core.errors import ConnectionLost, Timeout
from quintet.client.core.publishing import ANY
from quintet.client.manage import Manage
from quintet.model.errors import BadRequest, QuintetError
from quintet.model.json_value import Json, JsonObject

AT_ONCE: Final = 500  # messages on their way to the broker
FIELDS: Final = frozenset({"topic", "value", "value_base64", "key", "key_base64", "partition"})
OFFSET_FIELDS: Final = frozenset({"topic", "group", "partition", "offset"})

txn_argument: Final = click.argument("txn_id")


@click.group()
def txn() -> None:
    """Transactions: all messages become visible, or none.

    \b
    quintet txn run transfer.jsonl
    id=$(quintet txn begin); quintet txn produce $id orders 'hello'; quintet txn commit $id
    """


@txn.command()
@url_option
@click.option(
    "--name",
    default="",
    help="Name of the producer: a transaction that an earlier one of this name left open is fenced.",
)
@click.option("--timeout", type=common.Duration(), help="Time after which it is rolled back [60s].")
@json_option
def begin(url: str, name: str, timeout: int | None, as_json: bool) -> None:
    """Begin a transaction and print its id. Only you can use it, within 60 s or --timeout.

    \b
    id=$(quintet txn begin --timeout 5m)
    """
    found = manage(url, lambda broker: broker.txn_begin(name, timeout or 0))
    say(as_json, {"txn_id": found}, found)


@txn.command()
@url_option
@txn_argument
@topic_argument
@click.argument("value")
@click.option("--key", help="Key of the message; messages of one key go to one partition.")
@click.option(
    "--partition",
    type=click.IntRange(0, common.I32_MAX),
    help="Partition to publish to, instead of the one that the key chooses.",
)
@json_option
def produce(
    url: str, txn_id: str, topic: str, value: str, key: str | None, partition: int | None, as_json: bool
) -> None:
    """Add a message; it becomes visible when the transaction commits.

    \b
    quintet txn produce $id orders 'hello' --key customer-7
    """
    found = manage(
        url,
        lambda broker: broker.txn_produce(
            txn_id, topic, common.typed(value) or b"", key=common.typed(key) or b"", partition=_any(partition)
        ),
    )
    text = f"1 message to {topic}, partition {found.partition}: waits for the commit"
    say(as_json, {"txn_id": txn_id, "topic": topic, "partition": found.partition}, text)


def _any(partition: int | None) -> int:
    return ANY if partition is None else partition


@txn.command()
@url_option
@txn_argument
@json_option
def commit(url: str, txn_id: str, as_json: bool) -> None:
    """Make all messages visible and durable at once. It is safe to repeat.

    \b
    quintet txn commit $id
    """
    manage(url, lambda broker: broker.txn_commit(txn_id))
    say(as_json, {"txn_id": txn_id, "committed": True}, f"{txn_id}: committed")


@txn.command()
@url_option
@txn_argument
@json_option
def rollback(url: str, txn_id: str, as_json: bool) -> None:
    """Discard a transaction with its messages.

    \b
    quintet txn rollback $id
    """
    manage(url, lambda broker: broker.txn_rollback(txn_id))
    say(as_json, {"txn_id": txn_id, "committed": False}, f"{txn_id}: rolled back")


# -- a whole file -----------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One message of a file."""

    topic: str
    value: bytes
    key: bytes
    partition: int

    async def send(self, broker: Manage, txn_id: str) -> None:
        await broker.txn_produce(txn_id, self.topic, self.value, key=self.key, partition=self.partition)


class Offset(NamedTuple):
    """A group's offset, stored with the messages."""

    topic: str
    group: str
    partition: int
    offset: int

    async def send(self, broker: Manage, txn_id: str) -> None:
        await broker.txn_offset(txn_id, *self)


@txn.command("run")
@url_option
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--name",
    default="",
    help="Name of the producer: a transaction that an earlier one of this name left open is fenced.",
)
@json_option
def run_file(url: str, file: Path, name: str, as_json: bool) -> None:
    """Publish the JSON lines of FILE (- is stdin), all or none.

    \b
    quintet txn run transfer.jsonl
    printf '{"topic":"a","value":"1"}\\n{"topic":"b","value":{"n":2},"key":"k"}\\n' | quintet txn run -

    A line has `topic` and `value` (text, or anything as JSON; or `value_base64`), and may have `key` and `partition`. A line
    with `topic`, `group`, `partition` and `offset` commits that offset with the messages.
    """
    lines = parse(common.read_file(file), str(file))

    async def work(broker: Manage) -> str:
        id = await broker.txn_begin(name)
        try:
            for start in range(0, len(lines), AT_ONCE):
                await asyncio.gather(*(line.send(broker, id) for line in lines[start : start + AT_ONCE]))
        except QuintetError as error:
            with contextlib.suppress(QuintetError):
                await broker.txn_rollback(id)
            error.hint = "nothing was published"
            raise
        try:
            await broker.txn_commit(id)
        except (ConnectionLost, Timeout) as error:
            error.hint = f"it may be committed or not: `quintet txn commit {id}` commits it, or says that it is"
            raise
        return id

    id = manage(url, work)
    messages = [line for line in lines if isinstance(line, Line)]
    topics, offsets = sorted({line.topic for line in messages}), len(lines) - len(messages)
    text = f"{len(messages)} message{'' if len(messages) == 1 else 's'} to {', '.join(topics) or 'no topic'}"
    text += f" and {offsets} offset{'' if offsets == 1 else 's'}" if offsets else ""
    found = {"txn_id": id, "committed": True, "messages": len(messages), "offsets": offsets, "topics": topics}
    say(as_json, found, f"{text}: committed together")


def parse(text: bytes, where: str) -> "list[Line | Offset]":
    """The lines of a file, or BadRequest that names the first wrong one."""
    found: list[Line | Offset] = []
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip():
            continue
        try:
            found.append(_line(json.loads(raw)))
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise BadRequest(f"{where}, line {number}: {why}", hint="nothing was published") from None
    if not found:
        raise BadRequest(f"{where} has no messages", hint="nothing was published")
    return found


def _line(row: Json) -> Line | Offset:
    if not isinstance(row, dict):
        raise TypeError("a line is a JSON object with topic and value")
    known = OFFSET_FIELDS if "group" in row else FIELDS
    unknown = sorted(row.keys() - known)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known: {', '.join(sorted(known))}")
    partition = row.get("partition", ANY)
    if not isinstance(row["topic"], str) or type(partition) is not int or not ANY <= partition <= common.I32_MAX:
        raise ValueError("topic is text, and partition a number from 0 on")
    if "group" in row:
        group, offset = row["group"], row["offset"]
        if not isinstance(group, str) or type(offset) is not int or not 0 <= offset <= common.I64_MAX or partition < 0:
            raise ValueError("group is text, partition and offset are numbers from 0 on")
        return Offset(row["topic"], group, partition, offset)
    key = _bytes(row, "key") if "key" in row or "key_base64" in row else b""
    return Line(row["topic"], _bytes(row, "value"), key, partition)


def _bytes(row: JsonObject, name: str) -> bytes:
    if f"{name}_base64" in row:
        encoded = row[f"{name}_base64"]
        if not isinstance(encoded, str):
            raise TypeError(f"{name}_base64 is text in base64")
        return base64.b64decode(encoded, validate=True)
    value = row[name]
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
