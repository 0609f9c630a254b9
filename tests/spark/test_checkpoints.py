"""A checkpoint belongs to one run: another sink, source or meaning is refused by name instead of finishing with 0 rows."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from quintet.model.errors import ConfigError
from quintet.spark import lake
from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.opening import table_of
from quintet.spark.lake.sink import StreamWriter, settings
from quintet.spark.pipelines import aggregate, archive, checkpoints, dedupe, join
from quintet.spark.pipelines.base import Streaming
from quintet.spark.pipelines.running import runner
from quintet.spark.source import sinks
from quintet.spark.source.options import OptionError
from tests.spark.conftest import FlightServer, flying
from tests.spark.data import create, fill, filled
from tests.spark.test_lake import SCHEMA, offsets, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOWHERE: Any = None  # a session that is not asked: the checkpoint is in a directory


class Said(runner.Screen):
    """What people would read."""

    def __init__(self) -> None:
        self.text = ""
        self.rows = -1

    def note(self, text: str) -> None:
        self.text += text

    def summary(self, report: Any, seconds: float) -> None:
        self.rows = report.rows_in


def checked(options: Streaming) -> None:
    checkpoints.check(NOWHERE, options.checkpoint, type(options).__module__, msgspec.structs.asdict(options))


def begun(folder: Path) -> str:
    """A checkpoint that has planned a batch."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text("v1\n")
    return str(folder)


# -- pure -------------------------------------------------------------------------------------------------------------

SAME: dict[str, Any] = {"name": "n", "trigger": "now"}
OTHERS: list[tuple[type[Streaming], dict[str, Any], dict[str, Any], str]] = [
    (archive.Options, {"topics": "a", "path": "/l/a"}, {"path": "/l/b"}, "path was '/l/a', and is '/l/b'"),
    (archive.Options, {"topics": "a", "path": "/l"}, {"format": "delta"}, "format was 'parquet', and is 'delta'"),
    (archive.Options, {"topics": "a,b", "path": "/l"}, {"topics": "a"}, "topics was 'a,b', and is 'a'"),
    (archive.Options, {"topics": "a", "path": "/l"}, {"partition_by": ""}, "partition_by was 'date,topic', and is not"),
    (archive.Options, {"topics": "a", "path": "/l"}, {"schema": "registry"}, "schema was 'raw', and is 'registry'"),
    (dedupe.Options, {"topic": "a", "to_topic": "b"}, {"to_topic": "c"}, "to_topic was 'b', and is 'c'"),
    (dedupe.Options, {"topic": "a", "to_topic": "b"}, {"topic": "c"}, "topic was 'a', and is 'c'"),
    (dedupe.Options, {"topic": "a", "to_topic": "b"}, {"by": "value"}, "by was 'key', and is 'value'"),
    (dedupe.Options, {"topic": "a", "to_topic": "b"}, {"within": "2h"}, "within was '1h', and is '2h'"),
    (dedupe.Options, {"topic": "a", "to_table": "/l"}, {"to_table": "", "to_topic": "b"}, "to_table was '/l'"),
    (join.Options, {"left": "a", "right": "b", "to_topic": "c"}, {"kind": "left"}, "kind was 'inner', and is 'left'"),
    (
        aggregate.Options,
        {"topic": "a", "to_topic": "b", "measures": {"n": "count"}},
        {"measures": {"n": "count(key)"}},
        "measures was another one",
    ),
    (
        aggregate.Options,
        {"topic": "a", "to_topic": "b", "measures": {"n": "count"}},
        {"window": "5m"},
        "window was '1m', and is '5m'",
    ),
]


@pytest.mark.parametrize(("kind", "options", "changes", "said"), OTHERS)
def test_options_that_change_the_rows_or_where_they_go(
    kind: type[Streaming], options: dict[str, Any], changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    first = kind(checkpoint=begun(tmp_path), **SAME, **options)
    checked(first)
    checked(first)
    with pytest.raises(ConfigError, match="belongs to another run: ") as refused:
        checked(kind(checkpoint=str(tmp_path), **SAME, **{**options, **changes}))
    assert said in str(refused.value)
    assert "another --name or --checkpoint" in refused.value.hint
    checked(first)


def test_another_pipeline_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    checked(archive.Options(checkpoint=begun(tmp_path), topics="a", path="/l", **SAME))
    with pytest.raises(ConfigError, match="it belongs to the pipeline archive, and this is dedupe"):
        checked(dedupe.Options(checkpoint=str(tmp_path), topic="a", to_topic="b", **SAME))


def test_how_a_run_goes_may_change_and_no_secret_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = begun(tmp_path / "checkpoint")
    checked(archive.Options(checkpoint=place, topics="a, b", path="lake", password="s3cr3t", **SAME))
    other: dict[str, Any] = {
        "url": "flight://u:s3cr3t@h:1",
        "token": "s3cr3t",
        "starting": "latest",
        "max_per_trigger": 5,
    }
    other |= {"fail_on_data_loss": False, "compact_every": 0, "target_mb": 1, "name": "m", "trigger": "1s"}
    checked(archive.Options(checkpoint=place, topics="b,c,a", path=f"{tmp_path}/x/../lake", **other))
    note = (tmp_path / "checkpoint" / checkpoints.FILE).read_text()
    assert "s3cr3t" not in note
    assert '"topics":"b,c,a"' in note, "topics may grow"


def test_a_checkpoint_without_a_batch_and_one_from_before_bind_nobody(tmp_path: Path) -> None:
    checked(archive.Options(checkpoint=str(tmp_path), topics="a", path="/typo", **SAME))
    checked(archive.Options(checkpoint=str(tmp_path), topics="a", path="/l", **SAME))
    begun(tmp_path)
    with pytest.raises(ConfigError, match="path was '/l'"):
        checked(archive.Options(checkpoint=str(tmp_path), topics="a", path="/typo", **SAME))
    (tmp_path / checkpoints.FILE).unlink()
    checked(archive.Options(checkpoint=str(tmp_path), topics="a", path="/other", **SAME))
    (tmp_path / checkpoints.FILE).write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        checked(archive.Options(checkpoint=str(tmp_path), topics="a", path="/other", **SAME))


# -- with Spark -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_on_a_file_system_of_hadoop(spark: "SparkSession", tmp_path: Path) -> None:
    folder = checkpoints.HadoopFolder(spark, f"file:{tmp_path}/new")
    assert (folder.read("a"), folder.count("offsets")) == (None, 0)
    folder.write("a", b"one")
    folder.write("a", "zwölf".encode())
    begun(tmp_path / "new")
    assert (folder.read("a"), folder.count("offsets")) == ("zwölf".encode(), 1)


def test_a_second_run_to_another_place_or_broker_is_refused(
    spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    filled(broker, topic, 1, 3)

    def run(url: str = broker.flight, kind: str = "archive", **more: str) -> tuple[int, Said]:
        screen, where = Said(), {"path": str(tmp_path / "one")} if kind == "archive" else {}
        topics = {"topics": topic} if kind == "archive" else {"topic": topic}
        words = {"url": url, "trigger": "now", **topics, **where, **more}
        checkpoint = str(tmp_path / f"checkpoint-{kind}")
        return runner.run(kind, words, name="r", checkpoint=checkpoint, spark=spark, screen=screen), screen

    code, screen = run()
    assert (code, screen.rows) == (0, 3)
    for more in ({"path": str(tmp_path / "two")}, {"format": "delta"}):
        code, screen = run(**more)
        assert code == 1, "it was 0, with 0 rows"
        assert f"the checkpoint {tmp_path}/checkpoint-archive belongs to another run" in screen.text
    code, screen = run(kind="dedupe", to_topic=f"{topic}-a")
    assert (code, screen.rows) == (0, 3)
    code, screen = run(kind="dedupe", to_topic=f"{topic}-b")
    assert code == 1
    assert f"to_topic was '{topic}-a', and is '{topic}-b'" in screen.text
    with flying() as other:
        create(other, topic)
        fill(other, topic, 1, 5)
        code, screen = run(other.flight)
        assert code == 1
        assert f"topic {topic} in the checkpoint belongs to another log" in screen.text
    code, screen = run()
    assert (code, screen.rows) == (0, 0), "the first one goes on"


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_every_way_to_write_a_directory_is_the_same_one(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark takes file:/x for a directory, too: a note that went elsewhere would bind nobody."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    place = form.format(begun(tmp_path / "checkpoint"))
    checked(archive.Options(checkpoint=place, topics="a", path=form.format("/l"), **SAME))
    checked(archive.Options(checkpoint=place, topics="a", path="/l", **SAME))
    with pytest.raises(ConfigError, match="path was"):
        checked(archive.Options(checkpoint=place, topics="a", path="/other", **SAME))
    sinks.keep(place, sinks.Sink("table", "/l", "one"), True)
    with pytest.raises(OptionError, match="the query now writes to table /other"):
        sinks.check(place, sinks.Sink("table", "/other", "other"), True)
    assert lake.directory(form.format("/l")) == Path("/l")
    assert list(Path().iterdir()) == []


def test_a_table_that_its_catalog_dropped_is_not_gone_on_with(tmp_path: Path) -> None:
    """A catalog that drops a table leaves its files, ours among them: the identity in them is not that of the next table."""
    from pyiceberg.catalog import load_catalog
    from pyspark.sql.pandas.types import from_arrow_schema

    (tmp_path / "checkpoint").mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    told = {"path": str(tmp_path / "t"), "format": "iceberg", "catalog.table": "db.t"}
    told |= {f"catalog.{name}": value for name, value in catalog.items()}

    def put(batch_id: int, **more: str) -> None:
        sink = StreamWriter(settings(told | more), from_arrow_schema(SCHEMA), False, str(tmp_path / "checkpoint"))
        sink.commit([sink._stage("q", batch_id, iter(rows(batch_id, 1).to_batches()))], batch_id)

    put(0)
    load_catalog("default", **catalog).drop_table("db.t")
    with pytest.raises(LakeError, match=r"there is no iceberg table at .*/t any more"):
        put(1)
    put(1, failOnDataLoss="false")
    put(2)
    assert offsets(table_of(told["path"], "iceberg", None, catalog=catalog | {"table": "db.t"})) == [1, 2]
