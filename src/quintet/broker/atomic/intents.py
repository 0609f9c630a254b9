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

Large batches are built, and a large row is encoded, by a thread (intent_rows.py). What is committed to the same partition after
such an intent waits behind it, so that order is kept; what goes elsewhere does not.

Carrying out twice does no harm. A batch of an intent has the producer id INTENT_PRODUCER + its number and its place in
the intent as sequence, so `recover` sees whether a partition already holds it: it looks only at what lies at or above
`floor`, which was durable before the intent was written (a topic that promises less may have lost it: then the floor is
lowered, durably, first). Effects must be idempotent by themselves, and must not undo what came after them: a crash just
before the row goes away has them once more. Transactions, due delayed messages and dead letters all stand on this;
readers need to know nothing of it, because nothing uncommitted is ever in a topic (ADR 8).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from quintet.broker.atomic.intent_rows import (
    APPLIED,
    INTENT_PRODUCER,
    Adding,
    Append,
    Effect,
    IntentRow,
    build,
    encode_unlocked,
    is_large,
    size_of,
    stored,
)
from quintet.broker.atomic.stage_publishing import Part, carry_over
from quintet.broker.slices import Elsewhere
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.log.base import Partition, Stages
from quintet.model import limits
from quintet.model.batch import RecordBatch, set_producer
from quintet.model.clocks import since
from quintet.model.errors import CorruptData, LimitExceeded, QuintetError, StorageError, TooLarge
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, gather, start_alone

RETRY_EVERY_US: Final = 1_000_000
INTENT_BYTES_MAX: Final = 48 << 20  # of one: its row is one batch, and a batch has at most 64 MiB
UNFINISHED_BYTES_MAX: Final = 256 << 20  # of intents that are not yet carried out
MARK_KEEP_US: Final = 3_600_000_000  # how long a token's outcome is remembered
MARKS_MAX: Final = 100_000
MARKS_PER_TICK_MAX: Final = 1_000  # looked at, to forget them
STAGED_ROW_BYTES: Final = 80  # counted for an append whose batch is in a stage, and the name of its topic
NOTE_EVERY_APPENDS: Final = 256  # of a long carry-over: its row says how far it is
NOTES_MAX: Final = 8  # of one carry-over: each is written on the loop, and is as long as the row
_NO_BATCH: Final = memoryview(b"")

Report = Callable[[str, dict[str, object]], None]
E = TypeVar("E", bound=Effect)
Apply = Callable[[E], Awaitable[None]]
Target = tuple[Topic, int]  # a partition


class Staged(NamedTuple):
    """A batch to append that lies in a stage."""

    topic: Topic
    partition: int
    stage: str
    position: int
    length: int


class _Plan(NamedTuple):
    """What an intent is to hold, and the partitions it goes to."""

    appends: Sequence[Adding]
    effects: tuple[tuple[str, bytes], ...]
    staged: Sequence[Staged]
    targets: Sequence[Target]


class NotYetVisible(StorageError):
    """Committed, and something refused to take its part for now: it is tried until it is taken. Do not do it again."""

    code = "E1505"


class _Running:
    """An intent on its way. `row` is None until it is written; `answer` is for those who wait now."""

    __slots__ = (
        "answer", "applied", "batches", "began", "bytes", "lost", "note_every", "noted", "number", "owner", "row",
        "stages", "token", "waits_for",
    )  # fmt: skip

    def __init__(self, number: int, token: str, owner: str, size: int, stages: tuple[str, ...], began: int) -> None:
        self.number = number
        self.began = began  # by the monotonic clock: asked for, or taken up by a start
        self.token = token
        self.owner = owner
        self.bytes = size
        self.stages = stages
        self.row: IntentRow | None = None
        self.batches: dict[int, bytearray] = {}  # by place: what is handed to the log, which seals it in place
        self.applied: set[int] = set()  # places of appends that are durable in their partitions
        self.noted = 0  # how many of them the row says
        self.note_every = NOTE_EVERY_APPENDS
        self.lost: Exception | None = None  # what the disk lost of a stage
        self.waits_for = ""  # what refused to take its part
        self.answer: Promise[None] = Promise()


class Waiting(NamedTuple):
    """A committed intent that something refuses to take its part of. `since`: by the monotonic clock."""

    number: int
    owner: str
    token: str
    bytes: int
    since: int
    why: str


class Intents:
    """All intents that are not yet carried out, and the outcomes still remembered."""

    def __init__(
        self,
        table: Table[IntentRow],
        topics: Topics,
        scheduler: Scheduler,
        report: Report,
        stages: Stages,
        elsewhere: Elsewhere,
    ) -> None:
        self._table = table
        self._stages = stages
        self._staged: Counter[str] = Counter()  # how many unfinished intents need a stage
        self._topics = topics
        self._scheduler = scheduler
        self._elsewhere = elsewhere
        self.report = report
        self._effects: dict[str, Callable[[bytes], Awaitable[None]]] = {}  # by kind, of its payload
        self._emptied: Callable[[Sequence[str]], None] = _nobody
        self._running: dict[int, _Running] = {}
        self._asked: dict[str, _Running] = {}  # by token, until it is written
        self._by_token: dict[str, IntentRow] = {}
        self._since: dict[str, int] = {}  # by token, when it was written, by the monotonic clock
        self._again: list[tuple[int, Promise[None]]] = []
        self._unwritten: dict[Target, Promise[None]] = {}  # its last intent that waits for a thread, or behind one
        self._last = 0
        self._bytes = 0

    def on_effect(self, kind: type[E], apply: Apply[E]) -> None:
        """Who applies effects of this type: any number of times, with the same result as once. It appends on every call,
        also when memory already shows the result: the call before may have been refused."""
        self._effects[kind.kind] = lambda payload: apply(kind.from_payload(payload))

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

    async def commit(
        self,
        appends: Sequence[Adding],
        effects: Sequence[Effect],
        token: str = "",
        owner: str = "",
        staged: Sequence[Staged] = (),
    ) -> None:
        """Do all of this or none: it returns when all of it is durable and visible. NotYetVisible: committed, the rest
        follows by itself and without another call. Any other error: it was not committed (if a sync failed, only the
        next start can tell). A token that was used before waits for that intent, and nothing is done twice. A stage that is
        named must be there until the end. What a batch is made of must not change before that."""
        if token and self.asked(token):
            await self.join(token)
            return
        packed = stored(effects)
        size = sum(size_of(batch) for _, _, batch in appends) + sum(len(payload) for _, payload in packed)
        size += sum(STAGED_ROW_BYTES + len(part.topic.raw) for part in staged)
        if size > INTENT_BYTES_MAX:
            raise TooLarge(f"{size} bytes in one transaction, the limit is {INTENT_BYTES_MAX}", hint="make it smaller")
        if self._bytes + size > UNFINISHED_BYTES_MAX:
            raise LimitExceeded(
                f"more than {UNFINISHED_BYTES_MAX >> 20} MiB of transactions wait for the disk", hint="try again soon"
            )
        targets = {(topic, number): None for topic, number, _ in appends}
        targets |= {(part.topic, part.partition): None for part in staged}
        for topic, number in targets:
            topic.check_writable(number)
        self._last += 1
        stages = tuple(dict.fromkeys(part.stage for part in staged))
        running = _Running(self._last, token, owner, size, stages, self._scheduler.monotonic())
        self._begin(running)
        if token:
            self._asked[token] = running
        answer = running.answer
        start_alone(self._scheduler, self._run(running, _Plan(appends, packed, staged, tuple(targets))))
        await answer

    async def join(self, token: str) -> None:
        """Wait for the commit of this token, as `commit` does. It must be asked for (`asked`)."""
        row = self._by_token.get(token)
        if row is not None:
            await self.wait(row)
        else:
            await self._asked[token].answer

    async def wait(self, row: IntentRow) -> None:
        """Until this committed intent is carried out."""
        running = self._running.get(row.number)
        if running is not None:
            await running.answer

    async def _run(self, running: _Running, plan: _Plan) -> None:
        """The whole life of an intent."""
        try:
            unready = {topic.name: topic for topic, _ in plan.targets if topic.waiting}
            await gather(*(topic_ready(topic) for topic in unready.values()))
            durable = await self._write(running, plan)
            del plan  # what the batches were made of may go
            await durable
        except Exception as error:  # also what nobody expected: who waits for it, and its group, must not hang
            if not isinstance(error, QuintetError):
                self.report("commit_failed", {"intent": running.number, "error": repr(error)})
            self._forget(running)
            self._asked.pop(running.token, None)
            running.answer.fail(error)
            return
        row = running.row
        assert row is not None
        if row.token:
            self._asked.pop(row.token, None)
            self._by_token[row.token] = row
            self._since[row.token] = self._scheduler.monotonic()
        await self._carry_out(running, row, range(len(row.appends)))

    async def _write(self, running: _Running, plan: _Plan) -> Promise[None]:
        """Hand the row to the log, behind those for the same partitions that came before it. What is returned is completed
        when it is durable."""
        large = sum(size_of(batch) for _, _, batch in plan.appends) > limits.LARGE_BYTES
        before = [self._unwritten[target] for target in plan.targets if target in self._unwritten]
        if not large and not before:
            return self._put(running, plan)
        written: Promise[None] = Promise()
        self._unwritten.update(dict.fromkeys(plan.targets, written))
        try:
            for earlier in before:
                await earlier
            return await self._put_large(running, plan) if large else self._put(running, plan)
        finally:
            for target in plan.targets:
                if self._unwritten.get(target) is written:
                    del self._unwritten[target]
            self._scheduler.soon(partial(written.resolve, None))  # not in this call: a long line would be a deep stack

    def _put(self, running: _Running, plan: _Plan) -> Promise[None]:
        built = [build(batch, running.number, place) for place, (_, _, batch) in enumerate(plan.appends)]
        row = running.row = self._row(running, plan, [memoryview(bytes(batch)) for batch in built])
        running.batches = dict(enumerate(built))
        return self._table.put(_key(row.number), row)

    async def _put_large(self, running: _Running, plan: _Plan) -> Promise[None]:
        """The same; a thread builds the batches and encodes the row."""
        row = self._row(running, plan, [_NO_BATCH] * len(plan.appends))
        batch, row, built = await self._elsewhere.finish(partial(_encode_with, plan.appends, row))
        running.row, running.batches = row, dict(enumerate(built))
        return self._table.put_built(_key(row.number), row, batch)

    def _row(self, running: _Running, plan: _Plan, batches: Sequence[memoryview]) -> IntentRow:
        parts = [
            Append(topic.name, topic.spec.id, number, topic.partitions[number].visible, batch)
            for (topic, number, _), batch in zip(plan.appends, batches, strict=True)
        ]
        for topic, number, stage, position, length in plan.staged:
            floor = topic.partitions[number].visible
            parts.append(Append(topic.name, topic.spec.id, number, floor, _NO_BATCH, stage, position, length))
        now, who = self._scheduler.now(), (running.number, running.token, running.owner)
        return IntentRow(*who, now, False, tuple(parts), plan.effects, running.stages)

    # -- carrying out ----------------------------------------------------------------------------------------------

    async def _carry_out(self, running: _Running, row: IntentRow, places: Sequence[int]) -> None:
        """Append what is at these places and have the effects, each until it is taken; then close the intent."""
        running.note_every = max(NOTE_EVERY_APPENDS, len(row.appends) // NOTES_MAX)
        staged = [place for place in places if row.appends[place].stage]
        carried = [self._carry_staged(running, row, staged)] if staged else []
        await gather(
            *carried,
            *(self._append(running, place, row.appends[place]) for place in places if not row.appends[place].stage),
            *(self._apply(running, kind, payload) for kind, payload in row.effects),
        )
        self._forget(running)
        start_alone(self._scheduler, self._close(row))
        if running.stages:
            self._emptied(running.stages)
        running.answer.finished(running.lost)

    async def _carry_staged(self, running: _Running, row: IntentRow, places: Sequence[int]) -> None:
        async def append(place: int, batch: bytearray) -> None:
            set_producer(batch, INTENT_PRODUCER + running.number, place)
            await self._append_once(running, place, row.appends[place], batch)

        def lost(place: int, why: Exception) -> None:
            """The disk lost a part of a stage after it was committed: said loudly, also to who waits, and the rest is
            still published."""
            running.lost = CorruptData(f"committed, and the disk lost a part of it: {why}", hint="see the broker's log")
            self.report("stage_lost", {"intent": running.number, "place": place, "error": str(why)})

        parts = [_part(place, row.appends[place]) for place in places]
        await carry_over(self._stages, parts, append, lost, partial(self._wait_again, running))

    async def _append(self, running: _Running, place: int, append: Append) -> None:
        """The log may have sealed a batch that it refused; it seals it anew when that is appended again."""
        while True:
            try:
                return await self._append_once(running, place, append, running.batches[place])
            except Exception as error:  # committed is committed: also after what nobody expected
                await self._wait_again(running, error)

    async def _append_once(self, running: _Running, place: int, append: Append, batch: bytearray) -> None:
        topic = self._find(append)
        if topic is None:
            return
        appended: Promise[int] = Promise()
        topic.publish(batch, RecordBatch(batch).count, False, appended.done, append.partition)
        await appended
        topic = self._find(append)
        if topic is not None and topic.spec.durability == "fsync":  # others may lose it, and are looked into again
            running.applied.add(place)
            if append.stage and len(running.applied) - running.noted >= running.note_every:
                self._note(running)

    def _find(self, append: Append) -> Topic | None:
        """Its topic, or None: deleted meanwhile, and what was in it with it."""
        topic = self._topics.get(append.topic.encode())
        return topic if topic is not None and topic.spec.id == append.topic_id else None

    async def _apply(self, running: _Running, kind: str, payload: bytes) -> None:
        while True:
            try:
                apply = self._effects.get(kind)
                if apply is None:
                    raise CorruptData(
                        f"intent {running.number}: nothing here knows effect {kind!r}: use a newer Quintet"
                    )
                return await apply(payload)
            except Exception as error:
                await self._wait_again(running, error)

    async def _wait_again(self, running: _Running, error: Exception) -> None:
        """Committed is committed: what was refused is tried until it is taken, and whoever waits is told."""
        if not running.waits_for:
            self.report("intent_waits", {"intent": running.number, "error": str(error)})
        running.waits_for = str(error)
        again = self._retry()
        self._note(running)
        answer, running.answer = running.answer, Promise()
        answer.fail(
            NotYetVisible(
                f"committed, and not yet visible everywhere: {error}",
                hint="it is completed by itself when the disk takes it; asking again tells",
            )
        )
        await again

    def _retry(self) -> Promise[None]:
        """Completed by `tick`, in a second."""
        again: Promise[None] = Promise()
        self._again.append((self._scheduler.monotonic() + RETRY_EVERY_US, again))
        return again

    def _note(self, running: _Running) -> None:
        """It may have to wait for long: what was applied already is said in its row, before retention or compaction take
        it and the next start, which would not find it, appends it once more."""
        row = running.row
        if row is None or len(running.applied) == running.noted:
            return
        running.noted = len(running.applied)
        appends = (
            msgspec.structs.replace(append, floor=APPLIED, batch=_NO_BATCH, stage="")
            if place in running.applied
            else append
            for place, append in enumerate(row.appends)
        )
        running.row = msgspec.structs.replace(row, appends=tuple(appends))
        start_alone(self._scheduler, self._put_note(running, running.row))

    async def _put_note(self, running: _Running, row: IntentRow) -> None:
        with suppress(QuintetError):  # a full disk: said with the next progress, or found by looking
            if not is_large(row):
                await self._table.put(_key(row.number), row)
                return
            batch, kept = await self._elsewhere.finish(partial(_encode, row))
            if running.row is row and running.number in self._running:  # no newer note, and the row was not closed
                running.row = kept
                await self._table.put_built(_key(row.number), kept, batch)

    async def _close(self, row: IntentRow) -> None:
        """Take the row away, or leave the outcome in its place: tried until the disk takes it."""
        mark = IntentRow(row.number, row.token, row.owner, row.at, True, (), (), row.stages)
        if row.token:
            self._by_token[row.token] = mark
        while True:
            try:
                return await (
                    self._table.put(_key(row.number), mark) if row.token else self._table.delete(_key(row.number))
                )
            except Exception:
                await self._retry()

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
            size = sum(len(append.batch) for append in row.appends)
            running = _Running(row.number, row.token, row.owner, size, row.stages, monotonic)
            self._begin(running)
            missing = self._missing(row)
            self.report("intent_resumed", {"intent": row.number, "appends": len(missing), "of": len(row.appends)})
            running.batches = {place: bytearray(row.appends[place].batch) for place in missing}
            start_alone(self._scheduler, self._resume(running, row, missing))

    async def _resume(self, running: _Running, row: IntentRow, missing: list[int]) -> None:
        """Carry it out; if floors must be lowered, once that is durable."""
        lowered = tuple(self._lower(append) for append in row.appends)
        running.row = msgspec.structs.replace(row, appends=lowered)
        while lowered != row.appends:
            try:
                await self._table.put(_key(row.number), running.row)
                break
            except Exception as error:
                await self._wait_again(running, error)
        await self._carry_out(running, running.row, missing)

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
            if append.floor != APPLIED and self._find(append) is not None:
                where = (append.topic, append.topic_id, append.partition)
                floors[where] = min(append.floor, floors.get(where, append.floor))
        present: set[int] = set()
        reached: dict[tuple[str, int, int], int] = {}
        for where, floor in floors.items():
            found = self._present(self._topics.find(where[0].encode()).partitions[where[2]], floor, row.number)
            reached[where] = max(found, default=-1)
            present |= found
        return [
            place
            for place, append in enumerate(row.appends)
            if place not in present
            and (where := (append.topic, append.topic_id, append.partition)) in floors
            and append.floor != APPLIED
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
                producer, place = batch.producer
                if producer == INTENT_PRODUCER + number:
                    found.add(place)
            offset = batches[-1].next_offset
        return found

    def tick(self, monotonic: int) -> None:
        """Try again what was refused, forget outcomes nobody will ask for. Called about every 50 ms."""
        if self._again:
            again, self._again = self._again, []
            for at, promise in again:
                if monotonic < at:
                    self._again.append((at, promise))
                else:
                    promise.resolve(None)
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

    def waiting(self) -> list[Waiting]:
        """Those that are committed and are tried again every second, the oldest first."""
        return [
            Waiting(one.number, one.owner, one.token, one.bytes, one.began, one.waits_for)
            for one in self._running.values()
            if one.waits_for
        ]


async def topic_ready(topic: Topic) -> None:
    """Until the row of a topic that was just made is durable; raises if it will never be."""
    ready: Promise[None] = Promise()
    topic.after(ready.finished)
    await ready


def _encode_with(appends: Sequence[Adding], row: IntentRow) -> tuple[bytearray, IntentRow, list[bytearray]]:
    """In a thread: this row with these batches as a batch of the table, the row itself, and the batches for the log."""
    built = [build(batch, row.number, place) for place, (_, _, batch) in enumerate(appends)]
    views = [memoryview(batch) for batch in built]
    try:
        parts = [*views, *(_NO_BATCH for _ in row.appends[len(views) :])]
        full = (msgspec.structs.replace(part, batch=view) for part, view in zip(row.appends, parts, strict=True))
        return (*_encode(msgspec.structs.replace(row, appends=tuple(full))), built)
    finally:
        for view in views:
            view.release()  # the log changes the length of a batch when it seals it


def _encode(row: IntentRow) -> tuple[bytearray, IntentRow]:
    """In a thread: this row as a batch of the table, and with its batches as views of what was encoded."""
    value, kept = encode_unlocked(row)
    return Table.build(_key(row.number), value), kept


def _nobody(_stages: Sequence[str]) -> None:
    """The callback of a broker without stages: does nothing."""


def _key(number: int) -> bytes:
    return str(number).encode()


def _part(place: int, append: Append) -> Part:
    return Part(place, append.stage, append.position, append.length)
