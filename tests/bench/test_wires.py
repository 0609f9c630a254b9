"""The wires' bytes against the documents' vectors and against what each server is known to send."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from bench.peer_wires import JetStreamWire, MqttWire, NatsWire, RedisWire

from quintet import kernel
from quintet.bench import blipmq
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.generators import Load, encode_varied, payload_of
from quintet.bench.targets import target
from quintet.bench.wire import BenchError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "blipmq" / "document.json").read_text())
FRAMES = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in VECTORS}
MAX_FRAME_BYTES = 16 * 1024 * 1024


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_split_and_frame_are_each_others_inverse(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    [(kind, correlation, payload)] = blipmq.split(data)
    assert (kind, correlation) == (vector["type"], vector["correlation_id"])
    assert blipmq.frame(kind, correlation, payload) == data


def test_a_publish_differs_from_the_document_only_in_its_id() -> None:
    mine = BlipmqWire().encode("demo", b"hi", 1, 1)
    theirs = FRAMES["publish"]
    assert mine[:5] + mine[13:] == theirs[:5] + theirs[13:]
    assert BlipmqWire().encode("demo", b"hi", 1, 3) == mine * 3


def test_the_kernel_reads_our_publishes() -> None:
    block = bytes(encode_varied(Load(BlipmqWire(), ("", 0), "t", 16), 100)) + BlipmqWire().barrier(0)
    items, consumed, fatal = kernel.blip_split(block, 0, 2, MAX_FRAME_BYTES, b"", 0)
    assert (consumed, fatal) == (len(block), 0)
    assert [item[0] for item in items] == [blipmq.PUBLISH, blipmq.PING]
    assert items[0][0] == 3  # PUBLISH
    batch = items[0][3]
    values = [row[3] for row in kernel.rows(batch, 0, 100)]
    assert len(set(values)) == 100
    assert all(value is not None and len(value) == 16 for value in values)


def test_a_delivery_is_what_the_kernel_makes() -> None:
    payload = payload_of(64)
    batch = kernel.build([payload, payload])
    frames, count = kernel.blip_deliver(2, b"topic", 0, batch, 0, 2, 0, b"", 0)
    assert count == 2
    assert frames == BlipmqWire().delivered("topic", payload, 0) * 2


def test_acknowledgements_carry_the_tags_of_the_deliveries() -> None:
    batch = kernel.build([b"abc"] * 300)
    kernel.seal(batch, 0, 0, 0)
    frames, _ = kernel.blip_deliver(2, b"t", 1, batch, 0, 300, 70_000, b"", 0)
    length = len(frames) // 300
    acks = blipmq.split(BlipmqWire().acknowledge(9, 1, frames, length))
    assert [(kind, tag) for kind, tag, _ in acks] == [(blipmq.ACK, 70_000 + number) for number in range(300)]
    assert {payload for _, _, payload in acks} == {struct.pack(">Q", 9)}


def test_answers_may_come_in_any_pieces() -> None:
    wire = BlipmqWire()
    stream = blipmq.frame(blipmq.PONG, 7) * 5
    for cut in range(len(stream) + 1):
        first, rest = wire.answered(1, stream[:cut])
        second, rest = wire.answered(1, rest + stream[cut:])
        assert (first + second, rest) == (5, b"")


def test_a_refusal_ends_the_run_with_its_words() -> None:
    words = b"durable publish failed: disk full"
    nack = blipmq.frame(blipmq.NACK, 4, struct.pack(">HH", 500, len(words)) + words)
    with pytest.raises(BenchError, match="NACK 500 'durable publish failed: disk full'"):
        BlipmqWire().answered(1, nack)


def test_redis_and_jetstream_answers_in_any_pieces() -> None:
    redis = b"".join(b"$17\r\n17317000000%02d-1234\r\n" % number for number in range(4))
    stream = b"".join(b'MSG _INBOX.3 1 %d\r\n{"stream":"BENCH","seq":%d}\r\n' % (27, number) for number in range(4))
    for wire, data in ((RedisWire(), redis), (JetStreamWire(), stream)):
        for cut in range(len(data) + 1):
            first, rest = wire.answered(1, data[:cut])
            second, rest = wire.answered(1, rest + data[cut:])
            assert (first + second, rest) == (4, b"")


def test_refusals_of_peers_are_seen() -> None:
    for wire, said in (
        (RedisWire(), b"-ERR wrong number of arguments\r\n"),
        (JetStreamWire(), b'MSG _INBOX.0 1 40\r\n{"error":{"code":503}}\r\n'),
        (NatsWire(), b"-ERR 'Slow Consumer'\r\n"),
        (MqttWire(), b"\x50\x02\x00\x01"),
    ):
        with pytest.raises(BenchError):
            wire.answered(1, said)


def test_mqtt_lengths_over_127_take_two_bytes() -> None:
    packet = MqttWire().encode("t", bytes(200), 0, 1)
    assert packet[:3] == bytes([0x30, 203 & 0x7F | 0x80, 203 >> 7])
    assert len(packet) == 3 + 203


def test_a_url_names_door_host_and_key() -> None:
    found = target("blipmq://:secret@localhost:7000")
    assert isinstance(found.wire, BlipmqWire)
    assert (found.wire.key, found.address) == ("secret", ("localhost", 7000))
    assert "secret" not in found.url


@pytest.mark.parametrize("url", ["kafka://localhost", "blipmq://localhost:port", "nonsense"])
def test_a_bad_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(BenchError, match="blipmq://:dev-key@"):
        target(url)
