"""The loads against peers: publish, end to end, fan-out, durable publish, durable bytes, latency.

Each function is one row group of the report. The shapes are the same for all sides and live in quintet.bench.run.
"""

import os
import time
from pathlib import Path

from bench.harness import DURABLE_TOPIC, OURS, Bench, Comparison, Counts, Figure, Side

from bench import closed_loop
from quintet.bench import run
from quintet.bench.clock import nanoseconds
from quintet.bench.generators import Load, payload_of
from quintet.bench.histogram import percentiles

KIB, MIB = 1024, 1024 * 1024
PROBE_MESSAGES = 100_000  # the warm-up, which also tells how many messages fill a repetition
FANOUT = 16
ROUNDS_WARMUP_S = 0.2  # of each repetition, not counted: connections have just been made
LATENCY_RATE = 10_000.0
LATENCY_S = 4.0
LEAD_IN_S = 0.5  # left out on all sides alike: that a generator has just started is no server's fault
DISK_FILE_BYTES = 256 * MIB
APPEND_RESERVE_BYTES = 16 * MIB
MEMORY_SIDES = {OURS: True, "nats core": True, "redis memory": False, "mosquitto": False}
PUSH_SIDES = {OURS: True, "nats core": True, "mosquitto": False}
DURABLE_SIDES = {OURS: True, "nats jetstream": True, "redis durable": True}
QOS0_TARGETS = {16: 4.0, 128: 3.0, 1024: 1.0}


def qos0_publish(bench: Bench) -> None:
    """QoS 0 publish, pipelined on one connection, to the answer of a final barrier."""
    for size, target in QOS0_TARGETS.items():
        _publish(bench, size, target)


def _publish(bench: Bench, size: int, target: float) -> None:
    name = f"qos0_publish {size} B"
    sides = bench.sides(MEMORY_SIDES)
    counts = Counts(bench.effort.seconds)

    def warm(side: Side) -> None:
        counts.probed(side, run.pipelined(Load(side.wire, side.address, f"pub{size}", size), PROBE_MESSAGES))

    def measure(side: Side, turn: int) -> run.Outcome:
        return run.pipelined(Load(side.wire, side.address, f"pub{size}", size), counts.of(side, sides))

    bench.add(Comparison(name, "msg/s", bench.in_turn(name, sides, warm, measure), target=target))


def _flow(bench: Bench, name: str, subscribers: int, processes: int, target: float) -> None:
    sides = bench.sides(PUSH_SIDES)
    counts = Counts(bench.effort.seconds)

    def load(side: Side, turn: int) -> Load:
        # A topic of its own for each repetition: nothing left over from the one before can be counted. The names have
        # one length, so that frames have too.
        return Load(side.wire, side.address, f"flow{subscribers:02d}.{turn:02d}", 128)

    def warm(side: Side) -> None:
        outcome = run.flow(load(side, 99), PROBE_MESSAGES // subscribers, subscribers, processes)
        counts.probed(side, outcome, subscribers)

    def measure(side: Side, turn: int) -> float:
        return run.flow(load(side, turn), counts.of(side, sides), subscribers, processes).rate

    bench.add(Comparison(name, "delivered/s", bench.in_turn(name, sides, warm, measure), target=target))


def qos0_e2e(bench: Bench) -> None:
    """QoS 0, one publisher to one subscriber, pushed."""
    _flow(bench, "qos0_e2e 128 B", 1, 1, 1.5)


def fanout(bench: Bench) -> None:
    """QoS 0, one publisher to 16 subscribers."""
    _flow(bench, f"fanout 1 to {FANOUT}, 128 B", FANOUT, 1, 1.5)


def qos1_durable(bench: Bench) -> None:
    """Publishes that are on the disk before they are answered, from many connections."""
    _durable(bench, 64, 1, 1.2)
    _durable(bench, 16, 64, 5.0)


def _durable(bench: Bench, connections: int, in_flight: int, target: float) -> None:
    name = f"qos1_durable {connections} connections x {in_flight} in flight, 128 B"
    if closed_loop.generator():
        name += f" ({closed_loop.generator()})"

    def measure(side: Side, turn: int) -> float:
        load = Load(side.wire, side.address, DURABLE_TOPIC, 128, qos=1)
        return closed_loop.rounds(load, connections, in_flight, bench.effort.seconds, ROUNDS_WARMUP_S).rate

    figures = bench.in_turn(name, bench.sides(DURABLE_SIDES), lambda side: measure(side, -1), measure)
    bench.add(Comparison(name, "msg/s", figures, target=target))


class Disk:
    """The disk itself: 1 MiB blocks, each made durable, to a file whose space is there already."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = os.open(directory / "disk.bench", os.O_RDWR | os.O_CREAT, 0o600)
        zeros = bytes(MIB)
        for at in range(0, DISK_FILE_BYTES, MIB):
            os.pwrite(self._file, zeros, at)
        os.fsync(self._file)
        self._block = payload_of(MIB)

    def rate(self, seconds: float) -> float:
        """Bytes per second over the file that is there: what the disk can have at most."""
        start = time.monotonic()
        done = 0
        while time.monotonic() - start < seconds:
            os.pwrite(self._file, self._block, done % DISK_FILE_BYTES)
            os.fdatasync(self._file)
            done += MIB
        return done / (time.monotonic() - start)

    def append_rate(self, seconds: float) -> float:
        """The same to a new file in space reserved ahead: what a log, which always needs new blocks, can have at most, and what
        the target is measured against."""
        file = os.open(self._directory / "append.bench", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        start = time.monotonic()
        done = 0
        while time.monotonic() - start < seconds:
            if done % APPEND_RESERVE_BYTES == 0:
                os.posix_fallocate(file, done, APPEND_RESERVE_BYTES)
            os.pwrite(file, self._block, done)
            os.fdatasync(file)
            done += MIB
        took = time.monotonic() - start
        os.close(file)
        (self._directory / "append.bench").unlink()
        return done / took

    def close(self) -> None:
        os.close(self._file)


def qos1_bytes(bench: Bench) -> None:
    """One connection with 1 MiB in flight, in bytes per second, beside the disk's own rate."""
    disk = Disk(bench.directory)
    try:
        for size in (16 * KIB, KIB):
            _bytes(bench, disk, size)
    finally:
        disk.close()


def _bytes(bench: Bench, disk: Disk, size: int) -> None:
    name = f"qos1_bytes 1 MiB in flight, {size} B messages"
    raw = Figure("fdatasync of 1 MiB blocks over old ones", counts=False)
    appended = Figure("fdatasync of 1 MiB blocks appended")

    def measure(side: Side, turn: int) -> float:
        if turn >= 0:
            raw.values.append(disk.rate(bench.effort.seconds / 2))
            appended.values.append(disk.append_rate(bench.effort.seconds / 2))
        load = Load(side.wire, side.address, f"bytes{size}", size, qos=1)
        # A sliding window: 8 parts of 128 KiB, each with its own barrier, so that the line never runs dry.
        return run.windows(load, 1, 128 * KIB // size, depth=8, seconds=bench.effort.seconds).bytes_rate

    figures = bench.in_turn(name, bench.sides({OURS: True}), lambda side: measure(side, -1), measure)
    if not raw.values:
        raw.values.append(disk.rate(bench.effort.seconds))
        appended.values.append(disk.append_rate(bench.effort.seconds))
    bench.add(Comparison(name, "B/s", [*figures, appended, raw], target=0.8))


def latency(bench: Bench) -> None:
    """End to end at a fixed rate, measured from the time each message was due."""
    sides = bench.sides(PUSH_SIDES)
    seconds = LEAD_IN_S + min(LATENCY_S, bench.effort.seconds * 3)
    seen = {side.name: nanoseconds() for side in sides}
    parts: dict[str, dict[str, list[float]]] = {side.name: {"p50": [], "p99": [], "p99.9": []} for side in sides}

    def one(side: Side, turn: int) -> run.Outcome:
        load = Load(side.wire, side.address, f"lat.{turn:02d}", 128)
        return run.scheduled_flow(load, LATENCY_RATE, int(LATENCY_RATE * seconds))

    def measure(side: Side, turn: int) -> float:
        measured = one(side, turn).latencies[int(LATENCY_RATE * LEAD_IN_S) :]
        found = percentiles(measured, "open")
        assert found is not None
        seen[side.name].extend(measured)
        for name, values in parts[side.name].items():
            values.append(found.at[name])
        return found.at["p99"]

    figures = bench.in_turn("latency", sides, lambda side: one(side, 99), measure)
    counted = {figure.side: figure.counts for figure in figures}
    for name, target in (("p50", None), ("p99", 2.0), ("p99.9", None)):
        rows = [Figure(side, parts[side][name], counts) for side, counts in counted.items()]
        comparison = Comparison(f"latency {name} at 10,000 msg/s, 128 B", "us", rows, "lower", target)
        if name == "p99":
            for side in counted:
                found = percentiles(seen[side], "open")
                comparison.curves[side] = found.curve if found else []
        bench.add(comparison)
