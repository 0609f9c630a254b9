"""FlyMQ: the codec with the kernel's splitter, and live sessions on a broker with a simulated disk.

Frames are made from the table of operations, field by field, then damaged: lying lengths and counts, cut and joined payloads,
flipped bits, wrong codes and flags.

Codec: only Malformed and TooLarge; what decodes encodes to the same bytes; every chunking gives the same; native == pure.
The planted fault: bytes behind a payload's last field are ignored.

Live: no session raises; one reply per request; it stays usable, as a probe sees.
The planted fault: METADATA is not answered.
"""

import random
import struct
import time
from collections import Counter
from typing import Any

from fuzz.driver import BrokenError, Fuzzer, Half, Target, cuts, guarded

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.identity import passwords, users
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.kernel import pure
from quintet.model import limits
from quintet.model.errors import TooLarge
from quintet.protocols.flymq import codec, frames
from tests.protocols.flymq.helpers import Client, cheap_hash, make_sim, request
from tests.wire import flymq

FRAMES_PER_READ = 20
TWINS_EVERY_READS = 20
INFLATE_BYTES_MAX = 1 << 16
MAX_FRAME_BYTES = 1 << 20
NEW_BROKER_EVERY_FRAMES = 10_000
PROBE_EVERY_READS = 10
HOLD_US = 31_000_000  # longer than any FETCH may wait
TXNS_KEPT = 20
KNOWN: dict[bytes, int] = {b"t": 1, b"many": 3, b"u": 0}

NUMBERS = (
    0,
    1,
    2,
    3,
    10,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
WORDS: dict[str, tuple[str, ...]] = {
    "topic": (
        *("t",) * 8,
        "s",
        "many",
        "u",
        "s",
        "t-dlq",
        "__users",
        "x" * 255,
        "x" * 256,
        "é\u0301",
        "a\0b",
        "../t",
        "t*",
    ),
    "name": ("t", "s", "s-v1", "s-v0", "x" * 256),
    "schema": ("s", "s", "s-v1", "nothing"),
    "group": ("g", "g", "g", "h", "x" * 300),
    "mode": ("earliest", "latest", "commit", "offset", "timestamp", ""),
    "user": ("u1", "u2", "u3", "Admin", "admin", "\u0430dmin", "nobody"),
    "password": ("password", "long enough", "", "x" * 2000),
    "type": ("json", "avro", "proto", "xml"),
    "filter": ("", "$.a.b", "a", "(a+)+$", "[", "(?i)x{1,1000}", "\\C", "x" * 70_000),
    "durability": ("", "fsync", "os", "memory"),
    "compatibility": ("", "backward", "none", "maybe"),
    "format": ("json", "csv", "xml"),
    "roles": ("admin", "producer", "guest", "none"),
    "users": ("u1", "admin", "*"),
    "member": ("", "m1", "m2"),
    "after": ("", "0-0", "9-9", "x"),
    "message_id": ("0-0", "0-1", "1-", "-1", "9" * 30),
    "result": ("", "denied", "success"),
    "types": ("auth.failure", "topic.create", "nothing"),
}
BODIES = (
    b"",
    b"1",
    b"x",
    b'{"n": 1}',
    b'{"type": "integer"}',
    b'{"$ref": "#"}',
    b'{"type":"record","name":"r","fields":[]}',
)
LIKELY: dict[str, tuple[int, ...]] = {
    "partition": (0, 0, 0, 0, 0, -1, 1),
    "offset": (0, 0, 1, 2, 3),
    "version": (0, 0, 1),
    "partitions": (0, 1, 3),
    "handle": tuple(range(1_700_000_000_000_000, 1_700_000_000_000_030)),
    "ttl_ms": (1, 1000),
    "delay_ms": (0, 1, 10**6),
    "timeout_ms": (0, 5000),
    "generation": (0, 0, 1, 2),
}
RARE = frozenset({frames.DELETE_TOPIC, frames.DELETE_GROUP, frames.DELETE_SCHEMA, frames.PURGE_DLQ, frames.AUTH})
EXPECTED = (codec.Malformed, TooLarge)
CODES = sorted(frames.OPERATIONS)


# -- making ------------------------------------------------------------------------------------------------------------


def text_for(name: str, r: random.Random, txns: list[str]) -> str:
    if name == "txn_id" and txns and r.random() < 0.8:
        return r.choice(txns)
    if name in WORDS and r.random() < 0.9:
        return r.choice(WORDS[name])
    return "".join(r.choice("abé\u20ac\U0001f600.-_* ") for _ in range(r.choice((0, 1, 3, 20))))


def signed(kind: str, value: int) -> int:
    """Into the range of the field."""
    bits = 64 if kind.endswith("64") else 32
    value %= 1 << bits
    return value - (1 << bits) if kind.startswith("i") and value >= 1 << bits - 1 else value


def value_for(node: codec.Node, r: random.Random, txns: list[str]) -> Any:
    if isinstance(node, codec.Scalar):
        if node.kind == "bool":
            return r.random() < 0.5
        if node.name in LIKELY and r.random() < 0.8:
            return r.choice(LIKELY[node.name])
        value = r.choice(NUMBERS) if r.random() < 0.3 else r.randrange(4)
        return signed(node.kind, value * r.choice((1, 1, 1, -1)))
    if isinstance(node, codec.Text):
        if node.kind == "bytes32":
            return r.choice(BODIES) if r.random() < 0.8 else r.randbytes(r.choice((1, 100, 3000)))
        return text_for(node.name, r, txns)
    if isinstance(node, codec.Items):
        item = node.item
        count = r.choice((0, 1, 2, 5))
        if isinstance(item, codec.Layout):
            return [values_for(item, r, txns) for _ in range(count)]
        return [value_for(item, r, txns) for _ in range(count)]
    assert isinstance(node, codec.Framed)
    return values_for(node.item, r, txns)


def values_for(layout: codec.Layout, r: random.Random, txns: list[str]) -> dict[str, Any]:
    made = {node.name: value_for(node, r, txns) for node in layout.nodes if not isinstance(node, codec.Count)}
    if layout.tail is not None and r.random() < 0.5:
        made |= values_for(layout.tail, r, txns)
    return made


def payload(text: str, r: random.Random, txns: list[str]) -> bytes:
    return codec.layout(text).encode(values_for(codec.layout(text), r, txns))


def damaged(data: bytes, r: random.Random) -> bytes:
    """The payload with one to three things wrong in it."""
    out = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 3))):
        kind = r.randrange(7)
        at = r.randrange(len(out) + 1)
        if kind == 0 and out:
            out[r.randrange(len(out))] ^= 1 << r.randrange(8)
        elif kind == 1:
            del out[at:]
        elif kind == 2:
            out += r.randbytes(r.choice((1, 4, 12)))
        elif kind == 3:
            out[at : at + 4] = struct.pack(">I", r.choice((0, 1, 2**31 - 1, 2**32 - 1, len(out))))
        elif kind == 4:
            out[at : at + 2] = struct.pack(">H", r.choice((0, 1, 65535, len(out) & 0xFFFF)))
        elif kind == 5:
            out[at:at] = out[: r.randrange(20)]
        elif out:
            out[r.randrange(len(out))] = r.choice((0, 255, 0x80, 0xC0))
    return bytes(out)


def make_frame(r: random.Random, txns: list[str]) -> tuple[int, int, bytes]:
    """(code, flags, payload), sound or damaged."""
    operation = frames.OPERATIONS[r.choice(CODES)]
    if operation.code in RARE and r.random() < 0.9:
        operation = frames.OPERATIONS[r.choice(CODES)]
    made = payload(r.choice(operation.asks), r, txns)
    if r.random() < 0.3:
        made = damaged(made, r)
    code, flags = operation.code, frames.BINARY
    if r.random() < 0.05:
        code = r.randrange(256)
    if r.random() < 0.1:
        number = r.randrange(8)
        flags |= number << frames.COMPRESSION_SHIFT
        if number in frames.CODECS and r.random() < 0.7:
            made = codec.compress(number, made)
            made = damaged(made, r) if r.random() < 0.3 else made
    if r.random() < 0.1:
        flags |= r.randrange(8) << frames.ACCEPT_SHIFT
    return code, flags, made


# -- the codec ---------------------------------------------------------------------------------------------------------


def lenient(operation: frames.Operation, data: bytes) -> codec.Values:
    """The planted fault: the layouts in turn, whatever follows their last field."""
    for text in operation.asks:
        try:
            return codec.layout(text).take(memoryview(data), 0)[0]
        except codec.Malformed:
            continue
    raise codec.Malformed("none fits")


class Codec(Target):
    """Runs frames through codec and kernel and counts what came of them."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        self.decode = lenient if sabotaged else codec.decode_request
        self.slowest = (0.0, "")

    def read(self, r: random.Random, number: int) -> int:
        made = [make_frame(r, []) for _ in range(FRAMES_PER_READ)]
        for code, flags, data in made:
            self.request(code, flags, data)
        self.answer(r)
        read = b"".join(flymq.frame(code, data, flags) for code, flags, data in made)
        if r.random() < 0.2:
            read = damaged(read, r)
        self.split(read, cuts(r, len(read), 4), number % TWINS_EVERY_READS == 0)
        return len(made)

    def notes(self) -> str:
        return f"slowest {self.slowest[1]} {self.slowest[0] * 1000:.1f} ms"

    def request(self, code: int, flags: int, data: bytes) -> None:
        operation = frames.OPERATIONS.get(code)
        number = (flags & frames.COMPRESSION_MASK) >> frames.COMPRESSION_SHIFT
        if operation is None:
            self.counts["no operation"] += 1
            return
        start = time.perf_counter()
        try:
            if number:
                data = codec.inflate(number, data, INFLATE_BYTES_MAX)
                if len(data) > INFLATE_BYTES_MAX:
                    raise BrokenError(f"{len(data)} bytes were inflated")
            found = self.decode(operation, data)
        except EXPECTED as error:
            self.counts[type(error).__name__] += 1
        except Exception as error:
            raise BrokenError(f"{operation.name} raised {type(error).__name__}: {error}") from error
        else:
            self.counts["decoded"] += 1
            self.same_again(operation, data, found)
        took = time.perf_counter() - start
        if took > self.slowest[0]:
            self.slowest = (took, operation.name)

    def same_again(self, operation: frames.Operation, data: bytes, found: codec.Values) -> None:
        for text in operation.asks:
            try:
                if codec.layout(text).encode(found) == data:
                    return
            except KeyError:
                continue
        raise BrokenError(f"{operation.name} decodes to {found} and does not encode to the same bytes")

    def answer(self, r: random.Random) -> None:
        operation = frames.OPERATIONS[r.choice(list(frames.OPERATIONS))]
        text = r.choice((operation.answer, operation.answer_sdk))
        data = payload(text, r, [])
        if r.random() < 0.5:
            data = damaged(data, r)
        try:
            found = codec.layout(text).decode(memoryview(data))
        except codec.Malformed:
            return
        except Exception as error:
            raise BrokenError(f"the answer of {operation.name} raised {type(error).__name__}: {error}") from error
        if codec.layout(text).encode(found) != data:
            raise BrokenError(f"the answer of {operation.name} does not encode to the same bytes")

    def split(self, data: bytes, at: list[int], twins: bool) -> None:
        whole, end = self.walk(kernel, data, [])
        parts = self.walk(kernel, data, at)
        if (whole, end) != parts:
            raise BrokenError(f"cutting the read at {at} changed what came out of it")
        if twins and self.walk(pure, data, []) != (whole, end):
            raise BrokenError("fly_split and its pure twin differ")

    def walk(self, twin: Any, data: bytes, ends: list[int]) -> tuple[list[Any], tuple[int, int]]:
        """Every record and every other frame, in an order that cuts do not change; where it ended and why."""
        seen: list[Any] = []
        position = fatal = 0
        for cut in [*ends, len(data)]:
            while not fatal:
                items, end, fatal, unknown = twin.fly_split(data[:cut], position, MAX_FRAME_BYTES, KNOWN, b"o", 1)
                if not position <= end <= cut:
                    raise BrokenError(f"fly_split went from {position} to {end} of {cut}")
                for item in items:
                    seen += self.flat(twin, item)
                if unknown is not None:
                    KNOWN[unknown] = len(unknown) % 3
                elif end == position:
                    break
                position = end
        return seen, (position, fatal)

    @staticmethod
    def flat(twin: Any, item: tuple[Any, ...]) -> list[Any]:
        if not isinstance(item[1], list):
            return [item]
        _, groups, order = item
        rows = [(topic, partition, iter(twin.rows(batch, 0, count))) for topic, partition, batch, count in groups]
        out = []
        for (number,) in struct.iter_unpack("<H", order):
            topic, partition, following = rows[number]
            row = next(following)
            out.append((topic, partition, row[2], row[3]))
        return out


# -- live --------------------------------------------------------------------------------------------------------------


def cheaply() -> None:
    """Hashes that cost nothing: what they cost is not what is fuzzed; and a disk that fits into memory."""
    for module, name, value in (
        (passwords, "HASH_MEMORY_KIB", 8),
        (passwords, "HASH_PASSES", 1),
        (users, "NOBODY_HASH", cheap_hash("nobody")),
        (limits, "PARTITIONS_MAX", 8),
    ):
        setattr(module, name, value)


def sabotage() -> None:
    """The planted fault."""
    encode = codec.answer_pieces

    def forgetful(operation: frames.Operation, *rest: Any) -> bytes | list[bytes]:
        return b"" if operation.code == frames.METADATA else encode(operation, *rest)

    setattr(codec, "answer_pieces", forgetful)  # noqa: B010


class Live(Target):
    """Clients of one broker; a connection that was closed is replaced, the broker every so often."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        cheaply()
        self.txns: list[str] = []
        policy = TopicPolicy([TopicRule("many", partitions=3), TopicRule("*")], topics_max=30)
        people = {"root": ("admin",), "admin": ("admin",), "bruno": ("producer", "consumer"), "guste": ("guest",)}
        self.sim = make_sim(BrokerOptions(topics=policy), people)
        self.clients = [self.client(number) for number in range(5)]
        root = self.clients[0]
        root.produce("t", b"1", b'{"n": 1}', b"x", key=b"k", partition=0)
        root.ask("REGISTER_SCHEMA", name="s", type="json", schema=b'{"type": "integer"}')
        root.ask("DEAD_LETTER", topic="t", partition=0, offset=0, error="x")
        root.ask("COMMIT", topic="t", group="g", partition=0, offset=1)
        if sabotaged:
            sabotage()

    def client(self, number: int) -> Client:
        user = ("root", "root", "root", "bruno", "guste")[number]
        return Client(self.sim, user, "sdk" if number % 2 else "document")

    def read(self, r: random.Random, number: int) -> int:
        at = r.randrange(len(self.clients))
        client = self.clients[at]
        made = [make_frame(r, self.txns) for _ in range(FRAMES_PER_READ)]
        data = b"".join(flymq.frame(code, payload_, flags) for code, flags, payload_ in made)
        broken = r.random() < 0.03
        if broken:
            data = damaged(data, r)
        pieces = [r.choice((1, 8, 50, 500)) for _ in range(r.randrange(6))]
        replies = guarded("the session", lambda: self.exchange(client, data, pieces), ())
        self.judge(client, at, replies, broken)
        if number % PROBE_EVERY_READS == 0:
            self.probe()
        return len(made)

    def exchange(self, client: Client, data: bytes, pieces: list[int]) -> list[flymq.Frame]:
        """All replies; a FETCH that waits is waited for."""
        client.peer.feed(data, pieces)
        self.sim.scheduler.run_until_idle()
        for _ in range(FRAMES_PER_READ):
            if not client.peer.session.holding:
                break
            self.sim.advance(HOLD_US, HOLD_US // 4)
        return flymq.frames_of(client.peer.take())

    def judge(self, client: Client, at: int, replies: list[flymq.Frame], broken: bool) -> None:
        for reply in replies:
            self.counts["refused" if reply.code == frames.ERROR else "answered"] += 1
            if reply.code == frames.TXN_BEGIN:
                self.txns = [*self.txns[-TXNS_KEPT:], client.read("TXN_BEGIN", reply)["txn_id"]]
        if client.peer.session.holding:
            raise BrokenError("a request is never answered")
        if client.peer.session.closing is None and not broken and len(replies) != FRAMES_PER_READ:
            raise BrokenError(f"{len(replies)} replies to {FRAMES_PER_READ} requests")
        if client.peer.session.closing is not None or broken:
            self.counts["closed"] += 1
            client.close()
            self.clients[at] = self.client(at)

    def probe(self) -> None:
        """The broker still does its work for somebody else."""
        probe = Client(self.sim, "root")
        (reply,) = probe.exchange(request("PRODUCE", topic="probe", key=b"", value=b"probe", partition=0))
        if reply.code == frames.ERROR and b"E14" not in reply.payload:
            raise BrokenError(f"the probe was refused: {reply.payload!r}")
        probe.close()


FUZZER = Fuzzer(
    Half(Codec, "bytes behind a payload's last field are ignored"),
    Half(Live, "METADATA is not answered", NEW_BROKER_EVERY_FRAMES),
)
