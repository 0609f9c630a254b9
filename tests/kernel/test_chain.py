"""Links in both twins of the kernel: their bytes, what they cover, what drops them, and hostile input to both.

The hash is checked against the blake3 package, which shares nothing with the native twin. What a chain is for is
tests/log/test_chain.py's matter.
"""

import random
import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from blake3 import blake3

from quintet.kernel import pure
from tests.kernel.generate import batch_columns, mutated
from tests.kernel.test_kernel import FULL, SEED

BEFORE = bytes(range(32))
KEY = bytes(range(100, 132))
CHAIN = 128
CASES = 400


class TestChain:
    @pytest.mark.parametrize("key", [b"", KEY])
    @pytest.mark.parametrize("columns", [{"values": [b"a"]}, FULL])
    def test_the_link_is_the_end_of_the_batch(self, k: ModuleType, key: bytes, columns: dict[str, Any]) -> None:
        batch = k.build(**columns)
        plain = bytearray(batch)
        k.seal(plain, 10, 500, SEED)
        link = k.chain(batch, 10, 500, SEED, BEFORE, key)
        want = blake3(BEFORE + batch[8:-32], key=key) if key else blake3(BEFORE + batch[8:-32])
        assert (batch[-32:], link) == (want.digest(), want.digest())
        assert struct.unpack_from("<I", batch, 8) == (len(plain) + 32,)
        assert batch[14] == plain[14] | CHAIN
        assert batch[16:-32] == plain[16:]
        assert k.check(batch, 0, SEED) == len(batch)
        assert k.layout(batch)[:-1] == k.layout(plain)[:-1]
        assert k.layout(batch)[-1] == len(batch)
        assert k.rows(batch, 0, len(columns["values"])) == k.rows(plain, 0, len(columns["values"]))

    def test_every_byte_before_the_link_counts(self, k: ModuleType) -> None:
        batch = k.build([b"value"])
        link = k.chain(batch, 1, 2, SEED, BEFORE, b"")
        links = {link}
        for base, time, before, key in (
            (2, 2, BEFORE, b""),
            (1, 3, BEFORE, b""),
            (1, 2, KEY, b""),
            (1, 2, BEFORE, KEY),
        ):
            links.add(k.chain(bytearray(batch), base, time, SEED, before, key))
        assert len(links) == 5
        assert k.chain(bytearray(batch), 1, 2, SEED + 1, BEFORE, b"") == link  # the checksum is not in it

    def test_a_link_is_written_again_in_its_place(self, k: ModuleType) -> None:
        batch = k.build(**FULL)
        k.chain(batch, 3, 4, SEED, KEY, KEY)
        again = bytearray(batch)
        fresh = k.build(**FULL)
        assert k.chain(again, 10, 500, SEED, BEFORE, b"") == k.chain(fresh, 10, 500, SEED, BEFORE, b"")
        assert again == fresh

    def test_what_is_made_of_it_has_none(self, k: ModuleType) -> None:
        batch, plain = k.build(**FULL), k.build(**FULL)
        k.chain(batch, 10, 500, SEED, BEFORE, b"")
        k.seal(plain, 10, 500, SEED)
        assert k.merge([batch, batch], 7) == k.merge([plain, plain], 7)
        assert k.select(batch, [0, 2]) == k.select(plain, [0, 2])

    def test_walks_finds_and_gathers(self, k: ModuleType) -> None:
        data, link = b"", BEFORE
        for number in range(3):
            batch = k.build(**FULL)
            link = k.chain(batch, 4 * number, 500, SEED, link, b"")
            data += bytes(batch)
        entries, end, reason = k.walk(data, 0, len(data), SEED, True)
        assert ([entry[2] for entry in entries], end, reason) == ([0, 4, 8], len(data), 0)
        assert k.find(data, 8, len(data), SEED) == len(data) // 3
        count, buffers, position, following, reason = k.gather(data, 0, len(data), SEED, 0, 12, 1000, 1 << 20, 63, 0)
        assert (count, position, following, reason) == (12, len(data), 12, 0)
        assert buffers[4] == b"accc" * 3

    @pytest.mark.parametrize("key", [b"", KEY])
    def test_follows_links(self, k: ModuleType, key: bytes) -> None:
        links, places, data = [BEFORE], [0], bytearray()
        for number in range(5):
            batch = k.build([b"v%d" % number])
            links.append(k.chain(batch, number, 500, SEED, links[-1], key))
            data += batch
            places.append(len(data))
        end = len(data)
        assert k.follow(data, 0, end, BEFORE, key) == (end, links[-1])
        assert k.follow(data + bytes(64), 0, end + 64, BEFORE, key) == (end, links[-1])
        assert k.follow(data, places[2], places[4], links[2], key) == (places[4], links[4])
        assert k.follow(data, 0, end - 8, BEFORE, key) == (places[4], links[4])
        assert k.follow(data, 0, end, KEY, key) == (0, KEY)
        assert k.follow(data, 0, end, BEFORE, b"" if key else KEY) == (0, BEFORE)
        for at in (places[3] + 8 + 12, places[3] - 1, places[3] - 40):
            wrong = bytearray(data)
            wrong[at] ^= 1
            stopped = places[3] if at > places[3] else places[2]
            assert k.follow(wrong, 0, end, BEFORE, key)[0] == stopped
        plain = k.build([b"plain"])
        k.seal(plain, 5, 500, SEED)
        assert k.follow(bytes(data + plain), 0, end + len(plain), BEFORE, key) == (end, links[-1])
        for start, stop, before in ((-1, 0, BEFORE), (8, 0, BEFORE), (0, end + 1, BEFORE), (0, end, b"short")):
            with pytest.raises(ValueError):
                k.follow(data, start, stop, before, key)

    def test_refusals_change_nothing(self, k: ModuleType) -> None:
        batch = k.build([b"a"])
        kept = bytes(batch)
        for arguments in (
            (batch, -1, 0, 0, BEFORE, b""),
            (batch, (1 << 63) - 1, 0, 0, BEFORE, b""),
            (batch, 0, 0, 0, BEFORE[1:], b""),
            (batch, 0, 0, 0, BEFORE, b"short"),
        ):
            with pytest.raises(ValueError):
                k.chain(*arguments)
            assert batch == kept
        with pytest.raises(TypeError):
            k.chain(kept, 0, 0, 0, BEFORE, b"")
        large = bytearray(k.build([bytes((64 << 20) - 96)]))
        size = len(large)
        with pytest.raises(ValueError, match="64 MiB"):
            k.chain(large, 0, 0, 0, BEFORE, b"")
        assert len(large) == size

    def test_a_link_that_is_cut_off_does_not_add_up(self, k: ModuleType) -> None:
        batch = k.build([b"a"])
        struct.pack_into("<H", batch, 14, CHAIN)
        k_crc = k.crc32c(batch[8:], SEED)
        struct.pack_into("<I", batch, 4, k_crc)
        assert k.check(batch, 0, SEED) == -4


def outcome(k: ModuleType, batch: bytes, arguments: Sequence[Any]) -> tuple[str, bytes]:
    given = bytearray(batch)
    try:
        return k.chain(given, *arguments).hex(), bytes(given)
    except ValueError:
        return "refused", bytes(given)


def test_twins_agree_on_hostile_batches() -> None:
    native = pytest.importorskip("quintet.kernel._native")
    r = random.Random(128)
    refused = 0
    for _ in range(CASES):
        batch = bytes(pure.build(**batch_columns(r)))
        if r.random() < 0.5:
            chained = bytearray(batch)
            pure.chain(chained, 5, 6, 7, BEFORE, b"")
            batch = bytes(chained)
        if r.random() < 0.7:
            batch = mutated(r, batch)
        arguments = (
            r.choice((0, 9, 1 << 62)),
            r.getrandbits(40),
            r.getrandbits(32),
            r.randbytes(32),
            r.choice((b"", KEY)),
        )
        first, second = outcome(native, batch, arguments), outcome(pure, batch, arguments)
        assert first == second
        assert native.follow(batch, 0, len(batch), BEFORE, b"") == pure.follow(batch, 0, len(batch), BEFORE, b"")
        refused += first[0] == "refused"
    assert 0 < refused < CASES
