"""Fast TCP Pub/Sub: the codec of the kernel, and live sessions on a broker with a simulated disk.

Codec: only ValueError; consumed is whole packets; every chunking gives what the bytes say (tests/wire/fast.py); native == pure.
The planted fault: a PUBLISH right behind another to the same topic is taken under the other's token.

Live: a session never raises; one answer for each request, in order; nothing without its key; it stays usable. Requests have
tokens that are good, forged, expired, for another key or left out; they are pipelined, damaged and cut anywhere. A model of a
few lines says of every request whether it may be done: who holds the key that a topic has at that moment.
The planted fault: no key is compared with another.
"""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, NamedTuple

from fuzz.driver import BrokenError, Fuzzer, Half, Target, TwinCodec, compare_deliveries, cuts, guarded, mutated

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.doors import queues
from quintet.broker.identity.tokens import TokenOptions
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.kernel import pure
from quintet.model import tasks
from quintet.protocols.fast.section import FastListener
from quintet.protocols.fast.session import FastDoor, FastSession
from quintet.testing.line import Peer, SimBroker
from tests.kernel import fast_packets
from tests.kernel.fast_packets import NOW, PAYLOAD_MAX, SAMES, TOPICS
from tests.wire import fast
from tests.wire.fast import Fields

PACKETS_PER_READ = 40
MAX_CUTS = 6
KNOWN = {jwt: fast_packets.origin_of(jwt) for jwt in fast_packets.TOKENS}


# -- the codec ---------------------------------------------------------------------------------------------------------


class Sabotaged:
    """The native twin with the planted fault."""

    rows = staticmethod(kernel.rows)

    @staticmethod
    def fast_split(*args: Any) -> tuple[list[Fields], int, int, bytes | None, bytes | None]:
        split, consumed, fatal, unknown, same = kernel.fast_split(*args)
        items: list[Fields] = list(split)
        for i in range(1, len(items)):
            if items[i][0] == items[i - 1][0] == 3 and items[i][2] == items[i - 1][2]:
                items[i] = (3, items[i - 1][1], *items[i][2:])
        return items, consumed, fatal, unknown, same


def check_read(twin: Any, data: bytes, r: random.Random) -> int:
    """The packets of a read whose split held what it owes, in one piece and in some."""
    fields, consumed, fatal = fast.requests(data, PAYLOAD_MAX)
    same = r.choice(SAMES)
    want = fast_packets.expected(fields, same), consumed, fatal
    for chunking in ([], cuts(r, len(data), MAX_CUTS)):
        try:
            got = fast_packets.read_all(twin, data, chunking, same)
        except Exception as error:
            raise BrokenError(f"fast_split raised {type(error).__name__}: {error}") from error
        if got != want:
            raise BrokenError(f"cut at {chunking}, same {same!r}, the split differs from what the bytes say")
    return len(fields)


def check_replies(data: bytes, r: random.Random) -> None:
    items, consumed, fatal = kernel.fast_received(data, 0, PAYLOAD_MAX)
    if not 0 <= consumed <= len(data) or fatal not in (0, 1, 2, 3):
        raise BrokenError("fast_received ends outside the read, or with an unknown number")
    cut = r.randrange(len(data) + 1)
    _, position, early = kernel.fast_received(data[:cut], 0, PAYLOAD_MAX)
    if (consumed, fatal) != ((position, early) if early else kernel.fast_received(data, position, PAYLOAD_MAX)[1:]):
        raise BrokenError(f"cut at {cut}, fast_received ends elsewhere")
    if (items, consumed, fatal) != pure.fast_received(data, 0, PAYLOAD_MAX):
        raise BrokenError("fast_received and its pure twin differ")


def check_sample(data: bytes, r: random.Random) -> None:
    args = data, r.randrange(len(data) + 1), r.choice((1, 60, PAYLOAD_MAX)), KNOWN, TOPICS, NOW, r.choice(SAMES)
    if kernel.fast_split(*args) != pure.fast_split(*args):
        raise BrokenError("fast_split and its pure twin differ")
    compare_deliveries("fast_deliver", r, lambda twin, batch, count: twin.fast_deliver(7, batch, 0, count, 100))


class Codec(TwinCodec):
    """Random requests and replies through both twins."""

    def make(self, r: random.Random) -> tuple[bytes, bytes]:
        data = b"".join(map(fast.request, fast_packets.requests(r, r.randrange(1, PACKETS_PER_READ))))
        return data, b"".join(fast_packets.replies(r, r.randrange(1, PACKETS_PER_READ)))

    def judge(self, data: bytes, answer: bytes, r: random.Random) -> int:
        done = check_read(Sabotaged if self.sabotaged else kernel, data, r)
        check_replies(answer, r)
        return done

    def compare(self, data: bytes, r: random.Random) -> None:
        check_sample(data, r)


# -- live sessions: what is sent and what comes back ---------------------------------------------------------------------

LIVE_PACKETS_PER_READ = 30
NEW_BROKER_EVERY_PACKETS = 10_000
PROBE_EVERY_READS = 30
UPSETS = 0.01  # share of reads behind which something happens to the broker
LIVE_PAYLOAD_MAX = 4096
KEYS = ("k1", "k2", "k3")
NAMES = ("orders", "grün", "queue", "late", "memory")
BAD_NAMES = (b"", b"\xff", b"__topics", b"a\0b", b"n" * 255)
FLAGS = {"orders": 1, "grün": 3, "queue": 5, "late": 9, "memory": 0}
RIGHTS = ("publish", "subscribe", "rotate")
REFUSED = (401, 403, 404, 419)  # codes that say: not you
ENDED = 410


class Bearer(NamedTuple):
    """What a token of ours is worth; key "" is one that must never be accepted."""

    key: str
    rights: tuple[str, ...]


def make_tokens() -> dict[bytes, Bearer]:
    made = {}
    for key in KEYS:
        for rights in (RIGHTS, ("publish",), ("subscribe",), ()):
            made[fast.token("ann", key, *rights)] = Bearer(key, rights)
    nobody = Bearer("", ())
    good = fast.token("ann", "k1", *RIGHTS)
    made[fast.token("eve", "k1", *RIGHTS, secret=b"another secret of 32 bytes and so")] = nobody
    made[fast.token("eve", "k1", *RIGHTS, header='{"alg":"none"}')] = nobody
    made[fast.token("eve", "k1", *RIGHTS, exp=1_000)] = nobody
    made[fast.token("eve", "k1", *RIGHTS, nbf=1 << 40)] = nobody
    made[good[:-1] + (b"A" if good[-1:] != b"A" else b"B")] = nobody
    made[b""] = made[b"x.y.z"] = nobody
    return made


TOKENS = make_tokens()
GOOD = [token for token, bearer in TOKENS.items() if bearer.key]
BAD = [token for token, bearer in TOKENS.items() if not bearer.key]


def make_request(r: random.Random, keys: dict[int, str], strict: bool) -> bytes:
    name = r.choice(NAMES)
    topic = fast.topic_id(name.encode()) if r.random() < 0.97 else r.getrandbits(32)
    jwt = r.choice(BAD if r.random() < 0.05 else GOOD)
    if r.random() < 0.8:
        jwt = r.choice([token for token, bearer in TOKENS.items() if bearer.key == keys.get(topic, "k1")] or GOOD)
    if not strict and r.random() < 0.3:
        jwt = b""  # the last that was accepted
    kind = r.choice((3, 3, 3, 2, 5) if strict else (3,) * 12 + (1, 1, 2, 2, 5, 7, 7, 0x70))
    if kind == 1:
        raw = name.encode() if r.random() < 0.9 else r.choice(BAD_NAMES)
        return fast.create(jwt, raw, FLAGS.get(name, 0) if r.random() < 0.7 else r.randrange(256))
    if kind == 7:
        key = (
            r.choice(KEYS).encode()
            if r.random() < 0.9
            else r.choice((b"", b"\xff\xfe", b"k" * 255)[: 2 + (r.random() < 0.1)])
        )
        return fast.rotate_key(jwt, topic, key)
    if kind == 0x70:
        return fast.extend(1 if r.random() < 0.8 else r.randrange(256))
    if kind == 3:
        size = r.choice((0, 1, 20, 300)) if r.random() < 0.99 else LIVE_PAYLOAD_MAX
        run = r.choice((1, 1, 1, 4))
        return b"".join(fast.publish(jwt, topic, r.randbytes(size)) for _ in range(run))
    return fast.subscribe(jwt, topic) if kind == 2 else fast.unsubscribe(jwt, topic)


class Request(NamedTuple):
    """A request as the model looks at it."""

    kind: int
    topic: int
    jwt: bytes
    data: bytes  # payload, name or key
    number: int  # flags, or the version of EXTEND


def meaning(fields: Fields) -> Request:
    match fields:
        case (0x70, version):
            return Request(0x70, 0, b"", b"", version)
        case (1, jwt, name, flags):
            return Request(1, fast.topic_id(name), jwt, name, flags)
        case (kind, jwt, topic, *data):
            return Request(kind, topic, jwt, data[0] if data else b"", 0)
    raise AssertionError(fields)


class Said(NamedTuple):
    """What came back: (request, topic, code) of answers, (topic, payload) of messages, topics of key updates."""

    answers: list[tuple[int, int, int]]
    messages: list[tuple[int, bytes]]
    updates: list[tuple[int, bytes]]


def read_answers(data: bytes) -> Said:
    said = Said([], [], [])
    for one in guarded("a reader of the output", lambda: fast.packets_of(data), ()):
        if isinstance(one, fast.Message):
            said.messages.append(one)
        elif isinstance(one, fast.KeyUpdate):
            said.updates.append(one)
        elif one.code != ENDED:
            said.answers.append(one[:3])
    return said


# -- live sessions: the model --------------------------------------------------------------------------------------------


class Client:
    """A connection and what it may have been told."""

    def __init__(self, live: "Live", strict: bool) -> None:
        self.strict = strict  # no answers: what it asked for is only seen by what it gets
        self.peer = Peer(live.sim, lambda _, sink, now: FastSession(live.door, sink, now, "10.0.0.1:99"))
        self.subscribed: set[int] = set()
        self.rest = b""
        self.same = b"" if strict else GOOD[0]
        self.exchange((b"" if strict else fast.extend()) + fast.subscribe(GOOD[0], 0))

    def exchange(self, data: bytes, cuts: list[int] | None = None) -> bytes:
        return self.peer.exchange(data, cuts)

    def meant(self, requests: list[Request]) -> list[Request]:
        """The requests with the tokens that are meant by empty ones: the last that was good on this connection."""
        if self.strict:
            return requests
        out = []
        for one in requests:
            if one.kind != 0x70:
                one = one._replace(jwt=one.jwt or self.same)
                self.same = one.jwt if one.jwt in GOOD else self.same
            out.append(one)
        return out


class Live(Target):
    """Clients of one broker, and the model: the key each topic has."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        if sabotaged:
            sabotage()
        policy = TopicPolicy([TopicRule("*")], topics_max=30)
        self.sim = SimBroker(options=BrokerOptions(topics=policy))
        self.keys: dict[int, str] = {}
        self.durable: set[int] = set()
        self.sent: dict[int, set[bytes]] = {}
        self.open()

    def open(self) -> None:
        self.sim.broker.set_tokens(TokenOptions(secrets=(fast.MASTER,)))
        self.door = FastDoor(self.sim.broker, FastListener(payload_bytes_max=LIVE_PAYLOAD_MAX, auth_failures_max=300))
        self.clients = [Client(self, strict=number == 0) for number in range(5)]

    def upset(self, r: random.Random) -> None:
        """A topic is deleted behind the back of those who use it, or the broker is stopped and started."""
        self.others_hear()
        if r.random() < 0.7:
            self.counts["topics deleted"] += 1
            name = r.choice(NAMES)
            tasks.start(self.sim.broker.delete_topic(name.encode()))
            self.sim.advance(100_000)
            self.keys.pop(fast.topic_id(name.encode()), None)
            self.durable.discard(fast.topic_id(name.encode()))
            return
        self.counts["restarts"] += 1
        for client in self.clients:
            client.peer.close()
        self.sim.restart()
        self.keys = {topic: key for topic, key in self.keys.items() if topic in self.durable}
        self.open()

    def read(self, r: random.Random, number: int) -> int:
        at = r.randrange(len(self.clients))
        client = self.clients[at]
        data = b"".join(make_request(r, self.keys, client.strict) for _ in range(r.randrange(1, LIVE_PACKETS_PER_READ)))
        if r.random() < 0.3:
            data = mutated(r, data)
            self.counts["damaged reads"] += 1
        pieces = [r.choice((1, 2, 9, 50, 500)) for _ in range(r.randrange(8))]
        given = client.rest + data
        fields, consumed, fatal = fast.requests(given, LIVE_PAYLOAD_MAX)
        requests = [meaning(one) for one in fields]
        if client.strict and any(one.kind in (1, 7, 0x70) for one in requests):
            return 0  # whether these were done, nobody would say
        said = guarded("the session", lambda: read_answers(client.exchange(data, pieces)), ())
        if r.random() < 0.05:
            after = r.choice((50_000, 2_000_000, 70_000_000))
            guarded("the session", lambda: self.sim.advance(after, 10_000_000), ())
        client.rest = given[consumed:]
        self.judge(client, client.meant(requests), said, bool(fatal))
        if client.peer.session.closing is not None or r.random() < 0.01:
            self.counts["closed"] += 1
            client.peer.close()
            self.clients[at] = Client(self, client.strict)
        if number % PROBE_EVERY_READS == 0:
            self.others_hear()
            self.probe()
        if r.random() < UPSETS:
            guarded("an upset", lambda: self.upset(r), ())
        return len(requests)

    def judge(self, client: Client, requests: list[Request], said: Said, fatal: bool) -> None:
        closing = client.peer.session.closing
        if fatal and closing is None:
            raise BrokenError("bytes that cannot be passed over did not end the connection")
        if client.strict:
            self.follow_strict(client, requests, said)
            return
        wanted = [(one.kind, one.topic) for one in requests]
        got = [(request, topic) for request, topic, _ in said.answers]
        if closing is None and sorted(got) != sorted(wanted):
            raise BrokenError(f"{len(got)} answers to {len(wanted)} requests")
        if closing is not None and len(got) > len(wanted):
            raise BrokenError("more answers than requests")
        self.follow(client, requests, said.answers, closing is not None)
        self.heard(client, said)

    def follow_strict(self, client: Client, requests: list[Request], said: Said) -> None:
        if said.answers:
            raise BrokenError(f"a strict client got answers: {said.answers[:3]}")
        self.counts["strict requests"] += len(requests)
        for one in requests:
            if one.kind == 3 and self.may(one.jwt, one.topic, "publish"):
                self.sent.setdefault(one.topic, set()).add(one.data)
            elif one.kind == 2 and self.may(one.jwt, one.topic, "subscribe"):
                client.subscribed.add(one.topic)
        self.heard(client, said)

    def follow(self, client: Client, requests: list[Request], answers: list[tuple[int, int, int]], ended: bool) -> None:
        """Request by request, with the answer it got: was it the model's? Answers to publishes of one topic and token keep
        their order; those of a window are matched by what decides them."""
        left = list(answers)
        window: list[Request] = []
        for one in (*requests, None):
            if one is not None and one.kind == 3:
                window.append(one)
                continue
            self.window(window, left[: len(window)], ended)
            left = left[len(window) :]
            window = []
            if one is None or not left:
                break
            request, topic, code = left.pop(0)
            if (request, topic) != (one.kind, one.topic):
                raise BrokenError(f"an answer to {(request, topic)} where {one[:2]} was next")
            self.decided(client, one, code)

    def window(self, window: list[Request], answers: list[tuple[int, int, int]], ended: bool) -> None:
        for topic in {one.topic for one in window}:
            mine = [one for one in window if one.topic == topic]
            codes = [code for request, about, code in answers if (request, about) == (3, topic)]
            if len(codes) != len(mine) and not ended:
                raise BrokenError(f"{len(codes)} answers to {len(mine)} publishes to {topic:08x}")
            fine = [one for one in mine if self.may(one.jwt, topic, "publish")]
            accepted = codes.count(0)
            refused = sum(code in REFUSED for code in codes)
            if accepted > len(fine) or refused > len(mine) - len(fine):
                raise BrokenError(f"{accepted} publishes were accepted and {refused} refused, {len(fine)} had the key")
            self.counts["published"] += accepted
            self.counts["publishes refused"] += refused
            self.sent.setdefault(topic, set()).update(one.data for one in fine)

    def decided(self, client: Client, one: Request, code: int) -> None:
        kind, topic = one.kind, one.topic
        self.counts[f"{fast_names(kind)} {'done' if code == 0 else code}"] += 1
        if kind == 0x70:
            if (code == 0) is not (one.number in (1, 2)):
                raise BrokenError(f"EXTEND {one.number} was answered with {code}")
            return
        bearer = TOKENS.get(one.jwt, Bearer("", ()))
        if kind == 1:
            fine = bool(bearer.key) and self.keys.get(topic, bearer.key) == bearer.key
        elif kind == 5:
            # Any valid token ends a subscription of this very connection.
            fine = bool(bearer.key) and (topic in client.subscribed or self.may(one.jwt, topic, "subscribe"))
        else:
            fine = self.may(one.jwt, topic, {2: "subscribe", 7: "rotate"}[kind])
        if code == 0 and not fine:
            raise BrokenError(f"{fast_names(kind)} on {topic:08x} was done without its key or right")
        if fine and code in REFUSED and not (kind == 1 and code == 403) and kind != 5:
            raise BrokenError(f"{fast_names(kind)} on {topic:08x} was refused with {code}, but had key and right")
        if code == 0 and kind == 1:
            if topic not in self.keys and one.number & 1:
                self.durable.add(topic)
            self.keys[topic] = bearer.key
        elif code == 0 and kind == 7:
            self.keys[topic] = one.data.decode()
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
        jwt, topic = fast.token("probe", "probe", "publish", "subscribe"), fast.topic_id(b"probe")
        said = read_answers(
            probe.exchange(
                fast.extend()
                + fast.create(jwt, b"probe")
                + fast.subscribe(jwt, topic)
                + fast.publish(jwt, topic, b"here")
            )
        )
        if [code for _, _, code in said.answers] != [0] * 4 or said.messages != [(topic, b"here")]:
            raise BrokenError(f"the probe was not served: {said}")
        probe.close()


def fast_names(kind: int) -> str:
    return {1: "create", 2: "subscribe", 5: "unsubscribe", 7: "rotate", 0x70: "extend"}[kind]


def sabotage() -> None:
    """The planted fault: no key is compared with another."""
    setattr(queues, "hmac", SimpleNamespace(compare_digest=lambda a, b: True))  # noqa: B010


FUZZER = Fuzzer(
    Half(Codec, "a PUBLISH behind another to its topic takes the other's token"),
    Half(Live, "no key is compared with another", NEW_BROKER_EVERY_PACKETS),
)
