"""The cells of Spark in the matrix of key, headers, time and origin: it reads what every door wrote, and every door what it wrote.

`tests/interop/test_headers.py` has the other cells, and what is checked in each.
"""

import asyncio
import datetime
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from quintet.client.core.url import ALL_DOORS
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.config import DEV_PEERBUS_SECRET
from tests.interop.test_headers import EXPECTED, KEY, TIME_US, Seen, check, seen_in_row, subscribed, take, write
from tests.spark.conftest import FlightServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "peerbus/headers.of.spark"
WRITERS = (*ALL_DOORS, "spark")
SCHEMA = "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp"


def one_row(spark: "SparkSession", value: bytes | None) -> "DataFrame":
    when = datetime.datetime.fromtimestamp(TIME_US / 1_000_000, datetime.UTC)
    return spark.createDataFrame([(KEY, value, [tuple(pair) for pair in EXPECTED], when)], SCHEMA)


def test_spark_reads_every_door_and_every_door_reads_spark(
    spark: "SparkSession", broker: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)
    began_us = time.time_ns() // 1000

    def save() -> None:
        rows = one_row(spark, b'{"by": "spark"}')
        rows.write.format("quintet").options(url=broker.flight, topic=TOPIC).mode("append").save()

    async def scenario() -> dict[str, list[Seen]]:
        async with AsyncExitStack() as stack:
            readers = await subscribed(stack, broker, TOPIC)
            for door in ALL_DOORS:
                await write(broker, door, TOPIC)
            await asyncio.to_thread(save)
            return {door: await take(subscription, len(WRITERS)) for door, subscription in readers.items()}

    seen = asyncio.run(scenario())
    read = spark.read.format("quintet").options(url=broker.flight, subscribe=TOPIC).load()
    seen["spark"] = [seen_in_row(row) for row in read.orderBy("offset").toArrow().to_pylist()]
    for reader, found in seen.items():
        assert [one.by for one in found] == list(WRITERS), f"read through {reader}"
        for one in found:
            check(one, reader, began_us)


def test_a_record_without_value_keeps_key_headers_and_time(
    spark: "SparkSession", broker: FlightServer, topic: str
) -> None:
    one_row(spark, None).write.format("quintet").options(url=broker.flight, topic=topic).mode("append").save()
    read = spark.read.format("quintet").options(url=broker.flight, subscribe=topic).load()
    again = f"{topic}-again"  # and once more, from a read to a write
    copied = read.select("key", "value", "headers", "timestamp")
    copied.write.format("quintet").options(url=broker.flight, topic=again).mode("append").save()
    for name in (topic, again):
        found = spark.read.format("quintet").options(url=broker.flight, subscribe=name).load()
        (row,) = found.toArrow().to_pylist()
        assert row["value"] is None
        check(seen_in_row(row | {"value": b'{"by": "spark"}'}), "spark", TIME_US)
