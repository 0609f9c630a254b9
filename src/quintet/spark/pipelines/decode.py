"""decode: turns a raw topic into a typed topic or table, by the schema that is registered for it.

The source decodes, which costs a third of decoding in Spark, and copies records that do not decode to the topic's dead letters with
their cause, each once. So no record can stop the pipeline.
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
    """One query: the typed columns, with topic, partition and offset of each row."""
    how = typed(options, "registry", options.subject)
    frame = read_stream(spark, options, options.topic, **how)
    return [write(frame.drop("headers", "origin"), options)]
