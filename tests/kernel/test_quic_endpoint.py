"""QuicEndpoint of the native kernel: two endpoints over loopback, and each against aioquic, which shares no code with it.

The pure kernel has no such class (net/quic/twin.py stands in for it), so all of this is skipped there, with that reason.
Waits have a bound that only a failure reaches.
"""

import ast
import asyncio
import gc
import inspect
import os
import select
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trustme
from aioquic.asyncio.client import connect as aioquic_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived

from quintet import kernel
from quintet.kernel import pure
from tests.kernel.test_kernel import STUB

pytestmark = pytest.mark.skipif(
    kernel.QuicEndpoint is None, reason="THE NATIVE KERNEL IS NOT BUILT: nothing here was tested"
)

CONNECTED, DATA, WRITABLE, STOPPED, RESET, CLOSED, SENT = range(1, 8)
PATIENCE_S = 60
TAKE_BYTES = 1 << 20
INBOX_BYTES_MAX = 8 << 20
MIB = 1 << 20

Event = tuple[Any, ...]


class Peer:
    """An endpoint and the events it gave so far."""

    def __init__(self, **options: Any) -> None:
        assert kernel.QuicEndpoint is not None
        host = options.pop("host", "127.0.0.1")
        self.endpoint = kernel.QuicEndpoint(host, 0, **options)
        self.events: list[Event] = []
        self.seen = 0

    @property
    def port(self) -> int:
        return self.endpoint.address[1]

    def pump(self, timeout_s: float = PATIENCE_S) -> bool:
        ready, _, _ = select.select([self.endpoint.fileno()], [], [], timeout_s)
        if ready:
            self.events += self.endpoint.take(TAKE_BYTES)
        return bool(ready)

    def wait(self, wanted: Callable[[Event], bool]) -> Event:
        """The first such event behind the last one waited for."""
        while True:
            for index in range(self.seen, len(self.events)):
                if wanted(self.events[index]):
                    self.seen = index + 1
                    return self.events[index]
            self.seen = len(self.events)
            assert self.pump(), f"nothing more came behind {self.events[-5:]}"

    def kind(self, kind: int, stream: int | None = None) -> Event:
        return self.wait(lambda event: event[0] == kind and (stream is None or event[2] == stream))

    def body(self, stream: int) -> bytes:
        """All of a stream up to its FIN."""
        while True:
            mine = [event for event in self.events if event[0] == DATA and event[2] == stream]
            if mine and mine[-1][4]:
                return b"".join(event[3] for event in mine)
            assert self.pump(), f"stream {stream} did not end"

    def quiet(self) -> None:
        """Nothing but what is known comes within a moment."""
        assert not self.pump(0.1), self.events[-1]


class Certificates:
    def __init__(self) -> None:
        self.authority = trustme.CA()
        self.ca = self.authority.cert_pem.bytes()
        self.certificate, self.key = self.issue("localhost", "127.0.0.1", "::1")

    def issue(self, *names: str) -> tuple[bytes, bytes]:
        issued = self.authority.issue_cert(*names)
        return b"".join(pem.bytes() for pem in issued.cert_chain_pems), issued.private_key_pem.bytes()


@pytest.fixture(scope="module")
def pems() -> Certificates:
    return Certificates()


Maker = Callable[..., Peer]


@pytest.fixture
def make(pems: Certificates) -> Iterator[Maker]:
    """Servers and clients; they are closed behind the test."""
    made: list[Peer] = []

    def maker(server: bool = False, **options: Any) -> Peer:
        if server:
            options = {"certificate": pems.certificate, "key": pems.key, **options}
        made.append(Peer(**options))
        return made[-1]

    yield maker
    for peer in made:
        peer.endpoint.close()


def dial(client: Peer, server: Peer, ca: bytes, **shown: bytes) -> int:
    host = server.endpoint.address[0]
    certificate, key = shown.get("certificate", b""), shown.get("key", b"")
    return client.endpoint.connect(host, server.port, "localhost", ca, certificate, key)


class Pair:
    """A server, a client, and their connection."""

    def __init__(self, make: Maker, ca: bytes, server: dict[str, Any], client: dict[str, Any]) -> None:
        self.server = make(server=True, **server)
        self.client = make(**{"uni_max": 4096, **client})
        self.there = dial(self.client, self.server, ca)
        assert self.client.kind(CONNECTED)[1:] == (self.there, f"127.0.0.1:{self.server.port}")
        _, self.here, self.peer = self.server.kind(CONNECTED)
        assert self.peer == f"127.0.0.1:{self.client.port}"

    def ask(self, data: bytes, end: bool = False) -> int:
        stream = self.client.endpoint.open(self.there, True)
        assert self.client.endpoint.send(self.there, stream, [data], end) >= len(data)
        return stream


Joiner = Callable[..., Pair]


@pytest.fixture
def join(make: Maker, pems: Certificates) -> Joiner:
    def joiner(server: dict[str, Any] | None = None, client: dict[str, Any] | None = None) -> Pair:
        return Pair(make, pems.ca, server or {}, client or {})

    return joiner


class TestStreams:
    def test_ten_mebibytes_there_and_back_with_pauses(self, join: Joiner) -> None:
        pair = join()
        sent = os.urandom(10 * MIB)
        blocks = [sent[at : at + 65_536] for at in range(0, len(sent), 65_536)]
        stream = pair.client.endpoint.open(pair.there, True)
        back, got = bytearray(), bytearray()
        paused, ended, turns = False, False, 0
        while not ended:
            while blocks and pair.client.endpoint.queued(pair.there, stream) <= 262_144:
                pair.client.endpoint.send(pair.there, stream, [blocks.pop(0)], not blocks)
            select.select([pair.client.endpoint.fileno(), pair.server.endpoint.fileno()], [], [], 0.002)
            for event in pair.server.endpoint.take(300_000):
                if event[0] == DATA:
                    got += event[3]
                    pair.server.endpoint.send(pair.here, stream, [event[3]], event[4])
            for event in pair.client.endpoint.take(300_000):
                assert event[0] != CLOSED, event
                if event[0] == DATA:
                    back += event[3]
                    ended = event[4]
            turns += 1
            assert turns < 100_000
            if turns % 5 == 0:
                paused = not paused
                pair.server.endpoint.pause(pair.here, stream, paused)
                pair.client.endpoint.pause(pair.there, stream, paused)
        assert got == sent
        assert back == sent

    def test_a_paused_stream_gives_nothing_until_it_goes_on(self, join: Joiner) -> None:
        pair = join(server={"stream_window": 65_536})
        stream = pair.ask(b"first")
        pair.server.kind(DATA, stream)
        pair.server.endpoint.pause(pair.here, stream, True)
        other = pair.ask(b"the pause is in force when this was answered", end=True)
        assert pair.server.body(other)
        pair.client.endpoint.send(pair.there, stream, [bytes(500_000)], True)
        pair.server.quiet()
        assert pair.client.endpoint.queued(pair.there, stream) >= 500_000 - 65_536
        pair.server.endpoint.pause(pair.here, stream, False)
        assert len(pair.server.body(stream)) == 500_005

    def test_streams_of_the_server_are_numbered_at_once(self, join: Joiner) -> None:
        pair = join()
        opened = [pair.server.endpoint.open(pair.here, False) for _ in range(40)]
        assert opened == [4 * index + 3 for index in range(40)]
        for stream in opened:
            pair.server.endpoint.send(pair.here, stream, [b"%d" % stream], True)
        for stream in opened:
            assert pair.client.body(stream) == b"%d" % stream
        assert sorted(pair.server.kind(SENT)[2] for _ in opened) == opened
        assert pair.client.endpoint.send(pair.there, 3, [b"x"], False) == -1, "the client cannot write there"

    def test_fin_on_both_sides_frees_the_stream(self, join: Joiner) -> None:
        pair = join()
        stream = pair.ask(b"question", end=True)
        assert pair.server.body(stream) == b"question"
        assert pair.server.endpoint.send(pair.here, stream, [b"answer"], True) >= 6
        assert pair.server.endpoint.send(pair.here, stream, [b"more"], False) == -1
        assert pair.client.body(stream) == b"answer"
        assert pair.server.kind(SENT, stream) == (SENT, pair.here, stream)
        pair.client.kind(SENT, stream)
        pair.client.pump(0.1)
        assert pair.client.endpoint.queued(pair.there, stream) == -1
        assert pair.server.endpoint.queued(pair.here, stream) == -1

    def test_stopped_and_reset_carry_their_codes(self, join: Joiner) -> None:
        pair = join()
        stream = pair.ask(b"x")
        pair.server.kind(DATA, stream)
        pair.server.endpoint.stop(pair.here, stream, 0x51)
        assert pair.client.kind(STOPPED, stream) == (STOPPED, pair.there, stream, 0x51)
        assert pair.client.endpoint.send(pair.there, stream, [b"y"], False) == -1
        pair.server.endpoint.reset(pair.here, stream, 0x52)
        assert pair.client.kind(RESET, stream) == (RESET, pair.there, stream, 0x52)
        assert pair.server.kind(SENT, stream) == (SENT, pair.here, stream)
        pair.server.quiet()

    def test_a_paused_stream_still_tells_of_its_reset(self, join: Joiner) -> None:
        pair = join()
        stream = pair.ask(b"x")
        pair.server.kind(DATA, stream)
        pair.server.endpoint.pause(pair.here, stream, True)
        pair.client.endpoint.reset(pair.there, stream, 7)
        assert pair.server.kind(RESET, stream)[3] == 7

    def test_writable_comes_once_and_only_behind_the_high_mark(self, join: Joiner) -> None:
        windows = {"stream_window": 65_536, "connection_window": 65_536}
        pair = join(server=windows, client={"write_high": 200_000, "write_low": 50_000})
        stream = pair.ask(bytes(100_000))
        pair.server.kind(DATA, stream)
        while pair.client.endpoint.queued(pair.there, stream) > 0:
            pair.server.pump(0.01)
        pair.client.pump(0.05)
        assert not [event for event in pair.client.events if event[0] == WRITABLE]
        assert pair.client.endpoint.send(pair.there, stream, [bytes(500_000)], False) > 200_000
        while not pair.client.pump(0):
            pair.server.pump(0.01)
        assert pair.client.events[-1] == (WRITABLE, pair.there, stream)
        assert pair.client.endpoint.queued(pair.there, stream) <= 50_000

    def test_streams_that_carried_nothing_are_no_event_and_leave_no_trace(self, join: Joiner) -> None:
        pair = join(server={"streams_max": 4})
        for _ in range(100):
            stream = pair.client.endpoint.open(pair.there, True)
            pair.client.endpoint.reset(pair.there, stream, 1)
            pair.client.endpoint.stop(pair.there, stream, 2)
        last = pair.ask(b"still here", end=True)
        assert pair.server.body(last) == b"still here"
        assert [event[0] for event in pair.server.events] == [CONNECTED, DATA]

    def test_no_more_streams_than_allowed(self, join: Joiner) -> None:
        pair = join(server={"streams_max": 2})
        streams = [pair.ask(b"%d" % number, end=True) for number in range(3)]
        assert [pair.server.body(stream) for stream in streams[:2]] == [b"0", b"1"]
        pair.server.quiet()
        pair.server.endpoint.send(pair.here, streams[0], [], True)
        assert pair.server.body(streams[2]) == b"2"

    def test_a_thousand_streams_at_once_where_allowed(self, join: Joiner) -> None:
        pair = join(server={"streams_max": 1000})
        streams = [pair.ask(b"%d" % number) for number in range(1000)]
        assert sorted(pair.server.kind(DATA)[2] for _ in streams) == streams


class TestConnections:
    def test_closed_says_code_and_reason_on_both_sides(self, join: Joiner) -> None:
        pair = join()
        pair.server.endpoint.shut(pair.here, 0x46, b"malformed header")
        assert pair.client.kind(CLOSED) == (CLOSED, pair.there, 0x46, "closed by peer: malformed header")
        assert pair.server.kind(CLOSED) == (CLOSED, pair.here, 0x46, "closed here: malformed header")
        assert pair.server.endpoint.open(pair.here, False) == -1
        assert pair.client.endpoint.open(pair.there, True) == -1
        assert pair.client.endpoint.send(pair.there, 0, [b"x"], False) == -1

    def test_a_certificate_of_another_authority_is_refused_with_the_reason(self, make: Maker) -> None:
        server, client = make(server=True), make()
        dial(client, server, Certificates().ca)
        _, _, code, reason = client.kind(CLOSED)
        assert code == -1
        assert "UnknownIssuer" in reason
        server.quiet()
        assert server.endpoint.figures()["accepted"] == 0

    def test_a_name_the_certificate_does_not_have(self, make: Maker, pems: Certificates) -> None:
        server, client = make(server=True), make()
        client.endpoint.connect("127.0.0.1", server.port, "elsewhere.example", pems.ca, b"", b"")
        assert "elsewhere.example" in client.kind(CLOSED)[3]

    def test_a_new_certificate_holds_for_new_connections(self, make: Maker, pems: Certificates) -> None:
        server, client = make(server=True), make()
        old = dial(client, server, pems.ca)
        client.kind(CONNECTED)
        fresh = Certificates()
        with pytest.raises(ValueError, match="no certificate"):
            server.endpoint.set_certificate(b"rubbish", b"rubbish", b"")
        with pytest.raises(ValueError, match="key"):
            server.endpoint.set_certificate(fresh.certificate, pems.key, b"")
        server.endpoint.set_certificate(fresh.certificate, fresh.key, b"")
        dial(client, server, fresh.ca)
        client.kind(CONNECTED)
        dial(client, server, pems.ca)
        assert "UnknownIssuer" in client.kind(CLOSED)[3]
        stream = client.endpoint.open(old, True)
        client.endpoint.send(old, stream, [b"the old one lives on"], True)
        assert server.body(stream) == b"the old one lives on"

    def test_clients_must_show_a_certificate_if_asked(self, make: Maker, pems: Certificates) -> None:
        server, client = make(server=True, client_ca=pems.ca), make()
        dial(client, server, pems.ca)
        closed = client.kind(CLOSED)
        assert "peer sent no certificates" in closed[3] or "certificate required" in closed[3].lower(), closed
        certificate, key = pems.issue("somebody@example.org")
        dial(client, server, pems.ca, certificate=certificate, key=key)
        client.kind(CONNECTED)
        assert server.kind(CONNECTED)
        assert server.endpoint.figures()["accepted"] == 1

    def test_an_idle_connection_ends(self, join: Joiner) -> None:
        pair = join(client={"idle_ms": 300})
        assert pair.client.kind(CLOSED)[2:] == (-1, "idle for 0.3 s")
        assert pair.server.kind(CLOSED)[2] == -1

    def test_keep_alive_keeps_it(self, join: Joiner) -> None:
        pair = join(server={"idle_ms": 400}, client={"keep_alive_ms": 100})
        assert not pair.client.pump(1.2)
        assert pair.server.endpoint.figures()["connections"] == 1

    def test_nobody_answers(self, make: Maker, pems: Certificates) -> None:
        client = make(idle_ms=300)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            client.endpoint.connect("127.0.0.1", silent.getsockname()[1], "localhost", pems.ca, b"", b"")
            assert "no answer" in client.kind(CLOSED)[3]

    def test_ipv6(self, make: Maker, pems: Certificates) -> None:
        try:
            server, client = make(server=True, host="::1"), make(host="::1")
        except OSError as error:
            pytest.skip(f"no IPv6 on this machine: {error}")
        dial(client, server, pems.ca)
        assert server.kind(CONNECTED)[2] == f"[::1]:{client.port}"

    def test_names_are_not_resolved(self, make: Maker, pems: Certificates) -> None:
        client = make()
        with pytest.raises(ValueError, match="resolve"):
            client.endpoint.connect("host.example", 1, "host.example", pems.ca, b"", b"")
        with pytest.raises(ValueError, match="IPv6"):
            client.endpoint.connect("::1", 1, "localhost", pems.ca, b"", b"")
        with pytest.raises(ValueError, match="CA"):
            client.endpoint.connect("127.0.0.1", 1, "localhost", b"rubbish", b"", b"")


class TestDoor:
    def test_retry_for_everybody_still_connects(self, join: Joiner) -> None:
        pair = join(server={"retry_above": 0})
        assert pair.server.endpoint.figures()["retries"] == 1
        stream = pair.ask(b"x", end=True)
        assert pair.server.body(stream) == b"x"

    def test_no_more_connections_than_allowed(self, make: Maker, pems: Certificates) -> None:
        server, client = make(server=True, connections_max=1), make()
        first = dial(client, server, pems.ca)
        client.kind(CONNECTED)
        dial(client, server, pems.ca)
        assert "refused" in client.kind(CLOSED)[3]
        client.endpoint.shut(first, 0, b"")
        server.kind(CLOSED)
        dial(client, server, pems.ca)
        client.kind(CONNECTED)

    def test_not_accepting(self, make: Maker, pems: Certificates) -> None:
        server, client = make(server=True), make()
        server.endpoint.set_accepting(False)
        dial(client, server, pems.ca)
        assert "refused" in client.kind(CLOSED)[3]
        server.endpoint.set_accepting(True)
        dial(client, server, pems.ca)
        client.kind(CONNECTED)

    def test_unfinished_handshakes_are_bounded(self, make: Maker, pems: Certificates) -> None:
        """Initials whose sender never goes on: they fill half_open_max, and everybody else is refused."""
        server, client = make(server=True, half_open_max=3), make()
        known: set[bytes] = set()
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as catcher,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            catcher.bind(("127.0.0.1", 0))
            catcher.settimeout(PATIENCE_S)
            for _ in range(5):
                client.endpoint.connect("127.0.0.1", catcher.getsockname()[1], "localhost", pems.ca, b"", b"")
            while len(known) < 5:
                initial = catcher.recv(65_536)
                name = initial[6 : 6 + initial[5]]
                if name not in known:
                    known.add(name)
                    sender.sendto(initial, ("127.0.0.1", server.port))
        while server.endpoint.figures()["refused"] < 2:
            assert not server.pump(0.01), server.events
        assert server.endpoint.figures()["half_open"] == 3

    def test_garbage_is_passed_over(self, join: Joiner) -> None:
        pair = join()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for size in (0, 1, 5, 20, 21, 100, 1199, 1200, 1452, 9000, 60_000):
                for first in (0x00, 0x40, 0x80, 0xC0, 0xFF):
                    head = bytes([first]) + b"\x00\x00\x00\x01\x08"
                    data = head + os.urandom(max(0, size - len(head)))
                    stranger.sendto(data[:size], ("127.0.0.1", pair.server.port))
        stream = pair.ask(b"still here", end=True)
        assert pair.server.body(stream) == b"still here"
        assert pair.server.endpoint.figures()["connections"] == 1


class TestBounds:
    def test_what_nobody_takes_stays_bounded(self, join: Joiner) -> None:
        """Eight streams send 64 MiB; the server takes nothing until they stand still."""
        pair = join()
        block = os.urandom(MIB)
        streams = [pair.client.endpoint.open(pair.there, True) for _ in range(8)]
        for stream in streams:
            for _ in range(8):
                pair.client.endpoint.send(pair.there, stream, [block], False)
            pair.client.endpoint.send(pair.there, stream, [], True)
        still, before = 0, -1
        while still < 5:
            pair.client.pump(0.05)
            now = pair.server.endpoint.figures()["bytes_in"]
            still, before = (still + 1, now) if now == before else (0, now)
        held = INBOX_BYTES_MAX + 4 * MIB
        assert before < held + MIB, "the inbox, one connection's window, and what packets add"
        got = {stream: 0 for stream in streams}
        ended = 0
        while ended < len(streams):
            event = pair.server.kind(DATA)
            got[event[2]] += len(event[3])
            ended += event[4]
        assert set(got.values()) == {8 * MIB}

    def test_sent_bytes_are_let_go(self, join: Joiner) -> None:
        """send() keeps long bytes by reference: behind SENT nothing may hold them."""
        pair = join()
        data = os.urandom(100_000)
        before = sys.getrefcount(data)
        stream = pair.ask(data, end=True)
        assert len(pair.server.body(stream)) == len(data)
        pair.client.kind(SENT, stream)
        pair.client.endpoint.figures()
        gc.collect()
        assert sys.getrefcount(data) == before

    def test_take_gives_about_what_is_asked(self, join: Joiner) -> None:
        pair = join()
        pair.ask(bytes(3 * MIB), end=True)
        fetched: list[int] = []
        while sum(fetched) < 3 * MIB:
            select.select([pair.server.endpoint.fileno()], [], [], PATIENCE_S)
            events = pair.server.endpoint.take(1)
            fetched += [len(event[3]) for event in events]
            assert len(events) <= 1
        assert max(fetched) <= 4 * MIB


class TestLife:
    def test_close_ends_the_thread_and_tells_the_peers(self, make: Maker, pems: Certificates) -> None:
        def tasks() -> int:
            return len(os.listdir("/proc/self/task")) if sys.platform == "linux" else threading.active_count()

        before = tasks()
        server, client = make(server=True), make()
        dial(client, server, pems.ca)
        client.kind(CONNECTED)
        server.kind(CONNECTED)
        server.endpoint.close()
        assert client.kind(CLOSED)[2:] == (0, "closed by peer: the endpoint is closed")
        assert server.kind(CLOSED)[3] == "the endpoint is closed"
        server.endpoint.close()
        client.endpoint.close()
        for _ in range(1000):
            if tasks() <= before:
                break
            select.select([], [], [], 0.005)  # a joined thread, an earlier one too, is listed for a moment
        assert tasks() <= before
        with pytest.raises(RuntimeError, match="closed"):
            client.endpoint.connect("127.0.0.1", 1, "localhost", pems.ca, b"", b"")

    @pytest.mark.skipif(sys.platform != "linux", reason="takes the thread's epoll away by its number")
    def test_a_failure_of_the_thread_is_not_silent(self, make: Maker, pems: Certificates) -> None:
        def polls() -> set[str]:
            numbers = os.listdir("/proc/self/fd")
            paths = {number: f"/proc/self/fd/{number}" for number in numbers}
            return {n for n, path in paths.items() if os.path.exists(path) and "eventpoll" in os.readlink(path)}

        server, before = make(server=True), polls()
        client = make()
        mine = polls() - before - {str(client.endpoint.fileno())}
        dial(client, server, pems.ca)
        client.kind(CONNECTED)
        with open(os.devnull) as other:
            for poll in mine:
                os.dup2(other.fileno(), int(poll))
        client.endpoint.set_accepting(True)
        assert "network thread" in client.kind(CLOSED)[3]
        with pytest.raises(RuntimeError, match="make a new one"):
            client.endpoint.take(1)

    def test_options_that_cannot_be(self, pems: Certificates) -> None:
        assert kernel.QuicEndpoint is not None
        with pytest.raises(ValueError, match="write_low"):
            kernel.QuicEndpoint("127.0.0.1", 0, write_high=1, write_low=2)
        with pytest.raises(ValueError, match="key"):
            kernel.QuicEndpoint("127.0.0.1", 0, certificate=pems.certificate, key=b"")
        with pytest.raises(OSError, match=r"."):
            kernel.QuicEndpoint("192.0.2.1", 0)

    def test_the_class_is_that_of_the_stub(self) -> None:
        tree = ast.parse(STUB.read_text())
        (stub,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "QuicEndpoint")
        functions = {node.name: node for node in stub.body if isinstance(node, ast.FunctionDef)}
        named = {name for name in dir(kernel.QuicEndpoint) if not name.startswith("_")}
        assert named == set(functions) - {"__init__"}
        for name in named - {"address"}:
            signature = inspect.signature(getattr(kernel.QuicEndpoint, name))
            assert list(signature.parameters) == [argument.arg for argument in functions[name].args.args], name
        made = inspect.signature(kernel.QuicEndpoint)  # type: ignore[arg-type]
        arguments = functions["__init__"].args
        assert list(made.parameters) == [a.arg for a in (*arguments.args[1:], *arguments.kwonlyargs)]
        assert not hasattr(pure, "QuicEndpoint")


class Echo(QuicConnectionProtocol):
    """aioquic's side: sends back what came, or keeps it."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.got: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.closed: ConnectionTerminated | None = None
        self.echo = True

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self.got[event.stream_id] = self.got.get(event.stream_id, b"") + event.data
            if event.end_stream:
                self.ended.add(event.stream_id)
            if self.echo:
                self._quic.send_stream_data(event.stream_id, event.data, event.end_stream)
                self.transmit()
        if isinstance(event, ConnectionTerminated):
            self.closed = event


async def until(ready: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S / 0.005)):
        if ready():
            return
        await asyncio.sleep(0.005)
    pytest.fail("what was waited for did not come")


class TestOthers:
    def test_a_client_on_aioquic(self, make: Maker, pems: Certificates) -> None:
        server = make(server=True)
        body = os.urandom(300_000)

        async def talk() -> None:
            configuration = QuicConfiguration(is_client=True, server_name="localhost", cadata=pems.ca)
            async with aioquic_connect(
                "127.0.0.1", server.port, configuration=configuration, create_protocol=Echo
            ) as it:
                assert isinstance(it, Echo)
                it.echo = False
                asyncio.get_running_loop().add_reader(server.endpoint.fileno(), server.pump)
                it._quic.send_stream_data(0, body, True)
                it.transmit()
                await until(lambda: any(event[0] == DATA and event[4] for event in server.events))
                here = server.events[0][1]
                assert server.body(0) == body
                server.endpoint.send(here, 0, [body[:1000], body[1000:]], True)
                pushed = server.endpoint.open(here, False)
                server.endpoint.send(here, pushed, [b"pushed"], True)
                await until(lambda: {0, pushed} <= it.ended)
                assert it.got == {0: body, pushed: b"pushed"}
                server.endpoint.shut(here, 0x53, b"shutting down")
                await until(lambda: it.closed is not None)
                assert it.closed is not None
                assert (it.closed.error_code, it.closed.reason_phrase) == (0x53, "shutting down")
                asyncio.get_running_loop().remove_reader(server.endpoint.fileno())

        asyncio.run(talk())

    def test_a_client_that_offers_protocols(self, make: Maker, pems: Certificates) -> None:
        server = make(server=True)

        async def talk() -> None:
            configuration = QuicConfiguration(
                is_client=True, server_name="localhost", cadata=pems.ca, alpn_protocols=["felix", "x" * 200]
            )
            async with aioquic_connect("127.0.0.1", server.port, configuration=configuration) as it:
                await it.ping()

        asyncio.run(talk())
        assert server.kind(CONNECTED)

    def test_a_server_on_aioquic(self, make: Maker, pems: Certificates, tmp_path: Any) -> None:
        client = make(uni_max=16)
        body = os.urandom(300_000)
        (tmp_path / "chain.pem").write_bytes(pems.certificate)
        (tmp_path / "key.pem").write_bytes(pems.key)

        async def talk() -> None:
            configuration = QuicConfiguration(is_client=False, verify_mode=ssl.CERT_NONE)
            configuration.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
            server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=Echo, retry=True)
            port = server._transport.get_extra_info("sockname")[1]  # type: ignore[union-attr]
            asyncio.get_running_loop().add_reader(client.endpoint.fileno(), client.pump)
            there = client.endpoint.connect("127.0.0.1", port, "localhost", pems.ca, b"", b"")
            stream = client.endpoint.open(there, True)
            client.endpoint.send(there, stream, [body], True)
            await until(lambda: any(event[0] == DATA and event[4] for event in client.events))
            assert client.body(stream) == body
            assert client.events[0][:2] == (CONNECTED, there)
            client.endpoint.shut(there, 0, b"")
            await until(lambda: any(event[0] == CLOSED for event in client.events))
            asyncio.get_running_loop().remove_reader(client.endpoint.fileno())
            server.close()
            await asyncio.sleep(0)

        asyncio.run(talk())
