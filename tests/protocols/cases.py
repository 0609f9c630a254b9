"""Laws every door obeys, written once; each door's test module subclasses `DoorLaws` with its own bytes.

chunking   every way of cutting the same bytes gives the same output
turns      so does every way of cutting the work into turns of the loop
order      replies keep the order of their requests, whatever the order in which durability completes
"""

import os
from random import Random

import pytest

from quintet.testing.line import Peer, SessionMaker, SimBroker

CHUNKINGS = 200 if os.environ.get("QUINTET_TEST_LONG") else 15
PIECE_BYTES = 37


class DoorLaws:
    """`script` is a byte stream that touches every reply of the door, durable publishes included."""

    make_session: SessionMaker
    seed = 20261115

    def script(self) -> bytes:
        raise NotImplementedError

    def run(self, chunks: list[int]) -> tuple[bytes, str | None]:
        sim = SimBroker()
        peer = Peer(sim, type(self).make_session)
        peer.feed(self.script(), chunks)
        sim.scheduler.run_until_idle()
        return peer.take(), peer.session.closing

    def test_every_chunking_gives_one_output(self) -> None:
        script = self.script()
        whole = self.run([])
        assert whole[0]
        assert self.run([1] * len(script)) == whole
        rng = Random(self.seed)
        for _ in range(CHUNKINGS):
            cuts = [rng.choice((1, 2, 3, 7, 13, 50, 200)) for _ in range(len(script))]
            assert self.run(cuts) == whole

    def test_reads_that_are_alone_give_the_same_output(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a lone read appended is sealed, written and answered before the read returns."""
        whole = self.run([])
        monkeypatch.setattr(Peer, "alone", True)
        assert self.run([]) == whole
        rng = Random(self.seed)
        for _ in range(CHUNKINGS):
            cuts = [rng.choice((7, 13, 50, 200)) for _ in range(len(self.script()))]
            assert self.run(cuts) == whole

    def test_cut_at_every_byte(self) -> None:
        """Every byte is the last of its piece in one of the runs, behind pieces of whole frames and of parts of them."""
        whole, size = self.run([]), len(self.script())
        for first in range(1, min(PIECE_BYTES, size) + 1):
            assert self.run([first] + [PIECE_BYTES] * (size // PIECE_BYTES)) == whole, f"first piece of {first} bytes"

    @pytest.mark.parametrize("frames", [1, 2, 3, 7])
    def test_every_length_of_turns_gives_one_output(self, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = self.run([])
        offers: list[Peer] = []
        again = Peer._let_go
        monkeypatch.setattr(Peer, "turn_frames", frames)

        def noted(peer: Peer) -> None:
            again(peer)
            offers.append(peer)

        monkeypatch.setattr(Peer, "_let_go", noted)
        assert self.run([]) == whole
        assert frames > 2 or max(peer.offers for peer in offers) > 0, "no turn ended before the input did"
