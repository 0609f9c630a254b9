"""Keeps the loggers of libraries underneath out of the application's log.

What such a library says of a connection, the client says itself, as an error or through its own logger (`quintet.client`). An
application that wants to read it sets a level: `logging.getLogger("picows").setLevel(logging.INFO)`, before or after connecting.
"""

import logging
from typing import Final

SILENT: Final = logging.CRITICAL + 1
LIBRARIES: Final = ("picows", "quic", "http3")  # WebSocket; aioquic


def quiet_libraries() -> None:
    """Silence those that nobody has given a level."""
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(SILENT)
