"""So that any Spark session finds `format("quintet")`: Spark imports every top-level module `pyspark_*` once, when it
first looks for a data source, and registers its `DefaultSource`. Nothing else may live here.
"""

from quintet.spark.source import QuintetSource as DefaultSource

__all__ = ["DefaultSource"]
