"""Reads a subscription over Felix: begins it, resumes it after a lost connection, and counts what was lost meanwhile.

With durable= or group= the server keeps the position. Without, it is kept here, by partition: the first message that is
not acknowledged (QoS 1), or the one behind the last that came (QoS 0). A tag is what the wire calls an offset: partition
and offset in one number.

Names of topics are split here, too: Felix has three parts where the broker has one name.
"""

import asyncio
import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from datetime import datetime
from math import floor
from typing import Final, NamedTuple, Protocol, cast

import msgspec

from quintet.client.core.base import ClientConnection, Fields, Setup, Wanted
from quintet.client.core.errors import Unsupported
from quintet.client.core.message import LogPosition, Rows, log
from quintet.client.core.url import Endpoint
from quintet.client.sources.push import ACKED_TAGS_MAX, PushSource
from quintet.model.errors import BadName, OffsetNotFound, QuintetError
from quintet.protocols.felix import codec
from quintet.protocols.felix.frames import ACK_RECORDS_MAX as CREDIT_MAX
from quintet.protocols.felix.frames import DEFAULT_SCOPE, OFFSET_MASK, PARTITION_SHIFT

AGAIN_MAX: Final = 100_000  # messages that came before and may come again, remembered for `redelivered`
OWED_MAX: Final = 100_000  # messages that were given back and have not come again
REGEX: Final = "regex:"  # of a pattern (sources/many.py)
STARTS: Final = ("earliest", "latest")

WireStart = str | dict[str, int] | dict[str, list[int]]  # a word, an offset, a time, or an offset of each partition


class Listening(Protocol):
    """The part of felix.FelixStream that a subscription uses."""

    timeout: float

    @property
    def extended(self) -> bool: ...

    async def listen(
        self, name: str, fields: Fields, on_message: Callable[[Fields], None], topic: str = ""
    ) -> Fields: ...


class OffsetGone(OffsetNotFound):
    """A subscription cannot begin where it was asked to: `asked` and the nearest that is `there`, as the wire has them."""

    def __init__(self, message: str, *, hint: str, asked: object, there: object) -> None:
        super().__init__(message, hint=hint)
        self.asked = asked
        self.there = there


class Lagged(NamedTuple):
    """Messages are gone that this subscription had not read: retention or their age took them."""

    topic: str
    missed: int
    next_offset: int


class Names(NamedTuple):
    """What the URL or the token says about tenant and namespace."""

    tenant: str
    namespace: str

    @classmethod
    def of(cls, endpoint: Endpoint) -> "Names":
        return cls(endpoint.tenant or _tenant_of(endpoint.secret), endpoint.namespace)

    def split(self, topic: str) -> tuple[str, str, str]:
        """Tenant, namespace and stream of a topic's name."""
        if topic.count("/") == 2:
            tenant, namespace, stream = topic.split("/")
            return tenant, namespace, stream
        if self.tenant and self.namespace and "/" not in topic:
            return self.tenant, self.namespace, topic
        return "", "", topic

    def pattern(self, text: str) -> str:
        """A pattern as the broker has it: in the own namespace, if it names none."""
        if not (self.tenant and self.namespace) or "/" in text:
            return text
        if text.startswith(REGEX):
            return f"{REGEX}{re.escape(self._prefix)}(?:{text.removeprefix(REGEX)})"
        return self._prefix + text

    def short(self, name: str) -> str:
        """The name of a topic as its user would write it: what `split` makes of it is the same."""
        return name.removeprefix(self._prefix) if self.tenant and self.namespace else name

    def reaches(self, name: str) -> bool:
        """Whether a topic of the broker has a name here: one without a tenant has none where the URL gives a namespace."""
        try:
            return codec.topic_of(self.split(self.short(name))) == name
        except BadName:
            return False

    @property
    def _prefix(self) -> str:
        return f"{self.tenant}/{self.namespace}/"

    def scope(self, cache: str) -> tuple[str, str, str]:
        """The same of a cache, which always has a tenant and a namespace."""
        if cache.count("/") == 2:
            tenant, namespace, name = cache.split("/")
            return tenant, namespace, name
        return self.tenant or DEFAULT_SCOPE[0], self.namespace or DEFAULT_SCOPE[1], cache

    def target(self, topic: str) -> bytes:
        """As a binary batch has it."""
        return codec.target(*self.split(topic))


def _tenant_of(token: str) -> str:
    """`tid` of a JSON web token, looked at and not verified: that is the server's business."""
    parts = token.split(".")
    if len(parts) != 3:
        return ""
    try:
        claims = msgspec.json.decode(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return ""
    tenant = claims.get("tid", "") if isinstance(claims, dict) else ""
    return tenant if isinstance(tenant, str) else ""


class FelixSource(PushSource):
    """A subscription that ends with its stream, and is made again on the next where it was."""

    def __init__(self, setup: Setup, wanted: Wanted, names: Names) -> None:
        super().__init__(setup, wanted.topic, qos=wanted.qos, resume=None, credit=wanted.prefetch)
        self._wanted = wanted
        self._names = names
        self._begin = _start_of(wanted)
        self._on_event = setup.on_event
        self._kept = bool(wanted.durable or wanted.group)  # by the server
        if self._kept and not wanted.qos:
            raise ValueError("durable= and group= are for qos=1: what is not acknowledged has no position")
        if wanted.durable and wanted.group:
            raise ValueError("a subscription has one of durable= and group=")
        self._next: dict[int, int] = {}  # by partition: where to go on
        self._partitions = 0
        self._again: set[int] = set()
        self._owed: set[int] = set()  # given back, not acknowledged: the server brings them again
        self._missed = 0
        self._room = asyncio.Event()  # in the queue
        self._room.set()

    @property
    def missed(self) -> int:
        return self._missed

    @property
    def id(self) -> int:
        raise Unsupported("a subscription of Felix has no id to resume", hint="durable=NAME keeps where it was")

    @property
    def assigned(self) -> tuple[int, ...]:
        return tuple(sorted(self._next)) if not self._wanted.group else ()

    async def _attach(self, connection: ClientConnection) -> None:
        felix = cast(Listening, connection)
        await self._room.wait()  # subscribe only when the queue has room
        if len(self._acked_before) > ACKED_TAGS_MAX:
            self._acked_before.clear()
        self._acked_before.update(self._acked)
        self._acked.clear()
        tenant, namespace, stream = self._names.split(self._topic)
        fields: Fields = {"tenant_id": tenant, "namespace": namespace, "stream": stream}
        if self._kept and not felix.extended:
            raise Unsupported("the server keeps no positions", hint="durable= and group= need a Quintet broker")
        if self._qos and felix.extended:
            fields["ack"] = "explicit"
            self._credit = self._prefetch = min(self._prefetch, CREDIT_MAX)
            if self._credit:
                fields["credit"] = self._credit
        for option in ("durable", "group"):
            if name := getattr(self._wanted, option):
                fields[option] = name
        self._id = 0  # events have a stream of their own: they may come, and be acknowledged, before the answer
        answer = await self._listen(felix, fields)
        self._timeout = felix.timeout
        offsets = answer.get("offsets")
        if isinstance(offsets, list) and not self._kept:
            self._partitions = len(offsets)
            for partition, offset in enumerate(offsets):
                self._next.setdefault(partition, offset)

    async def _listen(self, connection: Listening, fields: Fields) -> Fields:
        """The answer of the server. If messages at its position are gone, it continues behind them and reports how many."""
        while True:
            known = bool(self._next) and not self._kept
            try:
                return await connection.listen(
                    "subscribe", {**fields, "start": self._start()}, self._on_message, self._topic
                )
            except OffsetGone as error:
                if not known or not self._moved(error.asked, error.there):
                    raise

    def _moved(self, asked: object, there: object) -> bool:
        """Where to go on in place of an offset that cannot be read; whether that is another one."""
        if not isinstance(asked, int) or not isinstance(there, int):
            return False
        partition, offset = asked >> PARTITION_SHIFT, asked & OFFSET_MASK
        if there > asked:
            self._lost_before(partition, there & OFFSET_MASK, there - asked)
            return True
        # The topic is shorter than it was: made anew, or cut back by a crash. Its offsets name other messages now.
        self._acked_before.clear()
        self._again.clear()
        self._next[partition] = 0 if self._qos else there & OFFSET_MASK
        log.warning("%r ends before offset %d, where it was read to: it is not the topic it was", self._topic, offset)
        return self._next[partition] != offset

    def pause(self) -> None:
        self._room.clear()
        super().pause()

    def resume(self) -> None:
        self._room.set()
        super().resume()

    def _start(self) -> WireStart:
        """Where the subscription goes on, as the wire says it."""
        if self._kept or not self._next:
            return self._begin
        if self._partitions > 1 or max(self._next) > 0:
            return {"offsets": [self._next.get(at, 0) for at in range(max(self._partitions, max(self._next) + 1))]}
        return {"offset": self._next[0]}

    async def flush(self) -> None:
        self._room.set()  # the stream is resumed below
        await super().flush()

    @property
    def has_dead_letters(self) -> bool:
        """A group has none: it does not pass what it has not processed."""
        return super().has_dead_letters and not self._wanted.group

    def _let_go(self, rows: Rows, delay: float | None, dead: bool = False) -> None:
        super()._let_go(rows, delay, dead)
        if not dead and len(self._owed) < OWED_MAX:
            self._owed.update(row[0] for row in rows if row[1])

    def _down(self, error: QuintetError) -> None:
        for tag in (*self._tags, *self._owed):
            partition, offset = tag >> PARTITION_SHIFT, tag & OFFSET_MASK
            self._next[partition] = min(self._next.get(partition, offset), offset)
            if len(self._again) < AGAIN_MAX:
                self._again.add(tag)
        self._owed.clear()
        if self._qos:
            super()._down(error)
        elif self._inbox is not None and self._channel.failed is not None:
            self._inbox.wake()  # QoS 0: queued messages are kept, because they are not delivered again

    def on_records(self, topic: str, rows: Rows) -> None:
        last = rows[-1][0]
        if last >= 0:
            partition = last >> PARTITION_SHIFT
            self._next[partition] = max(self._next.get(partition, 0), (last & OFFSET_MASK) + 1)
            if self._owed:
                self._back([row[0] for row in rows])
            if not self._tags.keys().isdisjoint([row[0] for row in rows]) and len(self._again) < AGAIN_MAX:
                self._again.update(row[0] for row in rows if row[0] in self._tags)
        super().on_records(topic, rows)

    def _back(self, tags: list[int]) -> None:
        """Some that were given back may be among those that came."""
        again = self._owed.intersection(tags)
        self._owed -= again
        if len(self._again) < AGAIN_MAX:
            self._again |= again

    def _on_message(self, message: Fields) -> None:
        if message.get("type") == "lagged":
            missed, tag = int(message.get("missed", 0)), int(message.get("next_offset", 0))
            self._lost_before(tag >> PARTITION_SHIFT, tag & OFFSET_MASK, missed)

    def _lost_before(self, partition: int, offset: int, missed: int) -> None:
        """So many are gone; it goes on at this offset."""
        self._missed += missed
        self._next[partition] = max(self._next.get(partition, 0), offset)
        if self._on_event is not None:
            # in a later callback, so that its exception does not end the connection
            asyncio.get_running_loop().call_soon(self._on_event, Lagged(self._topic, missed, offset))
        else:
            log.warning("%d messages of %r were gone before they were read", missed, self._topic)

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        self._again.difference_update(tags)
        self._owed.difference_update(tags)
        await super().settle(tags, timeout)

    def position_of(self, tag: int) -> LogPosition | None:
        if tag < 0:
            return None
        return LogPosition(tag >> PARTITION_SHIFT, tag & OFFSET_MASK, int(tag in self._again))


def _start_of(wanted: Wanted) -> WireStart:
    """`start` as the wire says it."""
    start = wanted.start
    if start is None or start == "commit":
        return "earliest" if wanted.group else "latest"
    if isinstance(start, str):
        if start not in STARTS:
            raise ValueError(f"start is one of {', '.join(STARTS)}, an offset or a datetime, not {start!r}")
        return start
    if isinstance(start, datetime):
        return {"time_ms": floor(start.timestamp() * 1000)}
    if isinstance(start, bool) or start < 0:
        raise ValueError(f"start is one of {', '.join(STARTS)}, an offset or a datetime, not {start!r}")
    return {"offset": start}
