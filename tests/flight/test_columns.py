"""Record batches out of gathered buffers, and whatever record batch a client sends into the arguments of scatter."""

import datetime
from typing import Any

import pytest

from quintet import kernel
from quintet.flight import columns, wire
from quintet.log.mapped import Gathered
from quintet.model.errors import BadRequest

pa = pytest.importorskip("pyarrow")

VALUES = [b"one", None, b"", b"four"]
KEYS = [b"k1", b"k2", None, b"k4"]
HEADERS: list[list[tuple[bytes, bytes]]] = [[(b"a", b"1"), (b"b", b"")], [], [(b"c", b"3")], []]
TIMES = [10, 20, 30, 40]
FAR = 1 << 40


def gathered(names: tuple[str, ...], data: bytes | bytearray) -> Gathered:
    count, buffers, _, _, reason = kernel.gather(
        data, 0, len(data), 7, 0, FAR, 1 << 20, 1 << 26, columns.bits(names), 0
    )
    assert reason == 0
    return Gathered(count, buffers)


def log_batch() -> bytearray:
    batch = kernel.build(VALUES, KEYS, HEADERS, TIMES, origin=b"test:me")
    kernel.seal(batch, 100, 5, 7)
    return batch


def scattered(batch: Any, partitions: int = 1) -> list[tuple[int, Any]]:
    """The rows that come out of the log again once a record batch went in: (partition, record batch)."""
    out = []
    for partition, made, rows in kernel.scatter(*columns.from_batch(batch), partitions, 0, b"test:me", 0, 1 << 20):
        kernel.seal(made, 0, 99, 7)
        found = columns.to_batch(gathered(wire.COLUMNS, made), "t", partition, wire.COLUMNS)
        assert found.num_rows == rows
        out.append((partition, found))
    return out


def only(batch: Any) -> dict[str, list[Any]]:
    [(_, found)] = scattered(batch)
    found.validate(full=True)
    values: dict[str, list[Any]] = found.to_pydict()
    return values


class TestOut:
    def test_every_column_is_what_the_log_holds(self) -> None:
        found = columns.to_batch(gathered(wire.COLUMNS, log_batch()), "orders", 3, wire.COLUMNS)
        found.validate(full=True)
        assert found.schema == columns.SCHEMA
        start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        assert found.to_pydict() == {
            "key": KEYS,
            "value": VALUES,
            "headers": [[{"key": a.decode(), "value": b} for a, b in row] for row in HEADERS],
            "topic": ["orders"] * 4,
            "partition": [3] * 4,
            "offset": [100, 101, 102, 103],
            "timestamp": [start + datetime.timedelta(microseconds=time) for time in TIMES],
            "origin": ["test:me"] * 4,
        }

    def test_columns_come_in_the_order_asked_for_and_nothing_else_is_made(self) -> None:
        names = ("offset", "value")
        found = columns.to_batch(gathered(names, log_batch()), "t", 0, names)
        assert found.schema == columns.schema_of(names)
        assert found.schema.names == ["offset", "value"]
        assert found.to_pydict() == {"offset": [100, 101, 102, 103], "value": VALUES}
        assert columns.bits(names) == 0b101
        assert columns.bits(("topic", "partition")) == 0

    def test_only_the_count_is_needed_for_topic_and_partition(self) -> None:
        found = columns.to_batch(gathered(("partition",), log_batch()), "t", 2, ("partition",))
        assert found.to_pydict() == {"partition": [2] * 4}

    @pytest.mark.parametrize("rows", [0, 1, 1023, 1025, columns.CONSTANT_ROWS_MAX, columns.CONSTANT_ROWS_MAX + 1])
    def test_constant_columns_have_any_length(self, rows: int) -> None:
        found = columns.to_batch(Gathered(rows, (None,) * 15), "t", 7, ("topic", "partition"))
        found.validate(full=True)
        assert found.num_rows == rows
        assert set(found.column("topic").to_pylist()) == ({"t"} if rows else set())
        assert set(found.column("partition").to_pylist()) == ({7} if rows else set())

    def test_no_rows(self) -> None:
        count, buffers, *_ = kernel.gather(b"", 0, 0, 7, 0, 1, 1, 1, 63, 0)
        found = columns.to_batch(Gathered(count, buffers), "t", 0, wire.COLUMNS)
        found.validate(full=True)
        assert found.num_rows == 0

    def test_the_buffers_are_not_copied(self) -> None:
        rows = gathered(("value",), log_batch())
        found = columns.to_batch(rows, "t", 0, ("value",))
        assert found.column("value").buffers()[2].address == pa.py_buffer(rows.buffers[4]).address

    def test_a_column_that_is_not_there_is_named(self) -> None:
        for call in (columns.bits, columns.schema_of):
            with pytest.raises(BadRequest, match="'valeu'"):
                call(("key", "valeu"))


class TestIn:
    def test_what_was_read_can_be_written_again(self) -> None:
        read = columns.to_batch(gathered(wire.COLUMNS, log_batch()), "orders", 0, wire.COLUMNS)
        found = only(read)
        for name in ("key", "value", "headers", "timestamp"):
            assert found[name] == read.column(name).to_pylist()

    def test_a_slice_at_any_bit_is_taken_right(self) -> None:
        n = 40
        read = pa.RecordBatch.from_pydict(
            {
                "value": [None if i % 3 == 0 else b"v%d" % i for i in range(n)],
                "key": [None if i % 5 == 0 else f"k{i}" for i in range(n)],
                "headers": [None if i % 4 == 0 else [{"key": "h", "value": b"%d" % i}] * (i % 3) for i in range(n)],
                "timestamp": pa.array(range(n), pa.timestamp("us")),
                "partition": pa.array([0] * n, pa.int64()),
            }
        )
        for at in range(20):
            part = read.slice(at, 17)
            found = only(part)
            assert found["value"] == part.column("value").to_pylist()
            assert found["key"] == [key and key.encode() for key in part.column("key").to_pylist()]
            assert found["headers"] == [lists or [] for lists in part.column("headers").to_pylist()]
            assert [time.microsecond for time in found["timestamp"]] == list(range(at, at + 17))

    @pytest.mark.parametrize(
        "kind",
        ["binary", "large_binary", "string", "large_string", "binary_view", "string_view", "dictionary"],
    )
    def test_values_and_keys_of_every_kind_of_bytes(self, kind: str) -> None:
        plain = pa.array(["a", None, "", "ddd"])
        column = plain.dictionary_encode() if kind == "dictionary" else plain.cast(getattr(pa, kind)())
        found = only(pa.RecordBatch.from_arrays([column, column], ["value", "key"]))
        assert found["value"] == found["key"] == [b"a", None, b"", b"ddd"]

    def test_fixed_size_bytes_and_null_columns(self) -> None:
        fixed = pa.array([b"ab", None], pa.binary(2))
        nothing = pa.nulls(2)
        names = ["value", "key", "headers", "timestamp", "partition", "topic", "offset", "origin"]
        found = only(pa.RecordBatch.from_arrays([fixed, *[nothing] * 7], names))
        assert (found["value"], found["key"], found["headers"]) == ([b"ab", None], [None, None], [[], []])
        assert [time.microsecond for time in found["timestamp"]] == [99, 99], "the time of the append"
        assert only(pa.RecordBatch.from_arrays([nothing], ["value"]))["value"] == [None, None]
        assert columns.from_batch(pa.RecordBatch.from_arrays([fixed, *[nothing] * 7], names))[2:] == (None,) * 4

    def test_headers_with_nulls(self) -> None:
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
        lists = [None, [{"key": "a", "value": None}, {"key": "b", "value": "2"}], []]
        for wanted in (kind, pa.large_list(kind.value_type)):
            batch = pa.RecordBatch.from_arrays([pa.array([b"v"] * 3), pa.array(lists, wanted)], ["value", "headers"])
            assert only(batch)["headers"] == [[], [{"key": "a", "value": None}, {"key": "b", "value": b"2"}], []]

    def test_lists_that_are_all_empty(self) -> None:
        batch = pa.RecordBatch.from_pydict({"value": [b"a", b"b"], "headers": [[], []]})
        assert only(batch)["headers"] == [[], []]

    def test_what_a_null_list_spans_does_not_count(self) -> None:
        pairs = pa.array([{"key": "x", "value": b"1"}, {"key": "y", "value": b"2"}])
        offsets = pa.array([0, 1, 2], pa.int32())
        lists = pa.ListArray.from_arrays(offsets, pairs, mask=pa.array([True, False]))
        batch = pa.RecordBatch.from_arrays([pa.array([b"v"] * 2), lists], ["value", "headers"])
        assert only(batch)["headers"] == [[], [{"key": "y", "value": b"2"}]]

    def test_the_order_of_the_header_fields_does_not_matter(self) -> None:
        kind = pa.list_(pa.struct([("value", pa.binary()), ("key", pa.string())]))
        lists = pa.array([[{"key": "a", "value": b"1"}]], kind)
        batch = pa.RecordBatch.from_arrays([pa.array([b"v"]), lists], ["value", "headers"])
        assert only(batch)["headers"] == [[{"key": "a", "value": b"1"}]]

    @pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
    @pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
    def test_times_of_every_unit(self, unit: str, zone: str | None) -> None:
        times = pa.array([1_500_000_001, 3], pa.timestamp("us", tz=zone)).cast(pa.timestamp(unit, tz=zone), safe=False)
        batch = pa.RecordBatch.from_arrays([pa.array([b"v"] * 2), times], ["value", "timestamp"])
        start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        step = {"s": 1_000_000, "ms": 1_000}.get(unit, 1)
        wanted = [start + datetime.timedelta(microseconds=time // step * step) for time in (1_500_000_001, 3)]
        assert only(batch)["timestamp"] == wanted

    def test_rows_go_to_the_partition_they_name(self) -> None:
        for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint16()):
            wishes = pa.array([2, None, 0, 2], kind)
            batch = pa.RecordBatch.from_arrays([pa.array([b"a", b"b", b"c", b"d"]), wishes], ["value", "partition"])
            found = {partition: one.column("value").to_pylist() for partition, one in scattered(batch, 3)}
            assert found == {0: [b"b", b"c"], 2: [b"a", b"d"]}

    def test_no_rows(self) -> None:
        empty = columns.SCHEMA.empty_table().to_batches()
        batch = empty[0] if empty else pa.RecordBatch.from_pylist([], schema=columns.SCHEMA)
        assert scattered(batch) == []

    @pytest.mark.parametrize(
        ("name", "column", "words"),
        [
            ("value", [1, 2], "`value` is int64"),
            ("key", [1.5, 2.5], "`key` is double"),
            ("headers", ["a", "b"], "`headers` is string"),
            ("headers", [[1], [2]], "`headers` is list"),
            ("headers", [[{"name": "a", "value": b"1"}], []], "`headers` is list"),
            ("headers", [[{"key": None, "value": b"1"}, {"key": "a", "value": b"1"}], []], "without a name"),
            ("headers", [[{"key": 5, "value": b"1"}], []], "`headers.key` is int64"),
            ("headers", [[{"key": "a", "value": 5}], []], "`headers.value` is int64"),
            ("timestamp", [1, 2], "`timestamp` is int64"),
            (
                "timestamp",
                [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), None],
                "`timestamp` is null in some rows",
            ),
            ("partition", ["0", "1"], "`partition` is string"),
            ("partition", [1 << 40, 0], "`partition` does not fit int32"),
            ("colour", ["red", "blue"], "no column 'colour'"),
        ],
    )
    def test_a_column_that_does_not_fit_is_named(self, name: str, column: list[Any], words: str) -> None:
        given = {"value": [b"v", b"w"]} | {name: column}
        with pytest.raises(BadRequest, match=words) as refused:
            columns.from_batch(pa.RecordBatch.from_pydict(given))
        assert refused.value.hint

    def test_a_time_too_large_is_refused(self) -> None:
        times = pa.array([1 << 60], pa.timestamp("s"))
        with pytest.raises(BadRequest, match="`timestamp` does not fit"):
            columns.from_batch(pa.RecordBatch.from_arrays([pa.array([b"v"]), times], ["value", "timestamp"]))

    def test_a_value_must_be_there_and_nothing_twice(self) -> None:
        with pytest.raises(BadRequest, match="no column `value`"):
            columns.from_batch(pa.RecordBatch.from_pydict({"key": [b"k"]}))
        twice = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], ["value", "value"])
        with pytest.raises(BadRequest, match="twice"):
            columns.from_batch(twice)
