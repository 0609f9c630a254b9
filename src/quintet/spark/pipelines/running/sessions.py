"""Makes the session of a pipeline, and a new one when its virtual machine died or its context was stopped.

pyspark keeps one gateway and one context for the whole process and offers no way to let go of a machine that is gone: that
is what `forget` does, and the only place that touches pyspark's own attributes.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from quintet.spark.sessions import launch, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's log of errors repeats in many lines what is said in one sentence; --verbose shows it.
QUIET: Final = {"spark.log.level": "OFF"}
# Loggers of pyspark that print what is raised as well.
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def renewed(
    before: "SparkSession | None", master: str | None, name: str, verbose: bool, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """The session before if it can still be used, else a new one. `conf` is the user's, and goes over what a command wants."""
    if before is not None:
        if usable(before):
            return before
        forget(before)
    fresh = not running()
    # A command keeps no tables of its own: Spark's folder for them does not belong where the user happens to be.
    own = {"spark.app.name": name, "spark.sql.warehouse.dir": str(launch.cache_folder() / "warehouse")}
    if verbose:
        return start.session(master, None, conf or {}, own)
    silence()
    made = start.session(master, None, conf or {}, own | QUIET)
    if fresh and QUIET.items() <= dict(made.sparkContext.getConf().getAll()).items():  # or the user wants to see a log
        hush(made)
    return made


def hush(spark: "SparkSession") -> None:
    """Let nothing of the virtual machine reach stderr any more: what its Python workers print when it closes their
    connections, first of all. What stopped it from starting was said before. Java keeps the descriptor, on /dev/null."""
    java: Any = spark.sparkContext._jvm
    java.java.lang.System.err.close()


def running() -> bool:
    """Whether this process has a session already, which is then somebody else's to end."""
    start.check_packages()
    from pyspark.core.context import SparkContext

    return SparkContext._active_spark_context is not None


def end(spark: "SparkSession") -> None:
    """Stop it, so that its Python workers do not complain when the virtual machine goes."""
    if usable(spark):
        spark.stop()


def silence() -> None:
    """Errors are said once, by who meets them."""
    from pyspark.logger import PySparkLogger

    for name in LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.getLogger().addFilter(_not_of_py4j)


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """It also logs some of what it raises, to a logger without a name."""
    return "py4j" not in record.pathname


def usable(spark: "SparkSession") -> bool:
    """Whether the virtual machine answers and its context was not stopped."""
    try:
        context: Any = spark.sparkContext._jsc
        return context is not None and not context.sc().isStopped()
    except Exception:  # py4j raises errors of its own, of sockets and of values, for a machine that is gone
        return False


def forget(spark: "SparkSession") -> None:
    """Let go of a session: of its machine, too, if that does not answer any more."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    try:
        alive = SparkContext._jvm is not None and SparkContext._jvm.java.lang.System.nanoTime() is not None
    except Exception:  # as above
        alive = False
    if alive:
        spark.stop()
        return
    gateway: Any = SparkContext._gateway
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    if gateway is not None:
        try:
            gateway.shutdown()
        except Exception:  # as above; what is left of it goes with this process
            return
