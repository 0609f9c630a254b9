"""Lake tables: a batch counts once whatever is cut off when, readers see whole files only, columns come and never change.

The committers are called as Spark's driver calls them, without Spark; test_lake_queries.py goes through the real sink.
"""

import datetime
import decimal
import importlib
import os
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from quintet.spark import lake
from quintet.spark.lake import meta, schema
from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.opening import FORMATS, table_of
from quintet.spark.lake.parquet import ParquetTable
from quintet.spark.lake.sink import BatchWriter, Sink, settings
from quintet.spark.lake.storage import files, journal, swap
from quintet.spark.lake.storage.files import File, Heaps
from quintet.spark.lake.table import LakeTable
from quintet.spark.source.options import OptionError

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("date", pa.date32()),
    ]
)
START = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)
BY = ("date", "topic")
TOPICS = ("orders", "a b", "50%", "ü/x", "12")
CUT = RuntimeError("cut off")


def rows(first: int, count: int, topics: tuple[str, ...] = ("orders",), step: int = 1) -> pa.Table:
    numbers = range(first, first + count)
    times = [START + datetime.timedelta(minutes=number) for number in numbers]
    return pa.table(
        {
            "value": [b"v%d" % number for number in numbers],
            "headers": [[{"key": "n", "value": b"\xff"}] for _ in numbers],
            "topic": [topics[number % len(topics)] for number in numbers],
            "partition": [0] * count,
            "offset": list(numbers)[::step],
            "timestamp": times,
            "date": [time.date() for time in times],
        },
        schema=SCHEMA,
    )


def stage(table: LakeTable, writer: str, batch_id: int, *parts: pa.Table) -> list[File]:
    """What the tasks of one batch do, one for each part."""
    staged = []
    for part in parts:
        heaps = Heaps(table.path, writer, batch_id, table.columns(), in_place=table.in_place)
        for batch in part.to_batches(max_chunksize=7):
            heaps.add(batch)
        staged += heaps.finish()
    return staged


def put(table: LakeTable, writer: str, batch_id: int, *parts: pa.Table) -> bool:
    return table.commit(writer, batch_id, stage(table, writer, batch_id, *parts), parts[0].schema)


def offsets(table: LakeTable) -> list[int]:
    _, paths = table.listing()
    found = files.read_files(paths).column("offset").to_pylist() if paths else []
    return sorted(found)


def folder(table: LakeTable) -> Path:
    assert isinstance(table.path, Path)
    return table.path


def left(table: LakeTable) -> list[Path]:
    return [path for path in (folder(table) / files.STAGING).rglob("*") if path.is_file()]


@pytest.fixture(params=sorted(FORMATS))
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return table_of(str(tmp_path / "table"), request.param, BY)


class TestCommit:
    def test_batches_are_there_once_however_often_they_come(self, table: LakeTable) -> None:
        assert put(table, "q", 0, rows(0, 10), rows(10, 10))
        assert not put(table, "q", 0, rows(0, 10), rows(10, 10))
        assert put(table, "q", 1, rows(20, 5))
        assert not put(table, "q", 0, rows(0, 20))
        assert offsets(table) == list(range(25))
        assert table.fence("q") == 1
        assert left(table) == []

    def test_writers_have_fences_of_their_own(self, table: LakeTable) -> None:
        assert put(table, "one", 3, rows(0, 5))
        assert put(table, "other/äö", 3, rows(5, 5))
        assert offsets(table) == list(range(10))

    def test_a_replay_that_differs_is_refused(self, table: LakeTable) -> None:
        put(table, "q", 0, rows(0, 10))
        with pytest.raises(LakeError, match=r"batch 0 of q was written .* with 10 rows, and now has 11"):
            put(table, "q", 0, rows(0, 11))
        staged = stage(table, "q", 0, rows(0, 9))  # a record has expired
        assert not table.commit("q", 0, staged, SCHEMA, accept_other=True)
        assert offsets(table) == list(range(10))
        assert left(table) == []

    def test_files_that_nobody_committed_are_not_seen_and_go(self, table: LakeTable) -> None:
        put(table, "q", 0, rows(0, 3))
        stage(table, "q", 1, rows(100, 50))  # a task that was tried twice
        assert offsets(table) == [0, 1, 2]
        put(table, "q", 1, rows(3, 3))
        assert offsets(table) == list(range(6))
        assert left(table) == []

    def test_what_others_stage_stays_for_a_day(self, table: LakeTable) -> None:
        stage(table, "other", 7, rows(0, 1))
        put(table, "q", 0, rows(0, 3))
        assert len(left(table)) == 1
        os.utime(left(table)[0].parent, (0, 0))
        put(table, "q", 1, rows(3, 3))
        assert left(table) == []

    def test_partition_values_are_directories_with_any_name(self, table: LakeTable) -> None:
        long = "ü" * 127
        put(table, "q", 0, rows(0, 30, (*TOPICS, long)))
        schema, paths = table.listing()
        found = files.read_files(paths)
        assert sorted(set(found.column("topic").to_pylist())) == sorted({*TOPICS, long})
        assert len(paths) == len(TOPICS) + 1
        for path in paths:
            assert len(set(files.read_files([path]).column("topic").to_pylist())) == 1
        assert schema == SCHEMA

    def test_null_is_a_partition_value(self, table: LakeTable) -> None:
        nulls = rows(0, 4).set_column(2, "topic", pa.nulls(4, pa.string()))
        put(table, "q", 0, nulls)
        put(table, "q", 1, rows(4, 2))
        assert offsets(table) == list(range(6))
        assert schema.NULL_DIRECTORY in str(table.listing()[1])

    def test_an_empty_batch_makes_a_table_without_rows(self, table: LakeTable) -> None:
        assert table.commit("q", 0, [], SCHEMA)
        assert table.listing() == (SCHEMA, [])
        assert put(table, "q", 0, rows(0, 1))

    def test_a_write_that_comes_once_leaves_no_fence(self, table: LakeTable) -> None:
        put(table, "once-1", 0, rows(0, 1))
        put(table, "once-2", 0, rows(1, 1))
        assert offsets(table) == [0, 1]
        assert table.journal.writers() == []

    def test_commits_are_kept_for_a_while_only(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(journal, "KEPT", 2)
        table = ParquetTable(str(tmp_path / "t"), BY)
        for batch_id in range(5):
            put(table, "q", batch_id, rows(batch_id, 1))
        assert sorted(path.name for path in folder(table).glob("_quintet/commits/q/*")) == ["3.json", "4.json"]
        assert not put(table, "q", 1, rows(1, 1))


class TestCutOff:
    """The driver dies somewhere in a commit; the next one begins with what is on the disk."""

    @pytest.mark.parametrize("renames", [0, 1, 2])
    def test_between_the_manifest_and_the_renames(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
    ) -> None:
        table = ParquetTable(str(tmp_path / "t"), BY)
        put(table, "q", 0, rows(0, 3))
        parts = (rows(3, 4, ("a", "b", "c")),)
        staged = stage(table, "q", 1, *parts)

        with monkeypatch.context() as patch:
            _stop_after(patch, renames)
            with pytest.raises(RuntimeError, match="cut off"):
                table.commit("q", 1, staged, SCHEMA)
        seen = [path for path in folder(table).rglob("*.parquet")]
        assert len(seen) == 1 + renames  # a reader of files sees whole files, some later than others

        again = ParquetTable(str(table.path), BY)
        assert offsets(again) == list(range(7))
        assert not put(again, "q", 1, *parts)  # Spark replays the batch: its checkpoint does not have it
        assert offsets(again) == list(range(7))
        assert left(again) == []

    def test_the_next_commit_finishes_it_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = ParquetTable(str(tmp_path / "t"), BY)
        staged = stage(table, "q", 0, rows(0, 4, ("a", "b")))
        with monkeypatch.context() as patch:
            _stop_after(patch, 1)
            with pytest.raises(RuntimeError, match="cut off"):
                table.commit("q", 0, staged, SCHEMA)
        assert put(table, "q", 1, rows(4, 2))
        glob = str(table.path / "**/*.parquet")
        assert duckdb.connect().execute(f"select count(*), count(distinct \"offset\") from '{glob}'").fetchone() == (
            6,
            6,
        )

    @pytest.mark.parametrize("format", ["delta", "iceberg"])
    def test_files_in_place_that_the_log_does_not_have(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
    ) -> None:
        table = table_of(str(tmp_path / "t"), format, BY)
        put(table, "q", 0, rows(0, 3))
        with monkeypatch.context() as patch:
            _break(patch, format)
            with pytest.raises(RuntimeError, match="cut off"):
                put(table, "q", 1, rows(3, 4))
        assert len(list(folder(table).glob("date=*/*/*.parquet"))) == 2
        assert offsets(table) == [0, 1, 2]
        assert len(list(folder(table).glob("date=*/*/*.parquet"))) == 1  # taken back
        assert put(table, "q", 1, rows(3, 4))
        assert offsets(table) == list(range(7))

    @pytest.mark.parametrize("format", ["delta", "iceberg"])
    def test_after_the_log_and_before_we_noted_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
    ) -> None:
        table = table_of(str(tmp_path / "t"), format, BY)
        with monkeypatch.context() as patch:
            patch.setattr(journal.Journal, "mark_committed", _cut)
            with pytest.raises(RuntimeError, match="cut off"):
                put(table, "q", 0, rows(0, 4))
        assert not put(table, "q", 0, rows(0, 4))
        assert offsets(table) == [0, 1, 2, 3]

    @pytest.mark.parametrize("format", sorted(FORMATS))
    def test_a_write_that_comes_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
        """Nobody comes back for it, so the next reader finishes it."""
        table = table_of(str(tmp_path / "t"), format, BY)
        with monkeypatch.context() as patch:
            patch.setattr(journal.Journal, "mark_committed", _cut)
            patch.setattr(journal.Journal, "sweep", _cut)
            with pytest.raises(RuntimeError, match="cut off"):
                put(table, "once-1", 0, rows(0, 4))
        assert offsets(table) == [0, 1, 2, 3]
        put(table, "once-2", 0, rows(4, 1))
        assert offsets(table) == [0, 1, 2, 3, 4]

    def test_a_writer_that_never_came_back_loses_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = ParquetTable(str(tmp_path / "t"), BY)
        with monkeypatch.context() as patch:
            _stop_after(patch, 0)
            with pytest.raises(RuntimeError, match="cut off"):
                put(table, "q", 0, rows(0, 4))
        os.utime(left(table)[0].parent, (0, 0))
        put(table, "other", 0, rows(4, 1))
        assert offsets(table) == [0, 1, 2, 3, 4]

    def test_before_the_table_is_written_down(self, table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(meta, "save", _cut)
            with pytest.raises(RuntimeError, match="cut off"):
                put(table, "q", 0, rows(0, 4))
        put(table, "q", 0, rows(0, 4))
        assert lake.kind(str(table.path)) == table.format
        assert offsets(table) == [0, 1, 2, 3]

    def test_a_swap_of_two_renames(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(swap, "exchange", lambda one, other: False)
        table = ParquetTable(str(tmp_path / "t"), BY)
        for batch_id in range(3):
            put(table, "q", batch_id, rows(batch_id, 1))
        with monkeypatch.context() as patch:
            _stop_after(patch, 2)  # the merged file to the new directory, the old directory away
            with pytest.raises(RuntimeError, match="cut off"):
                table.compact()
        assert list(folder(table).rglob("*.parquet")) == []
        assert offsets(table) == [0, 1, 2]
        assert list(tmp_path.iterdir()) == [table.path]

    def test_spark_gives_up_what_is_committed_half_way(self, table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rename fails when the batch is in the log already, Spark says abort: no row may go with it."""
        sink = Sink(settings({"path": str(table.path), "format": table.format}), from_arrow_schema(SCHEMA), False)
        staged = sink._stage("q", 0, iter(rows(0, 3).to_batches()))
        with monkeypatch.context() as broken:
            broken.setattr(Path, "rename", _cut)
            with pytest.raises(RuntimeError, match="cut off"):
                sink._commit([staged])
        sink._abort([staged])
        put(table_of(str(table.path), table.format), "q", 0, rows(0, 3))  # Spark runs it again
        assert offsets(table) == [0, 1, 2]

    def test_spark_gives_up_what_was_only_staged(self, table: LakeTable) -> None:
        sink = Sink(settings({"path": str(table.path), "format": table.format}), from_arrow_schema(SCHEMA), False)
        sink._abort([sink._stage("q", 0, iter(rows(0, 3).to_batches()))])
        assert left(table) == []


def _cut(*args: Any, **more: Any) -> Any:
    raise CUT


def _stop_after(patch: pytest.MonkeyPatch, renames: int) -> None:
    real = Path.rename
    done = 0

    def rename(self: Path, target: Path) -> Path:
        nonlocal done
        if self.exists():  # a rename that was done before is tried again
            if done == renames:
                raise CUT
            done += 1
        return real(self, target)

    patch.setattr(Path, "rename", rename)


def _break(patch: pytest.MonkeyPatch, format: str) -> None:
    if format == "delta":
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", _cut)
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        patch.setattr(SqlCatalog, "commit_table", _cut)


class TestColumns:
    def test_a_new_column_is_added_and_null_before(self, table: LakeTable) -> None:
        put(table, "q", 0, rows(0, 2))
        wider = rows(2, 2).append_column("region", pa.array(["eu", None]))
        put(table, "q", 1, wider)
        put(table, "q", 2, rows(4, 1))
        columns, paths = table.listing()
        assert columns == SCHEMA.append(pa.field("region", pa.string()))
        found = files.read_files(paths).sort_by("offset")
        assert found.column("region").to_pylist() == [None, None, "eu", None, None]

    def test_a_changed_type_is_refused(self, table: LakeTable) -> None:
        put(table, "q", 0, rows(0, 2))
        other = rows(2, 2).set_column(4, "offset", pa.array(["2", "3"]))
        with pytest.raises(LakeError, match=r"column 'offset' is int64 in the table and string in the rows; cast it"):
            put(table, "q", 1, other)
        assert offsets(table) == [0, 1]

    def test_names_that_differ_by_case_alone_are_refused(self, table: LakeTable) -> None:
        put(table, "q", 0, rows(0, 2))
        twin = rows(2, 2).append_column("Offset", pa.array(["eu", None]))
        with pytest.raises(LakeError, match="column 'Offset' of the rows and 'offset' of the table differ by case"):
            put(table, "q", 1, twin)

    def test_other_partition_columns_are_refused(self, table: LakeTable) -> None:
        put(table, "q", 0, rows(0, 2))
        with pytest.raises(LakeError, match="partitioned by date, topic, not by date;"):
            table_of(str(table.path), table.format, ("date",)).check(SCHEMA)

    @pytest.mark.parametrize(
        ("by", "words"),
        [(("nope",), "no column 'nope'"), (("timestamp",), "cannot be partitioned"), (("date", "date"), "twice")],
    )
    def test_columns_that_cannot_be_directories(self, tmp_path: Path, by: tuple[str, ...], words: str) -> None:
        with pytest.raises(LakeError, match=words):
            ParquetTable(str(tmp_path / "t"), by).check(SCHEMA)

    def test_every_type_that_spark_writes_survives(self, table: LakeTable) -> None:
        item = pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.field("element", pa.string())))])
        kinds = {
            "boolean": (pa.bool_(), True),
            "short": (pa.int16(), -3),
            "float": (pa.float32(), 0.5),
            "double": (pa.float64(), 0.25),
            "decimal": (pa.decimal128(12, 2), decimal.Decimal("1.25")),
            "local": (pa.timestamp("us"), datetime.datetime(2026, 1, 1)),  # noqa: DTZ001
            "struct": (item, {"a": 1, "b": ["x", None]}),
            "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        }
        for batch_id in range(2):
            wide = rows(batch_id, 1)
            for name, (kind, value) in kinds.items():
                wide = wide.append_column(name, pa.array([value], kind))
            put(table, "q", batch_id, wide)
        table.compact()
        found = files.read_files(table.listing()[1])
        for name, (_, value) in kinds.items():
            assert found.column(name).to_pylist() == [value, value]
        assert table.listing()[0] == schema.normal(wide.schema)

    def test_times_that_no_calendar_has_are_kept(self, table: LakeTable) -> None:
        odd = [-(1 << 56), 1 << 61, 0]
        for batch_id in range(2):
            some = rows(3 * batch_id, 3).set_column(5, "timestamp", pa.array(odd, pa.timestamp("us", tz="UTC")))
            assert put(table, "q", batch_id, some)
        table.compact()
        _, paths = table.listing()
        times = files.read_files(paths).column("timestamp").cast(pa.int64()).to_pylist()
        assert sorted(times) == sorted(odd * 2)

    def test_spellings_of_types_are_one(self) -> None:
        spelled = pa.schema(
            [
                ("a", pa.large_string()),
                ("b", pa.binary_view()),
                ("c", pa.timestamp("ns", tz="Europe/Berlin")),
                ("d", pa.large_list(pa.large_binary())),
                ("e", pa.map_(pa.large_string(), pa.timestamp("ms"))),
            ]
        )
        assert schema.normal(spelled) == pa.schema(
            [
                ("a", pa.string()),
                ("b", pa.binary()),
                ("c", pa.timestamp("us", tz="UTC")),
                ("d", pa.list_(pa.field("element", pa.binary()))),
                ("e", pa.map_(pa.string(), pa.timestamp("us"))),
            ]
        )


class TestFiles:
    def test_rows_of_a_file_are_in_order(self, tmp_path: Path) -> None:
        table = ParquetTable(str(tmp_path / "t"), ("date",))
        put(table, "q", 0, rows(0, 20, ("b", "a")), rows(20, 20, ("a", "b"), step=-1))
        for path in table.paths():
            found = files.read_files([path]).select(["topic", "partition", "offset"]).to_pylist()
            keys = [tuple(row.values()) for row in found]
            assert keys == sorted(keys)

    def test_files_end_at_their_size(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "FILE_BYTES", 1000)
        table = ParquetTable(str(tmp_path / "t"), ())
        staged = stage(table, "q", 0, rows(0, 100))
        assert len(staged) > 2 and sum(file.rows for file in staged) == 100

    def test_the_largest_heap_goes_when_all_are_too_much(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "HEAPS_BYTES_MAX", 2000)
        table = ParquetTable(str(tmp_path / "t"), ("topic",))
        staged = stage(table, "q", 0, rows(0, 100, ("a", "b", "c")))
        assert len(staged) > 3 and sum(file.rows for file in staged) == 100

    def test_a_task_that_fails_takes_its_files_with_it(self, tmp_path: Path) -> None:
        heaps = Heaps(tmp_path, "q", 0, ())
        heaps.add(rows(0, 5).to_batches()[0])
        assert len(heaps.finish()) == 1
        heaps.discard()
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    def test_compressed_with_row_groups(self, tmp_path: Path) -> None:
        table = ParquetTable(str(tmp_path / "t"), ())
        put(table, "q", 0, rows(0, 10))
        meta = pq.read_metadata(table.paths()[0])
        assert {meta.row_group(0).column(index).compression for index in range(meta.num_columns)} == {"ZSTD"}


class TestOtherReaders:
    def test_duckdb_reads_the_archive_with_its_types(self, tmp_path: Path) -> None:
        table = ParquetTable(str(tmp_path / "t"), BY)
        put(table, "q", 0, rows(0, 1440 * 2, TOPICS))
        stage(table, "q", 1, rows(0, 100))
        found = (
            duckdb.connect()
            .execute(
                f"select topic, date, count(*) from read_parquet('{table.path}/**/*.parquet', hive_partitioning=true) "
                "group by all order by all"
            )
            .fetchall()
        )
        day = datetime.date(2026, 11, 16)
        days = (day, day + datetime.timedelta(days=1))
        assert found == [(topic, date, 288) for topic in sorted(TOPICS) for date in days]

    def test_delta_by_its_own_reader(self, tmp_path: Path) -> None:
        from deltalake import DeltaTable

        table = table_of(str(tmp_path / "t"), "delta", BY)
        put(table, "q", 0, rows(0, 10, TOPICS))
        put(table, "q", 1, rows(10, 10, TOPICS))
        table.compact()
        found = pa.table(DeltaTable(str(table.path)).scan(predicate='"offset" >= 15'))
        assert sorted(found.column("offset").to_pylist()) == list(range(15, 20))
        old = DeltaTable(str(table.path), version=1)
        assert pa.table(old.scan()).num_rows == 10
        assert len(table.paths(1)) == len(TOPICS)

    def test_iceberg_by_its_own_reader(self, tmp_path: Path) -> None:
        from quintet.spark.lake.iceberg import Iceberg

        table = Iceberg(str(tmp_path / "t"), BY)
        put(table, "q", 0, rows(0, 10, TOPICS))
        put(table, "q", 1, rows(10, 10, TOPICS).append_column("more", pa.array(["x"] * 10)))
        table.compact()
        with table._must_open() as opened:
            found = opened.scan(row_filter="topic = 'a b' and offset >= 10").to_arrow()
            assert found.select(["offset", "more"]).to_pylist() == [
                {"offset": 11, "more": "x"},
                {"offset": 16, "more": "x"},
            ]
        assert len(table.paths(table.versions()[0])) == len(TOPICS)


class TestCompaction:
    def test_small_files_become_one_of_each_partition_value(self, table: LakeTable) -> None:
        for batch_id in range(4):
            put(table, "q", batch_id, rows(batch_id * 10, 10, ("a", "b")))
        done = table.compact()
        assert (done.before, done.after, done.rows) == (8, 2, 40)
        assert offsets(table) == list(range(40))
        assert len(table.paths()) == 2
        assert table.compact().before == 0
        assert put(table, "q", 4, rows(40, 10))
        assert not put(table, "q", 3, rows(30, 10))
        assert offsets(table) == list(range(50))
        assert left(table) == []

    def test_large_files_stay_and_groups_end_at_the_target(self, table: LakeTable) -> None:
        for batch_id in range(6):
            put(table, "q", batch_id, rows(batch_id * 10, 10))
        size = max(path.stat().st_size for path in table.paths())
        assert table.compact(target_bytes=size).before == 0
        assert table.compact(target_bytes=int(2.5 * size)).after == 3
        assert offsets(table) == list(range(60))

    def test_a_reader_of_a_parquet_table_never_sees_a_row_twice_or_not(self, tmp_path: Path) -> None:
        """Whoever lists the directory at any moment of the exchange: looked at on both sides of every system call of it."""
        table = ParquetTable(str(tmp_path / "t"), BY)
        for batch_id in range(3):
            put(table, "q", batch_id, rows(batch_id, 1))
        (place,) = {path.parent for path in table.paths()}
        assert isinstance(place, Path)
        views = []
        real = swap.exchange

        def exchange(one: Path, other: Path) -> bool:
            views.append(sorted(path.name for path in place.iterdir()))
            done = real(one, other)
            views.append(sorted(path.name for path in place.iterdir()))
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(swap, "exchange", exchange)
            table.compact()
        assert [len(view) for view in views] == [3, 1]
        assert offsets(table) == [0, 1, 2]

    @pytest.mark.parametrize("format", ["delta", "iceberg"])
    def test_a_table_without_partitions_again_and_again(self, tmp_path: Path, format: str) -> None:
        table = table_of(str(tmp_path / "t"), format, ())
        for batch_id in range(6):
            put(table, "q", batch_id, rows(batch_id, 1))
            table.compact()
        assert offsets(table) == list(range(6))
        assert len(table.paths()) == 1

    def test_null_and_nothing_are_two_values(self, table: LakeTable) -> None:
        for batch_id in range(2):
            some = rows(2 * batch_id, 2).set_column(2, "topic", pa.array([None, ""], pa.string()))
            put(table, "q", batch_id, some)
        table.compact()
        _, paths = table.listing()
        found = [files.read_files([path]).column("topic").to_pylist() for path in paths]
        assert sorted(found, key=str) == [["", ""], [None, None]]

    def test_files_that_cannot_be_merged_stop_no_stream(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        given = settings({"path": str(tmp_path / "t"), "compactEvery": "2"})
        sink = Sink(given, from_arrow_schema(SCHEMA), False)
        for batch_id in range(2):
            sink._commit([sink._stage("q", batch_id, iter(rows(batch_id, 1).to_batches()))])
        assert "were not merged: the table" in caplog.text
        assert offsets(sink._table()) == [0, 1]

    def test_a_parquet_table_without_partitions_cannot(self, tmp_path: Path) -> None:
        table = ParquetTable(str(tmp_path / "t"), ())
        for batch_id in range(2):
            put(table, "q", batch_id, rows(batch_id, 1))
        with pytest.raises(LakeError, match="no partition columns"):
            table.compact()
        assert offsets(table) == [0, 1]


class TestExpiry:
    @pytest.mark.parametrize("format", ["delta", "iceberg"])
    def test_old_versions_and_their_files_go_with_compaction(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
    ) -> None:
        table = table_of(str(tmp_path / "t"), format, BY)
        for batch_id in range(3):
            put(table, "q", batch_id, rows(batch_id, 1))
        table.compact()
        assert len(list(folder(table).glob("date=*/*/*.parquet"))) == 4  # for those who look back
        monkeypatch.setattr(importlib.import_module(type(table).__module__), "KEEP_HOURS", 0)
        if format == "delta":
            monkeypatch.setattr(deltalake.DeltaTable, "vacuum", _any_age(deltalake.DeltaTable.vacuum))
        put(table, "q", 3, rows(3, 1))
        table.compact()
        table.compact()
        assert offsets(table) == [0, 1, 2, 3]
        assert len(list(folder(table).glob("date=*/*/*.parquet"))) == 1


def _any_age(vacuum: Any) -> Any:
    """Delta refuses to forget what is younger than a week, unless it is told that this is meant."""
    return lambda table, hours, dry_run: vacuum(table, hours, dry_run=dry_run, enforce_retention_duration=False)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({}, "option path: it is missing"),
            ({"path": "/x", "format": "orc"}, "option format: 'orc' is not one of parquet, delta, iceberg"),
            ({"path": "/x", "compactEvery": "-1"}, "option compactEvery: '-1' is not"),
            ({"path": "/x", "txnAppId": "", "txnVersion": "1"}, "option txnAppId: it is empty"),
            ({"path": "/x", "failOnDataLoss": "no"}, "option failOnDataLoss: 'no' is not one of true, false"),
            ({"path": "/x", "txnAppId": ".."}, "option txnAppId: .* only dots"),
            ({"path": "/x", "partition": "a"}, "option partition: a lake table does not have it"),
        ],
    )
    def test_what_is_wrong_is_named(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(OptionError, match=words):
            settings(options)

    @pytest.mark.parametrize("half", [{"txnAppId": "me"}, {"txnVersion": "7"}])
    def test_half_a_name_of_a_batch_is_none(self, tmp_path: Path, half: dict[str, str]) -> None:
        with pytest.raises(OptionError, match="option txnAppId: it needs txnVersion"):
            BatchWriter(settings({"path": str(tmp_path / "t")} | half), from_arrow_schema(SCHEMA), False)

    @pytest.mark.parametrize("path", ["ftp://host/x", "s3://bucket", "/data/*", ""])
    def test_paths_that_are_none(self, path: str) -> None:
        with pytest.raises(LakeError, match="path"):
            table_of(path, "parquet")

    def test_no_table(self, tmp_path: Path) -> None:
        with pytest.raises(LakeError, match="there is no lake table at"):
            lake.kind(str(tmp_path))
        with pytest.raises(LakeError, match="there is no parquet table at"):
            ParquetTable(str(tmp_path / "t")).listing()
        with pytest.raises(LakeError, match="there are parquet, delta, iceberg"):
            table_of(str(tmp_path), "orc")
