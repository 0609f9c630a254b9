"""A pipeline of the tests' own that ends by itself, with a verdict."""

from typing import TYPE_CHECKING, Annotated

import msgspec

from quintet.spark.pipelines.base import Common, Result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMMARY = "counts to a number, without Spark's help"


class Options(Common, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="Only a word.")]
    to: Annotated[int, msgspec.Meta(description="Count to this.", ge=0)] = 3


def run(_spark: "SparkSession | None", options: Options) -> Result:
    if options.to == 7:
        raise ValueError("seven is not counted to")
    rows = tuple((at, options.topic) for at in range(options.to))
    return Result(
        title=f"{options.to} rows", columns=(">number", "word"), rows=rows, notes=("done",), ok=options.to < 10
    )
