"""Speaks peerbus: one registered connection for each bus, signed envelopes out, verified ones in.

A name is bound to one connection: a second one with the same name takes it over. So all connections of a bus are views of one
Wire, and when it is lost the first view that comes back dials for all of them:

    Channel (publishing) --- View --+
                                    +--- Wire: register, then envelopes, acks and `peers` out; delivers and `peers` in
    Channel (mailbox) ------ View --+         over WebSocket, or one object a line (peerbus+tcp)

The protocol has no answer to an envelope. A `peers` request behind it is the answer: its reply says that the broker has
read all that was sent before, and (ours) that what it took is on disk. It does not say that it took it: a recipient that
nobody knows, a full mailbox, a wrong signature are passed over without a word. So no publish is called durable here.

What becomes of a delivery is decided in mailbox.py; one without a delivery key is dropped here, because it could never be
acknowledged, and so is one that cannot be read: neither ends the connection.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import uniform
from typing import Final

from quintet.client.core.base import (
    ClientConnection,
    Connector,
    Limits,
    Setup,
    Target,
    Wanted,
    dial,
    shake_hands,
)
from quintet.client.core.errors import BadUrl, ConnectionLost
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint
from quintet.client.links.peerbus_wire import ENVELOPE_BYTES_MAX, View, Wire
from quintet.client.sources.mailbox import PENDING_MAX, TOPIC_PREFIX, Identity, PeerSource
from quintet.model import envelope
from quintet.model.errors import (
    BadName,
    NameClaimed,
    QuintetError,
    Taken,
)
from quintet.model.extras import load
from quintet.protocols.peerbus import frames

SECRET_VARIABLE: Final = "QUINTET_PEERBUS_SECRET"
STEADY_S: Final = 5.0  # a connection that ends sooner is followed by a pause: two with one name would fight for it
FIGHT_FIRST_S: Final = 0.1
FIGHT_MAX_S: Final = 5.0
FIGHT_LOSSES_MAX: Final = 3  # in a row, each soon after registering; then a connector with give_way raises NameClaimed


class PeerConnector:
    """Opens views of a peerbus connection; one for each bus, because all its views share a connection."""

    name = "peerbus"
    limits = Limits(
        frame_overhead_bytes=0,
        frame_bytes_max=ENVELOPE_BYTES_MAX,
        topic_bytes_max=len(TOPIC_PREFIX) + frames.NAME_BYTES_MAX,
        ttl_ms_max=1,
        in_flight_max=PENDING_MAX,
    )
    lacks: Final = {
        "partition": "a mailbox has one; the FlyMQ door has partitions",
        "delay": "the FlyMQ door delays messages",
        "schema": "the FlyMQ door checks schemas",
        "idempotent": "the broker knows a message by its id: publish again with the same key=",
        "compression": "the FlyMQ door compresses",
        "ask": "a peer reads one mailbox: send to the sender of a message; the BlipMQ, FlyMQ and Felix doors ask",
        "group": "a mailbox has one reader; the FlyMQ door has consumer groups",
        "start": "a mailbox begins with what nobody has acknowledged",
        "member": "the FlyMQ door has consumer groups, and they have members",
        "retry": "what is not acknowledged comes again with the next connection; the FlyMQ door leaves it to the client",
        "filter": "the FlyMQ door filters on the server",
        "pattern": "the BlipMQ, FlyMQ and Felix doors find topics by a pattern",
        "transaction": "the FlyMQ door has transactions",
        "fetch": "the FlyMQ door reads by offset",
        "replay": "the FlyMQ door reads what was there before",
        "durable": "the Felix door keeps positions by name",
        "kv": "the Felix door has a cache",
        "ttl": "the broker has one for all mailboxes; every other door has one for each message",
        "resume": "a mailbox goes on by itself, with what nobody has acknowledged",
    }

    def __init__(self, me: Identity | None = None) -> None:
        self.me = me or Identity("", b"", False)
        self._wire: Wire | None = None
        self._source: PeerSource | None = None  # the subscription of the mailbox, kept over reconnects
        self._lock = asyncio.Lock()
        self._pause = 0.0
        self._losses = 0
        self.give_way = False

    def for_bus(self, endpoint: Endpoint, name: str) -> Connector:
        check_packages(endpoint)
        return PeerConnector(identity(endpoint, name))

    async def open(
        self, setup: Setup, target: Target, lost: Callable[[ClientConnection, QuintetError], None]
    ) -> ClientConnection:
        if not isinstance(target, PeerSource) or target is self._source:
            async with self._lock:
                return View(await self._connected(setup), lost)
        if self._source is not None:
            hint = "iterate over one subscription with several tasks, or connect with another name"
            raise Taken(f"the mailbox of {self.me.name} is read by another subscription of this bus", hint=hint)
        self._source = target  # before connecting: a broker delivers at once
        try:
            async with self._lock:
                if self._wire is not None and self._wire.lost is None:
                    for key, data in self._wire.take_early():
                        target.delivered(key, data)
                    if self._wire.missed:
                        self._wire.fail(
                            ConnectionLost("messages came before anybody subscribed: they are asked for again")
                        )
                return View(await self._connected(setup), lost)
        except BaseException:
            self.leave(target)
            raise

    async def _connected(self, setup: Setup) -> Wire:
        """The wire there is, or a new one."""
        if self._wire is None or self._wire.lost is not None:
            await self._wait(setup)
            return await self._dial(setup)
        return self._wire

    # -- see mailbox.Post ------------------------------------------------------------------------------------------

    def ack(self, keys: Sequence[str]) -> None:
        if self._wire is not None and self._wire.lost is None:
            self._wire.ack(keys)

    def hold(self, full: bool) -> None:
        if self._wire is not None:
            self._wire.hold(full)

    def leave(self, source: PeerSource) -> None:
        if self._source is source:
            self._source = None
            self.hold(False)

    # -- connecting ------------------------------------------------------------------------------------------------

    async def _wait(self, setup: Setup) -> None:
        """Two clients with one name would take it from each other without end, so each waits a while before it reconnects."""
        last = self._wire
        if last is None or asyncio.get_running_loop().time() - last.opened > STEADY_S:
            self._pause, self._losses = 0.0, 0
            return
        self._losses += last.count_loss()
        if self.give_way and self._losses >= FIGHT_LOSSES_MAX:
            hint = "another process uses this name and token: end it, or give one of them another name, and start again"
            raise NameClaimed(f"another connection took the name {self.me.name!r} {self._losses} times", hint=hint)
        self._pause = min(max(self._pause * 2, FIGHT_FIRST_S), FIGHT_MAX_S, setup.timeout / 2)
        await asyncio.sleep(uniform(self._pause / 2, self._pause))

    async def _dial(self, setup: Setup) -> Wire:
        endpoint = setup.endpoint
        if endpoint.lines:
            shared = Wire(str(endpoint), self.me, lambda: self._source)
            await dial(setup, shared)
        else:
            from quintet.client.links import peerbus_ws

            shared = wire = peerbus_ws.SocketWire(str(endpoint), self.me, lambda: self._source)
            await peerbus_ws.dial_socket(setup, wire)
        self._wire = shared  # deliveries may come with the answer to the register, and want to be acknowledged
        await shake_hands(setup, shared, shared.handshake(endpoint.secret))
        return shared

    def source(self, setup: Setup, wanted: Wanted) -> Source:
        if wanted.topic != TOPIC_PREFIX + self.me.name:
            raise BadName(
                f"peerbus reads one mailbox, that of its own name, and {wanted.topic!r} is not it",
                hint=f"subscribe to {TOPIC_PREFIX}{self.me.name}, or connect with another name",
            )
        return PeerSource(setup, self.me, self)


def check_packages(endpoint: Endpoint) -> None:
    """WebSocket is spoken by a package; lines over TCP need none."""
    if not endpoint.lines:
        load("picows", "peerbus:// over WebSocket", "peerbus")


def identity(endpoint: Endpoint, name: str) -> Identity:
    """Who we are by the URL, the argument and the environment; BadUrl says what is missing."""
    if endpoint.name and name and endpoint.name != name:
        raise BadUrl(f"the URL says name={endpoint.name}, and connect says {name}", hint="leave one of them out")
    who = endpoint.name or name
    if not who:
        raise BadUrl("a peer needs a name", hint="peerbus://:TOKEN@HOST:47821?name=NAME, or name= to connect")
    secret = _secret(endpoint)
    if not secret and endpoint.verify == "on":
        raise BadUrl(
            "messages of peers are signed with a secret they share, and there is none",
            hint=f"?secret_file=FILE or {SECRET_VARIABLE}; ?verify=off takes whatever comes",
        )
    if endpoint.kid and endpoint.verify == "on":
        raise BadUrl(
            "who signs with a key of its own cannot verify what others sign with theirs",
            hint="the broker verifies: add ?verify=off",
        )
    return Identity(who, secret, endpoint.verify == "on", endpoint.kid)


def _secret(endpoint: Endpoint) -> bytes:
    if endpoint.secret_file is None:
        where, data = SECRET_VARIABLE, os.environ.get(SECRET_VARIABLE, "").encode()
    else:
        where = endpoint.secret_file
        try:
            data = Path(where).read_bytes().split(b"\n", 1)[0].strip()
        except OSError as error:
            raise BadUrl(f"cannot read the secret in secret_file={where}: {error.strerror}") from error
    if data and len(data) < envelope.SECRET_BYTES_MIN:
        raise BadUrl(f"the secret in {where} has {len(data)} bytes, it needs {envelope.SECRET_BYTES_MIN}")
    return data


CONNECTOR: Final = PeerConnector()
