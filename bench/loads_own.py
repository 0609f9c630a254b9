"""The loads on ourselves: memory per idle connection, start on a long log, and costs that must stay flat."""

import gc
import os
import signal
import socket
import time
from pathlib import Path

from bench.harness import OURS, Bench, Comparison, Figure, Side
from bench.log_reads import read_costs

from quintet.bench import run
from quintet.bench.generators import Load
from quintet.bench.machine import resident_bytes
from quintet.bench.wire import BenchError

KIB = 1024
IDLE_LIMIT_BYTES = 8 * KIB
IDLE_WARM = 200
SETTLE_S = 1.0
START_LIMIT_S = 3.0
START_WITHIN_S = 300.0
LOG_TOPICS = 100
LOG_MESSAGE_BYTES = 16 * KIB
LOG_RUN = 16  # messages to one topic before the next: 256 KiB
FLAT = 1.2
TOPIC_RUN = 64
TOPIC_LONG_RUN = 1024  # most of what one read of a busy connection holds


def idle(bench: Bench) -> None:
    """Resident memory of the server per connection that is authenticated and silent."""
    figures = []
    # Servers that have done nothing else: what an earlier load left in a heap would hide what a connection takes.
    for side in bench.sides({f"{OURS} idle": True, "nats idle": False}):
        for sock in _open_many(side, IDLE_WARM):
            sock.close()
        time.sleep(SETTLE_S)
        before = resident_bytes(side.server.pid)
        opened = _open_many(side, bench.effort.idle_connections)
        time.sleep(SETTLE_S)
        after = resident_bytes(side.server.pid)
        if not side.server.alive() or len(opened) != bench.effort.idle_connections:
            raise BenchError(f"{side.name} did not hold {bench.effort.idle_connections} connections")
        figures.append(Figure(side.name, [(after - before) / len(opened)], side.counts))
        for sock in opened:
            sock.close()
        gc.collect()
    name = f"memory per idle connection, {bench.effort.idle_connections:,} open"
    bench.add(Comparison(name, "B", figures, "lower", IDLE_LIMIT_BYTES, absolute=True))


def _open_many(side: Side, count: int) -> list[socket.socket]:
    return [side.wire.connect(side.address, number) for number in range(count)]


def build_log(side: Side, size: int) -> None:
    """Fill a log of 100 topics through the broker's own durable path."""
    load = Load(side.wire, side.address, "log", LOG_MESSAGE_BYTES, qos=1)
    one_pass = LOG_TOPICS * LOG_RUN * LOG_MESSAGE_BYTES
    run.rotating(load, LOG_TOPICS, LOG_RUN, max(1, -(-size // one_pass)))


def tree_bytes(directory: Path) -> int:
    """Bytes used on the disk below a directory."""
    return sum(entry.stat().st_blocks * 512 for entry in directory.rglob("*") if entry.is_file())


def forget_pages(directory: Path) -> None:
    """Ask the system to drop what it caches of these files, so that a start meets a cold disk."""
    for entry in directory.rglob("*"):
        if entry.is_file():
            descriptor = os.open(entry, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def start(bench: Bench) -> None:
    """From exec to the ready line on a long log: after a clean stop, with cold pages, and after kill -9."""
    if not bench.sides({OURS: True}):
        return
    gib = bench.effort.log_bytes / (1 << 30)
    with bench.fresh("start") as side:
        empty = side.server.ready_s
        build_log(side, bench.effort.log_bytes)
    held = tree_bytes(side.server.directory)
    if held < bench.effort.log_bytes * 0.9:
        raise BenchError(f"the log holds {held} bytes, not the {bench.effort.log_bytes} that were written")
    bench.add(Comparison("start on an empty directory", "s", [Figure(OURS, [empty])], "lower"))
    clean, cold, killed = Figure(OURS), Figure(OURS), Figure(OURS)
    for _ in range(min(3, bench.effort.repetitions)):
        with bench.fresh("start", None, START_WITHIN_S) as side:
            clean.values.append(side.server.ready_s)
        forget_pages(side.server.directory)
        with bench.fresh("start", None, START_WITHIN_S) as side:
            cold.values.append(side.server.ready_s)
            # A little of every topic is written before the crash, so that every tail must be looked at again.
            build_log(side, 1)
            side.server.process.send_signal(signal.SIGKILL)
            side.server.process.wait()
        with bench.fresh("start", None, START_WITHIN_S) as side:
            killed.values.append(side.server.ready_s)
    for what, figure in (("clean stop", clean), ("clean stop, cold pages", cold), ("kill -9", killed)):
        name = f"start on {gib:g} GiB, {LOG_TOPICS} topics, after {what}"
        bench.add(Comparison(name, "s", [figure], "lower", START_LIMIT_S, absolute=True))


def flat_topics(bench: Bench) -> None:
    """Cost per published message with one topic and with many."""
    if not bench.sides({OURS: True}):
        return
    many = bench.effort.topics
    shapes = {
        f"{OURS} 1 topic": (1, TOPIC_RUN * many),
        f"{OURS} {many:,} topics, runs of {TOPIC_LONG_RUN}": (many, TOPIC_LONG_RUN),
        f"{OURS} {many:,} topics, runs of {TOPIC_RUN}": (many, TOPIC_RUN),
        f"{OURS} {many:,} topics, runs of 1": (many, 1),
    }
    figures = {name: Figure(name) for name in shapes}
    # A server of its own: by default there may be 10,000 topics, and other loads have made some.
    with bench.fresh("flat-topics") as side:
        load = Load(side.wire, side.address, "flat", 128)
        for turn in range(-1, bench.effort.repetitions):
            for name, (topics, length) in shapes.items():
                outcome = run.rotating(load, topics, length, max(1, TOPIC_RUN // length))
                if turn >= 0:
                    figures[name].values.append(1e9 / outcome.rate)
    one, long_runs, runs, every = (figures[name] for name in shapes)
    add_flat(bench, f"flat: 1 to {many:,} topics, runs of {TOPIC_LONG_RUN:,}", long_runs, one)
    add_flat(bench, f"flat: 1 to {many:,} topics, runs of {TOPIC_RUN}", runs, one)
    add_flat(bench, f"flat: 1 to {many:,} topics, a new topic every message (worst case)", every, one, target=None)


def add_flat(bench: Bench, name: str, large: Figure, small: Figure, target: float | None = FLAT) -> None:
    """A comparison of ourselves with ourselves: cost of the large case over cost of the small one."""
    base = Figure(small.side.removeprefix(f"{OURS} "), small.values)
    bench.add(Comparison(name, "ns/msg", [large, base], "lower", target))


def flat_subscribers(bench: Bench) -> None:
    """Cost per delivered message with one subscriber and with many."""
    sides = bench.sides({OURS: True})
    if not sides:
        return
    side, many = sides[0], bench.effort.subscribers
    deliveries = int(2_000_000 * min(1.0, bench.effort.seconds))
    figures = {count: Figure(f"{OURS} {count:,} subscribers") for count in (1, many)}
    for turn in range(-1, bench.effort.repetitions):
        for count, figure in figures.items():
            load = Load(side.wire, side.address, f"subs{count:05d}.{turn + 1:02d}", 128)
            outcome = run.flow(load, max(1000, deliveries // count), count)
            if turn >= 0:
                figure.values.append(1e9 / outcome.rate)
    add_flat(bench, f"flat: 1 to {many:,} subscribers, per delivered message", figures[many], figures[1])


def flat_log(bench: Bench) -> None:
    """Cost per durable message appended, and per record read, on a short log and on a ten times longer one."""
    if not bench.sides({OURS: True}):
        return
    large = bench.effort.log_bytes
    small = large // 10
    append = {size: Figure(f"{OURS} {size / (1 << 30):.3g} GiB of log") for size in (small, large)}
    read = {size: Figure(figure.side) for size, figure in append.items()}
    for size in (small, large):
        with bench.fresh("flat-log", None, START_WITHIN_S) as side:
            build_log(side, size - tree_bytes(side.server.directory))
            load = Load(side.wire, side.address, "log.00000", 128, qos=1)
            for turn in range(-1, bench.effort.repetitions):
                outcome = run.windows(load, 16, 64, seconds=bench.effort.seconds)
                if turn >= 0:
                    append[size].values.append(1e9 / outcome.rate)
        read[size].values = read_costs(side.server.directory / "data", bench.effort.repetitions)
    span = f"{small / (1 << 30):.3g} to {large / (1 << 30):.3g} GiB of log"
    add_flat(bench, f"flat: append with {span}", append[large], append[small])
    add_flat(bench, f"flat: read with {span}", read[large], read[small])
