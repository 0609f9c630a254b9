"""One table: what goes wrong <-> the ERROR that says it, in extended mode. A strict client is told nothing."""

from typing import Final

from quintet.model import errors
from quintet.model.errors import message_of

BAD_REQUEST: Final = 400  # a name, a key or a version that makes no sense
TOKEN: Final = 401  # the token is not valid: signature, form, time, a disabled user
FORBIDDEN: Final = 403  # the token does not permit it, or the broker's own rights do not
NO_TOPIC: Final = 404  # no keyed topic of this number
TAKEN: Final = 409  # the number is another topic's, or an exclusive topic has its subscriber
ENDED: Final = 410  # of SUBSCRIBE, sent by itself: the subscription is over; the text says why
KEY: Final = 419  # the queue_key of the token is not the topic's
VERSION: Final = 426  # EXTEND with a version this broker does not speak
LIMIT: Final = 429  # a limit of the broker
INTERNAL: Final = 500
UNAVAILABLE: Final = 503  # the disk is full, a queue is full, the broker stops: try again later

CODES: Final = {
    BAD_REQUEST: "bad request",
    TOKEN: "token refused",
    FORBIDDEN: "not permitted",
    NO_TOPIC: "no such topic",
    TAKEN: "taken",
    ENDED: "subscription ended",
    KEY: "wrong queue_key",
    VERSION: "unsupported version",
    LIMIT: "limit reached",
    INTERNAL: "internal error",
    UNAVAILABLE: "not now",
}

# The numbers of kernel.fast_split for bytes that cannot be passed over.
FATAL: Final = {
    1: "unknown or server-only packet type",
    2: "payload above the limit",
}

# Broker errors, most special first.
BROKER: Final[tuple[tuple[type[errors.QuintetError], int], ...]] = (
    (errors.WrongKey, KEY),
    (errors.AuthError, TOKEN),
    (errors.Forbidden, FORBIDDEN),
    (errors.TopicNotFound, NO_TOPIC),
    (errors.Taken, TAKEN),
    (errors.BadName, BAD_REQUEST),
    (errors.BadRequest, BAD_REQUEST),
    (errors.TooLarge, BAD_REQUEST),
    (errors.LimitExceeded, LIMIT),
    (errors.QueueFull, UNAVAILABLE),
    (errors.Busy, UNAVAILABLE),
    (errors.StorageError, UNAVAILABLE),
    (errors.ShuttingDown, UNAVAILABLE),
    (errors.NotLeader, UNAVAILABLE),
    (errors.QuintetError, INTERNAL),
)


def to_error(error: Exception) -> tuple[int, str]:
    """The code and text for a broker error. Anything that is not ours to name is a 500 without its details."""
    for kind, code in BROKER:
        if isinstance(error, kind):
            return code, message_of(error)
    return INTERNAL, "internal error"
