"""Lake tables in an object store, against an S3 server: a batch counts once whoever is cut off when, and whoever else commits.

The committers are called as Spark's driver calls them; test_lake_queries.py takes one archive through Spark and back.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from click.testing import CliRunner

from quintet.cli.main import cli
from quintet.model.errors import ConfigError
from quintet.spark import failures, lake
from quintet.spark.lake import meta, scan
from quintet.spark.lake.conversion import CLAIMS, NONCE_BITS, Converted
from quintet.spark.lake.delta import Delta
from quintet.spark.lake.errors import LakeError, Outrun, StoreUnreachable
from quintet.spark.lake.opening import table_of
from quintet.spark.lake.sink import Sink, settings
from quintet.spark.lake.storage import files
from quintet.spark.lake.storage import options as storage
from quintet.spark.lake.storage.files import File, Heaps
from quintet.spark.lake.storage.journal import Commit, Journal
from quintet.spark.lake.storage.objects import located
from quintet.spark.lake.table import LakeTable
from quintet.spark.pipelines import archive, base
from quintet.spark.pipelines.running import arguments as given
from tests.spark.store import BUCKET, KEY, SECRET, Store, serving_alone
from tests.spark.store_tables import FORMATS, Maker
from tests.spark.test_lake import BY, SCHEMA, TOPICS, offsets, put, rows, stage

CUT = RuntimeError("cut off")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with serving_alone() as found:
        yield found


@pytest.fixture
def make(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Maker:
    return Maker.of_test(store, tmp_path, str(request.node.name))


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestCommit:
    def test_batches_are_there_once_and_each_format_reads_itself(self, make: Maker, format: str) -> None:
        table = make.open(format)
        assert put(table, "q", 0, rows(0, 10, TOPICS), rows(10, 10, TOPICS))
        assert not put(make.open(format), "q", 0, rows(0, 10, TOPICS), rows(10, 10, TOPICS))
        wider = rows(20, 5, TOPICS).append_column("region", pa.array(["eu"] * 5))
        assert put(make.open(format), "q", 1, wider)
        with pytest.raises(LakeError, match=r"batch 0 of q was written .* with 20 rows, and now has 3"):
            put(make.open(format), "q", 0, rows(0, 3))
        assert offsets(make.open(format)) == list(range(25))
        assert lake.kind(make.path, make.store.prefixed) == format
        assert not [name for name in make.names() if "/staging/" in name]
        found = self._own_reader(make, format).select(["offset", "topic", "region"]).to_pylist()
        expected = [(number, TOPICS[number % len(TOPICS)], "eu" if number >= 20 else None) for number in range(25)]
        assert sorted((row["offset"], row["topic"], row["region"]) for row in found) == expected
        for name in make.names():
            data = (make.where / name).read_bytes()
            assert SECRET.encode() not in data and KEY.encode() not in data, name

    @staticmethod
    def _own_reader(make: Maker, format: str) -> pa.Table:
        if format == "delta":
            told = storage.parse(make.store.options).delta("s3", BUCKET)
            return pa.table(deltalake.DeltaTable(make.path, storage_options=told).scan())
        from pyiceberg.catalog import load_catalog

        told = {key: value for key, value in make.catalog.items() if key != "table"}
        catalog = load_catalog("default", **told, **storage.parse(make.store.options).iceberg("s3", BUCKET))
        return catalog.load_table("db.t").scan().to_arrow()

    def test_a_write_that_comes_once_leaves_no_fence(self, make: Maker, format: str) -> None:
        for number in range(2):
            put(make.open(format), f"once-{number}", 0, rows(number, 1))
        assert offsets(make.open(format)) == [0, 1]
        assert make.open(format).journal.writers() == []


class TestCutOff:
    def test_a_driver_killed_between_data_files_and_commit(self, make: Maker) -> None:
        """One process with a table of each format; it is killed when both are about to write to their logs."""
        kinds = {format: make.beside(format) for format in FORMATS}
        told = [
            make.store.endpoint,
            *(word for format, one in kinds.items() for word in (format, one.path, one.catalog["uri"])),
        ]
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.test_lake_objects", *told], stdout=subprocess.PIPE
        )
        assert driver.stdout is not None
        try:
            there = sorted(driver.stdout.readline().decode().strip() for _ in kinds)
        finally:
            driver.kill()
            driver.wait()
            driver.stdout.close()
        assert there == sorted(FORMATS)
        for format, one in kinds.items():
            assert offsets(one.open(format)) == [0, 1, 2]
            assert put(one.open(format), "q", 1, rows(3, 4))  # Spark replays the batch
            assert not put(one.open(format), "q", 1, rows(3, 4))
            assert offsets(one.open(format)) == list(range(7))


def _cut(*args: Any, **more: Any) -> Any:
    raise CUT


def where_it_commits(format: str) -> tuple[Any, str]:
    """The call by which the log of a format gets a batch."""
    if format == "delta":
        return deltalake.DeltaTable, "create_write_transaction"
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog, "commit_table"


class TestTwoDrivers:
    def test_of_two_with_one_checkpoint_one_commits(
        self, make: Maker, format: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second commits at the worst moment: when the first has looked at the fence, and writes to the log."""
        put(make.open(format), "q", 0, rows(0, 3))
        other = make.open(format)
        theirs = stage(other, "q", 1, rows(3, 4))
        mine = stage(make.open(format), "q", 1, rows(3, 4))
        result = []
        place, name = where_it_commits(format)
        real = getattr(place, name)

        def late(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(place, name, real)
            result.append(other.commit("q", 1, theirs, SCHEMA))
            return real(*args, **more)

        monkeypatch.setattr(place, name, late)
        result.append(make.open(format).commit("q", 1, mine, SCHEMA))
        assert result == [True, False]
        assert offsets(make.open(format)) == list(range(7))
        assert put(make.open(format), "q", 2, rows(7, 1))
        assert offsets(make.open(format)) == list(range(8))

    def test_a_commit_right_behind_the_look_at_the_fence_counts(
        self, make: Maker, format: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before the first has opened the log that it writes to, so that log shows no conflict."""
        put(make.open(format), "q", 0, rows(0, 3))
        other = make.open(format)
        theirs = stage(other, "q", 1, rows(3, 4))
        mine = stage(make.open(format), "q", 1, rows(3, 4))
        real = type(other)._publish
        result = []

        def late(table: LakeTable, commit: Any) -> None:
            monkeypatch.setattr(type(other), "_publish", real)
            result.append(other.commit("q", 1, theirs, SCHEMA))
            real(table, commit)

        monkeypatch.setattr(type(other), "_publish", late)
        result.append(make.open(format).commit("q", 1, mine, SCHEMA))
        assert result == [True, False]
        assert offsets(make.open(format)) == list(range(7))

    def test_an_iceberg_commit_tried_again_looks_at_its_own_table(
        self, make: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """First another writer comes between, then the same batch of another driver, when the fence was looked at again."""
        from pyiceberg.catalog.sql import SqlCatalog

        put(make.open("iceberg"), "q", 0, rows(0, 3))
        table, other = make.open("iceberg"), make.open("iceberg")
        theirs = stage(other, "q", 1, rows(3, 4))
        mine = stage(table, "q", 1, rows(3, 4))
        commit_table, fence = SqlCatalog.commit_table, type(table).fence

        def first(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
            put(make.open("iceberg"), "other", 0, rows(7, 1))
            monkeypatch.setattr(type(table), "fence", second)
            return commit_table(*args, **more)

        def second(self: LakeTable, writer: str) -> int:
            monkeypatch.setattr(type(table), "fence", fence)
            found = fence(self, writer)
            other.commit("q", 1, theirs, SCHEMA)
            return found

        monkeypatch.setattr(SqlCatalog, "commit_table", first)
        table.commit("q", 1, mine, SCHEMA)
        assert offsets(make.open("iceberg")) == list(range(8))

    def test_columns_that_are_new_do_not_open_the_fence_of_iceberg(
        self, make: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """pyiceberg forgets after a change of the schema that its retries are off, and would carry an append past a fence."""
        from pyiceberg.catalog.sql import SqlCatalog

        put(make.open("iceberg"), "q", 0, rows(0, 3))
        wider = rows(3, 4).append_column("region", pa.array(["eu"] * 4))
        other = make.open("iceberg")
        theirs = stage(other, "q", 1, wider)
        mine = stage(make.open("iceberg"), "q", 1, wider)
        real = SqlCatalog.commit_table
        seen = []

        def late(*args: Any, **more: Any) -> Any:
            seen.append(1)
            if len(seen) == 2:  # the first is the change of the schema
                other.commit("q", 1, theirs, wider.schema)
            return real(*args, **more)

        monkeypatch.setattr(SqlCatalog, "commit_table", late)
        make.open("iceberg").commit("q", 1, mine, wider.schema)
        assert offsets(make.open("iceberg")) == list(range(7))

    def test_another_writer_between_is_no_hindrance(
        self, make: Maker, format: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(make.open(format), "q", 0, rows(0, 3))
        place, name = where_it_commits(format)
        real = getattr(place, name)

        def late(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(place, name, real)
            assert put(make.open(format), "other", 0, rows(3, 1))
            return real(*args, **more)

        monkeypatch.setattr(place, name, late)
        assert put(make.open(format), "q", 1, rows(4, 2))
        assert offsets(make.open(format)) == list(range(6))

    def test_a_failed_commit_removes_nothing_that_a_log_may_name(
        self, make: Maker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Delta has the batch, the answer is lost, Spark says abort: its files must stay."""
        from pyspark.sql.pandas.types import from_arrow_schema

        sink = Sink(
            settings({"path": make.path, "format": "delta"} | make.store.prefixed), from_arrow_schema(SCHEMA), False
        )
        staged = sink._stage("q", 0, iter(rows(0, 3).to_batches()))
        with monkeypatch.context() as patch:
            patch.setattr("quintet.spark.lake.storage.journal.Journal.put", _cut)
            with pytest.raises(RuntimeError, match="cut off"):
                sink._commit([staged])
        sink._abort([staged])
        assert offsets(make.open("delta")) == [0, 1, 2]


class TestCompaction:
    def test_small_files_become_one_of_each_partition_value(self, make: Maker, format: str) -> None:
        for batch_id in range(3):
            put(make.open(format), "q", batch_id, rows(batch_id * 10, 10, ("a", "b")))
        done = make.open(format).compact()
        assert (done.before, done.after, done.rows) == (6, 2, 30)
        assert len(make.open(format).paths()) == 2
        assert offsets(make.open(format)) == list(range(30))
        assert make.open(format).compact().before == 0
        assert not put(make.open(format), "q", 2, rows(20, 10))
        assert put(make.open(format), "q", 3, rows(30, 10, ("a",)))
        assert make.open(format).compact().before == 2
        assert offsets(make.open(format)) == list(range(40))

    @pytest.mark.parametrize("moment", ["before", "at"])
    def test_of_two_that_merge_at_once_one_does(
        self, make: Maker, format: str, moment: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for batch_id in range(3):
            put(make.open(format), "q", batch_id, rows(batch_id, 1))
        kind, name = (type(make.open(format)), "_replace") if moment == "before" else where_it_commits(format)
        real = getattr(kind, name)

        def late(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(kind, name, real)
            make.open(format).compact()
            return real(*args, **more)

        monkeypatch.setattr(kind, name, late)
        with pytest.raises(Outrun, match="merged by another process"):
            make.open(format).compact()
        assert offsets(make.open(format)) == [0, 1, 2]


class TestConvert:
    """Parquet tables in stores were written until November 2026 (conversion.py has how); now they are converted, or refused."""

    @staticmethod
    def _old(make: Maker) -> tuple[list[File], deltalake.DeltaTable]:
        """A table of two batches, its columns, and its log of claims."""
        at = make.where
        found = []
        for epoch in range(2):
            heaps = Heaps(at, "q", epoch, BY, in_place=True)
            for batch in rows(10 * epoch, 10, TOPICS).to_batches():
                heaps.add(batch)
            found += heaps.finish()
            Journal(at).put(Commit("q", epoch, 10, tuple(found[-len(heaps.files) :])))
        meta.save(at, "parquet", BY, SCHEMA)
        told = at.storage.delta("s3", BUCKET)
        log = deltalake.DeltaTable.create(
            str(at / CLAIMS), deltalake.Schema.from_arrow(pa.schema([("nothing", pa.int32())])), storage_options=told
        )
        TestConvert._claim(log, "q", 1, 77)
        return found, log

    @staticmethod
    def _claim(log: deltalake.DeltaTable, writer: str, epoch: int, nonce: int) -> None:
        log.update_incremental()
        fence = deltalake.Transaction(writer, epoch << NONCE_BITS | nonce)
        properties = deltalake.CommitProperties(app_transactions=[fence])
        log.create_write_transaction([], "append", log.schema(), commit_properties=properties)

    @staticmethod
    def _pending(make: Maker, writer: str, epoch: int, nonce: int, gone: tuple[str, ...], some: pa.Table) -> None:
        """A manifest whose files are staged only."""
        heaps = Heaps(make.where, writer, epoch, BY)
        for batch in some.to_batches():
            heaps.add(batch)
        data = msgspec.json.encode({"files": heaps.finish(), "gone": gone, "writer": writer, "epoch": epoch, "rows": 0})
        (make.where / f"_quintet/commits/{writer}/{epoch}-{nonce}.pending").write_bytes(data)

    def test_an_old_table_is_refused_with_the_command(self, make: Maker) -> None:
        self._old(make)
        command = f"quintet spark convert {make.path}"
        with pytest.raises(LakeError, match=command):
            make.open("parquet")
        with pytest.raises(LakeError, match=command):
            scan.Scan({"path": make.path} | make.store.prefixed)
        with pytest.raises(LakeError, match="write format=delta"):
            make.beside("new").open("parquet")

    def test_a_table_goes_on_as_delta(self, make: Maker) -> None:
        self._old(make)
        identity = meta.load(make.where)
        done = CliRunner().invoke(
            cli, ["spark", "convert", make.path, *(f"{name}={value}" for name, value in make.store.prefixed.items())]
        )
        assert done.output == f"{make.path} is a Delta table now: 10 files with 20 rows, 1 writers go on\n"
        assert offsets(make.open("delta")) == list(range(20))
        assert not put(make.open("delta"), "q", 1, rows(10, 10, TOPICS)), "Spark replays the last batch"
        with pytest.raises(LakeError, match=r"was written .* with 10 rows, and now has 9"):
            put(make.open("delta"), "q", 1, rows(10, 9, TOPICS))
        assert put(make.open("delta"), "q", 2, rows(20, 5, TOPICS))
        assert offsets(make.open("delta")) == list(range(25))
        told = storage.parse(make.store.options).delta("s3", BUCKET)
        read = deltalake.DeltaTable(make.path, storage_options=told).scan(predicate="topic = '50%'")
        found = pa.table(read).column("offset").to_pylist()
        assert sorted(found) == [number for number in range(25) if TOPICS[number % len(TOPICS)] == "50%"]
        now = meta.load(make.where)
        assert now is not None and identity is not None and now.identity == identity.identity, (
            "checkpoints know it by that"
        )
        assert make.open("delta").compact().rows == 25
        assert offsets(make.open("delta")) == list(range(25))
        assert not [name for name in make.names() if name.startswith(("_quintet/claims/", "_quintet/staging/"))]
        with pytest.raises(LakeError, match="there is a delta table at"):
            lake.convert(make.path, make.store.prefixed)

    @pytest.mark.parametrize("cut", [None, "write", "save"])
    def test_what_was_cut_off_counts_if_it_was_claimed(
        self, make: Maker, cut: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, log = self._old(make)
        self._pending(make, "q", 2, 5, (), rows(20, 5, TOPICS))
        self._pending(make, "q", 2, 6, (), rows(500, 5, TOPICS))  # of a driver that came second
        self._pending(make, "once-a", 0, 7, (), rows(25, 1))
        self._pending(make, "once-b", 0, 8, (), rows(600, 1))
        mine = [file for file in found if file.values["topic"] == "orders"]
        self._pending(make, "compacted", 0, 9, tuple(file.path for file in mine), self._again(make, mine))
        for writer, epoch, nonce in (("q", 2, 5), ("once-", 0, 7), ("compacted", 0, 9)):
            self._claim(log, writer, epoch, nonce)
        if cut is not None:
            with monkeypatch.context() as patch:
                patch.setattr(Delta if cut == "write" else meta, cut, _cut)
                with pytest.raises(RuntimeError, match="cut off"):
                    lake.convert(make.path, make.store.prefixed)
        done = lake.convert(make.path, make.store.prefixed)
        assert (done.rows, done.writers) == (26, 1)
        assert offsets(make.open("delta")) == list(range(26))
        assert make.open("delta").fence("q") == 2
        assert not [name for name in make.names() if name.endswith(".pending")]

    @staticmethod
    def _again(make: Maker, some: list[File]) -> pa.Table:
        return files.read_files([make.where / file.path for file in some]).select(SCHEMA.names)

    def test_a_staged_file_that_is_gone_is_an_error(self, make: Maker) -> None:
        _, log = self._old(make)
        self._pending(make, "q", 2, 5, (), rows(20, 5))
        self._claim(log, "q", 2, 5)
        for path in (make.where / files.STAGING).walk():
            path.unlink()
        with pytest.raises(LakeError, match=r"is gone, and with it 5 rows"):
            lake.convert(make.path, make.store.prefixed)

    def test_a_directory_can_be_converted_too(self, tmp_path: Path) -> None:
        old = table_of(str(tmp_path / "t"), "parquet", BY)
        nothing = rows(0, 4).set_column(2, "topic", pa.array([None, "", "ü/x", "a b"], pa.string()))
        put(old, "q", 0, nothing)
        put(old, "q", 1, rows(4, 4).append_column("more", pa.array(["x"] * 4)))
        assert lake.convert(str(tmp_path / "t")) == Converted(5, 8, 1)
        table = table_of(str(tmp_path / "t"), "delta")
        assert lake.kind(str(tmp_path / "t")) == "delta"
        assert not put(table, "q", 1, rows(4, 4).append_column("more", pa.array(["x"] * 4)))
        assert put(table, "q", 2, rows(8, 1))
        assert offsets(table) == list(range(9))
        read = (
            pa.table(deltalake.DeltaTable(str(tmp_path / "t")).scan()).select(["offset", "topic", "more"]).to_pylist()
        )
        found = sorted((row["offset"], row["topic"], row["more"]) for row in read)
        assert [row[1] for row in found] == [None, "", "ü/x", "a b", *["orders"] * 5]
        assert [row[2] for row in found] == [None] * 4 + ["x"] * 4 + [None]
        with pytest.raises(LakeError, match="there is no lake table at"):
            lake.convert(str(tmp_path / "other"))


class TestOptions:
    def test_one_set_of_options_reaches_three_libraries(self) -> None:
        told = storage.parse({"AWS_ENDPOINT_URL": "http://h:1", "region": "eu", "access_key": "a", "secret_key": "b"})
        assert told.known("s3") == {
            "endpoint_override": "http://h:1",
            "region": "eu",
            "access_key": "a",
            "secret_key": "b",
        }
        assert told.delta("s3", "b").items() >= {
            "aws_endpoint": "http://h:1", "aws_region": "eu", "aws_access_key_id": "a", "aws_secret_access_key": "b",
            "aws_allow_http": "true", "max_retries": str(storage.RETRIES_MAX),
        }.items()  # fmt: skip
        assert told.iceberg("s3", "b").items() >= {
            "s3.endpoint": "http://h:1", "s3.region": "eu", "s3.access-key-id": "a", "s3.secret-access-key": "b",
        }.items()  # fmt: skip
        azure = storage.parse({"account_key": "k"})
        assert azure.delta("az", "c@acc.dfs.core.windows.net")["azure_storage_account_name"] == "acc"
        assert azure.iceberg("az", "c@acc.dfs.core.windows.net") == {
            "adls.account-name": "acc",
            "adls.account-key": "k",
        }

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"regoin": "eu"}, "option storage.regoin is not known; there are"),
            ({"region": "a", "AWS_REGION": "b"}, "option storage.region is given twice"),
            ({"anonymous": "yes"}, "option storage.anonymous is not one of true, false"),
        ],
    )
    def test_what_is_wrong_is_named(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(LakeError, match=words):
            storage.parse(options)

    def test_the_environment_will_do(
        self, store: Store, make: Maker, format: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        if format == "iceberg":  # pyiceberg's own way
            monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__URI", make.catalog["uri"])
            from pyiceberg.utils.config import Config

            monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        for batch_id in range(2):
            put(table_of(make.path, format, BY), "q", batch_id, rows(batch_id, 1))
        assert offsets(table_of(make.path, format)) == [0, 1]

    def test_secrets_are_in_no_text(self, store: Store) -> None:
        told = settings({"path": f"s3://{BUCKET}/x"} | store.prefixed | {"catalog.token": SECRET})
        where = located(told.path, told.storage)
        assert all(word not in f"{told!r} {where!r} {where}" for word in (SECRET, KEY))

    def test_words_with_a_dot_are_entries_of_a_table(self) -> None:
        told: dict[str, object] = {
            "topics": "a",
            "path": "s3://b/c",
            "name": "n",
            "checkpoint": "c",
            "storage": {"region": "file", "anonymous": "true"},
        }
        words = given.words(["storage.region=word", "catalog.oauth2-server-uri=x", "--compact-every=3"])
        options = given.options(archive, {**told, **words})
        assert isinstance(options, archive.Options) and options.compact_every == 3
        assert base.lake_options(options) == {
            "storage.region": "word", "storage.anonymous": "true", "catalog.oauth2-server-uri": "x",
        }  # fmt: skip
        with pytest.raises(ConfigError, match=r"option storage: it is a table") as raised:
            given.options(archive, told | {"storage": SECRET})
        assert SECRET not in str(raised.value)
        with pytest.raises(ConfigError, match=r"there is no option 'storag\.region'"):
            given.options(archive, told | {"storag.region": "x"})

    def test_a_directory_as_before_and_by_its_url(self, tmp_path: Path) -> None:
        assert located(str(tmp_path / "t")) == located(f"file://{tmp_path}/t") == tmp_path / "t"
        table = table_of(f"file://{tmp_path}/t", "parquet", BY)
        put(table, "q", 0, rows(0, 3))
        assert offsets(table_of(str(tmp_path / "t"), "parquet")) == [0, 1, 2]

    def test_an_iceberg_table_wants_its_catalog(self, make: Maker) -> None:
        with pytest.raises(LakeError, match=r"there is no catalog for the Iceberg table .*set catalog.type"):
            table_of(make.path, "iceberg", BY, storage.parse(make.store.options)).schema()
        put(make.open("iceberg"), "q", 0, rows(0, 1))
        elsewhere = table_of(f"{make.path}-2", "iceberg", BY, storage.parse(make.store.options), make.catalog)
        with pytest.raises(LakeError, match=r"db.t of the catalog is at s3://.*/t, not at s3://.*/t-2"):
            elsewhere.schema()


class TestFailures:
    def test_no_such_bucket(self, store: Store, format: str) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        told = {"path": "s3://nothing/x", "format": format, "catalog.type": "sql", "catalog.uri": "sqlite://"}
        with pytest.raises(LakeError, match=r"^the bucket of s3://nothing/x does not exist; create it"):
            Sink(settings(told | store.prefixed), from_arrow_schema(SCHEMA), False)
        with pytest.raises(LakeError, match="the bucket of s3://nothing/x does not exist"):
            lake.kind("s3://nothing/x", store.prefixed)

    def test_credentials_that_are_refused(self, store: Store, make: Maker) -> None:
        put(make.open("delta"), "q", 0, rows(0, 1))
        with (
            store.refusing(),
            pytest.raises(LakeError, match=r"^the store refuses these credentials for s3://") as raised,
        ):
            make.open("delta").schema()
        assert failures.explain(raised.value).incurable

    def test_a_catalog_that_does_not_answer(self, make: Maker) -> None:
        catalog = {"type": "rest", "uri": "http://127.0.0.1:1"}
        table = table_of(make.path, "iceberg", BY, storage.parse(make.store.options), catalog)
        with pytest.raises(StoreUnreachable, match=r"^the catalog of s3://.* does not answer; check catalog\.uri"):
            table.schema()
        table = table_of(make.path, "iceberg", BY, storage.parse(make.store.options), {"type": "glue"})
        with pytest.raises(LakeError, match=r"^the catalog of s3://.* needs another package; .*pip install"):
            table.schema()

    @pytest.mark.parametrize(
        ("said", "shown"),
        [
            ("GET https://h/x?sig=abc&se=1 failed", "GET https://h/x?... failed"),
            ("cannot reach postgresql://me:secret@host/db", "cannot reach postgresql://...host/db"),
        ],
    )
    def test_what_a_library_says_is_shown_without_secrets(self, said: str, shown: str) -> None:
        assert shown in str(storage.explained("s3://b/x", OSError(said)))

    def test_an_endpoint_that_does_not_answer(self, store: Store) -> None:
        told = storage.parse(store.options | {"endpoint_override": "http://127.0.0.1:1"})
        words = r"^the store of .* does not answer, after 3 tries; check storage.endpoint_override"
        with pytest.raises(StoreUnreachable, match=words) as raised:
            table_of("s3://lake/x", "delta", BY, told).schema()
        assert not failures.explain(raised.value).incurable


def _drive(endpoint: str, *told: str) -> None:
    """A driver that never gets beyond its data files: says so for each table, and waits to be killed."""

    def commit(format: str, table: LakeTable, staged: Any) -> None:
        def wait(*args: Any, **more: Any) -> None:
            sys.stdout.write(f"{format}\n")
            sys.stdout.flush()
            threading.Event().wait()

        setattr(*where_it_commits(format), wait)
        threading.Thread(target=table.commit, args=("q", 1, staged, SCHEMA)).start()

    ready = []
    for format, path, uri in zip(told[::3], told[1::3], told[2::3], strict=True):
        table = Maker(Store(endpoint), path, uri).open(format)
        put(table, "q", 0, rows(0, 3))
        ready.append((format, table, stage(table, "q", 1, rows(3, 4))))
    for one in ready:
        commit(*one)
    threading.Event().wait()


if __name__ == "__main__":
    _drive(*sys.argv[1:])
