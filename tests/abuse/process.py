"""A broker as an operator runs it: a process of its own with a configuration file, signals and a stderr to read.

The waits here are time-outs of the harness: a broker that needs longer is reported, nothing is said about its speed.
"""

import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

from quintet.protocols.doors import DOORS
from tests import forks

START_S = 60.0
TOLD_S = 60.0
KEYS = ("alice", "bob", "mallory")


class Broker:
    """`quintet serve --config FILE`. Use as a context: it is killed at the end if it still runs."""

    def __init__(self, folder: Path, config: str, *, wrapper: tuple[str, ...] = (), data: Path | None = None) -> None:
        self.folder = folder
        self.data = folder / "data" if data is None else data
        self.config = folder / "quintet.toml"
        self.config.write_text(config)
        self.errors = folder / "stderr"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        environment["QUINTET_LISTENERS__CONSOLE__PORT"] = "0"  # `dev` opens it, and others run beside this one
        arguments = ["serve", "--config", str(self.config), "--data", str(self.data), "--print-ready"]
        with self.errors.open("wb") as errors:
            self.process: forks.Forked | subprocess.Popen[bytes]
            if wrapper:
                self.process = subprocess.Popen(
                    [*wrapper, sys.executable, "-m", "quintet", *arguments],
                    stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=folder,
                )  # fmt: skip
            else:
                self.process = forks.start(arguments, env=environment, cwd=folder, stderr=errors)
        self.address = ""
        self.listeners: dict[str, str] = {}

    def __enter__(self) -> "Broker":
        self.address = self._ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _ready(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            assert waiting.select(START_S), f"neither ready nor gone after {START_S} s: {self.said()}"
        line = self.process.stdout.readline()
        assert line, f"not started: {self.said()}"
        self.listeners = json.loads(line)["listeners"]
        return self.listeners["blipmq"]

    def refuses(self) -> str:
        """It must end by itself, with a code that is not 0: what it said."""
        code = self.process.wait(START_S)
        self.__exit__()
        assert code not in (0, None), "a broker that cannot run must not end with code 0"
        return self.said()

    def said(self) -> str:
        return self.errors.read_text(errors="replace")

    def await_said(self, text: str, times: int = 1) -> str:
        """The line in which it said so."""
        until = time.monotonic() + TOLD_S
        while (said := self.said()).count(text) < times:
            assert time.monotonic() < until, f"never said {text!r}: {said[-2000:]}"
            time.sleep(0.02)
        return [line for line in said.splitlines() if text in line][-1]

    def reload(self, config: str | None = None) -> None:
        if config is not None:
            self.config.write_text(config)
        self.process.send_signal(signal.SIGHUP)

    def resident_bytes(self) -> int:
        return self._memory("VmRSS:")

    def peak_bytes(self) -> int:
        """The most it ever had."""
        return self._memory("VmHWM:")

    def _memory(self, name: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
        raise AssertionError("the broker is gone")


def config(keys: tuple[str, ...] = KEYS, listener: str = "", rest: str = "") -> str:
    """A configuration with these people, each with the key `<name>-key`."""
    people = "".join(f'[[keys]]\nname = "{name}"\nkey = "{name}-key"\n' for name in keys)
    others = "[listeners.admin]\nenabled = false\n[listeners.flight]\nenabled = false\n"
    for door in (door.key for door in DOORS if door.protocol not in ("blipmq", "flymq")):
        if f"[listeners.{door}]" not in listener + rest:
            others += f"[listeners.{door}]\nenabled = false\n"
    if "[listeners.flymq]" not in listener + rest:
        others += "[listeners.flymq]\nport = 0\n"
    return f"[listeners.blipmq]\nport = 0\n{listener}\n{others}{people}\n{rest}\n"


def fingerprint(folder: Path) -> dict[str, str]:
    """Every name below a folder with mode, size and content: equal before and after means that nothing was touched."""
    found = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = f"{facts.st_mode:o} {facts.st_size} {facts.st_mtime_ns} {content}"
    return found


def one_line(said: str) -> str:
    """One clear line, no traceback."""
    lines = said.strip().splitlines()
    assert len(lines) == 1, f"one line was wanted: {said}"
    assert lines[0].startswith("quintet: "), said
    return lines[0]
