"""Brings health and metrics of all cells together at the admin listener of cell 0, each sample with the label `cell`.

The other cells answer whoever connects to their socket with what they count, once. Cell 0 asks every ASK_S, so a scrape shows the
others as they were a moment ago and waits for nobody. A cell that has not answered for STALE_S is not ready.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from quintet.admin.health import Check
from quintet.admin.metrics import Family
from quintet.model import limits
from quintet.model.histogram import Cells, Histogram

ASK_S: Final = 1.0
STALE_S: Final = 10.0
ANSWER_BYTES_MAX: Final = 64 * limits.MIB
LABEL: Final = "cell"

Kind = Literal["counter", "gauge", "histogram"]
Counted = tuple[dict[str, str], tuple[float, ...], float, list[int], float]  # labels, bounds, shortest, counts, seconds


class View(Protocol):
    """What one process counts."""

    def checks(self) -> Sequence[Check]: ...

    def families(self) -> Sequence[Family]: ...


class Told(msgspec.Struct, frozen=True):
    """What one cell says of itself."""

    checks: list[tuple[str, bool, str]]
    families: list[tuple[str, Kind, str, list[tuple[dict[str, str], float]], list[Counted]]]


def told(view: View) -> bytes:
    checks = [(check.name, check.ok, check.detail) for check in view.checks()]
    families = [
        (
            family.name,
            family.kind,
            family.help,
            [(dict(labels), float(value)) for labels, value in family.samples],
            [
                (dict(labels), found.cells.bounds, found.cells.shortest, list(found.counts), found.seconds)
                for labels, found in family.histograms
            ],
        )
        for family in view.families()
    ]
    return msgspec.msgpack.encode(Told(checks, families))


def families_of(said: Told) -> list[Family]:
    return [
        Family(name, kind, text, samples, [(counted[0], _histogram(*counted[1:])) for counted in histograms])
        for name, kind, text, samples, histograms in said.families
    ]


@lru_cache(maxsize=16)
def _cut(bounds: tuple[float, ...], shortest: float) -> Cells:
    return Cells(bounds, shortest)


def _histogram(bounds: tuple[float, ...], shortest: float, counts: list[int], seconds: float) -> Histogram:
    made = Histogram(_cut(tuple(bounds), shortest))
    made.counts, made.seconds = counts, seconds
    return made


def joined(by_cell: Mapping[int, Sequence[Family]]) -> list[Family]:
    """One family of each name, with the samples of all cells."""
    found: dict[str, Family] = {}
    for cell, families in sorted(by_cell.items()):
        for family in families:
            one = found.setdefault(family.name, family._replace(samples=[], histograms=[]))
            assert isinstance(one.samples, list) and isinstance(one.histograms, list)
            one.samples.extend(({**labels, LABEL: str(cell)}, value) for labels, value in family.samples)
            one.histograms.extend(({**labels, LABEL: str(cell)}, each) for labels, each in family.histograms)
    return list(found.values())


def figures_path(links: Path, cell: int) -> str:
    return str(links / f"figures-{cell}")


class Answering:
    """The socket of a cell that has no admin listener."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of this cell before it was started again
        self._server = await asyncio.start_unix_server(self._answer, path)

    async def _answer(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(told(self._view))
        writer.close()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()


class CellsView:
    """Health and metrics of all cells, for admin/."""

    def __init__(self, own: View, links: Path, count: int, cell: int = 0) -> None:
        self._own = own
        self._cell = cell
        self._paths = {number: figures_path(links, number) for number in range(count) if number != cell}
        self._said: dict[int, tuple[float, Told]] = {}
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._asking = asyncio.get_running_loop().create_task(self._ask_on())

    def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask_on(self) -> None:
        while True:
            await asyncio.gather(*(self._ask(cell, path) for cell, path in self._paths.items()))
            await asyncio.sleep(ASK_S)

    async def _ask(self, cell: int, path: str) -> None:
        try:
            async with asyncio.timeout(STALE_S):
                reader, writer = await asyncio.open_unix_connection(path, limit=ANSWER_BYTES_MAX)
                said = msgspec.msgpack.decode(await reader.read(-1), type=Told)
                writer.close()
        except (OSError, TimeoutError, msgspec.MsgspecError):
            return  # the check says so when it lasts
        self._said[cell] = (time.monotonic(), said)

    def checks(self) -> Sequence[Check]:
        found = [check._replace(name=f"cell:{self._cell}:{check.name}") for check in self._own.checks()]
        for cell in self._paths:
            at, said = self._said.get(cell, (0.0, None))
            if said is None or time.monotonic() - at > STALE_S:
                found.append(Check(f"cell:{cell}", False, f"has not answered for {STALE_S:g} s, or not yet"))
            else:
                found += [Check(f"cell:{cell}:{name}", ok, detail) for name, ok, detail in said.checks]
        return found

    def families(self) -> Sequence[Family]:
        others = {cell: families_of(said) for cell, (_, said) in self._said.items()}
        up = [
            ({LABEL: str(cell)}, float(cell == self._cell or self._is_fresh(cell)))
            for cell in sorted((self._cell, *self._paths))
        ]
        info = Family("quintet_cell_up", "gauge", "1 while a cell of this broker answers.", up)
        return [*joined({self._cell: self._own.families(), **others}), info]

    def _is_fresh(self, cell: int) -> bool:
        return cell in self._said and time.monotonic() - self._said[cell][0] <= STALE_S
