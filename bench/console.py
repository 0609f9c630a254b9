"""Measures what the console costs publishers: ten people tail a topic and one searches, beside nobody; rounds in turn, by ratio.

    .venv/bin/python bench/console.py [--rounds 5] [--seconds 8] [--mebibytes 1024] [--pace-ms 10] [--callbacks]

One publisher sends messages of 200 bytes one at a time, each awaited (QoS 1, durable), at a fixed pace; its latency is that from the
planned moment (open loop); on a machine that others use, a slower pace keeps the publisher from falling behind. A second broker has the
same topics and the same publisher: in a third of the rounds the people look at that one. What the publisher loses then it loses to the
machine, whose processors the readers' own process needs, and not to the console. Prints p50 and p99 of each case, the median of the
rounds' ratios of p99, and the broker's processor time.

On a machine that others use, latencies say little. `--callbacks` measures the broker's loop as well, by processor time: how long each of
its callbacks ran (on asyncio's own loop, in place of uvloop). A request that comes at any moment waits for the rest of the callback under way; `loop` is the 99th percentile of that
wait, as it is on a processor of one's own.
"""

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from array import array
from pathlib import Path
from typing import NamedTuple

import httpx2
from peers import quintet as broker  # type: ignore[import-not-found]  # beside this file

import quintet

TAILS = 10
START_S = 8.0  # for the readers to be there: they log in, and an argon2id hash takes its time
VALUE = b"v" * 200
PIECE = b"some text that is not what is searched " * 2500


# In the broker's process: the processor time of every callback of the loop thread, written down when SIGUSR1 asks.
MEASURED = """
import asyncio.events, os, signal, sys, time
sys.modules["uvloop"] = None  # its callbacks cannot be measured from outside: asyncio's own loop runs the same ones
from array import array
_found, _run, _place = array("d"), asyncio.events.Handle._run, os.environ["BENCH_CALLBACKS"]
def _measured(handle):
    before = time.thread_time()
    _run(handle)
    _found.append(time.thread_time() - before)
def _write(*_):
    with open(_place + ".part", "wb") as file:
        file.write(_found.tobytes())
    del _found[:]
    os.rename(_place + ".part", _place)
asyncio.events.Handle._run = _measured
signal.signal(signal.SIGUSR1, _write)
"""


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


class Case(NamedTuple):
    """Where the people look, if they do; and what was measured meanwhile."""

    name: str
    console: str
    rounds: list[list[float]]  # latencies in seconds, sorted
    cost: list[float]  # processor seconds of the broker that is measured
    callbacks: list[list[float]]  # seconds of processor time of each callback of its loop


class Loop:
    """The callbacks of a broker's loop, which MEASURED in that process counts."""

    def __init__(self, folder: Path, wanted: bool) -> None:
        (folder / "sitecustomize.py").write_text(MEASURED)
        self._file = folder / "callbacks"
        self.environment = {"PYTHONPATH": str(folder), "BENCH_CALLBACKS": str(self._file)} if wanted else {}

    async def since(self, pid: int) -> list[float]:
        """Of each callback since the last call, its processor time."""
        if not self.environment:
            return [0.0]
        self._file.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
        while not self._file.exists():
            await asyncio.sleep(0.05)
        return list(array("d", self._file.read_bytes()))


def wait_ms(callbacks: list[float], seconds: float, share: float) -> float:
    """How long a request that comes at any moment waits for the callback under way: the quantile, in milliseconds."""
    low, high = 0.0, max(callbacks)
    while high - low > 1e-6:
        middle = (low + high) / 2
        longer = sum(each - middle for each in callbacks if each > middle) / seconds
        low, high = (middle, high) if longer > 1 - share else (low, middle)
    return high * 1000


async def one_round(
    bus: quintet.Bus, other: quintet.Bus, case: Case, loop: Loop, pid: int, seconds: float, pace_s: float
) -> None:
    readers = multiprocessing.get_context("spawn").Process(target=looking, args=(case.console,), daemon=True)
    if case.console:
        readers.start()
    await asyncio.sleep(START_S)
    await loop.since(pid)
    before = used(pid)
    measured, _ = await asyncio.gather(publish(bus, seconds, pace_s), publish(other, seconds, pace_s))
    case.rounds.append(measured)
    case.cost.append(used(pid) - before)
    case.callbacks.append(await loop.since(pid))
    if case.console:
        assert readers.is_alive(), "the readers failed: see above"
        readers.terminate()
        readers.join()


def of(times: list[float], share: float) -> float:
    """A quantile, in milliseconds."""
    return times[int(len(times) * share)] * 1000


async def measure(url: str, other_url: str, cases: list[Case], loop: Loop, pid: int, given: argparse.Namespace) -> None:
    async with quintet.connect(url) as bus, quintet.connect(other_url) as other:
        for each in (bus, other):
            await fill(each, given.mebibytes)
            await each.publish("measured", VALUE)
        for number in range(given.rounds):
            for case in cases[number % len(cases) :] + cases[: number % len(cases)]:
                await one_round(bus, other, case, loop, pid, given.seconds, given.pace_ms / 1000)
    still = cases[0]
    for case in cases:
        times = sorted(itertools.chain(*case.rounds))
        ratios = [of(mine, 0.99) / of(base, 0.99) for mine, base in zip(case.rounds, still.rounds, strict=True)]
        share = sum(case.cost) / given.rounds / given.seconds
        callbacks = list(itertools.chain(*case.callbacks))
        wait, longest = wait_ms(callbacks, given.rounds * given.seconds, 0.99), max(callbacks) * 1000
        loop_said = f"   loop {wait:5.2f} ms (longest callback {longest:.1f} ms)" if given.callbacks else ""
        print(
            f"{case.name:28} p50 {of(times, 0.5):7.2f} ms   p99 {of(times, 0.99):7.2f} ms   broker {share:5.1%} of a core{loop_said}   "
            f"p99 to nobody's, by round: median {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--callbacks", action="store_true")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        servers, loops = [], []
        for _ in range(2):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quintet-console-"))
            loop = Loop(Path(folder), given.callbacks)
            loops.append(loop)
            servers.append(stack.enter_context(broker(Path(folder), loop.environment)))
        first, second = (f"blipmq://:dev-key@{server.address[0]}:{server.address[1]}" for server in servers)
        mine, theirs = (f"http://{server.listeners['console']}" for server in servers)
        cases = [Case("nobody looks", "", [], [], []), Case("they look at another broker", theirs, [], [], []),
                 Case(f"{TAILS} tails and a search", mine, [], [], [])]  # fmt: skip
        asyncio.run(measure(first, second, cases, loops[0], servers[0].process.pid, given))


if __name__ == "__main__":
    main()
