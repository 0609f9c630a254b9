"""Plans a replay: which rows of an archive are published together, in which order and when. No Spark, no broker.

    Chunk    some neighbouring offsets of one partition, with their count and times
    Slice    chunks that are published in one transaction, and when it is due
    Plan     all slices; saved before the first is published, so that a second run publishes exactly the rest

Slices are numbered, and the broker remembers the number of the last one (the fence of a writer), so that each is published
once. A partition's chunks are in the order of its offsets. Chunks of different partitions are merged by their times.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from quintet.model.errors import ConfigError
from quintet.spark.lake.storage.journal import replace

if TYPE_CHECKING:
    from quintet.spark.lake.storage.objects import TablePath

SLICE_ROWS: Final = 100_000  # of one transaction
CHUNKS_MAX: Final = 200_000  # of a plan, whose file then has some megabytes
TICK_US: Final = 1_000_000  # a paced replay publishes about this much of the original time at once
US: Final = 1_000_000
TOPICS: Final = "_quintet/topics.json"  # in the archive's directory: topic -> how many partitions it has


class Speed(NamedTuple):
    """max: as fast as possible; times: a multiple of the original speed; rows: rows per second."""

    kind: Literal["max", "times", "rows"]
    factor: float = 0.0


class Chunk(NamedTuple):
    partition: int
    first: int
    last: int  # the last offset, inclusive
    rows: int
    from_us: int  # the lowest timestamp


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """`ranges`: partition -> first and last offset; `due_us`: after the beginning of the replay."""

    due_us: int
    rows: int
    ranges: dict[int, tuple[int, int]]


class Plan(msgspec.Struct, frozen=True):
    """`into`: the identity of the topic that slices were published to; "" before the first, and in a plan of an older version."""

    selection: dict[str, str]
    slices: tuple[Slice, ...]
    into: str = ""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.slices)


def parse_speed(text: str) -> Speed:
    """max, 1x, 0.5x, 500/s."""
    if text == "max":
        return Speed("max")
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(x|/s)", text)
    if not found or float(found[1]) <= 0:
        raise ConfigError(
            f"speed={text} is not a speed", hint="write max, 1x, 10x (of the original times) or 500/s (rows)"
        )
    return Speed("times" if found[2] == "x" else "rows", float(found[1]))


def parse_offsets(text: str) -> tuple[int, int | None]:
    """100:200 -> (100, 200), which is 100 to 199; either number may be left out."""
    found = re.fullmatch(r"([0-9]{0,18}):([0-9]{0,18})", text or ":")
    if not found:
        raise ConfigError(
            f"offsets={text} is not a range", hint="write FIRST:END, for instance 100:200 (200 is not in it)"
        )
    return int(found[1] or 0), int(found[2]) if found[2] else None


def chunk_rows(speed: Speed, rows: int, partitions: int, span_us: int) -> int:
    """How many offsets a chunk has: few enough for slices to keep the pace, and enough for the plan to stay small."""
    size = slice_rows(speed) // max(1, partitions)
    if speed.kind == "times":
        size = min(size, int(rows * TICK_US * speed.factor / max(1, span_us) / max(1, partitions)))
    return max(1, size, -(-rows // CHUNKS_MAX))


def slice_rows(speed: Speed) -> int:
    return min(SLICE_ROWS, max(1, int(speed.factor))) if speed.kind == "rows" else SLICE_ROWS


def slices(chunks: Iterable[Chunk], speed: Speed) -> tuple[Slice, ...]:
    """Pack chunks into slices. A slice takes the chunks of a partition in their order, so it has one range of each."""
    ready: list[tuple[int, Chunk]] = []
    latest: dict[int, int] = {}
    for chunk in sorted(chunks, key=lambda chunk: (chunk.partition, chunk.first)):
        # Timestamps may go back within a partition, but its order must stay: a chunk is never due before the one before it.
        latest[chunk.partition] = max(latest.get(chunk.partition, chunk.from_us), chunk.from_us)
        ready.append((latest[chunk.partition], chunk))
    ready.sort(key=lambda one: (one[0], one[1].partition, one[1].first))
    limit = slice_rows(speed)
    begin = ready[0][0] if ready else 0
    made: list[Slice] = []
    group: list[Chunk] = []
    held = before = start = 0
    for at, chunk in ready:
        late = speed.kind == "times" and at - start >= TICK_US * speed.factor
        if group and (held + chunk.rows > limit or late):
            made.append(_slice(group, _due(speed, start - begin, before)))
            before += held
            group, held = [], 0
        if not group:
            start = at
        group.append(chunk)
        held += chunk.rows
    if group:
        made.append(_slice(group, _due(speed, start - begin, before)))
    return tuple(made)


def _due(speed: Speed, elapsed_us: int, rows_before: int) -> int:
    if speed.kind == "times":
        return int(elapsed_us / speed.factor)
    return int(rows_before * US / speed.factor) if speed.kind == "rows" else 0


def _slice(group: list[Chunk], due_us: int) -> Slice:
    ranges: dict[int, tuple[int, int]] = {}
    for chunk in group:
        first = ranges.get(chunk.partition, (chunk.first, 0))[0]
        ranges[chunk.partition] = (first, chunk.last)
    return Slice(due_us, sum(chunk.rows for chunk in group), ranges)


# -- how many partitions a topic had ------------------------------------------------------------------------------------


def note_partitions(table: "TablePath", counts: Mapping[str, int]) -> None:
    """Record in an archive how many partitions its topics have, because rows show only partitions that are not empty. The number never
    falls: it is what a topic needs to take every row again."""
    known = noted_partitions(table)
    grown = known | {topic: max(count, known.get(topic, 0)) for topic, count in counts.items()}
    if grown != known:
        file = table / TOPICS
        if isinstance(file, Path):
            file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, msgspec.json.encode(grown))


def noted_partitions(table: "TablePath") -> dict[str, int]:
    """Topic -> partitions, as far as they were noted."""
    try:
        return msgspec.json.decode((table / TOPICS).read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}


# -- the saved plan ---------------------------------------------------------------------------------------------


def digest(name: str, selection: Mapping[str, str]) -> str:
    """The id of a replay: a digest of its name, or of its selection if it has none."""
    words = [name] if name else [f"{key}={selection[key]}" for key in sorted(selection)]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=12).hexdigest()


def recall(folder: "TablePath", id: str, selection: Mapping[str, str]) -> Plan | None:
    """The plan of an earlier run; ConfigError if it was made for another selection."""
    try:
        plan = msgspec.json.decode((folder / f"{id}.json").read_bytes(), type=Plan)
    except FileNotFoundError:
        return None
    changed = [key for key in sorted({*selection, *plan.selection}) if selection.get(key) != plan.selection.get(key)]
    if changed:
        raise ConfigError(
            f"a replay of this name has begun with another {', '.join(changed)}",
            hint="run it again as it was to finish it, or choose another name",
        )
    return plan


def remember(folder: "TablePath", id: str, plan: Plan) -> None:
    """Save the plan; durable when this returns."""
    try:
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        replace(folder / f"{id}.json", msgspec.json.encode(plan))
    except OSError as error:
        raise ConfigError(
            f"the plan of the replay cannot be written to {folder}: {error.strerror}",
            hint="name a directory that can be written to with state=",
        ) from error
