"""Native and pure must be one kernel: byte-identical results, or both refuse, on valid, mutated and random input.

The seed is fixed and named in a failure. `make campaign` sees more (QUINTET_TEST_LONG), and QUINTET_DIFF_CASES multiplies either.
"""

import os
import random
import struct
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.kernel import pure
from tests.kernel import generate
from tests.kernel.frames import native_twin

LONG = bool(os.environ.get("QUINTET_TEST_LONG"))
TIMES = int(os.environ.get("QUINTET_DIFF_CASES", "1"))
CASES = (10_000 if LONG else 2_000) * TIMES
EXAMPLES = (2_000 if LONG else 300) * TIMES
SEED = 20261115
NOW = 100
MAX_FRAME = 1 << 20
REFUSED = "refused"


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


def same(native: ModuleType, name: str, *args: Any, **kwargs: Any) -> Any:
    """The result both twins give."""
    results = []
    for twin in (native, pure):
        try:
            results.append(getattr(twin, name)(*args, **kwargs))
        except (ValueError, OverflowError):
            results.append(REFUSED)
    assert results[0] == results[1], f"{name}{args} {kwargs}: native {results[0]!r}, pure {results[1]!r}"
    assert type(results[0]) is type(results[1])
    return results[0]


def sealed_alike(native: ModuleType, batch: bytearray, offset: int, seed: int) -> bytearray:
    other = bytearray(batch)
    native.seal(batch, offset, 5, seed)
    pure.seal(other, offset, 5, seed)
    assert batch == other
    return batch


def read_alike(native: ModuleType, data: bytes, r: random.Random) -> None:
    """Everything that reads a batch, on bytes that may be one."""
    first = r.randrange(3)
    last = first + r.randrange(4)
    same(native, "layout", data, r.choice((0, 0, 0, 8)))
    same(native, "rows", data, first, last)
    same(native, "select", data, sorted(r.sample(range(4), r.randrange(4))))
    same(native, "merge", [data, data], 9)
    for version in (1, 2):
        ids = r.randbytes(8 * r.randrange(5))
        tag = r.choice((1, (1 << 64) - 2))
        same(native, "blip_deliver", version, b"t", r.randrange(2), data, first, last, tag, ids, NOW)


def valid_batch(native: ModuleType, r: random.Random) -> bytearray:
    built: bytearray = same(native, "build", **generate.batch_columns(r))
    if r.random() < 0.4:
        parts = [built, *(pure.build(**generate.batch_columns(r)) for _ in range(r.randrange(3)))]
        merged = same(native, "merge", parts, r.getrandbits(40))
        built = built if merged == REFUSED else merged
    sealed_alike(native, built, r.randrange(1 << 40), 7)
    if r.random() < 0.3:
        n = struct.unpack_from("<I", built, 24)[0]
        fewer: bytearray = same(native, "select", built, sorted(r.sample(range(n), r.randrange(1, n + 1))))
        native.reseal(fewer, 7)
        built = fewer
    if r.random() < 0.3:
        native.chain(built, r.randrange(1 << 40), 5, 7, r.randbytes(32), b"")
    return built


def batches(native: ModuleType, r: random.Random) -> None:
    batch = valid_batch(native, r)
    n = struct.unpack_from("<I", batch, 24)[0]
    assert same(native, "check", batch, 0, 7) == len(batch)
    assert same(native, "rows", batch, 0, n) != REFUSED
    read_alike(native, bytes(batch), r)
    wrong = bytearray(generate.mutated(r, bytes(batch)))
    read_alike(native, bytes(wrong), r)
    same(native, "check", wrong, 0, 7)
    if len(wrong) >= 8:
        # With its checksum made right, only the columns can give a mutated batch away.
        length = struct.unpack_from("<I", wrong, 8)[0] if len(wrong) >= 12 else 0
        struct.pack_into("<I", wrong, 4, pure.crc32c(bytes(wrong[8:length]), 7))
    if same(native, "check", wrong, 0, 7) > 0:
        read_alike(native, bytes(wrong), r)


def segments(native: ModuleType, r: random.Random) -> None:
    data = b"".join(bytes(valid_batch(native, r)) for _ in range(r.randrange(4))) + bytes(8 * r.randrange(9))
    for text in (data, generate.mutated(r, data)):
        start = r.randrange(len(text) + 1) & ~7
        stop = r.randrange(start, len(text) + 1)
        for a, b in ((0, len(text)), (start, stop)):
            same(native, "walk", text, a, b, 7, True)
            same(native, "walk", text, a, b, 7, False)
            same(native, "find", text, a, b, 7)


def reads(native: ModuleType, r: random.Random) -> None:
    data = b"".join(generate.frames(r, r.randrange(1, 40)))
    for text in (data, generate.mutated(r, data), data[r.randrange(len(data)) :]):
        for version in (1, 2):
            start = r.choice((0, 0, r.randrange(len(text) + 1)))
            same(native, "blip_split", text, start, version, r.choice((MAX_FRAME, MAX_FRAME, MAX_FRAME, 60)), b"o", NOW)
        same(native, "blip_received", text, 0, MAX_FRAME)


def set_reads(native: ModuleType, r: random.Random) -> None:
    data = b"".join(generate.frames(r, r.randrange(1, 40), sets=True))
    for text in (data, generate.mutated(r, data)):
        same(native, "blip_split", text, 0, 3, MAX_FRAME, b"o", NOW, generate.heads(r))
        same(native, "blip_split", text, 0, 3, MAX_FRAME, b"o", NOW)


def noise(native: ModuleType, r: random.Random) -> None:
    data = r.randbytes(r.randrange(200))
    if r.random() < 0.5:
        data = b"QRB1" + data
    read_alike(native, data, r)
    same(native, "check", data, 0, 7)
    same(native, "crc32c", data, r.getrandbits(32))
    for version in (1, 2):
        same(native, "blip_split", data, 0, version, MAX_FRAME, b"", NOW)
    same(native, "blip_received", data, 0, MAX_FRAME)
    topic, values = r.choice(generate.TOPICS), [generate.blob(r) for _ in range(r.randrange(4))]
    same(native, "blip_publish", topic, r.randrange(3), values, generate.cid(r), r.choice((0, 1, 0xFFFFFFFF)))


@pytest.mark.parametrize("kind", [batches, segments, reads, set_reads, noise])
def test_twins_agree_on_seeded_input(native: ModuleType, kind: Callable[[ModuleType, random.Random], None]) -> None:
    for number in range(CASES):
        try:
            kind(native, random.Random(SEED + number))
        except AssertionError as error:
            raise AssertionError(f"{kind.__name__} with seed {SEED + number}: {error}") from error


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.binary(max_size=300), version=st.sampled_from([1, 2]), start=st.integers(-1, 301))
def test_twins_agree_on_any_read(native: ModuleType, data: bytes, version: int, start: int) -> None:
    same(native, "blip_split", data, start, version, MAX_FRAME, b"o", NOW)
    same(native, "blip_received", data, start, MAX_FRAME)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    fields=st.tuples(
        *(st.sampled_from([64, 72, 80, 88, 96, 104, 128]), st.integers(0, 7), st.integers(0, 127)),
        *(st.integers(0, 9), st.integers(0, 9), st.integers(0, 4)),
    ),
    columns=st.lists(st.integers(-1, 9), max_size=40),
)
def test_twins_agree_on_any_columns(native: ModuleType, fields: tuple[int, ...], columns: list[int]) -> None:
    length, flags, bits, count, span, origins = fields
    head = struct.pack("<4sIIHHQIIqqQIHH", b"QRB1", 0, length, flags, bits, 0, count, span, 0, 0, 0, 0, 0, origins)
    data = head + struct.pack(f"<{len(columns)}i", *columns)
    read_alike(native, data, random.Random(length))
    right = bytearray(data)
    struct.pack_into("<I", right, 4, pure.crc32c(data[8:length], 7))
    same(native, "check", right, 0, 7)


def test_a_difference_would_be_seen(native: ModuleType) -> None:
    class Wrong:
        """A twin with one planted fault."""

        @staticmethod
        def crc32c(data: bytes, value: int = 0) -> int:
            return int(native.crc32c(data, value)) ^ (data == b"\x07")

    assert same(Wrong, "crc32c", b"\x08") == pure.crc32c(b"\x08")  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        same(Wrong, "crc32c", b"\x07")  # type: ignore[arg-type]
