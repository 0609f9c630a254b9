"""Percentiles, and the control for coordinated omission: a server that stalls must show."""

import socket
import threading
from collections.abc import Iterator

import pytest

from bench import closed_loop
from quintet.bench import blipmq
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.generators import Load, publish_scheduled, publish_windows
from quintet.bench.histogram import percentiles
from quintet.bench.processes import ControlPipe
from quintet.bench.wire import Address

STALL_S = 0.4
RATE = 1000.0
COUNT = 1000


class Now(ControlPipe):
    """A link for a generator that runs in the test's own thread."""

    def __init__(self) -> None:
        pass

    def ready(self) -> None:
        pass


class StallingServer:
    """Speaks just enough BlipMQ to answer HELLO, AUTH and PING, and stops once, for STALL_S, after some PINGs."""

    def __init__(self, stall_after: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pings = 0
        self._stall_after = stall_after
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()
        return host, port

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            data = b""
            while piece := sock.recv(65536):
                data += piece
                frames = blipmq.split(data)
                data = data[sum(13 + len(payload) for _, _, payload in frames) :]
                for kind, correlation, _ in frames:
                    if kind in (blipmq.HELLO, blipmq.AUTH):
                        sock.sendall(blipmq.frame(blipmq.ACK, correlation, bytes(8)))
                    elif kind == blipmq.PING:
                        self._pings += 1
                        if self._pings == self._stall_after:
                            self._pause.wait(STALL_S)
                        sock.sendall(blipmq.frame(blipmq.PONG, correlation))

    def close(self) -> None:
        self._pause.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def stalling() -> Iterator[StallingServer]:
    server = StallingServer(stall_after=50)
    yield server
    server.close()


def test_a_stall_shows_in_the_percentiles_of_a_schedule(stalling: StallingServer) -> None:
    load = Load(BlipmqWire(), stalling.address, "t", 16, 0)
    sent = publish_scheduled(Now(), load, RATE, COUNT, True)
    assert len(sent.latencies) == COUNT
    # Every message that was due in the first half of the stall waited for at least the other half.
    late = sum(latency >= STALL_S / 2 * 1e9 for latency in sent.latencies)
    assert late >= STALL_S / 2 * RATE * 0.9
    found = percentiles(sent.latencies, "open")
    assert found is not None
    assert found.at["p90"] >= STALL_S / 2 * 1e6 * 0.99


@pytest.mark.skipif(closed_loop.working_cargo() is None, reason="NO CARGO: the Rust load generator is not tested")
def test_a_stall_shows_in_the_schedule_of_the_rust_generator(stalling: StallingServer) -> None:
    load = Load(BlipmqWire(), stalling.address, "t", 16, 1)
    counted = closed_loop.scheduled(load, 1, RATE, COUNT / RATE, 0.0)
    assert counted.total == counted.operations == COUNT
    # A fifth of all messages were due in the first half of the stall, and waited for at least the other half.
    assert counted.p99_us >= STALL_S / 2 * 1e6 * 0.98


def test_the_closed_loop_asks_a_stalled_server_nothing_more(stalling: StallingServer) -> None:
    load = Load(BlipmqWire(), stalling.address, "t", 16, 0)
    sent = publish_windows(Now(), load, 1, 1, 1, 0.0, COUNT, None)
    found = percentiles(sent.latencies, "closed")
    assert found is not None
    assert found.loop == "closed"
    assert found.count == COUNT
    # The one message under way is all that such a loop notices of the stall: that is why it must be marked.
    assert found.maximum >= STALL_S * 1e6 * 0.99
    assert sum(latency >= STALL_S * 1e9 * 0.99 for latency in sent.latencies) == 1


def test_percentiles_of_known_values() -> None:
    found = percentiles((microseconds * 1000 for microseconds in range(1, 10_001)), "open")
    assert found is not None
    assert found.count == 10_000
    assert found.minimum == 1.0
    assert found.maximum == pytest.approx(10_000, rel=0.001)
    for name, exact in (("p50", 5_000), ("p90", 9_000), ("p99", 9_900), ("p99.9", 9_990)):
        assert found.at[name] == pytest.approx(exact, rel=0.001)
    assert [value for _, value in found.curve] == sorted(value for _, value in found.curve)


def test_no_latencies_give_no_percentiles() -> None:
    assert percentiles([], "open") is None
