"""WebSocket between a connection and a session, without a socket: the upgrade, frames and pieces, pings, how it ends."""

import asyncio
import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.net import websocket
from quintet.net.listener import SHUTTING_DOWN
from quintet.net.websocket import FRAGMENTS_MAX, FRAGMENTS_US, PART_US, PINGS_MAX, Heartbeat, WebSocketSession
from quintet.protocols.base import Session
from quintet.protocols.peerbus.frames import DELIVER_BYTES_MAX
from quintet.protocols.peerbus.session import LATE_ACKS_US, PeerSession
from quintet.testing.line import Peer, SimBroker
from tests.protocols.peerbus.helpers import broker, letter, peer_of
from tests.wire import peerbus as wire
from tests.wire.websocket import close_of, frame, frames_of

SECOND_US = 1_000_000
KEY = base64.b64encode(bytes(range(16))).decode()
HEAD = (
    "GET /any/path?x=1 HTTP/1.1\r\nHost: bus.example:47821\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"
)
UPGRADE = f"{HEAD}\r\n".encode()
REGISTER = frame(wire.register("ann-token", "amy"))


class SocketPeer(Peer):
    """A client over WebSocket. `watched` counts how often the listener was asked to look at the deadline."""

    def __init__(self, sim: SimBroker, origins: frozenset[str] = frozenset()) -> None:
        self.watched = 0
        self.heart = Heartbeat(asyncio.new_event_loop(), 30)
        self.heart._loop.close()

        def make(broker: Any, sink: Any, monotonic: int) -> Session:
            inner = PeerSession(broker, sink, monotonic, framed=False)
            return WebSocketSession(inner, self, self.heart, sim.scheduler.monotonic, origins)

        super().__init__(sim, make)

    def watch(self) -> None:
        self.watched += 1

    def beat(self) -> bytes:
        self.completed(self.heart, None, None)
        return self.take()

    def evict(self, reason: str) -> None:
        self.session.closing = self.session.closing or reason
        self._drain()


def opened(sim: SimBroker) -> SocketPeer:
    peer = SocketPeer(sim)
    assert peer.exchange(UPGRADE).startswith(b"HTTP/1.1 101 ")
    return peer


def registered(sim: SimBroker) -> SocketPeer:
    peer = opened(sim)
    assert [kind for kind, _ in frames_of(peer.exchange(REGISTER))] == [1]
    return peer


def closed_with(data: bytes) -> tuple[int, str]:
    (kind, payload) = frames_of(data)[-1]
    assert kind == 8
    return close_of(payload)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_every_length_of_turns_gives_one_output(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one in which no time is left before the first frame."""
    looks: list[int] = []

    def run(length: int) -> list[tuple[int, bytes]]:
        peer, at = opened(broker()), len(looks)
        peer.turn_frames = length
        over = peer.turn_over

        def noted() -> bool:
            looks.append(1)
            assert len(looks) - at < 1_000, "it does not get on"
            return over()

        monkeypatch.setattr(peer, "turn_over", noted)
        return frames_of(peer.exchange(REGISTER + frame(b"one", opcode=9) * 5))

    assert run(frames) == run(0) and len(run(frames)) == 6


class TestUpgrade:
    def test_the_answer_proves_that_the_key_was_read(self) -> None:
        answer = SocketPeer(broker()).exchange(UPGRADE).decode()
        accept = base64.b64encode(hashlib.sha1(f"{KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()
        assert f"Sec-WebSocket-Accept: {accept}\r\n" in answer
        assert "extensions" not in answer.lower(), "compression is never offered"

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (HEAD.replace("GET", "POST"), 400),
            (HEAD.replace("HTTP/1.1", "HTTP/1.0"), 400),
            (HEAD.replace("Upgrade: websocket", "Upgrade: h2c"), 426),
            (HEAD.replace("keep-alive, Upgrade", "keep-alive"), 426),
            (HEAD.replace("Version: 13", "Version: 8"), 426),
            (HEAD.replace(KEY, "c2hvcnQ="), 400),
            (HEAD.replace(KEY, "***"), 400),
            (HEAD.replace("Host:", "Hose:"), 400),
            (HEAD + "no colon\r\n", 400),
            (HEAD + " folded: x\r\n", 400),
            (HEAD + "X: \u00e9\r\n", 400),
            (HEAD + "Origin: https://evil.example\r\n", 403),
            (HEAD + "Origin: null\r\n", 403),
            (HEAD + "Origin: http://[bad\r\n", 403),
            (HEAD + "Origin: http://bus.example:47821\r\nOrigin: https://evil.example\r\n", 403),
            (HEAD + "Origin: http://bus.example:47821.evil.example\r\n", 403),
            (HEAD + "X: " + "x" * 9_000 + "\r\n", 431),
        ],
    )  # fmt: skip
    def test_what_is_no_upgrade_is_refused_in_http(self, head: str, status: int) -> None:
        peer = SocketPeer(broker())
        answer = peer.exchange(f"{head}\r\n".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()) and peer.session.closing

    @pytest.mark.parametrize("origin", ["http://bus.example:47821", "https://BUS.example:47821", "https://app.example"])
    def test_pages_of_the_host_and_of_the_list_may_connect(self, origin: str) -> None:
        peer = SocketPeer(broker(), frozenset({"https://app.example"}))
        assert peer.exchange(f"{HEAD}Origin: {origin}\r\n\r\n".encode()).startswith(b"HTTP/1.1 101 ")

    def test_who_never_asks_is_told_in_http(self) -> None:
        peer = SocketPeer(broker())
        peer.feed(b"GET / HT")
        deadline = peer.session.deadline()
        assert deadline is not None
        peer.session.tick(deadline)
        peer._drain()
        assert peer.take().startswith(b"HTTP/1.1 408 ")

    def test_a_limit_is_told_in_http(self) -> None:
        peer = SocketPeer(broker())
        peer.evict("more than 5 connections")
        assert peer.take().startswith(b"HTTP/1.1 503 ")


class TestHandshake:
    @pytest.mark.parametrize(
        ("data", "how"),
        [
            (frame(b"\x00", 2), (1003, "handshake must be text")),
            (frame(b"{", 1), (1007, "malformed handshake")),
            (frame(b'"\xff"', 1), (1007, "text is not UTF-8")),
            (frame(wire.ask_peers()), (1008, "first frame must be register")),
            (frame(wire.register("wrong", "amy")), (1008, "invalid bearer token")),
            (frame(b"x" * 20_000), (1009, "message too big")),
            (frame(wire.register("ann-token", "n" * 1_000)), (1008, "invalid peer name")),
        ],
    )
    def test_each_refusal_has_its_code(self, data: bytes, how: tuple[int, str]) -> None:
        peer = opened(broker())
        assert closed_with(peer.exchange(data)) == how

    def test_the_deadline_is_one_for_upgrade_and_register(self) -> None:
        sim = broker()
        peer = SocketPeer(sim)
        before = peer.session.deadline()
        sim.scheduler.advance(1_000_000)
        peer.exchange(UPGRADE)
        assert peer.session.deadline() == before is not None
        peer.session.tick(before)
        peer._drain()
        assert closed_with(peer.take()) == (1002, "no handshake frame")
        peer.close()


class TestFrames:
    @settings(max_examples=60, deadline=None)
    @given(cuts=st.lists(st.integers(1, 300), max_size=60))
    def test_every_chunking_gives_the_same_output(self, cuts: list[int]) -> None:
        def run(sizes: list[int] | None) -> tuple[bytes, bytes]:
            sim = broker()
            bob = peer_of(sim, "bob")
            peer = SocketPeer(sim)
            one = letter("amy", "bob", "m1")
            script = UPGRADE + REGISTER + frame(one) + frame(b"\x01", 2) + frame(b"pi", 9)
            two = letter("amy", "bob", "m2")
            script += frame(two[:50], 1, last=False) + frame(b"ng", 9) + frame(two[50:], 0) + frame(wire.ask_peers())
            peer.feed(script, sizes)
            sim.scheduler.run_until_idle()
            return peer.take(), bob.take()

        assert run(cuts) == run(None)

    def test_deliveries_are_text_messages(self) -> None:
        sim = broker()
        amy = registered(sim)
        bob = peer_of(sim, "bob")
        for size in (10, 1_000, 70_000):
            one = letter("bob", "amy", f"m{size}", '"' + "x" * size + '"')
            bob.feed(one + b"\n")
            sim.scheduler.run_until_idle()
            assert frames_of(amy.take()) == [(1, wire.deliver(f"m{size}", one))]

    @pytest.mark.parametrize(
        ("data", "how"),
        [
            (frame(b"x", reserved=0x40), (1002, "broken WebSocket frame")),  # a compressed message
            (b"\x81\x01x", (1002, "broken WebSocket frame")),
            (frame(b"x", 0), (1002, "broken WebSocket frame")),
            (frame(b"x", 1, last=False) + frame(b"y", 1), (1002, "broken WebSocket frame")),
            (frame(b"x", 1, last=False) + frame(b"y", 2), (1002, "broken WebSocket frame")),
            (frame(b"\xff"), (1007, "text is not UTF-8")),
            (frame(b"\xc3", 1, last=False) + frame(b"\x28", 0), (1007, "text is not UTF-8")),
            (b"\x81\xff" + (1 << 20 | 1).to_bytes(8, "big"), (1009, "message too big")),
            (frame(b"x" * 600_000, 1, last=False) + frame(b"x" * 500_000, 0), (1009, "message too big")),
            (frame(b"", 1, last=False) + frame(b"", 0, last=False) * FRAGMENTS_MAX, (1009, "message too big")),
            (frame(b"", 9) * (PINGS_MAX + 1), (1008, "too many pings")),
        ],
    )
    def test_what_is_forbidden_ends_it(self, data: bytes, how: tuple[int, str]) -> None:
        peer = registered(broker())
        assert closed_with(peer.exchange(data)) == how
        assert peer.session.closing is None, "its answer is waited for"
        assert peer.watched

    def test_pieces_of_a_message_have_a_time(self) -> None:
        sim = broker()
        peer = registered(sim)
        assert peer.session.deadline() is None
        peer.feed(frame(b"x", 1, last=False))
        assert peer.watched == 1 and peer.session.deadline() == sim.scheduler.monotonic() + FRAGMENTS_US
        peer.feed(frame(b"y", 0))
        assert peer.session.deadline() is None
        peer.feed(frame(b"x", 1, last=False))
        peer.session.tick(sim.scheduler.monotonic() + FRAGMENTS_US)
        peer._drain()
        assert closed_with(peer.take())[0] == 1008

    def test_the_time_of_pieces_stands_while_a_quota_holds_them_back(self) -> None:
        sim = broker()
        peer = registered(sim)
        assert isinstance(peer.session, WebSocketSession)
        peer.session.postpone(SECOND_US)
        assert peer.session.deadline() is None, "there is nothing to wait for"
        peer.feed(frame(b"x", 1, last=False))
        peer.session.postpone(SECOND_US)
        assert peer.session.deadline() == sim.scheduler.monotonic() + FRAGMENTS_US + SECOND_US
        peer.session.tick(sim.scheduler.monotonic() + FRAGMENTS_US)
        assert peer.take() == b""

    def test_almost_a_mebibyte_is_fine_also_in_pieces(self) -> None:
        sim = broker()
        peer, bob = registered(sim), peer_of(sim, "bob")
        bob.room_bytes = 1 << 30
        one = letter("amy", "bob", "m1", '"%s"')
        most = (1 << 20) - DELIVER_BYTES_MAX  # a peer reads a mebibyte, and this is around it
        one = one.replace(b"%s", b"x" * (most - len(one) + 2))
        assert len(one) == most
        pieces = [one[at : at + 1_100] for at in range(0, len(one), 1_100)]
        data = b"".join(
            frame(piece, 0 if at else 1, last=at == len(pieces) - 1, mask=bytes(4)) for at, piece in enumerate(pieces)
        )
        peer.exchange(data)
        assert one in bob.take()


class TestTheEnd:
    def test_after_our_close_everything_is_thrown_away_until_the_peers(self) -> None:
        sim = broker()
        peer = registered(sim)
        bob = peer_of(sim, "bob")
        big = b"\x81\xff" + (5 << 20).to_bytes(8, "big") + bytes(4)
        assert closed_with(peer.exchange(big)) == (1009, "message too big")
        for _ in range(5):
            assert peer.exchange(bytes(1 << 20)) == b""
        assert peer.exchange(frame(letter("amy", "bob", "m1"))) == b"" and bob.take() == b""
        assert peer.session.closing is None
        peer.exchange(frame(b"\x03\xf1", 8))
        assert peer.session.closing == "message too big"

    def test_a_peer_that_does_not_answer_our_close_is_left(self) -> None:
        sim = broker()
        peer = registered(sim)
        peer.exchange(frame(b"\xff"))
        deadline = peer.session.deadline()
        assert deadline == sim.scheduler.monotonic() + PART_US
        peer.session.tick(deadline)
        assert peer.session.closing is not None

    @pytest.mark.parametrize(
        ("payload", "answer"),
        [(b"", b"\x03\xe8"), (b"\x03\xe9bye", b"\x03\xe9"), (b"\x03", b"\x03\xe8"), (b"\x03\xe8\xff", b"\x03\xe8")],
    )
    def test_the_peers_close_is_answered(self, payload: bytes, answer: bytes) -> None:
        peer = registered(broker())
        assert frames_of(peer.exchange(frame(payload, 8) + frame(wire.ask_peers()))) == [(8, answer)]
        assert peer.session.closing == "", "nothing to say in the log"

    def test_the_end_of_the_broker_is_told(self) -> None:
        peer = registered(broker())
        peer.evict(SHUTTING_DOWN)
        assert closed_with(peer.take()) == (1001, "server shutting down")

    def test_who_is_taken_over_hears_nothing(self) -> None:
        sim = broker()
        peer = registered(sim)
        second = registered(sim)
        sim.advance(LATE_ACKS_US)
        assert peer.take() == b"" and peer.session.closing == "another connection took the name over"
        peer.close()
        assert second.session.closing is None

    def test_a_revoked_token_is_told(self) -> None:
        sim = broker()
        peer = registered(sim)
        sim.broker.set_credentials([])
        peer.session.receive(memoryview(b""), sim.scheduler.now())
        peer._drain()
        assert closed_with(peer.take()) == (1008, "token revoked")


class TestBeats:
    def test_silence_is_pinged_and_two_unanswered_pings_end_it(self) -> None:
        peer = registered(broker())
        assert peer.beat() == b"", "it has just spoken"
        assert peer.beat() == b"\x89\x00"
        assert peer.exchange(frame(b"", 10)) == b""
        assert [peer.beat() for _ in range(3)] == [b"", b"\x89\x00", b"\x89\x00"]
        assert closed_with(peer.beat())[0] == 1002 and peer.session.closing

    def test_pings_are_counted_between_two_beats(self) -> None:
        peer = registered(broker())
        for _ in range(3):
            assert len(frames_of(peer.exchange(frame(b"hi", 9) * PINGS_MAX))) == PINGS_MAX
            peer.beat()

    def test_one_timer_visits_all(self) -> None:
        loop = asyncio.new_event_loop()
        visited: list[int] = []

        class MessageConnection:
            def __init__(self, number: int) -> None:
                self.number = number

            def completed(self, token: object, result: object, error: Exception | None) -> None:
                visited.append(self.number)

            def watch(self) -> None:
                raise AssertionError("not asked for")

        heart = Heartbeat(loop, 0.032)
        sessions = [registered(broker()).session for _ in range(5)]
        for number, session in enumerate(sessions):
            assert isinstance(session, WebSocketSession)
            heart.add(session, MessageConnection(number))
        heart.start()

        async def all_visited() -> None:
            while set(visited) != set(range(5)):
                await asyncio.sleep(0.01)

        loop.run_until_complete(asyncio.wait_for(all_visited(), 60))
        for session in sessions:
            assert isinstance(session, WebSocketSession)
            heart.remove(session)
        heart.stop()
        loop.close()
        assert not any(heart._shares)


def test_the_length_of_a_frame_is_read_from_its_head() -> None:
    for size in (0, 125, 126, 65_535, 65_536):
        data = memoryview(frame(b"x" * size))
        assert websocket.frame_bytes(data, 0) == len(data)
        assert websocket.frame_bytes(data[:1], 0) is None
    assert websocket.frame_bytes(memoryview(frame(b"x" * 126))[:3], 0) is None
