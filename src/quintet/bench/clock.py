"""Stores latencies as an array of nanoseconds: millions of them go from the generators to the report."""

import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Nanoseconds = array.array[int]
else:  # array.array takes a parameter at run time only from Python 3.12 on
    Nanoseconds = array.array


def nanoseconds() -> Nanoseconds:
    """An empty one."""
    return array.array("q")
