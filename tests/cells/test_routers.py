"""What says which cell a frame is for: every operation has a place, hostile bytes are somebody's, and nothing is passed over."""

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


def fly_router() -> routing.FlyRouter:
    return routing.FlyRouter(CELLS, OWN, FlymqListener(), Session())  # type: ignore[arg-type]


def routers() -> list[Router]:
    return [
        BlipRouter(CELLS, OWN, MOST, Session()),  # type: ignore[arg-type]
        FastRouter(CELLS, OWN, MOST, Session()),  # type: ignore[arg-type]
        fly_router(),
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


@given(st.integers(0, 2), st.randoms(use_true_random=False))
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
