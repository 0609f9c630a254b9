"""Connections as an operator sees them, on every door; and the ids by which log, audit and answers belong together."""

import io
import json
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from quintet import logs
from quintet.client.blocking import sync
from quintet.console.connections import Moved
from quintet.model.client_address import REQUEST_CHARS_MAX, ClientAddress, ids_of, request_text
from tests.client.server import Server, running
from tests.console.conftest import Browser
from tests.console.filling import PEER_SECRET
from tests.wire import blipmq

WAIT_S = 60
FACTS = {"id", "door", "peer", "who", "since_ms", "seconds", "idle_seconds", "rate_in", "rate_out", "bytes_in", "bytes_out",
         "unsent_bytes", "unanswered", "paused", "tls", "cipher"}  # fmt: skip


def until(found: Callable[[], Any]) -> Any:
    """What this gives as soon as it gives something."""
    deadline = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_PEERBUS_SECRET", os.environ.get("QUINTET_PEERBUS_SECRET", PEER_SECRET))


@pytest.mark.usefixtures("_secret")
def test_every_door_shows_what_its_connections_move(server: Server, admin: Browser) -> None:
    def moving(door: str) -> dict[str, Any] | None:
        for bus in buses:
            bus.publish("moved", b"v" * 20_000)
        rows = admin.ask("/api/connections", filter=door, sort="in")["rows"]
        return next((row for row in rows if row["door"] == door and row["rate_in"] > 0), None)

    with ExitStack() as opened:
        buses = [opened.enter_context(sync.connect(url)) for url in (server.url, server.fly, server.felix)]
        queues = opened.enter_context(sync.connect(server.fast))
        queues.request("CREATE", topic="moved-keyed", durable=True)
        opened.enter_context(sync.peer(f"{server.peer('mover')}&verify=off"))
        opened.enter_context(sync.peer(f"{server.peer('lines', lines=True)}&verify=off"))
        for door in ("blipmq", "flymq", "felix"):
            row = until(lambda door=door: moving(door))  # type: ignore[misc]
            assert set(row) == FACTS
            assert row["bytes_in"] > 20_000 and row["bytes_out"] > 0 and row["idle_seconds"] < WAIT_S
            assert (row["tls"], row["who"] is not None) == ("TLSv1.3" if door == "felix" else "", True)
            assert abs(row["since_ms"] / 1000 + row["seconds"] - time.time()) < WAIT_S
        for door in ("fast", "peerbus", "peerbus-tcp"):
            (row, *_) = admin.ask("/api/connections", filter=door, sort="age", down="true")["rows"]
            assert set(row) == FACTS and row["bytes_in"] > 0
        found = admin.ask("/api/connections", limit=500)
        ids = [row["id"] for row in found["rows"]]
        assert len(set(ids)) == len(ids) >= 6
        (door,) = [each for each in found["doors"] if each["door"] == "felix"]
        assert door["bytes_in"] >= sum(row["bytes_in"] for row in found["rows"] if row["door"] == "felix") > 20_000
    until(lambda: not admin.ask("/api/connections", filter="felix")["rows"])
    (after,) = [each for each in admin.ask("/api/connections")["doors"] if each["door"] == "felix"]
    assert after["bytes_in"] >= door["bytes_in"], "what ended connections moved still counts"


def test_a_quiet_connection_is_idle_and_a_slow_reader_has_a_backlog(server: Server, admin: Browser) -> None:
    def facts() -> dict[str, Any]:
        (row,) = admin.ask("/api/connections", filter=f"{host}:{port}")["rows"]
        return dict(row)

    with socket.create_connection(("127.0.0.1", server.port)) as client, sync.connect(server.url) as bus:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = client.getsockname()
        client.sendall(blipmq.hello(1, 2) + blipmq.auth(2, b"dev-key") + blipmq.subscribe(3, b"read-slowly", 0))
        until(lambda: facts()["who"])
        until(lambda: facts()["idle_seconds"] > 0)
        assert facts()["unsent_bytes"] == 0
        for _ in range(10):
            bus.publish("read-slowly", b"v" * 1_000_000)
        assert until(lambda: facts()["unsent_bytes"] > 50_000)
        (first, *_) = admin.ask("/api/connections", sort="unsent")["rows"]
        assert first["peer"] == f"{host}:{port}"


def test_version_and_cipher_of_tls_are_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = {"TLS_CERT": str(tmp_path / "cert.pem"), "TLS_KEY": str(tmp_path / "key.pem")}
    with running(**{f"QUINTET_LISTENERS__BLIPMQ__{name}": value for name, value in settings.items()}) as server:
        admin = Browser(server.console).log_in("admin", "admin")
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            host, port = client.getsockname()
            (row,) = until(lambda: admin.ask("/api/connections", filter=f"{host}:{port}")["rows"])
            cipher = client.cipher()
            assert cipher is not None and (row["tls"], row["cipher"]) == (client.version(), cipher[0])


def test_a_rate_is_the_difference_of_two_walks() -> None:
    moved = Moved(active=100.0)
    moved.note(1_000, 0, 0.0, 100.0)
    assert (moved.rate_in, moved.rate_out) == (0.0, 0.0)
    moved.note(3_000, 500, 2.0, 102.0)
    assert (moved.rate_in, moved.rate_out, moved.active) == (1_000.0, 250.0, 102.0)
    moved.note(3_000, 500, 2.0, 104.0)
    assert (moved.rate_in, moved.rate_out, moved.active) == (0.0, 0.0, 102.0)


# -- ids --------------------------------------------------------------------------------------------------------------


def lines_of(server: Server, event: str) -> list[dict[str, Any]]:
    said = (server.folder / "server.log").read_text().splitlines()
    return [line for line in map(json.loads, filter(lambda each: each.startswith("{"), said)) if line["event"] == event]


def details(row: dict[str, Any]) -> dict[str, str]:
    return {pair["key"]: pair["value"] for pair in row["details"]}


def fail_to_log_in(server: Server, id: int) -> str:
    """A wrong key over BlipMQ, with this correlation id; the client's address."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.settimeout(WAIT_S)
        host, port = client.getsockname()
        client.sendall(blipmq.hello(1, 2) + blipmq.auth(id, b"a wrong key"))
        while client.recv(4096):
            pass
    return f"{host}:{port}"


def test_lines_of_one_connection_are_found_by_its_number(server: Server, admin: Browser) -> None:
    peer = fail_to_log_in(server, 4711)
    (failed,) = until(lambda: [line for line in lines_of(server, "authentication_failed") if line["peer"] == peer])
    assert (failed["door"], failed["operation"], failed["request"]) == ("blipmq", "AUTH", "4711")
    (closed,) = until(lambda: [line for line in lines_of(server, "connection_closed") if line["peer"] == peer])
    assert closed["connection"] == failed["connection"] and closed["reason"]
    rows = [row for row in admin.ask("/api/audit", search=peer)["rows"] if row["client_ip"] == peer]
    assert rows and {details(row)["connection"] for row in rows} == {str(failed["connection"])}
    other = fail_to_log_in(server, 1)
    (second,) = until(lambda: [line for line in lines_of(server, "authentication_failed") if line["peer"] == other])
    assert second["connection"] > failed["connection"]


def test_an_answer_of_the_console_has_an_id_that_is_in_the_audit(server: Server, admin: Browser) -> None:
    made = admin.post("/api/topic/create", topic="with-an-id")
    id = made.headers["x-request-id"]
    (row,) = [row for row in admin.ask("/api/audit", search="with-an-id")["rows"] if row["type"] == "topic.create"]
    assert details(row)["request"] == id
    stranger = Browser(server.console)
    refused = stranger.post("/api/login", name="admin", password="wrong")
    assert refused.status_code == 401 and refused.json()["request"] == refused.headers["x-request-id"]
    (line,) = until(
        lambda: [line for line in lines_of(server, "authentication_failed") if line["door"] == "console"][-1:]
    )
    assert line["request"] == refused.headers["x-request-id"] != id
    for path in ("/", "/static/app.js", "/api/nothing", "/api/topics"):
        assert stranger.get(path).headers["x-request-id"]
    forged = stranger.client.get("/", headers={"x-request-id": "forged"})
    assert "forged" not in forged.headers["x-request-id"]


@pytest.fixture
def _logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("_logging")
def test_ids_are_in_lines_for_machines_and_for_people() -> None:
    for form in ("json", "console"):
        out = io.StringIO()
        logs.configure(form=form, stream=out)
        report = logs.Reporter(lambda: 0.0)
        report("connection_closed", {"connection": 17, "request": request_text("a\x1b[31mb\n"), "peer": "1.2.3.4:5"})
        text = out.getvalue()
        assert text.count("\n") == 1 and "\x1b" not in text and "17" in text and "1.2.3.4:5" in text
        if form == "json":
            assert (json.loads(text)["connection"], json.loads(text)["request"]) == (17, "a\\u001b[31mb\\u000a")
        else:
            assert "connection=17" in text and "request=" in text


def test_an_id_that_a_client_chose_is_cut_and_printable() -> None:
    assert request_text("x" * 1_000) == "x" * REQUEST_CHARS_MAX + "..."
    assert request_text("\u202eabc") == "\\u202eabc"
    assert (request_text(None), request_text(0), request_text("id-1")) == ("", "0", "id-1")
    address = ClientAddress("10.0.0.1:5", connection=3, request="r")
    assert address == "10.0.0.1:5" and ids_of(address) == {"connection": 3, "request": "r"}
    assert ids_of("10.0.0.1:5") == ids_of(ClientAddress("10.0.0.1:5")) == {}


def test_streams_of_flight_are_rows_that_can_be_ended() -> None:
    arrow = pytest.importorskip("pyarrow", reason="the Flight door needs pyarrow")
    from pyarrow import flight  # type: ignore[import-untyped]

    with running() as server, flight.FlightClient(f"grpc://127.0.0.1:{server.ports['flight']}") as client:
        admin = Browser(server.console).log_in("admin", "admin")
        login = flight.FlightCallOptions(headers=[client.authenticate_basic_token("admin", "admin")])
        table = arrow.table({"value": arrow.array([b"v" * 1_000_000], arrow.binary())})
        where = flight.FlightDescriptor.for_path("columns")
        writer, _answers = client.do_put(where, table.schema, login)  # open until the writer says that it is done
        writer.write_table(table)
        (row,) = until(
            lambda: [one for one in admin.ask("/api/connections", filter="flight")["rows"] if one["bytes_in"]]
        )
        assert set(row) == FACTS
        assert (row["door"], row["who"], row["tls"], row["bytes_in"] >= 1_000_000) == ("flight", "admin", "", True)
        (door,) = [each for each in admin.ask("/api/connections")["doors"] if each["door"] == "flight"]
        assert (door["connections"], door["bytes_in"]) == (1, row["bytes_in"])
        assert admin.ask("/api/overview")["connections"] == 1
        admin.do("/api/connection/kick", door="flight", peer=row["peer"])
        until(lambda: not admin.ask("/api/connections", filter="flight")["rows"])
        with pytest.raises((flight.FlightError, arrow.ArrowException)):
            writer.write_table(table)
            writer.close()
        (event, *_) = admin.ask("/api/audit", search="kick")["rows"]
        assert (event["user"], event["resource"]) == ("admin", "admin")
