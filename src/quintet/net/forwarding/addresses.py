"""Writes addresses as clients do, and tells whether a leader's address is our own: a node that forwards to itself would do so without end."""

import asyncio
import socket


def shown(host: str, port: int) -> str:
    """HOST:PORT, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def is_ourselves(host: str, port: int, bound: tuple[str, int]) -> bool:
    """Whether connections to host:port come to what is bound here. OSError or UnicodeError if the host is not found."""
    if port != bound[1]:
        return False
    loop = asyncio.get_running_loop()
    found = {info[4][0]: info[0] for info in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    everywhere = bound[0] in ("0.0.0.0", "::")
    return any(
        address == bound[0] or (everywhere and _is_local(str(address), family)) for address, family in found.items()
    )


def _is_local(address: str, family: int) -> bool:
    """Only addresses of this machine can be bound to."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
