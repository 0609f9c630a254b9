"""The loads of the FlyMQ door on ourselves: many topics and partitions beside one, and how long a group takes to begin."""

import os
import threading
import time
from collections.abc import Callable, Sequence

from bench.fly import FlyClient, connected
from bench.harness import FLY, OURS, Bench, Comparison, Figure, Side
from bench.loads_fly import CONNECTIONS, IN_FLIGHT, WARMUP_S, create
from bench.loads_own import FLAT, add_flat

from bench import closed_loop
from quintet.bench.generators import Load
from quintet.bench.wire import BenchError

SIZE = 128
PARTITIONS = 10
AS_CONFIGURED = ""  # durability: nobody may ask for memory by this door
RUNS = (1_024, 64, 1)  # messages to one partition before the next
NEW_EVERY_TIME = 2.0  # how many times dearer a message may be that goes to another partition than the one before
HELD = 1_024  # messages in each partition that is read
FILL_CONNECTIONS = 8
TOUCHED = 50  # partitions in one round, when each is written to for the first time
MANY, ONE = "many", "sole"  # of one length, so that frames are too
MEMBERS, GROUP_PARTITIONS = 8, 16
GROUP_LIMIT_S = 1.0
GROUP_PATIENCE_S = 30.0
HEARTBEAT_S = 0.01

Measure = Callable[[Load, int, int, int], float]


def fly_topics(bench: Bench) -> None:
    """Cost per message written and read through the FlyMQ door, in 1,000 topics with 10 partitions and in one with 1."""
    if not bench.sides({FLY: True}):
        return
    produced(bench, ("fsync", "os"), RUNS)
    with bench.fresh("fly-topics-read", door="flymq") as side:
        _make(bench, side, "os")
        _read(bench, side)


def produced(bench: Bench, durabilities: Sequence[str], runs: Sequence[int]) -> None:
    """Cost per message written, for each durability and length of run."""
    if not bench.sides({FLY: True}):
        return
    # A server of its own for each, so that there are no more partitions, and no other batches, than the load says.
    for durability in durabilities:
        settings = {"QUINTET_TOPICS__DURABILITY": durability}
        with bench.fresh(f"fly-topics-{durability}", settings, door="flymq") as side:
            _make(bench, side, AS_CONFIGURED)
            _touch(bench, side, durability)
            _written(bench, side, durability, runs)


def _make(bench: Bench, side: Side, durability: str) -> None:
    with connected(side.address) as client:
        names = [f"{MANY}.{number:05d}" for number in range(bench.effort.fly_topics)]
        client.create_topics(names, PARTITIONS, durability)
        client.create_topics([f"{ONE}.00000"], 1, durability)


def _touch(bench: Bench, side: Side, durability: str) -> None:
    """One message to every partition: what is measured after it does not make files. It is shown by itself."""
    topics = bench.effort.fly_topics
    load = Load(side.wire, side.address, MANY, SIZE, qos=1)
    rounds = topics * PARTITIONS // FILL_CONNECTIONS // TOUCHED
    more = {"run": 1, "topics": topics, "partitions": PARTITIONS}
    first = closed_loop.fill(load, FILL_CONNECTIONS, TOUCHED, rounds, **more)
    name = f"fly_topics produce ({durability}): the first message of each of {topics * PARTITIONS:,} partitions"
    bench.add(Comparison(name, "ns/msg", [Figure(OURS, [1e9 / first.rate])], "lower"))


def _compare(bench: Bench, what: str, side: Side, measure: Measure, runs: Sequence[int]) -> None:
    topics = bench.effort.fly_topics
    for run in runs:
        many = Figure(f"{OURS} {topics:,} topics x {PARTITIONS}")
        one = Figure(f"{OURS} 1 topic x 1")
        for turn in range(-1, bench.effort.repetitions):
            for figure, topic, count, partitions in ((many, MANY, topics, PARTITIONS), (one, ONE, 1, 1)):
                os.sync()  # dirty pages of the case before must not be written back in this one's time
                load = Load(side.wire, side.address, topic, SIZE, qos=1)
                rate = measure(load, run, count, partitions)
                if turn >= 0:
                    figure.values.append(1e9 / rate)
        worst = ", a new partition every message (worst case)" if run == 1 else f", runs of {run:,}"
        target = NEW_EVERY_TIME if run == 1 else FLAT
        add_flat(bench, f"fly_topics {what}: 1 to {topics:,} topics x {PARTITIONS}{worst}", many, one, target)


def _written(bench: Bench, side: Side, durability: str, runs: Sequence[int]) -> None:
    def measure(load: Load, run: int, topics: int, partitions: int) -> float:
        more = {"run": run, "topics": topics, "partitions": partitions}
        return closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, bench.effort.seconds, WARMUP_S, **more).rate

    _compare(bench, f"produce ({durability})", side, measure, runs)


def _read(bench: Bench, side: Side) -> None:
    """Both cases are filled by rounds of HELD messages to one partition, so that what is read lies in like batches."""
    topics = bench.effort.fly_topics
    many = Load(side.wire, side.address, MANY, SIZE, qos=1)
    shape = {"run": HELD, "topics": topics, "partitions": PARTITIONS}
    closed_loop.fill(many, FILL_CONNECTIONS, HELD, topics * PARTITIONS // FILL_CONNECTIONS, **shape)
    one = Load(side.wire, side.address, ONE, SIZE, qos=1)
    closed_loop.fill(one, 1, HELD, topics, run=HELD, topics=1, partitions=1)

    def measure(load: Load, run: int, topics: int, partitions: int) -> float:
        held = HELD if topics > 1 else HELD * bench.effort.fly_topics
        more = {"run": run, "topics": topics, "partitions": partitions, "held": held}
        requests = max(1, IN_FLIGHT // run)
        return closed_loop.fetch(load, CONNECTIONS, requests, bench.effort.seconds, WARMUP_S, **more).rate

    _compare(bench, "fetch", side, measure, RUNS)


class _Member(threading.Thread):
    """Joins, and again until its share is what it will stay, then fetches a message; knows when it had one."""

    def __init__(self, client: FlyClient, topic: str, group: str, go: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self._client, self._topic, self._group, self._go = client, topic, group, go
        self.took_s = 0.0
        self.owned: list[int] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._go.wait()
            start = time.monotonic()
            while True:
                _, places = self._client.join(self._topic, self._group)
                if len(places) == GROUP_PARTITIONS // MEMBERS:
                    break
                if time.monotonic() - start > GROUP_PATIENCE_S:
                    raise BenchError(f"a member has {len(places)} partitions after {GROUP_PATIENCE_S} s.")
                time.sleep(HEARTBEAT_S)
            partition, offset = places[0]
            if self._client.fetch(self._topic, partition, offset, 1) != 1:
                raise BenchError(f"partition {partition} gave no message though it holds some.")
            self.took_s = time.monotonic() - start
            self.owned = [place[0] for place in places]
        except (BenchError, OSError, threading.BrokenBarrierError) as error:
            self.error = error


def fly_group(bench: Bench) -> None:
    """Eight members join a group at once: the time until the slowest has its share and a message."""
    sides = bench.sides({FLY: True})
    if not sides:
        return
    topic = "grouped"
    create(sides[0], topic, GROUP_PARTITIONS, "os")
    load = Load(sides[0].wire, sides[0].address, topic, SIZE, qos=1)
    closed_loop.fill(load, GROUP_PARTITIONS, IN_FLIGHT, 1, partitions=GROUP_PARTITIONS)
    name = f"fly_group {MEMBERS} members on {GROUP_PARTITIONS} partitions, join to first message"

    def measure(side: Side, turn: int) -> float:
        return _join(side, topic, f"group{turn}")

    figures = bench.in_turn(name, sides, lambda side: measure(side, -1), measure)
    bench.add(Comparison(name, "s", figures, "lower", GROUP_LIMIT_S, absolute=True))


def _join(side: Side, topic: str, group: str) -> float:
    go = threading.Barrier(MEMBERS, timeout=GROUP_PATIENCE_S)
    socks = [side.wire.connect(side.address) for _ in range(MEMBERS)]
    members = [_Member(FlyClient(sock), topic, group, go) for sock in socks]
    for member in members:
        member.start()
    for member in members:
        member.join()
    for sock in socks:
        sock.close()
    for member in members:
        if member.error is not None:
            raise BenchError(f"a member failed: {member.error}")
    owned = sorted(partition for member in members for partition in member.owned)
    if owned != list(range(GROUP_PARTITIONS)):
        raise BenchError(f"the members own {owned}, not each partition once. See the server's log.")
    return max(member.took_s for member in members)
