"""Defines the errors of the client, continuing the tree of model/errors.py.

Every error has `code`, `retryable` and `hint`, and is also the builtin that Python programmers already catch. What the
server said is mapped to these (and to the shared ones) by each door; texts of a wire protocol do not belong here.
"""

from typing import Final

from quintet.model.errors import (
    AclNotFound,
    AuthError,
    BadName,
    BadRequest,
    Behind,
    Busy,
    CellsBehind,
    CorruptData,
    DataLost,
    EpochDiffers,
    Fenced,
    Forbidden,
    GroupBusy,
    GroupNotFound,
    KeyNotFound,
    LimitExceeded,
    NameClaimed,
    NotLeader,
    OffsetNotFound,
    OtherCell,
    OtherLog,
    OutOfSequence,
    PartitionFailed,
    PartitionNotFound,
    ProtocolError,
    QueueFull,
    QuintetError,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    SchemaRejected,
    ShuttingDown,
    StorageError,
    StorageFull,
    Taken,
    TooLarge,
    TooOld,
    TopicNotFound,
    TransactionNotFound,
    UnknownSubscription,
    UserExists,
    UserNotFound,
    VersionConflict,
    WrongKey,
)
from quintet.model.extras import PackageMissing


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
    """A bounded buffer of the client is full: wait for it (`await producer.ready()`) and send again; or acknowledge what
    was handed out, if it is a subscription that says so."""

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


class SubscriptionEnded(QuintetError):
    """The server ended a subscription: its token expired, the key was rotated, or the topic is gone."""

    code = "E2008"


class BadValue(QuintetError, ValueError, TypeError):
    """A value that cannot be published, or a message that is not of the type it was decoded as."""

    code = "E2009"


class RequestFailed(QuintetError):
    """The responder that was asked failed; the text is its own."""

    code = "E2010"


def too_large(size: int, most: int) -> TooLarge:
    """A message that does not fit into one frame of its protocol."""
    return TooLarge(f"a message of {size} bytes is over the {most} that fit into one frame", hint="split it")


def crashed(what: str, error: BaseException) -> QuintetError:
    """For a task of the client that ended by a fault of its own: those who wait for it learn of it."""
    if isinstance(error, QuintetError):
        return error
    found = ServerError(f"{what} failed: {error!r}", hint="this is a fault of the client: report it with its trace")
    found.retryable = False
    found.__cause__ = error
    return found


# Code on the wire -> the error it means, and what to do about it where the server's text does not say.
_HINTS: Final[dict[type[QuintetError], str]] = {
    AclNotFound: "",
    AuthError: "put name and password, or the key, into the URL",
    BadName: "a topic has 1 to 255 bytes of UTF-8 without NUL",
    BadRequest: "",
    Busy: "try again in a moment",
    CorruptData: "see the server's log for the range that is quarantined",
    DataLost: "go on at the first offset that is kept",
    EpochDiffers: "begin with a new checkpoint",
    Fenced: "another member has the partition now; subscribe again",
    Forbidden: "ask an administrator for the right to it",
    GroupBusy: "close the subscriptions of the group first",
    GroupNotFound: "a group begins with its first subscription",
    KeyNotFound: "",
    LimitExceeded: "raise the limit in the server's configuration",
    NameClaimed: "choose another name",
    Behind: "read at the leader, or again in a moment",
    CellsBehind: "it goes by the change as soon as it runs again; see `quintet_cell_up` in /metrics",
    OtherCell: "see docs/CELLS.md for what reaches topics of every cell",
    TooOld: "read at the leader, or allow a greater age",
    NotLeader: "connect to the leader, or name several nodes in the URL",
    OffsetNotFound: "METADATA, or `quintet topic describe`, tells the first and the next offset of each partition",
    OtherLog: "begin with a new checkpoint; the broker behind the address was replaced",
    OutOfSequence: "begin again with a new producer",
    PartitionFailed: "the partition is read-only until the broker is restarted",
    PartitionNotFound: "METADATA, or `quintet topic describe`, tells how many partitions the topic has",
    ProtocolError: "are the versions of client and server far apart?",
    QueueFull: "try again when consumers have caught up",
    SchemaIncompatible: "change it, or register with another compatibility",
    SchemaInvalid: "",
    SchemaNotFound: "register it first",
    SchemaRejected: "change the message, or register a schema that it fits",
    ShuttingDown: "connect again when the broker is back",
    StorageError: "nothing was acknowledged; see the server's log",
    StorageFull: "it goes on by itself when there is space",
    Taken: "",
    TooLarge: "split it",
    TopicNotFound: "publish to it, or make it with CREATE_TOPIC, first",
    TransactionNotFound: "it timed out, was ended, or was fenced by a newer one of its name: begin again",
    UnknownSubscription: "it was settled already, or belongs to somebody else",
    UserExists: "",
    UserNotFound: "",
    VersionConflict: "read the key again, and decide anew",
    WrongKey: "take a token with the queue's key",
}
BY_CODE: Final = {kind.code: kind for kind in _HINTS}


def from_server(code: str, text: str) -> QuintetError:
    """The typed error for a code and text that a server sent; ServerError, with that code, if it is not a known one.

    A text that ends with what to do, behind its last semicolon, has its hint there. What a server says about logging in
    is for those who write clients: ours is in place of it."""
    kind = BY_CODE.get(code)
    if kind is None:
        error: QuintetError = ServerError(text, hint="see the server's log")
        error.code = code or ServerError.code
        error.retryable = False
        return error
    what, found, to_do = text.rpartition("; ")
    if not found:
        return kind(text, hint=_HINTS[kind])
    return kind(what, hint=_HINTS[kind] if kind is AuthError else to_do)


ALL: Final = (
    AclNotFound,
    AuthError,
    Backpressure,
    BadName,
    BadRequest,
    Behind,
    BadUrl,
    BadValue,
    Busy,
    CellsBehind,
    Closed,
    ConnectionLost,
    CorruptData,
    DataLost,
    DeliveryError,
    EpochDiffers,
    Fenced,
    Forbidden,
    GroupBusy,
    GroupNotFound,
    KeyNotFound,
    LimitExceeded,
    NameClaimed,
    NotLeader,
    OffsetNotFound,
    OtherCell,
    OtherLog,
    OutOfSequence,
    PackageMissing,
    PartitionFailed,
    PartitionNotFound,
    ProtocolError,
    QueueFull,
    QuintetError,
    RequestFailed,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotFound,
    SchemaRejected,
    ServerError,
    ShuttingDown,
    StorageError,
    StorageFull,
    SubscriptionEnded,
    Taken,
    Timeout,
    TooLarge,
    TooOld,
    TopicNotFound,
    TransactionNotFound,
    UnknownSubscription,
    Unsupported,
    UserExists,
    UserNotFound,
    VersionConflict,
    WrongKey,
)

__all__ = [
    "ALL",
    "BY_CODE",
    "AclNotFound",
    "AuthError",
    "Backpressure",
    "BadName",
    "BadRequest",
    "BadUrl",
    "BadValue",
    "Behind",
    "Busy",
    "CellsBehind",
    "Closed",
    "ConnectionLost",
    "CorruptData",
    "DataLost",
    "DeliveryError",
    "EpochDiffers",
    "Fenced",
    "Forbidden",
    "GroupBusy",
    "GroupNotFound",
    "KeyNotFound",
    "LimitExceeded",
    "NameClaimed",
    "NotLeader",
    "OffsetNotFound",
    "OtherCell",
    "OtherLog",
    "OutOfSequence",
    "PackageMissing",
    "PartitionFailed",
    "PartitionNotFound",
    "ProtocolError",
    "QueueFull",
    "QuintetError",
    "RequestFailed",
    "SchemaIncompatible",
    "SchemaInvalid",
    "SchemaNotFound",
    "SchemaRejected",
    "ServerError",
    "ShuttingDown",
    "StorageError",
    "StorageFull",
    "SubscriptionEnded",
    "Taken",
    "Timeout",
    "TooLarge",
    "TooOld",
    "TopicNotFound",
    "TransactionNotFound",
    "UnknownSubscription",
    "Unsupported",
    "UserExists",
    "UserNotFound",
    "VersionConflict",
    "WrongKey",
    "from_server",
]
