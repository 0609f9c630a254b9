"""MATCH of version 0x5103: the topics that match a pattern, of those that a key may read; and hostile payloads."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from quintet.broker.identity.access import Credential, hash_secret
from quintet.protocols.blipmq import codec
from quintet.testing.line import SimBroker
from tests.protocols.blipmq.helpers import ready
from tests.wire import blipmq as wire

ROUNDS = 3_000
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "blipmq" / "ours.json").read_text())


@pytest.fixture
def sim() -> SimBroker:
    sim = SimBroker()
    made = (("dev", ("*",), ("*",)), ("shop", (), ("shop.*",)))
    sim.broker.set_credentials(Credential(name, hash_secret(f"{name}-key".encode()), *rights) for name, *rights in made)
    for name in (b"shop.a", b"shop.b", b"stock.a"):
        sim.broker.topics.ensure(name, True)
    sim.advance(1_000_000)
    return sim


def asked(sim: SimBroker, key: bytes, version: int, *patterns: bytes) -> tuple[int, bool, list[bytes]]:
    peer = ready(sim, wire.WHOLE, key)
    (answer,) = wire.frames_of(peer.exchange(wire.match(9, version, *patterns)))
    assert (answer.kind, answer.id) == (wire.MATCH, 9)
    return wire.matched(answer.payload)


def test_the_names_that_match_and_may_be_read_are_told(sim: SimBroker) -> None:
    version, changed, names = asked(sim, b"dev-key", 0, b"*.a")
    assert (changed, names) == (True, [b"shop.a", b"stock.a"])
    assert asked(sim, b"shop-key", 0, b"*.a", b"regex:shop[.]b")[2] == [b"shop.a", b"shop.b"]
    assert asked(sim, b"dev-key", version, b"*.a") == (version, False, [])
    sim.broker.topics.ensure(b"new.a", True)
    assert asked(sim, b"dev-key", version, b"*.a")[1:] == (True, [b"new.a", b"shop.a", b"stock.a"])


@pytest.mark.parametrize(
    ("payload", "code", "text"),
    [
        (b"", 400, "invalid MATCH payload"),
        (struct.pack(">QH", 0, 1), 400, "invalid MATCH payload"),
        (struct.pack(">QHH", 0, 1, 5) + b"abcd", 400, "invalid MATCH payload"),
        (struct.pack(">QHH", 0, 1, 1) + b"ab", 400, "invalid MATCH payload"),
        (struct.pack(">QHH", 0, 1, 1) + b"\xff", 400, "invalid MATCH payload"),
        (struct.pack(">QH", 0, 0), 400, "0 patterns: 1 to 100 may be given"),
        (struct.pack(">QHH", 0, 1, 18) + b"*" * 18, 400, "the limit is 16"),
        (struct.pack(">QHH", 0, 1, 7) + b"regex:(", 400, "RE2"),
    ],
)
def test_bad_questions_are_refused_and_the_connection_goes_on(
    sim: SimBroker, payload: bytes, code: int, text: str
) -> None:
    peer = ready(sim, wire.WHOLE)
    refused, answer = wire.frames_of(peer.exchange(wire.frame(wire.MATCH, 9, payload) + wire.match(10, 0, b"shop.*")))
    assert refused.refusal[0] == code and text in refused.refusal[1]
    assert wire.matched(answer.payload)[2] == [b"shop.a", b"shop.b"]


@pytest.mark.parametrize("version", [1, 2, wire.OURS])
def test_other_versions_know_no_such_frame(sim: SimBroker, version: int) -> None:
    peer = ready(sim, version)
    peer.feed(wire.match(9, 0, b"*"))
    assert peer.session.closing == "unknown frame type"


def test_what_is_cut_or_changed_is_parsed_or_refused() -> None:
    r = random.Random(18)
    for _ in range(ROUNDS):
        patterns = [r.randbytes(r.randrange(6)).hex().encode() for _ in range(r.randrange(4))]
        whole = wire.match(1, r.randrange(1 << 64), *patterns)[13:]
        assert codec.match_topics(1, *_pair(whole))[13:] == whole
        changed = bytearray(whole)
        if changed:
            changed[r.randrange(len(changed))] = r.randrange(256)
        for text in (bytes(changed), whole[: r.randrange(len(whole) + 1)], r.randbytes(20)):
            found = codec.parse_match(text)
            assert found is None or codec.match_topics(1, *_pair(text))[13:] == text
            codec.parse_matched(text)


def _pair(payload: bytes) -> tuple[int, list[bytes]]:
    parsed = codec.parse_match(payload)
    assert parsed is not None
    return parsed[0], [text.encode() for text in parsed[1]]


def test_a_subscription_may_begin_at_the_first_message(sim: SimBroker) -> None:
    peer = ready(sim, wire.WHOLE)
    peer.exchange(wire.publish(3, b"shop.a", b"there", 1))
    sim.advance(1_000_000)
    answer = wire.frames_of(peer.exchange(wire.subscribe(4, b"shop.a", 1 | 0x80)))[-1]
    (id,) = struct.unpack(">Q", answer.payload)
    said = peer.exchange(wire.word(5, 3, id, 10))
    assert b"there" in said
    refused = wire.frames_of(ready(sim, wire.OURS).exchange(wire.subscribe(4, b"shop.a", 1 | 0x80)))[-1]
    assert refused.refusal == (400, "invalid QoS value")


@pytest.mark.parametrize("vector", VECTORS, ids=lambda one: one["name"])
def test_match_frames_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    """Control: with another version the bytes are others."""
    data, said = bytes.fromhex(vector["hex"]), vector["meaning"]
    id, version = vector["correlation_id"], said["version"]
    (found,) = wire.frames_of(data)
    if vector["direction"] == "client":
        patterns = [text.encode() for text in said["patterns"]]
        assert codec.match_topics(id, version, patterns) == data != codec.match_topics(id, version + 1, patterns)
        assert codec.parse_match(found.payload) == (version, said["patterns"])
    else:
        names = None if said["names"] is None else [name.encode() for name in said["names"]]
        assert codec.matched(id, version, names) == data != codec.matched(id, version + 1, names)
        assert codec.parse_matched(found.payload) == (version, said["names"])
