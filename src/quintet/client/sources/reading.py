"""Reads without a subscription: messages from an offset on, or all between two times.

Nothing is acknowledged and no progress is moved. The wire finds offsets by time only for groups, so a group with a
random name is made for the question and deleted with the answer.
"""

import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from secrets import token_hex
from typing import Final

from quintet.client.core.base import Channel, FetchConnection, Fetched, Fields
from quintet.client.core.errors import BadRequest, Unsupported
from quintet.client.core.message import LogPosition, Message, MessageBatch, Rows, unacknowledged

FETCH_MAX: Final = 5_000  # messages asked for at once
_SHIFT: Final = 48  # a tag is the partition above and the offset below this bit
_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Moment = str | datetime | timedelta


class Unsettled:
    """The settler of messages that need no acknowledgement."""

    async def settle(self, tags: Sequence[int], timeout: float | None) -> None:
        """Nothing is kept of who read what."""

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        """Nothing is delivered again."""

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        return "was only read"

    def release(self, rows: Rows) -> None:
        """It is where it was."""

    async def nack(self, rows: Rows, delay: float | None) -> None:
        raise Unsupported("a message that was only read is not delivered again", hint="subscribe to it")

    async def in_progress(self, tags: Sequence[int]) -> None:
        """Nothing is delivered again."""

    def position_of(self, tag: int) -> LogPosition | None:
        return LogPosition(tag >> _SHIFT, tag & ((1 << _SHIFT) - 1), 0)

    async def commit_in(self, transaction: str, tag: int) -> None:
        raise Unsupported("a message that was only read has no group to commit for", hint="subscribe with group=")

    def committed(self, tag: int) -> None:
        raise Unsupported("a message that was only read has no group to commit for", hint="subscribe with group=")


def batch_of(topic: str, found: Fetched) -> MessageBatch:
    return MessageBatch(Unsettled(), topic, [unacknowledged(row) for row in found.rows], next_offset=found.next_offset)


def milliseconds(moment: Moment) -> int:
    """A moment in milliseconds since 1970: a datetime (without a zone: local time), or how long ago."""
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    if isinstance(moment, str):
        match = _AGO.fullmatch(moment)
        if match is None:
            raise ValueError(f"{moment!r} is not a time span: write 500ms, 30s, 10m, 1h or 2d, or give a datetime")
        moment = timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
    return round((datetime.now(UTC) - moment).timestamp() * 1000)


async def replay(
    channel: Channel, topic: str, since: Moment | None, until: Moment | None, partition: int | None, filter: str
) -> AsyncIterator[Message]:
    """One partition after the other, each in its order, from `since` to `until` or to what is there at the start."""
    connection = await _connection(channel)
    found = await connection.request("METADATA", {"topic": topic})
    rows = [row for row in found["partitions"] if partition is None or row["id"] == partition]
    if not rows:
        raise BadRequest(f"{topic!r} has no partition {partition}")
    for row in rows:
        number, offset, end = row["id"], row["oldest"], row["newest"]
        if since is not None:
            offset = await _seek(connection, topic, number, milliseconds(since))
        if until is not None:
            end = await _seek(connection, topic, number, milliseconds(until))
        while offset < end:
            fields: Fields = {
                "topic": topic,
                "partition": number,
                "offset": offset,
                "max": min(end - offset, FETCH_MAX),
            }
            if filter:
                fields["filter"] = filter
            run = await (await _connection(channel)).fetch(fields)
            for msg in batch_of(topic, run):
                if (msg.offset or 0) < end:
                    yield msg
            if run.next_offset <= offset:
                break
            offset = run.next_offset


async def _seek(connection: FetchConnection, topic: str, partition: int, at_ms: int) -> int:
    where: Fields = {"topic": topic, "group": f"replay-{token_hex(8)}"}
    await connection.request("SUBSCRIBE", where | {"partition": partition, "mode": "earliest"})
    try:
        answer = await connection.request("SEEK_TO_TIMESTAMP", where | {"partition": partition, "timestamp_ms": at_ms})
    finally:
        await connection.request("DELETE_GROUP", where)
    return int(answer["offset"])


async def _connection(channel: Channel) -> FetchConnection:
    connection = await channel.connection()
    assert isinstance(connection, FetchConnection), "a door that cannot read by offset says so in `lacks`"
    return connection
