"""Says which cell of a broker a topic belongs to, by its name (ADR 44).

    "orders"                  a hash of the name
    "orders.dlq"              dead letters are where their topic is
    "acme/shop/orders"        the place of its prefix if one is configured; else cell 0: names of Felix, whose door is there
    "peerbus/ann", "cache/x"  cell 0: the doors that own them are there

The hash is that of a topic's number in Fast TCP (FNV-1a, 32 bits), spread: a request of Fast names a topic by its number alone.
The result for a name must never change while a folder lives: tests/model/test_cells.py has it written down. Nothing here knows
processes or sockets.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from quintet.model.errors import ConfigError
from quintet.model.keys import fnv1a
from quintet.model.limits import CELLS_MAX

CELLS_MIN: Final = 2
HOME: Final = 0  # the cell with the doors and names that are not shared out
KNOWN_MAX: Final = 65_536  # names whose cell is remembered
RESERVED: Final = (b"peerbus/", b"cache/", b"__")
FELIX_SLASHES: Final = 2  # TENANT/NAMESPACE/STREAM
_SPREAD: Final = 0x9E3779B1  # 2^32 by the golden ratio: names that differ in their last character go to different cells
_WORD: Final = 0xFFFFFFFF


class NamePlace(NamedTuple):
    """Names that begin with this prefix belong to that cell."""

    prefix: str
    cell: int


def parse_place(text: str) -> NamePlace:
    """PREFIX=CELL, as an option gives it."""
    prefix, separator, number = text.rpartition("=")
    if not separator or not prefix or not number.isascii() or not number.isdigit():
        raise ConfigError(f"--place {text!r} is not PREFIX=CELL", hint="as in --place acme/=1")
    if prefix.encode().startswith(RESERVED):
        raise ConfigError(f"--place {text!r}: names that begin so are always in cell {HOME}", hint="leave it out")
    return NamePlace(prefix, int(number))


class CellMap:
    """The cells of one broker: how many, and what belongs where."""

    def __init__(self, count: int, places: Sequence[NamePlace] = (), dead_letter_suffix: str = "") -> None:
        if not CELLS_MIN <= count <= CELLS_MAX:
            raise ConfigError(f"--cells {count}: {CELLS_MIN} to {CELLS_MAX} are possible")
        for place in places:
            if not 0 <= place.cell < count:
                raise ConfigError(
                    f"--place {place.prefix}={place.cell}: there is no such cell", hint=f"use 0 to {count - 1}"
                )
        self.count = count
        self.places = tuple(sorted(places))
        self.suffix = dead_letter_suffix.encode()
        self.by_hash = not places  # of plain names: kernel.cell_run may look for them
        longest = sorted(places, key=lambda place: len(place.prefix), reverse=True)
        self._places = [(place.prefix.encode(), place.cell) for place in longest]
        self._known: dict[bytes, int] = {}
        self.pins: Any = None  # what processes share of transactions: protocols/flymq/routing.py::Pins

    @property
    def layout(self) -> str:
        """All that decides where a topic is, in words."""
        places = " ".join(f"{place.prefix}={place.cell}" for place in self.places) or "no places"
        return f"{self.count} cells, {places}, dead letters in {self.suffix.decode() or 'no topics'}"

    def cell_of(self, name: bytes) -> int:
        """The cell of a topic's name, which need not be a valid one."""
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            found = self._known[name] = self._find(name)
        return found

    def _find(self, name: bytes) -> int:
        if self.suffix and name.endswith(self.suffix):
            name = name[: -len(self.suffix)]
        if name.startswith(RESERVED):
            return HOME
        for prefix, cell in self._places:
            if name.startswith(prefix):
                return cell
        if name.count(b"/") == FELIX_SLASHES:
            return HOME
        return self.cell_of_number(fnv1a(name))

    def cell_of_number(self, number: int) -> int:
        """The cell of a topic of which only its number in Fast TCP is known: right for all names that have no place."""
        return ((number * _SPREAD & _WORD) >> 16) % self.count

    def cell_of_subscription(self, id: int) -> int:
        """Numbers of subscriptions are given out so that each says its cell."""
        return id % self.count
