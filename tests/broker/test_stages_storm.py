"""Staged writes in a storm: commits, repetitions, disks that refuse now and then and processes that die, all by seed.

After every restart each batch must be there whole or not at all, once, in order, and there if anybody was told so.
"""

import contextlib
import errno
from random import Random

import pytest

from quintet.broker.atomic import intents
from quintet.broker.atomic import stage_publishing as carry
from quintet.broker.atomic.intents import Intents
from quintet.broker.atomic.stages import ONCE
from quintet.log.base import Partition
from quintet.model.errors import QuintetError
from quintet.testing.sim import SimDisk
from tests.broker.parts import SECOND, Parts, all_rows
from tests.broker.test_stages import QUERY, Answer, Staging

SEEDS = 60
LIVES = 3
STEPS = 6
FAULTS = ("pwritev", "fdatasync", "unlink", "rename", "open", "pread", "fsync_dir")


class Stormy(Staging):
    """Stages get other names after every start, as they do outside of tests."""

    def __init__(self, disk: SimDisk, life: int, time: int = 0) -> None:
        self._life = life
        super().__init__(disk, time=time)

    def _register(self, parts: Parts) -> None:
        self._chance = Random(f"life {self._life}")
        super()._register(parts)


class Storm:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.disk = SimDisk(seed=seed)
        self.parts = Stormy(self.disk, 0)
        self.epoch = 0
        self.sent: dict[bytes, tuple[list[bytes], Answer]] = {}

    def step(self, number: int) -> None:
        chance, parts = self.chance, self.parts
        if chance.random() < 0.5:
            code = chance.choice((errno.ENOSPC, errno.EIO))
            self.disk.fail(chance.choice(FAULTS), chance.randint(1, 25), code, times=chance.randint(1, 3))
        epoch = ONCE if chance.random() < 0.4 else self.epoch
        name = b"once-%d" % number if epoch == ONCE else b"epoch-%d" % epoch
        texts = [[b"%s/%d/%02d" % (name, task, row) for row in range(6)] for task in range(2)]
        found = [parts.stage(epoch, rows) for rows in texts]
        self.sent[name] = ([text for rows in texts for text in rows], parts.commit(epoch, *found))
        self.epoch += epoch != ONCE
        for _ in range(chance.randint(0, 6)):
            parts.scheduler.turn()
        if chance.random() < 0.4:
            parts.commit(epoch, *found)
        if chance.random() < 0.7:
            parts.scheduler.run_until_idle()
        if chance.random() < 0.5:
            parts.advance(chance.choice((50_000, 2 * SECOND)))

    def restart(self, life: int) -> None:
        self.disk.heal()
        self.parts.log.abandon()
        if self.chance.random() < 0.6:
            self.disk.crash(self.chance)
        else:
            self.disk.kill()
        self.parts = Stormy(self.disk, life, time=self.parts.scheduler.now())
        self.parts.advance(3 * SECOND)

    def wrong(self) -> list[str]:
        found, problems = self.parts.texts(), []
        for name, (texts, told) in self.sent.items():
            counts = {found[text] for text in texts}
            if counts not in ({0}, {1}) or (told and told[0][1] is None and counts != {1}):
                problems.append(f"{name.decode()} was told {told} and is there {counts} times")
        for topic in (b"many", b"b"):
            for partition in self.parts.topic(topic).partitions:
                problems += out_of_order(partition)
        if self.parts.intents.unfinished:
            problems.append("something is not finished")
        return problems + [event for event in self.parts.events() if event == "stage_lost"]

    def go_on(self) -> None:
        """The driver begins with the first batch that was not committed; what it says then is new."""
        self.epoch = self.parts.stages.fence("spark", QUERY) + 1
        for name in [name for name in self.sent if name.startswith(b"epoch-") and int(name[6:]) >= self.epoch]:
            del self.sent[name]


def out_of_order(partition: Partition) -> list[str]:
    last: dict[bytes, bytes] = {}
    problems = []
    for row in all_rows(partition):
        text = row[3] or b""
        name = text.partition(b"/")[0]
        if last.get(name, b"") >= text:
            problems.append(f"{text!r} behind {last[name]!r}")
        last[name] = text
    return problems


def storm(seed: int) -> list[str]:
    it = Storm(seed)
    for life in range(LIVES):
        for step in range(STEPS):
            with contextlib.suppress(QuintetError, OSError):  # refused: then it must not be there in part
                it.step(life * STEPS + step)
        it.restart(life + 1)
        problems = it.wrong()
        if problems:
            return problems
        it.go_on()
    return []


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few rows are a long carry-over."""
    monkeypatch.setattr(carry, "WINDOW_BYTES", 900)
    monkeypatch.setattr(carry, "READ_BYTES_MAX", 500)
    monkeypatch.setattr(intents, "NOTE_EVERY_APPENDS", 3)


def test_a_storm_neither_loses_nor_doubles_nor_reorders() -> None:
    assert {seed: found for seed in range(SEEDS) if (found := storm(seed))} == {}


def test_a_restart_that_does_not_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intents, "_present", staticmethod(lambda *_: set()))
    assert any(storm(seed) for seed in range(SEEDS))
