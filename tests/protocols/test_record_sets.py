"""The vectors of record sets, in the frames of each door: by tests/wire alone, by both twins of the kernel, and by each door's codec."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quintet import kernel
from quintet.kernel import pure
from quintet.protocols.blipmq import codec as blip_codec
from quintet.protocols.fast import codec as fast_codec
from quintet.protocols.felix import codec as felix_codec
from quintet.protocols.flymq import codec as fly_codec
from quintet.protocols.flymq import frames as fly_frames
from tests.wire import blipmq, fast, felix, flymq
from tests.wire.records import Record, pack, split

VECTORS = json.loads((Path(__file__).parent.parent / "vectors" / "records" / "frames.json").read_text())
DEMO = fast.topic_id(b"demo")
LAYOUT = fly_codec.layout(fly_frames.OPERATIONS[fly_frames.PRODUCE_RECORDS].asks[0])
# Door and direction -> the frame around a set, as the product makes it.
MADE: dict[tuple[str, str], Callable[[bytes], bytes]] = {
    ("blipmq", "client"): lambda data: blip_codec.records(7, b"demo", 1, data),
    ("blipmq", "server"): lambda data: blip_codec.records(42, b"demo", 1, data),
    ("fast", "client"): lambda data: fast_codec.records(b"aaa.bb.c", DEMO, data),
    ("fast", "server"): lambda data: fast_codec.messages(DEMO, data),
    ("felix", "client"): lambda data: felix_codec.frame(
        (9).to_bytes(8, "big") + b"\2" + felix.names("t1", "default", "demo") + data, 0x0409
    ),
    ("felix", "server"): lambda data: felix_codec.frame(data, 0x0404),
    ("flymq", "client"): lambda data: fly_codec.frame(
        fly_frames.PRODUCE_RECORDS, LAYOUT.encode({"topic": "demo", "partition": -1, "records": data})
    ),
}
each = pytest.mark.parametrize("vector", VECTORS, ids=lambda one: one["name"])


def record_of(said: dict[str, Any]) -> Record:
    def raw(text: str | None) -> bytes | None:
        return None if text is None else bytes.fromhex(text)

    headers = tuple((bytes.fromhex(name), raw(value)) for name, value in said.get("headers", ()))
    more = {name: said.get(name) for name in ("ttl_ms", "number", "time")}
    return Record(raw(said["value"]), raw(said.get("key")), headers, origin=raw(said.get("origin")), **more)


def set_in(vector: dict[str, Any]) -> bytes:
    """The set that the frame holds, by tests/wire."""
    data = bytes.fromhex(vector["hex"])
    if vector["door"] == "blipmq":
        (one,) = blipmq.frames_of(data)
        assert one.kind == 0x0B
        return one.payload[3 + int.from_bytes(one.payload[1:3], "big") :]
    if vector["door"] == "flymq":
        (sent,) = flymq.frames_of(data)
        _, at = flymq.text_at(sent.payload, 0)
        return flymq.blob_at(sent.payload, at + 4)[0]
    if vector["door"] == "felix":
        ((flags, payload),) = felix.frames_of(data)
        assert flags == (0x0409 if vector["direction"] == "client" else 0x0404)
        return payload[9 + len(felix.names("t1", "default", "demo")) :] if flags == 0x0409 else payload
    if vector["direction"] == "server":
        (packet,) = fast.packets_of(data)
        assert isinstance(packet, fast.Messages)
        return packet.payload
    (fields,), consumed, fatal = fast.requests(data, extended=True)
    assert (consumed, fatal) == (len(data), 0)
    return bytes(fields[3])


@each
def test_a_frame_holds_the_set_that_its_vector_says(vector: dict[str, Any]) -> None:
    records = [record_of(one) for one in vector["records"]]
    assert set_in(vector) == bytes.fromhex(vector["set"]) == pack(*records)
    assert split(set_in(vector)) == records


@each
def test_the_product_makes_the_same_frame(vector: dict[str, Any]) -> None:
    assert MADE[vector["door"], vector["direction"]](bytes.fromhex(vector["set"])).hex() == vector["hex"]


@pytest.mark.parametrize("twin", [kernel, pure], ids=["native", "pure"])
@each
def test_the_kernel_reads_what_the_vector_says(vector: dict[str, Any], twin: ModuleType) -> None:
    data, records = bytes.fromhex(vector["set"]), [record_of(one) for one in vector["records"]]
    if vector["direction"] == "client":
        groups, _ = twin.records_split(data, -1, 1, b"o", 5)
        (_, batch, count) = groups[0]
        rows = [(key, value, headers, expiry) for _, _, key, value, headers, expiry, _ in twin.rows(batch, 0, count)]
        assert rows == [
            (one.key, one.value, one.headers, 5 + one.ttl_ms * 1000 if one.ttl_ms else 0) for one in records
        ]
        return
    first, second = twin.records_received(data, 1)
    headers = twin.headers_pack([(name.decode(), value) for name, value in records[0].headers])
    assert first == (41, 1, b"hi", b"k", headers, records[0].time, records[0].origin)
    assert second == (42, 1, b"", None, b"", records[0].time, records[0].origin)


def test_a_set_with_a_flipped_bit_is_not_the_vectors() -> None:
    """The control: what is compared above can differ."""
    vector = VECTORS[0]
    data = bytearray.fromhex(vector["hex"])
    data[-8] ^= 1
    with pytest.raises((AssertionError, ValueError)):
        test_a_frame_holds_the_set_that_its_vector_says(vector | {"hex": data.hex()})
