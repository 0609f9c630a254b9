"""What the Fast, peerbus and BlipMQ doors promised, held against what is there afterwards. felix_judge.py does it for Felix.

`Judge` asks whoever listens at some addresses and reads files by reader.py. It starts and kills nothing: doors.py does that to one
broker, tests/cell_faults to a cell of nodes.
"""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from tests.crash import load, reader
from tests.crash.doors_load import PEERS, Consumer, Doors, Mailbox, Queue, Story, letter, payload, rotated
from tests.crash.load import History
from tests.wire import fast, peerbus

SAVED_S = 2.0  # ten times the interval at which positions are saved: the machine may be busy
QUIET_S = 0.15  # nothing more comes after this
SETTLE_S = 10.0
OTHER_TOKEN = "dev-key"  # another key of the same broker: another owner
CLAIMED = (1008, "name claimed under a different token")

Disk = dict[str, reader.Found]


class Listening(Protocol):
    """Where a broker listens, as HOST:PORT."""

    address: str  # of BlipMQ
    fast: str
    peerbus: str
    peerbus_tcp: str


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


class Judge:
    """Says in `counts` what it found. saved_s: what a consumer acknowledged so long before the end of a broker is kept."""

    def __init__(self, chance: random.Random, saved_s: float = SAVED_S) -> None:
        self.counts = Counts()
        self._chance = chance
        self._saved_s = saved_s

    def judge(
        self, story: Story, history: History, broker: Listening, before: Disk | None, after: Disk, settled: set[load.Place],
        killed_at: float,
    ) -> None:  # fmt: skip
        """before: the files as they were before the broker started again; None: they were not looked at."""
        for problem in story.problems:
            self.counts.note("wrong", problem)
        self._judge_blip(history, broker, before, after, settled)
        with fast.Client(broker.fast) as wire:
            for queue in story.queues:
                self._judge_queue(queue, after)
                self._judge_key(queue, wire)
        for mailbox in story.peers.values():
            self.judge_mailbox(mailbox, story, after)
        doors = doors_of(broker)
        with ThreadPoolExecutor(len(PEERS)) as pool:
            for drained in [
                pool.submit(self._drain, mailbox, story.before(mailbox), doors, killed_at)
                for mailbox in story.peers.values()
            ]:
                drained.result()
        self._judge_names(story, doors)

    def _judge_blip(
        self, history: History, broker: Listening, before: Disk | None, after: Disk, settled: set[load.Place]
    ) -> None:
        self.counts.take(load.judge(history, load.topics_of(after)))
        if before is not None:
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

    def judge_mailbox(self, mailbox: Mailbox, story: Story, after: Disk) -> None:
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
        self.counts.settled += sum(killed_at - at > self._saved_s for at in mailbox.acked.values())
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
            if acked_at is not None and killed_at - acked_at > self._saved_s:
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

    def judge_backlogs(self, story: Story, broker: Listening, after: Disk) -> None:
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


def doors_of(broker: Listening) -> Doors:
    return Doors(broker.fast, broker.peerbus, broker.peerbus_tcp)
