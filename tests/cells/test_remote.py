"""Who may open a leg at another node: a node of the same log, and the one that its certificate names."""

from typing import Any

from quintet.net.cells import wire
from quintet.net.cells.remote import GREETING_BYTES_MAX, GreetedLeg, Greeting, greeting

LOG = "0123"


class FakeConnection:
    """What a session asks of its connection before it is opened."""

    id = 1
    peer = "127.0.0.1:5"

    def __init__(self, node: str) -> None:
        self._node = node

    def certificate(self) -> dict[str, Any]:
        return {"subjectAltName": (("URI", f"quintet:node:{self._node}"),)}


def leg(said: bytes, *, certified: bool = True, node: str = "n1") -> tuple[GreetedLeg, int, list[str]]:
    reported: list[str] = []
    connection: Any = FakeConnection(node)
    turns: Any = None
    tell = lambda event, fields: reported.append(str(fields["reason"]))  # noqa: E731
    made = GreetedLeg({}, LOG, certified, tell, turns, {}, connection)
    return made, made.receive(memoryview(said), 0), reported


def test_a_node_of_the_same_log_is_let_in() -> None:
    said = greeting(Greeting("n1", LOG))
    for certified in (True, False):
        made, taken, reported = leg(said, certified=certified)
        assert (made.closing, taken, reported) == (None, len(said), [])
    assert leg(said[:-1])[1] == 0, "the rest is waited for"


def test_who_is_another_node_than_its_certificate_says_is_refused() -> None:
    made, taken, reported = leg(greeting(Greeting("n1", LOG)), node="n2")
    assert taken == 0
    assert made.closing == reported[0] == "a node says that it is n1, and its certificate is of n2"


def test_a_node_of_another_log_is_refused() -> None:
    made, taken, reported = leg(greeting(Greeting("n1", "4567")))
    assert taken == 0
    assert made.closing == reported[0] == "n1 has the log 4567, this node 0123"


def test_what_is_no_greeting_is_refused() -> None:
    large = wire.LENGTH.pack(GREETING_BYTES_MAX + 1)
    assert "the limit is 4096" in str(leg(large)[0].closing)
    assert leg(wire.LENGTH.pack(3) + b"abc")[0].closing is not None
    made, taken, _ = leg(large)
    assert made.receive(memoryview(greeting(Greeting("n1", LOG))), 0) == taken == 0, "it stays refused"
