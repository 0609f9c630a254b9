"""The loads of the FlyMQ door beside peers and beside the machine itself: durable and cached publishes, one synchronous
producer, and reading a long topic. All of them are driven by bench/loadgen (see README.md for what is timed)."""

import os

from bench.fly import connected
from bench.harness import DURABLE_TOPIC, FLY, Bench, Comparison, Figure, Side
from bench.peer_wires import KafkaWire

from bench import closed_loop, dialogues, floors
from quintet.bench.generators import Load

KIB, MIB = 1024, 1024 * 1024
WARMUP_S = 0.2  # of each repetition, not counted
CONNECTIONS, IN_FLIGHT = 16, 64
DURABLE_SIDES = {FLY: True, "nats jetstream": True, "redis durable": True}
CACHED_SIDES = {FLY: True, "kafka": True}
CACHED_S = 1.0  # about 1 GB: with more, Linux begins to write back meanwhile, and the disk is measured, not the server
JIT_WARMUPS = 8  # repetitions before Kafka is measured: a Java program is slow until its hot parts are compiled
SYNC_BYTES = 100
SYNC_TARGET = 2 * 7_400.0  # requests per second: twice what FlyMQ's authors published for their server
ROW_BYTES = 16  # of a message in the answer to FETCH, besides its value
ANSWER_BYTES = 4 * MIB  # of one answer to FETCH, at most
FETCH_UNDER_WAY = 2


def _driven() -> str:
    """For names of rows: which generator it was, if it was not the usual one."""
    return f" ({closed_loop.generator()})" if closed_loop.generator() else ""


def create(side: Side, topic: str, partitions: int, durability: str) -> None:
    """Make a topic on our server."""
    with connected(side.address) as client:
        client.create_topics([topic], partitions, durability)


def fly_durable(bench: Bench) -> None:
    """PRODUCE of 128 B through the FlyMQ door, on the disk before the answer: 16 connections with 64 in flight."""
    name = f"fly_durable {CONNECTIONS} connections x {IN_FLIGHT} in flight, 128 B{_driven()}"

    def warm(side: Side) -> None:
        if side.name == FLY:
            create(side, DURABLE_TOPIC, 1, "fsync")
        measure(side, -1)

    def measure(side: Side, turn: int) -> float:
        load = Load(side.wire, side.address, DURABLE_TOPIC, 128, qos=1)
        return closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, bench.effort.seconds, WARMUP_S).rate

    figures = bench.in_turn(name, bench.sides(DURABLE_SIDES), warm, measure)
    bench.add(Comparison(name, "msg/s", figures, target=5.0))


def fly_kafka(bench: Bench) -> None:
    """PRODUCE of 1 KiB answered from the page cache, beside Kafka with acks=1: 16 connections with 64 in flight."""
    for partitions in (1, CONNECTIONS):
        _cached(bench, partitions)


def _cached(bench: Bench, partitions: int) -> None:
    shape = f"{partitions} partition{'s' * (partitions > 1)}"
    name = f"fly_kafka {CONNECTIONS} connections x {IN_FLIGHT} in flight, 1 KiB, {shape}"
    topic = f"cached{partitions:02d}"

    def warm(side: Side) -> None:
        if side.name == FLY:
            create(side, topic, partitions, "os")
            measure(side, -1)
            return
        KafkaWire().create_topic(side.address, topic, partitions)
        for _ in range(JIT_WARMUPS):
            measure(side, -1)

    def measure(side: Side, turn: int) -> float:
        # Dirty pages of the side before must not be written back in this one's time.
        os.sync()
        load = Load(side.wire, side.address, topic, KIB, qos=1)
        seconds = min(bench.effort.seconds, CACHED_S)
        return closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, seconds, WARMUP_S, partitions=partitions).rate

    figures = bench.in_turn(name, bench.sides(CACHED_SIDES), warm, measure)
    bench.add(Comparison(name, "msg/s", figures, target=1.2))


def fly_sync(bench: Bench) -> None:
    """One producer that waits for each answer, 100 B from the page cache, beside a loop that only answers."""
    sides = bench.sides({FLY: True})
    if not sides:
        return
    topic = "sync"
    wire = sides[0].wire
    create(sides[0], topic, 1, "os")
    said = dialogues.learn(dialogues.flymq_dialogue(topic, SYNC_BYTES), sides[0].address)
    echo = Figure("uvloop echo of the same sizes")
    with floors.echo(bench.directory / "fly-echo", said.exchanges) as bare:

        def measure(side: Side, turn: int) -> float:
            if turn >= 0:
                floor = Load(wire, bare.address, topic, SYNC_BYTES, qos=1)
                echo.values.append(closed_loop.rounds(floor, 1, 1, bench.effort.seconds, WARMUP_S).rate)
            load = Load(wire, side.address, topic, SYNC_BYTES, qos=1)
            return closed_loop.rounds(load, 1, 1, bench.effort.seconds, WARMUP_S).rate

        figures = bench.in_turn("fly_sync", sides, lambda side: measure(side, -1), measure)
    if figures:
        name = f"fly_sync one producer, {SYNC_BYTES} B, one in flight{_driven()}"
        bench.add(Comparison(name, "msg/s", figures, target=SYNC_TARGET, absolute=True))
        bench.add(Comparison("the same beside a bare echo", "msg/s", [*figures, echo]))


def fly_fetch(bench: Bench) -> None:
    """FETCH of a whole topic that is in memory, one connection, beside one sendfile of the same bytes."""
    sides = bench.sides({FLY: True})
    for size in (KIB, 128) if sides else ():
        _read(bench, sides[0], size)


def _read(bench: Bench, side: Side, size: int) -> None:
    run = ANSWER_BYTES // (size + ROW_BYTES) // 64 * 64
    answers = -(-bench.effort.fetch_bytes // (run * size))
    load = Load(side.wire, side.address, f"read{size:05d}", size, qos=1)
    create(side, load.topic, 1, "os")
    closed_loop.fill(load, 1, run, answers)
    copy = bench.directory / f"read{size}.bytes"
    ours, theirs = Figure(FLY), Figure("sendfile of the same bytes")
    more = {"run": run, "held": run * answers, "once": 1}

    # The first reading warms the pages, and what it read is the file that sendfile sends.
    closed_loop.fetch(load, 1, FETCH_UNDER_WAY, closed_loop.FILL_S_MAX, save=str(copy), **more)
    with floors.sendfile(copy) as plain:
        closed_loop.drain(plain)
        for _ in range(bench.effort.repetitions):
            ours.take(closed_loop.fetch(load, 1, FETCH_UNDER_WAY, closed_loop.FILL_S_MAX, **more).bytes_rate)
            theirs.take(closed_loop.drain(plain).bytes_rate)
    copy.unlink()
    name = f"fly_fetch {bench.effort.fetch_bytes / (1 << 30):.3g} GiB of {size} B messages, 1 connection"
    bench.add(Comparison(name, "B/s", [ours, theirs], target=0.5))
