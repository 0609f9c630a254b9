"""Orders of a topic as a table, what each customer paid as a second one, and that as a topic again.

    topic shop.orders --> streaming table orders --> materialized view totals --> sink --> topic shop.totals

Spark finds the format `quintet` by itself once the package is installed. Where the broker is, and as whom to ask, is in
QUINTET_FLIGHT_URL, so no password stands here.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
ACCESS = {"url": os.environ.get("QUINTET_FLIGHT_URL", "flight://admin:admin@127.0.0.1:8815")}


@dp.table(format="parquet")
def orders() -> DataFrame:
    """Every order once: a run goes on where the last one ended."""
    topic = spark.readStream.format("quintet").options(**ACCESS, subscribe="shop.orders", startingOffsets="earliest")
    return topic.load().selectExpr("cast(key as string) as customer", "cast(cast(value as string) as bigint) as paid")


@dp.materialized_view(format="parquet")
def totals() -> DataFrame:
    """Computed anew by each run, over all orders."""
    return spark.read.table("orders").groupBy("customer").agg(f.sum("paid").alias("paid"), f.count("*").alias("orders"))


# Each run writes the view anew and thus publishes all totals again: the last one of a key counts. A run that was killed
# while it published finds the files of its batch gone; failOnDataLoss=false lets the new totals take their place.
dp.create_sink("totals_topic", "quintet", {**ACCESS, "topic": "shop.totals", "failOnDataLoss": "false"})


@dp.append_flow(target="totals_topic")
def publish_totals() -> DataFrame:
    """A topic takes key and value, so the other columns become JSON."""
    return spark.readStream.table("totals").selectExpr("customer as key", "to_json(struct(paid, orders)) as value")
