"""The Felix functions of both twins: every frame, merging, every fault, every bound, every cut of a read, gets and JSON.

One class, run for each twin. Random input is test_felix_differential.py's matter.
"""

import base64
import json
import struct
from types import ModuleType
from typing import Any

import pytest

from tests.kernel.felix_frames import (
    FRAME_MAX,
    KNOWN,
    MAX_U64,
    NOW,
    ORIGIN,
    acked,
    expected,
    frame,
    json_faults,
    memory,
    read_all,
    target,
    unacked,
    wire,
)
from tests.wire.felix import ack, frames_of, json_frame, values

CEILING = 32 * 1024 * 1024
MAX_RECORDS = 1 << 20
DEMO = target()
NAMES = b'"tenant_id":"t1","namespace":"default","stream":"demo"'

# t1/default/demo and "hello", by hand.
PUBLISHED = bytes.fromhex("464c5831000100010000002000027431000764656661756c74000464656d6f000000010000000568656c6c6f")
EVENT_OF_7 = bytes.fromhex("464c583100010002000000150000000000000007000000010000000568656c6c6f")
EVENT = bytes.fromhex("464c5831000100040000000d000000010000000568656c6c6f")
EVENT_AT_42 = bytes.fromhex("464c58310001002400000015000000000000002a000000010000000568656c6c6f")

PLACE = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
CACHE = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}
DOCUMENT: list[dict[str, Any]] = [
    {"type": "publish", **PLACE, "payload": "aGVsbG8=", "ack": "per_message"},
    {"type": "publish_batch", **PLACE, "payloads": ["aGVsbG8=", "d29ybGQ="], "ack": "per_batch"},
    {"type": "subscribe", **PLACE},
    {"type": "cache_put", "request_id": "1", "key": "demo-key", "value": "Y2FjaGVk", "ttl_ms": None},
    {"type": "cache_get", "request_id": "2", "key": "demo-key"},
    {"type": "event", **PLACE, "payload": "aGVsbG8="},
    {"type": "event_batch", **PLACE, "payloads": ["aGVsbG8=", "d29ybGQ="]},
    {"type": "event_stream_hello", "subscription_id": "7"},
    {"type": "cache_value", "request_id": "2", "key": "demo-key", "value": None},
    {"type": "ok", "request_id": "1"},
    {"type": "error", "request_id": "1", "message": "oops"},
    {"type": "auth", "tenant_id": "t1", "token": "demo-token", "client_flags": 25},
    {"type": "auth_ok", "server_flags": 25},
]


def split(k: ModuleType, data: bytes, most: int = FRAME_MAX, known: int = KNOWN, strict: bool = True) -> Any:
    return k.felix_split(data, 0, most, known, strict, ORIGIN, NOW)


def gets(k: ModuleType, data: bytes, scopes: Any, now: int = NOW, most: int = 1 << 30, versions: bool = False) -> Any:
    return k.felix_gets(data, 0, FRAME_MAX, scopes, now, most, versions)


def memories(k: ModuleType, /, **rows: tuple[bytes, int, bool, int]) -> dict[bytes, Any]:
    """One cache that is known without a scope."""
    return {b"": memory(k, {key.encode(): row for key, row in rows.items()})}


class TestFelix:
    # -- every frame --------------------------------------------------------------------------------------------------

    def test_sample_frames(self, k: ModuleType) -> None:
        batch = k.build([b"hello"], origin=ORIGIN)
        assert split(k, PUBLISHED) == ([(1, DEMO, batch, 1, -1, 0)], len(PUBLISHED), 0)
        assert k.felix_publish(DEMO, [b"hello"], -1, 0) == PUBLISHED == unacked(DEMO, b"hello")
        both = k.felix_received(EVENT_OF_7 + EVENT + EVENT_AT_42, 0, FRAME_MAX)[0]
        assert both == [(4, 7, -1, [b"hello"]), (4, -1, -1, [b"hello"]), (4, -1, 42, [b"hello"])]
        k.place(batch, 42, NOW)
        assert k.felix_deliver(batch, 0, 1, NOW, False, 0, FRAME_MAX) == (EVENT, 1, [])
        assert k.felix_deliver(batch, 0, 1, NOW, True, 0, FRAME_MAX) == (EVENT_AT_42, 1, [])

    @pytest.mark.parametrize("message", DOCUMENT, ids=lambda message: message["type"])
    def test_every_message_of_the_document(self, k: ModuleType, message: dict[str, Any]) -> None:
        data = json_frame(message)
        want = [(0, data[12:])], len(data), 0
        assert split(k, data) == k.felix_received(data, 0, FRAME_MAX) == want
        assert k.json_fault(data[12:], 2) == 0
        for cut in range(len(data)):
            assert split(k, data[:cut]) == k.felix_received(data[:cut], 0, FRAME_MAX) == ([], 0, 0)

    @pytest.mark.parametrize("request_id", [0, 7, MAX_U64])
    @pytest.mark.parametrize("mode", [1, 2])
    def test_acknowledged_batches_are_never_merged(self, k: ModuleType, request_id: int, mode: int) -> None:
        data = acked(DEMO, request_id, mode, b"a", b"bb")
        assert k.felix_publish(DEMO, [b"a", b"bb"], request_id, mode) == data
        item = (1, DEMO, k.build([b"a", b"bb"], origin=ORIGIN), 2, request_id, mode)
        assert split(k, data * 2) == ([item] * 2, 2 * len(data), 0)
        assert k.felix_batch(data[12:], 0x0049, ORIGIN, NOW) == k.felix_batch(data[12:], 0x0009, ORIGIN, NOW) == item
        assert type(item[2]) is bytearray and type(split(k, data)[0][0][2]) is bytearray

    def test_acknowledgements(self, k: ModuleType) -> None:
        data = ack(0, 7, b"") + ack(1, MAX_U64, "grün".encode())
        assert k.felix_received(data, 0, FRAME_MAX) == ([(16, 0, 7, ""), (16, 1, MAX_U64, "grün")], len(data), 0)
        for bad in (ack(2, 7, b""), ack(1, 7, b"\xff"), frame(16, b"\0" * 10), frame(16, ack(0, 7, b"")[12:] + b"x")):
            assert k.felix_received(data + bad, 0, FRAME_MAX)[1:] == (len(data), 4)

    def test_packed_frames_stay_packed(self, k: ModuleType) -> None:
        data = frame(0x0041, b"one") + frame(0x0049, b"two")
        assert split(k, data) == ([(4, 0x0041, b"one"), (4, 0x0049, b"two")], len(data), 0)
        data = frame(0x0044, b"one") + frame(0x0064, b"")
        assert k.felix_received(data, 0, FRAME_MAX)[0] == [(0x40, 0x0044, b"one"), (0x40, 0x0064, b"")]

    # -- merging ------------------------------------------------------------------------------------------------------

    def test_neighbours_with_one_target_are_one_batch(self, k: ModuleType) -> None:
        for sizes in ([0], [16] * 50, [5] * 3 + [0] * 9 + [17, 33, 65, 129, 1000], list(range(140))):
            values = [bytes((i & 255,)) * size for i, size in enumerate(sizes)]
            data = b"".join(unacked(DEMO, value) for value in values) + unacked(DEMO, *values)
            batch = k.build(values * 2, origin=ORIGIN)
            assert split(k, data) == ([(1, DEMO, batch, 2 * len(values), -1, 0)], len(data), 0)

    def test_anything_else_parts_them(self, k: ModuleType) -> None:
        other = target("t1", "defaultd", "emo")
        bad = frame(0x0001, b"")
        for between in (
            unacked(other, b"x"),
            json_frame({}),
            acked(DEMO, 1, 1, b"x"),
            bad,
            frame(0x0041, b""),
            frame(2, b""),
        ):
            items = split(k, unacked(DEMO, b"a") + between + unacked(DEMO, b"b"))[0]
            assert len(items) == 3 and [items[0][:2], items[2][:2]] == [(1, DEMO)] * 2

    def test_batches_of_no_records(self, k: ModuleType) -> None:
        none = unacked(DEMO)
        assert split(k, none * 2)[0] == [(1, DEMO, None, 0, -1, 0)]
        assert split(k, acked(DEMO, 7, 2))[0] == [(1, DEMO, None, 0, 7, 2)]
        assert split(k, none + unacked(DEMO, b"a") + none)[0] == [(1, DEMO, k.build([b"a"], origin=ORIGIN), 1, -1, 0)]

    def test_a_batch_ends_at_its_bounds(self, k: ModuleType) -> None:
        half = unacked(DEMO, bytes(CEILING // 2))
        items = split(k, half * 2 + unacked(DEMO, b"") + unacked(DEMO, b"x"), CEILING)[0]
        assert [(item[3], len(item[2]) > CEILING) for item in items] == [(3, True), (1, False)]
        many = frame(0x0001, DEMO + struct.pack(">I", MAX_RECORDS - 1) + bytes(4 * (MAX_RECORDS - 1)))  # empty values
        items = split(k, many + unacked(DEMO, b"") + unacked(DEMO, b""), CEILING)[0]
        assert [item[3] for item in items] == [MAX_RECORDS, 1]
        over = frame(0x0001, DEMO + struct.pack(">I", MAX_RECORDS + 1) + bytes(4 * (MAX_RECORDS + 1)))
        assert split(k, over, CEILING) == ([(2, 6, -1)], len(over), 0)

    # -- what is wrong ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", 1),
            (b"\0", 1),
            (DEMO[:-1], 1),
            (DEMO, 1),
            (DEMO + b"\0\0\0", 1),
            (b"\xff\xff" + DEMO, 1),
            (DEMO + struct.pack(">I", 1), 2),
            (DEMO + struct.pack(">I", 0xFFFFFFFF) + bytes(4000), 2),
            (DEMO + struct.pack(">II", 1, 1), 1),
            (DEMO + struct.pack(">II", 1, 0xFFFFFFFF) + b"x", 1),
            (DEMO + struct.pack(">III", 2, 1, 2) + b"xyz", 1),
            (DEMO + values(b"a") + b"x", 3),
            (DEMO + values() + b"xxxx", 3),
            (DEMO.replace(b"t1", b"\xff1") + values(b"a"), 5),
            (DEMO.replace(b"demo", b"\xed\xa0\x80o") + values(b"a"), 5),
        ],
    )
    def test_malformed_batches(self, k: ModuleType, body: bytes, code: int) -> None:
        good = unacked(DEMO, b"a")
        items, consumed, fatal = split(k, good + frame(0x0001, body) + good)
        assert (items[1], len(items), fatal) == ((2, code, -1), 3, 0)
        assert consumed == 2 * len(good) + 12 + len(body)
        head = struct.pack(">QB", 77, 2)
        assert split(k, frame(0x0009, head + body))[0] == [(2, code, 77)]
        assert k.felix_batch(head + body, 0x0009, ORIGIN, NOW) == (2, code, 77)
        assert k.felix_batch(body, 0x0041, ORIGIN, NOW) == (2, code, -1)

    def test_malformed_head_of_an_acknowledged_batch(self, k: ModuleType) -> None:
        for size in range(9):
            got = k.felix_batch(struct.pack(">Q", 5)[:size], 0x0009, ORIGIN, NOW)
            assert got == (2, 1, 5 if size == 8 else -1)
        for mode in (0, 3, 255):
            assert split(k, acked(DEMO, 5, mode, b"a"))[0] == [(2, 4, 5)]

    @pytest.mark.parametrize("flags", [2, 4, 8, 16, 32, 0x24, 3, 0x40, 0x48, 0x80, 0x81, 0x11, 0x21])
    def test_flags_that_make_no_sense_from_a_client(self, k: ModuleType, flags: int) -> None:
        data = frame(flags, DEMO)
        for strict in (True, False):
            assert split(k, data, strict=strict) == ([(3, flags, -1)], len(data), 0)

    def test_unknown_flags_are_refused_or_masked(self, k: ModuleType) -> None:
        data = frame(0x8000, b"{}") + frame(0x0101, PUBLISHED[12:]) + frame(0x0041, PUBLISHED[12:])
        assert split(k, data, known=0x003F)[0] == [(3, 0x8000, -1), (3, 0x0101, -1), (3, 0x0041, -1)]
        items = split(k, data, known=0x0001, strict=False)[0]
        assert items == [(0, b"{}"), (1, DEMO, k.build([b"hello"] * 2, origin=ORIGIN), 2, -1, 0)]

    @pytest.mark.parametrize(
        ("bad", "seen", "fatal"),
        [
            (frame(0, b"{}", magic=0x464C5832), 4, 1),
            (frame(0, b"{}", version=2), 6, 2),
            (frame(0, b"{}", version=0), 6, 2),
            (frame(0, b"{}")[:8] + struct.pack(">I", 101), 12, 3),
            (frame(0xFFFF, b"{}")[:8] + b"\xff" * 4, 12, 3),
        ],
    )
    def test_fatal_as_soon_as_it_is_in(self, k: ModuleType, bad: bytes, seen: int, fatal: int) -> None:
        good = json_frame({})
        for cut in range(len(bad) + 1):
            want = len(good), fatal if cut >= seen else 0
            assert split(k, good + bad[:cut], 100)[1:] == k.felix_received(good + bad[:cut], 0, 100)[1:] == want
        assert split(k, good + bad, 100)[0] == [(0, b"{}")]

    @pytest.mark.parametrize("flags", [1, 9, 8, 6, 0x20, 0x12, 0x42, 0x62, 0x41, 0x80, 0x100])
    def test_flags_that_make_no_sense_from_a_server(self, k: ModuleType, flags: int) -> None:
        assert k.felix_received(EVENT + frame(flags, b""), 0, FRAME_MAX)[1:] == (len(EVENT), 5)

    @pytest.mark.parametrize("flags", [2, 4, 0x22, 0x24])
    def test_malformed_events(self, k: ModuleType, flags: int) -> None:
        lead = bytes(8) * (bool(flags & 2) + bool(flags & 0x20))
        good = frame(flags, lead + values(b"a", b""))
        assert k.felix_received(good, 0, FRAME_MAX)[0][0][3] == [b"a", b""]
        for payload in (lead[:-1], lead, lead + b"\0\0\0\1", lead + values(b"a") + b"x", lead + b"\xff" * 8):
            bad = frame(flags, payload)
            assert k.felix_received(good + bad, 0, FRAME_MAX)[1:] == (len(good), 4)

    def test_every_cut_and_every_pair_of_cuts(self, k: ModuleType) -> None:
        fields = [
            *(
                (1, DEMO, [b"a", b""], -1, 0, None),
                (1, DEMO, [b"b"], -1, 0, None),
                (1, target("u"), [b"c"], 9, 2, b"k"),
            ),
            *((0, b"{}"), (1, DEMO, [], -1, 0, None), (3, 0x0010, b"x"), (4, 0x0041, b"y"), (4, 0x0149, b"y")),
            *((1, DEMO, [b"d" * 20], -1, 0, b""), (1, DEMO, [b"e"], -1, 0, b"k"), (3, 0x8009, bytes(range(9)))),
        ]
        data = b"".join(map(wire, fields))
        want = expected(fields), len(data), 0
        for cut in range(len(data) + 1):
            assert read_all(k, data, [cut]) == want
            assert read_all(k, data, [cut, min(cut + 13, len(data))]) == want

    def test_arguments_out_of_range(self, k: ModuleType) -> None:
        good: tuple[Any, ...] = (PUBLISHED, 0, 1, KNOWN, True, ORIGIN, NOW)
        for i, bad in (
            (1, -1),
            (1, len(PUBLISHED) + 1),
            (2, 0),
            (2, CEILING + 1),
            (5, bytes(65536)),
            (6, -1),
            (6, 1 << 62),
        ):
            with pytest.raises(ValueError):
                k.felix_split(*good[:i], bad, *good[i + 1 :])
        for known in (-1, 1 << 16):
            with pytest.raises(OverflowError):
                k.felix_split(PUBLISHED, 0, 1, known, True, ORIGIN, NOW)
        for flags in (0, 8, 0x0011, 0x0081):
            with pytest.raises(ValueError):
                k.felix_batch(b"", flags, ORIGIN, NOW)
        with pytest.raises(ValueError):
            k.felix_batch(bytes(CEILING + 1), 1, ORIGIN, NOW)
        with pytest.raises(ValueError):
            k.felix_gets(b"", 0, FRAME_MAX, {}, NOW, 0, False)
        with pytest.raises(BufferError):
            k.json_fault(memoryview(b"{}").cast("b"), 3)

    # -- publishing ---------------------------------------------------------------------------------------------------

    def test_what_a_client_may_not_publish(self, k: ModuleType) -> None:
        for where in (b"", DEMO[:-1], DEMO + b"x", DEMO.replace(b"t1", b"\xff1")):
            with pytest.raises(ValueError):
                k.felix_publish(where, [b"a"], -1, 0)
        for request_id, mode in ((-1, 1), (7, 0), (7, 3), (7, -1)):
            with pytest.raises(ValueError):
                k.felix_publish(DEMO, [b"a"], request_id, mode)
        for request_id in (-2, 1 << 64):
            with pytest.raises(OverflowError):
                k.felix_publish(DEMO, [b"a"], request_id, 1)
        room = CEILING - len(DEMO) - 8
        assert len(k.felix_publish(DEMO, [bytes(room)], -1, 0)) == 12 + CEILING
        for many in ([bytes(room + 1)], [b""] * (MAX_RECORDS + 1)):
            with pytest.raises(ValueError):
                k.felix_publish(DEMO, many, -1, 0)

    # -- events -------------------------------------------------------------------------------------------------------

    def test_events_are_cut_into_frames(self, k: ModuleType) -> None:
        values = [bytes(size) for size in (10, 20, 5, 0, 100, 3)]
        batch = k.build(values)
        data, count, omitted = k.felix_deliver(batch, 0, 6, NOW, False, 0, 4 + 14 + 24)
        items, consumed, fatal = k.felix_received(data, 0, FRAME_MAX)
        assert [item[3] for item in items] == [values[:2], values[2:4], values[5:]]
        assert (count, consumed, fatal) == (5, len(data), 0)
        assert omitted == [(len(data) - (12 + 4 + 7), 4, 4 + 4 + 100)]
        assert k.felix_deliver(batch, 2, 2, NOW, False, 0, FRAME_MAX) == (b"", 0, [])

    def test_expired_and_missing_offsets_begin_a_frame(self, k: ModuleType) -> None:
        expiries = [0, NOW, NOW + 1, 0, NOW - 1, 0]
        batch = k.build([b"%d" % i for i in range(6)], expiries=expiries)
        k.place(batch, 100, NOW)
        data, count, _ = k.felix_deliver(batch, 0, 6, NOW, False, 0, FRAME_MAX)
        assert k.felix_received(data, 0, FRAME_MAX)[0] == [(4, -1, -1, [b"0", b"2", b"3", b"5"])] and count == 4
        high = 3 << 48
        data, count, _ = k.felix_deliver(batch, 0, 6, NOW, True, high, FRAME_MAX)
        want = [(4, -1, high | 100, [b"0"]), (4, -1, high | 102, [b"2", b"3"]), (4, -1, high | 105, [b"5"])]
        assert k.felix_received(data, 0, FRAME_MAX)[0] == want and count == 4
        sparse = k.select(batch, [0, 3, 5])
        data, count, _ = k.felix_deliver(sparse, 0, 3, NOW, True, 0, FRAME_MAX)
        assert [item[2:] for item in k.felix_received(data, 0, FRAME_MAX)[0]] == [
            (100, [b"0"]),
            (103, [b"3"]),
            (105, [b"5"]),
        ]

    def test_a_null_value_is_sent_empty(self, k: ModuleType) -> None:
        batch = k.build([None, b"a"], keys=[b"k", b"l"])
        assert k.felix_deliver(batch, 0, 2, NOW, False, 0, FRAME_MAX)[0] == frame(4, values(b"", b"a"))
        assert json.loads(k.felix_events(batch, 0, 2, NOW, NAMES, FRAME_MAX)[0][12:])["payloads"] == ["", "YQ=="]

    def test_events_as_json(self, k: ModuleType) -> None:
        batch = k.build([b"hello", b"world"], expiries=[0, NOW + 1])
        assert k.felix_events(batch, 0, 1, NOW, NAMES, FRAME_MAX) == (json_frame(DOCUMENT[5]), 1, [])
        assert k.felix_events(batch, 0, 2, NOW, NAMES, FRAME_MAX) == (json_frame(DOCUMENT[6]), 2, [])
        assert k.felix_events(batch, 0, 2, NOW + 1, NAMES, FRAME_MAX) == (json_frame(DOCUMENT[5]), 1, [])
        assert k.felix_events(batch, 0, 0, NOW, NAMES, FRAME_MAX) == (b"", 0, [])
        assert k.felix_events(batch, 0, 1, NOW, b"", FRAME_MAX)[0] == json_frame(
            {"type": "event", "payload": "aGVsbG8="}
        )

    @pytest.mark.parametrize("most", [1, 200, 1000, FRAME_MAX])
    def test_bounds_of_an_event_batch(self, k: ModuleType, most: int) -> None:
        values = [bytes((i & 255,)) * (i % 9 * 7) for i in range(200)] + [
            bytes(70_000),
            b"x",
            bytes(40_000),
            bytes(30_000),
        ]
        data, count, omitted = k.felix_events(k.build(values), 0, len(values), NOW, NAMES, most)
        got: list[bytes] = []
        sizes: list[tuple[int, int]] = []
        for flags, payload in frames_of(data):
            message = json.loads(payload)
            texts = message["payloads"] if message["type"] == "event_batch" else [message["payload"]]
            assert flags == 0 and (len(texts) > 1) is (message["type"] == "event_batch")
            sizes.append((len(texts), len(payload)))
            got += map(base64.b64decode, texts)
        missing = {row: values[row] for _, row, _ in omitted}
        assert got == [value for row, value in enumerate(values) if row not in missing]
        assert count == len(got) and all(size > most for _, _, size in omitted)
        assert all(size <= most and (n == 1 or (n <= 64 and size <= 65536)) for n, size in sizes)
        assert [at for at, _, _ in omitted] == sorted(at for at, _, _ in omitted) and (most > 1 or data == b"")
        if most == FRAME_MAX:
            assert max(n for n, _ in sizes) == 64

    def test_base64_of_every_length_and_byte(self, k: ModuleType) -> None:
        values = [bytes(range(256))[i : 2 * i + 1] for i in range(128)] + [b"\xff" * n for n in range(8)]
        for value in values:
            data = k.felix_events(k.build([value]), 0, 1, NOW, NAMES, FRAME_MAX)[0]
            assert json.loads(data[12:])["payload"] == base64.b64encode(value).decode()

    def test_a_batch_that_does_not_add_up_is_refused(self, k: ModuleType) -> None:
        batch = k.build([b"abc", b"de"])
        at = k.layout(batch)[4]
        struct.pack_into("<i", batch, at + 4, 99)
        for first, last in ((0, 1), (1, 2), (0, 2), (2, 1), (-1, 1), (0, 3)):
            with pytest.raises(ValueError):
                k.felix_deliver(batch, first, last, NOW, False, 0, FRAME_MAX)
            with pytest.raises(ValueError):
                k.felix_events(batch, first, last, NOW, NAMES, FRAME_MAX)

    # -- gets of a cache ----------------------------------------------------------------------------------------------

    def test_gets_with_and_without_scope(self, k: ModuleType) -> None:
        cache = memory(k, {b"demo-key": (b"cached", 0, False, 12)})
        scopes = {b"": cache, b"t1\0default\0primary": cache}
        asked = json_frame({"type": "cache_get", "request_id": "2", "key": "demo-key"})
        scoped = json_frame({"type": "cache_get", **CACHE, "key": "demo-key", "request_id": 7})
        missing = json_frame({"type": "cache_get", "key": "ü"})
        want = (
            json_frame({"type": "cache_value", "key": "demo-key", "value": "Y2FjaGVk", "request_id": "2"})
            + json_frame({"type": "cache_value", **CACHE, "key": "demo-key", "value": "Y2FjaGVk", "request_id": 7})
            + json_frame({"type": "cache_value", "key": "ü", "value": None})
        )
        data = asked + scoped + missing
        assert gets(k, data + data[:20], scopes) == (want, len(data), 2, 1)
        assert cache.get(b"demo-key") == (b"cached", 0, True, 12)
        reply = gets(k, data, scopes, versions=True)[0]
        assert [json.loads(payload).get("version") for _, payload in frames_of(reply)] == [12, 12, None]
        assert frames_of(reply)[0][1].endswith(b'"request_id":"2","version":12}')

    def test_expired_entries_are_null_and_not_used(self, k: ModuleType) -> None:
        data = json_frame({"type": "cache_get", "key": "a"})
        for expires, alive in ((0, True), (NOW + 1, True), (NOW, False), (1, False)):
            scopes = memories(k, a=(b"v", expires, False, 1))
            _, _, hits, misses = gets(k, data, scopes)
            assert (hits, misses, scopes[b""].get(b"a")[2]) == (int(alive), int(not alive), alive)

    def test_a_get_may_be_written_in_many_ways(self, k: ModuleType) -> None:
        scopes = memories(k, a=(b"", 0, False, 1))
        for body in (
            b'{"type":"cache_get","key":"a","request_id":18446744073709551615}',
            b'\n{ "request_id" : 0 ,\t"key"\r: "a" , "type":"cache_get" } ',
            b'{"key":"a","type":"cache_get","request_id":""}',
        ):
            reply, consumed, hits, _ = gets(k, frame(0, body), scopes)
            assert (consumed, hits) == (12 + len(body), 1)
            want = {**json.loads(body), "type": "cache_value", "value": ""}
            assert json.loads(reply[12:]) == want
        assert (
            b'"request_id":18446744073709551615'
            in gets(k, frame(0, b'{"type":"cache_get","key":"a","request_id":18446744073709551615}'), scopes)[0]
        )

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            b"[]",
            b'{"type":"cache_get"}',
            b'{"key":"a"}',
            b'{"type":"cache_put","key":"a"}',
            b'{"type":"cache_get","key":"\\u0061"}',
            b'{"type":"cache_get","key":"a\\n"}',
            b'{"type":"cache_get","k\\u0065y":"a"}',
            b'{"type":"cache_get","key":"a","key":"a"}',
            b'{"type":"cache_get","type":"cache_get","key":"a"}',
            b'{"type":"cache_get","key":"a","more":"b"}',
            b'{"type":"cache_get","key":1}',
            b'{"type":1,"key":"a"}',
            b'{"type":"cache_get","key":null}',
            b'{"type":"cache_get","key":["a"]}',
            b'{"type":"cache_get","key":"a","request_id":-1}',
            b'{"type":"cache_get","key":"a","request_id":01}',
            b'{"type":"cache_get","key":"a","request_id":1.0}',
            b'{"type":"cache_get","key":"a","request_id":1e3}',
            b'{"type":"cache_get","key":"a","request_id":18446744073709551616}',
            b'{"type":"cache_get","key":"a","request_id":' + b"9" * 5000 + b"}",
            b'{"type":"cache_get","key":"a","request_id":null}',
            b'{"type":"cache_get","key":"a","request_id":}',
            b'{"type":"cache_get","key":"a",}',
            b'{"type":"cache_get","key":"a"',
            b'{"type":"cache_get","key":"a"}}',
            b'{"type":"cache_get","key":"a"}\0',
            b'{"type":"cache_get","key":"a}',
            b'{"type":"cache_get" "key":"a"}',
            b'{"type":"cache_get","key":"a\x01"}',
            b'{"type":"cache_get","key":"a\x00"}',
            b'{"type":"cache_get","key":"\xff"}',
            b'{"type":"cache_get","key":"\xed\xa0\x80"}',
            b'{"type":"cache_get","key":"a","tenant_id":"t1"}',
            b'{"type":"cache_get","key":"a","tenant_id":"t1","namespace":"n","cache":"unknown"}',
            "\ufeff{}".encode(),
        ],
    )
    def test_what_is_not_a_plain_get_ends_the_run(self, k: ModuleType, body: bytes) -> None:
        good = json_frame({"type": "cache_get", "key": "a"})
        scopes = memories(k, a=(b"v", 0, False, 1)) | {b"t1\0n\0c": memory(k, {})}
        reply, consumed, hits, misses = gets(k, good + frame(0, body) + good, scopes)
        assert (len(frames_of(reply)), consumed, hits, misses) == (1, len(good), 1, 0)

    def test_where_a_run_of_gets_ends(self, k: ModuleType) -> None:
        good = json_frame({"type": "cache_get", "key": "a"})
        scopes = memories(k, a=(b"v" * 300, 0, False, 1))
        for behind in (frame(0x0001, good[12:]), b"FLX2", frame(0, b"", version=2), good[:-1], b""):
            assert gets(k, good + behind, scopes)[1:] == (len(good), 1, 0)
        one = len(gets(k, good, scopes)[0])
        for most, frames in ((1, 1), (one, 1), (one + 1, 2), (3 * one, 3)):
            assert gets(k, good * 5, scopes, most=most)[1:3] == (frames * len(good), frames)
        assert scopes[b""].set_used(b"a", False)
        assert k.felix_gets(good, 0, one - 13, scopes, NOW, 1, False) == (b"", 0, 0, 0)
        assert not scopes[b""].get(b"a")[2]
        assert k.felix_gets(good, 0, one - 12, scopes, NOW, 1, False)[1:] == (len(good), 1, 0)
        assert gets(k, good, {}) == (b"", 0, 0, 0)

    def test_strings_end_at_every_place_of_a_word(self, k: ModuleType) -> None:
        """The native twin reads eight bytes at a time: a quote, escape or control byte is found wherever it stands."""
        for size in range(40):
            key = "k" * size
            data = json_frame({"type": "cache_get", "key": key})
            assert gets(k, data, memories(k, **{key: (b"v", 0, False, 1)}))[2] == 1
            for odd in (b"\\", b"\x1f", b"\x00"):
                bad = frame(0, b'{"type":"cache_get","key":"' + key.encode() + odd + b'nnnnnnnn"}')
                assert gets(k, bad, memories(k))[1] == 0
            for even in ("\x20", "\x7f", "!", "#", "[", "]", "ü"):
                assert gets(k, json_frame({"type": "cache_get", "key": key + even + key}), memories(k))[3] == 1

    # -- what is wrong with a text ------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("data", "fault"),
        [
            (b"{}", 0),
            (b' \t\r\n{ "a" : [ ] , "b" : { } } \n', 0),
            (b'{"a":[0,-0,1.5,-1e9,2E-3,0.0e+0,true,false,null,""]}', 0),
            ('{"ü":"😀\\ud83d\\ude00","\\u0000":"\\"\\\\\\/\\b\\f\\n\\r\\t"}'.encode(), 0),
            (b'{"a":{"a":{"a":1}},"b":[{"a":1},{"a":1}]}', 0),
            *(
                (text, 1)
                for text in (b"", b" ", b"[]", b"1", b'"a"', b"null", b"{", b"}", b"{}{}", b"{} x", b"{},", b"{\0}")
            ),
            *(
                (b'{"a":%s}' % bad, 1)
                for bad in (b"", b"01", b"-", b"+1", b"1.", b".5", b"1e", b"1e+", b"0x1", b"--1", b"1 2")
            ),
            *(
                (b'{"a":%s}' % bad, 1)
                for bad in (b"nul", b"True", b"NaN", b"Infinity", b"-Infinity", b"[1,]", b"[,1]", b"[1 1]")
            ),
            *(
                (b'{"a":"%s"}' % bad, 1)
                for bad in (b"\\x", b"\\", b"\\u12", b"\\u12g4", b"\\U0041", b"\x1f", b"\n", b"\0")
            ),
            *(
                (b'{"a":"%s"}' % bad, 1)
                for bad in (b"\\ud800", b"\\udc00", b"\\ud800x", b"\\ud800\\n", b"\\ud800\\ud800", b"\\u+123")
            ),
            *(
                (b'{"a":"%s"}' % bad, 1)
                for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")
            ),
            *(
                (bad, 1)
                for bad in (
                    b'{"a"}',
                    b'{"a":}',
                    b'{"a" 1}',
                    b'{"a":1,}',
                    b"{,}",
                    b"{1:1}",
                    b"{'a':1}",
                    b'{"a":1 "b":1}',
                )
            ),
            *(
                (bad, 1)
                for bad in (
                    b'{"a":[}',
                    b'{"a":[1}',
                    b'{"a":1]',
                    b'{"a":{]}',
                    b'{"a":1}}',
                    b'{"a":[1]]}',
                    b'{"a',
                    b'{"a"',
                )
            ),
            ("\ufeff{}".encode(), 1),
            (b'{"\\ud800":1,"\\ud800":2}', 1),
            (b'{"a":1,"a":2}', 2),
            (b'{"a":1,"\\u0061":2}', 2),
            (b'{"":1,"":2}', 2),
            (b'{"b":[{"x":{"a":1,"b":2,"a":3}}]}', 2),
            ('{"😀":1,"\\uD83D\\uDE00":2}'.encode(), 2),
            ('{"ü":1,"\\u00fc":2}'.encode(), 2),
            (b'{"/":1,"\\/":2}', 2),
            (b'{"a":1,"a"', 2),
            (b'{"a":[[[[[0]]]]]}', 0),
            (b'{"a":[[[[[[0]]]]]]}', 3),
            (b'{"a":{"a":{"a":{"a":{"a":{}}}}}}', 0),
            (b'{"a":{"a":{"a":{"a":{"a":{"a":{}}}}}}}', 3),
            (b'{"a":[[[[[[', 3),
        ],
    )
    def test_json_fault(self, k: ModuleType, data: bytes, fault: int) -> None:
        assert k.json_fault(data, 6) == fault
        assert fault in json_faults(data, 6)

    @pytest.mark.parametrize("count", [1, 7, 8, 9, 10, 1000])
    def test_one_double_among_many_keys(self, k: ModuleType, count: int) -> None:
        names = [f'"key{i}":{i}' for i in range(count)]
        assert k.json_fault(("{" + ",".join(names) + "}").encode(), 1) == 0
        for double in {0, count // 2, count - 1}:
            both = [*names, f'"k\\u0065y{double}":0']
            assert k.json_fault(("{" + ",".join(both) + "}").encode(), 1) == 2
        inner = ",".join([*names, '"in":{' + ",".join(names) + "}", '"key_":1'])
        assert k.json_fault(("{" + inner + "}").encode(), 2) == 0
        assert k.json_fault(("{" + inner + ',"key0":1}').encode(), 2) == 2

    @pytest.mark.parametrize(("count", "fault"), [(1024, 0), (1025, 4), (100_000, 4)])
    def test_more_keys_than_any_message_has(self, k: ModuleType, count: int, fault: int) -> None:
        data = ("{" + ",".join(f'"{i}":0' for i in range(count)) + "}").encode()
        assert k.json_fault(data, 2) == fault
        assert k.json_fault(b'{"in":' + data + b"}", 2) == fault

    def test_hostile_depth_and_length(self, k: ModuleType) -> None:
        deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        assert k.json_fault(deep, 10_000) == 3
        fits = b'{"a":' + b"[" * 9_999 + b"]" * 9_999 + b"}"
        assert (k.json_fault(fits, 10_000), k.json_fault(fits, 9_999)) == (0, 3)
        assert k.json_fault(b'{"a":"' + b"\\u00e9" * 200_000 + b'"}', 1) == 0
        assert k.json_fault(b'{"a":' + b"9" * 200_000 + b"}", 1) == 0
        assert k.json_fault(b" " * 200_000 + b"{" + b" " * 200_000, 1) == 1
        for depth in (0, -1, 10_001):
            with pytest.raises(ValueError):
                k.json_fault(b"{}", depth)
