"""Searches the messages of a topic, and follows the way of one message: bounded in bytes and time, in slices, with progress.

A search takes a share of the loop that leaves room for others: after each piece it rests REST times as long as the piece took. No
code of a user runs: filters are those of broker/topics/filters.py (RE2, comparisons). The browser stops it by closing the stream.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

import msgspec

from quintet.broker.audit.delivery_events import EventRow
from quintet.broker.slices import Steps
from quintet.broker.topics import filters, reads
from quintet.broker.topics.seek import read_from
from quintet.console.call import Call, Operation
from quintet.console.pages.messages import ALL, MessagePlace, brief, partitions_of, read, told
from quintet.log.base import Partition
from quintet.model.batch import CHAIN, LINK_BYTES, RecordBatch
from quintet.model.errors import BadRequest

PIECE_BYTES: Final = 64 << 10  # read and looked at between two rests
SLOW_PIECE_BYTES: Final = 16 << 10  # the same where each record has to be looked at
REST: Final = 6.0
SEARCH_SECONDS_MAX: Final = 120.0
SEARCH_BYTES_MAX: Final = 16 << 30
MATCHES_MAX: Final = 200
PROGRESS_S: Final = 0.5
JOURNEY_ROWS_MAX: Final = 200
JOURNEY_BYTES_MAX: Final = 16 << 20  # of `__events`, looked at for one message
JOURNEY_LETTERS_MAX: Final = 1_000  # dead letters looked at


class Search(msgspec.Struct, forbid_unknown_fields=True):
    """What to look for, in which of key, value and headers, from where on. `key`: the key is exactly this."""

    topic: str
    filter: str = ""
    key: str = ""
    partition: int = ALL
    offset: int | None = None
    time_ms: int | None = None
    headers: bool = True
    origin: str = ""


class _Scan:
    """One partition of a search."""

    def __init__(self, call: Call, ask: Search, filter: filters.Filter, partition: Partition, first: int) -> None:
        self.partition = partition
        self.next = first
        self.end = partition.visible
        self._call = call
        self._filter = filter
        self._key = ask.key.encode("utf-8", "surrogatepass")
        self._origin = ask.origin.encode("utf-8", "surrogatepass")
        self._headers = ask.headers
        self.records = 0

    def look(self, batches: list[RecordBatch], room: int) -> Steps[list[dict[str, object]]]:
        found: list[dict[str, object]] = []
        now = self._call.broker.scheduler.now()
        for batch in batches:
            if not self._may_be_in(batch):
                self.records += batch.count - batch.index_of(self.next)
                self.next = max(self.next, batch.next_offset)
                yield
                continue
            for index in range(batch.index_of(self.next), batch.count):
                row = batch.row(index)
                if row[0] >= self.end or len(found) >= room:
                    return found
                self.next = row[0] + 1
                self.records += 1
                expired = row[5] and row[5] <= now
                if not expired and self._matches(row[2], row[3], row[4], row[6]):
                    found.append(brief(self.partition.number, row))
                yield
            self.next = max(self.next, batch.next_offset)
        return found

    @property
    def piece_bytes(self) -> int:
        return PIECE_BYTES if self._filter.quick or self._key or self._origin else SLOW_PIECE_BYTES

    def _may_be_in(self, batch: RecordBatch) -> bool:
        """Whether a record of it can match: most batches are passed over by one look at their bytes."""
        data = bytes(batch.buffer[: batch.length])
        return self._key in data and self._origin in data and self._filter.may_be_in(data)

    def _matches(
        self, key: bytes | None, value: bytes | None, headers: tuple[tuple[bytes, bytes | None], ...], origin: bytes
    ) -> bool:
        if (self._key and key != self._key) or (self._origin and self._origin not in origin):
            return False
        if self._filter.matches(key, value):
            return True
        return self._headers and any(self._filter.matches(name, text) for name, text in headers)


async def _search(call: Call, ask: Search) -> AsyncIterator[tuple[str, object]]:
    """`rows` with matches, `progress`, and at the end why it stopped and where it would go on."""
    topic = call.topic(ask.topic)
    chosen = filters.compile(ask.filter.encode("utf-8", "surrogatepass"))
    if chosen.empty and not ask.key and not ask.origin:
        raise BadRequest("there is nothing to look for", hint="a text, a pattern, a key or a publisher")
    loop = asyncio.get_running_loop()
    began = told_at = loop.time()
    looked_bytes = records = matches = 0
    for partition in partitions_of(topic, ask.partition):
        first = partition.start if ask.offset is None else max(ask.offset, partition.start)
        if ask.time_ms is not None:
            first = await call.run(reads.offset_for_time(partition, ask.time_ms * 1000))
        scan = _Scan(call, ask, chosen, partition, first)
        while scan.next < scan.end:
            before = loop.time()
            batches = await call.run(read_from(partition, scan.next, scan.piece_bytes))
            if not batches:
                break
            rows = await call.sliced(scan.look(batches, MATCHES_MAX - matches))
            looked_bytes += sum(batch.length for batch in batches)
            matches += len(rows)
            ended = loop.time()
            if rows:
                told(call, topic, rows)
                yield "rows", {"rows": rows}
            seen = {"partition": partition.number, "next": scan.next, "end": scan.end, "records": records + scan.records,
                    "bytes": looked_bytes, "matches": matches, "seconds": round(ended - began, 1)}  # fmt: skip
            why = _over(matches, looked_bytes, ended - began)
            if why:
                yield "stopped", seen | {"why": why}
                return
            if ended - told_at > PROGRESS_S:
                told_at = ended
                yield "progress", seen
            await asyncio.sleep((ended - before) * REST)
        records += scan.records
    yield "stopped", {"why": "", "records": records, "bytes": looked_bytes, "matches": matches,
                      "seconds": round(loop.time() - began, 1)}  # fmt: skip


def _over(matches: int, looked_bytes: int, seconds: float) -> str:
    if matches >= MATCHES_MAX:
        return f"{MATCHES_MAX} matches were found"
    if looked_bytes >= SEARCH_BYTES_MAX:
        return f"{SEARCH_BYTES_MAX} bytes were looked at"
    return f"{SEARCH_SECONDS_MAX:.0f} seconds are over" if seconds >= SEARCH_SECONDS_MAX else ""


# -- the journey of a message -----------------------------------------------------------------------------------------


async def _journey(call: Call, ask: MessagePlace) -> object:
    """What is known of a message: publishing, its place in the audit chain, deliveries, acknowledgements, dead letters."""
    topic, row = await read(call, ask)
    partition = topic.partition(ask.partition)
    batch = next(
        found
        for found in await call.run(read_from(partition, ask.offset, 1))
        if found.base_offset <= ask.offset < found.next_offset
    )
    steps: list[dict[str, object]] = [
        {"what": "published", "time_us": row[1], "who": row[6].decode(errors="replace"),
         "note": f"in a batch of {batch.count} from offset {batch.base_offset} on"}
    ]  # fmt: skip
    kept = {"fsync": "fsynced before it was acknowledged", "interval": "synced from time to time",
            "os": "written when the system does so", "memory": "in memory only"}[topic.spec.durability]  # fmt: skip
    steps.append({"what": "stored", "time_us": batch.timestamp, "who": "", "note": kept})
    events, whole = await _events(call, topic.raw, ask, row[1])
    steps += events if call.administers else [step for step in events if step["who"] == call.owner]
    letters = await _letters(call, topic.raw, ask)
    steps += letters
    link = bytes(batch.buffer[batch.length - LINK_BYTES : batch.length]).hex() if batch.columns & CHAIN else ""
    return {"steps": steps, "link": link, "batch": batch.base_offset, "whole": whole, "all": call.administers}


async def _events(call: Call, raw: bytes, ask: MessagePlace, since_us: int) -> tuple[list[dict[str, object]], bool]:
    """Rows of `__events` about it, and whether all that could be were looked at."""
    log = call.broker.events.partition
    at = log.offset_at(since_us)
    found: list[dict[str, object]] = []
    room = JOURNEY_BYTES_MAX
    while at < log.visible and room > 0 and len(found) < JOURNEY_ROWS_MAX:
        batches = await call.run(read_from(log, at, PIECE_BYTES))
        if not batches:
            return found, True
        found += await call.sliced(_moves(batches, at, raw, ask))
        at = batches[-1].next_offset
        room -= sum(batch.length for batch in batches)
        await asyncio.sleep(0)
    return found[:JOURNEY_ROWS_MAX], at >= log.visible


def _moves(batches: list[RecordBatch], first: int, raw: bytes, ask: MessagePlace) -> Steps[list[dict[str, object]]]:
    found: list[dict[str, object]] = []
    decode = msgspec.json.Decoder(EventRow).decode
    for batch in batches:
        for row in batch.rows(batch.index_of(first)):
            if row[2] == raw:
                move = decode(row[3] or b"{}")
                if move.partition == ask.partition and move.first <= ask.offset < move.last:
                    what = "delivered" if move.event == "deliver" else "acknowledged"
                    group = f", group {move.group}" if move.group else ""
                    found.append({"what": what, "time_us": move.time, "who": move.who, "row": row[0],
                                  "note": f"by the door {move.door}{group}"})  # fmt: skip
            yield
    return found


async def _letters(call: Call, raw: bytes, ask: MessagePlace) -> list[dict[str, object]]:
    """Its dead letters, open ones and those that were replayed or purged."""
    dead = call.broker.dead
    letters = call.broker.topics.get(dead.name_for(raw))
    if letters is None or not call.may("read", letters.name):
        return []
    found: list[dict[str, object]] = []
    for number, log in enumerate(letters.partitions):
        first = max(log.start, log.visible - JOURNEY_LETTERS_MAX)
        batches = await call.run(reads.fetch(log, first, JOURNEY_LETTERS_MAX, JOURNEY_BYTES_MAX))
        for offset, time, cause in await call.sliced(_buried(batches, first, ask)):
            still = dead.next_open(letters, number, offset) == offset
            found.append({"what": "dead", "time_us": time, "who": "", "letter": f"{number}-{offset}",
                          "note": f"{cause}; {'open' if still else 'replayed or purged since'}"})  # fmt: skip
    return found


def _buried(batches: list[RecordBatch], first: int, ask: MessagePlace) -> Steps[list[tuple[int, int, str]]]:
    found: list[tuple[int, int, str]] = []
    place = (b"%d" % ask.partition, b"%d" % ask.offset)
    for row in _rows(batches, first):
        story = dict(row[4])
        if (story.get(b"quintet-dead-partition"), story.get(b"quintet-dead-offset")) == place:
            digits = story.get(b"quintet-dead-last-us") or b"0"
            time = int(digits) if digits.isdigit() and len(digits) < 20 else 0
            found.append((row[0], time, (story.get(b"quintet-dead-cause") or b"").decode(errors="replace")))
        yield
    return found


def _rows(
    batches: list[RecordBatch], first: int
) -> Iterator[tuple[int, int, object, object, tuple[tuple[bytes, bytes | None], ...], int, bytes]]:
    for batch in batches:
        for index in range(batch.index_of(first), batch.count):
            yield batch.row(index)


OPERATIONS: Final = (
    Operation(method="GET", path="/api/search", right="read", asks=Search, stream=_search),
    Operation(method="GET", path="/api/journey", right="read", asks=MessagePlace, answer=_journey),
)
