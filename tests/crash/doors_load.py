"""The load of the campaign over the Fast and peerbus doors: who sends what, and what they were told. doors.py judges it.

Fast: two publishers in extended mode, each with a durable topic of its own whose key it rotates. OK is the promise. Behind
a rotation some publishes still come with the old key: they must be refused, and never be in the topic.

peerbus: a ring of peers, every other one by WebSocket. Each sends to the next under rising ids, acknowledges most of what it
has consumed, and remembers what. The wire does not acknowledge a send; the reply to `peers` is the promise for all before it.
After a crash a peer sends again what is not in the mailbox; and it replays ids that are, with another body, which nobody must
ever see.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from tests.crash.felix_load import FelixStory
from tests.crash.load import STOPPING
from tests.wire import fast, peerbus

FAST_TOPICS = ("fast-0", "fast-1")
PEERS = ("p0", "p1", "p2", "p3")
BURST_MAX = 30
LATE_MAX = 3  # publishes with the old key, right behind a rotation
ROTATIONS = 0.15  # share of bursts that end with one
SENDS_MAX = 5
REPLAYS = 0.2  # share of turns with a replayed id
BARRIERS = 0.3  # share of turns that ask for a promise
CONSUMER_ACKS = 0.8
READ_S = 0.004
JOIN_S = 40.0


def payload(number: int) -> bytes:
    size = 20_000 if number % 97 == 0 else number * 7919 % 200
    return b"%d:" % number + bytes((number % 251,)) * size


def letter(sender: str, number: int) -> bytes:
    to = PEERS[(PEERS.index(sender) + 1) % len(PEERS)]
    return peerbus.envelope(f"{sender}-{number}", sender, to, f'{{"n":{number},"x":"{"y" * (number * 31 % 300)}"}}')


@dataclass
class Queue:
    """One Fast topic and its publisher. `asked` is a key whose rotation was not answered."""

    name: str
    key: str
    asked: str = ""
    made: bool = False
    keys: int = 0
    retired: list[str] = field(default_factory=list)  # keys whose rotation was answered with OK
    attempted: int = 0
    acked: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # those with a key that was rotated before

    @property
    def id(self) -> int:
        return fast.topic_id(self.name.encode())

    def token(self, key: str) -> bytes:
        return fast.token(self.name, key, "publish", "subscribe", "rotate")


@dataclass
class Mailbox:
    """One peer: what it sent to the next, what was delivered to it, what it acknowledged and when."""

    name: str
    registered: bool = False
    sent: int = 0
    promised: int = 0  # so many of the first ones were sent before a `peers` that was answered
    missing: list[int] = field(default_factory=list)  # sent, and not in the next one's mailbox after a crash
    stored: int = 0  # how many of the first ones are there for sure
    delivered: dict[str, bytes] = field(default_factory=dict)
    acked: dict[str, float] = field(default_factory=dict)


@dataclass
class Story:
    """What happened on one data directory."""

    queues: list[Queue] = field(default_factory=lambda: [Queue(name, "k0") for name in FAST_TOPICS])
    peers: dict[str, Mailbox] = field(default_factory=lambda: {name: Mailbox(name) for name in PEERS})
    felix: FelixStory = field(default_factory=FelixStory)
    problems: list[str] = field(default_factory=list)
    replays: int = 0
    rotations: int = 0

    def before(self, mailbox: Mailbox) -> Mailbox:
        """Whoever sends to this one."""
        return self.peers[PEERS[PEERS.index(mailbox.name) - 1]]


@dataclass(frozen=True)
class Doors:
    """Where the broker listens."""

    fast: str
    websocket: str
    lines: str

    def peer(self, name: str, token: str = peerbus.TOKEN) -> peerbus.Client:
        websocket = PEERS.index(name) % 2 == 0
        return peerbus.Client(self.websocket if websocket else self.lines, name, token, websocket)


class Clients:
    """Threads that work until the broker is gone."""

    pause_s: ClassVar[float] = 0.0  # between two turns of a client, so that many of them share a small machine

    def __init__(self, story: Story, doors: Doors, seed: int) -> None:
        self._story = story
        self._doors = doors
        self._stop = threading.Event()
        work: list[tuple[Callable[..., None], object]] = [(self._publish, queue) for queue in story.queues]
        work += [(self._ring, mailbox) for mailbox in story.peers.values()]
        self._threads = [
            threading.Thread(target=self._guard, args=(call, one, random.Random(seed + number)), daemon=True)
            for number, (call, one) in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Nothing new is begun; does not wait."""
        self._stop.set()

    def stop(self, join_s: float = JOIN_S) -> None:
        """No new bursts; returns when all that was asked is answered, or the broker is gone."""
        self._stop.set()
        for thread in self._threads:
            thread.join(join_s)
            assert not thread.is_alive(), "a client hangs"

    def _guard(self, work: Callable[..., None], one: object, chance: random.Random) -> None:
        try:
            work(one, chance)
        except (fast.Closed, peerbus.Closed):
            return  # the broker was killed: what was promised until then is in the story
        except AssertionError as error:
            if not any(text in str(error) for text in STOPPING):
                self._story.problems.append(f"{work.__name__}: {error}")

    # -- Fast --------------------------------------------------------------------------------------------------------

    def _publish(self, queue: Queue, chance: random.Random) -> None:
        with fast.Client(self._doors.fast) as wire:
            if not queue.made:
                create(wire, queue)
            while not self._stop.wait(self.pause_s):
                self._burst(wire, queue, chance)

    def _burst(self, wire: fast.Client, queue: Queue, chance: random.Random) -> None:
        first, jwt = queue.attempted, queue.token(queue.key)
        numbers = range(first, first + chance.randint(1, BURST_MAX))
        asked = [fast.publish(jwt, queue.id, payload(number)) for number in numbers]
        late = range(0)
        if chance.random() < ROTATIONS:
            queue.keys += 1
            queue.asked = f"k{queue.keys}"
            late = range(numbers.stop, numbers.stop + chance.randint(0, LATE_MAX))
            asked.append(fast.rotate_key(jwt, queue.id, queue.asked.encode()))
            asked += [fast.publish(jwt, queue.id, payload(number)) for number in late]
            queue.refused.update(late)
        queue.attempted = max(numbers.stop, late.stop)
        answers = wire.ask(b"".join(asked), len(asked))
        for number, answer in zip(numbers, answers, strict=False):
            assert answer == (fast.PUBLISH, queue.id, 0, ""), answer
            queue.acked.add(number)
        if len(answers) > len(numbers):
            assert answers[len(numbers)] == (fast.ROTATE_KEY, queue.id, 0, ""), answers[len(numbers)]
            for answer in answers[len(numbers) + 1 :]:
                assert answer[:3] == (fast.PUBLISH, queue.id, fast.WRONG_KEY), answer
            rotated(queue)
            self._story.rotations += 1

    # -- peerbus -----------------------------------------------------------------------------------------------------

    def _ring(self, mailbox: Mailbox, chance: random.Random) -> None:
        with self._doors.peer(mailbox.name) as wire:
            mailbox.registered = True
            consumer = Consumer(wire, mailbox)
            for number in mailbox.missing:
                wire.say(letter(mailbox.name, number))
            mailbox.missing = []
            asked: deque[int] = deque()
            while not self._stop.wait(self.pause_s):
                for _ in range(chance.randint(0, SENDS_MAX)):
                    mailbox.sent += 1
                    wire.say(letter(mailbox.name, mailbox.sent - 1))
                if mailbox.stored and chance.random() < REPLAYS:
                    self._replay(wire, mailbox, chance)
                if chance.random() < BARRIERS:
                    asked.append(mailbox.sent)
                    wire.peers()
                while (key := consumer.take(READ_S)) is not None:
                    if not key:
                        mailbox.promised = asked.popleft()
                    elif chance.random() < CONSUMER_ACKS:
                        consumer.ack(key)

    def _replay(self, wire: peerbus.Client, mailbox: Mailbox, chance: random.Random) -> None:
        """An id that was used before, with another body."""
        self._story.replays += 1
        id = f"{mailbox.name}-{chance.randrange(mailbox.stored)}"
        to = PEERS[(PEERS.index(mailbox.name) + 1) % len(PEERS)]
        wire.say(peerbus.envelope(id, mailbox.name, to, '"replayed"'))


class Consumer:
    """One connection's deliveries: each once."""

    def __init__(self, wire: peerbus.Client, mailbox: Mailbox) -> None:
        self._wire = wire
        self._mailbox = mailbox
        self.seen: set[str] = set()

    def take(self, timeout_s: float) -> str | None:
        """The key of the next delivery; empty for another object, None if nothing came."""
        found = self._wire.next(timeout_s)
        if found is None or found["type"] != "deliver":
            return None if found is None else ""
        key = str(found["delivery_key"])
        assert key not in self.seen, f"{key} came twice on one connection"
        self.seen.add(key)
        raw = bytes(found["raw"])
        self._mailbox.delivered[key] = raw[raw.index(b'"envelope":') + len(b'"envelope":') : -1]
        return key

    def ack(self, key: str) -> None:
        self._wire.ack(key)
        self._mailbox.acked[key] = time.monotonic()


def create(wire: fast.Client, queue: Queue) -> None:
    (answer,) = wire.ask(fast.create(queue.token(queue.key), queue.name.encode(), fast.DURABLE))
    assert answer == (fast.CREATE, queue.id, 0, ""), answer
    queue.made = True


def rotated(queue: Queue) -> None:
    queue.retired.append(queue.key)
    queue.key, queue.asked = queue.asked, ""
