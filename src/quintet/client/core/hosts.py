"""Tries the hosts of a URL in turn, and remembers for all connections of a bus which one to begin with.

    line():   the leader that a node named, then the list from the host in use on, once around
    reached   this host took a connection: the next one of the bus begins with it
    left      the connection to it was lost: the next one begins with the host behind it

All hosts are nodes of one cluster: what one of them refuses for good (a wrong password, no such topic) is raised at once, because
the others would say the same. Whoever does not answer, is full, or speaks another protocol is passed over. A node that says
`not leader: leader_addr=HOST:PORT` is followed, a few times in one round. The time of the caller is shared among the hosts that are
left, so that one that swallows packets does not take all of it. How a connection is made is not known here.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import shuffle
from typing import Final, NamedTuple, TypeVar

from quintet.client.core.errors import ConnectionLost, Timeout
from quintet.client.core.url import Endpoint, Host, address
from quintet.model.errors import Busy, LimitExceeded, NotLeader, ProtocolError, QuintetError, ShuttingDown

REDIRECTS_MAX: Final = 3  # of one round: nodes that name each other would go on without end
ATTEMPT_S_MIN: Final = 0.1  # for the last host of a round, however little time the others left
_ALIKE: Final = (ProtocolError, Timeout, LimitExceeded, Busy, ShuttingDown, NotLeader)

T = TypeVar("T")


class Tried(NamedTuple):
    """A host and what it said, or what was said of it."""

    host: Host
    error: QuintetError


class Hosts:
    """The hosts of one bus, and where it is."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._list = list(endpoint.hosts)
        if endpoint.order == "random":
            shuffle(self._list)
        self._at = 0
        self._named: Host | None = None  # a leader that is not in the list

    def line(self) -> list[Host]:
        """All of them, in the order in which they are tried now."""
        known = self._list[self._at :] + self._list[: self._at]
        return known if self._named is None else [self._named, *known]

    def reached(self, host: Host) -> None:
        if host in self._list:
            self._at, self._named = self._list.index(host), None
        else:
            self._named = host

    def left(self, host: Host) -> None:
        """Called by each connection of the bus that was lost; the first one counts."""
        if host == self._named:
            self._named = None
        elif self._named is None and host == self._list[self._at]:
            self._at = (self._at + 1) % len(self._list)


async def in_turn(
    hosts: Hosts, endpoint: Endpoint, seconds: float, attempt: Callable[[Endpoint, float], Awaitable[T]]
) -> T:
    """What `attempt` makes of the first host that takes it. Else its error; with several hosts, one that names all of them."""
    loop = asyncio.get_running_loop()
    until, redirects = loop.time() + seconds, 0
    line, tried = deque(hosts.line()), list[Tried]()
    while line:
        host = line.popleft()
        share = max((until - loop.time()) / (len(line) + 1), ATTEMPT_S_MIN) if line or tried else seconds
        try:
            made = await attempt(endpoint.at(host), share)
        except QuintetError as error:
            if not _passes_over(error):
                raise
            tried.append(Tried(host, error))
            leader = _leader(error, endpoint.port)
            if leader is not None and redirects < REDIRECTS_MAX and leader not in {each.host for each in tried}:
                redirects += 1
                line = deque([leader, *(other for other in line if other != leader)])
        else:
            hosts.reached(host)
            return made
    raise _summary(tried)


def _passes_over(error: QuintetError) -> bool:
    """Whether another host may do. A server of another protocol is one that is not a node."""
    return error.retryable or isinstance(error, (ProtocolError, LimitExceeded))


def _leader(error: QuintetError, port: int) -> Host | None:
    return address(error.leader, port) if isinstance(error, NotLeader) and error.leader else None


def _summary(tried: Sequence[Tried]) -> QuintetError:
    """One error for a round. Of the kind of all of them if that is one, so that a fatal one stays fatal."""
    if len(tried) == 1:
        return tried[0].error
    kind = next((kind for kind in _ALIKE if all(isinstance(each.error, kind) for each in tried)), ConnectionLost)
    said = "; ".join(f"{host}: {error.message}" for host, error in tried)
    hints = {error.hint: None for _, error in tried if error.hint}
    found = kind(f"none of {len(tried)} hosts took the connection: {said}", hint="; ".join(hints))
    found.__cause__ = tried[-1].error
    return found
