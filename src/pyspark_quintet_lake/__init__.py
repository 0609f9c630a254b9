"""So that any Spark session finds `format("quintet_lake")`: Spark imports every top-level module `pyspark_*` once, when it
first looks for a data source, and registers its `DefaultSource`. Nothing else may live here.
"""

from quintet.spark.lake.sink import LakeSource as DefaultSource

__all__ = ["DefaultSource"]
