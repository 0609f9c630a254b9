"""One table: what goes wrong <-> the words of an `error`, and whether the stream goes on behind it.

The texts in quotes are those the published server says, to the letter where it says nothing more; a document client reads
"unauthorized" where a published one reads "forbidden".
"""

from typing import Final

from quintet.broker.bearer import TenantMismatch
from quintet.model import errors
from quintet.protocols.felix import codec
from quintet.protocols.felix.frames import Dialect

# These end the stream.
AUTH_REQUIRED: Final = "auth required"
AUTH_FAILED: Final = "auth failed"
AUTH_ALREADY: Final = "auth already established"
TENANT_MISMATCH: Final = "tenant mismatch"
FORBIDDEN: Final = "forbidden"
CLOSING: Final = frozenset({AUTH_REQUIRED, AUTH_FAILED, AUTH_ALREADY, TENANT_MISMATCH, FORBIDDEN})

# These do not.
UNAUTHORIZED: Final = "unauthorized"  # FORBIDDEN, as the document has it
FLAGS: Final = "unsupported frame flags"
SUBSCRIPTIONS: Final = "max subscriptions per connection exceeded"
OVERLOADED: Final = "server overloaded"
MISSING_ID: Final = "missing request_id for acked publish"
MISSING_ID_BATCH: Final = "missing request_id for acked publish batch"
INTERNAL: Final = "internal error"

# The numbers of kernel.felix_split for a header that cannot be passed over: the connection is shut.
FATAL: Final = {
    1: "malformed header: the magic is not FLX1",
    2: "malformed header: the version is not 1",
    3: "malformed header: the length is above the limit",
}
LONG_FRAME: Final = 3

# ... and for a binary batch that does not add up.
MALFORMED: Final = {
    1: "malformed batch: it ends early",
    2: "malformed batch: its count is larger than what follows",
    3: "malformed batch: bytes follow its end",
    4: "malformed batch: the ack mode is 1 or 2",
    5: "malformed batch: a name is not UTF-8",
    6: "malformed batch: it has more messages than one batch may have",
    7: "malformed batch: with its key in every message it has more than 32 MiB",
}

# Broker errors, most special first: (class, text before the error's own words).
BROKER: Final[tuple[tuple[type[errors.QuintetError], str], ...]] = (
    (errors.QueueFull, OVERLOADED),
    (errors.Busy, OVERLOADED),
    (errors.StorageError, OVERLOADED),
    (errors.ShuttingDown, OVERLOADED),
    (errors.QuintetError, ""),
)


class AlreadyKnown(errors.Forbidden):
    """A stream that authenticates again."""


# About who may, most special first: said without details.
BARRED: Final[tuple[tuple[type[errors.QuintetError], str], ...]] = (
    (AlreadyKnown, AUTH_ALREADY),
    (TenantMismatch, TENANT_MISMATCH),
    (errors.AuthError, AUTH_FAILED),
    (errors.Forbidden, FORBIDDEN),
)


def to_text(error: Exception) -> str:
    """What an error says on the wire. Anything that is not ours to name is said without its details."""
    for kind, text in BARRED:
        if isinstance(error, kind):
            return text
    for kind, prefix in BROKER:
        if isinstance(error, kind):
            return f"{prefix}: {error}" if prefix else str(error)
    return INTERNAL


def text(error: Exception, dialect: Dialect) -> str:
    """The same, as this client knows it."""
    said = to_text(error)
    return UNAUTHORIZED if dialect.document and said == FORBIDDEN else codec.cut(said)


def encoded(error: Exception, dialect: Dialect, request_id: codec.Id) -> bytes:
    """The frame that says it. Whose request it was is for those who know an `error` with a request_id."""
    told = request_id if dialect.document or dialect.extended else None
    if isinstance(error, codec.BadCursor) and not dialect.document:
        cursor = codec.CursorError(
            reason=error.reason, requested=error.requested, available=error.available, request_id=told
        )
        return codec.encode(cursor)
    return codec.encode(codec.Error(request_id=told, message=text(error, dialect), code=_code(error, dialect)))


def published(
    request_id: codec.Id, binary: bool, error: Exception | None, dialect: Dialect, offset: int | None = None
) -> bytes:
    """The answer to a publish; `offset` of its first message is for those who asked for it in `auth`."""
    offset = offset if dialect.ack_offsets and error is None else None
    if binary:
        assert isinstance(request_id, int)
        return codec.publish_ack(request_id, "" if error is None else text(error, dialect), error is not None, offset)
    if error is None:
        if dialect.document:
            return codec.encode(codec.Ok(request_id=request_id))
        return codec.encode(codec.PublishOk(request_id=request_id, offset=offset))
    if dialect.document:
        return encoded(error, dialect, request_id)
    said = codec.PublishError(request_id=request_id, message=text(error, dialect), code=_code(error, dialect))
    return codec.encode(said)


def _code(error: Exception, dialect: Dialect) -> str | None:
    return error.code if dialect.extended and isinstance(error, errors.QuintetError) else None
