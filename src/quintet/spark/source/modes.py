"""Replaces Spark's error about the mode of a batch write by one that says what a topic takes: mode("append").

Spark's default mode is "errorifexists". For a Python source Spark refuses it, and "ignore", before the source is asked, and
advises "Append" or "Overwrite", but a topic cannot be overwritten. The source cannot change that text. So a session of
quintet.spark catches this one error, of this one format, where pyspark raises it, and raises it with the right text. A session that
the user made shows Spark's.
"""

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

P = ParamSpec("P")

REFUSED: Final = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
FORMAT: Final = '"quintet"'  # as the error names it
SENTENCE: Final = 'option mode: rows are added to a topic and replace nothing; write df.write.mode("append")'
_MARK: Final = "_quintet_explains"


def explain() -> None:
    """Change the error from now on. A second call does nothing."""
    from pyspark.sql import DataFrameWriter

    if not getattr(DataFrameWriter.save, _MARK, False):
        DataFrameWriter.save = _explained(DataFrameWriter.save)  # type: ignore[method-assign]  # why: see above


def _explained(original: Callable[P, None]) -> Callable[P, None]:
    from pyspark.errors import AnalysisException

    @functools.wraps(original)
    def save(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            original(*args, **kwargs)
        except AnalysisException as error:
            text = str(error)
            if REFUSED not in text.partition("]")[0] or FORMAT not in text.partition("cannot be written")[0]:
                raise
        else:
            return
        raise AnalysisException(SENTENCE)

    setattr(save, _MARK, True)
    return save
