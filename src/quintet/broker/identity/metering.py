"""Meters the bytes of connections against the rates of a user and its tenant: says for how long one waits (ADR 41).

    received(n)     so many bytes were read from the connection       -> microseconds until it is read from again
    answered(n)     so many bytes answer its requests                 -> microseconds until its next request is read
    delivered(n)    so many bytes were pushed to it
    withheld        whether more may be pushed now                    -> microseconds until that

A bucket may be overdrawn by what was read or sent before it was known; whoever overdrew it waits, so nothing is dropped and the rate
holds. A connection that sends and is sent next to nothing (CONTROL_BYTES_PER_SECOND: heartbeats, acknowledgements, PINGs) never waits,
however far others of the same user have overdrawn: what it uses is charged all the same. There is no clock here.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple

from quintet.model.rate import Bucket

Kind = Literal["user", "tenant"]

CONTROL_BYTES_PER_SECOND: Final = 1024  # of one connection, each way, without a wait
WAIT_US_MIN: Final = 1_000  # shorter waits are not worth a timer: what is owed stays owed
ANSWER_WAIT_US_MAX: Final = 5_000_000  # for a large answer: half of what a member of a group may be silent for
DEBT_US_MAX: Final = 60_000_000  # the most that is owed, as the time in which it is paid back
READS_PER_SECOND: Final = (
    8  # into which the rate is cut, over all connections of its user: each read is that much at most
)
VALUE_MAX: Final = (1 << 53) - 1  # of a bound: a number that every client can read
READ_BYTES_MIN: Final = 512  # of one read, however low the rate is


class Bounds(NamedTuple):
    """What a user or a tenant may have. 0: no bound."""

    publish_bytes_per_second_max: int = 0
    read_bytes_per_second_max: int = 0
    connections_max: int = 0
    topics_max: int = 0
    storage_bytes_max: int = 0


class Account:
    """One user or tenant while somebody uses it: its buckets and what it used."""

    __slots__ = (
        "bounds", "bucket_of", "connections", "held_until", "kind", "name", "paused_us", "pauses", "publish", "read", "received", "refused",
        "sent", "storage_bytes", "unused_since",
    )  # fmt: skip

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind = kind
        self.name = name
        self.bounds = Bounds()
        self.publish: Bucket | None = None
        self.read: Bucket | None = None
        self.bucket_of: Callable[[], Bucket | None] | None = (
            None  # where another part has the bucket of what is published
        )
        self.connections = self.received = self.sent = self.pauses = self.paused_us = self.refused = (
            self.storage_bytes
        ) = 0
        self.held_until = self.unused_since = 0

    def set_bounds(self, bounds: Bounds) -> None:
        """Judge by these from now on. A rate that stays goes on where it is; a new one begins full."""
        self.bounds = bounds
        self.publish = (
            self.bucket_of()
            if self.bucket_of is not None
            else _bucket(self.publish, bounds.publish_bytes_per_second_max)
        )
        self.read = _bucket(self.read, bounds.read_bytes_per_second_max)


def _bucket(before: Bucket | None, rate: int) -> Bucket | None:
    if not rate:
        return None
    return before if before is not None and before.per_second == rate else Bucket(rate, 0)


class Meter:
    """Of one connection."""

    __slots__ = ("_own_in", "_own_out", "_publish", "_read")

    def __init__(self, publish: Sequence[Account], read: Sequence[Account], before: "Meter | None" = None) -> None:
        """`before`: the meter it had until now."""
        self._publish = tuple(publish)
        self._read = tuple(read)
        self._own_in: Bucket = Bucket(CONTROL_BYTES_PER_SECOND, 0) if before is None else before._own_in
        self._own_out: Bucket = Bucket(CONTROL_BYTES_PER_SECOND, 0) if before is None else before._own_out

    @property
    def read_bytes_max(self) -> int:
        """Of one read: what is not read waits at its sender, and a wait stays short. Without a rate of its own, anything."""
        most = 1 << 30
        for account in self._publish:
            share = account.bounds.publish_bytes_per_second_max // (READS_PER_SECOND * max(1, account.connections))
            most = min(most, max(READ_BYTES_MIN, share))
        return most

    @property
    def answer_bytes_max(self) -> int:
        """Of one answer, unless one record is larger: no more than a second's worth."""
        return min((account.bounds.read_bytes_per_second_max for account in self._read), default=1 << 30)

    def received(self, size: int, monotonic: int) -> int:
        for account in self._publish:
            account.received += size
        return _charge(self._publish, "publish", self._own_in, size, monotonic, DEBT_US_MAX)

    def answered(self, size: int, monotonic: int) -> int:
        for account in self._read:
            account.sent += size
        return _charge(self._read, "read", self._own_out, size, monotonic, ANSWER_WAIT_US_MAX)

    def delivered(self, size: int, monotonic: int) -> None:
        for account in self._read:
            account.sent += size
            if account.read is None:  # its bound was taken away in this very turn
                continue
            account.read.take(size, monotonic)
            account.read.forgive(DEBT_US_MAX)
            wait = account.read.wait(monotonic)
            if wait > max(WAIT_US_MIN, account.held_until - monotonic):
                _held(account, wait, monotonic)

    def withheld(self, monotonic: int) -> int:
        """Microseconds until more may be pushed; 0: now."""
        wait = max((account.read.wait(monotonic) for account in self._read if account.read is not None), default=0)
        return wait if wait >= WAIT_US_MIN else 0


def _charge(accounts: tuple[Account, ...], which: str, own: Bucket, size: int, monotonic: int, most: int) -> int:
    longest, over = 0, None
    for account in accounts:
        bucket: Bucket | None = getattr(account, which)
        if bucket is None:  # its bound was taken away in this very turn
            continue
        bucket.take(size, monotonic)
        bucket.forgive(DEBT_US_MAX)
        wait = bucket.wait(monotonic)
        if wait > longest:
            longest, over = wait, account
    own.take(size, monotonic)
    own.forgive(DEBT_US_MAX)
    wait = min(longest, own.wait(monotonic), most)
    if over is None or wait < WAIT_US_MIN:
        return 0
    _held(over, wait, monotonic)
    return wait


def _held(account: Account, wait: int, monotonic: int) -> None:
    """Count the time in which at least one connection waited, once."""
    account.pauses += 1
    until = monotonic + wait
    account.paused_us += max(0, until - max(monotonic, account.held_until))
    account.held_until = max(account.held_until, until)
