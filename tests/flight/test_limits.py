"""The Flight door over TLS, at its limits, in the metrics, and what its bridge does when the loop does not answer."""

import asyncio
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import verbs
from quintet.flight.bridge import Bridge
from quintet.model.errors import BadRequest, Busy, ShuttingDown
from quintet.model.tasks import Promise, Verb, start
from quintet.protocols import doors
from quintet.protocols.blipmq.door import BLIPMQ
from tests.abuse.process import Broker
from tests.flight.client import Client, basic, refused, rows

SHUT = "".join(f"[listeners.{door.key}]\nenabled = false\n" for door in doors.DOORS if door is not BLIPMQ)
DOORS = f"[listeners.blipmq]\nport = 0\n{SHUT}[listeners.admin]\nport = 0\n"
PEOPLE = '[[users]]\nname = "ann"\npassword = "a password"\nroles = ["admin"]\n[[keys]]\nname = "key"\nkey = "a-key"\n'


def config(**flight_keys: object) -> str:
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in ({"port": 0} | flight_keys).items())
    return f"{DOORS}[listeners.flight]\n{lines}{PEOPLE}"


def port_of(broker: Broker) -> int:
    return int(broker.listeners["flight"].rpartition(":")[2])


def test_calls_and_streams_have_a_limit(tmp_path: Path) -> None:
    with Broker(tmp_path, config(calls_max=2)) as broker, Client(port_of(broker), "ann", "a password") as client:
        client.put("t", rows(*[b"x" * 10_000] * 3000))
        streams = [client.open("t", rows_per_batch=100) for _ in range(2)]
        for stream in streams:
            stream.read_chunk()
        with refused("E1403", "calls_max"):
            client.act("topics")
        for stream in streams:
            assert stream.read_all().num_rows > 0
        while True:  # a stream is counted until gRPC is done with it, a moment after its last row
            try:
                assert client.act("topics")["topics"]
                break
            except flight.FlightUnavailableError:
                continue
        stream = client.open("t", rows_per_batch=100)
        stream.cancel()
        assert client.values("t", last=1) == [b"x" * 10_000]


def test_a_door_that_does_not_tell_where_files_are(tmp_path: Path) -> None:
    with Broker(tmp_path, config(map_files=False)) as broker, Client(port_of(broker), header="Bearer a-key") as client:
        client.put("t", rows(b"x"))
        located = client.act("locate", topic="t", ranges=[[0, 0, 1]])
        assert located["machine"] is None and located["files"] == [[]]
        assert client.values("t") == [b"x"]


def test_a_door_that_is_closed(tmp_path: Path) -> None:
    with Broker(tmp_path, config(enabled=False)) as broker:
        assert "flight" not in broker.listeners


def test_metrics_and_health(tmp_path: Path) -> None:
    with Broker(tmp_path, config()) as broker, Client(port_of(broker), "ann", "a password") as client:
        client.put("t", rows(b"x", b"y"))
        client.values("t")
        report = {"name": "copy", "kind": "archive", "state": "running", "rows_in": 7, "batch_ms": 250.0, "lag": 3}
        client.act("pipeline_report", **report)
        base = f"http://{broker.listeners['admin']}"
        with urllib.request.urlopen(f"{base}/metrics") as answer:
            text = answer.read().decode()
        for line in (
            "quintet_flight_read_rows_total 2.0",
            "quintet_flight_put_rows_total 2.0",
            'quintet_pipeline_up{kind="archive",name="copy",owner="ann"} 1.0',
            'quintet_pipeline_rows_total{kind="archive",name="copy",owner="ann"} 7.0',
            'quintet_pipeline_batch_seconds{kind="archive",name="copy",owner="ann"} 0.25',
            'quintet_pipeline_lag{kind="archive",name="copy",owner="ann"} 3.0',
        ):
            assert line in text.splitlines()
        with urllib.request.urlopen(f"{base}/readyz?verbose") as answer:
            assert "listener:flight" in answer.read().decode()


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def test_tls_with_client_certificates(tmp_path: Path, authority: trustme.CA) -> None:
    files = _write(tmp_path, authority)
    text = config(tls_cert=str(files["cert"]), tls_key=str(files["key"]), tls_client_ca=str(files["ca"]))
    with Broker(tmp_path, text) as broker:
        port = port_of(broker)
        mine = authority.issue_cert("ann")
        shown = {"cert_chain": mine.cert_chain_pems[0].bytes(), "private_key": mine.private_key_pem.bytes()}
        trusted = {"tls_root_certs": files["ca"].read_bytes()}
        with flight.FlightClient(f"grpc+tls://localhost:{port}", **trusted, **shown) as client:
            header = client.authenticate_basic_token("ann", "a password")
            options = flight.FlightCallOptions(headers=[header])
            assert list(client.list_actions(options))
        for wrong in (trusted, shown, {}):
            with (
                flight.FlightClient(f"grpc+tls://localhost:{port}", **wrong) as client,
                pytest.raises(flight.FlightUnavailableError),
            ):
                list(client.list_actions())


def test_a_certificate_that_is_none_is_one_clear_line(tmp_path: Path, authority: trustme.CA) -> None:
    files = _write(tmp_path, authority)
    files["cert"].write_text("nonsense")
    broker = Broker(tmp_path, config(tls_cert=str(files["cert"]), tls_key=str(files["key"])))
    said = broker.refuses()
    assert str(files["cert"]) in said
    assert "Traceback" not in said


def _write(folder: Path, authority: trustme.CA) -> dict[str, Path]:
    issued = authority.issue_cert("localhost", "127.0.0.1")
    files = {name: folder / f"{name}.pem" for name in ("cert", "key", "ca")}
    issued.cert_chain_pems[0].write_to_path(files["cert"])
    issued.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    return files


# -- the bridge -------------------------------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that runs in a thread of its own, as the broker's does for the threads of gRPC."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def test_answers_and_errors_cross_the_bridge(loop: asyncio.AbstractEventLoop) -> None:
    bridge = Bridge(loop)
    here = threading.get_ident()
    assert bridge.ask(threading.get_ident) != here

    async def later(error: Exception | None) -> str:
        promise: Promise[str] = Promise()
        loop.call_soon(promise.done, "later", error)
        return await promise

    def refuse() -> Verb[str]:
        raise BadRequest("no")

    assert bridge.wait_for(lambda: later(None)) == "later"
    with pytest.raises(BadRequest, match="no"):
        bridge.wait_for(refuse)
    with pytest.raises(BadRequest, match="late no"):
        bridge.wait_for(lambda: later(BadRequest("late no")))
    with pytest.raises(TimeoutError, match="its own"):
        bridge.wait_for(lambda: later(TimeoutError("its own")))


def test_a_loop_that_does_not_answer(loop: asyncio.AbstractEventLoop) -> None:
    bridge = Bridge(loop, answer_s=0.01)
    kept: Promise[str] = Promise()

    async def verb() -> str:
        return await kept

    with pytest.raises(Busy, match="no answer"):
        bridge.wait_for(verb)
    kept.resolve("too late")
    bridge.close()
    with pytest.raises(ShuttingDown):
        bridge.ask(int)


def test_a_loop_that_is_gone() -> None:
    gone = asyncio.new_event_loop()
    gone.close()
    with pytest.raises(ShuttingDown):
        Bridge(gone).ask(int)


def test_a_password_that_was_right_is_not_hashed_for_every_call(tmp_path: Path) -> None:
    """The audit writes down every login: one for many calls within a minute, and a wrong one is still found out."""
    with Broker(tmp_path, config()) as broker, Client(port_of(broker), header=basic("ann", "a password")) as client:
        for _ in range(20):
            client.act("topics")
        with Client(port_of(broker), header=basic("ann", "another")) as other, refused("E1200"):
            other.act("topics")
        logins: list[str] = []
        while "auth.failure" not in logins:  # the audit is not waited for
            values = client.read("__audit", columns=["value"]).column("value").to_pylist()
            logins = [kind for kind in (json.loads(value)["type"] for value in values) if kind.startswith("auth.")]
        assert logins == ["auth.success", "auth.failure"]


def test_without_pyarrow_the_door_stays_shut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise ImportError('not installed', name='pyarrow')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Broker(tmp_path, config()) as broker:
        assert "flight" not in broker.listeners
        assert "quintet[flight]" in broker.await_said("flight_door_shut")


def test_an_address_of_ipv6(tmp_path: Path) -> None:
    with Broker(tmp_path, config(host="::1")) as broker:
        assert broker.listeners["flight"].startswith("[::1]:")
        with flight.FlightClient(f"grpc://{broker.listeners['flight']}") as client:
            header = client.authenticate_basic_token("ann", "a password")
            assert list(client.list_actions(flight.FlightCallOptions(headers=[header])))


def test_many_positions_are_looked_up_a_few_at_a_time() -> None:
    asked: list[Promise[int]] = []

    async def verb(number: int) -> int:
        if number % 2:
            return number
        asked.append(Promise())
        return await asked[-1]

    over = start(verbs._some_at_a_time((verb(number) for number in range(10)), at_once=2))
    assert len(asked) == 2
    asked[1].resolve(2)
    assert len(asked) == 3, "one that ended makes room for the next"
    for number, place in ((4, 2), (6, 3), (8, 4), (0, 0)):
        asked[place].resolve(number)
    assert over._result == list(range(10))


def test_one_position_that_fails_stops_none_of_the_others() -> None:
    run: list[int] = []

    async def verb(number: int) -> int:
        run.append(number)
        if number == 1:
            raise BadRequest("no")
        return number

    told: list[Exception | None] = []
    over = start(verbs._some_at_a_time((verb(number) for number in range(5)), at_once=2))
    over.then(lambda _, error: told.append(error))
    assert run == list(range(5))
    assert isinstance(told[0], BadRequest)
