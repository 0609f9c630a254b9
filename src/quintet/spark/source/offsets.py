"""Converts the offsets of a stream to and from the JSON in Spark's checkpoint, and divides a limit between partitions.

    {"orders": {"id": "3fa9.../77c1...", "0": 5, "1": 9}, "payments": {"id": "3fa9.../e02b...", "0": 0}}

Topics are sorted by name, partitions by number. `id` is the topic's identity (flight/wire.py): it differs from that of any other
topic of the same name, made later or in another log. Old checkpoints, from before there were identities, have the topic's number
there, which is unique in one log only: it is accepted if it fits, and the next offsets have the identity. Spark compares offsets
as text, so the same offsets must always be written in the same way: `dump` is the only place that writes them.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quintet.flight.wire import TopicInfo
from quintet.spark.source.options import OptionError

ID: Final = "id"
RECORD_BYTES: Final = "recordBytes"  # beside the offsets in reports of progress only, never in a checkpoint


class Marks(NamedTuple):
    """The position in one topic: its identity (its number in an old checkpoint), and of each partition the first offset not read yet."""

    id: str | int
    at: tuple[int, ...]

    @property
    def log(self) -> str:
        """The identity of the topic's log; "" in an old checkpoint."""
        return self.id.partition("/")[0] if isinstance(self.id, str) else ""

    def of(self, info: TopicInfo) -> bool:
        """Whether these offsets belong to this topic, as far as they tell."""
        return self.id == (info.identity if isinstance(self.id, str) else info.id)


Offsets = dict[str, Marks]
Saved = dict[str, dict[str, str | int]]  # offsets as the checkpoint has them


def dump(offsets: Mapping[str, Marks]) -> Saved:
    return {
        topic: {ID: marks.id, **{str(partition): offset for partition, offset in enumerate(marks.at)}}
        for topic, marks in sorted(offsets.items())
    }


def load(offsets: Mapping[str, object]) -> Offsets:
    """The reverse of `dump`. OptionError if `dump` did not write this: for example, the checkpoint of another source."""
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
    """How many records to take of each partition, at most `limit` together: in proportion to its backlog, and at least one of each if
    the limit allows it, so that a big partition never starves a small one. If there are more partitions than the limit, they take
    turns: `turn` is how many records were taken before."""
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
