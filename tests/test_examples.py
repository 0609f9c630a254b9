"""The examples run, against a real broker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quintet import sync
from quintet.client.links.peerbus import SECRET_VARIABLE
from tests.client.server import running

EXAMPLES = Path(__file__).parents[1] / "examples"
LONG = "QUINTET_TEST_LONG"  # set: what takes Spark a minute to start runs, too


def test_a_client_written_from_the_document_reads_what_ours_publishes() -> None:
    with running() as server:
        command = [sys.executable, str(EXAMPLES / "blipmq_v1.py"), "demo", "2", str(server.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "subscribed to demo\n"
            with sync.connect(server.url) as bus:
                bus.publish_batch("demo", ["hello", "log"])
            assert reader.stdout.read() == "hello\nlog\n"
        assert reader.returncode == 0


def test_a_felix_client_from_the_document_subscribes_and_uses_the_cache() -> None:
    pytest.importorskip("aioquic", reason="the example speaks QUIC by aioquic")
    with running() as server:
        certificate = server.felix.rpartition("?ca=")[2]
        program = [sys.executable, str(EXAMPLES / "felix_document.py")]
        command = [*program, "demo", "2", str(server.ports["felix"]), certificate]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "subscribed to default/default/demo\n"
            with sync.connect(server.url) as bus:
                bus.publish_batch("default/default/demo", ["hello", "log"])
            assert reader.stdout.read() == "hello\nlog\ncached: log\n"
        assert reader.returncode == 0


def test_a_topic_is_a_table_for_arrow_clients() -> None:
    pytest.importorskip("pyarrow.flight", reason="the Flight door needs pyarrow")
    with running() as server:
        command = [sys.executable, str(EXAMPLES / "flight_arrow_clients.py"), str(server.ports["flight"])]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:2] == ["pyarrow ann 22", "pyarrow bob 20"]
    for tool in ("duckdb", "polars"):
        found = [line for line in said if line.startswith(tool)]
        assert found in ([f"{tool} ann 22", f"{tool} bob 20"], [f"{tool} is not installed: pip install {tool}"])


@pytest.mark.skipif(LONG not in os.environ, reason=f"a declarative pipeline takes a minute; {LONG}=1 runs it")
@pytest.mark.timeout(600)
def test_a_declarative_pipeline_reads_a_topic_and_writes_one(tmp_path: Path) -> None:
    """By what is in the table and in the topic: the exit code of Spark's program is not to be trusted."""
    pytest.importorskip("grpc_status", reason="declarative pipelines need the extra `declarative`")
    with running() as server:
        with sync.connect(server.fly) as bus:
            for customer, paid in (("ann", 10), ("bob", 20), ("ann", 12)):
                bus.publish("shop.orders", str(paid), key=customer)
        # SPARK_TESTING: Spark Connect takes a free port in place of its own. The flags: as for the session of other tests.
        quick = {"SPARK_TESTING": "1", "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "declarative" / "run.py"), str(tmp_path / "kept")],
            env={**os.environ, **quick, "QUINTET_FLIGHT_URL": server.flight},
            capture_output=True,
            text=True,
            check=False,
        )
        with sync.connect(server.fly) as bus:
            totals = sorted((message.key, message.text()) for message in bus.replay("shop.totals"))
    assert done.stdout.splitlines() == ["table ann 22 2", "table bob 20 1", "topic ann 22 2", "topic bob 20 1"], (
        done.stderr
    )
    assert totals == [(b"ann", '{"paid":22,"orders":2}'), (b"bob", '{"paid":20,"orders":1}')]


# What each protocol has no place for; everything else must work.
ORDERS = {
    "fly": {"cache"},
    "fly_sdk": {"cache"},
    "url": {"cache", "transaction", "schema", "delay"},
    "felix": {"transaction", "schema", "delay"},
    "fast": {"ask", "cache", "transaction", "schema", "delay"},
    "peer": {"ask", "cache", "transaction", "schema", "delay"},
    "lines": {"ask", "cache", "transaction", "schema", "delay"},
}
WORKS = {
    "work": "billed [0, 1, 2, 4], gave up 1 after 2 attempts",
    "ask": "price 42",
    "cache": "stock 7",
    "transaction": "invoice and shipment together",
    "schema": "a bad order was refused",
    "delay": "reminded to pay",
}


def test_the_order_service_runs_over_every_url_scheme() -> None:
    with running() as server:
        for door, missing in ORDERS.items():
            peers = {"peer": lambda: server.peer("shop.one"), "lines": lambda: server.peer("shop.two", lines=True)}
            url = peers[door]() if door in peers else getattr(server, door)
            command = [sys.executable, str(EXAMPLES / "order_service.py"), url]
            environment = {**os.environ, SECRET_VARIABLE: "0123456789abcdef0123456789abcdef"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, check=False)
            assert done.returncode == 0, done.stderr
            said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
            assert {name for name, text in said.items() if text.startswith("not here, ")} == missing, done.stdout
            assert {name: text for name, text in said.items() if name not in missing} == {
                name: text for name, text in WORKS.items() if name not in missing
            }
