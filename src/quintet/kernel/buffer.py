"""Names the type of anything that holds bytes, without a package at run time.

Python has `collections.abc.Buffer` from 3.12 on; for 3.11 typing_extensions has it. Only type checkers need the real one: an
executor of Spark has neither to have typing_extensions (docs/SPARK.md lists what it has) nor to load it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer
else:

    class Buffer:
        """Stands in annotations; nothing is an instance of it."""


__all__ = ["Buffer"]
