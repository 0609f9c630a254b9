"""The memory of one cache in pure Python, as the native twin (kernel/src/cache.rs) has it: key -> value, expiry, used, version.

Which key goes, what is durable and who may read is not decided here (broker/doors/cache.py). No clock: `felix_gets` is handed
the time.
"""

from collections.abc import Iterator

from quintet.kernel.items import CacheEntry


class CacheMemory:
    """Rows are handed out and taken as (value, expires, used, version); what is handed out is a copy. In no order."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[bytes, CacheEntry] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[bytes]:
        return iter(tuple(self._rows))

    def get(self, key: bytes) -> CacheEntry | None:
        return self._rows.get(key)

    def __getitem__(self, key: bytes) -> CacheEntry:
        return self._rows[key]

    def __setitem__(self, key: bytes, row: CacheEntry) -> None:
        self._rows[key] = row

    def pop(self, key: bytes) -> CacheEntry:
        return self._rows.pop(key)

    def set_used(self, key: bytes, used: bool) -> bool:
        value, expires, before, version = self._rows[key]
        if before is not used:
            self._rows[key] = value, expires, used, version
        return before

    def clear(self) -> None:
        self._rows.clear()

    def items(self) -> list[tuple[bytes, CacheEntry]]:
        return list(self._rows.items())
