"""The blocking twin of the client: `quintet.sync.connect`. Same names, same arguments, same errors.

Written by generate.py from the asynchronous classes; do not edit. `python -m quintet.client.blocking.generate` writes it again.
"""

import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from quintet.client.agents import peer as _peer
from quintet.client.blocking.portal import Portal
from quintet.client.bus import TIMEOUT_S
from quintet.model.errors import QuintetError


class PeerMessage:
    """A message from another peer: verified, and handed out once. `body` is decoded JSON, `raw` its text."""

    def __init__(self, portal: Portal, inner: _peer.PeerMessage) -> None:
        self._portal = portal
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def sender(self) -> str:
        return self._inner.sender

    @property
    def to(self) -> str:
        return self._inner.to

    @property
    def ts(self) -> str:
        return self._inner.ts

    @property
    def source(self) -> str:
        return self._inner.source

    @property
    def kind(self) -> str:
        return self._inner.kind

    @property
    def raw(self) -> bytes:
        return self._inner.raw

    @property
    def body(self) -> Any:
        """What was sent."""
        return self._inner.body

    def ack(self, *, timeout: float | None = None) -> None:
        """It is dealt with: the broker may forget it. Else it comes again with the next connection."""
        return self._portal.run(self._inner.ack(timeout=timeout))

    def __repr__(self) -> str:
        return self._inner.__repr__()


class Peer:
    """One name at the broker. Made by `peer`, open inside its `with` block."""

    def __init__(self, portal: Portal, inner: _peer.Peer) -> None:
        self._portal = portal
        self._inner = inner

    def __enter__(self) -> "Peer":
        try:
            self._portal.run(self._inner.__aenter__())
        except BaseException:
            self._portal.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._portal.run(self._inner.__aexit__(kind, error, trace))
        finally:
            self._portal.stop()

    def open(self) -> None:
        """Register the name. `with` does it."""
        try:
            self._portal.run(self._inner.open())
        except BaseException:
            self._portal.stop()
            raise

    def close(self) -> None:
        """Leave. Messages go on being kept for the name."""
        try:
            self._portal.run(self._inner.close())
        finally:
            self._portal.stop()

    @property
    def name(self) -> str:
        """Who we are to the others."""
        return self._inner.name

    @property
    def connected(self) -> bool:
        return self._inner.connected

    @property
    def reconnects(self) -> int:
        """How often the connection was replaced."""
        return self._inner.reconnects

    @property
    def queued(self) -> int:
        """Messages received and not yet taken."""
        return self._inner.queued

    @property
    def forged(self) -> int:
        """Messages that were dropped, and not acknowledged, because they were not what their sender signed for us."""
        return self._inner.forged

    @property
    def duplicates(self) -> int:
        """Messages that came again and were not handed out again."""
        return self._inner.duplicates

    def ended(self) -> QuintetError:
        """Wait until it was closed or has failed for good; why. A connection that comes back is no end."""
        return self._portal.run(self._inner.ended())

    def send(self, to: str, body: object, *, id: str | None = None, timeout: float | None = None) -> str:
        """Send anything JSON can say to one peer; its id. It returns when the broker has read it and keeps it, if it does:
        the protocol does not tell whether that peer is known. After a lost connection it is sent again, under the same
        id."""
        return self._portal.run(self._inner.send(to, body, id=id, timeout=timeout))

    def broadcast(self, body: object, *, id: str | None = None, timeout: float | None = None) -> str:
        """Send to every other peer that is connected now; the message's id."""
        return self._portal.run(self._inner.broadcast(body, id=id, timeout=timeout))

    def peers(self, *, timeout: float | None = None) -> list[str]:
        """The names of all peers that are connected now, ours among them."""
        return self._portal.run(self._inner.peers(timeout=timeout))

    def receive(self, *, timeout: float | None = None) -> PeerMessage:
        """The next message; Timeout if none comes in time. Acknowledge it with `message.ack()`."""
        return PeerMessage(self._portal, self._portal.run(self._inner.receive(timeout=timeout)))

    def messages(self, *, ack: bool = True) -> Iterator[PeerMessage]:
        """All messages, without end. Each is acknowledged when the next one is asked for, so that one whose handling
        raised comes again; with ack=False only by `message.ack()`."""
        return self._portal.iterate(self._inner.messages(ack=ack), lambda item: PeerMessage(self._portal, item))

    def drain(self, *, max: int = 1000, wait: float = 0.0) -> list[PeerMessage]:
        """What is here now, up to `max` messages, after waiting up to `wait` seconds for a first one. None is
        acknowledged yet."""
        return [PeerMessage(self._portal, item) for item in self._portal.run(self._inner.drain(max=max, wait=wait))]


def peer(
    url: str,
    *,
    name: str | None = None,
    timeout: float = TIMEOUT_S,
    reconnect: bool = True,
    tls: ssl.SSLContext | None = None,
    give_way: bool = False,
) -> Peer:
    """`with peer("peerbus://:TOKEN@HOST:47821?name=alice") as me`. The name may also be given here.

    The secret that peers share is in the file of `?secret_file=`, or in QUINTET_PEERBUS_SECRET.
    timeout and reconnect are those of `connect`. give_way: if another connection takes the name over and over, it ends with
    NameClaimed instead of taking it back for ever.
    """
    return Peer(Portal(), _peer.peer(url, name=name, timeout=timeout, reconnect=reconnect, tls=tls, give_way=give_way))
