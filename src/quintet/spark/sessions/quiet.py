"""Lets a Python worker of Spark's end without a stack trace when Spark has closed its socket.

Spark does so as soon as it has what it wanted: at a limit, a cancelled task, the end of a plan or a session. pyspark's daemon,
from which workers are forked, prints the BrokenPipeError of the last flush: 61 traces in a run in which nothing was wrong.
spark.python.daemon.module would name another daemon, but Spark 4.3 ignores it for the workers that plan. So each worker that
loads our source puts this before the module its daemon prints with. Every other error is printed as before.
"""

import sys
import traceback
from types import SimpleNamespace
from typing import Final

DAEMON: Final = "pyspark.daemon"
GONE: Final = (BrokenPipeError, ConnectionResetError)


def print_exc() -> None:
    if not isinstance(sys.exc_info()[1], GONE):
        traceback.print_exc()


def quieten() -> None:
    """In a worker; nothing in any other process."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == DAEMON:
        setattr(main, "traceback", SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc))  # noqa: B010
