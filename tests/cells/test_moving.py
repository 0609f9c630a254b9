"""A cell that moves to another node says so: the node and its other cells go on, so "the broker is shutting down" would be wrong."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from quintet.broker.core import Broker
from quintet.cells.node import NodeCell
from quintet.model.errors import SHUTTING_DOWN, ShuttingDown
from quintet.net import listener
from quintet.testing.line import SimBroker
from tests.protocols.blipmq.helpers import nacks_of, publish, ready
from tests.protocols.fast.helpers import FastSim, token
from tests.protocols.felix.helpers import FelixSim, batch
from tests.protocols.flymq.helpers import Client, Refused, make_sim
from tests.wire import fast

MOVES = "cell 1 moves from node n1 to node n2"


def reason(successor: str) -> str:
    node = NodeCell.__new__(NodeCell)
    node.__dict__ |= {
        "place": SimpleNamespace(cell=1),
        "settings": SimpleNamespace(cell=SimpleNamespace(node="n1")),
        "_successor": successor,
    }
    return node._drain_reason()


def drain(broker: Broker) -> None:
    broker.drain_reason, broker.draining = MOVES, True


def test_a_cell_that_moves_says_from_where_to_where() -> None:
    assert reason("n2") == MOVES
    assert reason("") == SHUTTING_DOWN == listener.SHUTTING_DOWN, "the node itself stops"


def blipmq() -> str:
    sim = SimBroker()
    peer = ready(sim)
    drain(sim.broker)
    [(_, code, text)] = nacks_of(peer.exchange(publish(b"t", b"x")))
    assert code == 500
    return text


def fast_door() -> str:
    sim = FastSim()
    peer = sim.peer(fast.create(token(), b"demo"), extended=True)
    drain(sim.broker)
    peer.ask(fast.create(token(), b"new"))
    return peer.texts[-1]


def felix() -> str:
    sim = FelixSim()
    stream = sim.connect().auth()
    drain(sim.broker)
    (said,) = stream.ask(batch(b"a", request_id=1))
    return str(said[2])


def flymq() -> str:
    sim = make_sim()
    client = Client(sim, "admin")
    drain(sim.broker)
    with pytest.raises(Refused, match="E1700") as refused:
        client.ask("CREATE_TOPIC", topic="x", partitions=1)
    return str(refused.value)


@pytest.mark.parametrize("door", [blipmq, fast_door, felix, flymq])
def test_whoever_is_refused_by_a_cell_that_moves_is_told(door: Callable[[], str]) -> None:
    said = door()
    assert MOVES in said and SHUTTING_DOWN not in said, said


def test_flight_tells_it_to_calls_and_to_streams() -> None:
    pytest.importorskip("pyarrow")
    import asyncio

    from quintet.flight.bridge import Bridge
    from quintet.flight.outgoing import Outgoing

    loop = asyncio.new_event_loop()
    bridge = Bridge(loop)
    bridge.close(MOVES)
    with pytest.raises(ShuttingDown, match=MOVES):
        bridge.ask(int)
    loop.close()
    outgoing = Outgoing(10, lambda _peer: None)
    outgoing.close(MOVES)
    with pytest.raises(ShuttingDown, match=MOVES):
        outgoing.hold("a", 1)
