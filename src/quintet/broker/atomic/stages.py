"""Publishes records that several tasks have staged: they become visible together, and exactly once.

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

All bounds are of one owner: nobody keeps others from staging. A writer that is new where there is no room takes the place
of the one that committed nothing for longest, if that is a month or more; a younger fence is never given up.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from typing import ClassVar, Final

import msgspec

from quintet.broker.atomic.intent_rows import Effect
from quintet.broker.atomic.intents import Intents, NotYetVisible, Staged
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topics
from quintet.log.base import Stage
from quintet.log.base import Stages as Files
from quintet.model.clocks import since
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
STAGES_OF_OWNER_MAX: Final = 20_000  # open or sealed
PARTS_OF_OWNER_MAX: Final = 1 << 20  # batches in them, each of which takes memory
STAGED_BYTES_OF_OWNER_MAX: Final = 256 << 30  # the disk's own floor usually comes first
STAGE_KEEP_US: Final = 24 * 3600 * 1_000_000  # a stage nobody committed
SWEEP_EVERY_US: Final = 1_000_000
SWEPT_AT_ONCE_MAX: Final = 2_000  # stages looked at
WRITER_BYTES_MAX: Final = 128
EPOCHS_KEPT: Final = 128  # of one writer, with their sizes: Spark keeps 100 batches in a checkpoint
FENCES_OF_OWNER_MAX: Final = 10_000
FENCE_KEEP_US: Final = 30 * 24 * 3600 * 1_000_000  # at least, of a writer that commits nothing
STAGE_ID_BYTES: Final = 16

# Fresh: this call (or its first try) published it. And what is still to be carried out, if it is not yet visible.
Committed = tuple[bool, NotYetVisible | None]


class FencePut(Effect, frozen=True, array_like=True):
    """This epoch of a writer is published, with so many rows."""

    kind: ClassVar[str] = "fence"
    owner: str
    writer: str
    epoch: int
    rows: int


class FenceRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__fences` keeps of a writer: its last epochs, rising, each with the number of its rows, and when it committed
    the last time."""

    owner: str
    writer: str
    epochs: tuple[tuple[int, int], ...]
    at: int = 0

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
        self._since: dict[str, int] = {}  # of both, when it was opened, by the monotonic clock
        self._sealed_bytes: Counter[str] = Counter()  # by owner, as the next two
        self._sealed_parts: Counter[str] = Counter()
        self._count: Counter[str] = Counter()
        self._writers: dict[str, dict[str, int]] = {}  # of each owner, since when each commits nothing: longest first
        self._swept = 0
        self._unswept: list[str] = []
        self.committed = self.repeated = 0
        intents.on_effect(FencePut, self._put_fence)
        intents.on_emptied(self._emptied)

    def load(self) -> None:
        """Find what was sealed before the last stop."""
        now, monotonic = self._scheduler.now(), self._scheduler.monotonic()
        for stage in self._files.load():
            self._count[stage.owner] += 1
            self._since[stage.id] = since(stage.created, now, monotonic, STAGE_KEEP_US)
            self._seal(stage)
        for row in sorted(self._table, key=lambda row: row.at):
            self._writers.setdefault(row.owner, {})[row.writer] = since(row.at, now, monotonic, FENCE_KEEP_US)

    def __len__(self) -> int:
        return len(self._open) + len(self._sealed)

    # -- staging ---------------------------------------------------------------------------------------------------

    def open(self, owner: str, writer: str, epoch: int) -> Stage:
        """A new stage. Whoever gets it appends and finishes it, asks `check_room` now and then, and tells `sealed`; or
        discards it and tells `abort`."""
        _check_names(writer, epoch)
        if self._count[owner] >= STAGES_OF_OWNER_MAX:
            raise LimitExceeded(
                f"{owner} has {STAGES_OF_OWNER_MAX} stages, which is the limit", hint="commit or abort some"
            )
        self._check_owner(owner)
        stage = self._files.open(self._entropy(STAGE_ID_BYTES).hex(), owner, writer, epoch)
        self._open[stage.id] = stage
        self._since[stage.id] = self._scheduler.monotonic()
        self._count[owner] += 1
        return stage

    def check_room(self, stage: Stage) -> None:
        """Raises when its owner may not stage more, or it was given up."""
        if stage.id not in self._open:
            raise _gone(stage.id)
        self._check_owner(stage.owner)

    def _check_owner(self, owner: str) -> None:
        growing = [stage for stage in self._open.values() if stage.owner == owner]
        held = self._sealed_bytes[owner] + sum(stage.bytes for stage in growing)
        parts = self._sealed_parts[owner] + sum(len(stage.parts) for stage in growing)
        if held >= STAGED_BYTES_OF_OWNER_MAX or parts >= PARTS_OF_OWNER_MAX:
            raise LimitExceeded(
                f"the stages of {owner} hold {held} bytes in {parts} batches; the limits are {STAGED_BYTES_OF_OWNER_MAX} and"
                f" {PARTS_OF_OWNER_MAX}",
                hint="commit or abort some, and send larger record batches",
            )

    def sealed(self, stage: Stage) -> None:
        """It was finished, and may be committed. TransactionNotFound if it was aborted meanwhile."""
        if self._open.pop(stage.id, None) is None:
            self._files.remove([stage.id])
            raise _gone(stage.id)
        self._seal(stage)

    def _seal(self, stage: Stage) -> None:
        self._sealed[stage.id] = stage
        self._sealed_bytes[stage.owner] += stage.bytes
        self._sealed_parts[stage.owner] += len(stage.parts)

    def _drop(self, ids: Iterable[str]) -> None:
        """Forget these, and remove their files; those of an open one go when its writer notices."""
        gone = []
        for id in ids:
            stage = self._sealed.pop(id, None)
            if stage is not None:
                self._sealed_bytes[stage.owner] -= stage.bytes
                self._sealed_parts[stage.owner] -= len(stage.parts)
            else:
                stage = self._open.pop(id, None)
            if stage is not None:
                self._count[stage.owner] -= 1
                del self._since[id]
                gone.append(id)
        if gone:
            self._files.remove(gone)

    def abort(self, owner: str, ids: Iterable[str]) -> None:
        """Forget these, if they are this owner's and not being committed; the others are passed over."""
        self._drop(id for id in ids if self._may_drop(owner, id))

    def _may_drop(self, owner: str, id: str) -> bool:
        stage = self._sealed.get(id) or self._open.get(id)
        return stage is not None and stage.owner == owner and not self._intents.needs(id)

    # -- committing ------------------------------------------------------------------------------------------------

    def fence(self, owner: str, writer: str) -> int:
        """The highest epoch this writer committed; ONCE if it never did."""
        row = self._table.get(_key(owner, writer))
        return ONCE if row is None else row.last

    async def commit(
        self,
        owner: str,
        writer: str,
        epoch: int,
        ids: tuple[str, ...],
        rows: int,
        accept_other: bool,
        may: Callable[[str], None],
    ) -> Committed:
        """Publish these stages as this epoch, or find that it was published; `may` raises for a topic the owner may not
        publish to. Returns when all of it is durable and visible, or committed and NotYetVisible."""
        _check_names(writer, epoch)
        if epoch == ONCE and not ids and not rows:
            return True, None
        fence = self._table.get(_key(owner, writer))
        token = f"stage:{owner}\0{writer}\0{epoch}\0{_digest(ids) if epoch == ONCE else ''}"
        if fence is not None and epoch != ONCE and epoch <= fence.last:
            self._repeat(owner, fence, epoch, ids, rows, accept_other)
            return False, await _visible(self._intents.join(token)) if self._intents.asked(token) else None
        if self._intents.asked(token):  # the first call's answer was lost, or is on its way
            later = await _visible(self._intents.join(token))
            fence = self._table.get(_key(owner, writer))
            fresh = fence is None or epoch == ONCE or epoch > fence.last
            if fence is not None and not fresh:  # was it about the same rows?
                self._repeat(owner, fence, epoch, ids, rows, accept_other)
            return fresh, later
        staged = self._staged(owner, writer, epoch, ids, rows)
        for topic in {part.topic for part in staged}:
            may(topic.name)
        effects = [] if epoch == ONCE else [FencePut(owner, writer, epoch, rows)]
        if effects and fence is None:
            self._make_room(owner)
        later = await _visible(self._intents.commit([], effects, token=token, owner=owner, staged=staged))
        self.committed += later is None
        return True, later

    def _staged(self, owner: str, writer: str, epoch: int, ids: tuple[str, ...], rows: int) -> list[Staged]:
        """All batches of these stages, in order."""
        if len(set(ids)) < len(ids):
            raise BadRequest("a stage is named twice in one commit", hint="name each stage once")
        found = [self._find(owner, writer, epoch, id) for id in ids]
        counted = sum(stage.rows for stage in found)
        if counted != rows:
            raise BadRequest(f"the stages hold {counted} rows, the commit speaks of {rows}")
        wanted = {part.topic_id for stage in found for part in stage.parts}
        topics = {topic.spec.id: topic for topic in self._topics.all() if topic.spec.id in wanted}
        if len(topics) < len(wanted):
            raise TransactionNotFound(
                "a topic of these stages was deleted: they cannot be published", hint="stage again"
            )
        return [
            Staged(topics[part.topic_id], part.partition, stage.id, part.position, part.length)
            for stage in found
            for part in stage.parts
        ]

    def _make_room(self, owner: str) -> None:
        """For one more fence of this owner."""
        writers = self._writers.get(owner, {})
        if len(writers) < FENCES_OF_OWNER_MAX:
            return
        idle, at = next(iter(writers.items()))
        if self._scheduler.monotonic() - at < FENCE_KEEP_US:
            raise LimitExceeded(
                f"{FENCES_OF_OWNER_MAX} writers of {owner} have committed batches, the most that are kept apart",
                hint="use the checkpoints that are there, or another user",
            )
        self._table.delete(_key(owner, idle))
        del writers[idle]

    def _repeat(
        self, owner: str, fence: FenceRow, epoch: int, ids: tuple[str, ...], rows: int, accept_other: bool
    ) -> None:
        oldest = fence.epochs[0][0]
        known = dict(fence.epochs).get(epoch, rows if epoch < oldest else 0)  # one that was left out had none
        if known != rows and not accept_other:
            raise EpochDiffers(
                f"batch {epoch} of {fence.writer} was committed with {known} rows and comes again with {rows}, and batch"
                f" {fence.last} was committed already: the checkpoint was put back to an earlier state",
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
        if self._intents.needs(id):
            raise BadRequest(f"stage {id} is part of another commit", hint="name each stage in one commit only")
        return stage

    def _emptied(self, ids: Iterable[str]) -> None:
        """All of these is in its topics."""
        self._drop(id for id in ids if id in self._sealed)

    async def _put_fence(self, put: FencePut) -> None:
        owner, writer = put.owner, put.writer
        row = self._table.get(_key(owner, writer))
        epochs = dict(row.epochs if row is not None else ())
        epochs[put.epoch] = put.rows
        kept = tuple(sorted(epochs.items())[-EPOCHS_KEPT:])
        durable = self._table.put(_key(owner, writer), FenceRow(owner, writer, kept, self._scheduler.now()))
        writers = self._writers.setdefault(owner, {})
        writers.pop(writer, None)
        writers[writer] = self._scheduler.monotonic()
        await durable

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, monotonic: int) -> None:
        """Throw away what nobody will commit. Called about every 50 ms."""
        if monotonic - self._swept < SWEEP_EVERY_US:
            return
        self._swept = monotonic
        self._unswept = self._unswept or list(self._sealed)
        looked, self._unswept = self._unswept[:SWEPT_AT_ONCE_MAX], self._unswept[SWEPT_AT_ONCE_MAX:]
        stages = [stage for id in looked if (stage := self._sealed.get(id)) is not None]
        gone = [stage.id for stage in stages if self._abandoned(stage, monotonic)]
        late = [stage.id for stage in self._open.values() if monotonic - self._since[stage.id] > STAGE_KEEP_US]
        self._drop(gone + late)

    def _abandoned(self, stage: Stage, monotonic: int) -> bool:
        if self._intents.needs(stage.id):
            return False
        passed = stage.epoch != ONCE and stage.epoch <= self.fence(stage.owner, stage.writer)
        return passed or monotonic - self._since[stage.id] > STAGE_KEEP_US


async def _visible(committed: Awaitable[None]) -> NotYetVisible | None:
    """Wait for a commit: what it says if it is not yet visible everywhere."""
    try:
        await committed
    except NotYetVisible as later:
        return later
    return None


def _check_names(writer: str, epoch: int) -> None:
    if not 1 <= len(writer.encode(errors="replace")) <= WRITER_BYTES_MAX or not writer.isprintable():
        raise BadName(f"the name of a writer has 1 to {WRITER_BYTES_MAX} bytes, all of them printable")
    if not ONCE <= epoch < 1 << 62:
        raise BadRequest(f"an epoch is {ONCE} or a number from 0 on, not {epoch}")


def _digest(ids: Iterable[str]) -> str:
    return sha256("\0".join(ids).encode(errors="replace")).hexdigest()


def _key(owner: str, writer: str) -> bytes:
    return f"{owner}\0{writer}".encode()


def _gone(id: str) -> QuintetError:
    return TransactionNotFound(
        f"no stage {id} of yours: it was committed, aborted, or thrown away after a day", hint="stage it again"
    )
