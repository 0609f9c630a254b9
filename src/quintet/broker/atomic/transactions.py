"""Holds the messages and consumed offsets of open transactions, and commits each transaction as one intent.

What is produced in a transaction waits here, in memory, and nowhere else: until the commit no reader, no door and no
Spark job can see it, and a crash forgets it, which is what a rollback is. The commit is one intent (intents.py).

    state \\ event    produce      commit               rollback     time-out / fenced   crash
    OPEN             keep it      -> COMMITTING        -> forgotten  -> forgotten        forgotten
    COMMITTING       refused      wait with the first  refused       no effect           intent written: carried out
    committed        refused      success again        refused       -                   success again

A commit that the disk failed in leaves it OPEN, and doubtful: it may be in the log, so it is no longer rolled back.

A transaction belongs to the name of the principal that began it; to anybody else it does not exist. Its id is 128 random
bits, its owner may use it on any connection. `transactional_id` names a producer: beginning again under the same name
fences the transaction that an earlier instance left open.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from quintet.broker.atomic.intent_rows import Adding, Effect, Records
from quintet.broker.atomic.intents import Intents
from quintet.broker.topics.catalog import ANY, Topic
from quintet.model.batch import TRANSACTIONAL, Header
from quintet.model.errors import (
    BadRequest,
    LimitExceeded,
    QuintetError,
    StorageError,
    StorageFull,
    TransactionNotFound,
)
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, start_alone

OPEN: Final = "open"
COMMITTING: Final = "committing"

OPEN_BYTES_MAX: Final = 256 << 20  # of all open transactions together
OWNER_BYTES_MAX: Final = 64 << 20  # of those of one principal: nobody takes the room of all others
ENDED_REMEMBERED_MAX: Final = 10_000  # why a transaction is gone, for whoever asks
TXN_ID_BYTES: Final = 16
NOT_EMPTY: Final = "?"  # of whoever asks every cell, because it does not know which one the transaction is of
HEADER_BYTES: Final = 200  # what a header costs beside its texts

Blob = bytes | memoryview  # a view of what a connection received: a large message is not copied before the commit
Check = Callable[[], Callable[[], None]]


class TransactionLimits(msgspec.Struct, frozen=True):
    """What one transaction and one principal may hold."""

    records_max: int = 1_000
    bytes_max: int = 16 << 20
    open_max: int = 100  # per principal
    timeout_us: int = 60_000_000
    timeout_us_max: int = 900_000_000


class _Part(NamedTuple):
    """What a transaction has for one partition."""

    values: list[Blob | None]
    keys: list[Blob | None]
    headers: list[tuple[Header, ...]]
    expiries: list[int]
    origin: bytes

    def records(self) -> Records:
        columns = (self.values, self.keys, self.headers)
        return Records(*columns, origin=self.origin, flags=TRANSACTIONAL, expiries=self.expiries)


class Transaction:
    """An open transaction."""

    __slots__ = (
        "answer", "began", "bytes", "checks", "count", "deadline", "doubtful", "effects", "holds", "id", "name", "owner", "parts", "state",
    )  # fmt: skip

    def __init__(self, id: str, owner: str, name: str, began: int, deadline: int) -> None:
        self.id = id
        self.owner = owner
        self.name = name
        self.began = began
        self.deadline = deadline
        self.state = OPEN
        self.doubtful = False  # the disk failed while it was committed: only the next start can tell
        self.bytes = self.count = 0
        self.parts: dict[tuple[Topic, int], _Part] = {}
        self.effects: list[Effect] = []
        self.checks: list[Check] = []
        self.holds: list[Callable[[], None]] = []  # what the checks of a commit under way gave
        self.answer: Promise[None] = Promise()  # of the commit under way


class Transactions:
    """All open transactions by id."""

    def __init__(
        self,
        intents: Intents,
        scheduler: Scheduler,
        entropy: Callable[[int], bytes],
        limits: TransactionLimits | None = None,
    ) -> None:
        self._intents = intents
        self._scheduler = scheduler
        self._entropy = entropy
        self._limits = limits or TransactionLimits()
        self._by_id: dict[str, Transaction] = {}
        self._by_name: dict[tuple[str, str], Transaction] = {}
        self._open: dict[str, int] = {}
        self._ended: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._bytes = 0
        self._bytes_of: dict[str, int] = {}
        self.committed = self.aborted = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def walk(self) -> Iterator[Transaction]:
        """All that are open or being committed, the oldest first."""
        return iter(tuple(self._by_id.values()))

    def begin(self, owner: str, name: str = "", timeout_us: int = 0) -> str:
        """A new transaction's id. `name`: the transactional id, whose open transaction is fenced."""
        limits = self._limits
        if timeout_us > limits.timeout_us_max:
            raise BadRequest(f"a transaction lasts at most {limits.timeout_us_max // 1_000_000} s")
        if name and (earlier := self._by_name.get((owner, name))) is not None and earlier.state is OPEN:
            self._end(earlier, f"fenced: a newer producer began as {name!r}")
        if self._open.get(owner, 0) >= limits.open_max:
            raise LimitExceeded(
                f"{owner} has {limits.open_max} open transactions, the most one may have",
                hint="commit or roll back one of them",
            )
        monotonic = self._scheduler.monotonic()
        id = f"txn-{self._entropy(TXN_ID_BYTES).hex()}"
        transaction = Transaction(id, owner, name, monotonic, monotonic + (timeout_us or limits.timeout_us))
        self._by_id[id] = transaction
        self._open[owner] = self._open.get(owner, 0) + 1
        if name:
            self._by_name[owner, name] = transaction
        return id

    def check_open(self, owner: str, id: str) -> None:
        """TransactionNotFound unless it is open and this owner's: asked before anything is made for its sake."""
        self._find(owner, id)

    def produce(
        self, owner: str, id: str, topic: Topic, partition: int, key: Blob | None, value: Blob | None, origin: bytes,
        headers: tuple[Header, ...] = (), expiry: int = 0,
    ) -> int:  # fmt: skip
        """Keep a message until the commit; returns the partition it will go to."""
        transaction = self._find(owner, id)
        limits = self._limits
        size = len(value or b"") + len(key or b"")
        size += sum(HEADER_BYTES + len(name) + len(text or b"") for name, text in headers)
        if transaction.count >= limits.records_max:
            raise LimitExceeded(
                f"a transaction holds at most {limits.records_max} messages", hint="commit and begin anew"
            )
        if transaction.bytes + size > limits.bytes_max:
            raise LimitExceeded(f"a transaction holds at most {limits.bytes_max} bytes", hint="commit and begin anew")
        held = self._bytes_of.get(owner, 0) + size
        if held > OWNER_BYTES_MAX:
            raise LimitExceeded(
                f"the open transactions of {owner} hold at most {OWNER_BYTES_MAX} bytes together",
                hint="commit or roll back one of them",
            )
        if self._bytes + size > OPEN_BYTES_MAX:
            raise LimitExceeded("the open transactions of all clients are too large together", hint="try again soon")
        if partition == ANY:
            partition = topic.choose(key)
        topic.check_writable(partition)
        part = transaction.parts.get((topic, partition))
        if part is None:
            part = transaction.parts[topic, partition] = _Part([], [], [], [], origin)
        part.values.append(value)
        part.keys.append(key)
        part.headers.append(headers)
        part.expiries.append(expiry)
        transaction.count += 1
        transaction.bytes += size
        self._bytes += size
        self._bytes_of[owner] = held
        return partition

    def add_effect(self, owner: str, id: str, effect: Effect, check: Check) -> None:
        """Something else that happens with the commit: a group's offsets. `check` raises if it may not any more, and gives
        what to call when the commit is over."""
        transaction = self._find(owner, id)
        if len(transaction.effects) >= self._limits.records_max:
            raise LimitExceeded(f"a transaction holds at most {self._limits.records_max} offsets")
        transaction.effects.append(effect)
        transaction.checks.append(check)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def commit(self, owner: str, id: str, may: Callable[[str], None] = lambda _topic: None) -> None:
        """All of it becomes visible. Asked again, also after a crash, the answer is the same. `may` raises if the owner
        may no longer publish to a topic; so does what else belongs to it: then it stays open, and nothing is visible.
        NOT_EMPTY before the id: if it is open and empty, it is rolled back and not found, for it may be another cell's."""
        empty_counts, id = not id.startswith(NOT_EMPTY), id.removeprefix(NOT_EMPTY)
        outcome = self._intents.outcome(id)
        if outcome is not None and outcome.owner == owner:
            await self._intents.wait(outcome)
            return
        transaction = self._by_id.get(id)
        if transaction is None or transaction.owner != owner or transaction.state is not COMMITTING:
            transaction = self._find(owner, id)
            if not (empty_counts or transaction.parts or transaction.effects):
                self._end(transaction, "nothing was written to it here")
                self._find(owner, id)
            for topic in {topic: None for topic, _ in transaction.parts}:
                may(topic.name)
            self._check(transaction)
            transaction.state, transaction.answer = COMMITTING, Promise()
            start_alone(self._scheduler, self._commit(transaction))
        await transaction.answer

    def _check(self, transaction: Transaction) -> None:
        try:
            for check in transaction.checks:
                transaction.holds.append(check())
        except Exception:
            self._let_go(transaction)
            raise

    @staticmethod
    def _let_go(transaction: Transaction) -> None:
        holds, transaction.holds = transaction.holds, []
        for release in holds:
            release()

    async def _commit(self, transaction: Transaction) -> None:
        """One intent for all of it. Intents wait for topics that this transaction made: they must be known after a crash
        before anything of it is promised."""
        failure: Exception | None = None
        try:
            appends: list[Adding] = [
                (topic, partition, part.records()) for (topic, partition), part in transaction.parts.items()
            ]
            await self._intents.commit(appends, transaction.effects, transaction.id, transaction.owner)
        except Exception as error:  # whatever it is: the commit is answered and its groups are free again
            if not isinstance(error, QuintetError):
                self._intents.report("commit_failed", {"transaction": transaction.id, "error": repr(error)})
            failure = error
        self._let_go(transaction)
        if self._intents.outcome(transaction.id) is not None:
            if transaction.id in self._by_id:
                self._drop(transaction)
                self.committed += 1
        else:  # as far as is known nothing was written: it is open again, and may be committed again
            transaction.state = OPEN
            transaction.doubtful |= isinstance(failure, StorageError) and not isinstance(failure, StorageFull)
            transaction.deadline = max(transaction.deadline, self._scheduler.monotonic() + self._limits.timeout_us)
        transaction.answer.finished(failure)

    def abort(self, owner: str, id: str) -> None:
        """Forget all of it."""
        transaction = self._find(owner, id)
        if transaction.doubtful:
            raise StorageError(
                f"the disk failed while transaction {id} was committed: whether it is, only the next start can tell",
                hint="ask again with a commit after the broker was started again",
            )
        self._end(transaction, "rolled back")

    def tick(self, monotonic: int) -> None:
        """Roll back what took too long. Called about every 50 ms."""
        late = [t for t in self._by_id.values() if t.deadline <= monotonic and t.state is OPEN] if self._by_id else ()
        for transaction in late:
            self._end(transaction, f"timed out after {(transaction.deadline - transaction.began) // 1_000_000} s")

    def _find(self, owner: str, id: str) -> Transaction:
        transaction = self._by_id.get(id)
        if transaction is not None and transaction.owner == owner:
            if transaction.state is OPEN:
                return transaction
            raise TransactionNotFound(f"transaction {id} is being committed", hint="wait for its commit to be answered")
        why = "no such transaction of yours"
        outcome = self._intents.outcome(id)
        if outcome is not None and outcome.owner == owner:
            why = "it is committed"
        elif (ended := self._ended.get(id)) is not None and ended[0] == owner:
            why = ended[1]
        raise TransactionNotFound(f"transaction not found: {id} ({why})", hint="begin a new one")

    def _end(self, transaction: Transaction, why: str) -> None:
        self._drop(transaction)
        self.aborted += 1
        if transaction.doubtful:
            why += "; the disk had failed while it was committed: whether it is, only the next start can tell"
        self._ended[transaction.id] = (transaction.owner, why)
        if len(self._ended) > ENDED_REMEMBERED_MAX:
            self._ended.popitem(last=False)

    def _drop(self, transaction: Transaction) -> None:
        del self._by_id[transaction.id]
        self._bytes -= transaction.bytes
        left = self._open[transaction.owner] - 1
        if left:
            self._open[transaction.owner] = left
            self._bytes_of[transaction.owner] = self._bytes_of.get(transaction.owner, 0) - transaction.bytes
        else:
            del self._open[transaction.owner]
            self._bytes_of.pop(transaction.owner, None)
        if self._by_name.get((transaction.owner, transaction.name)) is transaction:
            del self._by_name[transaction.owner, transaction.name]
