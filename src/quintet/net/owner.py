"""Says what a connection needs of its listener. In a file of its own, because each of the two would import the other."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from quintet.net.output import OutputBudget
from quintet.net.turns import Turns
from quintet.protocols.base import Session

Owned = Any  # connection.Connection: to name it here would be a circle of imports


class Owner(Protocol):
    """What a connection needs of its listener (listener.Listener): shared buffers, counters, and whom to tell."""

    turns: Turns
    output: OutputBudget
    loop: asyncio.AbstractEventLoop
    read_view: memoryview
    make_session: Callable[[Owned], Session]
    stalls: int

    @property
    def name(self) -> str: ...

    def now(self) -> int: ...

    def monotonic(self) -> int: ...

    def opened(self, connection: Owned) -> None: ...

    def auth_failed(self, connection: Owned, count: int) -> None: ...

    def watch_stall(self, connection: Owned) -> None: ...

    def closing(self, connection: Owned, reason: str) -> None: ...

    def fault(self, connection: Owned, where: str, error: Exception) -> None: ...

    def closed(self, connection: Owned) -> None: ...
