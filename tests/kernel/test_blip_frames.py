"""The BlipMQ functions of both twins: the document's hex frames, grouping, every error number, every cut of a read.

One class, run for each twin. Random input is test_differential.py's matter.
"""

import struct
from types import ModuleType
from typing import Any

import pytest

from tests.kernel.frames import MAX_FRAME, MAX_U64, NOW, VECTORS, publish, split, values_of
from tests.wire.blipmq import frame, u64


def ids_of(item: Any) -> list[int]:
    return list(struct.unpack(f"<{len(item[4]) // 8}Q", item[4]))


def payload_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["hex"])[13:]


def expiries_of(k: ModuleType, batch: bytearray) -> list[int]:
    return [row[5] for row in k.rows(batch, 0, struct.unpack_from("<I", batch, 24)[0])]


def by_name(name: str) -> dict[str, Any]:
    return next(vector for vector in VECTORS if vector["name"] == name)


class TestBlip:
    # -- the document -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", ["hello", "auth", "subscribe"])
    def test_document_frames_passed_on(self, k: ModuleType, name: str) -> None:
        vector = by_name(name)
        data = bytes.fromhex(vector["hex"])
        assert split(k, data) == ([(vector["type"], vector["correlation_id"], payload_of(vector))], len(data), 0)

    def test_document_hello_auth_subscribe_mean_what_they_say(self) -> None:
        assert payload_of(by_name("hello")) == struct.pack(">H", by_name("hello")["meaning"]["protocol_version"])
        key = by_name("auth")["meaning"]["api_key"].encode()
        assert payload_of(by_name("auth")) == struct.pack(">H", len(key)) + key
        meaning = by_name("subscribe")["meaning"]
        topic = meaning["topic"].encode()
        assert payload_of(by_name("subscribe")) == struct.pack(">H", len(topic)) + topic + bytes((meaning["qos"],))

    def test_document_publish(self, k: ModuleType) -> None:
        vector = by_name("publish")
        data, meaning = bytes.fromhex(vector["hex"]), vector["meaning"]
        topic, message = meaning["topic"].encode(), meaning["message"].encode()
        items, consumed, fatal = split(k, data)
        assert (len(items), consumed, fatal) == (1, len(data), 0)
        assert items[0][:3] == (3, meaning["qos"], topic)
        assert (values_of(k, items[0][3]), ids_of(items[0])) == ([message], [vector["correlation_id"]])
        assert k.blip_publish(topic, meaning["qos"], [message], vector["correlation_id"], 0) == data
        assert k.blip_received(data, 0, MAX_FRAME)[0] == [(3, topic, [(4, 1, message)])]
        assert k.blip_deliver(1, topic, 1, items[0][3], 0, 1, 4, b"", NOW) == (data, 1)

    def test_document_ack(self, k: ModuleType) -> None:
        vector = by_name("ack")
        data = bytes.fromhex(vector["hex"])
        subscription = vector["meaning"]["subscription_id"]
        assert k.blip_received(data, 0, MAX_FRAME) == ([(5, 3, u64(subscription))], len(data), 0)
        assert split(k, data) == ([(5, subscription, [(3, 1)])], len(data), 0)

    # -- grouping -----------------------------------------------------------------------------------------------------

    def test_publishes_are_grouped_by_topic_in_order_of_first_sight(self, k: ModuleType) -> None:
        wire = [(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"a", b""), (b"b" * 40, b"5"), (b"b", b"6" * 300)]
        data = b"".join(publish(topic, value, cid=i) for i, (topic, value) in enumerate(wire))
        items, consumed, fatal = split(k, data)
        assert (consumed, fatal) == (len(data), 0)
        got = [(item[2], values_of(k, item[3]), ids_of(item)) for item in items]
        assert got == [
            (b"b", [b"1", b"3", b"6" * 300], [0, 2, 5]),
            (b"a", [b"2", b""], [1, 3]),
            (b"b" * 40, [b"5"], [4]),
        ]
        assert all(type(item[3]) is bytearray and type(item[4]) is bytes and type(item[2]) is bytes for item in items)

    def test_other_items_part_the_groups(self, k: ModuleType) -> None:
        data = publish(b"a", b"1") + frame(7, 9) + publish(b"a", b"2") + publish(b"", b"") + publish(b"a", b"3")
        items = split(k, data)[0]
        assert [item[0] for item in items] == [3, 7, 3, 0, 3]

    def test_a_change_of_qos_starts_a_group_and_flags_it(self, k: ModuleType) -> None:
        data = b"".join(publish(b"a", b"%d" % i, qos=qos) for i, qos in enumerate((0, 0, 1, 0)))
        items = split(k, data)[0]
        assert [(item[1], values_of(k, item[3])) for item in items] == [(0, [b"0", b"1"]), (1, [b"2"]), (0, [b"3"])]
        assert [struct.unpack_from("<H", item[3], 12)[0] for item in items] == [1, 0, 1]

    def test_batches_of_groups_are_what_build_makes(self, k: ModuleType) -> None:
        for sizes in ([0], [16] * 50, [5] * 3 + [0] * 9 + [17, 33, 65, 129, 1000], list(range(140))):
            values = [bytes((i & 255,)) * size for i, size in enumerate(sizes)]
            for topic in (b"t", b"t" * 13, b"t" * 14, b"t" * 255):
                items = split(k, k.blip_publish(topic, 1, values, 7, 0))[0]
                assert len(items) == 1
                assert items[0][3] == k.build(values, origin=b"blipmq:c")
                assert ids_of(items[0]) == list(range(7, 7 + len(values)))

    def test_groups_are_bounded(self, k: ModuleType) -> None:
        value = bytes(12 * 1024 * 1024)
        data = publish(b"big", value) * 3
        items, consumed, fatal = split(k, data)
        assert [len(ids_of(item)) for item in items] == [2, 1]
        assert (consumed, fatal) == (len(data), 0)

    def test_time_to_live(self, k: ModuleType) -> None:
        data = publish(b"a", b"1") + publish(b"a", b"2", ttl_ms=250) + publish(b"b", b"3")
        items = split(k, data, version=2)[0]
        assert [expiries_of(k, item[3]) for item in items] == [[0, NOW + 250_000], [0]]
        assert k.blip_publish(b"a", 1, [b"2"], 1, 250) == publish(b"a", b"2", ttl_ms=250)
        longest = publish(b"a", b"", qos=0, ttl_ms=0xFFFFFFFF)
        assert expiries_of(k, split(k, longest, version=2)[0][0][3]) == [NOW + 0xFFFFFFFF * 1000]

    # -- acks and polls -----------------------------------------------------------------------------------------------

    def test_runs_of_acks_become_ranges(self, k: ModuleType) -> None:
        tags = [(1, 5), (1, 6), (1, 7), (1, 9), (1, 8), (2, 1), (1, MAX_U64), (1, 0)]
        data = b"".join(frame(5, tag, u64(subscription)) for subscription, tag in tags)
        assert split(k, data)[0] == [
            (5, 1, [(5, 3), (9, 1), (8, 1)]),
            (5, 2, [(1, 1)]),
            (5, 1, [(MAX_U64, 1), (0, 1)]),
        ]

    def test_runs_of_polls_become_ids(self, k: ModuleType) -> None:
        data = b"".join(frame(9, cid, u64(subscription)) for subscription, cid in [(1, 5), (1, 5), (2, 6), (1, 7)])
        assert split(k, data)[0] == [(9, 1, [5, 5]), (9, 2, [6]), (9, 1, [7])]
        data = frame(9, 1, u64(3)) + frame(5, 2, u64(3)) + frame(9, 3, u64(3))
        assert split(k, data)[0] == [(9, 3, [1]), (5, 3, [(2, 1)]), (9, 3, [3])]

    # -- errors -------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("version", "kind", "payload", "error"),
        [
            (1, 3, b"", 1),
            (1, 3, b"\x01\x00", 1),
            (1, 3, b"\x01\x00\x02a", 1),
            (1, 3, b"\x01\x00\x02\xff\xfe", 1),
            (1, 3, b"\x07\x00\x02\xc3(", 1),
            (1, 3, b"\x01\x00\x03\xed\xa0\x80", 1),
            (2, 3, b"\x81\x00\x00\x00\x05", 1),
            (2, 3, b"\x81\x00\x00\x00\x05\x00", 1),
            (2, 3, b"\x81\x00\x00\x00\x05\x00\x01", 1),
            (1, 3, b"\x01\x00\x00", 2),
            (1, 3, b"\x09\x00\x00hi", 2),
            (2, 3, b"\x80\x00\x00\x00\x05\x00\x00", 2),
            (1, 3, b"\x02\x00\x01a", 3),
            (1, 3, b"\x80\x00\x01a", 3),
            (1, 3, b"\x09\x00\x02a\x00", 3),
            (2, 3, b"\x02\x00\x01a", 3),
            (2, 3, b"\x03\x00\x01a", 3),
            (2, 3, b"\x41\x00\x01a", 3),
            (2, 3, b"\x84\x00\x00\x00\x05\x00\x01a", 3),
            (1, 3, b"\x01\x00\x02a\x00", 4),
            (1, 3, b"\x01\x01\x00" + b"a" * 255 + b"\x00", 4),
            (1, 3, b"\x01\x01\x00" + b"a" * 256, 5),
            (1, 3, b"\x01\xff\xff" + b"a" * 65535, 5),
            (1, 5, b"", 6),
            (1, 5, bytes(7), 6),
            (1, 5, bytes(9), 6),
            (1, 9, b"", 7),
            (1, 9, bytes(9), 7),
            (1, 5, bytes(8), 8),
            (2, 9, bytes(8), 8),
        ],
    )
    def test_errors(self, k: ModuleType, version: int, kind: int, payload: bytes, error: int) -> None:
        bad = frame(kind, 77, payload)
        assert split(k, bad, version) == ([(0, 77, error)], len(bad), 0)
        items, _, fatal = split(k, publish(b"a", b"1") + bad + publish(b"a", b"2"), version)
        assert ([item[0] for item in items], fatal) == ([3, 0, 3], 0)
        assert items[1] == (0, 77, error)

    def test_a_topic_of_255_bytes_is_fine(self, k: ModuleType) -> None:
        assert split(k, publish(b"a" * 255, b""))[0][0][2] == b"a" * 255
        assert split(k, publish("ß€😀".encode(), b""))[0][0][2] == "ß€😀".encode()

    @pytest.mark.parametrize(
        ("data", "fatal"),
        [
            (bytes(4), 1),
            (struct.pack(">I", 8), 1),
            (struct.pack(">IB", 8, 7) + bytes(7), 1),
            (struct.pack(">I", MAX_FRAME + 1), 2),
            (b"\xff" * 4, 2),
            (struct.pack(">IB", 9, 0), 3),
            (struct.pack(">IB", 9, 10), 3),
            (struct.pack(">IB", 9, 11) + bytes(8), 3),
            (struct.pack(">IB", MAX_FRAME, 255), 3),
        ],
    )
    def test_fatal(self, k: ModuleType, data: bytes, fatal: int) -> None:
        good = publish(b"a", b"1") + frame(7, 5)
        items, consumed, got = split(k, good + data)
        assert ([item[0] for item in items], consumed, got) == ([3, 7], len(good), fatal)

    def test_deliver_is_known_in_version_2_only(self, k: ModuleType) -> None:
        data = frame(10, 3, b"xyz")
        assert split(k, data, 1) == ([], 0, 3)
        assert split(k, data, 2) == ([(10, 3, b"xyz")], len(data), 0)
        assert split(k, frame(11, 3), 2) == ([], 0, 3)

    def test_pong_and_nack_are_passed_on(self, k: ModuleType) -> None:
        data = frame(8, 1) + frame(6, 2, b"\x01\x90\x00\x00")
        for version in (1, 2):
            assert split(k, data, version)[0] == [(8, 1, b""), (6, 2, b"\x01\x90\x00\x00")]

    def test_hello_and_auth_end_the_splitting(self, k: ModuleType) -> None:
        for kind in (1, 2):
            first = publish(b"a", b"1") + frame(kind, 4, b"\x00\x02")
            items, consumed, fatal = split(k, first + frame(99, 0))
            assert ([item[0] for item in items], consumed, fatal) == ([3, kind], len(first), 0)

    def test_max_frame_is_the_greatest_length(self, k: ModuleType) -> None:
        data = publish(b"a", b"x" * 83)
        assert len(data) - 4 == 96
        assert split(k, data, max_frame=96)[1:] == (len(data), 0)
        assert split(k, data, max_frame=95)[1:] == (0, 2)

    def test_every_cut_gives_the_same(self, k: ModuleType) -> None:
        data = (
            publish(b"a", b"12345")
            + publish(b"a", b"", qos=0, ttl_ms=0)
            + frame(5, 1, u64(2))
            + frame(9, 1, u64(2))
            + publish(b"", b"")
            + frame(7, 3)
        )
        frames = [len(split(k, data[:cut], 2)[0]) for cut in range(len(data) + 1)]
        assert frames == sorted(frames)
        for cut in range(len(data) + 1):
            _, consumed, fatal = split(k, data[:cut], 2)
            assert consumed <= cut and not fatal
            rest = k.blip_split(data, consumed, 2, MAX_FRAME, b"", NOW)
            assert rest[1:] == (len(data), 0)

    def test_split_refuses_bad_arguments(self, k: ModuleType) -> None:
        good: tuple[Any, ...] = (b"", 0, 1, MAX_FRAME, b"", NOW)
        assert k.blip_split(*good) == ([], 0, 0)
        for at, value in ((1, -1), (1, 1), (2, 0), (2, 4), (3, 8), (3, 1 << 26), (4, bytes(65536)), (5, -1)):
            with pytest.raises(ValueError):
                k.blip_split(*good[:at], value, *good[at + 1 :])

    # -- deliveries ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 33, 64, 100, 129, 5000])
    def test_deliver_version_1(self, k: ModuleType, size: int) -> None:
        values = [bytes((i,)) * size for i in range(20)]
        batch = k.build(values)
        want = b"".join(publish(b"demo", value, cid=100 + i) for i, value in enumerate(values[3:]))
        assert k.blip_deliver(1, b"demo", 1, batch, 3, 20, 100, b"", NOW) == (want, 17)
        ids = struct.pack("<20Q", *range(900, 920))
        want = b"".join(publish(b"demo", value, qos=0, cid=900 + i) for i, value in enumerate(values))
        assert k.blip_deliver(1, b"demo", 0, batch, 0, 20, 1, ids, NOW) == (want, 20)

    @pytest.mark.parametrize("topic", [b"", b"t", b"t" * 16, b"t" * 120, b"t" * 255])
    def test_deliver_version_2(self, k: ModuleType, topic: bytes) -> None:
        tail = struct.pack(">H", len(topic)) + topic
        batch = k.build([b"a", None, b"cc"])
        for qos in (0, 1):
            tags = [5, 6, 7] if qos else [0, 0, 0]
            want = b"".join(
                frame(10, tag, bytes((qos,)) + u64(tag) + tail + value)
                for tag, value in zip(tags, [b"a", b"", b"cc"], strict=True)
            )
            assert k.blip_deliver(2, topic, qos, batch, 0, 3, 5, b"", NOW) == (want, 3)

    def test_deliver_leaves_out_what_expired(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b", b"c", b"d"], expiries=[0, NOW, NOW + 1, NOW - 1])
        want = publish(b"t", b"a", cid=5) + publish(b"t", b"c", cid=7)
        assert k.blip_deliver(1, b"t", 1, batch, 0, 4, 5, b"", NOW) == (want, 2)
        ids = struct.pack("<2Q", 8, 9)
        want = publish(b"t", b"a", qos=0, cid=8) + publish(b"t", b"c", qos=0, cid=9)
        assert k.blip_deliver(1, b"t", 0, batch, 0, 4, 5, ids, NOW) == (want, 2)

    def test_deliver_tags_follow_offsets(self, k: ModuleType) -> None:
        sparse = k.select(k.build([b"%d" % i for i in range(9)]), [1, 4, 8])
        want = publish(b"t", b"4", cid=50) + publish(b"t", b"8", cid=54)
        assert k.blip_deliver(1, b"t", 1, sparse, 1, 3, 50, b"", NOW) == (want, 2)
        assert k.blip_deliver(1, b"t", 1, sparse, 1, 1, 50, b"", NOW) == (b"", 0)

    def test_deliver_refuses(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b"])
        broken = bytearray(batch)
        struct.pack_into("<i", broken, k.layout(batch)[4] + 4, 99)
        good: tuple[Any, ...] = (1, b"t", 1, batch, 0, 2, 1, b"", NOW)
        assert k.blip_deliver(*good)[1] == 2
        bad = ((0, 3), (1, bytes(65536)), (2, 2), (2, 0), (3, broken), (3, b""), (4, -1), (4, 3), (5, 3), (6, MAX_U64))
        for at, value in bad:
            with pytest.raises(ValueError):
                k.blip_deliver(*good[:at], value, *good[at + 1 :])

    # -- the client's side --------------------------------------------------------------------------------------------

    def test_publish_ids(self, k: ModuleType) -> None:
        assert k.blip_publish(b"t", 0, [b"a", b"b"], 0, 0) == publish(b"t", b"a", 0, 0) + publish(b"t", b"b", 0, 0)
        assert k.blip_publish(b"t", 1, (b"a", b"b"), 3, 0) == publish(b"t", b"a", 1, 3) + publish(b"t", b"b", 1, 4)
        assert k.blip_publish(b"t", 1, [], MAX_U64, 0) == b""
        assert k.blip_publish(b"t", 1, [b""], MAX_U64, 0) == publish(b"t", b"", 1, MAX_U64)
        for bad in ((b"t", 2, [b""], 1, 0), (bytes(65536), 1, [b""], 1, 0), (b"t", 1, [b""] * 2, MAX_U64, 0)):
            with pytest.raises(ValueError):
                k.blip_publish(*bad)
        with pytest.raises(OverflowError):
            k.blip_publish(b"t", 1, [b""], 1, 1 << 32)

    def test_received_runs(self, k: ModuleType) -> None:
        pushed = frame(10, 7, b"\x01" + u64(7) + b"\x00\x01tx")
        data = publish(b"t", b"a", cid=1) + publish(b"t", b"", qos=0, cid=2) + publish(b"u", b"c") + pushed * 2
        data += frame(8, 5) + pushed + frame(6, 9, b"no")
        assert k.blip_received(data, 0, MAX_FRAME) == (
            [
                (3, b"t", [(1, 1, b"a"), (2, 0, b"")]),
                (3, b"u", [(1, 1, b"c")]),
                (10, b"t", [(7, 1, b"x"), (7, 1, b"x")]),
                (8, 5, b""),
                (10, b"t", [(7, 1, b"x")]),
                (6, 9, b"no"),
            ],
            len(data),
            0,
        )

    def test_received_fatal(self, k: ModuleType) -> None:
        good = publish(b"t", b"a")
        bad_payloads = [
            (3, b""),
            (3, b"\x02\x00\x01t"),
            (3, b"\x01\x00\x02t"),
            (3, b"\x01\x00\x01\xff"),
            (10, bytes(10)),
        ]
        for kind, payload in bad_payloads:
            assert k.blip_received(good + frame(kind, 1, payload), 0, MAX_FRAME)[1:] == (len(good), 4)
        for data, fatal in ((bytes(4), 1), (b"\xff" * 4, 2), (b"\0\0\0\x09\x0d", 3), (good[:-1], 0)):
            assert k.blip_received(good + data, 0, MAX_FRAME)[1:] == (len(good), fatal)
