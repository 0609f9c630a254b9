"""Record sets: what goes in comes out, limits are named, and native and pure are one kernel on hostile input too."""

import random
import struct
from types import ModuleType
from typing import Any

import pytest

from quintet.kernel import pure, pure_records
from quintet.model import limits
from quintet.model.batch import AT_MOST_ONCE, RecordBatch
from quintet.model.keys import fnv1a
from tests.kernel import generate
from tests.kernel.frames import native_twin
from tests.kernel.test_differential import CASES, NOW, REFUSED, SEED, same, valid_batch
from tests.wire import records
from tests.wire.records import Record

HEADERS = ((b"a", b"1"), (b"b", None), (b"c", b""), (b"a", b"2"))
PAIRS = tuple((name.decode(), value) for name, value in HEADERS)


@pytest.fixture(scope="module")
def native() -> ModuleType:
    return native_twin()


class TestSets:
    def test_what_a_client_packs_is_what_the_document_says(self, k: ModuleType) -> None:
        packed = k.records_pack([b"v", b"", b"w"], [b"k", None, b""], [k.headers_pack(PAIRS), b"", b""], 7)
        expected = [Record(b"v", b"k", HEADERS, 7), Record(b"", ttl_ms=7), Record(b"w", ttl_ms=7)]
        assert packed == records.pack(*expected)
        assert records.split(packed) == expected

    def test_a_set_is_packed_between_head_and_tail_of_its_frame(self, k: ModuleType) -> None:
        plain = k.records_pack([b"v", b"w"], None, None, 7)
        head = b"AB" + struct.pack(">I", 5) + b"C" + struct.pack(">I", 0)
        framed = k.records_pack([b"v", b"w"], None, None, 7, head, b"tail", (2, 7))
        lengths = struct.pack(">I", 5 + len(plain)), struct.pack(">I", len(plain))
        assert framed == b"AB" + lengths[0] + b"C" + lengths[1] + plain + b"tail"
        for at in (8, 1 << 40):
            with pytest.raises(ValueError, match="places of four bytes in the head"):
                k.records_pack([b"v"], None, None, 0, head, b"", (at,))
        with pytest.raises(OverflowError):
            k.records_pack([b"v"], None, None, 0, b"\xff" * 4, b"", (0,))

    def test_a_set_becomes_a_batch_for_each_partition(self, k: ModuleType) -> None:
        sent = records.pack(Record(b"0"), Record(b"1", b"x", HEADERS), Record(None, b"y"), Record(b"3", b"x", ttl_ms=2))
        groups, order = k.records_split(sent, -1, 2, b"o", NOW)
        assert [(partition, count) for partition, _, count in groups] == [
            (-1, 1),
            (fnv1a(b"x") % 2, 2),
            (fnv1a(b"y") % 2, 1),
        ]
        assert struct.unpack("<4H", order) == (0, 1, 2, 1)
        ((partition, batch, count),), order = k.records_split(sent, -1, 1, b"o", NOW)  # one keeps the order
        assert (partition, count, order) == (0, 4, bytes(8))
        rows = RecordBatch(batch).rows()[1:]
        assert [row[2:] for row in rows] == [
            (b"x", b"1", HEADERS, 0, b"o"), (b"y", None, (), 0, b"o"), (b"x", b"3", (), NOW + 2_000, b"o"),
        ]  # fmt: skip

    def test_a_named_partition_is_for_all(self, k: ModuleType) -> None:
        groups, _ = k.records_split(records.pack(Record(b"0"), Record(b"1", b"x")), 2, 3, b"", NOW, AT_MOST_ONCE)
        assert [(partition, count) for partition, _, count in groups] == [(2, 2)]
        assert RecordBatch(groups[0][1]).at_most_once

    def test_a_key_chooses_the_partition_that_flymq_chooses(self, k: ModuleType) -> None:
        keys = [f"k{number}".encode() for number in range(50)]
        groups, order = k.records_split(k.records_pack(keys, keys), -1, 7, b"", NOW)
        chosen = [groups[number][0] for number in struct.unpack("<50H", order)]
        assert chosen == [k.fnv1a(key) % 7 for key in keys]

    def test_a_delivery_says_everything_once(self, k: ModuleType) -> None:
        batch = k.build([b"v", None, b"w"], [b"k", None, None], [HEADERS, (), ()], origin=b"flymq:ann")
        k.place(batch, 10, 5)
        data, count, following = k.records_deliver(batch, 0, 3, 0, 1 << 48, 1 << 20)
        first = Record(b"v", b"k", HEADERS, None, (1 << 48) + 10, 5, b"flymq:ann")
        assert (records.split(data), count, following) == ([first, Record(None), Record(b"w")], 3, 3)
        rows = k.records_received(data, 1)
        assert rows == [
            ((1 << 48) + 10, 1, b"v", b"k", k.headers_pack(PAIRS), 5, b"flymq:ann"),
            ((1 << 48) + 11, 1, b"", None, b"", 5, b"flymq:ann"),
            ((1 << 48) + 12, 1, b"w", None, b"", 5, b"flymq:ann"),
        ]
        assert k.headers_unpack(rows[0][4]) == PAIRS

    def test_headers_are_packed_from_a_mapping_or_from_pairs(self, k: ModuleType) -> None:
        given = {"a": "1", "b": None, "c": b"\xff"}
        assert k.headers_unpack(k.headers_pack(given)) == (("a", b"1"), ("b", None), ("c", b"\xff"))
        assert k.headers_pack(given) == k.headers_pack(iter(given.items()))
        assert k.headers_pack({}) == b"" and k.headers_unpack(b"") == ()
        for wrong in ({1: "x"}, {"x": 1}, ["ab", "c"], 5):
            with pytest.raises((TypeError, ValueError)):
                k.headers_pack(wrong)
        for broken in (b"\0", k.headers_pack(given)[:-1], k.headers_pack(given) + b"x"):
            with pytest.raises(ValueError, match="add up"):
                k.headers_unpack(broken)

    @pytest.mark.parametrize(
        ("most", "beyond"),
        [
            ([("n", "")] * limits.HEADERS_MAX, [("n", "")] * (limits.HEADERS_MAX + 1)),
            ({"n": b"x" * (limits.HEADERS_BYTES_MAX - 1)}, {"n": b"x" * limits.HEADERS_BYTES_MAX}),
            ({"n" * 255: ""}, {"n" * 256: ""}),
            ({"q": None}, {"": None}),
            ({"quintet": ""}, {"quintet-x": ""}),
        ],
        ids=["many", "long", "long name", "no name", "reserved"],
    )
    def test_what_a_server_would_refuse_is_not_packed(self, k: ModuleType, most: Any, beyond: Any) -> None:
        for given in (most, beyond):
            pairs = given.items() if isinstance(given, dict) else given
            headers = tuple((n.encode(), v.encode() if isinstance(v, str) else v) for n, v in pairs)
            refused = len(k.records_split(records.pack(Record(headers=headers)), -1, 1, b"", NOW)) == 3
            assert refused == (given is beyond)
        assert k.headers_pack(most)
        with pytest.raises(OverflowError):
            k.headers_pack(beyond)

    def test_a_delivery_ends_before_its_bound_and_goes_on_behind(self, k: ModuleType) -> None:
        batch = k.build([b"x" * 100] * 5)
        k.place(batch, 0, 0)
        found, first = [], 0
        while first < 5:
            data, count, first = k.records_deliver(batch, first, 5, 0, 0, 250)
            assert count in (1, 2)
            found += [row[0] for row in k.records_received(data, 0)]
        assert found == [0, 1, 2, 3, 4]
        assert k.records_deliver(batch, 0, 5, 0, 0, 1)[1] == 1  # one record is never held back

    def test_expired_records_are_left_out(self, k: ModuleType) -> None:
        batch = k.build([b"a", b"b", b"c"], expiries=[0, 50, 150])
        k.place(batch, 3, 0)
        assert [row[0] for row in k.records_received(k.records_deliver(batch, 0, 3, 100, 0, 999)[0], 0)] == [3, 5]

    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            (records.pack(Record(b"v"))[:-1], (1, 0, 0)),
            (records.pack(Record(b"v"), Record(b"v", number=1)), (2, 1, 1)),
            (b"", (3, 0, 0)),
            (records.pack(Record(headers=((b"n", b""),) * (limits.HEADERS_MAX + 1))), (5, 0, limits.HEADERS_MAX + 1)),
            (records.pack(Record(headers=((b"n", b"x" * limits.HEADERS_BYTES_MAX),))), (6, 0, limits.HEADERS_BYTES_MAX + 1)),
            (records.pack(Record(), Record(headers=((b"", b""),))), (7, 1, 0)),
            (records.pack(Record(headers=((b"n" * 256, b""),))), (7, 0, 256)),
            (records.pack(Record(headers=((b"n", b""), (b"\xff", b"")))), (8, 0, 1)),
            (records.pack(Record(headers=((b"quintet-dead-topic", b""),))), (9, 0, 0)),
        ],
        ids=["short", "bits", "empty", "many", "long", "no name", "long name", "not utf-8", "reserved"],
    )  # fmt: skip
    def test_a_refusal_says_what_and_where(self, k: ModuleType, sent: bytes, expected: tuple[int, ...]) -> None:
        assert k.records_split(sent, -1, 1, b"", NOW) == expected

    def test_over_a_million_records_are_refused(self, k: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        """The pure twin takes 5 s for a million: it has the same number, and keeps to a smaller one in its place."""
        assert pure_records.RECORDS_MAX == limits.RECORDS_MAX
        bound = limits.RECORDS_MAX if k is not pure else 1_000
        monkeypatch.setattr(pure_records, "RECORDS_MAX", bound)
        one = records.pack(Record(b""))
        assert k.records_split(one * (bound + 1), -1, 1, b"", NOW)[0] == 4
        assert k.records_split(one * bound, -1, 1, b"", NOW)[0] != 4

    def test_a_count_that_lies_allocates_nothing(self, k: ModuleType) -> None:
        lie = bytes((records.HEADERS,)) + struct.pack(">I", 0xFFFFFFFF)
        assert k.records_split(lie, -1, 1, b"", NOW)[0] == 1
        with pytest.raises(ValueError, match="add up"):
            k.records_received(lie, 0)


def a_record(r: random.Random) -> Record:
    names = (b"a", b"trace", b"quintet-x", b"", b"\xff", b"n" * 256, "ü".encode())
    pairs = [(r.choice(names[:2]), r.choice((None, b"", r.randbytes(5)))) for _ in range(r.choice((0, 0, 1, 3)))]
    if r.random() < 0.05:
        pairs.append((r.choice(names), b"x"))
    value = None if r.random() < 0.1 else r.randbytes(r.randrange(20))
    ttl = r.choice((None, None, 0, r.getrandbits(32)))
    return Record(value, r.choice((None, b"", b"k", r.randbytes(3))), tuple(pairs), ttl)


def packs(native: ModuleType, r: random.Random) -> None:
    """What a client packs: both twins make the same bytes, which are read as they were given."""
    columns = [a_record(r) for _ in range(r.randrange(0, 6))]
    lists = [[(name.decode(errors="replace"), value) for name, value in one.headers] for one in columns]
    found = [same(native, "headers_pack", r.choice((pairs, tuple(pairs)))) for pairs in lists]
    if REFUSED in found:
        return
    ttl = r.choice((0, 1, (1 << 32) - 1))
    data = same(
        native,
        "records_pack",
        [one.value or b"" for one in columns],
        r.choice((None, [one.key for one in columns])),
        r.choice((None, found)),
        ttl,
        *r.choice(((), (b"\0" * 9, b"end", (r.randrange(8),)))),
    )
    if data == REFUSED:  # a place that is not in the head
        return
    if data.endswith(b"end") and data.startswith(b"\0"):
        data = data[9:-3]
    assert [one.value for one in records.split(data)] == [one.value or b"" for one in columns]


def sets(native: ModuleType, r: random.Random) -> None:
    data = records.pack(*(a_record(r) for _ in range(r.randrange(1, 8))))
    partitions = r.choice((1, 3))
    for text in (data, generate.mutated(r, data), data[: r.randrange(len(data) + 1)], r.randbytes(30)):
        found: Any = same(native, "records_split", text, r.choice((-1, -1, 0)), partitions, b"o", NOW, r.choice((0, 1)))
        if found != REFUSED and len(found) == 2:
            for _, batch, count in found[0]:
                native.seal(batch, 0, 0, 0)
                assert native.check(batch, 0, 0) == len(batch) and RecordBatch(batch).count == count
        same(native, "records_received", text, 1)
        same(native, "headers_unpack", text)


def deliveries(native: ModuleType, r: random.Random) -> None:
    batch = valid_batch(native, r)
    n = struct.unpack_from("<I", batch, 24)[0]
    first = r.randrange(n)
    base, most = r.choice((0, 1 << 48, 1 << 62)), r.choice((1, 50, 1 << 20))
    for text in (bytes(batch), generate.mutated(r, bytes(batch))):
        found = same(native, "records_deliver", text, first, r.randrange(first, n + 1), r.choice((0, NOW)), base, most)
        if found != REFUSED and text == bytes(batch):
            assert len(same(native, "records_received", found[0], 0)) == found[1]


@pytest.mark.parametrize("check", [sets, deliveries, packs])
def test_both_twins_agree(native: ModuleType, check: Any) -> None:
    for case in range(CASES // 5):
        r = random.Random(SEED + case)
        try:
            check(native, r)
        except AssertionError as error:
            raise AssertionError(f"seed {SEED + case}: {error}") from error


def test_a_twin_that_forgets_a_header_is_caught(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pure.records_received

    def forgetful(data: Any, qos: int) -> Any:
        return [(*row[:4], b"", *row[5:]) for row in honest(data, qos)]

    monkeypatch.setattr(pure, "records_received", forgetful)
    with pytest.raises(AssertionError, match="records_received"):
        for case in range(200):
            deliveries(native, random.Random(SEED + case))
