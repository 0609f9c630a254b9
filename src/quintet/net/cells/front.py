"""Stands before the session of a client's connection and lets it reach every cell (ADR 44).

    client --> CellSession --- frames of this cell --> the session of this process
                    |
                    +--------- frames of another --> Leg --> a session of the same door in that cell's process

Requests of one connection are done in their order, also across cells: before the first frame for another cell than the one before,
everything that was asked is answered. Frames for the same cell run on behind each other. So answers leave in the order of their
requests, and a request sees what the ones before it did, without anybody looking at the answers. What sessions send by themselves
(deliveries) goes out as it comes, whole frames at a time.
"""

from collections.abc import Callable
from typing import Final

from quintet.model.batch import RecordBatch
from quintet.net.cells import wire
from quintet.net.cells.legs import Leg, Links, News
from quintet.net.turns import Turns
from quintet.protocols.base import WAIT, Session, SessionConnection
from quintet.protocols.routing import EVERY, REFUSED, Router, Run

NOTHING: Final = memoryview(b"")


class _Asked:
    """A request that all cells answer."""

    __slots__ = ("merge", "parts")

    def __init__(self, run: Run) -> None:
        assert run.each is not None and run.merge is not None
        self.merge = run.merge
        self.parts: dict[int, list[bytes]] = {cell: [] for cell in run.each}


class CellSession:
    """See above. Its connection takes it for the session itself."""

    __slots__ = ("_asked", "_door", "_inner", "_legs", "_links", "_out", "_own", "_peer", "_router", "_sink", "_stopped", "_turns", "_used", "_waits_for", "take_output")  # fmt: skip

    def __init__(
        self,
        inner: Session,
        router: Router,
        sink: SessionConnection,
        turns: Turns,
        links: Links,
        own: int,
        door: str,
        peer: str,
    ) -> None:
        self._inner = inner
        self._router = router
        self._sink = sink
        self._turns = turns
        self._links = links
        self._own = own
        self._door = door
        self._peer = peer
        self._legs: dict[int, Leg] = {}
        self._asked: _Asked | None = None
        self._out: list[bytes] = []
        self._waits_for: int | None = None  # the place of frames that wait until all before them is answered
        self._stopped = False
        self._used = False  # this process has done more for its client than the login
        self.take_output = inner.take_output  # until something comes from elsewhere

    # -- what the session says of itself -----------------------------------------------------------------------------

    @property
    def closing(self) -> str | None:
        return self._inner.closing

    @closing.setter
    def closing(self, reason: str | None) -> None:
        self._inner.closing = reason

    @property
    def auth_failures(self) -> int:
        return self._inner.auth_failures

    @property
    def principal_name(self) -> str | None:
        return self._inner.principal_name

    @property
    def operation(self) -> str:
        return self._inner.operation

    @property
    def request(self) -> str:
        return str(getattr(self._inner, "request", ""))

    @property
    def quick_ack(self) -> bool:
        return bool(getattr(self._inner, "quick_ack", False))

    @property
    def making(self) -> bool:
        return bool(getattr(self._inner, "making", False))

    @property
    def stopped(self) -> bool:
        return self._stopped or self._inner.stopped

    @property
    def holding(self) -> bool:
        return self._inner.holding or (self._waits_for is not None and not self._is_free(self._waits_for))

    @property
    def unanswered(self) -> int:
        return self._inner.unanswered + sum(not leg.idle for leg in self._legs.values())

    def congestion(self) -> int:
        if self._legs and any(leg.full for leg in self._legs.values()):
            return WAIT
        return self._inner.congestion()

    def deadline(self) -> int | None:
        return self._inner.deadline()

    def tick(self, monotonic: int) -> None:
        self._inner.tick(monotonic)

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        self._inner.on_appended(token, offset, error)

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        self._inner.on_records(subscription, partition, batch, first, last)

    def closed(self) -> None:
        for leg in self._legs.values():
            leg.end()
        self._legs.clear()
        self.take_output = self._inner.take_output  # not a method of ours, which would hold us
        self._inner.closed()
        del self._sink  # connection and session hold each other: no work for the collector

    # -- from the client ---------------------------------------------------------------------------------------------

    def receive(self, view: memoryview, now: int) -> int:
        inner, router = self._inner, self._router
        self._stopped, self._waits_for = False, None
        if not self._legs and inner.principal_name is not None and not inner.stopped and router.is_own(view, now):
            self._used = True
            return inner.receive(view, now)
        position = 0
        if not view or inner.stopped:  # rights have changed, or it left something for this turn
            inner.receive(NOTHING, now)
        while position < len(view) and inner.closing is None and not inner.stopped and not inner.holding:
            if router.needs_login and inner.principal_name is None:
                end = router.frame_end(view, position)
                taken = inner.receive(view[position:end], now) if end > position else 0
                if taken:
                    router.note(view[position : position + taken])
            else:
                run = router.run(view, position, now)
                taken = self._take(run, view, position, now) if run.end > position else 0
            if not taken:
                break
            position += taken
            if position < len(view) and self._sink.turn_over():
                self._stopped = True
                break
        return position

    def _take(self, run: Run, view: memoryview, position: int, now: int) -> int:
        """How many bytes of the view are done with: none if the run has to wait for the answers before it."""
        if not self._is_free(run.cell):
            self._waits_for = run.cell
            return 0
        size = run.end - position
        if run.cell == REFUSED:
            assert run.data is not None
            self._out.append(run.data)
            self.take_output = self._take_all
            return size
        if run.cell == EVERY:
            self._ask(run, now)
            return size
        if run.cell != self._own:
            if not self._used and self._hand_over(run.cell, view[position:]):
                return len(view) - position
            self._leg(run.cell).send(bytes(view[position : run.end]) if run.data is None else run.data)
            return size
        self._used = True
        if run.data is None:
            return self._inner.receive(view[position : run.end], now)
        return size if self._inner.receive(memoryview(run.data), now) else 0

    def _hand_over(self, cell: int, rest: memoryview) -> bool:
        """The first request is another cell's: let that one have the connection, if it can go on with it."""
        self._used = True
        if not self._router.at_once:
            return False
        if unsent := self._inner.take_output():  # of a login in the same read: only this process can send it
            self._out += unsent
            self.take_output = self._take_all
            return False
        said = wire.Opening(self._door, str(self._peer), "", self._router.login)
        return self._links.hand_over(cell, self._sink, said, bytes(rest))

    def take_over(self, login: bytes, now: int) -> bool:
        """The client was at another process until now: be what it is. Its login was answered there."""
        inner, router, view = self._inner, self._router, memoryview(login)
        self._used = True
        position = 0
        while position < len(view) and inner.closing is None:
            end = router.frame_end(view, position)
            inner.receive(view[position:end], now)
            router.note(view[position:end])
            position = end
        inner.take_output()
        return inner.closing is None and (inner.principal_name is not None or not router.needs_login)

    def _is_free(self, place: int) -> bool:
        """Is everything answered that was asked elsewhere than there?"""
        if self._asked is not None:
            return False
        if place != self._own and not self._own_is_idle():
            return False
        return all(leg.idle or cell == place for cell, leg in self._legs.items())

    def _own_is_idle(self) -> bool:
        inner = self._inner
        return not (inner.unanswered or inner.holding or inner.stopped)

    def _ask(self, run: Run, now: int) -> None:
        assert run.each is not None
        self._asked = _Asked(run)
        self.take_output = self._take_all
        for cell, frame in run.each.items():
            if cell == self._own:
                self._inner.receive(memoryview(frame), now)
            else:
                self._leg(cell).send(frame)

    # -- from other cells --------------------------------------------------------------------------------------------

    def _leg(self, cell: int) -> Leg:
        found, login = self._legs.get(cell), self._router.login
        if (
            found is not None and self._router.needs_login and found.said.login != login
        ):  # somebody else is on the connection
            found.end()
            found = None
        if found is None:
            found = self._legs[cell] = Leg(cell, self._sink, self._turns, self._opening(login))
            self._router.reached.add(cell)
            self.take_output = self._take_all
            self._connect(found)
        return found

    def _opening(self, login: bytes) -> wire.Opening:
        name = (self._inner.principal_name or "") if self._router.needs_login else ""
        return wire.Opening(self._door, str(self._peer), name, login)

    def _connect(self, leg: Leg) -> None:
        leg.connect(self._links.path(leg.cell), self._lost_leg(leg.cell))

    def _lost_leg(self, cell: int) -> Callable[[], None]:
        sink = self._sink
        return lambda: sink.evict(f"cell {cell} has ended its side of this connection: connect again")

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        if not isinstance(token, News):
            self._inner.on_completed(token, result, error)
        elif self._asked is not None and token.leg.cell in self._asked.parts:
            self._asked.parts[token.leg.cell] += token.outputs
        else:
            self._out += token.outputs

    def _take_all(self) -> list[bytes]:
        out = self._inner.take_output()
        asked = self._asked
        if asked is not None:
            asked.parts.setdefault(self._own, []).extend(out)
            out = []
            if self._own_is_idle() and all(leg.idle for leg in self._legs.values()):
                self._asked = None
                out = [asked.merge({cell: b"".join(said) for cell, said in asked.parts.items()})]
        if self._out:
            out, self._out = [*self._out, *out], []
        return out
