"""A real Prometheus that scrapes one broker, where it is installed; whoever needs it skips, loudly, without."""

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from tests.tools import tool

T = TypeVar("T")

WAIT_S = 60
OFTEN = "500ms"


class Prometheus:
    """Its questions."""

    def __init__(self, port: int, log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"
        self._log = log

    def get(self, path: str, **fields: str) -> Any:
        """The answer, also of a question that it does not understand."""
        return json.loads(httpx2.get(f"{self._url}{path}", params=fields, trust_env=False, timeout=60).content)

    def query(self, text: str) -> list[Any]:
        return list(self.get("/query", query=text)["data"]["result"])

    def until(self, found: Callable[[], T]) -> T:
        """What this gives as soon as it gives something; it may fail while Prometheus starts."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                value = found()
                if value:
                    return value
            except (httpx2.TransportError, ValueError, KeyError):
                pass
            assert time.monotonic() < deadline, f"nothing came: {self._log.read_text()[-3000:]}"
            time.sleep(0.2)

    def value_of(self, text: str) -> float:
        (found,) = self.until(lambda: self.query(text))
        return float(found["value"][1])


@contextmanager
def scraping(folder: Path, target: str, *flags: str, rules: Path | None = None) -> Iterator[Prometheus]:
    """One with its data in `folder`, that scrapes `target` often and evaluates these rules."""
    program = tool("prometheus")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    config = {
        "global": {"evaluation_interval": OFTEN, "scrape_interval": OFTEN, "scrape_timeout": OFTEN},
        "rule_files": [str(rules)] if rules is not None else [],
        "scrape_configs": [{"job_name": "quintet", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, f"--config.file={folder / 'config.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
             f"--web.listen-address=127.0.0.1:{port}", *flags],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield Prometheus(port, folder / "log")
    finally:
        process.terminate()
        process.wait(WAIT_S)
