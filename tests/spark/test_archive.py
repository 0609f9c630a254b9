"""archive and restore: a topic goes into a table and comes back as it was, once, whatever was cut off in between."""

import datetime
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.flight import wire
from quintet.model.errors import ConfigError
from quintet.spark import lake
from quintet.spark.pipelines import archive, replay, restore
from quintet.spark.pipelines.replay import Chunk, Plan, Slice, Speed
from tests.spark.conftest import FlightServer
from tests.spark.data import SECOND_US, START_US, create, fill, link_to, manage, put

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 3
ROWS = 20  # of each partition
DAY_US = 86_400_000_000
FOREVER_MS = 100 * 365 * 86_400_000  # records of 2023 are to stay
Row = tuple[Any, ...]


@dataclass
class Archived:
    """A topic with all sorts of rows, and its archive."""

    broker: FlightServer
    topic: str
    options: archive.Options

    def restore(self, topic: str, **more: Any) -> restore.Options:
        return restore.Options(
            url=self.broker.flight, path=self.options.path, topic=topic, from_topic=self.topic, **more
        )


@pytest.fixture(scope="module")
def archived(spark: "SparkSession", broker: FlightServer, tmp_path_factory: pytest.TempPathFactory) -> Archived:
    folder = tmp_path_factory.mktemp("archive")
    create(broker, "archived", PARTITIONS, retention_ms=FOREVER_MS)
    create(broker, "beside", PARTITIONS, retention_ms=FOREVER_MS)
    fill(broker, "beside", 1, 4)
    fill(broker, "archived", PARTITIONS, ROWS - 3)
    last = START_US + DAY_US
    put(
        broker,
        "archived",
        {
            "key": [None, b"", b"\xff\x00"] * PARTITIONS,
            "value": [b"", b"two", b"\x00" * 100] * PARTITIONS,
            "headers": [[], [{"key": "a", "value": None}, {"key": "a", "value": b""}], [{"key": "ü", "value": b"\xff"}]]
            * PARTITIONS,
            "partition": [partition for partition in range(PARTITIONS) for _ in range(3)],
            "timestamp": [last, last - 5, last + 7] * PARTITIONS,  # times may go back, order may not
        },
    )
    options = archive.Options(
        url=broker.flight,
        topics="archived, beside",
        path=str(folder / "table"),
        name="archive-test",
        checkpoint=str(folder / "checkpoint"),
        trigger="now",
    )
    _finish(archive.start(spark, options))
    return Archived(broker, "archived", options)


def _finish(queries: list[Any]) -> None:
    for query in queries:
        query.awaitTermination()


def contents(broker: FlightServer, topic: str, marked: bool = False) -> list[list[Row]]:
    """The rows of each partition, in their order; without the mark of a replay."""
    link = link_to(broker)
    found = []
    for partition in range(len(link.topics(wire.Selection((topic,))).topics[0].partitions)):
        rows: list[Row] = []
        for batch in link.read(wire.Ticket(topic, partition, columns=("key", "value", "headers", "timestamp"))):
            rows += [
                (row["key"], row["value"], [(one["key"], one["value"]) for one in row["headers"]], row["timestamp"])
                for row in batch.to_pylist()
            ]
        found.append([(key, value, headers[:-1], at) for key, value, headers, at in rows] if marked else rows)
    return found


def _register(broker: FlightServer, subject: str, definition: bytes) -> None:
    manage(broker, lambda admin: admin.register_schema(subject, "json", definition))


class TestArchive:
    def test_every_record_is_a_row_and_any_reader_sees_it(self, archived: Archived) -> None:
        rows = (
            duckdb.connect()
            .execute(
                'select topic, "partition", "offset", key, value, timestamp, date, origin '
                f"from read_parquet('{archived.options.path}/**/*.parquet', hive_partitioning=true) order by 1, 2, 3"
            )
            .fetchall()
        )
        assert len(rows) == PARTITIONS * ROWS + 4
        assert [row[2] for row in rows if row[:2] == ("archived", 1)] == list(range(ROWS))
        expected = contents(archived.broker, "archived")
        for partition in range(PARTITIONS):
            here = [(row[3], row[4], row[5]) for row in rows if row[:2] == ("archived", partition)]
            assert here == [(key, value, at) for key, value, _, at in expected[partition]]
        for row in rows:
            assert row[6] == row[5].astimezone(datetime.UTC).date()
            assert row[7] == "flight:admin"

    @pytest.mark.parametrize("format", ["parquet", "iceberg"])
    def test_a_time_that_no_calendar_has_stops_nothing(
        self, spark: "SparkSession", broker: FlightServer, tmp_path: Path, format: Any
    ) -> None:
        topic = f"timeless-{format}"
        create(broker, topic, retention_ms=FOREVER_MS)
        put(broker, topic, {"value": [b"now", b"then"], "timestamp": [START_US, 1 << 61]})
        options = archive.Options(
            url=broker.flight, topics=topic, path=str(tmp_path / "table"), format=format, name="odd",
            checkpoint=str(tmp_path / "checkpoint"), trigger="now",
        )  # fmt: skip
        _finish(archive.start(spark, options))
        found = lake.read(spark, options.path).selectExpr(
            "cast(value as string)", "year(date)", "unix_micros(timestamp)"
        )
        assert sorted(tuple(row) for row in found.collect()) == [("now", 2023, START_US), ("then", 9999, 1 << 61)]

    def test_a_batch_that_spark_does_not_know_it_did_is_not_there_twice(
        self, spark: "SparkSession", archived: Archived, tmp_path: Path
    ) -> None:
        """As after kill -9 between the sink's commit and the checkpoint's: the checkpoint has no commit of the batch."""
        checkpoint = tmp_path / "checkpoint"
        shutil.copytree(archived.options.checkpoint, checkpoint)
        shutil.rmtree(checkpoint / "commits")
        again = msgspec.structs.replace(archived.options, checkpoint=str(checkpoint))
        queries = archive.start(spark, again)
        _finish(queries)
        assert sum(progress["numInputRows"] for progress in queries[0].recentProgress) == PARTITIONS * ROWS + 4
        assert lake.read(spark, archived.options.path).count() == PARTITIONS * ROWS + 4

    def test_fields_of_the_schema_are_columns_and_new_ones_come(
        self, spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path
    ) -> None:
        create(broker, topic)
        options = archive.Options(
            url=broker.flight, topics=topic, path=str(tmp_path / "table"), format="delta", schema="registry",
            name=topic, checkpoint=str(tmp_path / "checkpoint"), trigger="now", typed_prefix="v_", compact_every=2,
        )  # fmt: skip
        fields: dict[str, Any] = {"id": {"type": "integer"}, "date": {"type": "string"}}
        for value in (b'{"id":1,"date":"today"}', b'{"id":2,"city":"Bern"}'):
            definition = {"type": "object", "properties": fields, "additionalProperties": False}
            _register(broker, topic, msgspec.json.encode(definition))
            put(broker, topic, {"value": [value]})
            _finish(archive.start(spark, options))
            fields["city"] = {"type": "string"}
        rows = lake.read(spark, options.path).orderBy("offset").select("value", "v_id", "v_date", "v_city").collect()
        assert [tuple(row)[1:] for row in rows] == [(1, "today", None), (2, None, "Bern")]
        assert bytes(rows[0][0]) == b'{"id":1,"date":"today"}'

    def test_what_it_does_not_take(self, spark: "SparkSession", archived: Archived) -> None:
        with pytest.raises(ValueError, match="topics names no topic"):
            archive.start(spark, msgspec.structs.replace(archived.options, topics=" , "))


class TestRestore:
    def test_a_topic_comes_back_as_it_was_and_once(self, spark: "SparkSession", archived: Archived) -> None:
        create(archived.broker, "again", PARTITIONS, retention_ms=FOREVER_MS)
        options = archived.restore("again", headers="exact")
        result = restore.run(spark, options)
        assert contents(archived.broker, "again") == contents(archived.broker, "archived")
        assert result.rows == tuple((partition, 0, ROWS - 1) for partition in range(PARTITIONS))
        assert "60 messages in 1 transactions now, 0 by earlier runs" in result.notes[0]
        second = restore.run(spark, options)
        assert "All of it was replayed before" in second.notes[1]
        assert contents(archived.broker, "again") == contents(archived.broker, "archived")

    def test_a_topic_that_was_deleted_is_not_taken_for_a_full_one(
        self, spark: "SparkSession", archived: Archived
    ) -> None:
        options = archived.restore("brief", offsets=":2", headers="exact")
        restore.run(spark, options)  # makes the topic
        manage(archived.broker, lambda admin: admin.delete_topic("brief"))
        gone = r"1 of 1 transactions .* into a topic brief that was deleted since"
        with pytest.raises(ConfigError, match=gone):
            restore.run(spark, options)
        create(archived.broker, "brief", PARTITIONS)
        with pytest.raises(ConfigError, match=gone):
            restore.run(spark, options)
        restore.run(spark, msgspec.structs.replace(options, name="again"))
        assert sum(map(len, contents(archived.broker, "brief"))) == 2 * PARTITIONS

    def test_a_new_topic_has_the_partitions_of_the_old_one(self, spark: "SparkSession", archived: Archived) -> None:
        """Also those that were empty: `beside` has rows in its first partition only."""
        broker = archived.broker
        folder = lake.directory(archived.options.path)
        assert replay.noted_partitions(folder) == {"archived": PARTITIONS, "beside": PARTITIONS}
        manage(broker, lambda admin: admin.create_user("writer", "a password", ["producer"]))
        by_writer = {"url": broker.flight.replace("admin:admin@", ""), "user": "writer", "password": "a password"}
        few = msgspec.structs.replace(archived.restore("anew"), from_topic="beside", headers="exact")
        with pytest.raises(ConfigError, match="none can be made with the 3 partitions of beside") as caught:
            restore.run(spark, msgspec.structs.replace(few, **by_writer, name="another"))
        assert "quintet topic create anew --partitions 3" in caught.value.hint
        restore.run(spark, few)
        assert contents(broker, "anew") == contents(broker, "beside")
        assert [len(rows) for rows in contents(broker, "anew")] == [4, 0, 0]
        replay.note_partitions(folder, {"beside": 1, "more": 2})
        assert replay.noted_partitions(folder) == {"archived": PARTITIONS, "beside": PARTITIONS, "more": 2}

    def test_cut_off_between_slices_it_goes_on(
        self, spark: "SparkSession", archived: Archived, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        create(archived.broker, "cut", PARTITIONS, retention_ms=FOREVER_MS)
        monkeypatch.setattr(replay, "SLICE_ROWS", 15)
        options = archived.restore("cut", name="cut", state=str(tmp_path))
        real, left = restore._publish, [2]

        def publish(*args: Any) -> None:
            if left[0] == 0:
                raise RuntimeError("cut off")
            left[0] -= 1
            real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(restore, "_publish", publish)
            with pytest.raises(RuntimeError, match="cut off"):
                restore.run(spark, options)
        (plan,) = (msgspec.json.decode(path.read_bytes(), type=Plan) for path in tmp_path.iterdir())
        assert len(plan.slices) == 4 and plan.rows == PARTITIONS * ROWS
        result = restore.run(spark, options)
        assert "30 messages in 2 transactions now, 30 by earlier runs" in result.notes[0]
        assert contents(archived.broker, "cut", marked=True) == contents(archived.broker, "archived")
        with pytest.raises(ConfigError, match="begun with another since"):
            restore.run(spark, archived.restore("cut", name="cut", state=str(tmp_path), since="2026-01-01"))
        with pytest.raises(ConfigError, match="its plan does not exist here"):
            restore.run(spark, archived.restore("again", name="cut", state=str(tmp_path / "elsewhere")))

    def test_a_range_into_fewer_partitions_at_the_speed_of_its_times(
        self, spark: "SparkSession", archived: Archived
    ) -> None:
        """Ten records of each partition, a second apart, at twice their speed: five seconds by the clock it is given."""
        create(archived.broker, "fewer", 1)
        clock = Clock()
        since = datetime.datetime.fromtimestamp((START_US + 2 * SECOND_US) / SECOND_US, datetime.UTC).isoformat()
        until = str((START_US + 100 * SECOND_US) // 1000)
        options = archived.restore("fewer", since=since, until=until, offsets=":12", speed="2x", times="now")
        result = restore.run(spark, options, monotonic=clock.monotonic, pause=clock.pause)
        (rows,) = contents(archived.broker, "fewer")
        expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(2, 12)}
        assert all(at.timestamp() * SECOND_US > START_US + DAY_US * 300 for _, _, _, at in rows)
        marks = [row[2][-1] for row in rows]
        assert {name for name, _ in marks} == {"replayed-from"}
        places = [tuple(value.decode().split("/")) for _, value in marks]
        assert {(int(partition), int(offset)) for _, partition, offset in places} == expected
        for partition in range(PARTITIONS):
            order = [int(offset) for _, number, offset in places if int(number) == partition]
            assert order == sorted(order)
        assert 3.5 <= clock.time <= 4.5  # the last slice is due when its first record was
        assert any("keys decided" in note for note in result.notes)

    def test_what_it_does_not_take(self, spark: "SparkSession", archived: Archived) -> None:
        cases: list[tuple[dict[str, Any], str]] = [
            ({"topic": ""}, "option topic is missing"),
            ({"from_topic": ""}, "has archived, beside"),
            ({"from_topic": "nothing"}, "no row of .* is of topic nothing"),
            ({"since": "yesterday"}, "option since: 'yesterday' is not a time"),
            ({"offsets": "5-9"}, "offsets=5-9 is not a range"),
            ({"speed": "0x"}, "speed=0x is not a speed"),
            ({"path": "ftp://bucket/x"}, "is no directory"),
        ]
        for change, words in cases:
            options = msgspec.structs.replace(archived.restore("x"), **change)
            with pytest.raises(ValueError, match=words):
                restore.run(spark, options)


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        assert 0 < seconds <= restore.PAUSE_SECONDS_MAX
        self.time += seconds


class TestPlan:
    @given(
        st.lists(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 10**8)), max_size=8), min_size=1, max_size=4),
        st.sampled_from([Speed("max"), Speed("times", 3.0), Speed("rows", 4.0)]),
    )
    def test_each_chunk_is_in_one_slice_and_in_order(self, parts: list[list[tuple[int, int]]], speed: Speed) -> None:
        chunks = []
        for partition, sizes in enumerate(parts):
            first = 0
            for rows, at in sizes:
                chunks.append(Chunk(partition, first, first + rows - 1, rows, at))
                first += rows
        made = replay.slices(reversed(chunks), speed)
        for partition, sizes in enumerate(parts):
            ranges = [one.ranges[partition] for one in made if partition in one.ranges]
            covered = [offset for first, last in ranges for offset in range(first, last + 1)]
            assert covered == list(range(sum(rows for rows, _ in sizes)))
        assert sum(one.rows for one in made) == sum(chunk.rows for chunk in chunks)
        assert [one.due_us for one in made] == sorted(one.due_us for one in made)

    def test_slices_end_at_their_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replay, "SLICE_ROWS", 10)
        made = replay.slices([Chunk(0, 10 * n, 10 * n + 3, 4, n) for n in range(5)], Speed("max"))
        assert made == (
            Slice(0, 8, {0: (0, 13)}),
            Slice(0, 8, {0: (20, 33)}),
            Slice(0, 4, {0: (40, 43)}),
        )

    def test_rows_a_second(self) -> None:
        made = replay.slices([Chunk(0, n, n, 1, 0) for n in range(10)], Speed("rows", 4.0))
        assert [(one.due_us, one.rows) for one in made] == [(0, 4), (1_000_000, 4), (2_000_000, 2)]

    @pytest.mark.parametrize(
        ("speed", "rows", "span", "size"),
        [
            (Speed("max"), 10**6, 1, 50_000),
            (Speed("max"), 10**11, 1, 500_000),  # so that the plan stays small
            (Speed("times", 1.0), 10**6, 1000 * SECOND_US, 500),
            (Speed("times", 1.0), 10, 10**6 * SECOND_US, 1),
            (Speed("rows", 100.0), 10**6, 1, 50),
        ],
    )
    def test_chunks_keep_the_pace(self, speed: Speed, rows: int, span: int, size: int) -> None:
        assert replay.chunk_rows(speed, rows, 2, span) == size

    @pytest.mark.parametrize(
        ("parse", "good", "bad"),
        [
            (
                replay.parse_speed,
                {"max": ("max", 0.0), "1x": ("times", 1.0), "0.5x": ("times", 0.5), "500/s": ("rows", 500.0)},
                ("", "x", "0x", "-1x", "fast", "1"),
            ),
            (
                replay.parse_offsets,
                {"": (0, None), "5:": (5, None), ":9": (0, 9), "1:2": (1, 2)},
                ("5", "a:b", "1:2:3"),
            ),
        ],
    )
    def test_words(self, parse: Callable[[str], Any], good: dict[str, Any], bad: tuple[str, ...]) -> None:
        for text, value in good.items():
            assert parse(text) == value
        for text in bad:
            with pytest.raises(ConfigError):
                parse(text)

    def test_a_directory_that_cannot_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match="cannot be written"):
            replay.remember(tmp_path / "file" / "plans", "x", Plan({}, ()))
