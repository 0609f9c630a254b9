"""Backups made amid clients on all doors, then kill -9. Run: python tests/crash/backup.py --backups 50 --seed 1

Of each backup, restored into a folder of its own:

    acknowledged before it began    all there, on the Fast, BlipMQ, Felix and peerbus doors
    nothing else                    every record was sent, as it is, once, in its sender's order
    the folder                      reads as sound by tests/crash/reader.py, `audit verify` says 0, and a broker starts in it

Beside each one a sabotaged backup is made, which leaves out what was appended last: it must be found out.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from quintet.cli.folder.stores import FolderStore
from quintet.log.embedded.backup import create as creating
from quintet.log.embedded.backup import cut, restore
from quintet.log.embedded.backup import manifest as manifests
from quintet.log.embedded.files.disk import OsDisk
from tests.crash import doors, doors_judge, load, reader
from tests.crash.brokers import Broker, Launcher, NotStarted
from tests.crash.doors_load import JOIN_S, Clients, Story
from tests.crash.doors_load import payload as fast_payload
from tests.crash.felix_load import TOPIC as FELIX_TOPIC
from tests.crash.felix_load import FelixClients
from tests.crash.felix_load import payload as felix_payload
from tests.crash.load import History, Load

PER_DIRECTORY = 5
LOAD_S = (0.1, 0.5)
CLOCKS = cut.Clocks(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000, time.sleep)


@dataclass
class Promised:
    """What was acknowledged when a backup began."""

    fast: dict[str, set[int]]
    blipmq: set[load.Message]
    felix: set[int]
    letters: dict[str, int]  # by sender

    @property
    def count(self) -> int:
        return sum(map(len, self.fast.values())) + len(self.blipmq) + len(self.felix) + sum(self.letters.values())


def promised(story: Story, history: History) -> Promised:
    """Copied while the clients go on: a set's own copy does not let another thread in."""
    return Promised(
        {queue.name: queue.acked.copy() for queue in story.queues},
        history.acked.copy(),
        story.felix.published.acked.copy(),
        {name: mailbox.promised for name, mailbox in story.peers.items()},
    )


class LeavesOut(cut.Snapshot):
    """The sabotage: what was appended last is not seen, whatever its date."""

    def __enter__(self) -> "LeavesOut":
        super().__enter__()
        self.cut = 0
        for pinned in self.partitions.values():
            pinned.seen = 0 if pinned.topic_id < reader.FIRST_USER_TOPIC else pinned.seen // 2
        return self


@dataclass
class Campaign:
    launcher: Launcher
    folder: Path
    seed: int
    backups: int = 0
    caught: int = 0  # sabotaged backups
    acked: int = 0
    bad: list[str] = field(default_factory=list)

    def run(self, backups: int) -> None:
        chance = random.Random(self.seed)
        while self.backups < backups and not self.bad:
            data = self.folder / f"data-{self.backups}"
            story, history = Story(), History(chance.getrandbits(32))
            broker = self.launcher.start(data, doors.SETTINGS)
            history.subscribe(broker.address)
            doors.meet(story, doors_judge.doors_of(broker))
            for _ in range(min(PER_DIRECTORY, backups - self.backups)):
                known = self._round(chance, story, history, data, broker)
                self.bad = self._judge("honest", known, story, history)
                self.caught += bool(self._judge("sabotaged", known, story, history))
                if self.bad:
                    load.say(failed=str(data), seed=self.seed, notes=self.bad[:5])
                    return
                broker = self.launcher.start(data, doors.SETTINGS)
                _settle(story, data)
            broker.end()
            shutil.rmtree(data)

    def _round(self, chance: random.Random, story: Story, history: History, data: Path, broker: Broker) -> Promised:
        """Clients on all doors, an honest backup and a sabotaged one, and a kill."""
        felix = FelixClients(story.felix, doors.felix_of(broker, data), chance.getrandbits(32))
        clients = Clients(story, doors_judge.doors_of(broker), chance.getrandbits(32))
        blip = Load(history, broker.address)
        time.sleep(chance.uniform(*LOAD_S))
        known = promised(story, history)
        id = f"{self.backups:06d}-{chance.getrandbits(24):06x}"
        creating.create(data, self._store("honest"), OsDisk(), CLOCKS, id)
        creating.create(data, self._store("sabotaged"), OsDisk(), CLOCKS, id, snapshots=LeavesOut)
        broker.end()
        felix.stop(JOIN_S)
        clients.stop()
        blip.join()
        self.backups += 1
        self.acked += known.count
        return known

    def _store(self, kind: str) -> FolderStore:
        return FolderStore(self.folder / kind)

    def _judge(self, kind: str, known: Promised, story: Story, history: History) -> list[str]:
        """What is wrong with the newest backup."""
        store, target = self._store(kind), self.folder / "restored"
        made = manifests.load(store, manifests.complete(store)[-1])
        restore.restore(store, made, target, OsDisk())
        restore.finish(OsDisk(), made, target)
        found = reader.read(target)
        bad = [f"{topic}: {what}" for topic, one in found.items() for what in one.wrong]
        bad += [f"the source is damaged: {what}" for what in made.damaged]
        for name, numbers in known.fast.items():
            bad += _compare(name, numbers, found, fast_payload)
        bad += _compare(FELIX_TOPIC, known.felix, found, felix_payload)
        for mailbox in story.peers.values():
            wanted = known.letters[story.before(mailbox).name]
            there = len(found[f"peerbus/{mailbox.name}"].values) if f"peerbus/{mailbox.name}" in found else 0
            if there < wanted:
                bad.append(f"{mailbox.name} has {there} of {wanted} letters behind a barrier")
        everything, history.acked = history.acked, known.blipmq
        verdict = load.judge(history, load.topics_of(found))
        history.acked = everything
        bad += verdict.notes if verdict.bad else []
        if not bad:
            bad += self._start(target)
        shutil.rmtree(target)
        return bad

    def _start(self, target: Path) -> list[str]:
        code, said = doors.start_verify(self.launcher, target).finish()
        try:
            self.launcher.start(target, doors.SETTINGS).end()
        except NotStarted as error:
            return [f"a broker does not start with it: {error}"]
        wrong = [f"{topic}: {what}" for topic, one in reader.read(target).items() for what in one.wrong]
        return wrong + ([f"audit verify: {said}"] if code else [])


def _settle(story: Story, data: Path) -> None:
    """After a restart, as doors.py does: letters that are not there are sent again, and keys are asked for."""
    after = reader.read(data)
    for mailbox in story.peers.values():
        found = after.get(f"peerbus/{mailbox.name}")
        sender = story.before(mailbox)
        sender.stored = len(found.values) if found is not None else 0
        sender.missing = list(range(sender.stored, sender.sent))
    for queue in story.queues:
        if queue.asked:  # whether the rotation happened is not this campaign's question
            queue.made, queue.asked = False, ""


def _compare(topic: str, numbers: set[int], found: doors_judge.Disk, payload: Callable[[int], bytes]) -> list[str]:
    values = list(found[topic].values.values()) if topic in found else []
    there = [int(value.partition(b":")[0]) for value in values]
    bad = []
    if lost := sorted(numbers - set(there)):
        bad.append(f"{topic}: {len(lost)} acknowledged before the backup are not in it, the first is {lost[0]}")
    if there != sorted(set(there)):
        bad.append(f"{topic}: not in order, or twice")
    if any(payload(number) != value for number, value in zip(there, values, strict=True)):
        bad.append(f"{topic}: a record differs from what was sent")
    return bad


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--backups", type=int, default=50)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = options.parse_args()
    launcher = Launcher()
    with tempfile.TemporaryDirectory(prefix="quintet-backups-") as folder:
        try:
            campaign = Campaign(launcher, Path(folder), given.seed)
            campaign.run(given.backups)
        finally:
            launcher.close()
    facts = {"backups": campaign.backups, "acked": campaign.acked, "caught": campaign.caught}
    load.say(seed=given.seed, **facts, bad=campaign.bad[:5])
    return bool(campaign.bad) or campaign.caught < campaign.backups


if __name__ == "__main__":
    sys.exit(main())
