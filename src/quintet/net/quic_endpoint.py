"""Defines the QUIC endpoint as net/ uses it, its methods and events, and chooses between its two implementations.

The kernel's endpoint has a thread of its own and is used when the kernel is native; else its twin on aioquic. Both are
driven the same way: when `fileno` is readable, `take` the events; between `hold` and `flush` calls are gathered, so that a
turn of the loop is answered as a whole. No decision about a connection lives here.
"""

from typing import Any, Final, Protocol

from quintet import kernel

# Kinds of events, the first of each tuple:
CONNECTED: Final = 1  # connection, peer
DATA: Final = 2  # connection, stream, data, fin
WRITABLE: Final = 3  # connection, stream
STOPPED: Final = 4  # connection, stream, code
RESET: Final = 5  # connection, stream, code
CLOSED: Final = 6  # connection, code, reason
SENT: Final = 7  # connection, stream


class Endpoint(Protocol):
    """One UDP socket and its connections; every call is cheap and returns at once."""

    @property
    def address(self) -> tuple[str, int]: ...
    def fileno(self) -> int: ...
    def take(self, bytes_max: int) -> list[tuple[Any, ...]]: ...
    def hold(self) -> None: ...
    def flush(self) -> None: ...
    def send(self, connection: int, stream: int, data: list[bytes], end: bool) -> int: ...
    def queued(self, connection: int, stream: int) -> int: ...
    def open(self, connection: int, bidirectional: bool) -> int: ...
    def pause(self, connection: int, stream: int, paused: bool) -> None: ...
    def reset(self, connection: int, stream: int, code: int) -> None: ...
    def stop(self, connection: int, stream: int, code: int) -> None: ...
    def shut(self, connection: int, code: int, reason: bytes) -> None: ...
    def set_certificate(self, certificate: bytes, key: bytes, client_ca: bytes) -> None: ...
    def set_accepting(self, accepting: bool) -> None: ...
    def connect(self, host: str, port: int, server_name: str, ca: bytes, certificate: bytes, key: bytes) -> int: ...
    def figures(self) -> dict[str, int]: ...
    def close(self) -> None: ...


def endpoint_class() -> Any:
    """The kernel's endpoint, or its twin. Without either: an ImportError that says what to install."""
    native = getattr(kernel, "QuicEndpoint", None)
    if native is not None:
        return native
    try:
        from quintet.net.quic_twin import QuicEndpoint
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "aioquic":
            raise
        raise ImportError("QUIC needs the native kernel, or the package aioquic", name="aioquic") from error
    return QuicEndpoint


def make_endpoint(host: str, port: int, certificate: bytes, key: bytes, client_ca: bytes, **options: int) -> Endpoint:
    """Bound and serving. OSError: it cannot be bound; ValueError: what is wrong with the certificate."""
    made: Endpoint = endpoint_class()(host, port, certificate=certificate, key=key, client_ca=client_ca, **options)
    return made
