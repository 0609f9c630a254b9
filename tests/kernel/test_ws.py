"""kernel.ws_split on both twins: frames of every size, what RFC 6455 forbids, every cut, and the twins against each other."""

import importlib.util
import random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.kernel import pure
from tests.wire.websocket import frame

TWINS = [pure]
if importlib.util.find_spec("quintet.kernel._native") is not None:
    TWINS.append(importlib.import_module("quintet.kernel._native"))

MAX = 1 << 20


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])
class TestSplit:
    @pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8, 9, 125, 126, 127, 65_535, 65_536, 200_000])
    def test_every_size_comes_out_as_it_went_in(self, twin: ModuleType, size: int) -> None:
        payload = random.Random(size).randbytes(size)
        data = frame(payload) + frame(payload, 2) + frame(payload, 0, last=False, mask=bytes(4))
        assert twin.ws_split(data, 0, MAX, 0) == ([payload, (2, True, payload), (0, False, payload)], len(data), 0)

    def test_every_cut_waits(self, twin: ModuleType) -> None:
        first, second = frame(b"hello"), frame(b"x" * 300, 9 - 7)
        for end in range(len(first), len(first + second)):
            assert twin.ws_split((first + second)[:end], 0, MAX, 0) == ([b"hello"], len(first), 0)

    def test_so_many_frames(self, twin: ModuleType) -> None:
        data = frame(b"a") * 5
        assert twin.ws_split(data, 0, MAX, 2) == ([b"a", b"a"], 14, 0)
        assert twin.ws_split(memoryview(data), 14, MAX, 0) == ([b"a"] * 3, 35, 0)

    @pytest.mark.parametrize(
        "data",
        [
            *(frame(b"", opcode) for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)),
            *(frame(b"x", reserved=bit) for bit in (0x10, 0x20, 0x40)),
            b"\x81\x05hello",  # no mask
            frame(b"", 9, last=False),
            frame(b"x" * 126, 8),
            b"\x89\xfe",
        ],
    )
    def test_what_is_forbidden_is_judged_by_its_head(self, twin: ModuleType, data: bytes) -> None:
        good = frame(b"good")
        assert twin.ws_split(good + data[:2], 0, MAX, 0) == ([b"good"], len(good), 1)

    def test_a_length_is_judged_before_its_payload(self, twin: ModuleType) -> None:
        assert twin.ws_split(b"\x81\xfe\x04\x01", 0, 1024, 0) == ([], 0, 2)
        assert twin.ws_split(b"\x81\xfe\x04\x00", 0, 1024, 0) == ([], 0, 0)
        for length in (MAX + 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1):
            assert twin.ws_split(b"\x82\xff" + length.to_bytes(8, "big"), 0, MAX, 0) == ([], 0, 2)

    def test_arguments_that_make_no_sense(self, twin: ModuleType) -> None:
        for arguments in (
            (b"", 1, MAX, 0),
            (b"", -1, MAX, 0),
            (b"", 0, 0, 0),
            (b"", 0, (1 << 30) + 1, 0),
            (b"", 0, MAX, -1),
        ):
            with pytest.raises(ValueError, match="must"):
                twin.ws_split(*arguments)


@pytest.mark.skipif(len(TWINS) < 2, reason="the native kernel is not built")
@given(
    pieces=st.lists(st.binary(max_size=40) | st.builds(frame, st.binary(max_size=200), st.integers(0, 15)), max_size=6),
    most=st.integers(0, 3),
    limit=st.sampled_from([1, 100, 1000]),
)
def test_the_twins_agree(pieces: list[bytes], most: int, limit: int) -> None:
    data = b"".join(pieces)
    assert TWINS[0].ws_split(data, 0, limit, most) == TWINS[1].ws_split(data, 0, limit, most)
