"""gather and scatter: what they give is what went in, both twins give the same, and pyarrow takes it as it is."""

import itertools
import random
import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from quintet import kernel
from quintet.kernel import pure
from quintet.model.keys import fnv1a
from tests.kernel import generate
from tests.kernel.frames import native_twin
from tests.kernel.test_differential import LONG, TIMES, same, valid_batch

CASES = (5_000 if LONG else 800) * TIMES
SEED = 20261116
ALL = 63
OFFSET, TIMESTAMP, VALUE, KEY, HEADERS, ORIGIN = (1 << bit for bit in range(6))
FAR = 1 << 50
ROWS, BYTES = 1 << 20, 1 << 26
CONTROL = 2

Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], str]


@pytest.fixture(params=["native", "pure"])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return native_twin() if request.param == "native" else pure


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


def entries(offsets: bytes | None, data: bytes | None) -> list[bytes]:
    assert offsets is not None and data is not None
    found = struct.unpack(f"<{len(offsets) // 4}i", offsets)
    assert found[0] == 0 and found[-1] == len(data)
    return [data[a:b] for a, b in itertools.pairwise(found)]


def nullable(bitmap: bytes | None, offsets: bytes | None, data: bytes | None) -> list[bytes | None]:
    found = entries(offsets, data)
    if bitmap is None:
        return list(found)
    bits = int.from_bytes(bitmap, "little")
    assert len(bitmap) == (len(found) + 7) // 8 and bits >> len(found) == 0
    return [one if bits >> i & 1 else None for i, one in enumerate(found)]


def rows_of(count: int, b: tuple[bytes | None, ...]) -> list[Row]:
    """The rows that the sixteen buffers of all columns hold."""
    assert b[0] is not None and b[1] is not None and b[8] is not None
    pairs = list(zip((name.decode() for name in entries(b[9], b[10])), nullable(b[15], b[11], b[12]), strict=True))
    lists = struct.unpack(f"<{count + 1}i", b[8])
    return list(
        zip(
            struct.unpack(f"<{count}q", b[0]),
            struct.unpack(f"<{count}q", b[1]),
            nullable(*b[5:8]),
            nullable(*b[2:5]),
            (tuple(pairs[a:z]) for a, z in itertools.pairwise(lists)),
            (origin.decode() for origin in entries(b[13], b[14])),
            strict=True,
        )
    )


def expected(batch: bytes | bytearray) -> list[Row]:
    """The rows of a batch as `rows` gives them, in the words of gather."""
    n = struct.unpack_from("<I", batch, 24)[0]
    return [
        (offset, time, key, value, tuple((a.decode(errors="replace"), b) for a, b in headers), origin.decode())
        for offset, time, key, value, headers, _, origin in pure.rows(batch, 0, n)
    ]


def sealed(offset: int, *columns: Any, seed: int = 7, **more: Any) -> bytearray:
    batch = pure.build(*columns, **more)
    pure.seal(batch, offset, 1000 + offset, seed)
    return batch


def everything(twin: ModuleType, data: bytes, first: int = 0, last: int = FAR, now: int = 0) -> list[Row]:
    count, buffers, position, next_offset, reason = twin.gather(
        data, 0, len(data), 7, first, last, ROWS, BYTES, ALL, now
    )
    assert reason == 0
    assert next_offset >= min(last, first) and position <= len(data)
    return rows_of(count, buffers)


SAMPLES: dict[str, dict[str, Any]] = {
    "plain": {"values": [b"one", b"", b"three"]},
    "null values": {"values": [None, b"x", None, None]},
    "keys": {"values": [b"v"] * 3, "keys": [b"a", b"", b"c"]},
    "null keys": {"values": [b"v"] * 10, "keys": [b"k", None] * 5},
    "headers": {"values": [b"v"] * 3, "headers": [[(b"a", b"1"), (b"b", b"")], [], [(b"c", b"3")]]},
    "null headers": {
        "values": [b"v"] * 9,
        "headers": [[(b"a", None), (b"b", b"")], [], *[[(b"c", None)], [(b"d", b"4")]] * 3, []],
    },
    "times": {"values": [b"v"] * 2, "timestamps": [5, -5]},
    "bad names": {
        "values": [b"v"] * 2,
        "headers": [[(b"\xff\xfe", b"\xff")], [("ü".encode(), b""), (b"\xc3", b"\xbc")]],
    },
}


class TestGather:
    @pytest.mark.parametrize("name", SAMPLES)
    def test_a_batch_comes_back_as_its_rows(self, twin: ModuleType, name: str) -> None:
        batch = sealed(40, **SAMPLES[name])
        assert everything(twin, bytes(batch)) == expected(batch)

    def test_batches_of_every_kind_become_one_result(self, twin: ModuleType) -> None:
        batches, offset = [], 3
        for columns in SAMPLES.values():
            batches.append(sealed(offset, **columns))
            offset += len(columns["values"])
        data = b"".join(batches) + bytes(64)
        wanted = [row for batch in batches for row in expected(batch)]
        assert everything(twin, data) == wanted
        for first, last in ((4, 9), (3, 4), (0, 3), (9, 9), (offset - 1, offset), (offset, FAR), (8, 20)):
            assert everything(twin, data, first, last) == [row for row in wanted if first <= row[0] < last]

    def test_an_empty_result_has_the_buffers_asked_for(self, twin: ModuleType) -> None:
        zero = bytes(4)
        empty = (b"", b"", None, zero, b"", None, zero, b"", zero, zero, b"", zero, b"", zero, b"", None)
        assert twin.gather(b"", 0, 0, 7, 5, 9, 1, 1, ALL, 0) == (0, empty, 0, 5, 0)
        assert twin.gather(bytes(64), 0, 64, 7, 5, 9, 1, 1, 0, 0) == (0, (None,) * 16, 0, 5, 0)

    def test_only_the_columns_asked_for_are_made(self, twin: ModuleType) -> None:
        data = bytes(sealed(0, [b"v", None], [b"k", None], [[(b"h", b"1")], [(b"n", None)]]))
        whole = twin.gather(data, 0, len(data), 7, 0, FAR, ROWS, BYTES, ALL, 0)[1]
        places = {OFFSET: {0}, TIMESTAMP: {1}, VALUE: {2, 3, 4}, KEY: {5, 6, 7}, HEADERS: {*range(8, 13), 15}}
        places[ORIGIN] = {13, 14}
        for column, made in places.items():
            count, buffers, *_ = twin.gather(data, 0, len(data), 7, 0, FAR, ROWS, BYTES, column, 0)
            assert count == 2
            assert buffers == tuple(whole[i] if i in made else None for i in range(16))

    def test_a_bitmap_is_made_only_if_a_row_taken_is_null(self, twin: ModuleType) -> None:
        data = bytes(sealed(0, [b"a", None, b"c"], [b"k", b"l", None]))
        _, buffers, *_ = twin.gather(data, 0, len(data), 7, 0, 1, ROWS, BYTES, ALL, 0)
        assert buffers[2] is None and buffers[5] is None
        _, buffers, *_ = twin.gather(data, 0, len(data), 7, 1, 3, ROWS, BYTES, ALL, 0)
        assert (buffers[2], buffers[5]) == (b"\x02", b"\x01")

    def test_several_origins_and_bad_ones(self, twin: ModuleType) -> None:
        parts = [pure.build([b"v"] * 3, origin=origin) for origin in (b"kafka:a", b"\xffbad", b"", b"kafka:a")]
        batch = pure.merge(parts, 9)
        pure.seal(batch, 0, 1, 7)
        origins = [row[5] for row in everything(twin, bytes(batch), 2, 11)]
        assert origins == ["kafka:a", *["�bad"] * 3, *[""] * 3, *["kafka:a"] * 2]
        single = sealed(0, [b"v"] * 5, origin=b"\xe2\x82")
        assert [row[5] for row in everything(twin, bytes(single))] == ["�"] * 5

    def test_compacted_batches_keep_their_offsets(self, twin: ModuleType) -> None:
        batch = pure.select(sealed(100, [b"%d" % i for i in range(20)]), [1, 2, 9, 17])
        assert batch is not None
        pure.reseal(batch, 7)
        data = bytes(batch)
        assert [row[0] for row in everything(twin, data)] == [101, 102, 109, 117]
        assert [row[0] for row in everything(twin, data, 102, 117)] == [102, 109]
        assert twin.gather(data, 0, len(data), 7, 118, FAR, ROWS, BYTES, ALL, 0)[2:] == (len(data), 120, 0)

    def test_expired_records_are_left_out(self, twin: ModuleType) -> None:
        data = bytes(sealed(0, [b"a", None, b"c", b"d", b"e"], expiries=[0, 50, 51, 50, 0]))
        assert [row[0] for row in everything(twin, data, now=50)] == [0, 2, 4]
        assert [row[0] for row in everything(twin, data, now=51)] == [0, 4]
        assert len(everything(twin, data, now=0)) == 5
        _, buffers, *_ = twin.gather(data, 0, len(data), 7, 0, FAR, ROWS, BYTES, VALUE, 50)
        assert buffers[2] is None, "the null one was left out"

    def test_control_batches_are_checked_and_left_out(self, twin: ModuleType) -> None:
        control = sealed(1, [b"marker"], flags=CONTROL)
        data = bytearray(sealed(0, [b"a"]) + control + sealed(2, [b"b"]))
        assert [row[0] for row in everything(twin, bytes(data))] == [0, 2]
        data[len(data) - len(control) - 1] ^= 1
        assert twin.gather(data, 0, len(data), 7, 0, FAR, ROWS, BYTES, ALL, 0)[4] == -3

    def test_it_ends_behind_the_batch_that_fills_it(self, twin: ModuleType) -> None:
        batches = [bytes(sealed(3 * i, [b"12345"] * 3, [b"1"] * 3)) for i in range(4)]
        data, size = b"".join(batches), len(batches[0])
        for rows_max, bytes_max, columns, taken in (
            *((1, BYTES, ALL, 1), (3, BYTES, ALL, 1), (4, BYTES, ALL, 2), (ROWS, BYTES, ALL, 4)),
            *((ROWS, 1, VALUE | KEY, 1), (ROWS, 18, VALUE | KEY, 1), (ROWS, 19, VALUE | KEY, 2)),
            *((ROWS, 18, VALUE, 2), (ROWS, 1, OFFSET, 4)),
        ):
            count, _, *rest = twin.gather(data, 0, len(data), 7, 0, FAR, rows_max, bytes_max, columns, 0)
            assert (count, *rest) == (3 * taken, taken * size, 3 * taken, 0)

    def test_headers_without_bytes_fill_it_too(self, twin: ModuleType) -> None:
        """One row may have millions of them, and a result may not become as large as a topic."""
        empty = [(b"", b"")] * 1000
        data = b"".join(bytes(sealed(i, [b""], None, [empty])) for i in range(10))
        for columns, taken in ((HEADERS, 3), (VALUE, 10)):
            count, buffers, *_ = twin.gather(data, 0, len(data), 7, 0, FAR, ROWS, 16_001, columns, 0)
            assert count == taken
            assert columns != HEADERS or len(buffers[9]) == 4 * (3000 + 1)

    def test_a_batch_that_is_not_used_up_is_where_the_next_call_begins(self, twin: ModuleType) -> None:
        first, second = bytes(sealed(0, [b"v"] * 3)), bytes(sealed(3, [b"v"] * 3))
        data = first + second
        assert twin.gather(data, 0, len(data), 7, 0, 4, ROWS, BYTES, 0, 0)[2:] == (len(first), 4, 0)
        assert twin.gather(data, 0, len(data), 7, 0, 3, ROWS, BYTES, 0, 0)[2:] == (len(first), 3, 0)
        assert twin.gather(data, 0, len(data), 7, 0, 6, ROWS, BYTES, 0, 0)[2:] == (len(data), 6, 0)
        assert twin.gather(data, 0, len(data), 7, 0, 9, ROWS, BYTES, 0, 0)[2:] == (len(data), 6, 0)
        gap = first + bytes(sealed(8, [b"v"]))
        assert twin.gather(gap, 0, len(gap), 7, 0, 5, ROWS, BYTES, 0, 0)[2:] == (len(first), 5, 0), "nothing below 5"

    def test_it_ends_before_what_is_unsound(self, twin: ModuleType) -> None:
        good, size = bytes(sealed(0, [b"good"])), len(sealed(0, [b"good"]))
        flipped = bytearray(sealed(1, [b"flipped"]))
        flipped[-3] ^= 4
        wrong = sealed(1, [b"a", b"b"])
        struct.pack_into("<i", wrong, pure.layout(wrong)[4] + 4, 9)
        pure.reseal(wrong, 7)
        for bad, reason in (
            *((flipped, -3), (wrong, -4), (b"QRB1" + bytes(80), -2), (b"what is this", -2), (good[:70], -1)),
            *((good[:30], -1), (b"QR", -1), (bytes(20), 0), (good, -5)),
        ):
            data = good + bad
            count, _, position, next_offset, why = twin.gather(data, 0, len(data), 7, 0, FAR, ROWS, BYTES, ALL, 0)
            assert (count, position, next_offset, why) == (1, size, 1, reason)
        assert twin.gather(good, 0, size, 8, 0, FAR, ROWS, BYTES, ALL, 0)[4] == -3, "another segment's seed"

    def test_what_is_below_the_range_is_hopped_over_unchecked(self, twin: ModuleType) -> None:
        flipped = bytearray(sealed(0, [b"flipped"] * 4))
        flipped[-3] ^= 4
        data = bytes(flipped + sealed(4, [b"fine"]))
        assert [row[3] for row in everything(twin, data, 4)] == [b"fine"]
        assert twin.gather(data, 0, len(data), 7, 3, FAR, ROWS, BYTES, ALL, 0)[2:] == (0, 3, -3)

    def test_a_batch_from_memory_needs_no_checksum(self, twin: ModuleType) -> None:
        batch = pure.build([b"a", b"b"])
        pure.place(batch, 10, 20)
        count, buffers, *_ = twin.gather(batch, 0, len(batch), -1, 11, FAR, ROWS, BYTES, ALL, 0)
        assert (count, rows_of(count, buffers)) == (1, expected(batch)[1:])
        struct.pack_into("<i", batch, pure.layout(batch)[4] + 4, 9)
        assert twin.gather(batch, 0, len(batch), -1, 0, FAR, ROWS, BYTES, ALL, 0)[4] == -4

    def test_long_origins_end_the_result_within_a_batch(self, twin: ModuleType) -> None:
        data = bytes(sealed(0, [b"v"] * 5, origin=b"o" * (30 << 20)))
        found, first = [], 0
        while first < 5:
            count, _, position, first, reason = twin.gather(data, 0, len(data), 7, first, FAR, ROWS, 1 << 30, ORIGIN, 0)
            found.append((count, position, first, reason))
        assert found == [(2, 0, 2, 0), (2, 0, 4, 0), (1, len(data), 5, 0)]

    @pytest.mark.parametrize(
        "wrong",
        [
            *({"start": -1}, {"start": 9}, {"stop": 9}, {"first": -1}, {"first": 5, "last": 4}, {"rows_max": 0}),
            *({"rows_max": 1 << 25}, {"bytes_max": 0}, {"bytes_max": 1 << 31}, {"columns": 64}, {"columns": -1}),
            *({"seed": -2}, {"seed": 1 << 32}, {"now": -1}),
        ],
    )
    def test_arguments_out_of_range_are_refused(self, twin: ModuleType, wrong: dict[str, int]) -> None:
        given = {"data": bytes(8), "start": 0, "stop": 8, "seed": 7, "first": 0, "last": 9}
        given |= {"rows_max": 1, "bytes_max": 1, "columns": 0, "now": 0}
        twin.gather(**given)
        with pytest.raises(ValueError):
            twin.gather(**{**given, **wrong})


def var(texts: Sequence[bytes | None], begin: bytes = b"") -> tuple[bytes | None, bytes, bytes]:
    """A column as Arrow may have it: its offsets begin behind `begin`, and a null entry spans some bytes."""
    offsets, data = [len(begin)], begin
    for one in texts:
        data += b"??" if one is None else one
        offsets.append(len(data))
    bits = sum(1 << i for i, one in enumerate(texts) if one is not None)
    bitmap = bits.to_bytes(len(texts) // 8 + 9, "little") if None in texts else None
    return bitmap, struct.pack(f"<{len(offsets)}i", *offsets), data + b"tail"


def header_lists(
    lists: list[list[tuple[bytes, bytes | None]]],
) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes | None]:
    offsets = list(itertools.accumulate(map(len, lists), initial=1))
    pairs = [(b"not", b"mine"), *(pair for one in lists for pair in one)]
    names, values = var([a for a, _ in pairs], b"xx"), var([b for _, b in pairs])
    return struct.pack(f"<{len(offsets)}i", *offsets), names[1], names[2], values[1], values[2], values[0]


def scattered(twin: ModuleType, values: Sequence[bytes | None], **more: Any) -> list[tuple[int, bytearray, int]]:
    given: dict[str, Any] = {
        "key": None,
        "headers": None,
        "timestamps": None,
        "chosen": None,
        "partitions": 1,
        "turn": 0,
    }
    given |= {"origin": b"spark:x", "flags": 0, "batch_bytes_max": 1 << 20} | more
    result: list[tuple[int, bytearray, int]] = twin.scatter(len(values), var(values, b"lead"), **given)
    return result


class TestScatter:
    def test_one_partition_is_what_build_makes(self, twin: ModuleType) -> None:
        values, keys = [b"one", None, b""], [None, b"k", b""]
        lists: list[list[tuple[bytes, bytes | None]]] = [[], [(b"a", b"1"), (b"b", b""), (b"c", None)], []]
        found = scattered(
            twin,
            values,
            key=var(keys, b"z"),
            headers=header_lists(lists),
            timestamps=struct.pack("<3q", 5, -6, 7),
            flags=1,
        )
        built = pure.build(values, keys, lists, [5, -6, 7], origin=b"spark:x", flags=1)
        assert found == [(0, built, 3)]
        assert type(found[0][1]) is bytearray

    def test_columns_that_say_nothing_are_left_out(self, twin: ModuleType) -> None:
        found = scattered(twin, [b"a", b"b"], key=var([None, None]), headers=header_lists([[], []]))
        assert found == [(0, pure.build([b"a", b"b"], origin=b"spark:x"), 2)]
        assert scattered(twin, []) == []

    def test_partitions_are_chosen_by_number_key_or_turn(self, twin: ModuleType) -> None:
        values = [b"%d" % i for i in range(40)]
        keys = [None if i % 5 == 0 else b"" if i % 5 == 1 else b"key%d" % (i % 7) for i in range(40)]
        chosen = [i % 4 if i % 3 == 0 else -1 for i in range(40)]
        found = scattered(twin, values, key=var(keys), chosen=struct.pack("<40i", *chosen), partitions=4, turn=7)
        wanted: dict[int, list[bytes]] = {}
        for value, key, wish in zip(values, keys, chosen, strict=True):
            wanted.setdefault(wish if wish >= 0 else fnv1a(key) % 4 if key else 7 % 4, []).append(value)
        assert [partition for partition, _, _ in found] == sorted(wanted)
        assert {p: [row[3] for row in pure.rows(batch, 0, rows)] for p, batch, rows in found} == wanted

    @pytest.mark.parametrize("wrong", [4, -2, 1 << 30])
    def test_a_partition_that_is_not_there_is_named_with_its_row(self, twin: ModuleType, wrong: int) -> None:
        with pytest.raises(ValueError, match=f"row 2: partition {wrong} "):
            scattered(twin, [b"v"] * 4, chosen=struct.pack("<4i", 0, 3, wrong, 9), partitions=4)

    def test_batches_end_before_they_are_too_large(self, twin: ModuleType) -> None:
        values = [bytes(100)] * 49 + [bytes(5000)] + [b""] * 51
        found = scattered(twin, values, batch_bytes_max=1000, timestamps=bytes(8 * 101))
        assert [row[3] for _, batch, rows in found for row in pure.rows(batch, 0, rows)] == values
        sizes = [len(batch) for _, batch, _ in found]
        assert [rows for _, _, rows in found if rows == 1] == [1], "only the large row is alone"
        assert sorted(sizes)[-1] > 5000 and sorted(sizes)[-2] <= 1000
        assert all(size > 700 for size in sizes[:6])

    def test_a_batch_has_at_most_a_million_rows(self) -> None:
        n = (1 << 20) + 3
        found = kernel.scatter(n, (None, bytes(4 * n + 4), b""), None, None, None, None, 1, 0, b"", 0, 64 << 20)
        assert [rows for _, _, rows in found] == [1 << 20, 3]

    @pytest.mark.parametrize(
        "wrong",
        [
            *({"count": 9}, {"count": -1}, {"count": 1 << 40}, {"value": (None, bytes(4), b"")}, {"partitions": 0}),
            *({"value": (b"", bytes(12), b"")}, {"value": (None, struct.pack("<3i", 0, 1, 2), b"x")}),
            *(
                {"value": (None, struct.pack("<3i", 0, 2, 1), b"xx")},
                {"value": (None, struct.pack("<3i", -1, 0, 1), b"xx")},
            ),
            *({"key": (None, b"", b"")}, {"timestamps": bytes(15)}, {"chosen": bytes(7)}, {"flags": 8}, {"turn": -1}),
            *({"batch_bytes_max": 0}, {"batch_bytes_max": (64 << 20) + 1}, {"partitions": 1 << 17}),
            {"headers": (bytes(8), bytes(4), b"", bytes(4), b"", None)},
            {"headers": (bytes(12), b"", b"", bytes(4), b"", None)},
            {"headers": (struct.pack("<3i", 0, 0, 1 << 30), bytes(4), b"", bytes(4), b"", None)},
            {"headers": (struct.pack("<3i", 0, 0, 9), bytes(40), b"", bytes(40), b"", bytes(1))},
        ],
    )
    def test_columns_that_do_not_add_up_are_refused(self, twin: ModuleType, wrong: dict[str, Any]) -> None:
        given = {"count": 2, "value": (None, bytes(12), b""), "key": None, "headers": None, "timestamps": None}
        given |= {"chosen": None, "partitions": 1, "turn": 0, "origin": b"", "flags": 0, "batch_bytes_max": 1000}
        twin.scatter(**given)
        with pytest.raises((ValueError, OverflowError)):
            twin.scatter(**{**given, **wrong})

    def test_a_row_over_the_greatest_batch_is_refused(self, twin: ModuleType) -> None:
        with pytest.raises(ValueError, match="64 MiB"):
            scattered(twin, [bytes(64 << 20)])


def random_scatter(r: random.Random) -> dict[str, Any]:
    columns = generate.batch_columns(r)
    n, partitions = len(columns["values"]), r.choice((1, 2, 5))
    wishes = [r.randrange(-1, partitions) if r.random() < 0.99 else partitions for _ in range(n)]
    return {
        "values": columns["values"],
        "key": var(columns["keys"], r.randbytes(3)) if columns["keys"] else None,
        "headers": header_lists(columns["headers"]) if columns["headers"] else None,
        "timestamps": struct.pack(f"<{n}q", *columns["timestamps"]) if columns["timestamps"] else None,
        "chosen": struct.pack(f"<{n}i", *wishes) if r.random() < 0.5 else None,
        "partitions": partitions,
        "turn": r.randrange(9),
        "flags": columns["flags"],
        "batch_bytes_max": r.choice((1, 300, 1 << 20)),
    }


def test_what_is_scattered_is_gathered_again() -> None:
    for number in range(CASES // 10):
        r = random.Random(SEED + number)
        given = random_scatter(r) | {"chosen": None, "flags": 0}
        data, offset, wanted = bytearray(), 0, []
        for _, batch, rows in scattered(native_twin(), **given):
            kernel.seal(batch, offset, 77, 7)
            wanted += expected(batch)
            data += batch
            offset += rows
        assert everything(native_twin(), bytes(data)) == wanted
        assert sorted(row[3] or b"" for row in wanted) == sorted(one or b"" for one in given["values"])


def gather_alike(native: ModuleType, r: random.Random, data: bytes) -> None:
    for _ in range(4):
        first = r.choice((0, 0, r.randrange(200)))
        last = r.choice((FAR, first + r.randrange(100)))
        start = r.choice((0, 0, 0, r.randrange(len(data) + 1) & ~7))
        stop = r.choice((len(data), r.randrange(start, len(data) + 1)))
        limits = (r.choice((1, 10, ROWS)), r.choice((1, 100, BYTES)))
        same(
            native,
            "gather",
            data,
            start,
            stop,
            r.choice((7, 7, -1)),
            first,
            last,
            *limits,
            r.choice((ALL, 0, r.randrange(64))),
            r.choice((0, 100)),
        )


def test_twins_gather_alike(native: ModuleType) -> None:
    for number in range(CASES):
        r = random.Random(SEED + number)
        try:
            batches, offset = [], 0
            for _ in range(r.randrange(1, 5)):
                batch = valid_batch(native, r)
                struct.pack_into("<Q", batch, 16, offset)
                if r.random() < 0.1:
                    struct.pack_into("<H", batch, 12, r.randrange(8))
                pure.reseal(batch, 7)
                offset += struct.unpack_from("<I", batch, 28)[0] + r.choice((0, 0, 5))
                batches.append(bytes(batch))
            data = b"".join(batches) + bytes(8 * r.randrange(9))
            gather_alike(native, r, data)
            gather_alike(native, r, generate.mutated(r, data))
            # With its checksum made right, only the columns can give a mutated batch away.
            wrong = bytearray(generate.mutated(r, batches[0]))
            if len(wrong) >= 12:
                struct.pack_into(
                    "<I", wrong, 4, pure.crc32c(bytes(wrong[8 : struct.unpack_from("<I", wrong, 8)[0]]), 7)
                )
            gather_alike(native, r, bytes(wrong))
        except AssertionError as error:
            raise AssertionError(f"gather with seed {SEED + number}: {error}") from error


def test_twins_scatter_alike(native: ModuleType) -> None:
    for number in range(CASES):
        r = random.Random(SEED + number)
        given = random_scatter(r)
        if r.random() < 0.3:
            name = r.choice([name for name in ("timestamps", "chosen") if given[name]] or ["turn"])
            given[name] = generate.mutated(r, given[name]) if name != "turn" else 1 << 40
        values = given.pop("values")
        given |= {"count": len(values), "value": var(values, r.randbytes(2)), "origin": b"o"}
        if r.random() < 0.3:
            bitmap, offsets, data = given["value"]
            given["value"] = (bitmap, generate.mutated(r, offsets), data)
        try:
            same(native, "scatter", **given)
        except AssertionError as error:
            raise AssertionError(f"scatter with seed {SEED + number}: {error}") from error


def test_pyarrow_takes_the_buffers_where_they_are(native: ModuleType) -> None:
    pa = pytest.importorskip("pyarrow")
    data = bytes(sealed(0, [b"one", None, b"three"]))
    _, buffers, *_ = native.gather(data, 0, len(data), 7, 0, FAR, ROWS, BYTES, VALUE, 0)
    wrapped = [pa.py_buffer(one) for one in buffers[2:5]]
    assert all(one.address % 8 == 0 for one in wrapped)
    assert pa.Array.from_buffers(pa.binary(), 3, wrapped).to_pylist() == [b"one", None, b"three"]
