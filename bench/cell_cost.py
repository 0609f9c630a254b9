"""What a cell costs: durable publishes beside Kafka's own producer, take-over time, what Spark on a follower costs the leader.

    .venv/bin/python bench/cell_cost.py publish    16 x 64 and one in flight, 128 B, beside confluent-kafka with the same promise
    .venv/bin/python bench/cell_cost.py readers    p99 of the leader: nobody reads, Spark reads from a follower, from the leader
    .venv/bin/python bench/cell_cost.py takeover   kill -9 of a leader with many topics and bytes, until a publish is acknowledged

With --apart, `readers` keeps Spark and the followers on the last core and all else on the others, on every side of the comparison: what is
measured is what Spark asks of the leader, not what it takes of a core that they would not share. `takeover` spreads its bytes over the
topics and trims the WAL (--kept), so that the disk needs about three times as many bytes as the leader has, and not six times.

Starts three brokers of Kafka (from bench/.peers) and three nodes on 127.0.0.1 to 127.0.0.3, all on this machine. The WAL and the topic of
Kafka's own producer have the same settings: three replicas, min.insync.replicas 2, flush.messages 1. Sides take turns in one run; what
is printed is the median of the rounds and their ratio. Other load on the machine is printed, too: believe ratios, not rates.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

import quintet
from bench import closed_loop, peers
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.generators import Load
from quintet.bench.wire import BenchError
from quintet.cli.operate import scrape
from quintet.client.core.errors import ConnectionLost, QuintetError
from quintet.protocols.doors import DOORS

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
JAVA: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
BROKERS: Final = 3
SIZE: Final = 128
CONNECTIONS, IN_FLIGHT = 16, 64
WARMUP_S: Final = 1.0
START_S: Final = 180.0
PROMISE: Final = {"min.insync.replicas": "2", "flush.messages": "1"}
TOPIC: Final = "cell-cost"
KEY: Final = "dev-key"  # of `quintet serve --dev`
LAG_MAX: Final = 2  # records: a heartbeat may be on its way
FILL_BYTES: Final = 256 * 1024  # of one message
FILL_IN_FLIGHT: Final = 32
FILL_TRIES: Final = 30
# Kafka frees what was trimmed by whole segments, and looks for them every five minutes by default.
TRIMS: Final = "log.segment.bytes=67108864\nlog.retention.check.interval.ms=5000\nlog.segment.delete.delay.ms=1000\n"
SPARK: Final = """
import sys
from quintet.spark import session
from quintet.spark.sessions import start
spark = session("local[1]")
print(start.machine().process.pid, flush=True)
while True:
    frame = spark.read.format("quintet").options(url=sys.argv[1], subscribe=sys.argv[2], access="flight").load()
    frame.write.format("noop").mode("overwrite").save()
    print("read", flush=True)
"""


def say(text: str) -> None:
    print(text, flush=True)


def free_port(known: set[int]) -> int:
    """The same for every host, below those that the system hands out."""
    for port in random.sample(range(20_000, 30_000), 1_000):
        if port in known:
            continue
        try:
            for host in HOSTS:
                with socket.socket() as probe:
                    probe.bind((host, port))
        except OSError:
            continue
        known.add(port)
        return port
    raise BenchError("1,000 ports are taken")


class Node:
    """One node of the cell."""

    def __init__(
        self, folder: Path, number: int, servers: Sequence[str], ports: dict[str, int], lease_s: float, kept_s: float
    ) -> None:
        """kept_s: for how long what two nodes have stays in the WAL; 0: for ever."""
        self.host, self.ports = HOSTS[number], ports
        self._folder = folder / f"n{number}"
        self._folder.mkdir()
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        self._environment |= {
            "QUINTET_ENGINE": "kafka",
            "QUINTET_CELL__NODE": f"n{number}",
            "QUINTET_CELL__SERVERS": json.dumps([*servers]),
            "QUINTET_CELL__ADVERTISED_HOST": self.host,
            "QUINTET_CELL__LEASE_SECONDS": str(lease_s),
            "PYTHONPATH": str(Path(__file__).resolve().parents[1] / "src"),
        }
        for name in ("console", *(door.key for door in DOORS if door.name != "blipmq")):
            self._environment[f"QUINTET_LISTENERS__{name.upper()}__ENABLED"] = "false"
        for name, port in ports.items():
            if name == "cluster":
                continue
            self._environment[f"QUINTET_LISTENERS__{name.upper()}__HOST"] = self.host
            self._environment[f"QUINTET_LISTENERS__{name.upper()}__PORT"] = str(port)
        if kept_s:
            near = [f"{host}:{ports['cluster']}" for host in HOSTS]
            self._environment["QUINTET_CLUSTER__LISTEN"] = near[number]
            self._environment["QUINTET_CLUSTER__PEERS"] = json.dumps(near)
            self._environment["QUINTET_CLUSTER__WAL_KEPT_SECONDS"] = str(kept_s)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "quintet", "serve", "--dev", "--data", str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def cell(self) -> tuple[int, str]:
        """What /readyz answers; 0 if it does not."""
        try:
            return scrape.get(f"http://{self.host}:{self.ports['admin']}", "/readyz?verbose")
        except ConnectionLost:
            return 0, ""

    def figure(self, name: str) -> float:
        """Infinite if it does not answer."""
        try:
            return sum(self._values(name))
        except ConnectionLost:
            return math.inf

    def disk_bytes(self) -> int:
        """What its data takes on the disk."""
        files = [path for path in (self._folder / "data").rglob("*") if path.is_file()]
        return sum(path.stat().st_blocks for path in files) * 512

    def _values(self, name: str) -> list[float]:
        return list(scrape.scrape(f"http://{self.host}:{self.ports['admin']}").values[name].values())


class Cell:
    def __init__(self, folder: Path, servers: Sequence[str], lease_s: float, kept_s: float) -> None:
        taken: set[int] = set()
        ports = {name: free_port(taken) for name in ("blipmq", "flight", "admin", "cluster")}
        self.nodes = [Node(folder, number, servers, ports, lease_s, kept_s) for number in range(len(HOSTS))]

    def leader(self) -> Node:
        """One that is ready; what ended is started again."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            for node in self.nodes:
                if node.process.poll() is not None:
                    node.start()
                elif node.cell()[0] == 200:
                    return node
            time.sleep(0.2)
        raise BenchError(f"no node leads after {START_S:.0f} s")

    def followers(self) -> list[Node]:
        leader = self.leader()
        return [node for node in self.nodes if node is not leader]

    def end(self) -> None:
        for node in self.nodes:
            node.process.kill()
            node.process.wait()

    def load(self, node: Node, size: int = SIZE) -> Load:
        return Load(BlipmqWire(KEY), (node.host, node.ports["blipmq"]), TOPIC, size, qos=1)


@contextlib.contextmanager
def running(lease_s: float, kept_s: float = 0.0) -> Iterator[tuple[Cell, str]]:
    """A cell, and the brokers under it."""
    with tempfile.TemporaryDirectory(prefix="quintet-cell-cost-") as name:
        folder = Path(name)
        with peers.kafka_cluster(folder / "kafka", BROKERS, JAVA, TRIMS if kept_s else "") as brokers:
            servers = [f"{broker.address[0]}:{broker.address[1]}" for broker in brokers]
            cell = Cell(folder, servers, lease_s, kept_s)
            try:
                cell.leader()
                yield cell, ",".join(servers)
            finally:
                cell.end()


# -- Kafka's own producer ---------------------------------------------------------------------------------------------


def make_topic(servers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, and not in its __all__

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1, BROKERS, config=PROMISE)])[TOPIC].result(60)


def producer(servers: str, **options: Any) -> "Producer":
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, "enable.idempotence": True, "acks": "all", **options})


def kafka_rate(servers: str, seconds: float) -> float:
    """Records a second with as many in flight, as its own defaults batch them."""
    made, window = producer(servers), threading.Semaphore(CONNECTIONS * IN_FLIGHT)
    delivered = 0

    def done(error: "KafkaError | None", _message: "Message") -> None:
        nonlocal delivered
        if error is not None:
            raise BenchError(f"Kafka's producer: {error}")
        delivered += 1
        window.release()

    value, began, counted = bytes(SIZE), time.monotonic(), -1
    while (now := time.monotonic()) < began + WARMUP_S + seconds:
        if counted < 0 and now >= began + WARMUP_S:
            counted, since = delivered, now
        if window.acquire(blocking=False):
            made.produce(TOPIC, value, partition=0, on_delivery=done)
        else:
            made.poll(0.01)
    rate = (delivered - counted) / (time.monotonic() - since)
    made.flush(60)
    return rate


def kafka_p50_us(servers: str, count: int) -> float:
    """One record in flight."""
    made, waits = producer(servers, **{"linger.ms": 0}), list[float]()
    for number in range(count + count // 10):
        began = time.perf_counter()
        made.produce(TOPIC, bytes(SIZE), partition=0)
        while len(made):
            made.poll(1.0)
        if number >= count // 10:
            waits.append((time.perf_counter() - began) * 1e6)
    return statistics.median(waits)


# -- what is measured -------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], unit: str) -> str:
    return f"{statistics.median(values):,.0f} {unit} ({', '.join(f'{value:,.0f}' for value in values)})"


def in_turn(rounds: int, sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            found[name].append(measure())
    return found


def publish(arguments: argparse.Namespace) -> None:
    with running(arguments.lease) as (cell, servers):
        make_topic(servers)
        seconds, rounds = arguments.seconds, arguments.rounds

        def ours(connections: int, in_flight: int) -> closed_loop.Rounds:
            return closed_loop.rounds(cell.load(cell.leader()), connections, in_flight, seconds, WARMUP_S)

        ours(1, 1)  # makes the topic
        rates = in_turn(
            rounds,
            {"cell": lambda: ours(CONNECTIONS, IN_FLIGHT).rate, "kafka": lambda: kafka_rate(servers, seconds)},
        )
        waits = in_turn(
            rounds, {"cell": lambda: ours(1, 1).p50_us, "kafka": lambda: kafka_p50_us(servers, arguments.count)}
        )
    for name, found, unit in (("16 x 64 in flight", rates, "/s"), ("one in flight, p50", waits, "us")):
        ratio = statistics.median(found["cell"]) / statistics.median(found["kafka"])
        say(f"{name}: cell {spread(found['cell'], unit)}; kafka {spread(found['kafka'], unit)}; ratio {ratio:.2f}")


@contextlib.contextmanager
def spark_reads(nodes: Sequence[Node], core: int | None) -> Iterator[None]:
    """Spark reads the whole topic by Flight, again and again, from a follower if there is one among these nodes."""
    hosts = ",".join(f"{node.host}:{node.ports['flight']}" for node in nodes)
    words = [sys.executable, "-c", SPARK, f"flight://admin:admin@{hosts}", TOPIC]
    pinned = words if core is None else ["taskset", "-c", str(core), *words]
    reading = subprocess.Popen(pinned, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    processes = [reading.pid]
    try:
        assert reading.stdout is not None
        if machine := reading.stdout.readline():
            processes.append(int(machine))  # Java outlives Python, and its workers end with it
        if not reading.stdout.readline():
            raise BenchError("Spark ended before it had read the topic once")
        yield
    finally:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reading.wait()


def pin(processes: Sequence[Node], cores: Sequence[int]) -> None:
    for node in processes:
        words = ["taskset", "-a", "-p", "-c", ",".join(map(str, cores)), str(node.process.pid)]
        subprocess.run(words, check=True, capture_output=True)


def readers(arguments: argparse.Namespace) -> None:
    *first, last = sorted(os.sched_getaffinity(0))
    apart = arguments.apart
    if apart and not first:
        raise BenchError("--apart needs two cores")
    if apart:
        os.sched_setaffinity(0, first)  # and so whatever is started from here
    with running(arguments.lease) as (cell, _):
        leader = cell.leader()
        closed_loop.fill(cell.load(leader, 4096), CONNECTIONS, IN_FLIGHT, arguments.fill)

        def p99(place: Callable[[], Sequence[Node]]) -> float:
            leader = cell.leader()
            if apart:
                pin([leader], first)
                pin(cell.followers(), [last])
            nodes = place()
            with spark_reads(nodes, last if apart else None) if nodes else contextlib.nullcontext():
                return closed_loop.rounds(cell.load(leader), CONNECTIONS, 1, arguments.seconds, WARMUP_S).p99_us

        sides: dict[str, Callable[[], float]] = {
            "nobody": lambda: p99(lambda: ()),
            "Spark at a follower": lambda: p99(lambda: cell.nodes),
            "Spark at the leader": lambda: p99(lambda: [cell.leader()]),
        }
        found = in_turn(arguments.rounds, sides)
    alone = statistics.median(found["nobody"])
    for name, values in found.items():
        say(f"p99 of 16 x 1, {name}: {spread(values, 'us')}; ratio {statistics.median(values) / alone:.2f}")


def acknowledged(cell: Cell, killed: Node) -> None:
    """Returns when some node has acknowledged a publish."""
    while True:
        for node in cell.nodes:
            if node is not killed and node.cell()[0] == 200:
                with contextlib.suppress(BenchError):
                    closed_loop.fill(cell.load(node), 1, 1, 1)
                    return
        time.sleep(0.02)


async def fill_topics(cell: Cell, topics: int, mib: int) -> None:
    """Each gets its share, in turn. Whoever leads: on a busy machine that may change."""
    hosts = ",".join(f"{node.host}:{node.ports['blipmq']}" for node in cell.nodes)
    left = iter(range(max(topics, mib * 1024 * 1024 // FILL_BYTES)))
    value = random.Random(1).randbytes(FILL_BYTES if mib else 1)

    async def publish(bus: quintet.Bus) -> None:
        for number in left:
            for tries in reversed(range(FILL_TRIES)):
                try:
                    await bus.publish(f"many/{number % topics}", value)
                    break
                except QuintetError:
                    if not tries:
                        raise
                    await asyncio.sleep(1)

    async with quintet.connect(f"blipmq://:{KEY}@{hosts}", wait=START_S) as bus:
        await asyncio.gather(*(publish(bus) for _ in range(FILL_IN_FLIGHT)))


def takeover(arguments: argparse.Namespace) -> None:
    with running(arguments.lease, arguments.kept) as (cell, _):
        cell.leader()
        began = time.monotonic()
        asyncio.run(fill_topics(cell, arguments.topics, arguments.mib))
        held = cell.leader().disk_bytes()
        say(f"filled {arguments.topics} topics with {held / 2**30:.1f} GiB in {time.monotonic() - began:.0f} s")
        found = []
        for _ in range(arguments.rounds):
            leader = cell.leader()
            until = time.monotonic() + START_S
            while min(lags := [node.figure("quintet_cell_lag_records") for node in cell.followers()]) > LAG_MAX:
                if time.monotonic() > until:
                    raise BenchError(f"no follower catches up: they lag by {lags} records")
                time.sleep(0.2)
            leader.process.kill()
            leader.process.wait()
            killed = time.monotonic()
            acknowledged(cell, leader)
            found.append(time.monotonic() - killed)
            say(f"  {found[-1]:.1f} s, load average {os.getloadavg()[0]:.1f}")
            leader.start()
    said, middle = ", ".join(f"{value:.1f}" for value in found), statistics.median(found)
    say(
        f"first acknowledged publish after kill -9: {middle:.1f} s ({said}); asked: 5 s and the lease, {5 + arguments.lease:g} s"
    )


PARTS: Final = {"publish": publish, "readers": readers, "takeover": takeover}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of one measurement")
    parser.add_argument("--count", type=int, default=300, help="records of Kafka's producer, one in flight")
    parser.add_argument("--lease", type=float, default=5.0, help="in seconds; longer on a busy machine")
    parser.add_argument("--fill", type=int, default=32, help="readers: rounds of 16 x 64 messages of 4 KiB before it")
    parser.add_argument("--apart", action="store_true", help="readers: Spark and followers on the last core")
    parser.add_argument(
        "--kept", type=float, default=60.0, help="takeover: seconds for which the WAL is kept; 0: for ever"
    )
    parser.add_argument("--topics", type=int, default=1_000, help="takeover")
    parser.add_argument("--mib", type=int, default=1_024, help="takeover")
    arguments = parser.parse_args()
    if not peers.has_kafka():
        say("Kafka is not installed: python bench/peers.py --install kafka (needs Java, Maven and Maven Central)")
        return 1
    closed_loop.program()  # built before anything runs that it would slow down
    say(f"{arguments.part}: load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start")
    PARTS[arguments.part](arguments)
    say(f"load average {os.getloadavg()[0]:.1f} at the end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
