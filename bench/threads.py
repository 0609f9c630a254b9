"""Measures which threads of the broker do its work, and so what more cores could bring.

    .venv/bin/python bench/threads.py [--seconds 3]

The loop's thread decides and cannot be in two places; the disk threads, the QUIC endpoint and the threads of Flight run beside it. For each
load: the processor time of a message, the share of it that the loop's thread takes, and how many times as much the broker could do if
all other threads had cores of their own (1 / share). That is a bound for one broker: `--cells` has a loop for each cell.
Processor time hardly depends on what else the machine does, so this can be run on a busy one.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.felix import TUNED, place
from bench.fly import connected
from bench.loads_felix import OUTSTANDING

from bench import closed_loop, felix, peers
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.flymq import FlymqWire
from quintet.bench.generators import Load
from quintet.bench.machine import processor_seconds, thread_seconds
from quintet.bench.wire import Address, Wire

KIB = 1024
MIB = 1024 * KIB
WARMUP_S = 0.5
FLOW_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class Row:
    """One load: `run` drives the broker for so many seconds and says how many messages (or KiB) that were."""

    name: str
    door: str
    durability: str
    run: Callable[[peers.Server, float], float]
    unit: str = "message"


def _closed(wire: Wire, size: int, connections: int, in_flight: int) -> Callable[[peers.Server, float], float]:
    def run(server: peers.Server, seconds: float) -> float:
        load = Load(wire, server.address, "threads", size, qos=1)
        return closed_loop.rounds(load, connections, in_flight, seconds, WARMUP_S).total

    return run


def _made(address: Address, durability: str) -> None:
    with connected(address) as client:
        client.create_topics(["threads"], 1, durability)


def _flow(*options: object) -> Callable[[peers.Server, float], float]:
    def run(server: peers.Server, seconds: float) -> float:
        return felix.run("felix-flow", place(server), *TUNED, "--bytes", FLOW_BYTES, *options)["bytes"] / KIB

    return run


ROWS = (
    Row("BlipMQ QoS 1, 128 B, 16 x 64 in flight, fsync", "blipmq", "fsync", _closed(BlipmqWire(), 128, 16, 64)),
    Row("BlipMQ QoS 1, 128 B, 64 x 1 in flight, fsync", "blipmq", "fsync", _closed(BlipmqWire(), 128, 64, 1)),
    Row("BlipMQ QoS 1, 128 B, 1 x 1 in flight, fsync", "blipmq", "fsync", _closed(BlipmqWire(), 128, 1, 1)),
    Row("FlyMQ PRODUCE, 128 B, 16 x 64 in flight, fsync", "flymq", "fsync", _closed(FlymqWire(), 128, 16, 64)),
    Row("FlyMQ PRODUCE, 16 KiB, 4 x 16 in flight, fsync", "flymq", "fsync", _closed(FlymqWire(), 16 * KIB, 4, 16)),
    Row("FlyMQ PRODUCE, 1 KiB, 16 x 64 in flight, os", "flymq", "os", _closed(FlymqWire(), KIB, 16, 64)),
    Row("Felix, 64 x 1 KiB, published and delivered, memory", "felix", "memory", _flow(), "KiB"),
    Row("the same, fsync, acknowledged", "felix", "fsync", _flow("--outstanding", OUTSTANDING), "KiB"),
)


def measure(row: Row, seconds: float, folder: Path) -> None:
    settings = {"QUINTET_TOPICS__DURABILITY": row.durability}
    with peers.quintet(folder, settings, door=row.door) as server:
        if row.door == "flymq":
            _made(server.address, row.durability)
        row.run(server, WARMUP_S)
        all_before, loop_before, began = processor_seconds(server.pid), thread_seconds(server.pid), time.monotonic()
        count = row.run(server, seconds)
        took = time.monotonic() - began
        used, loop = processor_seconds(server.pid) - all_before, thread_seconds(server.pid) - loop_before
        print(
            f"{row.name}: {used / count * 1e6:.2f} us a {row.unit}, {loop / used:.0%} of it on the loop's thread"
            f" (busy {loop / took:.0%} of the time); with more cores at most {used / loop:.2f}x",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of one load")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintet-threads-") as folder:
        for number, row in enumerate(ROWS):
            measure(row, wanted.seconds, Path(folder) / str(number))


if __name__ == "__main__":
    main()
