"""From a thread of gRPC to the loop thread and back: the only way in which the Flight door touches the broker.

The broker's state belongs to the loop thread and has no lock. A handler of the door runs in a thread of gRPC: it hands a
function over and sleeps until that has an answer. Nothing else of the door may call the broker.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from typing import Final, TypeVar, cast

from quintet.model.errors import SHUTTING_DOWN, Busy, ShuttingDown
from quintet.model.tasks import Verb, start
from quintet.net.turns import Turns

T = TypeVar("T")

ANSWER_S: Final = 60.0  # for one answer of the loop; what needs longer is asked for in smaller pieces


class NoAnswer(Busy):
    """The loop took too long. What was asked may happen all the same."""


class Bridge:
    """Made on the loop thread; `ask` and `wait_for` are for other threads only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer_s: float = ANSWER_S, turns: Turns | None = None) -> None:
        self._loop = loop
        self._turns = turns or Turns(loop)
        self._answer_s = answer_s
        self._closed = ""  # why

    def close(self, reason: str = SHUTTING_DOWN) -> None:
        """Ask nothing more of the loop; reason: what is said to whoever still wants to."""
        self._closed = reason

    def check_open(self) -> None:
        """Raises ShuttingDown when it is closed."""
        if self._closed:
            raise self._refusal()

    def _refusal(self) -> ShuttingDown:
        return ShuttingDown(self._closed or SHUTTING_DOWN, hint="connect again in a moment")

    def connection_id(self) -> int:
        """One that no other connection of this start has. For any thread."""
        return next(self._turns.connection_ids)

    def ask(self, call: Callable[[], T]) -> T:
        """What `call` returns, or raises, on the loop thread."""

        async def verb() -> T:
            return call()

        return self.wait_for(verb)

    def tell(self, call: Callable[[], None]) -> None:
        """Call it on the loop thread and wait for nothing; a loop that is closed needs not be told."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._turns.run, call)

    def wait_for(self, verb: Callable[[], Verb[T]]) -> T:
        """As `ask`, for a verb that waits: made and run on the loop thread."""
        told: Future[T] = Future()
        self.check_open()
        try:
            self._loop.call_soon_threadsafe(self._turns.run, _begin, verb, told)
        except RuntimeError as error:  # the loop is closed
            raise self._refusal() from error
        try:
            return told.result(self._answer_s)
        except Late:
            if told.done():
                raise  # a TimeoutError that the verb itself raised
            raise NoAnswer(
                f"no answer of the broker within {self._answer_s:.0f} s", hint="try again in a moment"
            ) from None


def _begin(verb: Callable[[], Verb[T]], told: Future[T]) -> None:
    async def begun() -> T:
        return await verb()

    def done(result: T | None, error: Exception | None) -> None:
        if error is not None:  # goes to the thread that asked
            told.set_exception(error)
        else:
            told.set_result(cast(T, result))

    start(begun()).then(done)
