"""Bytes of Fast packets against vectors written by hand, topic numbers against published check values, complete tables."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from quintet import kernel
from quintet.model.keys import fnv1a
from quintet.model.rate import Bucket
from quintet.protocols.fast import codec, errors, frames
from quintet.protocols.fast.mapping import topic_id
from tests.protocols.fast.helpers import SECOND, VECTORS, collisions

ROWS: list[dict[str, Any]] = json.loads((VECTORS / "document.json").read_text())


def made(row: dict[str, Any]) -> bytes:
    """The packet of a vector, by our codec."""
    said = row["meaning"]
    jwt, topic = str(said.get("jwt", "")).encode(), int(said.get("topic", "0"), 16)
    text = str(said.get("payload", said.get("key", ""))).encode()
    return {
        "CREATE": lambda: codec.create(jwt, said["name"].encode(), said["flags"]),
        "SUBSCRIBE": lambda: codec.subscribe(jwt, topic),
        "PUBLISH": lambda: codec.publish(jwt, topic, text),
        "MESSAGE": lambda: codec.message(topic, text),
        "UNSUBSCRIBE": lambda: codec.unsubscribe(jwt, topic),
        "KEY_UPDATE": lambda: codec.key_update(topic, text),
        "ROTATE_KEY": lambda: codec.rotate_key(jwt, topic, text),
        "EXTEND": lambda: codec.extend(said["version"]),
        "OK": lambda: codec.ok(said["request"], topic),
        "ERROR": lambda: codec.error(said["request"], topic, said["code"], said["text"]),
    }[row["packet"]]()


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_packets_are_those_of_the_vectors(row: dict[str, Any]) -> None:
    assert made(row).hex() == row["hex"]


@pytest.mark.parametrize("row", ROWS, ids=[row["name"] for row in ROWS])
def test_the_other_side_reads_them_back(row: dict[str, Any]) -> None:
    data, said = bytes.fromhex(row["hex"]), row["meaning"]
    jwt, topic = str(said.get("jwt", "")).encode(), int(said.get("topic", "0"), 16)
    kind = data[0]
    if row["direction"] == "server":
        items, consumed, fatal = kernel.fast_received(data, 0, 1000)
        text = str(said.get("payload", said.get("key", said.get("text", "")))).encode()
        expected: tuple[object, ...] = {
            "MESSAGE": (kind, topic, [text]),
            "KEY_UPDATE": (kind, topic, text),
            "OK": (kind, said.get("request"), topic, 1),
            "ERROR": (kind, said.get("request"), topic, said.get("code"), text),
        }[row["packet"]]
        assert (items, consumed, fatal) == ([expected], len(data), 0)
        return
    items, consumed, fatal, unknown, _ = kernel.fast_split(data, 0, 1000, {jwt: b"fast:x"}, {}, 0, None)
    assert (consumed, fatal, unknown) == (len(data), 0, None)
    if kind == frames.PUBLISH:
        (item,) = items
        assert item[0] == frames.PUBLISH
        _, token, number, batch, count = item
        assert batch is not None
        assert (token, number, count) == (jwt, topic, 1)
        assert [r[3] for r in kernel.rows(batch, 0, 1)] == [said["payload"].encode()]
    else:
        rests: dict[int, Callable[[], tuple[object, ...]]] = {
            frames.CREATE: lambda: (jwt, said["name"].encode(), said["flags"]),
            frames.SUBSCRIBE: lambda: (jwt, topic),
            frames.UNSUBSCRIBE: lambda: (jwt, topic),
            frames.ROTATE_KEY: lambda: (jwt, topic, said["key"].encode()),
            frames.EXTEND: lambda: (said["version"],),
        }
        assert items == [(kind, *rests[kind]())]


@pytest.mark.parametrize(("name", "number"), [(b"test", 0xAFD071E5), (b"orders", 0x325E96EC), (b"demo", 0xAEFD3536)])
def test_topic_numbers_are_fnv1a(name: bytes, number: int) -> None:
    assert topic_id(name) == fnv1a(name) == number


def test_the_colliding_names_do_collide() -> None:
    found = collisions()
    assert len(found) == 1000
    assert all(topic_id(one) == topic_id(other) == number and one != other for number, one, other in found)


def test_every_packet_type_has_a_name_and_a_right() -> None:
    types = {value for name, value in vars(frames).items() if name in frames.NAMES.values()}
    assert types == set(frames.NAMES) == set(frames.RIGHTS)
    assert all(frames.RIGHTS.values())


def test_every_error_code_has_words_and_errors_of_the_broker_map_to_them() -> None:
    codes = {value for value in vars(errors).values() if type(value) is int}
    assert codes == set(errors.CODES)
    assert {code for _, code in errors.BROKER} <= codes
    for kind, code in errors.BROKER:
        assert errors.to_error(kind("why")) == (code, "why")
    assert errors.to_error(ValueError("our own inside")) == (errors.INTERNAL, "internal error")


def test_texts_of_errors_are_cut_where_a_character_ends() -> None:
    packet = codec.error(1, 2, 400, "ä" * 200)
    ((_, _, _, _, text),) = kernel.fast_received(packet, 0, 10)[0]
    assert text.decode() == "ä" * 127


def test_what_does_not_fit_the_wire_is_not_written() -> None:
    writes: list[Callable[[], bytes]] = [
        lambda: codec.subscribe(b"x" * 256, 1),
        lambda: codec.create(b"x", b"n" * 256),
        lambda: codec.rotate_key(b"x", 1, b"k" * 256),
    ]
    for write in writes:
        with pytest.raises(ValueError, match="at most 255 bytes"):
            write()


def test_a_bucket_is_paid_back_in_time() -> None:
    bucket = Bucket(100, 0)
    bucket.take(100, 0)
    assert bucket.wait(0) == 0
    bucket.take(50, 0)
    assert bucket.wait(0) == SECOND // 2
    assert bucket.wait(SECOND // 2 - 1) == 1
    assert bucket.wait(SECOND // 2) == 0
    assert bucket.full(2 * SECOND)
