"""Connects topics with Apache Spark: the data source `quintet`, a session that is set up for it, and the pipelines.

Importing this package does not import Spark, so that commands which only name a pipeline start quickly: `session` imports it when it is
called. Its code is in sessions/start.py. The broker must not import anything from here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["attach", "session"]


def session(
    master: str | None = None,
    *,
    name: str | None = None,
    conf: Mapping[str, str] | None = None,
    url: str | None = None,
    typed: bool = False,
) -> "SparkSession":
    """A Spark session with `format("quintet")`: the one that this process has already, or a new one.

    Args:
        master: any Spark master; `local[*]` unless set here, or as `spark.master` in conf or in the user's settings. On a cluster
            the package is sent to the executors.
        name: of the application; `quintet` unless the user's settings have another.
        conf: settings of Spark. They take precedence over PYSPARK_SUBMIT_ARGS and the environment, these over spark-defaults.conf, and
            that over the defaults of quintet.spark.sessions.start. `spark.driver.memory` (default 2g) and
            `spark.driver.extraJavaOptions` have an effect only in the call that starts the JVM.
        url: of a broker, `flight://USER:PASSWORD@HOST:8815`. `sql` and `table` of this session then find its topics by
            name, and a query of `sql` reads only the columns it needs.
        typed: these tables have the columns of the topics' registered schemas in place of `value`.

    Raises:
        JavaMissing: no Java 17 or newer; the message names the places that were searched and what to do.
        SparkMissing: pyspark is not installed, or too old.
        JavaFailed: the JVM ended before it could be used; its output is on stderr.
    """
    from quintet.spark.sessions import start

    made = start.session(master, name, conf or {})
    if url is not None:
        from quintet.spark.sessions import views

        views.attach(made, url, typed)
    return made


def attach(spark: "SparkSession") -> None:
    """Register `format("quintet")` in an existing session, before its first read or write. A second call does nothing.

    On a cluster this sends the package to the executors, whose Python (PYSPARK_PYTHON) needs pyarrow, msgspec and numpy. The broker shows
    queries of this session that read topics, as those of `session`.

    Raises:
        ConfigError: it is a session of Spark Connect.
    """
    from quintet.spark.sessions import start

    start.attach(spark)
