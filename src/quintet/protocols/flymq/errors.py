"""What goes wrong -> the ERROR frame that says it. The text says what happened and, where there is one, what to do."""

from typing import Final

from quintet.model.errors import QuintetError
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.codec import error_frame

# The fatal numbers of kernel.fly_split, in its order. Document, "Error Handling": the connection is closed.
FATAL: Final = {
    1: "the first byte of a frame is not 0xAF",
    2: "the protocol version is not 1",
    3: f"a frame is longer than {frames.FRAME_BYTES_MAX} bytes",
}

INTERNAL: Final = ("E1000", "internal server error")
TEXT_BYTES_MAX: Final = 4096


def to_frame(error: Exception, dialect: frames.Dialect) -> bytes:
    """An error of the broker as a frame. Anything that is not ours to name goes out without its details."""
    if not isinstance(error, QuintetError):
        return error_frame(dialect, *INTERNAL)
    text = f"{error}; {error.hint}" if error.hint else str(error)
    return error_frame(dialect, error.code, text[:TEXT_BYTES_MAX])
