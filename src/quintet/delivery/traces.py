"""Follows messages whose headers carry a sampled `traceparent`, and makes spans of what the broker does with them.

    append    from the call that took the batch to the moment it was staged; its parent is the publisher's span
    fsync     from there until it was as durable as its topic promises; inside `append` (other durabilities: `write`)
    deliver   from when it could be read, or was due again, until it was handed to a reader; beside `append`
    ack       from the delivery to its acknowledgement; inside `deliver`; so are `commit` (of a group), `retry` and `bury`

Which messages are followed is decided once, when they are appended: by the sampled flag of W3C Trace Context, by a share of the
trace ids, and by the rate. What is known of a message is kept in memory for the last `messages_max` of them: a message that was
appended before a restart, or so many others ago, has no more spans. A broker without telemetry makes no Traces, and pays one
comparison with None for each run of records and each acknowledgement.

Spans are handed to `emit` as they end. Nothing is exported here, and there is no clock and no chance but those that are given.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from quintet import kernel
from quintet.log.base import Appended
from quintet.model.batch import VIEW_BYTES_MIN, Header, may_have_header, placed
from quintet.model.rate import Bucket
from quintet.model.scheduler import Scheduler

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
TRACESTATE_BYTES_MAX: Final = 512  # what W3C Trace Context asks a vendor to carry at least; a longer one is left out
RECORDS_LOOKED_AT_MAX: Final = 1_000  # of one batch: those behind them are not followed
READERS_MAX: Final = 16  # of one message: deliveries to more of them are spans, too, but their `ack` is inside `append`
SPAN_ID_BYTES: Final = 8
RATIO_BITS: Final = 64  # of a trace id that decide on the share, the lower ones, as OpenTelemetry's own sampler has it
SPANS_OF_APPEND: Final = 2  # append and fsync
SPANS_OF_READER: Final = 2  # deliver and ack: the rate is charged with those of one reader when a message is chosen

# Version, trace id, parent id, flags. Versions after 00 may have more behind the flags.
_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED: Final = 1
_SAMPLED_END: Final = re.compile(
    rb"-[0-9a-f]{16}-[0-9a-f][13579bdf]"
)  # of a traceparent: to pass over all others quickly

Attributes = dict[str, str | int]
Entropy = Callable[[int], bytes]


class Context(NamedTuple):
    """Where a message belongs: the trace, and the span of its publisher."""

    trace_id: int
    span_id: int
    state: str = ""


class Sampled(NamedTuple):
    """A record of a batch that is to be followed: its number in it, and who published it, as "flymq:ann"."""

    number: int
    context: Context
    origin: str


class Span(NamedTuple):
    """Something that the broker did. Times are microseconds since 1970; `error`: why it failed, empty if it did not."""

    name: str
    context: Context
    parent_id: int
    begin: int
    end: int
    attributes: Attributes
    error: str = ""


Emit = Callable[[Span], None]


def parse(headers: Iterable[Header]) -> Context | None:
    """The context in these headers if it is sound and sampled. Of a name that comes several times the last counts, as for clients."""
    parent: bytes | None = None
    state = b""
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value or b""
    match = None if parent is None else _TRACEPARENT.fullmatch(parent)
    if match is None or (match[5] is not None and match[1] == b"00") or not int(match[4], 16) & _SAMPLED:
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    carried = len(state) <= TRACESTATE_BYTES_MAX and state.isascii()
    return Context(trace_id, span_id, state.decode() if carried else "")


class Followed:
    """A message that is followed: its trace, since when it can be read, and the newest delivery to each reader."""

    __slots__ = ("append_id", "context", "given", "paid", "since")

    def __init__(self, context: Context, append_id: int, since: int) -> None:
        self.context = context
        self.append_id = append_id
        self.since = since
        self.paid = SPANS_OF_READER  # spans that the rate was charged with already
        # (door, who) -> the span of the delivery, and when it was made or settled
        self.given: dict[tuple[str, str], tuple[int, int]] = {}


class Traces:
    """All messages that one broker follows."""

    def __init__(
        self,
        scheduler: Scheduler,
        entropy: Entropy,
        emit: Emit,
        *,
        ratio: float,
        spans_per_second_max: int,
        messages_max: int,
    ) -> None:
        self._scheduler = scheduler
        self._entropy = entropy
        self._emit = emit
        self._threshold = round(ratio * (1 << RATIO_BITS))
        self._messages_max = messages_max
        self._rate = Bucket(spans_per_second_max, scheduler.monotonic())
        self._places: dict[tuple[str, int], dict[int, Followed]] = {}
        self._oldest: deque[tuple[str, int, int]] = deque()
        self.spans = 0
        self.left_out = 0  # messages, and later spans of those that are followed, that the rate had no room for

    # -- appending -----------------------------------------------------------------------------------------------------

    def watch(
        self, topic: str, durability: str, batch: bytearray, count: int, done: Appended | None
    ) -> "TracedAppend | None":
        """What to give to the log in place of `done`; None: there is nothing in this batch to follow."""
        if not may_have_header(batch, TRACEPARENT, _SAMPLED_END):
            return None
        found = self._sampled(batch, min(count, RECORDS_LOOKED_AT_MAX))
        return (
            TracedAppend(self, self._scheduler.now(), topic, durability, batch, count, found, done) if found else None
        )

    def _sampled(self, batch: bytearray, count: int) -> list[Sampled]:
        monotonic = self._scheduler.monotonic()
        mask = (1 << RATIO_BITS) - 1
        found: list[Sampled] = []
        for index, row in enumerate(kernel.rows(batch, 0, count, VIEW_BYTES_MIN)):
            context = parse(row[4]) if row[4] else None
            if context is None or context.trace_id & mask >= self._threshold:
                continue
            if self._rate.wait(monotonic):
                self.left_out += 1
                continue
            self._rate.take(SPANS_OF_APPEND + SPANS_OF_READER, monotonic)
            found.append(Sampled(index, context, row[6].decode(errors="replace")))
        return found

    def appended(self, watch: "TracedAppend", offset: int, error: Exception | None) -> None:
        """The log answered: offset is that of the batch's first record."""
        now = self._scheduler.now()
        staged = now if error is not None else max(placed(watch.batch).timestamp, watch.accepted)
        for number, context, origin in watch.found:
            place = offset + number if error is None else -1
            door, _, who = origin.partition(":")
            told = self.attributes("append", watch.topic, watch.partition, place, door, who)
            told["messaging.batch.message_count"] = watch.count
            told["quintet.durability"] = watch.durability
            why = "" if error is None else str(error)
            append_id = self.end("append", context, context.span_id, (watch.accepted, staged), told, why)
            if error is not None:
                continue
            if watch.durability != "memory":
                name = "fsync" if watch.durability == "fsync" else "write"
                told = self.attributes(name, watch.topic, watch.partition, place)
                self.end(name, context, append_id, (staged, now), told)
            self._follow(watch.topic, watch.partition, place, Followed(context, append_id, now))

    def _follow(self, topic: str, partition: int, offset: int, followed: Followed) -> None:
        self._places.setdefault((topic, partition), {})[offset] = followed
        self._oldest.append((topic, partition, offset))
        while len(self._oldest) > self._messages_max:
            name, number, oldest = self._oldest.popleft()
            place = self._places.get((name, number), {})
            if place.pop(oldest, None) is not None and not place:
                del self._places[name, number]

    def forget(self, topic: str, partitions: int) -> None:
        """A topic was deleted: another of its name begins at offset 0 again."""
        for number in range(partitions):
            self._places.pop((topic, number), None)

    @property
    def followed(self) -> int:
        return sum(map(len, self._places.values()))

    # -- delivering ----------------------------------------------------------------------------------------------------

    def _within(self, topic: str, partition: int, first: int, last: int) -> list[tuple[int, Followed]]:
        place = self._places.get((topic, partition))
        if place is None:
            return []
        if last - first < len(place):
            return [(offset, found) for offset in range(first, last) if (found := place.get(offset)) is not None]
        return [(offset, found) for offset, found in place.items() if first <= offset < last]

    def _pay(self, found: Followed) -> bool:
        """Whether the rate has room for one more span of this message."""
        if found.paid:
            found.paid -= 1
            return True
        monotonic = self._scheduler.monotonic()
        if self._rate.wait(monotonic):
            self.left_out += 1
            return False
        self._rate.take(1, monotonic)
        return True

    def delivered(
        self, door: str, who: str, topic: str, partition: int, first: int, last: int, attempt: int = 0
    ) -> None:
        """Offsets first to last - 1 were handed to somebody; the attempt, if it is counted here."""
        for offset, found in self._within(topic, partition, first, last):
            if not self._pay(found):
                continue
            now = self._scheduler.now()
            told = self.attributes("deliver", topic, partition, offset, door, who)
            if attempt:
                told["quintet.attempt"] = attempt
            since = found.given.get((door, who), (0, found.since))[1]
            made = self.end("deliver", found.context, found.context.span_id, (since, now), told)
            if len(found.given) < READERS_MAX or found.given.pop((door, who), None) is not None:
                found.given[door, who] = (made, now)  # the newest is the last

    def settled(
        self,
        what: str,
        door: str,
        who: str,
        topic: str,
        partition: int,
        offsets: tuple[int, int],
        more: Attributes | None = None,
    ) -> None:
        """These were acknowledged (`ack`, of a group `commit`), are due again (`retry`), or became dead letters (`bury`)."""
        for offset, found in self._within(topic, partition, *offsets):
            if not self._pay(found):
                continue
            now = self._scheduler.now()
            last_given = next(reversed(found.given.values()), (0, found.since))
            parent, since = found.given.get((door, who), last_given)
            told = self.attributes(what, topic, partition, offset, door, who)
            told["messaging.operation.type"] = "settle"
            self.end(what, found.context, parent or found.append_id, (since, now), told | (more or {}))
            if (door, who) in found.given:
                found.given[door, who] = (parent, now)

    # -- spans ---------------------------------------------------------------------------------------------------------

    def attributes(
        self, what: str, topic: str, partition: int, offset: int, door: str = "", who: str = ""
    ) -> Attributes:
        told: Attributes = {
            "messaging.system": "quintet",
            "messaging.operation.name": what,
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
        }
        if offset >= 0:
            told["messaging.message.id"] = f"{topic}/{partition}/{offset}"
        if door:
            told["quintet.door"] = door
        if who:
            told["quintet.principal"] = who
        return told

    def end(
        self,
        what: str,
        context: Context,
        parent_id: int,
        times: tuple[int, int],
        attributes: Attributes,
        error: str = "",
    ) -> int:
        """Hand over a span of `context`'s trace; its id. A clock that was set back makes no span that ends before it begins."""
        made = int.from_bytes(self._entropy(SPAN_ID_BYTES), "big") or 1
        begin, end = times
        name = f"{what} {attributes['messaging.destination.name']}"
        own = context._replace(span_id=made)
        self._emit(Span(name, own, parent_id, begin, max(begin, end), attributes, error))
        self.spans += 1
        return made


class TracedAppend:
    """A batch on its way through the log: called in place of the publisher's `done`, which it calls then."""

    __slots__ = ("_done", "_traces", "accepted", "batch", "count", "durability", "found", "partition", "topic")

    def __init__(
        self,
        traces: Traces,
        accepted: int,
        topic: str,
        durability: str,
        batch: bytearray,
        count: int,
        found: list[Sampled],
        done: Appended | None,
    ) -> None:
        self._traces = traces
        self._done = done
        self.topic = topic
        self.durability = durability
        self.batch = batch
        self.count = count
        self.found = found
        self.accepted = accepted
        self.partition = 0  # set when it was chosen

    def __call__(self, offset: int, error: Exception | None) -> None:
        self._traces.appended(self, offset, error)
        if self._done is not None:
            self._done(offset, error)


class LaneTraces:
    """One lane as Traces are told of it: through which door, and to whom, it delivers."""

    __slots__ = ("_place", "_traces", "_who")

    def __init__(self, traces: Traces, door: str, who: str, topic: str, partition: int) -> None:
        self._traces = traces
        self._who = who
        self._place = (door, who, topic, partition)

    def delivered(self, first: int, last: int, attempt: int) -> None:
        if self._who:  # else who hands it on says to whom
            self._traces.delivered(*self._place, first, last, attempt)

    def acked(self, first: int, last: int) -> None:
        self._traces.settled("ack", *self._place, (first, last))

    def given_back(self, offset: int, attempt: int) -> None:
        """It failed, its time is over, or its reader is gone: it comes again."""
        self._traces.settled("retry", *self._place, (offset, offset + 1), {"quintet.attempt": attempt})
