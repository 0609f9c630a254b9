"""What can go wrong on the client's side of the wire, continuing the tree of model/errors.py.

Every error has `code`, `retryable` and `hint`, and is also the builtin that Python programmers already catch. What the
server said is mapped to these (and to the shared ones) by each door; texts of a wire protocol do not belong here.
"""

from typing import Final

from quintet.model.errors import (
    AuthError,
    BadName,
    Forbidden,
    ProtocolError,
    QuintetError,
    StorageError,
    TooLarge,
    UnknownSubscription,
)


class ConnectionLost(QuintetError, ConnectionError):
    """There is no connection, or it ended before the answer came: what was in flight may or may not be stored."""

    code = "E2000"
    retryable = True


class Timeout(QuintetError, TimeoutError):
    """The time given with `timeout=` passed. A publish that timed out may or may not be stored."""

    code = "E2001"
    retryable = True


class DeliveryError(QuintetError):
    """The server refused, or could not confirm, messages of a batch. `failures` is [(place in the batch, why), ...]."""

    code = "E2002"

    def __init__(
        self, message: str, *, topic: str, failures: "tuple[tuple[int, QuintetError], ...]" = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.failures = failures
        self.retryable = bool(failures) and all(error.retryable for _, error in failures)


class Unsupported(QuintetError, NotImplementedError):
    """This door's protocol has no way to say what was asked for; it is refused, never dropped."""

    code = "E2003"


class Backpressure(QuintetError, BlockingIOError):
    """A bounded buffer of the client is full: wait for it (`await producer.ready()`) and send again."""

    code = "E2004"
    retryable = True


class ServerError(QuintetError):
    """The server failed in a way it did not name."""

    code = "E2005"
    retryable = True


class Closed(QuintetError, RuntimeError):
    """The bus, producer or subscription was used outside its `with` block."""

    code = "E2006"


class BadUrl(QuintetError, ValueError):
    """A URL that names no door, or names it wrongly."""

    code = "E2007"


ALL: Final = (
    AuthError,
    BadName,
    BadUrl,
    Backpressure,
    Closed,
    ConnectionLost,
    DeliveryError,
    Forbidden,
    ProtocolError,
    QuintetError,
    ServerError,
    StorageError,
    Timeout,
    TooLarge,
    UnknownSubscription,
    Unsupported,
)

__all__ = [
    "ALL",
    "AuthError",
    "Backpressure",
    "BadName",
    "BadUrl",
    "Closed",
    "ConnectionLost",
    "DeliveryError",
    "Forbidden",
    "ProtocolError",
    "QuintetError",
    "ServerError",
    "StorageError",
    "Timeout",
    "TooLarge",
    "UnknownSubscription",
    "Unsupported",
]
