"""A QUIC listener and its streams, on both endpoints: chunks, back-pressure, ends of every kind, limits.

Time is moved, not waited for. What is native is skipped, and says so, where the kernel is pure.
"""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

from quintet.model import limits
from quintet.net.certificates import development_certificate
from quintet.net.listener import SHUTTING_DOWN
from quintet.net.quic import endpoint as quic_endpoint
from quintet.net.quic import listener as quic
from quintet.net.quic import twin as quic_twin
from quintet.net.quic.streams import CODE_LIMIT
from quintet.protocols.base import LOST, TOO_SLOW
from tests.net.quic_peers import NATIVE, Peer, later, peer_of, serving, until


@pytest.fixture(params=["twin", "native"], autouse=True)
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "native" and NATIVE is None:
        pytest.skip("the kernel is pure: there is no native QUIC endpoint to test")
    chosen: Any = quic_twin.QuicEndpoint if name == "twin" else NATIVE
    monkeypatch.setattr(quic_endpoint, "endpoint_class", lambda: chosen)
    return name


# -- bytes ---------------------------------------------------------------------------------------------------------


async def test_lines_come_back_for_every_chunking(tmp_path: Path) -> None:
    text = b"in\none\ntwo and more\nthree\n"
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer:
        for cut in range(1, len(text)):
            stream = peer.open()
            peer.send(stream, text[:cut])
            await asyncio.sleep(0)  # a datagram of its own
            peer.send(stream, text[cut:], end=True)
            await peer.answer(stream, b"one\ntwo and more\nthree\nend\n")
            await peer.finished(stream)
        assert listener.bytes_in == (len(text) - 1) * len(text)
        assert listener.bytes_out == (len(text) - 1) * len(b"one\ntwo and more\nthree\nend\n")


async def test_single_bytes_and_a_frame_larger_than_the_window(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path, send_window=256 << 10) as peer:
        stream = await peer.login()
        for byte in b"slow\n":
            peer.send(stream, bytes((byte,)))
            await asyncio.sleep(0)
        await peer.answer(stream, b"slow\n")
        large = b"y" * (3 * limits.MIB) + b"\n"
        peer.send(stream, large)
        await peer.answer(stream, large)
        assert seen.sessions[0].stream._rest == b"", "an idle stream keeps no buffer"


async def test_a_session_may_answer_a_whole_read_by_itself(tmp_path: Path) -> None:
    """Not if a part of a frame is kept, or the peer ended its side; what it does not answer is received."""
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        session: Any = seen.sessions[0]
        session.quick = lambda data, now: b"quick " + data if data.endswith(b"!\n") else b""
        for said, heard in ((b"one!\n", b"quick one!\n"), (b"two\n", b"two\n"), (b"three!\n", b"quick three!\n")):
            peer.send(stream, said)
            await peer.answer(stream, heard)
        peer.send(stream, b"half")
        await until(lambda: session.stream._rest)
        peer.send(stream, b"way!\n")
        await peer.answer(stream, b"halfway!\n")
        peer.send(stream, b"last!\n", end=True)
        await peer.answer(stream, b"last!\nend\n")


async def test_a_quiet_peer_is_kept_and_one_that_vanished_is_not(tmp_path: Path) -> None:
    """Neither sends keep-alives: a subscriber that only waits for messages does not, either."""
    async with (
        serving(tmp_path, idle_seconds=1) as (listener, _),
        peer_of(listener, tmp_path) as quiet,
        peer_of(listener, tmp_path) as vanished,
    ):
        stream = await quiet.login()
        await vanished.login()
        asyncio.get_running_loop().remove_reader(vanished.endpoint._socket)  # it hears nothing, and says no farewell
        await until(lambda: len(listener.connections) == 1)
        await asyncio.sleep(1.5)
        assert quiet.closed is None
        quiet.send(stream, b"still here\n")
        await quiet.answer(stream, b"still here\n")


async def test_many_streams_of_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        first = await peer.login()
        opened = [peer.open() for _ in range(50)]
        for stream in opened:
            peer.send(stream, b"in\n%d\n" % stream)
        for stream in opened:
            await peer.answer(stream, b"%d\n" % stream)
        assert len(listener.connections) == 1
        (connection,) = listener.connections
        assert connection.who == "ann"
        for stream in opened:
            peer.send(stream, b"", end=True)
        await until(lambda: seen.closed == 50)
        peer.send(first, b"still here\n")
        await peer.answer(first, b"still here\n")
        await until(lambda: len(connection._streams) == 1)


async def test_more_streams_than_may_be_open_wait_for_others(tmp_path: Path) -> None:
    async with serving(tmp_path, streams_max=3) as (listener, seen), peer_of(listener, tmp_path) as peer:
        opened = [peer.open() for _ in range(8)]
        for stream in opened:
            peer.send(stream, b"in\n%d\n" % stream, end=True)
        for stream in opened:
            await peer.finished(stream)
            assert bytes(peer.data[stream]) == b"%d\nend\n" % stream
        assert len(seen.sessions) == 8


async def test_a_client_of_aioquic_itself(tmp_path: Path) -> None:
    settings = QuicConfiguration(is_client=True, server_name="localhost")
    settings.verify_mode = ssl.CERT_REQUIRED
    settings.cadata = development_certificate(tmp_path, ("localhost", "127.0.0.1"))[0]
    async with serving(tmp_path) as (listener, seen):
        port = int(listener.address.rpartition(":")[2])
        async with connect("127.0.0.1", port, configuration=settings) as client:
            reader, writer = await client.create_stream()
            writer.write(b"in\nhello\nopen\n")
            assert await reader.readline() == b"hello\n"
            writer.write(b"many 200000\n")
            assert len(await reader.readexactly(200_001)) == 200_001
            writer.write_eof()
            assert await reader.read() == b"end\n"
            writer.close()
        await until(lambda: not listener.connections)
        assert seen.gone == [LOST]
        assert seen.shared_closed == 1


# -- ends ----------------------------------------------------------------------------------------------------------


async def test_the_end_of_the_peers_side_is_told_once_and_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = peer.open()
        peer.send(stream, b"in\nwhole\nhalf a li", end=True)
        await peer.finished(stream)
        assert bytes(peer.data[stream]) == b"whole\nend\n"
        assert seen.closed == 1


async def test_a_session_ends_its_stream_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        one, two = await peer.login(), await peer.login()
        peer.send(one, b"bye\nnever read\n")
        await peer.finished(one)
        assert bytes(peer.data[one]) == b"bye\n"
        await until(lambda: one in peer.stopped)
        peer.send(two, b"hello\n")
        await peer.answer(two, b"hello\n")
        assert seen.closed == 1
        assert peer.closed is None


async def test_a_close_code_shuts_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        one, _ = await peer.login(), await peer.login()
        peer.send(one, b"open\nshut 70\n")
        await until(lambda: peer.closed is not None)
        assert peer.closed is not None and peer.closed[0] == 70 and "as it was asked" in peer.closed[1]
        assert seen.closed == 2
        assert seen.gone == [LOST]
        assert seen.shared_closed == 1
        assert not listener.connections
        assert listener.cut == 1
        assert ("reason", "as it was asked") in seen.reports[-1][1].items()


async def test_a_lost_connection_lets_go_of_everything(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        one, _ = await peer.login(), await peer.login()
        peer.send(one, b"open\nopen\nopened\n")
        await peer.answer(one, b"opened\n")
        peer.endpoint.shut(peer.number, 0, b"gone")
        await until(lambda: not listener.connections)
        assert (seen.closed, seen.gone, seen.shared_closed) == (2, [LOST, LOST], 1)
        outlet = seen.sessions[0].outlets[0]
        outlet.send([b"into the void"])
        outlet.end()
        outlet.reset(1)
        assert outlet.room() == 0
        assert seen.gone == [LOST, LOST]


async def test_a_stream_the_peer_stops_or_resets_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        one, two, three = await peer.login(), await peer.login(), await peer.login()
        peer.endpoint.stop(peer.number, one, 7)
        await until(lambda: seen.closed == 1)
        peer.endpoint.reset(peer.number, two, 8)
        await until(lambda: seen.closed == 2)
        await until(lambda: two in peer.resets)
        peer.send(three, b"hello\n")
        await peer.answer(three, b"hello\n")
        (connection,) = listener.connections
        await until(lambda: len(connection._streams) == 1)


# -- outlets -------------------------------------------------------------------------------------------------------


async def outlet_of(peer: Peer, seen: Any, stream: int) -> Any:
    before = len(seen.sessions[-1].outlets)
    peer.send(stream, b"open\nopened\n")
    await peer.answer(stream, b"opened\n")
    return seen.sessions[-1].outlets[before]


async def test_an_outlet_carries_bytes_and_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        first = await outlet_of(peer, seen, stream)
        second = await outlet_of(peer, seen, stream)
        first.send([b"a", b"b"])
        first.send([b"c"])
        second.send([b"z"])
        await peer.answer(3, b"abc")
        await peer.answer(7, b"z")
        first.end()
        await until(lambda: 3 in peer.fin)
        second.reset(9)
        await until(lambda: peer.resets.get(7) == 9)
        (connection,) = listener.connections
        await until(lambda: not connection._outlets)
        assert seen.gone == []


async def test_an_outlet_the_peer_stops_is_told_the_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        outlet = await outlet_of(peer, seen, await peer.login())
        outlet.send([b"a"])
        await peer.answer(3, b"a")
        peer.endpoint.stop(peer.number, 3, 0x1234)
        await until(lambda: seen.gone == [0x1234])
        outlet.send([b"dropped"])
        assert outlet.room() == 0


async def test_a_peer_that_reads_no_outlet_loses_it_and_nothing_else(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        outlet = await outlet_of(peer, seen, stream)
        outlet.send([b"a"])
        await peer.answer(3, b"a")
        peer.endpoint.pause(peer.number, 3, True)
        woken = []
        while outlet.room() > 0:
            outlet.send([b"x" * 65_536])
            await asyncio.sleep(0)
        outlet.park(lambda: woken.append(1))
        await asyncio.sleep(0.05)
        assert listener.endpoint.queued(next(iter(listener.connections)).number, 3) <= 2 * limits.WRITE_HIGH_BYTES
        peer.send(stream, b"the others go on\n")
        await peer.answer(stream, b"the others go on\n")
        await later(listener, limits.WRITE_STALL_US, lambda: seen.gone == [TOO_SLOW])
        await until(lambda: peer.resets.get(3) == TOO_SLOW)
        assert not woken
        assert ("stream_reset" in dict(seen.reports)) and not peer.closed
        peer.send(stream, b"and on\n")
        await peer.answer(stream, b"and on\n")


async def test_a_slow_reader_is_waited_for_and_gets_everything(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        outlet = await outlet_of(peer, seen, await peer.login())
        outlet.send([b"a"])
        await peer.answer(3, b"a")
        peer.endpoint.pause(peer.number, 3, True)
        total = 0
        rounds = 0

        def fill() -> None:
            nonlocal total, rounds
            rounds += 1
            while outlet.room() > 0 and total < 4 * limits.MIB:
                outlet.send([b"x" * 65_536])
                total += 65_536
            if total < 4 * limits.MIB:
                outlet.park(fill)

        fill()
        assert total < 2 * limits.MIB
        peer.endpoint.pause(peer.number, 3, False)
        await until(lambda: len(peer.data[3]) == 4 * limits.MIB)
        assert rounds > 1
        assert seen.gone == []


async def test_a_connection_that_reads_nothing_at_all_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 3 * limits.MIB
    monkeypatch.setattr("quintet.net.quic.streams.CONNECTION_HIGH_BYTES", most)
    monkeypatch.setattr("quintet.net.quic.writers.CONNECTION_HIGH_BYTES", most)
    monkeypatch.setattr("quintet.net.quic.listener.CONNECTION_HIGH_BYTES", most)
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        outlets = [await outlet_of(peer, seen, stream) for _ in range(12)]
        for number, outlet in enumerate(outlets):
            outlet.send([b"a"])
            await peer.answer(4 * number + 3, b"a")
            peer.endpoint.pause(peer.number, 4 * number + 3, True)
        for _ in range(40):
            for outlet in outlets:
                if outlet.room() > 0:
                    outlet.send([b"x" * 65_536])
            await asyncio.sleep(0)
        (connection,) = listener.connections
        assert connection.unsent <= most + 12 * 65_536
        assert all(outlet.room() == 0 for outlet in outlets)
        await later(listener, limits.WRITE_STALL_US, lambda: connection.unsent == 0)
        assert seen.gone == [TOO_SLOW] * 12


# -- back-pressure on what the peer sends --------------------------------------------------------------------------


async def test_a_session_that_holds_is_not_read_from_and_others_are(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path, send_window=64 << 10) as peer:
        one, two = await peer.login(), await peer.login()
        line = b"z" * 1023 + b"\n"
        peer.send(one, b"hold\n")
        await until(lambda: seen.sessions[0].holding)
        sent = 8 * limits.MIB
        peer.send(one, line * (sent // len(line)))
        await asyncio.sleep(0.3)
        kept = len(seen.sessions[0].stream._rest)
        assert kept <= 3 * quic.STREAM_WINDOW_BYTES, "what is not read stays with the peer"
        assert peer.endpoint.queued(peer.number, one) > 0
        peer.send(two, b"hello\n")
        await peer.answer(two, b"hello\n")
        seen.sessions[0].stream.completed(None, None, None)
        await until(lambda: len(peer.data[one]) == sent)


async def test_congestion_stops_reading_until_it_is_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        peer.send(stream, b"wait\n")
        await until(lambda: seen.sessions[0].waits)
        got = seen.sessions[0].got
        peer.send(stream, b"not now\n", end=True)
        await asyncio.sleep(0.1)
        assert seen.sessions[0].got == got
        assert listener.stalls == 1
        seen.sessions[0].waits = False
        await peer.answer(stream, b"not now\nend\n")


async def test_what_was_under_way_when_reading_stopped_is_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        session = seen.sessions[0]
        for word in (b"wait\n", b"hold\n"):
            peer.send(stream, word)
            await seen.stopped_reading()
            session.stream.data(b"late", False)  # as the endpoint does with what it had handed out already
            session.stream.data(b" and later\n", False)
            assert not peer.data[stream]
            session.waits = False
            session.stream.completed(None, None, None)
            await peer.answer(stream, b"late and later\n")
            peer.send(stream, b"again\n")
            await peer.answer(stream, b"again\n")


async def test_a_session_that_stops_behind_its_last_frame_is_read_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        seen.sessions[0].stopped = True
        peer.send(stream, b"one\n")
        await peer.answer(stream, b"one\n")
        peer.send(stream, b"two\n")
        await peer.answer(stream, b"two\n")


async def test_a_peer_that_takes_no_answers_may_not_ask_for_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        peer.endpoint.pause(peer.number, stream, True)
        for _ in range(20):
            peer.send(stream, b"many 1000000\n")
            await asyncio.sleep(0.02)
        (connection,) = listener.connections
        assert connection.unsent < 8 * limits.MIB
        peer.endpoint.pause(peer.number, stream, False)
        await until(lambda: len(peer.data[stream]) == 20 * 1_000_001)


async def test_a_peer_that_takes_no_answers_for_ten_seconds_loses_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream, other = await peer.login(), await peer.login()
        peer.endpoint.pause(peer.number, stream, True)
        peer.send(stream, b"many 4000000\nbye\n")
        await until(lambda: seen.closed == 1)  # the session is done, its answer is not
        await later(listener, limits.WRITE_STALL_US, lambda: peer.resets.get(stream) == TOO_SLOW)
        (connection,) = listener.connections
        assert connection.unsent < limits.KIB
        peer.send(other, b"hello\n")
        await peer.answer(other, b"hello\n")


async def test_late_answers_of_one_turn_leave_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        sends = []

        class Counting:
            def send(self, *arguments: Any) -> int:
                sends.append(arguments[2])
                return real.send(*arguments)

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        real = listener.endpoint
        monkeypatch.setattr(listener, "endpoint", Counting())
        for offset in range(100):
            seen.sessions[0].stream.appended(None, offset, None)
        await peer.answer(stream, b"".join(b"appended %d\n" % offset for offset in range(100)))
        assert len(sends) == 1


# -- limits and time -----------------------------------------------------------------------------------------------


async def test_who_does_not_authenticate_in_time_is_shut(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as silent:
        listener.ahead = limits.HANDSHAKE_US
        await until(lambda: silent.closed is not None)
        assert silent.closed is not None and silent.closed[0] == quic.CODE_UNAUTHENTICATED


async def test_a_connection_without_streams_is_shut_after_a_minute(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as empty:
        stream = await empty.login()
        empty.send(stream, b"", end=True)
        await empty.finished(stream)
        await until(lambda: sum(not connection._streams for connection in listener.connections) == 1)
        listener.ahead = quic.EMPTY_US
        await until(lambda: empty.closed is not None)
        assert empty.closed is not None and empty.closed[0] == CODE_LIMIT


async def test_a_connection_in_reserve_stays_while_its_host_is_at_work(tmp_path: Path) -> None:
    """The published client opens its connections for subscriptions at once, and uses them when somebody subscribes."""
    async with (
        serving(tmp_path) as (listener, _),
        peer_of(listener, tmp_path) as reserve,
        peer_of(listener, tmp_path) as silent,
        peer_of(listener, tmp_path) as busy,
    ):
        working = await busy.login()
        silent.send(silent.open(), b"n")  # it has a stream, and does not say who it is
        await until(lambda: sum(bool(connection._streams) for connection in listener.connections) == 2)
        listener.ahead = 2 * quic.EMPTY_US
        await until(lambda: silent.closed is not None)
        assert reserve.closed is None
        stream = await reserve.login()
        reserve.send(stream, b"", end=True)
        busy.send(working, b"", end=True)
        await until(lambda: not any(connection._streams for connection in listener.connections))
        listener.ahead = 4 * quic.EMPTY_US
        await until(lambda: reserve.closed is not None and busy.closed is not None)


async def test_a_connection_from_reserve_has_the_whole_time_to_say_who_it_is(tmp_path: Path) -> None:
    """A sweep between the first bytes of its first stream and its login shut it, once in some thousand subscriptions."""
    async with (
        serving(tmp_path) as (listener, _),
        peer_of(listener, tmp_path) as reserve,
        peer_of(listener, tmp_path) as busy,
    ):
        await busy.login()
        listener.ahead = 2 * limits.HANDSHAKE_US
        stream = reserve.open()
        reserve.send(stream, b"i")
        await until(lambda: all(connection._streams for connection in listener.connections))
        for connection in list(listener.connections):
            connection.check(listener.monotonic())  # the sweep
        reserve.send(stream, b"n\nhello\n")
        await reserve.answer(stream, b"hello\n")


async def test_a_connection_from_reserve_that_stays_silent_is_shut(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as (listener, _),
        peer_of(listener, tmp_path) as reserve,
        peer_of(listener, tmp_path) as busy,
    ):
        await busy.login()
        listener.ahead = 2 * limits.HANDSHAKE_US
        reserve.send(reserve.open(), b"i")
        await until(lambda: all(connection._streams for connection in listener.connections))
        listener.ahead = 3 * limits.HANDSHAKE_US
        await until(lambda: reserve.closed is not None)
        assert reserve.closed is not None and reserve.closed[0] == quic.CODE_UNAUTHENTICATED


async def test_a_session_gets_its_tick(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        await asyncio.sleep(0.3)
        seen.sessions[0].due = listener.monotonic()
        seen.sessions[0].stream.watch()
        await peer.answer(stream, b"tick\n")


async def test_failed_authentications_are_counted_per_address(tmp_path: Path) -> None:
    async with serving(tmp_path, auth_failures_per_minute=3) as (listener, seen):
        async with peer_of(listener, tmp_path) as peer:
            peer.send(peer.open(), b"wrong\nwrong\nwrong\n")
            await until(lambda: peer.closed is not None)
            assert peer.closed is not None and peer.closed[0] == CODE_LIMIT
        async with peer_of(listener, tmp_path) as again:
            await until(lambda: again.closed is not None)
        assert listener.refused == 1
        assert "authentication_failed" in dict(seen.reports)


async def test_connections_are_bounded_in_all_and_per_address(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_per_address_max=1) as (listener, _):
        async with peer_of(listener, tmp_path) as one, peer_of(listener, tmp_path) as two:
            await until(lambda: two.closed is not None)
            await one.login()
        await until(lambda: not listener.connections)
        async with peer_of(listener, tmp_path) as three:
            await three.login()
    async with (
        serving(tmp_path, connections_max=1) as (listener, _),
        peer_of(listener, tmp_path) as one,
        peer_of(listener, tmp_path) as two,
    ):
        await until(lambda: two.closed is not None)
        await one.login()


async def test_revoked_and_rechecked(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        await peer.login()
        await peer.login()
        (connection,) = listener.connections
        connection.recheck()
        assert [session.rechecks for session in seen.sessions] == [1, 1]
        connection.evict("the key was revoked")
        await until(lambda: peer.closed is not None)
        assert peer.closed is not None and peer.closed[0] == quic.CODE_REVOKED and "revoked" in peer.closed[1]
        assert seen.closed == 2


async def test_eviction_of_one_stream_ends_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        seen.sessions[0].stream.evict("because")
        await peer.finished(stream)
        assert peer.closed is None


async def test_the_end_of_the_listener(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        listener.stop_accepting()
        async with peer_of(listener, tmp_path) as late:
            await until(lambda: late.closed is not None)
        peer.send(stream, b"the open one is served\nmany 30000\n")
        await until(lambda: stream in peer.data and len(peer.data[stream]) > 23)
        listener.close_all(SHUTTING_DOWN)
        await until(lambda: peer.closed is not None)
        assert peer.closed is not None and peer.closed[0] == quic.CODE_SHUTTING_DOWN
        assert len(peer.data[stream]) == 23 + 30_001, "what was answered before the end arrives"
        await until(lambda: not listener.connections)
        assert seen.closed == 1


async def test_a_certificate_is_replaced_for_new_connections(tmp_path: Path) -> None:
    fresh = development_certificate(tmp_path / "fresh", ("localhost", "127.0.0.1"))
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as old:
        stream = await old.login()
        with pytest.raises(ValueError, match="key"):
            listener.set_certificate(fresh[0], b"not a key", b"")
        async with peer_of(listener, tmp_path) as still:
            await still.login()
        listener.set_certificate(fresh[0], fresh[1], b"")
        async with peer_of(listener, tmp_path / "fresh") as new:
            await new.login()
        async with peer_of(listener, tmp_path) as refused:
            assert refused.closed is not None
        old.send(stream, b"untouched\n")
        await old.answer(stream, b"untouched\n")


async def test_retry_when_many_handshakes_are_unfinished(tmp_path: Path) -> None:
    async with serving(tmp_path, unproven_handshakes_max=0) as (listener, _), peer_of(listener, tmp_path) as peer:
        await peer.login()
        assert listener.figures()["retries"] >= 1
        assert listener.figures()["half_open"] == 0


async def test_a_mistake_ends_one_connection_and_no_other(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as (listener, seen),
        peer_of(listener, tmp_path) as bad,
        peer_of(listener, tmp_path) as good,
    ):
        one, two = await bad.login(), await good.login()
        bad.send(one, b"fail\n")
        good.send(two, b"goes on\n")
        await good.answer(two, b"goes on\n")
        await until(lambda: bad.closed is not None)
        assert bad.closed is not None and bad.closed[0] == quic.CODE_INTERNAL
        assert seen.closed == 1
        told = [str(fields["exc_info"]) for event, fields in seen.reports if event == "session_failed"]
        assert told == ["a mistake"]


async def test_unfinished_frames_of_a_connection_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.net.quic.listener.CONNECTION_KEPT_BYTES_MAX", limits.MIB)
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer:
        await peer.login()
        (connection,) = listener.connections
        streams = [peer.open() for _ in range(8)]
        for stream in streams[:6]:
            peer.send(stream, b"x" * 150_000)
        await until(lambda: connection.kept == 900_000)
        peer.send(streams[0], b"", end=True)
        await until(lambda: connection.kept == 750_000)
        for stream in streams[6:]:
            peer.send(stream, b"x" * 150_000)
        await until(lambda: peer.closed is not None)
        assert peer.closed is not None and peer.closed[0] == CODE_LIMIT


async def test_a_stranger_may_keep_little(tmp_path: Path) -> None:
    """Where nobody gets in without saying who he is: unfinished frames on many streams are bounded together."""
    async with (
        serving(tmp_path, open=False) as (listener, _),
        peer_of(listener, tmp_path) as peer,
        peer_of(listener, tmp_path) as good,
    ):
        await good.login()
        good.send(good.open(), b"x" * (2 * quic.STRANGER_KEPT_BYTES_MAX))
        for _ in range(5):
            peer.send(peer.open(), b"x" * (quic.STRANGER_KEPT_BYTES_MAX // 4))
        await until(lambda: peer.closed is not None)
        assert peer.closed is not None and peer.closed[0] == CODE_LIMIT
        assert good.closed is None
