"""A pipeline of the tests' own that ends by itself, with a verdict."""

from typing import TYPE_CHECKING, Annotated

import msgspec

from quintet.spark.pipelines.base import Common, Result, pause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMMARY = "counts to a number, with Spark's help if it must be"


class Options(Common, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="Only a word.")]
    to: Annotated[int, msgspec.Meta(description="Count to this.", ge=0)] = 3
    busy: Annotated[bool, msgspec.Meta(description="Let Spark count, too, and for very long.")] = False
    wait: Annotated[float, msgspec.Meta(description="Seconds to wait first.", ge=0)] = 0


def run(spark: "SparkSession | None", options: Options) -> Result:
    if options.to == 7:
        raise ValueError("seven is not counted to")
    pause(options.wait)
    if options.busy and spark is not None:
        spark.range(10**15).selectExpr("sum(hash(id))").collect()
    rows = tuple((at, options.topic) for at in range(options.to))
    return Result(
        title=f"{options.to} rows", columns=(">number", "word"), rows=rows, notes=("done",), ok=options.to < 10
    )
