"""What a second cell brings: the same durable publishes at a broker of one cell and of two, on one machine or over Kafka.

    .venv/bin/python bench/two_cells.py machine    `quintet serve` beside `quintet serve --cells 2`, the embedded log
    .venv/bin/python bench/two_cells.py kafka      two nodes with `cells = 1` beside two nodes with `cells = 2`, each of which leads one

Two programs of bench/loadgen publish 128 B by BlipMQ, 4 x 256 in flight each, one to a topic of each cell. Sides take turns, each in a
new folder. Two ratios are printed. That of the rates is what a user sees, if the machine has a core for each cell and more for
clients and Kafka. That of the room is messages for each second of processor time of the busiest process of the broker: what two
cells take before one of them is full, whatever else shares the cores; a busy machine hardly changes it.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.cell_cost import BROKERS, HOSTS, JAVA, KEY, START_S, free_port, say

from bench import closed_loop, peers
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.generators import Load
from quintet.bench.machine import processor_seconds
from quintet.bench.wire import BenchError
from quintet.cli.operate import scrape
from quintet.client.core.errors import ConnectionLost
from quintet.model.cells import CellMap
from quintet.protocols.doors import DOORS

CELLS: Final = 2
TOPICS: Final = ("a", "b")  # one of each cell, by the hash of its name: main checks it
CONNECTIONS, IN_FLIGHT, SIZE = 4, 256, 128  # of each generator: enough that a process never waits for them
WARMUP_S: Final = 1.0
LOOK_S: Final = 0.2

Address = tuple[str, int]


class Outcome(NamedTuple):
    """Of one measurement."""

    rate: float
    room: float  # messages for each second of the processor, of the busiest process


class Side:
    """A broker that runs: where each topic's publisher connects, and its processes."""

    def __init__(self, addresses: Sequence[Address], processes: Callable[[], list[int]]) -> None:
        self.addresses = addresses
        self._processes = processes

    def measure(self, seconds: float) -> Outcome:
        loads = [
            Load(BlipmqWire(KEY), address, topic, SIZE, qos=1)
            for address, topic in zip(self.addresses, TOPICS, strict=True)
        ]
        for load in loads:
            closed_loop.fill(load, 1, 1, 1)  # makes the topic
        before = {pid: processor_seconds(pid) for pid in self._processes()}
        with ThreadPoolExecutor(len(loads)) as pool:
            rounds = list(
                pool.map(lambda load: closed_loop.rounds(load, CONNECTIONS, IN_FLIGHT, seconds, WARMUP_S), loads)
            )
        busiest = max(processor_seconds(pid) - before.get(pid, 0.0) for pid in self._processes())
        return Outcome(sum(each.rate for each in rounds), sum(each.total for each in rounds) / busiest)


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(word) for word in found]


def environment(host: str, ports: dict[str, int]) -> dict[str, str]:
    """Of a broker with the BlipMQ door and the admin listener only."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
    found["PYTHONPATH"] = str(Path(__file__).resolve().parents[1] / "src")
    for name in ("console", "flight", *(door.key for door in DOORS if door.name != "blipmq")):
        found[f"QUINTET_LISTENERS__{name.upper()}__ENABLED"] = "false"
    for name in ("blipmq", "admin"):
        found[f"QUINTET_LISTENERS__{name.upper()}__HOST"] = host
        found[f"QUINTET_LISTENERS__{name.upper()}__PORT"] = str(ports[name])
    return found


@contextlib.contextmanager
def started(folder: Path, words: Sequence[str], settings: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir()
    command = [sys.executable, "-m", "quintet", "serve", "--dev", "--data", str(folder / "data"), *words]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=settings)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_S)


def until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not done():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} after {START_S:.0f} s")
        time.sleep(LOOK_S)


def is_ready(host: str, port: int) -> bool:
    with contextlib.suppress(ConnectionLost):
        return scrape.readiness(f"http://{host}:{port}")[0]
    return False


@contextlib.contextmanager
def machine(folder: Path, cells: int) -> Iterator[Side]:
    taken: set[int] = set()
    ports = {name: free_port(taken) for name in ("blipmq", "admin")}
    words = [] if cells == 1 else ["--cells", str(cells)]
    with started(folder / "one", words, environment(HOSTS[0], ports)) as process:
        until(lambda: is_ready(HOSTS[0], ports["admin"]), "the broker is not ready")
        address = (HOSTS[0], ports["blipmq"])
        yield Side([address] * CELLS, lambda: [process.pid] if cells == 1 else children(process.pid))


@contextlib.contextmanager
def kafka(folder: Path, cells: int) -> Iterator[Side]:
    """Two nodes; of two cells each leads one."""
    taken: set[int] = set()
    ports = {name: free_port(taken) for name in ("blipmq", "admin", "cluster")}
    hosts = HOSTS[:CELLS]
    near = [f"{host}:{ports['cluster']}" for host in hosts]
    with contextlib.ExitStack() as stack:
        brokers = stack.enter_context(peers.kafka_cluster(folder / "kafka", BROKERS, JAVA))
        servers = [f"{broker.address[0]}:{broker.address[1]}" for broker in brokers]
        nodes = []
        for number, host in enumerate(hosts):
            cell = {"NODE": f"n{number}", "ADVERTISED_HOST": host, "SERVERS": json.dumps(servers)}
            cell |= {"CELLS": str(cells)} if cells > 1 else {}
            settings = environment(host, ports) | {"QUINTET_ENGINE": "kafka"}
            settings |= {f"QUINTET_CELL__{name}": value for name, value in cell.items()}
            settings |= {"QUINTET_CLUSTER__LISTEN": near[number], "QUINTET_CLUSTER__PEERS": json.dumps(near)}
            nodes.append(stack.enter_context(started(folder / f"n{number}", [], settings)))
        admins = [f"http://{host}:{ports['admin']}" for host in hosts]
        until(lambda: shared_out(admins, cells), "the cells are not shared out")
        found = leaders(admins, cells)
        addresses = [(hosts[found[cell % cells]], ports["blipmq"]) for cell in range(CELLS)]
        pids = lambda: [pid for node in nodes for pid in ([node.pid] if cells == 1 else children(node.pid))]  # noqa: E731
        yield Side(addresses, pids)


def leaders(admins: Sequence[str], cells: int) -> dict[int, int]:
    """By cell: which node leads it and is ready."""
    found: dict[int, int] = {}
    for number, admin in enumerate(admins):
        with contextlib.suppress(ConnectionLost):
            said = scrape.scrape(admin).by("quintet_cell_info", "cell", "role") if cells > 1 else {}
            found |= {int(cell): number for cell, role in said if role == "leader"}
            if cells == 1 and scrape.readiness(admin)[0]:
                found[0] = number
    return found


def shared_out(admins: Sequence[str], cells: int) -> bool:
    """Every cell has a leader, each another one, and every node serves."""
    found = leaders(admins, cells)
    return len(found) == cells == len({*found.values()}) and (
        cells == 1 or all(scrape.readiness(admin)[0] for admin in admins)
    )


PARTS: Final = {"machine": machine, "kafka": kafka}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    arguments = parser.parse_args()
    if arguments.part == "kafka" and not peers.has_kafka():
        say("Kafka is not installed: python bench/peers.py --install kafka (needs Java, Maven and Maven Central)")
        return 1
    places = CellMap(CELLS)
    assert [places.cell_of(topic.encode()) for topic in TOPICS] == [*range(CELLS)], "other names are needed"
    closed_loop.program()  # built before anything runs that it would slow down
    say(f"{arguments.part}: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start")
    found: dict[int, list[Outcome]] = {1: [], CELLS: []}
    for _ in range(arguments.rounds):
        for cells, outcomes in found.items():
            with (
                tempfile.TemporaryDirectory(prefix="quintet-two-cells-") as name,
                PARTS[arguments.part](Path(name), cells) as side,
            ):
                outcomes.append(side.measure(arguments.seconds))
                say(
                    f"  {cells}: {outcomes[-1].rate:,.0f}/s, {outcomes[-1].room:,.0f} for a second of the busiest process"
                )
    for name in Outcome._fields:
        one, two = (statistics.median(getattr(each, name) for each in found[cells]) for cells in found)
        say(f"{arguments.part}, {name}: one cell {one:,.0f}, two cells {two:,.0f}; ratio {two / one:.2f}")
    say(f"load average {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
