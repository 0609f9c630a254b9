"""Prepares the process for a broker: its open files, its event loop, what systemd is told, and how it ends when a thread does not."""

import asyncio
import ctypes
import logging
import os
import resource
import socket
import sys
from typing import Final, NoReturn

# How long a thread keeps the interpreter while another one wants it. With Python's own 5 ms the twenty steps of a disk thread that
# begins a new segment took 400 ms beside a busy loop, in which nothing was acknowledged.
SWITCH_S: Final = 0.0005


def leave_at_once(code: int) -> NoReturn:
    """All that was acknowledged is on disk and the directory is closed: there is nothing to wait for. The interpreter would take
    every module apart (more than half of the time from SIGTERM to the end), and wait for ever for a thread of gRPC that is held by
    a Flight client which takes nothing of its stream."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def raise_open_files() -> None:
    """Connections and partitions each keep a file open: as many as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        said = {"limit": soft, "error": str(error), "hint": "raise it with `ulimit -n`"}
        logging.getLogger("quintet").warning("open_files_not_raised", extra={"fields": said})


def give_back_memory() -> None:
    """Return what was freed to the system, where its allocator can (glibc): a start with 100,000 topics frees 26 MB in between."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def notify(state: str) -> None:
    """Tell systemd what the broker does (`READY=1`, `STOPPING=1`), if systemd waits for it: one datagram (sd_notify(3)). If nobody
    takes it, the broker goes on."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
    except OSError as error:
        said = {"socket": address, "error": str(error)}
        logging.getLogger("quintet").warning("systemd_not_notified", extra={"fields": said})


def runner() -> asyncio.Runner:
    """The loop of a broker. Its threads take turns with it more often than Python's own default has it."""
    sys.setswitchinterval(SWITCH_S)
    try:
        import uvloop  # absent on Windows, where asyncio's own loop serves
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
