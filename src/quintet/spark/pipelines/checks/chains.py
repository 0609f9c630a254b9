"""Verifies the audit chains of a data folder in Spark tasks, one for each segment file or for several small ones.

Tasks follow the chains within files (log/pieces.py); the driver joins the results, and compares the anchors if there are any. This
needs the files, on the broker's machine or in a copy of the folder that every executor can read: records read over Flight, or as
columns of a mapped file, have no links.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from quintet.log import pieces
from quintet.log.pieces import Chains, Followed, Piece

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyspark.sql import SparkSession

TASK_BYTES: Final = 16 << 20  # small files are grouped up to this size


def follow(spark: "SparkSession", folder: str, anchor_file: str = "", secret: bytes = b"") -> Chains:
    """Follow all chains of a folder, each file once."""
    found = pieces.prepare(folder, anchor_file, secret)
    found.conclude(_followed(spark, packed(found.pieces), found.keys))
    return found


def packed(wanted: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces as tasks: a large file alone, small ones together."""
    tasks: list[list[Piece]] = []
    size = TASK_BYTES
    for piece in wanted:
        if size + piece.size > TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(piece)
        size += piece.size
    return tasks


def _followed(spark: "SparkSession", tasks: Sequence[Sequence[Piece]], keys: dict[int, bytes]) -> list[Followed]:
    if not tasks:
        return []
    found = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_worker(tasks, keys), "followed binary")
    return [msgspec.msgpack.decode(row.as_py(), type=Followed) for row in found.toArrow().column("followed")]


def _worker(
    tasks: Sequence[Sequence[Piece]], keys: dict[int, bytes]
) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        from quintet.log import pieces

        for batch in batches:
            for number in batch.column("id").to_pylist():
                made = [msgspec.msgpack.encode(pieces.follow(piece, keys)) for piece in tasks[number]]
                yield pa.RecordBatch.from_arrays([pa.array(made, pa.binary())], names=["followed"])

    return work
