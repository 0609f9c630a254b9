"""The admin door over a real socket: health, figures, and that it leaves the process's signals alone."""

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from quintet.admin import http
from quintet.admin.app import OnDemand, create_app
from quintet.admin.health import Check
from quintet.admin.listener import HttpServer, serve_http
from quintet.admin.metrics import Family, check_name
from tests.tools import tool


class Broker:
    """Both interfaces the admin door asks, with values a test can set."""

    def __init__(self) -> None:
        self.disk = True
        self.messages = 3

    def checks(self) -> Sequence[Check]:
        return [Check("listener:blipmq", True), Check("disk", self.disk, "1 KiB free, floor 256 MiB")]

    def families(self) -> Sequence[Family]:
        by_door: list[tuple[dict[str, str], float]] = [
            ({"protocol": "blipmq", "direction": "in"}, self.messages),
            ({"protocol": "admin", "direction": 'o"ut\n'}, 0),
        ]
        return [
            Family("quintet_messages_total", "counter", "Messages by door.", by_door),
            Family("quintet_connections", "gauge", "Open connections.", [({}, 2)]),
            Family("quintet_unsynced_bytes", "gauge", "Bytes waiting for the disk.", [({}, 1.5e9)]),
            Family("quintet_topics", "gauge", "Topics.", []),
        ]


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[HttpServer]:
    server = await serve_http(create_app(broker, broker), "127.0.0.1", 0)
    yield server
    await server.stop()


async def get(admin: HttpServer, path: str, accept: str = "text/plain") -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.get(f"http://{admin.address}{path}", headers={"accept": accept})


async def test_port_zero_is_reported_and_alive(admin: HttpServer) -> None:
    assert admin.port > 0
    assert admin.address == f"127.0.0.1:{admin.port}"
    assert admin.accepting
    for path in ("/livez", "/health/live"):
        answer = await get(admin, path)
        assert (answer.status_code, answer.text) == (200, "alive\n")


async def test_ready_lists_checks_only_when_asked(admin: HttpServer) -> None:
    assert (await get(admin, "/readyz")).text == (await get(admin, "/health/ready")).text == "ready\n"
    verbose = await get(admin, "/readyz?verbose")
    assert verbose.status_code == 200
    assert verbose.text == "[+] listener:blipmq\n[+] disk: 1 KiB free, floor 256 MiB\nready\n"


@pytest.mark.parametrize("path", ["/readyz", "/readyz?verbose", "/health/ready", "/health/ready?verbose"])
async def test_a_failing_check_is_named_with_503(admin: HttpServer, broker: Broker, path: str) -> None:
    broker.disk = False
    answer = await get(admin, path)
    assert answer.status_code == 503
    assert "[-] disk: 1 KiB free, floor 256 MiB" in answer.text
    assert answer.text.endswith("not ready: disk\n")


async def test_metrics_are_read_at_the_time_of_asking(admin: HttpServer, broker: Broker) -> None:
    for messages in (3, 4):
        broker.messages = messages
        answer = await get(admin, "/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        ours = {name for name in families if not name.startswith("process_")}
        assert ours == {"quintet_messages", "quintet_connections", "quintet_unsynced_bytes", "quintet_topics"}
        assert families["process_resident_memory_bytes"].samples[0].value > 0
        assert families["quintet_messages"].type == "counter"
        assert [(s.labels, s.value) for s in families["quintet_messages"].samples] == [
            ({"direction": "in", "protocol": "blipmq"}, messages),
            ({"direction": 'o"ut\n', "protocol": "admin"}, 0),
        ]
        assert families["quintet_unsynced_bytes"].samples[0].value == 1.5e9


async def test_openmetrics_for_those_who_ask(admin: HttpServer) -> None:
    answer = await get(admin, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


async def test_every_path_that_is_answered_is_described(admin: HttpServer, broker: Broker) -> None:
    described = (await get(admin, "/openapi.json")).json()["paths"]
    assert set(described) == {"/livez", "/readyz", "/metrics"}
    assert set(described) | {"/health/live", "/health/ready"} == set(create_app(broker, broker)._answers)
    assert {path for path, methods in described.items() if "503" in methods["get"]["responses"]} == {"/readyz"}
    assert "swagger" in (await get(admin, "/docs")).text


async def test_what_is_not_there_is_refused(admin: HttpServer) -> None:
    assert (await get(admin, "/nothing")).status_code == 404
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        for method in ("POST", "HEAD", "DELETE"):
            answer = await client.request(method, f"http://{admin.address}/livez")
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


async def test_who_hangs_up_does_not_end_the_load_for_others() -> None:
    begun, go = threading.Event(), threading.Event()
    loads: list[int] = []

    def load() -> str:
        loads.append(1)
        begun.set()
        assert go.wait(60)
        return "loaded"

    late = OnDemand(load)
    first, second = asyncio.create_task(late.get()), asyncio.create_task(late.get())
    await asyncio.to_thread(begun.wait, 20)
    first.cancel()
    await asyncio.sleep(0)
    go.set()
    assert await second == "loaded"
    assert first.cancelled()
    assert loads == [1]


async def test_promtool_accepts_the_metrics(admin: HttpServer) -> None:
    promtool = tool("promtool")
    text = (await get(admin, "/metrics")).content
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)  # noqa: ASYNC221
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("family", "why"),
    [
        (Family("quintet_messages", "counter", "x", []), "_total"),
        (Family("quintet_messages_total", "gauge", "x", []), "_total"),
        (Family("messages_total", "counter", "x", []), "quintet_"),
        (Family("quintet_wait_ms", "gauge", "x", []), "seconds"),
        (Family("quintet_wait_ms_total", "counter", "x", []), "seconds"),
        (Family("quintet_topics", "gauge", "", []), "help"),
    ],
)
def test_a_badly_named_metric_is_our_fault(family: Family, why: str) -> None:
    with pytest.raises(AssertionError, match=re.escape(why)):
        check_name(family)


async def test_signal_handlers_stay_the_brokers(broker: Broker) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = await serve_http(create_app(broker, broker), "127.0.0.1", 0)
    assert (await get(server, "/livez")).status_code == 200
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop()


async def test_stop_closes_the_port_and_can_be_repeated(broker: Broker) -> None:
    server = await serve_http(create_app(broker, broker), "127.0.0.1", 0)
    await server.stop()
    await server.stop()
    assert not server.accepting
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_stop_ends_a_listener_that_was_used(admin: HttpServer) -> None:
    assert (await get(admin, "/livez")).status_code == 200
    await admin.stop()
    assert not admin.accepting
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", admin.port)


async def test_stop_while_the_server_is_loaded_ends_the_listener(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go_on = threading.Event(), threading.Event()
    load = HttpServer._load

    def slow(server: HttpServer) -> http.Embedded:
        loading.set()
        go_on.wait(60)
        return load(server)

    monkeypatch.setattr(HttpServer, "_load", slow)
    server = await serve_http(create_app(broker, broker), "127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await asyncio.to_thread(loading.wait, 60)
    stopped = asyncio.create_task(server.stop())
    await asyncio.sleep(0)
    assert not server.accepting
    go_on.set()
    await stopped
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()


async def test_an_address_in_use_is_named(broker: Broker) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await serve_http(create_app(broker, broker), "127.0.0.1", port)


# -- strangers ---------------------------------------------------------------------------------------------------------


async def opened(admin: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", admin.port)


async def test_one_address_has_a_bounded_number_of_connections(
    admin: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_PER_ADDRESS_MAX", 3)
    held = [await opened(admin) for _ in range(3)]
    reader, writer = await opened(admin)
    assert (await reader.read()).startswith(b"HTTP/1.1 429 ")
    writer.close()
    other = socket.create_connection(("127.0.0.1", admin.port), source_address=("127.0.0.2", 0))
    other.close()
    held.pop()[1].close()
    async with asyncio.timeout(30):
        while True:  # the broker has not seen the end of the one before
            reader, writer = await opened(admin)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if answer.startswith(b"HTTP/1.1 200 "):
                break
    for _, writer in held:
        writer.close()


@pytest.mark.parametrize(
    "said", [b"", b"GET /livez HT", b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12"], ids=repr
)
async def test_who_does_not_finish_a_request_is_cut(
    admin: HttpServer, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(http, "EXCHANGE_S", 0.2)
    reader, writer = await opened(admin)
    writer.write(said)
    async with asyncio.timeout(60):
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
    writer.close()
    assert (await get(admin, "/livez")).status_code == 200


async def test_who_drips_bytes_behind_an_answer_is_cut(admin: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "EXCHANGE_S", 0.5)
    reader, writer = await opened(admin)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200 ")
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(60):
            while True:
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.02)
    writer.close()


async def test_a_connection_that_is_used_is_kept(admin: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "EXCHANGE_S", 2.0)
    reader, writer = await opened(admin)
    for _ in range(4):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.55)
    writer.close()
