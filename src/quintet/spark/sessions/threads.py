"""Lets a Python thread write to our topics and tables.

For a write, Spark 4.3 looks Python sources up in the active session of the calling thread, and not in the session that the
DataFrame is of. A new thread of Python's has none, InheritableThread's neither, and Spark says that it has no data source
`quintet`. So a session of quintet.spark is made the active one for the time of such a call.
"""

import functools
from typing import Any, Final

_MARK: Final = "_quintet_activates"


def activate() -> None:
    """From now on; again does nothing."""
    from pyspark.sql import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    _wrap(DataFrameWriter, "save")
    _wrap(DataStreamWriter, "start")


def _wrap(owner: Any, name: str) -> None:
    original = getattr(owner, name)
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        sessions = self._spark._jvm.SparkSession
        if sessions.getActiveSession().isDefined():
            return original(self, *args, **kwargs)
        sessions.setActiveSession(self._spark._jsparkSession)
        try:
            return original(self, *args, **kwargs)
        finally:
            sessions.clearActiveSession()

    setattr(call, _MARK, True)
    setattr(owner, name, call)
