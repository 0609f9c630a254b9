"""Spark sessions that cannot be the one of the bench: those whose start is measured, and the one with the Kafka connector.

python bench/spark_child.py start direct|submit      times a session and its first query, prints them as JSON, ends
python bench/spark_child.py kafka ADDRESS TOPIC      reads commands from stdin, a JSON object each, and answers each with one:
    {"do": "load", "parquet": DIR}                   the rows of these files into the topic
    {"do": "batch"}                                  read all columns into a no-op sink
    {"do": "stream", "checkpoint": DIR}              the same as a stream, availableNow
    {"do": "count"}                                  how many rows the topic has
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2]"
ROWS_PER_TRIGGER = 1_000_000  # of a stream, on all sides


def session(way: str) -> "SparkSession":
    """By our launcher, or as pyspark does it alone."""
    if way == "direct":
        import quintet.spark

        return quintet.spark.session(MASTER, name="bench")
    from pyspark.sql import SparkSession

    quiet: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "2g",
    }
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return SparkSession.builder.master(MASTER).config(map={**quiet, **local}).getOrCreate()


def start(way: str) -> None:
    """Time a start and wait until the machine is gone: it may have an archive to write."""
    begin = time.monotonic()
    spark = session(way)
    made = time.monotonic()
    spark.range(1000).selectExpr("id % 7 as k").groupBy("k").count().collect()
    print(json.dumps({"session": made - begin, "query": time.monotonic() - made}), flush=True)
    spark.stop()
    if way == "direct":
        from quintet.spark.sessions import start as starting

        machine = starting.machine()
        if machine is not None:
            machine.end()
            machine.process.wait()


def kafka(address: str, topic: str) -> None:
    """Do as told until stdin ends."""
    spark = session("direct")
    place = {"kafka.bootstrap.servers": address}
    asked = place | {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    print(json.dumps({"ready": spark.version}), flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        answer: dict[str, Any] = {}
        begin = time.monotonic()
        match order["do"]:
            case "load":
                frame = spark.read.parquet(order["parquet"]).select("key", "value", "partition")
                frame.write.format("kafka").options(**place, topic=topic).save()
            case "batch":
                frame = spark.read.format("kafka").options(**asked).load()
                frame.write.format("noop").mode("overwrite").save()
            case "stream":
                frame = spark.readStream.format("kafka").options(**asked, maxOffsetsPerTrigger=ROWS_PER_TRIGGER).load()
                writing = frame.writeStream.format("noop").option("checkpointLocation", order["checkpoint"])
                writing.trigger(availableNow=True).start().awaitTermination()
            case _:
                answer["rows"] = spark.read.format("kafka").options(**asked).load().count()
        print(json.dumps(answer | {"seconds": time.monotonic() - begin}), flush=True)
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "start":
        start(sys.argv[2])
    else:
        kafka(sys.argv[2], sys.argv[3])
