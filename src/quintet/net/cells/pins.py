"""Remembers which cell each transaction is of, for all processes of a broker: two symbolic links in the folder of their sockets.

    txn-ID          the transaction was begun
    txn-ID.cell     points to the number of its cell: whoever makes it first decides, in one step of the file system

They outlive the transaction for a while, because its end may be repeated, on another connection, too. They are gone with the broker,
as open transactions are.
"""

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Final

KEEP_S: Final = 3_600.0  # longer than a transaction may be open
PRUNE_EVERY: Final = 256  # transactions begun by this process between two looks at what is old
_NAME: Final = re.compile(r"txn-[0-9a-f]{1,64}")
_OPEN: Final = "begun"


class LinkedPins:
    """See protocols/flymq/routing.py::Pins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._begun = 0

    def begin(self, name: str) -> None:
        if _NAME.fullmatch(name) is None:
            return
        self._begun += 1
        if self._begun % PRUNE_EVERY == 0:
            self._prune()
        with contextlib.suppress(FileExistsError):
            os.symlink(_OPEN, self._folder / name)

    def knows(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and os.path.lexists(self._folder / name)

    def pin(self, name: str, cell: int) -> int:
        with contextlib.suppress(FileExistsError):
            os.symlink(str(cell), self._folder / f"{name}.cell")
        found = self.cell(name)
        assert found is not None, "it was pinned"
        return found

    def cell(self, name: str) -> int | None:
        try:
            return int(os.readlink(self._folder / f"{name}.cell"))
        except FileNotFoundError:
            return None

    def _prune(self) -> None:
        old = time.time() - KEEP_S
        for entry in list(os.scandir(self._folder)):
            if entry.name.startswith("txn-") and entry.stat(follow_symlinks=False).st_mtime < old:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
