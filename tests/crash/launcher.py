"""A process that has the broker imported and forks one per request: a start costs 30 ms instead of a second.

Requests are JSON lines on stdin: {"args", "env", "stdout", "stderr", "sabotage", "journal", "code"}; the answer is the child's
process id. With "code" the exit code of the command is left in a file of that name. With "journal" everything small goes by way of the journal, which is otherwise for many busy partitions.
What runs in the child is the command line as shipped. The sabotages are the positive controls of the campaigns: a
broker that breaks its promise, which the checker must find. They live here so that the broker has no switch for them.
"""

import asyncio
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from quintet.broker.atomic.intent_rows import Effect
from quintet.broker.atomic.intents import Intents
from quintet.broker.consumers.group import Group
from quintet.broker.doors.cache import Cache
from quintet.broker.doors.peers import Peers
from quintet.broker.topics.catalog import CacheTopic, Topic, Topics
from quintet.cli import main, serve
from quintet.cli.folder import audit, chain
from quintet.delivery.subscription import Subscription
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.partitions import commit
from quintet.model.batch import RecordBatch
from quintet.model.tasks import Promise
from quintet.protocols.felix.mapping import EventStream, GroupStream
from quintet.server import Server

ACK_EARLY_S = 0.1  # how long after its acknowledgement the sabotaged broker writes
JOURNAL_BYTES = 4 << 20  # of each file, where the journal is forced

assert serve is not None, "imported ahead of the fork"
assert audit is not None, "imported ahead of the fork"
assert chain is not None, "imported ahead of the fork"
assert Server is not None, "imported ahead of the fork"
# What a broker imports late, and each of these would.
for late in (
    "jwt",
    "uvloop",
    *(f"quintet.protocols.{door}.session" for door in ("blipmq", "fast", "felix", "flymq", "peerbus")),
):
    import_module(late)


def ack_early() -> None:
    """Writes reach the operating system a while after they were said to be durable."""
    waiting: queue.Queue[tuple[float, Callable[[], None]]] = queue.Queue()
    write, truncate, close = OsDisk.pwritev, OsDisk.truncate, OsDisk.close

    def later() -> None:
        while True:
            due, job = waiting.get()
            time.sleep(max(due - time.monotonic(), 0.0))
            job()
            waiting.task_done()

    def pwritev(self: OsDisk, handle: int, buffers: Sequence[Any], position: int) -> None:
        copies = [bytes(buffer) for buffer in buffers]
        waiting.put((time.monotonic() + ACK_EARLY_S, lambda: write(self, handle, copies, position)))

    def ordered(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            waiting.join()
            real(*args)

        return call

    OsDisk.native = False
    OsDisk.pwritev = pwritev  # type: ignore[method-assign]
    OsDisk.truncate = ordered(truncate)  # type: ignore[method-assign]
    OsDisk.close = ordered(close)  # type: ignore[method-assign]
    threading.Thread(target=later, daemon=True).start()


def no_fsync() -> None:
    """Nothing is ever synced: the page cache survives a kill, but not the power."""
    OsDisk.native = False
    OsDisk.fdatasync = lambda self, handle: None  # type: ignore[method-assign]
    OsDisk.fsync_dir = lambda self, path: None  # type: ignore[method-assign]
    OsDisk.sync_all = lambda self, path, handles=(): True  # type: ignore[method-assign]


def deaf() -> None:
    """Errors of the disk are not heard: a refused write is acknowledged."""
    write, sync = OsDisk.pwritev, OsDisk.fdatasync

    def silent(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any) -> None:
            try:
                real(*args)
            except OSError:
                return

        return call

    OsDisk.native = False
    OsDisk.pwritev = silent(write)  # type: ignore[method-assign]
    OsDisk.fdatasync = silent(sync)  # type: ignore[method-assign]


def no_intents() -> None:
    """Commits go to their partitions one after the other, without being written down as a whole first."""

    async def commit(
        self: Intents,
        appends: Sequence[tuple[Any, int, Any]],
        effects: Sequence[Effect],
        token: str = "",
        owner: str = "",
        staged: Sequence[Any] = (),
    ) -> None:
        for topic, number, records in reversed(appends):
            appended: Promise[int] = Promise()
            topic.publish(records.build(), 1, False, appended.done, number)
            await appended
        if effects:
            await self._effects[effects[0].kind](effects[0].payload())

    Intents.commit = commit  # type: ignore[method-assign]


def no_fence() -> None:
    """A commit is taken from whoever sends it, in whatever generation."""
    Group.fence = lambda self, partition, generation, connection: None  # type: ignore[method-assign]


def forget_ids() -> None:
    """After a restart no id of a message is known: a replay is taken for a new one."""
    Peers._remember = lambda self, topic, now: None  # type: ignore[method-assign]


def forget_keys() -> None:
    """The new key of a queue is only in memory when its rotation is answered."""

    async def set_extra(self: Topics, topic: Topic, extra: dict[str, str]) -> None:
        topic.spec = replace(topic.spec, extra=extra)

    Topics.set_extra = set_extra  # type: ignore[method-assign]


def cache_early() -> None:
    """A change of a cache is answered at once, and written a while later."""
    put = CacheTopic.put

    def later(self: CacheTopic, batch: bytearray, count: int, done: Callable[[int, Exception | None], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(ACK_EARLY_S, put, self, batch, count, lambda _offset, _error: None)
        loop.call_soon(done, 0, None)

    CacheTopic.put = later  # type: ignore[method-assign]


def forget_versions() -> None:
    """A cache counts its changes from 1 after every start."""
    fold = Cache.fold

    def afresh(self: Cache, now: int) -> None:
        fold(self, now)
        self._version = 0

    Cache.fold = afresh  # type: ignore[method-assign]


def count_twice() -> None:
    """Every increment is added twice when a cache is taken up again."""
    fold = Cache.fold

    def doubled(self: Cache, now: int) -> None:
        fold(self, now)
        for key, (value, expires, used, version) in self.entries.items():
            if value.isdigit():
                self.entries[key] = (b"%d" % (2 * int(value)), expires, used, version)

    Cache.fold = doubled  # type: ignore[method-assign]


def settle_early() -> None:
    """What is sent to a subscriber of Felix counts as acknowledged by it."""
    records = EventStream.records

    def send(
        self: EventStream, subscription: object, partition: int, batch: RecordBatch, first: int, last: int
    ) -> None:
        records(self, subscription, partition, batch, first, last)
        if isinstance(subscription, Subscription) and subscription.qos and subscription.id > 0:
            base = batch.offset(first)
            subscription.ack(partition, base, batch.offset(last - 1) + 1 - base)

    EventStream.records = send  # type: ignore[method-assign]


def commit_nothing() -> None:
    """An acknowledgement of a member is answered, and its group forgets it."""

    def settle(
        self: GroupStream, partition: int, offset: int, count: int, done: Callable[[Exception | None], None]
    ) -> None:
        subscription = self.member._of.get(partition)
        if subscription is not None:
            subscription.ack(0, offset, count)
        done(None)

    GroupStream.settle = settle  # type: ignore[method-assign]


def force_journal() -> None:
    """Everything small goes by way of the journal, in files that are full, and used again, every few seconds; and whoever begins a segment
    has the whole disk synced (together.py)."""
    defaults = EmbeddedLog.__init__.__kwdefaults__
    assert defaults is not None, "they are keywords with defaults"
    defaults.update(journal_threshold=1, journal_bytes=JOURNAL_BYTES)
    vars(commit)["FILES_MIN"] = 1


SABOTAGES = {
    "ack-early": ack_early,
    "no-fsync": no_fsync,
    "deaf": deaf,
    "no-intents": no_intents,
    "no-fence": no_fence,
    "forget-ids": forget_ids,
    "forget-keys": forget_keys,
    "cache-early": cache_early,
    "forget-versions": forget_versions,
    "count-twice": count_twice,
    "settle-early": settle_early,
    "commit-nothing": commit_nothing,
}


def child(request: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for target, path in ((1, request["stdout"]), (2, request["stderr"])):
        handle = os.open(path, flags if target == 2 else os.O_WRONLY, 0o600)
        os.dup2(handle, target)
        os.close(handle)
    os.environ.update(request["env"])
    if request["journal"]:
        force_journal()
    if request["sabotage"]:
        SABOTAGES[request["sabotage"]]()
    sys.argv = ["quintet", *request["args"]]
    try:
        main.main()
    except SystemExit as ended:
        if request["code"]:
            Path(request["code"]).write_text(str(ended.code or 0))
        raise


def run() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    run()
