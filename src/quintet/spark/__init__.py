"""Topics in Apache Spark: the data source `quintet`, a session that is set up for it, and the pipelines.

Importing this package imports no Spark, so that commands which only name a pipeline start quickly: `session` fetches what
it needs when it is called. Its work is done in start.py; a module named session would take this function's name.
Nothing of the broker's own line may import anything here.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["session"]


def session(
    master: str | None = None,
    *,
    name: str = "quintet",
    conf: Mapping[str, str] | None = None,
    url: str | None = None,
    typed: bool = False,
) -> "SparkSession":
    """A Spark session that knows `format("quintet")`; the one this process has already, if it has one.

    Args:
        master: `local[*]` unless given (or set as `spark.master` in conf); any Spark master. The package travels to
            executors of clusters by itself.
        name: what Spark calls the application.
        conf: settings of Spark, over those of quintet.spark.start. `spark.driver.memory` (2g, or QUINTET_SPARK_MEMORY)
            and `spark.driver.extraJavaOptions` count only for the call that starts the virtual machine.
        url: of a broker, `flight://USER:PASSWORD@HOST:8815`. `sql` and `table` of this session then find its topics by
            name, and a query of `sql` reads only the columns it needs.
        typed: those tables have the columns of the topics' registered schemas in the place of `value`.

    Raises:
        JavaMissing: no Java 17 or newer; the message names the places looked at and what to do.
        SparkMissing: pyspark is not installed, or too old.
        JavaFailed: the virtual machine ended before it could be used; what it said is on stderr.
    """
    from quintet.spark import start

    made = start.session(master, name, conf or {})
    if url is not None:
        from quintet.spark import views

        views.attach(made, url, typed)
    return made
