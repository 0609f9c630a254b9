"""A broker that measures its loop: `python -m tests.turns.measured DATA` serves --dev and answers `mark` and `forget` on stdin.

Every callback of the loop is measured by the processor time of the loop's thread, whatever it is for and whether or not the
broker's own histogram counts it: asyncio's loop runs each through `Handle._run`. (uvloop, which the broker uses, calls the same
callbacks and offers no such place.) `mark` answers the longest since the last one as a line of JSON. `forget` empties the tail
cache, all but the newest batch, and answers when it has: what is read next comes from disk.

    QUINTET_TEST_PLANT=1    a handler that takes too long is planted: the control of the walk
"""

import asyncio
import json
import os
import sys
import threading
from asyncio.events import Handle
from functools import partial
from time import thread_time
from typing import Any, Final

from quintet import logs
from quintet.config import Settings
from quintet.log.embedded.partitions.shared import Shared
from quintet.net.turns import name_of
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.mapping import HANDLERS
from quintet.server import Server

PLANTED_S: Final = 0.06
DOORS: Final = ("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FAST", "PEERBUS", "PEERBUS_TCP", "FELIX", "CONSOLE", "ADMIN")


class Meter:
    """The longest callback since the last mark."""

    def __init__(self) -> None:
        self.longest: tuple[float, str] = (0.0, "")
        self._run = Handle._run

    def install(self) -> None:
        run = self._run

        def measured(handle: Any) -> None:
            callback, arguments = handle._callback, handle._args
            began = thread_time()
            run(handle)
            took = thread_time() - began
            if took > self.longest[0]:
                self.longest = (took, " ".join(name_of(part) for part in (callback, *(arguments or ())[:1])))

        Handle._run = measured  # type: ignore[method-assign, assignment]

    def answer_orders(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        for order in sys.stdin:
            forget = order.strip() == "forget"
            work = partial(self._forget, loop, server.log._shared) if forget else self._answer
            loop.call_soon_threadsafe(work)  # behind the callback that is under way
        os._exit(0)  # the walk is over

    def _forget(self, loop: asyncio.AbstractEventLoop, shared: Shared) -> None:
        """As if as much had been published meanwhile as the cache holds."""
        most, shared.cache_bytes_max = shared.cache_bytes_max, 0
        shared.trim()
        shared.cache_bytes_max = most
        if len(shared.cache_order) > 1:
            loop.call_soon(self._forget, loop, shared)
        else:
            self._answer()

    def _answer(self) -> None:
        (took, what), self.longest = self.longest, (0.0, "")
        sys.stdout.write(json.dumps({"ms": took * 1000, "what": what}) + "\n")
        sys.stdout.flush()


def _plant() -> None:
    whoami = HANDLERS[frames.WHOAMI]

    def slow(call: Any, ask: Any) -> Any:
        until = thread_time() + PLANTED_S
        while thread_time() < until:
            pass
        return whoami(call, ask)

    HANDLERS[frames.WHOAMI] = slow


def main() -> None:
    ports = {f"QUINTET_LISTENERS__{name}__PORT": "0" for name in DOORS}
    others = {"QUINTET_LISTENERS__FLIGHT__ENABLED": "false", "QUINTET_LOG__LEVEL": "warning"}
    kept = {"QUINTET_DELIVERY__KEEP_REJECTED": "true"}  # so that a rejected message is a dead letter too
    settings = Settings.load(None, {**ports, **others, **kept}, {"data": sys.argv[1], "dev": True})
    logs.configure("warning", "json")
    if os.environ.get("QUINTET_TEST_PLANT"):
        _plant()
    meter = Meter()
    meter.install()
    with asyncio.Runner() as runner:
        server = Server(settings, lambda: settings)
        threading.Thread(target=meter.answer_orders, args=(runner.get_loop(), server), daemon=True).start()
        runner.run(server.run(True))


if __name__ == "__main__":
    main()
