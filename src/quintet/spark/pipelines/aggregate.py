"""aggregate: computes counts, sums, extremes and percentiles per window and group, to a topic or a table.

    topic = "orders"                     # quintet pipeline run aggregate --config orders.toml
    to_topic = "orders-per-minute"
    window = "1m"                        # slide = "10s" for windows that overlap
    watermark = "5m"                     # how late a message may come and still be counted
    by = ["region"]
    where = "total > 0"

    [fields]                             # the fields of a JSON value; left out when schema = "registry"
    region = "string"
    total = "double"

    [measures]
    orders = "count"
    revenue = "sum(total)"
    slowest = "percentile(total, 0.99)"

A time in the future is taken as now. emit = "final" publishes a window once, when the watermark has passed its end; "updates" publishes
it whenever it changes.
"""

import itertools
import re
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from quintet.spark.pipelines.base import (
    Into,
    OnDecodeError,
    Prefix,
    SchemaIds,
    ValuePrefix,
    by_now,
    quoted,
    read_stream,
    spoken,
    typed,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "counts, sums and percentiles per time window, declared in a TOML file"
KEY: Final = "_key"  # the column with the key of a message, because a user may group by `key`
PERCENTILE_ACCURACY: Final = 10_000  # the error of a percentile is at most 1 / this, of its rank
_MEASURE: Final = re.compile(r"(?P<name>[a-z_]+)(?:\(\s*(?P<column>[^,()]+?)\s*(?:,\s*(?P<number>[0-9.]+)\s*)?\))?")


class Options(Into, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="The topic to read.", min_length=1)]
    measures: Annotated[
        dict[str, str],
        msgspec.Meta(
            description="name = measure: count, count(c), sum(c), avg(c), min(c), max(c), distinct(c), percentile(c, 0.95).",
            min_length=1,
        ),
    ]
    window: Annotated[str, msgspec.Meta(description="How long a window is: 10s, 1m, 1h.")] = "1m"
    slide: Annotated[str, msgspec.Meta(description="How far apart windows begin, if they overlap.")] = ""
    watermark: Annotated[str, msgspec.Meta(description="How late a message may come and still be counted.")] = "1m"
    time: Annotated[str, msgspec.Meta(description="The column that tells the time of a message.")] = "timestamp"
    by: Annotated[tuple[str, ...], msgspec.Meta(description="Columns to group by, beside the window.")] = ()
    where: Annotated[str, msgspec.Meta(description="SQL condition a message must meet.")] = ""
    fields: Annotated[
        dict[str, str], msgspec.Meta(description="name = Spark type: the fields of a JSON value to make columns of.")
    ] = msgspec.field(default_factory=dict)
    schema: Annotated[
        Literal["raw", "registry"], msgspec.Meta(description="registry: the columns of the registered schema.")
    ] = "raw"
    typed_prefix: Prefix = ""
    on_decode_error: OnDecodeError = "deadletter"
    value_prefix: ValuePrefix = "auto"
    schema_ids: SchemaIds = ""
    emit: Annotated[
        Literal["final", "updates"],
        msgspec.Meta(description="final: a window once, when it is over; updates: each change."),
    ] = "final"


def start(spark: "SparkSession", options: Options) -> list["StreamingQuery"]:
    """One query: fields to columns, windows, measures, and the topic or table."""
    from pyspark.sql import functions as F

    if options.emit == "updates" and options.to_table:
        raise ValueError("emit=updates needs to_topic: rows of a table cannot be changed")
    how = typed(options, options.schema)
    frame = _columns(read_stream(spark, options, options.topic, **how), options)
    for name in (options.time, *options.by):
        _known(frame, name)
    names = ["window", "window_start", "window_end", *options.by, *options.measures]
    for one, other in itertools.pairwise(sorted(names, key=str.lower)):
        if one.lower() == other.lower():
            raise ValueError(f"two columns of the result are called {one!r} and {other!r}: give a measure another name")
    if options.where:
        frame = frame.where(options.where)
    if dict(frame.dtypes)[options.time] == "timestamp":
        frame = frame.withColumn(options.time, by_now(options.time))
    span = F.window(quoted(options.time), spoken(options.window), spoken(options.slide) if options.slide else None)
    measured = [_measure(frame, name, text) for name, text in options.measures.items()]
    result = (
        frame.withWatermark(quoted(options.time), spoken(options.watermark))
        .groupBy(span, *[F.col(quoted(name)) for name in options.by])
        .agg(*measured)
        .withColumn("window_start", F.col("window.start"))
        .withColumn("window_end", F.col("window.end"))
        .drop("window")
    )
    chosen = [F.col(quoted(name)) for name in names[1:]]
    if options.to_topic:
        key = F.concat_ws("/", F.col("window_start").cast("string"), *[_word(name) for name in options.by])
        chosen.append(key.alias(KEY))
    mode: Literal["append", "update"] = "update" if options.emit == "updates" else "append"
    return [write(result.select(*chosen), options, KEY, mode)]


def waiting(options: Options, state_rows: int) -> str:
    """A sentence about windows that a run with trigger=now has counted and not published."""
    if options.emit == "updates" or not state_rows:
        return ""
    return (
        f"{state_rows:,} windows are open and were not published: none ends {options.watermark} (watermark) or more before the "
        "newest message; they are in the checkpoint, and a later run publishes them. emit=updates publishes open windows, too"
    )


def _word(name: str) -> "Column":
    """A value as a part of a key, escaped so that no two groups have the same key: / and % become %2F and %25, and null is %."""
    from pyspark.sql import functions as F

    text = F.col(quoted(name)).cast("string")
    for sign, code in (("%", "%25"), ("/", "%2F")):
        text = F.replace(text, F.lit(sign), F.lit(code))
    return F.coalesce(text, F.lit("%"))


def _columns(frame: "DataFrame", options: Options) -> "DataFrame":
    """The declared fields of a JSON value as columns, which replace the source's of the same names; null if the value is not JSON."""
    from pyspark.sql import functions as F

    if not options.fields:
        return frame
    layout = ", ".join(f"{quoted(name)} {kind}" for name, kind in options.fields.items())
    parsed = F.from_json(F.col("value").cast("string"), layout, {"mode": "PERMISSIVE"})
    declared = {name.lower() for name in options.fields}
    kept = [F.col(quoted(name)) for name in frame.columns if name.lower() not in declared]
    return frame.withColumn("_parsed", parsed).select(
        *kept, *[F.col("_parsed")[name].alias(name) for name in options.fields]
    )


def _measure(frame: "DataFrame", name: str, text: str) -> "Column":
    from pyspark.sql import functions as F

    found = _MEASURE.fullmatch(text.strip())
    function, column, number = (found["name"], found["column"], found["number"]) if found else ("", None, None)
    if function == "count" and column is None:
        return F.count(F.lit(1)).alias(name)
    if column is not None:
        _known(frame, column)
        over = F.col(quoted(column))
        plain = {
            "count": F.count, "sum": F.sum, "avg": F.avg, "min": F.min, "max": F.max, "distinct": F.approx_count_distinct,
        }  # fmt: skip
        if function in plain and number is None:
            return plain[function](over).alias(name)
        if function == "percentile" and number is not None and 0 <= float(number) <= 1:
            return F.percentile_approx(over, float(number), PERCENTILE_ACCURACY).alias(name)
    raise ValueError(
        f"measures.{name} = {text!r}: write count, count(c), sum(c), avg(c), min(c), max(c), distinct(c) or percentile(c, 0.95)"
    )


def _known(frame: "DataFrame", name: str) -> None:
    if name not in frame.columns:
        raise ValueError(f"no column {name!r}: there are {', '.join(frame.columns)}; declare it under [fields]")
