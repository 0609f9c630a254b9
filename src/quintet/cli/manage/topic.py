"""`quintet topic`: creates, lists, describes, alters, purges and deletes topics."""

from dataclasses import asdict

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import (
    json_option,
    manage,
    plain,
    say,
    say_json,
    say_table,
    topic_argument,
    url_option,
    yes_option,
)
from quintet.client.core.errors import TopicNotFound
from quintet.client.manage import Manage, TopicInfo

PARTITIONS_MAX = 1_000
DURABILITIES = ("fsync", "interval", "os")


@click.group()
def topic() -> None:
    """Create, list, describe, alter, purge and delete topics.

    \b
    quintet topic list
    quintet topic create orders --partitions 8 --retention 7d
    quintet topic describe orders
    quintet topic alter orders --retention 30d
    quintet topic purge orders --yes
    quintet topic delete orders --yes
    """


@topic.command("list")
@url_option
@json_option
def list_topics(url: str, as_json: bool) -> None:
    """List the topics that you may read or write.

    \b
    quintet topic list
    quintet topic list --json | jq -r '.[].name'
    """
    found = manage(url, Manage.topic_infos)
    if as_json:
        say_json([_plain(each) for each in found])
        return
    rows = [(each.name, len(each.partitions), each.messages) for each in found]
    say_table(("topic", ">partitions", ">messages"), rows, "no topics; `quintet topic create NAME` makes one")


@topic.command()
@url_option
@topic_argument
@click.option(
    "--partitions",
    type=click.IntRange(1, PARTITIONS_MAX),
    help="Number of partitions; it cannot be changed later [as configured].",
)
@click.option("--durability", type=click.Choice(DURABILITIES), help="What an acknowledgement promises [as configured].")
@click.option("--retention", type=common.Duration(), help="Keep messages this long, such as 7d [as configured].")
@click.option(
    "--retention-bytes", type=common.Size(), help="Keep this much per partition, such as 10GiB [as configured]."
)
@json_option
def create(
    url: str,
    topic: str,
    partitions: int | None,
    durability: str | None,
    retention: int | None,
    retention_bytes: int | None,
    as_json: bool,
) -> None:
    """Create a topic. It is not an error if it exists with the same number of partitions.

    \b
    quintet topic create orders
    quintet topic create clicks --partitions 16 --durability interval --retention 7d --retention-bytes 10GiB
    """

    async def make(broker: Manage) -> tuple[bool, int]:
        new = await broker.create_topic(
            topic,
            partitions or 0,
            durability=durability or "",
            retention_ms=retention or 0,
            retention_bytes=retention_bytes or 0,
        )
        return new, len((await broker.topic(topic)).partitions)

    new, count = manage(url, make)
    what = f"{count} partition{'' if count == 1 else 's'}"
    text = f"{topic}: created with {what}" if new else f"{topic}: was there already, with {what}, and is as it was"
    say(as_json, {"topic": topic, "created": new, "partitions": count}, text)


@topic.command()
@url_option
@topic_argument
@json_option
def describe(url: str, topic: str, as_json: bool) -> None:
    """Show a topic's partitions with their first and next offsets.

    \b
    quintet topic describe orders
    quintet topic alter orders                without options: how long it keeps messages, and what it promises
    """
    found = manage(url, lambda broker: broker.topic(topic))
    if as_json:
        say_json(_plain(found))
        return
    rows = [(each.id, each.oldest, each.newest, each.newest - each.oldest) for each in found.partitions]
    title = f"{found.name}: {found.messages:,} messages in {len(rows)} partition{'' if len(rows) == 1 else 's'}"
    say_table((">partition", ">first offset", ">next offset", ">messages"), rows, "", title)


@topic.command()
@url_option
@topic_argument
@click.option("--durability", type=click.Choice(DURABILITIES), help="What an acknowledgement promises from now on.")
@click.option("--retention", type=common.Duration(), help="Keep messages this long, such as 7d; 0: for ever.")
@click.option("--retention-bytes", type=common.Size(), help="Keep this much per partition, such as 10GiB; 0: no limit.")
@json_option
def alter(
    url: str, topic: str, durability: str | None, retention: int | None, retention_bytes: int | None, as_json: bool
) -> None:
    """Change what a topic promises and how long it keeps messages. What is not given stays as it is.

    \b
    quintet topic alter orders --retention 30d
    quintet topic alter clicks --durability interval --retention-bytes 0
    quintet topic alter orders                shows what it has
    """
    found = manage(
        url,
        lambda broker: broker.alter_topic(
            topic, durability=durability or "", retention_ms=retention, retention_bytes=retention_bytes
        ),
    )
    kept = common.lasting(found.retention_ms / 1000) if found.retention_ms else "for ever"
    size = f"{found.retention_bytes:,} bytes a partition" if found.retention_bytes else "without a limit of bytes"
    say(as_json, asdict(found), f"{topic}: durability {found.durability}, kept {kept}, {size}")


@topic.command()
@url_option
@topic_argument
@yes_option
@json_option
def purge(url: str, topic: str, yes: bool, as_json: bool) -> None:
    """Remove all messages of a topic. Its offsets go on, and so do groups and subscriptions.

    \b
    quintet topic purge orders
    quintet topic purge orders --yes          for scripts
    """
    common.confirm(f"Remove all messages of {topic}?", yes)
    manage(url, lambda broker: broker.purge_topic(topic))
    say(as_json, {"topic": topic, "purged": True}, f"{topic}: purged")


@topic.command()
@url_option
@topic_argument
@yes_option
@json_option
def delete(url: str, topic: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with its messages and the offsets of its groups.

    \b
    quintet topic delete orders
    quintet topic delete orders --yes         for scripts
    """
    common.confirm(f"Delete {topic} and everything in it?", yes)
    was = manage(url, lambda broker: broker.delete_topic(topic))
    if not was:
        raise TopicNotFound(f"there is no topic {topic!r}", hint="`quintet topic list` shows them")
    say(as_json, {"topic": topic, "deleted": True}, f"{topic}: deleted")


def _plain(info: TopicInfo) -> dict[str, object]:
    return {"name": info.name, "messages": info.messages, "partitions": plain(info.partitions)}
