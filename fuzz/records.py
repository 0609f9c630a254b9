"""Record sets (ADR 33): the kernel's functions for them, and live sessions of every door that carries them.

Codec: only ValueError; a set is refused exactly if tests/wire/records.py and the limits say so, and else its batches hold what it says;
native == pure. The planted fault: a reserved name is taken.

Live: sets that are sound, hostile or damaged go to BlipMQ 0x5103, FlyMQ, Fast and Felix of one broker, cut anywhere. No session raises;
a set is stored whole or refused whole; readers of all four doors get the same records, with numbers, times and origins; a session
stays usable. The planted fault: a null header value is stored as an empty one.
"""

import random
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

from fuzz.driver import BrokenError, Fuzzer, Half, Target, guarded, mutated

from quintet import kernel
from quintet.broker.identity.tokens import TokenOptions
from quintet.kernel import pure
from quintet.model import limits
from quintet.protocols import records as server
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.fast.section import FastListener
from quintet.protocols.fast.session import FastDoor, FastSession
from quintet.protocols.felix import frames as felix_frames
from quintet.testing.line import Peer
from tests.protocols.felix.helpers import FelixSim
from tests.protocols.felix.helpers import subscribe as felix_subscribe
from tests.protocols.flymq.helpers import Client as FlyClient
from tests.protocols.flymq.helpers import Refused, configure, request
from tests.wire import blipmq, fast, felix, flymq
from tests.wire.records import Record, pack, split

NOW = 1_000_000
RECORDS_PER_SET = 6
NEW_BROKER_EVERY_SETS = 1_500
TOPIC = "t"
NAMES = (b"a", b"trace", "grün".encode(), b"n" * 255, b"quintet")
BAD_NAMES = (b"", b"n" * 256, b"\xff", "ü".encode()[:1], b"quintet-", b"quintet-dead-topic")


# -- making and judging ------------------------------------------------------------------------------------------------


def make_record(r: random.Random) -> Record:
    pairs = [(r.choice(NAMES), r.choice((None, b"", r.randbytes(5)))) for _ in range(r.choice((0, 0, 1, 2, 4)))]
    if r.random() < 0.03:
        pairs.append((r.choice(BAD_NAMES), b"x"))
    if r.random() < 0.01:
        pairs += [(b"h", b"")] * r.choice((limits.HEADERS_MAX - len(pairs), limits.HEADERS_MAX))
    if r.random() < 0.01:
        pairs.append((b"h", b"x" * (limits.HEADERS_BYTES_MAX - r.choice((0, 1, 2_000)))))
    value = None if r.random() < 0.1 else r.randbytes(r.choice((0, 1, 20, 300)))
    ttl = r.choice((None, None, None, 0, 60_000, (1 << 32) - 1))
    return Record(value, r.choice((None, None, b"", b"k", r.randbytes(3))), tuple(pairs), ttl)


def make_set(r: random.Random) -> bytes:
    made = [make_record(r) for _ in range(r.randrange(1, RECORDS_PER_SET))]
    if r.random() < 0.03:
        made[-1] = made[-1]._replace(time=5)
    data = pack(*made)
    return mutated(r, data) if r.random() < 0.3 else data


def verdict(data: bytes) -> list[Record] | None:
    """The records that a sound set stores; None if it must be refused."""
    try:
        found = split(data)
    except ValueError:
        return None
    if not found or any((one.number, one.time, one.origin) != (None, None, None) for one in found):  # a server's to say
        return None
    for one in found:
        size = sum(len(name) + len(value or b"") for name, value in one.headers)
        if len(one.headers) > limits.HEADERS_MAX or size > limits.HEADERS_BYTES_MAX:
            return None
        for name, _ in one.headers:
            if not 0 < len(name) <= limits.HEADER_NAME_BYTES_MAX or name.startswith(b"quintet-") or not is_text(name):
                return None
    return [Record(one.value, one.key or None, one.headers, one.ttl_ms or None) for one in found]


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- the codec ---------------------------------------------------------------------------------------------------------


def lenient(data: bytes, *rest: Any) -> Any:
    """The planted fault: a reserved name is taken."""
    return kernel.records_split(data.replace(b"quintet-", b"quintet_"), *rest)


class Codec(Target):
    """Sets through both twins, beside the reading of tests/wire."""

    def read(self, r: random.Random, number: int) -> int:
        self.raw(make_set(r), r)
        return 1

    def raw(self, data: bytes, r: random.Random) -> None:
        partitions = r.choice((1, 3))
        rest = (r.choice((-1, 0)), partitions, b"o", NOW)
        found = guarded("records_split", lambda: (lenient if self.sabotaged else kernel.records_split)(data, *rest))
        wanted = verdict(data)
        self.counts["sound" if wanted else "refused"] += 1
        if (found is not None and len(found) == 2) != (wanted is not None):
            raise BrokenError(f"records_split said {str(found)[:80]}, the bytes say {str(wanted)[:80]}")
        if wanted is not None and found is not None:
            self.compare_rows(wanted, *found)
        if not self.sabotaged and found != guarded("its pure twin", lambda: pure.records_split(data, *rest)):
            raise BrokenError("records_split and its pure twin differ")
        for name, args in (("records_received", (data, 1)), ("headers_unpack", (data,))):
            got = [guarded(name, lambda t=twin, n=name, a=args: getattr(t, n)(*a)) for twin in (kernel, pure)]  # type: ignore[misc]
            if got[0] != got[1]:
                raise BrokenError(f"{name} and its pure twin differ")

    def compare_rows(self, wanted: list[Record], groups: list[tuple[int, bytearray, int]], order: bytes) -> None:
        rows = [iter(kernel.rows(batch, 0, count)) for _, batch, count in groups]
        numbers = memoryview(order).cast("H").tolist()
        for one, number in zip(wanted, numbers, strict=True):
            _, _, key, value, headers, expiry, _ = next(rows[number])
            until = NOW + one.ttl_ms * 1000 if one.ttl_ms else 0
            if (value, key, headers, expiry) != (one.value, one.key, one.headers, until):
                raise BrokenError("a batch does not hold what its record set says")


# -- live sessions -----------------------------------------------------------------------------------------------------


class Got(NamedTuple):
    """A record as a reader got it."""

    number: int
    time: int
    origin: bytes
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def resolved(data: bytes) -> list[Got]:
    """What a server's set says of each record, with what it says once for several."""
    found: list[Got] = []
    number, time, origin = -1, 0, b""
    for one in guarded("a reader of the output", lambda: split(data), ()):
        number = number + 1 if one.number is None else one.number
        time = time if one.time is None else one.time
        origin = origin if one.origin is None else one.origin
        found.append(Got(number, time, origin, one.value, one.key, one.headers))
    return found


class Door:
    """A publisher and a reader of one door."""

    name = ""

    def __init__(self, live: "Live") -> None:
        self.live = live
        self.id = 100

    def publish(self, data: bytes, pieces: list[int]) -> bool:
        """Whether the set was accepted."""
        raise NotImplementedError

    def delivered(self) -> list[Got]:
        raise NotImplementedError

    def next_id(self) -> int:
        self.id += 1
        return self.id


class Blip(Door):
    """Version 0x5103."""

    name = "blipmq"

    def __init__(self, live: "Live") -> None:
        super().__init__(live)
        self.publisher, self.reader = self.connect(), self.connect()
        (reply,) = blipmq.frames_of(self.reader.exchange(blipmq.subscribe(3, TOPIC.encode(), 0)))
        self.reader.exchange(blipmq.word(4, 3, reply.number, 0))

    def connect(self) -> Peer:
        peer = Peer(self.live.sim, BlipSession)
        peer.exchange(blipmq.hello(1, blipmq.WHOLE) + blipmq.auth(2, b"dev-key"))
        return peer

    def publish(self, data: bytes, pieces: list[int]) -> bool:
        id = self.next_id()
        sent = blipmq.records(id, TOPIC.encode(), 1, data) + blipmq.ping(id)
        said = [(one.kind, one.id) for one in blipmq.frames_of(self.publisher.exchange(sent, pieces))]
        if said not in ([(blipmq.PONG, id)], [(blipmq.NACK, id), (blipmq.PONG, id)]):
            raise BrokenError(f"a record set and a PING were answered with {said}")
        return len(said) == 1

    def delivered(self) -> list[Got]:
        found: list[Got] = []
        for one in blipmq.frames_of(self.reader.take()):
            size = int.from_bytes(one.payload[1:3], "big")
            found += resolved(one.payload[3 + size :])
        return found


class Fly(Door):
    """PRODUCE_RECORDS and FETCH_RECORDS."""

    name = "flymq"

    def __init__(self, live: "Live") -> None:
        super().__init__(live)
        self.client = FlyClient(live.sim, "admin")
        self.position = 0

    def publish(self, data: bytes, pieces: list[int]) -> bool:
        sent = request("PRODUCE_RECORDS", topic=TOPIC, partition=0, records=data)
        (reply,) = flymq.frames_of(self.client.peer.exchange(sent, pieces))
        try:
            self.client.read("PRODUCE_RECORDS", reply)
        except Refused:
            return False
        return True

    def delivered(self) -> list[Got]:
        found = self.client.ask("FETCH_RECORDS", topic=TOPIC, partition=0, offset=self.position, max=10_000)
        self.position = found["next_offset"]
        return resolved(found["records"])


class Fast(Door):
    """EXTEND 3."""

    name = "fast"

    def __init__(self, live: "Live") -> None:
        super().__init__(live)
        self.door = FastDoor(live.sim.broker, FastListener(auth_failures_max=0))
        self.jwt, self.topic = fast.token("ann", "k", "publish", "subscribe"), fast.topic_id(TOPIC.encode())
        self.publisher, self.reader = self.connect(), self.connect()
        self.publisher.exchange(fast.create(self.jwt, TOPIC.encode(), 1))
        self.reader.exchange(fast.subscribe(self.jwt, self.topic))

    def connect(self) -> Peer:
        peer = Peer(self.live.sim, lambda _, sink, now: FastSession(self.door, sink, now, "10.0.0.1:99"))
        peer.exchange(fast.extend(3))
        return peer

    def publish(self, data: bytes, pieces: list[int]) -> bool:
        said = fast.packets_of(self.publisher.exchange(fast.records(self.jwt, self.topic, data), pieces))
        if len(said) != 1 or not isinstance(said[0], fast.Answer) or said[0].request != fast.RECORDS:
            raise BrokenError(f"a record set was answered with {said}")
        return said[0].code == 0

    def delivered(self) -> list[Got]:
        found: list[Got] = []
        for one in fast.packets_of(self.reader.take()):
            if not isinstance(one, fast.Messages):
                raise BrokenError(f"a reader of sets was sent {one}")
            found += resolved(one.payload)
        return found


class Felix(Door):
    """Flag 0x0400."""

    name = "felix"

    def __init__(self, live: "Live") -> None:
        super().__init__(live)
        self.connection = live.sim.connect()
        self.stream = self.connection.auth(flags=felix_frames.SERVER_FLAGS & ~felix_frames.ZSTD, tenant="")
        self.stream.ask(felix_subscribe(("", "", TOPIC), subscription_id=1))
        (self.outlet,) = self.connection.outlets
        felix.frames_of(bytes(self.outlet.sent))  # how the stream begins
        self.outlet.sent.clear()

    def publish(self, data: bytes, pieces: list[int]) -> bool:
        id = self.next_id()
        body = id.to_bytes(8, "big") + bytes((felix.PER_BATCH,)) + felix.names("", "", TOPIC) + data
        sent = felix.frame(body, felix.BATCH | felix.ACKED | felix_frames.RECORDS)
        ((_, payload),) = felix.frames_of(self.stream.exchange(sent, pieces))
        status, request_id, _ = felix.read_ack(payload)
        if request_id != id:
            raise BrokenError(f"the batch {id} was answered as {request_id}")
        return status == 0

    def delivered(self) -> list[Got]:
        data, self.outlet.sent = bytes(self.outlet.sent), bytearray()
        found: list[Got] = []
        for flags, payload in felix.frames_of(data):
            if flags != felix.EVENTS | felix_frames.RECORDS:
                raise BrokenError(f"a reader of sets was sent a frame with flags {flags:#x}")
            found += resolved(payload)
        return found


def empty_nulls(*args: Any, **options: Any) -> Any:
    """The planted fault: a null header value is stored as an empty one."""
    groups, order = SPLIT(*args, **options)
    rows = [[list(column) for column in zip(*kernel.rows(batch, 0, count), strict=True)] for _, batch, count in groups]
    made = [
        kernel.build(values, keys, [[(n, v or b"") for n, v in one] for one in headers], None, expiries, b"x")
        for _, _, keys, values, headers, expiries, _ in rows
    ]
    return server.Groups(
        [(partition, batch, count) for (partition, _, count), batch in zip(groups, made, strict=True)], order
    )


SPLIT = server.split


class Live(Target):
    """Four doors of one broker on one topic, and the model: what was accepted."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        setattr(server, "split", empty_nulls if sabotaged else SPLIT)  # noqa: B010
        self.sim = FelixSim()
        configure(self.sim)
        self.sim.broker.set_tokens(TokenOptions(secrets=(fast.MASTER,)))
        self.doors: list[Door] = [Fast(self), Blip(self), Fly(self), Felix(self)]

    def close(self) -> None:
        setattr(server, "split", SPLIT)  # noqa: B010

    def read(self, r: random.Random, number: int) -> int:
        data, door = make_set(r), r.choice(self.doors)
        pieces = [r.choice((1, 3, 13, 50, 500)) for _ in range(r.randrange(6))]
        wanted = verdict(data)
        accepted = guarded(f"the session of {door.name}", lambda: door.publish(data, pieces), ())
        if accepted != (wanted is not None):
            raise BrokenError(f"{door.name} {'accepted' if accepted else 'refused'} a set, the bytes say otherwise")
        self.counts[f"{door.name} {'stored' if accepted else 'refused'}"] += 1
        seen = {one.name: guarded(f"a reader of {one.name}", one.delivered, ()) for one in self.doors}
        for name, found in seen.items():
            self.judge(wanted or [], found, f"published by {door.name}, read by {name}", door.name)
        if len({one.time for found in seen.values() for one in found}) > 1:
            raise BrokenError("the records of a set have several times")
        if r.random() < 0.05:
            guarded("a tick", lambda: self.sim.advance(100_000), ())
        return 1

    def judge(self, wanted: list[Record], found: list[Got], what: str, by: str) -> None:
        if [(one.value, one.key, one.headers) for one in wanted] != [(o.value, o.key, o.headers) for o in found]:
            raise BrokenError(f"{len(found)} of {len(wanted)} records, or with other contents: {what}")
        if any(after.number != before.number + 1 for before, after in pairwise(found)):
            raise BrokenError(f"numbers have gaps: {what}")
        if not all(one.origin.startswith(by.encode() + b":") and one.time for one in found):
            raise BrokenError(f"a record has another origin, or no time: {what}")


FUZZER = Fuzzer(
    Half(Codec, "a reserved name is taken"),
    Half(Live, "a null header value is stored as an empty one", NEW_BROKER_EVERY_SETS),
)
