"""Starts `quintet ...` by fork from a process that has the broker imported: 0.11 s of processor time until it is ready, not 0.55.

`start` is subprocess.Popen for what the tests need of it. The template process is started with the first broker of a test
process and ends with it; it has one thread, so that a fork of it is sound (pyarrow starts threads, so it is not in it), and
forgets nothing it needs to: environment, folder and streams are those of the request. A command that is wrapped, and one
whose environment changes how Python itself starts, is a whole new process. The command line as users start it is tested in
tests/cli/test_serve.py and tests/install.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).parent.parent
ANSWER_BYTES: Final = 64
REQUEST_BYTES_MAX: Final = 1 << 20
# A broker with all doors but Flight imports nothing else until it is ready, nor for its first scrape.
AHEAD: Final = (
    "quintet.cli.serve", "quintet.server", "uvloop", "jwt", "cryptography.x509", "quintet.admin.exposition",
    *(f"quintet.protocols.{door}.session" for door in ("blipmq", "fast", "felix", "flymq", "peerbus")),
)  # fmt: skip
# What Python and the kernel look at before our code runs; QUINTET_PURE at the import of quintet.kernel.
EARLY: Final = ("PYTHON", "LD_", "MALLOC_", "QUINTET_PURE")


class Forked:
    """A child of the template, with the face of subprocess.Popen."""

    def __init__(self, template: "Template", pid: int, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._template = template
        self._watch = os.pidfd_open(pid)  # it is not reaped before we ask for it, so the number is its own

    def poll(self) -> int | None:
        return self._reap(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._reap(timeout) is None:
            raise subprocess.TimeoutExpired("quintet", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._watch, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _reap(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._watch], [], [], timeout)[0]:
            self.returncode = self._template.ask({"reap": self.pid})
            os.close(self._watch)
        return self.returncode


class Template:
    """Our side of the process that forks."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = ours
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * REQUEST_BYTES_MAX)
        self._lock = threading.Lock()
        self.early = _early(os.environ)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )

    def ask(self, request: dict[str, Any], handles: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], handles)
            answer = self._socket.recv(ANSWER_BYTES)
        assert answer, "the process that forks brokers is gone"
        return int(answer)


_TEMPLATES: Final[dict[int, Template]] = {}  # by process: a fork of the tests has none


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


def start(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stderr: IO[bytes]
) -> Forked | subprocess.Popen[bytes]:
    """`quintet ARGUMENTS` with a pipe for stdout and nothing to read on stdin. The console has no fixed port, unless `env` gives one:
    `--dev` opens it, and brokers of other tests run beside this one."""
    env = {"QUINTET_LISTENERS__CONSOLE__PORT": "0", **env}
    template = _TEMPLATES.get(os.getpid())
    if template is None and hasattr(os, "pidfd_open"):
        template = _TEMPLATES[os.getpid()] = Template()
    if template is None or _early(env) != template.early:
        return subprocess.Popen(
            [sys.executable, "-m", "quintet", *arguments],
            env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
    request = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}
    reading, writing = os.pipe()
    with open(os.devnull, "rb") as nothing:
        try:
            pid = template.ask(request, [nothing.fileno(), writing, stderr.fileno()])
        finally:
            os.close(writing)
    return Forked(template, pid, os.fdopen(reading, "rb"))


# -- in the template ---------------------------------------------------------------------------------------------------


def _become(request: dict[str, Any], handles: Sequence[int]) -> None:
    """In the child: the streams, folder and environment asked for, then the command line as shipped."""
    from quintet.cli import main

    for target, handle in enumerate(handles):
        os.dup2(handle, target)
        os.close(handle)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["quintet", *request["arguments"]]
    main.main()


def _serve(requests: socket.socket) -> None:
    import gc
    from importlib import import_module

    for name in AHEAD:
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork takes one thread along"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the tests ends us by closing the socket
    gc.freeze()
    while True:
        data, handles, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                requests.close()
                _become(request, handles)
            for handle in handles:
                os.close(handle)
        with contextlib.suppress(BrokenPipeError):
            requests.send(str(answer).encode())


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules must not stand in front of installed ones
    _serve(socket.socket(fileno=int(sys.argv[1])))
