"""Small words for tests of the BlipMQ door: frames to send, frames read back as tuples."""

from quintet import kernel
from quintet.protocols.blipmq import codec
from quintet.protocols.blipmq.frames import DELIVER, NACK, PUBLISH
from quintet.protocols.blipmq.session import BlipSession
from quintet.testing.line import Peer, SimBroker


def frames_of(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, correlation id, payload) of every frame; fails on a partial one."""
    found, position = [], 0
    while position < len(data):
        frame = codec.decode(memoryview(data), position, 1 << 24)
        assert frame is not None, f"a partial frame at {position} of {data.hex()}"
        found.append((frame.type, frame.correlation_id, frame.payload))
        position = frame.end
    return found


def nacks_of(data: bytes) -> list[tuple[int, int, str]]:
    """(correlation id, code, text) of every NACK."""
    found = []
    for kind, cid, payload in frames_of(data):
        if kind == NACK:
            parsed = codec.parse_nack(payload)
            assert parsed is not None
            found.append((cid, *parsed))
    return found


def values_of(data: bytes) -> list[bytes]:
    """Values of deliveries, of both versions."""
    found = []
    for kind, _, payload in frames_of(data):
        if kind == PUBLISH:
            found.append(payload[3 + int.from_bytes(payload[1:3], "big") :])
        elif kind == DELIVER:
            found.append(payload[11 + int.from_bytes(payload[9:11], "big") :])
    return found


def tags_of(data: bytes) -> list[int]:
    """Correlation ids of deliveries."""
    return [cid for kind, cid, _ in frames_of(data) if kind in (PUBLISH, DELIVER)]


def publish(topic: bytes, *values: bytes, qos: int = 1, first_id: int = 100, ttl_ms: int = 0) -> bytes:
    return kernel.blip_publish(topic, qos, list(values), first_id, ttl_ms)


def ready(sim: SimBroker, version: int = 1, key: bytes = b"dev-key") -> Peer:
    """A peer that has done the handshake."""
    peer = Peer(sim, BlipSession)
    replies = frames_of(peer.exchange(codec.hello(1, version) + codec.auth(2, key)))
    assert [(kind, cid) for kind, cid, _ in replies] == [(5, 1), (5, 2)]
    return peer


def subscribed(peer: Peer, topic: bytes, qos: int = 1) -> int:
    """A new subscription's id."""
    (reply,) = frames_of(peer.exchange(codec.subscribe(3, topic, qos)))
    assert reply[0] == 5
    return int.from_bytes(reply[2], "big")
