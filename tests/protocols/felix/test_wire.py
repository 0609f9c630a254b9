"""Bytes of every message against vectors that no code of the door made; what is refused, and what names it."""

import json
from pathlib import Path
from typing import Any

import pytest

from quintet import kernel
from quintet.model.errors import BadName, BadRequest
from quintet.model.rights import check_rights
from quintet.protocols.felix import codec, errors, features, frames, matching
from tests.protocols.felix.helpers import FEATURED_REPLIES, REPLIES, decode_reply

FOLDER = Path(__file__).parents[2] / "vectors" / "felix"
LISTS = ("more", "ours", "features")
FEATURED = json.loads((FOLDER / "features.json").read_text())
PUBLIC = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")) if path.stem not in LISTS]
VECTORS: list[dict[str, Any]] = PUBLIC + [
    row for name in LISTS for row in json.loads((FOLDER / f"{name}.json").read_text())
]
JSON = [vector for vector in VECTORS if "payload_json" in vector]
BINARY = [vector for vector in VECTORS if "payload_json" not in vector]


def name_of(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def test_the_public_kinds_are_all_there() -> None:
    assert len(PUBLIC) == 13


def test_every_message_has_a_vector() -> None:
    seen = {json.loads(vector["payload_json"])["type"] for vector in JSON}
    binary = {name for name in frames.RIGHTS if " " in name}
    assert seen == frames.RIGHTS.keys() - binary


@pytest.mark.parametrize("vector", JSON, ids=name_of)
def test_json_is_byte_identical_both_ways(vector: dict[str, Any]) -> None:
    payload, whole = bytes.fromhex(vector["payload_hex"]), bytes.fromhex(vector["frame_hex"])
    assert payload == vector["payload_json"].encode()
    assert codec.frame(payload) == whole
    kind = json.loads(payload)["type"]
    featured = vector in FEATURED
    if kind not in frames.REQUESTS:
        message = decode_reply(payload, FEATURED_REPLIES if featured else REPLIES)
    else:
        message = codec.decode_by(payload, features.requests if featured else matching.requests)
    assert codec.encode(message) == whole
    items, consumed, fatal = kernel.felix_split(whole, 0, frames.FRAME_BYTES_MAX, frames.BATCH, True, b"", 1)
    assert (items, consumed, fatal) == ([(frames.JSON_ITEM, payload)], len(whole), 0)


@pytest.mark.parametrize("vector", BINARY, ids=name_of)
def test_binary_is_byte_identical_both_ways(vector: dict[str, Any]) -> None:
    whole, flags = bytes.fromhex(vector["frame_hex"]), vector["flags"]
    assert codec.frame(bytes.fromhex(vector["payload_hex"]), flags) == whole
    values = [text.encode() for text in vector.get("payloads_utf8", ())]
    if flags & frames.BATCH:
        target = codec.target(vector["tenant_id"], vector["namespace"], vector["stream"])
        request_id, mode = vector.get("request_id", -1), vector.get("ack_mode", 0)
        assert kernel.felix_publish(target, values, request_id, mode) == whole
        items, _, _ = kernel.felix_split(whole, 0, 1 << 20, frames.BATCH | frames.ACKED, True, b"", 1)
        assert items[0][1] == target
        assert items[0][3:] == (len(values), request_id, mode)
        assert codec.parse_target(target) == (vector["tenant_id"], vector["namespace"], vector["stream"])
        return
    received, consumed, fatal = kernel.felix_received(whole, 0, 1 << 20)
    assert (consumed, fatal) == (len(whole), 0)
    if flags == frames.ACK:
        said = (vector["status"], vector["request_id"], vector["message"])
        assert received == [(frames.ACK, *said)]
        assert codec.publish_ack(said[1], said[2], bool(said[0])) == whole
    else:
        assert received == [(frames.EVENTS, vector["subscription_id"], vector["base_offset"], values)]
        if not flags & frames.EVENTS_OF:
            batch = kernel.build(values)
            kernel.place(batch, max(vector["base_offset"], 0), 1)
            offsets = bool(flags & frames.OFFSETS)
            assert kernel.felix_deliver(batch, 0, len(values), 0, offsets, 0, 1 << 20) == (whole, len(values), [])


def test_the_table_of_rights_is_whole() -> None:
    check_rights("felix", frames.NAMES, frames.RIGHTS)
    assert frames.RIGHTS.keys() >= frames.REQUESTS


SUBSCRIBE = b'"type":"subscribe","tenant_id":"t","namespace":"n","stream":"s"'


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not one JSON object"),
        (b"[]", "not one JSON object"),
        (b"\xff\xfe", "not one JSON object"),
        (b'{"type":"ok"', "not one JSON object"),
        (b'{"type":"ok"}x', "not one JSON object"),
        (b'{"type":"publish","type":"auth"}', "a key twice"),
        (b'{"type":"publish","t\\u0079pe":"auth"}', "a key twice"),
        (b'{"type":"publish","x":' + b"[" * 32 + b"]" * 32 + b"}", "deeper than 32"),
        (b"{}", "`type`"),
        (b'{"type":5}', "$.type"),
        (b'{"type":"nothing"}', "unexpected message type"),
        (b'{"type":"ok"}', "unexpected message type"),
        (b'{"type":"event"}', "unexpected message type"),
        (b"{" + SUBSCRIBE + b',"start":"yesterday"}', "$.start"),
        (b"{" + SUBSCRIBE + b',"start":{"offset":"5"}}', "$.start.offset"),
        (b"{" + SUBSCRIBE + b',"subscription_id":1.5}', "$.subscription_id"),
        (b'{"type":"publish","tenant_id":"t","namespace":"n","stream":"s"}', "`payload`"),
        (b'{"type":"publish","tenant_id":"t","namespace":"n","stream":1,"payload":""}', "$.stream"),
        (b'{"type":"cache_put","key":"k","value":"","ttl_ms":"5"}', "$.ttl_ms"),
        (b'{"type":"cache_get","key":null}', "$.key"),
        (b'{"type":"cache_get","key":"\\ud800"}', "not one JSON object"),
    ],
)
def test_what_is_wrong_is_named(payload: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said.replace("$", r"\$").replace(".", r"\.")):
        codec.decode(payload)


@pytest.mark.parametrize("text", ["aGVsbG8", "aGVs bG8=", "a-_=", "====", "aGVsbG8=aGVsbG8=", "aGVsbG8=\\n", "é"])
def test_base64_is_the_standard_alphabet_with_padding(text: str) -> None:
    payload = f'{{"type":"publish","tenant_id":"t","namespace":"n","stream":"s","payload":"{text}"}}'
    with pytest.raises(BadRequest, match=r"\$\.payload"):
        codec.decode(payload.encode())


def test_unknown_fields_are_passed_over_and_ours_are_unknown_to_others() -> None:
    payload = b"{" + SUBSCRIBE + b',"group":5,"credit":"x","later":[1]}'
    assert type(codec.decode(payload)) is codec.Subscribe
    with pytest.raises(BadRequest, match=r"\$\.(group|credit)"):
        codec.decode(payload, extended=True)
    for name in frames.OURS:
        with pytest.raises(BadRequest, match="unexpected message type"):
            codec.decode(b'{"type":"%s"}' % name.encode())


@pytest.mark.parametrize(
    "scope",
    [
        ("", "n", "s"), ("t", "", "s"), ("t", "n", ""), ("t/x", "n", "s"), ("t", "n/..", "s"), ("t", "n", "a/b"),
        ("t", "n", "a\0b"), ("__t", "n", "s"), ("t", "__n", "s"), ("t", "n", "__s"), ("t" * 201, "n", "s"),
        ("é" * 101, "n", "s"), ("cache", "n", "s"),
    ],
)  # fmt: skip
def test_names_that_no_topic_has(scope: tuple[str, str, str]) -> None:
    with pytest.raises(BadName):
        codec.topic_of(scope)


def test_names() -> None:
    assert codec.topic_of(("t1", "default", "demo")) == "t1/default/demo"
    assert codec.topic_of(("", "", "orders/eu")) == "orders/eu"
    assert codec.target_json('t"', "n", "s") == b'"tenant_id":"t\\"","namespace":"n","stream":"s"'


def test_packing() -> None:
    body = b"x" * 5000
    assert codec.unpack(codec.pack(body), 5000) == body
    for bad, said in (
        (codec.pack(body), "more than 4999"), (codec.pack(body)[:-1], "cut short"), (codec.pack(body) + b"y", "follows"),
        (b"not zstd at all", "not a zstd frame"), (b"", "cut short"),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match=said):
            codec.unpack(bad, 4999 if "4999" in said else 5000)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = codec.pack(bytes(200 << 20))
    assert len(bomb) < 1 << 20
    with pytest.raises(BadRequest, match="more than"):
        codec.unpack(bomb, frames.FRAME_BYTES_MAX)


def test_frames_that_become_smaller_are_packed_and_others_not() -> None:
    large, small = codec.frame(b"a" * 1000, frames.EVENTS), codec.frame(b"b" * 10, frames.EVENTS)
    dense = codec.frame(bytes(range(256)), frames.EVENTS | frames.OFFSETS)
    packed = codec.frame(codec.pack(b"a" * 1000), frames.EVENTS | frames.ZSTD)
    assert codec.packed(large + small + dense, 256, 1_000) == packed + small + dense
    assert codec.packed(large + small + dense, 256, 999) == large + small + dense, "the loop has no time for so much"


def test_errors_never_say_more_than_they_may() -> None:
    dialect = frames.Dialect(False, frames.EXTENDED, ours=True)
    assert decode_reply(errors.encoded(RuntimeError("a secret"), dialect, 3)[12:]) == codec.Error(
        request_id=3, message="internal error"
    )
    long = errors.encoded(BadRequest("é" * 4000), dialect, None)
    assert len(decode_reply(long[12:]).message.encode()) <= frames.TEXT_BYTES_MAX


def test_runs_of_batches_are_cut_where_another_kind_begins() -> None:
    batch, packed = codec.frame(b"b", frames.BATCH), codec.frame(b"z", frames.BATCH | frames.ZSTD)
    text = codec.frame(b"{}")
    for rest in (text, packed, b"", b"\0" * 12, batch[:-1]):
        data = memoryview(batch + batch + rest)
        assert codec.end_of_run(data, 0) == 2 * len(batch)
    assert codec.end_of_run(memoryview(text + batch), 0) == len(text)
    assert codec.end_of_run(memoryview(text[:-1]), 0) == len(text) - 1
