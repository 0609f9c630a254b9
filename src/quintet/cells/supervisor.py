"""Starts the processes of a broker with several cells, and ends them together (ADR 44).

    start   folder checked -> addresses bound -> one fork for each cell -> all ready -> ready line
    TERM    the addresses are given up, every cell drains -> exit 0, or the first other exit code of a cell
    HUP     every cell reads the configuration again
    a cell ends by itself   it could not start: the others are stopped, its exit code is ours
                            otherwise it is started again, on its own folder and sockets; the others go on

It has no event loop and no thread, so that it can fork at any time. It never touches messages.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from quintet import logs, server
from quintet.cells.folder import cell_folder, open_folder, places_of
from quintet.cells.process import CellProcess
from quintet.config import Settings
from quintet.config.renaming import OldName
from quintet.model.cells import HOME, CellMap, NamePlace
from quintet.model.errors import ConfigError, QuintetError
from quintet.net.cells.sockets import Links, bind_all, bind_links, close_all
from quintet.process import notify

LINKS_PREFIX: Final = "quintet-"
RESTARTS_MAX: Final = 10  # of one cell within RESTART_WINDOW_S; one more ends the broker
RESTART_WINDOW_S: Final = 60.0
RESTART_WAIT_S: Final = 0.2
READ_BYTES: Final = 65_536
HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
GAVE_UP_CODE: Final = 70  # EX_SOFTWARE: a cell does not stay up
# What is cell 0's alone.
ELSEWHERE_OFF: Final = {"listeners.admin.enabled": False}

Load = Callable[[dict[str, object]], Settings]

_log = logs.Logger()


class _Child:
    """One cell's process."""

    def __init__(self, pid: int, ready: int) -> None:
        self.pid = pid
        self.ready = ready  # where it says that it is ready
        self.said = b""
        self.listeners: dict[str, str] | None = None


class Supervisor:
    """All processes of one broker. `load` reads the configuration, with these flags over it."""

    def __init__(
        self,
        settings: Settings,
        load: Load,
        cells: CellMap,
        print_ready: bool,
        process: type[CellProcess] = CellProcess,
    ) -> None:
        self._process = process
        self._settings = settings
        self._load = load
        self._cells = cells
        self._print_ready = print_ready
        self._children: dict[int, _Child] = {}
        self._restarts: dict[int, list[float]] = {}
        self._announced = False
        self._stopping = False
        self._code = 0
        self._alive: tuple[int, int]
        self._wake: tuple[int, int]
        self._sockets: list[dict[str, socket.socket]] = []
        self._links: list[Links] = []
        self._folder: Path

    def run(self) -> int:
        listeners = self._settings.listeners
        doors = [(door, listeners.of(door)) for door in listeners.doors if door.in_every_process]
        self._sockets = bind_all([each for each in doors if each[1].enabled], self._cells.count)
        self._alive, self._wake = os.pipe(), os.pipe()
        for end in self._wake:
            os.set_blocking(end, False)
        with tempfile.TemporaryDirectory(prefix=LINKS_PREFIX) as folder:
            self._folder = Path(folder)
            self._links = bind_links(self._folder, self._cells.count)
            signal.set_wakeup_fd(self._wake[1])
            for handled in HANDLED:
                signal.signal(handled, _noted)
            for cell in range(self._cells.count):
                self._start(cell)
            while self._children:
                self._look()
        return self._code

    # -- children ----------------------------------------------------------------------------------------------------

    def _start(self, cell: int) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._be(cell, writing)
        os.close(writing)
        self._children[cell] = _Child(pid, reading)

    def _be(self, cell: int, ready: int) -> None:
        """The process of one cell, from its fork to its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for handled in HANDLED:
                signal.signal(handled, signal.SIG_DFL)
            os.close(self._alive[1])
            for end in (*self._wake, *(child.ready for child in self._children.values())):
                if end >= 0:
                    os.close(end)
            close_all(sockets for number, sockets in enumerate(self._sockets) if number != cell)
            for number, link in enumerate(self._links):
                if number != cell:
                    link.legs.close()
                    link.handed.close()
            os.environ.pop("NOTIFY_SOCKET", None)
            flags = self._flags(cell)
            place = self._process.place_type(cell, self._cells, self._folder, self._sockets[cell], *self._links[cell])
            make = partial(self._process, place=place, ready=ready, alive=self._alive[0])
            load = partial(self._load, flags)
            code = server.serve(load(), print_ready=False, reload=load, make=make)
        except QuintetError as error:
            sys.stderr.write(f"quintet: cell {cell}: {error}\n")
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _flags(self, cell: int) -> dict[str, object]:
        """What is another one for each cell."""
        flags: dict[str, object] = {"data": cell_folder(self._settings.data, cell)}
        flags |= self._process.flags_of(self._settings, cell)
        anchors = self._settings.audit.anchor_file
        if anchors is not None:
            flags["audit.anchor_file"] = anchors.with_name(f"{anchors.name}.cell-{cell}")
        return flags if cell == HOME else flags | ELSEWHERE_OFF

    # -- what happens ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Wait for a signal or a word of a child, and act on it."""
        waiting = {child.ready: child for child in self._children.values() if child.ready >= 0}
        found, _, _ = select.select([self._wake[0], *waiting], [], [])
        for end in found:
            if end in waiting:
                self._hear(waiting[end])
        if self._wake[0] in found:
            for number in set(os.read(self._wake[0], READ_BYTES)):
                self._act(number)
        self._announce()

    def _hear(self, child: _Child) -> None:
        said = os.read(child.ready, READ_BYTES)
        child.said += said
        if not said or b"\n" in child.said:
            os.close(child.ready)
            child.ready = -1
        if b"\n" in child.said:
            child.listeners = json.loads(child.said)["listeners"]

    def _act(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._tell_all(signal.SIGHUP)
        elif number == signal.SIGCHLD:
            for cell, child in list(self._children.items()):
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid:
                    self._ended(cell, child, os.waitstatus_to_exitcode(status))
        else:
            self._stop(0)

    def _ended(self, cell: int, child: _Child, code: int) -> None:
        if child.ready >= 0:
            self._hear(child)
        if child.ready >= 0:
            os.close(child.ready)
        del self._children[cell]
        if self._stopping:
            early = child.listeners is None and code == -signal.SIGTERM  # it had nothing to drain yet
            self._code = self._code or (0 if early else code if code >= 0 else 128 - code)
            return
        fields = {"cell": cell, "code": code}
        if child.listeners is None and (code > 0 or not self._announced):
            _log.error("cell_not_started", **fields, hint="what it said is above; the other cells stop")
            self._stop(code if code > 0 else GAVE_UP_CODE)
            return
        monotonic = time.monotonic()
        recent = self._restarts[cell] = [at for at in self._restarts.get(cell, []) if monotonic - at < RESTART_WINDOW_S]
        if len(recent) >= RESTARTS_MAX:
            _log.error("cell_given_up", **fields, restarts=len(recent), seconds=RESTART_WINDOW_S)
            self._stop(GAVE_UP_CODE)
            return
        recent.append(monotonic)
        hint = "it is started again; its clients connect again by themselves"
        _log.info("cell_released", cell=cell) if code == 0 else _log.error("cell_ended", **fields, hint=hint)
        time.sleep(RESTART_WAIT_S)
        self._start(cell)

    def _announce(self) -> None:
        if self._announced or self._stopping or any(child.listeners is None for child in self._children.values()):
            return
        self._announced = True
        listeners = {
            name: where for child in self._children.values() for name, where in (child.listeners or {}).items()
        }
        _log.info("ready", cells=self._cells.count, data=str(self._settings.data), listeners=listeners)
        if self._print_ready:
            sys.stdout.write(json.dumps({"ready": True, "cells": self._cells.count, "listeners": listeners}) + "\n")
            sys.stdout.flush()
        notify("READY=1")

    def _stop(self, code: int) -> None:
        if self._stopping:
            return
        self._stopping, self._code = True, code
        notify("STOPPING=1")
        close_all(self._sockets)
        self._tell_all(signal.SIGTERM)

    def _tell_all(self, number: int) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)


def _noted(_number: int, _frame: object) -> None:
    """The number is in the pipe of `signal.set_wakeup_fd`."""


def serve_cells(
    settings: Settings,
    load: Load,
    count: int,
    places: Sequence[NamePlace],
    *,
    print_ready: bool,
    old_names: Iterable[OldName] = (),
    process: type[CellProcess] = CellProcess,
) -> int:
    """Run a broker of `count` cells until it is told to stop; its exit code."""
    logs.configure(settings.log.level, settings.log.format)
    for name in old_names:
        server.warn_of_old_name(name)
    try:
        if settings.engine != "embedded" and process is CellProcess:
            raise ConfigError(
                f"--cells shares out an embedded log, and engine is {settings.engine!r}",
                hint="leave --cells out, and say cell.cells",
            )
        if not hasattr(os, "fork") or not hasattr(socket, "SO_REUSEPORT"):
            raise ConfigError("--cells needs fork and SO_REUSEPORT, which this system does not have")
        suffix = settings.delivery.dead_letter_suffix
        cells = CellMap(count, places or places_of(settings.data), suffix)
        open_folder(settings.data, cells, suffix)
        return Supervisor(settings, load, cells, print_ready, process).run()
    except QuintetError as error:
        sys.stderr.write(f"quintet: {error}\n")
    except OSError as error:
        sys.stderr.write(f"quintet: {error.strerror or error}\n")
    return 1
