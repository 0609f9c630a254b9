"""Native and pure must be one kernel for FlyMQ too: equal results, or both refuse, on valid, mutated and random input.

Besides, what no twin can vouch for alone: any cut of a read gives the same records in the same order, and what a client
packs comes back out of the broker's functions. Seeds are fixed and named in a failure.
"""

import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.kernel import pure
from tests.kernel import fly_frames, generate
from tests.kernel.frames import native_twin
from tests.kernel.test_differential import CASES, EXAMPLES, NOW, REFUSED, SEED, same, valid_batch
from tests.wire import flymq

MAX_FRAME = fly_frames.MAX_FRAME
MAX_CUTS = 5


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


def records(twin: ModuleType, items: list[Any]) -> list[Any]:
    """Items as single frames: a run as (topic, partition, producer_id, its sequence, key, value) in wire order."""
    out: list[Any] = []
    for item in items:
        if not isinstance(item[1], list):
            out.append(item)
            continue
        _, groups, order = item
        rows = []
        for topic, partition, batch, count in groups:
            producer_id, sequence = struct.unpack_from("<QI", batch, 48)
            step = 1 if producer_id else 0
            single = [
                (topic, partition, producer_id, sequence + step * i, row[2], row[3])
                for i, row in enumerate(twin.rows(batch, 0, count))
            ]
            rows.append(iter(single))
        out.extend(next(rows[number]) for number in struct.unpack(f"<{len(order) // 2}H", order))
        assert all(next(rest, None) is None for rest in rows), "a group holds a record that the order does not name"
    return out


def reads(native: ModuleType, r: random.Random) -> None:
    data = b"".join(fly_frames.frames(r, r.randrange(1, 40)))
    counts = fly_frames.counts(r)
    for text in (data, generate.mutated(r, data), data[r.randrange(len(data)) :]):
        start, most = r.choice((0, 0, r.randrange(len(text) + 1))), r.choice((MAX_FRAME, MAX_FRAME, 60))
        result = same(native, "fly_split", text, start, most, counts, b"o", NOW)
        assert result != REFUSED and start <= result[1] <= len(text) and result[2] in (0, 1, 2, 3)
        for sdk in (False, True):
            same(native, "fly_received", text, 0, MAX_FRAME, sdk)


def cuts(native: ModuleType, r: random.Random) -> None:
    data = b"".join(fly_frames.frames(r, r.randrange(1, 30)))
    data = generate.mutated(r, data) if r.random() < 0.5 else data
    counts = fly_frames.counts(r)
    whole, *end = fly_frames.split_all(native, data, counts)
    parts: list[Any] = []
    position = fatal = 0
    for cut in [*sorted(r.randrange(len(data) + 1) for _ in range(r.randrange(MAX_CUTS))), len(data)]:
        if not fatal and cut >= position:
            got, position, fatal = fly_frames.split_all(native, data[:cut], counts, position)
            parts += got
    assert [position, fatal] == end
    assert records(native, parts) == records(pure, whole)


def answers(native: ModuleType, r: random.Random) -> None:
    groups: list[Any] = []
    order: list[int] = []
    for number in range(r.randrange(1, 5)):
        batch = bytes(valid_batch(native, r))
        count = struct.unpack_from("<I", batch, 24)[0]
        if r.random() < 0.2:
            batch = generate.mutated(r, batch)
        topic, partition = r.choice(fly_frames.TOPICS), r.choice(fly_frames.PARTITIONS)
        groups.append((topic, partition, r.choice((batch, bytearray(batch), memoryview(batch), None)), r.randbytes(9)))
        order += [number] * (count + (r.random() < 0.05))
    r.shuffle(order)
    packed = struct.pack(f"<{len(order)}H", *order)
    replies = same(native, "fly_produced", groups, packed, r.randrange(256))
    same(native, "fly_produced", groups, generate.mutated(r, packed), 1)
    if replies != REFUSED:
        same(native, "fly_received", replies, 0, MAX_FRAME, False)


def fetches(native: ModuleType, r: random.Random) -> None:
    batches, offset = [], r.randrange(100)
    for _ in range(r.randrange(4)):
        batch = valid_batch(native, r)
        (span,) = struct.unpack_from("<I", batch, 28)
        native.place(batch, offset, 5)
        offset += span + r.choice((0, 0, 7))
        batches.append(bytes(batch) if r.random() < 0.9 else generate.mutated(r, bytes(batch)))
    for _ in range(4):
        wish = (r.randrange(offset + 5), r.choice((0, 1, 3, 100)), r.choice((0, 50, 300, 1 << 20)), NOW)
        sdk = r.random() < 0.5
        got = same(native, "fly_fetch", batches, *wish, r.choice((7, 11)), 1, sdk)
        if got != REFUSED:
            items, consumed, fatal = same(native, "fly_received", got[0], 0, 1 << 26, sdk)
            assert (len(items), consumed, fatal) == (1, len(got[0]), 0)
            assert (len(items[0][1]), items[0][2]) == got[1:]


def replies(native: ModuleType, r: random.Random) -> None:
    sdk = r.random() < 0.5
    data = b"".join(fly_frames.replies(r, r.randrange(1, 12), sdk))
    for text in (data, generate.mutated(r, data)):
        same(native, "fly_received", text, r.choice((0, r.randrange(len(text) + 1))), MAX_FRAME, sdk)
        same(native, "fly_split", text, 0, MAX_FRAME, fly_frames.counts(r), b"", NOW)


def requests(native: ModuleType, r: random.Random) -> None:
    n = r.randrange(6)
    keys = r.choice((None, [r.choice((None, b"", r.randbytes(4))) for _ in range(n)]))
    values = [generate.blob(r) for _ in range(n)]
    producer_id, sequence = r.choice((0, 0, 7, fly_frames.MAX_I64)), r.choice((0, 9, 0xFFFFFFFC))
    topic, partition = r.choice(fly_frames.TOPICS), r.choice(fly_frames.PARTITIONS)
    data = same(native, "fly_produce", topic, keys, values, partition, producer_id, sequence, r.choice((1, 0x81)))
    if data == REFUSED:
        assert producer_id and sequence + n > 1 << 32
        return
    items = fly_frames.split_all(native, data, {topic: 3})[0]
    got = records(native, items)
    assert [(one[0], one[2], one[5]) for one in got] == [(topic, producer_id, value) for value in values]
    assert [one[4] for one in got] == [key or None for key in keys or [None] * n]
    assert [one[3] for one in got] == [sequence + i if producer_id else 0 for i in range(n)]


def noise(native: ModuleType, r: random.Random) -> None:
    data = r.choice((b"", b"\xaf\x01", b"\xaf\x01\x01\x01\0\0\0", b"QRB1")) + r.randbytes(r.randrange(200))
    same(native, "fly_split", data, 0, MAX_FRAME, fly_frames.counts(r), b"", NOW)
    same(native, "fly_received", data, 0, MAX_FRAME, r.random() < 0.5)
    same(native, "fly_fetch", [data], r.randrange(9), 9, 999, NOW, 7, 1, r.random() < 0.5)
    same(native, "fly_produced", [(b"t", 0, data, b"")], bytes(2 * r.randrange(3)), 1)


@pytest.mark.parametrize("kind", [reads, cuts, answers, fetches, replies, requests, noise])
def test_twins_agree_on_seeded_input(native: ModuleType, kind: Callable[[ModuleType, random.Random], None]) -> None:
    for number in range(CASES // 2):
        try:
            kind(native, random.Random(SEED + number))
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} with seed {SEED + number}: {error}") from error


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.binary(max_size=300), start=st.integers(-1, 301), sdk=st.booleans())
def test_twins_agree_on_any_read(native: ModuleType, data: bytes, start: int, sdk: bool) -> None:
    same(native, "fly_split", data, start, MAX_FRAME, {b"a": 2}, b"o", NOW)
    same(native, "fly_received", data, start, MAX_FRAME, sdk)


@settings(max_examples=EXAMPLES, deadline=None)
@given(op=st.sampled_from([1, 7, 11]), payload=st.binary(max_size=80), sdk=st.booleans())
def test_twins_agree_on_any_payload(native: ModuleType, op: int, payload: bytes, sdk: bool) -> None:
    data = flymq.frame(op, payload) * 2
    same(native, "fly_split", data, 0, MAX_FRAME, {payload[2:3]: 2}, b"o", NOW)
    same(native, "fly_received", data, 0, MAX_FRAME, sdk)


def test_a_lost_record_would_be_seen(native: ModuleType) -> None:
    items = fly_frames.split_all(native, flymq.produce(b"a", b"1") * 2, {b"a": 1})[0]
    assert len(records(native, items)) == 2
    _, groups, order = items[0]
    with pytest.raises(AssertionError):
        records(native, [(1, groups, order[:2])])
