"""Makes the Spark session of a pipeline, and a new one when its JVM died or its context was stopped.

pyspark keeps one gateway and one context for the whole process and has no function to drop those of a dead JVM. `forget` does that; it
is the only place that sets pyspark's own attributes.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from quintet.spark.sessions import launch, start

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway, JavaObject, JVMView  # type: ignore[import-untyped]  # py4j ships no types
    from pyspark.sql import SparkSession

# Spark's log repeats in many lines the error that we show as one sentence; --verbose shows the log.
QUIET: Final = {"spark.log.level": "OFF"}
# Loggers of pyspark that print errors which are also raised.
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def renewed(
    before: "SparkSession | None", master: str | None, name: str, verbose: bool, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """The earlier session if it can still be used, else a new one. `conf` has the user's settings, which take precedence."""
    if before is not None:
        if usable(before):
            return before
        forget(before)
    fresh = not running()
    # Spark would make its folder for tables in the user's current directory, although a command makes no tables.
    own = {"spark.app.name": name, "spark.sql.warehouse.dir": str(launch.cache_folder() / "warehouse")}
    if verbose:
        return start.session(master, None, conf or {}, own)
    silence()
    made = start.session(master, None, conf or {}, own | QUIET)
    if (
        fresh and QUIET.items() <= dict(made.sparkContext.getConf().getAll()).items()
    ):  # otherwise the user has asked for a log
        hush(made)
    return made


def hush(spark: "SparkSession") -> None:
    """Close the stderr of the JVM: otherwise it shows what Python workers print when their connections are closed. Errors of its start
    were printed before. Java keeps the descriptor, on /dev/null."""
    java: JVMView = spark.sparkContext._jvm
    java.java.lang.System.err.close()


def running() -> bool:
    """Whether this process has a session already, which its maker ends."""
    start.check_packages()
    from pyspark.core.context import SparkContext

    return SparkContext._active_spark_context is not None


def end(spark: "SparkSession") -> None:
    """Stop the session, so that its Python workers print no errors when the JVM ends."""
    if usable(spark):
        spark.stop()


def silence() -> None:
    """Switch off loggers that repeat errors which are raised."""
    from pyspark.logger import PySparkLogger

    for name in LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """py4j also logs some errors that it raises, to the root logger."""
    return "py4j" not in record.pathname


def usable(spark: "SparkSession") -> bool:
    """Whether the JVM answers and its context was not stopped."""
    try:
        context: JavaObject | None = spark.sparkContext._jsc
        return context is not None and not context.sc().isStopped()
    except Exception:  # py4j raises several kinds of errors if the JVM is gone
        return False


def forget(spark: "SparkSession") -> None:
    """Stop a session; if its JVM does not answer any more, drop that, too."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    try:
        alive = SparkContext._jvm is not None and SparkContext._jvm.java.lang.System.nanoTime() is not None
    except Exception:  # as above
        alive = False
    if alive:
        spark.stop()
        return
    gateway: JavaGateway | None = SparkContext._gateway
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    if gateway is not None:
        try:
            gateway.shutdown()
        except Exception:  # as above; what is left of it goes with this process
            return
