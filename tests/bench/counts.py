"""Asks servers what they hold, for tests that compare it with what a generator counted."""

import http.client

from bench import peers


def published(server: peers.Server) -> int:
    """The server's own count of messages."""
    admin = http.client.HTTPConnection(server.listeners["admin"])
    try:
        admin.request("GET", "/metrics")
        lines = admin.getresponse().read().decode().splitlines()
    finally:
        admin.close()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("quintet_published_messages_total")))
