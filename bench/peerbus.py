"""peerbus under load: many peers in a ring, each sending signed envelopes to the next, which acknowledges them.

One process drives all connections with raw sockets. WebSocket frames are made beforehand from a template: all have one
length, ids are written into them column by column, and client frames are masked with zeros, which the standard allows
and which costs nobody anything. The same loop drives a picows server that only echoes, as the machine's own rate.

    client frame   0x81 | 0xFE | u16 length | u32 mask 0 | text           (texts of 126 to 65535 bytes)
    server frame   0x81 | 0x7E | u16 length | text
"""

import base64
import json
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from quintet.bench.processes import ControlPipe
from quintet.bench.wire import STALL_S, Address, BenchError, open_socket, read_until

READ_BYTES = 1024 * 1024
ID_DIGITS = 16
ID_PLACE = "0" * ID_DIGITS
BODY_BYTES = 256
KEY_MARK = b'"delivery_key":"'
SECRET_FREE_HMAC = "0" * 64  # the broker carries it; it verifies only when it is given the secret


def client_frame(text: bytes) -> bytes:
    """One text message as a client sends it, masked with zeros."""
    assert 126 <= len(text) < 1 << 16, "all frames of the load have the same form"
    return struct.pack(">BBHI", 0x81, 0xFE, len(text), 0) + text


def short_frame(text: bytes) -> bytes:
    """The same for a text of any length up to 65535 bytes."""
    if len(text) >= 126:
        return client_frame(text)
    return struct.pack(">BBI", 0x81, 0x80 | len(text), 0) + text


def handshake(address: Address) -> bytes:
    """What a client asks to be upgraded with."""
    key = base64.b64encode(bytes(16)).decode()
    return (
        f"GET / HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )


def upgrade(address: Address) -> socket.socket:
    """A socket past the WebSocket handshake."""
    sock = open_socket(address)
    sock.sendall(handshake(address))
    answer = read_until(sock, lambda data: data.endswith(b"\r\n\r\n"), "answer to the WebSocket upgrade")
    if b" 101 " not in answer.partition(b"\r\n")[0]:
        raise BenchError(f"no WebSocket here: {answer[:100]!r}")
    return sock


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """(the texts of the whole server frames in data, the rest); for handshakes and the end of a run."""
    texts, at = [], 0
    while len(data) - at >= 2:
        size, head = data[at + 1], 2
        if size == 126:
            if len(data) - at < 4:
                break
            size, head = struct.unpack_from(">H", data, at + 2)[0], 4
        elif size == 127:
            if len(data) - at < 10:
                break
            size, head = struct.unpack_from(">Q", data, at + 2)[0], 10
        if len(data) - at < head + size:
            break
        texts.append(data[at + head : at + head + size])
        at += head + size
    return texts, data[at:]


def register(address: Address, token: str, name: str) -> socket.socket:
    """A registered peer."""
    sock = upgrade(address)
    hello = {"protocol_version": "v1", "type": "register", "token": token, "name": name}
    sock.sendall(short_frame(json.dumps(hello).encode()))
    data = b""
    while not split(data)[0]:  # it names all peers that are connected: it may be long
        piece = sock.recv(READ_BYTES)
        if not piece:
            raise BenchError(f"{name} was not registered: the server closed the connection. See its log.")
        data += piece
    if json.loads(split(data)[0][0]).get("type") != "peers":
        raise BenchError(f"{name} was not registered: {data[:200]!r}")
    return sock


def envelope(sender: str, to: str, body_bytes: int = BODY_BYTES) -> bytes:
    """A signed-looking envelope with a body of so many bytes and a place for its id."""
    body = json.dumps({"text": "x" * (body_bytes - len('{"text":""}'))}, separators=(",", ":"))
    fields = {
        "protocol_version": "v1", "id": ID_PLACE, "from": sender, "to": to, "ts": "2026-11-16T00:00:00Z",
        "source": "peer-bus", "kind": "msg", "body": json.loads(body), "hmac": SECRET_FREE_HMAC,
    }  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


def with_ids(template: bytes, at: int, first: int, count: int) -> bytearray:
    """`count` copies of a frame, ids first, first + 1, ... as hexadecimal digits at `at` of each."""
    block = bytearray(template * count)
    stride = len(template)
    digits = [f"{number:0{ID_DIGITS}x}" for number in range(first, first + count)]
    for place in range(ID_DIGITS):
        block[at + place :: stride] = "".join(text[place] for text in digits).encode()
    return block


@dataclass(slots=True)
class _Peer:
    """One connection of the ring: frames it sends, what it has read, and the acknowledgements it owes."""

    sock: socket.socket
    template: bytes
    id_at: int
    unsent: bytearray = field(default_factory=bytearray)
    rest: bytes = b""
    frame_bytes: int = 0
    key_at: int = 0
    next_id: int = 0
    received: int = 0


@dataclass(slots=True)
class Ring:
    """What a run gave."""

    messages: int
    seconds: float
    busy_s: float


def run_ring(
    control: ControlPipe, address: Address, token: str, peers: int, window: int, count: int, echo: bool
) -> Ring:
    """Each of `peers` connections sends count // peers messages to the next one, `window` of them under way. With `echo`
    the server sends them back by itself, and nobody acknowledges."""
    run = time.time_ns() >> 27 & 0xFFFFFF  # ids are used once, also by the next run
    members = []
    for number in range(peers):
        name, to = f"peer{number:05d}", f"peer{(number + 1) % peers:05d}"
        sock = upgrade(address) if echo else register(address, token, name)
        frame = client_frame(envelope(name, to))
        sock.setblocking(False)
        members.append(_Peer(sock, frame, frame.index(ID_PLACE.encode()), next_id=run << 40 | number << 24))
    each = count // peers
    control.ready()
    busy, start = time.process_time(), time.monotonic()
    _drive(members, each, window, echo)
    if not echo:
        for member in members:
            _barrier(member)
    seconds = time.monotonic() - start
    for member in members:
        member.sock.close()
    return Ring(each * peers, seconds, time.process_time() - busy)


def _drive(members: list[_Peer], each: int, window: int, echo: bool) -> None:
    by_fd = {member.sock.fileno(): number for number, member in enumerate(members)}
    left = [each] * len(members)
    epoll = select.epoll()
    for number, member in enumerate(members):
        epoll.register(member.sock.fileno(), select.EPOLLIN)
        _send(epoll, member, left, number, min(window, each))
    owed = each * len(members)
    while owed:
        events = epoll.poll(STALL_S)
        if not events:
            raise BenchError(f"{owed} messages still owed after {STALL_S} s. See the server's log.")
        for fd, what in events:
            number = by_fd[fd]
            member = members[number]
            if what & select.EPOLLOUT:
                _flush(epoll, member)
            if not what & ~select.EPOLLOUT:
                continue
            came = _take(member, echo)
            owed -= came
            if came:
                _flush(epoll, member)
                source = number if echo else (number - 1) % len(members)
                _send(epoll, members[source], left, source, min(came, left[source]))
    epoll.close()


def _send(epoll: select.epoll, member: _Peer, left: list[int], number: int, count: int) -> None:
    if count:
        member.unsent += with_ids(member.template, member.id_at, member.next_id, count)
        member.next_id += count
        left[number] -= count
        _flush(epoll, member)


def _flush(epoll: select.epoll, member: _Peer) -> None:
    while member.unsent:
        try:
            del member.unsent[: member.sock.send(member.unsent)]
        except BlockingIOError:
            epoll.modify(member.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            return
    epoll.modify(member.sock.fileno(), select.EPOLLIN)


def _take(member: _Peer, echo: bool) -> int:
    """Count the deliveries that came, and write their acknowledgements into what is to be sent."""
    try:
        data = member.sock.recv(READ_BYTES)
    except BlockingIOError:
        return 0
    if not data:
        raise BenchError("the server closed a connection in the middle. See its log.")
    data = member.rest + data
    if not member.frame_bytes:
        if len(data) < 4:
            member.rest = data
            return 0
        member.frame_bytes = 4 + struct.unpack_from(">H", data, 2)[0]
        if not echo:
            if len(data) < member.frame_bytes:
                member.frame_bytes, member.rest = 0, data
                return 0
            member.key_at = data.index(KEY_MARK) + len(KEY_MARK)
    size = member.frame_bytes
    count = len(data) // size
    whole, member.rest = data[: count * size], data[count * size :]
    member.received += count
    if count and not echo:
        ack = short_frame(b'{"protocol_version":"v1","type":"ack","id":"' + ID_PLACE.encode() + b'"}')
        at = ack.index(ID_PLACE.encode())
        acks = bytearray(ack * count)
        for place in range(ID_DIGITS):
            acks[at + place :: len(ack)] = whole[member.key_at + place :: size]
        member.unsent += acks
    return count


def _barrier(member: _Peer) -> None:
    """Ask for the peers: the answer comes behind all acknowledgements."""
    member.sock.setblocking(True)
    member.sock.sendall(bytes(member.unsent) + short_frame(b'{"protocol_version":"v1","type":"peers"}'))
    read_until(member.sock, lambda data: b'"names"' in data, "answer to peers")
