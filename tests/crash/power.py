"""S2: what was acknowledged survives a power cut. Run as root: python tests/crash/power.py --cuts 1000 [--sabotage]

    sparse file -> XFS with reflink -> disk.img -> ext4 -> broker
    cut: cp --reflink=always disk.img crash.img, while the load runs: the disk as it is at one instant, page cache lost
    then: mount crash.img (ext4 replays its journal), read it, let a broker recover it, read it again, drain it

The list of promises is taken before the cut. The clone models a device that keeps the order of flushes; a volatile
device cache is beyond it. With --sabotage no-fsync the broker never syncs: the run succeeds only if the checker finds a
loss in at least 95 % of the cuts.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import load, reader
from tests.crash.brokers import Launcher
from tests.crash.load import History, Load, Verdict
from tests.progress import Progress

CUTS_PER_DIRECTORY: Final = 8
LOAD_S: Final = (0.02, 0.12)
RESTART_SHARE: Final = 0.3  # of cuts that follow a kill and a restart
ACKS_MIN: Final = 50  # new promises before each cut, however slow the machine is
OUTER_BYTES: Final = "2G"
INNER_BYTES: Final = "160M"
SABOTAGES: Final = ("none", "no-fsync")


class Unable(Exception):
    """This machine cannot cut its own power. The text says why and what would help."""


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unable(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


class Promised(NamedTuple):
    """What the broker had said at the instant of a cut: to producers and to the consumer, and by the consumer."""

    acked: set[load.Message]
    delivered: dict[load.Place, bytes]
    settled: set[load.Place]


class Bench:
    """The stack of file systems. `cut` gives a mounted disk as it would be after the power came back."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            raise Unable("mounting needs root")
        for tool, package in (("losetup", "mount"), ("mkfs.xfs", "xfsprogs"), ("mkfs.ext4", "e2fsprogs")):
            if shutil.which(tool) is None:
                raise Unable(f"{tool} is missing: apt install {package}")
        self.folder = folder
        self.outer, self.live, self.after = (folder / name for name in ("outer", "live", "after"))
        for path in (self.outer, self.live, self.after):
            path.mkdir()
        self._mounted: list[Path] = []
        try:
            run("truncate", "-s", OUTER_BYTES, folder / "xfs.img")
            run("mkfs.xfs", "-q", "-m", "reflink=1", folder / "xfs.img")
            self._mount(folder / "xfs.img", self.outer)
            run("truncate", "-s", INNER_BYTES, self.outer / "disk.img")
            run("mkfs.ext4", "-q", self.outer / "disk.img")
            self._mount(self.outer / "disk.img", self.live)
        except Unable:
            self.close()
            raise

    def _mount(self, image: Path, at: Path) -> None:
        run("mount", "-o", "loop", image, at)
        self._mounted.append(at)

    def cut(self) -> Path:
        run("cp", "--reflink=always", self.outer / "disk.img", self.outer / "crash.img")
        return self.outer / "crash.img"

    def power_on(self) -> None:
        self._mount(self.outer / "crash.img", self.after)

    def discard(self) -> None:
        self._unmount(self.after)
        (self.outer / "crash.img").unlink()

    def _unmount(self, at: Path) -> None:
        run("umount", at)
        self._mounted.remove(at)

    def close(self) -> None:
        for at in reversed(self._mounted):
            # Lazily: a network namespace that somebody made meanwhile (tests/cell_faults) has a copy of every mount and keeps it busy.
            subprocess.run(["umount", "--lazy", at], check=False)
        self._mounted.clear()


class Campaign:
    """Cuts one running broker's power again and again: the broker lives on, its clones are judged."""

    def __init__(self, launcher: Launcher, bench: Bench, seed: int, sabotage: str = "") -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.verdict = Verdict()
        self.cuts = self.with_loss = self.acked = self.restarts = 0
        self._launcher = launcher
        self._bench = bench
        self._sabotage = sabotage
        self._directories = 0

    def run(self, cuts: int) -> None:
        progress = Progress("cuts", cuts)
        while self.cuts < cuts and (self._sabotage or not self.verdict.bad):
            self._directory(min(CUTS_PER_DIRECTORY, cuts - self.cuts))
            progress.at(self.cuts, self.verdict.bad)

    def _directory(self, cuts: int) -> None:
        self._directories += 1
        name = f"{self._sabotage or 'data'}-{self._directories}"
        data = self._bench.live / name
        history = History(self.chance.getrandbits(32))
        broker = self._launcher.start(data, sabotage=self._sabotage)
        history.subscribe(broker.address)
        for _ in range(cuts):
            if self.chance.random() < RESTART_SHARE:
                # What a killed broker left in the page cache only is served again by the next one: is it synced by then?
                broker.end()
                broker = self._launcher.start(data, sabotage=self._sabotage)
                self.restarts += 1
            running = Load(history, broker.address)
            running.wait_for(ACKS_MIN)
            time.sleep(self.chance.uniform(*LOAD_S))
            acked, seen = set(history.acked), dict(history.delivered)
            self._bench.cut()
            settled = set(history.settled)  # after the cut: these may or may not be settled on the clone
            running.stop()
            verdict = self._judge(history, Promised(acked, seen, settled), name)
            verdict.hang += len(history.hangs)
            verdict.notes += history.hangs
            self.verdict.add(verdict)
            self.cuts += 1
            self.with_loss += verdict.lost > 0
            if verdict.bad and not self._sabotage:
                load.keep(self._bench.outer / "crash.img", verdict, seed=self.seed)
                break
            self._bench.discard()
        self.acked += len(history.acked)
        broker.end()
        shutil.rmtree(data)

    def _judge(self, history: History, promised: Promised, name: str) -> Verdict:
        self._bench.power_on()
        data = self._bench.after / name
        before = reader.read(data)
        if self._sabotage:
            return load.judge(history, before, promised.acked)
        broker = self._launcher.start(data)
        after = reader.read(data)
        verdict = load.judge(history, after, promised.acked)
        verdict.add(load.kept(before, after))
        verdict.add(load.delivered_is_on_disk(promised.delivered, after))
        verdict.add(
            load.drain(_copy_for_clone(history), broker.address, after, load.unsettled(after, promised.settled))
        )
        broker.end()
        return verdict


def _copy_for_clone(history: History) -> History:
    """What is delivered and acknowledged on the clone is no part of the living broker's history."""
    clone = History(0)
    clone.subscriptions = history.subscriptions
    return clone


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cuts", type=int, default=1000)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--sabotage", choices=SABOTAGES, default="none", help="must be caught")
    options.add_argument("--control", type=int, default=20, help="cuts of the sabotaged broker after the others")
    options.add_argument("--journal", action="store_true", help="everything small by way of the journal")
    chosen = options.parse_args()
    launcher = Launcher(journal=chosen.journal)
    started = time.monotonic()
    try:
        bench = Bench(launcher.folder)
    except Unable as error:
        sys.stderr.write(f"power: cannot run here: {error}\n")
        return 2
    campaign = Campaign(launcher, bench, chosen.seed)
    control = Campaign(launcher, bench, chosen.seed + 1, "no-fsync")
    try:
        if chosen.sabotage == "none":
            campaign.run(chosen.cuts)
        if not campaign.verdict.bad:
            control.run(chosen.control if chosen.sabotage == "none" else chosen.cuts)
    finally:
        launcher.close()
        if not campaign.verdict.bad:
            bench.close()
    good = not campaign.verdict.bad and control.with_loss * 100 >= control.cuts * 95
    load.say(
        campaign="power", journal=chosen.journal, seed=chosen.seed, cuts=campaign.cuts, after_restart=campaign.restarts, acked_in_all=campaign.acked, **campaign.verdict.counts(),
        control=f"{control.with_loss} of {control.cuts} cuts without fsync lost something",
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
