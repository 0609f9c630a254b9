"""Reads a subscription that fetches (FlyMQ): joins a group, fetches the assigned partitions, commits what is acknowledged.

    control connection    SUBSCRIBE (join, and every HEARTBEAT_S again), COMMIT: the membership belongs to this connection
    fetch connections     FETCH for the partitions, up to FETCHERS_MAX connections, since an answer that waits holds its line

Within a partition only what is acknowledged without a gap is committed. A commit that is fenced means that the group
moved on: join again, take what is assigned now, drop the rest. Without a group all partitions are read from `start` on
and nothing is committed. fetcher.py has the fetching; this file the membership and the acknowledgements.

A partition that is kept over a rebalance may be asked for by two fetchers at once: the long poll of the old one is still
at the server. Each offset counts once: an answer begins at `AssignedPartition.position`, whatever was asked.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from quintet.client.core.base import (
    CLOSE_S,
    Channel,
    ClientConnection,
    FetchConnection,
    Fetched,
    Setup,
    Silent,
    Wanted,
    deadline,
)
from quintet.client.core.errors import Backpressure, Closed, ConnectionLost, Fenced, Unsupported, crashed
from quintet.client.core.message import LogPosition, Rows, log
from quintet.client.core.source import Inbox, Source
from quintet.client.sources.fetcher import Fetcher
from quintet.client.sources.partition import AssignedPartition
from quintet.model.errors import QuintetError, TopicNotFound

HEARTBEAT_S: Final = 3.0  # a third of the time after which the server takes a silent member for dead
COMMIT_S: Final = 0.05  # acknowledgements gathered before they are committed
OUTSTANDING_MAX: Final = 100_000  # messages handed out and not acknowledged; then nothing is fetched
FETCHERS_MAX: Final = 4
RETRIES_DEFAULT: Final = 3
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
ERROR_TEXT_MAX: Final = 1_000  # characters of an exception that go with a dead letter
STARTS: Final = ("earliest", "latest", "commit")

_SHIFT: Final = 48  # a tag is the partition above and the offset below this bit
_MASK: Final = (1 << _SHIFT) - 1


class Nacked(Exception):
    """Stands for the cause of a dead letter whose consumer named none."""


class GroupSource(Source):
    """The connections of one subscription, and what is known of its partitions."""

    def __init__(self, setup: Setup, wanted: Wanted) -> None:
        start = wanted.start or ("commit" if wanted.group else "latest")
        if start not in STARTS:
            raise ValueError(f"start is one of {', '.join(STARTS)}, not {start!r}")
        if wanted.member and not wanted.group:
            raise ValueError("member= is the name within a group: give group= too")
        self._setup = setup
        self._wanted = wanted
        self._topic = wanted.topic
        self._group = wanted.group
        self._start = start
        self._channel = Channel(setup, Silent(), on_up=self._joined, on_down=self._down)
        self._inbox: Inbox | None = None
        self._generation = 0
        self._parts: dict[int, AssignedPartition] = {}
        self._fetchers: list[Fetcher] = []
        self._attempts: dict[int, int] = {}  # tag -> how often it failed here
        self._failed: QuintetError | None = None
        self._refused = 0
        self._paused = False
        self._up = False  # joined, on a control connection that is there
        self._outstanding = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._timers: set[asyncio.TimerHandle] = set()
        self._dirty = asyncio.Event()
        self._clean = asyncio.Event()
        self._clean.set()
        self._hurry = asyncio.Event()

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._channel.open()
        loop = asyncio.get_running_loop()
        if self._group:
            self._tasks = [loop.create_task(self._beat()), loop.create_task(self._commit_forever())]
            for task in self._tasks:
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without this task nothing is committed any more: say so, however it ended."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(crashed(f"the consumer of {self._topic!r} in group {self._group}", error))

    async def close(self) -> None:
        if self._tasks and self._channel.current is not None and self._failed is None:
            try:
                async with deadline(CLOSE_S, "closing the subscription"):
                    await self.flush()
            except QuintetError as error:
                log.warning("the last acknowledgements of group %s may be lost: %s", self._group, error)
        for timer in self._timers:
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *(fetcher.close() for fetcher in self._fetchers), return_exceptions=True)
        await self._channel.close()

    @property
    def id(self) -> int:
        raise Unsupported(
            "a FlyMQ subscription has no id", hint="subscribe with group=: its name is all there is to keep"
        )

    @property
    def connected(self) -> bool:
        return self._channel.current is not None

    @property
    def failed(self) -> QuintetError | None:
        return self._failed or self._channel.failed

    @property
    def refused(self) -> int:
        return self._refused

    @property
    def reconnects(self) -> int:
        return self._channel.reconnects

    @property
    def assigned(self) -> tuple[int, ...]:
        return tuple(self._parts)

    @property
    def stuck(self) -> bool:
        return self._outstanding >= OUTSTANDING_MAX

    def stuck_error(self) -> QuintetError | None:
        return Backpressure(
            f"{self._outstanding:,} messages of {self._topic!r} were handed out to group {self._group} and are not "
            f"acknowledged; the limit is {OUTSTANDING_MAX:,}: nothing more is fetched",
            hint="acknowledge every message (`await msg.ack()`, `async with msg.process()`): one that is left out holds "
            "back the committed offset of its partition",
        )

    def fail(self, error: QuintetError) -> None:
        """Nothing will ever come again: those who wait learn why."""
        if self._failed is None:
            self._failed = error
            self._dirty.set()
            self._clean.set()
            if self._inbox is not None:
                self._inbox.wake()

    def _down(self, error: QuintetError) -> None:
        self._up = False
        if self._channel.failed is not None:
            self.fail(self._channel.failed)
        for fetcher in self._fetchers:
            fetcher.look()

    # -- membership ------------------------------------------------------------------------------------------------

    async def _joined(self, connection: ClientConnection) -> None:
        """A new control connection: join, or, without a group, find the partitions the first time."""
        assert isinstance(connection, FetchConnection), "this door is asked"
        self._up = True
        if self._group:
            await self._join(connection)
        elif not self._parts:
            found = await connection.request("METADATA", {"topic": self._topic, "make": True})
            edge = "newest" if self._start == "latest" else "oldest"
            self._assign({row["id"]: row[edge] for row in found["partitions"]})
        self.resume()

    async def _join(self, connection: FetchConnection) -> None:
        try:
            await self._join_there(connection)
        except TopicNotFound:  # as at the other doors, a subscription makes its topic
            await connection.request("METADATA", {"topic": self._topic, "make": True})
            await self._join_there(connection)

    async def _join_there(self, connection: FetchConnection) -> None:
        answer = await connection.request(
            "SUBSCRIBE",
            {
                "topic": self._topic,
                "group": self._group,
                "partition": -1,
                "mode": self._start,
                "member": self._wanted.member,
            },
        )
        if answer["generation"] != self._generation or connection is not self._channel.current:
            self._generation = answer["generation"]
            self._assign({row["partition"]: row["offset"] for row in answer["assigned"]})

    def _assign(self, offsets: dict[int, int]) -> None:
        """These partitions are ours now. What we had of them stays, unless somebody else got further meanwhile, or the
        committed offset was set back."""
        before, self._parts = self._parts, {}
        for number, offset in offsets.items():
            part = before.get(number)
            if part is None or not part.committed <= offset <= part.floor:
                part = AssignedPartition(number, offset)
            elif part.floor > offset:
                self._to_commit()  # acknowledged, and not committed before the group moved on
            self._parts[number] = part
        gone = {number for number, part in before.items() if self._parts.get(number) is not part}
        if gone and self._inbox is not None:
            self._inbox.drop(lambda row: row[0] >> _SHIFT not in gone)
            self._attempts = {tag: times for tag, times in self._attempts.items() if tag >> _SHIFT not in gone}
        self._outstanding = sum(len(part.outstanding) for part in self._parts.values())
        count = min(len(self._parts), FETCHERS_MAX)
        while len(self._fetchers) < count:
            self._fetchers.append(Fetcher(self._setup, self, self._topic, self._wanted.filter))
        parts = list(self._parts.values())
        for number, fetcher in enumerate(self._fetchers):
            fetcher.read(parts[number::count] if number < count else [])

    async def _beat(self) -> None:
        """The server takes a member for dead that it does not hear of, and tells of new assignments only when asked."""
        while self._failed is None:
            await asyncio.sleep(HEARTBEAT_S)
            await self._rejoin()

    async def _rejoin(self) -> None:
        connection = self._channel.current
        if connection is None:
            return
        assert isinstance(connection, FetchConnection)
        try:
            await self._join(connection)
        except ConnectionLost:
            return
        except QuintetError as error:
            if not error.retryable:
                self.fail(error)

    # -- from the fetchers (see fetcher.Reader) --------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Messages that may be fetched now."""
        if self._inbox is None or self._paused or self.stuck or not self._up:
            return 0
        return max(self._inbox.room, 0)

    def fetched(self, part: AssignedPartition, found: Fetched) -> bool:
        """Take what was fetched, if the partition is still ours. Whether it was anything new."""
        if self._parts.get(part.number) is not part or self._inbox is None:
            return False
        new = found.next_offset > part.position
        fresh = found.rows
        base = part.number << _SHIFT
        if (
            fresh and fresh[0][0] < base | part.position
        ):  # another fetcher had the partition before, its answer came first
            fresh = [row for row in fresh if row[0] >= base | part.position]
        part.position = max(part.position, found.next_offset)
        if not fresh:
            self._advance([part])
            return new
        if self._group:
            part.outstanding.extend([row[0] & _MASK for row in fresh])
            self._outstanding += len(fresh)
        self._inbox.put(self._topic, fresh)
        return True

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        for fetcher in self._fetchers:
            fetcher.look()

    # -- settling --------------------------------------------------------------------------------------------------

    def taken(self, tags: Sequence[int]) -> None:
        """Nothing to note: what is handed out is outstanding since it was fetched."""

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        """Noted here, committed soon, together with others."""
        if self.failed is not None:
            raise self.failed
        if not self._group:  # nothing waits for it
            for tag in tags:
                self._attempts.pop(tag, None)
            return
        touched: dict[int, AssignedPartition] = {}
        for tag in tags:
            part = self._parts.get(tag >> _SHIFT)
            if part is None or tag & _MASK < part.floor:
                self._refused += part is None
                continue
            part.acked.add(tag & _MASK)
            touched[part.number] = part
            if self._attempts:
                self._attempts.pop(tag, None)
        self._advance(touched.values())

    def _advance(self, parts: Iterable[AssignedPartition]) -> None:
        """Something was acknowledged: what of it can be committed, and may more be fetched?"""
        was_stuck = self.stuck
        for part in parts:
            self._outstanding -= part.advance()
            if part.floor > part.committed and self._group:
                self._to_commit()
        if was_stuck and not self.stuck:
            self.resume()

    def _to_commit(self) -> None:
        self._clean.clear()
        self._dirty.set()

    async def _commit_forever(self) -> None:
        """All that was acknowledged since the last time, in one write; again when that is answered."""
        while True:
            await self._dirty.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(COMMIT_S):
                    await self._hurry.wait()
            self._dirty.clear()
            if self._failed is not None:
                return
            try:
                connection = await self._channel.connection()
                assert isinstance(connection, FetchConnection)
                await self._commit(connection)
            except ConnectionLost:
                self._dirty.set()  # the next connection commits it, or finds that it was
                await asyncio.sleep(COMMIT_S)
            except QuintetError as error:
                self.fail(error)
            if not self._dirty.is_set():
                self._hurry.clear()
                self._clean.set()

    async def _commit(self, connection: FetchConnection) -> None:
        generation = self._generation
        asked = [
            (part, part.floor, connection.request("COMMIT", self._commit_fields(part.number, part.floor)))
            for part in self._parts.values()
            if part.floor > part.committed
        ]
        fenced = False
        answers = await asyncio.gather(*(answer for _, _, answer in asked), return_exceptions=True)
        for (part, floor, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, Fenced):
                fenced = True
                log.info("group %s moved on: %s", self._group, answer)
                continue
            if isinstance(answer, BaseException):
                raise answer
            part.committed = max(part.committed, floor)
        if fenced:
            await self._rejoin()
            left = [part for part in self._parts.values() if part.floor > part.committed]
            if left and (self._generation != generation or self._channel.current is not connection):
                self._dirty.set()  # still ours, under the new generation, which a heartbeat may have learned of first
            else:
                self._refused += len(left)

    def _commit_fields(self, partition: int, offset: int) -> dict[str, object]:
        return {
            "topic": self._topic,
            "group": self._group,
            "partition": partition,
            "offset": offset,
            "generation": self._generation,
        }

    async def flush(self) -> None:
        """Wait until all that was acknowledged is committed."""
        self._hurry.set()
        while not self._clean.is_set() or self._dirty.is_set():
            await self._clean.wait()
            if self._failed is not None:
                raise self._failed
            await asyncio.sleep(0)

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        """Nothing is handed out twice here but by `give_back`."""

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        """Hand them out again after a pause, or give them up."""
        return await self._hand_out_again(rows, error, retry, dead_letter, delay)

    def tried_here(self, tag: int, times: int) -> None:
        self._attempts[tag] = times - 1  # giving it back counts once

    async def _hand_out_again(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None
    ) -> str:
        most = RETRIES_DEFAULT if retry is None else retry
        again: Rows = []
        for row in rows:
            times = self._attempts[row[0]] = self._attempts.get(row[0], 0) + 1
            if times <= most:
                again.append(row)
            else:
                await self._give_up(row[0], error, dead_letter)
        if again:
            pause = min(RETRY_FIRST_S * 2 ** (self._attempts.get(again[0][0], 1) - 1), RETRY_MAX_S)
            self._later(pause if delay is None else delay, again)
        fates = [f"{len(again)} delivered again"] * bool(again)
        fates += [f"{len(rows) - len(again)} given up"] * (len(again) < len(rows))
        return "will be delivered again" if len(again) == len(rows) else " and ".join(fates)

    def _later(self, pause: float, rows: Rows) -> None:
        parts = self._parts

        def now() -> None:
            """What was another member's meanwhile is fetched again by itself."""
            self._timers.discard(timer)
            self.release([row for row in rows if parts.get(row[0] >> _SHIFT) is self._parts.get(row[0] >> _SHIFT)])

        timer = asyncio.get_running_loop().call_later(pause, now)
        self._timers.add(timer)

    def release(self, rows: Rows) -> None:
        kept = [row for row in rows if row[0] >> _SHIFT in self._parts]
        if kept and self._inbox is not None:
            self._inbox.put(self._topic, kept, first=True)

    async def nack(self, rows: Rows, delay: float | None) -> None:
        """Handed out again from here, as when a `process()` block failed."""
        await self._hand_out_again(rows, Nacked("given back by its consumer"), None, True, delay)

    async def in_progress(self, tags: Sequence[int]) -> None:
        """A member of a group has its partitions for as long as it is there: no time runs out."""

    async def _give_up(self, tag: int, error: BaseException, dead_letter: bool) -> None:
        text = f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]
        fields = {
            "topic": self._topic,
            "partition": tag >> _SHIFT,
            "offset": tag & _MASK,
            "error": text,
            "attempts": self._attempts.get(tag, 1),
        }
        while dead_letter:
            try:
                connection = await self._channel.connection()
                assert isinstance(connection, FetchConnection)
                await connection.request("DEAD_LETTER", fields)
                break
            except ConnectionLost:  # asked twice, it is there once
                if self._channel.failed is not None:
                    raise
        await self.settle((tag,), 0)

    def position_of(self, tag: int) -> LogPosition | None:
        return LogPosition(tag >> _SHIFT, tag & _MASK, self._attempts.get(tag, 0))

    # -- transactions ----------------------------------------------------------------------------------------------

    async def commit_in(self, transaction: str, tag: int) -> None:
        if not self._group:
            raise Closed("a subscription without a group has nothing to commit", hint="subscribe with group=")
        connection = await self._channel.connection()
        assert isinstance(connection, FetchConnection)
        fields = self._commit_fields(tag >> _SHIFT, (tag & _MASK) + 1)
        try:
            await connection.request("COMMIT", fields | {"txn_id": transaction})
        except Fenced:
            await self._rejoin()
            raise

    def committed(self, tag: int) -> None:
        part = self._parts.get(tag >> _SHIFT)
        if part is not None:
            part.ack_through(tag & _MASK)
            part.committed = max(part.committed, (tag & _MASK) + 1)
            self._advance([part])
