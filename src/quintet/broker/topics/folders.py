"""Finds the folders of the log that no row of `__topics` names: those whose row is lost, and those that deletions left."""

from collections.abc import Collection, Mapping

from quintet.log.base import Log, TopicFiles
from quintet.model import limits


def folders_without_row(
    log: Log, ids: Mapping[bytes, int], deleted: Collection[bytes]
) -> tuple[dict[int, TopicFiles], list[int]]:
    """Topics that have files and no row: those whose row must be lost; and what deletions left behind when the power went,
    which is told by a tombstone, a later topic of that name, an anchor, or that there is nothing in them."""
    lost: dict[int, TopicFiles] = {}
    left: list[int] = []
    known = set(ids.values())
    for id in log.topic_ids():
        if id < limits.TOPIC_ID_FIRST_USER or id in known:
            continue
        found = log.files_of(id)
        raw = found.name.encode() if found is not None else b""
        if found is None or log.was_deleted(id) or (raw and (raw in deleted or ids.get(raw, 0) > id)):
            left.append(id)
        else:
            lost[id] = found
    return lost, left
