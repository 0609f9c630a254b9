"""Connects topics with Apache Spark: the data source `quintet`, a session that is set up for it, and the pipelines.

Importing this package imports no Spark, so that commands which only name a pipeline start quickly: `session` fetches what
it needs when it is called. Its work is done in start.py; a module named session would take this function's name.
Nothing of the broker's own line may import anything here.
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
    """A Spark session that knows `format("quintet")`; the one this process has already, if it has one.

    Args:
        master: `local[*]` unless given here, or as `spark.master` in conf or in the user's own settings; any Spark master. The
            package travels to executors of clusters by itself.
        name: what Spark calls the application; `quintet` unless the user's own settings say otherwise.
        conf: settings of Spark. They go over PYSPARK_SUBMIT_ARGS and the environment, those over spark-defaults.conf, and that
            over the defaults of quintet.spark.sessions.start. `spark.driver.memory` (2g unless set) and `spark.driver.extraJavaOptions`
            count only for the call that starts the virtual machine.
        url: of a broker, `flight://USER:PASSWORD@HOST:8815`. `sql` and `table` of this session then find its topics by
            name, and a query of `sql` reads only the columns it needs.
        typed: those tables have the columns of the topics' registered schemas in the place of `value`.

    Raises:
        JavaMissing: no Java 17 or newer; the message names the places looked at and what to do.
        SparkMissing: pyspark is not installed, or too old.
        JavaFailed: the virtual machine ended before it could be used; what it said is on stderr.
    """
    from quintet.spark.sessions import start

    made = start.session(master, name, conf or {})
    if url is not None:
        from quintet.spark.sessions import views

        views.attach(made, url, typed)
    return made


def attach(spark: "SparkSession") -> None:
    """Make a session of the caller's own know `format("quintet")`: before its first read or write, once or more often.

    On a cluster this sends the package to the executors, whose Python (PYSPARK_PYTHON) needs pyarrow, msgspec and numpy. Queries
    that read topics show on their brokers, as those of `session` do.

    Raises:
        ConfigError: it is a session of Spark Connect.
    """
    from quintet.spark.sessions import start

    start.attach(spark)
