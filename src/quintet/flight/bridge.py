"""From a thread of gRPC to the loop thread and back: the only way in which the Flight door touches the broker.

The broker's state belongs to the loop thread and has no lock. A handler of the door runs in a thread of gRPC: it hands a
function over and sleeps until that has an answer. Nothing else of the door may call the broker.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from functools import partial
from typing import Any, Final, TypeVar

from quintet.model.errors import Busy, ShuttingDown
from quintet.net.turns import Turns

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]

ANSWER_S: Final = 60.0  # for one answer of the loop; what needs longer is asked for in smaller pieces


class NoAnswer(Busy):
    """The loop took too long. What was asked may happen all the same."""


class Bridge:
    """Made on the loop thread; `ask` and `wait_for` are for other threads only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answer_s: float = ANSWER_S, turns: Turns | None = None) -> None:
        self._loop = loop
        self._turns = turns or Turns(loop)
        self._answer_s = answer_s
        self.closed = False

    def ask(self, call: Callable[[], T]) -> T:
        """What `call` returns, or raises, on the loop thread."""
        found: T = self._hand_over(partial(_answer, call))
        return found

    def wait_for(self, call: Callable[[Done], None]) -> Any:
        """As `ask`, for a verb that answers later: `call(done)` on the loop thread, and done(result, error) once."""
        return self._hand_over(partial(_begin, call))

    def _hand_over(self, work: Callable[[Future[Any]], None]) -> Any:
        told: Future[Any] = Future()
        if self.closed:
            raise ShuttingDown("the broker is shutting down", hint="connect again in a moment")
        try:
            self._loop.call_soon_threadsafe(self._turns.run, work, told)
        except RuntimeError as error:  # the loop is closed
            raise ShuttingDown("the broker is shutting down", hint="connect again in a moment") from error
        try:
            return told.result(self._answer_s)
        except Late:
            if told.done():
                raise  # a TimeoutError that the verb itself raised
            raise NoAnswer(
                f"no answer of the broker within {self._answer_s:.0f} s", hint="try again in a moment"
            ) from None


def _answer(call: Callable[[], T], told: Future[T]) -> None:
    try:
        result = call()
    except Exception as error:  # goes to the thread that asked
        told.set_exception(error)
    else:
        told.set_result(result)


def _begin(call: Callable[[Done], None], told: Future[Any]) -> None:
    def done(result: Any, error: Exception | None) -> None:
        if error is not None:
            told.set_exception(error)
        else:
            told.set_result(result)

    try:
        call(done)
    except Exception as error:  # goes to the thread that asked
        told.set_exception(error)
