"""BlipMQ, live sessions: connections of two keys, in every version, on a broker with a simulated disk and clock.

Invariants: a session never raises; one answer for each request, in order; a delivery was published, and its key has subscribed to
its topic; what was acknowledged is not delivered again, also after a restart; an acknowledgement for the subscription of another key
is refused with 404; a MATCH names the topics that a glob of its own finds, or nothing if the asker has seen them. The planted fault: the owner of a subscription is not compared.
"""

import contextlib
import random
import struct
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from fuzz.driver import BrokenError, Target, guarded, mutated

from quintet.broker.consumers.subscriptions import Subscriptions
from quintet.protocols.blipmq.session import BlipSession
from quintet.testing.line import Peer, SimBroker
from tests.wire import blipmq as wire
from tests.wire.records import Record, pack, split

FRAMES_PER_READ: Final = 40
NEW_BROKER_EVERY_FRAMES: Final = 20_000
RESTART_EVERY_READS: Final = 150
DAMAGED: Final = 0.05  # share of the reads
KEYS: Final = {"ann": "key-of-ann", "bob": "key-of-bob"}
TOPICS: Final = (b"orders", "grün".encode(), b"jobs")
CLIENTS: Final = (
    ("ann", 1),
    ("ann", 2),
    ("ann", wire.OURS),
    ("ann", wire.WHOLE),
    ("bob", 1),
    ("bob", 2),
    ("bob", wire.WHOLE),
)
PATTERNS: Final = (
    b"*",
    b"o*",
    b"*s",
    b"jobs",
    b"gr*",
    b"no.such.*",
)  # of MATCH: what fnmatch means by them, too
BAD_PATTERNS: Final = (b"regex:(", b"regex:a{1001}", b"", b"x" * 5_000, b"\xff")
FIRST_ID: Final = 1 << 50  # of requests; tags of a topic with one partition are smaller
SAVED_US: Final = 400_000  # progress is saved every 200 ms
NOT_FOUND: Final = 404
GIVE_BACK, WORKING, CREDIT = 1, 2, 3


def delivered(one: wire.Frame) -> Iterator[tuple[int, str, bytes]]:
    """(tag, topic, message) of each message of a delivery, of every version."""
    if one.kind != wire.RECORDS:
        yield one.delivery
        return
    (size,) = struct.unpack_from(">H", one.payload, 1)
    tag = 0
    for record in split(one.payload[3 + size :]):
        tag = tag + 1 if record.number is None else record.number
        yield tag, one.payload[3 : 3 + size].decode(), record.value or b""


def sabotage() -> None:
    """The planted fault."""

    def anyone(self: Subscriptions, _owner: str, id: int) -> Any:
        return next((found for name in KEYS if (found := find(self, name, id)) is not None), None)

    find = Subscriptions.find
    setattr(Subscriptions, "find", anyone)  # noqa: B010


def published(data: bytes) -> set[tuple[bytes, bytes]]:
    """(topic, message) of each PUBLISH that these bytes may be, also where they are damaged."""
    found, at = set(), 0
    while len(data) - at >= wire.HEAD.size:
        length, kind, _ = wire.HEAD.unpack_from(data, at)
        body = data[at + wire.HEAD.size : at + 4 + length]
        at += 4 + length
        for skipped in (1, 5):  # with a time to live
            if kind == wire.PUBLISH and len(body) >= skipped + 2:
                (size,) = struct.unpack_from(">H", body, skipped)
                start = skipped + 2
                found.add((body[start : start + size], body[start + size :]))
        if kind == wire.RECORDS and len(body) >= 3:
            (size,) = struct.unpack_from(">H", body, 1)
            with contextlib.suppress(ValueError):  # then the broker takes none of it
                found |= {(body[3 : 3 + size], record.value or b"") for record in split(body[3 + size :])}
    return found


class Client:
    """One connection, and what it asked for."""

    def __init__(self, live: "Live", key: str, version: int) -> None:
        self.key, self.version = key, version
        self.live = live
        self.peer = Peer(live.sim, BlipSession)
        self.polls = 0
        self.matched = 0  # the version of the topics that it saw last
        said = wire.frames_of(self.peer.exchange(wire.hello(1, version) + wire.auth(2, KEYS[key].encode())))
        if [(one.kind, one.id) for one in said] != [(wire.ACK, 1), (wire.ACK, 2)]:
            raise BrokenError(f"a good handshake was answered with {said}")

    def attach(self) -> None:
        """From version 2 on the key's subscriptions are pushed to this connection."""
        for id in self.live.subscriptions[self.key].values():
            if self.version >= wire.OURS:
                self.peer.feed(wire.word(FIRST_ID, CREDIT, id, 0))
            elif self.version == 2:
                self.peer.feed(wire.poll(FIRST_ID, id))
        self.live.deliveries(self, self.live.frames_of(self))


class Asked:
    """The frames of one read, and what must be answered."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.answered: list[int] = []  # ids, in order
        self.acked: Counter[int] = Counter()  # tags, for a subscription of its own
        self.foreign: Counter[int] = Counter()  # tags, for a subscription of another key
        self.settled: list[tuple[bytes, int]] = []
        self.matches: dict[int, tuple[int, tuple[bytes, ...]]] = {}  # id -> the version that was seen, and the patterns

    def add(self, data: bytes, id: int | None = None) -> None:
        self.frames.append(data)
        if id is not None:
            self.answered.append(id)


class Live(Target):
    """Clients of one broker, and the model: what was published, delivered and acknowledged."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        if sabotaged:
            sabotage()
        self.sim = SimBroker(keys=dict(KEYS))
        self.next_id = FIRST_ID
        self.sent: set[tuple[bytes, bytes]] = set()
        self.held: dict[str, dict[bytes, set[int]]] = {key: {topic: set() for topic in TOPICS} for key in KEYS}
        self.settled: dict[str, set[tuple[bytes, int]]] = {key: set() for key in KEYS}
        self.subscriptions: dict[str, dict[bytes, int]] = {key: {} for key in KEYS}
        for key in KEYS:
            client = Client(self, key, 1)
            for topic in TOPICS:
                (reply,) = wire.frames_of(client.peer.exchange(wire.subscribe(3, topic)))
                self.subscriptions[key][topic] = reply.number
            client.peer.close()
        self.connect()

    def connect(self) -> None:
        self.clients = [Client(self, *who) for who in CLIENTS]
        for client in self.clients:
            client.attach()

    def read(self, r: random.Random, number: int) -> int:
        if number % RESTART_EVERY_READS == RESTART_EVERY_READS - 1:
            self.restart()
        at = r.randrange(len(self.clients))
        client, asked = self.clients[at], Asked()
        for _ in range(r.randrange(1, FRAMES_PER_READ)):
            self.ask(r, client, asked)
        asked.add(wire.ping(self.id()), self.next_id)  # the barrier: all before it is done
        data = b"".join(asked.frames)
        damaged = r.random() < DAMAGED
        if damaged:
            data = mutated(r, data)
            self.counts["damaged reads"] += 1
        self.sent |= published(data)
        pieces = [r.choice((1, 3, 13, 50, 500)) for _ in range(r.randrange(6))]
        guarded("the session", lambda: self.feed(client, data, pieces), ())
        said = [(one, self.frames_of(one)) for one in self.clients]
        for one, frames in said:
            self.deliveries(one, frames)
        if damaged:
            client.peer.close()
            self.clients[at] = Client(self, client.key, client.version)
            self.clients[at].attach()
        else:
            self.answers(client, asked, next(frames for one, frames in said if one is client))
        if r.random() < 0.1:
            guarded("a tick", lambda: self.sim.advance(SAVED_US), ())
        return len(asked.frames)

    def id(self) -> int:
        self.next_id += 1
        return self.next_id

    def feed(self, client: Client, data: bytes, pieces: list[int]) -> None:
        client.peer.feed(data, pieces)
        self.sim.scheduler.run_until_idle()

    def ask(self, r: random.Random, client: Client, asked: Asked) -> None:
        """One more frame of the read."""
        id, topic, key = self.id(), r.choice(TOPICS), client.key
        own = self.subscriptions[key][topic]
        match r.choice(
            ("publish",) * 6
            + ("ack",) * 4
            + ("foreign", "poll", "poll", "ping", "refused", "refused", "word", "match", "set")
        ):
            case "publish":
                ttl = r.choice((None, None, 1, 60_000)) if client.version > 1 else None
                message = b"%d:" % id + r.randbytes(r.choice((0, 1, 20, 300)))
                asked.add(wire.publish(id, topic, message, r.choice((0, 1, 1)), ttl))
            case "ack" if self.held[key][topic]:
                tag = r.choice(sorted(self.held[key][topic]))
                asked.acked[tag] += 1
                asked.settled.append((topic, tag))
                asked.add(wire.ack(tag, own))
            case "foreign":
                other = next(name for name in KEYS if name != key)
                tag = r.choice(sorted(self.held[other][topic]) or [1])
                asked.foreign[tag] += 1
                asked.add(wire.ack(tag, self.subscriptions[other][topic]))
            case "poll":
                client.polls += 1
                asked.add(wire.poll(id, own))
            case "ping":
                asked.add(wire.ping(id), id)
            case "refused":
                asked.add(
                    r.choice(
                        (
                            wire.hello(id, 1), wire.auth(id, b"x"), wire.subscribe(id, b""), wire.subscribe(id, topic, 7),
                            wire.publish(id, b"__topics", b"x"), wire.frame(wire.SUBSCRIBE, id, r.randbytes(2)),
                        )
                    ),
                    id,
                )  # fmt: skip
            case "match" if client.version == wire.WHOLE:
                wrong = r.random() < 0.2
                patterns = tuple(r.choices(BAD_PATTERNS if wrong else PATTERNS, k=r.randrange(1, 4)))
                if not wrong:
                    asked.matches[id] = (r.choice((0, client.matched)), patterns)
                asked.add(wire.match(id, asked.matches.get(id, (0, ()))[0], *patterns), id)
            case "set" if client.version == wire.WHOLE:
                header = (r.choice((b"h", b"trace")), r.choice((None, b"", r.randbytes(20))))
                sound = [
                    Record(b"%d:%d" % (id, at), r.choice((None, b"k")), (header,)) for at in range(r.randrange(1, 4))
                ]
                refused = r.random() < 0.2
                bad = pack(*sound, Record(b"", None, ((r.choice((b"quintet-x", b"", b"\xff")), b""),)))
                asked.add(
                    wire.records(id, topic, r.choice((0, 1, 1)), bad if refused else pack(*sound)),
                    id if refused else None,
                )
            case "word" if client.version >= wire.OURS:
                word, tag = r.choice((GIVE_BACK, WORKING)), r.choice(sorted(self.held[key][topic]) or [1])
                asked.acked[tag] += 1  # giving back what is not held is refused with its tag, too
                asked.add(wire.word(tag, word, own, r.choice((0, 1, 1000))))

    # -- the model ---------------------------------------------------------------------------------------------------------

    def frames_of(self, client: Client) -> list[wire.Frame]:
        try:
            return wire.frames_of(client.peer.take())
        except (AssertionError, ValueError) as error:
            raise BrokenError(f"what {client.key} was sent is no frames: {error}") from error

    def deliveries(self, client: Client, frames: list[wire.Frame]) -> None:
        for one in frames:
            if one.kind not in (wire.PUBLISH, wire.DELIVER, wire.RECORDS):
                continue
            if one.kind == wire.PUBLISH:
                client.polls -= 1
                if client.polls < 0:
                    raise BrokenError("a connection of version 1 was sent more than it polled for")
            for tag, name, message in delivered(one):
                self.delivery(client, tag, name, message, bool(one.payload[0] & 1))

    def delivery(self, client: Client, tag: int, name: str, message: bytes, kept: bool) -> None:
        self.counts["deliveries"] += 1
        topic = name.encode()
        if topic not in self.subscriptions[client.key] or (topic, message) not in self.sent:
            raise BrokenError(f"{client.key} was sent {message[:40]!r} of {name}, which was not published")
        if kept:  # with QoS 0 there is nothing to acknowledge
            if (topic, tag) in self.settled[client.key]:
                raise BrokenError(f"{client.key} was sent {name} {tag} again, which it had acknowledged")
            self.held[client.key][topic].add(tag)

    def matches(self, client: Client, asked: Asked, frames: list[wire.Frame]) -> None:
        """A MATCH is refused if it makes no sense, or another is under way; else it has the names, unless nothing changed."""
        for one in frames:
            if one.kind != wire.MATCH:
                continue
            self.counts["matches"] += 1
            seen, patterns = asked.matches[one.id]
            client.matched, changed, names = wire.matched(one.payload)
            there = {*TOPICS, *names}  # a damaged publish makes topics of other names
            found = {name for name in there for text in patterns if fnmatchcase(name.decode(), text.decode())}
            if set(names) != (found if changed else set()) or (not changed and seen != client.matched):
                raise BrokenError(f"MATCH {patterns!r} of version {seen} was answered with {changed} {names!r}")

    def answers(self, client: Client, asked: Asked, frames: list[wire.Frame]) -> None:
        if client.peer.session.closing is not None:
            raise BrokenError(f"sound frames ended a session: {client.peer.session.closing}")
        answers = (wire.ACK, wire.NACK, wire.PONG, wire.MATCH)
        answered = [one.id for one in frames if one.kind in answers and one.id >= FIRST_ID]
        if answered != asked.answered:
            raise BrokenError(f"the requests {asked.answered} were answered as {answered}")
        self.matches(client, asked, frames)
        refused = Counter(one.id for one in frames if one.kind == wire.NACK and one.id < FIRST_ID)
        for tag, count in (asked.foreign | refused).items():
            if not asked.foreign[tag] <= refused[tag] <= asked.foreign[tag] + asked.acked[tag]:
                raise BrokenError(f"{refused[tag]} of {count} acknowledgements of {tag} were refused")
        if any(one.refusal[0] != NOT_FOUND for one in frames if one.kind == wire.NACK and one.id < FIRST_ID):
            raise BrokenError("an acknowledgement was refused with another code than 404")
        self.counts["refused acknowledgements"] += refused.total()
        for topic, tag in asked.settled:
            self.held[client.key][topic].discard(tag)
            if refused[tag] == asked.foreign[tag]:
                self.settled[client.key].add((topic, tag))
                self.counts["settled"] += 1

    def restart(self) -> None:
        """A clean stop keeps every acknowledgement."""
        self.counts["restarts"] += 1
        for client in self.clients:
            self.deliveries(client, self.frames_of(client))
            client.peer.close()
        guarded("a tick", lambda: self.sim.advance(SAVED_US), ())
        guarded("a restart", self.sim.restart, ())
        self.connect()
