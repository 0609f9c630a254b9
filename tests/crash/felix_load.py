"""The Felix part of the campaign over the doors: who asks what, and what they were told. felix_judge.py judges it.

publisher    acknowledged binary batches, per batch and per message, and JSON publishes, several under way at once
durable      one subscriber with a name and explicit acknowledgements, of most of what it gets
group        one member; the answer to each acknowledgement is the promise that it is committed
cache        one writer: puts, compare-and-set (with the right version and with one that is past), deletes, increments
peek         reads the cache beside the writer: also what is not durable yet, whose version must not come again
"""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.crash.load import STOPPING
from tests.wire import felix
from tests.wire.felix import Session

STREAM = ("t", "n", "orders")
TOPIC = "t/n/orders"
CACHE = ("t", "n", "c")
DURABLE = "keeper"
GROUP = "crew"
KEYS = tuple(f"k{number}" for number in range(6))
COUNTERS = ("n0", "n1")
BURST_MAX = 8  # requests under way
BATCH_MAX = 20
CONSUMER_ACKS = 0.8
READ_S = 0.02
PEEK_S = 0.01


def payload(number: int) -> bytes:
    size = 20_000 if number % 97 == 0 else number * 7919 % 200
    return b"%d:" % number + bytes((number % 251,)) * size


@dataclass
class Published:
    attempted: int = 0
    acked: set[int] = field(default_factory=set)


@dataclass
class Read:
    """What one reader got, by offset, and what it acknowledged when. `committed`: so far the broker said it is kept."""

    seen: dict[int, bytes] = field(default_factory=dict)
    acked: dict[int, float] = field(default_factory=dict)
    committed: int = 0
    asked: int = 0  # the end of what was acknowledged, answered or not


@dataclass
class Key:
    """One key of the cache and its only writer. No value: it is not there."""

    version: int = 0  # of the last change that was answered
    value: bytes | None = None
    pending: list[bytes | None] = field(default_factory=list)  # changes that were not answered, in order


@dataclass
class Counter:
    acked: int = 0
    attempted: int = 0


@dataclass
class FelixStory:
    published: Published = field(default_factory=Published)
    durable: Read = field(default_factory=Read)
    group: Read = field(default_factory=Read)
    keys: dict[str, Key] = field(default_factory=lambda: {name: Key() for name in KEYS})
    counters: dict[str, Counter] = field(default_factory=lambda: {name: Counter() for name in COUNTERS})
    versions: dict[int, tuple[str, bytes | None]] = field(default_factory=dict)  # of whatever was seen, by anybody
    problems: list[str] = field(default_factory=list)
    changes: int = 0
    increments: int = 0
    conflicts: int = 0
    numbered: int = 0  # values of the cache: each is another
    lock: threading.Lock = field(default_factory=threading.Lock)

    def seen(self, key: str, value: bytes | None, version: int) -> None:
        """A version that somebody was told. It stands for one change, for ever."""
        with self.lock:
            before = self.versions.setdefault(version, (key, value))
        assert before == (key, value), f"version {version} was {before}, and is {(key, value)} now"


@dataclass(frozen=True)
class FelixDoor:
    """Where the broker listens, and whom to trust."""

    address: str
    ca: Path

    def connect(self) -> Session:
        return Session(self.address, self.ca)


class FelixClients:
    """Threads that work until the broker is gone."""

    pause_s: ClassVar[float] = 0.0  # between two turns of a client, so that many of them share a small machine

    def __init__(self, story: FelixStory, door: FelixDoor, seed: int) -> None:
        self._story = story
        self._door = door
        self._stop = threading.Event()
        work = (self._publish, self._durable, self._group, self._cache, self._peek)
        self._threads = [
            threading.Thread(target=self._guard, args=(call, random.Random(seed + number)), daemon=True)
            for number, call in enumerate(work)
        ]
        for thread in self._threads:
            thread.start()

    def ask_to_stop(self) -> None:
        """Nothing new is begun; does not wait."""
        self._stop.set()

    def stop(self, join_s: float) -> None:
        """No new bursts; returns when all that was asked is answered, or the broker is gone."""
        self._stop.set()
        for thread in self._threads:
            thread.join(join_s)
            assert not thread.is_alive(), "a client of Felix hangs"

    def _guard(self, work: Callable[[Session, random.Random], None], chance: random.Random) -> None:
        try:
            with self._door.connect() as wire:
                work(wire, chance)
        except felix.Closed:
            return  # the broker was killed: what was promised until then is in the story
        except AssertionError as error:
            if not any(text in str(error) for text in STOPPING):
                self._story.problems.append(f"{work.__name__}: {error}")

    # -- streams -----------------------------------------------------------------------------------------------------

    def _publish(self, wire: Session, chance: random.Random) -> None:
        published = self._story.published
        while not self._stop.wait(self.pause_s):
            asked: list[tuple[int, range]] = []
            data = []
            for _ in range(chance.randint(1, BURST_MAX)):
                request, first = wire.number(), published.attempted
                single = chance.random() < 0.3
                numbers = range(first, first + (1 if single else chance.randint(1, BATCH_MAX)))
                published.attempted = numbers.stop
                asked.append((request, numbers))
                if single:
                    data.append(_publish_json(request, payload(first)))
                else:
                    mode = chance.choice((felix.PER_MESSAGE, felix.PER_BATCH))
                    data.append(
                        felix.batch(STREAM, *(payload(number) for number in numbers), request=request, mode=mode)
                    )
            wire.send(b"".join(data))
            for request, numbers in asked:
                answer = wire.answer(request)
                assert "message" not in answer, answer
                published.acked.update(numbers)

    def _durable(self, wire: Session, chance: random.Random) -> None:
        read = self._story.durable
        consumer = Consumer(wire, wire.subscribe(STREAM, durable=DURABLE, start="earliest"), read)
        while not self._stop.is_set():
            event = consumer.take(READ_S)
            if event is not None and chance.random() < CONSUMER_ACKS:
                consumer.ack(event)

    def _group(self, wire: Session, chance: random.Random) -> None:
        read = self._story.group
        consumer = Consumer(wire, wire.subscribe(STREAM, group=GROUP, start="earliest"), read)
        while not self._stop.is_set():
            event = consumer.take(READ_S)
            if event is not None:
                consumer.commit(event)

    # -- the cache ---------------------------------------------------------------------------------------------------

    def _cache(self, wire: Session, chance: random.Random) -> None:
        story = self._story
        while not self._stop.wait(self.pause_s):
            waiting: list[Callable[[], None]] = []
            for _ in range(chance.randint(1, BURST_MAX)):
                kind = chance.random()
                if kind < 0.3:
                    waiting.append(increment(wire, story, chance.choice(COUNTERS), chance.randint(1, 9)))
                elif kind < 0.4:
                    waiting.append(delete(wire, story, chance.choice(KEYS)))
                else:
                    waiting.append(put(wire, story, chance.choice(KEYS), chance))
            for answered in waiting:
                answered()

    def _peek(self, wire: Session, _chance: random.Random) -> None:
        while not self._stop.wait(PEEK_S):
            for key, (value, version) in look(wire).items():
                if version:
                    self._story.seen(key, value, version)


def _publish_json(request: int, value: bytes) -> bytes:
    fields = felix.stream_of(STREAM) | {"payload": felix.b64(value), "ack": "per_message"}
    return felix.message("publish", request_id=request, **fields)


class Consumer:
    """One subscription of one connection: what comes rises, and each once."""

    def __init__(self, wire: Session, id: int, read: Read) -> None:
        self._wire = wire
        self._id = id
        self._read = read
        self.got: list[int] = []

    def take(self, timeout_s: float) -> felix.Event | None:
        event = self._wire.next(timeout_s)
        if event is None:
            self._wire.check()
            assert self._id not in self._wire.ended, f"the event stream ended with {self._wire.ended[self._id]}"
            return None
        assert not event.message, event.message
        for number, value in enumerate(event.values):
            offset = event.base + number
            assert not self.got or offset > self.got[-1], f"offset {offset} came behind {self.got[-1]}"
            self.got.append(offset)
            before = self._read.seen.setdefault(offset, value)
            assert before == value, f"offset {offset} was {before[:30]!r}, and is {value[:30]!r} now"
        return event

    def ack(self, event: felix.Event) -> None:
        self._wire.say("ack", subscription_id=self._id, ranges=[[event.base, len(event.values)]])
        now = time.monotonic()
        self._read.acked.update(dict.fromkeys(range(event.base, event.base + len(event.values)), now))

    def commit(self, event: felix.Event) -> None:
        """Acknowledged with an answer: from then on the group has it."""
        end = event.base + len(event.values)
        self._read.asked = end
        said = self._wire.ask("ack", subscription_id=self._id, ranges=[[event.base, len(event.values)]])
        assert said.get("type") == "ok", said
        self._read.committed = end


# -- changes of the cache, each with what to do when its answer is there -----------------------------------------------


def _ask(wire: Session, kind: str, **fields: Any) -> int:
    request = wire.number()
    wire.say(kind, **felix.cache_of(CACHE), **fields, request_id=request)
    return request


def changed(story: FelixStory, name: str, value: bytes | None, said: dict[str, Any]) -> None:
    """An answered change: it is durable, and the newest."""
    key = story.keys[name]
    assert said.get("type") == "cache_ok", said
    version = int(said["version"])
    assert key.pending.pop(0) == value, "answers come in the order of changes of a key"
    key.value = value
    story.changes += 1
    if version or value is not None:  # a key that is not there need not be deleted
        assert version > key.version, f"{name}: version {version} behind {key.version}"
        key.version = version
        story.seen(name, value, version)


def put(wire: Session, story: FelixStory, name: str, chance: random.Random) -> Callable[[], None]:
    key = story.keys[name]
    story.numbered += 1
    value = b"%d:" % story.numbered + b"v" * (story.numbered * 31 % 300)
    fields: dict[str, Any] = {"key": name, "value": felix.b64(value)}
    if not key.pending and key.version and key.value is not None and chance.random() < 0.5:
        if chance.random() < 0.3:
            request = _ask(wire, "cache_put", **fields, if_version=key.version - 1)
            return lambda: _refused(wire, story, request)
        fields["if_version"] = key.version
    request = _ask(wire, "cache_put", **fields)
    key.pending.append(value)
    return lambda: changed(story, name, value, wire.answer(request))


def _refused(wire: Session, story: FelixStory, request: int) -> None:
    said = wire.answer(request)
    assert said.get("type") == "cache_conflict", f"a put with a version of the past: {said}"
    story.conflicts += 1


def delete(wire: Session, story: FelixStory, name: str) -> Callable[[], None]:
    request = _ask(wire, "cache_delete", key=name)
    story.keys[name].pending.append(None)
    return lambda: changed(story, name, None, wire.answer(request))


def increment(wire: Session, story: FelixStory, name: str, delta: int) -> Callable[[], None]:
    counter = story.counters[name]
    counter.attempted += delta
    request = _ask(wire, "cache_incr", key=name, delta=delta)

    def answered() -> None:
        said = wire.answer(request)
        assert said.get("type") == "cache_number", said
        counter.acked += delta
        story.increments += 1
        assert said["number"] == counter.acked, f"{name} is {said['number']}, {counter.acked} were acknowledged"
        story.seen(name, b"%d" % said["number"], said["version"])

    return answered


def look(wire: Session) -> dict[str, tuple[bytes | None, int]]:
    """All there is: value and version of every key and counter."""
    names = [*KEYS, *COUNTERS]
    said = wire.ask("cache_get_many", **felix.cache_of(CACHE), keys=names)
    assert said.get("type") == "cache_values", said
    values = [None if value is None else felix.unb64(value) for value in said["values"]]
    return dict(zip(names, zip(values, said["versions"], strict=True), strict=True))
