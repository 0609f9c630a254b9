"""Joins the tables of identity (users, access rules, keys, quotas) into rows that one cell sends and the others take (ADR 48).

Cell 0 writes them; `watch` tells of every row whose change is durable, or was taken back. Other cells keep what they were sent in memory:
`take` makes it live at once. How rows travel is net/cells/identity.py's.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from quintet.broker.identity.keys import Keys
from quintet.broker.identity.quotas import Quotas
from quintet.broker.identity.users import Users


class Row(NamedTuple):
    """One row of one table; value None: it is gone."""

    table: str
    key: bytes
    value: bytes | None


class _Table(Protocol):
    """Of a broker/table.py::Table what does not depend on its rows."""

    changed: Callable[[bytes], None] | None

    @property
    def name(self) -> str: ...

    def encoded(self, key: bytes) -> bytes | None: ...

    def all_keys(self) -> list[bytes]: ...

    def take(self, rows: Mapping[bytes, bytes | None], whole: bool) -> list[bytes]: ...


class SharedIdentity:
    """See above. The tables are taken in the order of `_parts`: keys and quotas ask for users."""

    def __init__(self, users: Users, keys: Keys, quotas: Quotas) -> None:
        self._parts: list[tuple[_Table, Callable[[Collection[bytes]], None]]] = [
            (users.table, users.take),
            (users.rules.table, users.rules.take),
            (keys.table, keys.take),
            (quotas.table, quotas.take),
        ]

    def rows(self) -> list[Row]:
        """All of them, as they are now."""
        return [Row(table.name, key, table.encoded(key)) for table, _ in self._parts for key in table.all_keys()]

    def watch(self, changed: Callable[[Row], None]) -> None:
        for table, _ in self._parts:
            table.changed = partial(self._told, table, changed)

    @staticmethod
    def _told(table: _Table, changed: Callable[[Row], None], key: bytes) -> None:
        changed(Row(table.name, key, table.encoded(key)))

    def take(self, rows: Iterable[Row], whole: bool) -> None:
        """Be what the sender is, as far as these rows say; whole: they are all it has."""
        by_table: dict[str, dict[bytes, bytes | None]] = {}
        for row in rows:
            by_table.setdefault(row.table, {})[row.key] = row.value
        for table, live in self._parts:
            live(table.take(by_table.get(table.name, {}), whole))
