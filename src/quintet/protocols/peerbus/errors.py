"""One table: why a connection ends <-> the close code and reason that say it. The first block is given to the letter by the
published broker, and its clients compare code and text.
"""

from typing import Final

from quintet.model import errors

Close = tuple[int, str]  # code of RFC 6455 (0: the socket is dropped without a close frame), reason

NO_HANDSHAKE: Final = (1002, "no handshake frame")
NOT_TEXT: Final = (1003, "handshake must be text")
MALFORMED: Final = (1007, "malformed handshake")
NOT_REGISTER: Final = (1008, "first frame must be register")
VERSION: Final = (1008, "unsupported protocol version")
EMPTY_NAME: Final = (1008, "empty peer name")
TOKEN: Final = (1008, "invalid bearer token")
CLAIMED: Final = (1008, "name claimed under a different token")
NOT_KEPT: Final = (1011, "peer persistence failed")
NOT_BOUND: Final = (1011, "registry bind failed")
SHUTTING_DOWN: Final = (1001, "server shutting down")

# Ours: the published broker has no such case.
BAD_NAME: Final = (1008, "invalid peer name")
NOT_ALLOWED: Final = (1008, "name not allowed for this token")
REVOKED: Final = (1008, "token revoked")
TAKEOVERS: Final = (1008, "too many takeovers of this name")
FREED: Final = (1008, "name was freed")
NAMES: Final = (1008, "too many names of this token's owner")
TOO_BIG: Final = (1009, "message too big")
TAKEN_OVER: Final = (0, "another connection took the name over")


def of_register(error: Exception) -> Close:
    """How a register ends that the broker refused."""
    if isinstance(error, errors.NameClaimed):
        return CLAIMED
    if isinstance(error, errors.Forbidden):
        return NOT_ALLOWED
    if isinstance(error, errors.Busy):
        return TAKEOVERS
    if isinstance(error, errors.LimitExceeded):
        return NAMES
    return NOT_KEPT if isinstance(error, errors.StorageError) else NOT_BOUND
