"""Staged writes: any amount of records, handed in by several tasks, that become visible together and exactly once.

Spark's sink stands on this. Its tasks stage what they write, each in a stage of its own, and its driver commits: one intent
(intents.py) names all stages of the batch and carries the fence, so the moment the batch is committed is the moment it can
never be committed again. Nothing staged is in a topic before that.

    state \\ event   append / finish   commit                  abort        a day old   restart
    OPEN             keep it           refused                 -> gone      -> gone     gone
    SEALED           refused           -> COMMITTING           -> gone      -> gone     SEALED
    COMMITTING       refused           wait with the first     no effect    no effect   carried out, then gone

A writer is one sequence of batches, numbered by rising epochs: a Spark query, whose epochs are its batch ids. The fence of
a writer is the highest epoch it committed; a batch at or below it was published before, is not published again, and its
stages are thrown away. Its size must then be the same: a replay that differs means that the caller's memory was put back
(a checkpoint restored from a copy), and passing over it would lose what is new in it. ONCE is for a batch that is no part of
a sequence: its repetition is known for an hour (the token of its intent), and no fence is kept.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from quintet.broker.intents import Intents, Staged, pack
from quintet.broker.table import Done, Table
from quintet.broker.topics import Topic, Topics
from quintet.log.base import Stage
from quintet.log.base import Stages as Files
from quintet.model.errors import (
    BadName,
    BadRequest,
    EpochDiffers,
    LimitExceeded,
    QuintetError,
    TransactionNotFound,
)
from quintet.model.scheduler import Scheduler

TABLE: Final = (13, "__fences")
ONCE: Final = -1
STAGES_MAX: Final = 10_000  # open or sealed, of all owners together
STAGED_BYTES_MAX: Final = 256 << 30  # the same in bytes; the disk's own floor usually comes first
STAGE_KEEP_US: Final = 24 * 3600 * 1_000_000  # a stage nobody committed
SWEEP_EVERY_US: Final = 1_000_000
WRITER_BYTES_MAX: Final = 128
EPOCHS_KEPT: Final = 128  # of one writer, with their sizes: Spark keeps 100 batches in a checkpoint
FENCES_MAX: Final = 100_000
STAGE_ID_BYTES: Final = 16

_FENCE: Final = "fence"

Committed = Callable[[bool, Exception | None], None]  # fresh: this call (or its first try) published it


class FenceRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__fences` keeps of a writer: its last epochs, rising, each with the number of its rows."""

    owner: str
    writer: str
    epochs: tuple[tuple[int, int], ...]

    @property
    def last(self) -> int:
        return self.epochs[-1][0]


class Stages:
    """All stages and fences. `load` before the intents are recovered: an unfinished one may put a fence."""

    def __init__(
        self,
        table: Table[FenceRow],
        files: Files,
        topics: Topics,
        intents: Intents,
        scheduler: Scheduler,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._table = table
        self._files = files
        self._topics = topics
        self._intents = intents
        self._scheduler = scheduler
        self._entropy = entropy
        self._open: dict[str, Stage] = {}
        self._sealed: dict[str, Stage] = {}
        self._swept = 0
        self.committed = self.repeated = 0
        intents.on_effect(_FENCE, self._put_fence)

    def load(self) -> None:
        """Find what was sealed before the last stop."""
        self._sealed = {stage.id: stage for stage in self._files.load()}

    def __len__(self) -> int:
        return len(self._open) + len(self._sealed)

    # -- staging ---------------------------------------------------------------------------------------------------

    def open(self, owner: str, writer: str, epoch: int) -> Stage:
        """A new stage. Whoever gets it appends and finishes it, then tells `sealed`; or discards it and tells `abort`."""
        if not 1 <= len(writer.encode()) <= WRITER_BYTES_MAX:
            raise BadName(f"the name of a writer has 1 to {WRITER_BYTES_MAX} bytes")
        if not ONCE <= epoch < 1 << 62:
            raise BadRequest(f"an epoch is {ONCE} or a number from 0 on, not {epoch}")
        held = sum(stage.bytes for stages in (self._open, self._sealed) for stage in stages.values())
        if len(self) >= STAGES_MAX or held >= STAGED_BYTES_MAX:
            raise LimitExceeded(
                f"{len(self)} stages hold {held} bytes, which is the limit",
                hint="commit or abort some, or try again later",
            )
        stage = self._files.open(self._entropy(STAGE_ID_BYTES).hex(), owner, writer, epoch)
        self._open[stage.id] = stage
        return stage

    def sealed(self, stage: Stage) -> None:
        """It was finished, and may be committed. TransactionNotFound if it was aborted meanwhile."""
        if self._open.pop(stage.id, None) is None:
            self._files.remove([stage.id])
            raise _gone(stage.id)
        self._sealed[stage.id] = stage

    def abort(self, owner: str, ids: Iterable[str]) -> None:
        """Forget these, if they are this owner's and not being committed; the others are passed over. The files of an open
        stage go when its writer notices."""
        gone = []
        for id in ids:
            stage = self._sealed.get(id) or self._open.get(id)
            if stage is not None and stage.owner == owner and not self._intents.needs(id):
                self._sealed.pop(id, None)
                self._open.pop(id, None)
                gone.append(id)
        if gone:
            self._files.remove(gone)

    # -- committing ------------------------------------------------------------------------------------------------

    def fence(self, owner: str, writer: str) -> int:
        """The highest epoch this writer committed; ONCE if it never did."""
        row = self._table.get(_key(owner, writer))
        return ONCE if row is None else row.last

    def commit(
        self,
        owner: str,
        writer: str,
        epoch: int,
        ids: tuple[str, ...],
        rows: int,
        accept_other: bool,
        may: Callable[[str], None],
        done: Committed,
    ) -> None:
        """Publish these stages as this epoch, or find that it was published. Raises what is refused at once; `may` raises
        for a topic the owner may not publish to. `done(fresh, None)`: all of it is durable and visible."""
        fence = self._table.get(_key(owner, writer))
        if fence is not None and epoch != ONCE and epoch <= fence.last:
            self._repeat(owner, fence, epoch, ids, rows, accept_other)
            done(False, None)
            return
        token = f"stage:{owner}\0{writer}\0{epoch}\0{ids[0] if epoch == ONCE and ids else ''}"
        if self._intents.asked(token):  # the first call's answer was lost, or is on its way
            self._intents.commit([], [], partial(self._published, ids, rows, done), token=token)
            return
        staged = [part for id in ids for part in self._parts(self._find(owner, writer, epoch, id))]
        counted = sum(self._sealed[id].rows for id in ids)
        if counted != rows:
            raise BadRequest(f"the stages hold {counted} rows, the commit speaks of {rows}")
        for topic in {part.topic for part in staged}:
            may(topic.name)
        if fence is None and len(self._table) >= FENCES_MAX:
            raise LimitExceeded(f"{FENCES_MAX} writers have committed batches, the most that are kept apart")
        effects = [] if epoch == ONCE else [(_FENCE, pack((owner, writer, epoch, rows)))]
        told = partial(self._published, ids, rows, done)
        self._intents.commit([], effects, told, token=token, owner=owner, staged=staged)

    def _repeat(
        self, owner: str, fence: FenceRow, epoch: int, ids: tuple[str, ...], rows: int, accept_other: bool
    ) -> None:
        known = dict(fence.epochs).get(epoch, rows)
        if known != rows and not accept_other:
            raise EpochDiffers(
                f"batch {epoch} of {fence.writer} was committed with {known} rows and comes again with {rows}: the checkpoint"
                " was put back to an earlier state",
                hint="begin with a new checkpoint, or say failOnDataLoss=false to leave this batch as it was committed",
            )
        self.abort(owner, ids)
        self.repeated += 1

    def _find(self, owner: str, writer: str, epoch: int, id: str) -> Stage:
        stage = self._sealed.get(id)
        if stage is None or stage.owner != owner:
            raise _gone(id)
        if (stage.writer, stage.epoch) != (writer, epoch):
            raise BadRequest(
                f"stage {id} was staged for batch {stage.epoch} of {stage.writer}, not for {epoch} of {writer}"
            )
        return stage

    def _parts(self, stage: Stage) -> list[Staged]:
        found: dict[int, Topic] = {topic.spec.id: topic for topic in self._topics.all()}
        parts = []
        for part in stage.parts:
            topic = found.get(part.topic_id)
            if topic is None:
                raise TransactionNotFound(
                    f"a topic of stage {stage.id} was deleted: it cannot be published", hint="stage again"
                )
            parts.append(Staged(topic, part.partition, stage.id, part.position, part.length))
        return parts

    def _published(self, ids: tuple[str, ...], _rows: int, done: Committed, error: Exception | None) -> None:
        if error is None:
            self.committed += 1
            left = [id for id in ids if not self._intents.needs(id)]
            for id in left:
                self._sealed.pop(id, None)
            if left:
                self._files.remove(left)
        done(error is None, error)

    def _put_fence(self, payload: bytes, done: Done) -> None:
        owner, writer, epoch, rows = msgspec.msgpack.decode(payload, type=tuple[str, str, int, int])
        row = self._table.get(_key(owner, writer))
        epochs = dict(row.epochs if row is not None else ())
        epochs[epoch] = rows
        kept = tuple(sorted(epochs.items())[-EPOCHS_KEPT:])
        self._table.put(_key(owner, writer), FenceRow(owner, writer, kept), done)

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Throw away what nobody will commit. Called about every 50 ms."""
        if 0 <= now - self._swept < SWEEP_EVERY_US:
            return
        self._swept = now
        gone = [stage.id for stage in self._sealed.values() if self._abandoned(stage, now)]
        for id in gone:
            del self._sealed[id]
        late = [stage.id for stage in self._open.values() if now - stage.created > STAGE_KEEP_US]
        for id in late:
            del self._open[id]
        if gone or late:
            self._files.remove(gone + late)

    def _abandoned(self, stage: Stage, now: int) -> bool:
        if self._intents.needs(stage.id):
            return False
        passed = stage.epoch != ONCE and stage.epoch <= self.fence(stage.owner, stage.writer)
        return passed or now - stage.created > STAGE_KEEP_US


def _key(owner: str, writer: str) -> bytes:
    return f"{owner}\0{writer}".encode()


def _gone(id: str) -> QuintetError:
    return TransactionNotFound(
        f"no stage {id} of yours: it was committed, aborted, or thrown away after a day", hint="stage it again"
    )
