"""CellSession without sockets: what waits for what, where output goes, and a control that must be found out."""

import pytest

from quintet.net.cells.front import CellSession
from quintet.net.cells.legs import News
from quintet.protocols.routing import EVERY, REFUSED, Run

OWN, OTHER, THIRD = 0, 1, 2
FRAME = 3  # a letter for the place, a digit that names it, and a letter of its own


class Inner:
    """Takes frames of three bytes, and answers one when it is told to."""

    closing: str | None = None
    principal_name: str | None = "ann"
    auth_failures = 0
    holding = stopped = False
    operation = ""

    def __init__(self) -> None:
        self.taken = b""
        self.out: list[bytes] = []
        self.unanswered = 0

    def receive(self, view: memoryview, _now: int) -> int:
        self.taken += bytes(view)
        self.unanswered += len(view) // FRAME
        return len(view)

    def answer(self, data: bytes) -> None:
        self.out.append(data)
        self.unanswered -= 1

    def take_output(self) -> list[bytes]:
        out, self.out = self.out, []
        return out


class Letters:
    """A router: the first byte of a frame is its cell, E every cell, R refused."""

    needs_login = at_once = False
    login = b""

    def __init__(self) -> None:
        self.reached: set[int] = set()

    def is_own(self, _view: memoryview, _now: int) -> bool:
        return False

    def run(self, view: memoryview, position: int, _now: int) -> Run:
        if len(view) - position < FRAME:
            return Run(OWN, position)
        first, end = chr(view[position]), position + FRAME
        frame = bytes(view[position:end])
        if first == "E":
            return Run(
                EVERY, end, each={OWN: frame, OTHER: frame}, merge=lambda parts: parts[OWN] + b"+" + parts[OTHER]
            )
        return Run(REFUSED, end, b"no ") if first == "R" else Run(int(first), end)


class Sink:
    """A connection whose turn never ends."""

    def turn_over(self) -> bool:
        return False


class FakeLeg:
    def __init__(self, cell: int) -> None:
        self.cell, self.idle, self.full, self.sent = cell, True, False, b""

    def send(self, data: bytes) -> None:
        self.sent += data
        self.idle = False


def front(kind: type[CellSession] = CellSession) -> tuple[CellSession, Inner, dict[int, FakeLeg]]:
    inner = Inner()
    made = kind(inner, Letters(), Sink(), None, None, OWN, "door", "peer")  # type: ignore[arg-type]
    legs = {OTHER: FakeLeg(OTHER), THIRD: FakeLeg(THIRD)}
    made._legs.update(legs)  # type: ignore[arg-type]
    made.take_output = made._take_all
    return made, inner, legs


def told(session: CellSession, leg: FakeLeg, data: bytes, idle: bool = True) -> None:
    leg.idle = idle
    session.on_completed(News(leg, [data] if data else []), None, None)  # type: ignore[arg-type]


def everything(session: CellSession, inner: Inner, legs: dict[int, FakeLeg], asked: bytes) -> bytes:
    """All answers, if what comes first answers last."""
    out, left = b"", asked
    for _ in range(50):
        left = left[session.receive(memoryview(left), 0) :]
        out += b"".join(session.take_output())
        for leg in (legs[THIRD], legs[OTHER]):
            if not leg.idle:
                told(session, leg, leg.sent.lower())
                leg.sent = b""
                break
        else:
            if inner.unanswered:
                at = len(inner.taken) - FRAME * inner.unanswered
                inner.answer(inner.taken[at : at + FRAME].lower())
        out += b"".join(session.take_output())
    assert not left
    return out


ASKED = b"0aA1bB1cC2dD0eE1fF0gG0hH"


def test_answers_come_in_the_order_of_requests() -> None:
    session, inner, legs = front()
    assert everything(session, inner, legs, ASKED) == ASKED.lower()


def test_a_front_that_does_not_wait_is_found_out() -> None:
    class Hasty(CellSession):
        __slots__ = ()

        def _is_free(self, place: int) -> bool:
            return True

    session, inner, legs = front(Hasty)
    assert everything(session, inner, legs, ASKED) != ASKED.lower()


def test_frames_of_one_cell_run_on_behind_each_other() -> None:
    session, inner, legs = front()
    assert session.receive(memoryview(b"1aA1bB0cC"), 0) == 2 * FRAME
    assert legs[OTHER].sent == b"1aA1bB" and not inner.taken and session.holding
    told(session, legs[OTHER], b"answer", idle=False)
    assert session.take_output() == [b"answer"] and session.holding
    told(session, legs[OTHER], b"")
    assert session.unanswered == 0
    assert session.receive(memoryview(b"0cC"), 0) == FRAME


def test_every_cell_is_asked_when_all_before_is_answered() -> None:
    session, inner, legs = front()
    assert session.receive(memoryview(b"2aAE10"), 0) == FRAME
    told(session, legs[THIRD], b"third")
    assert session.receive(memoryview(b"E10R20"), 0) == FRAME
    assert session.take_output() == [b"third"] and (inner.taken, legs[OTHER].sent) == (b"E10", b"E10")
    inner.answer(b"own")
    told(session, legs[THIRD], b"pushed")
    assert session.take_output() == [b"pushed"], "what was not asked goes on"
    told(session, legs[OTHER], b"other")
    assert session.take_output() == [b"own+other"]
    assert session.receive(memoryview(b"R20"), 0) == FRAME and session.take_output() == [b"no "]


@pytest.mark.parametrize("full", [False, True])
def test_a_client_is_not_read_from_while_a_cell_takes_nothing(full: bool) -> None:
    session, inner, legs = front()
    inner.congestion = lambda: 0  # type: ignore[attr-defined]
    legs[OTHER].full = full
    assert bool(session.congestion()) is full


class Ways:
    """Hands over, or says that it cannot."""

    def __init__(self, takes: bool) -> None:
        self.takes = takes
        self.handed: list[tuple[int, bytes]] = []

    def hand_over(self, cell: int, _connection: object, _said: object, read: bytes) -> bool:
        self.handed.append((cell, read))
        return self.takes


def handing(takes: bool) -> tuple[CellSession, Inner, dict[int, FakeLeg], Ways]:
    session, inner, legs = front()
    ways = Ways(takes)
    session._links = ways  # type: ignore[assignment]
    session._router.at_once = True
    return session, inner, legs, ways


def test_a_connection_is_handed_over_before_its_first_request() -> None:
    session, inner, legs, ways = handing(True)
    assert session.receive(memoryview(b"1aA0bB1"), 0) == 7, "with all that was read"
    assert ways.handed == [(OTHER, b"1aA0bB1")] and not inner.taken and not legs[OTHER].sent


def test_a_connection_that_was_used_here_stays() -> None:
    session, inner, legs, ways = handing(True)
    session.receive(memoryview(b"0aA"), 0)
    inner.answer(b"answer")
    session.take_output()
    session.receive(memoryview(b"1aA"), 0)
    assert not ways.handed and legs[OTHER].sent == b"1aA"


def test_a_login_that_is_not_answered_yet_keeps_a_connection_here() -> None:
    session, inner, legs, ways = handing(True)
    inner.out = [b"welcome"]
    session.receive(memoryview(b"1aA"), 0)
    assert not ways.handed and legs[OTHER].sent == b"1aA" and session.take_output() == [b"welcome"]
    session, inner, legs, ways = handing(False)
    session.receive(memoryview(b"1aA"), 0)
    assert ways.handed and legs[OTHER].sent == b"1aA", "it could not be given away"
