"""The machine's own rates that figures are set beside: servers that only answer, without and with a sync of the disk, and
one sendfile.

Those that answer are processes of their own, so that their processor time can be set beside a broker's. Which bytes they
answer by which is what a broker did (dialogues.py). The sendfile runs in a thread of the harness, which only waits meanwhile.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import closed_loop, peers
from quintet.bench.wire import Address

SENDFILE_BYTES_MAX = 0x7FFF_F000  # of one call, says Linux
Exchanges = Sequence[tuple[int, bytes]]
PROGRAM = Path(__file__).resolve().parent / "uvloop_echo.py"


def _words(exchanges: Exchanges) -> list[str]:
    return [f"{size}:{answer.hex()}" for size, answer in exchanges]


@contextlib.contextmanager
def echo(directory: Path, exchanges: Exchanges) -> Iterator[peers.Server]:
    """A server on uvloop that reads and answers so many bytes and knows nothing of messages."""
    port = peers.free_port()
    command = [sys.executable, str(PROGRAM), str(port), *_words(exchanges)]
    with peers.running("uvloop echo", command, port, directory) as server:
        yield server


@contextlib.contextmanager
def synced(directory: Path, exchanges: Exchanges) -> Iterator[peers.Server]:
    """A server in Rust that also writes what it read into a file that was filled before, and syncs it."""
    port = peers.free_port()
    directory.mkdir(parents=True, exist_ok=True)
    command = closed_loop.floor(("127.0.0.1", port), directory / "filled", ",".join(_words(exchanges)))
    with peers.running("read, write, fdatasync, answer", command, port, directory) as server:
        yield server


@contextlib.contextmanager
def sendfile(path: Path) -> Iterator[Address]:
    """Sends the file to whoever connects and asks with one byte, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError), path.open("rb") as file:
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.recv(1)
                    sent, size = 0, os.fstat(file.fileno()).st_size
                    while sent < size:
                        sent += os.sendfile(sock.fileno(), file.fileno(), sent, min(size - sent, SENDFILE_BYTES_MAX))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
