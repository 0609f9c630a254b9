"""An S3 server for tests: moto's, in an environment of its own, because its sixty packages are no business of our lock files.

It is installed once, by name, into the cache of the virtual environment (some seconds), and skipped loudly without a network.
It does conditional writes (If-None-Match), multipart uploads, copies, lists in pages, and refuses credentials when told to.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

VERSION = "5.2.5"
CACHE = Path(sys.prefix) / "cache" / f"moto-{VERSION}"
INSTALL_S = 120
START_S = 240
RUNNING = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")
BUCKET = "lake"
KEY, SECRET = "AKIDQUINTET", "s3cr3t-of-the-test"


@dataclass
class Store:
    """A running server; `options` reach it as storage.* do."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint_override": self.endpoint, "region": "us-east-1", "access_key": KEY, "secret_key": SECRET}

    @property
    def prefixed(self) -> dict[str, str]:
        return {f"storage.{name}": value for name, value in self.options.items()}

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """For a while, credentials are checked; it knows none."""
        self._post("moto-api/reset-auth", b"0")
        try:
            yield
        finally:
            self._post("moto-api/reset-auth", b"inf")

    def _post(self, path: str, body: bytes) -> None:
        kind = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/{path}", body, kind, method="POST")).read()


def install() -> Path:
    """The command of the server; skips the test where it cannot be had."""
    command = CACHE / "bin" / "moto_server"
    CACHE.parent.mkdir(exist_ok=True)
    with CACHE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of tests may be about to install it, too
        if command.exists():
            return command
        uv = Path(sys.prefix) / "bin" / "uv"
        for words in (
            ["venv", "-q", "--clear", str(CACHE)],
            ["pip", "install", "-q", "--python", str(CACHE), f"moto[server]=={VERSION}"],
        ):
            done = subprocess.run([uv, *words], capture_output=True, text=True, timeout=INSTALL_S, check=False)
            if done.returncode:
                pytest.skip(
                    f"NO S3 SERVER, OBJECT STORES ARE NOT TESTED: moto cannot be installed: {done.stderr[-300:]}"
                )
    return command


@contextmanager
def serving() -> Iterator[Store]:
    command = install()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with tempfile.TemporaryDirectory(prefix="quintet-s3-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as out:
            server = subprocess.Popen(
                [command, "-H", "127.0.0.1", "-p", "0"], env=clean, stdout=subprocess.DEVNULL, stderr=out
            )
        try:
            until = time.monotonic() + START_S
            while (place := RUNNING.search(log.read_text())) is None:
                assert server.poll() is None and time.monotonic() < until, "the S3 server did not start"
                time.sleep(0.05)
            store = Store(place[1])
            urllib.request.urlopen(urllib.request.Request(f"{store.endpoint}/{BUCKET}", method="PUT")).read()
            yield store
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()


@contextmanager
def serving_alone() -> Iterator[Store]:
    """The same, and nothing in the environment of this process names another store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "PYICEBERG_")):
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("PYICEBERG_HOME", "/nonexistent")
        with serving() as found:
            yield found
