"""The load that runs while a broker is killed, what was promised to it, and the judgement afterwards.

Producers publish with QoS 1 and take a PONG as the promise. Each message says who sent it and its number, and what else
is in it follows from these, so that every byte found later can be judged. The consumer acknowledges some of what it gets.

    acked   ⊆ readable              else lost
    readable ⊆ attempted            else phantom
    each at most once on disk       else dup (nothing is ever sent twice)
    rising per producer and topic   else reorder
    delivered = what is on disk at that offset; what was not acknowledged by the consumer is delivered again
"""

import dataclasses
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tests.crash import reader
from tests.wire import blipmq as wire
from tests.wire.blipmq import Client, Closed, Hang

TOPICS = ("alpha", "beta", "gamma")
PRODUCERS = 4
BURST_MAX = 40  # publishes per barrier
CONSUMER_ACKS = 0.7  # share
# Said by a broker that stops, and by a cell that moves: what was asked was not done, and the connection ends.
STOPPING = ("the broker is shutting down", " moves from node ")
SMALL_SHARE = 0.25  # of bursts: each message to another topic, so that there are always some that just began (ADR 31)
SMALL_TOPICS = 64  # of each producer
PING_BIT = 1 << 62

Message = tuple[int, int]  # producer, number
Place = tuple[str, int]  # topic, offset


def payload(message: Message) -> bytes:
    """What this message holds: mostly small, every 97th as large as a quarter of a segment."""
    producer, number = message
    size = 30_000 if (number * 31 + producer) % 97 == 0 else (number * 7919 + producer) % 200
    return b"%d:%d:" % message + bytes(((number + producer) % 251,)) * size


@dataclass
class Verdict:
    """Counts of one judgement; they add up over a campaign."""

    acked: int = 0
    lost: int = 0
    phantom: int = 0
    dup: int = 0
    reorder: int = 0
    wrong: int = 0  # damage or holes that a crash must not leave
    undelivered: int = 0
    hang: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        return bool(
            self.lost or self.phantom or self.dup or self.reorder or self.wrong or self.undelivered or self.hang
        )

    def add(self, other: "Verdict") -> None:
        for part in dataclasses.fields(self):
            if part.name == "notes":
                self.notes = (self.notes + other.notes)[:20]
            else:
                setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def counts(self) -> dict[str, int]:
        found = dataclasses.asdict(self)
        del found["notes"]
        return found


class History:
    """Everything that was tried and promised on one data directory."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.attempted: list[list[str]] = [[] for _ in range(PRODUCERS)]  # topic by number
        self.acked: set[Message] = set()
        self.refused: dict[Message, tuple[int, str]] = {}
        self.subscriptions: dict[str, int] = {}
        self.settled: set[Place] = set()  # whose ACK was sent
        self.delivered: dict[Place, bytes] = {}
        self.hangs: list[str] = []

    def subscribe(self, address: str) -> None:
        """One subscription per topic, made before anything is published."""
        with Client(address).login() as peer:
            for number, topic in enumerate(TOPICS):
                self.subscriptions[topic] = peer.ask(wire.subscribe(number, topic.encode())).number

    def probe(self, address: str) -> list[str]:
        """One more publish to each topic, as producer 0: the refusals."""
        mine = self.attempted[0]
        first = len(mine)
        mine.extend(TOPICS)
        with Client(address).login() as peer:
            peer.send(
                b"".join(wire.publish(first + n, t.encode(), payload((0, first + n))) for n, t in enumerate(TOPICS))
            )
            refused = {found.id: found.refusal for found in peer.barrier()}
        self.refused.update({(0, number): refusal for number, refusal in refused.items()})
        self.acked.update((0, first + n) for n in range(len(TOPICS)) if first + n not in refused)
        return [text for _, text in refused.values()]


class Load:
    """Producers and one consumer on one broker, until stopped or until it dies."""

    pause_s: ClassVar[float] = 0.0  # between two turns of a client, so that many of them share a small machine

    def __init__(self, history: History, address: str, consume: bool = True, small_share: float = SMALL_SHARE) -> None:
        self._history = history
        self._small_share = small_share
        self._address = address
        self._stop = threading.Event()
        jobs = [threading.Thread(target=self._guard, args=(self._produce, n)) for n in range(PRODUCERS)]
        if consume:
            jobs.append(threading.Thread(target=self._guard, args=(self._consume, 0)))
        self._threads = jobs
        for job in jobs:
            job.start()

    def wait_for(self, promises: int) -> None:
        """Until so many were made under this load; not longer than a hang."""
        target = len(self._history.acked) + promises
        until = time.monotonic() + wire.HANG_S
        while len(self._history.acked) < target and time.monotonic() < until:
            time.sleep(0.002)

    def ask_to_stop(self) -> None:
        """Nothing new is begun; does not wait."""
        self._stop.set()

    def stop(self) -> None:
        """No new bursts; returns when every burst in flight is answered."""
        self._stop.set()
        for job in self._threads:
            job.join()

    join = stop

    def _guard(self, work: Callable[[int, Client], None], number: int) -> None:
        try:
            with Client(self._address) as peer:
                work(number, peer)
        except (Closed, ConnectionError):
            return  # the broker was killed: what was promised until then is in the history
        except Hang as error:
            self._history.hangs.append(f"{work.__name__} {number}: {error}")

    def _produce(self, number: int, peer: Client) -> None:
        history = self._history
        chance = random.Random(f"{history.random.random()}{number}")
        peer.login()
        mine = history.attempted[number]
        while not self._stop.is_set():
            first, count = len(mine), chance.randint(1, BURST_MAX)
            if chance.random() < self._small_share:
                mine.extend(f"small.{number}.{chance.randrange(SMALL_TOPICS)}" for _ in range(count))
            else:
                mine.extend([chance.choice(TOPICS)] * count)
            burst = [wire.publish(n, mine[n].encode(), payload((number, n))) for n in range(first, first + count)]
            peer.send(b"".join(burst))
            refused = set()
            for found in peer.barrier(PING_BIT | first):
                assert found.kind == wire.NACK, found
                history.refused[number, found.id] = found.refusal
                refused.add(found.id)
            history.acked.update((number, n) for n in range(first, first + count) if n not in refused)
            self._stop.wait(max(self.pause_s, 0.01 if refused else 0.0))

    def _consume(self, _: int, peer: Client) -> None:
        history = self._history
        chance = random.Random(history.random.random())
        attach(peer, history)
        while not self._stop.is_set():
            try:
                found = peer.read(0.05)
            except Hang:
                continue
            settle = chance.random() < CONSUMER_ACKS
            took(history, peer, found, settle)


def attach(peer: Client, history: History) -> None:
    peer.login(version=2)
    peer.send(b"".join(wire.poll(1, id) for id in history.subscriptions.values()))


def took(history: History, peer: Client, found: wire.Frame, settle: bool) -> tuple[str, int]:
    """Take one delivery in, and acknowledge it."""
    assert found.kind == wire.DELIVER, found
    tag, topic, message = found.delivery
    where = (topic, tag - 1)
    history.delivered[where] = message
    if settle:
        history.settled.add(where)
        peer.send(wire.ack(tag, history.subscriptions[topic]))
    return where


# -- judgement ----------------------------------------------------------------------------------------------------------


def topics_of(found: dict[str, reader.Found]) -> dict[str, reader.Found]:
    """The topics that this load publishes to, of all that are on the disk."""
    return {topic: one for topic, one in found.items() if topic in TOPICS or topic.startswith("small.")}


def judge(history: History, found: dict[str, reader.Found], acked: set[Message] | None = None) -> Verdict:
    """Disk against promises. `acked` as it was before the crash; all there is by default."""
    acked = history.acked if acked is None else acked
    verdict = Verdict(acked=len(acked))
    seen: set[Message] = set()
    for topic, partition in found.items():
        verdict.wrong += len(partition.wrong)
        verdict.notes += partition.wrong[:3]
        last: dict[int, int] = {}
        for offset, value in partition.values.items():
            message = message_of(history, topic, value)
            if message is None:
                verdict.phantom += 1
                verdict.notes.append(f"{topic} offset {offset} holds {value[:40]!r}, which nobody sent there")
                continue
            verdict.dup += message in seen
            verdict.reorder += message[1] <= last.get(message[0], -1)
            seen.add(message)
            last[message[0]] = message[1]
    lost = acked - seen
    verdict.lost = len(lost)
    verdict.notes += [f"lost {message}" for message in sorted(lost)[:3]]
    return verdict


def message_of(history: History, topic: str, value: bytes) -> Message | None:
    """Who sent this, if it was sent just so to this topic."""
    parts = value.split(b":", 2)
    if len(parts) != 3 or not parts[0].isdigit() or not parts[1].isdigit():
        return None
    message = (int(parts[0]), int(parts[1]))
    if message[0] >= PRODUCERS or message[1] >= len(history.attempted[message[0]]):
        return None
    sound = history.attempted[message[0]][message[1]] == topic and payload(message) == value
    return message if sound else None


def delivered_is_on_disk(delivered: dict[Place, bytes], found: dict[str, reader.Found]) -> Verdict:
    """No consumer ever saw what a crash took back."""
    verdict = Verdict()
    for (topic, offset), message in delivered.items():
        if topic not in found or found[topic].values.get(offset) != message:
            verdict.phantom += 1
            verdict.notes.append(f"{topic} offset {offset} was delivered and is not on disk so")
    return verdict


def kept(before: dict[str, reader.Found], after: dict[str, reader.Found]) -> Verdict:
    """Recovery cut nothing that was sound."""
    verdict = Verdict()
    for topic, partition in before.items():
        now = after[topic].values if topic in after else {}
        cut = [offset for offset, value in partition.values.items() if now.get(offset) != value]
        verdict.lost += len(cut)
        verdict.notes += [f"{topic} offset {offset} was readable before recovery" for offset in cut[:3]]
        if topic in after:
            verdict.wrong += len(after[topic].torn)
            verdict.notes += [f"after recovery: {torn}" for torn in after[topic].torn]
    return verdict


def unsettled(found: dict[str, reader.Found], settled: set[Place]) -> set[Place]:
    """All that is on disk and was not acknowledged by the consumer."""
    return {(topic, offset) for topic in TOPICS if topic in found for offset in found[topic].values} - settled


def drain(history: History, address: str, found: dict[str, reader.Found], expected: set[Place]) -> Verdict:
    """Through the broker: what is expected comes, and all that comes is as it is on disk."""
    expected = set(expected)
    verdict = Verdict()
    try:
        with Client(address) as peer:
            attach(peer, history)
            while expected:
                topic, offset = where = took(history, peer, peer.read(), settle=True)
                expected.discard(where)
                if found[topic].values.get(offset) != history.delivered[where]:
                    verdict.phantom += 1
                    verdict.notes.append(f"{where} is delivered otherwise than it is on disk")
            _settle_down(history, peer)
    except (Hang, Closed, ConnectionError) as error:
        verdict.undelivered = max(len(expected), 1)
        verdict.notes += [f"not delivered ({error}): {where}" for where in sorted(expected)[:3]]
    return verdict


def _settle_down(history: History, peer: Client) -> None:
    """Take what else is under way, until a PONG says that every ACK was seen."""
    peer.send(wire.frame(wire.PING, PING_BIT))
    while (found := peer.read()).kind != wire.PONG:
        took(history, peer, found, settle=True)


def say(**facts: object) -> None:
    """One JSON line per campaign, as the papers ask."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def keep(folder: Path, verdict: Verdict, **facts: object) -> None:
    """A failing directory is left for whoever looks into it."""
    say(failed=str(folder), **verdict.counts(), notes=verdict.notes[:6], **facts)
