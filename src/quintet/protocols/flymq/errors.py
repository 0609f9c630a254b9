"""What goes wrong -> the ERROR frame that says it. The text says what happened and, where there is one, what to do."""

import struct
from typing import Final

from quintet.model.errors import BadRequest, QuintetError
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.codec import error_frame, frame

# The fatal numbers of kernel.fly_split, in its order. Document, "Error Handling": the connection is closed.
FATAL: Final = {
    1: "the first byte of a frame is not 0xAF",
    2: "the protocol version is not 1",
    3: f"a frame is longer than {frames.FRAME_BYTES_MAX} bytes",
}

INTERNAL: Final = ("E1000", "internal server error")
TEXT_BYTES_MAX: Final = 4096


# At most 127 bytes, so that its length is one character of ASCII.
OTHER_DIALECT: Final = (
    "this port answers as FlyMQ's document says; published clients use the listener flymq-sdk (port 9192) [E1101]"
)


class OtherDialect(BadRequest):
    """A published client asked on a listener of the document's dialect, and could not read the answer."""


def to_frame(error: Exception, dialect: frames.Dialect) -> bytes:
    """An error of the broker as a frame. Anything that is not ours to name goes out without its details."""
    if isinstance(error, OtherDialect):
        return _in_both_dialects(OTHER_DIALECT.encode())
    if not isinstance(error, QuintetError):
        return error_frame(dialect, *INTERNAL)
    text = f"{error.message}; {error.hint}" if error.hint else error.message
    return error_frame(dialect, error.code, text[:TEXT_BYTES_MAX])


def _in_both_dialects(text: bytes) -> bytes:
    """An ERROR that clients of either dialect can show: `00 length 20 | length text`. By the document this is false and a text
    that begins with a space and its length; published clients read a number, then the text."""
    payload = struct.pack(">xHcH", 3 + len(text), b" ", len(text)) + text
    return frame(frames.ERROR, payload)
