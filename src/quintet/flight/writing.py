"""From the record batches of a do_put to a stage: in the thread of the call, the broker is asked for topics only.

    do_put --> columns.from_batch --> kernel.scatter --> stage.append ... stage.finish --> sealed [--> committed at once]

Nothing is visible before the commit. When anything fails, and when the client goes away, the stage is discarded. gRPC ends the
rows of a client that went away as it ends those of one that has sent all: which of the two it was must be asked for, and is
asked for after the sync, which is late enough for the answer to be known.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet import kernel
from quintet.broker.atomic.stages import ONCE
from quintet.broker.core import Broker
from quintet.flight import columns, verbs, wire
from quintet.flight.bridge import Bridge, NoAnswer
from quintet.flight.login import Caller
from quintet.log.base import Stage
from quintet.model import limits
from quintet.model.errors import BadRequest, LimitExceeded, QuintetError, ShuttingDown, StorageError, TooLarge

BATCH_BYTES: Final = 1 << 20  # of a log batch that is made here
PUT_BATCH_BYTES_MAX: Final = 256 << 20  # of one record batch that a client sends
PUT_BATCH_ROWS_MAX: Final = 1 << 22  # the same in rows: some columns have no bytes
RECORD_BYTES_MAX: Final = (32 << 20) - (64 << 10)  # of one row: any door can hand out what this one takes
TOPICS_OF_PUT_MAX: Final = 1_000
ROOM_EVERY_BYTES: Final = 64 << 20  # of a stage: then it is asked whether its owner may have more
ROOM_EVERY_PARTS: Final = 4_096
PUT_WRITER: Final = "do_put"  # of what is published at once

assert BATCH_BYTES <= RECORD_BYTES_MAX <= limits.BATCH_BYTES_MAX


class Put:
    """One do_put under way."""

    def __init__(self, broker: Broker, bridge: Bridge, caller: Caller, gone: Callable[[], bool]) -> None:
        self._broker = broker
        self._bridge = bridge
        self._caller = caller
        self._gone = gone
        self._origin = b"flight:" + caller.name.encode()[:200]
        self._checked = (0, 0)  # bytes and parts of its stage, when it was last asked whether there is room
        self._targets: dict[str, tuple[int, int, int, str]] = {}  # number, partitions, whose turn it is, identity

    def publish(self, topic: str, batches: Iterable[pa.RecordBatch]) -> wire.Staged:
        """All of it or nothing."""
        staged = self.stage(wire.StageRequest(PUT_WRITER, ONCE, topic), batches)
        if staged.rows:
            try:
                self._commit(wire.StageCommit(PUT_WRITER, ONCE, (staged.stage,), staged.rows))
            except QuintetError:
                self._forget(staged.stage)  # nobody knows its name; passed over if it is committed
                raise
        return staged

    def _commit(self, ask: wire.StageCommit) -> None:
        """Until it is known how it went, however much has to be carried over: a client that is told to try again publishes
        its rows a second time. Asking again joins the commit that is under way."""
        unsure = False
        while True:
            try:
                self._bridge.wait_for(lambda: verbs.stage_commit(self._call(), ask))
                return
            except NoAnswer:
                unsure = True
            except ShuttingDown as error:
                if not unsure:
                    raise
                raise StorageError(
                    "the broker stops before it is known whether the rows were published",
                    hint="look at the end of the topic before you send them again",
                ) from error

    def stage(self, ask: wire.StageRequest, batches: Iterable[pa.RecordBatch]) -> wire.Staged:
        """Keep all of it until it is committed or aborted. Without rows there is no stage, and none is needed."""
        log, identity = self._broker.log.identity, ""
        if ask.topic:
            identity = self._target(ask.topic)[3]  # before anything is sent: what is refused is refused at once
        stage: Stage | None = None
        try:
            for batch in batches:
                for number, partition, data, count in self._scatter(ask.topic, batch):
                    if stage is None:
                        stage = self._bridge.ask(lambda: verbs.stage_open(self._call(), ask.writer, ask.batch_id))
                    stage.append(number, partition, data, count)
                    self._check_room(stage)
            if stage is None:
                return wire.Staged("", 0, 0, log, identity)
            stage.finish()
            if self._gone():
                raise BadRequest("the client went away before it had sent all rows", hint="send them again")
            self._bridge.ask(partial(self._broker.stages.sealed, stage))
        except BaseException:
            if stage is not None:
                self._throw_away(stage)
            raise
        return wire.Staged(stage.id, stage.rows, stage.bytes, log, identity)

    def _check_room(self, stage: Stage) -> None:
        """Now and then."""
        size, parts = self._checked
        if stage.bytes - size >= ROOM_EVERY_BYTES or len(stage.parts) - parts >= ROOM_EVERY_PARTS:
            self._checked = (stage.bytes, len(stage.parts))
            self._bridge.ask(partial(self._broker.stages.check_room, stage))

    def _throw_away(self, stage: Stage) -> None:
        stage.discard()
        self._forget(stage.id)

    def _forget(self, stage: str) -> None:
        """What cannot be told now is swept after a day, or at the next start; the first error is the one to be raised."""
        with suppress(QuintetError):
            self._bridge.ask(partial(self._broker.stages.abort, self._caller.name, [stage]))

    def _call(self) -> verbs.Call:
        return verbs.Call(self._broker, self._caller)

    def _scatter(self, topic: str, batch: pa.RecordBatch) -> Iterator[tuple[int, int, bytearray, int]]:
        """The log batches of a record batch: (number of the topic, partition, batch, its rows)."""
        self._bridge.check_open()
        for name, rows in _by_topic(topic, batch):
            number, partitions, turn, identity = self._target(name)
            self._targets[name] = (number, partitions, turn + 1, identity)
            taken = columns.from_batch(rows, self._broker.dead.is_dead(name))  # an archive of dead letters comes back
            try:
                made = kernel.scatter(*taken, partitions, turn, self._origin, 0, BATCH_BYTES)
            except ValueError as error:
                raise BadRequest(f"topic {name!r}: {error}", hint=f"it has {partitions} partitions") from None
            for partition, data, count in made:
                if len(data) > RECORD_BYTES_MAX:  # then it holds one row
                    raise TooLarge(f"topic {name!r}: a row of {len(data)} bytes, the limit is {RECORD_BYTES_MAX}")
                yield number, partition, data, count

    def _target(self, name: str) -> tuple[int, int, int, str]:
        found = self._targets.get(name)
        if found is None:
            if len(self._targets) >= TOPICS_OF_PUT_MAX:
                raise LimitExceeded(f"more than {TOPICS_OF_PUT_MAX} topics in one do_put")
            found = self._targets[name] = self._bridge.wait_for(lambda: verbs.target(self._call(), name))
        return found


def _by_topic(topic: str, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order: of the one that was named, or of those that the column names."""
    if topic:
        yield topic, batch
        return
    if "topic" not in batch.schema.names:
        raise BadRequest("the rows have no column `topic`, and the request names no topic", hint="give one of the two")
    names = batch.column("topic")
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        raise BadRequest(f"the column `topic` is {names.type}, it must be string")
    if names.null_count:
        raise BadRequest("the column `topic` is null in some rows", hint="every row needs the topic it goes to")
    found = columns.compute().unique(names)
    if len(found) > TOPICS_OF_PUT_MAX:
        raise LimitExceeded(f"{len(found)} topics in one record batch, the limit is {TOPICS_OF_PUT_MAX}")
    for name in found.to_pylist():
        try:
            yield name, batch.filter(columns.compute().equal(names, name))
        except pa.ArrowNotImplementedError as error:
            raise BadRequest(f"the rows cannot be sorted by topic: {error}", hint="cast this column") from None


def check(batch: pa.RecordBatch) -> None:
    """To be called before anything else touches what a client sent. Arrow believes the offsets that come over the wire: its
    functions would read, and hand on, whatever lies behind the batch in the broker's memory."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadRequest(f"a record batch does not add up: {error}", hint="send what your Arrow library made") from None
    if batch.num_rows > PUT_BATCH_ROWS_MAX:
        raise TooLarge(
            f"a record batch of {batch.num_rows} rows, the limit is {PUT_BATCH_ROWS_MAX}", hint="send smaller ones"
        )
    if batch.nbytes > PUT_BATCH_BYTES_MAX:
        raise TooLarge(
            f"a record batch of {batch.nbytes} bytes, the limit is {PUT_BATCH_BYTES_MAX}", hint="send smaller ones"
        )
