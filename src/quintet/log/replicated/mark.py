"""Keeps how far a node has applied the WAL: the fold and the specs of the topics, in the file `cell.mark` of its data directory.

    quintet-cell 1 8c1d2e3f {"fold": {...}, "specs": [...]}          version, crc32c of what follows, JSON

It is written only when everything it speaks of is synced in the files, so it may be late, and never early: what is behind it is read
again from the WAL and left alone where it is there already. A mark that does not check out is no mark: the WAL is read from its start.
"""

import json
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.log.replicated.fold import Fold
from quintet.log.replicated.records import Placement, placement_of

NAME: Final = "cell.mark"
PREFIX: Final = "quintet-cell 1"


class AppliedMark(NamedTuple):
    """deleted, removed_stages: topics and stages whose files may still be there."""

    fold: Fold
    specs: dict[int, TopicSpec]
    deleted: tuple[int, ...]
    removed_stages: tuple[str, ...] = ()
    placement: Placement | None = None  # of one of several cells


def store(disk: Disk, directory: str, mark: AppliedMark) -> None:
    """Durable when this returns. Blocks."""
    fold = asdict(mark.fold) | {"instance": mark.fold.instance.hex()}
    last = fold.pop("last")  # apart: a version that does not know it takes no field of a fold that it does not know
    found: dict[str, Any] = {
        "fold": fold,
        "specs": [asdict(spec) for spec in mark.specs.values()],
        "deleted": mark.deleted,
    }
    found["removed_stages"] = mark.removed_stages
    found["last"] = last
    if mark.placement is not None:
        found["placement"] = mark.placement._asdict()
    body = json.dumps(found, separators=(",", ":"))
    replace_file(disk, directory, NAME, f"{PREFIX} {kernel.crc32c(body.encode()):08x} {body}".encode())


def load(disk: Disk, directory: str) -> AppliedMark | None:
    data = disk.read_file(f"{directory}/{NAME}")
    if data is None:
        return None
    head, body = data[: len(PREFIX) + 10].decode(errors="replace"), data[len(PREFIX) + 10 :]
    if head != f"{PREFIX} {kernel.crc32c(body):08x} ":
        return None
    found: dict[str, Any] = json.loads(body)
    fold = found["fold"]
    specs = [TopicSpec(**spec) for spec in found["specs"]]
    fold |= {"instance": bytes.fromhex(fold["instance"]), "last": found.get("last", 0)}
    removed, placement = tuple(found["removed_stages"]), found.get("placement")
    return AppliedMark(
        Fold(**fold),
        {spec.id: spec for spec in specs},
        tuple(found["deleted"]),
        removed,
        placement_of(placement) if placement else None,
    )
