"""The examples run, against a real broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from quintet import sync
from tests.client.server import running

EXAMPLES = Path(__file__).parents[1] / "examples"


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


def test_a_topic_is_a_table_for_arrow_clients() -> None:
    pytest.importorskip("pyarrow.flight", reason="the Flight door needs pyarrow")
    with running() as server:
        command = [sys.executable, str(EXAMPLES / "flight_arrow_clients.py"), str(server.ports["flight"])]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[:2] == ["pyarrow ann 22", "pyarrow bob 20"]
    for tool in ("duckdb", "polars"):
        found = [line for line in said if line.startswith(tool)]
        assert found in ([f"{tool} ann 22", f"{tool} bob 20"], [f"{tool} is not installed: pip install {tool}"])
