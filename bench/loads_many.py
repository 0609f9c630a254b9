"""The loads on ourselves with very many topics that hold very little: how long a start takes, and what a topic costs on disk,
in memory and in open files."""

import signal
import subprocess
import time
from dataclasses import dataclass

from bench.fly import connected
from bench.harness import OURS, Bench, Comparison, Figure, Side
from bench.loads_own import START_WITHIN_S, tree_bytes

from bench import closed_loop
from quintet.bench.generators import Load
from quintet.bench.machine import open_files, resident_bytes
from quintet.bench.wire import BenchError

KIB = 1024
MANY_BYTES = 100  # of the one message in each
FEW, FEW_BYTES = 3_000, 2_000_000  # topics, and what they hold together
START_LIMIT_S = 5.0
DISK_LIMIT_BYTES = 4 * KIB
MEMORY_LIMIT_BYTES = 2 * KIB
CONNECTIONS, TOUCHED = 4, 25  # topics in a round
SETTLE_S = 2.0
SETTINGS = {"QUINTET_TOPICS__MAX_TOPICS": "100000"}  # the most that can be configured
PREFIX = "each"
STARTS = 3


@dataclass(frozen=True, slots=True)
class State:
    """What a broker that does nothing holds."""

    disk: int
    memory: int
    files: int


def _state(side: Side) -> State:
    time.sleep(SETTLE_S)
    return State(
        tree_bytes(side.server.directory / "data"), resident_bytes(side.server.pid), open_files(side.server.pid)
    )


def stop(side: Side) -> None:
    """Stop it cleanly, however long that takes: what starts next must not be a recovery."""
    side.server.process.send_signal(signal.SIGTERM)
    try:
        code = side.server.process.wait(START_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the broker did not stop in {START_WITHIN_S:g} s") from error
    if code:
        raise BenchError(f"the broker stopped with exit code {code}: see {side.server.directory.name}/server.log")


def many_topics(bench: Bench) -> None:
    """100,000 topics with one small message each: start, disk, memory and open files; 3,000 topics with 2 MB of data."""
    if not bench.sides({OURS: True}):
        return
    with bench.fresh("many-none", SETTINGS):
        pass  # the first start makes keys and certificates: it is the second one that is like the others
    with bench.fresh("many-none", SETTINGS) as side:
        empty = _state(side)
    few = min(FEW, bench.effort.many_topics)
    _few(bench, few, max(1, FEW_BYTES // few), empty)
    _many(bench, bench.effort.many_topics, empty)


def fill(side: Side, topics: int, size: int) -> tuple[float, float]:
    """(seconds to make the topics, seconds to put one message into each)."""
    start = time.monotonic()
    with connected(side.address) as client:
        client.create_topics([f"{PREFIX}.{number:05d}" for number in range(topics)], 1, "fsync")
    made = time.monotonic() - start
    load = Load(side.wire, side.address, PREFIX, size, qos=1)
    rounds, left = divmod(topics, CONNECTIONS * TOUCHED)
    if left:
        raise BenchError(f"{topics} topics are no multiple of {CONNECTIONS * TOUCHED}")
    put = closed_loop.fill(load, CONNECTIONS, TOUCHED, rounds, run=1, topics=topics, partitions=1)
    if put.total != topics:
        raise BenchError(f"{put.total} messages were taken where there are {topics} topics")
    return made, put.seconds


def _few(bench: Bench, topics: int, size: int, empty: State) -> None:
    name = f"many_topics: {topics:,} topics with {topics * size / 1e6:.3g} MB of data"
    with bench.fresh("many-few", SETTINGS, door="flymq") as side:
        fill(side, topics, size)
        held = _state(side)
    bench.add(Comparison(f"{name}: on disk", "B", [Figure(OURS, [held.disk - empty.disk])], "lower"))
    bench.add(Comparison(f"{name}: open files", "files", [Figure(OURS, [held.files - empty.files])], "lower"))


def _many(bench: Bench, topics: int, empty: State) -> None:
    name = f"many_topics: {topics:,} topics"
    with bench.fresh("many", SETTINGS, door="flymq") as side:
        made_s, put_s = fill(side, topics, MANY_BYTES)
        held = _state(side)
        stop(side)
    bench.add(Comparison(f"{name}, to make one", "us", [Figure(OURS, [made_s / topics * 1e6])], "lower"))
    bench.add(Comparison(f"{name}, first message of each", "us", [Figure(OURS, [put_s / topics * 1e6])], "lower"))
    start, disk, memory, files = (Figure(OURS) for _ in range(4))
    for _ in range(min(STARTS, bench.effort.repetitions)):
        with bench.fresh("many", SETTINGS, START_WITHIN_S, door="flymq") as side:
            start.values.append(side.server.ready_s)
            again = _state(side)
            stop(side)
        disk.values.append((again.disk - empty.disk) / topics - MANY_BYTES)
        memory.values.append((again.memory - empty.memory) / topics)
        files.values.append(again.files - empty.files)
    bench.add(Comparison(f"{name}, start", "s", [start], "lower", START_LIMIT_S, absolute=True))
    written = Figure(OURS, [(held.disk - empty.disk) / topics - MANY_BYTES])
    for when, figure in (("writing", written), ("a start", disk)):
        what = f"{name}, disk each beyond its data after {when}"
        bench.add(Comparison(what, "B", [figure], "lower", DISK_LIMIT_BYTES, absolute=True))
    bench.add(
        Comparison(f"{name}, memory each after a start", "B", [memory], "lower", MEMORY_LIMIT_BYTES, absolute=True)
    )
    for when, figure in (("writing", Figure(OURS, [held.files - empty.files])), ("a start", files)):
        bench.add(Comparison(f"{name}, open files after {when}", "files", [figure], "lower"))
