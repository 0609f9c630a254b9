"""Describes the streams of the Flight door that are under way, as an operator sees connections of the other doors.

Changed by the thread of its call, read by the loop thread: each field is one word, and a figure that is one batch old does no harm. gRPC
keeps several streams in one TCP connection and tells nobody of the connection itself: so a stream is a row, and `evict` shuts the
connection that it is in, with all its streams.
"""

import threading
import time

from quintet.flight.outgoing import shut


class Stream:
    """One do_get or do_put. Bytes are those of columns, as the figures of the door count them."""

    __slots__ = ("began", "bytes_in", "bytes_out", "id", "paused", "peer", "tls", "unsent", "who")

    def __init__(self, id: int, peer: str, who: str, tls: str) -> None:
        self.id = id
        self.peer = peer
        self.who: str | None = who
        self.tls = tls
        self.began = time.monotonic()
        self.bytes_in = self.bytes_out = self.unsent = 0
        self.paused = False  # it waits for its quota

    @property
    def age_seconds(self) -> float:
        return time.monotonic() - self.began

    def facts(self) -> dict[str, object]:
        """As Connection.facts has them. Which version of TLS and which cipher it is, gRPC does not say."""
        return {"seconds": round(self.age_seconds, 3), "bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "unsent_bytes": self.unsent,
                "unanswered": 0, "paused": self.paused, "tls": self.tls, "cipher": ""}  # fmt: skip

    def evict(self, reason: str) -> None:
        """Shut its connection, in a thread: it is looked for among all open files. gRPC has no word for the reason."""
        del reason
        threading.Thread(target=shut, args=(self.peer,), name="quintet-flight-evict", daemon=True).start()
