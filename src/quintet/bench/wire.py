"""Defines what a load generator must know of a protocol, and the socket calls that protocols share.

A wire only makes and counts bytes; sockets are driven in generators.py. Wires are small frozen dataclasses, because
they travel to the generator processes.
"""

import socket
import struct
from collections.abc import Callable
from typing import Protocol

from quintet.model.errors import QuintetError

CONNECT_TIMEOUT_S = 10.0
STALL_S = 30  # a server that says nothing for this long while something is owed has failed the run
HANDSHAKE_BYTES_MAX = 64 * 1024

Address = tuple[str, int]


class BenchError(QuintetError):
    """A run that cannot be counted: what happened, why, and what to do about it."""

    code = "E1900"


class Wire(Protocol):
    """One protocol as the generators need it. A window is a number of publishes with a barrier behind them."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def noise(self) -> bytes:
        """What the server may put between deliveries of its own accord (a keep-alive), or empty."""

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        """A blocking socket with the handshake behind it. `connection` numbers the connections of one run."""

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        """Subscribe and wait until the server has it; the subscription's number."""

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        """So many publishes of this payload, without a barrier."""

    def barrier(self, qos: int) -> bytes:
        """What to send so that the answer says: all before is done. Empty if every publish is answered by itself."""

    def answers(self, qos: int, messages: int) -> int:
        """How many answers a window of so many messages gets."""

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        """(whole answers in data, the rest behind them). Raises BenchError if one of them is a refusal."""

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        """One delivery of this payload as the subscriber reads it. Its length is the same for every message."""

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame: int) -> bytes:
        """Acknowledgements for a run of whole deliveries, each `frame` bytes long; empty where none are needed."""


def open_socket(address: Address) -> socket.socket:
    """A connected socket without Nagle's delay whose reads fail after STALL_S instead of hanging for ever."""
    try:
        sock = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
    except OSError as error:
        raise BenchError(
            f"cannot connect to {address[0]}:{address[1]}: {error}. Start the server or correct the address."
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(None)
    # The kernel's own timeout: Python's would cost one poll() before every read.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", STALL_S, 0))
    return sock


def read_until(sock: socket.socket, done: Callable[[bytes], bool], what: str) -> bytes:
    """Read until done(data); for handshakes only."""
    data = b""
    while not done(data):
        try:
            piece = sock.recv(65536)
        except BlockingIOError as error:
            raise BenchError(f"no {what} within {STALL_S} s; got {data[:200]!r}. Look at the server's log.") from error
        if not piece:
            raise BenchError(f"the server closed the connection while {what} was awaited; got {data[:200]!r}.")
        data += piece
        if len(data) > HANDSHAKE_BYTES_MAX:
            raise BenchError(f"{what}: over {HANDSHAKE_BYTES_MAX} bytes without an end. Is this the right port?")
    return data


def fixed_answers(answer: bytes, data: bytes, explain: Callable[[bytes], str]) -> tuple[int, bytes]:
    """Count answers that are all the same bytes; anything else is a refusal, put into words by explain."""
    if data == answer:
        return 1, b""
    count = len(data) // len(answer)
    whole = count * len(answer)
    rest = data[whole:]
    if data[:whole] != answer * count or not answer.startswith(rest):
        raise BenchError(explain(data))
    return count, rest
