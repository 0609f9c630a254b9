"""Brokers to be killed: started by fork (launcher.py), by strace, or as a plain process; and the plan of the fault shim.

Nothing here knows what a right answer is; load.py does.
"""

import json
import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quintet.protocols.blipmq.door import BLIPMQ
from quintet.protocols.doors import DOORS
from quintet.protocols.flymq.door import FLYMQ

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
START_S = 60.0  # a broker that is neither ready nor gone after this is a hang
STOP_S = 60.0
COMMAND_S = 60.0

CALLS = (
    "write",
    "pwrite64",
    "pwritev",
    "fdatasync",
    "fsync",
    "ftruncate",
    "rename",
    "open",
    "unlink",
    "mkdir",
    "syncfs",
)
KILL_BEFORE, KILL_AFTER, KILL_TORN, SKIP, SHORT_ENOSPC = -1, -2, -3, -4, -5

SETTINGS = {
    "QUINTET_LISTENERS__BLIPMQ__PORT": "0",
    "QUINTET_LISTENERS__FLYMQ__PORT": "0",
    "QUINTET_LISTENERS__FLIGHT__ENABLED": "false",
    "QUINTET_LISTENERS__ADMIN__ENABLED": "false",
    "QUINTET_LISTENERS__CONSOLE__ENABLED": "false",
    **{f"QUINTET_LISTENERS__{door.key.upper()}__ENABLED": "false" for door in DOORS if door not in (BLIPMQ, FLYMQ)},
    "QUINTET_TOPICS__SEGMENT_BYTES": "131072",
    "QUINTET_DELIVERY__ATTEMPTS_MAX": "1000",
    "QUINTET_LIMITS__DISK_FREE_BYTES_MIN": "0",
    "QUINTET_LOG__FORMAT": "json",
}


class NotStarted(Exception):
    """The broker ended before it was ready. The text is what it said on stderr."""


class Plan:
    """What shim.c does next in every broker started with it. One file, mapped here and there."""

    _FIELDS = struct.Struct("<IiIIIII")

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plan"
        self.path.write_bytes(bytes(4096))
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)

    def arm(self, directory: Path, calls: tuple[str, ...], action: int, when: int, times: int = 1) -> None:
        name = str(directory).encode()
        assert len(name) < 480, "the shim keeps 479 bytes of a path"
        mask = sum(1 << CALLS.index(call) for call in calls)
        self._map[32 : 32 + 480] = name.ljust(480, b"\0")
        self._map[: self._FIELDS.size] = self._FIELDS.pack(mask, action, when, 1, times, 0, 0)

    def disarm(self) -> None:
        self._map[12:16] = bytes(4)

    @property
    def fired(self) -> int:
        return int(struct.unpack_from("<I", self._map, 24)[0])


class Broker:
    """A running `quintet serve`. It need not be our child, so it is watched by a pidfd."""

    def __init__(self, pid: int, addresses: dict[str, str], stderr: Path, start_s: float) -> None:
        self.pid = pid
        self.address = addresses.get("blipmq", "")
        self.flymq = addresses.get("flymq", "")
        self.fast = addresses.get("fast", "")
        self.peerbus = addresses.get("peerbus", "")
        self.peerbus_tcp = addresses.get("peerbus-tcp", "")
        self.felix = addresses.get("felix", "")
        self.stderr = stderr
        self.start_s = start_s
        self._watch = os.pidfd_open(pid)

    def alive(self) -> bool:
        return not select.select([self._watch], [], [], 0)[0]

    def kill(self, number: int = signal.SIGKILL) -> None:
        try:
            signal.pidfd_send_signal(self._watch, number)
        except ProcessLookupError:
            return  # it went by itself, which is what was wanted

    def wait(self, timeout_s: float = STOP_S) -> bool:
        """Until it is gone: False if it is still there."""
        return bool(select.select([self._watch], [], [], timeout_s)[0])

    def end(self) -> None:
        """Kill and wait."""
        self.kill()
        assert self.wait(), "a killed broker must go"
        os.close(self._watch)

    def said(self) -> str:
        return self.stderr.read_text(errors="replace")


class Command:
    """A command that ends by itself."""

    def __init__(self, process: Broker, code: Path) -> None:
        self._process = process
        self._code = code

    def finish(self) -> tuple[int, str]:
        """(exit code, what it said); -1 if it ended without a code."""
        assert self._process.wait(COMMAND_S), "a command must end"
        self._process.end()
        code = int(self._code.read_text()) if self._code.exists() else -1
        return code, self._process.said().strip()


class Launcher:
    """Starts brokers by fork, with the fault shim loaded if gcc can build it."""

    def __init__(self, folder: Path | None = None, journal: bool = False) -> None:
        """journal: brokers started by fork send everything small by way of the journal."""
        self.journal = journal
        self.folder = Path(tempfile.mkdtemp(prefix="quintet-crash-")) if folder is None else folder
        self.plan: Plan | None = None
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        environment["PYTHONPATH"] = f"{ROOT / 'src'}"
        if shutil.which("gcc") is not None:
            shim = self.folder / "shim.so"
            command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", str(shim), str(HERE / "shim.c"), "-ldl"]
            subprocess.run(command, check=True)
            environment["LD_PRELOAD"] = str(shim)
            self.plan = Plan(self.folder)
            environment["CRASH_PLAN"] = str(self.plan.path)
        self._environment = environment
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "launcher.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
        )  # fmt: skip

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _fifo(self) -> tuple[Path, Path, int]:
        """(stdout, stderr, our end of stdout) of the next broker."""
        self._count += 1
        out, err = self.folder / f"{self._count}.out", self.folder / f"{self._count}.err"
        os.mkfifo(out)
        return (
            out,
            err,
            os.open(out, os.O_RDWR | os.O_NONBLOCK),
        )  # for writing too: else it reads as ended until the child opens it

    def launch(self, data: Path, settings: dict[str, str] | None = None, sabotage: str = "") -> tuple[int, Path, int]:
        """Fork a broker and do not wait: (process id, its stderr, the pipe of its ready line)."""
        out, err, pipe = self._fifo()
        request = {
            "args": ["serve", "--dev", "--data", str(data), "--print-ready"],
            "env": SETTINGS | (settings or {}), "stdout": str(out), "stderr": str(err), "sabotage": sabotage,
            "journal": self.journal, "code": "",
        }  # fmt: skip
        return self._fork(request), err, pipe

    def _fork(self, request: dict[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def command(self, *arguments: str) -> "Command":
        """Any other `quintet` command, begun; its `finish` gives exit code and words."""
        self._count += 1
        said, code = self.folder / f"{self._count}.said", self.folder / f"{self._count}.code"
        said.touch()
        request: dict[str, object] = {
            "args": list(arguments), "env": {}, "stdout": str(said), "stderr": str(said), "sabotage": "",
            "journal": False, "code": str(code),
        }  # fmt: skip
        return Command(Broker(self._fork(request), {}, said, 0.0), code)

    def start(self, data: Path, settings: dict[str, str] | None = None, sabotage: str = "") -> Broker:
        """Fork a broker and wait until it is ready. NotStarted with its words if it goes instead."""
        started = time.monotonic()
        pid, err, pipe = self.launch(data, settings, sabotage)
        return self._await_ready(pid, err, pipe, started)

    def start_traced(self, data: Path, inject: str) -> tuple[subprocess.Popen[bytes], Broker | None]:
        """A whole new process under `strace -e inject=...`; no Broker if it was killed before it was ready."""
        out, err, pipe = self._fifo()
        environment = dict(os.environ) | SETTINGS | {"PYTHONPATH": str(ROOT / "src")}
        call = inject.partition(":")[0]
        command = ["strace", "-f", "-o", os.devnull, "-e", f"trace={call}", "-e", f"inject={inject}",
                   sys.executable, "-m", "quintet", "serve", "--dev", "--data", str(data), "--print-ready"]  # fmt: skip
        started = time.monotonic()
        with err.open("ab") as errors, open(os.open(out, os.O_RDWR), "wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True)
        try:
            return process, self._await_ready(process.pid, err, pipe, started)
        except NotStarted:
            return process, None

    def _await_ready(self, pid: int, err: Path, pipe: int, started: float) -> Broker:
        try:
            watch = os.pidfd_open(pid)
        except ProcessLookupError:
            os.close(pipe)
            raise NotStarted(err.read_text() if err.exists() else "") from None
        line = b""
        try:
            while not line.endswith(b"\n"):
                left = START_S - (time.monotonic() - started)
                ready = select.select([pipe, watch], [], [], max(left, 0))[0]
                if not ready and left <= 0:
                    os.kill(pid, signal.SIGKILL)
                    raise AssertionError(f"the broker is neither ready nor gone after {START_S} s: {err}")
                chunk = os.read(pipe, 4096) if pipe in ready else b""
                line += chunk
                if watch in ready and not chunk:
                    raise NotStarted(err.read_text(errors="replace"))
        finally:
            os.close(watch)
            os.close(pipe)
        return Broker(pid, json.loads(line)["listeners"], err, time.monotonic() - started)
