"""Opens and closes what a node forwards while it does not lead: one listener for each door, TCP spliced, QUIC relayed.

    follower:  start() ... leader_changed() ... stop()  --> leads: the real doors are opened at the same addresses

Who leads is asked of a callable, for every connection: the host of the leader, or None. Its doors have the same ports as ours.
Nothing is read or changed on the way: TLS ends at the leader, whose certificate must name the hosts that clients connect to, and
the leader sees the address of this node in place of the client's. The console is forwarded too; Flight is not: a follower answers.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from quintet.model.errors import NotLeader
from quintet.net.doors import cannot_listen
from quintet.net.forwarding.relay import Relay
from quintet.net.forwarding.splice import Splices
from quintet.net.listener import Report
from quintet.protocols.door import AnyDoor, Options

CONNECTIONS_MAX: Final = 10_000  # of one door
PER_ADDRESS_MAX: Final = 1_000
IDLE_S: Final = 60.0  # of one client of a QUIC door; more than the leader's own bound for silence
IDLE_SPARE_S: Final = 10.0

Leader = Callable[[], str | None]
LastWords = Callable[[NotLeader], bytes]


@dataclass(frozen=True, slots=True)
class ForwardedDoor:
    """Where clients come in, and the port of the same door at the leader."""

    name: str
    host: str
    port: int
    transport: Literal["tcp", "udp"] = "tcp"
    leader_port: int = 0  # 0: the same as ours
    connections_max: int = CONNECTIONS_MAX
    per_address_max: int = PER_ADDRESS_MAX  # tcp only: connections of one client address
    idle_seconds: float = IDLE_S  # udp only
    last_words: LastWords | None = None  # tcp only: what this protocol says to a client that cannot be forwarded
    listening: socket.socket | None = None  # tcp only: bound by another process, which goes on to have it

    @property
    def target_port(self) -> int:
        return self.leader_port or self.port


def forwarded_doors(
    doors: Iterable[AnyDoor], options_of: Callable[[AnyDoor], Options], per_address_max: int = PER_ADDRESS_MAX
) -> list[ForwardedDoor]:
    """The doors of a configuration that are enabled."""
    found = []
    for door in doors:
        options = options_of(door)
        if not options.enabled:
            continue
        most = options.connections_max
        if door.transport == "quic":
            idle = options.idle_seconds + IDLE_SPARE_S
            made = ForwardedDoor(door.name, options.host, options.port, "udp", connections_max=most, idle_seconds=idle)
        else:
            words: LastWords | None = None
            if options.tls_cert is None and door.last_words is not None:
                words = _bound(door.last_words, options)
            made = ForwardedDoor(
                door.name,
                options.host,
                options.port,
                connections_max=most,
                per_address_max=per_address_max,
                last_words=words,
            )
        found.append(made)
    return found


def _bound(words: Callable[[NotLeader, Options], bytes], options: Options) -> LastWords:
    return lambda error: words(error, options)


class Forwarding:
    """All doors of one node. `start` and `stop` may alternate."""

    def __init__(self, doors: Iterable[ForwardedDoor], leader: Leader, report: Report) -> None:
        self.doors = tuple(doors)
        self._leader = leader
        self._report = report
        self._open: dict[str, Splices | Relay] = {}

    async def start(self) -> None:
        """Listen on every door. OSError says which address cannot be had; then none is open."""
        assert not self._open, "it was started already"
        try:
            for door in self.doors:
                made: Splices | Relay
                if door.transport == "udp":
                    made = Relay(door.host, door.port, door.target_port, door.connections_max, door.idle_seconds)
                else:
                    bounds = (door.connections_max, door.per_address_max)
                    made = Splices(door.name, door.target_port, *bounds, door.last_words, self._report)
                try:
                    if door.listening is not None and isinstance(made, Splices):
                        await made.start_on(door.listening.dup(), self._leader)
                    else:
                        await made.start(door.host, door.port, self._leader)
                except OSError as error:
                    raise cannot_listen(door.name, door.host, door.port, error) from error
                self._open[door.name] = made
        except BaseException:
            await self.stop()
            raise
        self._report("forwarding", {"doors": self.addresses(), "leader": self._leader() or "not known"})

    def leader_changed(self) -> None:
        """End what leads to another node than the one that leads now. Its clients come back, and reach the new leader."""
        for made in self._open.values():
            made.leader_changed()

    async def stop(self) -> None:
        """Close the listeners and end every connection; when it returns, the addresses are free."""
        opened, self._open = self._open, {}
        for made in opened.values():
            made.stop_accepting()
        await asyncio.gather(*(made.stop() for made in opened.values()))

    def addresses(self) -> dict[str, str]:
        return {name: made.address for name, made in self._open.items()}

    def figures(self) -> Mapping[str, dict[str, int]]:
        """Of each door: connections or clients there are, and what was counted since it was opened."""
        return {name: made.figures() for name, made in self._open.items()}
