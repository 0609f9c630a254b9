"""S1: what was acknowledged survives SIGKILL. Run: python tests/crash/kill.py --kills 1000 --seed 1 [--strace] [--sabotage]

Kills fall at random times, at a chosen file system call (before it, after it, in the middle of a write) and during
recovery. After each one the directory is read by tests/crash/reader.py before and after the broker recovers it, and the
broker delivers what the consumer had not acknowledged. With --sabotage the broker acknowledges before it writes: then
the run succeeds only if the checker finds the loss.
"""

import argparse
import os
import random
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import load, reader
from tests.crash.brokers import KILL_AFTER, KILL_BEFORE, KILL_TORN, Broker, Launcher
from tests.crash.load import History, Load, Verdict
from tests.progress import Progress

KILLS_PER_DIRECTORY = 8
LOAD_S = (0.01, 0.15)  # until a kill by time
CALL_WAIT_S = 0.5  # until a kill at a call must have happened; after it the kill comes anyway
RECOVERY_KILLS = 0.3  # share of restarts that are killed before they are ready
RECOVERY_S = 0.07
STRACE_SHARE = 0.05
CONTROL_ACKS = 500  # promises the sabotaged broker must have made before it is killed
# How late a call is failed: about as often as it happens in CALL_WAIT_S.
CALLS = {"pwritev": 60, "fdatasync": 40, "fsync": 6, "ftruncate": 4, "rename": 4, "open": 8, "syncfs": 4}
STRACED = {"pwritev2": 20, "fdatasync": 20, "rename": 6, "ftruncate": 6, "fsync": 6}


class Campaign:
    """One data directory after another, each killed several times."""

    def __init__(self, launcher: Launcher, folder: Path, seed: int, strace_share: float = 0.0) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.verdict = Verdict()
        self.kills = self.recovery_kills = self.call_kills = self.strace_kills = self.caught = 0
        self.slowest_start_s = 0.0
        self._launcher = launcher
        self._folder = folder
        self._strace_share = strace_share
        self._directories = 0

    def run(self, kills: int) -> None:
        progress = Progress("kills", kills)
        while self.kills < kills and not self.verdict.bad:
            self._directory(min(KILLS_PER_DIRECTORY, kills - self.kills))
            progress.at(self.kills, self.verdict.bad)

    def _directory(self, kills: int) -> None:
        self._directories += 1
        data = self._folder / f"data-{self._directories}"
        history = History(self.chance.getrandbits(32))
        broker = self._start(data)
        history.subscribe(broker.address)
        before = self.kills
        verdict = Verdict()
        while self.kills - before < kills and not verdict.bad:
            if self.chance.random() < self._strace_share:
                broker.end()
                self._killed_by_strace(history, data)
            else:
                self._kill(history, data, broker)
            verdict, broker = self._recover(history, data)
            self.verdict.add(verdict)
        broker.end()
        self.verdict.acked += len(history.acked)
        if verdict.bad:
            load.keep(data, verdict, seed=self.seed)
        else:
            shutil.rmtree(data)

    def _start(self, data: Path) -> Broker:
        broker = self._launcher.start(data)
        self.slowest_start_s = max(self.slowest_start_s, broker.start_s)
        return broker

    def _kill(self, history: History, data: Path, broker: Broker) -> None:
        plan = self._launcher.plan
        by_call = plan is not None and self.chance.random() < 0.5
        running = Load(history, broker.address)
        if by_call:
            assert plan is not None
            call = self.chance.choice([call for call in CALLS if self._launcher.journal or call != "syncfs"])
            action = self.chance.choice((KILL_BEFORE, KILL_AFTER, KILL_TORN if call == "pwritev" else KILL_AFTER))
            plan.arm(data, (call,), action, self.chance.randint(1, CALLS[call]))
            self.call_kills += broker.wait(CALL_WAIT_S)
        else:
            time.sleep(self.chance.uniform(*LOAD_S))
        broker.end()
        running.join()
        if plan is not None:
            plan.disarm()
        self.kills += 1

    def _killed_by_strace(self, history: History, data: Path) -> None:
        call = self.chance.choice(list(STRACED))
        process, broker = self._launcher.start_traced(
            data, f"{call}:signal=KILL:when={self.chance.randint(1, STRACED[call])}"
        )
        if broker is not None:
            running = Load(history, broker.address)
            self.strace_kills += broker.wait(3 * CALL_WAIT_S)
            os.killpg(process.pid, 9)
            running.join()
            broker.end()
        process.wait()
        self.kills += 1

    def _recover(self, history: History, data: Path) -> tuple[Verdict, Broker]:
        settled = set(history.settled)
        before = reader.read(data)
        while self.chance.random() < RECOVERY_KILLS:
            self._kill_recovery(data)
        broker = self._start(data)
        after = reader.read(data)
        verdict = load.judge(history, after)
        verdict.acked = 0  # counted once per directory
        verdict.add(load.kept(before, after))
        verdict.add(load.delivered_is_on_disk(history.delivered, after))
        verdict.add(load.drain(history, broker.address, after, load.unsettled(after, settled)))
        verdict.hang += len(history.hangs)
        verdict.notes += history.hangs
        return verdict, broker

    def _kill_recovery(self, data: Path) -> None:
        plan = self._launcher.plan
        if plan is not None and self.chance.random() < 0.5:
            plan.arm(
                data,
                (*CALLS, "unlink", "mkdir"),
                self.chance.choice((KILL_BEFORE, KILL_AFTER)),
                self.chance.randint(1, 12),
            )
        pid, _, pipe = self._launcher.launch(data)
        watch = os.pidfd_open(pid)
        broker = Broker(pid, {}, data, 0.0)
        broker.wait(self.chance.uniform(0, RECOVERY_S))
        broker.end()
        os.close(watch)
        os.close(pipe)
        if plan is not None:
            plan.disarm()
        self.kills += 1
        self.recovery_kills += 1


def sabotaged(launcher: Launcher, folder: Path, seed: int, kills: int) -> int:
    """The control: in how many kills was the loss found?"""
    chance = random.Random(seed)
    caught = 0
    for number in range(kills):
        data = folder / f"control-{number}"
        history = History(seed + number)
        broker = launcher.start(data, {"QUINTET_TOPICS__SEGMENT_BYTES": "67108864"}, "ack-early")
        history.subscribe(broker.address)
        running = Load(history, broker.address)
        running.wait_for(CONTROL_ACKS)
        time.sleep(chance.uniform(0, 0.1))
        broker.end()
        running.join()
        caught += load.judge(history, reader.read(data)).lost > 0
        shutil.rmtree(data)
    return caught


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=1000)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument("--strace", action="store_true", help="let some kills come from strace, at a system call")
    options.add_argument("--sabotage", action="store_true", help="acknowledge before writing: must be caught")
    options.add_argument("--control", type=int, default=10, help="kills of the sabotaged broker after the others")
    options.add_argument("--journal", action="store_true", help="everything small by way of the journal")
    chosen = options.parse_args()
    launcher = Launcher(journal=chosen.journal)
    started = time.monotonic()
    campaign = Campaign(launcher, launcher.folder, chosen.seed, STRACE_SHARE if chosen.strace else 0.0)
    controls = chosen.kills if chosen.sabotage else chosen.control
    if not chosen.sabotage:
        campaign.run(chosen.kills)
    caught = sabotaged(launcher, launcher.folder, chosen.seed, controls)
    launcher.close()
    good = not campaign.verdict.bad and caught * 20 >= controls * 19
    load.say(
        campaign="kill", journal=chosen.journal, seed=chosen.seed, kills=campaign.kills, at_calls=campaign.call_kills,
        by_strace=campaign.strace_kills, in_recovery=campaign.recovery_kills, **campaign.verdict.counts(),
        slowest_start_s=round(campaign.slowest_start_s, 3), control=f"{caught} of {controls} sabotaged kills caught",
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
