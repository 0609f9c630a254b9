"""Keeps the stages of a cell: their files are in the WAL before an intent may name them, so each node has the same ones.

    leader    append ... -> file, synced -> parts in the WAL -> STAGE_SEALED in the WAL -> renamed -> an intent may name it
    follower  parts -> file, each synced -> STAGE_SEALED -> renamed

A stage that was not sealed when its leader ended was never promised. A follower removes what it has of it when another node
leads. The files of a stage that is removed go only when a mark has the removal: its parts may be read again before that.
Which stages there are, and when they are committed, is decided in broker/atomic/stages.py.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

from quintet.log.embedded.partitions.shared import Shared
from quintet.log.embedded.stages import OPEN, SEALED, FileStage, FileStages
from quintet.log.replicated.records import Entry, stage_part, stage_sealed, stages_removed
from quintet.model import limits
from quintet.model.errors import CorruptData, ShuttingDown, StorageError

PART_BYTES: Final = limits.MIB  # of one entry: the loop packs and checks it in about a millisecond


class StageHost(Protocol):
    """What stages ask of their engine. All of it is called on the loop, but `hand`."""

    def hand(self, call: Callable[[], None]) -> object:
        """Call on the loop, from any thread."""

    def ship_stage(self, entry: Entry, then: Callable[[], None]) -> None:
        """then() when the entry counts."""

    def owe(self, what: object) -> None:
        """No mark may be stored until this is paid."""

    def pay(self, what: object) -> None: ...

    def behind_mark(self, call: Callable[[], None]) -> None:
        """Call when a mark has what was read or confirmed so far."""

    def stage_failed(self, error: StorageError) -> None:
        """This node cannot write what the WAL has."""


class CellStage(FileStage):
    """See log.base.Stage. `finish` must not be called on the loop: it waits for the WAL."""

    __slots__ = ("_stages", "aborted", "shipped")

    _stages: "CellStages"
    aborted: bool  # its removal was shipped: nothing of it may follow
    shipped: bool  # the WAL may have something of it

    def of(self, stages: "CellStages") -> "CellStage":
        self._stages = stages
        self.aborted = self.shipped = False
        return self

    def finish(self) -> None:
        """Ships the file as it is on this disk, and renames it when all of it counts."""
        try:
            self._open()
            self._disk.fdatasync(self._handle)
            self._disk.fsync_dir(self._folder)  # a mark may have its first parts before it is renamed
            for position in range(0, self._position, PART_BYTES):
                size = min(PART_BYTES, self._position - position)
                data = self._disk.pread(self._handle, size, position)
                self._stages.ship(self, stage_part(self.id, position, data))
            self._stages.ship(self, stage_sealed(self.id, self._position), seals=True)
        except OSError as error:
            self._close()
            raise StorageError(f"stage {self.id} could not be read: {error}", hint="see the broker's log") from error
        except BaseException:
            self._close()
            raise
        self._stages.finished(self, super().finish)

    def discard(self) -> None:
        """What the WAL has is removed by way of the WAL: a node that reads it again must find its file."""
        if self.shipped:
            self._close()
        else:
            super().discard()


class CellStages(FileStages):
    """See log.base.Stages."""

    stage_type = CellStage

    def __init__(self, shared: Shared, directory: str, host: StageHost) -> None:
        super().__init__(shared, directory)
        self._host = host
        self._shipped: dict[str, CellStage | None] = {}  # of which the WAL has something; None: from before the start
        self._gone: set[str] = set()  # by the WAL; their files may still be there
        self._waiting: set[Future[None]] = set()  # threads that wait for the WAL
        self._over = False
        self._jobs: deque[tuple[Callable[[], None], Callable[[], None]]] = (
            deque()
        )  # one at a time, and what follows each
        self._files: set[str] = set()  # sealed, on this disk; of the jobs

    def recover(self, removed: tuple[str, ...]) -> None:
        """At the start, before anything is read. removed: by the mark, and perhaps still there. Blocks."""
        self._remove([*removed])
        names = self._shared.disk.listdir(self._folder)
        self._files = {name.removesuffix(SEALED) for name in names if name.endswith(SEALED)}

    @property
    def removed(self) -> tuple[str, ...]:
        """What a mark must name: its files may still be there."""
        return tuple(self._gone)

    # -- the leader ----------------------------------------------------------------------------------------------------

    def open(self, id: str, owner: str, writer: str, epoch: int) -> FileStage:
        stage = super().open(id, owner, writer, epoch)
        assert isinstance(stage, CellStage)
        return stage.of(self)

    def load(self) -> list[FileStage]:
        found = [stage for stage in super().load() if stage.id not in self._gone]
        self._shipped = {stage.id: None for stage in found}
        return found

    def ship(self, stage: CellStage, entry: Entry, seals: bool = False) -> None:
        """Have the WAL take an entry; returns when it counts. Not on the loop. seals: `finished` must follow."""
        stage.shipped = True
        counts: Future[None] = Future()
        self._host.hand(partial(self._ship, stage, entry, seals, counts))
        counts.result()

    def _ship(self, stage: CellStage, entry: Entry, seals: bool, counts: "Future[None]") -> None:
        if self._over or stage.aborted:
            why = "it was aborted" if stage.aborted else "the broker is stopping"
            counts.set_exception(ShuttingDown(f"stage {stage.id} is not taken: {why}"))
            return
        self._shipped[stage.id] = stage
        self._waiting.add(counts)
        self._host.ship_stage(entry, partial(self._counts, stage, seals, counts))

    def _counts(self, stage: CellStage, seals: bool, counts: "Future[None]") -> None:
        if seals:
            self._host.owe(stage.id)  # no mark may have it before its file has its name
        self._waiting.discard(counts)
        if not counts.done():
            counts.set_result(None)

    def finished(self, stage: CellStage, rename: Callable[[], None]) -> None:
        """The WAL has all of it. Not on the loop."""
        try:
            rename()
        except StorageError as error:
            self._host.hand(partial(self._host.stage_failed, error))
            raise
        self._host.hand(partial(self._renamed, stage.id))

    def _renamed(self, id: str) -> None:
        self._files.add(id)
        self._host.pay(id)

    def remove(self, ids: list[str]) -> None:
        shipped = [id for id in ids if id in self._shipped]
        alone = [id for id in ids if id not in self._shipped and id not in self._gone]
        if shipped:
            for id in shipped:
                stage = self._shipped.pop(id)
                if stage is not None:
                    stage.aborted = True
            self._host.ship_stage(stages_removed(shipped), partial(self.apply_removed, shipped))
        if alone:
            super().remove(alone)

    def stop(self) -> None:
        """Whoever waits for the WAL waits no more."""
        self._over = True
        waiting, self._waiting = self._waiting, set()
        for counts in waiting:
            counts.set_exception(ShuttingDown("the broker is stopping"))

    # -- a follower ----------------------------------------------------------------------------------------------------

    @property
    def is_occupied(self) -> bool:
        return bool(self._jobs)

    def apply_part(self, id: str, position: int, data: bytes) -> None:
        self._queue(partial(self._write_part, id, position, data))

    def apply_sealed(self, id: str, size: int) -> None:
        self._queue(partial(self._seal, id, size))

    def apply_removed(self, ids: list[str]) -> None:
        """The removal counts: files go when a mark says so too."""
        self._gone.update(ids)
        remove = partial(self._remove, ids)
        self._host.behind_mark(partial(self._queue, remove, partial(self._gone.difference_update, ids)))

    def drop_unsealed(self) -> None:
        """Another node leads: nobody will seal what the one before began."""
        self._queue(self._drop_unsealed)

    def _queue(self, job: Callable[[], None], then: Callable[[], None] = lambda: None) -> None:
        self._host.owe(job)
        self._jobs.append((job, then))
        if len(self._jobs) == 1:
            self._next()

    def _next(self) -> None:
        self._shared.scheduler.offload(self._jobs[0][0], self._done)

    def _done(self, result: object) -> None:
        job, then = self._jobs[0]
        if isinstance(result, BaseException):
            error = result if isinstance(result, StorageError) else StorageError(f"a stage: {result}")
            self._host.stage_failed(error)  # the queue stands still: this node writes nothing more
            return
        self._jobs.popleft()
        then()
        self._host.pay(job)
        if self._jobs:
            self._next()

    def _write_part(self, id: str, position: int, data: bytes) -> None:
        if id in self._files:
            return  # the WAL is read again
        disk, path = self._shared.disk, f"{self._folder}/{id}{OPEN}"
        if disk.mkdir(self._folder):
            disk.fsync_dir(self._folder.rpartition("/")[0])
        try:
            handle = disk.open(path, create=True, write=True)
        except FileExistsError:
            handle = disk.open(path, write=True)
        try:
            disk.pwritev(handle, [data], position)
            disk.fdatasync(handle)
        finally:
            disk.close(handle)
        disk.fsync_dir(self._folder)

    def _seal(self, id: str, size: int) -> None:
        if id in self._files:
            return
        disk, path = self._shared.disk, f"{self._folder}/{id}"
        found = -1
        with contextlib.suppress(FileNotFoundError):
            handle = disk.open(path + OPEN, write=True)
            try:
                found = disk.size(handle)
                disk.fdatasync(handle)
            finally:
                disk.close(handle)
        if found != size:
            raise CorruptData(
                f"stage {id} has {max(found, 0)} bytes on this disk and {size} in the WAL",
                hint="files are missing: make this node's data directory anew",
            )
        disk.rename(path + OPEN, path + SEALED)
        disk.fsync_dir(self._folder)
        self._files.add(id)

    def _drop_unsealed(self) -> None:
        disk = self._shared.disk
        for name in disk.listdir(self._folder):
            if name.endswith(OPEN):
                disk.unlink(f"{self._folder}/{name}")

    def _remove(self, ids: list[str]) -> None:
        super()._remove(ids)
        self._files.difference_update(ids)
