"""A real broker in a process of its own, that tests can kill and start again on the same data and port."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quintet.broker.identity.tokens import mint
from quintet.config import DEV_FAST_MASTER_SECRET, DEV_PEERBUS_TOKEN
from quintet.net.certificates import CERTIFICATE_NAME
from quintet.protocols.doors import DOORS
from tests import forks

START_S = 30
STOP_S = 60
PORT_TRIES = 60
PORT_WAIT_S = 0.5


class Server:
    """`quintet serve --dev` with its own data folder."""

    def __init__(self, folder: Path, settings: dict[str, str], cells: int = 0) -> None:
        """cells: so many processes, 0 a broker without cells. QUINTET_TEST_CELLS in the environment runs any test so."""
        self.folder = folder
        self.settings = settings
        self.cells = cells or int(os.environ.get("QUINTET_TEST_CELLS", "0"))
        self.port = 0
        self.console = ""  # its address
        self.ports = {door.name: 0 for door in DOORS} | {"flight": 0, "console": 0, "admin": 0}
        self._process: forks.Forked | subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"blipmq://:dev-key@127.0.0.1:{self.port}"

    @property
    def fly(self) -> str:
        return f"flymq://admin:admin@127.0.0.1:{self.ports['flymq']}"

    @property
    def fly_sdk(self) -> str:
        return f"flymq://admin:admin@127.0.0.1:{self.ports['flymq-sdk']}?dialect=sdk"

    @property
    def flight(self) -> str:
        return f"flight://admin:admin@127.0.0.1:{self.ports['flight']}"

    def token(self, subject: str = "sensor-7", key: str = "k", *permissions: str, **claims: object) -> str:
        """A token for the Fast door."""
        rights = permissions or ("publish", "subscribe", "rotate")
        said = {"sub": subject, "queue_key": key, "permissions": rights, **claims}
        return mint(DEV_FAST_MASTER_SECRET.encode(), said).decode()

    @property
    def fast(self) -> str:
        return f"fast://:{self.token()}@127.0.0.1:{self.ports['fast']}"

    @property
    def felix(self) -> str:
        data = self.folder / "data" / ("cell-0" if self.cells else "")
        return f"felix://:dev-key@127.0.0.1:{self.ports['felix']}?ca={data / 'tls' / CERTIFICATE_NAME}"

    @property
    def peerbus(self) -> str:
        return f"ws://127.0.0.1:{self.ports['peerbus']}"

    def peer(self, name: str, *, lines: bool = False, token: str = DEV_PEERBUS_TOKEN) -> str:
        """The URL of a peer; the secret is the caller's to put into the environment."""
        scheme, port = ("peerbus+tcp", "peerbus-tcp") if lines else ("peerbus", "peerbus")
        return f"{scheme}://:{token}@127.0.0.1:{self.ports[port]}?name={name}"

    @property
    def peers(self) -> str:
        return self.peer("").partition("?")[0]

    def start(self) -> None:
        """Start, on the port it had before if it ran before, and wait until it accepts. Another test's connection may have
        been given that port meanwhile: then it is tried again."""
        for _ in range(PORT_TRIES):
            if self._try_to_start():
                return
            time.sleep(PORT_WAIT_S)
        raise AssertionError(f"the broker did not start:\n{(self.folder / 'server.log').read_text()[-4000:]}")

    def _try_to_start(self) -> bool:
        """False: one of its ports is taken."""
        ports = {
            f"QUINTET_LISTENERS__{name.upper().replace('-', '_')}__PORT": str(port) for name, port in self.ports.items()
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = forks.start(
                ["serve", "--dev", "--data", str(self.folder / "data"), "--print-ready", *self._cells()],
                env={**os.environ, **ports, **self.settings},
                cwd=self.folder,
                stderr=log,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(STOP_S)
            self._process.stdout.close()
            said = (self.folder / "server.log").read_text()[-4000:]
            assert "Address already in use" in said, f"the broker did not start:\n{said}"
            return False
        listeners = json.loads(line)["listeners"]
        self.ports = {name: int(listeners.get(name, ":0").rpartition(":")[2]) for name in self.ports}
        self.port = self.ports["blipmq"]
        self.console = str(listeners.get("console", ""))
        return True

    def _cells(self) -> list[str]:
        return ["--cells", str(self.cells)] if self.cells else []

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was started"
        return self._process.pid

    def kill(self) -> None:
        """As in a power cut for the process: no goodbye on any connection but the kernel's."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Accepts and answers nothing until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> int | None:
        """The exit code; that of a kill if it did not end by itself."""
        return self._end(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the broker was started"
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> int | None:
        if self._process is None:
            return None
        process, self._process = self._process, None
        assert process.stdout is not None
        process.send_signal(number)
        process.stdout.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return process.returncode


@contextmanager
def running(**settings: str) -> Iterator[Server]:
    """A broker of one's own, gone at the end. Settings are environment variables."""
    with running_cells(0, settings) as server:
        yield server


@contextmanager
def running_cells(cells: int, settings: dict[str, str] | None = None) -> Iterator[Server]:
    """The same of so many cells."""
    with tempfile.TemporaryDirectory(prefix="quintet-client-") as folder:
        server = Server(Path(folder), settings or {}, cells)
        try:
            server.start()
            yield server
        finally:
            if server.cells:
                server.stop()  # its processes outlive the one that started them by a moment
            server.kill()
