"""The open loop: durable publishes of 1 KB that leave when they are due, at half of what the server was measured to take just
before, beside RabbitMQ's quorum queue and, for information, JetStream and Redis."""

from bench.harness import DURABLE_TOPIC, FLY, OURS, Bench, Comparison, Figure, Side
from bench.loads_fly import create

from bench import closed_loop
from quintet.bench.generators import Load
from quintet.bench.wire import BenchError

KIB = 1024
CONNECTIONS, IN_FLIGHT = (
    16,
    64,
)  # the capacity is that of a closed loop of this shape; the open one has as many connections
WARMUP_S = 0.2
CAPACITY_S_MIN = 1.0  # a peer that answers once a second would seem to be able to do nothing
LEAD_IN_S = 0.5  # left out on all sides alike
LONGER = 4  # than another load: there must be thousands of messages behind p99.9
SHARE = 0.5  # of the capacity
RABBIT = "rabbitmq quorum"
SIDES = {FLY: True, RABBIT: True, "nats jetstream": False, "redis durable": False}
LIMITS_US = {"p50": None, "p99": 1_600.0, "p99.9": 2_500.0}


def open_durable(bench: Bench) -> None:
    """Durable publishes of 1 KB at half the capacity, latency from when each was due; beside RabbitMQ at half of its own."""
    sides = bench.sides(SIDES)
    ours = next((side for side in sides if side.name == FLY), None)
    if ours is None:
        return
    create(ours, DURABLE_TOPIC, 1, "fsync")
    same = f"{OURS} at RabbitMQ's rate"
    seen: dict[str, dict[str, list[float]]] = {}

    def load(side: Side) -> Load:
        return Load(side.wire, side.address, DURABLE_TOPIC, KIB, qos=1)

    def capacity(side: Side) -> float:
        seconds = max(bench.effort.seconds, CAPACITY_S_MIN)
        able = closed_loop.rounds(load(side), CONNECTIONS, IN_FLIGHT, seconds, WARMUP_S).rate
        if not able:
            raise BenchError(f"it answered nothing in {seconds:g} s, so half of its capacity is no rate")
        return able

    def scheduled(side: Side, name: str, rate: float) -> None:
        done = closed_loop.scheduled(load(side), CONNECTIONS, rate, bench.effort.seconds * LONGER, LEAD_IN_S)
        parts = seen.setdefault(name, {part: [] for part in LIMITS_US})
        for part, value in zip(parts, (done.p50_us, done.p99_us, done.p999_us), strict=True):
            parts[part].append(value)

    def measure(side: Side, turn: int) -> float:
        able = capacity(side)
        scheduled(side, side.name, able * SHARE)
        if side.name == RABBIT:
            scheduled(ours, same, able * SHARE)
        return able

    capacities = bench.in_turn("open_durable", sides, capacity, measure)
    counted = {figure.side: figure.counts for figure in capacities}
    shape = f"{CONNECTIONS} connections x {IN_FLIGHT} in flight"
    bench.add(Comparison(f"open_durable capacity, 1 KiB, {shape}", "msg/s", capacities))
    for part, limit in LIMITS_US.items():
        rows = [Figure(side, seen[side][part], counts) for side, counts in counted.items()]
        name = f"open_durable {part} at half the capacity, 1 KiB"
        if rows and rows[0].side == FLY:
            bench.add(Comparison(name, "us", rows[:1], "lower", limit, absolute=True))
        if same in seen:
            rows.append(Figure(same, seen[same][part], counts=False))
        beside = 1.0 if part != "p50" else None
        bench.add(Comparison(f"{name}: beside who syncs before it answers, too", "us", rows, "lower", beside))
