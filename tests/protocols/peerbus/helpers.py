"""Small words for tests of the peerbus door: peers on a simulated broker, envelopes, and what came back as objects."""

from typing import Any

from quintet.broker.core import BrokerOptions
from quintet.broker.sections import PeerSection
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer, SimBroker
from tests.wire import peerbus as wire
from tests.wire.peerbus import frames_of as objects

__all__ = ["objects"]

KEYS = {"ann": "ann-token", "ben": "ben-token"}
SECRET = b"0123456789abcdef0123456789abcdef"


def broker(**changes: Any) -> SimBroker:
    """A broker with two owners; `changes` are options of the peers, and their keys."""
    secret, keys = changes.pop("secret", b""), changes.pop("keys", {})
    return SimBroker(KEYS, BrokerOptions(peers=PeerSection(**changes).with_keys(secret, keys)))


def connect(sim: SimBroker) -> Peer:
    return Peer(sim, PeerSession)


def session_of(peer: Peer) -> PeerSession:
    assert isinstance(peer.session, PeerSession)
    return peer.session


def register(sim: SimBroker, name: str, token: str = "ann-token") -> tuple[Peer, list[dict[str, Any]]]:
    """A registered peer, and what was delivered to it at once."""
    peer = connect(sim)
    peer.feed(wire.register(token, name) + b"\n")
    sim.scheduler.run_until_idle()
    assert session_of(peer).closing is None, session_of(peer).closing
    first, *others = objects(peer.take())
    assert first["type"] == "peers" and name in first["names"]
    return peer, others


def peer_of(sim: SimBroker, name: str, token: str = "ann-token") -> Peer:
    return register(sim, name, token)[0]


def how_closed(peer: Peer) -> tuple[int, str | None]:
    return session_of(peer).close_code, session_of(peer).closing


def letter(
    sender: str, to: str, id: str, body: str = "null", secret: bytes = b"", ts: str = "2026-05-18T12:00:00Z"
) -> bytes:
    return wire.envelope(id, sender, to, body, secret, ts)


def send(peer: Peer, *envelopes: bytes) -> None:
    """One read with all of them, and the broker comes to rest."""
    peer.feed(b"".join(one + b"\n" for one in envelopes))
    peer.sim.scheduler.run_until_idle()


def ack(peer: Peer, *keys: str) -> None:
    peer.feed(b"".join(wire.ack(key) + b"\n" for key in keys))
    peer.sim.scheduler.run_until_idle()


def delivered(peer: Peer) -> list[str]:
    """Delivery keys of what came since the last look."""
    return [found["delivery_key"] for found in objects(peer.take()) if found["type"] == "deliver"]


def keys_of(found: list[dict[str, Any]]) -> list[str]:
    return [one["delivery_key"] for one in found]


def dropped(sim: SimBroker) -> dict[str, int]:
    """What the broker dropped, by reason."""
    return {reason: count for reason, count in sim.broker.peers.dropped.items() if count}
