"""The loads of the append path over many topics: publishes spread over topics beside nats-server, and a new partition every
message beside one partition. What one message alone costs is in loads_alone.py."""

from bench.harness import OURS, Bench, Comparison, Counts, Side

from bench import loads_fly_own
from quintet.bench import run
from quintet.bench.generators import Load

SIZE = 128
SPREADS: dict[int, float | None] = {1: None, 100: 1.5, 10_000: 1.0}  # topics, and the least ratio
PROBE_MESSAGES = 50_000
DURABILITIES = ("fsync", "os", "memory")
RUNS = (64, 1)  # messages to one partition before the next


def spread_publish(bench: Bench) -> None:
    """QoS 0 publish of 128 B, pipelined on one connection, each message to the next of 1, 100, 10,000 topics."""
    if not bench.sides({OURS: True}):
        return
    # A server of its own: by default there may be 10,000 topics, and other loads have made some.
    with bench.fresh("spread") as ours:
        sides = [ours, *bench.sides({"nats core": True})]
        for topics, target in SPREADS.items():
            _spread(bench, sides, min(topics, bench.effort.topics), target)


def _spread(bench: Bench, sides: list[Side], topics: int, target: float | None) -> None:
    name = f"spread_publish {SIZE} B, over {topics:,} topic{'s' * (topics > 1)}"
    counts = Counts(bench.effort.seconds)

    def measured(side: Side, count: int) -> run.Outcome:
        return run.rotating(Load(side.wire, side.address, "spread", SIZE), topics, 1, max(1, count // topics))

    def warm(side: Side) -> None:
        measured(side, topics)  # makes the topics, where they are made
        counts.probed(side, measured(side, PROBE_MESSAGES))

    figures = bench.in_turn(name, sides, warm, lambda side, turn: measured(side, counts.of(side, sides)))
    bench.add(Comparison(name, "msg/s", figures, target=target))


def spread_partitions(bench: Bench) -> None:
    """PRODUCE of 128 B with 16 x 64 in flight, a new partition every message and every 64, beside one partition."""
    loads_fly_own.produced(bench, DURABILITIES, RUNS)
