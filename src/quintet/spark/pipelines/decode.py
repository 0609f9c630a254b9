"""decode: turns a raw topic into a typed topic or table, by the schema that is registered for it.

The source itself decodes (a third of the cost of doing it in Spark) and sends what does not decode to the topic's dead
letters with its cause, each row once; so the job lives whatever is in the topic.
"""

from typing import TYPE_CHECKING, Annotated

import msgspec

from quintet.spark.pipelines.base import Into, OnDecodeError, Prefix, SchemaIds, ValuePrefix, read_stream, typed, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "a raw topic to a typed topic or table by its registered schema; what does not fit goes to the dead letters"


class Options(Into, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="The topic to decode.", min_length=1)]
    subject: Annotated[str, msgspec.Meta(description="Its subject in the registry, if that is not its name.")] = ""
    typed_prefix: Prefix = ""
    on_decode_error: OnDecodeError = "deadletter"
    value_prefix: ValuePrefix = "auto"
    schema_ids: SchemaIds = ""


def start(spark: "SparkSession", options: Options) -> list["StreamingQuery"]:
    """The typed columns, and where each row came from."""
    how = typed(options, "registry", options.subject)
    frame = read_stream(spark, options, options.topic, **how)
    return [write(frame.drop("headers", "origin"), options)]
