"""kernel.peer_object, peer_split, peer_deliver, peer_frame and ws_frame on both twins: what is plain, what is left to Python, and the twins against each other."""

import json
import random
import struct
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.kernel import pure
from tests.kernel.frames import native_twin
from tests.wire.websocket import frame

MEMBERS = ("protocol_version", "id", "from", "to", "ts", "source", "kind", "body", "hmac")
DEPTH_MAX = 128


def object_of(**members: object) -> bytes:
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def envelope(**other: object) -> bytes:
    texts = ("v1", "m1", "amy", "bob", "2026-11-18T00:00:00Z", "peer-bus", "msg", {"a": [1]}, "0" * 64)
    return object_of(**(dict(zip(MEMBERS, texts, strict=True)) | other))


def with_body(raw: bytes) -> bytes:
    return envelope().replace(b'{"a":[1]}', raw)


class TestObject:
    def test_an_envelope_tells_who_sent_what_to_whom(self, k: ModuleType) -> None:
        assert k.peer_object(envelope()) == ("m1", "amy", "bob", "2026-11-18T00:00:00Z")
        assert k.peer_object(envelope(**{"from": "", "to": "Zoë", "ts": "", "kind": "", "hmac": "é"})) == (
            "m1",
            "",
            "Zoë",
            "",
        )

    def test_an_acknowledgement_is_its_key(self, k: ModuleType) -> None:
        for key in ("m1", "m1|bob", "", "ü"):
            assert k.peer_object(object_of(protocol_version="v1", type="ack", id=key)) == key

    @pytest.mark.parametrize(
        "raw",
        [
            b"null",
            b"-1.5e+3",
            b'"x"',
            b'" \\u00e9\\n"',
            b"[]",
            b" {} ",
            b'[ {"a" : 1} , 2 ]',
            b'"\xe2\x80\xa8<"',
            b'"*"',
        ],
    )
    def test_any_sound_body_will_do(self, k: ModuleType, raw: bytes) -> None:
        assert k.peer_object(with_body(raw)) is not None

    @pytest.mark.parametrize(
        "raw",
        [b"", b" ", b"01", b"1,2", b'1,"x":2', b'1},"x":{"y":2', b"nul", b'"', b"[1", b"[1]]", b"'a'", b"NaN", b'"\n"', b'"\\x"',
         b'"\xff"', b'{"a":1,"a":2}', b'"\\ud800"', b"\xc3", b'1,"hmac":"x"'],
    )  # fmt: skip
    def test_a_body_that_is_not_one_sound_value_is_left(self, k: ModuleType, raw: bytes) -> None:
        assert k.peer_object(with_body(raw)) is None

    def test_depth_is_bounded(self, k: ModuleType) -> None:
        deep = b"[" * DEPTH_MAX + b"]" * DEPTH_MAX
        assert k.peer_object(with_body(deep)) is not None
        assert k.peer_object(with_body(b"[" + deep + b"]")) is None

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"{}", b"[]", b"null", b"\xff",
            *(envelope(id=id) for id in ("", "a|b", "q:1", "é", "x" * 257, 'a"b', "a\\b", "\x7f", "\n")),
            *(envelope(to=to) for to in ("", "*", "a\tb", 'a"b')),
            envelope(kind="broadcast"), envelope(source="quintet"), envelope(protocol_version="v2"), envelope(hmac="\n"),
            envelope(more=1), envelope(headers=[], headers_hmac=""), envelope(id=1), envelope(type="ack"),
            envelope() + b" ", b" " + envelope(), envelope()[:-1], envelope().replace(b",", b", ", 1), envelope().replace(b"amy", b"\xff"),
            envelope().replace(b'"to":"bob"', b'"to":"bob","to":"eve"'),
            envelope().replace(b'"from"', b'"From"'),
            object_of(protocol_version="v1", type="ack", id="a\n"), object_of(type="ack", id="a"),
            object_of(protocol_version="v1", type="ack", id="a", more=1), object_of(protocol_version="v1", type="ack", id=1),
            object_of(protocol_version="v1", type="ack", id="a").replace(b'"a"', b'"\xff"'),
            object_of(protocol_version="v1", type="peers"),
        ],
    )  # fmt: skip
    def test_everything_else_is_left_to_python(self, k: ModuleType, data: bytes) -> None:
        assert k.peer_object(data) is None

    @pytest.mark.parametrize("name", MEMBERS)
    def test_no_member_may_be_missing(self, k: ModuleType, name: str) -> None:
        members = json.loads(envelope())
        del members[name]
        assert k.peer_object(object_of(**members)) is None


def batch(k: ModuleType, records: list[tuple[bytes | None, bytes | None]], origin: bytes = b"peerbus:amy") -> bytearray:
    built: bytearray = k.build([value for _, value in records], [key for key, _ in records], origin=origin)
    return built


def deliver(key: bytes, value: bytes) -> bytes:
    return b'{"protocol_version":"v1","type":"deliver","delivery_key":"%b","envelope":%b}' % (key, value)


class TestDeliver:
    @pytest.mark.parametrize("size", [1, 30, 40, 41, 42, 100, 65_450, 65_453, 65_454, 65_455, 70_000])
    def test_frames_of_every_size(self, k: ModuleType, size: int) -> None:
        records = [(b"m1", b"x" * size), (b"m2", b"{}")]
        said = [deliver(key, value) for key, value in records]
        assert k.peer_deliver(batch(k, list(records)), 0, 2, False) == (
            ["m1", "m2"],
            b"".join(k.ws_frame(1, one) for one in said),
        )
        assert k.peer_deliver(batch(k, list(records)), 1, 2, True) == (["m2"], said[1] + b"\n")

    def test_no_record_is_no_frame(self, k: ModuleType) -> None:
        assert k.peer_deliver(batch(k, [(b"a", b"b")]), 1, 1, False) == ([], b"")

    @pytest.mark.parametrize(
        ("record", "origin"),
        [((b"a", b'{"to":"*"}'), b"peerbus:amy"), ((b"a", b"1"), b"flymq:amy"), ((None, b"1"), b"peerbus:amy"), ((b"a", None), b"peerbus:amy"),
         (("é".encode(), b"1"), b"peerbus:amy"), ((b'"', b"1"), b"peerbus:amy"), ((b"\\", b"1"), b"peerbus:amy"), ((b"\n", b"1"), b"peerbus:amy")],
    )  # fmt: skip
    def test_what_is_not_plain_is_left_to_python(
        self, k: ModuleType, record: tuple[bytes | None, bytes | None], origin: bytes
    ) -> None:
        made = batch(k, [(b"m1", b"{}"), record], origin)
        assert k.peer_deliver(made, 0, 2, False) is None

    def test_a_star_alone_is_no_broadcast(self, k: ModuleType) -> None:
        for value in (b"*", b'"*', b'*"', b'"a*"', b'"**"'):
            assert k.peer_deliver(batch(k, [(b"m1", value)]), 0, 1, False) is not None

    def test_an_end_of_line_is_left_only_where_lines_are(self, k: ModuleType) -> None:
        made = batch(k, [(b"m1", b"{\n}")])
        assert k.peer_deliver(made, 0, 1, True) is None and k.peer_deliver(made, 0, 1, False) is not None

    def test_a_batch_with_holes_is_left(self, k: ModuleType) -> None:
        whole = batch(k, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
        k.seal(whole, 5, 7, 0)
        assert k.peer_deliver(k.select(whole, [0, 2]), 0, 2, False) is None

    def test_a_range_outside_of_the_batch_is_refused(self, k: ModuleType) -> None:
        for first, last in ((-1, 0), (1, 0), (0, 2)):
            with pytest.raises(ValueError, match="first and last"):
                k.peer_deliver(batch(k, [(b"a", b"1")]), first, last, False)


class TestFrame:
    @pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
    def test_the_head_says_the_size(self, k: ModuleType, size: int) -> None:
        head = (
            bytes((0x82, size))
            if size < 126
            else struct.pack(">BBH", 0x82, 126, size)
            if size < 65_536
            else struct.pack(">BBQ", 0x82, 127, size)
        )
        assert k.ws_frame(2, b"x" * size) == head + b"x" * size

    def test_an_opcode_has_four_bits(self, k: ModuleType) -> None:
        with pytest.raises(ValueError, match="opcode"):
            k.ws_frame(16, b"")


PARTS = [
    frame(object_of(protocol_version="v1", type="ack", id="m1")), frame(envelope()), frame(envelope(to="*")), frame(envelope(id="é")), frame(b"hello"),
    frame(b"", 9), frame(b"x", 10), frame(b"x", 2), frame(b"\xff"), frame(b"x" * 1_025), b"\x81\x01x",
]  # fmt: skip
TEXTS = st.text(max_size=6) | st.sampled_from(["*", "q:1", "quintet", "broadcast", "v1", "a|b"])
BODIES = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
                      lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=6)  # fmt: skip


@given(
    other=st.dictionaries(st.sampled_from(MEMBERS[:-2]), TEXTS, max_size=2),
    body=BODIES,
    spelled=st.booleans(),
    seed=st.integers(0, 1 << 32),
)
def test_the_twins_agree(other: dict[str, str], body: object, spelled: bool, seed: int) -> None:
    whole = json.loads(envelope()) | {"body": body} | other
    data = bytearray(json.dumps(whole, separators=(",", ":"), ensure_ascii=spelled).encode(errors="replace"))
    chance, native = random.Random(seed), native_twin()
    for _ in range(20):
        assert native.peer_object(bytes(data)) == pure.peer_object(bytes(data))
        at = chance.randrange(len(data))
        if chance.random() < 0.5:
            data[at] = chance.choice(b'"\\,:{}[]*0a\n\xff')
        else:
            data[at : at + chance.randrange(2)] = chance.choice([b"", b'"', b"\\u0041", b'"a":1,', b" ", b"[", b"]"])
        if not data:
            break


@given(parts=st.lists(st.sampled_from(PARTS), max_size=6), cut=st.integers(0, 1 << 32), most=st.integers(0, 3))
def test_the_twins_split_and_read_alike(parts: list[bytes], cut: int, most: int) -> None:
    """And like splitting and reading one after the other."""
    whole = b"".join(parts)
    data = whole[: cut % (len(whole) + 1)] if cut % 2 else whole
    items, consumed, fatal = pure.ws_split(data, 0, 1_024, most)
    expected = []
    for item in items:
        found = pure.peer_object(item) if isinstance(item, bytes) else None
        expected.append(item if found is None else found if isinstance(found, str) else (*found, item))
    for twin in (native_twin(), pure):
        assert twin.peer_split(memoryview(data), 0, 1_024, most) == (expected, consumed, fatal)
        with pytest.raises(ValueError, match="max_bytes"):
            twin.peer_split(data, 0, 0, most)


@given(
    records=st.lists(st.tuples(st.sampled_from([b"m1", b"m2", None, b'"']) | st.binary(max_size=3), st.sampled_from([b"{}", None, b'"*"']) | st.binary(max_size=150)), min_size=1, max_size=4),
    origin=st.sampled_from([b"peerbus:amy", b"peerbus:", b"peerbus", b""]),
    lines=st.booleans(),
)  # fmt: skip
def test_the_twins_deliver_alike(records: list[tuple[bytes | None, bytes | None]], origin: bytes, lines: bool) -> None:
    native = native_twin()
    made = batch(pure, records, origin)
    for first in range(len(records)):
        assert native.peer_deliver(made, first, len(records), lines) == pure.peer_deliver(
            made, first, len(records), lines
        )
    for key, value in records:
        if key is not None and value is not None:
            frame = native.peer_frame(key, value, lines)
            found = native.peer_deliver(batch(pure, [(key, value)]), 0, 1, lines)
            assert frame == pure.peer_frame(key, value, lines) == (None if found is None else found[1])
