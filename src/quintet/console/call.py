"""Carries one request of the console from the gate to its handler: who asks, and what the gate decides about it.

Every operation has a row (`Operation`): its path, its right in the words of model/rights.py, the record of its fields, its handler. The
gate turns the word into a question to broker/identity/access.py before the handler runs, and before anything is looked up: a
refusal does not tell whether a thing exists. A handler checks only what the gate cannot know (whose group it is: the broker does).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from quintet.broker.core import Broker
from quintet.broker.identity.access import Principal
from quintet.broker.slices import Steps
from quintet.broker.topics import reads
from quintet.broker.topics.catalog import Topic
from quintet.console.awaiting import run, wait_for
from quintet.console.parts import Parts
from quintet.console.sessions import Session
from quintet.model.errors import AuthError, Forbidden, QuintetError, TopicNotFound
from quintet.model.rights import Right
from quintet.model.tasks import Verb

T = TypeVar("T")

DOOR: Final = "console"  # in origins, in `__events`


class Call:
    """One request: who, from where, and whether it is still waited for. `peer` knows the request's id, so it is in the audit."""

    __slots__ = ("broker", "console", "gone", "peer", "principal", "session")

    def __init__(self, console: Parts, principal: Principal, peer: str, session: Session) -> None:
        self.console = console
        self.broker: Broker = console.broker
        self.principal = principal
        self.peer = peer
        self.session = session
        self.gone = False

    @property
    def owner(self) -> str:
        return self.principal.name

    @property
    def origin(self) -> bytes:
        return f"{DOOR}:{self.owner}".encode()

    @property
    def administers(self) -> bool:
        return self.broker.access.may_administer(self.principal)

    def wanted(self) -> bool:
        return not self.gone

    @property
    def patience(self) -> reads.Patience:
        return reads.Patience(self.broker.slices, self.wanted)

    # -- rights ----------------------------------------------------------------------------------------------------

    def may(self, right: Right, name: str) -> bool:
        """What the gate says of this word for this topic."""
        allowed, principal = self.broker.access.allowed, self.principal
        if right == "read or write":
            return allowed(principal, "subscribe", name) or allowed(principal, "publish", name)
        if right == "admin":
            return self.administers
        action: Final = {"read": "subscribe", "write": "publish", "manage": "admin"}
        return right not in action or allowed(principal, action[right], name)  # type: ignore[arg-type]

    def may_see(self, name: str) -> bool:
        return self.may("read or write", name)

    def permit(self, operation: "Operation", topic: str) -> None:
        """Forbidden, and a row of the audit, unless its right is this principal's."""
        if self.may(operation.right, topic):
            return
        self.broker.audit.record("access.denied", self.owner, topic, "denied", self.peer, operation.path)
        admin = operation.right == "admin"
        what = "an administrator" if admin else f"the right to {operation.right} {topic!r}"
        hint = "the role admin may" if admin else self.broker.access.remedy(topic)
        raise Forbidden(f"{self.owner} may not do this: it needs {what}", hint=hint)

    def group_rights(self, group: str) -> tuple[str, bool]:
        return self.owner, self.administers or self.broker.access.listed(self.principal, f"group:{group}")

    def topic(self, name: str) -> Topic:
        """The topic of this name, which the gate has looked at."""
        try:
            return self.broker.topics.find(name.encode())
        except UnicodeEncodeError:
            raise TopicNotFound("topic not found: its name is no proper text") from None

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, verb: Verb[T]) -> T:
        """A verb of the broker, awaited in asyncio. If the browser has gone, it ends where it waits."""
        return await run(verb)

    async def sliced(self, steps: Steps[T]) -> T:
        """Long work in slices, as all long work of the broker."""
        return await wait_for(self.broker.slices.finish(steps, self.wanted))

    def changed(self, kind: str, resource: str, action: str, **details: object) -> None:
        """A change for the audit: only those that the broker's verbs do not write down themselves."""
        self.broker.audit.record(kind, self.owner, resource, "success", self.peer, action, door=DOOR, **details)


async def answer(operation: "Operation", call: Call, ask: Any) -> object:
    """What its handler answers, in the cell that it is about where there are several."""
    assert operation.answer is not None
    if call.console.elsewhere is not None:
        return await call.console.elsewhere.answer(operation, call, ask)
    return await operation.answer(call, ask)


Answer = Callable[[Call, Any], Awaitable[object]]
Stream = Callable[[Call, Any], AsyncIterator[tuple[str, object]]]  # (event, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row. `asks` is the record of its fields; the field `topic` of it is what a right is about."""

    method: Literal["GET", "POST"]
    path: str
    right: Right
    asks: type[Any]
    answer: Answer | None = None
    stream: Stream | None = None
    live: bool = False
    """`/api/live` may repeat it."""


def status_of(error: QuintetError) -> int:
    """The HTTP status of a refusal."""
    if isinstance(error, AuthError):
        return 401
    if isinstance(error, Forbidden):
        return 403
    if isinstance(error, LookupError):
        return 404
    if isinstance(error, ValueError):
        return 400
    return 503 if error.retryable else 409
