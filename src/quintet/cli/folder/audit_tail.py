"""`quintet audit tail`: shows what happened to messages, from a data folder, in the order of time. Read-only.

A record is its own row of being sent; who got it and who settled it are the rows of `__events` (broker/audit/delivery_events.py). Values
are not shown unless asked for. This runs on the broker's machine, beside the broker or after it, and asks it for nothing.
"""

import heapq
import json
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import json_option, say_json, shown, text_or_base64, when
from quintet.cli.terminal.output import echo
from quintet.model import limits
from quintet.model.errors import DataDirError, TopicNotFound

if TYPE_CHECKING:
    from quintet.log.embedded.files.disk import Disk
    from quintet.log.embedded.follow import Follower
    from quintet.model.batch import Row

TOPICS_TABLE: Final = 1  # docs/LOG_FORMAT.md section 1: JSON rows with id and name
EVENTS_TOPIC: Final = 15  # `__events`
LINES_DEFAULT: Final = 50
FOLLOW_EVERY_S: Final = 0.2
READ_BYTES_MAX: Final = 64 * limits.MIB  # of all partitions at a time: each has its next records in memory
READ_BYTES_MIN: Final = 16 * limits.KIB  # of one of them


class Happened(NamedTuple):
    """One line: when, in microseconds, and the fields of its JSON. Those of a record are made of its row."""

    time: int
    fields: dict[str, object]


class Tail:
    """A data folder being read."""

    def __init__(self, disk: "Disk", folder: str, topics: frozenset[str] = frozenset(), values: bool = False) -> None:
        self._disk = disk
        self._folder = folder
        self._topics = topics
        self._values = values
        self._names: dict[int, str] = {}
        self._followers: dict[tuple[int, int], Follower] = {}

    def check(self) -> None:
        """TopicNotFound if a topic that was asked for is not there, or was never on disk."""
        from quintet.log.embedded.recovery.directories import partitions

        self._rename(partitions(self._disk, self._folder))
        missing = self._topics - set(self._names.values())
        if missing:
            known = ", ".join(sorted(self._names.values())) or "none"
            raise TopicNotFound(f"{self._folder}: no topic {sorted(missing)[0]!r}; on disk are: {known}")

    def more(self) -> Iterator[Happened]:
        """What has come since the last call, oldest first."""
        from quintet.log.embedded.follow import Follower
        from quintet.log.embedded.recovery.directories import partitions

        found = []
        there = partitions(self._disk, self._folder)
        self._rename(there)
        share = max(READ_BYTES_MAX // max(len(there), 1), READ_BYTES_MIN)
        for topic, number, path in there:
            name = self._names.get(topic, f"#{topic}")
            if topic != EVENTS_TOPIC and (
                topic < limits.TOPIC_ID_FIRST_USER or (self._topics and name not in self._topics)
            ):
                continue
            follower = self._followers.setdefault((topic, number), Follower(self._disk, path, share))
            found.append(self._events(follower) if topic == EVENTS_TOPIC else self._sends(follower, name, number))
        return heapq.merge(*found, key=lambda each: each.time)

    def _rename(self, there: list[tuple[int, int, str]]) -> None:
        """Names of topics made meanwhile. Those of deleted ones stay known: their rows do, too."""
        from quintet.log.embedded.follow import Follower

        for topic, number, path in there:
            if topic == TOPICS_TABLE:
                follower = self._followers.setdefault((topic, number), Follower(self._disk, path))
                for batch in follower.more():
                    for row in batch.rows():
                        if row[3] is not None:
                            known = json.loads(row[3])
                            self._names[known["id"]] = known["name"]

    def _sends(self, follower: "Follower", topic: str, partition: int) -> Iterator[Happened]:
        for batch in follower.more():
            for row in batch.rows():
                yield Happened(batch.timestamp, _send(topic, partition, row, batch.timestamp, self._values))

    def _events(self, follower: "Follower") -> Iterator[Happened]:
        for batch in follower.more():
            for row in batch.rows():
                fields = json.loads(row[3] or b"{}")
                if not self._topics or fields.get("topic") in self._topics:
                    yield Happened(fields.get("time", row[1]), fields)


def _send(topic: str, partition: int, row: "Row", appended: int, values: bool) -> dict[str, object]:
    """As peers of peerbus know such rows: event, id, from, to; and where it is. The time is when it was appended, which rises
    with the offsets; the time that its sender gave it, if another, is `stamped`."""
    offset, timestamp, key, value, _, _, origin = row
    door, _, client = origin.partition(b":")
    fields: dict[str, object] = {"event": "send", **text_or_base64("id", key), **text_or_base64("from", client)}
    fields |= {"to": topic, "door": door.decode(errors="replace"), "topic": topic, "partition": partition}
    fields |= {"offset": offset, "size": len(value or b""), "time": appended}
    fields |= {"stamped": timestamp} if timestamp != appended else {}
    return fields | text_or_base64("value", value) if values else fields


def line(event: Happened) -> str:
    """For people. Keys, names and values are others' text: what cannot be printed is spelled out."""
    fields = event.fields
    place = f"{fields['topic']}/{fields['partition']}@"
    if fields["event"] == "send":
        origin = ":".join(filter(None, (str(fields["door"]), _text(fields, "from"))))
        words = [f"{place}{fields['offset']}", f"id={_text(fields, 'id')}", f"from={origin}", f"to={fields['to']}"]
        words += [f"{fields['size']} bytes"]
        words += [f"value={_text(fields, 'value')}"] if "value" in fields or "value_base64" in fields else []
    else:
        first, end = fields["first"], fields["last"]
        assert isinstance(end, int), "the broker wrote it"
        last = end - 1
        words = [f"{place}{first}" if first == last else f"{place}{first}-{last}"]
        words += [f"{'to' if fields['event'] == 'deliver' else 'by'}={fields['door']}:{fields['who']}"]
        words += [f"group={fields['group']}"] if "group" in fields else []
    return shown(f"{when(event.time // 1000)} {fields['event']:<7} {' '.join(words)}".encode(), 10_000)


def _text(fields: dict[str, object], name: str) -> str:
    if f"{name}_base64" in fields:
        return f"base64:{fields[f'{name}_base64']}"
    found = fields.get(name)
    return "-" if found is None else shown(str(found).encode())


@click.command()
@click.option("--data", "folder", type=click.Path(path_type=Path), required=True, help="The broker's data folder.")
@click.option("--topic", "topics", multiple=True, help="Only this topic; repeatable.")
@click.option("--since", type=common.Moment(), help="-1h, or a time as in 2026-11-15T12:00.")
@click.option("-n", "--count", type=click.IntRange(min=0), help=f"Print the last this many [{LINES_DEFAULT}]; 0: all.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing new events, until Ctrl-C.")
@click.option("--values", is_flag=True, help="Show the values of messages, too.")
@json_option
def tail(
    folder: Path,
    topics: tuple[str, ...],
    since: int | None,
    count: int | None,
    follow: bool,
    values: bool,
    as_json: bool,
) -> None:
    """Print messages sent, delivered and settled, in order of time.

    \b
    quintet audit tail --data /var/lib/quintet
    quintet audit tail --data /var/lib/quintet --topic orders --follow
    quintet audit tail --data /var/lib/quintet --since -1h -n 0 --json | jq 'select(.event == "ack")'

    It reads the files, also while the broker runs. Topics in memory have no files: of their messages only deliveries are shown.
    """
    from quintet.log.embedded.files.disk import OsDisk

    if not (folder / "topics").is_dir():
        raise DataDirError(f"{folder} is not a data folder of Quintet: there is no folder 'topics' in it")
    reader = Tail(OsDisk(), str(folder), frozenset(topics), values)
    reader.check()
    most = None if count == 0 or (count is None and since is not None) else count or LINES_DEFAULT
    past: Iterator[Happened] | deque[Happened] = (
        each for each in reader.more() if since is None or each.time >= since * 1000
    )
    for each in past if most is None else deque(past, most):
        _say(each, as_json)
    while follow:
        time.sleep(FOLLOW_EVERY_S)
        for each in reader.more():
            _say(each, as_json)


def _say(event: Happened, as_json: bool) -> None:
    if as_json:
        say_json(event.fields, line=True)
    else:
        echo(line(event))
