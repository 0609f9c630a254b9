"""Holds one row of fixed size for each of very many partitions, in pages instead of one object each.

A dict of bytes takes 150 bytes for a row of 32: the entry, its key, the object. Nearly every topic has one partition and topics are
numbered one after the other, so the row of a first partition has its place in a page of 256 topics; all other rows are in a dict.
A page goes with its last row, so deleted topics leave nothing behind.
"""

from collections.abc import Iterator, MutableMapping
from typing import Final

PAGE_ROWS: Final = 256
PARTITION_BITS: Final = 32  # of a key, as partitions/roles.py::place_number makes it: the topic is above them
PARTITION_MAX: Final = (1 << PARTITION_BITS) - 1
_TAKEN: Final = 1


class _Page:
    """Which rows are there, and the rows."""

    __slots__ = ("rows", "taken")

    def __init__(self, size: int) -> None:
        self.taken = bytearray(PAGE_ROWS)
        self.rows = bytearray(PAGE_ROWS * size)


class PlaceRows(MutableMapping[int, bytes]):
    """Rows of `size` bytes by place_number."""

    __slots__ = ("_others", "_pages", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._pages: dict[int, _Page] = {}  # of first partitions, by the number of the topic
        self._others: dict[int, bytes] = {}

    def find(self, place: int) -> bytes | None:
        if place & PARTITION_MAX:
            return self._others.get(place)
        topic_id = place >> PARTITION_BITS
        page, row = self._pages.get(topic_id // PAGE_ROWS), topic_id % PAGE_ROWS
        if page is None or not page.taken[row]:
            return None
        return bytes(page.rows[row * self._size : (row + 1) * self._size])

    def __getitem__(self, place: int) -> bytes:
        found = self.find(place)
        if found is None:
            raise KeyError(place)
        return found

    def __setitem__(self, place: int, value: bytes) -> None:
        if len(value) != self._size:
            raise ValueError(f"a row has {self._size} bytes, not {len(value)}")
        topic_id, partition = place >> PARTITION_BITS, place & PARTITION_MAX
        if partition:
            self._others[place] = value
            return
        page = self._pages.get(topic_id // PAGE_ROWS)
        if page is None:
            page = self._pages[topic_id // PAGE_ROWS] = _Page(self._size)
        row = topic_id % PAGE_ROWS
        page.taken[row] = _TAKEN
        page.rows[row * self._size : (row + 1) * self._size] = value

    def __delitem__(self, place: int) -> None:
        topic_id, partition = place >> PARTITION_BITS, place & PARTITION_MAX
        if partition:
            del self._others[place]
            return
        page, row = self._pages[topic_id // PAGE_ROWS], topic_id % PAGE_ROWS
        if not page.taken[row]:
            raise KeyError(place)
        page.taken[row] = 0
        if not any(page.taken):
            del self._pages[topic_id // PAGE_ROWS]

    def __iter__(self) -> Iterator[int]:
        for number, page in self._pages.items():
            for row, taken in enumerate(page.taken):
                if taken:
                    yield (number * PAGE_ROWS + row) << PARTITION_BITS
        yield from self._others

    def __len__(self) -> int:
        return len(self._others) + sum(page.taken.count(_TAKEN) for page in self._pages.values())

    def joined(self) -> bytes:
        """All rows, one behind the other, in no order."""
        size = self._size
        found: list[bytes | bytearray] = list(self._others.values())
        for page in self._pages.values():
            if page.taken.count(_TAKEN) == PAGE_ROWS:
                found.append(page.rows)
            else:
                found += [page.rows[row * size : (row + 1) * size] for row, taken in enumerate(page.taken) if taken]
        return b"".join(found)
