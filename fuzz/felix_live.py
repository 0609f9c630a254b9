"""Live connections of Felix: the second half of felix.py.

No session raises; every request is answered once, publishes in order; no tenant meets another; it stays usable. Connections are
over real QUIC on loopback, native endpoint to native endpoint, to doors on a broker with a simulated disk: one that needs a
token and an open one. Clients of two tenants, of an API key and of the document pipeline requests on several streams at once,
cut anywhere; some reads are damaged, some fields are of another type. What the bytes say is found by tests/wire/felix.py: what
may have been published where, and which answers are owed. The planted fault: the tenant of a token is compared with nothing.
"""

import asyncio
import json
import random
import struct
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from backports import zstd
from fuzz.driver import BrokenError, Target, mutated

from quintet.broker.bearer import Bearer
from quintet.net.certificates import development_certificate
from quintet.net.listener import ListenerOptions
from quintet.net.quic import endpoint as quic_endpoint
from quintet.net.quic import events as quic_events
from quintet.net.quic.listener import QuicListener
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.felix.session import FelixSession
from tests.protocols.felix.helpers import FelixSim, token
from tests.wire import felix
from tests.wire.felix import ACK, ACKED, BATCH, HEAD, ZSTD, b64, batch, frame, json_frame, read_frames

FRAME_MAX = 16_384
FRAMES_PER_READ = 12
STREAMS_MAX = 4
LINKS = 5
NEW_BROKER_EVERY_FRAMES = 20_000
PROBE_EVERY_ROUNDS = 50
ANSWER_S = 10.0
PROTOCOL_ERROR = 0x46
CLOSE_LOST = -1  # the datagram that said it was lost, and the next was answered with "no such connection"
STREAMS = ("a", "b", "c")
LAST_WORDS = {"auth required", "auth failed", "auth already established", "tenant mismatch", "forbidden"}
GRANTED = {
    "publish_ok",
    "ok",
    "subscribed",
    "cache_ok",
    "cache_value",
    "cache_values",
    "cache_number",
    "cache_conflict",
}
PERMISSIONS = tuple(f"{verb}:{verb.partition('.')[0]}:*" for verb in
                    ("stream.publish", "stream.subscribe", "cache.read", "cache.write"))  # fmt: skip


class Meaning(NamedTuple):
    """What a frame may do: ids it may be answered by, and what it may bring to whom."""

    ids: list[Any]
    brought: list[tuple[str, bytes]]


def meaning(flags: int, payload: bytes, document: bool) -> Meaning:
    """Whatever cannot be read brings nothing."""
    flags = flags & BATCH if document else flags
    try:
        if flags & ZSTD:
            payload, flags = zstd.decompress(payload), flags & ~ZSTD
        if flags & BATCH:
            found = felix.read_batch(payload, bool(flags & ACKED))
            return Meaning(
                [found.request] if flags & ACKED else [], [(found.scope[0], value) for value in found.values]
            )
        said = json.loads(payload)
        values = [said.get("payload"), said.get("value"), *(said.get("payloads") or [])]
        tenant = str(said.get("tenant_id", "default"))
        return Meaning([said.get("request_id")], [(tenant, one) for text in values if (one := plain(text)) is not None])
    except (ValueError, AttributeError, TypeError, RecursionError, zstd.ZstdError):
        return Meaning([struct.unpack_from(">Q", payload)[0]] if flags & ACKED and len(payload) >= 8 else [], [])


def plain(value: object) -> bytes | None:
    try:
        return felix.unb64(value) if isinstance(value, str) else None
    except ValueError:
        return None


class Owed(NamedTuple):
    """A request as it was made: whether its answer keeps its place, and whether it must be refused."""

    ordered: bool
    foreign: bool


# -- clients -----------------------------------------------------------------------------------------------------------


class Lane:
    """One stream that a client opened: what it asked and what it was told."""

    def __init__(self, link: "Link", document: bool) -> None:
        self.link = link
        self.document = document
        self.number = link.live.client.open(link.number, True)
        self.got = bytearray()
        self.fin = self.ended = False
        self.rest = b""
        self.made: dict[bytes, tuple[Any, Owed]] = {}  # frames as they were made -> id and what is owed
        self.waiting: dict[Any, Owed] = {}  # asked, by id
        self.known: set[Any] = {None}  # ids that were ever in a frame
        self.last_ordered = -1
        self.frames = 0
        self.replies = 0
        self.last_words = ""
        self.verdict = ""

    def id(self, number: int) -> Any:
        return f"r{number}" if self.document else number

    def over(self) -> bool:
        return self.fin or self.link.closed is not None

    def done(self) -> bool:
        self.heard()
        return self.over() or (not self.ended and not self.waiting and self.verdict == "")

    def ask(self, data: bytes) -> None:
        """Note what goes out."""
        frames, self.rest, self.verdict = read_frames(self.rest + data, FRAME_MAX)
        for flags, payload in frames:
            self.frames += 1
            said = meaning(flags, payload, self.document)
            self.known.update(one for one in said.ids if isinstance(one, int | str))
            for tenant, value in said.brought:
                if self.link.who in ("", tenant):
                    self.link.live.sent.setdefault(tenant, set()).add(value)
            made = self.made.get(frame(payload, flags))
            if made is not None:
                self.waiting[made[0]] = made[1]
        self.made.clear()

    def heard(self) -> None:
        """Judge the answers that came."""
        if not self.got:
            return
        frames, rest, bad = read_frames(bytes(self.got), FRAME_MAX)
        if bad:
            raise BrokenError(f"the broker sent {bytes(rest[:12])!r}")
        self.got = bytearray(rest)
        for flags, payload in frames:
            self.replies += 1
            if flags == ACK:
                status, id = struct.unpack_from(">BQ", payload)
                self._answered(id, status == 0, payload[11:].decode())
                continue
            if flags:
                raise BrokenError(f"an answer has flags {flags:#x}")
            said = json.loads(payload)
            self._answered(said.get("request_id"), said["type"] in GRANTED, said.get("message", ""))
            if said["type"] in ("cache_value", "cache_values", "cache_conflict"):
                told = [said.get("value"), *said.get("values", [])]
                self.link.judge([felix.unb64(one) for one in told if one is not None])
        if self.replies > 2 * self.frames + 1:
            raise BrokenError(f"{self.replies} answers to {self.frames} frames")

    def _answered(self, id: Any, granted: bool, words: str) -> None:
        final = words in LAST_WORDS or words.startswith("auth: ")  # an `auth` that is not whole, too
        self.last_words = words if final else self.last_words
        if id not in self.known:
            raise BrokenError(f"an answer to {id!r}, which nobody asked")
        owed = self.waiting.pop(id, None)
        self.link.live.counts["granted" if granted else "refused"] += 1
        if owed is None:
            return
        if owed.foreign and granted:
            raise BrokenError(f"a request of {self.link.who} about another tenant was granted")
        number = int(str(id).removeprefix("r"))
        if owed.ordered and granted:
            if number < self.last_ordered:
                raise BrokenError(f"the answer to {number} came behind that to {self.last_ordered}")
            self.last_ordered = number


class Link:
    """One connection of one client."""

    def __init__(self, live: "Live", who: str, document: bool, ours: int = 0xFF) -> None:
        self.live = live
        self.who = who  # a tenant; empty: it may reach them all
        self.document = document
        self.flags = ours
        self.closed: tuple[int, str] | None = None
        self.connected = False
        self.events: dict[int, bytearray] = {}
        self.stopped: set[int] = set()  # event streams that this client has had enough of
        self.lanes: dict[int, Lane] = {}
        door = live.doors[1 if document else 0]
        host, _, port = door.address.rpartition(":")
        self.number = live.client.connect(host, int(port), "localhost", live.ca, b"", b"")
        live.links[self.number] = self

    async def lane(self) -> Lane:
        """A stream that is let in."""
        lane = Lane(self, self.document)
        self.lanes[lane.number] = lane
        if not self.document:
            secret = "dev-key" if not self.who else self.live.tokens[self.who]
            hello = {
                "type": "auth",
                "tenant_id": self.who or "t1",
                "token": secret,
                "client_flags": self.flags,
                "quintet": 1,
            }
            lane.ask(json_frame(hello))
            self.live.send(lane, json_frame(hello))
            await self.live.until(lambda: lane.over() or len(lane.got) >= HEAD.size + 10, "auth")
            if lane.over():
                raise BrokenError(f"a good token was refused: {bytes(lane.got)!r}")
            lane.heard()
        return lane

    def judge(self, values: list[bytes]) -> None:
        """Values that came to this client: were they ever given to a tenant of its own?"""
        self.live.counts["values read"] += len(values)
        for value in values:
            ours = [self.who] if self.who else list(self.live.sent)
            if not any(value in self.live.sent.get(tenant, ()) for tenant in ours) and not value.lstrip(b"-").isdigit():
                raise BrokenError(f"{self.who or 'a client'} read {value[:60]!r}, which was never published for it")

    def heard(self) -> None:
        for stream, data in self.events.items():
            frames, rest, bad = read_frames(bytes(data), FRAME_MAX)
            if bad:
                raise BrokenError(f"the broker sent {bytes(rest[:12])!r} on an event stream")
            self.events[stream] = bytearray(rest)
            for flags, payload in frames:
                if flags & felix.KEY:
                    raise BrokenError("keys were sent to a client that did not ask for them")
                try:
                    self.judge(felix.read_events(flags, payload).values)
                except ValueError as error:
                    raise BrokenError(str(error)) from error


class Maker:
    """Requests of one lane."""

    def __init__(self, r: random.Random, lane: Lane, live: "Live") -> None:
        self.r = r
        self.lane = lane
        self.live = live
        other = {"t1": "t2", "t2": "t1"}.get(lane.link.who)
        self.foreign = other is not None and r.random() < 0.004
        self.tenant = other if self.foreign and other else lane.link.who or r.choice(("t1", "t2"))

    def note(self, id: int, data: bytes, ordered: bool) -> bytes:
        self.lane.made[data] = (self.lane.id(id), Owed(ordered, self.foreign))
        return data

    def value(self, scope: tuple[str, str, str]) -> bytes:
        size = self.r.choice((0, 0, 5, 40, 300))
        return f"{'/'.join(scope)}#{self.live.next()}".encode() + self.r.randbytes(size)

    def request(self) -> bytes:
        r, lane = self.r, self.lane
        scope = (self.tenant, "n", r.choice(STREAMS))
        kind = r.randrange(20)
        id = self.live.next()
        named = {"tenant_id": scope[0], "namespace": scope[1], "stream": scope[2]}
        if kind < 8 and not lane.document:
            values, packs = [self.value(scope) for _ in range(r.choice((1, 1, 2, 5)))], lane.link.flags & ZSTD != 0
            if kind < 3 and not self.foreign:
                return batch(scope, *values, packed=packs and r.random() < 0.1)
            packed = packs and r.random() < 0.1
            return self.note(id, batch(scope, *values, request=id, mode=1 + id % 2, packed=packed), True)
        if kind < 10:
            payloads = [b64(self.value(scope)) for _ in range(r.choice((1, 2)))]
            if len(payloads) == 1:
                message: dict[str, Any] = {"type": "publish", **named, "payload": payloads[0], "ack": "per_message"}
            else:
                message = {"type": "publish_batch", **named, "payloads": payloads, "ack": "per_batch"}
            return self.note(id, json_frame({**message, "request_id": lane.id(id)}), True)
        if kind == 10 and r.random() < 0.3:
            start = r.choice(("latest", "latest", "earliest", {"offset": 0}))
            ask = {
                "type": "subscribe",
                **named,
                "subscription_id": lane.id(id),
                "start": start,
                "request_id": lane.id(id),
            }
            return self.note(id, json_frame(ask), True)
        if kind == 11 and not self.foreign:
            return self.odd()
        return self.cache(id, kind)

    def cache(self, id: int, kind: int) -> bytes:
        r, lane = self.r, self.lane
        scope = (self.tenant, "n", "cache")
        ask: dict[str, Any] = {"tenant_id": scope[0], "namespace": scope[1], "cache": scope[2],
                               "key": f"k{r.randrange(30)}", "request_id": lane.id(id)}  # fmt: skip
        if kind < 14:
            value = b64(self.value(scope))
            more = {"if_version": r.randrange(5)} if r.random() < 0.1 and not lane.document else {}
            put = {"type": "cache_put", **ask, "value": value, "ttl_ms": r.choice((None, 1, 1000)), **more}
            return self.note(id, json_frame(put), False)
        if kind < 17 or lane.document:
            return self.note(id, json_frame({"type": "cache_get", **ask}), False)
        if kind == 17:
            return self.note(id, json_frame({"type": "cache_delete", **ask}), False)
        if kind == 18:
            return self.note(
                id, json_frame({"type": "cache_incr", **ask, "key": f"n{r.randrange(3)}", "delta": 1}), False
            )
        del ask["key"]
        return self.note(id, json_frame({"type": "cache_get_many", **ask, "keys": ["k1", "k2", "k1"]}), False)

    def odd(self) -> bytes:
        """Whole frames that nobody understands, or that are about what is not there."""
        r = self.r
        if r.random() < 0.6:
            return self.twisted()
        return r.choice((
            frame(r.randbytes(r.randrange(40))),
            frame(r.randbytes(r.randrange(40)), r.randrange(1 << 16)),
            frame(b"[" * r.randrange(1, 3000)),
            frame(b'{"type":"cache_get","type":"cache_get"}'),
            json_frame({"type": "ack", "subscription_id": r.randrange(1000), "ranges": [[r.randrange(99), 1]]}),
            json_frame({"type": "unsubscribe", "subscription_id": r.randrange(1000)}),
            json_frame({"type": "event", "payload": "QQ=="}),
        ))  # fmt: skip

    def twisted(self) -> bytes:
        """A request with one field of another kind, gone, or new. It may be granted or not: nothing is owed."""
        r = self.r
        data = self.cache(self.live.next(), r.randrange(12, 20))
        del self.lane.made[data]
        ask = json.loads(data[HEAD.size :])
        field = r.choice((*ask, "start", "ttl_ms", "ack", "payload"))
        if r.random() < 0.2:
            ask.pop(field, None)
        else:
            ask[field] = r.choice((None, True, -1, 2**64, 1.5, "", "x", "*", "\0", "a/b", [], {}, [[1]], {"offset": 1}))
        if r.random() < 0.3:
            ask["type"] = r.choice(
                ("publish", "publish_batch", "subscribe", "cache_watch", "ack", "unsubscribe", "auth")
            )
        return json_frame(ask)

    def barrier(self) -> bytes:
        """A request whose answer comes behind those of all publishes before it."""
        id = self.live.next()
        scope = (self.lane.link.who or "t1", "n", "a")
        value = f"{'/'.join(scope)}#{id}".encode()
        owed = Owed(True, False)
        if self.lane.document:
            named = {"tenant_id": scope[0], "namespace": scope[1], "stream": scope[2]}
            data = json_frame(
                {"type": "publish", **named, "payload": b64(value), "ack": "per_message", "request_id": f"r{id}"}
            )
        else:
            data = batch(scope, value, request=id, mode=1 + id % 2)
        self.lane.made[data] = (self.lane.id(id), owed)
        return data


# -- live --------------------------------------------------------------------------------------------------------------


class Door(QuicListener):
    """Lives in the broker's time."""

    def __init__(self, sim: FelixSim, identity: tuple[bytes, bytes], options: FelixListener) -> None:
        self.sim = sim
        super().__init__(
            ListenerOptions(
                "felix", "127.0.0.1", 0, auth_failures_per_minute=1 << 30, connections_per_address_max=5000
            ),
            options,
            (*identity, b""),
            lambda stream: FelixSession(sim.broker, stream, sim.scheduler.monotonic(), options, stream.peer),
            lambda *_: None,
        )

    def now(self) -> int:
        return self.sim.scheduler.now()

    def monotonic(self) -> int:
        return self.sim.scheduler.monotonic()


class Live(Target):
    """Doors and clients of one broker, and the model: what was given to which tenant."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        if sabotaged:
            sabotage()
        self._runner, self._broken = asyncio.Runner(), False
        self.sim = FelixSim()
        self.sent: dict[str, set[bytes]] = {}
        self.links: dict[int, Link] = {}
        self.raised: list[str] = []
        self._next = 0
        self.pool: list[Link] = []
        with tempfile.TemporaryDirectory() as folder:
            certificate, key, _ = development_certificate(Path(folder), ("localhost", "127.0.0.1"))
        self.ca = certificate
        self.tokens = {tenant: token(self.sim.now_s, tenant, PERMISSIONS, life_s=1 << 30) for tenant in ("t1", "t2")}
        self.client = quic_endpoint.endpoint_class()(
            "127.0.0.1", 0, streams_max=0, uni_max=4096, idle_ms=60_000, connections_max=1000, stream_window=1 << 20,
            connection_window=1 << 26,
        )  # fmt: skip
        self._runner.run(self.open((certificate, key)))

    def next(self) -> int:
        self._next += 1
        return self._next

    def read(self, r: random.Random, number: int) -> int:
        try:
            return self._runner.run(self.step(r, number))
        except BrokenError:
            self._broken = True
            raise

    def close(self) -> None:
        try:
            if not self._broken:
                self._runner.run(self.finish())
        finally:
            self._runner.close()

    async def step(self, r: random.Random, number: int) -> int:
        while len(self.pool) < LINKS:
            self.pool.append(await self.link(r))
        link = r.choice(self.pool)
        stranger = not link.document and r.random() < 0.05
        done = await (self.stranger(r, link) if stranger else self.round(r, link))
        if link.closed is None and r.random() < 0.05:
            self.upset(r, link)
        if link.closed is not None or len(link.events) > 40 or r.random() < 0.01:
            self.pool.remove(link)
            self.shut(link)
        if number % PROBE_EVERY_ROUNDS == 0:
            await self.probe()
        return done

    async def open(self, identity: tuple[bytes, bytes]) -> None:
        loop = asyncio.get_running_loop()
        ways = (FelixListener(frame_bytes_max=FRAME_MAX),
                FelixListener(frame_bytes_max=FRAME_MAX, open=True, anonymous_role="open"))  # fmt: skip
        self.doors = [Door(self.sim, identity, options) for options in ways]
        loop.set_exception_handler(lambda _, what: self.raised.append(_told(what)))
        for door in self.doors:
            await door.start()
        loop.add_reader(self.client.fileno(), self._ready)

    async def finish(self) -> None:
        asyncio.get_running_loop().remove_reader(self.client.fileno())
        for door in self.doors:
            door.close_all("the run is over")
        await self.until(lambda: not any(door.running for door in self.doors), "the doors to close")
        self.client.close()

    def _ready(self) -> None:
        for event in self.client.take(1 << 22):
            kind, link = event[0], self.links.get(event[1])
            if link is None:
                continue
            if kind == quic_events.CONNECTED:
                link.connected = True
            elif kind == quic_events.CLOSED:
                link.closed = (event[2], event[3])
            elif kind == quic_events.DATA:
                lane = link.lanes.get(event[2])
                if lane is None and event[2] in link.stopped:
                    continue
                if lane is None:
                    link.events.setdefault(event[2], bytearray()).extend(event[3])
                else:
                    lane.got += event[3]
                    lane.fin = lane.fin or event[4]

    def send(self, lane: Lane, data: bytes, end: bool = False) -> None:
        self.client.send(lane.link.number, lane.number, [data], end)

    async def until(self, true: Callable[[], bool], what: str, more: Callable[[], str] = str) -> None:
        """Let the broker's time and the loop go on until it is so."""
        end = time.monotonic() + ANSWER_S
        turns = 0
        while not true():
            if self.raised:
                raise BrokenError(f"something raised {self.raised[0]}")
            if time.monotonic() > end:
                raise BrokenError(f"waited {ANSWER_S:.0f} s for {what} {more()}")
            self.sim.advance(1_000, 1_000)
            turns += 1
            await asyncio.sleep(0 if turns < 50 else 0.001)

    async def link(self, r: random.Random) -> Link:
        who = r.choice(("t1", "t1", "t2", "t2", "", "document"))
        link = Link(self, "" if who == "document" else who, who == "document", r.choice((0xFF, 0xFF, 0xBF)))
        await self.until(lambda: link.connected or link.closed is not None, "a handshake")
        if link.closed is not None:
            raise BrokenError(f"a connection was refused: {link.closed}")
        return link

    async def round(self, r: random.Random, link: Link) -> int:
        lanes = [lane for lane in link.lanes.values() if not lane.over() and not lane.ended]
        while len(lanes) < r.randrange(1, STREAMS_MAX + 1):
            lanes.append(await link.lane())
        lanes = r.sample(lanes, r.randrange(1, min(len(lanes), STREAMS_MAX) + 1))
        pieces: list[tuple[Lane, bytes, bool]] = []
        before = {lane: lane.frames for lane in lanes}
        for lane in lanes:
            make = Maker(r, lane, self)
            data = b"".join(make.request() for _ in range(r.randrange(1, FRAMES_PER_READ)))
            if r.random() < 0.12:
                self.counts["damaged reads"] += 1
                data = mutated(r, data)
            lane.ask(data)
            end = bool(lane.rest) or r.random() < 0.02
            if not end:
                barrier = make.barrier()
                lane.ask(barrier)
                data += barrier
            lane.ended = end
            pieces += _cut(r, lane, data, end)
        await self._send_mixed(r, lanes, pieces)
        await self.until(lambda: all(lane.done() for lane in lanes), "answers", lambda: self._late(lanes))
        self._judge(link, lanes)
        return sum(lane.frames - before[lane] for lane in lanes)

    async def stranger(self, r: random.Random, link: Link) -> int:
        """Requests on a stream that never said who it is: one refusal, and nothing of it is ever read by anybody."""
        lane = Lane(link, False)
        link.lanes[lane.number] = lane
        make = Maker(r, lane, self)
        data = b"".join(make.request() for _ in range(r.randrange(1, FRAMES_PER_READ)))
        data = mutated(r, data) if r.random() < 0.3 else data
        frames, _, verdict = read_frames(data, FRAME_MAX)
        for piece in _cut(r, lane, data, True):
            self.send(*piece)
        await self.until(lane.over, "a stranger to be refused")
        self.counts["strangers"] += 1
        del link.lanes[lane.number]
        if link.closed is not None:
            if link.closed[0] not in (PROTOCOL_ERROR, CLOSE_LOST) or not verdict:
                raise BrokenError(f"the connection of a stranger was shut: {link.closed}")
            return len(frames)
        said = [json.loads(payload) for _, payload in read_frames(bytes(lane.got), FRAME_MAX)[0]]
        if len(said) > 1 or any(not refused(one) for one in said) or (frames and not said):
            raise BrokenError(f"a stranger was told {said}")
        return len(frames)

    def upset(self, r: random.Random, link: Link) -> None:
        """A stream is given up in the middle, or an event stream is read no more."""
        lanes = [lane for lane in link.lanes.values() if not lane.over()]
        if lanes and r.random() < 0.5:
            lane = r.choice(lanes)
            self.counts["streams reset"] += 1
            make = Maker(r, lane, self)
            data = b"".join(make.request() for _ in range(3))
            lane.ask(data)
            self.send(lane, data[:-1])
            self.client.reset(link.number, lane.number, 5)
            self.client.stop(link.number, lane.number, 5)
            link.stopped.add(lane.number)
            del link.lanes[lane.number]
        elif link.events:
            stream = r.choice(list(link.events))
            self.counts["event streams stopped"] += 1
            self.client.stop(link.number, stream, 5)
            link.stopped.add(stream)
            del link.events[stream]

    def _late(self, lanes: list[Lane]) -> str:
        return ", ".join(
            f"stream {lane.number} of {lane.link.who!r}: {list(lane.waiting)[:5]}, {len(lane.got)} bytes, {lane.rest[:20]!r}"
            for lane in lanes
            if not lane.done()
        )

    async def _send_mixed(self, r: random.Random, lanes: list[Lane], pieces: list[tuple[Lane, bytes, bool]]) -> None:
        queues = {lane: [piece for piece in pieces if piece[0] is lane] for lane in lanes}
        while queues:
            lane = r.choice(list(queues))
            _, data, end = queues[lane].pop(0)
            self.send(lane, data, end)
            if not queues[lane]:
                del queues[lane]
            if r.random() < 0.1:
                await asyncio.sleep(0)

    def _judge(self, link: Link, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.heard()
        link.heard()
        fatal = [lane for lane in lanes if lane.verdict]
        if link.closed is not None:
            self.counts["connections shut"] += 1
            self.counts["closes lost"] += link.closed[0] == CLOSE_LOST
            if link.closed[0] not in (PROTOCOL_ERROR, CLOSE_LOST) or not fatal:
                verdicts = [lane.verdict for lane in lanes]
                raise BrokenError(f"the connection of {link.who!r} was shut: {link.closed}, its frames: {verdicts}")
            return
        for lane in lanes:
            if lane.verdict not in ("", "maybe") and lane.last_words == "":
                raise BrokenError("a malformed header did not shut the connection")
            if lane.fin:
                self.counts["streams ended"] += 1
                del link.lanes[lane.number]
                if not lane.ended and lane.last_words == "":
                    raise BrokenError("a stream ended, and nothing was said")
                if lane.waiting and lane.last_words == "":
                    raise BrokenError(f"a stream ended and owes {len(lane.waiting)} answers")

    async def probe(self) -> None:
        """The broker still does its work for somebody else."""
        link = Link(self, "", False, 0x3F)
        await self.until(lambda: link.connected, "the probe's handshake")
        lane = await link.lane()
        named = {"tenant_id": "probe", "namespace": "n", "stream": "s"}
        data = json_frame({"type": "subscribe", **named, "subscription_id": 1}) + batch(
            ("probe", "n", "s"), b"here", request=7
        )
        lane.ask(data)
        self.send(lane, data)
        await self.until(lambda: any(b"here" in data for data in link.events.values()), "the probe's event")
        lane.heard()
        link.heard()
        self.shut(link)

    def shut(self, link: Link) -> None:
        self.client.shut(link.number, 0, b"")
        del self.links[link.number]


def refused(said: dict[str, Any]) -> bool:
    """Whether it says that one is not let in, or what is wrong with an `auth`."""
    message = said.get("message", "")
    return message in LAST_WORDS or message.startswith("auth: ")


def _told(what: dict[str, Any]) -> str:
    """What was raised, and where."""
    error = what.get("exception")
    if error is None:
        return str(what["message"])
    places = [f"{Path(place.filename).name}:{place.lineno}" for place in traceback.extract_tb(error.__traceback__)]
    return f"{error!r} at {' '.join(places[-5:])}"


def _cut(r: random.Random, lane: Lane, data: bytes, end: bool) -> list[tuple[Lane, bytes, bool]]:
    """The pieces in which it is sent."""
    out, at = [], 0
    for _ in range(r.choice((0, 0, 1, 3, 8))):
        size = r.choice((1, 2, 11, 12, 13, 50, 500))
        if at + size < len(data):
            out.append((lane, data[at : at + size], False))
            at += size
    return [*out, (lane, data[at:], end)]


def sabotage() -> None:
    """The planted fault: the tenant of a token is compared with nothing."""
    setattr(Bearer, "require_token", lambda *_: None)  # noqa: B010
