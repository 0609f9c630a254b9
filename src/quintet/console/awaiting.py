"""Awaits the broker's verbs and promises, which know no event loop (ADR 26), in the coroutines of asyncio."""

import asyncio
from typing import TypeVar

from quintet.model.tasks import Promise, Verb, start

T = TypeVar("T")


async def wait_for(promise: Promise[T]) -> T:
    """Its result, or what it failed with."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None is the result of a verb that has none

    promise.then(done)
    return await future


async def run(verb: Verb[T]) -> T:
    """The result of a verb. If whoever waits is cancelled, the verb ends where it waits."""
    task = start(verb)
    try:
        return await wait_for(task)
    except asyncio.CancelledError:
        task.cancel()
        raise
