"""Answers questions about messages: pages of them, one of them, those that come now; and publishes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Final

import msgspec

from quintet import kernel
from quintet.broker.slices import Steps
from quintet.broker.topics import reads
from quintet.broker.topics.catalog import ANY, Topic
from quintet.console import wire
from quintet.console.call import DOOR, Call, Operation
from quintet.console.pages.decoding import decoded
from quintet.log.base import Partition
from quintet.model import limits
from quintet.model.batch import RecordBatch, Row, placed
from quintet.model.errors import BadRequest, OffsetNotFound, TooLarge
from quintet.model.tasks import Promise

ALL: Final = -1
PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200
PAGE_BYTES: Final = 2 << 20  # read of one partition for a page
KEY_SHOWN: Final = 200
VALUE_SHOWN: Final = 300
HEADERS_SHOWN: Final = 50
TAIL_S: Final = 0.5
TAIL_RECORDS_MAX: Final = 50  # of one step: the newest ones; the others are counted
TAIL_BYTES: Final = 128 << 10
HEADERS_MAX: Final = 100
DOWNLOAD_BYTES_MAX: Final = limits.MIB * 64


Since = tuple[int, int, list[dict[str, object]]]  # the offset behind, how many were passed over, rows


class Page(msgspec.Struct, forbid_unknown_fields=True):
    """Some messages: the last ones, those from an offset on, from a time on, or those with a key. `partition` -1: of all."""

    topic: str
    partition: int = ALL
    offset: int | None = None
    time_ms: int | None = None
    limit: int = PAGE_DEFAULT


class MessagePlace(msgspec.Struct, forbid_unknown_fields=True):
    """One message."""

    topic: str
    partition: int
    offset: int


class Tail(msgspec.Struct, forbid_unknown_fields=True):
    """What comes from now on."""

    topic: str
    partition: int = ALL


class HeaderField(msgspec.Struct, forbid_unknown_fields=True):
    """One header of a message to be published."""

    name: str
    value: str | None = None
    base64: str | None = None


class Publish(msgspec.Struct, forbid_unknown_fields=True):
    """A message: text, or base64 of any bytes. Partition -1: by the key, or the next one in turn."""

    topic: str
    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: list[HeaderField] = []
    partition: int = ANY


def partitions_of(topic: Topic, number: int) -> list[Partition]:
    return list(topic.partitions) if number == ALL else [topic.partition(number)]


def check_limit(limit: int) -> None:
    if not 1 <= limit <= PAGE_MAX:
        raise BadRequest(f"limit is {limit}; it is 1 to {PAGE_MAX}")


# -- reading ----------------------------------------------------------------------------------------------------------


def rows_of(batches: list[RecordBatch], first: int, last: int, now: int) -> Iterator[Row]:
    """Records with offsets first to last - 1 that have not expired, large values as views."""
    for batch in batches:
        for index in range(batch.index_of(first), batch.count):
            row = batch.row(index)
            if row[0] >= last:
                return
            if not (row[5] and row[5] <= now):
                yield row


def brief(partition: int, row: Row) -> dict[str, object]:
    """One line of a list."""
    offset, time, key, value, headers, expiry, origin = row
    return {
        "partition": partition,
        "offset": offset,
        "time_us": time,
        "key": wire.shown(key, KEY_SHOWN),
        "value": wire.shown(value, VALUE_SHOWN),
        "headers": [(_text(name), wire.shown(text, KEY_SHOWN)) for name, text in headers[:HEADERS_SHOWN]],
        "expiry_us": expiry,
        "origin": _text(origin),
    }


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


async def _page(call: Call, ask: Page) -> object:
    check_limit(ask.limit)
    topic = call.topic(ask.topic)
    chosen = partitions_of(topic, ask.partition)
    found: list[dict[str, object]] = []
    ranges = []
    for partition in chosen:
        if ask.offset is None and ask.time_ms is None:
            first, batches = await _last_ones(call, partition, ask.limit)
        else:
            if ask.offset is not None:
                first = min(max(ask.offset, partition.start), partition.visible)
            else:
                first = await call.run(reads.offset_for_time(partition, (ask.time_ms or 0) * 1000))
            batches = await call.run(reads.fetch(partition, first, ask.limit, PAGE_BYTES))
        rows = await call.sliced(_take(batches, first, ask.limit, call.broker.scheduler.now()))
        found += [brief(partition.number, row) for row in rows]
        ranges.append({"partition": partition.number, "start": partition.start, "end": partition.visible, "first": first,
                       "next": rows[-1][0] + 1 if rows else first})  # fmt: skip
    newest = ask.offset is None and ask.time_ms is None
    found.sort(key=lambda row: (row["time_us"], row["offset"]), reverse=newest)
    found = found[: ask.limit]
    told(call, topic, found)
    return {"rows": found, "ranges": ranges, "newest": newest}


async def _last_ones(call: Call, partition: Partition, limit: int) -> tuple[int, list[RecordBatch]]:
    """The last `limit` records, and the offset of the first; fewer, if they do not fit into PAGE_BYTES: read forwards, large values
    would fill the page with the oldest of them, and the newest would be missing."""
    while True:
        end = partition.visible
        first = max(partition.start, end - limit)
        batches = await call.run(reads.fetch(partition, first, limit, PAGE_BYTES))
        if limit == 1 or not batches or batches[-1].next_offset >= end:
            return first, batches
        limit //= 2


def _take(batches: list[RecordBatch], first: int, limit: int, now: int) -> Steps[list[Row]]:
    found: list[Row] = []
    for row in rows_of(batches, first, 1 << 63, now):
        found.append(row)
        if len(found) >= limit:
            break
        yield
    return found


def told(call: Call, topic: Topic, rows: list[dict[str, object]]) -> None:
    """For the audit: who was shown which records."""
    by_partition: dict[int, list[int]] = {}
    for row in rows:
        by_partition.setdefault(int(str(row["partition"])), []).append(int(str(row["offset"])))
    for partition, offsets in by_partition.items():
        for first, last in reads.ranges(sorted(offsets)):
            call.broker.events.delivered(DOOR, call.owner, topic.name, partition, first, last)


async def read(call: Call, ask: MessagePlace) -> tuple[Topic, Row]:
    """The record, or OffsetNotFound. Whoever shows it tells the audit (`told_one`)."""
    topic = call.topic(ask.topic)
    partition = topic.partition(ask.partition)
    row = await call.run(reads.read_row(partition, ask.offset, view=True))
    if row is None or (row[5] and row[5] <= call.broker.scheduler.now()):
        raise OffsetNotFound(
            f"topic {topic.name!r} has no record {ask.partition}-{ask.offset}",
            hint=f"partition {ask.partition} keeps {partition.start} to {partition.visible - 1}",
        )
    return topic, row


def told_one(call: Call, topic: Topic, ask: MessagePlace) -> None:
    call.broker.events.delivered(DOOR, call.owner, topic.name, ask.partition, ask.offset, ask.offset + 1)


async def _one(call: Call, ask: MessagePlace) -> object:
    topic, row = await read(call, ask)
    told_one(call, topic, ask)
    whole = brief(ask.partition, row)
    whole["key"] = wire.shown(row[2])
    whole["value"] = wire.shown(row[3])
    whole["headers"] = [(_text(name), wire.shown(text, 4096)) for name, text in row[4]]
    whole["decoded"] = await decoded(call, topic.name, row[3])
    partition = topic.partition(ask.partition)
    return whole | {"start": partition.start, "end": partition.visible}


async def _download(call: Call, ask: MessagePlace) -> object:
    topic, row = await read(call, ask)
    told_one(call, topic, ask)
    value = bytes(row[3] or b"")
    if len(value) > DOWNLOAD_BYTES_MAX:
        raise TooLarge(f"the value has {len(value)} bytes; a download has at most {DOWNLOAD_BYTES_MAX}")
    return wire.Download(f"{topic.name}-{ask.partition}-{ask.offset}.bin", value)


async def _since(call: Call, topic: Topic, partition: Partition, end: int) -> Since:
    """What came to a partition since this offset, as rows: made once for all who tail it and are as far."""
    kept: dict[tuple[int, int, int], tuple[float, asyncio.Future[Since]]] = call.console.kept.setdefault("tails", {})
    seconds, place = asyncio.get_running_loop().time(), (topic.spec.id, partition.number, end)
    found = kept.get(place)
    if found is None or seconds - found[0] > TAIL_S / 2:
        for old in [known for known, (made, _) in kept.items() if seconds - made > TAIL_S]:
            del kept[old]
        found = kept[place] = (seconds, asyncio.ensure_future(_make_since(call, partition, end)))
    return await asyncio.shield(found[1])


async def _make_since(call: Call, partition: Partition, end: int) -> Since:
    visible = partition.visible
    first = max(end, visible - TAIL_RECORDS_MAX, partition.start)
    batches = await call.run(reads.fetch(partition, first, TAIL_RECORDS_MAX, TAIL_BYTES))
    rows = [brief(partition.number, row) for row in rows_of(batches, first, visible, call.broker.scheduler.now())]
    read = batches[-1].next_offset if batches else first
    return visible, first - end + max(visible - read, 0), rows


async def _tail(call: Call, ask: Tail) -> AsyncIterator[tuple[str, object]]:
    """Every TAIL_S seconds the newest of what came since; what a browser could not show is counted instead."""
    topic = call.topic(ask.topic)
    chosen = partitions_of(topic, ask.partition)
    ends = [partition.visible for partition in chosen]
    clock = asyncio.get_running_loop().time
    yield "from", {"ends": ends}
    while topic.gone is None:
        await asyncio.sleep(TAIL_S - clock() % TAIL_S)  # all at the same moments: the rows of one serve the others
        call.principal = call.console.sessions.check(call.session)
        call.broker.access.require(call.principal, "subscribe", topic.name, call.peer)
        rows: list[dict[str, object]] = []
        skipped = 0
        for number, partition in enumerate(chosen):
            if partition.visible <= ends[number]:
                continue
            ends[number], passed, fresh = await _since(call, topic, partition, ends[number])
            skipped += passed
            rows += fresh
        if rows or skipped:
            rows.sort(key=lambda row: (row["time_us"], row["offset"]))
            rows, older = rows[-TAIL_RECORDS_MAX:], max(len(rows) - TAIL_RECORDS_MAX, 0)
            told(call, topic, rows)
            yield "rows", {"rows": rows, "skipped": skipped + older}
    raise topic.gone


# -- publishing -------------------------------------------------------------------------------------------------------


async def _publish(call: Call, ask: Publish) -> object:
    if len(ask.headers) > HEADERS_MAX:
        raise BadRequest(f"{len(ask.headers)} headers; a message from here has at most {HEADERS_MAX}")
    key = wire.bytes_of(ask.key, ask.key_base64) or None
    value = wire.bytes_of(ask.value, ask.value_base64)
    headers = [
        (field.name.encode("utf-8", "replace"), wire.bytes_of(field.value, field.base64)) for field in ask.headers
    ]
    try:
        raw = ask.topic.encode()
    except UnicodeEncodeError:
        raise BadRequest("a topic name is proper text") from None
    placed_at = await call.run(publish(call, raw, key, value, headers, ask.partition))
    return {"topic": ask.topic} | placed_at


async def publish(
    call: Call,
    raw: bytes,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[bytes, bytes | None]],
    asked: int,
) -> dict[str, object]:
    """Append one message, as a door does; when it is as durable as its topic promises, where it is."""
    topic = call.broker.publish_target(call.principal, raw, durable=True, peer=call.peer)
    build = partial(kernel.build, [value], [key], [headers], origin=call.origin)
    size = len(value or b"") + len(key or b"")
    if size > limits.LARGE_BYTES:
        batch = await call.broker.elsewhere.finish(build)
        topic = call.broker.publish_target(call.principal, raw, durable=True, peer=call.peer)  # the right may be gone
    else:
        batch = build()
    await topic.ready()
    place = topic.choose(key) if asked == ANY else asked
    appended: Promise[int] = Promise()
    topic.publish(batch, 1, True, appended.done, place)
    await appended
    at = placed(batch)
    return {"partition": place, "offset": at.base_offset, "time_us": at.timestamp}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/messages", right="read", asks=Page, answer=_page),
    Operation(method="GET", path="/api/message", right="read", asks=MessagePlace, answer=_one),
    Operation(method="GET", path="/api/message/value", right="read", asks=MessagePlace, answer=_download),
    Operation(method="GET", path="/api/tail", right="read", asks=Tail, stream=_tail),
    Operation(method="POST", path="/api/publish", right="write", asks=Publish, answer=_publish),
)
