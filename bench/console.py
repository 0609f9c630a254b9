"""Measures what the console costs publishers: ten people tail a topic and one searches, beside nobody; rounds in turn, by ratio.

    .venv/bin/python bench/console.py [--rounds 3] [--seconds 5] [--mebibytes 256] [--pace-ms 5]

One publisher sends messages of 200 bytes one at a time, each awaited (QoS 1, durable), at a fixed pace; its latency is that from the
planned moment (open loop); on a machine that others use, a slower pace keeps the publisher from falling behind. Prints p50 and p99 without and with the console's readers, and the broker's processor time for each.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path

import httpx2
from peers import quintet as broker  # type: ignore[import-not-found]  # beside this file

import quintet

TAILS = 10
START_S = 8.0  # for the readers to be there: they log in, and an argon2id hash takes its time
VALUE = b"v" * 200
PIECE = b"some text that is not what is searched " * 2500


def used(pid: int) -> float:
    """Processor seconds of a process until now."""
    return sum(int((t / "schedstat").read_text().split()[0]) for t in Path(f"/proc/{pid}/task").iterdir()) / 1e9


async def follow(client: httpx2.AsyncClient, path: str, fields: dict[str, str]) -> None:
    """Read a stream, again whenever it ends."""
    while True:
        async with client.stream("GET", path, params=fields, timeout=None) as answer:
            async for _ in answer.aiter_bytes():
                pass


async def look(console: str) -> None:
    """TAILS people and one who searches, until somebody ends the process."""
    limits = httpx2.Limits(max_connections=100)
    async with httpx2.AsyncClient(base_url=console, trust_env=False, limits=limits) as client:
        ask = {"name": "admin", "password": "admin"}
        (await client.post("/api/login", json=ask, headers={"sec-fetch-site": "same-origin"})).raise_for_status()
        tails = [follow(client, "/api/tail", {"topic": "measured"}) for _ in range(TAILS)]
        await asyncio.gather(
            *tails, follow(client, "/api/search", {"topic": "searched", "filter": "regex:not [0-9]+ there"})
        )


def looking(console: str) -> None:
    asyncio.run(look(console))


async def publish(bus: quintet.Bus, seconds: float, pace_s: float) -> list[float]:
    """Latencies in seconds, from the planned moment of each."""
    began, found = time.monotonic(), []
    for number in range(int(seconds / pace_s)):
        planned = began + number * pace_s
        await asyncio.sleep(max(planned - time.monotonic(), 0))
        await bus.publish("measured", VALUE)
        found.append(time.monotonic() - planned)
    return sorted(found)


async def fill(bus: quintet.Bus, mebibytes: int) -> None:
    for _ in range(mebibytes * (1 << 20) // len(PIECE)):
        await bus.publish("searched", PIECE)


async def measure(url: str, console: str, pid: int, rounds: int, seconds: float, mebibytes: int, pace_s: float) -> None:
    async with quintet.connect(url) as bus:
        await fill(bus, mebibytes)
        await bus.publish("measured", VALUE)
        found: dict[bool, list[float]] = {False: [], True: []}
        cost = {False: 0.0, True: 0.0}
        for _ in range(rounds):
            for watched in (False, True):
                readers = multiprocessing.get_context("spawn").Process(target=looking, args=(console,), daemon=True)
                if watched:
                    readers.start()
                    await asyncio.sleep(START_S)
                before = used(pid)
                found[watched] += await publish(bus, seconds, pace_s)
                cost[watched] += used(pid) - before
                if watched:
                    assert readers.is_alive(), "the readers failed: see above"
                    readers.terminate()
                    readers.join()
        for watched, name in ((False, "nobody looks"), (True, f"{TAILS} tails and a search")):
            times = sorted(found[watched])
            p50, p99 = (times[int(len(times) * share)] * 1000 for share in (0.5, 0.99))
            print(
                f"{name:24} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   broker {cost[watched] / rounds / seconds:5.1%} of a core"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--pace-ms", type=float, default=5.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintet-console-") as folder, broker(Path(folder)) as server:
        url = f"blipmq://:dev-key@{server.address[0]}:{server.address[1]}"
        console = f"http://{server.listeners['console']}"
        wanted = (given.rounds, given.seconds, given.mebibytes, given.pace_ms / 1000)
        asyncio.run(measure(url, console, server.process.pid, *wanted))


if __name__ == "__main__":
    main()
