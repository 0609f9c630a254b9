"""Keeps users, keys, access rules and quotas of all cells those of cell 0, over one leg to each of them (ADR 48).

    cell 0     Spreading   on a new leg all rows, then each row that changes; a change is answered when every cell has taken it
    the others Following   takes rows and goes by them at once; opens no door before it has all of them

A leg says how many bytes of it are taken (wire.py, IDLE), which is all the acknowledgement there is. A cell that starts again, or
whose leg was lost, gets all rows anew. Of two legs the one that was accepted later counts: an earlier one is of a process of cell 0 that
has ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from quintet.broker.identity.shared import Row, SharedIdentity
from quintet.model.batch import RecordBatch
from quintet.model.client_address import ClientAddress
from quintet.model.errors import CellsBehind
from quintet.model.tasks import Promise
from quintet.net.cells import wire
from quintet.net.cells.legs import Leg, News
from quintet.net.connection import Connection
from quintet.net.turns import Turns
from quintet.protocols.base import FLOWING

NAME: Final = "identity"  # in the place of a door's name
TAKEN_S: Final = 10.0  # for all cells to take a change; then it is answered with CellsBehind
AGAIN_S: Final = 0.1  # between two tries to reach a cell


class Rows(msgspec.Struct, frozen=True):
    """What is said on the leg, each with its length before it."""

    whole: bool
    rows: list[Row]


def _encoded(rows: list[Row], whole: bool) -> bytes:
    body = msgspec.msgpack.encode(Rows(whole, rows))
    return wire.LENGTH.pack(len(body)) + body


# -- cell 0 -----------------------------------------------------------------------------------------------------------


class _Cell:
    """One of the others. To its leg it is the connection of a client."""

    def __init__(self, spreading: "Spreading", cell: int, path: str) -> None:
        self._spreading = spreading
        self._path = path
        self._leg: Leg | None = None
        self._marks: deque[tuple[int, int]] = deque()  # (bytes sent, the version that they reach)
        self._stale = False  # it takes nothing: changes were left out, and it gets all rows when it has what was sent
        self.cell = cell
        self.taken = -1  # the version that it goes by

    def connect(self) -> None:
        said = wire.Opening(NAME, "", "", b"")
        self._leg = self._spreading.make_leg(self.cell, self, self._spreading.turns, said)
        self._send_all()
        self._leg.connect(self._path, self._lost)

    def _lost(self) -> None:
        self._leg = None
        self._spreading.later(AGAIN_S, self.connect)

    def _send_all(self) -> None:
        self._marks.clear()
        self._stale = False
        self._send(_encoded(self._spreading.identity.rows(), True))

    def send(self, data: bytes) -> None:
        if self._leg is None or self._stale:
            return
        if self._leg.full:
            self._stale = True
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        assert self._leg is not None
        self._leg.send(data)
        self._marks.append((self._leg.sent, self._spreading.version))

    def end(self) -> None:
        if self._leg is not None:
            self._leg.end()

    # As its leg sees it.

    def completed(self, token: object, _result: object, _error: Exception | None) -> None:
        assert isinstance(token, News)
        while self._marks and self._marks[0][0] <= token.leg.answered:
            self.taken = self._marks.popleft()[1]
        if self._stale and not self._marks:
            self._send_all()
        self._spreading.told()

    def evict(self, _reason: str) -> None:
        """The leg is lost next, and made again."""

    def room(self) -> int:
        return 1


class Spreading:
    """Cell 0's side."""

    make_leg: Callable[..., Leg] = Leg

    def __init__(self, identity: SharedIdentity, turns: Turns, paths: Mapping[int, str]) -> None:
        self.identity = identity
        self.turns = turns
        self.version = 0  # one more with each row that changed
        self._cells = [_Cell(self, cell, path) for cell, path in paths.items()]
        self._waiting: list[tuple[int, Promise[None]]] = []
        self._ended = False

    def start(self) -> None:
        self.identity.watch(self._changed)
        for cell in self._cells:
            cell.connect()

    def stop(self) -> None:
        self._ended = True
        for cell in self._cells:
            cell.end()

    def _changed(self, row: Row) -> None:
        self.version += 1
        data = _encoded([row], False)
        for cell in self._cells:
            cell.send(data)

    def spread(self) -> Promise[None]:
        """Completed when every cell goes by all that has changed until now; CellsBehind if that takes longer than TAKEN_S."""
        promise: Promise[None] = Promise()
        self._waiting.append((self.version, promise))
        self.told()
        if promise.pending:
            self.later(TAKEN_S, lambda: self._give_up(promise))
        return promise

    def told(self) -> None:
        taken = min(cell.taken for cell in self._cells)
        done = [promise for version, promise in self._waiting if version <= taken]
        self._waiting = [each for each in self._waiting if each[0] > taken]
        for promise in done:
            promise.resolve(None)

    def _give_up(self, promise: Promise[None]) -> None:
        if not promise.pending:
            return
        version = next(version for version, each in self._waiting if each is promise)
        self._waiting = [each for each in self._waiting if each[1] is not promise]
        behind = ", ".join(str(cell.cell) for cell in self._cells if cell.taken < version)
        promise.fail(
            CellsBehind(
                f"the change was made, and cell {behind} of this broker has not taken it over within {TAKEN_S:g} s: it may go by what was before",
                hint="it takes it over as soon as it runs again; see quintet_cell_up in /metrics",
            )
        )

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        if not self._ended:
            asyncio.get_running_loop().call_later(seconds, self.turns.run, self._unless_ended, call)

    def _unless_ended(self, call: Callable[[], None]) -> None:
        if not self._ended:
            call()


# -- the others -------------------------------------------------------------------------------------------------------


class Following:
    """The side of another cell's process."""

    def __init__(self, identity: SharedIdentity) -> None:
        self._identity = identity
        self._newest = 0  # the connection that counts
        self.there = asyncio.Event()  # all rows were taken once

    def session(self, connection: Connection, _peer: ClientAddress, _said: wire.Opening) -> "FollowSession":
        return FollowSession(self, connection)

    def take(self, connection: int, said: Rows) -> bool:
        """False: a later leg has said what counts."""
        if connection < self._newest:
            return False
        self._newest = connection
        self._identity.take(said.rows, said.whole)
        if said.whole:
            self.there.set()
        return True


class FollowSession:
    """One leg of cell 0, behind a back.py::LegSession. It has nothing to say: that bytes are taken is said for it."""

    closing: str | None = None
    principal_name: str | None = "(cells)"
    auth_failures = 0
    holding = stopped = False
    operation = NAME

    def __init__(self, following: Following, connection: Connection) -> None:
        self._following = following
        self._connection = connection.id
        self._rest = bytearray()

    @property
    def unanswered(self) -> int:
        return int(bool(self._rest))

    def receive(self, view: memoryview, _now: int) -> int:
        rest = self._rest
        rest += view
        while self.closing is None and len(rest) >= wire.LENGTH.size:
            end = wire.LENGTH.size + int(wire.LENGTH.unpack_from(rest)[0])
            if len(rest) < end:
                break
            said = msgspec.msgpack.decode(bytes(rest[wire.LENGTH.size : end]), type=Rows)
            del rest[:end]
            if not self._following.take(self._connection, said):
                self.closing = "a later connection counts"
        return len(view)

    def congestion(self) -> int:
        return FLOWING

    def deadline(self) -> int | None:
        return None

    def tick(self, _monotonic: int) -> None:
        """It has no deadline."""

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        """It appends nothing."""

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        """It asks for nothing."""

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        """It subscribes to nothing."""

    def take_output(self) -> list[bytes]:
        return []

    def closed(self) -> None:
        """It holds nothing."""
