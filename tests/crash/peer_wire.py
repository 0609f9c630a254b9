"""peerbus on a plain socket, one object a line or as WebSocket messages, written by hand: shares no code with what it judges.

    {"protocol_version":"v1","type":"register","token":S,"name":S}     first; answered with a peers frame
    {"protocol_version":"v1","type":"ack","id":DELIVERY_KEY}
    {"protocol_version":"v1","type":"deliver","delivery_key":S,"envelope":E}
    E: protocol_version id from to ts source kind body hmac; the hmac is over the first eight, in this order

A client's WebSocket frame is 81, 80 | length (7 bits, 126 + u16, 127 + u64), four bytes of mask, the masked text.
"""

import base64
import hashlib
import hmac
import json
import os
import re
import socket
import struct
from typing import Any

HANG_S = 20.0
TOKEN = "dev-token"
ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+')


class Gone(Exception):
    """The connection ended. `code` and `reason` are those of a close frame, if one came."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


def escaped(text: str) -> str:
    """The five code points that the published client escapes."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def compact(text: str) -> str:
    """A JSON text without blanks between its tokens."""
    return _STRINGS.sub(lambda found: found[1] or "", text)


def canonical(fields: dict[str, str], body: str) -> bytes:
    """What is signed: eight members in their order, the body as its own text."""
    order = ("protocol_version", "id", "from", "to", "ts", "source", "kind")
    members = [f'"{name}":{escaped(json.dumps(fields.get(name, ""), ensure_ascii=False))}' for name in order]
    return ("{" + ",".join([*members, f'"body":{escaped(compact(body or "null"))}']) + "}").encode()


def envelope(id: str, sender: str, to: str, body: str, secret: bytes = b"", ts: str = "2026-05-18T12:00:00Z") -> bytes:
    fields = {
        "protocol_version": "v1", "id": id, "from": sender, "to": to, "ts": ts, "source": "peer-bus",
        "kind": "broadcast" if to == "*" else "msg",
    }  # fmt: skip
    signed = canonical(fields, body)
    digits = hmac.new(secret, signed, hashlib.sha256).hexdigest() if secret else ""
    return signed[:-1] + f',"hmac":"{digits}"}}'.encode()


def control(type: str, /, **members: str) -> bytes:
    return json.dumps({"protocol_version": "v1", "type": type} | members).encode()


class PeerWire:
    """One registered peer, by lines or by WebSocket."""

    def __init__(self, address: str, name: str, token: str = TOKEN, websocket: bool = False) -> None:
        host, _, port = address.rpartition(":")
        self._websocket = websocket
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=HANG_S)
        except OSError as error:
            raise Gone(str(error)) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        try:
            if websocket:
                self._upgrade(address)
            self.send(control("register", token=token, name=name))
            first = self.read()
            assert first is not None and first["type"] == "peers" and name in first["names"], first
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "PeerWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ack(self, key: str) -> None:
        self.send(control("ack", id=key))

    def peers(self) -> None:
        """Ask for the names: whatever was sent before is behind the broker when they come."""
        self.send(control("peers"))

    def send(self, *objects: bytes) -> None:
        data = b"".join(map(_masked, objects)) if self._websocket else b"".join(one + b"\n" for one in objects)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Gone(str(error)) from None

    def read(self, timeout_s: float = HANG_S) -> dict[str, Any] | None:
        """The next object; None if none comes in time. A delivery's envelope is given as its text, too."""
        while True:
            found = self._message() if self._websocket else self._line()
            if found is not None:
                return dict(json.loads(found)) | {"raw": found}
            self._socket.settimeout(timeout_s)
            try:
                data = self._socket.recv(262_144)
            except TimeoutError:
                return None
            except OSError as error:
                raise Gone(str(error)) from None
            if not data:
                raise Gone("end of stream")
            self._buffer += data

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _message(self) -> bytes | None:
        """The next text message; pings are answered, a close frame is Gone."""
        while len(self._buffer) >= 2:
            kind, size, at = self._buffer[0] & 15, self._buffer[1], 2
            assert self._buffer[0] & 0x80 and size < 128, "the broker sends whole frames without a mask"
            if size >= 126:
                width = 2 if size == 126 else 8
                at += width
                size = int.from_bytes(self._buffer[2:at], "big") if len(self._buffer) >= at else 1 << 62
            if len(self._buffer) < at + size:
                return None
            body = bytes(self._buffer[at : at + size])
            del self._buffer[: at + size]
            if kind == TEXT:
                return body
            if kind == CLOSE:
                raise Gone(body[2:].decode(), int.from_bytes(body[:2], "big"))
            if kind == PING:
                self._socket.sendall(_masked(body, PONG))
        return None

    def _upgrade(self, address: str) -> None:
        key = base64.b64encode(os.urandom(16))
        ask = f"GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        try:
            self._socket.sendall(ask.encode() + b"Sec-WebSocket-Key: " + key + b"\r\n\r\n")
            while b"\r\n\r\n" not in self._buffer:
                data = self._socket.recv(4096)
                if not data:
                    raise Gone("end of stream")
                self._buffer += data
        except OSError as error:
            raise Gone(str(error)) from None
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        self._buffer = bytearray(rest)
        proof = base64.b64encode(hashlib.sha1(key + ACCEPT, usedforsecurity=False).digest())
        assert head.startswith(b"HTTP/1.1 101") and proof in head, head


def _masked(data: bytes, kind: int = TEXT) -> bytes:
    size, mask = len(data), os.urandom(4)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + struct.pack(">H", size)
    if size > 65_535:
        length = b"\xff" + struct.pack(">Q", size)
    key = (mask * (size // 4 + 1))[:size]
    body = (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
    return bytes((0x80 | kind,)) + length + mask + body
