"""Starts `quintet ...` by fork from a process that has the broker imported: 0.11 s of processor time until it is ready, not 0.55.

`start` is subprocess.Popen for what the tests need of it, for brokers; `command` and `run` are the same for commands that talk
through pipes, at 0.1 s in the place of 0.4 to 1.3. The template process is started with the first broker of a test
process and ends with it; it has one thread, so that a fork of it is sound (pyarrow starts threads, so it is not in it), and
forgets nothing it needs to: environment, folder and streams are those of the request. A command that is wrapped, and one
whose environment changes how Python itself starts, is a whole new process. The command line as users start it is tested in
tests/cli/test_main.py, tests/cli/test_serve.py and tests/install.
"""

import atexit
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
from typing import IO, Any, Final, TypeAlias

ROOT: Final = Path(__file__).parent.parent
ANSWER_BYTES: Final = 64
REQUEST_BYTES_MAX: Final = 1 << 20
# A broker with all doors but Flight imports nothing else until it is ready, nor for its first scrape.
AHEAD: Final = (
    "quintet.cli.serve", "quintet.server", "uvloop", "jwt", "cryptography.x509", "quintet.admin.exposition",
    *(f"quintet.protocols.{door}.session" for door in ("blipmq", "fast", "felix", "flymq", "peerbus")),
)  # fmt: skip
# pyarrow imports it for the Flight door, where it is installed: half of what that door costs a start. Without the setting it has threads.
NUMPY, WITHOUT_THREADS = "numpy", {"OPENBLAS_NUM_THREADS": "1"}
# What commands import beyond that, for `command` to name: the template imports it with the first that asks for it.
PUBSUB: Final = ("quintet.cli.messages.pubsub", "quintet.client.links.blipmq", "quintet.client.sources.push")
PEER: Final = ("quintet.cli.messages.peer", "quintet.client.links.peerbus_ws")
MCP: Final = ("quintet.cli.messages.mcp", "quintet.client.agents.mcp", "quintet.client.links.peerbus_ws")
# What Python and the kernel look at before our code runs; QUINTET_PURE at the import of quintet.kernel.
EARLY: Final = ("PYTHON", "LD_", "MALLOC_", "QUINTET_PURE")


class Forked:
    """A child of the template, with the face of subprocess.Popen."""

    def __init__(self, template: "Template", pid: int, stdin: Any, stdout: Any, stderr: Any) -> None:
        self.pid = pid
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.returncode: int | None = None
        self._template = template
        self._watch = os.pidfd_open(pid)  # it is not reaped before we ask for it, so the number is its own

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """As that of Popen: writes all, reads both to their ends and waits; then the streams are closed."""
        said: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str, stream: Any) -> None:
            said[name] = stream.read()

        open_ones = [(name, getattr(self, name)) for name in said if getattr(self, name) is not None]
        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in open_ones
            if not stream.closed
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                if input and not self.stdin.closed:
                    self.stdin.write(input)
                self.stdin.close()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired("quintet", timeout or 0.0)
        for _, stream in open_ones:
            stream.close()
        self.wait(timeout)
        return said["stdout"], said["stderr"]

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


Process: TypeAlias = Forked | subprocess.Popen[Any]


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
                env={**os.environ, **WITHOUT_THREADS, "PYTHONPATH": str(ROOT / "src")},
            )

    def close(self) -> None:
        """It ends when the connection does, whoever else has inherited our end of it. Brokers that still run are not ended."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._process.wait()

    def ask(self, request: dict[str, Any], handles: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], handles)
            answer = self._socket.recv(ANSWER_BYTES)
        assert answer, "the process that forks brokers is gone"
        return int(answer)


_TEMPLATES: Final[dict[int, Template]] = {}  # by process: a fork of the tests has none


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


def _template_for(env: Mapping[str, str]) -> Template | None:
    """The one of this process; None where a whole new process is needed."""
    template = _TEMPLATES.get(os.getpid())
    if template is None and hasattr(os, "pidfd_open"):
        template = _TEMPLATES[os.getpid()] = Template()
        atexit.register(close)
    return None if template is None or _early(env) != template.early else template


def close() -> None:
    """End the template of this process, if it has one."""
    template = _TEMPLATES.pop(os.getpid(), None)
    if template is not None:
        template.close()


def start(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stderr: IO[bytes]
) -> Forked | subprocess.Popen[bytes]:
    """`quintet ARGUMENTS` with a pipe for stdout and nothing to read on stdin. The console has no fixed port, unless `env` gives one:
    `--dev` opens it, and brokers of other tests run beside this one."""
    env = {"QUINTET_LISTENERS__CONSOLE__PORT": "0", **env}
    template = _template_for(env)
    if template is None:
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
    return Forked(template, pid, None, os.fdopen(reading, "rb"), None)


def command(
    arguments: Sequence[str], *, env: Mapping[str, str] | None = None, text: bool = False, ahead: Sequence[str] = PUBSUB
) -> Process:
    """`quintet ARGUMENTS` in this folder, with pipes for all three streams: of str if `text`, else of bytes."""
    env = os.environ if env is None else env
    template = _template_for(env)
    if template is None:
        return subprocess.Popen(
            [sys.executable, "-m", "quintet", *arguments],
            env=dict(env), text=text, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    request = {"arguments": list(arguments), "env": dict(env), "cwd": os.getcwd(), "ahead": list(ahead)}
    (their_in, stdin), (stdout, their_out), (stderr, their_err) = os.pipe(), os.pipe(), os.pipe()
    theirs = [their_in, their_out, their_err]
    try:
        pid = template.ask(request, theirs)
    finally:
        for handle in theirs:
            os.close(handle)
    kind = "" if text else "b"
    return Forked(
        template, pid, os.fdopen(stdin, f"w{kind}"), os.fdopen(stdout, f"r{kind}"), os.fdopen(stderr, f"r{kind}")
    )


def run(
    arguments: Sequence[str],
    *,
    input: Any = None,
    env: Mapping[str, str] | None = None,
    text: bool = False,
    timeout: float,
) -> "subprocess.CompletedProcess[Any]":
    """subprocess.run for `command`."""
    process = command(arguments, env=env, text=text)
    try:
        out, err = process.communicate(input, timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(list(arguments), process.wait(timeout), out, err)


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
    from importlib.util import find_spec

    def load(names: Sequence[str]) -> None:
        for name in names:
            if name not in sys.modules:
                import_module(name)
        assert len(os.listdir("/proc/self/task")) == 1, "a fork takes one thread along"
        gc.freeze()

    load((*AHEAD, NUMPY) if find_spec(NUMPY) else AHEAD)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the tests ends us by closing the socket
    while True:
        data, handles, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        else:
            load(request.get("ahead", ()))
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
