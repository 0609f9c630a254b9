"""Tracks which directories have new names that a power cut may lose, and syncs them before they are relied on.

Topics that promise nothing before the next sync make their files without a sync of any directory; whoever then says that
something is durable syncs the directories first. Directories are shared by the partitions of a topic, and so are their syncs.
Called from disk threads.
"""

import os
import threading
from collections.abc import Sequence

from quintet.log.embedded.files.disk import Disk


class DirectorySync:
    """An unsynced directory has names that may not be durable; it is kept with a number that is new with each new name. The lock is held
    during the sync of a directory: whoever needs the same one waits for it, and finds it synced."""

    __slots__ = ("_disk", "_last", "_lock", "_unsynced")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._unsynced: dict[str, int] = {}
        self._last = 0

    def mkdir(self, path: str) -> bool:
        """Make a directory; False if it was there."""
        if not self._disk.mkdir(path):
            return False
        self.mark_unsynced(os.path.dirname(path))
        return True

    def mark_unsynced(self, path: str) -> None:
        """Something was made in this directory, or may have been by a process before us."""
        with self._lock:
            self._last += 1
            self._unsynced[path] = self._last

    def sync(self, directory: str) -> None:
        """Make the names in a partition's directory durable, and its own and its topic's. Raises OSError."""
        topic = os.path.dirname(directory)
        for path in (os.path.dirname(topic), topic, directory):
            self.sync_one(path)

    def sync_one(self, path: str) -> None:
        """Make the names in this very directory durable. Raises OSError."""
        with self._lock:
            if path in self._unsynced:
                self._disk.fsync_dir(path)
                del self._unsynced[path]

    def sync_all(self, root: str, handles: Sequence[int]) -> bool:
        """Make all names durable, and these files and all that was written to their file system. False if nobody can tell whether it is."""
        with self._lock:
            before = dict(self._unsynced)
        if not self._disk.sync_all(root, handles):  # without the lock: it may take long, and names are made meanwhile
            return False
        with self._lock:
            for path, number in before.items():
                if self._unsynced.get(path) == number:
                    del self._unsynced[path]
        return True

    def forget(self, topic: str) -> None:
        """The directory of a topic is gone, with all that was in it."""
        with self._lock:
            gone = [path for path in self._unsynced if path == topic or path.startswith(f"{topic}/")]
            for path in gone:
                del self._unsynced[path]
