"""Appends logins, refusals and changes of rights to the topic `__audit`, and answers queries about them.

Events are appended and nobody waits for them: a full or failed disk is reported and never stops the broker. The latest
ones are kept in memory, and questions are answered from there. An event's id is its offset in the topic. What a peer can
cause at will (refusals, logins) has a rate; what is above it is counted and told in one event when the second is over.
"""

import csv
import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, Literal, Protocol

import msgspec

from quintet import kernel
from quintet.broker.slices import Steps, finish
from quintet.log.base import Log, Partition, TopicSpec
from quintet.model import limits
from quintet.model.client_address import ids_of
from quintet.model.errors import BadRequest, QuintetError, TooLarge
from quintet.model.scheduler import Scheduler

AUDIT_TOPIC: Final = (12, "__audit")
SEGMENTS: Final = 8  # the topic's bytes are removed in pieces of this share
EVENTS_KEPT_MAX: Final = 10_000  # in memory, for questions
EVENTS_PER_SECOND_MAX: Final = 100  # refusals; and, counted apart, logins
FIELD_BYTES_MAX: Final = 255
DETAILS_MAX: Final = 8
QUERY_EVENTS_DEFAULT: Final = 100
QUERY_EVENTS_MAX: Final = 1_000
EXPORT_BYTES_MAX: Final = 8 * limits.MIB  # some milliseconds to copy into an answer
SECOND_US: Final = 1_000_000

TYPES: Final = frozenset(
    f"{group}.{what}"
    for group, names in {
        "auth": "success failure logout",
        "access": "granted denied",
        "data": "produce consume",
        "topic": "create alter purge delete",
        "user": "create update delete password",
        "key": "create delete expire",
        "acl": "set delete",
        "quota": "set clear",
        "schema": "register delete",
        "group": "create delete",
        "offset": "commit reset",
        "txn": "begin commit abort",
        "system": "start stop",
        "cluster": "join leave",
        "config": "change",
    }.items()
    for what in names.split()
)

Report = Callable[[str, dict[str, object]], None]
Result = Literal["success", "denied", "failure"]


class Event(msgspec.Struct, frozen=True):
    """One line of the audit. `id` is 0 in the topic itself, where the offset says it."""

    ts_ms: int
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: Result
    node_id: str
    details: dict[str, str]
    id: int = 0

    def fields(self) -> dict[str, object]:
        """By name, as a door writes them: `id` as text, `details` as pairs."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        details = [{"key": key, "value": value} for key, value in self.details.items()]
        return values | {"id": str(self.id), "details": details}

    def words(self) -> Iterator[str]:
        yield from (self.type, self.user, self.client_ip, self.resource, self.action, self.result, self.node_id)
        for name, value in self.details.items():
            yield name
            yield value


COLUMNS: Final = ("id", "ts_ms", "type", "user", "client_ip", "resource", "action", "result", "node_id", "details")


class Query(msgspec.Struct, frozen=True):
    """What to look for, newest first. Zero and empty ask for nothing in particular; times are seconds, both inclusive."""

    start_s: int = 0
    end_s: int = 0
    types: tuple[str, ...] = ()
    user: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""
    limit: int = 0
    offset: int = 0

    def matches(self, event: Event) -> bool:
        return (
            (not self.start_s or event.ts_ms >= self.start_s * 1000)
            and (not self.end_s or event.ts_ms < (self.end_s + 1) * 1000)
            and (not self.types or event.type in self.types)
            and (not self.user or event.user == self.user)
            and (not self.resource or event.resource == self.resource)
            and (not self.result or event.result == self.result)
            and (not self.search or any(self.search.casefold() in word.casefold() for word in event.words()))
        )


class _Rate(msgspec.Struct):
    """How many events of one kind this second had, and how many were left out."""

    type: str
    result: Result
    second: int = 0
    taken: int = 0
    left_out: int = 0


class Recorder(Protocol):
    """Whoever takes rows of the audit: `Audit`, or a node that may not write."""

    def record(
        self,
        type: str,
        user: str,
        resource: str,
        result: Result,
        peer: str = "",
        action: str = "",
        **details: object,
    ) -> None:
        """Note what happened; returns at once and raises nothing."""


class Audit:
    """The audit of one broker. Counts what was recorded, left out by the rate, and lost to the disk."""

    def __init__(
        self,
        log: Log,
        scheduler: Scheduler,
        report: Report,
        *,
        bytes_max: int = limits.AUDIT_BYTES_DEFAULT,
        node_id: str = "quintet",
    ) -> None:
        segment_bytes = max(bytes_max // SEGMENTS, limits.SEGMENT_BYTES_MIN)
        spec = TopicSpec(*AUDIT_TOPIC, retention_bytes=bytes_max, segment_bytes=segment_bytes)
        self.recorded = self.left_out = self.lost = 0
        self._log = log
        self._partition: Partition = log.open_topic(spec)[0]
        self._scheduler = scheduler
        self._report = report
        self._node_id = node_id
        self._events: OrderedDict[int, Event] = OrderedDict()
        self._refusals = _Rate("access.denied", "denied")
        self._logins = _Rate("auth.success", "success")
        self._encode = msgspec.json.Encoder().encode

    def load(self) -> None:
        """Read the latest events back. Blocks: only used at start. Raises TableDamaged."""
        partition = self._partition
        decode = msgspec.json.Decoder(Event).decode
        offset = max(partition.start, partition.visible - EVENTS_KEPT_MAX)
        while offset < partition.visible:
            batches = partition.read_now(offset)
            if not batches:
                break
            for batch in batches:
                for id, _, _, value, _, _, _ in batch.rows(batch.index_of(offset)):
                    try:
                        self._keep(id, decode(value or b""))
                    except msgspec.DecodeError as error:
                        self._report("audit_unreadable", {"id": id, "error": str(error)})
                offset = batch.next_offset
        self._log.check_sound(partition.topic_id, "the audit (__audit)")

    @property
    def partition(self) -> Partition:
        """The topic, to be read."""
        return self._partition

    # -- record ----------------------------------------------------------------------------------------------------

    def record(
        self,
        type: str,
        user: str,
        resource: str,
        result: Result,
        peer: str = "",
        action: str = "",
        **details: object,
    ) -> None:
        """Note what happened; returns at once and raises nothing."""
        assert type in TYPES, f"{type} is no type of audit event"
        self.tick(self._scheduler.monotonic())
        rate = self._refusals if result != "success" else self._logins if type == "auth.success" else None
        if rate is not None:
            if rate.taken >= EVENTS_PER_SECOND_MAX:
                rate.left_out += 1
                self.left_out += 1
                return
            rate.taken += 1
        # First, because details are bounded: by them its siblings in the log are found.
        self._append(type, user, resource, result, peer, action, ids_of(peer) | details)

    def tick(self, monotonic: int) -> None:
        """A second is over: say how many events were left out in it."""
        second = monotonic // SECOND_US
        for rate in (self._refusals, self._logins):
            if rate.second != second:
                left_out, rate.second, rate.taken, rate.left_out = rate.left_out, second, 0, 0
                if left_out:
                    self._append(rate.type, "", "", rate.result, "", "summary", {"left_out": left_out})

    def _append(
        self,
        type: str,
        user: str,
        resource: str,
        result: Result,
        peer: str,
        action: str,
        details: dict[str, object],
    ) -> None:
        clipped = {_clip(name): _clip(str(value)) for name, value in islice(details.items(), DETAILS_MAX)}
        event = Event(
            self._scheduler.now() // 1000,
            type,
            _clip(user),
            _clip(peer),
            _clip(resource),
            _clip(action),
            result,
            self._node_id,
            clipped,
        )
        batch = kernel.build([self._encode(event)], origin=b"quintet:broker")
        id = self._partition.end
        try:
            self._partition.append(batch, partial(self._appended, id, event))
        except QuintetError as error:
            self._lost(event, error)
            return
        self.recorded += 1
        self._keep(id, event)

    def _keep(self, id: int, event: Event) -> None:
        self._events[id] = msgspec.structs.replace(event, id=id)
        if len(self._events) > EVENTS_KEPT_MAX:
            self._events.popitem(last=False)

    def _appended(self, id: int, event: Event, _offset: int, error: Exception | None) -> None:
        if error is not None:
            self._events.pop(id, None)
            self._lost(event, error)

    def _lost(self, event: Event, error: Exception) -> None:
        """The disk would not have it: the broker's own log is the place that is left."""
        self.lost += 1
        self._report("audit_lost", {"what": event.type, "user": event.user, "resource": event.resource,
                                    "result": event.result, "error": str(error)})  # fmt: skip

    # -- questions -------------------------------------------------------------------------------------------------

    def query(self, query: Query) -> tuple[list[Event], int, bool]:
        """As query_steps, at once."""
        return finish(self.query_steps(query))

    def query_steps(self, query: Query) -> Steps[tuple[list[Event], int, bool]]:
        """(events, how many match in all, whether there are more after these)."""
        found = yield from self._find(query)
        first = max(query.offset, 0)
        limit = min(query.limit if query.limit > 0 else QUERY_EVENTS_DEFAULT, QUERY_EVENTS_MAX)
        return found[first : first + limit], len(found), first + limit < len(found)

    def export(self, query: Query, format: str) -> bytearray:
        """As export_steps, at once."""
        return finish(self.export_steps(query, format))

    def export_steps(self, query: Query, format: str) -> Steps[bytearray]:
        """All that match (at most query.limit if it is not 0), as one JSON array or as CSV with a head line."""
        if format not in ("json", "csv"):
            raise BadRequest(f"audit events are exported as json or csv, not as {_clip(format)!r}")
        first = max(query.offset, 0)
        events = (yield from self._find(query))[first : first + query.limit if query.limit > 0 else None]
        encode, between = (msgspec.json.encode, b",") if format == "json" else (_csv_row, b"")
        data = bytearray(b"[" if format == "json" else _csv_line(COLUMNS))
        for number, event in enumerate(events):
            data += between if number else b""
            data += encode(event)
            if len(data) > EXPORT_BYTES_MAX:
                raise TooLarge(
                    f"the export has more than {EXPORT_BYTES_MAX} bytes",
                    hint="narrow it down: by time, type, user or resource",
                )
            yield
        data += b"]" if format == "json" else b""
        return data

    def _find(self, query: Query) -> Steps[list[Event]]:
        found = []
        for event in list(reversed(self._events.values())):
            if query.matches(event):
                found.append(event)
            yield
        return found


def _clip(text: str) -> str:
    """At most FIELD_BYTES_MAX bytes: what a peer sent may be long, or no proper text."""
    return text.encode("utf-8", "replace")[:FIELD_BYTES_MAX].decode("utf-8", "ignore")


def _csv_row(event: Event) -> bytes:
    details = msgspec.json.encode(event.details).decode()
    row = [event.id, event.ts_ms, *(getattr(event, name) for name in COLUMNS[2:-1]), details]
    return _csv_line([_harmless(cell) if isinstance(cell, str) else cell for cell in row])


def _csv_line(cells: Iterable[object]) -> bytes:
    out = io.StringIO(newline="")
    csv.writer(out).writerow(cells)
    return out.getvalue().encode()


def _harmless(cell: str) -> str:
    """A spreadsheet runs a cell that begins like a formula, and a peer chose some of these texts."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell
