"""Carries one FlyMQ request from the session's gate to its handler, and the handler's answer back.

A handler gets the request's fields by name and returns the reply's, or None when the broker answers later through
`call.answer`. Rights were checked by the session's gate before; a handler checks only what the gate cannot know (whose
transaction, whose group: the broker does that, by the principal's name).
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

from quintet.broker.core import Broker
from quintet.broker.identity.access import Principal
from quintet.broker.slices import Unwanted
from quintet.broker.topics import reads
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.long_polls import Wait
from quintet.log.base import Partition
from quintet.model.errors import QuintetError
from quintet.model.tasks import Verb, start
from quintet.protocols.flymq import codec
from quintet.protocols.flymq.section import FlymqListener

T = TypeVar("T")
ANSWER_BYTES_MAX: Final = 1 << 30  # no bound of its own
Values = codec.Values
Made = Values | bytes | list[bytes]  # an answer: its fields, or the whole frame, perhaps in pieces
Handler = Callable[["Call", Values], Made | None]


class Member(Protocol):
    """A session as groups and long requests know it."""

    @property
    def gone(self) -> bool:
        """Nobody waits for an answer any more."""


class Call:
    """One request on its way: who asks, when, through which listener, and where the late answer goes."""

    __slots__ = (
        "accept", "address", "answer", "answer_bytes_max", "broker", "claim", "code", "given", "member", "now", "options", "origin", "peer", "principal",
        "waiting",
    )  # fmt: skip

    answer: Callable[[Made | None, Exception | None], None]
    claim: Callable[[Partition, int, Callable[[], None]], None]

    def __init__(
        self, broker: Broker, principal: Principal, member: Member, now: int, options: FlymqListener, address: str, origin: bytes, peer: str,
        accept: int, code: int,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.principal = principal
        self.member = member
        self.now, self.options, self.address, self.origin, self.peer = now, options, address, origin, peer
        self.accept = accept
        self.code = code
        self.answer_bytes_max = ANSWER_BYTES_MAX  # by the rate of its user
        self.waiting: Wait | None = None  # for something new to read
        self.given: list[tuple[int, int]] = []  # ranges of offsets whose records are in the answer, for the audit

    @property
    def owner(self) -> str:
        return self.principal.name

    def wanted(self) -> bool:
        """Does the client still wait for the answer?"""
        return not self.member.gone

    @property
    def patience(self) -> reads.Patience:
        return reads.Patience(self.broker.slices, self.wanted)

    def topic(self, ask: Values) -> Topic:
        return self.broker.topics.find(ask["topic"].encode())

    def target(self, ask: Values) -> Topic:
        return self.broker.publish_target(self.principal, ask["topic"].encode(), durable=True, peer=self.peer)

    def then(self, make: Callable[[Any], Made]) -> Callable[[Any, Exception | None], None]:
        """The callback for a verb with (result, error): answers with what `make` makes of the result."""

        def done(result: Any, error: Exception | None) -> None:
            made: Made | None = None
            if error is None:
                try:
                    made = make(result)
                except QuintetError as refused:
                    error = refused
            if not isinstance(error, Unwanted):
                self.answer(made, error)

        return done

    def run(self, verb: Verb[T], make: Callable[[T], Made]) -> None:
        """Run a verb of the broker, and answer with what `make` makes of its result, or with its error."""
        start(verb).then(self.then(make))

    def when_durable(self, values: Values) -> Callable[[Exception | None], None]:
        """The callback for a verb with (error) alone."""
        return lambda error: self.answer(values if error is None else None, error)

    def group_rights(self, group: str) -> tuple[str, bool]:
        access = self.broker.access
        return self.owner, access.may_administer(self.principal) or access.listed(self.principal, f"group:{group}")

    def place(self, ask: Values) -> tuple[str, bool, Topic, str, int]:
        """Who asks, and of which place of which group."""
        return *self.group_rights(ask["group"]), self.topic(ask), ask["group"], ask["partition"]


def success(message: str = "") -> Values:
    return {"success": True, "message": message}


def each(make: Callable[[T], Values], found: Iterator[T | None]) -> Iterator[Values | None]:
    """A list that is made while it is written; None in it is a pause."""
    return (None if one is None else make(one) for one in found)
