"""S7 and A8: a failing or full disk. Run: python tests/crash/faults.py --injections 5000 --full-cycles 100 [--sabotage]

An injection makes the Nth call of one kind fail (once, or from then on) in a broker under load, or while it starts:
{EIO, ENOSPC, EDQUOT, EROFS, a short write and then ENOSPC} x {pwritev, write, fdatasync, fsync, ftruncate, rename, open,
unlink, mkdir}. Nothing acknowledged may be lost, nobody may wait in vain, a refused publish is told so, consumers keep
reading, and what is curable heals by itself. A cycle fills a real small disk, frees it, and wants the same. With
--sabotage the broker does not hear the errors of its disk: then the run succeeds only if the checker finds out.
"""

import argparse
import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import load, reader
from tests.crash.brokers import SHORT_ENOSPC, Broker, Launcher, NotStarted, Plan
from tests.crash.load import TOPICS, History, Load, Verdict
from tests.progress import Progress

INJECTIONS_PER_DIRECTORY: Final = 10
FIRE_WAIT_S: Final = 0.4
AFTER_S: Final = 0.05  # the load goes on after a fault
HEAL_S: Final = 10.0  # by when what is curable must be cured; the broker looks for space every second or so
START_SHARE: Final = 0.2
ERRORS: Final = {
    "EIO": errno.EIO,
    "ENOSPC": errno.ENOSPC,
    "EDQUOT": errno.EDQUOT,
    "EROFS": errno.EROFS,
    "short": SHORT_ENOSPC,
}
CALLS: Final = {
    "pwritev": 40,
    "fdatasync": 30,
    "fsync": 6,
    "ftruncate": 4,
    "rename": 4,
    "open": 8,
    "unlink": 2,
    "write": 1,
    "mkdir": 2,
    "syncfs": 4,
}
PREFIX: Final = "durable publish failed: "
DISK_BYTES: Final = 16 * 1024 * 1024
BALLAST_BYTES: Final = 6 * 1024 * 1024
FILL_REFUSALS: Final = 200
FILL_S: Final = 30.0
UNHEARD: Final = 40  # writes the deaf broker loses: by way of the journal each batch is written twice, and one would do


class Fault(NamedTuple):
    """The `when`th call and the `times` - 1 behind it fail; 0 times is for good."""

    call: str
    error: str
    when: int
    times: int

    @property
    def curable(self) -> bool:
        """No space, said by any call but a sync: a later attempt may succeed. A failed sync is never tried again."""
        return self.error in ("ENOSPC", "EDQUOT", "short") and self.call not in (
            "fdatasync",
            "fsync",
            "ftruncate",
            "syncfs",
        )


class Campaign:
    """Injections into one broker after another."""

    def __init__(self, launcher: Launcher, folder: Path, seed: int) -> None:
        assert launcher.plan is not None, "the fault shim needs gcc: apt install gcc"
        self.chance = random.Random(seed)
        self.seed = seed
        self.verdict = Verdict()
        self.injections = self.fired = self.refused = self.healed = self.restarted = self.at_start = (
            self.kept_refused
        ) = 0
        self._launcher = launcher
        self._plan: Plan = launcher.plan
        self._folder = folder
        self._directories = 0

    def run(self, injections: int) -> None:
        progress = Progress("injections", injections)
        while self.injections < injections and not self.verdict.bad:
            self._directory(min(INJECTIONS_PER_DIRECTORY, injections - self.injections))
            progress.at(self.injections, self.verdict.bad)

    def _directory(self, injections: int) -> None:
        self._directories += 1
        data = self._folder / f"data-{self._directories}"
        history = History(self.chance.getrandbits(32))
        broker = self._launcher.start(data)
        history.subscribe(broker.address)
        verdict, there = Verdict(), 0
        for _ in range(injections):
            fault = self._choose()
            if self.chance.random() < START_SHARE:
                broker.end()
                verdict = self._at_start(data, fault)
                broker = self._launcher.start(data)
            else:
                verdict, broker = self._under_load(history, data, broker, fault)
            disk = reader.read(data)
            verdict.add(load.judge(history, disk))
            gone, there = refused_is_gone(history, disk)
            verdict.add(gone)
            verdict.acked = 0  # counted once per directory
            self.injections += 1
            self.verdict.add(verdict)
            if verdict.bad:
                load.keep(data, verdict, seed=self.seed, fault=str(fault), said=broker.said()[-2000:])
                break
        broker.end()
        self.verdict.acked += len(history.acked)
        self.refused += len(history.refused)
        self.kept_refused += there
        if not verdict.bad:
            shutil.rmtree(data)

    def counts(self) -> dict[str, int]:
        names = ("injections", "fired", "at_start", "refused", "healed", "restarted", "kept_refused")
        return {name: getattr(self, name) for name in names}

    def _choose(self) -> Fault:
        call = self.chance.choice([call for call in CALLS if self._launcher.journal or call != "syncfs"])
        error = self.chance.choice([name for name in ERRORS if name != "short" or call == "pwritev"])
        return Fault(call, error, self.chance.randint(1, CALLS[call]), self.chance.choice((1, 1, 3, 0)))

    def _arm(self, data: Path, fault: Fault) -> None:
        self._plan.arm(data, (fault.call,), ERRORS[fault.error], fault.when, fault.times)

    def _under_load(self, history: History, data: Path, broker: Broker, fault: Fault) -> tuple[Verdict, Broker]:
        running = Load(history, broker.address)
        self._arm(data, fault)
        until = time.monotonic() + FIRE_WAIT_S
        while not self._plan.fired and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(AFTER_S)
        running.stop()
        self.fired += bool(self._plan.fired)
        if fault.call == "open":
            self._plan.disarm()  # reading opens files too: it must only go on when they open again
        verdict = still_reads(history, broker, data)
        self._plan.disarm()
        verdict.add(told_clearly(history))
        if not broker.alive():
            verdict.add(Verdict(wrong=1, notes=[f"the broker ended: {broker.said()[-500:]}"]))
        elif not (refusals := heals(history, broker, fault.curable)):
            self.healed += 1
            return verdict, broker
        elif fault.curable:
            verdict.add(Verdict(wrong=1, notes=[f"not cured after {HEAL_S} s: {refusals[0]}"]))
        self.restarted += 1
        broker.end()
        return verdict, self._launcher.start(data)

    def _at_start(self, data: Path, fault: Fault) -> Verdict:
        """A broker that meets the fault while it starts either starts, or says in one line why not."""
        verdict = Verdict()
        self._arm(data, fault._replace(when=self.chance.randint(1, 4)))
        self.at_start += 1
        try:
            self._launcher.start(data).end()
        except NotStarted as error:
            said = str(error).strip()
            lines = [
                line for line in said.splitlines() if '"level": "info"' not in line
            ]  # its log: a journal was replayed
            if len(lines) != 1 or not lines[0].startswith("quintet: "):
                verdict = Verdict(wrong=1, notes=[f"refused to start without one clear line: {said[-900:]}"])
        self.fired += bool(self._plan.fired)
        self._plan.disarm()
        return verdict


# -- judgement ----------------------------------------------------------------------------------------------------------


def still_reads(history: History, broker: Broker, data: Path) -> Verdict:
    """While the fault is there: consumers get what was acknowledged and not yet settled."""
    disk = reader.read(data)
    expected = {
        (topic, offset)
        for topic, offset in load.unsettled(disk, history.settled)
        if load.message_of(history, topic, disk[topic].values[offset]) in history.acked
    }
    return load.drain(history, broker.address, disk, expected)


def told_clearly(history: History) -> Verdict:
    verdict = Verdict(hang=len(history.hangs), notes=list(history.hangs))
    unclear = [text for code, text in history.refused.values() if code != 500 or not text.startswith(PREFIX)]
    if unclear:
        verdict.add(Verdict(wrong=1, notes=[f"unclear refusal: {unclear[0]}"]))
    return verdict


def heals(history: History, broker: Broker, curable: bool) -> list[str]:
    """The refusals of the last probe: none if every topic takes publishes, soon if the fault is curable."""
    until = time.monotonic() + (HEAL_S if curable else 0.0)
    while (refusals := history.probe(broker.address)) and time.monotonic() < until:
        time.sleep(0.1)
    return refusals


def refused_is_gone(history: History, found: dict[str, reader.Found]) -> tuple[Verdict, int]:
    """A refusal that says that nothing was kept is true; others leave it open, and are counted."""
    verdict = Verdict()
    there = 0
    for topic in TOPICS:
        for value in found[topic].values.values() if topic in found else ():
            message = load.message_of(history, topic, value)
            if message is None or (refusal := history.refused.get(message)) is None:
                continue
            there += 1
            if "nothing of it was kept" in refusal[1]:
                verdict.add(Verdict(phantom=1, notes=[f"refused with {refusal[1]!r} and yet there: {message}"]))
    return verdict, there


def control(launcher: Launcher, folder: Path, seed: int) -> bool:
    """A broker that does not hear of failed writes: is the loss found?"""
    assert launcher.plan is not None
    data = folder / f"control-{seed}"
    history = History(seed)
    broker = launcher.start(data, sabotage="deaf")
    history.subscribe(broker.address)
    # Not to small topics: the journal has the beginning of each, and makes good what the deaf broker did not write.
    running = Load(history, broker.address, consume=False, small_share=0)
    running.wait_for(50)
    launcher.plan.arm(data, ("pwritev",), errno.EIO, 1, UNHEARD)
    running.wait_for(200)
    broker.end()
    running.join()
    launcher.plan.disarm()
    verdict = load.judge(history, reader.read(data))
    shutil.rmtree(data)
    return verdict.lost > 0


# -- a full disk --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES, ext4 in a file, or an OSError where that cannot be."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        raise OSError("a small disk needs root and mkfs.ext4")
    image, at = folder / "small.img", folder / "small"
    at.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    for command in (
        ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)],
        ["mount", "-o", "loop", str(image), str(at)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip())
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True)


def full_cycle(launcher: Launcher, folder: Path, seed: int) -> tuple[Verdict, int]:
    """Fill a disk, free some of it, see the broker go on by itself, fill it again, kill, recover: (verdict, refusals)."""
    history = History(seed)
    with small_disk(folder) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(BALLAST_BYTES))
        data = disk / "data"
        broker = launcher.start(data)
        try:
            history.subscribe(broker.address)
            verdict = _fill(history, broker)
            verdict.add(still_reads(history, broker, data))
            ballast.unlink()
            if refusals := heals(history, broker, curable=True):
                verdict.add(Verdict(wrong=1, notes=[f"not resumed {HEAL_S} s after space was freed: {refusals[0]}"]))
            verdict.add(_fill(history, broker))
            verdict.add(told_clearly(history))
        finally:
            broker.end()
        before = reader.read(data)
        try:
            broker = launcher.start(data)
            after = reader.read(data)
            verdict.add(load.drain(history, broker.address, after, load.unsettled(after, history.settled)))
            broker.end()
        except NotStarted as error:
            after = before
            if len(str(error).strip().splitlines()) != 1:
                verdict.add(Verdict(wrong=1, notes=[f"did not start on a full disk without one line: {error}"]))
        verdict.add(load.kept(before, after))
        verdict.add(load.judge(history, after))
        verdict.add(refused_is_gone(history, after)[0])
    return verdict, len(history.refused)


def _fill(history: History, broker: Broker) -> Verdict:
    """Publish until every producer has been refused for a while."""
    already = len(history.refused)
    running = Load(history, broker.address)
    until = time.monotonic() + FILL_S
    while len(history.refused) < already + FILL_REFUSALS and time.monotonic() < until:
        time.sleep(0.01)
    running.stop()
    full = len(history.refused) >= already + FILL_REFUSALS
    return Verdict() if full else Verdict(wrong=1, notes=["the disk was never full: nothing was refused"])


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--injections", type=int, default=5000)
    options.add_argument("--full-cycles", type=int, default=100)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--sabotage", action="store_true", help="only the control: the broker does not hear errors")
    options.add_argument("--control", type=int, default=5, help="injections into the sabotaged broker after the others")
    options.add_argument("--journal", action="store_true", help="everything small by way of the journal")
    chosen = options.parse_args()
    launcher = Launcher(journal=chosen.journal)
    started = time.monotonic()
    campaign = Campaign(launcher, launcher.folder, chosen.seed)
    verdict, cycles, refused = campaign.verdict, 0, 0
    if not chosen.sabotage:
        campaign.run(chosen.injections)
        while cycles < chosen.full_cycles and not verdict.bad:
            found, count = full_cycle(launcher, launcher.folder, chosen.seed + cycles)
            verdict.add(found)
            refused += count
            cycles += 1
    caught = sum(control(launcher, launcher.folder, chosen.seed + number) for number in range(chosen.control))
    launcher.close()
    good = not verdict.bad and caught == chosen.control
    load.say(
        campaign="faults", journal=chosen.journal, seed=chosen.seed, **campaign.counts(), full_cycles=cycles, refused_when_full=refused,
        **verdict.counts(), notes=verdict.notes, control=f"{caught} of {chosen.control} deaf brokers caught",
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
