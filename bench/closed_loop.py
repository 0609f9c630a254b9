"""Closed-loop durable publishes: by the Rust program of bench/loadgen, or by the Python generator where there is no Rust.

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
from quintet.bench.wire import BenchError

HERE = Path(__file__).resolve().parent
MANIFEST = HERE / "loadgen" / "Cargo.toml"
TARGET = HERE / ".peers" / "loadgen"
BUILD_S = 300.0
SLACK_S = 60.0  # beyond the run itself: connecting, and the 30 s after which the program calls a server stalled
PYTHON = "python generator"
# What the program calls the wires it speaks.
PROTOCOLS = {"quintet blipmq": "blipmq", "redis streams": "redis", "nats jetstream": "jetstream", "nats core": "nats"}


@dataclass(frozen=True, slots=True)
class Rounds:
    """What one run gave. `total` are all messages acknowledged, those outside the measured time included."""

    operations: int
    seconds: float
    p50_us: float
    p99_us: float
    total: int

    @property
    def rate(self) -> float:
        return self.operations / self.seconds


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


def command(load: Load, connections: int, in_flight: int, seconds: float, warmup: float) -> list[str]:
    """The program and its arguments for this load."""
    built = program()
    if built is None:
        raise BenchError("bench/loadgen needs cargo. Install Rust, or use closed_loop.rounds, which can do without.")
    host, port = load.address
    numbers = {"connections": connections, "in-flight": in_flight, "size": load.size, "seconds": seconds}
    words = [str(built), "--proto", PROTOCOLS[load.wire.name], "--addr", f"{host}:{port}", "--topic", load.topic]
    for name, value in (numbers | {"warmup": warmup}).items():
        words += [f"--{name}", str(value)]
    return words


def rounds(load: Load, connections: int, in_flight: int, seconds: float, warmup: float = 0.0) -> Rounds:
    """Each connection sends in_flight messages and waits until all are acknowledged as durable, over and over."""
    if program() is None:
        outcome = run.windows(load, connections, in_flight, seconds=seconds)
        waits = sorted(outcome.latencies)
        p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * share))] / 1e3 for share in (0.5, 0.99))
        return Rounds(outcome.messages, outcome.seconds, p50, p99, outcome.messages)
    words = command(load, connections, in_flight, seconds, warmup)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=warmup + seconds + SLACK_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"{load.wire.name}: the generator did not end {SLACK_S} s after its time.") from error
    if done.returncode:
        raise BenchError(f"{load.wire.name}: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    return Rounds(said["operations"], said["seconds"], said["p50_us"], said["p99_us"], said["total"])
