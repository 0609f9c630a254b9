"""Runs coroutines for blocking callers on an event loop in a thread; the generated sync.py uses it.

One portal is one thread with one event loop, started at first use and stopped by the bus that owns it. Callers may be
many threads; each waits for its own result. No part of the client's logic belongs here.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, ParamSpec, TypeVar

from quintet.client.core.errors import Closed

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")


def inner_of(twin: Any) -> Any:
    """The asynchronous object behind a blocking one; None stays None."""
    return None if twin is None else twin._inner


class Portal:
    """A thread that runs the asynchronous client for blocking callers."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, work: Coroutine[object, None, T]) -> T:
        """The coroutine's result. An interrupted wait (Ctrl-C) cancels the work."""
        try:
            loop = self._started()
        except Closed:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A plain function's result, called on the loop's thread: the client's state is touched nowhere else."""

        async def work() -> T:
            return function(*args, **kwargs)

        return self.run(work())

    def handler(self, function: Callable[[S], object], twin: "Callable[[Portal, Any], S]") -> Callable[[Any], Any]:
        """A user's function for the asynchronous client to call in a thread: it gets the blocking twin of what it is for."""

        def call(inner: Any) -> Any:
            return function(twin(self, inner))

        return call

    def next(self, step: Callable[[], Awaitable[T]]) -> T:
        """One step of an asynchronous iterator, ending as a blocking one does."""

        async def work() -> T:
            return await step()

        try:
            return self.run(work())
        except StopAsyncIteration:
            raise StopIteration from None

    def iterate(self, source: AsyncIterator[S], wrap: Callable[[S], T]) -> Iterator[T]:
        """All steps of an asynchronous generator."""

        async def work() -> S | None:
            return await anext(source, None)

        while (item := self.run(work())) is not None:
            yield wrap(item)

    def stop(self) -> None:
        """End the thread; calls after this raise Closed."""
        with self._lock:
            self._stopped = True
            loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._stopped:
                raise Closed("the bus is closed", hint="use `with quintet.sync.connect(url) as bus`")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="quintet", daemon=True)
                self._thread.start()
            return self._loop

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            for task in (left := asyncio.all_tasks(loop)):
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
