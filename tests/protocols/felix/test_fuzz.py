"""Random bytes at the Felix session: valid streams with something changed, and JSON of the right names with wrong values.

Whatever comes, the session answers or closes: nothing escapes it, other streams of the connection go on, and what it holds at
the broker is gone with the connection.
"""

import json
from random import Random
from typing import Any

import pytest

from quintet.protocols.felix import codec, frames
from tests.protocols.felix.helpers import DEMO, KEY, OURS, FelixSim, batch, subscribe
from tests.protocols.felix.test_wire import JSON

ROUNDS = 150
STEPS = 12
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 1.5, 2**63, 2**64, 10**30, "", "x", "é", "a/b", "\0", "__x", "t1", "default", "demo", "aGVsbG8=", "earliest",
    "explicit", "none", [], [1], ["aGVsbG8="], [[0, 1]], [[0, 2**70]], {}, {"offset": 0}, {"offset": -5}, {"time_ms": 2**70},
    {"offsets": [0]}, "per_message", "x" * 300,
)  # fmt: skip


def broken(rng: Random, data: bytes) -> bytes:
    """Something valid with a few bytes changed, cut out or doubled."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.randrange(1, 9)]
            case 2:
                changed[at:at] = changed[at : at + rng.randrange(1, 9)]
            case _:
                changed[at] ^= 1 << rng.randrange(8)
        if not changed:
            return data
    return bytes(changed)


def shuffled(rng: Random) -> bytes:
    """A message of a real type whose fields have other values."""
    message = json.loads(rng.choice(JSON)["payload_json"])
    for name in list(message):
        if name != "type" and rng.random() < 0.4:
            message[name] = rng.choice(VALUES)
        elif name != "type" and rng.random() < 0.1:
            del message[name]
    return codec.frame(json.dumps(message, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace"))


def piece(rng: Random) -> bytes:
    good = [
        batch(b"a", b"b"), batch(b"c", request_id=rng.randrange(100)), codec.encode(subscribe()),
        codec.encode(subscribe(durable="d", start="earliest")), codec.encode(subscribe(group="g", credit=2)),
        codec.frame(codec.pack(batch(b"z", request_id=1)[12:]), frames.BATCH | frames.ACKED | frames.ZSTD),
    ]  # fmt: skip
    match rng.randrange(4):
        case 0:
            return rng.choice(good)
        case 1:
            whole = rng.choice(good)
            return whole[:12] + broken(rng, whole[12:] or b"x")[: len(whole) - 12].ljust(len(whole) - 12, b"\0")
        case 2:
            return shuffled(rng)
        case _:
            return codec.frame(
                rng.randbytes(rng.randrange(40)), rng.choice((0, 1, 9, 0x41, 0x49, rng.randrange(1 << 16)))
            )


@pytest.mark.parametrize("document", [False, True])
def test_whatever_comes_it_answers_or_closes(document: bool) -> None:
    rng = Random(20261116 + document)
    sim = FelixSim(open=document, anonymous_role="open")
    witness = sim.connect().auth()
    for round in range(ROUNDS):
        connection = sim.connect()
        stream = connection.stream()
        other = connection.auth()
        if not document:
            stream.feed(codec.encode(codec.Auth(tenant_id="t1", token=KEY, client_flags=OURS, quintet=1)))
        for _ in range(STEPS):
            if stream.reason() is None:
                data = piece(rng)
                stream.feed(data if rng.random() < 0.9 else broken(rng, data), [rng.randrange(1, 50)])
            if rng.random() < 0.3:
                sim.scheduler.run_until_idle()
        stream.said()
        if stream.felix.close_code is None:
            assert other.ask(batch(b"o", request_id=round)) == [(0, round, "")]
        for outlet in connection.outlets:
            if rng.random() < 0.3:
                outlet.gone(rng.choice((-1, 0x51, 0)))
        connection.close()
        sim.scheduler.run_until_idle()
    assert witness.ask(batch(b"w", request_id=1, scope=DEMO)) == [(0, 1, "")]
    kept = [subscription for subscription in sim.broker.subscriptions.all() if not subscription.name]
    assert kept == []
    assert not sim.broker.tenants.subscriptions
    assert not [one for one in sim.broker.groups.list("dev", True) if one.members]
