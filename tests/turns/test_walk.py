"""No operation of any door, and no pipeline of them, keeps the loop for longer than the bound; every operation has an input.

Here the walk is thin: a hundred small requests, messages of 1 MiB. `make turns` walks with thousands and the largest messages,
and writes docs/TURNS.md.
"""

import socket
import threading
from collections.abc import Iterator

import pytest

from quintet.protocols import doors
from quintet.protocols.blipmq import frames as blip
from quintet.protocols.fast import frames as fast
from quintet.protocols.felix import frames as felix
from quintet.protocols.flymq import frames as fly
from quintet.protocols.flymq.door import FLYMQ_SDK
from quintet.protocols.peerbus import frames as peer
from tests.turns.inputs import Row, rows
from tests.turns.walk import BOUND_MS, Walk, walking
from tests.turns.wires import Fly

COUNT = 100
BYTES = 1 << 20
PARTITIONS = 50
SCALE = 0.01
WAIT_S = 30.0
ROWS = list(rows(COUNT, BYTES, PARTITIONS))


@pytest.fixture(scope="module")
def walk() -> Iterator[Walk]:
    with walking() as made:
        made.prepare(SCALE, PARTITIONS)
        yield made


def test_every_operation_of_every_door_has_an_input() -> None:
    found: dict[str, set[str]] = {}
    for row in ROWS:
        found.setdefault(row.door, set()).add(row.operation)
    peers = {kind or "envelope" for kind in peer.RIGHTS}
    assert found == {
        "blipmq": {blip.NAMES[kind] for kind, right in blip.RIGHTS.items() if right != "server"},
        "flymq": {operation.name for operation in fly.OPERATIONS.values()},
        "fast": {fast.NAMES[kind] for kind, right in fast.RIGHTS.items() if right != "server"},
        "peerbus": peers,
        "peerbus-tcp": peers,
        "felix": {name for name, right in felix.RIGHTS.items() if right != "server"},
    }


@pytest.mark.parametrize("door", [door.name for door in doors.DOORS if door is not FLYMQ_SDK])
def test_no_operation_keeps_the_loop_longer_than_the_bound(walk: Walk, door: str) -> None:
    results = [walk.measure(row) for row in ROWS if row.door == door]
    assert results, "a door without an input"
    slow = [f"{r.row.operation}, {r.row.what}: {r.ms:.1f} ms in {r.callback}" for r in results if r.ms > BOUND_MS]
    assert not slow, f"above {BOUND_MS} ms of processor time:\n" + "\n".join(slow)


def test_an_answer_that_comes_in_two_parts_belongs_to_its_run() -> None:
    """Else the rest of it is taken for the header of the next run's first answer, whose length is then waited for."""
    wire = Fly.__new__(Fly)
    wire.socket, broker = socket.socketpair()
    wire.socket.settimeout(WAIT_S)
    answer = Fly.frame(fly.TXN_COMMIT, txn_id="x" * 100)
    with wire.socket, broker:
        broker.sendall(answer[:20])
        later = threading.Timer(0.05, broker.sendall, (answer[20:],))
        later.start()
        assert not wire.run(Fly.frame(fly.WHOAMI))
        later.join()
        broker.sendall(answer * 2)
        assert not wire.run(Fly.frame(fly.WHOAMI) * 2)


def test_a_planted_slow_handler_is_caught() -> None:
    def named(row: Row) -> bool:
        return (row.door, row.operation) == ("flymq", "WHOAMI")

    (row,) = filter(named, rows(3, BYTES, PARTITIONS))
    with walking(planted=True) as walk:
        assert walk.measure(row).ms > 2 * BOUND_MS
