"""A simulated broker and Felix connections on it: streams, outlets and their peers, all by hand."""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import Role
from quintet.broker.identity.metering import Meter
from quintet.broker.identity.tenant_tokens import TenantTokenOptions, mint_tenant, secret_signer
from quintet.model.errors import BadRequest
from quintet.protocols.base import LOST, TOO_SLOW
from quintet.protocols.felix import codec, features, frames, matching
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.felix.session import FelixSession
from quintet.testing.line import Peer, SimBroker
from tests.wire import felix as wire

SECRET = b"a secret for tokens of tenants, long enough"
SECOND = 1_000_000
OURS = frames.SERVER_FLAGS & ~frames.RECORDS  # events as values; tests of record sets ask for them
PLAIN = 0x003F  # of published clients without keys and offsets in acknowledgements
NEWER = frames.PUBLISHED_FLAGS
KEY = "dev-key"
DEMO = ("t1", "default", "demo")
PRIMARY = ("t1", "default", "primary")
ALL = ("stream.publish:stream:t1/*", "stream.subscribe:stream:t1/*", "cache.read:cache:t1/*", "cache.write:cache:t1/*")


def token(
    now_s: int, tenant: str = "t1", permissions: Iterable[str] = ALL, sub: str = "ann", life_s: int = 3600
) -> str:
    claims = {
        "iss": "felix-auth", "aud": "felix-broker", "sub": sub, "tid": tenant, "iat": now_s, "exp": now_s + life_s,
        "perms": list(permissions),
    }  # fmt: skip
    return mint_tenant(claims, "HS256", secret_signer(SECRET)).decode()


class FelixSim(SimBroker):
    """A broker with one Felix door, and keys of its own."""

    def __init__(self, options: BrokerOptions | None = None, keys: dict[str, str] | None = None, **felix: Any) -> None:
        self.felix = FelixListener(**felix)
        super().__init__(keys, options)

    def start(self) -> None:
        super().start()
        self.broker.access.set_roles([Role("open", read=("*",), write=("*",))])
        self.broker.set_tenant_tokens(TenantTokenOptions(secrets=(SECRET,)))

    @property
    def now_s(self) -> int:
        return self.scheduler.now() // SECOND

    def connect(self, address: str = "10.0.0.1:5") -> "Connection":
        return Connection(self, address)


class FakeOutlet:
    """An event stream as its peer sees it. Its room is the test's to set."""

    def __init__(self, gone: Callable[[int], None]) -> None:
        self._tell: Callable[[int], None] | None = gone
        self.sent = bytearray()
        self.room_bytes = 1 << 20
        self.ended = False
        self.code: int | None = None
        self._parked: list[Callable[[], None]] = []

    def room(self) -> int:
        return 0 if self.over else self.room_bytes

    @property
    def over(self) -> bool:
        return self.ended or self.code is not None

    def park(self, call: Callable[[], None]) -> None:
        self._parked.append(call)

    def send(self, data: list[bytes]) -> None:
        if not self.over:
            self.sent += b"".join(data)

    def end(self) -> None:
        self.ended = True
        self._tell = None

    def reset(self, code: int) -> None:
        self.code = code
        self._tell = None

    # -- the peer --------------------------------------------------------------------------------------------------

    def open_up(self) -> None:
        self.room_bytes = 1 << 20
        parked, self._parked = self._parked, []
        for call in parked:
            call()

    def gone(self, code: int = TOO_SLOW) -> None:
        self.code = code
        self._parked.clear()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(code)

    def take(self) -> list[Any]:
        """What came: messages, and (base offset or -1, values) of batches."""
        data, self.sent = bytes(self.sent), bytearray()
        return decoded(data)


def ack_of(flags: int, payload: bytes) -> tuple[Any, ...]:
    """0x0010, and 0x0210 and 0x1010 of newer clients."""
    assert flags & ~(frames.ACK_CODE | frames.ACK_OFFSET) == wire.ACK, hex(flags)
    more = {wire.ACK: "", wire.ACK | frames.ACK_CODE: "HB", wire.ACK | frames.ACK_OFFSET: "Q"}[flags]
    rest = struct.calcsize(f">{more}")
    return (*wire.read_ack(payload[: len(payload) - rest]), *struct.unpack(f">{more}", payload[len(payload) - rest :]))


def message_of(payload: bytes) -> Any:
    """A JSON message as the codec's type of it, which tests compare; those of features.py, too."""
    try:
        return decode_reply(payload)
    except BadRequest:
        return decode_reply(payload, FEATURED_REPLIES)


REPLIES = codec.decoders((
    codec.AuthOk, codec.Subscribed, codec.Hello, codec.Event, codec.EventBatch, codec.CacheValue, codec.CacheOk,
    codec.PublishOk, codec.PublishError, codec.Ok, codec.Error, codec.CursorError, codec.CacheConflict, codec.CacheNumber,
    codec.CacheValues, codec.CacheKeyList, codec.CacheEvent, codec.Lagged, matching.TopicList,
))  # fmt: skip
FEATURED_REPLIES = codec.decoders((
    features.StreamShardsView, features.CacheShardsView, features.CounterValue, features.CacheConditionResult,
    features.CacheWatchStarted, features.CacheEvent, features.GroupRecords, features.Unsupported,
))  # fmt: skip


def decode_reply(payload: bytes, replies: codec.Decoders = REPLIES) -> Any:
    """A server's message, or BadRequest."""
    return codec.decode_by(payload, replies)


def decoded(data: bytes) -> list[Any]:
    """Frames of a server: JSON as messages, events as (base offset or -1, values), with keys those too, acks as (status, id,
    text), with the offset or with code and retry behind."""
    found: list[Any] = []
    for flags, payload in wire.frames_of(data):
        if flags == 0:
            found.append(message_of(payload))
        elif flags & wire.ACK:
            found.append(ack_of(flags, payload))
        else:
            events = wire.read_events(flags, payload)
            found.append(events if events.keys is not None else events[:2])
    return found


class Connection:
    """A QUIC connection: the Streams of its sessions."""

    def __init__(self, sim: FelixSim, address: str) -> None:
        self.sim = sim
        self.peer = address
        self.shared: Any = None
        self.meter: Meter | None = None
        self.outlets: list[FakeOutlet] = []
        self.streams: list[Stream] = []
        self.shut_with: tuple[int, str] | None = None

    def open(self, gone: Callable[[int], None]) -> FakeOutlet:
        self.outlets.append(FakeOutlet(gone))
        return self.outlets[-1]

    def shut(self, code: int, reason: str) -> None:
        self.shut_with = (code, reason)

    def fault(self, where: str, error: Exception) -> None:
        raise error

    # -- the peer --------------------------------------------------------------------------------------------------

    def stream(self) -> "Stream":
        self.streams.append(Stream(self))
        return self.streams[-1]

    def featured(self, secret: str = KEY, tenant: str = "t1", features: int = frames.SERVER_FEATURES) -> "Stream":
        """A stream of a newer published client."""
        stream = self.stream()
        ask = codec.Auth(tenant_id=tenant, token=secret, client_flags=0x1FFF, client_features=features)
        said = codec.AuthOk(server_flags=frames.PUBLISHED_FLAGS, server_features=frames.SERVER_FEATURES)
        assert stream.ask(ask) == [said]
        return stream

    def auth(self, secret: str = KEY, flags: int | None = OURS, tenant: str = "t1") -> "Stream":
        """A stream that is authenticated."""
        stream = self.stream()
        ours = 1 if flags is not None and flags & ~NEWER else None
        answer = stream.ask(codec.Auth(tenant_id=tenant, token=secret, client_flags=flags, quintet=ours))
        known = frames.SERVER_FLAGS if ours else frames.PUBLISHED_FLAGS
        said = codec.Ok() if flags is None else codec.AuthOk(server_flags=flags & known, quintet=ours)
        assert answer == [said]
        return stream

    def close(self) -> None:
        for stream in self.streams:
            if not stream.lost:
                stream.close()
        for outlet in self.outlets:
            outlet.gone(LOST)
        if self.shared is not None:
            self.shared.closed()


class Stream(Peer):
    """One bidirectional stream and its session."""

    def __init__(self, connection: Connection) -> None:
        self.streams = connection
        self.quick_answers = 0
        super().__init__(connection.sim, self._make)

    def _make(self, broker: Broker, _sink: Peer, now: int) -> FelixSession:
        return FelixSession(broker, self, now, self.streams.sim.felix, self.streams.peer)

    @property
    def lost(self) -> bool:
        return self._lost

    def reason(self) -> str | None:
        """Why the session ends its stream; None: it does not."""
        return self.session.closing

    def held(self) -> bool:
        """Whether it takes nothing for now."""
        return self.session.holding

    @property
    def felix(self) -> FelixSession:
        assert isinstance(self.session, FelixSession)
        return self.session

    def _offer(self) -> None:
        """As net/quic/streams.py does: a session that answers a whole read in one call is asked first."""
        quick = self.felix.quick
        answer = quick(bytes(self._rest), self.sim.scheduler.now()) if quick is not None and self._rest else b""
        if not answer:
            super()._offer()
            return
        self.quick_answers += 1
        self._rest = b""
        self.felix._replies.push(answer)
        self._drain()

    def said(self) -> list[Any]:
        self.sim.scheduler.run_until_idle()
        return decoded(self.take())

    def ask(self, *messages: Any) -> list[Any]:
        """Send messages (or frames as they are), let the broker come to rest, and take the answers."""
        self.feed(b"".join(m if isinstance(m, bytes) else codec.encode(m) for m in messages))
        return self.said()

    def finish(self) -> list[Any]:
        """The peer ends its side."""
        self.felix.ended(self.sim.scheduler.now())
        self._drain()
        return self.said()

    def recheck(self) -> None:
        self.session.receive(memoryview(b""), self.sim.scheduler.now())
        self._drain()


def batch(*values: bytes, request_id: int = -1, scope: tuple[str, str, str] = DEMO) -> bytes:
    return wire.batch(scope, *values, request=request_id if request_id >= 0 else None)


def subscribe(scope: tuple[str, str, str] = DEMO, **more: Any) -> codec.SubscribeOurs:
    return codec.SubscribeOurs(tenant_id=scope[0], namespace=scope[1], stream=scope[2], **more)
