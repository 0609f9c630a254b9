"""Several changes as one: all of them happen, or none, whatever is pulled out of the wall in between.

An intent is one record of the internal topic `__intents`: the batches to append, the effects to have, and who asked. One
record is one batch with one checksum, so it is there whole or not at all; that is the moment of commitment. Then it is
carried out, and when everything is durable the row goes away (or is kept as a mark, when the asker gave a token).

    commit ---> written ---> carried out ---> done
                   |  ^           |
                   |  +-- a partition refused: tried again every second
                   +----- crash: carried out by `recover`, before anything is served

Carrying out twice does no harm. A batch of an intent has the producer id INTENT_PRODUCER + its number and its place in
the intent as sequence, so `recover` sees whether a partition already holds it: it looks only at what lies at or above
`floor`, which was durable before the intent was written. Effects must be idempotent by themselves. Transactions, due
delayed messages and dead letters all stand on this; readers need to know nothing of it, because nothing uncommitted is
ever in a topic (ADR 8).
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from quintet.broker.table import Done, Table
from quintet.broker.topics import Topic, Topics
from quintet.model.batch import RecordBatch
from quintet.model.errors import LimitExceeded, QuintetError, StorageError
from quintet.model.scheduler import Scheduler

INTENT_PRODUCER: Final = 1 << 63  # client producer ids are below
RETRY_EVERY_US: Final = 1_000_000
UNFINISHED_BYTES_MAX: Final = 256 << 20  # of intents that are not yet carried out
MARK_KEEP_US: Final = 3_600_000_000  # how long a token's outcome is remembered
MARKS_MAX: Final = 100_000

_PRODUCER: Final = struct.Struct("<QI")  # producer_id and sequence, at 48
_PRODUCER_AT: Final = 48

Report = Callable[[str, dict[str, object]], None]
Effect = tuple[str, bytes]
Apply = Callable[[bytes, Done], None]


class Append(msgspec.Struct, frozen=True, array_like=True):
    """One unsealed batch for one partition; `floor` is what the partition showed when it was written."""

    topic: str
    topic_id: int
    partition: int
    floor: int
    batch: bytes


class IntentRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__intents` keeps. `done` rows hold only the token and its owner: the outcome, for who asks again."""

    number: int
    token: str
    owner: str
    at: int
    done: bool
    appends: tuple[Append, ...]
    effects: tuple[Effect, ...]


class _Running:
    """An intent on its way: what is still missing, and who waits."""

    __slots__ = ("bytes", "missing", "row", "waiters")

    def __init__(self, row: IntentRow, size: int) -> None:
        self.row = row
        self.bytes = size
        self.missing = 0
        self.waiters: list[Done] = []


class Intents:
    """All intents that are not yet carried out, and the outcomes still remembered."""

    def __init__(self, table: Table[IntentRow], topics: Topics, scheduler: Scheduler, report: Report) -> None:
        self._table = table
        self._topics = topics
        self._scheduler = scheduler
        self._report = report
        self._effects: dict[str, Apply] = {}
        self._running: dict[int, _Running] = {}
        self._by_token: dict[str, IntentRow] = {}
        self._again: list[tuple[int, Callable[[], None]]] = []
        self._last = 0
        self._bytes = 0
        self.carried_out = 0

    def on_effect(self, kind: str, apply: Apply) -> None:
        """How an effect of this kind is had: `apply(payload, done)`, any number of times, with the same result as once."""
        self._effects[kind] = apply

    def outcome(self, token: str) -> IntentRow | None:
        """The intent of this token, if it was written: then it is committed, whatever is still under way."""
        return self._by_token.get(token)

    # -- committing ------------------------------------------------------------------------------------------------

    def commit(
        self,
        appends: Sequence[tuple[Topic, int, bytearray]],
        effects: Sequence[Effect],
        done: Done,
        token: str = "",
        owner: str = "",
    ) -> None:
        """Do all of this or none. Raises a QuintetError if it cannot be taken now; `done(error)` later means that it
        was not committed, `done(None)` that all of it is durable and visible."""
        size = sum(len(batch) for _, _, batch in appends)
        if self._bytes + size > UNFINISHED_BYTES_MAX:
            raise LimitExceeded(
                f"more than {UNFINISHED_BYTES_MAX >> 20} MiB of transactions wait for the disk", hint="try again soon"
            )
        for topic, number, _ in appends:
            topic.check_writable(number)
        self._last += 1
        number = self._last
        parts = []
        for place, (topic, partition_number, batch) in enumerate(appends):
            _PRODUCER.pack_into(batch, _PRODUCER_AT, INTENT_PRODUCER + number, place)
            floor = topic.partitions[partition_number].visible
            parts.append(Append(topic.name, topic.spec.id, partition_number, floor, bytes(batch)))
        row = IntentRow(number, token, owner, self._scheduler.now(), False, tuple(parts), tuple(effects))
        running = _Running(row, size)
        running.waiters.append(done)
        self._table.put(_key(number), row, partial(self._written, running))
        self._running[number] = running
        self._bytes += size

    def wait(self, row: IntentRow, done: Done) -> None:
        """`done` when this committed intent is carried out: now, if it is."""
        running = self._running.get(row.number)
        if running is None:
            done(None)
        else:
            running.waiters.append(done)

    def _written(self, running: _Running, error: Exception | None) -> None:
        row = running.row
        if error is not None:
            self._forget(running)
            for done in running.waiters:
                done(error)
            return
        if row.token:
            self._by_token[row.token] = row
        self._carry_out(running, row.appends)

    # -- carrying out ----------------------------------------------------------------------------------------------

    def _carry_out(self, running: _Running, appends: Sequence[Append]) -> None:
        running.missing = len(appends) + len(running.row.effects) + 1
        for append in appends:
            self._append(running, append)
        for effect in running.row.effects:
            self._effect(running, effect)
        self._one_less(running)

    def _append(self, running: _Running, append: Append) -> None:
        topic = self._topics.get(append.topic.encode())
        if topic is None or topic.spec.id != append.topic_id:  # deleted meanwhile, and what was in it with it
            self._one_less(running)
            return
        try:
            topic.publish(
                bytearray(append.batch),
                RecordBatch(append.batch).count,
                False,
                partial(self._appended, running, append),
                append.partition,
            )
        except QuintetError as error:
            self._appended(running, append, -1, error)

    def _appended(self, running: _Running, append: Append, _offset: int, error: Exception | None) -> None:
        if error is None:
            self._one_less(running)
        else:
            self._later(running, error, partial(self._append, running, append))

    def _effect(self, running: _Running, effect: Effect) -> None:
        try:
            self._effects[effect[0]](effect[1], partial(self._effected, running, effect))
        except QuintetError as error:
            self._effected(running, effect, error)

    def _effected(self, running: _Running, effect: Effect, error: Exception | None) -> None:
        if error is None:
            self._one_less(running)
        else:
            self._later(running, error, partial(self._effect, running, effect))

    def _later(self, running: _Running, error: Exception, again: Callable[[], None]) -> None:
        """Committed is committed: what was refused is tried until it is taken, and whoever waits is told."""
        self._report("intent_waits", {"intent": running.row.number, "error": str(error)})
        self._again.append((self._scheduler.now() + RETRY_EVERY_US, again))
        waiters, running.waiters = running.waiters, []
        told = StorageError(
            f"committed, and not yet visible everywhere: {error}",
            hint="it is completed by itself when the disk takes it; asking again tells",
        )
        for done in waiters:
            done(told)

    def _one_less(self, running: _Running) -> None:
        running.missing -= 1
        if running.missing:
            return
        row = running.row
        self._forget(running)
        self.carried_out += 1
        try:
            if row.token:
                mark = IntentRow(row.number, row.token, row.owner, row.at, True, (), ())
                self._table.put(_key(row.number), mark)
                self._by_token[row.token] = mark
            else:
                self._table.delete(_key(row.number))
        except StorageError as error:  # a full disk: the row stays, and the next start finds all of it in place
            self._report("intent_waits", {"intent": row.number, "error": str(error)})
        waiters, running.waiters = running.waiters, []
        for done in waiters:
            done(None)

    def _forget(self, running: _Running) -> None:
        self._bytes -= running.bytes
        del self._running[running.row.number]

    # -- starting and time -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Carry out what the last run committed and did not finish. Blocks on reads: only used at start."""
        for row in sorted(self._table, key=lambda row: row.number):
            self._last = max(self._last, row.number)
            if row.token:
                self._by_token[row.token] = row
            if row.done:
                continue
            running = _Running(row, sum(len(append.batch) for append in row.appends))
            self._running[row.number] = running
            self._bytes += running.bytes
            missing = [append for place, append in enumerate(row.appends) if not self._is_there(row, place, append)]
            self._report("intent_resumed", {"intent": row.number, "appends": len(missing), "of": len(row.appends)})
            self._carry_out(running, missing)

    def _is_there(self, row: IntentRow, place: int, append: Append) -> bool:
        topic = self._topics.get(append.topic.encode())
        if topic is None or topic.spec.id != append.topic_id:
            return True
        partition = topic.partitions[append.partition]
        offset = max(append.floor, partition.start)
        while offset < partition.visible:
            batches = partition.read_now(offset)
            if not batches:
                return False
            for batch in batches:
                if _PRODUCER.unpack_from(batch.buffer, _PRODUCER_AT) == (INTENT_PRODUCER + row.number, place):
                    return True
            offset = batches[-1].next_offset
        return False

    def tick(self, now: int) -> None:
        """Try again what was refused, forget outcomes nobody will ask for. Called about every 50 ms."""
        if self._again:
            due = [call for at, call in self._again if at <= now]
            self._again = [item for item in self._again if item[0] > now]
            for call in due:
                call()
        while self._by_token:
            row = next(iter(self._by_token.values()))
            if not row.done or (now - row.at < MARK_KEEP_US and len(self._by_token) <= MARKS_MAX):
                break
            try:
                self._table.delete(_key(row.number))
            except StorageError:
                break
            del self._by_token[row.token]

    @property
    def unfinished(self) -> int:
        return len(self._running)


def _key(number: int) -> bytes:
    return str(number).encode()


def pack(value: Any) -> bytes:
    """The payload of an effect."""
    return msgspec.msgpack.encode(value)
