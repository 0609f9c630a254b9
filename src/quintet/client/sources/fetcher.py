"""Fetches some partitions in turn over one connection, as long as there is room for the messages.

A round asks for all of its partitions in one write. When the last round found nothing, the last question of the next one
may wait at the server until something comes; which partition that is changes from round to round. One partition alone is
always asked for in this way: one question less for each message that comes alone. A filter does not wait there, so a plain
question for one message stands in for it.
"""

import asyncio
from typing import Final, Protocol

from quintet.client.core.base import Channel, FetchConnection, Fetched, Setup, Silent
from quintet.client.core.errors import ConnectionLost, crashed
from quintet.client.core.message import log
from quintet.client.sources.partition import AssignedPartition
from quintet.model.errors import QuintetError

WAIT_ALONE_MS: Final = 500  # of a fetcher with one partition; a new assignment is noticed only behind it
WAIT_FIRST_MS: Final = 20  # of a fetcher with several: what comes in another one waits behind it
WAIT_MAX_MS: Final = 100
FETCH_MAX: Final = 10_000  # messages asked for at once
RETRY_S: Final = 0.2


class Reader(Protocol):
    """Whom a fetcher fetches for."""

    @property
    def room(self) -> int: ...

    def fetched(self, part: AssignedPartition, found: Fetched) -> bool: ...

    def fail(self, error: QuintetError) -> None: ...


class Fetcher:
    """See above. `read` says which partitions, `look` that there may be room again."""

    def __init__(self, setup: Setup, reader: Reader, topic: str, filter: str) -> None:
        self._reader = reader
        self._topic = topic
        self._filter = filter
        self._channel = Channel(setup, Silent())
        self._parts: list[AssignedPartition] = []
        self._wake = asyncio.Event()
        self._idle = 0  # rounds that found nothing
        self._task: asyncio.Task[None] | None = None

    def read(self, parts: list[AssignedPartition]) -> None:
        self._parts = parts
        self._idle = 0
        if self._task is None and parts:
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._wake.set()

    def look(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _run(self) -> None:
        opened = False
        while True:
            try:
                if not opened:
                    await self._channel.open()
                    opened = True
                room = self._reader.room
                if not self._parts or room < 1:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                connection = await self._channel.connection()
                assert isinstance(connection, FetchConnection), "this door is asked"
                await self._round(connection, room)
            except ConnectionLost as error:
                if self._channel.failed is not None:
                    self._reader.fail(self._channel.failed)
                    return
                log.debug("fetching %s: %s", self._topic, error)
                await asyncio.sleep(RETRY_S)
            except QuintetError as error:
                if not error.retryable:
                    self._reader.fail(error)
                    return
                log.info("fetching %s: %s", self._topic, error)
                await asyncio.sleep(RETRY_S)
            except Exception as error:  # an exception of ours must reach the reader
                self._reader.fail(crashed(f"fetching {self._topic!r}", error))
                return

    async def _round(self, connection: FetchConnection, room: int) -> None:
        parts = self._parts = [*self._parts[1:], self._parts[0]]
        wait = self._wait_ms(len(parts))
        if wait and self._filter:
            last = parts[-1]
            await connection.fetch(self._question(last, 1) | {"wait_ms": wait})
        most = max(1, min(room // len(parts), FETCH_MAX))
        asked = []
        for part in parts:
            question = self._question(part, most)
            if self._filter:
                question["filter"] = self._filter
            elif wait and part is parts[-1]:
                question["wait_ms"] = wait
            asked.append(connection.fetch(question))
        found = False
        try:
            for part, answer in zip(parts, asked, strict=True):
                found = self._reader.fetched(part, await answer) or found  # before the answer that waits at the server
        finally:
            for answer in asked:
                if not answer.cancel() and not answer.cancelled():
                    answer.exception()  # the first one was raised, the others are the same
        self._idle = 0 if found else self._idle + 1

    def _question(self, part: AssignedPartition, most: int) -> dict[str, object]:
        return {"topic": self._topic, "partition": part.number, "offset": part.position, "max": most}

    def _wait_ms(self, parts: int) -> int:
        if parts == 1 and not self._filter:
            return WAIT_ALONE_MS  # what is there is answered at once
        if not self._idle:
            return 0
        return WAIT_ALONE_MS if parts == 1 else min(WAIT_FIRST_MS << min(self._idle, 3), WAIT_MAX_MS)
