"""Answers are bounded: a peer that asks for much and takes nothing gets no more than it has room for."""

from quintet.protocols.flymq.session import OUTPUT_BYTES_MAX
from tests.protocols.flymq.helpers import Client, make_sim, request

VALUE = bytes(300_000)
FETCHES = 50


def test_a_flood_of_fetches_is_answered_as_the_peer_takes_them() -> None:
    sim = make_sim()
    client = Client(sim, "admin")
    for _ in range(4):
        client.ask("PRODUCE", topic="big", key=b"", value=VALUE, partition=0)
    peer = client.peer
    flood = request("FETCH", topic="big", partition=0, offset=0, max=4) * FETCHES
    peer.room_bytes = 0
    peer.feed(flood)
    sim.scheduler.settle()
    assert len(peer.output) <= OUTPUT_BYTES_MAX + 2 * 4 * len(VALUE)
    peer.room_bytes = 1
    peer.resume()
    sim.scheduler.settle()
    assert len(peer.take()) > FETCHES * 4 * len(VALUE)
