"""A2, A3, A13: kills amid Fast, peerbus, Felix and BlipMQ clients, and the audit verified. Run: python tests/crash/doors.py --kills 60

Kills fall at random times, at file system calls and into recovery. After each restart:

    Fast       every publish answered with OK is in its topic, once, in order; one with a rotated key is not; a key whose
               rotation was answered is the key, and all before it are refused; an unanswered one is either
    peerbus    what was sent before a `peers` that was answered is in the mailbox; what was delivered is, too (that record
               is the audit's `send`), as it was sent, once, in its sender's order; what was not acknowledged is delivered
               again with the next register; what was acknowledged SAVED_S before the kill is not; an id that was used
               is never taken again; a name stays its owner's
    Felix      felix_judge.py says it: streams, a durable subscriber, a group, a cache with versions and increments
    BlipMQ     as in kill.py
    audit      `quintet audit verify` says 0, beside the running broker and of a directory that nobody has recovered

At the end everything that was ever sent is there once and the backlog of each Fast topic is delivered whole. Then the controls:
brokers that break one promise each must be found out, and `audit verify` must say 1 of a changed byte and of a cut tail.
"""

import argparse
import dataclasses
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import felix_judge, load, reader, tamper
from tests.crash.brokers import KILL_AFTER, KILL_BEFORE, KILL_TORN, Broker, Command, Launcher, NotStarted
from tests.crash.doors_judge import QUIET_S, SAVED_S, Judge, doors_of
from tests.crash.doors_load import (
    JOIN_S,
    Clients,
    Consumer,
    Doors,
    Story,
    letter,
)
from tests.crash.felix_load import FelixClients, FelixDoor
from tests.crash.load import History, Load
from tests.progress import Progress

KILLS_PER_DIRECTORY = 8
LOAD_S = (0.1, 0.6)
CALL_WAIT_S = 0.8
RECOVERY_KILLS = 0.3
RECOVERY_S = 0.15
UNRECOVERED = 0.3  # share of kills after which the audit is verified before a broker has recovered the directory, too
CALLS = {"pwritev": 120, "fdatasync": 80, "fsync": 6, "rename": 4, "open": 8}
SETTINGS = {
    "QUINTET_LISTENERS__FAST__ENABLED": "true",
    "QUINTET_LISTENERS__FAST__PORT": "0",
    "QUINTET_LISTENERS__FAST__AUTH_FAILURES_MAX": "0",
    "QUINTET_LISTENERS__PEERBUS__ENABLED": "true",
    "QUINTET_LISTENERS__PEERBUS__PORT": "0",
    "QUINTET_LISTENERS__PEERBUS_TCP__ENABLED": "true",
    "QUINTET_LISTENERS__PEERBUS_TCP__PORT": "0",
    "QUINTET_LISTENERS__FELIX__ENABLED": "true",
    "QUINTET_LISTENERS__FELIX__PORT": "0",
    "QUINTET_AUDIT__ANCHOR_SECONDS": "1",
}
FELIX_SABOTAGES = ("cache-early", "forget-versions", "count-twice", "settle-early", "commit-nothing")
SABOTAGES = ("ack-early", "forget-ids", "forget-keys", *FELIX_SABOTAGES)
CERTIFICATE = Path("tls") / "felix-certificate.pem"


class Campaign(Judge):
    """One data directory after another, each killed several times."""

    def __init__(self, launcher: Launcher, folder: Path, seed: int, sabotage: str = "", verify: bool = True) -> None:
        """A sabotage of the Felix door alone is looked for there alone."""
        super().__init__(random.Random(seed))
        self.kills = self.at_calls = self.in_recovery = 0
        self.seed = seed
        self._launcher = launcher
        self._folder = folder
        self._sabotage = sabotage
        self._verify = verify
        self._all = sabotage not in FELIX_SABOTAGES
        self._directories = 0
        self._broker: Broker | None = None
        self.last: Path | None = None  # a directory that held, stopped cleanly

    def run(self, kills: int) -> None:
        progress = Progress("kills of the doors", kills)
        try:
            while self.kills < kills and not self.counts.bad:
                self._directory(min(KILLS_PER_DIRECTORY, kills - self.kills))
                progress.at(self.kills, self.counts.bad)
        except NotStarted as refused:
            if not self._sabotage or not self.kills:
                raise
            self.counts.note("lost", f"the sabotaged broker found its own loss and did not start: {refused}"[-300:])
        except BaseException:  # a check that cannot go on leaves no broker behind
            with suppress(OSError):
                if self._broker is not None:
                    self._broker.kill()
            raise

    def _start(self, data: Path) -> Broker:
        self._broker = self._launcher.start(data, SETTINGS, self._sabotage)
        return self._broker

    def _directory(self, kills: int) -> None:
        self._directories += 1
        data = self._folder / f"doors-{self._directories}"
        story, history = Story(), History(self._chance.getrandbits(32))
        broker = self._start(data)
        if self._all:
            history.subscribe(broker.address)
            meet(story, doors_of(broker))
        before = self.kills
        while self.kills - before < kills and not self.counts.bad:
            killed_at = self._kill(story, history, data, broker)
            broker = self._recover(story, history, data, killed_at)
        if not self.counts.bad and self._all:
            self._finish(story, data, broker)
        broker.end()
        self._total(story, history)
        if self.counts.bad:
            load.say(failed=str(data), seed=self.seed, notes=self.counts.notes[:6])
            return
        if self.last is not None:
            shutil.rmtree(self.last)
        self.last = data

    def _kill(self, story: Story, history: History, data: Path, broker: Broker) -> float:
        plan = self._launcher.plan
        felix = FelixClients(story.felix, felix_of(broker, data), self._chance.getrandbits(32))
        clients = Clients(story, doors_of(broker), self._chance.getrandbits(32)) if self._all else None
        blip = Load(history, broker.address) if self._all else None
        if plan is not None and self._chance.random() < 0.4:
            call = self._chance.choice(list(CALLS))
            action = self._chance.choice((KILL_BEFORE, KILL_AFTER, KILL_TORN if call == "pwritev" else KILL_AFTER))
            plan.arm(data, (call,), action, self._chance.randint(1, CALLS[call]))
            self.at_calls += broker.wait(CALL_WAIT_S)
        else:
            time.sleep(self._chance.uniform(*LOAD_S))
        killed_at = time.monotonic()
        broker.end()
        felix.stop(JOIN_S)
        if clients is not None and blip is not None:
            clients.stop()
            blip.join()
        if plan is not None:
            plan.disarm()
        self.kills += 1
        return killed_at

    def _recover(self, story: Story, history: History, data: Path, killed_at: float) -> Broker:
        settled = set(history.settled)
        before = reader.read(data)
        if self._verify and self._chance.random() < UNRECOVERED:
            self._judge_audit(start_verify(self._launcher, data))
        while self._chance.random() < RECOVERY_KILLS:
            pid, _, pipe = self._launcher.launch(data, SETTINGS, self._sabotage)
            dying = Broker(pid, {}, data, 0.0)
            dying.wait(self._chance.uniform(0, RECOVERY_S))
            dying.end()
            os.close(pipe)
            self.kills += 1
            self.in_recovery += 1
        broker = self._start(data)
        after = reader.read(data)
        audit = start_verify(self._launcher, data) if self._verify else None  # beside everything below
        if self._all:
            self.judge(story, history, broker, before, after, settled, killed_at)
        felix_judge.judge(story.felix, felix_of(broker, data), after, killed_at, SAVED_S, self.counts.note)
        if audit is not None:
            self._judge_audit(audit)
        return broker

    def _judge_audit(self, audit: Command) -> None:
        code, said = audit.finish()
        self.counts.verified += 1
        if code != 0:
            self.counts.note("audit", f"verify says {code}: {said[-300:]}")

    # -- the end of a directory --------------------------------------------------------------------------------------

    def _finish(self, story: Story, data: Path, broker: Broker) -> None:
        """What is missing is sent again; then everything is there once. The backlogs come whole. A clean stop verifies."""
        doors = doors_of(broker)
        for mailbox in story.peers.values():
            with doors.peer(mailbox.name) as wire:
                wire.say(*(letter(mailbox.name, number) for number in mailbox.missing))
                wire.peers()
                consumer = Consumer(wire, mailbox)
                while consumer.take(QUIET_S) is not None:
                    continue
        self.judge_backlogs(story, broker, reader.read(data))
        broker.kill(signal.SIGTERM)
        assert broker.wait(), "a broker that is told to stop must stop"
        after = reader.read(data)
        for mailbox in story.peers.values():
            self.judge_mailbox(mailbox, story, after)
        for mailbox in story.peers.values():
            for number in mailbox.missing[:3]:
                self.counts.note("lost", f"{mailbox.name}-{number} was sent again, and is not there")
        if self._verify:
            self._judge_audit(start_verify(self._launcher, data))

    def _total(self, story: Story, history: History) -> None:
        self.counts.acked += len(history.acked)
        self.counts.published += sum(len(queue.acked) for queue in story.queues)
        self.counts.rotations += story.rotations
        self.counts.delivered += sum(len(mailbox.delivered) for mailbox in story.peers.values())
        self.counts.promised += sum(mailbox.promised for mailbox in story.peers.values())
        self.counts.replays += story.replays
        self.counts.streamed += len(story.felix.published.acked)
        self.counts.consumed += len(story.felix.durable.acked)
        self.counts.committed += story.felix.group.committed
        self.counts.cached += story.felix.changes
        self.counts.increments += story.felix.increments
        self.counts.conflicts += story.felix.conflicts


def felix_of(broker: Broker, data: Path) -> FelixDoor:
    return FelixDoor(broker.felix, data / CERTIFICATE)


def meet(story: Story, doors: Doors) -> None:
    """Everybody registers once: a name that nobody ever had gets no letters."""
    for name, mailbox in story.peers.items():
        doors.peer(name).close()
        mailbox.registered = True


def start_verify(launcher: Launcher, data: Path) -> Command:
    return launcher.command("audit", "verify", "--data", str(data))


def verdict(launcher: Launcher) -> tamper.Verify:
    return lambda data: start_verify(launcher, data).finish()


def controls(launcher: Launcher, folder: Path, seed: int, kills: int) -> dict[str, bool]:
    """Brokers that break one promise each: found out within so many kills?"""
    caught = {}
    for number, name in enumerate(SABOTAGES):
        place = folder / name
        place.mkdir()
        campaign = Campaign(launcher, place, seed + number, name, verify=False)
        campaign.run(kills)
        caught[name] = bool(campaign.counts.bad)
    return caught


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options.add_argument(
        "--control", type=int, default=20, help="kills within which each sabotaged broker must be caught"
    )
    options.add_argument("--journal", action="store_true", help="everything small by way of the journal")
    chosen = options.parse_args()
    launcher = Launcher(journal=chosen.journal)
    started = time.monotonic()
    campaign = Campaign(launcher, launcher.folder, chosen.seed)
    campaign.run(chosen.kills)
    caught = (
        {} if campaign.last is None else tamper.controls(campaign.last, launcher.folder / "tampered", verdict(launcher))
    )
    caught |= controls(launcher, launcher.folder, chosen.seed, chosen.control)
    launcher.close()
    good = not campaign.counts.bad and all(caught.values()) and len(caught) > len(SABOTAGES)
    facts = dataclasses.asdict(campaign.counts)
    load.say(
        campaign="doors", journal=chosen.journal, seed=chosen.seed, kills=campaign.kills, at_calls=campaign.at_calls,
        in_recovery=campaign.in_recovery, **facts, control=caught, seconds=round(time.monotonic() - started),
        result="good" if good else "BAD",
    )  # fmt: skip
    if good:
        shutil.rmtree(launcher.folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
