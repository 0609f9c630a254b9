"""Every failure that crosses a layer, in one tree.

Two families: a `QuintetError` is somebody's fault that we can name (a peer's bytes, a missing right, a full disk) and is
answered politely; an `AssertionError` is ours and crashes loudly. Each protocol's errors.py maps the classes here to
its own codes. Nothing here knows a protocol.
"""

from typing import Final


class QuintetError(Exception):
    """Base of all named failures. `code` is stable and greppable; `retryable` says if trying again can help;
    `message` is what happened, `hint` what to do about it."""

    code = "E1000"
    retryable = False
    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        if hint:
            self.hint = hint

    def __str__(self) -> str:
        """What happened, and in brackets what to do: a program that prints or logs the error shows both."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


def message_of(error: BaseException) -> str:
    """What happened, without the hint: for wires and reports that have another place for it, or none."""
    return error.message if isinstance(error, QuintetError) else str(error)


class ProtocolError(QuintetError, ValueError):
    """The peer broke the protocol; the connection cannot go on."""

    code = "E1100"


class AuthError(QuintetError, PermissionError):
    """Who you are could not be established."""

    code = "E1200"


class Forbidden(QuintetError, PermissionError):
    """You are known, and may not do this."""

    code = "E1201"


class WrongKey(AuthError):
    """The key that was shown is not the one of this queue."""

    code = "E1202"


class NameClaimed(Forbidden):
    """A peer's name that another owner registered."""

    code = "E1203"


class BadName(QuintetError, ValueError):
    """A topic name that no door may use."""

    code = "E1300"


class TopicNotFound(QuintetError, LookupError):
    """No such topic."""

    code = "E1301"


class UnknownSubscription(QuintetError, LookupError):
    """No such subscription or delivery tag for this owner."""

    code = "E1302"


class PartitionNotFound(QuintetError, LookupError):
    """The topic has no such partition."""

    code = "E1303"


class OffsetNotFound(QuintetError, LookupError):
    """No record at this offset: past the end, or no longer kept."""

    code = "E1304"


class DataLost(QuintetError, LookupError):
    """Some offsets of a range that was asked for are gone: retention took them, or a file is missing. They are those from
    `first` to the one before `last`, where that is known (-1: it is not)."""

    code = "E1305"

    def __init__(self, message: str, *, first: int = -1, last: int = -1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.first = first
        self.last = last


class Taken(QuintetError):
    """A name, a number or a place that somebody else has."""

    code = "E1306"


class GroupNotFound(QuintetError, LookupError):
    """No such consumer group on this topic."""

    code = "E1320"


class Fenced(QuintetError):
    """A member of a consumer group spoke for a generation, a partition or a name that is no longer its own."""

    code = "E1321"


class GroupBusy(QuintetError):
    """The consumer group has live members, and this is only done to one that stands still."""

    code = "E1322"
    retryable = True


class TransactionNotFound(QuintetError, LookupError):
    """No such open transaction for this owner: unknown, timed out, aborted or fenced."""

    code = "E1330"


class OutOfSequence(QuintetError):
    """An idempotent producer left something out, or is not known (any more)."""

    code = "E1331"


class EpochDiffers(QuintetError):
    """A batch that was committed before came again with other contents: what is new in it would be lost."""

    code = "E1332"


class OtherLog(QuintetError):
    """What a caller remembers is of another log than this broker's."""

    code = "E1333"


class BadRequest(QuintetError, ValueError):
    """A request that is well-formed and makes no sense: the text says why."""

    code = "E1101"


class SchemaRejected(QuintetError, ValueError):
    """A message does not fit the schema it was published with; nothing was stored."""

    code = "E1310"


class SchemaNotFound(QuintetError, LookupError):
    """No such schema, or no such version of it."""

    code = "E1311"


class SchemaInvalid(QuintetError, ValueError):
    """A definition that is no schema, or one that the broker will not run; the message says which part and why."""

    code = "E1312"


class SchemaIncompatible(QuintetError, ValueError):
    """A new version that could not read, or be read by, what the last one wrote; `reasons` says where."""

    code = "E1313"

    def __init__(self, message: str, *, reasons: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons


class UserNotFound(QuintetError, LookupError):
    """No such user."""

    code = "E1340"


class UserExists(QuintetError, ValueError):
    """The user's name is taken, or looks the same as one that is."""

    code = "E1341"


class KeyNotFound(QuintetError, LookupError):
    """No such API key, or none of that user."""

    code = "E1343"


class AclNotFound(QuintetError, LookupError):
    """No access rule of this name."""

    code = "E1342"


class VersionConflict(QuintetError):
    """A key of a cache is not at the version that was asked for: it is at `version`, with `value` (0 and None: it is not
    there)."""

    code = "E1350"

    def __init__(self, message: str, *, version: int = 0, value: bytes | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.version = version
        self.value = value


class LimitExceeded(QuintetError):
    """A named limit of the broker was reached (too many topics, subscriptions, connections)."""

    code = "E1400"


class QueueFull(QuintetError, BlockingIOError):
    """A message that must be kept cannot be kept now: a subscriber's queue is at its limit."""

    code = "E1401"
    retryable = True


class TooLarge(QuintetError, ValueError):
    """A batch or message over its limit."""

    code = "E1402"


class Busy(QuintetError, BlockingIOError):
    """Too many requests of a slow kind (logins, changes of users) wait already."""

    code = "E1403"
    retryable = True


class StorageError(QuintetError, OSError):
    """The log could not make a batch durable. Nothing was acknowledged."""

    code = "E1500"


class StorageFull(StorageError):
    """No space: refused before damage; the log takes writes again by itself when there is space."""

    code = "E1501"
    retryable = True


class PartitionFailed(StorageError):
    """A write or fsync failed: this partition is read-only until the broker is restarted and has verified it."""

    code = "E1502"


class CorruptData(StorageError):
    """A range of the log does not check out and is quarantined; it is never served."""

    code = "E1503"


class TableDamaged(CorruptData):
    """Something is lost of what the broker itself keeps, so older rows would count again: it does not start until an
    operator accepts that."""

    code = "E1505"


class DataDirError(StorageError):
    """The data directory cannot be used (locked, unreadable, newer format). Nothing was touched."""

    code = "E1504"


class BackupError(StorageError):
    """A backup cannot be made, or is not whole and cannot be restored."""

    code = "E1506"


class ConfigError(QuintetError, ValueError):
    """A configuration key or value that is not valid; names file, key and nearest valid name."""

    code = "E1600"


SHUTTING_DOWN: Final = "the broker is shutting down"


class ShuttingDown(QuintetError):
    """The broker is draining, or its cell moves to another node: the text says which."""

    code = "E1700"
    retryable = True


class NotLeader(QuintetError):
    """This node does not lead, and cannot reach the one that does. `leader` is HOST:PORT where that one can be reached, empty if
    it is not known. The text is that of FlyMQ's published clients, which look for `leader_addr=`."""

    code = "E1701"
    retryable = True

    def __init__(self, message: str = "", *, leader: str = "", hint: str = "") -> None:
        if not message:
            message = f"not leader: leader_addr={leader}" if leader else "not leader: no leader elected"
        super().__init__(message, hint=hint)
        named = message.partition("leader_addr=")[2].split(maxsplit=1)
        self.leader = leader or (named[0].rstrip(";,)") if named else "")


class TooOld(QuintetError):
    """This node follows, and what it has may be older than the read allows."""

    code = "E1702"
    retryable = True


class Behind(QuintetError):
    """This node follows, and does not have yet what the read needs."""

    code = "E1703"
    retryable = True


class OtherCell(QuintetError):
    """Something belongs to another cell of this broker than the one that was asked, or to several (docs/CELLS.md)."""

    code = "E1704"


class CellsBehind(QuintetError):
    """A change was made in cell 0 of this broker, and another cell has not taken it over in time: it may still go by what was before."""

    code = "E1705"
