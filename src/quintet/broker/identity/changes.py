"""Makes changes of users and access rules one at a time, and writes what became of each into the audit.

    async with changes.audited("user.delete", actor.name, name, peer):     a row of the audit: success, denied or failure
        check what can be refused before it costs anything; hash
        async with changes.alone(actor.name):                              waits in line
            check against what is true now
            await write(table.put(...), follow)                            live at once, taken back if the disk refuses

So two changes can not each take one of the last two administrators away. The next change begins before this one is answered.
A refusal is answered at the end of the turn, never within the call that asked. In a broker of several cells a change is answered when
every cell goes by it (`spread`, ADR 48); changes are made in cell 0 alone.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final

from quintet.broker.audit.audit_log import Recorder, Result
from quintet.model.errors import AuthError, Busy, Forbidden, OtherCell, message_of
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Mutex, Promise, next_turn

CHANGES_WAITING_MAX: Final = 1_000
CONFIGURATION: Final = "(configuration)"  # the user of changes that the configuration made, for the audit

Spread = Callable[[], Promise[None]]


class Audited:
    """Who asked for what. Leaving it writes the row; an error goes on from there."""

    def __init__(
        self,
        audit: Recorder,
        scheduler: Scheduler,
        type: str,
        actor: str,
        resource: str,
        peer: str,
        details: dict[str, object],
        spread: "Spread | None" = None,
    ) -> None:
        self._audit = audit
        self._scheduler = scheduler
        self._spread = spread
        self.type, self.actor, self.resource, self.peer, self.details = type, actor, resource, peer, details

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:  # fmt: skip
        if error is None:
            self.record("success", self.details)
            if self._spread is not None:
                await self._spread()
        elif isinstance(error, Exception):
            await next_turn(self._scheduler)
            self.refused(error)

    def refused(self, error: Exception) -> None:
        self.record("denied" if isinstance(error, Forbidden | AuthError) else "failure", {"reason": message_of(error)})

    def record(self, result: Result, details: dict[str, object]) -> None:
        action = self.type.partition(".")[2]
        self._audit.record(self.type, self.actor, self.resource, result, self.peer, action, **details)


class Changes:
    """The line in which changes wait."""

    def __init__(self, scheduler: Scheduler, audit: Recorder) -> None:
        self._scheduler = scheduler
        self._audit = audit
        self._mutex = Mutex()
        self.followed = False  # users, keys, rules and quotas are those of cell 0, and this is another cell
        self.spread: Spread | None = (
            None  # completed when every cell goes by what was changed until now; fails: CellsBehind
        )

    def check(self) -> None:
        """OtherCell if nothing is changed here."""
        if self.followed:
            raise OtherCell(
                "users, keys, access rules and quotas of a broker with several cells are changed in cell 0",
                hint="use FlyMQ or the console, which reach it from everywhere",
            )

    def audited(self, type: str, actor: str, resource: str, peer: str, **details: object) -> Audited:
        spread = None if actor == CONFIGURATION else self.spread  # a start and SIGHUP wait for nobody
        return Audited(self._audit, self._scheduler, type, actor, resource, peer, details, spread)

    def alone(self, actor: str) -> Mutex:
        """Whoever changes something is in this. Raises Busy if too many wait; the configuration is not turned away."""
        self.check()
        if self._mutex.waiting >= CHANGES_WAITING_MAX and actor != CONFIGURATION:
            raise Busy(f"{self._mutex.waiting} changes wait already", hint="try again in a moment")
        return self._mutex


async def write(written: Promise[None], follow: Callable[[], None]) -> None:
    """A row was given to its table: `follow` makes live what the table says, now and again if the disk refuses."""
    follow()
    try:
        await written
    except Exception:
        follow()
        raise
