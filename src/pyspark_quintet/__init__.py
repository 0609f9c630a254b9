"""So that any Spark session finds `format("quintet")`: Spark imports every top-level module `pyspark_*` once, when it
first looks for a data source, and registers its `DefaultSource`. Nothing else may live here.
"""

try:
    from quintet.spark.source.source import QuintetSource as DefaultSource
except ModuleNotFoundError as error:
    from quintet.spark.absent import stand_in

    DefaultSource = stand_in("quintet", error)  # type: ignore[assignment,misc]  # another class by the same name

__all__ = ["DefaultSource"]
