"""The examples run, against a real broker."""

import subprocess
import sys
from pathlib import Path

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
