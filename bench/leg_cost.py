"""Measures a request for a topic of another cell beside one for the connection's own cell, on one machine (issue 17: 2x).

    .venv/bin/python bench/leg_cost.py [--rounds 7] [--count 1500] [--durability memory]

`quintet serve --cells 2`, one connection of BlipMQ, 128 bytes, one publish and its PONG in flight. The same connection publishes to
both cells in turn, so both figures are of the same moments: trust the ratios of one run. It says p50, and the processor time of all
processes of the broker.
"""

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench import peers
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.machine import processor_seconds
from quintet.model.cells import CellMap

CELLS = 2
SIZE = 128
READY_S = 120.0
KEY = "dev-key"
ANSWER_BYTES = 4_096


@contextlib.contextmanager
def broker(folder: Path, durability: str) -> Iterator[tuple[tuple[str, int], int]]:
    ports = {f"QUINTET_LISTENERS__{name}__PORT": "0" for name in peers.DOORS}
    command = [sys.executable, "-m", "quintet", "serve", "--dev", "--data", str(folder / "data"), "--print-ready"]
    environment = os.environ | ports | {"QUINTET_TOPICS__DURABILITY": durability}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--cells", str(CELLS)], stdout=subprocess.PIPE, stderr=out, env=environment
        )
    try:
        host, _, port = peers._ready_line(process, log, time.monotonic() + READY_S)["blipmq"].rpartition(":")
        yield (host, int(port)), process.pid
    finally:
        peers.stop(process)


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def round_trips(sock: socket.socket, said: bytes, answer: int, count: int) -> list[float]:
    """Microseconds of each."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        sock.sendall(said)
        left = answer
        while left > 0:
            left -= len(sock.recv(ANSWER_BYTES))
        found.append((time.perf_counter() - began) * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=1_500, help="round trips of one figure")
    parser.add_argument("--durability", default="memory")
    wanted = parser.parse_args()
    cells, wire = CellMap(CELLS), BlipmqWire(KEY)
    topics = {cells.cell_of(name.encode()): name for name in (f"leg.{number}" for number in range(100))}
    qos = 0 if wanted.durability == "memory" else 1
    ratios: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="quintet-leg-") as name, broker(Path(name), wanted.durability) as (at, pid):
        processes = children(pid)
        with wire.connect(at) as sock:  # handed to the process of its first topic, which is its own from then on
            frames = [wire.encode(topics[cell], bytes(SIZE), qos, 1) + wire.barrier(qos) for cell in range(CELLS)]
            sock.sendall(frames[0])
            answer = len(sock.recv(ANSWER_BYTES))
            for said in frames:
                round_trips(sock, said, answer, wanted.count)
            for _ in range(wanted.rounds):
                p50, cpu = [], []
                for said in frames:
                    before = sum(map(processor_seconds, processes))
                    p50.append(statistics.median(round_trips(sock, said, answer, wanted.count)))
                    cpu.append((sum(map(processor_seconds, processes)) - before) / wanted.count * 1e6)
                ratios.append((p50[1] / p50[0], cpu[1] / cpu[0]))
                print(
                    f"p50: own cell {p50[0]:.0f} us, another {p50[1]:.0f} us, {ratios[-1][0]:.2f}x;"
                    f" processor: {cpu[0]:.0f} us, {cpu[1]:.0f} us, {ratios[-1][1]:.2f}x",
                    flush=True,
                )
    waits, works = zip(*ratios, strict=True)
    print(f"{wanted.durability}: p50 {statistics.median(waits):.2f}x, processor {statistics.median(works):.2f}x")


if __name__ == "__main__":
    main()
