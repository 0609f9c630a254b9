"""The doors of a process that leads or follows: open in turn on sockets that another process keeps, and handed over to leaders only."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintet.cells.node import NodePlace, next_address
from quintet.model.cells import CellMap
from quintet.net.cells.sockets import Links, bind_links


@pytest.fixture
def place(tmp_path: Path) -> Iterator[NodePlace]:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as bound:
        links: list[Links] = bind_links(tmp_path, 2)
        yield NodePlace(1, CellMap(2), tmp_path, {"door": bound}, *links[1])
        for link in links:
            link.legs.close()
            link.handed.close()


def accepted(bound: socket.socket) -> bytes:
    """What comes through a connection that is made now."""
    with socket.create_connection(bound.getsockname(), timeout=5) as client:
        served, _ = bound.accept()
        with served:
            client.sendall(b"x")
            served.settimeout(5)
            return served.recv(1)


def test_doors_open_again_however_often_they_were_closed(place: NodePlace) -> None:
    bound = place.sockets["door"]
    for _ in range(2):
        place.close_doors()
        place.close_doors()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(bound.getsockname(), timeout=5)
        bound.listen()
        assert accepted(bound) == b"x"


def test_only_a_process_that_leads_is_handed_clients(place: NodePlace) -> None:
    assert not place.any_leads()
    place.open_doors()
    assert place.leads(1) and not place.leads(0) and place.any_leads()
    place.close_doors()
    assert not place.any_leads()


def test_processes_of_one_node_have_ports_behind_each_other() -> None:
    assert next_address("10.0.0.1:7790", 3) == "10.0.0.1:7793"
    assert next_address("[::1]:7790", 1) == "[::1]:7791"
    assert next_address("127.0.0.1:0", 1) == "127.0.0.1:0"
