"""Measures the Python client beside aiokafka and nats-py, and beside itself: one process each, rounds in turn, medians of ratios.

    .venv/bin/python bench/peers.py --install
    .venv/bin/python bench/clients.py [--only producer,group,alone,headers,memory,ask] [--rounds 5] [--messages 20000]

Prints a table: rate or time of both sides, the median of the ratios of single rounds, processor time of the client and of our broker for
a message.
A topic of ours has durability `os` where the peer does not sync (Kafka, JetStream as it comes). The packages of the peers are
installed once, by name, into a folder of their own in the cache of the virtual environment: they are no business of our lock files.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import peers  # type: ignore[import-not-found]  # beside this file

import quintet
from quintet.client.core.errors import Backpressure, Unsupported
from quintet.client.manage import Manage

VALUE: Final = b"v" * 1024
LINGER_S: Final = 0.005
BATCH_BYTES: Final = 256 * 1024  # of aiokafka: as much as our producer ships at once
HEADERS: Final = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "content-type": "application/json",
    "tenant": "shop-7",
}
ALONE: Final = 1_000  # publishes of a round, one at a time
ASKS: Final = 300
ASK_HEADERS: Final = {"reply-to": f"reply/{'a' * 32}", "correlation-id": "b" * 32}
SUBSCRIPTIONS: Final = 200
BOUND_KIB: Final = 64.0  # of one, as asked for

PACKAGES: Final = ("aiokafka==0.14.0", "nats-py==2.16.0")
PACKAGES_FOLDER: Final = Path(sys.prefix) / "cache" / "-".join(("clients", *PACKAGES)).replace("==", "-")
INSTALL_S: Final = 300  # seconds that may take

Measure = Callable[[], Awaitable[tuple[float, int]]]  # seconds, or what else is compared, and messages


def processor_s(pid: int) -> float:
    """What a process has used, all its threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


class Row:
    """One comparison: sides in turn, round after round. The ratio is ours by the peer's."""

    broker = 0  # its process

    def __init__(self, what: str, unit: str, target: str) -> None:
        self.what, self.unit, self.target = what, unit, target
        self.ours: list[float] = []
        self.peer: list[float] = []
        self.processor: list[list[float]] = [[], []]
        self.of_broker: list[list[float]] = [[], []]

    async def measure(self, rounds: int, ours: Measure, peer: Measure) -> None:
        for number in range(rounds + 1):
            for side, values, one in ((0, self.ours, ours), (1, self.peer, peer)):
                gc.collect()
                before, of_broker = time.process_time(), processor_s(self.broker)
                figure, count = await one()
                if number:  # the first one warms up
                    values.append(figure)
                    self.processor[side].append((time.process_time() - before) / count * 1e6)
                    self.of_broker[side].append((processor_s(self.broker) - of_broker) / count * 1e6)

    def __str__(self) -> str:
        ratio = statistics.median(ours / peer for ours, peer in zip(self.ours, self.peer, strict=True))
        own, other = statistics.median(self.ours), statistics.median(self.peer)
        cost = [statistics.median(side or [0.0]) for side in (*self.processor, *self.of_broker)]
        return (
            f"| {self.what} | {own:,.4g} {self.unit} | {other:,.4g} {self.unit} | {ratio:.2f}x | {self.target} "
            f"| {cost[0]:.1f} / {cost[1]:.1f} us | {cost[2]:.1f} / {cost[3]:.1f} us |"
        )


def use_packages() -> None:
    """Make the clients of the peers importable, behind everything that is ours."""
    if not PACKAGES_FOLDER.exists():
        unfinished = PACKAGES_FOLDER.with_suffix(".unfinished")
        uv = str(Path(sys.prefix) / "bin" / "uv")
        command = [uv, "pip", "install", "-q", "--target", str(unfinished), *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        if done.returncode:
            sys.exit(f"cannot install {' and '.join(PACKAGES)}: {done.stderr.strip()[-1_000:]}")
        unfinished.rename(PACKAGES_FOLDER)
    sys.path.append(str(PACKAGES_FOLDER))
    logging.getLogger("aiokafka").setLevel(logging.ERROR)  # on a busy machine its warnings hide the table


def used_kib() -> int:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4


# -- ours -------------------------------------------------------------------------------------------------------------


async def send_all(bus: quintet.Bus, topic: str, count: int, idempotent: bool, headers: dict[str, str] | None) -> float:
    """Messages a second, from the first send to the last confirmation."""
    began = time.perf_counter()
    async with bus.producer(topic, idempotent=idempotent, linger=LINGER_S) as producer:
        for _ in range(count):
            try:
                producer.send(VALUE, headers=headers)
            except Backpressure:
                await producer.ready()
                producer.send(VALUE, headers=headers)
    return count / (time.perf_counter() - began)


def times_of(publish: Callable[[], Awaitable[object]], count: int, rate: bool = False) -> Measure:
    """Median microseconds of one call, or how many of that fit into a second."""

    async def measure() -> tuple[float, int]:
        found = []
        for _ in range(count):
            began = time.perf_counter()
            await publish()
            found.append(time.perf_counter() - began)
        median = statistics.median(found)
        return 1 / median if rate else median * 1e6, count

    return measure


async def read_group(bus: quintet.Bus, topic: str, group: str, count: int) -> float:
    began = time.perf_counter()
    async with bus.subscribe(topic, group=group, start="earliest", prefetch=5_000) as subscription:
        seen = 0
        async for message in subscription:
            await message.ack()
            seen += 1
            if seen == count:
                break
    return count / (time.perf_counter() - began)


class Numbers:
    """Names that were not used before."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self, what: str) -> str:
        self._last += 1
        return f"{what}-{self._last}"


async def fresh(bus: quintet.Bus, name: str) -> str:
    await Manage(bus).create_topic(name, 1, durability="os")
    return name


# -- the rows ---------------------------------------------------------------------------------------------------------


async def producer_rows(given: argparse.Namespace, bus: quintet.Bus, kafka: str) -> list[Row]:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-not-found,import-untyped,unused-ignore]  # see use_packages

    topic = await fresh(bus, "clients.producer")
    row = Row("idempotent producer, 1 KiB, linger 5 ms; aiokafka acks=1", "msg/s", "1.5x")

    async def ours() -> tuple[float, int]:
        return await send_all(bus, topic, given.messages, True, None), given.messages

    async with AIOKafkaProducer(
        bootstrap_servers=kafka, acks=1, linger_ms=int(LINGER_S * 1000), max_batch_size=BATCH_BYTES
    ) as producer:

        async def peer() -> tuple[float, int]:
            began = time.perf_counter()
            for _ in range(given.messages):
                await producer.send("clients", VALUE)
            await producer.flush()
            return given.messages / (time.perf_counter() - began), given.messages

        await row.measure(given.rounds, ours, peer)
    return [row]


async def group_rows(given: argparse.Namespace, bus: quintet.Bus, kafka: str) -> list[Row]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    topic, names = await fresh(bus, "clients.group"), Numbers()
    await send_all(bus, topic, given.messages, False, None)
    async with AIOKafkaProducer(bootstrap_servers=kafka, acks=1, linger_ms=5, max_batch_size=BATCH_BYTES) as producer:
        for _ in range(given.messages):
            await producer.send("clients.group", VALUE)
    row = Row("consumer group, 1 KiB, one by one, from join to the last", "msg/s", "1.5x")

    async def ours() -> tuple[float, int]:
        return await read_group(bus, topic, names("group"), given.messages), given.messages

    async def peer() -> tuple[float, int]:
        consumer = AIOKafkaConsumer(
            "clients.group", bootstrap_servers=kafka, group_id=names("group"), auto_offset_reset="earliest"
        )
        async with consumer:
            began, seen = 0.0, 0
            async for _ in consumer:
                began = began or time.perf_counter()  # its first rebalance waits 3 s (group.initial.rebalance.delay.ms)
                seen += 1
                if seen == given.messages:
                    break
            taken = time.perf_counter() - began
        return given.messages / taken, given.messages

    await row.measure(given.rounds, ours, peer)
    return [row]


async def alone_rows(given: argparse.Namespace, buses: dict[str, quintet.Bus], nats_url: str) -> list[Row]:
    import nats  # type: ignore[import-not-found,import-untyped,unused-ignore]  # see use_packages

    rows = []
    client = await nats.connect(nats_url)
    stream = client.jetstream()
    await stream.add_stream(name="clients", subjects=["clients"])
    for door, bus in buses.items():
        for durability in ("os", "fsync"):
            topic = f"clients.alone.{door}.{durability}"
            await Manage(buses["flymq"]).create_topic(topic, 1, durability=durability)
            target = "1.0x" if durability == "os" else "information"
            what = (
                f"one publish at a time, 1 KiB, {door} {durability}, by its median time; JetStream publish as it comes"
            )
            row = Row(what, "msg/s", target)
            await row.measure(
                given.rounds,
                times_of(lambda bus=bus, topic=topic: bus.publish(topic, VALUE), ALONE, rate=True),  # type: ignore[misc]
                times_of(lambda: stream.publish("clients", VALUE), ALONE, rate=True),
            )
            rows.append(row)
    await client.close()
    return rows


async def headers_rows(given: argparse.Namespace, buses: dict[str, quintet.Bus]) -> list[Row]:
    rows = []
    for door, bus in buses.items():
        topic = await fresh(buses["flymq"], f"clients.headers.{door}")

        def sending(
            headers: dict[str, str] | None, bus: quintet.Bus = bus, topic: str = topic, exact: bool = door == "flymq"
        ) -> Measure:
            async def measure() -> tuple[float, int]:
                return await send_all(bus, topic, given.messages, exact, headers), given.messages

            return measure

        for count in (1, len(HEADERS)):
            headers = dict(list(HEADERS.items())[:count])
            row = Row(f"producer, {count} header(s) a message, 1 KiB, {door}; the same without", "msg/s", "0.85x")
            await row.measure(given.rounds, sending(headers), sending(None))
            rows.append(row)
    return rows


async def memory_rows(buses: dict[str, quintet.Bus]) -> list[Row]:
    rows = []
    for door, bus in buses.items():
        names, options = Numbers(), {"group": "g", "start": "earliest"} if door == "flymq" else {}
        row = Row(f"memory of a subscription, {door}; the bound", "KiB", "64 KiB")
        async with contextlib.AsyncExitStack() as stack:
            gc.collect()
            before = used_kib()
            for _ in range(SUBSCRIPTIONS):
                name = names(f"clients.memory.{door}")
                await stack.enter_async_context(bus.subscribe(name, **options))  # type: ignore[arg-type]
            gc.collect()
            row.ours, row.peer = [(used_kib() - before) / SUBSCRIPTIONS], [BOUND_KIB]
        rows.append(row)
    return rows


@contextlib.asynccontextmanager
async def responder(url: str, topic: str) -> AsyncIterator[None]:
    """In a process of its own, as a service is."""
    program = (
        "import asyncio, quintet\n"
        "async def main():\n"
        f"    async with quintet.connect({url!r}) as bus:\n"
        f"        async with bus.responder({topic!r}, answer):\n"
        "            print('ready', flush=True)\n"
        "            await asyncio.Event().wait()\n"
        "async def answer(message):\n"
        "    return message.value\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield
    finally:
        process.kill()
        await process.wait()


async def ask_rows(given: argparse.Namespace, urls: dict[str, str], buses: dict[str, quintet.Bus]) -> list[Row]:
    rows = []
    for door, bus in buses.items():
        topic = f"clients.ask.{door}"
        await Manage(buses["flymq"]).create_topic(topic, 1, durability="os")
        row = Row(f"ask, 1 KiB, p50, {door}; two publishes with its headers one after the other", "us", "2x at most")

        async def twice(bus: quintet.Bus = bus, topic: str = f"{topic}.plain") -> None:
            """What an ask publishes, without its two deliveries: topics with durability `os`, each awaited until confirmed."""
            await bus.publish(topic, VALUE, headers=ASK_HEADERS, ttl=30)
            await bus.publish(topic, VALUE, headers=ASK_HEADERS, ttl=30)

        await Manage(buses["flymq"]).create_topic(f"{topic}.plain", 1, durability="os")
        try:
            async with responder(urls[door], topic):
                asking = times_of(lambda bus=bus, topic=topic: bus.ask(topic, VALUE, timeout=30), ASKS)  # type: ignore[misc]
                await row.measure(given.rounds, asking, times_of(twice, ASKS))
        except Unsupported as error:
            print(f"{door}: {error}")
            continue
        rows.append(row)
    return rows


async def measure(given: argparse.Namespace, server: Any, kafka: str, nats_url: str) -> None:
    def address(door: str) -> str:
        return str(server.listeners[door])

    urls = {"blipmq": f"blipmq://:dev-key@{address('blipmq')}", "flymq": f"flymq://admin:admin@{address('flymq')}"}
    wanted = given.only.split(",")
    async with contextlib.AsyncExitStack() as stack:
        buses = {door: await stack.enter_async_context(quintet.connect(url)) for door, url in urls.items()}
        parts: dict[str, Callable[[], Awaitable[list[Row]]]] = {
            "memory": lambda: memory_rows(buses),  # first, because it is the growth of this process
            "producer": lambda: producer_rows(given, buses["flymq"], kafka),
            "headers": lambda: headers_rows(given, buses),
            "alone": lambda: alone_rows(given, buses, nats_url),
            "ask": lambda: ask_rows(given, urls, buses),
            "group": lambda: group_rows(given, buses["flymq"], kafka),
        }
        print(
            "| what | ours | beside | ratio | asked | processor of the client, ours / beside | of our broker |\n"
            "|---|---|---|---|---|---|---|"
        )
        for name, rows in parts.items():
            if name in wanted:
                print("\n".join(map(str, await rows())), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="producer,group,alone,headers,memory,ask")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    given = parser.parse_args()
    if {"producer", "group", "alone"} & set(given.only.split(",")):
        use_packages()
    with tempfile.TemporaryDirectory(prefix="quintet-clients-") as folder, contextlib.ExitStack() as stack:
        place = Path(folder)
        server = stack.enter_context(peers.quintet(place / "quintet"))
        Row.broker = server.pid
        kafka = nats_url = ""
        if {"producer", "group"} & set(given.only.split(",")):
            host, port = stack.enter_context(peers.kafka(place / "kafka")).address
            kafka = f"{host}:{port}"
        if "alone" in given.only:
            host, port = stack.enter_context(peers.nats(place / "nats", jetstream=True, synced=False)).address
            nats_url = f"nats://{host}:{port}"
        asyncio.run(measure(given, server, kafka, nats_url))


if __name__ == "__main__":
    main()
