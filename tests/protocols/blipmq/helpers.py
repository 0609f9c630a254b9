"""Small words for tests of the BlipMQ door: peers on a simulated broker, and what came back, taken apart."""

from quintet.protocols.blipmq.session import BlipSession
from quintet.testing.line import Peer, SimBroker
from tests.wire import blipmq as wire
from tests.wire.blipmq import ACK, DELIVER, NACK, PUBLISH, Frame, frames_of

__all__ = ["frames_of"]


def deliveries_of(data: bytes) -> list[Frame]:
    """Of both versions."""
    return [one for one in frames_of(data) if one.kind in (PUBLISH, DELIVER)]


def nacks_of(data: bytes) -> list[tuple[int, int, str]]:
    """(correlation id, code, text) of every NACK."""
    return [(one.id, *one.refusal) for one in frames_of(data) if one.kind == NACK]


def values_of(data: bytes) -> list[bytes]:
    return [one.delivery[2] for one in deliveries_of(data)]


def tags_of(data: bytes) -> list[int]:
    return [one.id for one in deliveries_of(data)]


def publish(topic: bytes, *values: bytes, qos: int = 1, first_id: int = 100, ttl_ms: int = 0) -> bytes:
    ids = range(first_id, first_id + len(values))
    return b"".join(wire.publish(id, topic, value, qos, ttl_ms or None) for id, value in zip(ids, values, strict=True))


def ready(sim: SimBroker, version: int = 1, key: bytes = b"dev-key") -> Peer:
    """A peer that has done the handshake."""
    peer = Peer(sim, BlipSession)
    replies = frames_of(peer.exchange(wire.hello(1, version) + wire.auth(2, key)))
    assert [(one.kind, one.id) for one in replies] == [(ACK, 1), (ACK, 2)]
    return peer


def subscribed(peer: Peer, topic: bytes, qos: int = 1) -> int:
    """A new subscription's id."""
    (reply,) = frames_of(peer.exchange(wire.subscribe(3, topic, qos)))
    return reply.number
