"""What says which cell a frame is for: every operation has a place, hostile bytes are somebody's, and nothing is passed over."""

import json
import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.broker.consumers.subscriptions import Subscriptions
from quintet.model.cells import CellMap
from quintet.protocols.blipmq import codec as blip
from quintet.protocols.blipmq import frames as blip_frames
from quintet.protocols.blipmq.routing import BlipRouter
from quintet.protocols.fast import codec as fast
from quintet.protocols.fast.mapping import topic_id
from quintet.protocols.fast.routing import FastRouter
from quintet.protocols.felix import codec as felix_codec
from quintet.protocols.felix import frames as felix_frames
from quintet.protocols.felix.frames import Dialect
from quintet.protocols.felix.routing import NAMED, FelixRouter
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.flymq import codec as fly
from quintet.protocols.flymq import frames, routing
from quintet.protocols.flymq.section import FlymqListener
from quintet.protocols.routing import EVERY, REFUSED, Router


class DictPins(dict[str, int]):
    """In this process."""

    def begin(self, name: str) -> None:
        self[name] = -1

    def knows(self, name: str) -> bool:
        return name in self

    def pin(self, name: str, cell: int) -> int:
        self[name] = cell if self[name] < 0 else self[name]
        return self[name]

    def cell(self, name: str) -> int | None:
        return self[name] if self[name] >= 0 else None


CELLS = CellMap(3, (), "-dlq")
CELLS.pins = DictPins()
OWN = 2
MOST = 1 << 20
TOKEN = b"a.b.c"


class Session:
    """What routers ask of one."""

    principal_name = "ann"
    extended = True
    same_token: bytes | None = b""

    def admits(self, token: bytes, _now: int) -> bool:
        return token == TOKEN


class FelixStream:
    """What the router of Felix asks of a session."""

    def __init__(self) -> None:
        self.shared = type("Shared", (), {"places": None})()
        self.dialect = Dialect(False, felix_frames.SERVER_FLAGS, True)


def felix(**fields: Any) -> bytes:
    return felix_codec.frame(json.dumps(fields).encode())


def batch(stream: str, acked: bool, key: bytes | None = None) -> bytes:
    flags = felix_frames.BATCH | (felix_frames.ACKED if acked else 0) | (felix_frames.KEYS if key is not None else 0)
    front = struct.pack(">QB", 1, 1) if acked else b""
    front += b"" if key is None else struct.pack(">H", len(key)) + key
    return felix_codec.frame(front + felix_codec.target("", "", stream) + struct.pack(">II", 1, 1) + b"v", flags)


def fly_router() -> routing.FlyRouter:
    return routing.FlyRouter(CELLS, OWN, FlymqListener(), Session())  # type: ignore[arg-type]


def routers() -> list[Router]:
    return [
        BlipRouter(CELLS, OWN, MOST, Session()),  # type: ignore[arg-type]
        FastRouter(CELLS, OWN, MOST, Session()),  # type: ignore[arg-type]
        fly_router(),
        FelixRouter(CELLS, OWN, FelixListener(), FelixStream()),  # type: ignore[arg-type]
    ]


def ask(name: str, **fields: Any) -> bytes:
    operation = next(found for found in frames.OPERATIONS.values() if found.name == name)
    body = fly.layout(operation.asks[0]).encode(fields)
    return frames.HEADER.pack(frames.MAGIC, frames.VERSION, operation.code, frames.BINARY, len(body)) + body


def place(router: Router, data: bytes) -> int:
    run = router.run(memoryview(data), 0, 0)
    assert run.end == len(data)
    return run.cell


def test_every_operation_of_flymq_has_one_place() -> None:
    kinds = [
        routing.BY_NAME,
        routing.GROUPS,
        routing.TRANSACTIONS,
        routing.EVERYWHERE,
        routing.HERE,
        routing.CHANGES,
        routing.NOWHERE,
    ]
    for code, operation in frames.OPERATIONS.items():
        assert sum(code in kind for kind in kinds) == 1, operation.name
    for code in routing.BY_NAME:  # their payload begins with it
        assert all(text.startswith(("topic:str16!", "name:str16!")) for text in frames.OPERATIONS[code].asks)


def test_a_request_of_flymq_goes_where_its_topic_is() -> None:
    router = fly_router()
    for number in range(20):
        topic = f"t{number}"
        cell = CELLS.cell_of(topic.encode())
        assert place(router, ask("FETCH", topic=topic, partition=0, offset=0, max=1)) == cell
        assert place(router, ask("PRODUCE", topic=topic, key=b"", value=b"v", partition=-1)) == cell
        assert place(router, ask("DESCRIBE_GROUP", topic=topic, group="g")) == cell
        assert place(router, ask("CLUSTER_METADATA", topic=topic)) == cell
    assert place(router, ask("CLUSTER_METADATA", topic="")) == EVERY
    assert place(router, ask("WHOAMI")) == OWN
    assert place(router, ask("DESCRIBE_GROUP", topic="", group="g")) == REFUSED


def test_frames_of_blipmq_go_where_topic_or_subscription_is() -> None:
    router = routers()[0]
    name = next(f"n{i}".encode() for i in range(99) if CELLS.cell_of(f"n{i}".encode()) == 1)
    publish = blip.encode(blip_frames.PUBLISH, 1, b"\x01" + struct.pack(">H", len(name)) + name)
    assert place(router, publish) == place(router, blip.subscribe(1, name, 1)) == 1
    assert place(router, blip.ping(2)) == 1, "it is the barrier of what was before it"
    assert [place(router, blip.poll(3, id)) for id in (1, 2, 3)] == [1, 2, 0]
    assert place(router, blip.hello(1, 2)) == OWN


def test_an_empty_token_of_fast_is_written_out() -> None:
    router = routers()[1]
    number = next(n for n in range(99) if CELLS.cell_of_number(n) == 1)
    assert place(router, fast.publish(b"x.y.z", number, b"v")) == OWN, "a refused token is judged here"
    assert place(router, fast.publish(b"", number, b"v")) == OWN, "none was shown"
    assert place(router, fast.publish(TOKEN, number, b"v")) == 1
    data = fast.subscribe(b"", number)
    assert router.run(memoryview(data), 0, 0).data == fast.subscribe(TOKEN, number)
    assert place(router, fast.create(TOKEN, b"orders")) == CELLS.cell_of_number(topic_id(b"orders"))


def test_requests_of_felix_go_where_topic_or_subscription_is() -> None:
    router = routers()[3]
    for number in range(20):
        name = f"t{number}"
        cell, scope = CELLS.cell_of(name.encode()), {"tenant_id": "", "namespace": "", "stream": name}
        assert {place(router, batch(name, acked, key)) for acked in (True, False) for key in (None, b"k")} == {cell}
        packed = felix_codec.pack(batch(name, True)[felix_frames.HEADER.size :])
        flags = felix_frames.BATCH | felix_frames.ACKED | felix_frames.ZSTD
        assert place(router, felix_codec.frame(packed, flags)) == cell
        for kind in NAMED - {"subscribe"}:
            assert place(router, felix(type=kind, **scope)) == cell
        run = router.run(memoryview(felix(type="subscribe", start="earliest", **scope)), 0, 0)
        assert run.cell == cell and run.data is not None
        said = json.loads(run.data[felix_frames.HEADER.size :])
        assert said.pop("subscription_id") % CELLS.count == cell
        assert said == {"type": "subscribe", "start": "earliest", **scope}
    assert place(router, felix(type="match_topics", patterns=["*"])) == EVERY
    assert place(router, felix(type="cache_get", key="k")) == place(router, felix(type="nonsense")) == OWN


def test_an_id_of_a_subscription_is_one_cells_on_a_connection() -> None:
    router, by_cell = routers()[3], {CELLS.cell_of(f"t{n}".encode()): f"t{n}" for n in range(99)}
    where = {"type": "subscribe", "tenant_id": "", "namespace": ""}
    given = router.run(memoryview(felix(**where, stream=by_cell[0])), 0, 0).data
    assert given is not None
    id = json.loads(given[felix_frames.HEADER.size :])["subscription_id"]
    assert place(router, felix(type="ack", subscription_id=id, ranges=[])) == 0
    assert place(router, felix(**where, stream=by_cell[1], subscription_id=id)) == REFUSED, "it was given out"
    assert place(router, felix(**where, stream=by_cell[1], subscription_id=900)) == 1
    assert place(router, felix(type="unsubscribe", subscription_id=900)) == 1
    assert place(router, felix(**where, stream=by_cell[2], subscription_id=900)) == REFUSED, "another cell has it"
    assert place(router, felix(**where, stream=by_cell[1], subscription_id=900)) == 1, "which says so itself"
    for _ in range(300):
        watch = router.run(memoryview(felix(type="cache_watch", key="k")), 0, 0).data
        assert watch is not None and json.loads(watch[felix_frames.HEADER.size :])["subscription_id"] != 900


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_hostile_bytes_never_stop_a_router(which: int, chance: random.Random) -> None:
    """Each run lies in the bytes, and goes on until what is left is no whole frame."""
    known = [
        blip.ping(1),
        blip.encode(blip_frames.PUBLISH, 1, b"\x81\0\0\0\1\0\1ax"),
        blip.match_topics(1, 0, [b"a*"]),
        blip.word(1, 1, 5, 0),
        fast.publish(TOKEN, 5, b"v"),
        fast.create(TOKEN, b"n"),
        fast.rotate_key(b"", 5, b"k"),
        fast.extend(),
        ask("FETCH", topic="t", partition=0, offset=0, max=1),
        ask("PRODUCE_RECORDS", topic="t", partition=0, records=b"x", producer_id=1, sequence=1, schema="s", delay_ms=0),
        ask("COMMIT", topic="t", group="g", partition=0, offset=0, generation=0, txn_id="x|y|z"),
        ask("LIST_TOPICS"),
        ask("TXN_BEGIN"),
        batch("t", True),
        batch("t", False, b"key"),
        felix(type="subscribe", tenant_id="a", namespace="b", stream="c"),
        felix(type="subscribe", tenant_id="", namespace="", stream="c", subscription_id=7),
        felix(type="ack", subscription_id=-1, ranges=[]),
        felix(type="match_topics", patterns=["a"], version=1),
    ]
    data = bytearray(b"".join(chance.choice(known) for _ in range(4)))
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    view = memoryview(bytes(data)[: chance.randrange(len(data) + 1)])
    router = routers()[which]
    if router.needs_login and view:
        router.note(view)
    own = router.is_own(view, 0)
    position = 0
    while True:
        run = router.run(view, position, 0)
        assert position <= run.end <= len(view)
        assert run.cell in (EVERY, REFUSED) or run.end == position or 0 <= run.cell < CELLS.count
        assert not own or (run.cell, run.data) == (OWN, None)
        if run.end == position:
            assert router.frame_end(view, position) == position if position < len(view) else True
            break
        position = run.end


@pytest.mark.parametrize("count", [2, 5])
def test_numbers_of_subscriptions_go_on_from_what_was_loaded(count: int) -> None:
    for cell in range(count):
        for last in range(12):
            made = Subscriptions.__new__(Subscriptions)
            made._last_id = last
            made.number_for(cell, count)
            first = made._last_id + made._id_step
            assert last < first <= last + count and first % count == cell
