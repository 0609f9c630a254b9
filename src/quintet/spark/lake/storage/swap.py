"""Replaces a directory of files by another in one step, so that a listing shows the old files or the new ones.

Linux exchanges two names in one call (renameat2). Where that is not supported, two renames replace the directory: a reader may find
nothing in between, and never finds rows twice. The new directory is prepared beside the table, not in it, because readers that look
for **/*.parquet also look into hidden directories:

    PARENT/.TABLE.swap-ID/where     the directory, relative to the table
    PARENT/.TABLE.swap-ID/new       the new directory
    PARENT/.TABLE.swap-ID/old       the old one, for a moment (two renames only)

A reader that listed the old files and opens them later gets an error, not wrong rows.
"""

import ctypes
import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

RENAME_EXCHANGE: Final = 2
AT_FDCWD: Final = -100
UNSUPPORTED: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def replace_files(table: Path, place: str, gone: Iterable[Path], fresh: Mapping[Path, str]) -> None:
    """In the directory `place`, remove the files `gone` and add `fresh` (file -> its name there), in one step."""
    live = table / place
    away = {path.name for path in gone}
    root = table.parent / f".{table.name}.swap-{uuid.uuid4().hex}"
    (root / "new").mkdir(parents=True)
    (root / "where").write_text(place)
    for path in live.iterdir():
        if path.name not in away:
            os.link(path, root / "new" / path.name)
    for path, name in fresh.items():
        path.rename(root / "new" / name)
    if not exchange(root / "new", live):
        live.rename(root / "old")
        (root / "new").rename(live)
    shutil.rmtree(root)


def recover(table: Path) -> None:
    """Finish a swap that ended between its two renames; clean up after one that had not begun, or was complete."""
    for root in table.parent.glob(f".{table.name}.swap-*"):
        where = root / "where"
        if where.exists() and (root / "old").exists() and not (table / where.read_text()).exists():
            (root / "new").rename(table / where.read_text())
        shutil.rmtree(root)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step. False: this system does not support it."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(one))
