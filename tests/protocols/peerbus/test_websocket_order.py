"""WebSocket where the order of things matters: answers before a close frame, refusals at once, large answers to small
questions."""

import errno

import pytest

from quintet.protocols.peerbus import session
from tests.protocols.peerbus.helpers import broker, letter, peer_of
from tests.protocols.peerbus.test_websocket import REGISTER, closed_with, opened, registered
from tests.wire import peerbus as wire
from tests.wire.websocket import frame, frames_of


def test_no_data_follows_our_close_frame() -> None:
    peer = registered(broker())
    data = peer.exchange(frame(wire.ask_peers()) + frame(b"\x03\xe8", 8))
    assert [kind for kind, _ in frames_of(data)] == [1, 8]


def test_a_name_that_could_not_be_kept_is_told_at_once() -> None:
    sim = broker()
    peer = opened(sim)
    sim.disk.fail("fdatasync", 1, errno.EIO, times=10)
    assert closed_with(peer.exchange(REGISTER)) == (1011, "peer persistence failed")


def test_many_questions_in_one_read_do_not_make_many_answers_at_once() -> None:
    sim = broker()
    asker = registered(sim)
    for number in range(200):
        peer_of(sim, f"{number:03d}" + "n" * 197)
    size = len(wire.peers(sim.broker.peers.names())) + 10
    asker.room_bytes = 0
    asker.feed(frame(wire.ask_peers()) * 1_000 + frame(letter("amy", "amy", "m1")))
    assert 0 < len(asker.output) <= session.REPLIES_BYTES_MAX + 2 * size
    kinds = []
    while asker.output:
        kinds += [kind for kind, _ in frames_of(asker.take())]
        asker.room_bytes = 1
        if asker._rest:
            asker._offer()
        asker.room_bytes = 0
    assert kinds == [1] * 1_000 and asker._rest == b""
    sim.scheduler.run_until_idle()
    assert sim.broker.peers.sent == 1, "what follows the questions is read once"


def test_who_is_not_read_from_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = broker()
    peer = registered(sim)
    monkeypatch.setattr(sim.broker, "overloaded", lambda: True)
    for _ in range(10):
        peer.beat()
    assert peer.session.closing is None
    monkeypatch.setattr(sim.broker, "overloaded", lambda: False)
    for _ in range(10):
        peer.beat()
    assert peer.session.closing is not None
