"""What strangers may send to a QUIC door: floods of first packets, garbage, storms of streams. On both endpoints."""

import asyncio
import random
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from quintet.net.certificates import development_certificate
from quintet.net.quic import endpoint as quic_endpoint
from quintet.net.quic import twin as quic_twin
from tests.net.quic_peers import NATIVE, peer_of, serving, until

FLOOD = 150
RETRY_ABOVE = 20


@pytest.fixture(params=["twin", "native"], autouse=True)
def endpoint(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if name == "native" and NATIVE is None:
        pytest.skip("the kernel is pure: there is no native QUIC endpoint to test")
    chosen: Any = quic_twin.QuicEndpoint if name == "twin" else NATIVE
    monkeypatch.setattr(quic_endpoint, "endpoint_class", lambda: chosen)
    return name


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def first_packets(count: int, address: tuple[str, int]) -> list[bytes]:
    """Datagrams with which so many clients begin."""
    found = []
    for _ in range(count):
        client = QuicConnection(configuration=QuicConfiguration(is_client=True, server_name="localhost"))
        client.connect(address, now=0.0)
        found.append(client.datagrams_to_send(now=0.0)[0][0])
    return found


async def test_a_flood_of_first_packets_costs_little_and_lets_others_in(tmp_path: Path) -> None:
    async with serving(tmp_path, unproven_handshakes_max=RETRY_ABOVE, half_open_max=2 * RETRY_ABOVE) as (listener, _):
        with socket.socket(type=socket.SOCK_DGRAM) as flooder:
            sent = 0
            for data in first_packets(FLOOD, address_of(listener.address)):
                sent += flooder.sendto(data, address_of(listener.address))
                await asyncio.sleep(0)
            await until(lambda: listener.figures()["datagrams_in"] >= FLOOD)
            await until(lambda: listener.figures()["retries"] >= FLOOD - RETRY_ABOVE)
            figures = listener.figures()
            assert figures["half_open"] == RETRY_ABOVE
            assert figures["bytes_out"] <= 3 * sent
            async with peer_of(listener, tmp_path) as peer:
                await peer.login()
            assert len(listener.connections) <= 1


async def test_more_unfinished_handshakes_than_there_may_be_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, unproven_handshakes_max=1000, half_open_max=RETRY_ABOVE) as (listener, _):
        with socket.socket(type=socket.SOCK_DGRAM) as flooder:
            for data in first_packets(2 * RETRY_ABOVE, address_of(listener.address)):
                flooder.sendto(data, address_of(listener.address))
            await until(lambda: listener.figures()["refused"] == RETRY_ABOVE)
            assert listener.figures()["half_open"] == RETRY_ABOVE


async def test_garbage_is_passed_over(tmp_path: Path) -> None:
    chance = random.Random(6)
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer:
        stream = await peer.login()
        (good,) = first_packets(1, address_of(listener.address))
        with socket.socket(type=socket.SOCK_DGRAM) as stranger:
            for number in range(400):
                if number % 2:
                    data = chance.randbytes(chance.randrange(1, 1400))
                else:
                    broken = bytearray(good)
                    for _ in range(chance.randrange(1, 6)):
                        broken[chance.randrange(60)] = chance.randrange(256)
                    data = bytes(broken[: chance.randrange(1, len(good) + 1)])
                stranger.sendto(data, address_of(listener.address))
                await asyncio.sleep(0)
        await until(lambda: listener.figures()["datagrams_in"] >= 400)
        peer.send(stream, b"still served\n")
        await peer.answer(stream, b"still served\n")


async def test_storms_of_streams_leave_nothing_behind(tmp_path: Path) -> None:
    async with serving(tmp_path, streams_max=64) as (listener, seen), peer_of(listener, tmp_path) as peer:
        first = await peer.login()
        for number in range(600):
            stream = peer.open()
            peer.send(stream, b"in\nopen\nopened\n")
            if number % 3 == 0:
                peer.endpoint.reset(peer.number, stream, 1)
            if number % 3 == 1:
                peer.endpoint.stop(peer.number, stream, 2)
                peer.endpoint.reset(peer.number, stream, 2)
            if number % 3 == 2:
                peer.send(stream, b"", end=True)
            if number % 20 == 0:
                await asyncio.sleep(0.005)
        (connection,) = listener.connections
        peer.send(first, b"still served\n")
        await peer.answer(first, b"still served\n")
        await until(lambda: len(connection._streams) == 1)
        assert seen.closed == len(seen.sessions) - 1
        assert connection.kept == 0


async def test_nothing_is_taken_before_the_handshake_is_done(tmp_path: Path) -> None:
    """0-RTT is off: a client that comes again may not send data with its first packet, so nothing can be replayed."""
    tickets: list[Any] = []
    settings = QuicConfiguration(is_client=True, server_name="localhost")
    settings.verify_mode = ssl.CERT_REQUIRED
    settings.cadata = development_certificate(tmp_path, ("localhost", "127.0.0.1"))[0]
    async with serving(tmp_path) as (listener, _):
        host, port = address_of(listener.address)
        async with connect(host, port, configuration=settings, session_ticket_handler=tickets.append) as client:
            reader, writer = await client.create_stream()
            writer.write(b"in\nhello\n")
            assert await reader.readline() == b"hello\n"
            writer.close()
        assert all(not ticket.max_early_data_size for ticket in tickets)
