"""Runs one cell of a broker of several processes: a broker of its own log, behind doors that all of them share (ADR 44).

It gives out numbers of subscriptions that say its cell, takes no topic that belongs to another one, and tells the process that
started it when it is ready. If that process is gone, it stops as after SIGTERM. Flight, console, admin and the doors without a
router are cell 0's.
"""

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quintet import figures, logs, server
from quintet.admin.app import create_app
from quintet.admin.listener import serve_http
from quintet.broker.identity.shared import SharedIdentity
from quintet.cells.figures import Answering, CellsView, figures_path
from quintet.config import Settings
from quintet.console.section import ConsoleListener
from quintet.model.cells import HOME
from quintet.model.errors import OtherCell, ShuttingDown
from quintet.net.cells.back import NAME
from quintet.net.cells.doors import CellDoors, ProcessPlace
from quintet.net.cells.identity import NAME as IDENTITY
from quintet.net.cells.identity import Following, Spreading
from quintet.net.cells.pins import LinkedPins
from quintet.net.cells.sockets import console_path, flight_path
from quintet.net.doors import OpenDoors

if TYPE_CHECKING:
    from quintet.console.app import Console
    from quintet.console.cells import Answering as ConsoleAnswering
    from quintet.flight.server import Door

_log = logs.Logger()


class CellProcess(server.Server):
    """See server.Server for all that is as in any broker."""

    def __init__(
        self, settings: Settings, reload: Callable[[], Settings], *, place: ProcessPlace, ready: int, alive: int
    ) -> None:
        """ready: a descriptor to write one line to. alive: one that ends when the process that started this one is gone."""
        super().__init__(settings, reload)
        self.place = place
        self._ready = ready
        self._alive = alive
        self._answering: Answering | None = None
        self._all: CellsView | None = None
        self._spreading: Spreading | None = None
        self._shown: tuple[Console, ConsoleAnswering] | None = None

    place_type: type[ProcessPlace] = ProcessPlace

    @staticmethod
    def flags_of(settings: Settings, cell: int) -> dict[str, object]:
        """Settings that are another one for each cell."""
        return {}

    def _make_doors(self, tls: Path) -> OpenDoors:
        place = self.place
        self.broker.topics.check_place = self.check_place
        self.broker.subscriptions.number_for(place.cell, place.cells.count)
        doors = CellDoors(self.broker, self._scheduler, self._limits_of, server.report, self.output, self.turns, tls)
        doors.place = place
        place.cells.pins = LinkedPins(place.links)
        self.cell_doors = doors
        return doors

    def check_place(self, name: bytes) -> None:
        """OtherCell if a topic of this name is not of this cell."""
        cell, own = self.place.cells.cell_of(name), self.place.cell
        if cell != own:
            shown = name.decode(errors="replace")
            raise OtherCell(
                f"topic {shown!r} belongs to cell {cell} of this broker, and this request was for cell {own}",
                hint="what does not reach other cells yet is listed in docs/CELLS.md",
            )

    async def _open_doors(self) -> None:
        asyncio.get_running_loop().add_reader(self._alive, self._left_alone)
        await super()._open_doors()

    @property
    def identity_followed(self) -> bool:  # type: ignore[override]
        return not self.is_home

    async def _open_links(self) -> None:
        broker, place = self.broker, self.place
        identity = SharedIdentity(broker.users, broker.keys, broker.quotas)
        if self.is_home:
            others = {cell: place.path(cell) for cell in range(place.cells.count) if cell != place.cell}
            self._spreading = Spreading(identity, self.turns, others)
            self._spreading.start()
            broker.users.changes.spread = broker.quotas.changes.spread = self._spreading.spread
            await self.cell_doors.open_links({})
            await self._open_legs()
            return
        following = Following(identity)
        await self.cell_doors.open_links({IDENTITY: following.session})
        await self._open_legs()
        waits = [asyncio.ensure_future(each.wait()) for each in (following.there, self._stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if not following.there.is_set():
            raise ShuttingDown(f"cell {place.cell} was stopped before cell {HOME} had told it who may do what")

    async def _open_legs(self) -> None:
        """Listen for the legs of other nodes, where there are some (cells/node.py)."""

    async def _open_admin(self) -> None:
        """What this cell counts: at the admin listener of cell 0, or for cell 0 to ask."""
        door, links = self.settings.listeners.admin, self.place.links
        own = figures.View(self, door.labels_max)
        if not self.is_home:
            self._answering = Answering(own)
            await self._answering.start(figures_path(links, self.place.cell))
        elif door.enabled:
            self._all = CellsView(own, links, self.place.cells.count)
            self._all.start()
            self.admin = await serve_http(create_app(self._all, self._all), door.host, door.port)

    async def _drain(self) -> None:
        self.cell_doors.taking.stop()
        if self._answering is not None:
            self._answering.stop()
        if self._spreading is not None:
            self._spreading.stop()
        if self._shown is not None:
            console, shown = self._shown
            shown.stop()
            await console.stop()
        await super()._drain()
        if self._all is not None:
            self._all.stop()

    def _left_alone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._alive)
        _log.error("supervisor_gone", cell=self.place.cell, hint="this cell stops, as after SIGTERM")
        self._stop.set()

    def _flight_type(self, _door: "type[Door]") -> "Callable[..., Door]":
        from quintet.flight import cells  # late: who has no pyarrow has no such door

        place = self.place
        if self.is_home:
            return partial(cells.CellsDoor, cells=place.cells, own=place.cell, links=place.links)
        return partial(cells.InnerDoor, path=flight_path(place.links, place.cell))

    def _console_elsewhere(self) -> object:
        from quintet.console import cells  # late: who has no console does not load it

        place = self.place
        return cells.Elsewhere(place.cells, place.cell, place.links)

    async def _open_console(self, door: ConsoleListener) -> None:
        """That of cell 0 asks the others, which show nothing to anybody else."""
        if self.is_home:
            await super()._open_console(door)
            return
        from quintet.console.app import Console  # late: who has no console does not load it
        from quintet.console.cells import Answering as ConsoleAnswering

        console = Console(self, door, os.urandom, server.report, failures_per_minute=0)
        console.sampler.start()
        answering = ConsoleAnswering(console.parts, server.report)
        await answering.start(console_path(self.place.links, self.place.cell))
        self._shown = (console, answering)

    def addresses(self) -> dict[str, str]:
        """Where clients reach this process."""
        inner = (NAME,) if self.is_home else (NAME, "flight")
        return {name: where for name, where in super().addresses().items() if name not in inner}

    def _announce(self, print_ready: bool) -> None:
        addresses = self.addresses()
        if self.is_home:
            self._advise(addresses)
        _log.info("cell_ready", cell=self.place.cell, data=str(self.settings.data), listeners=addresses)
        os.write(self._ready, json.dumps({"listeners": addresses}).encode() + b"\n")

    @property
    def is_home(self) -> bool:
        return self.place.cell == HOME
