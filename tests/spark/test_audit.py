"""The audit pipeline: a digest that only contents change, a flipped byte that is named, archives that are wrong in one row."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from quintet.flight import wire
from quintet.flight.columns import SCHEMA
from quintet.spark.lake.opening import table_of
from quintet.spark.lake.storage.files import Heaps
from quintet.spark.pipelines import audit
from quintet.spark.pipelines.audit import Options
from quintet.spark.pipelines.checks import digest
from quintet.spark.source import reader
from tests.spark.conftest import FlightServer
from tests.spark.data import change_segment, create, link_to, put
from tests.spark.recent import add, made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Via = Literal["auto", "files", "flight"]
WAYS: tuple[Via, ...] = ("auto", "files", "flight")


def rows(count: int, seed: int = 1) -> pa.RecordBatch:
    chance = np.random.default_rng(seed)
    return pa.RecordBatch.from_pylist(
        [
            {
                "key": None if chance.random() < 0.3 else chance.bytes(5),
                "value": chance.bytes(int(chance.integers(9))) if chance.random() < 0.9 else None,
                "headers": [{"key": "k" * int(chance.integers(3)), "value": b"v"}] * int(chance.integers(3)),
                "topic": "t",
                "partition": 0,
                "offset": number,
                "timestamp": number,
                "origin": "",
            }
            for number in range(count)
        ],
        schema=SCHEMA,
    )


def test_a_digest_is_of_the_rows_and_not_of_how_they_came() -> None:
    whole = rows(100)
    expected = digest.extended(digest.EMPTY, whole)
    step = digest.EMPTY
    for first in range(0, 100, 7):
        step = digest.extended(step, whole.slice(first, 7))
    assert step == expected
    for cut in (0, 1, 50, 100):
        halves = [digest.extended(digest.EMPTY, part) for part in (whole.slice(0, cut), whole.slice(cut))]
        assert digest.joined(*halves) == expected
    swapped = whole.take(pa.array([1, 0, *range(2, 100)]))
    assert digest.extended(digest.EMPTY, swapped) != expected


@pytest.mark.parametrize("name", ["key", "value", "headers", "timestamp", "offset"])
def test_a_change_in_any_column_changes_the_digest(name: str) -> None:
    one = rows(20)
    other = one.set_column(one.schema.get_field_index(name), SCHEMA.field(name), rows(21).column(name).slice(1))
    assert digest.shown(20, digest.extended(digest.EMPTY, one)) != digest.shown(
        20, digest.extended(digest.EMPTY, other)
    )


def test_null_and_empty_are_not_the_same() -> None:
    one, other = (
        pa.RecordBatch.from_arrays(
            [rows(1).column(name) if name != "value" else pa.array([value], pa.binary()) for name in SCHEMA.names],
            schema=SCHEMA,
        )
        for value in (None, b"")
    )
    assert digest.extended(digest.EMPTY, one) != digest.extended(digest.EMPTY, other)


def test_every_way_of_reading_finds_the_same(
    spark: "SparkSession", broker: FlightServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(broker, topic, partitions=3, rows=50)
    add(broker, topic, partitions=2, rows=30, begin=50)
    found = {via: audit.run(spark, Options(url=broker.flight, topic=topic, via=via)) for via in WAYS}
    assert [row[:7] for row in found["files"].rows] == [
        (topic, 0, 80, 0, 79, 0, 0),
        (topic, 1, 80, 0, 79, 0, 0),
        (topic, 2, 50, 0, 49, 0, 0),
    ]
    assert found["auto"] == found["files"] == found["flight"]
    assert found["files"].ok and not found["files"].notes
    assert len({row[7] for row in found["files"].rows}) == 3
    monkeypatch.setattr(reader, "PACK_ROWS", 7)  # so that partitions are divided among tasks
    assert audit.run(spark, Options(url=broker.flight, topic=topic)) == found["files"]


def test_audits_of_the_same_offsets_can_be_compared(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    made(broker, topic, rows=20)
    before = audit.run(spark, Options(url=broker.flight, topic=topic))
    add(broker, topic, rows=5, begin=20)
    after = audit.run(spark, Options(url=broker.flight, topic=topic))
    same = audit.run(spark, Options(url=broker.flight, topic=topic, ending=f'{{"{topic}": {{"0": 20}}}}'))
    assert before.rows == same.rows != after.rows


def test_times_that_run_backwards_are_a_note(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    seconds = [0, 10, 9, 11, 5, 12]
    now = time.time_ns() // 1000
    times = [now + second * 1_000_000 for second in seconds]
    put(broker, topic, {"value": [b"v"] * 6, "timestamp": times})
    result = audit.run(spark, Options(url=broker.flight, topic=topic))
    assert result.ok
    assert result.notes == (
        f"{topic}/0: 1 timestamps are older than the one before by more than 1s, the first at offset 4",
    )
    assert "2 timestamps" in audit.run(spark, Options(url=broker.flight, topic=topic, tolerance="10ms")).notes[0]


def damage(broker: FlightServer, topic: str, partition: int, value: bytes) -> str:
    """Change one byte of a value where it is on disk; returns the file."""
    located = link_to(broker).locate(wire.LocateRequest(topic, (wire.Range(partition, 0, 50),)))
    found = ""

    def change(data: bytes) -> bytes:
        nonlocal found
        found = found or (segment.path if value in data else "")
        return data.replace(value, bytes([value[0] ^ 1]) + value[1:])

    for segment in located.files[0]:
        change_segment(segment.path, change)
    return found


@pytest.mark.parametrize("rows_per_task", [reader.PACK_ROWS, 7])
def test_a_flipped_byte_is_named_and_hides_nothing(
    spark: "SparkSession", own_broker: FlightServer, topic: str, monkeypatch: pytest.MonkeyPatch, rows_per_task: int
) -> None:
    monkeypatch.setattr(reader, "PACK_ROWS", rows_per_task)
    create(own_broker, topic, 2)
    for begin in (0, 10, 20, 30, 40):
        add(own_broker, topic, partitions=2, rows=10, begin=begin)
    files = [damage(own_broker, topic, 1, value) for value in (b"1-15", b"1-33")]
    for via in WAYS:
        result = audit.run(spark, Options(url=own_broker.flight, topic=topic, via=via))
        assert not result.ok
        assert [row[:7] for row in result.rows] == [(topic, 0, 50, 0, 49, 0, 0), (topic, 1, 30, 0, 49, 0, 20)]
        assert [note.partition(": ")[2].split(": ")[0] for note in result.notes] == [
            f"topic {topic}, partition 1, offsets 10 to 19",
            f"topic {topic}, partition 1, offsets 30 to 39",
        ]
        assert all("bad checksum" in note and file in note for note, file in zip(result.notes, files, strict=True))


def test_a_file_that_is_gone_is_a_loss(spark: "SparkSession", own_broker: FlightServer, topic: str) -> None:
    made(own_broker, topic, rows=10)
    located = link_to(own_broker).locate(wire.LocateRequest(topic, (wire.Range(0, 0, 1),)))
    change_segment(located.files[0][0].path, lambda data: bytes(len(data)))  # a small segment has no file of its own
    for via in WAYS:
        result = audit.run(spark, Options(url=own_broker.flight, topic=topic, via=via))
        assert not result.ok
        assert result.rows[0][:7] == (topic, 0, 0, 0, 9, 0, 10)
        assert result.notes[0].startswith(f"broken: topic {topic}, partition 0, offsets 0 to 9: ")


def test_an_empty_topic_is_whole(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    create(broker, topic, 2)
    result = audit.run(spark, Options(url=broker.flight, topic=topic))
    assert result.ok
    assert [row[:7] for row in result.rows] == [(topic, 0, 0, 0, -1, 0, 0), (topic, 1, 0, 0, -1, 0, 0)]


def archived(path: Path, *rows: pa.RecordBatch) -> None:
    """An archive of these rows, in one file each, as its tasks would write them."""
    table = table_of(str(path), "parquet")
    files = []
    for batch in rows:
        heaps = Heaps(table.path, "test", 0, ())
        heaps.add(batch)
        files += heaps.finish()
    assert table.commit("test", 0, files, rows[0].schema)


def records(broker: FlightServer, topic: str, partition: int) -> pa.RecordBatch:
    return next(iter(link_to(broker).read(wire.Ticket(topic, partition))))


def test_an_archive_that_agrees(spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path) -> None:
    made(broker, topic, partitions=2, rows=20)
    archived(tmp_path, *(records(broker, topic, partition) for partition in (0, 1)))
    add(broker, topic, rows=3, begin=20)
    result = audit.run(spark, Options(url=broker.flight, topic=topic, archive=str(tmp_path)))
    assert result.ok
    assert result.notes == (
        "3 rows of the topics are newer than the end of the archive",
        f"the archive {tmp_path} agrees with the topics in 40 offsets",
    )


def changed(batch: pa.RecordBatch, at: int, **cells: object) -> pa.RecordBatch:
    """The row of this offset with other contents, alone."""
    rows = [{**row, **cells} for row in batch.to_pylist() if row["offset"] == at]
    return pa.RecordBatch.from_pylist(rows, schema=batch.schema)


def test_wrong_rows_of_an_archive_are_counted_and_the_first_is_named(
    spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    made(broker, topic, partitions=2, rows=20)
    good, bad = records(broker, topic, 0), records(broker, topic, 1)
    archived(
        tmp_path,
        good,
        good.slice(3, 1),  # doubled
        bad.slice(0, 5),
        changed(bad, 5, key=None),
        changed(bad, 6, value=b"other"),
        bad.slice(9),  # 7 and 8 are missing
        changed(bad, 1, offset=77),  # more than there is
    )
    result = audit.run(spark, Options(url=broker.flight, topic=topic, archive=str(tmp_path)))
    assert not result.ok
    assert result.notes == (
        f"the archive {tmp_path} is wrong: 2 rows missing, 1 extra, 2 different, 1 more than once",
        f"the first wrong row of the archive: topic {topic}, partition 0, offset 3: doubled",
    )


def test_an_archive_without_values_is_refused(
    spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    made(broker, topic)
    archived(tmp_path, records(broker, topic, 0).drop_columns(["value"]))
    result = audit.run(spark, Options(url=broker.flight, topic=topic, archive=str(tmp_path)))
    assert not result.ok
    assert result.notes == (
        f"the archive {tmp_path} cannot be compared: it has no column value (schema=raw keeps all)",
    )
