"""How far a stream is: offsets as Spark keeps them in its checkpoint, and how a limit is shared out. No broker, no Spark.

    {"orders": {"id": 17, "0": 5, "1": 9}, "payments": {"id": 3, "0": 0}}

Topics are sorted by name, partitions by number, and `id` tells a topic from a later one of the same name. Spark compares
offsets as text, so the same offsets must always be written in the same way: `dump` is the only place that writes them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quintet.spark.options import OptionError

ID: Final = "id"


class Marks(NamedTuple):
    """Of one topic: its id, and of each partition the first offset that was not read."""

    id: int
    at: tuple[int, ...]


Offsets = dict[str, Marks]


def dump(offsets: Mapping[str, Marks]) -> dict[str, dict[str, int]]:
    return {
        topic: {ID: marks.id, **{str(partition): offset for partition, offset in enumerate(marks.at)}}
        for topic, marks in sorted(offsets.items())
    }


def load(offsets: Mapping[str, object]) -> Offsets:
    """The reverse. What `dump` did not write is refused: a checkpoint of another source, for example."""
    found: Offsets = {}
    for topic, marks in offsets.items():
        if not isinstance(marks, dict) or ID not in marks or not all(isinstance(n, int) for n in marks.values()):
            raise OptionError("checkpointLocation", f"its offsets of {topic!r} were not written by this source")
        try:
            at = tuple(marks[str(partition)] for partition in range(len(marks) - 1))
        except KeyError:
            raise OptionError("checkpointLocation", f"its offsets of {topic!r} do not name every partition") from None
        found[topic] = Marks(marks[ID], at)
    return found


def share(limit: int, backlog: Mapping[tuple[str, int], int], turn: int = 0) -> dict[tuple[str, int], int]:
    """How many records of each partition to take so that there are at most `limit`: in proportion to what waits, and at
    least one of each as long as the limit allows it, so that a big partition never starves a small one. Where there are
    more partitions than the limit, they take turns: `turn` is how many records were taken before."""
    total = sum(backlog.values())
    if total <= limit:
        return dict(backlog)
    waiting = sorted((key for key, rows in backlog.items() if rows), key=lambda key: (-backlog[key], key))
    taken = dict.fromkeys(backlog, 0)
    if limit <= len(waiting):
        row = sorted(waiting)
        begin = turn % len(row)
        return taken | dict.fromkeys((*row[begin:], *row[:begin])[:limit], 1)
    left = limit - len(waiting)
    rest = total - len(waiting)
    for key in waiting:
        taken[key] = 1 + left * (backlog[key] - 1) // rest
    over = limit - sum(taken.values())
    for key in waiting[:over]:  # what rounding left over, to the longest backlogs first
        taken[key] += 1
    return taken
