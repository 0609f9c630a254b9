"""Names the address of a client together with the ids by which its lines in log and audit are found.

It is a text as any other, "host:port", so it goes wherever the address of a peer goes; whoever writes a line (net/, the audit) asks
`ids_of` for the rest. A connection has a number, counted over all doors from 1 since the broker started. A request has an
id where its protocol has one; in the console's API every request has one. Nothing here knows sockets.
"""

from typing import Final

REQUEST_CHARS_MAX: Final = 64  # of an id that a client chose


class ClientAddress(str):
    """ "host:port" of one connection, or of one request on it."""

    __slots__ = ("connection", "request")

    connection: int
    request: str

    def __new__(cls, address: str, connection: int = 0, request: str = "") -> "ClientAddress":
        """`connection` 0 and an empty `request`: there is none."""
        made = super().__new__(cls, address)
        made.connection, made.request = connection, request
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return ClientAddress, (str(self), self.connection, self.request)


def ids_of(address: str) -> dict[str, object]:
    """`connection` and `request`, as far as this address knows them."""
    found: dict[str, object] = {}
    if isinstance(address, ClientAddress):
        if address.connection:
            found["connection"] = address.connection
        if address.request:
            found["request"] = address.request
    return found


def request_text(id: object) -> str:
    """The id of a request for a line: what a client chose is cut, and what cannot be printed is written as its code point."""
    text = "" if id is None else str(id)
    cut = text[:REQUEST_CHARS_MAX] + ("..." if len(text) > REQUEST_CHARS_MAX else "")
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in cut)
