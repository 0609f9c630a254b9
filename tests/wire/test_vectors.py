"""The vectors of the documents, by tests/wire alone: what judges the broker is held against them, too."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.wire import blipmq, fast, felix, flymq, peerbus

VECTORS = Path(__file__).parent.parent / "vectors"
Vector = dict[str, Any]


def vectors(name: str) -> pytest.MarkDecorator:
    """A case for each vector of a protocol."""

    def all_of() -> Iterator[Vector]:
        for path in sorted((VECTORS / name).glob("*.json")):
            found = json.loads(path.read_text())
            yield from (one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict))

    return pytest.mark.parametrize("vector", list(all_of()), ids=lambda one: one["name"])


@vectors("blipmq")
def test_a_blipmq_frame_is_read_and_made_again(vector: Vector) -> None:
    data, said = bytes.fromhex(vector["hex"]), vector["meaning"]
    (found,) = blipmq.frames_of(data)
    assert (found.kind, found.id) == (vector["type"], vector["correlation_id"])
    assert blipmq.frame(*found) == data
    if "api_key" in said:
        assert blipmq.auth(found.id, said["api_key"].encode()) == data
    if "protocol_version" in said:
        assert found.number == said["protocol_version"]
    if "patterns" in said:
        assert blipmq.match(found.id, said["version"], *[text.encode() for text in said["patterns"]]) == data
    if "names" in said:
        names = [name.encode() for name in said["names"] or []]
        assert blipmq.matched(found.payload) == (said["version"], said["names"] is not None, names)


@vectors("fast")
def test_a_fast_packet_is_read_and_made_again(vector: Vector) -> None:
    data, said = bytes.fromhex(vector["hex"]), vector["meaning"]
    if vector["direction"] == "client":
        (fields,), consumed, fatal = fast.requests(data)
        assert (consumed, fatal) == (len(data), 0)
        assert fast.request(fields) == data
        assert fields[0] == getattr(fast, vector["packet"])
        if "jwt" in said:
            assert fields[1] == said["jwt"].encode()
        return
    (packet,) = fast.packets_of(data)
    assert f"{packet.topic:08x}" == said["topic"]
    if isinstance(packet, fast.Message):
        assert fast.message(*packet) == data
    elif isinstance(packet, fast.KeyUpdate):
        assert fast.key_update(*packet) == data
    else:
        assert fast.result(data[0], *packet[:3], packet.text.encode()) == data


@vectors("flymq")
def test_a_flymq_frame_is_read_and_made_again(vector: Vector) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    (found,) = flymq.frames_of(data)
    assert flymq.frame(found.code, found.payload, found.flags) == data
    if (vector["operation"], vector["kind"]) == ("PRODUCE", "request") and set(fields) == {
        "topic", "key", "value", "partition",
    }:  # fmt: skip
        key, value = bytes.fromhex(fields["key"]), bytes.fromhex(fields["value"])
        assert flymq.produce(fields["topic"], value, key, fields["partition"]) == data


@vectors("peerbus")
def test_a_peerbus_control_frame_is_made_again(vector: Vector) -> None:
    data, said = bytes.fromhex(vector["hex"]), dict(vector["meaning"])
    if said.get("type") in ("register", "ack", "peers"):
        assert peerbus.control(said.pop("type"), **said) == data
    (found,) = peerbus.frames_of(data + b"\n")
    assert found["protocol_version"] == "v1"


@vectors("felix")
def test_a_felix_frame_is_read_and_made_again(vector: Vector) -> None:
    data = bytes.fromhex(vector["frame_hex"])
    ((flags, payload),) = felix.frames_of(data)
    assert felix.frame(payload, flags) == data
    if flags == 0:
        assert felix.json_frame(json.loads(payload)) == data
    elif flags & felix.BATCH:
        batch = felix.read_batch(payload, bool(flags & felix.ACKED), bool(flags & felix.KEY))
        assert batch.scope == [vector["tenant_id"], vector["namespace"], vector["stream"]]
    elif flags == felix.ACK:
        assert felix.read_ack(payload) == (vector["status"], vector["request_id"], vector["message"])
