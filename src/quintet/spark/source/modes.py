"""Says what is wrong with a batch write whose mode a topic cannot have.

Spark's default mode is "errorifexists". For a Python source Spark refuses it, and "ignore", before the source is asked, and
advises "Append" or "Overwrite", of which a topic has the first only. The source cannot change that sentence. So a session of
quintet.spark catches this one error, of this one format, where pyspark raises it, and raises it with the right sentence; a
session of one's own has Spark's.
"""

import functools
from typing import Any, Final

REFUSED: Final = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
FORMAT: Final = '"quintet"'  # as the error names it
SENTENCE: Final = 'option mode: rows are added to a topic and replace nothing; write df.write.mode("append")'
_MARK: Final = "_quintet_explains"


def explain() -> None:
    """From now on; again does nothing."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import DataFrameWriter

    original = DataFrameWriter.save
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def save(self: DataFrameWriter, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except AnalysisException as error:
            text = str(error)
            if REFUSED not in text.partition("]")[0] or FORMAT not in text.partition("cannot be written")[0]:
                raise
        else:
            return
        raise AnalysisException(SENTENCE)

    setattr(save, _MARK, True)
    DataFrameWriter.save = save  # type: ignore[method-assign]  # as said above
