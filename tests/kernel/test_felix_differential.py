"""Native and pure must be one kernel for Felix too: equal results on valid, mutated and cut frames in any chunking.

What a split, a run of gets and json_fault owe is also compared with what the frames were made from, and with the json
module, so that the twins cannot be wrong alike. The environment variable QUINTET_DIFF_CASES multiplies the number of
cases. The seed is fixed and named in a failure.
"""

import json
import random
from base64 import b64decode
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.kernel import pure
from tests.kernel import felix_frames, generate
from tests.kernel.felix_frames import DEPTH, FRAME_MAX, IDS, KNOWN, NOW, ORIGIN
from tests.kernel.frames import native_twin
from tests.kernel.test_differential import CASES, EXAMPLES, REFUSED, SEED, same, valid_batch
from tests.wire import felix

MAX_CUTS = 6
KNOWN_FLAGS = (KNOWN, KNOWN, 0x003F, 0x0001, 0x0009, 0)
NAMES = b'"stream":"s"'


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


def cuts_of(r: random.Random, length: int) -> list[int]:
    return sorted(r.randrange(length + 1) for _ in range(r.randrange(MAX_CUTS)))


def split_alike(native: ModuleType, data: bytes, r: random.Random) -> None:
    start, most = r.choice((0, 0, r.randrange(len(data) + 1))), r.choice((FRAME_MAX, FRAME_MAX, 60))
    known, strict, key_flag = r.choice(KNOWN_FLAGS), r.random() < 0.5, r.choice((0x0100, 0x0040, 0))
    got = same(native, "felix_split", data, start, most, known, strict, ORIGIN, NOW, key_flag)
    assert start <= got[1] <= len(data) and got[2] in (0, 1, 2, 3)
    whole = felix_frames.read_all(pure, data, [], known, strict, key_flag)
    assert felix_frames.read_all(native, data, cuts_of(r, len(data)), known, strict, key_flag) == whole
    same(native, "felix_received", data, start, most)
    same(native, "felix_batch", data[12:], r.choice((1, 9, 0x41, 0x49, 0x0101, 0x0149, 0)), ORIGIN, NOW)


def reads(native: ModuleType, r: random.Random) -> None:
    fields = felix_frames.requests(r, r.randrange(1, 30))
    data = b"".join(map(felix_frames.wire, fields))
    whole = felix_frames.expected(fields), len(data), 0
    assert felix_frames.read_all(native, data, cuts_of(r, len(data))) == whole
    for piece in (data, generate.mutated(r, data), data[r.randrange(len(data)) :]):
        split_alike(native, piece, r)


def replies(native: ModuleType, r: random.Random) -> None:
    data = b"".join(felix_frames.replies(r, r.randrange(1, 20)))
    assert same(native, "felix_received", data, 0, FRAME_MAX)[1:] == (len(data), 0)
    for piece in (generate.mutated(r, data), data[r.randrange(len(data)) :]):
        split_alike(native, piece, r)


def events(native: ModuleType, r: random.Random) -> None:
    batch = bytes(valid_batch(native, r))
    for data in (batch, generate.mutated(r, batch), r.randbytes(r.randrange(200))):
        first, most = r.randrange(3), r.choice((1, 30, 100, FRAME_MAX))
        last, now = first + r.randrange(9), r.choice((0, 50, 100, NOW))
        offsets, high = r.random() < 0.5, r.choice((0, 3 << 48, felix_frames.MAX_U64, -1))
        keys = r.random() < 0.5
        got = same(native, "felix_deliver", data, first, last, now, offsets, high, most, keys)
        if got != REFUSED:
            items, consumed, fatal = same(native, "felix_received", got[0], 0, FRAME_MAX)
            assert (sum(len(item[3]) for item in items), consumed, fatal) == (got[1], len(got[0]), 0)
            assert all(len(payload) <= most for _, payload in felix.frames_of(got[0]))
            if keys and data is batch and high in (0, 3 << 48):
                rows = {row[0]: row[2] for row in native.rows(data, first, last)}
                told = {item[2] + i: key for item in items if len(item) > 4 for i, key in enumerate(item[4])}
                assert not offsets or told.items() <= {high | at: key for at, key in rows.items()}.items()
        text = same(native, "felix_events", data, first, last, now, r.choice((NAMES, b"")), most)
        if REFUSED not in (got, text) and not got[2] and not text[2]:
            values = [value for item in items for value in item[3]]
            messages = [json.loads(payload) for _, payload in felix.frames_of(text[0])]
            sent = [one for m in messages for one in (m["payloads"] if "payloads" in m else [m["payload"]])]
            assert [b64decode(one) for one in sent] == values
    where, values = (
        felix_frames.target(*r.choice(felix_frames.TARGETS)),
        [generate.blob(r) for _ in range(r.randrange(5))],
    )
    if r.random() < 0.1:
        where = generate.mutated(r, where)
    key = r.choice((*felix_frames.RECORD_KEYS, bytes(65_536)))
    numbers = r.choice((*IDS, -1, -2, 1 << 64)), r.randrange(-1, 4)
    same(native, "felix_publish", where, values, *numbers, key, r.choice((0x0100, 0x0040, 1)))


def answered_alike(
    native: ModuleType, data: bytes, start: int, frame_max: int, scopes: Any, bytes_max: int, versions: bool
) -> Any:
    """What both twins answer, with the same entries marked as used."""
    ours, theirs = ({scope: felix_frames.memory(k, rows) for scope, rows in scopes.items()} for k in (native, pure))
    got = native.felix_gets(data, start, frame_max, ours, NOW, bytes_max, versions)
    assert got == pure.felix_gets(data, start, frame_max, theirs, NOW, bytes_max, versions)
    for scope, memory in ours.items():
        assert sorted(memory.items()) == sorted(theirs[scope].items())
    return got


def gets(native: ModuleType, r: random.Random) -> None:
    scopes, asked = felix_frames.entries(r), [felix_frames.get_fields(r) for _ in range(r.randrange(1, 20))]
    data = b"".join(felix_frames.frame(0, felix_frames.get_text(r, fields)) for fields in asked)
    reply, consumed, hits, misses = answered_alike(native, data, 0, FRAME_MAX, scopes, 1 << 30, False)
    answers = felix.frames_of(reply)
    assert len(answers) == hits + misses and len(answers) <= len(asked) and consumed <= len(data)
    for fields, (_, payload) in zip(asked, answers, strict=False):
        names = [fields[name] for name in ("tenant_id", "namespace", "cache") if name in fields]
        row = scopes["\0".join(names).encode()].get(fields["key"].encode())
        answer = json.loads(payload)
        got = answer.pop("value")
        assert (None if got is None else b64decode(got)) == (None if row is None or 0 < row[1] <= NOW else row[0])
        assert answer == {**fields, "type": "cache_value"}
    if len(answers) < len(asked):
        names = [
            asked[len(answers)][name] for name in ("tenant_id", "namespace", "cache") if name in asked[len(answers)]
        ]
        assert "\0".join(names).encode() not in scopes
    odd = felix_frames.frame(0, felix_frames.odd_get(r))
    for piece in (odd + data, data + odd + data, generate.mutated(r, data)):
        start, most = r.choice((0, 0, r.randrange(len(piece) + 1))), r.choice((FRAME_MAX, 200))
        answered_alike(native, piece, start, most, scopes, r.choice((1, 300, 1 << 30)), r.random() < 0.5)
    assert answered_alike(native, odd, 0, FRAME_MAX, scopes, 1, True) == (b"", 0, 0, 0)


def rows_of(k: ModuleType, batch: bytes) -> Any:
    return k.rows(batch, 0, int.from_bytes(batch[24:28], "little"))


def appended_alike(
    native: ModuleType, data: bytes, partitions: int, target: bytes, frame_max: int, offsets: bool, handle: int = 0
) -> tuple[Any, list[tuple[int, bytes]]]:
    """What both twins answer to a read, and what the partitions have then: (partition, value)."""
    found = []
    for k in (native, pure):
        tails = k.Tails(bytes, 1 << 24, 100, 100)
        slots = [tails.open(1 << 24) for _ in range(partitions)]
        topic = tails.add_topic(slots) + handle
        told = k.felix_append(tails, topic, target, data, frame_max, ORIGIN, NOW, offsets)
        assert tails.dirty == (told is not None)
        tails.seal(NOW + 1)
        kept = [(number, batch) for number, slot in enumerate(slots) for batch in tails.read(slot, 0, 1 << 24)]
        found.append((told, kept, tails.published(topic)))
    assert found[0] == found[1]
    told, kept, _ = found[0]
    return told, [(number, row[3]) for number, batch in kept for row in rows_of(native, batch)]


def publishes(native: ModuleType, r: random.Random) -> None:
    """A read of nothing but acknowledged publishes to one topic is appended and answered, any other is not touched."""
    asked = [felix_frames.acked_publish(r) for _ in range(r.randrange(1, 12))]
    data, partitions, offsets = b"".join(one[0] for one in asked), r.randrange(1, 4), r.random() < 0.5
    target = felix_frames.target()
    told, kept = appended_alike(native, data, partitions, target, FRAME_MAX, offsets)
    assert told is not None and told[2:] == asked[-1][2:4]
    sent, turn, ends = [], 0, [0] * partitions
    for (_, values, request_id, is_json), answer in zip(asked, felix.frames_of(told[0]), strict=True):
        at = turn << 48 | ends[turn]
        if is_json:
            expected = {"type": "publish_ok", "request_id": request_id} | ({"offset": at} if offsets else {})
            assert answer[0] == 0 and json.loads(answer[1]) == expected
        else:
            behind = at.to_bytes(8, "big") if offsets else b""
            ack = 0x1010 if offsets else 0x0010
            assert answer == (ack, b"\0" + request_id.to_bytes(8, "big") + b"\0\0" + behind)
        sent += [(turn, value) for value in values]
        ends[turn] += len(values)
        turn = (turn + 1) % partitions
    assert kept == sorted(sent, key=lambda one: one[0])
    odd = felix_frames.odd_publish(r)
    for piece in (odd, data + odd, odd + data, data[:-1], b""):
        assert appended_alike(native, piece, partitions, target, FRAME_MAX, offsets) == (None, [])
    assert appended_alike(native, data, partitions, felix_frames.target("t2"), FRAME_MAX, offsets) == (None, [])
    assert appended_alike(native, data, partitions, target, FRAME_MAX, offsets, handle=1) == (None, [])
    for _ in range(4):
        appended_alike(native, generate.mutated(r, data), partitions, target, r.choice((FRAME_MAX, 150)), offsets)


def texts(native: ModuleType, r: random.Random) -> None:
    depth = r.randrange(1, DEPTH + 2)
    for _ in range(4):
        data = felix_frames.json_soup(r)
        fault = same(native, "json_fault", data, depth)
        assert fault in felix_frames.json_faults(data, depth), (data, depth, fault)
        same(native, "json_head", generate.mutated(r, data), depth)
        same(native, "json_shape", generate.mutated(r, data))


@pytest.mark.parametrize("kind", [reads, replies, events, gets, publishes, texts])
def test_twins_agree_on_seeded_input(native: ModuleType, kind: Callable[[ModuleType, random.Random], None]) -> None:
    for number in range(CASES // 4):
        try:
            kind(native, random.Random(SEED + number))
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} with seed {SEED + number}: {error}") from error


targets = st.sampled_from([felix_frames.target(*names) for names in felix_frames.TARGETS])
some_keys = st.sampled_from(felix_frames.RECORD_KEYS)
some_values = st.lists(st.binary(max_size=20), max_size=4)
one_request: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just(1), targets, some_values, st.just(-1), st.just(0), some_keys),
    st.tuples(st.just(1), targets, some_values, st.sampled_from(IDS), st.integers(1, 2), some_keys),
    st.tuples(st.just(0), st.binary(max_size=30)),
    st.tuples(st.just(4), st.sampled_from((0x0041, 0x0049)), st.binary(max_size=10)),
    st.tuples(st.just(3), st.sampled_from(felix_frames.OTHER_FLAGS), st.binary(max_size=10)),
)
runs = st.lists(st.tuples(one_request, st.integers(1, 4)), max_size=8)


@settings(max_examples=EXAMPLES, deadline=None)
@given(made=runs, cuts=st.lists(st.integers(0, 2000), max_size=MAX_CUTS))
def test_valid_frames_in_any_chunking(native: ModuleType, made: Any, cuts: list[int]) -> None:
    fields = [one for one, times in made for _ in range(times)]
    data = b"".join(map(felix_frames.wire, fields))
    inside = sorted(cut for cut in cuts if cut <= len(data))
    for twin in (native, pure):
        assert felix_frames.read_all(twin, data, inside) == (felix_frames.expected(fields), len(data), 0)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    made=runs,
    wrong=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 2000),
    start=st.integers(-1, 300),
    known=st.sampled_from(KNOWN_FLAGS) | st.integers(0, 0xFFFF),
    strict=st.booleans(),
)
def test_twins_agree_on_mutated_and_cut_frames(
    native: ModuleType, made: Any, wrong: list[tuple[int, int]], cut: int, start: int, known: int, strict: bool
) -> None:
    data = bytearray(b"".join(felix_frames.wire(one) * times for one, times in made)[:cut])
    for at, value in wrong:
        if at < len(data):
            data[at] = value
    same(native, "felix_split", data, start, FRAME_MAX, known, strict, ORIGIN, NOW)
    same(native, "felix_received", data, start, FRAME_MAX)
    text = bytes(data)
    cuts = [cut // 2] if cut // 2 <= len(text) else []
    whole = felix_frames.read_all(pure, text, [], known, strict)
    assert felix_frames.read_all(native, text, cuts, known, strict) == whole


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.binary(max_size=200), start=st.integers(-1, 201), depth=st.integers(-1, 9))
def test_twins_agree_on_any_bytes(native: ModuleType, data: bytes, start: int, depth: int) -> None:
    for key_flag in (0, 0x0040, 0x0100, 0x0080):
        same(native, "felix_split", data, start, FRAME_MAX, KNOWN, True, ORIGIN, NOW, key_flag)
    same(native, "felix_received", data, start, FRAME_MAX)
    if 0 <= start <= len(data):
        answered_alike(native, data, start, FRAME_MAX, {b"": {}}, 100, True)
    same(native, "json_fault", data, depth)
    for flags in (0x0001, 0x0009, 0x0101, 0x0109):
        same(native, "felix_batch", data, flags, ORIGIN, NOW)


@settings(max_examples=EXAMPLES, deadline=None)
@given(pieces=st.lists(st.sampled_from(felix_frames.PIECES), max_size=12), depth=st.integers(1, 4))
def test_twins_agree_on_pieces_of_json(native: ModuleType, pieces: list[bytes], depth: int) -> None:
    body = b"".join(pieces)
    for data in (body, b"{" + body + b"}", b'{"x":' + body + b"}"):
        assert same(native, "json_fault", data, depth) in felix_frames.json_faults(data, depth)


def test_a_lost_or_moved_record_would_be_seen(native: ModuleType) -> None:
    here, there = felix_frames.target(), felix_frames.target("u")
    fields = [
        (1, here, [b"a", b"b"], -1, 0, None),
        (1, there, [b"c"], -1, 0, b"k"),
        (1, here, [b"d"], 7, 1, None),
    ]
    whole = felix_frames.expected(fields)
    swapped = [(1, here, [b"b", b"a"], -1, 0, None), *fields[1:]]
    other_key = [fields[0], (1, there, [b"c"], -1, 0, b"l"), fields[2]]
    other_id = [*fields[:2], (1, here, [b"d"], 8, 1, None)]
    for wrong in (fields[1:], swapped, [fields[1], fields[0], fields[2]], other_key, other_id):
        data = b"".join(map(felix_frames.wire, wrong))
        assert felix_frames.read_all(native, data, [])[0] != whole
