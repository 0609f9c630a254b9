"""peerbus: objects made and signed by hand, one a line or as WebSocket messages, and a blocking client.

{"protocol_version":"v1","type":"register","token":S,"name":S}     first; answered with a peers frame
{"protocol_version":"v1","type":"ack","id":DELIVERY_KEY}
{"protocol_version":"v1","type":"peers"}                           answered with "names":[S, ...]
{"protocol_version":"v1","type":"deliver","delivery_key":S,"envelope":E}
E: protocol_version id from to ts source kind body hmac; the hmac is over the first eight, in this order
"""

import hashlib
import hmac
import json
import os
import re
import time
from typing import Any

from tests.wire import websocket as ws
from tests.wire.connection import Closed, Connection, Hang

__all__ = ["Client", "Closed", "Hang"]

TOKEN = "dev-token"
MEMBERS = ("protocol_version", "id", "from", "to", "ts", "source", "kind", "body", "hmac")
STRINGS = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|[ \t\r\n]+')


def escaped(text: str) -> str:
    """The five code points that the published client escapes."""
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def compact(text: str) -> str:
    """A JSON text without blanks between its tokens."""
    return STRINGS.sub(lambda found: found[1] or "", text)


def canonical(fields: dict[str, str], body: str) -> bytes:
    """What is signed: eight members in their order, the body as its own text."""
    members = [
        f'"{name}":{escaped(json.dumps(fields.get(name, ""), ensure_ascii=False))}'
        for name in MEMBERS
        if name not in ("body", "hmac")
    ]
    return ("{" + ",".join([*members, f'"body":{escaped(compact(body or "null"))}']) + "}").encode()


def signature(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def timestamp(seconds: float | None = None) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def envelope(id: str, sender: str, to: str, body: str, secret: bytes = b"", ts: str = "2026-05-18T12:00:00Z") -> bytes:
    fields = {
        "protocol_version": "v1", "id": id, "from": sender, "to": to, "ts": ts, "source": "peer-bus",
        "kind": "broadcast" if to == "*" else "msg",
    }  # fmt: skip
    signed = canonical(fields, body)
    return signed[:-1] + f',"hmac":"{signature(secret, signed) if secret else ""}"}}'.encode()


def control(type: str, /, **members: Any) -> bytes:
    said = {"protocol_version": "v1", "type": type} | members
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def register(token: str, name: str) -> bytes:
    return control("register", token=token, name=name)


def ack(key: str) -> bytes:
    return control("ack", id=key)


def ask_peers() -> bytes:
    return control("peers")


def peers(names: list[str]) -> bytes:
    return control("peers", names=names)


def deliver(key: str, envelope: bytes) -> bytes:
    return control("deliver", delivery_key=key)[:-1] + b',"envelope":' + envelope + b"}"


def split(data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """The objects of whole lines."""
    *lines, rest = data.split(b"\n")
    return [json.loads(line) for line in lines], rest


def frames_of(data: bytes) -> list[dict[str, Any]]:
    """The object of every line; fails on an unfinished one."""
    found, rest = split(data)
    assert not rest, rest
    return found


class Client(Connection):
    """One registered peer, by lines or by WebSocket."""

    def __init__(self, address: str, name: str, token: str = TOKEN, websocket: bool = False) -> None:
        super().__init__(address)
        self._websocket = websocket
        try:
            if websocket:
                self._upgrade(address)
            self.say(register(token, name))
            first = self.read()
            assert first["type"] == "peers" and name in first["names"], first
        except BaseException:
            self.close()
            raise

    def say(self, *objects: bytes) -> None:
        if self._websocket:
            self.send(b"".join(ws.frame(one, mask=os.urandom(4)) for one in objects))
        else:
            self.send(b"".join(one + b"\n" for one in objects))

    def ack(self, key: str) -> None:
        self.say(ack(key))

    def peers(self) -> None:
        """Ask for the names: whatever was sent before is behind the broker when they come."""
        self.say(ask_peers())

    def read(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next object, and as "raw" its text."""
        while (found := self._message() if self._websocket else self._line()) is None:
            self.fill(timeout_s)
        return dict(json.loads(found)) | {"raw": found}

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next object, or nothing."""
        try:
            return self.read(timeout_s)
        except Hang:
            return None

    def _line(self) -> bytes | None:
        end = self.buffer.find(b"\n")
        return None if end < 0 else self.take(end + 1)[:-1]

    def _message(self) -> bytes | None:
        """The next text message; pings are answered, a close frame is Closed."""
        while found := ws.next_frame(self.buffer):
            kind, body, end = found
            del self.buffer[:end]
            if kind == ws.TEXT:
                return body
            if kind == ws.CLOSE:
                code, reason = ws.close_of(body)
                raise Closed(reason, code)
            if kind == ws.PING:
                self.send(ws.frame(body, ws.PONG, mask=os.urandom(4)))
        return None

    def _upgrade(self, address: str) -> None:
        key = os.urandom(16)
        self.send(ws.upgrade(address, key))
        while b"\r\n\r\n" not in self.buffer:
            self.fill()
        head = self.take(self.buffer.find(b"\r\n\r\n") + 4)
        assert ws.is_upgraded(head, key), head
