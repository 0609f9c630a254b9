"""Measures the processor time a message costs the broker if each goes to another partition, beside one partition.

    .venv/bin/python bench/spread_cost.py [--topics 100] [--turns 3] [--seconds 1] [--messages 30000] [--only fsync,os]

The same load as `spread_partitions` (PRODUCE of 128 B, 16 connections with 64 in flight), by the processor time of the broker and
not by the clock: so it can be run on a busy machine, for comparing two versions (PYTHONPATH=OTHER/src for one of them). Each figure is
of at least so many messages, after 22 to each partition, so that the first ones, which make files, do not count. It says nothing
about rates.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.fly import connected
from bench.loads_append import DURABILITIES, RUNS
from bench.loads_fly_own import AS_CONFIGURED, PARTITIONS, SIZE

from bench import closed_loop, peers
from quintet.bench.flymq import FlymqWire
from quintet.bench.generators import Load
from quintet.bench.machine import processor_seconds

CONNECTIONS, IN_FLIGHT = 16, 64
WARMUP_S = 0.2
READY_S = 60.0
FIRST_EACH = 22  # messages to each partition that are not measured: they leave the pack and make the file
ROUNDS_MAX = 60


def cost(
    server: peers.Server, topic: str, run: int, topics: int, partitions: int, seconds: float, messages: int
) -> float:
    """Microseconds of the broker's processor time a message, of at least so many."""
    load = Load(FlymqWire(), server.address, topic, SIZE, qos=1)
    before, total = processor_seconds(server.pid), 0
    for _ in range(ROUNDS_MAX):
        total += closed_loop.rounds(
            load, CONNECTIONS, IN_FLIGHT, seconds, WARMUP_S, run=run, topics=topics, partitions=partitions
        ).total
        if total >= messages:
            break
    return (processor_seconds(server.pid) - before) / total * 1e6


def measure(durability: str, topics: int, turns: int, seconds: float, messages: int, folder: Path) -> None:
    settings = {"QUINTET_TOPICS__DURABILITY": durability}
    with peers.quintet(folder / durability, settings, READY_S, "flymq") as server:
        with connected(server.address) as client:
            client.create_topics([f"many.{number:05d}" for number in range(topics)], PARTITIONS, AS_CONFIGURED)
            client.create_topics(["one.00000"], 1, AS_CONFIGURED)
        cost(server, "many", 1, topics, PARTITIONS, seconds, FIRST_EACH * topics * PARTITIONS)
        for run in RUNS:
            many, one = list[float](), list[float]()
            for _ in range(turns):
                many.append(cost(server, "many", run, topics, PARTITIONS, seconds, messages))
                one.append(cost(server, "one", run, 1, 1, seconds, messages))
            ratio = statistics.median(a / b for a, b in zip(many, one, strict=True))
            print(
                f"{durability}, runs of {run}: {statistics.median(many):.2f} us over {topics * PARTITIONS:,} partitions,"
                f" {statistics.median(one):.2f} us in one: {ratio:.1f}x",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=100, help=f"with {PARTITIONS} partitions each")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round; there are as many as are needed")
    parser.add_argument("--messages", type=int, default=30_000, help="at least, for each figure")
    parser.add_argument("--only", default=",".join(DURABILITIES), help="durabilities, with commas between them")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintet-spread-") as folder:
        for durability in wanted.only.split(","):
            measure(durability, wanted.topics, wanted.turns, wanted.seconds, wanted.messages, Path(folder))


if __name__ == "__main__":
    main()
