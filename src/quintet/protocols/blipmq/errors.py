"""One table: what goes wrong <-> the NACK that says it. Texts in quotes in the document are given to the letter."""

from typing import Final

from quintet.model import errors
from quintet.model.errors import message_of

# What the peer's frame did wrong: (code, text)
HELLO_ALREADY: Final = (400, "HELLO already performed")
HELLO_MISSING: Final = (400, "HELLO not performed")
HELLO_INVALID: Final = (400, "invalid HELLO payload")
VERSION: Final = (426, "unsupported protocol version")
AUTH_ALREADY: Final = (400, "already authenticated")
AUTH_INVALID: Final = (400, "invalid AUTH payload")
AUTH_KEY: Final = (401, "invalid API key")
UNAUTHENTICATED: Final = (401, "unauthenticated")
SUBSCRIBE_INVALID: Final = (400, "invalid SUBSCRIBE payload")
EMPTY_TOPIC: Final = (400, "empty topic")
QOS: Final = (400, "invalid QoS value")
TOPIC_NUL: Final = (400, "topic contains NUL byte")
TOPIC_LONG: Final = (400, "topic too long")
WORD_INVALID: Final = (400, "invalid NACK payload")
MATCH_INVALID: Final = (400, "invalid MATCH payload")
MATCH_BUSY: Final = (500, "a connection has one MATCH under way at a time")
UNKNOWN: Final = (404, "unknown subscription or delivery tag")

# The error numbers of kernel.blip_split, in its order.
MALFORMED: Final = {
    1: (400, "invalid PUBLISH payload"),
    2: EMPTY_TOPIC,
    3: QOS,
    4: TOPIC_NUL,
    5: TOPIC_LONG,
    6: (400, "invalid ACK payload"),
    7: (400, "invalid POLL payload"),
    8: (400, "subscription_id must be non-zero"),
}

FATAL: Final = {
    1: "frame length below 9",
    2: "frame length above the limit",
    3: "unknown frame type",
}

# Broker errors, most special first: (class, code, text before the error's own words).
BROKER: Final[tuple[tuple[type[errors.QuintetError], int, str], ...]] = (
    (errors.UnknownSubscription, 404, ""),
    (errors.TopicNotFound, 404, ""),
    (errors.AuthError, 401, ""),
    (errors.Forbidden, 401, ""),
    (errors.BadName, 400, ""),
    (errors.BadRequest, 400, ""),
    (errors.TooLarge, 400, ""),
    (errors.ProtocolError, 400, ""),
    (errors.ConfigError, 500, ""),
    (errors.LimitExceeded, 500, ""),
    (errors.QueueFull, 500, "durable publish failed: "),
    (errors.StorageError, 500, "durable publish failed: "),
    (errors.ShuttingDown, 500, "durable publish failed: "),
    (errors.QuintetError, 500, ""),
)


def refused_set(error: errors.QuintetError) -> tuple[int, str]:
    """The same for a record set that cannot be taken, whichever limit it breaks: it would be refused again, and 500 is transient."""
    return 400, message_of(error)


def to_nack(error: Exception) -> tuple[int, str]:
    """The code and text for a broker error. Anything that is not ours to name is a plain 500 without its details."""
    for kind, code, prefix in BROKER:
        if isinstance(error, kind):
            return code, f"{prefix}{message_of(error)}"
    return 500, "internal server error"
