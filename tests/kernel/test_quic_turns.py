"""Who runs the turns of a QuicEndpoint: no exchange may stop, whoever has the watch and however it changes hands.

Both sides are driven as net/quic/listener.py does it (hold, take, flush), mixed with calls outside of that. A wait has a bound that
only a lost wake-up reaches. Skipped where the native kernel is not built.
"""

import random
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quintet import kernel
from tests.kernel.test_quic_endpoint import CLOSED, CONNECTED, DATA, Certificates, Peer

pytestmark = pytest.mark.skipif(
    kernel.QuicEndpoint is None, reason="THE NATIVE KERNEL IS NOT BUILT: nothing here was tested"
)

PATIENCE_S = 60
TAKE_BYTES = 1 << 20
STREAMS = 8
ROUNDS = 700
BULK_BYTES_MAX = 600_000
PAUSE_S_MAX = 0.03  # longer than the thread keeps the watch when traffic is light
PINGS_MAX = 20_000
PINGS_IN_A_ROW = 20


class Echo(threading.Thread):
    """A server that sends back what it gets, one turn of a loop at a time."""

    def __init__(self, server: Peer, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.chance = chance
        self.stopping = False
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping:
                self.turn()
        except BaseException as error:
            self.failed = error

    def turn(self) -> None:
        endpoint = self.server.endpoint
        if not select.select([endpoint.fileno()], [], [], 0.05)[0]:
            return
        endpoint.hold()
        late: list[tuple[Any, ...]] = []
        try:
            for event in endpoint.take(TAKE_BYTES):
                if event[0] == DATA and self.chance.random() < 0.1:
                    late.append(event)
                elif event[0] == DATA:
                    endpoint.send(event[1], event[2], [event[3]], False)
        finally:
            endpoint.flush()
        for event in late:  # answers outside of a turn, some in a row
            endpoint.send(event[1], event[2], [event[3]], False)


class Asker:
    """A client that counts what comes back on each stream."""

    def __init__(self, client: Peer, connection: int) -> None:
        self.client = client
        self.connection = connection
        self.streams = [client.endpoint.open(connection, True) for _ in range(STREAMS)]
        self.owed = 0

    def send(self, stream: int, size: int, held: bool) -> None:
        self.owed += size
        if held:
            self.client.endpoint.hold()
        try:
            assert self.client.endpoint.send(self.connection, stream, [bytes(size)], False) >= 0
        finally:
            if held:
                self.client.endpoint.flush()

    def settle(self) -> None:
        """Until everything came back."""
        endpoint = self.client.endpoint
        while self.owed:
            ready = select.select([endpoint.fileno()], [], [], PATIENCE_S)[0]
            assert ready, f"{self.owed} bytes never came back"
            endpoint.hold()
            try:
                events = endpoint.take(TAKE_BYTES)
            finally:
                endpoint.flush()
            for event in events:
                assert event[0] != CLOSED, event
                self.owed -= len(event[3]) if event[0] == DATA else 0


@pytest.fixture(scope="module")
def pems() -> Certificates:
    return Certificates()


@pytest.fixture
def made() -> Iterator[list[Peer]]:
    peers: list[Peer] = []
    yield peers
    for peer in peers:
        peer.endpoint.close()


def serve(made: list[Peer], pems: Certificates) -> Peer:
    made.append(Peer(certificate=pems.certificate, key=pems.key, write_high=4 << 20, write_low=1 << 20))
    return made[-1]


def dial(made: list[Peer], pems: Certificates, port: int) -> tuple[Peer, int]:
    client = Peer(idle_ms=60_000)
    made.append(client)
    connection = client.endpoint.connect("127.0.0.1", port, "localhost", pems.ca, b"", b"")
    assert client.kind(CONNECTED)[1] == connection
    return client, connection


class TestNoExchangeStops:
    def test_questions_and_bulk_with_pauses(self, made: list[Peer], pems: Certificates) -> None:
        chance = random.Random(6)
        echo = Echo(serve(made, pems), random.Random(7))
        echo.start()
        askers = [Asker(*dial(made, pems, echo.server.port)) for _ in range(2)]
        for turn in range(ROUNDS):
            asker = askers[turn % 2]
            kind = chance.random()
            if kind < 0.85:
                for _ in range(chance.choice((1, 1, 1, 5, 40))):
                    asker.send(chance.choice(asker.streams), chance.randint(1, 1_500), chance.random() < 0.7)
            elif kind < 0.95:
                asker.send(chance.choice(asker.streams), chance.randint(20_000, BULK_BYTES_MAX), chance.random() < 0.5)
            else:
                select.select([], [], [], chance.random() * PAUSE_S_MAX)
            if chance.random() < 0.9:
                asker.settle()
        for asker in askers:
            asker.settle()
        echo.stopping = True
        echo.join(PATIENCE_S)
        assert echo.failed is None
        assert not echo.is_alive()

    @pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the thread always has the watch")
    def test_light_traffic_is_read_by_the_loop_itself(self, made: list[Peer], pems: Certificates) -> None:
        echo = Echo(serve(made, pems), random.Random(8))
        echo.start()
        asker = Asker(*dial(made, pems, echo.server.port))
        in_a_row = asked = 0
        while in_a_row < PINGS_IN_A_ROW:
            before = asker.client.endpoint.figures()["wakeups"]
            asker.send(asker.streams[0], 100, True)
            asker.settle()
            in_a_row = in_a_row + 1 if asker.client.endpoint.figures()["wakeups"] == before else 0
            asked += 1
            assert asked < PINGS_MAX, "the network thread told the loop of every answer"
        asker.send(asker.streams[0], 4 * BULK_BYTES_MAX, True)
        asker.settle()
        echo.stopping = True
        echo.join(PATIENCE_S)
        assert echo.failed is None

    def test_what_is_held_is_not_lost_by_close(self, made: list[Peer], pems: Certificates) -> None:
        server = serve(made, pems)
        client, connection = dial(made, pems, server.port)
        server.kind(CONNECTED)
        client.endpoint.hold()
        client.endpoint.shut(connection, 7, b"enough")
        client.endpoint.close()
        assert server.kind(CLOSED)[2:] == (7, "closed by peer: enough")
        client.endpoint.flush()


class Way:
    """Carries datagrams between one client and a server that can be exchanged, or cut off."""

    def __init__(self, port: int) -> None:
        self.port: int | None = port
        self.front, self.back = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        for end in (self.front, self.back):
            end.bind(("127.0.0.1", 0))
        self.client: tuple[str, int] | None = None
        self.stopping = False
        self.thread = threading.Thread(target=self._carry, daemon=True)
        self.thread.start()

    @property
    def entrance(self) -> int:
        return int(self.front.getsockname()[1])

    def _carry(self) -> None:
        while not self.stopping:
            for end in select.select([self.front, self.back], [], [], 0.05)[0]:
                data, sender = end.recvfrom(65_536)
                port = self.port
                if end is self.front:
                    self.client = sender
                    if port is not None:
                        self.back.sendto(data, ("127.0.0.1", port))
                elif sender[1] == port and self.client is not None:
                    self.front.sendto(data, self.client)

    def close(self) -> None:
        self.stopping = True
        self.thread.join()
        self.front.close()
        self.back.close()


class TestARestartedServer:
    @pytest.fixture
    def way(self) -> Iterator[Callable[[int], Way]]:
        ways: list[Way] = []

        def make(port: int) -> Way:
            ways.append(Way(port))
            return ways[-1]

        yield make
        for each in ways:
            each.close()

    def test_its_clients_know_at_once(self, made: list[Peer], pems: Certificates, way: Callable[[int], Way]) -> None:
        first = serve(made, pems)
        path = way(first.port)
        client, connection = dial(made, pems, path.entrance)
        stream = client.endpoint.open(connection, True)
        client.endpoint.send(connection, stream, [b"who are you?"], False)
        first.kind(DATA, stream)
        path.port = None  # it is killed: no goodbye gets through
        first.endpoint.close()
        path.port = serve(made, pems).port
        client.endpoint.send(connection, stream, [b"x" * 100], False)
        assert client.kind(CLOSED) == (CLOSED, connection, -1, "the peer does not know this connection any more")

    def test_one_with_another_key_is_not_believed(
        self, made: list[Peer], pems: Certificates, way: Callable[[int], Way]
    ) -> None:
        first = serve(made, pems)
        path = way(first.port)
        client, connection = dial(made, pems, path.entrance)
        stream = client.endpoint.open(connection, True)
        path.port = None
        first.endpoint.close()
        path.port = serve(made, Certificates()).port
        client.endpoint.send(connection, stream, [b"x" * 100], False)
        client.quiet()
