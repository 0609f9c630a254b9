"""S6, A10, A12: kills in the middle of transactions, delays, dead-letter replays and idempotent retries.

Run: python tests/crash/transactions.py --kills 200 --seed 1

Five clients work until the broker is killed, at a random time or at a file system call; kills fall into recovery too.
After each restart what is unknown is asked again (a commit is repeated, a message sent again under its number), and the
topics must hold: a committed transaction whole, once, with its offset; any other not at all; every delayed message
exactly once and none before its time; every poison message among the dead letters exactly once until it is replayed,
and then once more in its topic; every idempotent message exactly once. Then a broker that carries out commits
without writing the intent first must be found out.
"""

import argparse
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import load
from tests.crash.brokers import KILL_AFTER, KILL_BEFORE, KILL_TORN, Broker, Launcher
from tests.progress import Progress
from tests.wire.flymq import Client, Closed, Refused

KILLS_PER_DIRECTORY = 10
LOAD_S = (0.05, 0.4)
CALL_WAIT_S = 0.8
RECOVERY_KILLS = 0.3
RECOVERY_S = 0.15
CALLS = {"pwritev": 120, "fdatasync": 120, "fsync": 6, "rename": 4, "open": 8}
TOPICS = ("left", "right", "third")
PARTITIONS = 3
DELAY_MS = (20, 400)
DELAY_LATE_S = 10.0  # a delayed message that is not there by then, with the broker up all the time, is lost
PRODUCER = 0x5EED
JOIN_S = 30.0


@dataclass
class Counts:
    """What the campaign saw, and what it must never see."""

    committed: int = 0
    unknown: int = 0
    rolled_back: int = 0
    delayed: int = 0
    replayed: int = 0
    idempotent: int = 0
    torn: int = 0
    lost: int = 0
    doubled: int = 0
    phantom: int = 0
    early: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        return bool(self.torn or self.lost or self.doubled or self.phantom or self.early)


@dataclass
class Story:
    """What the clients of one data directory did, and what they were told."""

    # transaction number -> (id, values, outcome), outcome: open, sent (commit asked, no answer), yes, no
    transactions: dict[int, tuple[str, list[bytes], str]] = field(default_factory=dict)
    offsets: dict[int, tuple[str, int]] = field(
        default_factory=dict
    )  # transaction number -> group, offset in "numbered"
    delayed: dict[bytes, int] = field(default_factory=dict)  # value -> due, in microseconds; answered
    delayed_asked: set[bytes] = field(default_factory=set)
    seen_early: list[bytes] = field(default_factory=list)
    poison: dict[bytes, str] = field(default_factory=dict)  # value -> made, asked, dead, replaying, replayed
    sent: list[bytes] = field(default_factory=list)  # idempotent values by sequence
    confirmed: int = 0
    problems: list[str] = field(default_factory=list)
    number: int = 0


class Clients:
    """Threads that work until the broker is gone, or until they are stopped."""

    pause_s: ClassVar[float] = 0.0  # between two turns of a client, so that many of them share a small machine

    def __init__(self, story: Story, address: str, seed: int) -> None:
        self._story = story
        self._address = address
        self._lock = threading.Lock()
        self._stop = threading.Event()
        work = (self._transact, self._transact, self._delay, self._watch, self._poison, self._count_up)
        self._threads = [
            threading.Thread(
                target=self._guard, args=(one, random.Random(seed + number)), name=f"client-{number}", daemon=True
            )
            for number, one in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Nothing new is begun; does not wait."""
        self._stop.set()

    def stop(self, join_s: float = JOIN_S) -> None:
        """Nothing new is begun; returns when all that was asked is answered, or the broker is gone."""
        self._stop.set()
        self.join(join_s)

    def join(self, join_s: float = JOIN_S) -> None:
        for thread in self._threads:
            thread.join(join_s)
            assert not thread.is_alive(), "a client hangs"

    def _guard(self, work: Callable[[Client, random.Random], None], chance: random.Random) -> None:
        try:
            with Client(self._address).login() as wire:
                while not self._stop.wait(self.pause_s):
                    work(wire, chance)
        except Closed:
            return
        except (Refused, AssertionError) as error:
            self._story.problems.append(f"{work.__name__}: {error!r}")

    def _transact(self, wire: Client, chance: random.Random) -> None:
        story = self._story
        with self._lock:
            story.number += 1
            number = story.number
        id = wire.begin()
        count = chance.randint(2, 12)
        values = [f"T{number}:{place}/{count}".encode() for place in range(count)]
        story.transactions[number] = (id, values, "open")
        for value in values:
            wire.txn_produce(id, chance.choice(TOPICS), value, chance.randrange(PARTITIONS))
        group, offset = threading.current_thread().name, story.confirmed
        wire.txn_offset(id, "numbered", group, 0, offset)
        story.offsets[number] = (group, offset)
        fate = chance.random()
        if fate < 0.15:
            wire.rollback(id)
            story.transactions[number] = (id, values, "no")
        elif fate > 0.25:
            story.transactions[number] = (id, values, "sent")
            wire.commit(id)
            story.transactions[number] = (id, values, "yes")

    def _delay(self, wire: Client, chance: random.Random) -> None:
        story = self._story
        with self._lock:
            story.number += 1
            value = f"D{story.number}".encode()
        delay = chance.randint(*DELAY_MS)
        story.delayed_asked.add(value)
        asked = time.time_ns() // 1000
        wire.delayed("later", value, delay)
        story.delayed[value] = asked + delay * 1000

    def _watch(self, wire: Client, _chance: random.Random) -> None:
        """Whoever reads a delayed message before its time has seen it early; unanswered ones have no known time."""
        for value in wire.everything("later"):
            due = self._story.delayed.get(value)
            if due is not None and time.time_ns() // 1000 < due:
                self._story.seen_early.append(value)
        time.sleep(0.02)

    def _poison(self, wire: Client, chance: random.Random) -> None:
        story = self._story
        with self._lock:
            story.number += 1
            value = f"P{story.number}".encode()
        story.poison[value] = "unknown"
        offset = wire.produce("work", value, 0)
        story.poison[value] = "made"
        if chance.random() < 0.2:
            return
        story.poison[value] = "asked"
        wire.dead_letter("work", 0, offset)
        story.poison[value] = "dead"
        id = wire.dead_letters("work").get(value)
        assert id is not None, f"{value!r} is not among the dead letters"
        if chance.random() < 0.7:
            story.poison[value] = "replaying"
            wire.replay("work", id)
            story.poison[value] = "replayed"

    def _count_up(self, wire: Client, _chance: random.Random) -> None:
        story = self._story
        while story.confirmed < len(story.sent):  # unanswered before the kill: the same again, under the same number
            wire.produce("numbered", story.sent[story.confirmed], 0, PRODUCER, story.confirmed)
            story.confirmed += 1
        value = f"N{len(story.sent)}".encode()
        story.sent.append(value)
        wire.produce("numbered", value, 0, PRODUCER, len(story.sent) - 1)
        story.confirmed = len(story.sent)


class Judge:
    """Asks a broker for all that its clients did; what was not answered is settled here. `counts` has what it found."""

    def __init__(self) -> None:
        self.counts = Counts()

    def _note(self, kind: str, text: str) -> None:
        setattr(self.counts, kind, getattr(self.counts, kind) + 1)
        self.counts.notes.append(f"{kind}: {text}")

    def judge(self, story: Story, address: str) -> None:
        for problem in story.problems:
            self._note("phantom", problem)
        with Client(address).login() as wire:
            self._judge_transactions(story, wire)
            self._judge_delayed(story, wire)
            self._judge_poison(story, wire)
            self._judge_numbered(story, wire)

    def _judge_transactions(self, story: Story, wire: Client) -> None:
        for number, (id, values, outcome) in list(story.transactions.items()):
            if outcome == "sent":
                self.counts.unknown += 1
                try:
                    wire.commit(id)
                    outcome = "yes"
                except Refused:
                    outcome = "no"
                story.transactions[number] = (id, values, outcome)
        found = Counter(value for topic in TOPICS for value in wire.everything(topic))
        for number, (_, values, outcome) in story.transactions.items():
            seen = [found.pop(value, 0) for value in values]
            if any(count > 1 for count in seen):
                self._note("doubled", f"transaction {number}: {seen}")
            elif any(seen) and not all(seen):
                self._note("torn", f"transaction {number} ({outcome}): {seen}")
            elif outcome == "yes" and not any(seen):
                self._note("lost", f"transaction {number}")
            elif outcome != "yes" and any(seen):
                self._note("phantom", f"transaction {number} was not committed ({outcome})")
        for value in found:
            self._note("phantom", f"{value!r} was never produced")
        wanted: dict[str, int] = {}
        for number, (group, offset) in story.offsets.items():
            if story.transactions[number][2] == "yes":
                wanted[group] = offset
        for group, offset in wanted.items():
            committed = wire.committed("numbered", group, 0)
            if committed != offset:
                self._note("torn", f"group {group} is at {committed}, its last transaction left it at {offset}")

    def _judge_delayed(self, story: Story, wire: Client) -> None:
        until = time.monotonic() + DELAY_LATE_S
        while True:
            found = Counter(wire.everything("later"))
            missing = [value for value in story.delayed if not found[value]]
            if not missing or time.monotonic() > until:
                break
            time.sleep(0.05)
        for value in missing:
            self._note("lost", f"delayed {value!r}")
        for value, count in found.items():
            if count > 1:
                self._note("doubled", f"delayed {value!r}: {count}")
            if value not in story.delayed_asked:
                self._note("phantom", f"delayed {value!r}")
        for value in story.seen_early:
            self._note("early", f"{value!r}")

    def _judge_poison(self, story: Story, wire: Client) -> None:
        found = Counter(wire.everything("work"))
        letters = wire.dead_letters("work")
        for value, state in list(story.poison.items()):
            seen, dead = found.pop(value, 0), value in letters
            if state == "unknown":
                state = "made" if seen else "never"
            elif state == "asked":
                state = "dead" if dead else "made"
            elif state == "replaying":
                state = "dead" if dead else "replayed"
            story.poison[value] = state
            wanted = {"never": (0, False), "made": (1, False), "dead": (1, True), "replayed": (2, False)}[state]
            if (seen, dead) != wanted:
                kind = "lost" if (seen, dead) < wanted else "doubled"
                self._note(kind, f"poison {value!r} ({state}): {seen} in the topic, dead letter: {dead}")
        for value in found:
            self._note("phantom", f"poison {value!r}")

    def _judge_numbered(self, story: Story, wire: Client) -> None:
        while story.confirmed < len(story.sent):
            wire.produce("numbered", story.sent[story.confirmed], 0, PRODUCER, story.confirmed)
            story.confirmed += 1
        found = wire.everything("numbered")
        if found != story.sent:
            kind = "doubled" if len(found) > len(story.sent) else "lost"
            place = next((i for i, (a, b) in enumerate(zip(found, story.sent, strict=False)) if a != b), len(found))
            self._note(kind, f"numbered: {len(found)} of {len(story.sent)}, first difference at {place}")

    def total(self, story: Story) -> None:
        counts = self.counts
        outcomes = Counter(outcome for _, _, outcome in story.transactions.values())
        counts.committed += outcomes["yes"]
        counts.rolled_back += outcomes["no"]
        counts.delayed += len(story.delayed)
        counts.replayed += sum(state == "replayed" for state in story.poison.values())
        counts.idempotent += len(story.sent)


class Campaign(Judge):
    """One data directory after another, each killed several times."""

    def __init__(self, launcher: Launcher, folder: Path, seed: int, sabotage: str = "") -> None:
        super().__init__()
        self.kills = self.at_calls = self.in_recovery = 0
        self.seed = seed
        self._chance = random.Random(seed)
        self._launcher = launcher
        self._folder = folder
        self._sabotage = sabotage
        self._directories = 0

    def run(self, kills: int) -> None:
        progress = Progress("kills amid transactions", kills)
        while self.kills < kills and not self.counts.bad:
            self._directory(min(KILLS_PER_DIRECTORY, kills - self.kills))
            progress.at(self.kills, self.counts.bad)

    def _directory(self, kills: int) -> None:
        self._directories += 1
        data = self._folder / f"data-{self._directories}"
        story = Story()
        broker = self._launcher.start(data, sabotage=self._sabotage)
        wire = Client(broker.flymq).login()
        make_topics(wire)
        wire.close()
        before = self.kills
        while self.kills - before < kills and not self.counts.bad:
            self._kill(story, data, broker)
            while self._chance.random() < RECOVERY_KILLS:
                self._kill_recovery(data)
            broker = self._launcher.start(data, sabotage=self._sabotage)
            self.judge(story, broker.flymq)
        self.total(story)
        broker.end()
        if self.counts.bad:
            load.say(failed=str(data), seed=self.seed, notes=self.counts.notes[:6])
        else:
            shutil.rmtree(data)

    def _kill(self, story: Story, data: Path, broker: Broker) -> None:
        plan = self._launcher.plan
        clients = Clients(story, broker.flymq, self._chance.getrandbits(32))
        if plan is not None and self._chance.random() < 0.6:
            call = self._chance.choice(list(CALLS))
            action = self._chance.choice((KILL_BEFORE, KILL_AFTER, KILL_TORN if call == "pwritev" else KILL_AFTER))
            plan.arm(data, (call,), action, self._chance.randint(1, CALLS[call]))
            self.at_calls += broker.wait(CALL_WAIT_S)
        else:
            time.sleep(self._chance.uniform(*LOAD_S))
        broker.end()
        clients.join()
        if plan is not None:
            plan.disarm()
        self.kills += 1

    def _kill_recovery(self, data: Path) -> None:
        pid, _, pipe = self._launcher.launch(data, sabotage=self._sabotage)
        broker = Broker(pid, {}, data, 0.0)
        broker.wait(self._chance.uniform(0, RECOVERY_S))
        broker.end()
        os.close(pipe)
        self.kills += 1
        self.in_recovery += 1


def make_topics(wire: Client) -> None:
    for topic, partitions in (*((name, PARTITIONS) for name in TOPICS), ("later", 1), ("work", 1), ("numbered", 1)):
        wire.create(topic, partitions)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--control", type=int, default=20, help="kills of the sabotaged broker after the others")
    chosen = options.parse_args()
    launcher = Launcher()
    started = time.monotonic()
    campaign = Campaign(launcher, launcher.folder, chosen.seed)
    campaign.run(chosen.kills)
    controls = launcher.folder / "control"
    controls.mkdir()
    control = Campaign(launcher, controls, chosen.seed, "no-intents")
    control.run(chosen.control)
    launcher.close()
    good = not campaign.counts.bad and control.counts.bad
    facts = {name: value for name, value in vars(campaign.counts).items() if name != "notes"}
    load.say(
        campaign="transactions", seed=chosen.seed, kills=campaign.kills, at_calls=campaign.at_calls,
        in_recovery=campaign.in_recovery, **facts, control=f"{control.counts.notes[:1]} after {control.kills} kills",
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
