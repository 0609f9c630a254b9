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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.crash import felix_judge, load, reader, tamper
from tests.crash.brokers import KILL_AFTER, KILL_BEFORE, KILL_TORN, Broker, Command, Launcher, NotStarted
from tests.crash.doors_load import (
    JOIN_S,
    PEERS,
    Clients,
    Consumer,
    Doors,
    Mailbox,
    Queue,
    Story,
    letter,
    payload,
    rotated,
)
from tests.crash.felix_load import FelixClients, FelixDoor
from tests.crash.load import History, Load
from tests.wire import fast, peerbus

KILLS_PER_DIRECTORY = 8
LOAD_S = (0.1, 0.6)
CALL_WAIT_S = 0.8
RECOVERY_KILLS = 0.3
RECOVERY_S = 0.15
UNRECOVERED = 0.3  # share of kills after which the audit is verified before a broker has recovered the directory, too
SAVED_S = 2.0  # ten times the interval at which positions are saved: the machine may be busy
QUIET_S = 0.15  # nothing more comes after this
SETTLE_S = 10.0
CALLS = {"pwritev": 120, "fdatasync": 80, "fsync": 6, "rename": 4, "open": 8}
OTHER_TOKEN = "dev-key"  # another key of the same broker: another owner
CLAIMED = (1008, "name claimed under a different token")
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


Disk = dict[str, reader.Found]


@dataclass
class Counts:
    """What the campaign saw, and what it must never see."""

    acked: int = 0
    published: int = 0
    rotations: int = 0
    promised: int = 0
    delivered: int = 0
    replays: int = 0
    redelivered: int = 0
    streamed: int = 0  # acknowledged by the Felix door
    consumed: int = 0
    committed: int = 0
    cached: int = 0  # answered changes of the cache
    increments: int = 0
    conflicts: int = 0
    settled: int = 0  # acknowledgements so old at a kill that their message must not come again
    verified: int = 0
    lost: int = 0
    phantom: int = 0
    dup: int = 0
    reorder: int = 0
    wrong: int = 0
    undelivered: int = 0
    hang: int = 0
    unsent: int = 0  # delivered, and no record in the mailbox
    again: int = 0  # acknowledged in time, and delivered again
    replayed: int = 0
    key: int = 0
    cache: int = 0  # an answered change that is not there
    version: int = 0  # used twice, or falling
    count: int = 0  # a number that is not the sum of its increments
    name: int = 0
    audit: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        return sum(getattr(self, kind) for kind in BAD)

    def note(self, kind: str, text: str, count: int = 1) -> None:
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.notes) < 20:
            self.notes.append(f"{kind}: {text}")

    def take(self, verdict: load.Verdict) -> None:
        for kind, count in verdict.counts().items():
            if kind != "acked" and count:
                self.note(kind, "; ".join(verdict.notes[:3]), count)


BAD = (
    "lost",
    "phantom",
    "dup",
    "reorder",
    "wrong",
    "undelivered",
    "hang",
    "unsent",
    "again",
    "replayed",
    "key",
    "cache",
    "version",
    "count",
    "name",
    "audit",
)


class Campaign:
    """One data directory after another, each killed several times."""

    def __init__(self, launcher: Launcher, folder: Path, seed: int, sabotage: str = "", verify: bool = True) -> None:
        """A sabotage of the Felix door alone is looked for there alone."""
        self.counts = Counts()
        self.kills = self.at_calls = self.in_recovery = 0
        self.seed = seed
        self._chance = random.Random(seed)
        self._launcher = launcher
        self._folder = folder
        self._sabotage = sabotage
        self._verify = verify
        self._all = sabotage not in FELIX_SABOTAGES
        self._directories = 0
        self._broker: Broker | None = None
        self.last: Path | None = None  # a directory that held, stopped cleanly

    def run(self, kills: int) -> None:
        try:
            while self.kills < kills and not self.counts.bad:
                self._directory(min(KILLS_PER_DIRECTORY, kills - self.kills))
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
            self._judge_others(story, history, broker, before, after, settled, killed_at)
        felix_judge.judge(story.felix, felix_of(broker, data), after, killed_at, SAVED_S, self.counts.note)
        if audit is not None:
            self._judge_audit(audit)
        return broker

    # -- judging -----------------------------------------------------------------------------------------------------

    def _judge_others(
        self, story: Story, history: History, broker: Broker, before: Disk, after: Disk, settled: set[load.Place],
        killed_at: float,
    ) -> None:  # fmt: skip
        for problem in story.problems:
            self.counts.note("wrong", problem)
        self._judge_blip(history, broker, before, after, settled)
        with fast.Client(broker.fast) as wire:
            for queue in story.queues:
                self._judge_queue(queue, after)
                self._judge_key(queue, wire)
        for mailbox in story.peers.values():
            self._judge_mailbox(mailbox, story, after)
        doors = doors_of(broker)
        with ThreadPoolExecutor(len(PEERS)) as pool:
            for drained in [
                pool.submit(self._drain, mailbox, story.before(mailbox), doors, killed_at)
                for mailbox in story.peers.values()
            ]:
                drained.result()
        self._judge_names(story, doors)

    def _judge_blip(
        self, history: History, broker: Broker, before: Disk, after: Disk, settled: set[load.Place]
    ) -> None:
        self.counts.take(load.judge(history, load.topics_of(after)))
        self.counts.take(load.kept(before, after))
        self.counts.take(load.delivered_is_on_disk(history.delivered, after))
        self.counts.take(load.drain(history, broker.address, after, load.unsettled(after, settled)))
        for hang in history.hangs:
            self.counts.note("hang", hang)
        for found in after.values():
            for wrong in found.wrong:
                self.counts.note("wrong", wrong)

    def _judge_queue(self, queue: Queue, after: Disk) -> None:
        found = after[queue.name].values if queue.name in after else {}
        numbers = []
        for offset, value in found.items():
            number = int(value.partition(b":")[0])
            if number >= queue.attempted or payload(number) != value:
                self.counts.note("phantom", f"{queue.name} offset {offset} holds {value[:40]!r}")
            elif number in queue.refused:
                self.counts.note("key", f"{queue.name} took {number}, which came with a rotated key")
            numbers.append(number)
        self._rising(queue.name, numbers)
        for number in sorted(queue.acked - set(numbers))[:3]:
            self.counts.note("lost", f"{queue.name} {number} was answered with OK")

    def _judge_key(self, queue: Queue, wire: fast.Client) -> None:
        """Which key opens the topic? What was not answered is settled here."""
        if not queue.made:
            return  # CREATE was not answered: it is asked again
        for key in queue.retired[-2:]:
            if self._opens(queue, wire, key):
                self.counts.note("key", f"{queue.name} still takes {key}, its rotation was answered")
        mine = self._opens(queue, wire, queue.key)
        if queue.asked and self._opens(queue, wire, queue.asked):
            if mine:
                self.counts.note("key", f"{queue.name} takes both {queue.key} and {queue.asked}")
            rotated(queue)
        elif not mine:
            self.counts.note("key", f"{queue.name} does not take its key {queue.key}")
        queue.asked = ""

    def _opens(self, queue: Queue, wire: fast.Client, key: str) -> bool:
        """Whether a publish with this key is taken. Its number is one of the topic's."""
        number = queue.attempted
        queue.attempted += 1
        (answer,) = wire.ask(fast.publish(queue.token(key), queue.id, payload(number)))
        if answer.code not in (0, fast.WRONG_KEY):
            self.counts.note("lost", f"{queue.name}: {answer}")
        (queue.refused if answer.code else queue.acked).add(number)
        return answer.code == 0

    def _rising(self, where: str, numbers: list[int]) -> None:
        if len(set(numbers)) != len(numbers):
            self.counts.note("dup", f"{where} holds something twice")
        if sorted(numbers) != numbers:
            self.counts.note("reorder", f"{where} is out of order")

    def _judge_mailbox(self, mailbox: Mailbox, story: Story, after: Disk) -> None:
        sender = story.before(mailbox)
        found = after.get(f"peerbus/{mailbox.name}")
        values = set(found.values.values()) if found is not None else set()
        there = []
        for value in found.values.values() if found is not None else ():
            number = int(value.partition(b'"id":"' + sender.name.encode() + b"-")[2].partition(b'"')[0] or b"-1")
            if b'"replayed"' in value:
                self.counts.note("replayed", f"{mailbox.name} got {sender.name}-{number} again, with another body")
            elif not 0 <= number < sender.sent or letter(sender.name, number) != value:
                self.counts.note("phantom", f"in the mailbox of {mailbox.name}: {value[:80]!r}")
            else:
                there.append(number)
        self._rising(f"the mailbox of {mailbox.name}", there)
        if there != list(range(len(there))):
            self.counts.note("lost", f"{mailbox.name} has {len(there)} letters of {sender.name}, not the first ones")
        if len(there) < sender.promised:
            self.counts.note("lost", f"{mailbox.name} has {len(there)} of {sender.promised} letters behind a barrier")
        sender.missing, sender.stored = list(range(len(there), sender.sent)), len(there)
        for key, value in mailbox.delivered.items():
            if value not in values:
                self.counts.note("unsent", f"{key} was delivered to {mailbox.name} and is not in its mailbox")

    def _drain(self, mailbox: Mailbox, sender: Mailbox, doors: Doors, killed_at: float) -> None:
        """Register again: what is in the mailbox and was not acknowledged comes, what was acknowledged in time does not."""
        due = {f"{sender.name}-{number}" for number in range(sender.stored)} - mailbox.acked.keys()
        self.counts.settled += sum(killed_at - at > SAVED_S for at in mailbox.acked.values())
        known = mailbox.delivered.keys() & due
        try:
            with doors.peer(mailbox.name) as wire:
                consumer = Consumer(wire, mailbox)
                until = time.monotonic() + SETTLE_S
                while not due <= consumer.seen and time.monotonic() < until:
                    self._took(consumer, mailbox, consumer.take(QUIET_S), killed_at)
                while (key := consumer.take(QUIET_S)) is not None:
                    self._took(consumer, mailbox, key, killed_at)
                self.counts.redelivered += len(known)
                for key in sorted(due - consumer.seen)[:3]:
                    self.counts.note("undelivered", f"{key} did not come to {mailbox.name}")
        except (peerbus.Closed, AssertionError) as error:
            self.counts.note("undelivered", f"{mailbox.name}: {error}")

    def _took(self, consumer: Consumer, mailbox: Mailbox, key: str | None, killed_at: float) -> None:
        if key:
            acked_at = mailbox.acked.get(key)
            if acked_at is not None and killed_at - acked_at > SAVED_S:
                self.counts.note(
                    "again", f"{key}, acknowledged {killed_at - acked_at:.1f} s before the kill, came to {mailbox.name}"
                )
            consumer.ack(key)

    def _judge_names(self, story: Story, doors: Doors) -> None:
        """Under another token the name is refused, in the words that clients compare."""
        name = self._chance.choice(PEERS)
        if not story.peers[name].registered:
            return
        try:
            peerbus.Client(doors.websocket, name, OTHER_TOKEN, websocket=True).close()
            self.counts.note("name", f"{name} was given to another owner")
        except peerbus.Closed as gone:
            if (gone.code, str(gone)) != CLAIMED:
                self.counts.note("name", f"{name} is refused with {gone.code} {gone}")

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
        self._judge_backlogs(story, broker, reader.read(data))
        broker.kill(signal.SIGTERM)
        assert broker.wait(), "a broker that is told to stop must stop"
        after = reader.read(data)
        for mailbox in story.peers.values():
            self._judge_mailbox(mailbox, story, after)
        for mailbox in story.peers.values():
            for number in mailbox.missing[:3]:
                self.counts.note("lost", f"{mailbox.name}-{number} was sent again, and is not there")
        if self._verify:
            self._judge_audit(start_verify(self._launcher, data))

    def _judge_backlogs(self, story: Story, broker: Broker, after: Disk) -> None:
        """Nobody has read the Fast topics: the first subscriber gets all there is, in order."""
        for queue in story.queues:
            if queue.name not in after:
                continue
            wanted = list(after[queue.name].values.values())
            with fast.Client(broker.fast) as wire:
                found = wire.messages(queue.token(queue.key), queue.id, len(wanted))
            if found != wanted:
                self.counts.note(
                    "undelivered", f"{queue.name} has {len(wanted)}, its subscriber got {len(found)} or others"
                )

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


def doors_of(broker: Broker) -> Doors:
    return Doors(broker.fast, broker.peerbus, broker.peerbus_tcp)


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
