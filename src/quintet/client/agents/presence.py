"""Keeps one peer registered for as long as a program runs, and reports why when it is not.

A Peer reconnects by itself after a lost connection, but not always: it does not start without a broker, and a name that was freed
ends it. Presence makes a new Peer then:

    no broker, or a busy one      tried again, RETRY_FIRST_S to RETRY_MAX_S apart
    refused before the first      `run` raises it: waiting does not correct a wrong token or name
    name freed, token revoked     registered again; while that is refused, tried again
    name taken over and over      given up for good: another process uses it, and both would have it half of the time

A call while there is no peer raises the error that is the reason.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import uniform
from typing import Final

from quintet.client.agents.peer import Peer
from quintet.client.core.base import FATAL
from quintet.client.core.message import log
from quintet.model.errors import BadName, NameClaimed, QuintetError

RETRY_FIRST_S: Final = 0.25
RETRY_MAX_S: Final = 30.0


class Presence:
    """One name at the bus. `make` gives a Peer that was not opened yet."""

    def __init__(self, make: Callable[[], Peer]) -> None:
        self._make = make
        self._next: Peer | None = make()  # a URL that cannot be right is refused here
        self.name = self._next.name
        self._peer: Peer | None = None
        self._error: QuintetError | None = None
        self._been_registered = False
        self._attempted = asyncio.Event()  # the attempt under way has an outcome

    async def peer(self) -> Peer:
        """The registered peer; the error why there is none. Waits for an attempt that is under way."""
        await self._attempted.wait()
        if self._peer is None:
            assert self._error is not None, "an attempt ends with a peer or an error"
            raise self._error
        return self._peer

    async def started(self) -> None:
        """Wait until the first attempt has succeeded or failed."""
        await self._attempted.wait()

    async def run(self) -> None:
        """Register, and again whenever it must be, until cancelled. Returns if the name was given up."""
        try:
            while await self._once():
                pass
        finally:
            peer, self._peer = self._peer, None
            if peer is not None:
                await peer.close()

    async def _once(self) -> bool:
        """One peer from its register to its end; False: there must be no other."""
        await self._register()
        assert self._peer is not None
        error = await self._peer.ended()
        gone, self._peer, self._error = self._peer, None, error
        with suppress(QuintetError):
            await gone.close()
        if isinstance(error, NameClaimed):
            log.error("%s", error)
            return False
        log.warning("%s; registering again", error)
        self._attempted.clear()
        return True

    async def _register(self) -> None:
        pause = RETRY_FIRST_S
        while True:
            peer, self._next = self._next or self._make(), None
            try:
                await peer.open()
            except QuintetError as error:
                self._error = error
                self._attempted.set()
                if not self._been_registered and isinstance(error, (*FATAL, BadName)):
                    raise
                log.warning("not registered as %s: %s; trying again", self.name, error)
            else:
                self._peer, self._error, self._been_registered = peer, None, True
                self._attempted.set()
                return
            await asyncio.sleep(uniform(pause / 2, pause))
            pause = min(pause * 2, RETRY_MAX_S)
