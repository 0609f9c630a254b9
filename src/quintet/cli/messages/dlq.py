"""`quintet dlq`: lists, replays, purges and adds dead letters.

A replay publishes a letter to its topic again and resolves it, both or none, in the broker. Here is only which ones, how
fast, and with which value.
"""

import asyncio
import sys
from collections import deque
from typing import Final, Required, TypedDict

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import (
    json_option,
    manage,
    plain,
    say,
    say_json,
    say_table,
    shown,
    topic_argument,
    url_option,
    when,
    yes_option,
)
from quintet.cli.terminal.output import echo
from quintet.client.manage import DeadLetter, Manage
from quintet.model.errors import LimitExceeded, OffsetNotFound, QuintetError

LIST_DEFAULT: Final = 50
VALUE_CHARS_MAX: Final = 4_000  # of one that is not plain text
REPLAYED_AT_ONCE_MAX: Final = 500  # letters of one request; the broker takes 1,000


@click.group()
def dlq() -> None:
    """Dead letters: browse, replay, purge.

    \b
    quintet dlq list                             which topics have some
    quintet dlq list orders                      with cause and attempts
    quintet dlq show orders 0-17
    quintet dlq replay orders 0-17 --edit        edit it and publish it again
    quintet dlq replay orders --all --rate 10 --dry-run
    """


@dlq.command("list")
@url_option
@click.argument("topic", required=False, shell_complete=common.complete_topic)
@click.option(
    "-n", "--count", type=click.IntRange(1), default=LIST_DEFAULT, show_default=True, help="At most this many."
)
@json_option
def list_letters(url: str, topic: str | None, count: int, as_json: bool) -> None:
    """List the dead letters of a topic, oldest first; without TOPIC, the topics that have some.

    \b
    quintet dlq list
    quintet dlq list orders
    quintet dlq list orders --json | jq -r '.[].error' | sort | uniq -c
    """
    if topic is None:
        return _overview(url, as_json)

    async def work(broker: Manage) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async for letter in broker.all_dead_letters(topic):
            found.append(letter)
            if len(found) == count:
                break
        return found

    letters = manage(url, work)
    if as_json:
        return say_json(plain(letters))
    rows = [
        (each.id, when(each.died_ms), each.cause, each.attempts, shown(each.error.encode(), 50), shown(each.key, 20),
         shown(each.value, 40))
        for each in letters
    ]  # fmt: skip
    return say_table(
        ("id", "died", "cause", ">attempts", "error", "key", "value"), rows, f"{topic} has no dead letters"
    )


def _overview(url: str, as_json: bool) -> None:
    found = manage(url, lambda broker: broker.dead_letter_counts())
    if as_json:
        say_json([{"topic": topic, "dead_letters": count} for topic, count in found.items()])
    else:
        say_table(("topic", ">dead letters"), list(found.items()), "no topic has dead letters")


@dlq.command()
@url_option
@topic_argument
@click.argument("id")
@json_option
def show(url: str, topic: str, id: str, as_json: bool) -> None:
    """Show everything that is known about one dead letter.

    \b
    quintet dlq show orders 0-17
    """
    letter = manage(url, lambda broker: _get(broker, topic, id))
    if as_json:
        say_json(plain(letter))
        return
    was = f"partition {letter.partition}, offset {letter.offset}" if letter.partition >= 0 else "never in its topic"
    rows = (
        ("id", letter.id),
        ("was", was),
        ("died", when(letter.died_ms)),
        ("cause", letter.cause),
        ("error", letter.error),
        ("attempts", letter.attempts),
        ("key", shown(letter.key) or "-"),
    )
    for name, value in rows:
        echo(f"{name:9} {value if isinstance(value, int) else shown(value.encode(), VALUE_CHARS_MAX)}")
    echo(f"value     {len(letter.value):,} byte{'' if len(letter.value) == 1 else 's'}")
    text = letter.value.decode() if _is_text(letter.value) else ""
    plain_text = bool(text) and all(line.isprintable() for line in text.replace("\t", " ").split("\n"))
    echo(text if plain_text else shown(letter.value, VALUE_CHARS_MAX))


@dlq.command()
@url_option
@topic_argument
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All dead letters of the topic, oldest first.")
@click.option("--rate", type=click.FloatRange(min=0.001), help="At most this many per second.")
@click.option("--dry-run", is_flag=True, help="List them without replaying.")
@click.option("--edit", is_flag=True, help="Change each value in $EDITOR first.")
@click.option("--value", help="Publish this value instead (for one ID only).")
@json_option
def replay(
    url: str,
    topic: str,
    ids: tuple[str, ...],
    everything: bool,
    rate: float | None,
    dry_run: bool,
    edit: bool,
    value: str | None,
    as_json: bool,
) -> None:
    """Publish dead letters to their topic again, each exactly once.

    \b
    quintet dlq replay orders 0-17 0-18
    quintet dlq replay orders 0-17 --edit                    edit it in $EDITOR
    quintet dlq replay orders 0-17 --value '{"total": 5}'
    quintet dlq replay orders --all --rate 10                at most 10 per second
    quintet dlq replay orders --all --dry-run

    Dead letters that cannot be replayed are reported and skipped; the exit code is then 1.
    """
    if everything == bool(ids):
        raise click.UsageError("Give the IDs to replay, or --all.")
    if value is not None and (len(ids) != 1 or edit):
        raise click.UsageError("--value needs exactly one ID, and cannot be combined with --edit.")
    outcome = manage(url, lambda broker: _replay(broker, topic, ids, rate, dry_run, edit, common.typed(value)))
    failed = [row for row in outcome if "error" in row]
    if as_json:
        say_json({"topic": topic, "dry_run": dry_run, "letters": outcome})
    else:
        for row in failed:
            echo(f"quintet: {row['id']}: {row['error']}", err=True)
        for row in outcome:
            if row.get("skipped") == "unchanged":
                echo(f"{row['id']}: not changed in the editor, so it stays (without --edit it goes as it is)", err=True)
        done = sum(row["replayed"] or (dry_run and "error" not in row) for row in outcome)
        word = "would be replayed" if dry_run else "replayed"
        if dry_run:
            for row in outcome:
                echo(f"{row['id']}  {row['value']}")
        echo(f"{done} of {len(outcome)} dead letters of {topic} {word}")
    if failed:
        sys.exit(1)


class Replayed(TypedDict, total=False):
    """What became of one dead letter."""

    id: Required[str]
    replayed: Required[bool]
    value: str
    skipped: str
    error: str


async def _replay(
    broker: Manage,
    topic: str,
    ids: tuple[str, ...],
    rate: float | None,
    dry_run: bool,
    edit: bool,
    value: bytes | None,
) -> list[Replayed]:
    if not ids and not dry_run and not edit:
        return await _replay_all(broker, topic, rate)
    outcome: list[Replayed] = []
    loop = asyncio.get_running_loop()
    due = loop.time()
    for id in ids or [letter.id async for letter in broker.all_dead_letters(topic)]:
        row: Replayed = {"id": id, "replayed": False}
        outcome.append(row)
        try:
            letter = await _get(broker, topic, id)
            fresh = _edited(letter) if edit else value
            row["value"] = shown(letter.value if fresh is None else fresh)
            if dry_run or (edit and fresh is None):
                row["skipped"] = "dry run" if dry_run else "unchanged"
                continue
            if rate is not None:
                await asyncio.sleep(due - loop.time())
                due = max(due, loop.time() - 1) + 1 / rate
            await broker.replay(topic, id, fresh)
            row["replayed"] = True
        except QuintetError as refused:
            row["error"] = str(refused)
    return outcome


async def _replay_all(broker: Manage, topic: str, rate: float | None) -> list[Replayed]:
    """All that are there now, many in one request."""
    outcome: list[Replayed] = [
        {"id": letter.id, "replayed": False, "value": shown(letter.value)}
        async for letter in broker.all_dead_letters(topic)
    ]
    most = REPLAYED_AT_ONCE_MAX if rate is None else max(1, min(int(rate), REPLAYED_AT_ONCE_MAX))
    waiting = deque(outcome[at : at + most] for at in range(0, len(outcome), most))
    while waiting:
        rows = waiting.popleft()
        try:
            missing = set(await broker.replay_many(topic, [row["id"] for row in rows]))
        except QuintetError as refused:
            if isinstance(refused, LimitExceeded) and len(rows) > 1:  # too many bytes for one request
                waiting.extendleft((rows[len(rows) // 2 :], rows[: len(rows) // 2]))
                continue
            for row in rows:
                row["error"] = str(refused)
            continue
        for row in rows:
            row["replayed"] = row["id"] not in missing
            if row["id"] in missing:
                row["error"] = f"{topic} has no dead letter {row['id']} any more"
        if rate is not None and waiting:
            await asyncio.sleep(len(rows) / rate)
    return outcome


async def _get(broker: Manage, topic: str, id: str) -> DeadLetter:
    """By asking for the one behind the id before it."""
    partition, _, offset = id.partition("-")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise click.UsageError(
            f"{id!r} is not the id of a dead letter: ids look like 0-17 (`quintet dlq list TOPIC` shows them)."
        )
    before = f"{int(partition)}-{int(offset) - 1}" if int(offset) else ""
    page = await broker.dead_letters(topic, max=1, after=before)
    if not int(offset) and int(partition):
        page = [each async for each in broker.all_dead_letters(topic) if each.id == id]
    if not page or page[0].id != id:
        raise OffsetNotFound(
            f"{topic} has no dead letter {id}: unknown, replayed or purged", hint=f"see `quintet dlq list {topic}`"
        )
    return page[0]


def _edited(letter: DeadLetter) -> bytes | None:
    """The value as it comes out of $EDITOR; None if it is as it was."""
    if not _is_text(letter.value):
        raise OffsetNotFound(f"the value of {letter.id} is not text and cannot be edited", hint="use --value")
    before = letter.value.decode()
    after = click.edit(before, extension=".json" if before[:1] in "{[" else ".txt")
    if after is not None and not before.endswith("\n"):
        after = after.removesuffix("\n")
    return None if after is None or after == before else after.encode()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@dlq.command()
@url_option
@topic_argument
@yes_option
@json_option
def purge(url: str, topic: str, yes: bool, as_json: bool) -> None:
    """Resolve all dead letters of a topic without replaying them; they are no longer listed.

    \b
    quintet dlq purge orders
    """
    common.confirm(f"Forget all dead letters of {topic}?", yes)
    told = manage(url, lambda broker: broker.purge(topic))
    say(as_json, {"topic": topic, "message": told}, f"{topic}: {told}")


@dlq.command()
@url_option
@topic_argument
@click.argument("partition", type=click.IntRange(0, common.I32_MAX))
@click.argument("offset", type=click.IntRange(0, common.I64_MAX))
@click.option("--error", "reason", default="put aside by hand", show_default=True, help="Why it cannot be processed.")
@json_option
def send(url: str, topic: str, partition: int, offset: int, reason: str, as_json: bool) -> None:
    """Add a message of a topic to its dead letters.

    \b
    quintet dlq send orders 0 4711 --error 'the customer does not exist'
    """
    new = manage(url, lambda broker: broker.dead_letter(topic, partition, offset, reason))
    text = f"{topic} {partition}@{offset}: {'is a dead letter now' if new else 'was a dead letter already'}"
    say(as_json, {"topic": topic, "partition": partition, "offset": offset, "new": new}, text)
