"""A blocking TCP connection with a deadline on every read: sends any bytes, keeps what came until a frame is whole."""

import socket
import ssl
from typing import ClassVar, Self

RECEIVE_BYTES = 262_144


class Closed(ConnectionError):
    """The broker ended the connection, or is gone: what was asked may or may not have happened.

    `code` is that of a close frame, where there is one and it came.
    """

    def __init__(self, reason: str = "", code: int = 0) -> None:
        super().__init__(reason or (f"closed with code {code:#x}" if code else ""))
        self.reason = reason
        self.code = code


class Hang(AssertionError):
    """Nothing came in time."""


class Connection:
    """Use it as a context. Every read has the deadline `hang_s` unless told otherwise."""

    hang_s: ClassVar[float] = 30.0  # no reply for this long is reported as a hang

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, receive_buffer: int = 0) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.socket()
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(self.hang_s)
        try:
            plain.connect((host.strip("[]"), int(port)))
        except OSError as error:
            plain.close()
            raise Closed(str(error)) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self.buffer = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.settimeout(self.hang_s)
            self.socket.sendall(data)
        except TimeoutError as error:
            raise Hang("the broker takes no bytes") from error
        except OSError as error:
            raise Closed(str(error)) from error

    def fill(self, timeout_s: float | None = None) -> None:
        """One read into the buffer; Closed at the end of the stream, Hang if nothing comes in time."""
        timeout_s = self.hang_s if timeout_s is None else timeout_s
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except TimeoutError as error:
            raise Hang(f"no answer for {timeout_s} s") from error
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of stream")
        self.buffer += data

    def take(self, size: int, timeout_s: float | None = None) -> bytes:
        """The next bytes, so many. A Hang in the middle takes none of them."""
        while len(self.buffer) < size:
            self.fill(timeout_s)
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    def closed(self, timeout_s: float | None = None) -> bool:
        """Whether the broker ends the connection in time; what it sends before is thrown away."""
        try:
            while True:
                self.buffer.clear()
                self.fill(timeout_s)
        except Closed:
            return True
        except Hang:
            return False
