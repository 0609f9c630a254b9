"""Streams of a QUIC connection that wait: large answers, streams held up by their connection, streams that are gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quintet.model import limits
from quintet.net.quic import endpoint as quic_endpoint
from quintet.net.quic import events as quic_events
from quintet.net.quic import twin as quic_twin
from tests.net import quic_peers
from tests.net.quic_peers import NATIVE, EchoSession, peer_of, serving, until

ANSWER = 1_400_000  # bytes: more than a stream has room for at a time
ASK = b"many %d\n" % ANSWER


@pytest.fixture(params=["twin", "native"], autouse=True)
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "native" and NATIVE is None:
        pytest.skip("the kernel is pure: there is no native QUIC endpoint to test")
    chosen: Any = quic_twin.QuicEndpoint if name == "twin" else NATIVE
    monkeypatch.setattr(quic_endpoint, "endpoint_class", lambda: chosen)
    monkeypatch.setattr(quic_peers, "EchoSession", StoppingSession)
    return name


class StoppingSession(EchoSession):
    """Stops behind every large answer, as a session of the cache does."""

    def receive(self, view: memoryview, now: int) -> int:
        self.stopped = False
        used = 0
        while not self.stopped and (end := bytes(view[used:]).find(b"\n") + 1):
            super().receive(view[used : used + end], now)
            used += end
            self.stopped = sum(map(len, self._out)) >= limits.MIB
        return used


async def test_large_answers_taken_at_once_do_not_hold_the_stream_for_ever(tmp_path: Path) -> None:
    window = {"stream_window": 16 * limits.MIB, "connection_window": 64 * limits.MIB}
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path, **window) as peer:
        stream = await peer.login()
        peer.send(stream, ASK * 6)
        await until(lambda: len(peer.data[stream]) == 6 * (ANSWER + 1))


async def test_a_stream_that_waited_for_its_connection_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 3 * limits.MIB
    monkeypatch.setattr("quintet.net.quic.streams.CONNECTION_HIGH_BYTES", most)
    monkeypatch.setattr("quintet.net.quic.writers.CONNECTION_HIGH_BYTES", most)
    monkeypatch.setattr("quintet.net.quic.listener.CONNECTION_HIGH_BYTES", most)
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        peer.send(stream, b"open\nopened\n")
        await peer.answer(stream, b"opened\n")
        (outlet,) = seen.sessions[0].outlets
        outlet.send([b"a"])
        await peer.answer(3, b"a")
        peer.endpoint.pause(peer.number, 3, True)
        outlet.send([b"x" * (most + 2 * limits.MIB)])
        await asyncio.sleep(0.05)
        peer.send(stream, ASK * 2)
        await until(lambda: len(peer.data[stream]) >= ANSWER + 1)
        peer.endpoint.pause(peer.number, 3, False)
        await until(lambda: len(peer.data[stream]) == 2 * (ANSWER + 1))


async def test_many_streams_with_one_large_answer_each_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 3 * limits.MIB
    monkeypatch.setattr("quintet.net.quic.streams.CONNECTION_HIGH_BYTES", most)
    monkeypatch.setattr("quintet.net.quic.writers.CONNECTION_HIGH_BYTES", most)
    monkeypatch.setattr("quintet.net.quic.listener.CONNECTION_HIGH_BYTES", most)
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer:
        opened = [await peer.login() for _ in range(20)]
        for stream in opened:
            peer.endpoint.pause(peer.number, stream, True)
        for stream in opened:
            peer.send(stream, ASK)
        await asyncio.sleep(0.3)
        (connection,) = listener.connections
        assert connection.unsent <= 2 * most + ANSWER + 1
        for stream in opened:
            peer.endpoint.pause(peer.number, stream, False)
        await until(lambda: all(len(peer.data[stream]) == ANSWER + 1 for stream in opened))


async def test_what_was_on_its_way_to_a_stream_that_is_gone_is_no_new_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream, other = await peer.login(), await peer.login()
        (connection,) = listener.connections
        connection.event(quic_events.STOPPED, stream, (quic_events.STOPPED, connection.number, stream, 7))
        connection.data(stream, b"the rest of a frame\n", False)  # as when both came with one datagram
        assert len(seen.sessions) == 2
        peer.send(other, b"hello\n")
        await peer.answer(other, b"hello\n")


async def test_a_stream_is_not_read_on_if_its_quick_answer_says_so(tmp_path: Path) -> None:
    """Of a session that published too much, or into a topic that is behind, nothing more is taken; its answer goes out all the same."""
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        session: Any = seen.sessions[0]

        def waits(data: bytes, now: int) -> bytes:
            session.quick, session.waits = None, True
            return b"quick " + data

        def holds(data: bytes, now: int) -> bytes:
            session.quick, session.holding = None, True
            return b"quick " + data

        for quick in (waits, holds):
            session.quick = quick
            peer.send(stream, b"one\n")
            await peer.answer(stream, b"quick one\n")
            assert session.stream.paused
            peer.send(stream, b"two\n")
            await asyncio.sleep(0.05)
            assert not peer.data[stream]
            session.waits = False
            listener.turns.run(session.stream.completed, None, None, None)
            await peer.answer(stream, b"two\n")


async def test_quick_answers_and_others_keep_their_order_and_are_counted(tmp_path: Path) -> None:
    """Those that are true only when the turn ends go with the rest of its output, the others go to the endpoint at once."""
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        (connection,) = listener.connections
        session: Any = seen.sessions[0]
        done: list[bytes] = []

        def at_once(data: bytes, now: int) -> bytes:
            return data

        def at_the_end(data: bytes, now: int) -> bytes:
            listener.turns.soon(lambda: done.append(data))
            return data

        before = connection.bytes_out
        for number in range(20):
            session.quick = at_the_end if number % 3 else at_once
            line = b"%d\n" % number
            peer.send(stream, line)
            await peer.answer(stream, line)
            assert bool(number % 3) == (line in done)
        assert connection.bytes_out - before == sum(len(b"%d\n" % number) for number in range(20))
