"""Lake tables by way of Spark: a stream per format through the real sink into a folder, an archive into an object store and back.

Apart from test_lake.py and test_lake_objects.py, which need no session, so that another process of tests runs those.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from quintet.spark import lake
from quintet.spark.lake import opening
from quintet.spark.lake.storage.objects import ObjectPath
from quintet.spark.pipelines import archive, base, restore
from quintet.spark.pipelines.checks.reconcile import reconcile
from quintet.spark.pipelines.running import arguments as given
from tests.spark.conftest import FlightServer
from tests.spark.data import create, fill
from tests.spark.store import KEY, SECRET, Store, serving_alone
from tests.spark.store_tables import FORMATS, Maker
from tests.spark.test_archive import FOREVER_MS, contents
from tests.spark.test_lake import SCHEMA, TOPICS, left, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def source(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    lake.register(spark)
    for part in range(3):
        pq.write_table(rows(part * 100, 100, TOPICS), folder / f"{part}.parquet")
    return folder


class TestFolder:
    @pytest.mark.parametrize("format", sorted(opening.FORMATS))
    def test_a_stream_to_a_table_and_back(
        self, spark: "SparkSession", source: Path, tmp_path: Path, format: str
    ) -> None:
        stream = spark.readStream.schema(spark.read.parquet(str(source)).schema)
        query = (
            stream.option("maxFilesPerTrigger", "1")
            .parquet(str(source))
            .writeStream.format(lake.FORMAT)
            .options(format=format, path=str(tmp_path / "t"), partitionBy="date,topic", compactEvery="2")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        table = opening.table_of(str(tmp_path / "t"), format)
        assert table.fence(str(query.id)) == 2
        assert len(table.paths()) == 2 * len(TOPICS)  # one compaction of two batches, and the third
        found = lake.read(spark, str(tmp_path / "t"))
        assert found.orderBy("offset").toArrow().cast(SCHEMA).select(SCHEMA.names) == rows(0, 300, TOPICS)
        assert left(table) == []

    def test_a_batch_write_that_may_come_twice(self, spark: "SparkSession", source: Path, tmp_path: Path) -> None:
        frame = spark.read.parquet(str(source))
        for _ in range(2):
            writer = frame.write.format(lake.FORMAT).mode("append")
            writer.options(path=str(tmp_path / "t"), txnAppId="me", txnVersion="7").save()
        assert lake.read(spark, str(tmp_path / "t"), "parquet").count() == 300

    def test_a_refusal_is_one_sentence(self, spark: "SparkSession", source: Path, tmp_path: Path) -> None:
        frame = spark.read.parquet(str(source)).limit(1)
        with pytest.raises(Exception, match="rows are only added to a lake table"):
            frame.write.format(lake.FORMAT).mode("overwrite").save(str(tmp_path / "t"))


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with serving_alone() as found:
        yield found


@pytest.fixture
def make(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> Maker:
    return Maker.of_test(store, tmp_path, str(request.node.name))


class TestStore:
    @pytest.mark.parametrize("format", FORMATS)
    def test_an_archive_in_the_store_comes_back_as_it_was(
        self,
        spark: "SparkSession",
        broker: FlightServer,
        make: Maker,
        format: str,
        tmp_path: Path,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        topic, again = f"stored-{format}", f"stored-{format}-again"
        for name in (topic, again):
            create(broker, name, 2, retention_ms=FOREVER_MS)
        fill(broker, topic, 2, 20)
        told = {"url": broker.flight, "path": make.path, **make.store.prefixed}
        if format == "iceberg":
            told |= {f"catalog.{name}": value for name, value in make.catalog.items()}
        run = {
            "topics": topic,
            "format": format,
            "name": topic,
            "checkpoint": str(tmp_path / "state"),
            "trigger": "now",
        }
        options = given.options(archive, told | run)
        assert isinstance(options, archive.Options)
        (query,) = archive.start(spark, options)
        query.awaitTermination()
        query.explain(True)
        frame = lake.read(spark, make.path, options=base.lake_options(options))
        frame.explain(True)
        assert frame.count() == 40
        if format == "delta":  # the other are read by the same scan
            plans = f"{make.path}-plans"
            restored = given.options(restore, told | {"topic": again, "headers": "exact", "state": plans})
            assert isinstance(restored, restore.Options)
            restore.run(spark, restored)
            kept_at = lake.directory(plans, base.lake_options(restored))
            assert isinstance(kept_at, ObjectPath) and list(kept_at.walk()), "the plan is where state= says"
            assert contents(broker, again) == contents(broker, topic)
            said, right = reconcile(spark, options, make.path, format, [topic], base.lake_options(options))
            assert right, said
        shown = f"{capfd.readouterr()} {query.lastProgress} {query.recentProgress}"
        kept = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
        assert all(word not in shown and word.encode() not in kept for word in (SECRET, KEY))
