"""Record batches in both twins of the kernel, function by function, every edge and every refusal; and the stub.

One class, run for each twin. BlipMQ frames are test_blip_frames.py's matter, random input is test_differential.py's.
"""

import ast
import importlib.util
import inspect
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quintet.kernel import pure, pure_crc
from tests.kernel.frames import values_of

STUB = Path(pure.__file__).with_name("_native.pyi")
SEED = 0xC0FFEE


def sealed(k: ModuleType, base_offset: int = 10, **columns: Any) -> bytearray:
    values = columns.pop("values", [b"a", b"", b"ccc"])
    batch: bytearray = k.build(values, **columns)
    k.seal(batch, base_offset, 500, SEED)
    return batch


def with_origins(k: ModuleType, n: int) -> list[bytearray]:
    return [k.build([b"v%d" % i], origin=b"o:%d" % i) for i in range(n)]


FULL: dict[str, Any] = {
    "values": [b"a", None, b"ccc", b""],
    "keys": [b"k", None, b"", b"kkkkkkkkk"],
    "headers": [[(b"n", b"v")], [], [(b"x", b""), (b"", b"z")], []],
    "timestamps": [7, -3, 99, 0],
    "expiries": [0, 5, 0, 1 << 40],
    "origin": b"flymq:me",
}
FULL_ROWS = [
    (10, 7, b"k", b"a", ((b"n", b"v"),), 0, b"flymq:me"),
    (11, -3, None, None, (), 5, b"flymq:me"),
    (12, 99, b"", b"ccc", ((b"x", b""), (b"", b"z")), 0, b"flymq:me"),
    (13, 0, b"kkkkkkkkk", b"", (), 1 << 40, b"flymq:me"),
]


class TestKernel:
    # -- checksum -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("data", "want"),
        [
            (b"", 0),
            (b"123456789", 0xE3069283),
            (bytes(32), 0x8A9136AA),
            (b"\xff" * 32, 0x62A8AB43),
            (bytes(range(32)), 0x46DD794E),
        ],
    )
    def test_crc32c_published_values(self, k: ModuleType, data: bytes, want: int) -> None:
        assert k.crc32c(data) == want
        assert k.crc32c(bytearray(data)) == want
        assert k.crc32c(memoryview(data)) == want
        assert pure_crc.crc32c_by_table(data) == want

    def test_crc32c_continues(self, k: ModuleType) -> None:
        data = bytes(i * 31 & 255 for i in range(5000))
        for cut in (0, 1, 7, 64, 255, 4999, 5000):
            assert k.crc32c(data[cut:], k.crc32c(data[:cut])) == k.crc32c(data)
        assert pure_crc.crc32c_by_table(data, 99) == k.crc32c(data, 99)

    def test_crc32c_refuses_numbers_over_32_bits(self, k: ModuleType) -> None:
        with pytest.raises(OverflowError):
            k.crc32c(b"", 1 << 32)

    # -- building and reading -----------------------------------------------------------------------------------------

    def test_build_bytes_are_the_documented_ones(self, k: ModuleType) -> None:
        batch = k.build([b"hi"], origin=b"o", flags=1)
        header = struct.pack("<4sIIHHQIIqqQIHH", b"QRB1", 0, 96, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1)
        origin = struct.pack("<ii", 0, 1) + b"o" + bytes(7)
        value = struct.pack("<ii", 0, 2) + b"hi" + bytes(6)
        assert bytes(batch) == header + origin + value
        assert isinstance(batch, bytearray)

    def test_a_view_builds_the_same_as_its_bytes(self, k: ModuleType) -> None:
        data = b"0123456789" * 40
        views = [memoryview(data)[3:7], None, memoryview(bytearray(data))[:0]]
        assert k.build(views, [memoryview(data)[:1], None, b"k"]) == k.build([b"3456", None, b""], [b"0", None, b"k"])

    def test_every_column_comes_back(self, k: ModuleType) -> None:
        batch = sealed(k, **FULL)
        assert k.rows(batch, 0, 4) == FULL_ROWS
        assert k.rows(batch, 1, 3) == FULL_ROWS[1:3]
        assert k.rows(batch, 4, 4) == []
        assert k.check(batch, 0, SEED) == len(batch)
        assert struct.unpack_from("<qq", batch, 32) == (500, 99)

    def test_columns_that_say_nothing_are_left_out(self, k: ModuleType) -> None:
        plain = k.build([b"a", b"b"])
        assert k.build([b"a", b"b"], keys=[None, None], headers=[[], []], expiries=[0, 0]) == plain
        assert k.build((b"a", b"b"), keys=(None, None), headers=((), ()), expiries=(0, 0)) == plain

    def test_rows_without_times_of_their_own_get_the_batch_time(self, k: ModuleType) -> None:
        batch = sealed(k)
        assert [row[:2] for row in k.rows(batch, 0, 3)] == [(10, 500), (11, 500), (12, 500)]
        assert struct.unpack_from("<q", batch, 40) == (500,)

    @pytest.mark.parametrize("n", [1, 7, 8, 9, 63, 64, 65, 1000])
    def test_bitmaps_and_padding_at_every_size(self, k: ModuleType, n: int) -> None:
        values = [None if i % 3 == 1 else b"x" * (i % 11) for i in range(n)]
        batch = sealed(k, values=values, keys=[None if i % 5 == 0 else b"k" for i in range(n)])
        assert values_of(k, batch) == values
        assert len(batch) % 8 == 0
        assert k.check(batch, 0, SEED) == len(batch)

    @pytest.mark.parametrize(
        "bad",
        [
            {"values": []},
            {"values": [b"a"], "keys": []},
            {"values": [b"a"], "headers": [[], []]},
            {"values": [b"a"], "timestamps": [1, 2]},
            {"values": [b"a"], "expiries": []},
            {"values": [b"a"], "flags": 8},
            {"values": [b"a"], "flags": -1},
            {"values": [bytes(1 << 20)] * 64},
        ],
    )
    def test_build_refuses(self, k: ModuleType, bad: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            k.build(**bad)

    def test_rows_refuses_numbers_outside(self, k: ModuleType) -> None:
        batch = sealed(k)
        for first, last in ((-1, 1), (0, 4), (2, 1)):
            with pytest.raises(ValueError):
                k.rows(batch, first, last)

    def test_layout(self, k: ModuleType) -> None:
        assert tuple(k.layout(k.build([b"hi"], origin=b"o"))) == (
            *(64, 72, 0, 0, 80, 88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 96),
        )
        batch = bytes(24) + bytes(sealed(k, **FULL)) + bytes(8)
        where = k.layout(batch, 24)
        assert where[3] and where[6] and where[9] and where[10] == 3 and where[15] and where[16] and not where[17]
        assert (where[18], where[19]) == (0, len(batch) - 32)
        null = k.build([b"hi"], headers=[[(b"a", None)]])
        assert where[18] < len(batch) and k.layout(null)[18] == k.layout(null)[13] - 8
        for start in (-1, 0, 16, len(batch), len(batch) + 1):
            with pytest.raises(ValueError):
                k.layout(batch, start)

    def test_buffers_that_are_not_plain_bytes_are_refused(self, k: ModuleType) -> None:
        with pytest.raises(BufferError):
            k.layout(memoryview(bytes(200))[::2])

    # -- merging ------------------------------------------------------------------------------------------------------

    def test_merge_keeps_order_and_unites_columns(self, k: ModuleType) -> None:
        late = k.build([b"z"], origin=b"fast:x")
        merged = k.merge([late, sealed(k, **FULL), bytes(late), memoryview(late)], 42)
        k.seal(merged, 100, 1, SEED)
        assert k.check(merged, 0, SEED) == len(merged)
        plain = (42, None, b"z", (), 0, b"fast:x")
        want = [plain, *(row[1:] for row in FULL_ROWS), plain, plain]
        assert [row[1:] for row in k.rows(merged, 0, 7)] == want
        assert [row[0] for row in k.rows(merged, 0, 7)] == list(range(100, 107))

    def test_merge_of_one_is_that_one_unsealed(self, k: ModuleType) -> None:
        assert k.merge([sealed(k, **FULL)], 0) == k.build(**FULL)

    def test_merge_takes_255_origins_and_refuses_256(self, k: ModuleType) -> None:
        merged = k.merge(with_origins(k, 255), 0)
        k.seal(merged, 0, 0, SEED)
        assert k.check(merged, 0, SEED) == len(merged)
        assert [row[6] for row in k.rows(merged, 0, 255)] == [b"o:%d" % i for i in range(255)]
        again = k.merge([merged, *with_origins(k, 255)], 0)
        assert [row[6] for row in k.rows(again, 255, 510)] == [b"o:%d" % i for i in range(255)]
        with pytest.raises(ValueError):
            k.merge(with_origins(k, 256), 0)

    def test_merge_refuses_what_must_stay_apart(self, k: ModuleType) -> None:
        one = k.build([b"a"])
        with_producer = bytearray(one)
        struct.pack_into("<Q", with_producer, 48, 7)
        sparse = k.select(k.build([b"a", b"b"]), [1])
        broken = bytearray(one)
        struct.pack_into("<i", broken, 64, 1)
        for batches in ([], [one, k.build([b"a"], flags=1)], [one, with_producer], [sparse], [broken], [b""]):
            with pytest.raises(ValueError):
                k.merge(batches, 0)

    def test_merge_refuses_more_than_a_batch_can_hold(self, k: ModuleType) -> None:
        big = k.build([bytes(33 * 1024 * 1024)])
        with pytest.raises(ValueError):
            k.merge([big, big], 0)

    # -- sealing and checking -----------------------------------------------------------------------------------------

    def test_seal_refuses(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b"])
        for offset in (-1, (1 << 63) - 2):
            with pytest.raises(ValueError):
                k.seal(batch, offset, 0, SEED)
        k.seal(batch, (1 << 63) - 3, 0, SEED)
        assert k.check(batch, 0, SEED) == len(batch)
        with pytest.raises(ValueError):
            k.seal(batch + bytes(8), 0, 0, SEED)
        with pytest.raises(ValueError):
            k.reseal(bytearray(64), SEED)
        with pytest.raises(TypeError):
            k.seal(bytes(batch), 0, 0, SEED)

    def test_place_is_seal_without_the_checksum(self, k: ModuleType) -> None:
        placed, whole = k.build([b"a", b"b"], timestamps=[5, 9]), k.build([b"a", b"b"], timestamps=[5, 9])
        k.place(placed, 7, 3)
        k.seal(whole, 7, 3, SEED)
        assert placed[4:8] == bytes(4)
        k.reseal(placed, SEED)
        assert placed == whole
        with pytest.raises(ValueError):
            k.place(placed, -1, 0)

    def test_reseal_moves_a_batch_to_another_seed(self, k: ModuleType) -> None:
        batch = sealed(k, **FULL)
        before = k.rows(batch, 0, 4)
        k.reseal(batch, 77)
        assert (k.check(batch, 0, 77), k.check(batch, 0, SEED)) == (len(batch), -3)
        assert k.rows(batch, 0, 4) == before

    def test_check_reasons(self, k: ModuleType) -> None:
        batch = bytes(sealed(k, **FULL))
        assert k.check(bytes(8) + batch + bytes(8), 8, SEED) == len(batch)
        assert k.check(bytes(64), 0, SEED) == 0
        assert [k.check(batch[:n], 0, SEED) for n in (0, 3, 4, 63, 64, len(batch) - 1)] == [-1] * 6
        assert k.check(b"QRB2" + batch[4:], 0, SEED) == -2
        assert k.check(batch, 0, SEED ^ 1) == -3
        for start in (-1, len(batch) + 1):
            with pytest.raises(ValueError):
                k.check(batch, start, SEED)

    @pytest.mark.parametrize(
        ("at", "code", "value"),
        [
            (8, "I", 0),
            (8, "I", 100),
            (8, "I", (64 << 20) + 8),
            (12, "H", 8),
            (14, "H", 256),
            (14, "H", 4),
            (16, "Q", (1 << 63) - 1),
            (24, "I", 0),
            (28, "I", 4),
            (62, "H", 0),
            (62, "H", 256),
        ],
    )
    def test_check_header_fields(self, k: ModuleType, at: int, code: str, value: int) -> None:
        batch = sealed(k)
        struct.pack_into("<" + code, batch, at, value)
        struct.pack_into("<I", batch, 4, k.crc32c(batch[8:], SEED))
        assert k.check(batch, 0, SEED) == -2

    def test_check_finds_columns_that_do_not_add_up(self, k: ModuleType) -> None:
        merged = k.merge([k.build(**FULL), *with_origins(k, 3)], 0)
        sparse = k.select(merged, [0, 1, 2, 4])
        for batch in (merged, sparse):
            k.reseal(batch, SEED)
            names = list(k.layout(batch))
            places = {"origin": names[0], "index": names[2], "value": names[4], "key": names[7], "list": names[9]}
            places |= {"name": names[11], "hvalue": names[13]} | ({"delta": names[17]} if names[17] else {})
            for name, at in places.items():
                for value in (-1, 1 << 30):
                    bad = bytearray(batch)
                    struct.pack_into("<i", bad, at + (0 if name == "index" else 4), value)
                    struct.pack_into("<I", bad, 4, k.crc32c(bad[8:], SEED))
                    assert k.check(bad, 0, SEED) == -4, (name, value)

    def test_check_refuses_bytes_in_padding_and_in_nulls(self, k: ModuleType) -> None:
        batch = k.build([b"a", None, b"c"])
        where = k.layout(batch)
        null_with_bytes = bytearray(batch)
        null_with_bytes[where[3]] = 0b110
        spare_bit = bytearray(batch)
        spare_bit[where[3]] |= 8
        padding = bytearray(batch)
        padding[-1] = 1
        for bad in (null_with_bytes, spare_bit, padding):
            struct.pack_into("<I", bad, 4, k.crc32c(bad[8:], SEED))
            assert k.check(bad, 0, SEED) == -4
            with pytest.raises(ValueError):
                k.merge([bad], 0)
            with pytest.raises(ValueError):
                k.select(bad, [0])

    def test_check_never_believes_a_count(self, k: ModuleType) -> None:
        batch = sealed(k)
        struct.pack_into("<II", batch, 24, (1 << 32) - 1, (1 << 32) - 1)
        struct.pack_into("<I", batch, 4, k.crc32c(batch[8:], SEED))
        assert k.check(batch, 0, SEED) == -4
        with pytest.raises(ValueError):
            k.rows(batch, 0, 1 << 31)

    # -- walking and finding ------------------------------------------------------------------------------------------

    def test_walk(self, k: ModuleType) -> None:
        a, b, c = sealed(k, 10), sealed(k, 13, **FULL), sealed(k, 30)
        data = bytes(16) + a + b + c + bytes(24)
        ends = [16, 16 + len(a), 16 + len(a) + len(b), 16 + len(a) + len(b) + len(c)]
        want = [(ends[0], len(a), 10, 3, 500), (ends[1], len(b), 13, 4, 99), (ends[2], len(c), 30, 3, 500)]
        for verify in (True, False):
            assert k.walk(data, 16, len(data), SEED, verify) == (want, ends[3], 0)
            assert k.walk(data, 16, ends[3], SEED, verify) == (want, ends[3], 0)
            assert k.walk(data, 16, ends[3] - 8, SEED, verify) == (want[:2], ends[2], -1)
            assert k.walk(data, 0, 16, SEED, verify) == ([], 0, 0)
            assert k.walk(data, 8, 8, SEED, verify) == ([], 8, 0)
        for start, stop in ((-1, 8), (8, 0), (0, len(data) + 1)):
            with pytest.raises(ValueError):
                k.walk(data, start, stop, SEED, True)

    def test_walk_stops_where_it_must(self, k: ModuleType) -> None:
        a, b = sealed(k, 10), sealed(k, 12)
        assert k.walk(a + b, 0, len(a + b), SEED, True)[1:] == (len(a), -5)
        rotten = bytearray(a + sealed(k, 13))
        rotten[-9] ^= 1
        assert k.walk(rotten, 0, len(rotten), SEED, True)[1:] == (len(a), -3)
        assert k.walk(rotten, 0, len(rotten), SEED, False)[1:] == (len(rotten), 0)
        assert k.walk(a + b"junkjunk", 0, len(a) + 8, SEED, False)[1:] == (len(a), -2)

    def test_find(self, k: ModuleType) -> None:
        batch = sealed(k)
        rotten = bytearray(batch)
        rotten[70] ^= 1
        data = bytes(rotten) + b"QRB1QRB1" + bytes(4) + bytes(batch) + bytes(4) + bytes(batch)
        at = len(data) - len(batch)
        assert k.find(data, 0, len(data), SEED) == at
        assert k.find(data, at - 8, len(data), SEED) == at
        assert k.find(data, at + 8, len(data), SEED) == -1
        assert k.find(data, 0, len(data) - 1, SEED) == -1
        far = bytes(1 << 20) + bytes(batch)
        assert k.find(far, 0, len(far), SEED) == 1 << 20
        with pytest.raises(ValueError):
            k.find(data, 8, 0, SEED)

    # -- selecting ----------------------------------------------------------------------------------------------------

    def test_select_keeps_offsets_times_and_span(self, k: ModuleType) -> None:
        batch = sealed(k, **FULL)
        some = k.select(batch, [0, 3])
        k.reseal(some, SEED)
        assert k.check(some, 0, SEED) == len(some)
        assert k.rows(some, 0, 2) == [FULL_ROWS[0], FULL_ROWS[3]]
        assert k.walk(some, 0, len(some), SEED, True)[0] == [(0, len(some), 10, 4, 99)]
        fewer = k.select(some, [1])
        k.reseal(fewer, SEED)
        assert (k.check(fewer, 0, SEED), k.rows(fewer, 0, 1)) == (len(fewer), [FULL_ROWS[3]])

    def test_select_refuses(self, k: ModuleType) -> None:
        batch = sealed(k)
        assert k.select(batch, []) is None
        for keep in ([1, 1], [2, 1], [-1], [3], [0, 3]):
            with pytest.raises(ValueError):
                k.select(batch, keep)

    def test_select_keeps_origins(self, k: ModuleType) -> None:
        some = k.select(k.merge(with_origins(k, 5), 0), [1, 4])
        assert [row[6] for row in k.rows(some, 0, 2)] == [b"o:1", b"o:4"]


class TestStub:
    def test_names_and_parameters_are_those_of_the_stub(self, k: ModuleType) -> None:
        tree = ast.parse(STUB.read_text())
        stub = {node.name: [a.arg for a in node.args.args] for node in tree.body if isinstance(node, ast.FunctionDef)}
        functions = {n for n in dir(k) if not n.startswith("_") and not isinstance(getattr(k, n), type)}
        names = {name for name in pure.__all__ if name in functions} if k is pure else functions
        assert names == set(stub)
        for name, parameters in stub.items():
            signature = inspect.signature(getattr(k, name))
            assert list(signature.parameters) == parameters, name
            defaults = [a for a, p in signature.parameters.items() if p.default is not inspect.Parameter.empty]
            node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
            assert len(defaults) == len(node.args.defaults), name

    @pytest.mark.parametrize("name", ["Routes", "Tails"])
    def test_classes_have_the_methods_of_the_stub(self, k: ModuleType, name: str) -> None:
        tree = ast.parse(STUB.read_text())
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
        methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        made = k.Routes() if name == "Routes" else k.Tails(bytes, 1, 1, 1)
        found = {part for part in dir(made) if not part.startswith("_")}
        only_ours = (
            {"find", "lents", "partition_count", "publish", "publish_at", "publish_lent", "takes", "takes_lent"}
            if k is pure
            else set()
        )  # what the appending calls ask of the twins in Python
        assert found - only_ours == set(methods) - {"__init__"}
        for method, stub in methods.items():
            if method != "__init__" and not stub.decorator_list:
                parameters = list(inspect.signature(getattr(getattr(k, name), method)).parameters)
                assert parameters == [argument.arg for argument in stub.args.args], method

    @pytest.mark.parametrize(("asked", "pure_used"), [("1", True), ("yes", True), ("", None), ("0", None)])
    def test_the_environment_can_force_the_pure_twin(self, asked: str, pure_used: bool | None) -> None:
        code = "from quintet import kernel; from quintet.kernel import pure; print(kernel.NATIVE, kernel.seal is pure.seal)"
        environment = {**os.environ, "QUINTET_PURE": asked}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        built = importlib.util.find_spec("quintet.kernel._native") is not None
        want = (False, True) if pure_used else (built, not built)
        assert run.stdout.split() == [str(word) for word in want]
