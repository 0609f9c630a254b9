"""The FlyMQ functions of both twins: the document's frames, grouping, partitions, every refusal, every cut of a read.

One class, run for each twin. Random input is test_fly_differential.py's matter.
"""

import struct
from types import ModuleType
from typing import Any

import pytest

from quintet.kernel import pure
from quintet.model.keys import fnv1a
from tests.kernel.fly_frames import MAX_FRAME, MAX_I64, NOW, ORIGIN, split, split_all
from tests.wire.flymq import blob, fetched, frame, produce, produced, producer, text

MEBIBYTE = 1024 * 1024
MAX_U32 = (1 << 32) - 1
MAX_U64 = (1 << 64) - 1


def rows_of(k: ModuleType, batch: bytearray) -> list[Any]:
    rows: list[Any] = k.rows(batch, 0, struct.unpack_from("<I", batch, 24)[0])
    return rows


def records_of(k: ModuleType, batch: bytearray) -> list[tuple[bytes | None, bytes | None]]:
    return [(row[2], row[3]) for row in rows_of(k, batch)]


def producer_of(batch: bytearray) -> tuple[int, ...]:
    return struct.unpack_from("<QI", batch, 48)


def order_of(item: Any) -> list[int]:
    return list(struct.unpack(f"<{len(item[2]) // 2}H", item[2]))


def one_run(k: ModuleType, data: bytes, counts: dict[bytes, int]) -> Any:
    items, consumed, fatal, unknown = split(k, data, counts)
    assert (len(items), consumed, fatal, unknown) == (1, len(data), 0, None)
    assert (items[0][0], type(items[0][1]), type(items[0][2])) == (1, list, bytes)
    return items[0]


def sealed(k: ModuleType, base_offset: int, timestamp: int = NOW, **columns: Any) -> bytearray:
    batch: bytearray = k.build(**columns)
    k.seal(batch, base_offset, timestamp, 7)
    return batch


class TestFly:
    # -- the document -------------------------------------------------------------------------------------------------

    def test_document_produce(self, k: ModuleType) -> None:
        # The document's head says 0x13 bytes; the payload it prints has 0x17.
        request = bytes.fromhex("AF010101 00000017 0004 74657374 00000000 00000005 68656C6C6F FFFFFFFF")
        reply = bytes.fromhex(
            "AF010101 00000022 0004 74657374 00000000 000000000000002A 0000018D5A3B2C00 FFFFFFFF 00000005"
        )
        assert k.fly_produce(b"test", None, [b"hello"], -1, 0, 0, 1) == request
        _, [(topic, partition, batch, count)], order = one_run(k, request, {b"test": 1})
        assert (topic, partition, count, order) == (b"test", 0, 1, b"\0\0")
        assert records_of(k, batch) == [(None, b"hello")]
        k.place(batch, 42, 0x18D5A3B2C00 * 1000 + 999)
        assert k.fly_produced([(topic, 0, batch, b"")], order, 1) == reply
        assert k.fly_received(reply, 0, MAX_FRAME, False) == ([(1, [(b"test", 0, 42, 0x18D5A3B2C00)])], len(reply), 0)

    # -- groups and partitions ----------------------------------------------------------------------------------------

    def test_groups_in_order_of_first_sight(self, k: ModuleType) -> None:
        wire = [(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b""), (b"b" * 40, b"5"), (b"b", b"6" * 300)]
        item = one_run(k, b"".join(produce(*one) for one in wire), {b"a": 1, b"b": 2, b"b" * 40: 3})
        assert [(topic, partition, count) for topic, partition, _, count in item[1]] == [
            *((b"b", -1, 3), (b"a", 0, 2), (b"b" * 40, -1, 1))
        ]
        assert [[value for _, value in records_of(k, group[2])] for group in item[1]] == [
            *([b"1", b"3", b"6" * 300], [b"2", b""], [b"5"])
        ]
        assert order_of(item) == [0, 1, 0, 1, 2, 0]
        assert all(type(group[0]) is bytes and type(group[2]) is bytearray for group in item[1])
        assert all(row[6] == ORIGIN for group in item[1] for row in rows_of(k, group[2]))

    def test_batches_are_what_build_makes(self, k: ModuleType) -> None:
        for sizes in ([0], [16] * 50, [5] * 3 + [0] * 9 + [17, 33, 65, 129, 1000], list(range(140))):
            values = [bytes((i & 255,)) * size for i, size in enumerate(sizes)]
            some = [b"k" * (i % 3) or None for i in range(len(values))]
            for keys in (None, some, [b"key%d" % (i % 11) for i in range(len(values))]):
                for topic in (b"t", b"t" * 7, b"t" * 10, b"t" * 11, b"t" * 255):
                    data = k.fly_produce(topic, keys, values, 3, 0, 0, 1)
                    item = one_run(k, data, {topic: 5})
                    assert item[1] == [(topic, 3, k.build(values, keys, origin=ORIGIN), len(values))]
                    assert item[2] == bytes(2 * len(values))

    @pytest.mark.parametrize(
        ("key", "hashed"),
        [(b"a", 0xE40C292C), (b"b", 0xE70C2DE5), (b"foobar", 0xBF9CF968), (b"\xff\x00", None)],
    )
    def test_a_key_chooses_by_fnv1a(self, k: ModuleType, key: bytes, hashed: int | None) -> None:
        if hashed is None:
            hashed = 0x811C9DC5
            for byte in key:
                hashed = (hashed ^ byte) * 0x01000193 % (1 << 32)
        for count in (1, 2, 3, 7, 1000, (1 << 31) - 1):
            item = one_run(k, produce(b"t", b"v", key) * 3, {b"t": count})
            assert [(group[1], group[3]) for group in item[1]] == [(hashed % count, 3)]

    def test_asked_partitions_are_kept_sound_or_not(self, k: ModuleType) -> None:
        asked = [0, 1, 0, 99, -2, -(1 << 31), (1 << 31) - 1, 99, -2]
        item = one_run(k, b"".join(produce(b"t", b"", b"key", one) for one in asked), {b"t": 2})
        assert [group[1] for group in item[1]] == [0, 1, 99, -2, -(1 << 31), (1 << 31) - 1]
        assert order_of(item) == [0, 1, 0, 2, 3, 4, 5, 2, 3]

    def test_asked_and_hashed_records_of_a_partition_are_one_group(self, k: ModuleType) -> None:
        data = produce(b"t", b"1", b"k") + produce(b"t", b"2", partition=0) + produce(b"t", b"3")
        for count in (1, 2):  # one partition keeps the order of all; of two, the key's is the first
            item = one_run(k, data, {b"t": count})
            one = [(b"k", b"1"), (None, b"2")]
            expected = [(0, [*one, (None, b"3")])] if count == 1 else [(0, one), (-1, [(None, b"3")])]
            assert [(group[1], records_of(k, group[2])) for group in item[1]] == expected

    def test_a_refused_topic_is_one_group(self, k: ModuleType) -> None:
        data = b"".join(produce(b"t", b"%d" % i, b"k" * i, i, producer(5, 9) if i == 1 else b"") for i in range(-1, 4))
        item = one_run(k, data, {b"t": 0})
        assert [(group[1], group[3], producer_of(group[2])) for group in item[1]] == [(-1, 5, (0, 0))]

    def test_idempotent_producers(self, k: ModuleType) -> None:
        wire = [(7, 3), (7, 4), (8, 0), (7, 5), (7, 7), (7, 8), (7, 8), (8, 1), (7, 9)]
        item = one_run(k, b"".join(produce(b"t", b"", b"", 0, producer(*one)) for one in wire), {b"t": 1})
        assert [(*producer_of(group[2]), group[3]) for group in item[1]] == [(7, 3, 3), (8, 0, 2), (7, 7, 2), (7, 8, 2)]
        assert order_of(item) == [0, 0, 1, 0, 2, 2, 3, 1, 3]

    def test_sequences_and_plain_records_do_not_mix(self, k: ModuleType) -> None:
        last = produce(b"t", b"", suffix=producer(MAX_I64, MAX_U32))
        data = last + produce(b"t", b"", suffix=producer(MAX_I64, 0)) + produce(b"t", b"") + produce(b"t", b"")
        item = one_run(k, data, {b"t": 1})
        groups = [(*producer_of(group[2]), group[3]) for group in item[1]]
        assert groups == [(MAX_I64, MAX_U32, 1), (MAX_I64, 0, 1), (0, 0, 2)]

    def test_many_alike_with_sequences(self, k: ModuleType) -> None:
        data = k.fly_produce(b"t", None, [b"v%03d" % i for i in range(300)], -1, 12, 1000, 1)
        item = one_run(k, data, {b"t": 4})
        assert [(group[1], group[3], *producer_of(group[2])) for group in item[1]] == [(-1, 300, 12, 1000)]
        assert [value for _, value in records_of(k, item[1][0][2])] == [b"v%03d" % i for i in range(300)]

    def test_accept_bits_do_not_matter(self, k: ModuleType) -> None:
        data = b"".join(produce(b"t", b"", flags=flags) for flags in (0, 1, 0x10, 0x20, 0x40, 0x80, 0xF1))
        assert one_run(k, data, {b"t": 1})[1][0][3] == 7

    # -- bounds -------------------------------------------------------------------------------------------------------

    def test_a_run_ends_at_16_mebibytes(self, k: ModuleType) -> None:
        one = produce(b"t", bytes(MEBIBYTE - 8 - 2 - 1 - 4 - 4 - 4))
        assert len(one) == MEBIBYTE
        items, consumed, fatal, unknown = split(k, one * 17 + b"\0", {b"t": 1})
        assert ([item[1][0][3] for item in items], consumed, fatal, unknown) == ([16], 16 * MEBIBYTE, 0, None)

    @pytest.mark.parametrize("op", [1, 2])
    def test_a_payload_of_over_a_mebibyte_is_a_view_of_the_read(self, k: ModuleType, op: int) -> None:
        """Also that of a PRODUCE: nothing is copied before somebody has chosen where."""
        rest = frame(op, b"\0" * MEBIBYTE)
        data = bytearray(produce(b"t", b"1") + frame(op, b"\0" * (MEBIBYTE + 1)) + rest)
        (run, large), consumed, _, _ = split(k, memoryview(data), {b"t": 1}, 32 * MEBIBYTE)
        assert (run[1][0][3], large[:2], consumed) == (1, (op, 1), len(data) - len(rest))
        assert isinstance(large[2], memoryview) and len(large[2]) == MEBIBYTE + 1
        data[len(data) - len(rest) - 1] = 7
        assert large[2][-1] == 7
        ((_, _, small),), _, _, _ = split(k, memoryview(data)[consumed:], {b"t": 1}, 32 * MEBIBYTE)
        assert isinstance(small, bytes)

    # -- one payload alone --------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 3, MEBIBYTE + 1, 31 * MEBIBYTE])
    @pytest.mark.parametrize("count", [0, 1, 7])
    @pytest.mark.parametrize("suffix", [b"", producer(9, 4)])
    def test_a_payload_alone_is_what_a_run_of_it_is(self, k: ModuleType, size: int, count: int, suffix: bytes) -> None:
        whole = produce(b"t", b"v" * size, b"key", -1, suffix)
        made = k.fly_split_one(memoryview(whole)[8:], {b"t": count}, ORIGIN)
        if size < MEBIBYTE:
            assert made == split(k, whole, {b"t": count})[0][0][1:]
        ((topic, partition, batch, records),), order = made
        assert (topic, partition, records, order) == (b"t", fnv1a(b"key") % count if count else -1, 1, b"\0\0")
        assert [row[2:4] for row in k.rows(batch, 0, 1)] == [(b"key", b"v" * size)]

    def test_a_payload_alone_names_its_topic_or_is_not_sound(self, k: ModuleType) -> None:
        payload = produce(b"t", bytes(2 * MEBIBYTE))[8:]
        assert k.fly_split_one(payload, {b"other": 1}, b"") == b"t"
        assert k.fly_split_one(payload[:-1], {b"t": 1}, b"") is None
        assert k.fly_split_one(b"", {}, b"") is None
        with pytest.raises(ValueError, match="32 MiB"):
            k.fly_split_one(bytes(32 * MEBIBYTE + 1), {}, b"")
        with pytest.raises(ValueError, match="origin"):
            k.fly_split_one(payload, {}, bytes(65_536))
        with pytest.raises(ValueError, match="partitions"):
            k.fly_split_one(payload, {b"t": -1}, b"")

    def test_a_run_ends_at_65535_groups(self, k: ModuleType) -> None:
        one = len(produce(b"t", b""))
        data = b"".join(produce(b"t", b"", partition=i) for i in range(65_537)) + frame(2)
        items, consumed, fatal, unknown = split(k, data, {b"t": 1})
        assert (len(items), len(items[0][1]), consumed, fatal, unknown) == (1, 65_535, 65_535 * one, 0, None)
        assert items[0][2] == struct.pack("<65535H", *range(65_535))

    # -- what is not a run --------------------------------------------------------------------------------------------

    def test_an_unknown_topic_stops_before_it(self, k: ModuleType) -> None:
        front = produce(b"a", b"1") * 2
        data = front + produce(b"new", b"2") + produce(b"a", b"3")
        items, consumed, fatal, unknown = split(k, data, {b"a": 1})
        assert (len(items), consumed, fatal, unknown) == (1, len(front), 0, b"new")
        assert split(k, data[len(front) :], {b"a": 1}) == ([], 0, 0, b"new")
        assert one_run(k, data, {b"a": 1, b"new": 0})[1][1][:2] == (b"new", -1)

    def test_any_other_frame_stops_behind_it(self, k: ModuleType) -> None:
        for op in (0, 2, 7, 0x70, 0xFF):
            data = produce(b"a", b"1") + frame(op, b"xyz", 0x21)
            items, consumed, fatal, unknown = split(k, data + produce(b"a", b"2") + b"\0", {b"a": 1})
            assert [item[0] for item in items] == [1, op]
            assert (items[1], consumed, fatal, unknown) == ((op, 0x21, b"xyz"), len(data), 0, None)

    @pytest.mark.parametrize(
        "payload",
        [
            b"",
            b"\0",
            b"\0\1",
            produce(b"", b"v")[8:],
            produce(b"t" * 256, b"v")[8:],
            produce(b"t", b"v", suffix=b"x")[8:],
            produce(b"t", b"v", suffix=bytes(11))[8:],
            produce(b"t", b"v", suffix=producer(1, 1) + b"x")[8:],
            produce(b"t", b"v", suffix=producer(0, 1))[8:],
            produce(b"t", b"v", suffix=producer(MAX_I64 + 1, 1))[8:],
            produce(b"t", b"v")[8:-1],
            text(b"t") + struct.pack(">I", 1),
            text(b"t") + struct.pack(">I", MAX_U32) + bytes(40),
            text(b"t") + blob(b"k") + struct.pack(">I", MAX_U32) + bytes(40),
            text(b"t") + blob(b"k") + struct.pack(">I", MAX_U32 - 3),
        ],
    )
    def test_a_malformed_produce_is_passed_on(self, k: ModuleType, payload: bytes) -> None:
        front = produce(b"t", b"1")
        bad = frame(1, payload, 0x81)
        items, consumed, fatal, unknown = split(k, front + bad + front, {b"t": 1, b"": 1, b"t" * 256: 1})
        assert ([type(item[1]) for item in items], items[1]) == ([list, int], (1, 0x81, payload))
        assert (consumed, fatal, unknown) == (len(front + bad), 0, None)

    @pytest.mark.parametrize("flags", [0x02, 0x04, 0x08, 0x0F, 0xE3])
    def test_a_compressed_produce_is_passed_on(self, k: ModuleType, flags: int) -> None:
        data = produce(b"t", b"1", flags=flags)
        assert split(k, data, {b"t": 1}) == ([(1, flags, data[8:])], len(data), 0, None)

    @pytest.mark.parametrize(
        ("data", "fatal"),
        [
            (b"\0", 1),
            (b"\xae\x02" + bytes(20), 1),
            (b"\xaf\x00", 2),
            (b"\xaf\x02" + b"\xff" * 20, 2),
            (struct.pack(">BBBBI", 0xAF, 1, 1, 1, MAX_FRAME + 1), 3),
            (struct.pack(">BBBBI", 0xAF, 1, 0xFF, 0, MAX_U32), 3),
            (b"", 0),
            (b"\xaf", 0),
            (b"\xaf\x01\x01\x01\xff\xff\xff", 0),
            (produce(b"a", b"1")[:-1], 0),
        ],
    )
    def test_fatal_as_soon_as_seen(self, k: ModuleType, data: bytes, fatal: int) -> None:
        good = produce(b"a", b"1") * 2
        items, consumed, got, unknown = split(k, good + data, {b"a": 1})
        assert ([item[0] for item in items], consumed, got, unknown) == ([1], len(good), fatal, None)
        assert k.fly_received(data, 0, MAX_FRAME, False) == ([], 0, fatal)

    def test_max_frame_is_the_greatest_payload(self, k: ModuleType) -> None:
        data = produce(b"a", b"x" * 85)
        assert len(data) - 8 == 100
        assert split(k, data, {b"a": 1}, 100)[1:] == (len(data), 0, None)
        assert split(k, data, {b"a": 1}, 99)[1:] == (0, 3, None)

    def test_every_cut_gives_the_same(self, k: ModuleType) -> None:
        data = (
            produce(b"a", b"12345") * 2
            + produce(b"b", b"", b"key", suffix=producer(3, 3))
            + produce(b"b", b"", b"key", suffix=producer(3, 4))
            + frame(2, b"consume")
            + produce(b"", b"")
            + produce(b"a", b"1")
        )
        counts = {b"a": 1, b"b": 3}

        def flat(items: list[Any]) -> list[Any]:
            out: list[Any] = []
            for item in items:
                if isinstance(item[1], int):
                    out.append(item)
                    continue
                rows = [iter(records_of(k, group[2])) for group in item[1]]
                out.extend((item[1][number][:2], next(rows[number])) for number in order_of(item))
            return out

        whole = split_all(k, data, counts)
        assert (len(flat(whole[0])), *whole[1:]) == (7, len(data), 0)
        for cut in range(len(data) + 1):
            first, consumed, fatal = split_all(k, data[:cut], counts)
            assert consumed <= cut and not fatal
            rest, *end = split_all(k, data, counts, consumed)
            assert (flat(first) + flat(rest), end) == (flat(whole[0]), [len(data), 0])

    def test_split_refuses_bad_arguments(self, k: ModuleType) -> None:
        good: tuple[Any, ...] = (b"", 0, MAX_FRAME, {}, b"", NOW)
        assert k.fly_split(*good) == ([], 0, 0, None)
        for at, value in ((1, -1), (1, 1), (2, 0), (2, (1 << 25) + 1), (4, bytes(65536)), (5, -1)):
            with pytest.raises(ValueError):
                k.fly_split(*good[:at], value, *good[at + 1 :])
        for count in (-1, 1 << 31):
            with pytest.raises(ValueError):
                split(k, produce(b"a", b""), {b"a": count})

    # -- replies ------------------------------------------------------------------------------------------------------

    def test_produced(self, k: ModuleType) -> None:
        keyed = sealed(k, 100, -1, values=[b"abc", b"", b"x" * 500], keys=[b"k", None, b""])
        plain = sealed(k, 5, 1_999, values=[b"1"] * 3)
        error = frame(0xFF, b"no such partition")
        groups = [(b"a", 3, keyed, b"unused"), (b"b" * 255, 0, plain, b""), (b"c", -1, None, error)]
        order = struct.pack("<9H", 0, 2, 1, 1, 0, 2, 2, 0, 1)
        want = [
            *(produced(b"a", 3, 100, -1, 1, 3, 0x21), error),
            *(produced(b"b" * 255, 0, 5, 1, -1, 1, 0x21), produced(b"b" * 255, 0, 6, 1, -1, 1, 0x21)),
            *(produced(b"a", 3, 101, -1, -1, 0, 0x21), error, error),
            *(produced(b"a", 3, 102, -1, 0, 500, 0x21), produced(b"b" * 255, 0, 7, 1, -1, 1, 0x21)),
        ]
        assert k.fly_produced(groups, order, 0x21) == b"".join(want)
        assert k.fly_produced(tuple(groups), order[:2], 0x21) == want[0]
        assert k.fly_produced([], b"", 0) == b""

    def test_produced_refuses(self, k: ModuleType) -> None:
        batch = sealed(k, 1, values=[b"a", b"b"])
        broken = bytearray(batch)
        struct.pack_into("<i", broken, k.layout(batch)[4] + 4, 99)
        good = (b"t", 0, batch, b"")
        assert k.fly_produced([good], bytes(4), 1)
        bad: list[tuple[Any, bytes]] = [
            *(([good], b"\0"), ([good], b"\1\0"), ([good], bytes(6)), ([], bytes(2))),
            *(([(b"t", 0, broken, b"")], bytes(2)), ([(b"t", 0, b"", b"")], b""), ([(bytes(65536), *good[1:])], b"")),
        ]
        for groups, order in bad:
            with pytest.raises(ValueError):
                k.fly_produced(groups, order, 1)
        for flags, partition in ((256, 0), (-1, 0), (1, 1 << 31)):
            with pytest.raises(OverflowError):
                k.fly_produced([(b"t", partition, batch, b"")], b"", flags)

    # -- fetches ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("sdk", [False, True])
    def test_fetch_layouts(self, k: ModuleType, sdk: bool) -> None:
        one = sealed(k, 10, values=[b"a", None, b"ccc"], keys=[b"k1", None, b""])
        two = sealed(k, 13, values=[b"d" * size for size in (0, 15, 16, 17, 130, 5000)])
        want = [(10, b"k1", b"a"), (11, b"", b""), (12, b"", b"ccc")]
        want += [(13 + i, b"", b"d" * size) for i, size in enumerate((0, 15, 16, 17, 130, 5000))]
        reply = fetched(want, 19, sdk, 11, 0x61)
        assert k.fly_fetch([one, two], 0, 100, MEBIBYTE, NOW, 11, 0x61, sdk) == (reply, 9, 19)
        assert k.fly_fetch((bytes(one), memoryview(two)), 10, 9, MEBIBYTE, NOW, 11, 0x61, sdk) == (reply, 9, 19)
        received = [(offset, key or None, value) for offset, key, value in want]
        assert k.fly_received(reply, 0, MAX_FRAME, sdk) == ([(11, received, 19)], len(reply), 0)

    def test_fetch_from_within(self, k: ModuleType) -> None:
        batches = [sealed(k, 10 * i, values=[b"%d" % (10 * i + j) for j in range(10)]) for i in range(3)]
        for first in range(33):
            for most in (0, 1, 9, 10, 11, 30):
                last = max(first, min(first + most, 30))
                want = fetched([(i, b"", b"%d" % i) for i in range(first, last)], last, False)
                got = k.fly_fetch(batches, first, most, MEBIBYTE, NOW, 7, 1, False)
                assert got == (want, last - first, last)

    def test_fetch_of_nothing(self, k: ModuleType) -> None:
        assert k.fly_fetch([], 77, 5, 100, NOW, 7, 1, False) == (fetched([], 77, False), 0, 77)
        assert k.fly_fetch([], 77, 5, 100, NOW, 7, 1, True) == (fetched([], 77, True), 0, 77)

    def test_fetch_bounds_the_payload(self, k: ModuleType) -> None:
        batch = sealed(k, 0, values=[bytes(84)] * 5, keys=[bytes(100)] * 5)
        for room, count in ((0, 1), (211, 1), (212, 1), (411, 1), (412, 2), (1012, 5), (1 << 30, 5)):
            reply, got, next_offset = k.fly_fetch([batch], 0, 100, room, NOW, 7, 1, False)
            assert (got, next_offset, len(reply)) == (count, count, 8 + 12 + 200 * count)

    def test_fetch_leaves_out_what_expired(self, k: ModuleType) -> None:
        batch = sealed(k, 0, values=[b"a", b"b", b"c", b"d"], expiries=[NOW, 0, NOW - 1, NOW + 1])
        want = fetched([(1, b"", b"b"), (3, b"", b"d")], 4, False)
        assert k.fly_fetch([batch], 0, 9, 999, NOW, 7, 1, False) == (want, 2, 4)
        assert k.fly_fetch([batch], 0, 1, 999, NOW, 7, 1, False) == (fetched([(1, b"", b"b")], 2, False), 1, 2)
        assert k.fly_fetch([batch], 2, 1, 0, NOW, 7, 1, False) == (fetched([(3, b"", b"d")], 4, False), 1, 4)
        assert k.fly_fetch([batch], 0, 9, 999, NOW + 1, 7, 1, True) == (fetched([(1, b"", b"b")], 4, True), 1, 4)
        # The room is used up by one record: what expired behind it was looked at, the record behind that was not.
        assert k.fly_fetch([batch], 0, 9, 0, NOW, 7, 1, False)[1:] == (1, 3)

    def test_fetch_of_compacted_batches(self, k: ModuleType) -> None:
        whole = sealed(k, 100, values=[b"%d" % i for i in range(10)])
        sparse = k.select(whole, [1, 4, 8])
        records = [(101, b"", b"1"), (104, b"", b"4"), (108, b"", b"8")]
        for first, skipped in ((0, 0), (101, 0), (102, 1), (104, 1), (108, 2), (109, 3), (200, 3)):
            last = max(first, 110)
            want = fetched(records[skipped:], last, False)
            assert k.fly_fetch([sparse], first, 9, 999, NOW, 7, 1, False) == (want, 3 - skipped, last)
        assert k.fly_fetch([sparse], 0, 2, 999, NOW, 7, 1, False)[1:] == (2, 105)
        assert k.fly_fetch([sparse], 0, 3, 999, NOW, 7, 1, False)[1:] == (3, 110)

    def test_a_large_fetch(self, k: ModuleType) -> None:
        values = [bytes((i & 255,)) * 1024 for i in range(500)]
        reply, count, next_offset = k.fly_fetch([sealed(k, 3, values=values)], 0, 999, MEBIBYTE, NOW, 7, 1, True)
        assert (count, next_offset) == (500, 503)
        assert reply == fetched([(3 + i, b"", value) for i, value in enumerate(values)], 503, True)

    def test_fetch_refuses(self, k: ModuleType) -> None:
        batch = sealed(k, 0, values=[b"a", b"b"], keys=[b"k", b"l"])
        broken = [bytearray(batch), bytearray(batch)]
        struct.pack_into("<i", broken[0], k.layout(batch)[4] + 4, 99)
        struct.pack_into("<i", broken[1], k.layout(batch)[7] + 4, -1)
        good: tuple[Any, ...] = ([batch], 0, 9, 999, NOW, 7, 1, False)
        assert k.fly_fetch(*good)[1] == 2
        bad: list[tuple[int, Any]] = [(0, [broken[0]]), (0, [broken[1]]), (0, [b""]), (1, -1), (2, -1), (3, -1)]
        for at, value in [*bad, (3, (1 << 30) + 1), (5, 256), (6, -1)]:
            with pytest.raises((ValueError, OverflowError)):
                k.fly_fetch(*good[:at], value, *good[at + 1 :])

    # -- the client's side --------------------------------------------------------------------------------------------

    def test_produce(self, k: ModuleType) -> None:
        assert k.fly_produce(b"t", None, [], -1, 0, 0, 1) == b""
        want = produce(b"t", b"a", b"k", 4, flags=0x81) + produce(b"t", b"b", b"", 4, flags=0x81)
        assert k.fly_produce(b"t", (b"k", None), (b"a", b"b"), 4, 0, 0, 0x81) == want
        want = produce(b"t", b"a", suffix=producer(9, MAX_U32 - 1)) + produce(b"t", b"b", suffix=producer(9, MAX_U32))
        assert k.fly_produce(b"t", [b"", None], [b"a", b"b"], -1, 9, MAX_U32 - 1, 1) == want
        good: tuple[Any, ...] = (b"t", None, [b"a", b"b"], -1, 1, 0, 1)
        bad: list[tuple[int, Any]] = [(0, bytes(65536)), (1, [b"k"]), (2, [bytes(1 << 25)]), (4, -1), (4, 1 << 63)]
        for at, value in [*bad, (3, 1 << 31), (5, MAX_U32), (5, -1), (6, 256)]:
            with pytest.raises((ValueError, OverflowError)):
                k.fly_produce(*good[:at], value, *good[at + 1 :])

    def test_received_runs(self, k: ModuleType) -> None:
        reply = produced(b"t", 1, MAX_U64, -5, 3, 4)
        data = reply + produced(b"", -1, 0, 7, -1, 0) + frame(0xFF, b"no") + reply
        data += fetched([], 9, False) + reply + frame(1, b"zipped", 0x03) + reply + frame(7, b"zipped", 0x05)
        one = (b"t", 1, MAX_U64, -5)
        assert k.fly_received(data, 0, MAX_FRAME, False) == (
            [
                (1, [one, (b"", -1, 0, 7)]),
                (0xFF, 1, b"no"),
                (1, [one]),
                (7, [], 9),
                (1, [one]),
                (1, 3, b"zipped"),
                (1, [one]),
                (7, 5, b"zipped"),
            ],
            len(data),
            0,
        )

    def test_received_malformed(self, k: ModuleType) -> None:
        good = produced(b"t", 1, 2, 3, 4, 5)
        fetch = fetched([(1, b"k", b"v")], 2, False)[8:]
        bad = [
            *((1, b""), (1, b"\0"), (1, good[8:-1]), (1, good[8:] + b"x"), (1, b"\xff\xff" + good[10:])),
            *((7, b""), (7, fetch[:-1]), (11, fetch + b"x"), (7, b"\xff" * 4 + fetch[4:]), (7, bytes(11))),
            *((7, fetch[:4] + b"\xff" * 4 + fetch[8:]), (7, struct.pack(">I", 0) + bytes(9))),
        ]
        for op, payload in bad:
            for sdk in (False, True):
                got = k.fly_received(good + frame(op, payload), 0, MAX_FRAME, sdk)
                assert got == ([(1, [(b"t", 1, 2, 3)])], len(good), 4)
        assert k.fly_received(frame(7, fetch), 0, MAX_FRAME, True)[2] == 4

    def test_received_refuses_bad_arguments(self, k: ModuleType) -> None:
        for start, max_frame in ((-1, 9), (1, 9), (0, 0), (0, (1 << 26) + 1)):
            with pytest.raises(ValueError):
                k.fly_received(b"", start, max_frame, False)
        assert k.fly_received(b"", 0, 1 << 26, False) == ([], 0, 0)


def test_broker_and_kernel_send_a_key_to_the_same_partition() -> None:
    for key in (b"k", b"key", bytes(range(256)), "schlüssel".encode()):
        frame = pure.fly_produce(b"t", [key], [b"v"], -1, 0, 0, 1)
        items = pure.fly_split(frame, 0, 1 << 20, {b"t": 7}, b"", 0)[0]
        groups: Any = items[0][1]
        assert groups[0][1] == fnv1a(key) % 7
