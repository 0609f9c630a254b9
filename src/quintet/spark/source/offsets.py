"""Stores how far a stream is, as Spark keeps it in its checkpoint, and divides a limit between partitions. No broker, no Spark.

    {"orders": {"id": "3fa9.../77c1...", "0": 5, "1": 9}, "payments": {"id": "3fa9.../e02b...", "0": 0}}

Topics are sorted by name, partitions by number. `id` is the topic's identity (flight/wire.py): it tells a topic from every other
one of the same name, made later or in another log. Checkpoints from before there were identities have the topic's number there,
which another log may have given, too: it is taken where it fits, and the next offsets have the identity. Spark compares offsets
as text, so the same offsets must always be written in the same way: `dump` is the only place that writes them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quintet.flight.wire import TopicInfo
from quintet.spark.source.options import OptionError

ID: Final = "id"
RECORD_BYTES: Final = "recordBytes"  # beside the offsets in reports of progress only, never in a checkpoint


class Marks(NamedTuple):
    """Of one topic: its identity (its number in an old checkpoint), and of each partition the first offset that was not read."""

    id: str | int
    at: tuple[int, ...]

    @property
    def log(self) -> str:
        """The identity of the log it is of; "" in an old checkpoint."""
        return self.id.partition("/")[0] if isinstance(self.id, str) else ""

    def of(self, info: TopicInfo) -> bool:
        """Whether this is the topic that the offsets are of, as far as they tell."""
        return self.id == (info.identity if isinstance(self.id, str) else info.id)


Offsets = dict[str, Marks]


def dump(offsets: Mapping[str, Marks]) -> dict[str, dict[str, str | int]]:
    return {
        topic: {ID: marks.id, **{str(partition): offset for partition, offset in enumerate(marks.at)}}
        for topic, marks in sorted(offsets.items())
    }


def load(offsets: Mapping[str, object]) -> Offsets:
    """The reverse. What `dump` did not write is refused: a checkpoint of another source, for example."""
    found: Offsets = {}
    for topic, marks in offsets.items():
        id = marks.get(ID) if isinstance(marks, dict) else None
        if (
            not isinstance(marks, dict)
            or not isinstance(id, str | int)
            or not all(isinstance(at, int) for name, at in marks.items() if name != ID)
        ):
            raise OptionError("checkpointLocation", f"its offsets of {topic!r} were not written by this source")
        try:
            at = tuple(marks[str(partition)] for partition in range(len(marks) - 1))
        except KeyError:
            raise OptionError("checkpointLocation", f"its offsets of {topic!r} do not name every partition") from None
        found[topic] = Marks(id, at)
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
