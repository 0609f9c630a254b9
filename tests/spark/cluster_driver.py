"""The driver of the tests on a cluster: a program of its own, as a user's is. It does what each line of stdin names and answers
with one line of JSON, so that the tests can stop a worker, or install a package, between two of its steps.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.spark.cluster import CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_A_BATCH = 100


class Driver:
    """One session and its queries; each public method is a step."""

    def __init__(self, spark: "SparkSession", url: str, folder: str) -> None:
        self._spark = spark
        self._url = url
        self._folder = folder
        self._query: StreamingQuery | None = None

    def read(self, topic: str, access: str, schema: str = "raw") -> list[Any]:
        """Rows, the sum of what they say, their partitions and their first time in microseconds since 1970."""
        frame = self._spark.read.format("quintet").options(url=self._url, subscribe=topic, access=access, schema=schema)
        column = "id" if schema == "registry" else "cast(get_json_object(cast(value as string), '$.id') as long)"
        wanted = ("count(*)", f"sum({column})", "count(distinct partition)", "min(unix_micros(timestamp))")
        return list(frame.load().selectExpr(*wanted).collect()[0])

    def write(self, source: str, topic: str) -> bool:
        rows = self._spark.read.format("quintet").options(url=self._url, subscribe=source).load().select("key", "value")
        rows.write.format("quintet").options(url=self._url, topic=topic).mode("append").save()
        return True

    def start(self, source: str, topic: str) -> int:
        """Begin to copy keys, with the file of the package that the executor has loaded as value; the number of the first
        micro-batch that is through."""
        from pyspark.sql.functions import udf

        def place(_key: bytes) -> str:
            import quintet

            return quintet.__file__

        rows = self._spark.readStream.format("quintet").options(
            url=self._url, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=str(ROWS_A_BATCH)
        )
        self._query = (
            rows.load()
            .select("key", udf(place, "string")("key").alias("value"))
            .writeStream.format("quintet")
            .options(url=self._url, topic=topic, checkpointLocation=f"{self._folder}/{topic}")
            .trigger(availableNow=True)
            .start()
        )
        while self._query.lastProgress is None and self._query.isActive:
            time.sleep(0.05)
        return self.batches()

    def batches(self) -> int:
        assert self._query is not None
        failed, last = self._query.exception(), self._query.lastProgress
        if failed is not None:
            raise failed
        return -1 if last is None else int(last["batchId"])

    def finish(self) -> int:
        assert self._query is not None
        self._query.awaitTermination()
        return self.batches()

    def setting(self, name: str) -> str | None:
        return self._spark.sparkContext.getConf().get(name)

    def executors(self) -> int:
        """Without the driver, which is in Spark's list."""
        status: Any = self._spark.sparkContext._jsc
        return int(status.sc().getExecutorMemoryStatus().size()) - 1


def serve(driver: Driver) -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        step: Callable[..., Any] = getattr(driver, name)
        try:
            answer = {"ok": step(*arguments)}
        except Exception as error:  # the test says what it expects
            answer = {"failed": str(error)}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def main(master: str, url: str, folder: str) -> None:
    import quintet.spark

    spark = quintet.spark.session(master, conf=CONF)
    sys.stdout.write(f"{json.dumps({'ok': os.getpid()})}\n")
    sys.stdout.flush()
    serve(Driver(spark, url, folder))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
