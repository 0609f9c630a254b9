"""Names the events of a QUIC endpoint, native or twin: tuples that begin with one of these numbers."""

from typing import Final

# Kinds of events, the first of each tuple:
CONNECTED: Final = 1  # connection, peer
DATA: Final = 2  # connection, stream, data, fin
WRITABLE: Final = 3  # connection, stream
STOPPED: Final = 4  # connection, stream, code
RESET: Final = 5  # connection, stream, code
CLOSED: Final = 6  # connection, code, reason
SENT: Final = 7  # connection, stream
