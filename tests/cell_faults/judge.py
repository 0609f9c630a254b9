"""What was promised to the clients of a cell, held against what its leader says and what lies on the disks of its nodes.

At the leader, as the crash campaigns do it after a restart: doors_judge.py, felix_judge.py, transactions.py, groups.py; and here:

    staged rows    every committed batch is there whole and once; of one that was not answered all or nothing
    register       no read showed less than was acknowledged before it was asked; no two nodes led at once
    disks          all nodes have the same values and the same last link in every topic that is chained; nothing is torn
    verify         `quintet log verify` and `quintet audit verify` are satisfied with every data directory

A leader may end while it is asked, for a lease may lapse on a busy machine. Then nothing of that look counts, and the next one is
asked; what is lost stays lost.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.cell_faults.clients import STAGED, STAGED_ROWS, Stories
from tests.cell_faults.nodes import Cell, Leaders
from tests.crash import doors_judge, felix_judge, groups, reader, transactions
from tests.crash.brokers import ROOT
from tests.crash.load import TOPICS
from tests.wire.connection import Hang
from tests.wire.flymq import Refused

SAVED_S = 15.0  # a position is saved within 200 ms; a leader that is cut off saves nothing for as long as its lease
SETTLE_S = 30.0  # more than IDLE_S of clients.py
LOOKS_MAX = 12
SAME_S = 120.0  # until a node that was away has read the rest
VERIFY_S = 300
READS_MAX = 5  # of a directory whose tables a node compacts meanwhile
AGAIN_S = 0.5

Disk = dict[str, reader.Found]


def read(folder: Path) -> Disk:
    """What is in a data directory. A node that runs may remove a file while it is read: then it is read again."""
    for left in reversed(range(READS_MAX)):
        try:
            found = reader.read(folder)
            if not left or not any(one.wrong for one in found.values()):
                return found
        except OSError:
            if not left:
                raise
        time.sleep(AGAIN_S)
    raise AssertionError("not reached")


@dataclass
class Found:
    """What a campaign saw, and what must never be."""

    seen: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, kind: str, text: str) -> None:
        self.bad[kind] += 1
        self.notes.append(f"{kind}: {text}")

    def add(self, other: "Found") -> None:
        self.seen += other.seen
        self.bad += other.bad
        self.notes += other.notes


class Writer(Protocol):
    """Somebody whom the end of a load does not stop."""

    paused: bool


class Judge:
    """Of one cell."""

    def __init__(self, cell: Cell, stories: Stories, chance: random.Random) -> None:
        self._cell = cell
        self._stories = stories
        self._chance = chance
        self.found = Found()
        self.looks = 0
        self._epochs: tuple[int, ...] = ()
        self._looked_at = time.monotonic()
        self.writers: list[Writer] = []  # who write through every fault

    def look(self, ended_at: float) -> None:
        """At whoever leads. ended_at: when the last fault began. A lease that lapsed is a fault, too, of which nobody knows when it was:
        since the last look."""
        for _ in range(LOOKS_MAX):
            leaders = self._cell.leaders()
            if leaders.epochs != self._epochs:
                ended_at = min(ended_at, self._looked_at)
            self._keep_problems()
            found = Found()
            try:
                self._ask(leaders, ended_at, found)
            except (ConnectionError, Hang) as error:
                found.note("undelivered", f"n{leaders.home.number}: {error!r}")
            except (Refused, AssertionError) as error:
                found.note("wrong", f"n{leaders.home.number}: {error!r}")
            self.looks += 1
            self._epochs, self._looked_at = leaders.epochs, time.monotonic()
            if not found.bad or self._cell.leaders() == leaders:
                self.found.add(found)
                return
        raise AssertionError(f"no leader lasted for one look of {LOOKS_MAX}: this machine is too busy")

    def _keep_problems(self) -> None:
        """What clients were told and must not have been counts, whoever leads now."""
        stories = self._stories
        for name, problems in (
            ("doors", stories.doors.problems),
            ("felix", stories.doors.felix.problems),
            ("flymq", stories.transactions.problems),
            ("group", stories.book.problems),
            ("blipmq", stories.history.hangs),
            *((register.topic, register.problems) for register in stories.registers),
        ):
            while problems:
                self.found.note("wrong", f"{name}: {problems.pop()}")

    def _ask(self, leaders: Leaders, ended_at: float, found: Found) -> None:
        stories, leader, disk = self._stories, leaders.home, Disk()
        for cell, node in enumerate(leaders.nodes):
            disk |= read(node.data_of(cell))
        doors = doors_judge.Judge(self._chance, SAVED_S)
        doors.judge(stories.doors, stories.history, leader.at, None, disk, set(stories.history.settled), ended_at)
        felix_judge.judge(
            stories.doors.felix,
            stories.felix(leader.at),
            disk,
            ended_at,
            SAVED_S,
            found.note,
            SETTLE_S,
        )
        amid = transactions.Judge()
        amid.judge(stories.transactions, leader.at.flymq)
        for note in (*doors.counts.notes, *amid.counts.notes):
            found.note(*note.split(": ", 1))
        for violation in groups.violations(stories.book):
            found.note("group", violation)
        self._judge_staged(disk, found)

    def _judge_staged(self, disk: Disk, found: Found) -> None:
        stages = self._stories.stages
        rows = Counter(disk[STAGED].values.values()) if STAGED in disk else Counter[bytes]()
        for number in range(stages.attempted):
            seen = {rows.pop(b"%d/%d" % (number, row), 0) for row in range(STAGED_ROWS)}
            if seen == {1} or (seen == {0} and number >= stages.committed):
                continue
            kind = "lost" if seen == {0} else "torn" if 0 in seen else "doubled"
            found.note(
                kind, f"batch {number} of the sink, {stages.committed} are committed: each row {sorted(seen)} times"
            )
        for row in rows:
            found.note("phantom", f"{row[:30]!r} was never staged")

    # -- disks ---------------------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """All nodes run, and nobody writes: sooner or later they have the same."""
        self._pause(True)
        until = time.monotonic() + SAME_S
        while True:
            different, topics = [], set[str]()
            for cell in range(self._cell.cells):
                disks = {node.number: read(node.data_of(cell)) for node in self._cell.nodes.values()}
                different += self._differences(disks)
                topics |= {topic for disk in disks.values() for topic, one in disk.items() if one.link}
            if not all(topic in topics for topic in TOPICS):
                different.append(f"there is only {sorted(topics)[:5]}")
            if not different or time.monotonic() > until:
                break
            time.sleep(1)
        self._pause(False)
        for text in different[:3]:
            self.found.note("different", text)
        self.found.seen["compared"] += 1

    @staticmethod
    def _differences(disks: dict[int, Disk]) -> list[str]:
        first, *others = disks
        found = [
            f"n{number}, {topic}: {text}"
            for number, disk in disks.items()
            for topic, one in disk.items()
            for text in (*one.wrong, *one.torn)
        ]
        wanted = {topic: (one.values, one.link) for topic, one in disks[first].items() if one.link}
        for number in others:
            there = {topic: (one.values, one.link) for topic, one in disks[number].items() if one.link}
            for topic in sorted(wanted.keys() | there.keys()):
                if topic.startswith("internal ") or wanted.get(topic) == there.get(topic):
                    continue
                lengths = [len(each[topic][0]) if topic in each else -1 for each in (wanted, there)]
                found.append(f"{topic} of n{first} and n{number} differ: {lengths} values")
        return found

    def _pause(self, paused: bool) -> None:
        for writer in self.writers:
            writer.paused = paused

    def verify(self) -> None:
        """The directories, when nobody runs on them."""
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        folders = [(node, node.data_of(cell)) for node in self._cell.nodes.values() for cell in range(node.cells)]
        for node, folder in folders:
            for kind in (("audit", "verify", "--data"), ("log", "verify")):
                command = [sys.executable, "-m", "quintet", *kind, str(folder)]
                run = subprocess.run(
                    command, capture_output=True, text=True, check=False, env=environment, timeout=VERIFY_S
                )
                self.found.seen["verified"] += 1
                if run.returncode:
                    said = (run.stdout + run.stderr)[-300:]
                    self.found.note("verify", f"n{node.number}, {kind[0]} verify says {run.returncode}: {said}")

    def total(self) -> None:
        """What there was to be lost."""
        stories, seen = self._stories, self.found.seen
        seen["blipmq"] += len(stories.history.acked)
        seen["fast"] += sum(len(queue.acked) for queue in stories.doors.queues)
        seen["peerbus"] += sum(mailbox.promised for mailbox in stories.doors.peers.values())
        seen["felix"] += len(stories.doors.felix.published.acked)
        seen["cache"] += stories.doors.felix.changes + stories.doors.felix.increments
        seen["transactions"] += sum(outcome == "yes" for _, _, outcome in stories.transactions.transactions.values())
        seen["flymq"] += stories.transactions.confirmed + len(stories.transactions.delayed)
        seen["flymq"] += sum(register.length for register in stories.registers)
        seen["group_commits"] += len(stories.book.commits)
        seen["staged_batches"] += stories.stages.committed
        seen["reads"] += sum(register.reads for register in stories.registers)
        seen["owner_looks"] += stories.looks
        seen["judged"] += self.looks
