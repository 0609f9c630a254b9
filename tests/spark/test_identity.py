"""Another log behind the same url: what Spark remembers of the first one is refused, not applied to the second.

One broker, whose data folder is emptied between the parts of each test: topics get the same names and the same numbers again.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from quintet.flight import wire
from quintet.spark import lake
from quintet.spark.source import reader as reading
from quintet.spark.source.options import OptionError
from tests.spark.conftest import FlightServer, flying
from tests.spark.data import create, fill, filled, link_to, manage
from tests.spark.test_stream import ends, rows, stream

ALL = ReadAllAvailable()
ROWS = 250
READ = 150  # before the broker is another one


@pytest.fixture(scope="module")
def alone() -> Iterator[FlightServer]:
    with flying() as server:
        yield server


def emptied(broker: FlightServer) -> None:
    """Another log behind the same url."""
    broker.kill()
    shutil.rmtree(broker.data)
    broker.start()


def info(broker: FlightServer, topic: str) -> wire.TopicInfo:
    (found,) = link_to(broker).topics(wire.Selection((topic,))).topics
    return found


def test_offsets_of_another_log_are_refused_or_read_from_the_beginning(
    alone: FlightServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    emptied(alone)  # so that the topic has the first number both times
    filled(alone, topic, 1, READ)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    begin = stream(alone, **options).initialOffset()
    end = stream(alone, **options).latestOffset(begin, ALL)
    before = info(alone, topic)
    emptied(alone)
    filled(alone, topic, 1, ROWS)
    after = info(alone, topic)
    assert (before.name, before.id) == (after.name, after.id), "a number tells nothing"
    ours, theirs = before.identity.partition("/")[0], after.identity.partition("/")[0]
    sentence = (
        f"option failOnDataLoss: topic {topic} in the checkpoint belongs to another log \\({ours}\\); this broker has the log "
        f"{theirs}.* use a new checkpointLocation, or set it to false"
    )
    strict, lenient = stream(alone, **options), stream(alone, **options, failOnDataLoss="false")
    with pytest.raises(OptionError, match=sentence):
        strict.latestOffset(end, ALL)
    with pytest.raises(OptionError, match=sentence):
        strict.partitions(begin, end)  # a batch that was planned there and is done again
    with caplog.at_level(logging.WARNING, "quintet.spark"):
        assert rows(lenient, begin, end) == [], "nothing of this log was planned"
        last = lenient.latestOffset(end, ALL)
    assert caplog.text.count("belongs to another log") == 2
    assert len(rows(lenient, end, last)) == ROWS, "all of it, and not what is behind the old offset"
    gone = json.loads(json.dumps(end).replace(topic, f"{topic}-gone"))
    with pytest.raises(OptionError, match="belongs to another log"):  # and not only: it was deleted
        strict.latestOffset(gone, ALL)


def test_a_checkpoint_with_a_number_is_taken_once_and_gets_the_identity(alone: FlightServer, topic: str) -> None:
    filled(alone, topic, 2, 3)
    reader = stream(alone, subscribe=topic, startingOffsets="earliest")
    found = info(alone, topic)
    start = {topic: {"id": found.id, "0": 1, "1": 3}}
    end = reader.latestOffset(start, ALL)
    assert end == {topic: {"id": found.identity, "0": 3, "1": 3}}
    assert rows(reader, start, end) == ["0-1", "0-2"]
    planned = {topic: {"id": found.id, "0": 2, "1": 3}}  # by the version before, and not committed
    assert rows(reader, start, planned) == ["0-1"]
    assert ends(reader.latestOffset(end, ALL)) == ends(end)
    with pytest.raises(OptionError, match="was deleted and made again"):
        reader.latestOffset({topic: {"id": found.id + 1, "0": 1, "1": 3}}, ALL)
    for wrong in ({"0": 1}, {"id": None, "0": 1}, {"id": 1.5, "0": 1}, {"id": "a/b", "0": "1"}):
        with pytest.raises(OptionError, match="were not written by this source"):
            reader.latestOffset({topic: wrong}, ALL)


def test_mapped_files_of_another_log_are_not_taken_for_the_brokers(alone: FlightServer, topic: str) -> None:
    filled(alone, topic, 1, 3)
    reader = stream(alone, subscribe=topic, startingOffsets="earliest", access="files")
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    (task,) = reader.partitions(begin, end)
    assert isinstance(task, reading.Task)
    (part,) = task.value
    assert part.machine is not None
    assert reading.same_machine(part.machine)
    emptied(alone)
    filled(alone, topic, 1, 5)
    lock = (alone.data / "lock").stat()
    same_place = wire.Machine(  # as when the file system gives the inode again
        part.machine.boot_id, part.machine.lock_path, lock.st_dev, lock.st_ino, part.machine.log
    )
    assert not reading.same_machine(same_place)
    with pytest.raises(OptionError, match=r"the files of .* do not have offset 0 here"):
        list(reader.read(reading.Task((part._replace(machine=same_place),))))


def test_a_folder_that_is_replaced_while_it_is_read_fails_the_task(
    alone: FlightServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(alone, topic, 1, 3)
    reader = stream(alone, subscribe=topic, startingOffsets="earliest", access="files")
    begin = reader.initialOffset()
    (task,) = reader.partitions(begin, reader.latestOffset(begin, ALL))
    answers = iter((True, False))
    monkeypatch.setattr(reading, "same_machine", lambda _: next(answers))
    with pytest.raises(OptionError, match="the data folder of the broker was replaced while"):
        list(reader.read(task))


# -- with Spark -------------------------------------------------------------------------------------------------------


def failure(run: Callable[[], Any]) -> str:
    """The first line of what the query says."""
    with pytest.raises(StreamingQueryException) as caught:
        run()
    return str(caught.value).splitlines()[0]


def test_a_query_whose_broker_was_replaced_skips_nothing(
    spark: SparkSession, alone: FlightServer, topic: str, tmp_path: Path
) -> None:
    def run(**options: str) -> None:
        (
            spark.readStream.format("quintet")
            .options(url=alone.flight, subscribe=topic, startingOffsets="earliest", columns="offset", **options)
            .load()
            .writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    def count() -> int:
        return spark.read.parquet(str(tmp_path / "out")).count()

    filled(alone, topic, 1, READ)
    run()
    assert count() == READ
    emptied(alone)
    filled(alone, topic, 1, ROWS)
    assert "belongs to another log" in failure(run)
    assert count() == READ
    run(failOnDataLoss="false")
    assert count() == READ + ROWS
    run()
    fill(alone, topic, 1, 5, begin=ROWS)
    run()
    assert count() == READ + ROWS + 5, "from then on it is the new log's"


def test_a_sink_whose_broker_or_topic_was_replaced_is_refused(
    spark: SparkSession, broker: FlightServer, alone: FlightServer, topic: str, tmp_path: Path
) -> None:
    """The fence of the batches before is in the log that is gone: going on would leave them out."""
    filled(broker, topic, 1, 3)

    def run(to: str = topic, **options: str) -> None:
        (
            spark.readStream.format("quintet")
            .options(url=broker.flight, subscribe=topic, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format("quintet")
            .options(url=alone.flight, topic=to, checkpointLocation=str(tmp_path / "checkpoint"), **options)
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    def count() -> int:
        return sum(part.end for part in info(alone, topic).partitions)

    run()
    assert count() == 3
    fill(broker, topic, 1, 2, begin=3)
    said = failure(lambda: run(f"{topic}-other"))
    assert f"this checkpoint has written to topic {topic}, and the query now writes to topic {topic}-other" in said
    emptied(alone)
    said = failure(run)
    assert "option checkpointLocation: this checkpoint has written to topic" in said
    assert "the broker behind the url was replaced" in said
    run(failOnDataLoss="false")
    assert count() == 2
    fill(broker, topic, 1, 1, begin=5)
    run()
    assert count() == 3, "from then on it is the new log's"
    manage(alone, lambda admin: admin.delete_topic(topic))
    create(alone, topic)
    fill(broker, topic, 1, 1, begin=6)
    assert "which was deleted and made again since" in failure(run)
    assert count() == 0


def test_a_table_that_was_deleted_is_not_filled_from_the_middle(
    spark: SparkSession, broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    filled(broker, topic, 1, 3)
    table = tmp_path / "table"

    def run(path: Path = table, **options: str) -> None:
        (
            spark.readStream.format("quintet")
            .options(url=broker.flight, subscribe=topic, startingOffsets="earliest", columns="offset")
            .load()
            .writeStream.format("quintet_lake")
            .options(path=str(path), checkpointLocation=f"file://{tmp_path}/checkpoint", **options)
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    run()
    fill(broker, topic, 1, 2, begin=3)
    assert "there is no table" in failure(lambda: run(tmp_path / "elsewhere"))
    table.rename(tmp_path / "moved")
    run(tmp_path / "moved")
    assert lake.read(spark, str(tmp_path / "moved")).count() == 5, "a table that was moved is the same"
    shutil.rmtree(tmp_path / "moved")
    fill(broker, topic, 1, 1, begin=5)
    assert f"this checkpoint has written to table {tmp_path}/moved, and there is no table" in failure(
        lambda: run(tmp_path / "moved")
    )
    run(tmp_path / "moved", failOnDataLoss="false")
    assert lake.read(spark, str(tmp_path / "moved")).count() == 1
