"""Invariants: a session never raises; one answer for each request, in order; nothing without its key; it stays usable.

Live sessions of the Fast TCP door on a broker with a simulated disk. Requests are made packet by packet with tokens that are
good, forged, expired, for another key or left out, pipelined, damaged and cut anywhere. What the bytes say is found by a plain
reader here, and a model of a few lines says of every request whether it may be done: who holds the key that a topic has
at that moment. `python fuzz/fast_live.py --frames N --seed S` ends with a verdict and an exit code (0 held, 1 broken).
`--sabotage` plants a fault (keys are not compared), which must be caught.
"""

import argparse
import gc
import random
import resource
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.doors import queues
from quintet.broker.identity.tokens import TokenOptions
from quintet.broker.topics.catalog import TopicPolicy, TopicRule
from quintet.model import tasks
from quintet.protocols.fast.section import FastListener
from quintet.protocols.fast.session import FastDoor, FastSession
from quintet.testing.line import Peer, SimBroker
from tests.crash import fast_wire
from tests.kernel import fast_packets, generate

PACKETS_PER_READ = 30
NEW_BROKER_EVERY_PACKETS = 10_000
PROBE_EVERY_READS = 30
UPSETS = 0.01  # share of reads behind which something happens to the broker
PAYLOAD_MAX = 4096
GROWTH_MAX_MIB = 1024  # of the process in a whole run: the disk of one broker is memory here
KEYS = ("k1", "k2", "k3")
NAMES = ("orders", "grün", "queue", "late", "memory")
BAD_NAMES = (b"", b"\xff", b"__topics", b"a\0b", b"n" * 255)
FLAGS = {"orders": 1, "grün": 3, "queue": 5, "late": 9, "memory": 0}
RIGHTS = ("publish", "subscribe", "rotate")
REFUSED = (401, 403, 404, 419)  # codes that say: not you
ENDED = 410


class BrokenError(Exception):
    """An invariant does not hold."""


class Bearer(NamedTuple):
    """What a token of ours is worth; key "" is one that must never be accepted."""

    key: str
    rights: tuple[str, ...]


def make_tokens() -> dict[bytes, Bearer]:
    made = {}
    for key in KEYS:
        for rights in (RIGHTS, ("publish",), ("subscribe",), ()):
            made[fast_wire.token("ann", key, *rights)] = Bearer(key, rights)
    nobody = Bearer("", ())
    good = fast_wire.token("ann", "k1", *RIGHTS)
    made[fast_wire.token("eve", "k1", *RIGHTS, secret=b"another secret of 32 bytes and so")] = nobody
    made[fast_wire.token("eve", "k1", *RIGHTS, header='{"alg":"none"}')] = nobody
    made[fast_wire.token("eve", "k1", *RIGHTS, exp=1_000)] = nobody
    made[fast_wire.token("eve", "k1", *RIGHTS, nbf=1 << 40)] = nobody
    made[good[:-1] + (b"A" if good[-1:] != b"A" else b"B")] = nobody
    made[b""] = made[b"x.y.z"] = nobody
    return made


TOKENS = make_tokens()
GOOD = [token for token, bearer in TOKENS.items() if bearer.key]
BAD = [token for token, bearer in TOKENS.items() if not bearer.key]


# -- making and reading ------------------------------------------------------------------------------------------------


def make_request(r: random.Random, keys: dict[int, str], strict: bool) -> bytes:
    name = r.choice(NAMES)
    topic = fast_wire.number(name) if r.random() < 0.97 else r.getrandbits(32)
    jwt = r.choice(BAD if r.random() < 0.05 else GOOD)
    if r.random() < 0.8:
        jwt = r.choice([token for token, bearer in TOKENS.items() if bearer.key == keys.get(topic, "k1")] or GOOD)
    if not strict and r.random() < 0.3:
        jwt = b""  # the last that was accepted
    kind = r.choice((3, 3, 3, 2, 5) if strict else (3,) * 12 + (1, 1, 2, 2, 5, 7, 7, 0x70))
    if kind == 1:
        raw = name.encode() if r.random() < 0.9 else r.choice(BAD_NAMES)
        return fast_packets.create(jwt, raw, FLAGS.get(name, 0) if r.random() < 0.7 else r.randrange(256))
    if kind == 7:
        key = (
            r.choice(KEYS).encode()
            if r.random() < 0.9
            else r.choice((b"", b"\xff\xfe", b"k" * 255)[: 2 + (r.random() < 0.1)])
        )
        return fast_packets.rotate(jwt, topic, key)
    if kind == 0x70:
        return fast_packets.extend(1 if r.random() < 0.8 else r.randrange(256))
    if kind == 3:
        size = r.choice((0, 1, 20, 300)) if r.random() < 0.99 else PAYLOAD_MAX
        run = r.choice((1, 1, 1, 4))
        return b"".join(fast_packets.publish(jwt, topic, r.randbytes(size)) for _ in range(run))
    return fast_packets.subscribe(jwt, topic, kind)


def read_requests(data: bytes) -> tuple[list[tuple[Any, ...]], bool]:
    """Whole requests in these bytes, and whether behind them is something that ends a connection."""
    out: list[tuple[Any, ...]] = []
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if len(data) - at < size:
            raise EOFError
        at += size
        return data[at - size : at]

    while True:
        try:
            kind = take(1)[0]
            if kind == 0x70:
                out.append((kind, 0, take(1)[0]))
                continue
            if kind not in (1, 2, 3, 5, 7):
                return out, True
            jwt = take(take(1)[0])
            if kind == 1:
                name = take(take(1)[0])
                out.append((kind, number_of(name), jwt, name, take(1)[0]))
                continue
            (topic,) = struct.unpack(">I", take(4))
            if kind == 3:
                (size,) = struct.unpack(">I", take(4))
                if size > PAYLOAD_MAX:
                    return out, True
                out.append((kind, topic, jwt, take(size)))
            else:
                out.append((kind, topic, jwt, take(take(1)[0]) if kind == 7 else b""))
        except EOFError:
            return out, False


def number_of(name: bytes) -> int:
    found = 0x811C9DC5
    for byte in name:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


class Said(NamedTuple):
    """What came back: (request, topic, code) of answers, (topic, payload) of messages, topics of key updates."""

    answers: list[tuple[int, int, int]]
    messages: list[tuple[int, bytes]]
    updates: list[tuple[int, bytes]]


def read_answers(data: bytes) -> Said:
    said = Said([], [], [])
    at = 0
    while at < len(data):
        kind = data[at]
        if kind == 4:
            topic, size = struct.unpack_from(">II", data, at + 1)
            said.messages.append((topic, data[at + 9 : at + 9 + size]))
            at += 9 + size
        elif kind == 6:
            topic, size = struct.unpack_from(">IB", data, at + 1)
            said.updates.append((topic, data[at + 6 : at + 6 + size]))
            at += 6 + size
        elif kind in (0x7E, 0x7F):
            request, topic, code, size = struct.unpack_from(">BIHB", data, at + 1)
            data[at + 9 : at + 9 + size].decode()
            if (kind == 0x7E) is not (code == 0) or (code == 0 and size):
                raise BrokenError(f"an answer of type {kind:#x} with code {code}")
            if code != ENDED:
                said.answers.append((request, topic, code))
            at += 9 + size
        else:
            raise BrokenError(f"a packet of type {kind:#x} was sent")
    if at != len(data):
        raise BrokenError("the output ends inside a packet")
    return said


# -- live --------------------------------------------------------------------------------------------------------------


class Client:
    """A connection and what it may have been told."""

    def __init__(self, live: "Live", strict: bool) -> None:
        self.strict = strict  # no answers: what it asked for is only seen by what it gets
        self.peer = Peer(live.sim, lambda _, sink, now: FastSession(live.door, sink, now, "10.0.0.1:99"))
        self.subscribed: set[int] = set()
        self.rest = b""
        self.same = b"" if strict else GOOD[0]
        self.exchange((b"" if strict else fast_packets.extend(1)) + fast_packets.subscribe(GOOD[0], 0))

    def exchange(self, data: bytes, cuts: list[int] | None = None) -> bytes:
        return self.peer.exchange(data, cuts)

    def meant(self, requests: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The requests with the tokens that are meant by empty ones: the last that was good on this connection."""
        if self.strict:
            return requests
        out = []
        for one in requests:
            jwt = one[2]
            if one[0] != 0x70:
                jwt = jwt or self.same
                self.same = jwt if jwt in GOOD else self.same
            out.append((*one[:2], jwt, *one[3:]))
        return out


class Live:
    """Clients of one broker, and the model: the key each topic has."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        policy = TopicPolicy([TopicRule("*")], topics_max=30)
        self.sim = SimBroker(options=BrokerOptions(topics=policy))
        self.keys: dict[int, str] = {}
        self.durable: set[int] = set()
        self.sent: dict[int, set[bytes]] = {}
        self.open()

    def open(self) -> None:
        self.sim.broker.set_tokens(TokenOptions(secrets=(fast_wire.MASTER,)))
        self.door = FastDoor(self.sim.broker, FastListener(payload_bytes_max=PAYLOAD_MAX, auth_failures_max=300))
        self.clients = [Client(self, strict=number == 0) for number in range(5)]

    def upset(self, r: random.Random) -> None:
        """A topic is deleted behind the back of those who use it, or the broker is stopped and started."""
        self.others_hear()
        if r.random() < 0.7:
            self.counts["topics deleted"] += 1
            name = r.choice(NAMES)
            tasks.start(self.sim.broker.delete_topic(name.encode()))
            self.sim.advance(100_000)
            self.keys.pop(fast_wire.number(name), None)
            self.durable.discard(fast_wire.number(name))
            return
        self.counts["restarts"] += 1
        for client in self.clients:
            client.peer.close()
        self.sim.restart()
        self.keys = {topic: key for topic, key in self.keys.items() if topic in self.durable}
        self.open()

    def run(self, r: random.Random, number: int) -> int:
        at = r.randrange(len(self.clients))
        client = self.clients[at]
        data = b"".join(make_request(r, self.keys, client.strict) for _ in range(r.randrange(1, PACKETS_PER_READ)))
        if r.random() < 0.3:
            data = generate.mutated(r, data)
            self.counts["damaged reads"] += 1
        cuts = [r.choice((1, 2, 9, 50, 500)) for _ in range(r.randrange(8))]
        requests, fatal = read_requests(client.rest + data)
        if client.strict and any(one[0] in (1, 7, 0x70) for one in requests):
            return 0  # whether these were done, nobody would say
        try:
            said = read_answers(client.exchange(data, cuts))
            if r.random() < 0.05:
                self.sim.advance(r.choice((50_000, 2_000_000, 70_000_000)), 10_000_000)
        except Exception as error:
            raise BrokenError(f"the session raised {type(error).__name__}: {error}") from error
        client.rest = unread(client.rest + data, requests)
        self.judge(client, client.meant(requests), said, fatal)
        if client.peer.session.closing is not None or r.random() < 0.01:
            self.counts["closed"] += 1
            client.peer.close()
            self.clients[at] = Client(self, client.strict)
        if number % PROBE_EVERY_READS == 0:
            self.others_hear()
            self.probe()
        if r.random() < UPSETS:
            try:
                self.upset(r)
            except BrokenError:
                raise
            except Exception as error:
                raise BrokenError(f"an upset raised {type(error).__name__}: {error}") from error
        return len(requests)

    def judge(self, client: Client, requests: list[tuple[Any, ...]], said: Said, fatal: bool) -> None:
        closing = client.peer.session.closing
        if fatal and closing is None:
            raise BrokenError("bytes that cannot be passed over did not end the connection")
        if client.strict:
            self.follow_strict(client, requests, said)
            return
        wanted = [(one[0], one[1]) for one in requests]
        got = [(request, topic) for request, topic, _ in said.answers]
        if closing is None and sorted(got) != sorted(wanted):
            raise BrokenError(f"{len(got)} answers to {len(wanted)} requests")
        if closing is not None and len(got) > len(wanted):
            raise BrokenError("more answers than requests")
        self.follow(client, requests, said.answers, closing is not None)
        self.heard(client, said)

    def follow_strict(self, client: Client, requests: list[tuple[Any, ...]], said: Said) -> None:
        if said.answers:
            raise BrokenError(f"a strict client got answers: {said.answers[:3]}")
        self.counts["strict requests"] += len(requests)
        for one in requests:
            if one[0] == 3 and self.may(one[2], one[1], "publish"):
                self.sent.setdefault(one[1], set()).add(one[3])
            elif one[0] == 2 and self.may(one[2], one[1], "subscribe"):
                client.subscribed.add(one[1])
        self.heard(client, said)

    def follow(
        self, client: Client, requests: list[tuple[Any, ...]], answers: list[tuple[int, int, int]], ended: bool
    ) -> None:
        """Request by request, with the answer it got: was it the model's? Answers to publishes of one topic and token keep
        their order; those of a window are matched by what decides them."""
        left = list(answers)
        window: list[tuple[Any, ...]] = []
        for one in (*requests, None):
            if one is not None and one[0] == 3:
                window.append(one)
                continue
            self.window(window, left[: len(window)], ended)
            left = left[len(window) :]
            window = []
            if one is None or not left:
                break
            request, topic, code = left.pop(0)
            if (request, topic) != (one[0], one[1]):
                raise BrokenError(f"an answer to {(request, topic)} where {one[:2]} was next")
            self.decided(client, one, code)

    def window(self, window: list[tuple[Any, ...]], answers: list[tuple[int, int, int]], ended: bool) -> None:
        for topic in {one[1] for one in window}:
            mine = [one for one in window if one[1] == topic]
            codes = [code for request, about, code in answers if (request, about) == (3, topic)]
            if len(codes) != len(mine) and not ended:
                raise BrokenError(f"{len(codes)} answers to {len(mine)} publishes to {topic:08x}")
            fine = [one for one in mine if self.may(one[2], topic, "publish")]
            accepted = codes.count(0)
            refused = sum(code in REFUSED for code in codes)
            if accepted > len(fine) or refused > len(mine) - len(fine):
                raise BrokenError(f"{accepted} publishes were accepted and {refused} refused, {len(fine)} had the key")
            self.counts["published"] += accepted
            self.counts["publishes refused"] += refused
            self.sent.setdefault(topic, set()).update(one[3] for one in fine)

    def decided(self, client: Client, one: tuple[Any, ...], code: int) -> None:
        kind, topic = one[0], one[1]
        self.counts[f"{fast_names(kind)} {'done' if code == 0 else code}"] += 1
        if kind == 0x70:
            if (code == 0) is not (one[2] in (1, 2)):
                raise BrokenError(f"EXTEND {one[2]} was answered with {code}")
            return
        bearer = TOKENS.get(one[2], Bearer("", ()))
        if kind == 1:
            fine = bool(bearer.key) and self.keys.get(topic, bearer.key) == bearer.key
        elif kind == 5:
            # Any valid token ends a subscription of this very connection.
            fine = bool(bearer.key) and (topic in client.subscribed or self.may(one[2], topic, "subscribe"))
        else:
            fine = self.may(one[2], topic, {2: "subscribe", 7: "rotate"}[kind])
        if code == 0 and not fine:
            raise BrokenError(f"{fast_names(kind)} on {topic:08x} was done without its key or right")
        if fine and code in REFUSED and not (kind == 1 and code == 403) and kind != 5:
            raise BrokenError(f"{fast_names(kind)} on {topic:08x} was refused with {code}, but had key and right")
        if code == 0 and kind == 1:
            if topic not in self.keys and one[4] & 1:
                self.durable.add(topic)
            self.keys[topic] = bearer.key
        elif code == 0 and kind == 7:
            self.keys[topic] = one[3].decode()
        elif code == 0 and kind == 2:
            client.subscribed.add(topic)

    def may(self, token: bytes, topic: int, right: str) -> bool:
        bearer = TOKENS.get(token, Bearer("", ()))
        return bool(bearer.key) and self.keys.get(topic) == bearer.key and right in bearer.rights

    def heard(self, client: Client, said: Said) -> None:
        for topic, payload in said.messages:
            self.counts["messages"] += 1
            if topic not in client.subscribed:
                raise BrokenError(f"a message of {topic:08x} came to a connection that never subscribed to it")
            if payload not in self.sent.get(topic, ()):
                raise BrokenError(f"a message of {topic:08x} was never published there with its key")
        for topic, _ in said.updates:
            self.counts["key updates"] += 1
            if topic not in client.subscribed:
                raise BrokenError(f"a key of {topic:08x} was told to a connection that never subscribed to it")

    def others_hear(self) -> None:
        for client in self.clients:
            self.heard(client, read_answers(client.peer.take()))

    def probe(self) -> None:
        """The broker still does its work for somebody else."""
        probe = Peer(self.sim, lambda _, sink, now: FastSession(self.door, sink, now, "10.0.0.2:9"))
        jwt, topic = fast_wire.token("probe", "probe", "publish", "subscribe"), fast_wire.number("probe")
        said = read_answers(
            probe.exchange(
                fast_packets.extend(1)
                + fast_wire.create(jwt, "probe", 0)
                + fast_packets.subscribe(jwt, topic)
                + fast_wire.publish(jwt, topic, b"here")
            )
        )
        if [code for _, _, code in said.answers] != [0] * 4 or said.messages != [(topic, b"here")]:
            raise BrokenError(f"the probe was not served: {said}")
        probe.close()


def unread(data: bytes, requests: list[tuple[Any, ...]]) -> bytes:
    """What is behind the last whole request."""
    sizes = {1: 4, 2: 6, 3: 10, 5: 6, 7: 7, 0x70: 2}
    used = 0
    for one in requests:
        used += sizes[one[0]]
        if one[0] != 0x70:
            used += len(one[2]) + (len(one[3]) if one[0] in (1, 3, 7) else 0)
    return data[used:]


def fast_names(kind: int) -> str:
    return {1: "create", 2: "subscribe", 5: "unsubscribe", 7: "rotate", 0x70: "extend"}[kind]


def sabotage() -> None:
    """The planted fault: no key is compared with another."""
    setattr(queues, "hmac", SimpleNamespace(compare_digest=lambda a, b: True))  # noqa: B010


def run(packets: int, seed: int, counts: Counter[str]) -> int:
    """Requests that were run; BrokenError says with which read it broke."""
    done = number = 0
    live = Live(counts)
    renew = NEW_BROKER_EVERY_PACKETS
    while done < packets:
        r = random.Random(seed * 1_000_003 + number)
        try:
            done += live.run(r, number)
        except BrokenError as error:
            raise BrokenError(f"read {number} of seed {seed}: {error}") from error
        number += 1
        if done >= renew:
            renew += NEW_BROKER_EVERY_PACKETS
            live = Live(counts)
            gc.collect()  # the disk of the one before
    counts["reads"] = number
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz live sessions of the Fast TCP door.")
    parser.add_argument("--frames", type=int, default=100_000, help="requests")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument("--sabotage", action="store_true", help="plant a fault that must be caught")
    options = parser.parse_args()
    print(f"seed {options.seed}, twin {'native' if kernel.NATIVE else 'pure'}, frames {options.frames}")
    if options.sabotage:
        sabotage()
    counts: Counter[str] = Counter()
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        done = run(options.frames, options.seed, counts)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
        if grown > GROWTH_MAX_MIB:
            raise BrokenError(f"the process grew by {grown} MiB")
    except BrokenError as error:
        print(f"BROKEN: {error}")
        print("verdict: planted fault caught" if options.sabotage else "verdict: an invariant does not hold")
        return 0 if options.sabotage else 1
    print(f"{done} requests in {time.perf_counter() - start:.1f} s, {grown} MiB more at most")
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print("verdict: PLANTED FAULT MISSED" if options.sabotage else "verdict: all invariants held")
    return 1 if options.sabotage else 0


if __name__ == "__main__":
    sys.exit(main())
