"""Closed-loop publishes and FETCH loops: by the Rust program of bench/loadgen. Where there is no Rust, the Python generator
can do the plain closed loops.

At one message in flight the Python generator costs more CPU per round trip than the servers do, so on few cores it would
measure itself. All sides of a comparison are driven by the same generator, and the report says so if it is Python's.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quintet.bench import run
from quintet.bench.generators import Load
from quintet.bench.wire import Address, BenchError

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "loadgen" / "Cargo.toml"
TARGET = HERE / ".peers" / "loadgen"
BUILD_S = 300.0
SLACK_S = 60.0  # beyond the run itself: connecting, and the 30 s after which the program calls a server stalled
FILL_S_MAX = 240.0  # for everything that is sent before a measurement
PYTHON = "python generator"
# What the program calls the wires it speaks.
PROTOCOLS = {
    "quintet blipmq": "blipmq",
    "quintet flymq": "flymq",
    "redis streams": "redis",
    "nats jetstream": "jetstream",
    "nats core": "nats",
    "kafka": "kafka",
    "rabbitmq quorum": "amqp",
}


@dataclass(frozen=True, slots=True)
class Rounds:
    """What one run gave. `total` are all messages acknowledged, those outside the measured time included."""

    operations: int
    seconds: float
    p50_us: float
    p99_us: float
    total: int
    bytes: int = 0  # read, where reading is what is measured
    p999_us: float = 0.0

    @property
    def rate(self) -> float:
        return self.operations / self.seconds

    @property
    def bytes_rate(self) -> float:
        return self.bytes / self.seconds


def working_cargo() -> str | None:
    """cargo, if there is one that runs: rustup leaves a stand-in where no toolchain is chosen."""
    cargo = shutil.which("cargo")
    if cargo is None or subprocess.run([cargo, "--version"], capture_output=True, check=False).returncode:
        return None
    return cargo


@cache
def program() -> Path | None:
    """The generator, built if its sources are newer; None without a Rust compiler. Says what it does."""
    cargo = working_cargo()
    if cargo is None:
        print("no cargo here: closed loops are driven by the Python generator, which may be the slower side")
        return None
    print("building bench/loadgen with cargo (once)", flush=True)
    command = [cargo, "build", "--release", "--quiet", "--manifest-path", str(MANIFEST), "--target-dir", str(TARGET)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if done.returncode:
        raise BenchError(f"bench/loadgen does not build: {done.stderr[-1000:]} Mend it, or take cargo off PATH.")
    return TARGET / "release" / "loadgen"


def generator() -> str:
    """Which generator drives closed loops here, for the names of results; empty for the usual one."""
    return "" if program() else PYTHON


def _words(options: dict[str, str | float]) -> list[str]:
    built = program()
    if built is None:
        raise BenchError("bench/loadgen needs cargo. Install Rust, or use closed_loop.rounds, which can do without.")
    return [str(built), *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def command(
    load: Load, connections: int, in_flight: int, seconds: float, warmup: float, **more: str | float
) -> list[str]:
    """The program and its arguments for this load; `more` are further options of it (see its usage line)."""
    host, port = load.address
    options: dict[str, str | float] = {
        "proto": PROTOCOLS[load.wire.name],
        "addr": f"{host}:{port}",
        "topic": load.topic,
    }
    options |= {"connections": connections, "in-flight": in_flight, "size": load.size, "seconds": seconds}
    return _words(options | {"warmup": warmup} | more)


def _run(what: str, words: list[str], seconds: float) -> Rounds:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + SLACK_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{what}: the generator did not end {SLACK_S} s after its time.") from error
    if done.returncode:
        raise BenchError(f"{what}: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    figures = (said[name] for name in ("operations", "seconds", "p50_us", "p99_us", "total", "bytes", "p999_us"))
    return Rounds(*figures)


def rounds(
    load: Load, connections: int, in_flight: int, seconds: float, warmup: float = 0.0, **more: str | float
) -> Rounds:
    """Each connection sends in_flight messages and waits until all are acknowledged as durable, over and over."""
    if program() is None and not more:
        outcome = run.windows(load, connections, in_flight, seconds=seconds)
        waits = sorted(outcome.latencies)
        p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * share))] / 1e3 for share in (0.5, 0.99))
        return Rounds(outcome.messages, outcome.seconds, p50, p99, outcome.messages)
    return _run(load.wire.name, command(load, connections, in_flight, seconds, warmup, **more), warmup + seconds)


def fill(load: Load, connections: int, in_flight: int, rounds_each: int, **more: str | float) -> Rounds:
    """A fixed number of rounds on each connection, so that it is known what the server holds afterwards."""
    words = command(load, connections, in_flight, FILL_S_MAX, 0.0, rounds=rounds_each, **more)
    return _run(load.wire.name, words, FILL_S_MAX)


def fetch(
    load: Load, connections: int, in_flight: int, seconds: float, warmup: float = 0.0, **more: str | float
) -> Rounds:
    """FETCH requests, in_flight under way on each connection; `more` has run and held, and perhaps topics and once."""
    words = command(load, connections, in_flight, seconds, warmup, what="fetch", **more)
    return _run(load.wire.name, words, warmup + seconds)


def scheduled(load: Load, connections: int, rate: float, seconds: float, warmup: float) -> Rounds:
    """So many messages a second, whatever the server does; latencies are from when each was due to its answer."""
    words = command(load, connections, 1, seconds, warmup, what="schedule", rate=rate)
    return _run(load.wire.name, words, warmup + seconds)


def scripted(
    what: str, address: Address, connections: int, seconds: float, warmup: float, script: dict[str, str | float]
) -> Rounds:
    """A closed loop with one message under way on each connection, in the words of a script (dialogues.py)."""
    options: dict[str, str | float] = {"proto": "script", "addr": f"{address[0]}:{address[1]}"}
    options |= {"connections": connections, "in-flight": 1, "seconds": seconds, "warmup": warmup}
    return _run(what, _words(options | script), warmup + seconds)


def floor(address: Address, file: Path, exchanges: str) -> list[str]:
    """The program and its arguments as a server that reads, writes, syncs and answers."""
    return _words({"what": "floor", "addr": f"{address[0]}:{address[1]}", "file": str(file), "exchanges": exchanges})


def drain(address: Address) -> Rounds:
    """Read a plain stream to its end, with the reads that FETCH is measured with."""
    return _run("a plain stream", _words({"what": "drain", "addr": f"{address[0]}:{address[1]}"}), SLACK_S)
