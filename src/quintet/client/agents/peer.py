"""Defines Peer, what agents use in place of a bus: `async with quintet.peer("peerbus://:TOKEN@HOST?name=alice") as me`.

A Peer is a bus of the peerbus door and a subscription to its own mailbox. What it hands out is verified and came once;
it is acknowledged after it was consumed. Sending again after a lost connection uses the same id, by which the broker
knows it. Nothing here knows a frame.
"""

import ssl
from collections.abc import AsyncIterator
from secrets import token_hex
from types import TracebackType
from typing import Any, Final

from quintet.client.bus import TIMEOUT_S, Bus, connect
from quintet.client.core import url as urls
from quintet.client.core.errors import BadUrl, Closed, Timeout
from quintet.client.core.message import Message
from quintet.client.core.subscription import Subscription
from quintet.client.sources.mailbox import TOPIC_PREFIX, PeerSource
from quintet.model import envelope
from quintet.model.errors import QuintetError

PEERS_S: Final = 5.0  # how long the list of peers may take


def peer(
    url: str,
    *,
    name: str | None = None,
    timeout: float = TIMEOUT_S,
    reconnect: bool = True,
    tls: ssl.SSLContext | None = None,
    give_way: bool = False,
) -> "Peer":
    """`async with peer("peerbus://:TOKEN@HOST:47821?name=alice") as me`. The name may also be given here.

    The secret that peers share is in the file of `?secret_file=`, or in QUINTET_PEERBUS_SECRET.
    timeout and reconnect are those of `connect`. give_way: if another connection takes the name over and over, it ends with
    NameClaimed instead of taking it back for ever.
    """
    endpoint = urls.parse(url)
    if endpoint.door != "peerbus":
        raise BadUrl(
            f"peers need the protocol peerbus, and the URL is of {endpoint.door}",
            hint="use peerbus:// or peerbus+tcp://",
        )
    bus = connect(url, name=name, timeout=timeout, reconnect=reconnect, tls=tls)
    if give_way:
        from quintet.client.links.peerbus import PeerConnector

        assert isinstance(bus.door, PeerConnector), "the door of the URL, which was looked at above"
        bus.door.give_way = True
    return Peer(bus, endpoint.name or name or "")


class PeerMessage:
    """A message from another peer: verified, and handed out once. `body` is decoded JSON, `raw` its text."""

    __slots__ = ("_message", "id", "kind", "raw", "sender", "source", "to", "ts")

    def __init__(self, message: Message) -> None:
        members = message.envelope or {}
        self._message = message
        self.id: str = (message.key or b"").decode()
        self.sender: str = message.origin or ""
        self.to: str = members.get("to", "")
        self.ts: str = members.get("ts", "")
        self.source: str = members.get("source", "")
        self.kind: str = members.get("kind", "")
        self.raw: bytes = message.value

    @property
    def body(self) -> Any:
        """What was sent."""
        return self._message.json()

    async def ack(self, *, timeout: float | None = None) -> None:
        """It is dealt with: the broker may forget it. Else it comes again with the next connection."""
        await self._message.ack(timeout=timeout)

    def __repr__(self) -> str:
        return f"<PeerMessage {self.kind} id={self.id!r} from={self.sender!r} bytes={len(self.raw)}>"


class Peer:
    """One name at the broker. Made by `peer`, open inside its `async with` block."""

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self._name = name
        self._mailbox: Subscription | None = None
        self._source: PeerSource | None = None

    async def __aenter__(self) -> "Peer":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Register the name. `async with` does it."""
        await self._bus.open()
        try:
            self._mailbox = self._bus.subscribe(TOPIC_PREFIX + self._name)
            await self._mailbox.open()
        except BaseException:
            await self._bus.close()
            raise
        source = self._mailbox.source
        assert isinstance(source, PeerSource), "the peerbus door makes these"
        self._source = source

    async def close(self) -> None:
        """Leave. Messages go on being kept for the name."""
        await self._bus.close()

    @property
    def name(self) -> str:
        """Who we are to the others."""
        return self._name

    @property
    def connected(self) -> bool:
        return self._bus.connected

    @property
    def reconnects(self) -> int:
        """How often the connection was replaced."""
        return self._bus.reconnects

    @property
    def queued(self) -> int:
        """Messages received and not yet taken."""
        return 0 if self._mailbox is None else self._mailbox.queued

    @property
    def forged(self) -> int:
        """Messages that were dropped, and not acknowledged, because they were not what their sender signed for us."""
        return 0 if self._source is None else self._source.forged

    @property
    def duplicates(self) -> int:
        """Messages that came again and were not handed out again."""
        return 0 if self._source is None else self._source.duplicates

    async def ended(self) -> QuintetError:
        """Wait until it was closed or has failed for good; why. A connection that comes back is no end."""
        assert self._source is not None, "it was opened"
        await self._source.over.wait()
        return self._source.failed or Closed("the peer was closed")

    # -- sending ---------------------------------------------------------------------------------------------------

    async def send(self, to: str, body: object, *, id: str | None = None, timeout: float | None = None) -> str:
        """Send anything JSON can say to one peer; its id. It returns when the broker has read it and keeps it, if it does:
        the protocol does not tell whether that peer is known. After a lost connection it is sent again, under the same
        id."""
        if to == envelope.EVERYONE:
            raise ValueError("'*' is everyone: broadcast() sends to all")
        return await self._send(to, body, id, timeout)

    async def broadcast(self, body: object, *, id: str | None = None, timeout: float | None = None) -> str:
        """Send to every other peer that is connected now; the message's id."""
        return await self._send(envelope.EVERYONE, body, id, timeout)

    async def _send(self, to: str, body: object, id: str | None, timeout: float | None) -> str:
        import msgspec.json

        id = id or token_hex(16)
        data = msgspec.json.encode(body)
        await self._bus.publish(TOPIC_PREFIX + to, data, key=id, retry=True, timeout=timeout)
        return id

    async def peers(self, *, timeout: float | None = None) -> list[str]:
        """The names of all peers that are connected now, ours among them."""
        answer = await self._bus.request("PEERS", timeout=PEERS_S if timeout is None else timeout)
        return list(answer["names"])

    # -- receiving -------------------------------------------------------------------------------------------------

    async def receive(self, *, timeout: float | None = None) -> PeerMessage:
        """The next message; Timeout if none comes in time. Acknowledge it with `await message.ack()`."""
        return PeerMessage(await self._inbox().get(timeout=timeout))

    async def messages(self, *, ack: bool = True) -> AsyncIterator[PeerMessage]:
        """All messages, without end. Each is acknowledged when the next one is asked for, so that one whose handling
        raised comes again; with ack=False only by `message.ack()`."""
        mailbox = self._inbox()
        while True:
            try:
                message = PeerMessage(await mailbox.get(timeout=float("inf")))
            except Closed:
                return
            yield message
            if ack:
                await message.ack()

    async def drain(self, *, max: int = 1_000, wait: float = 0.0) -> list[PeerMessage]:
        """What is here now, up to `max` messages, after waiting up to `wait` seconds for a first one. None is
        acknowledged yet."""
        mailbox = self._inbox()
        if not mailbox.queued and wait <= 0:
            if self._source is not None and self._source.failed is not None:
                raise self._source.failed
            return []
        try:
            batch = await mailbox.get_batch(max=max, wait=0.0, timeout=wait or None)
        except Timeout:
            return []
        return [PeerMessage(message) for message in batch]

    def _inbox(self) -> Subscription:
        if self._mailbox is None:
            raise Closed("the peer is not open", hint="use `async with quintet.peer(url) as me`")
        return self._mailbox
