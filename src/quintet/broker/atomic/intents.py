"""Commits several changes as one record, carries them out, and finishes them after a crash: all happen, or none.

An intent is one record of the internal topic `__intents`: the batches to append, the effects to have, and who asked. One
record is one batch with one checksum, so after a crash it is whole or absent; that is the moment of commitment. Then it is
carried out, and when everything is durable the row goes away (or is kept as a mark, when the asker gave a token).

    commit ---> topics durable ---> written ---> carried out ---> row gone, or a mark
                     |                 |  ^           |
                     |                 |  +-- a partition or an effect refused: tried again every second
                     +-- refused       +----- crash: carried out by `recover`, before anything is served

A topic that was just made must be durable before an intent names it: a restart would take it for deleted.

An append's batch is in the row itself, or in a stage (stages.py) that the row names: then the row is small however much is
published, and the batches are carried over in their order, a bounded amount at a time (stage_publishing.py).

Carrying out twice does no harm. A batch of an intent has the producer id INTENT_PRODUCER + its number and its place in
the intent as sequence, so `recover` sees whether a partition already holds it: it looks only at what lies at or above
`floor`, which was durable before the intent was written (a topic that promises less may have lost it: then the floor is
lowered, durably, first). Effects must be idempotent by themselves, and must not undo what came after them: a crash just
before the row goes away has them once more. Transactions, due delayed messages and dead letters all stand on this;
readers need to know nothing of it, because nothing uncommitted is ever in a topic (ADR 8).
"""

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from quintet.broker.atomic.stage_publishing import Carry, Part
from quintet.broker.table import Done, Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.log.base import Partition, Stages
from quintet.model.batch import RecordBatch
from quintet.model.clocks import since
from quintet.model.errors import CorruptData, LimitExceeded, QuintetError, StorageError, TooLarge
from quintet.model.scheduler import Scheduler

INTENT_PRODUCER: Final = 1 << 63  # client producer ids are below
RETRY_EVERY_US: Final = 1_000_000
INTENT_BYTES_MAX: Final = 48 << 20  # of one: its row is one batch, and a batch has at most 64 MiB
UNFINISHED_BYTES_MAX: Final = 256 << 20  # of intents that are not yet carried out
MARK_KEEP_US: Final = 3_600_000_000  # how long a token's outcome is remembered
MARKS_MAX: Final = 100_000
MARKS_PER_TICK_MAX: Final = 1_000  # looked at, to forget them
STAGED_ROW_BYTES: Final = 80  # counted for an append whose batch is in a stage, and the name of its topic
NOTE_EVERY_APPENDS: Final = 256  # of a long carry-over: its row says how far it is
NOTES_MAX: Final = 8  # of one carry-over: each is written on the loop, and is as long as the row
THERE: Final = -1  # instead of a floor: it was appended, and is not looked for

_PRODUCER: Final = struct.Struct("<QI")  # producer_id and sequence, at 48
_PRODUCER_AT: Final = 48

Report = Callable[[str, dict[str, object]], None]
Effect = tuple[str, bytes]
Apply = Callable[[bytes, Done], None]


class Append(msgspec.Struct, frozen=True, array_like=True):
    """One unsealed batch for one partition; `floor` is what the partition showed when it was written, or THERE. Without
    `batch` it is `length` bytes at `position` of `stage`."""

    topic: str
    topic_id: int
    partition: int
    floor: int
    batch: bytes
    stage: str = ""
    position: int = 0
    length: int = 0


class Staged(NamedTuple):
    """A batch to append that lies in a stage."""

    topic: Topic
    partition: int
    stage: str
    position: int
    length: int


class IntentRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__intents` keeps. `done` rows hold only the token, its owner and the stages that were published: the outcome,
    for who asks again, and for a start that finds the files of these stages again."""

    number: int
    token: str
    owner: str
    at: int
    done: bool
    appends: tuple[Append, ...]
    effects: tuple[Effect, ...]
    stages: tuple[str, ...] = ()


class NotYetVisible(StorageError):
    """Committed, and something refused to take its part for now: it is tried until it is taken. Do not do it again."""

    code = "E1505"


class _Running:
    """An intent on its way: what is still missing, and who waits. `row` is None until it is written."""

    __slots__ = (
        "appends", "bytes", "carry", "complained", "effects", "error", "missing", "note_every", "noted", "number", "owner", "row", "there", "token",
        "staged", "stages", "waiters",
    )  # fmt: skip

    def __init__(self, number: int, token: str, owner: str, size: int) -> None:
        self.number = number
        self.token = token
        self.owner = owner
        self.bytes = size
        self.appends: Sequence[tuple[Topic, int, bytearray]] = ()
        self.staged: Sequence[Staged] = ()
        self.stages: tuple[str, ...] = ()
        self.carry: Carry | None = None
        self.effects: tuple[Effect, ...] = ()
        self.row: IntentRow | None = None
        self.there: set[int] = set()  # places of appends that are durable in their partitions
        self.noted = 0  # how many of them the row says
        self.note_every = NOTE_EVERY_APPENDS
        self.missing = 0
        self.error: Exception | None = None
        self.complained = False
        self.waiters: list[Done] = []


class Intents:
    """All intents that are not yet carried out, and the outcomes still remembered."""

    def __init__(
        self,
        table: Table[IntentRow],
        topics: Topics,
        scheduler: Scheduler,
        report: Report,
        stages: Stages,
    ) -> None:
        self._table = table
        self._stages = stages
        self._staged: Counter[str] = Counter()  # how many unfinished intents need a stage
        self._topics = topics
        self._scheduler = scheduler
        self.report = report
        self._effects: dict[str, Apply] = {}
        self._emptied: Callable[[Sequence[str]], None] = _nobody
        self._running: dict[int, _Running] = {}
        self._asked: dict[str, _Running] = {}  # by token, until it is written
        self._by_token: dict[str, IntentRow] = {}
        self._since: dict[str, int] = {}  # by token, when it was written, by the monotonic clock
        self._again: list[tuple[int, Callable[[], None]]] = []
        self._last = 0
        self._bytes = 0
        self.carried_out = 0

    def on_effect(self, kind: str, apply: Apply) -> None:
        """How an effect of this kind is had: `apply(payload, done)`, any number of times, with the same result as once.
        It appends on every call, also when memory already shows the result: the call before may have been refused."""
        self._effects[kind] = apply

    def on_emptied(self, call: Callable[[Sequence[str]], None]) -> None:
        """What is told of stages from which everything was carried over; some may be told of more than once."""
        self._emptied = call

    def outcome(self, token: str) -> IntentRow | None:
        """The intent of this token, if it was written: then it is committed, whatever is still under way."""
        return self._by_token.get(token)

    def asked(self, token: str) -> bool:
        """Was there a commit with this token, written or on its way?"""
        return token in self._by_token or token in self._asked

    def needs(self, stage: str) -> bool:
        """Is an unfinished intent still to be carried out from this stage?"""
        return self._staged[stage] > 0

    # -- committing ------------------------------------------------------------------------------------------------

    def commit(
        self,
        appends: Sequence[tuple[Topic, int, bytearray]],
        effects: Sequence[Effect],
        done: Done,
        token: str = "",
        owner: str = "",
        staged: Sequence[Staged] = (),
    ) -> None:
        """Do all of this or none. Raises a QuintetError if it cannot be taken now. `done(None)`: all of it is durable
        and visible. `done(NotYetVisible)`: committed, the rest follows by itself and without another call. `done` with
        any other error: it was not committed (if a sync failed, only the next start can tell). A token that was used
        before waits for that intent, and nothing is done twice. A stage that is named must be there until the end."""
        if token and self.join(token, done):
            return
        size = sum(len(batch) for _, _, batch in appends) + sum(len(payload) for _, payload in effects)
        size += sum(STAGED_ROW_BYTES + len(part.topic.raw) for part in staged)
        if size > INTENT_BYTES_MAX:
            raise TooLarge(f"{size} bytes in one transaction, the limit is {INTENT_BYTES_MAX}", hint="make it smaller")
        if self._bytes + size > UNFINISHED_BYTES_MAX:
            raise LimitExceeded(
                f"more than {UNFINISHED_BYTES_MAX >> 20} MiB of transactions wait for the disk", hint="try again soon"
            )
        places = {(topic, number) for topic, number, _ in appends} | {(part.topic, part.partition) for part in staged}
        for topic, number in places:
            topic.check_writable(number)
        self._last += 1
        running = _Running(self._last, token, owner, size)
        running.appends, running.effects, running.staged = appends, tuple(effects), staged
        running.stages = tuple(dict.fromkeys(part.stage for part in staged))
        unready = {topic.name: topic for topic, _ in places if topic.waiting}
        running.missing = len(unready)
        if not unready:
            self._write(running)
        self._begin(running)
        if token:
            self._asked[token] = running
        running.waiters.append(done)
        for topic in unready.values():
            topic.after(partial(self._ready, running))

    def join(self, token: str, done: Done) -> bool:
        row = self._by_token.get(token)
        if row is not None:
            self.wait(row, done)
            return True
        running = self._asked.get(token)
        if running is not None:
            running.waiters.append(done)
        return running is not None

    def wait(self, row: IntentRow, done: Done) -> None:
        """`done` when this committed intent is carried out: now, if it is."""
        running = self._running.get(row.number)
        if running is None:
            done(None)
        else:
            running.waiters.append(done)

    def _ready(self, running: _Running, error: Exception | None) -> None:
        """A topic that was being made is durable, or will never be."""
        running.error = running.error or error
        running.missing -= 1
        if running.missing:
            return
        if running.error is None:
            try:
                self._write(running)
            except Exception as refused:  # also what nobody expected: who waits for it, and its group, must not hang
                self.report("commit_failed", {"intent": running.number, "error": repr(refused)})
                running.error = refused
        if running.error is not None:
            self._refused(running, running.error)

    def _write(self, running: _Running) -> None:
        parts = []
        for place, (topic, number, batch) in enumerate(running.appends):
            _PRODUCER.pack_into(batch, _PRODUCER_AT, INTENT_PRODUCER + running.number, place)
            floor = topic.partitions[number].visible
            parts.append(Append(topic.name, topic.spec.id, number, floor, bytes(batch)))
        for part in running.staged:
            floor = part.topic.partitions[part.partition].visible
            where = (part.topic.name, part.topic.spec.id, part.partition, floor, b"")
            parts.append(Append(*where, part.stage, part.position, part.length))
        running.appends = running.staged = ()
        now, all_parts = self._scheduler.now(), tuple(parts)
        row = IntentRow(
            running.number, running.token, running.owner, now, False, all_parts, running.effects, running.stages
        )
        self._table.put(_key(row.number), row, partial(self._written, running, row))

    def _written(self, running: _Running, row: IntentRow, error: Exception | None) -> None:
        if error is not None:
            self._refused(running, error)
            return
        running.row = row
        if row.token:
            self._asked.pop(row.token, None)
            self._by_token[row.token] = row
            self._since[row.token] = self._scheduler.monotonic()
        self._carry_out(running, row, range(len(row.appends)))

    def _refused(self, running: _Running, error: Exception) -> None:
        self._forget(running)
        self._asked.pop(running.token, None)
        for done in running.waiters:
            done(error)

    # -- carrying out ----------------------------------------------------------------------------------------------

    def _carry_out(self, running: _Running, row: IntentRow, places: Sequence[int]) -> None:
        running.missing = len(places) + len(row.effects) + 1
        running.note_every = max(NOTE_EVERY_APPENDS, len(row.appends) // NOTES_MAX)
        staged = [place for place in places if row.appends[place].stage]
        if staged:
            running.carry = Carry(
                self._stages,
                [_part(place, row.appends[place]) for place in staged],
                partial(self._append_staged, running, row),
                partial(self._lost, running),
                partial(self._later, running),
            )
            running.carry.go()
        for place in places:
            append = row.appends[place]
            if not append.stage:
                self._append(running, place, append, bytearray(append.batch))
        for effect in row.effects:
            self._effect(running, effect)
        self._one_less(running)

    def _append_staged(self, running: _Running, row: IntentRow, place: int, batch: bytearray) -> None:
        _PRODUCER.pack_into(batch, _PRODUCER_AT, INTENT_PRODUCER + running.number, place)
        self._append(running, place, row.appends[place], batch)

    def _lost(self, running: _Running, place: int, why: Exception) -> None:
        """The disk lost a part of a stage after it was committed: said loudly, also to who waits, and the rest is still
        published."""
        running.error = CorruptData(f"committed, and the disk lost a part of it: {why}", hint="see the broker's log")
        self.report("stage_lost", {"intent": running.number, "place": place, "error": str(why)})
        self._one_less(running)

    def _append(self, running: _Running, place: int, append: Append, batch: bytearray) -> None:
        topic = self._find(append)
        if topic is None:
            self._landed(running, append)
            return
        try:
            done = partial(self._appended, running, place, append)
            topic.publish(batch, RecordBatch(batch).count, False, done, append.partition)
        except Exception as error:  # committed is committed: also after what nobody expected
            self._appended(running, place, append, -1, error)

    def _landed(self, running: _Running, append: Append) -> None:
        if append.stage and running.carry is not None:
            running.carry.landed(append.length)
        self._one_less(running)

    def _find(self, append: Append) -> Topic | None:
        """Its topic, or None: deleted meanwhile, and what was in it with it."""
        topic = self._topics.get(append.topic.encode())
        return topic if topic is not None and topic.spec.id == append.topic_id else None

    def _appended(self, running: _Running, place: int, append: Append, _offset: int, error: Exception | None) -> None:
        if error is None:
            topic = self._find(append)
            if topic is not None and topic.spec.durability == "fsync":  # others may lose it, and are looked into again
                running.there.add(place)
                if append.stage and len(running.there) - running.noted >= running.note_every:
                    self._note(running)
            self._landed(running, append)
        elif append.stage and running.carry is not None:
            running.carry.refused(_part(place, append), error)
        else:
            self._later(running, error, partial(self._append, running, place, append, bytearray(append.batch)))

    def _effect(self, running: _Running, effect: Effect) -> None:
        kind, payload = effect
        try:
            apply = self._effects.get(kind)
            if apply is None:
                raise CorruptData(f"intent {running.number}: nothing here knows effect {kind!r}: use a newer Quintet")
            apply(payload, partial(self._effected, running, effect))
        except Exception as error:
            self._effected(running, effect, error)

    def _effected(self, running: _Running, effect: Effect, error: Exception | None) -> None:
        if error is None:
            self._one_less(running)
        else:
            self._later(running, error, partial(self._effect, running, effect))

    def _later(self, running: _Running, error: Exception, again: Callable[[], None]) -> None:
        """Committed is committed: what was refused is tried until it is taken, and whoever waits is told."""
        if not running.complained:
            running.complained = True
            self.report("intent_waits", {"intent": running.number, "error": str(error)})
        self._retry(again)
        self._note(running)
        waiters, running.waiters = running.waiters, []
        told = NotYetVisible(
            f"committed, and not yet visible everywhere: {error}",
            hint="it is completed by itself when the disk takes it; asking again tells",
        )
        for done in waiters:
            done(told)

    def _note(self, running: _Running) -> None:
        """It may have to wait for long: what is there already is said in its row, before retention or compaction take it
        and the next start, which would not find it, appends it once more."""
        row = running.row
        if row is None or len(running.there) == running.noted:
            return
        running.noted = len(running.there)
        appends = (
            msgspec.structs.replace(append, floor=THERE, batch=b"", stage="") if place in running.there else append
            for place, append in enumerate(row.appends)
        )
        running.row = msgspec.structs.replace(row, appends=tuple(appends))
        with suppress(QuintetError):  # a full disk: said with the next progress, or found by looking
            self._table.put(_key(row.number), running.row)

    def _retry(self, call: Callable[[], None]) -> None:
        self._again.append((self._scheduler.monotonic() + RETRY_EVERY_US, call))

    def _one_less(self, running: _Running) -> None:
        running.missing -= 1
        if running.missing:
            return
        assert running.row is not None
        self._forget(running)
        self.carried_out += 1
        self._close(running.row)
        if running.stages:
            self._emptied(running.stages)
        waiters, running.waiters = running.waiters, []
        for done in waiters:
            done(running.error)

    def _close(self, row: IntentRow) -> None:
        """Take the row away, or leave the outcome in its place: tried until the disk takes it."""
        done = partial(self._closed, row)
        try:
            if row.token:
                mark = IntentRow(row.number, row.token, row.owner, row.at, True, (), (), row.stages)
                self._by_token[row.token] = mark
                self._table.put(_key(row.number), mark, done)
            else:
                self._table.delete(_key(row.number), done)
        except QuintetError as error:
            self._closed(row, error)

    def _closed(self, row: IntentRow, error: Exception | None) -> None:
        if error is not None:
            self._retry(partial(self._close, row))

    def _begin(self, running: _Running) -> None:
        self._running[running.number] = running
        self._bytes += running.bytes
        self._staged.update(running.stages)

    def _forget(self, running: _Running) -> None:
        self._bytes -= running.bytes
        for stage in running.stages:
            self._staged[stage] -= 1
            if not self._staged[stage]:
                del self._staged[stage]
        del self._running[running.number]

    # -- starting and time -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Carry out what the last run committed and did not finish. Blocks on reads: only used at start, after all that
        has effects was loaded."""
        now, monotonic = self._scheduler.now(), self._scheduler.monotonic()
        for row in sorted(self._table, key=lambda row: row.number):
            self._last = max(self._last, row.number)
            if row.token:
                self._by_token[row.token] = row
                self._since[row.token] = since(row.at, now, monotonic, MARK_KEEP_US)
            if row.done:
                self._emptied(row.stages)
                continue
            running = _Running(row.number, row.token, row.owner, sum(len(append.batch) for append in row.appends))
            running.stages = row.stages
            self._begin(running)
            missing = self._missing(row)
            self.report("intent_resumed", {"intent": row.number, "appends": len(missing), "of": len(row.appends)})
            lowered = tuple(self._lower(append) for append in row.appends)
            running.row = msgspec.structs.replace(row, appends=lowered)
            if lowered == row.appends:
                self._carry_out(running, row, missing)
            else:
                self._resume(running, running.row, missing)

    def _resume(self, running: _Running, row: IntentRow, missing: list[int]) -> None:
        """Carry it out once the lowered floors are durable."""

        def written(error: Exception | None) -> None:
            if error is None:
                self._carry_out(running, row, missing)
            else:
                self._later(running, error, partial(self._resume, running, row, missing))

        try:
            self._table.put(_key(row.number), row, written)
        except QuintetError as error:
            written(error)

    def _lower(self, append: Append) -> Append:
        topic = self._find(append)
        if topic is None:
            return append
        visible = topic.partitions[append.partition].visible
        return append if append.floor <= visible else msgspec.structs.replace(append, floor=visible)

    def _missing(self, row: IntentRow) -> list[int]:
        """The places of what is not in its partition yet: each partition is looked through once. What comes from stages is
        appended to a partition in its order, so there is nothing missing before one that is there, also if retention
        or compaction took it since."""
        floors: dict[tuple[str, int, int], int] = {}
        for append in row.appends:
            if append.floor != THERE and self._find(append) is not None:
                where = (append.topic, append.topic_id, append.partition)
                floors[where] = min(append.floor, floors.get(where, append.floor))
        there: set[int] = set()
        reached: dict[tuple[str, int, int], int] = {}
        for where, floor in floors.items():
            found = self._present(self._topics.find(where[0].encode()).partitions[where[2]], floor, row.number)
            reached[where] = max(found, default=-1)
            there |= found
        return [
            place
            for place, append in enumerate(row.appends)
            if place not in there
            and (where := (append.topic, append.topic_id, append.partition)) in floors
            and append.floor != THERE
            and not (append.stage and place < reached[where])
        ]

    @staticmethod
    def _present(partition: Partition, floor: int, number: int) -> set[int]:
        """The places of intent `number` that this partition holds at or above `floor`."""
        found: set[int] = set()
        offset = max(floor, partition.start)
        while offset < partition.visible:
            batches = partition.read_now(offset)
            if not batches:
                break
            for batch in batches:
                producer, place = _PRODUCER.unpack_from(batch.buffer, _PRODUCER_AT)
                if producer == INTENT_PRODUCER + number:
                    found.add(place)
            offset = batches[-1].next_offset
        return found

    def tick(self, monotonic: int) -> None:
        """Try again what was refused, forget outcomes nobody will ask for. Called about every 50 ms."""
        if self._again:
            again, self._again = self._again, []
            for at, call in again:
                if monotonic < at:
                    self._again.append((at, call))
                else:
                    call()
        for row in list(islice(self._by_token.values(), MARKS_PER_TICK_MAX)):
            if row.done and monotonic - self._since[row.token] < MARK_KEEP_US and len(self._by_token) <= MARKS_MAX:
                break
            del self._by_token[row.token]
            if not row.done:  # to the end of the line: it must not hold up the others
                self._by_token[row.token] = row
                continue
            try:
                self._table.delete(_key(row.number))
                del self._since[row.token]
            except QuintetError:
                self._by_token[row.token] = row
                break

    @property
    def unfinished(self) -> int:
        return len(self._running)


def _nobody(_stages: Sequence[str]) -> None:
    """The callback of a broker without stages: does nothing."""


def _key(number: int) -> bytes:
    return str(number).encode()


def _part(place: int, append: Append) -> Part:
    return Part(place, append.stage, append.position, append.length)


def pack(value: Any) -> bytes:
    """The payload of an effect."""
    return msgspec.msgpack.encode(value)
