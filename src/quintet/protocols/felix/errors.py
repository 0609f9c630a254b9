"""One table: what goes wrong <-> the words of an `error`, and whether the stream goes on behind it.

The texts in quotes are those the published server says, to the letter where it says nothing more; a document client reads
"unauthorized" where a published one reads "forbidden".
"""

from typing import Final

from quintet.broker.bearer import TenantMismatch
from quintet.broker.consumers.polled_members import StaleClaim
from quintet.broker.consumers.registry import OtherOwner
from quintet.model import errors
from quintet.model.errors import message_of
from quintet.protocols.felix import codec
from quintet.protocols.felix.frames import ERROR_CODES, Dialect

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


# The codes of published clients and what they may do, in the order of their numbers, which begin with 1.
CODES: Final = (
    "unauthenticated", "forbidden", "not_found", "invalid_request", "shard_unavailable", "not_leader", "quorum_timeout",
    "leadership_lost", "unacknowledged", "overloaded", "limit_exceeded", "draining", "internal", "storage", "stale_claim",
)  # fmt: skip
RETRIES: Final = ("retry", "retry_after", "redirect", "outcome_unknown", "fatal")
# Broker errors as they say them, most special first: (class, code, what the client may do).
PUBLISHED: Final[tuple[tuple[type[errors.QuintetError], str, str], ...]] = (
    (errors.AuthError, "unauthenticated", "fatal"),
    (errors.Forbidden, "forbidden", "fatal"),
    (errors.TopicNotFound, "not_found", "fatal"),  # nothing comes later from elsewhere, as in a cluster of theirs
    (StaleClaim, "stale_claim", "retry"),
    (errors.QueueFull, "overloaded", "retry_after"),
    (errors.Busy, "overloaded", "retry_after"),
    (errors.ShuttingDown, "draining", "retry"),
    (errors.NotLeader, "not_leader", "redirect"),
    (errors.StorageError, "storage", "outcome_unknown"),
    (errors.LimitExceeded, "limit_exceeded", "fatal"),
    (errors.TooLarge, "limit_exceeded", "fatal"),
    (errors.BadRequest, "invalid_request", "fatal"),
    (errors.BadName, "invalid_request", "fatal"),
    (errors.UnknownSubscription, "invalid_request", "fatal"),
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
            return f"{prefix}: {message_of(error)}" if prefix else message_of(error)
    return INTERNAL


def text(error: Exception, dialect: Dialect) -> str:
    """The same, as this client knows it. Published clients compare the word; who said EXTENDED is told whose a group is, too."""
    said = to_text(error)
    if said == FORBIDDEN and dialect.document:
        return UNAUTHORIZED
    if isinstance(error, OtherOwner) and dialect.extended:
        said = f"{FORBIDDEN}: {message_of(error)}"
    return codec.cut(said)


def closing(error: Exception, dialect: Dialect) -> str:
    """The word with which an error ends the stream; empty if the stream goes on."""
    said = to_text(error)
    return said if said in CLOSING and not (said == FORBIDDEN and dialect.document) else ""


def encoded(error: Exception, dialect: Dialect, request_id: codec.Id) -> bytes:
    """The frame that says it. Whose request it was is for those who know an `error` with a request_id."""
    told = request_id if dialect.document or dialect.extended else None
    if isinstance(error, codec.BadCursor) and not dialect.document:
        cursor = codec.CursorError(
            reason=error.reason, requested=error.requested, available=error.available, request_id=told
        )
        return codec.encode(cursor)
    code, retry = _code(error, dialect)
    return codec.encode(codec.Error(request_id=told, message=text(error, dialect), code=code, retry=retry))


def published(
    request_id: codec.Id, binary: bool, error: Exception | None, dialect: Dialect, offset: int | None = None
) -> bytes:
    """The answer to a publish; `offset` of its first message is for those who asked for it in `auth`."""
    offset = offset if dialect.ack_offsets and error is None else None
    if binary:
        assert isinstance(request_id, int)
        if error is None:
            return codec.publish_ack(request_id, offset=offset)
        name, advice = _published_code(error)
        numbers = (CODES.index(name) + 1, RETRIES.index(advice) + 1) if dialect.ack_codes else None
        return codec.publish_ack(request_id, text(error, dialect), failed=True, code=numbers)
    if error is None:
        if dialect.document:
            return codec.encode(codec.Ok(request_id=request_id))
        return codec.encode(codec.PublishOk(request_id=request_id, offset=offset))
    if dialect.document:
        return encoded(error, dialect, request_id)
    code, retry = _code(error, dialect)
    return codec.encode(codec.PublishError(request_id=request_id, message=text(error, dialect), code=code, retry=retry))


def _code(error: Exception, dialect: Dialect) -> tuple[str | None, str | None]:
    """The stable number of the error, for those who said EXTENDED; its published name and whether to try again, for those
    who read error codes."""
    if dialect.extended:
        return (error.code if isinstance(error, errors.QuintetError) else None), None
    if dialect.features & ERROR_CODES:
        return _published_code(error)
    return None, None


def _published_code(error: Exception) -> tuple[str, str]:
    for kind, code, retry in PUBLISHED:
        if isinstance(error, kind):
            return code, retry
    return "internal", "outcome_unknown"
