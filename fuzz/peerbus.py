"""peerbus: the codec, and live sessions by lines and by WebSocket on a broker with a simulated disk.

Objects are made member by member, then spelled otherwise or damaged: members twice, missing, unknown or of another type,
escapes, blanks, deep bodies, wrong bytes.

Codec: only ProtocolError; what is taken reads the same to everybody, as a reader of this file sees (Python's json, every pair
looked at). The planted fault: of a member that is there twice, the last one counts.

Live: nothing twice, nothing for another; it stays usable. A model of the mailboxes says what each peer must get, what it settles,
what is a replay, and who owns a name, over reconnects, takeovers and restarts, too. Every tenth frame a WebSocket connection
with damaged bytes must end with a reason or be served. The planted fault: replays are not remembered.
"""

import asyncio
import hmac
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fuzz.driver import BrokenError, Fuzzer, Half, Target, mutated

from quintet.broker.core import BrokerOptions
from quintet.broker.doors.seen_ids import Seen
from quintet.broker.sections import PeerSection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model import envelope, tasks
from quintet.model.errors import ProtocolError
from quintet.net.websocket import Heartbeat, WebSocketSession
from quintet.protocols.peerbus import codec, mapping
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer, SimBroker
from tests.kernel import generate
from tests.wire import peerbus, websocket
from tests.wire.peerbus import MEMBERS

FRAMES_PER_READ = 15
NEW_BROKER_EVERY_FRAMES = 10_000
RESTART_EVERY_READS = 97
SECRET = b"0123456789abcdef0123456789abcdef"
WINDOW_US = 600_000_000
KNOWN = (*MEMBERS, "type", "token", "name")
CONTROL = ("register", "ack", "peers", "deliver")
OWNERS = {"alice": "dev", "bob": "dev", "dörte": "dev", "eve": "eve"}
BY_SOCKET = ("bob", "eve")
UPGRADE = websocket.upgrade("h")
SOCKETS_SHARE = 10  # of frames: one connection with damaged bytes for so many
PATIENCE_US = 20_000_000  # longer than any deadline of a connection
TOKENS = {"dev": "dev-key", "eve": "eve-key"}
FRAME_BYTES_MAX = 1 << 20
BODIES = (
    "null", "1", '"x"', '{"n": 1}', "[]", '{"a":"<b> & \\u2028"}', '"\\ud83d\\ude00"', "1e400", "-0.0", '""',
    '{"a":{"a":[1,2,{"b":null}]}}', "[" * 100 + "]" * 100, "[" * 200 + "]" * 200, '"\u2028é"', "true",
)  # fmt: skip
DEEP = 125  # from here on it is the broker's own limit that decides, not a reader's opinion


# -- making ------------------------------------------------------------------------------------------------------------


def text_of(r: random.Random) -> str:
    return "".join(r.choice('abé\u20ac\U0001f600.-_* <&\u2028\x7f|\\"\t') for _ in range(r.choice((0, 1, 3, 20))))


def make_envelope(r: random.Random, sender: str, now: int) -> bytes:
    """Sound, or with members that are not."""
    id = f"m{r.randrange(4000)}" if r.random() < 0.95 else text_of(r)
    to = r.choice((*OWNERS, *OWNERS, "*", "nobody")) if r.random() < 0.97 else text_of(r)
    said = sender if r.random() < 0.97 else r.choice(tuple(OWNERS))
    ts = envelope.rfc3339(now) if r.random() < 0.95 else r.choice(("", "x", "2001-01-01T00:00:00Z", text_of(r)))
    secret = SECRET if r.random() < 0.9 else r.choice((b"", b"another secret, also 32 bytes long"))
    made = peerbus.envelope(id, said, to, r.choice(BODIES), secret, ts)
    return made if r.random() < 0.8 else respelled(r, made)


def respelled(r: random.Random, made: bytes) -> bytes:
    """The same members in another spelling, or others."""
    pairs = [(name, raw) for _, name, raw in members_of(made.decode())]
    how = r.randrange(9)
    at = r.randrange(len(pairs))
    name, raw = pairs[at]
    if how == 0:
        r.shuffle(pairs)
    elif how == 1:
        pairs.insert(r.randrange(len(pairs)), (name, raw if r.random() < 0.5 else '"other"'))
    elif how == 2:
        del pairs[at]
    elif how == 3:
        pairs[at] = (name, r.choice(("1", "null", "[]", "{}", '"\\ud800"', "NaN", "01", "tru", '"\x01"', "")))
    elif how == 4:
        pairs.append((r.choice(("type", "extra", "Id", "ID", "token", "name", "")), r.choice(('"ack"', '"x"', "null"))))
    elif how == 5:
        pairs[at] = (name.replace(name[0], f"\\u{ord(name[0]):04x}", 1), raw)
    elif how == 6 and raw.startswith('"') and len(raw) > 2 and raw[1].isalnum():
        pairs[at] = (name, f'"\\u{ord(raw[1]):04x}{raw[2:]}')
    blank = r.choice(("", "", " ", "\t", "  "))
    return ("{" + ("," + blank).join(f'"{name}"{blank}:{blank}{raw}' for name, raw in pairs) + "}").encode()


def make_frame(r: random.Random, sender: str, keys: list[str], now: int) -> bytes:
    kind = r.random()
    if kind < 0.55:
        made = make_envelope(r, sender, now)
    elif kind < 0.85:
        made = peerbus.control("ack", id=r.choice(keys) if keys and r.random() < 0.8 else f"m{r.randrange(4000)}")
    elif kind < 0.92:
        made = peerbus.control("peers")
    else:
        made = peerbus.control(r.choice(CONTROL), **{r.choice(KNOWN): text_of(r), "name": r.choice(tuple(OWNERS))})
    if r.random() < 0.1:
        made = mutated(r, made).replace(b"\n", b" ")
    return made


# -- reading, independently -------------------------------------------------------------------------------------------


def members_of(text: str) -> list[tuple[str, str, str]]:
    """(name as it is spelled, name, raw value) of each member of a JSON object. ValueError if it is none."""
    scan = json.JSONDecoder(parse_constant=_no_constant)
    out: list[tuple[str, str, str]] = []
    at = _blank(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("no object")
    at = _blank(text, at + 1)
    while text[at : at + 1] != "}" or out:
        name, end = scan.raw_decode(text, at)
        if not isinstance(name, str):
            raise ValueError("a name is a string")
        spelled = text[at + 1 : end - 1]
        at = _blank(text, end)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        at = _blank(text, at + 1)
        _, end = scan.raw_decode(text, at)
        out.append((spelled, name, text[at:end]))
        at = _blank(text, end)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _blank(text, at + 1)
    if _blank(text, at + 1) != len(text):
        raise ValueError("something behind the object")
    return out


def _blank(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _no_constant(name: str) -> Any:
    raise ValueError(name)


@dataclass
class Read:
    """What this file's reader makes of an object. `sure`: no reader can see it otherwise."""

    values: dict[str, Any]
    raws: dict[str, str]
    plain: bool  # each of the nine members once, each name spelled plainly, no others
    sure: bool


def read_object(data: bytes) -> Read | None:
    """None: not one JSON object whose members have the right types."""
    try:
        members = members_of(data.decode())
    except (ValueError, RecursionError):
        return None
    raws = {name: raw for _, name, raw in members}
    values = {name: json.loads(raw) for name, raw in raws.items() if name != "body"}
    for name in KNOWN:
        fine = isinstance(values.get(name, ""), str) or (name == "type" and values[name] is None)
        if not fine and any(not isinstance(json.loads(raw), str) for _, known, raw in members if known == name):
            return None
    plain = all(spelled == name for spelled, name, _ in members) and len(raws) == len(members)
    plain = plain and set(raws) == set(MEMBERS)
    body = raws.get("body", "null")
    shaky = b"\\ud" in data.lower() or deep(body) > DEEP or len(raws) != len(members)
    return Read(values, raws, plain, not shaky)


def deep(text: str) -> int:
    most = now = 0
    for letter in peerbus.STRINGS.sub("", text):
        now += (letter in "[{") - (letter in "]}")
        most = max(most, now)
    return most


# -- the codec ---------------------------------------------------------------------------------------------------------


def lenient(frame: codec.Frame, data: bytes) -> None:
    """The planted fault: of a member that is there twice, the last one counts."""
    try:
        codec.check_envelope(frame, data)
    except ProtocolError as error:
        if "twice" not in str(error):
            raise


class Codec(Target):
    """Runs objects through the codec and counts what came of them."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        self.slowest = 0.0
        self._check = lenient if sabotaged else codec.check_envelope

    def read(self, r: random.Random, number: int) -> int:
        self.frame(make_frame(r, "alice", [], 1_700_000_000_000_000))
        if number % 10 == 0:
            self.body(mutated(r, r.choice(BODIES).encode()) if r.random() < 0.7 else generate.blob(r))
        return 1

    def notes(self) -> str:
        return f"slowest {self.slowest * 1000:.1f} ms"

    def frame(self, data: bytes) -> None:
        start = time.perf_counter()
        found = taken = None
        try:
            found = codec.decode(data)
            self._check(found, data)
            taken = found
        except ProtocolError:
            self.counts["refused"] += 1
        except Exception as error:
            raise BrokenError(f"the codec raised {type(error).__name__}: {error} for {data[:300]!r}") from error
        self.slowest = max(self.slowest, time.perf_counter() - start)
        known = read_object(data)
        if found is not None and known is None:
            raise BrokenError(f"the codec reads what is no object: {data[:300]!r}")
        if taken is None:
            if known is not None and known.plain and known.sure:
                raise BrokenError(f"the codec refuses a plain envelope: {data[:300]!r}")
            return
        assert known is not None
        self.counts["taken"] += 1
        if not known.plain:
            raise BrokenError(f"two readers can see two envelopes: {data[:300]!r}")
        for name in MEMBERS:
            value = getattr(taken, "sender" if name == "from" else name)
            said = known.raws.get(name) if name == "body" else known.values.get(name)
            if (bytes(value).decode() if name == "body" and value else value or None) != (said or None):
                raise BrokenError(f"{name} is {value!r} to the codec and {said!r} to another reader")
        self.wrapped(taken.id or "", data)

    def wrapped(self, key: str, data: bytes) -> None:
        """A delivery is one object with the envelope in it as it came."""
        made = codec.deliver(key, data)
        raws = {name: raw for _, name, raw in members_of(made.decode())}
        if json.loads(raws["delivery_key"]) != key or raws["envelope"].encode() != data.strip(b" \t\r\n"):
            raise BrokenError("a delivery does not hold the envelope as it came")

    def body(self, data: bytes) -> None:
        """Any value of another door becomes a body that is one JSON text, and the envelope verifies."""
        try:
            body = mapping.body_of(data)
        except Exception as error:
            raise BrokenError(f"a foreign value raised {type(error).__name__}: {error} for {data[:300]!r}") from error
        made = envelope.sign(SECRET, id="q:0:7", sender="blipmq:x", to="bob", ts="", body=body)
        known = read_object(made)
        if known is None or not known.plain or not genuine(known):
            raise BrokenError(f"the envelope made of {data[:100]!r} is none: {made[:300]!r}")


def genuine(known: Read) -> bool:
    fields = {name: str(known.values.get(name, "")) for name in MEMBERS if name != "body"}
    try:
        signed = peerbus.canonical(fields, known.raws.get("body", "null"))
    except UnicodeEncodeError:  # half of a pair: no UTF-8 can say it
        return False
    return hmac.digest(SECRET, signed, "sha256").hex() == fields["hmac"]


# -- WebSocket ---------------------------------------------------------------------------------------------------------


def pieces(r: random.Random, data: bytes) -> bytes:
    """A text message in some frames, perhaps with pings, pongs and a binary message around and between them."""
    cuts = sorted(r.randrange(len(data) + 1) for _ in range(r.choice((0, 0, 0, 1, 3))))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    out = b""
    for number, part in enumerate(parts):
        if r.random() < 0.05:
            ping = r.randbytes(r.choice((0, 5, 125)))
            out += websocket.frame(ping, r.choice((websocket.PING, websocket.PONG)), mask=r.randbytes(4))
        kind = websocket.PIECE if number else websocket.TEXT
        out += websocket.frame(part, kind, number == len(parts) - 1, r.randbytes(4))
    return out + (websocket.frame(b"binary", websocket.BINARY) if r.random() < 0.02 else b"")


class Socket(Peer):
    """A client over WebSocket."""

    def __init__(self, sim: SimBroker) -> None:
        self.heart = Heartbeat(asyncio.new_event_loop(), 30)
        self.heart._loop.close()

        def make(broker: Any, sink: Any, monotonic: int) -> Any:
            inner = PeerSession(broker, sink, monotonic, framed=False, peer="10.0.0.1:9")
            return WebSocketSession(inner, self, self.heart, sim.scheduler.monotonic)

        super().__init__(sim, make)

    def watch(self) -> None:
        """Deadlines are looked at by whoever lets time pass."""

    def evict(self, reason: str) -> None:
        self.session.closing = self.session.closing or reason
        self._drain()


def damaged_socket(sim: SimBroker, r: random.Random, counts: Counter[str]) -> None:
    """One connection with bytes that are wrong somewhere: it is served, or it ends with a reason, and always in time."""
    peer = Socket(sim)
    name = f"guest{r.randrange(20)}"
    made = [make_frame(r, name, [], sim.scheduler.now()) for _ in range(r.randrange(8))]
    register = peerbus.control("register", token=TOKENS["dev"], name=name)
    body = pieces(r, register) + b"".join(pieces(r, one) for one in made)
    data = (
        mutated(r, UPGRADE) + body if r.random() < 0.2 else UPGRADE + (mutated(r, body) if r.random() < 0.7 else body)
    )
    try:
        said = peer.exchange(data, [r.choice((1, 7, 50, 500)) for _ in range(r.randrange(8))])
        if r.random() < 0.2:
            said += peer.exchange(
                websocket.frame(r.choice((b"", b"\x03", b"\x03\xe8", b"\x03\xe8\xff")), websocket.CLOSE)
            )
        registered = peer.session.principal_name is not None
        sim.scheduler.advance(PATIENCE_US)
        peer.session.tick(sim.scheduler.monotonic())
        peer._drain()
        said += peer.take()
        peer.close()
    except Exception as error:
        raise BrokenError(f"a socket raised {type(error).__name__}: {error} for {data[:600]!r}") from error
    head, _, rest = said.partition(b"\r\n\r\n")
    opened = head.startswith(b"HTTP/1.1 101 ")
    if not opened and not head.startswith(b"HTTP/1.1 4"):
        raise BrokenError(f"neither an upgrade nor a refusal: {said[:200]!r}")
    try:
        kinds = [kind for kind, _ in websocket.frames_of(rest)] if opened else []
    except ValueError as error:
        raise BrokenError(str(error)) from None
    if not registered and peer.session.closing is None and not (opened and 8 in kinds):
        raise BrokenError("a connection without a name is still there after its time")
    counts["sockets " + ("closed" if peer.session.closing is not None or 8 in kinds else "served")] += 1


# -- live --------------------------------------------------------------------------------------------------------------


@dataclass
class Letter:
    """What waits in a mailbox, by the model. `maybe`: readers may differ about it, so it may also not be there."""

    key: str
    data: bytes
    sender: str
    id: str
    maybe: bool = False
    told: bool = False  # to the connection that has the name now


@dataclass
class Box:
    """One name: its letters in order, and what was settled."""

    letters: list[Letter] = field(default_factory=list)
    settled: set[tuple[str, str]] = field(default_factory=set)


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Live(Target):
    """Peers of one broker, and the model of their mailboxes; and a broker that gets damaged connections."""

    sim: SimBroker

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        if sabotaged:
            Seen.add = lambda self, sender, id, monotonic: True  # type: ignore[method-assign]
        self.damaged, self.frames, self.sockets = SimBroker(keys=TOKENS), 0, 0
        self.peers: dict[str, Peer] = {}

    def begin(self, r: random.Random) -> None:
        self.verify = r.random() < 0.5
        options = BrokerOptions(
            topics=TopicPolicy([TopicRule("*")], topics_max=100),
            peers=PeerSection(verify=self.verify, replay_window_seconds=WINDOW_US // 1_000_000).with_keys(SECRET, {}),
        )
        self.sim = SimBroker(keys=TOKENS, options=options)
        self.boxes = {name: Box() for name in OWNERS}
        self.seen: set[tuple[str, str]] = set()
        self.doubtful: set[tuple[str, str]] = set()  # ids whose first envelope may or may not have been taken
        self.lost: set[tuple[str, str]] = set()  # ids that were used when a mailbox was deleted
        for name in OWNERS:
            self.connect(name)

    def open(self, name: str = "") -> Peer:
        if name in BY_SOCKET:
            made = Socket(self.sim)
            if not made.exchange(UPGRADE).startswith(b"HTTP/1.1 101 "):
                raise BrokenError("the upgrade was refused")
            return made
        return Peer(self.sim, lambda broker, sink, now: PeerSession(broker, sink, now, peer="10.0.0.1:9"))

    def connect(self, name: str) -> None:
        """Register; whoever had the name is dropped, and all that was not settled comes again."""
        before = self.peers.get(name)
        peer = self.peers[name] = self.open(name)
        register = peerbus.control("register", token=TOKENS[OWNERS[name]], name=name)
        by_socket = isinstance(peer, Socket)
        said = self.lines(peer, peer.exchange(pieces(random.Random(0), register) if by_socket else register + b"\n"))
        if not said or said[0].get("type") != "peers" or name not in said[0]["names"]:
            raise BrokenError(f"{name} could not register: {peer.session.closing} {said}")
        if before is not None:
            before.close()
        for letter in self.boxes[name].letters:
            letter.told = False
        self.deliveries(name, said[1:])

    @staticmethod
    def lines(peer: Peer, data: bytes) -> list[dict[str, Any]]:
        """The objects in what this peer was sent."""
        if isinstance(peer, Socket):
            frames = websocket.frames_of(data)
            if any(kind == 8 for kind, _ in frames):
                raise BrokenError(f"a registered peer was closed: {frames[-1]}")
            data = b"".join(payload + b"\n" for kind, payload in frames if kind == 1)
        if data and not data.endswith(b"\n"):
            raise BrokenError("the output ends inside a line")
        found = []
        for line in data.split(b"\n")[:-1]:
            raws = {name: raw for _, name, raw in members_of(line.decode())}
            one: dict[str, Any] = {name: json.loads(raw) for name, raw in raws.items() if name != "envelope"}
            if one.get("protocol_version") != "v1" or one.get("type") not in ("peers", "deliver"):
                raise BrokenError(f"an object of another kind was sent: {line[:200]!r}")
            if "envelope" in raws:
                one["envelope"] = raws["envelope"].encode()
            found.append(one)
        return found

    def read(self, r: random.Random, number: int) -> int:
        if not self.frames:
            self.begin(r)
        self.frames += (done := self.exchange(r, number))
        while self.sockets < self.frames // SOCKETS_SHARE:
            self.sockets += 1
            damaged_socket(self.damaged, r, self.counts)
        return done

    def exchange(self, r: random.Random, number: int) -> int:
        name = r.choice(tuple(OWNERS))
        keys = [letter.key for letter in self.boxes[name].letters if letter.told]
        now = self.sim.scheduler.now()
        made = [make_frame(r, name, keys, now) for _ in range(r.randrange(1, FRAMES_PER_READ))]
        cuts = [r.choice((1, 7, 50, 500)) for _ in range(r.randrange(8))]
        peer = self.peers[name]
        if isinstance(peer, Socket):
            made = [
                one for one in made if one.isascii() or is_text(one)
            ]  # other text ends the connection, as it should
            data = b"".join(pieces(r, one) for one in made)
        else:
            data = b"".join(one + r.choice((b"\n", b"\n", b"\r\n", b" \n\n")) for one in made)
            made = [line.strip(b" \t\r") for line in data.split(b"\n")]
        try:
            peer.feed(data, cuts)
            for line in made:
                self.model(name, line)
            if isinstance(peer, Socket):
                peer.completed(peer.heart, None, None)
            self.sim.scheduler.run_until_idle()
            if r.random() < 0.05:
                self.sim.advance(200_000)
        except BrokenError:
            raise
        except Exception as error:
            raise BrokenError(f"the session raised {type(error).__name__}: {error}") from error
        if peer.session.closing is not None:
            raise BrokenError(f"a registered peer was closed: {peer.session.closing}")
        for other, connected in self.peers.items():
            self.deliveries(other, self.lines(connected, connected.take()))
        for one in made[:1]:
            self.stranger(r, one)
        if r.random() < 0.08:
            self.reconnect(r, name)
        elif r.random() < 0.01:
            self.delete(name)
        if number % RESTART_EVERY_READS == RESTART_EVERY_READS - 1:
            self.restart()
        return len(made)

    def model(self, name: str, line: bytes) -> None:
        """What the broker must make of a line of this peer."""
        known = read_object(line)
        if known is None or not line:
            return
        kind = known.values.get("type", "")
        if "type" in known.raws and kind in CONTROL:
            if kind == "ack":
                self.acked(name, str(known.values.get("id", "")))
            return
        fields = {member: str(known.values.get(member, "")) for member in MEMBERS if member != "body"}
        id, to = fields["id"], fields["to"]
        everyone = to == "*"
        well = len(id) > 0 and len(id.encode(errors="replace")) <= 256 and id.isprintable() and "|" not in id
        fine = (
            known.plain and well and fields["protocol_version"] == "v1" and (fields["kind"] == "broadcast") is everyone
        )
        fine = fine and fields["from"] == name and (everyone or to in self.boxes)
        maybe = not known.sure or (everyone and b'"*"' not in line)
        if self.verify:
            fine = fine and genuine(known) and self.fresh(fields["ts"])
        if not fine:
            return
        if (name, id) in self.seen and (name, id) not in self.doubtful:
            self.counts["replays"] += 1
            return
        maybe = maybe or (name, id) in self.doubtful
        self.seen.add((name, id))
        if maybe:
            self.doubtful.add((name, id))
        for other in self.peers if everyone else (to,):
            if not everyone or other != name:
                key = f"{id}|{other}" if everyone else id
                self.boxes[other].letters.append(Letter(key, line.strip(b" \t\r\n"), name, id, maybe))

    def fresh(self, ts: str) -> bool:
        try:
            said = datetime.fromisoformat(ts)
        except ValueError:
            return True
        if said.tzinfo is None:
            return True
        return abs(said.timestamp() * 1e6 - self.sim.scheduler.now()) <= WINDOW_US

    def acked(self, name: str, key: str) -> None:
        box = self.boxes[name]
        found = next((letter for letter in box.letters if letter.key == key and letter.told), None)
        if found is not None:
            self.counts["settled"] += 1
            box.letters.remove(found)
            box.settled.add((found.sender, found.id))

    def deliveries(self, name: str, said: list[dict[str, Any]]) -> None:
        """What came must be what waits, in its order, each once; and nothing may be left behind."""
        box = self.boxes[name]
        waiting = [letter for letter in box.letters if not letter.told]
        for one in said:
            if one["type"] == "peers":
                if one["names"] != sorted(self.peers):
                    raise BrokenError(f"connected are {one['names']}")
                continue
            self.counts["delivered"] += 1
            found = next((letter for letter in waiting if letter.data == one["envelope"]), None)
            if found is None or found.key != one["delivery_key"]:
                raise BrokenError(
                    f"{name} got what does not wait for it: {one['delivery_key']} {one['envelope'][:200]!r}"
                )
            skipped = waiting[: waiting.index(found)]
            if any(not letter.maybe for letter in skipped):
                raise BrokenError(f"{name} got {found.key} before {skipped[0].key}")
            waiting = waiting[waiting.index(found) + 1 :]
            found.told, found.maybe = True, False
        left = [letter for letter in waiting if not letter.maybe]
        if left:
            raise BrokenError(f"{name} did not get {left[0].key} of {left[0].sender}: {left[0].data[:200]!r}")
        box.letters = [letter for letter in box.letters if letter.told]

    def stranger(self, r: random.Random, first: bytes) -> None:
        """Whoever has not registered, or may not, is closed with a reason, and nobody else hears of it."""
        peer = self.open()
        if r.random() < 0.5:
            name = r.choice((*OWNERS, "", "a|b", "x" * 300, "new"))
            token = r.choice(("wrong", "", TOKENS["dev" if OWNERS.get(name) == "eve" else "eve"]))
            if token in TOKENS.values() and OWNERS.get(name) is None:
                token = "wrong"
            first = peerbus.control("register", token=token, name=name)
        elif (known := read_object(first)) is not None and known.values.get("type") == "register":
            first = b"{}"
        try:
            said = peer.exchange(first + b"\n")
        except Exception as error:
            raise BrokenError(f"a fresh session raised {type(error).__name__}: {error} for {first[:300]!r}") from error
        if first.strip() and (peer.session.closing is None or said):
            raise BrokenError(f"a stranger was not closed: {first[:200]!r} {said[:200]!r}")
        self.counts["strangers"] += 1
        peer.close()

    def reconnect(self, r: random.Random, name: str) -> None:
        self.counts["reconnects"] += 1
        if r.random() < 0.5:
            self.peers.pop(name).close()
        else:
            self.sim.advance(1_100_000, 1_100_000)  # takeovers have a limit: ten in ten seconds
        self.connect(name)

    def delete(self, name: str) -> None:
        """The mailbox is deleted by somebody who may: its name is free, and whoever had it is told and may come back."""
        raw = f"peerbus/{name}".encode()
        if self.sim.broker.topics.get(raw) is None:
            return
        tasks.start(self.sim.broker.delete_topic(raw))
        self.counts["mailboxes deleted"] += 1
        self.sim.advance(100_000)
        gone = self.peers.pop(name)
        if gone.session.closing is None and gone.evicted is None:
            raise BrokenError(f"{name} is still connected, its mailbox was deleted")
        gone.close()
        self.lost |= self.boxes[name].settled | {(one.sender, one.id) for one in self.boxes[name].letters}
        self.boxes[name] = Box()
        self.connect(name)

    def restart(self) -> None:
        """A clean stop forgets nothing: names, letters, settled ones, ids."""
        self.counts["restarts"] += 1
        for peer in self.peers.values():
            peer.close()
        self.peers.clear()
        self.sim.restart()
        self.doubtful |= self.lost  # of a deleted mailbox: nothing is left that would say which ids were used
        for name in OWNERS:
            self.connect(name)
            for other, connected in self.peers.items():
                self.deliveries(other, self.lines(connected, connected.take()))


FUZZER = Fuzzer(
    Half(Codec, "of a member that is there twice, the last one counts"),
    Half(Live, "replays are not remembered", NEW_BROKER_EVERY_FRAMES),
)
