"""The Fast TCP functions of both twins: every packet, grouping, tokens, expiry, every bound, every cut of a read.

One class, run for each twin. Random input is test_fast_differential.py's matter.
"""

import struct
from types import ModuleType
from typing import Any

import pytest

from tests.kernel.fast_packets import MAX_U32, NOW, PAYLOAD_MAX, SAMES, expected, read_all
from tests.wire.fast import (
    create,
    extend,
    key_update,
    message,
    publish,
    request,
    result,
    rotate_key,
    short,
    subscribe,
    u32,
    unsubscribe,
)

JWT, OTHER, BAD = b"j" * 187, b"j" * 186 + b"k", b"refused"
TOKENS: dict[bytes, bytes | None] = {JWT: b"fast:user123", OTHER: b"fast:other", BAD: None}
CEILING = 32 * 1024 * 1024


def split(k: ModuleType, data: bytes, payload_max: int = PAYLOAD_MAX, topics: Any = None, tokens: Any = None) -> Any:
    """Where an empty token is just that: without the last of what is returned."""
    *got, same = k.fast_split(data, 0, payload_max, TOKENS if tokens is None else tokens, topics or {}, NOW, None)
    assert same is None
    return tuple(got)


def rows_of(k: ModuleType, item: Any) -> Any:
    return k.rows(item[3], 0, item[4])


def values_of(k: ModuleType, item: Any) -> list[bytes]:
    return [row[3] for row in rows_of(k, item)]


class TestFast:
    # -- every packet -------------------------------------------------------------------------------------------------

    def test_bytes_on_the_wire(self, k: ModuleType) -> None:
        made = bytes.fromhex("03 02 6a77 aefd3536 00000003 616263")
        assert publish(b"jw", 0xAEFD3536, b"abc") == k.fast_publish(b"jw", 0xAEFD3536, [b"abc"]) == made
        sent = bytes.fromhex("04 aefd3536 00000003 616263")
        assert k.fast_deliver(0xAEFD3536, k.build([b"abc"]), 0, 1, NOW) == (sent, 1)
        assert k.fast_received(sent, 0, PAYLOAD_MAX) == ([(4, 0xAEFD3536, [b"abc"])], len(sent), 0)

    @pytest.mark.parametrize(
        ("data", "item"),
        [
            (create(JWT, b"demo", 5), (1, JWT, b"demo", 5)),
            (create(JWT, b"", 0), (1, JWT, b"", 0)),
            (create(JWT, b"n" * 255, 255), (1, JWT, b"n" * 255, 255)),
            (create(BAD, b"\xff", 1), (1, BAD, b"\xff", 1)),
            (subscribe(JWT, 0), (2, JWT, 0)),
            (subscribe(BAD, MAX_U32), (2, BAD, MAX_U32)),
            (unsubscribe(JWT, 7), (5, JWT, 7)),
            (rotate_key(JWT, 7, b"key"), (7, JWT, 7, b"key")),
            (rotate_key(JWT, 7, b""), (7, JWT, 7, b"")),
            (rotate_key(JWT, 7, b"k" * 255), (7, JWT, 7, b"k" * 255)),
            (extend(1), (0x70, 1)),
            (extend(255), (0x70, 255)),
        ],
    )
    def test_other_requests(self, k: ModuleType, data: bytes, item: Any) -> None:
        assert split(k, data) == ([item], len(data), 0, None)
        for cut in range(len(data)):
            assert split(k, data[:cut]) == ([], 0, 0, None)
        around = publish(JWT, 1, b"a") + data
        items, consumed, fatal, unknown = split(k, around)
        assert ([one[0] for one in items], items[1], consumed) == ([3, item[0]], item, len(around))
        assert (fatal, unknown) == (0, None)

    @pytest.mark.parametrize("size", [0, 1, 254, 255])
    def test_every_length_of_a_token(self, k: ModuleType, size: int) -> None:
        jwt = b"t" * size
        data = k.fast_publish(jwt, 9, [b"a", b"b"]) + subscribe(jwt, 9)
        items, consumed, _, unknown = split(k, data, tokens={jwt: b"o"})
        assert (items[0][:3], values_of(k, items[0]), items[0][4]) == ((3, jwt, 9), [b"a", b"b"], 2)
        assert (items[1:], consumed, unknown) == ([(2, jwt, 9)], len(data), None)
        assert type(items[0][1]) is bytes and type(items[0][3]) is bytearray

    def test_create_rotate_and_extend_end_the_splitting(self, k: ModuleType) -> None:
        for last in (create(JWT, b"demo"), rotate_key(JWT, 1, b"k"), extend(1)):
            first = publish(JWT, 1, b"a") + subscribe(JWT, 1) + unsubscribe(JWT, 1) + last
            items, consumed, fatal, unknown = split(k, first + b"\x04")
            assert ([item[0] for item in items], consumed) == ([3, 2, 5, last[0]], len(first))
            assert (fatal, unknown) == (0, None)

    # -- grouping -----------------------------------------------------------------------------------------------------

    def test_batches_of_groups_are_what_build_makes(self, k: ModuleType) -> None:
        for sizes in ([0], [16] * 50, [128] * 9, [5] * 3 + [0] * 9 + [17, 33, 65, 129, 1000], list(range(140))):
            values = [bytes((i & 255,)) * size for i, size in enumerate(sizes)]
            data = k.fast_publish(JWT, 5, values)
            assert data == b"".join(publish(JWT, 5, value) for value in values)
            items = split(k, data)[0]
            assert items == [(3, JWT, 5, k.build(values, origin=b"fast:user123"), len(values))]

    def test_publishes_are_grouped_by_topic_in_order_of_first_sight(self, k: ModuleType) -> None:
        wire = [(2, b"1"), (1, b"2"), (2, b"3"), (1, b""), (3, b"5"), (2, b"6" * 300)]
        items = split(k, b"".join(publish(JWT, topic_id, value) for topic_id, value in wire))[0]
        got = [(item[2], values_of(k, item)) for item in items]
        assert got == [(2, [b"1", b"3", b"6" * 300]), (1, [b"2", b""]), (3, [b"5"])]

    def test_other_items_part_the_groups(self, k: ModuleType) -> None:
        items = split(k, publish(JWT, 1, b"1") + subscribe(JWT, 2) + publish(JWT, 1, b"2"))[0]
        assert [item[0] for item in items] == [3, 2, 3]

    def test_a_change_of_token_starts_a_group_so_that_order_is_kept(self, k: ModuleType) -> None:
        wire = [(JWT, 1), (JWT, 1), (OTHER, 1), (OTHER, 2), (JWT, 1), (JWT, 2), (OTHER, 2), (BAD, 1)]
        items = split(k, b"".join(publish(jwt, topic, b"%d" % i) for i, (jwt, topic) in enumerate(wire)))[0]
        got = [(item[1], item[2], values_of(k, item) if item[3] else item[4]) for item in items]
        assert got == [
            (JWT, 1, [b"0", b"1"]),
            (OTHER, 1, [b"2"]),
            (OTHER, 2, [b"3"]),
            (JWT, 1, [b"4"]),
            (JWT, 2, [b"5"]),
            (OTHER, 2, [b"6"]),
            (BAD, 1, 1),
        ]
        assert {row[6] for item in items[:2] for row in rows_of(k, item)} == {b"fast:user123", b"fast:other"}

    def test_groups_are_bounded_in_bytes(self, k: ModuleType) -> None:
        data = publish(JWT, 1, bytes(12 * 1024 * 1024)) * 3
        items, consumed, fatal, _ = split(k, data, CEILING)
        assert ([item[4] for item in items], consumed, fatal) == ([2, 1], len(data), 0)

    def test_groups_are_bounded_in_records(self, k: ModuleType) -> None:
        count = (1 << 20) + 3
        data = publish(b"", 1, b"") * count
        items, consumed, _, _ = split(k, data, tokens={b"": None})
        assert ([item[4] for item in items], consumed) == ([1 << 20, 3], len(data))

    # -- what a topic adds --------------------------------------------------------------------------------------------

    def test_flags_and_expiry_come_from_the_topic(self, k: ModuleType) -> None:
        topics = {1: (1, 0), 2: (0, 250), 3: (4, (1 << 62) - 1)}
        data = b"".join(publish(JWT, topic, b"%d" % topic) * 2 for topic in (1, 2, 3, 4))
        items = split(k, data, topics=topics)[0]
        assert [struct.unpack_from("<H", item[3], 12)[0] for item in items] == [1, 0, 4, 0]
        got = [[row[5] for row in rows_of(k, item)] for item in items]
        assert got == [[0, 0], [NOW + 250] * 2, [NOW + (1 << 62) - 1] * 2, [0, 0]]
        build = k.build([b"2", b"2"], expiries=[NOW + 250] * 2, origin=b"fast:user123")
        assert items[1][3] == build
        assert k.layout(items[0][3])[16] == k.layout(items[3][3])[16] == 0

    @pytest.mark.parametrize("rule", [(-1, 0), (8, 0), (0, -1), (0, 1 << 62)])
    def test_a_rule_out_of_range_is_refused(self, k: ModuleType, rule: tuple[int, int]) -> None:
        with pytest.raises(ValueError):
            split(k, publish(JWT, 1, b"a"), topics={1: rule})
        assert split(k, publish(BAD, 1, b"a"), topics={1: rule})[0] == [(3, BAD, 1, None, 1)]

    # -- tokens -------------------------------------------------------------------------------------------------------

    def test_a_refused_token_builds_nothing(self, k: ModuleType) -> None:
        data = publish(BAD, 1, b"a") * 3 + publish(BAD, 2, b"") + publish(JWT, 1, b"b")
        items = split(k, data)[0]
        assert items[:2] == [(3, BAD, 1, None, 3), (3, BAD, 2, None, 1)]
        assert values_of(k, items[2]) == [b"b"]

    @pytest.mark.parametrize(
        "packet",
        [
            publish(b"new", 1, b"x"),
            create(b"new", b"n"),
            subscribe(b"new", 1),
            unsubscribe(b"new", 1),
            rotate_key(b"new", 1, b"k"),
        ],
    )
    def test_an_unknown_token_stops_at_its_whole_packet(self, k: ModuleType, packet: bytes) -> None:
        before = publish(JWT, 1, b"a") * 3 + publish(JWT, 2, b"b") + publish(BAD, 2, b"c")
        items, consumed, fatal, unknown = split(k, before + packet + b"\xff")
        assert ([item[4] for item in items], consumed, fatal, unknown) == ([3, 1, 1], len(before), 0, b"new")
        for cut in range(len(packet)):
            assert split(k, before + packet[:cut])[1:] == (len(before), 0, None)
        tokens = {**TOKENS, b"new": b"o"}
        items, behind, fatal, unknown, _ = k.fast_split(
            before + packet + b"\xff", consumed, PAYLOAD_MAX, tokens, {}, NOW, None
        )
        ends = packet[0] in (1, 7)
        assert (items[0][:2], behind, unknown) == ((packet[0], b"new"), len(before + packet), None)
        assert fatal == (0 if ends else 1)

    def test_an_empty_token_may_be_unknown(self, k: ModuleType) -> None:
        assert split(k, publish(b"", 1, b"a")) == ([], 0, 0, b"")

    def test_each_token_is_looked_up_once_per_run(self, k: ModuleType) -> None:
        asked: list[bytes] = []

        class Key(bytes):
            """A key that notes when it is compared with; equal hashes make the table compare."""

            def __hash__(self) -> int:
                return hash(bytes(self))

            def __eq__(self, other: object) -> bool:
                asked.append(bytes(self))
                return bytes(self) == other

        data = publish(JWT, 1, b"a") * 50 + publish(OTHER, 2, b"b") * 50
        items = split(k, data, tokens={Key(JWT): b"o", Key(OTHER): b"p"})[0]
        assert [item[4] for item in items] == [50, 50]
        assert set(asked) == {JWT, OTHER}
        if k.__name__.endswith("_native"):
            assert sorted(asked) == [JWT, OTHER]

    # -- empty tokens -------------------------------------------------------------------------------------------------

    def follow(self, k: ModuleType, data: bytes, same: bytes | None, tokens: Any = None) -> Any:
        """((type, token, topic or name, count) of each item, consumed, unknown, same)."""
        tokens = TOKENS if tokens is None else tokens
        items, consumed, _, unknown, behind = k.fast_split(data, 0, PAYLOAD_MAX, tokens, {}, NOW, same)
        rows = [(item[0], item[1], item[2], item[4] if item[0] == 3 else 1) for item in items]
        return rows, consumed, unknown, behind

    @pytest.mark.parametrize(
        ("packet", "item"),
        [
            (publish(b"", 1, b"a"), (3, JWT, 1, 1)),
            (create(b"", b"n"), (1, JWT, b"n", 1)),
            (subscribe(b"", 1), (2, JWT, 1, 1)),
            (unsubscribe(b"", 1), (5, JWT, 1, 1)),
            (rotate_key(b"", 1, b"k"), (7, JWT, 1, 1)),
        ],
    )
    def test_an_empty_token_stands_for_the_one_given(self, k: ModuleType, packet: bytes, item: Any) -> None:
        assert self.follow(k, packet, JWT) == ([item], len(packet), None, JWT)
        assert self.follow(k, packet, JWT, {}) == ([], 0, JWT, JWT), "unknown is what is meant"
        assert self.follow(k, packet, b"") == ([], 0, b"", b""), "nothing was accepted yet"
        assert self.follow(k, packet, None) == ([], 0, b"", None), "here it stands for nothing"

    def test_a_run_of_empty_tokens_is_one_batch(self, k: ModuleType) -> None:
        values = [b"%03d" % n for n in range(300)]
        data = k.fast_publish(b"", 5, values)
        assert len(data) == (10 + 3) * 300
        items, consumed, fatal, unknown, same = k.fast_split(data, 0, PAYLOAD_MAX, TOKENS, {}, NOW, JWT)
        assert items == [(3, JWT, 5, k.build(values, origin=b"fast:user123"), 300)]
        assert (consumed, fatal, unknown, same) == (len(data), 0, None, JWT)
        mixed = publish(JWT, 5, b"a") + publish(b"", 5, b"b") + publish(JWT, 5, b"c")
        assert self.follow(k, mixed, b"")[0] == [(3, JWT, 5, 3)], "the same token, however it is said"

    def test_it_follows_accepted_tokens_and_not_refused_ones(self, k: ModuleType) -> None:
        data = (
            publish(b"", 1, b"a")
            + publish(OTHER, 2, b"b")
            + publish(b"", 1, b"c") * 2
            + publish(BAD, 1, b"d")
            + publish(b"", 1, b"e")
            + subscribe(JWT, 3)
            + publish(b"", 2, b"f")
            + subscribe(BAD, 3)
            + subscribe(b"", 3)
        )
        rows, consumed, unknown, same = self.follow(k, data, JWT)
        assert rows == [
            *((3, JWT, 1, 1), (3, OTHER, 2, 1), (3, OTHER, 1, 2), (3, BAD, 1, 1), (3, OTHER, 1, 1)),
            *((2, JWT, 3, 1), (3, JWT, 2, 1), (2, BAD, 3, 1), (2, JWT, 3, 1)),
        ]
        assert (consumed, unknown, same) == (len(data), None, JWT)

    def test_what_is_behind_is_the_last_on_the_wire_and_not_the_last_item(self, k: ModuleType) -> None:
        data = publish(JWT, 1, b"a") + publish(OTHER, 2, b"b") + publish(JWT, 1, b"c")
        rows, _, _, same = self.follow(k, data, b"")
        assert (rows, same) == ([(3, JWT, 1, 2), (3, OTHER, 2, 1)], JWT)
        assert self.follow(k, data + publish(b"", 2, b"d"), b"")[0][-1] == (3, JWT, 2, 1)

    def test_one_that_is_not_taken_is_not_followed(self, k: ModuleType) -> None:
        data = publish(OTHER, 1, b"a") + publish(b"new", 1, b"b") + publish(b"", 1, b"c")
        assert self.follow(k, data, JWT)[1:] == (200 - 2, b"new", OTHER)
        assert self.follow(k, publish(OTHER, 1, b"a")[:-1], JWT) == ([], 0, None, JWT)
        assert self.follow(k, data, None)[3] is None

    def test_one_that_was_refused_since_is_what_it_still_stands_for(self, k: ModuleType) -> None:
        data = publish(b"", 1, b"a") * 3 + subscribe(b"", 1)
        assert self.follow(k, data, BAD) == ([(3, BAD, 1, 3), (2, BAD, 1, 1)], len(data), None, BAD)

    # -- bounds -------------------------------------------------------------------------------------------------------

    def test_payload_bounds(self, k: ModuleType) -> None:
        for size in (0, 1, 99, 100):
            assert split(k, publish(JWT, 1, bytes(size)), 100)[1:] == (200 - 3 + size, 0, None)
        good = publish(JWT, 1, bytes(100)) * 2
        for length in (101, 1 << 31, MAX_U32):
            head = b"\x03" + short(JWT) + u32(1) + u32(length)
            items, consumed, fatal, unknown = split(k, good + head, 100)
            assert ([item[4] for item in items], consumed, fatal, unknown) == ([2], len(good), 2, None)
            assert split(k, good + head[:-1], 100)[1:] == (len(good), 0, None)
        assert split(k, b"\x03" + short(b"new") + u32(1) + u32(101), 100) == ([], 0, 2, None)

    def test_the_ceiling_itself_passes(self, k: ModuleType) -> None:
        data = publish(JWT, 1, bytes(CEILING))
        items, consumed, fatal, _ = split(k, data, CEILING)
        assert (items[0][4], consumed, fatal) == (1, len(data), 0)
        assert len(k.fast_publish(JWT, 1, [bytes(CEILING)])) == len(data)

    def test_unknown_and_server_only_types_are_fatal_at_once(self, k: ModuleType) -> None:
        good = publish(JWT, 1, b"a") + subscribe(JWT, 1)
        wrong = set(range(256)) - {1, 2, 3, 5, 7, 0x70}
        assert wrong >= {0x04, 0x06, 0x7E, 0x7F}
        for kind in wrong:
            items, consumed, fatal, unknown = split(k, good + bytes((kind,)))
            assert ([item[0] for item in items], consumed, fatal, unknown) == ([3, 2], len(good), 1, None), kind
            assert split(k, good + bytes((kind,)) * 300)[1:] == (len(good), 1, None), kind

    def test_every_cut_gives_the_same(self, k: ModuleType) -> None:
        fields = [
            *((3, b"t", 1, b"%d" % i) for i in range(4)),
            (3, b"w" * 20, 1, b""),
            (2, b"t", 1),
            (3, b"", 0xAEFD3536, b"x" * 20),
            *((1, b"t", b"demo", 3), (3, b"t", 2, b"a"), (7, b"t", 1, b"key"), (0x70, 1), (5, b"t", 1)),
        ]
        data = b"".join(map(request, fields))
        for same in SAMES:
            whole = expected(fields, same), len(data), 0
            for cut in range(len(data) + 1):
                assert read_all(k, data, [cut], same) == whole
            assert read_all(k, data, list(range(len(data))), same) == whole

    def test_split_refuses_bad_arguments(self, k: ModuleType) -> None:
        good: tuple[Any, ...] = (b"", 0, PAYLOAD_MAX, {}, {}, NOW, None)
        assert k.fast_split(*good) == ([], 0, 0, None, None)
        assert k.fast_split(*good[:6], bytes(255)) == ([], 0, 0, None, bytes(255))
        for at, value in ((1, -1), (1, 1), (2, 0), (2, CEILING + 1), (5, -1), (5, 1 << 62), (6, bytes(256))):
            with pytest.raises(ValueError):
                k.fast_split(*good[:at], value, *good[at + 1 :])
        with pytest.raises(ValueError):
            split(k, subscribe(JWT, 1), tokens={JWT: bytes(65536)})
        assert split(k, publish(JWT, 1, b""), tokens={JWT: bytes(65535)})[1] > 0

    # -- messages -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 31, 33, 64, 100, 129, 5000])
    def test_deliver(self, k: ModuleType, size: int) -> None:
        values = [bytes((i,)) * size for i in range(20)]
        want = b"".join(message(MAX_U32, value) for value in values[3:])
        assert k.fast_deliver(MAX_U32, k.build(values), 3, 20, NOW) == (want, 17)
        assert k.fast_received(want, 0, PAYLOAD_MAX) == ([(4, MAX_U32, values[3:])], len(want), 0)

    def test_deliver_leaves_out_what_expired_and_sends_null_as_empty(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b", None, b"d"], expiries=[0, NOW, NOW + 1, NOW - 1])
        assert k.fast_deliver(1, batch, 0, 4, NOW) == (message(1, b"a") + message(1, b""), 2)
        assert k.fast_deliver(1, batch, 3, 4, NOW) == (b"", 0)
        assert k.fast_deliver(1, batch, 2, 2, NOW) == (b"", 0)

    def test_deliver_and_publish_refuse(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b"])
        broken = bytearray(batch)
        struct.pack_into("<i", broken, k.layout(batch)[4] + 4, 99)
        good: tuple[Any, ...] = (1, batch, 0, 2, NOW)
        for at, value in ((0, -1), (0, 1 << 32), (1, broken), (1, b""), (2, -1), (2, 3), (3, 3)):
            with pytest.raises((ValueError, OverflowError)):
                k.fast_deliver(*good[:at], value, *good[at + 1 :])
        for wrong in ((bytes(256), 1, []), (b"", -1, []), (b"", 1 << 32, []), (b"", 1, [bytes(CEILING + 1)])):
            with pytest.raises((ValueError, OverflowError)):
                k.fast_publish(*wrong)
        assert k.fast_publish(bytes(255), 1, []) == b""

    # -- what a client reads ------------------------------------------------------------------------------------------

    def test_received_runs(self, k: ModuleType) -> None:
        data = (
            message(1, b"a")
            + message(1, b"")
            + message(2, b"c")
            + result(0x7E, 3, 1) * 3
            + result(0x7E, 2, 1)
            + result(0x7E, 2, 9)
            + key_update(1, b"k" * 255)
            + key_update(1, b"")
            + result(0x7F, 3, 1, 403, "nö".encode())
            + result(0x7F, 0, 0, 65535, b"e" * 255)
            + message(1, b"z")
        )
        want = [
            (4, 1, [b"a", b""]),
            (4, 2, [b"c"]),
            (0x7E, 3, 1, 3),
            (0x7E, 2, 1, 1),
            (0x7E, 2, 9, 1),
            (6, 1, b"k" * 255),
            (6, 1, b""),
            (0x7F, 3, 1, 403, "nö".encode()),
            (0x7F, 0, 0, 65535, b"e" * 255),
            (4, 1, [b"z"]),
        ]
        assert k.fast_received(data, 0, PAYLOAD_MAX) == (want, len(data), 0)
        for cut in range(len(data) + 1):
            _, consumed, fatal = k.fast_received(data[:cut], 0, PAYLOAD_MAX)
            assert not fatal and k.fast_received(data, consumed, PAYLOAD_MAX)[1:] == (len(data), 0)

    @pytest.mark.parametrize(
        ("data", "fatal"),
        [
            *((bytes((kind,)), 1) for kind in (0, 1, 2, 3, 5, 7, 0x70, 0x7D, 0x80, 255)),
            (b"\x04" + u32(1) + u32(101), 2),
            (b"\x04" + u32(1) + u32(MAX_U32), 2),
            (result(0x7E, 3, 1, 1), 3),
            (struct.pack(">BBIHB", 0x7E, 3, 1, 0, 1), 3),
        ],
    )
    def test_received_fatal(self, k: ModuleType, data: bytes, fatal: int) -> None:
        good = message(1, bytes(100)) + result(0x7E, 3, 1)
        items, consumed, got = k.fast_received(good + data, 0, 100)
        assert ([item[0] for item in items], consumed, got) == ([4, 0x7E], len(good), fatal)

    def test_received_refuses_bad_arguments(self, k: ModuleType) -> None:
        for bad in ((b"", -1, 1), (b"", 1, 1), (b"", 0, 0), (b"", 0, CEILING + 1)):
            with pytest.raises(ValueError):
                k.fast_received(*bad)
