"""Connections of each door for the walk: bytes in, and a wait until all that was asked is answered.

Each ends its input with a barrier: a request whose answer is known by its bytes and comes behind all others. A peer that the
broker closes has been answered, too. No client of Quintet is used, so the input is exactly what a row says.
"""

import contextlib
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

from quintet.client.links import quic
from quintet.config import (
    DEV_BLIPMQ_KEY,
    DEV_FAST_MASTER_SECRET,
    DEV_PASSWORD,
    DEV_PEERBUS_SECRET,
    DEV_PEERBUS_TOKEN,
    DEV_USER,
)
from quintet.protocols.felix import codec as felix
from quintet.protocols.felix import frames as felix_frames
from quintet.protocols.flymq import codec as fly
from quintet.protocols.flymq import frames as fly_frames
from tests.wire import blipmq, fast, flymq, peerbus, websocket
from tests.wire import felix as felix_wire

WAIT_S: Final = 120.0
RECEIVE_BYTES: Final = 1 << 18
BARRIER: Final = 0xBA881E8
LAST: Final = b"the last bytes of a message that is waited for"
TOKEN: Final = fast.token("w", "k", "publish", "subscribe", "create", "rotate", secret=DEV_FAST_MASTER_SECRET.encode())


class Wire(ABC):
    """One connection, logged in. `run` returns whether the broker closed it."""

    barrier: bytes
    answer: bytes
    refused = ""  # what the last ERROR of a run said, where the door's answers are read

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.login()

    @abstractmethod
    def login(self) -> None: ...

    def run(self, data: bytes) -> bool:
        sender = threading.Thread(target=self._send, args=(data + self.barrier,), daemon=True)
        sender.start()
        closed = self._read_until(self.answer)
        sender.join(WAIT_S)
        return closed

    def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it was closed: `_read_until` says so
            self.socket.sendall(data)

    def _read_until(self, answer: bytes) -> bool:
        tail = b""
        while True:
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except ConnectionError:
                return True
            if not data:
                return True
            tail += data
            if answer in tail:
                return False
            tail = tail[-len(answer) :]

    def close(self) -> None:
        self.socket.close()


class Blip(Wire):
    """BlipMQ, version 2."""

    version = 2
    barrier, answer = blipmq.ping(BARRIER), blipmq.pong(BARRIER)

    def login(self) -> None:
        self.run(blipmq.hello(1, self.version) + blipmq.auth(1, DEV_BLIPMQ_KEY.encode()))


class BlipWhole(Blip):
    """BlipMQ with record sets."""

    version = blipmq.WHOLE


class BlipPolls(Blip):
    """BlipMQ, version 1."""

    version = 1

    def subscription(self, topic: bytes) -> int:
        """The id of a new subscription."""
        self._send(blipmq.subscribe(1, topic))
        (reply,) = blipmq.frames_of(self.socket.recv(blipmq.HEAD.size + 8, socket.MSG_WAITALL))
        return reply.number


class BlipDelivered(Blip):
    """BlipMQ, version 2: waits for a delivery."""

    def login(self) -> None:
        super().login()
        self.barrier, self.answer = b"", LAST


class Fly(Wire):
    """FlyMQ. Replies are counted: each request has one."""

    barrier = answer = b""

    @staticmethod
    def frame(code: int, **values: Any) -> bytes:
        texts = fly_frames.OPERATIONS[code].asks
        for text in texts:
            try:
                return flymq.frame(code, fly.layout(text).encode(values))
            except KeyError:
                continue
        raise KeyError(f"{fly_frames.NAMES[code]}: {values} fits none of {texts}")

    def login(self) -> None:
        self.run(self.frame(fly_frames.AUTH, user=DEV_USER, password=DEV_PASSWORD))

    def ask(self, code: int, **values: Any) -> dict[str, Any]:
        """One request and its answer, which is small."""
        self._send(self.frame(code, **values))
        data = b""
        while not (found := flymq.split(data)[0]):
            data += self.socket.recv(RECEIVE_BYTES)
        return fly.answer_layout(fly_frames.OPERATIONS[code], "document").decode(memoryview(found[0].payload))

    def run(self, data: bytes) -> bool:
        self._owed, self.refused = self._count(data), ""
        return super().run(data)

    def _count(self, data: bytes) -> int:
        count = at = 0
        while at < len(data):
            at += flymq.HEAD.size + flymq.HEAD.unpack_from(data, at)[4]
            count += 1
        return count

    def _read_until(self, answer: bytes) -> bool:
        kept = bytearray()
        skip = 0
        while self._owed or skip:  # also the rest of the last answer: the next run would take it for a header
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except ConnectionError:
                return True
            if not data:
                return True
            kept += data
            at = min(skip, len(kept))
            skip -= at
            while not skip and len(kept) - at >= flymq.HEAD.size:
                _, _, code, _, length = flymq.HEAD.unpack_from(kept, at)
                size = flymq.HEAD.size + length
                if code == fly_frames.ERROR and len(kept) - at < size:
                    break
                if code == fly_frames.ERROR:
                    self.refused = kept[at + flymq.HEAD.size + 3 : at + size].decode()
                self._owed -= 1
                step = min(size, len(kept) - at)
                at += step
                skip = size - step
            del kept[:at]
        return False


class Fast(Wire):
    """Fast, with answers."""

    barrier = fast.extend(0xEE)
    answer = b"version 238"

    def login(self) -> None:
        self.run(fast.extend(1))


class FastDelivered(Fast):
    """Fast: waits for a delivery."""

    def login(self) -> None:
        super().login()
        self.barrier, self.answer = b"", LAST


class PeerLines(Wire):
    """peerbus, one object a line."""

    name = "walker"

    def login(self) -> None:
        id = f"barrier-{os.urandom(6).hex()}"
        self.barrier = self.framed(self.envelope(self.name, id))
        self.answer = f'"{id}"'.encode()
        self._send(self.framed(peerbus.register(DEV_PEERBUS_TOKEN, self.name)))
        self._read_until(b'"names"')

    def framed(self, data: bytes) -> bytes:
        return data.rstrip(b"\n") + b"\n"

    def envelope(self, to: str, id: str, body: bytes = b"1") -> bytes:
        secret, now = DEV_PEERBUS_SECRET.encode(), peerbus.timestamp()
        return peerbus.envelope(id, self.name, to, body.decode(), secret, now)

    def run(self, data: bytes) -> bool:
        id = f"barrier-{os.urandom(6).hex()}"
        self.barrier, self.answer = self.framed(self.envelope(self.name, id)), f'"{id}"'.encode()
        return super().run(data)


class PeerSocket(PeerLines):
    """peerbus, one object a WebSocket message. The mask is zero: it need not be random here."""

    name = "socket-walker"

    def login(self) -> None:
        self._send(websocket.upgrade("{}:{}".format(*self.socket.getpeername())))
        self._read_until(b"\r\n\r\n")
        super().login()

    def framed(self, data: bytes) -> bytes:
        return websocket.frame(data, mask=bytes(4))


class Felix:
    """One QUIC connection and its first stream; `run` may use others beside it."""

    scope: Final = {"tenant_id": "t1", "namespace": "default"}
    auth = felix.Auth(
        tenant_id="t1", token=DEV_BLIPMQ_KEY, client_flags=felix_frames.SERVER_FLAGS & ~felix_frames.RECORDS, quintet=1
    )

    def __init__(self, address: str, data: Path) -> None:
        certificates = [path.read_bytes() for path in sorted((data / "tls").iterdir())]
        ca = next(text for text in certificates if b"BEGIN CERTIFICATE" in text)
        host, _, port = address.rpartition(":")
        self._endpoint = quic.endpoint(socket.AF_INET)
        self._number = self._endpoint.connect(host, int(port), "localhost", ca, b"", b"")
        self._got: dict[int, bytearray] = {}
        self._ended: set[int] = set()
        self._open = False
        self.closed = False
        self._until(lambda: self._open or self.closed)
        self._stream = self._login()

    def _login(self) -> int:
        stream = self._endpoint.open(self._number, True)
        self._endpoint.send(self._number, stream, [felix.encode(self.auth)], False)
        self._until(lambda: b"auth_ok" in self._got.get(stream, b"") or self.closed)
        return stream

    def run(self, data: bytes, streams: int = 1) -> bool:
        """`data` on each of so many streams."""
        used = [self._stream, *(self._login() for _ in range(streams - 1))]
        key = f"barrier-{os.urandom(6).hex()}"
        barrier = felix.encode(felix.CacheGet(**self.scope, cache="primary", key=key))
        for stream in used:
            self._got.pop(stream, None)
            self._endpoint.send(self._number, stream, [data, barrier], False)
        waiting = set(used)

        def answered() -> bool:  # or the stream has ended: it said something, and nothing more comes
            for stream in list(waiting):
                if key.encode() in self._got.get(stream, b"") or stream in self._ended:
                    waiting.discard(stream)
            return not waiting or self.closed

        self._until(answered)
        return self.closed

    def _until(self, true: Any) -> None:
        deadline = time.monotonic() + WAIT_S
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError("the Felix door did not answer the barrier")
            events = self._endpoint.take(RECEIVE_BYTES)
            for event in events:
                if event[0] in (quic.RESET, quic.STOPPED):
                    self._ended.add(event[2])
                elif event[0] == quic.CONNECTED:
                    self._open = True
                elif event[0] == quic.DATA:
                    kept = self._got.setdefault(event[2], bytearray())
                    kept += event[3]
                    if event[4]:
                        self._ended.add(event[2])
                elif event[0] == quic.CLOSED:
                    self.closed = True
            self._endpoint.flush()
            if not events:
                time.sleep(0.001)

    def close(self) -> None:
        self._endpoint.close()


class FelixDelivered(Felix):
    """Waits for a delivery behind what was asked last, and for the answers of what was asked before."""

    def __init__(self, address: str, data: Path) -> None:
        super().__init__(address, data)
        self._stored = False

    def run(self, data: bytes, streams: int = 1) -> bool:
        if not self._stored:
            self._stored = True
            return super().run(data, streams)
        self._endpoint.send(self._number, self._stream, [data], False)
        self._until(lambda: self.closed or any(LAST in kept[-200:] for kept in self._got.values()))
        return self.closed


class FelixFeatured(Felix):
    """A newer published client."""

    auth = felix.Auth(tenant_id="t1", token=DEV_BLIPMQ_KEY, client_flags=0x127F, client_features=0x7FFF_FFFF)


def batch(stream: str, values: list[bytes], request_id: int | None = None) -> bytes:
    return felix_wire.batch(("t1", "default", stream), *values, request=request_id)
