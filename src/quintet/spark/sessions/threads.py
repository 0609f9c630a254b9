"""Lets Python threads write to topics and tables by making a session active during the call.

For a write, Spark 4.3 looks for a Python source in the active session of the calling thread, not in the session of the DataFrame. A new
Python thread has no active session (InheritableThread neither), and Spark says that there is no data source `quintet`. So the session
of the DataFrame is made the active one during such a call.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView  # type: ignore[import-untyped]  # py4j ships no types

_MARK: Final = "_quintet_activates"

P = ParamSpec("P")
R = TypeVar("R")


def activate() -> None:
    """Change pyspark's writers from now on. A second call does nothing."""
    from pyspark.sql import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if not getattr(DataFrameWriter.save, _MARK, False):
        DataFrameWriter.save = _activating(DataFrameWriter.save)  # type: ignore[method-assign]  # why: see above
    if not getattr(DataStreamWriter.start, _MARK, False):
        DataStreamWriter.start = _activating(DataStreamWriter.start)  # type: ignore[method-assign]


def _activating(original: Callable[P, R]) -> Callable[P, R]:
    from pyspark.sql import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        writer = args[0]
        assert isinstance(writer, DataFrameWriter | DataStreamWriter), "a method of these was wrapped"
        java: JVMView = writer._spark._jvm
        sessions = java.SparkSession
        if sessions.getActiveSession().isDefined():
            return original(*args, **kwargs)
        sessions.setActiveSession(writer._spark._jsparkSession)
        try:
            return original(*args, **kwargs)
        finally:
            sessions.clearActiveSession()

    setattr(call, _MARK, True)
    return call
