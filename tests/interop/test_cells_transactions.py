"""The end of a transaction over cells, asked for where nobody knows its cell: committed or not, and never counted by an empty part.

So it is at another node, and after a start: which cell a transaction is of is remembered by the processes that run, not by the log.
"""

from collections.abc import Iterator

import pytest

from quintet.model.cells import CellMap
from tests.client.server import Server, running_cells
from tests.wire.flymq import Client, Refused

CELLS = 2


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS) as found:
        yield found


def topic_of(cell: int, prefix: str) -> str:
    cells = CellMap(CELLS)
    return next(name for name in (f"{prefix}{n}" for n in range(100)) if cells.cell_of(name.encode()) == cell)


def client(server: Server) -> Client:
    return Client(server.fly.rpartition("@")[2]).login()


def forget_pins(server: Server) -> None:
    """As at another node: what runs goes on."""
    assert server.stop() == 0
    server.start()


@pytest.mark.parametrize("cell", range(CELLS))
def test_a_commit_is_answered_again_where_its_cell_is_not_known(server: Server, cell: int) -> None:
    topic = topic_of(cell, "told")
    with client(server) as wire:
        wire.create(topic, 1)
        done, left = wire.begin(), wire.begin()
        wire.txn_produce(done, topic, b"done", 0)
        wire.txn_produce(left, topic, b"left", 0)
        wire.commit(done)
    forget_pins(server)
    with client(server) as wire:
        wire.commit(done)
        for ask in (wire.commit, wire.rollback):
            with pytest.raises(Refused, match="transaction not found"):
                ask(left)
        with pytest.raises(Refused, match="transaction not found"):
            wire.rollback(done)
        assert wire.everything(topic) == [b"done"]


def test_an_id_that_is_none_is_refused_by_all_cells(server: Server) -> None:
    with client(server) as wire:
        for id in ("x|y", "x", "", "?x|?y"):
            with pytest.raises(Refused):
                wire.commit(id)
