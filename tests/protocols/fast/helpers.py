"""A simulated broker with tokens, and Fast peers on it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.tokens import TokenOptions
from quintet.broker.sections import QueueSection
from quintet.broker.topics.policy import TopicPolicy
from quintet.protocols.fast.section import FastListener
from quintet.protocols.fast.session import FastDoor, FastSession
from quintet.testing.line import Peer, SimBroker
from tests.wire import fast as wire

SECRET = b"a master secret of more than 32 bytes"
ALL = ("publish", "subscribe", "rotate", "create")
SECOND = 1_000_000
VECTORS = Path(__file__).parent.parent.parent / "vectors" / "fast"
DEMO = wire.topic_id(b"demo")
TOPICS = BrokerOptions().topics


def token(
    sub: str = "ann", key: str = "k1", permissions: Iterable[str] = ALL, secret: bytes = SECRET, **more: Any
) -> bytes:
    return wire.token(sub, key, *permissions, secret=secret, **more)


@dataclass(frozen=True)
class Reply:
    """An OK (code 0) or an ERROR."""

    request: int
    topic: int
    code: int


class FastSim(SimBroker):
    """A broker with one Fast door, made again with every start."""

    def __init__(self, queues: QueueSection | None = None, topics: TopicPolicy = TOPICS, **options: object) -> None:
        self._fast = FastListener(**options)  # type: ignore[arg-type]
        super().__init__(options=BrokerOptions(queues=queues or QueueSection(), topics=topics))

    def start(self) -> None:
        super().start()
        self.broker.set_tokens(TokenOptions(secrets=(SECRET,)))
        self.door = FastDoor(self.broker, self._fast)

    def peer(self, *packets: bytes, address: str = "10.0.0.1:5", extended: bool = False) -> "FastPeer":
        peer = FastPeer(self, address)
        if extended:
            assert peer.ask(wire.extend()) == [Reply(wire.EXTEND, 0, 0)]
        for packet in packets:
            peer.feed(packet)
            self.scheduler.run_until_idle()
        peer.look()
        peer.replies.clear()
        return peer

    def now_s(self) -> int:
        return self.scheduler.now() // SECOND


class FastPeer(Peer):
    """Keeps what the broker sent, taken apart."""

    def __init__(self, sim: FastSim, address: str = "10.0.0.1:5") -> None:
        self._address = address
        self._door = sim.door
        super().__init__(sim, self._make)
        self.values: list[tuple[int, bytes]] = []
        self.keys: list[tuple[int, bytes]] = []
        self.replies: list[Reply] = []
        self.texts: list[str] = []

    def _make(self, _broker: Broker, sink: Peer, now: int) -> FastSession:
        return FastSession(self._door, sink, now, self._address)

    def look(self) -> None:
        """Sort what came."""
        for one in wire.packets_of(self.take()):
            if isinstance(one, wire.Message):
                self.values.append(one)
            elif isinstance(one, wire.KeyUpdate):
                self.keys.append(one)
            else:
                self.replies.append(Reply(*one[:3]))
                self.texts += [one.text] if one.code else []

    def ask(self, packet: bytes) -> list[Reply]:
        """Send, let the broker come to rest, and take the replies that came since the last time."""
        self.feed(packet)
        self.sim.scheduler.run_until_idle()
        self.look()
        replies, self.replies = self.replies, []
        return replies

    def held(self) -> bool:
        """Nothing is taken from it until a rate is paid back."""
        return self.session.holding

    def got(self, topic: int = DEMO) -> list[bytes]:
        """The messages of a topic that came since the last time."""
        self.sim.scheduler.run_until_idle()
        self.look()
        values = [value for number, value in self.values if number == topic]
        self.values = [(number, value) for number, value in self.values if number != topic]
        return values


def collisions() -> list[tuple[int, bytes, bytes]]:
    """(number, name, another name with that number)."""
    found = json.loads((VECTORS / "collisions.json").read_text())
    return [(int(number, 16), one.encode(), other.encode()) for number, one, other in found]


def publish(jwt: bytes, *values: bytes, topic: int = DEMO) -> bytes:
    return b"".join(wire.publish(jwt, topic, value) for value in values)
