"""Kills amid FlyMQ producers that spread over many topics, whose partitions are lent to the kernel (ADR 29). Run:

    python tests/crash/spread.py --kills 200 --seed 1

Every connection sends one message to each topic in one write, over and over; one folder's topics have durability `fsync`, the next
one's `os`, whose journal is not synced and must not lose anything to a kill either. After each kill, at a random time or at a file system
call, the folder is read by tests/crash/reader.py as it lies there and once more when a broker has recovered it: what was
answered is there at the offset that was answered, what is there was sent, and nothing is there twice. Then the control: a broker
that acknowledges before it writes must be found out.
"""

import argparse
import random
import shutil
import struct
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import load, reader
from tests.crash.brokers import KILL_AFTER, KILL_BEFORE, KILL_TORN, Broker, Launcher
from tests.progress import Progress
from tests.wire import flymq

TOPICS = 24
CONNECTIONS = 3
KILLS_PER_DIRECTORY = 6
LOAD_S = (0.1, 0.6)
CALL_WAIT_S = 1.0
CONTROL_ACKS = 1_000  # promises the sabotaged broker must have made before it is killed
CALLS = {"pwritev": 400, "fdatasync": 60, "syncfs": 4}  # how late a call is failed
NAMES = [f"spread.{number:02d}" for number in range(TOPICS)]
DURABILITIES = ("fsync", "os")
KEY = "QUINTET_TOPICS__DURABILITY"


class Producers:
    """What was sent and what was answered, over all brokers of one folder."""

    connections = CONNECTIONS

    def __init__(self, seed: int) -> None:
        self.sent: set[bytes] = set()
        self.acked: dict[tuple[str, int], bytes] = {}
        self.refused = 0
        self._chance = random.Random(seed)
        self._round = 0
        self._threads: list[threading.Thread] = []

    def begin(self, address: str) -> None:
        self._threads = [threading.Thread(target=self._run, args=(address, n)) for n in range(self.connections)]
        for thread in self._threads:
            thread.start()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, address: str, number: int) -> None:
        try:
            with flymq.Client(address).login() as client:
                while True:
                    self._send(client, number)
        except (OSError, flymq.Closed, flymq.Hang):
            return

    def _send(self, client: flymq.Client, number: int) -> None:
        self._round += 1
        values = [
            b"%d.%d.%s" % (number, self._round, name.encode()) + b"." * self._chance.randrange(200) for name in NAMES
        ]
        self.sent.update(values)
        client.send(
            b"".join(flymq.produce(name, value, partition=0) for name, value in zip(NAMES, values, strict=True))
        )
        for name, value in zip(NAMES, values, strict=True):
            frame = client.read()
            if frame.code == flymq.ERROR:
                self.refused += 1
                continue
            topic, at = flymq.text_at(frame.payload, 0)
            assert topic == name, "answers come in the order of the requests"
            self.acked[name, struct.unpack_from(">iQ", frame.payload, at)[1]] = value


def judge(history: Producers, found: dict[str, reader.Found]) -> Counter[str]:
    """What is wrong with this folder."""
    wrong: Counter[str] = Counter()
    for (topic, offset), value in history.acked.items():
        if topic not in found or found[topic].values.get(offset) != value:
            wrong["lost"] += 1
    for name in NAMES:
        if name in found:
            values = list(found[name].values.values())
            wrong["twice"] += len(values) - len(set(values))
            wrong["phantoms"] += len(set(values) - history.sent)
            wrong["unsound"] += len(found[name].wrong)
    return +wrong


class Campaign:
    def __init__(self, launcher: Launcher, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.wrong: Counter[str] = Counter()
        self.kills = self.call_kills = self.acked = self.refused = 0
        self._launcher = launcher
        self._folder = folder

    def run(self, kills: int) -> None:
        progress = Progress("kills amid many topics", kills)
        while self.kills < kills and not self.wrong:
            self._directory(min(KILLS_PER_DIRECTORY, kills - self.kills))
            progress.at(self.kills, dict(self.wrong))

    def _directory(self, kills: int) -> None:
        data = self._folder / f"spread-{self.kills}"
        settings = {KEY: DURABILITIES[self.kills // KILLS_PER_DIRECTORY % len(DURABILITIES)]}
        history = Producers(self.chance.getrandbits(32))
        for _ in range(kills):
            broker = self._launcher.start(data, settings)
            self.wrong += judge(history, reader.read(data))
            self._kill(history, data, broker)
            self.wrong += judge(history, reader.read(data))  # as it lies there
        self._launcher.start(data, settings).end()
        self.wrong += judge(history, reader.read(data))
        self.acked += len(history.acked)
        self.refused += history.refused
        if not self.wrong:
            shutil.rmtree(data)

    def _kill(self, history: Producers, data: Path, broker: Broker) -> None:
        plan = self._launcher.plan
        history.begin(broker.flymq)
        if plan is not None and self.chance.random() < 0.5:
            call = self.chance.choice(list(CALLS))
            action = self.chance.choice((KILL_BEFORE, KILL_AFTER, KILL_TORN if call == "pwritev" else KILL_AFTER))
            plan.arm(data, (call,), action, self.chance.randint(1, CALLS[call]))
            self.call_kills += broker.wait(CALL_WAIT_S)
        else:
            time.sleep(self.chance.uniform(*LOAD_S))
        broker.end()
        history.join()
        if plan is not None:
            plan.disarm()
        self.kills += 1


def sabotaged(launcher: Launcher, folder: Path, seed: int, kills: int) -> int:
    """The control: in how many kills was the loss found?"""
    caught = 0
    for number in range(kills):
        data = folder / f"control-{number}"
        history = Producers(seed + number)
        broker = launcher.start(data, {KEY: DURABILITIES[number % len(DURABILITIES)]}, "ack-early")
        history.begin(broker.flymq)
        while len(history.acked) < CONTROL_ACKS and history.running:
            time.sleep(0.02)
        broker.end()
        history.join()
        caught += judge(history, reader.read(data))["lost"] > 0
        shutil.rmtree(data)
    return caught


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--control", type=int, default=4)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--topics", type=int, default=TOPICS, help="with one, a turn has one partition (ADR 51)")
    options.add_argument("--connections", type=int, default=CONNECTIONS, help="with one, every read is alone")
    chosen = options.parse_args()
    del NAMES[chosen.topics :]
    Producers.connections = chosen.connections
    launcher = Launcher()
    started = time.monotonic()
    campaign = Campaign(launcher, launcher.folder, chosen.seed)
    campaign.run(chosen.kills)
    caught = sabotaged(launcher, launcher.folder, chosen.seed, chosen.control)
    launcher.close()
    good = not campaign.wrong and campaign.acked > campaign.kills and caught == chosen.control
    load.say(
        campaign="spread", topics=chosen.topics, connections=chosen.connections, seed=chosen.seed, kills=campaign.kills, at_calls=campaign.call_kills, acked=campaign.acked,
        refused=campaign.refused, wrong=dict(campaign.wrong), control=f"{caught} of {chosen.control} sabotaged kills caught",
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
