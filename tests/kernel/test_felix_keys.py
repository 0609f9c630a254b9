"""Keys of Felix batches, on both twins: where they stand, which batches they make, and how they come back."""

import struct
from types import ModuleType

import pytest

from tests.kernel.felix_frames import FRAME_MAX, KNOWN, NOW, ORIGIN, acked, frame, target, unacked

DEMO = target()
EVENT = bytes.fromhex("464c5831000100040000000d000000010000000568656c6c6f")


class TestKeys:
    def test_a_key_stands_before_the_tenant_and_is_every_record_s(self, k: ModuleType) -> None:
        """The bytes are those of the published conformance vectors."""
        body = bytes.fromhex("00026b3700027431000764656661756c74000464656d6f000000010000000568656c6c6f")
        acked = bytes.fromhex("000000000000000702") + body
        for flag in (0x0040, 0x0100):
            assert k.felix_publish(DEMO, [b"hello"], -1, 0, b"k7", flag) == frame(0x0001 | flag, body)
            assert k.felix_publish(DEMO, [b"hello"], 7, 2, b"k7", flag) == frame(0x0009 | flag, acked)
            data = frame(0x0001 | flag, body) * 2 + frame(0x0009 | flag, acked) + unacked(DEMO, b"x")
            items, consumed, fatal = k.felix_split(data, 0, FRAME_MAX, 0x0009 | flag, True, ORIGIN, NOW, flag)
            assert (consumed, fatal) == (len(data), 0)
            assert [(item[1], *item[3:]) for item in items] == [
                (DEMO, 2, -1, 0, b"k7"), (DEMO, 1, 7, 2, b"k7"), (DEMO, 1, -1, 0),
            ]  # fmt: skip
            rows = [row[2:4] for item in items for row in k.rows(item[2], 0, item[3])]
            assert rows == [(b"k7", b"hello")] * 3 + [(None, b"x")]

    def test_other_keys_are_other_batches(self, k: ModuleType) -> None:
        data = b"".join(unacked(DEMO, b"v", key=key) for key in (b"a", b"a", b"b", b"", None, None))
        items = k.felix_split(data, 0, FRAME_MAX, KNOWN, True, ORIGIN, NOW, 0x0100)[0]
        assert [(item[3], *item[6:]) for item in items] == [(2, b"a"), (1, b"b"), (1, b""), (2,)]

    def test_a_key_that_makes_a_batch_too_large_is_refused(self, k: ModuleType) -> None:
        """It is stored with every record: 64 KiB a thousand times would be 64 MiB of one frame of 70 KiB."""
        data = acked(DEMO, 5, 1, *[b""] * 513, key=bytes(65_535))
        assert k.felix_split(data, 0, FRAME_MAX, KNOWN, True, ORIGIN, NOW, 0x0100)[0] == [(2, 7, 5)]
        fits = acked(DEMO, 5, 1, *[b""] * 512, key=bytes(65_535))
        assert k.felix_split(fits, 0, FRAME_MAX, KNOWN, True, ORIGIN, NOW, 0x0100)[0][0][3] == 512

    @pytest.mark.parametrize("payload", [b"", b"\0", b"\0\2k", b"\0\2k7", b"\0\2k7" + DEMO[:-1]])
    def test_a_key_that_ends_early(self, k: ModuleType, payload: bytes) -> None:
        items = k.felix_split(frame(0x0041, payload), 0, FRAME_MAX, 0x0041, True, ORIGIN, NOW, 0x0040)[0]
        assert items == [(2, 1, -1)]

    def test_flags_nobody_knows_still_say_whose_request_it_is(self, k: ModuleType) -> None:
        data = frame(0x8009, struct.pack(">Q", 7) + b"?") + frame(0x8009, b"short") + frame(0x8001, bytes(9))
        items = k.felix_split(data, 0, FRAME_MAX, KNOWN, True, ORIGIN, NOW)[0]
        assert items == [(3, 0x8009, 7), (3, 0x8009, -1), (3, 0x8001, -1)]

    def test_keys_are_delivered_to_those_who_know_them(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b", b"c"], keys=[b"k", None, b""])
        k.place(batch, 100, NOW)
        data, count, omitted = k.felix_deliver(batch, 0, 3, NOW, True, 0, FRAME_MAX, True)
        body = b"\0\0\0\2k\0\0\0\1a" + b"\0\0\0\0\0\0\0\1b" + b"\0\0\0\1\0\0\0\1c"
        assert data == frame(0x0124, struct.pack(">QI", 100, 3) + body) and (count, omitted) == (3, [])
        assert k.felix_received(data, 0, FRAME_MAX)[0] == [(4, -1, 100, [b"a", b"b", b"c"], [b"k", None, b""])]
        plain = k.felix_deliver(k.build([b"hello"]), 0, 1, NOW, False, 0, FRAME_MAX, True)
        assert plain == (EVENT, 1, [])
