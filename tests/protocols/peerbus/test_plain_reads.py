"""Objects that the kernel reads while it splits a read: a session does with them what it does with those it reads by itself."""

from random import Random

import pytest

from quintet import kernel
from tests.protocols.peerbus.helpers import broker, dropped, letter, peer_of
from tests.protocols.peerbus.test_websocket import REGISTER, closed_with, opened, registered
from tests.wire import peerbus as wire
from tests.wire.websocket import frame, frames_of

PING, PONG, CLOSE, TEXT, BINARY, MORE = 9, 10, 8, 1, 2, 0


def pieces(rng: Random, number: int) -> bytes:
    """Something that a peer may send, most often plain."""
    id = f"m{rng.randrange(number + 1)}"
    whole = letter("amy", rng.choice(("amy", "bob", "nobody")), id)
    return rng.choice((
        frame(whole), frame(whole), frame(wire.ack(id)), frame(wire.ack(id)), frame(whole.replace(b",", b", ")), frame(letter("amy", "*", id)), frame(wire.ask_peers()),
        frame(b"p", PING), frame(b"", PONG), frame(b"x", BINARY), frame(b"{"), frame(letter("eve", "bob", id)), frame(letter("amy", "bob", "Zo\u00eb")),
        frame(whole[:9], TEXT, False) + frame(b"", PING) + frame(whole[9:], MORE),
    ))  # fmt: skip


def conversation(seed: int) -> tuple[bytes, bytes, dict[str, int], object, list[object]]:
    rng, sim = Random(seed), broker()
    bob, amy = peer_of(sim, "bob"), registered(sim)
    said = b""
    for number in range(60):
        amy.alone = rng.random() < 0.5
        data = b"".join(pieces(rng, number) for _ in range(rng.choice((1, 1, 2, 5, 40))))
        if number == 50 and seed % 3:
            data += rng.choice(
                (frame(b"\x03\xe8", CLOSE), frame(b"\xff"), frame(b"a", TEXT, False) + frame(wire.ack("m1")))
            )
        said += amy.exchange(data, [rng.randrange(1, 200) for _ in range(rng.choice((0, 3)))])
    states: list[object] = []
    for name in ("amy", "bob"):
        mailbox = sim.broker.peers.find(name)
        assert mailbox is not None and mailbox.subscription is not None
        states += [lane.state() for lane in mailbox.subscription.lanes]
    return said, bob.take(), dropped(sim), (amy.session.closing, sim.broker.peers.sent), states


@pytest.mark.parametrize("seed", range(12))
def test_reads_that_the_kernel_reads_differ_in_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read = conversation(seed)
    assert len(frames_of(read[0])) > 20
    monkeypatch.setattr(kernel, "peer_split", kernel.ws_split)
    assert conversation(seed) == read


def test_a_plain_object_within_a_message_in_pieces_is_a_broken_frame() -> None:
    for inside in (wire.ack("m1"), letter("amy", "amy", "m1")):
        amy = registered(broker())
        assert closed_with(amy.exchange(frame(b"{", TEXT, False) + frame(inside)))[0] == 1002


def test_who_was_taken_over_may_acknowledge_and_not_send() -> None:
    sim = broker()
    amy = registered(sim)
    amy.exchange(frame(letter("amy", "amy", "m1")))
    again = opened(sim)
    answer, repeated = frames_of(again.exchange(REGISTER))
    assert b"names" in answer[1] and b"m1" in repeated[1]
    amy.exchange(frame(wire.ack("m1")) + frame(letter("amy", "amy", "m2")))
    mailbox = sim.broker.peers.find("amy")
    assert sim.broker.peers.sent == 1 and mailbox is not None and mailbox.backlog == 0
