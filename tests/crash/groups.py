"""A11: consumer groups whose members die, freeze, storm in, and whose broker is killed.

Run: python tests/crash/groups.py --rebalances 500 --seed 1

Members (threads, each with a connection of its own) join one group, read their partitions and commit what they read. A
script closes some without a word, freezes some for longer than the group waits, lets crowds join, and kills the broker.
From what members were told it is judged: two members never have a commit of the same partition accepted in the same
generation, accepted generations of a partition never fall, no committed offset falls, and in the end every record was
read and the lag is 0. Then the same with a broker that does not fence, which must be found out.
"""

import argparse
import random
import shutil
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import load
from tests.crash.brokers import Broker, Launcher
from tests.progress import Progress
from tests.wire.flymq import COMMIT, Client, Closed, Refused, text

TOPIC, GROUP = "shared", "readers"
PARTITIONS = 12
SUBSCRIBE = 0x05
TIMEOUT_MS = 1_000  # after which the broker takes a silent member's partitions
HEARTBEAT_S = 0.2
FROZEN_S = 1.6
MEMBERS_MAX = 12
SETTLE_S = 20.0
BROKER_KILLS = 0.06  # share of the script's steps


@dataclass
class Book:
    """What members were told, in the order in which they were told."""

    commits: list[tuple[int, int, int, int]] = field(default_factory=list)  # member, generation, partition, offset
    read: dict[int, int] = field(default_factory=dict)  # partition -> one past the highest offset that was read
    generations: set[int] = field(default_factory=set)
    fenced: int = 0
    problems: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Member(threading.Thread):
    """Joins, reads, commits, until it is told to go or the broker is gone."""

    def __init__(self, number: int, address: str, book: Book) -> None:
        super().__init__(name=f"member-{number}", daemon=True)
        self.number = number
        self.leave = threading.Event()
        self.frozen_until = 0.0
        self._address = address
        self._book = book
        self.start()

    def run(self) -> None:
        try:
            wire = Client(self._address).login()
        except Closed:
            return
        try:
            self._work(wire)
        except Closed:
            return
        except (Refused, AssertionError) as error:
            self._book.problems.append(f"{self.name}: {error!r}")
        finally:
            wire.close()

    def _work(self, wire: Client) -> None:
        generation, places = self._join(wire)
        heard = time.monotonic()
        while not self.leave.is_set():
            if time.monotonic() < self.frozen_until:
                time.sleep(self.frozen_until - time.monotonic())
            elif time.monotonic() - heard > HEARTBEAT_S:
                fresh, found = self._join(wire)
                if fresh != generation:
                    generation, places = fresh, found
                heard = time.monotonic()
            if not self._round(wire, generation, places):
                generation, places = self._join(wire)

    def _round(self, wire: Client, generation: int, places: dict[int, int]) -> bool:
        """One fetch and one commit per partition; False when the broker says that this member is behind the times."""
        for partition, offset in places.items():
            found, following = wire.fetch(TOPIC, partition, offset)
            if found:
                with self._book.lock:
                    self._book.read[partition] = max(self._book.read.get(partition, 0), following)
            if not found or self.leave.is_set():
                continue
            where = text(TOPIC) + text(GROUP) + struct.pack(">iQI", partition, following, generation)
            with self._book.lock:  # so that the book has commits in the order in which they were accepted
                try:
                    wire.request(COMMIT, where)
                except Refused as error:
                    assert "E1321" in str(error), error
                    self._book.fenced += 1
                    return False
                self._book.commits.append((self.number, generation, partition, following))
            places[partition] = following
        time.sleep(0.005)
        return True

    def _join(self, wire: Client) -> tuple[int, dict[int, int]]:
        while True:
            try:
                body = wire.request(SUBSCRIBE, text(TOPIC) + text(GROUP) + struct.pack(">i", -1) + text("commit"))
                break
            except Refused as error:
                assert "E1321" in str(error), error
        generation, count = struct.unpack_from(">II", body, 8)
        self._book.generations.add(generation)
        return generation, {p: o for p, o in struct.iter_unpack(">iQ", body[16 : 16 + 12 * count])}


class Campaign:
    """One broker, one group, and the script that troubles it."""

    def __init__(self, launcher: Launcher, folder: Path, seed: int, sabotage: str = "") -> None:
        self.book = Book()
        self.kills = self.freezes = self.joins = 0
        self.violations: list[str] = []
        self._chance = random.Random(seed)
        self._launcher = launcher
        self._data = folder / "groups"
        self._sabotage = sabotage
        self._members: list[Member] = []
        self._produced = [0] * PARTITIONS

    def run(self, rebalances: int) -> None:
        broker = self._start()
        wire = Client(broker.flymq).login()
        wire.create(TOPIC, PARTITIONS)
        progress = Progress("rebalances", rebalances)
        while len(self.book.generations) < rebalances and not self._broken():
            progress.at(len(self.book.generations))
            self._members = [member for member in self._members if member.is_alive()]
            for partition in range(PARTITIONS):
                wire.produce(TOPIC, b"%d" % self._produced[partition], partition)
                self._produced[partition] += 1
            if self._chance.random() < BROKER_KILLS:
                wire.close()
                broker = self._restart(broker)
                wire = Client(broker.flymq).login()
            self._trouble(broker)
            time.sleep(self._chance.uniform(0, 0.12))
        wire.close()
        if not self._broken():
            self._settle(broker)
        for member in self._members:
            member.leave.set()
        for member in self._members:
            member.join(30)
        broker.end()
        self._judge()

    def _start(self) -> Broker:
        settings = {"QUINTET_DELIVERY__GROUP_TIMEOUT_SECONDS": str(TIMEOUT_MS / 1000)}
        return self._launcher.start(self._data, settings, self._sabotage)

    def _restart(self, broker: Broker) -> Broker:
        broker.end()
        self.kills += 1
        for member in self._members:
            member.join(30)
        self._members = []
        return self._start()

    def _trouble(self, broker: Broker) -> None:
        step = self._chance.random()
        if not self._members or (step < 0.45 and len(self._members) < MEMBERS_MAX):
            for _ in range(self._chance.choice((1, 1, 1, 4))):
                self.joins += 1
                self._members.append(Member(self.joins, broker.flymq, self.book))
        elif step < 0.75:
            self._chance.choice(self._members).leave.set()
        elif step < 0.85:
            self.freezes += 1
            self._chance.choice(self._members).frozen_until = time.monotonic() + FROZEN_S

    def _settle(self, broker: Broker) -> None:
        """Left alone, the group reads everything."""
        self._members.append(Member(self.joins + 1, broker.flymq, self.book))
        until = time.monotonic() + SETTLE_S
        with Client(broker.flymq).login() as wire:
            while time.monotonic() < until:
                lags = [self._produced[p] - wire.committed(TOPIC, GROUP, p) for p in range(PARTITIONS)]
                if not any(lags):
                    return
                time.sleep(0.05)
        self.violations.append(f"the lag does not return to 0: {lags}")

    def _broken(self) -> bool:
        self._judge()
        return bool(self.violations)

    def _judge(self) -> None:
        self.violations = violations(self.book) or self.violations


def violations(book: Book) -> list[str]:
    """What members were told that must not be."""
    owners: dict[tuple[int, int], int] = {}
    last: dict[int, tuple[int, int]] = {}
    found = list(book.problems)
    for member, generation, partition, offset in book.commits:
        if owners.setdefault((generation, partition), member) != member:
            found.append(f"partition {partition} has two owners in generation {generation}")
        before = last.get(partition, (0, 0))
        if generation < before[0]:
            found.append(f"partition {partition}: generation {generation} committed after {before[0]}")
        elif offset < before[1]:
            found.append(f"partition {partition}: offset {offset} committed after {before[1]}")
        last[partition] = (generation, offset)
    return found


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rebalances", type=int, default=500)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    chosen = options.parse_args()
    launcher = Launcher()
    started = time.monotonic()
    campaign = Campaign(launcher, launcher.folder, chosen.seed)
    campaign.run(chosen.rebalances)
    control_folder = launcher.folder / "control"
    control_folder.mkdir()
    control = Campaign(launcher, control_folder, chosen.seed, "no-fence")
    control.run(chosen.rebalances)
    launcher.close()
    good = not campaign.violations and bool(control.violations)
    load.say(
        campaign="groups", seed=chosen.seed, generations=len(campaign.book.generations), joins=campaign.joins,
        freezes=campaign.freezes, broker_kills=campaign.kills, commits=len(campaign.book.commits),
        fenced=campaign.book.fenced, violations=campaign.violations[:5], control=control.violations[:1],
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
