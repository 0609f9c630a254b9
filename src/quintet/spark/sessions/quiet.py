"""Keeps Spark's Python workers from printing a stack trace when Spark has closed their socket.

Spark closes it as soon as it has the rows it needs: at a limit, a cancelled task, the end of a plan or a session. pyspark's daemon,
from which workers are forked, then prints the BrokenPipeError of the last flush: 61 stack traces in a run without any error.
spark.python.daemon.module could name another daemon, but Spark 4.3 ignores it for the workers that plan. So each worker that loads our
source replaces the module `traceback` in its daemon. All other errors are printed as before.
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
    """Replace it in a worker; do nothing in other processes."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", "") == DAEMON:
        setattr(main, "traceback", SimpleNamespace(print_exc=print_exc, format_exc=traceback.format_exc))  # noqa: B010
