"""Starts generator processes, lets them begin together, and collects their results.

Publishers and subscribers run in processes of their own so that neither slows the other. A generator is a function
`work(control, ...)` at the top level of a module: it prepares, calls control.ready(), runs when that returns, and gives back
a picklable result. This module knows nothing about protocols.
"""

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Protocol, Self

from quintet.bench.wire import BenchError

READY_S = 60.0
STOP_S = 5.0
# Spawned and not forked: a forked child would inherit threads' locks (the progress bar's) and every open socket.
CONTEXT = multiprocessing.get_context("spawn")


class Counters(Protocol):
    """A RawArray of unsigned 64-bit counters."""

    def __len__(self) -> int: ...
    def __getitem__(self, slot: int) -> int: ...
    def __setitem__(self, slot: int, count: int) -> None: ...
    def __iter__(self) -> Iterator[int]: ...


def counters(count: int) -> Counters:
    """Counters that all processes see, each written by one process only."""
    made: Counters = CONTEXT.RawArray("Q", count)
    return made


class ControlPipe:
    """A generator's line to the process that started it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def ready(self) -> None:
        """Say that preparation is over and wait for the start."""
        self._pipe.send(("ready", None))
        self._pipe.recv()


def _child(pipe: Connection, work: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        pipe.send(("done", work(ControlPipe(pipe), *arguments)))
    except BenchError as error:
        pipe.send(("failed", str(error)))
    except (EOFError, KeyboardInterrupt):
        return  # the parent is gone or the user stopped the run: nobody reads a result
    except Exception:
        pipe.send(("failed", traceback.format_exc()))


class Crew:
    """The generator processes of one run. Leaving the context ends those still there."""

    def __init__(self) -> None:
        self._members: list[tuple[str, SpawnProcess, Connection]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, process, pipe in self._members:
            pipe.close()
            if kind is not None:
                process.terminate()
            process.join(STOP_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def add(self, name: str, work: Callable[..., object], *arguments: object) -> None:
        """Start a process that prepares work(control, *arguments)."""
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_child, args=(theirs, work, arguments), daemon=True)
        process.start()
        theirs.close()
        self._members.append((name, process, ours))

    def line_up(self) -> None:
        """Wait until every process is ready."""
        for name, _, pipe in self._members:
            self._receive(name, pipe, READY_S, "ready")

    def go(self) -> None:
        """Let all run: last added first, so that publishers added first start when their readers already run."""
        for _, _, pipe in reversed(self._members):
            pipe.send("go")

    def results(self, timeout: float, poll: Callable[[], None] | None = None, every: float = 0.1) -> list[Any]:
        """What each returned, in the order added; poll is called about every `every` seconds meanwhile."""
        found = []
        for name, _, pipe in self._members:
            waited = 0.0
            while poll is not None and waited < timeout and not pipe.poll(every):
                poll()
                waited += every
            found.append(self._receive(name, pipe, timeout, "done"))
        return found

    @staticmethod
    def _receive(name: str, pipe: Connection, timeout: float, expected: str) -> Any:
        if not pipe.poll(timeout):
            raise BenchError(f"{name}: not {expected} within {timeout:g} s. The server may be stalled: see its log.")
        try:
            state, value = pipe.recv()
        except EOFError as error:
            raise BenchError(f"{name}: the generator process died. See what it wrote to the terminal.") from error
        if state != expected:
            raise BenchError(f"{name}: {value}")
        return value
