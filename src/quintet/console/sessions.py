"""Keeps who is logged in to the console: a random token in a cookie stands for an identity, never for rights.

Rights are asked for with every request, so whoever is disabled or has another password is out at once. Only the SHA-256 of a token is
kept. A session ends by logout, after `idle_us` without a request, and SESSION_US after the login in any case. Live streams do
not count as requests: an unattended page does not keep its session.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quintet.broker.core import Broker
from quintet.broker.identity.access import Principal, hash_secret
from quintet.console.awaiting import run
from quintet.model.errors import AuthError, Busy
from quintet.model.rate import Bucket
from quintet.net.listener import Failures

TOKEN_BYTES: Final = 32
SESSION_US: Final = 12 * 3600 * 1_000_000
OF_IDENTITY_MAX: Final = 20  # sessions of one person: the oldest goes first
ADDRESSES_MAX: Final = 10_000  # whose rates are remembered


@dataclass(slots=True)
class Session:
    """One login. Times are microseconds of the monotonic clock."""

    identity: str
    digest: str
    began: int
    used: int


class Sessions:
    """All of them, the one not used for longest first."""

    def __init__(
        self,
        broker: Broker,
        entropy: Callable[[int], bytes],
        *,
        idle_us: int,
        sessions_max: int,
        failures_per_minute: int,
    ) -> None:
        self._broker = broker
        self._entropy = entropy
        self._idle_us = idle_us
        self._max = sessions_max
        self._failures = Failures(failures_per_minute)
        self._by_digest: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_digest)

    async def log_in(self, name: str, password: str, peer: str) -> tuple[str, Principal]:
        """(token, principal); AuthError, or Busy after too many failures of this address."""
        identity, principal = await self.prove(name, password, peer)
        return self._issue(identity), principal

    async def prove(self, name: str, password: str, peer: str) -> tuple[str, Principal]:
        """(identity, principal) of whoever knows this password; raises as log_in."""
        address, clock = peer.rpartition(":")[0], self._broker.scheduler.monotonic
        if self._failures.blocked(address, clock()):
            raise Busy(f"too many failed logins from {address}", hint="try again in a minute")
        try:
            secret = password.encode("utf-8", "surrogatepass")
            return await run(self._broker.users.authenticate_password(name, secret, peer=peer))
        except AuthError:
            self._failures.add(address, clock())
            raise

    def _issue(self, identity: str) -> str:
        token, monotonic = self._entropy(TOKEN_BYTES).hex(), self._broker.scheduler.monotonic()
        own = [found.digest for found in self._by_digest.values() if found.identity == identity]
        if len(own) >= OF_IDENTITY_MAX:
            del self._by_digest[own[0]]
        elif len(self._by_digest) >= self._max:
            self._by_digest.popitem(last=False)
        digest = hash_secret(token.encode())
        self._by_digest[digest] = Session(identity, digest, monotonic, monotonic)
        return token

    def find(self, token: str, *, use: bool = True) -> tuple[Session, Principal]:
        """The session of this token and who it is now. AuthError: there is none, its time is over, its user may no longer log in."""
        session = self._by_digest.get(hash_secret(token.encode("utf-8", "replace"))) if token else None
        if session is None:
            raise AuthError("log in first", hint="the session has ended, or there was none")
        return session, self.check(session, use=use)

    def check(self, session: Session, *, use: bool = False) -> Principal:
        """Who it is now; AuthError if it has ended. `use`: its idle time begins again."""
        monotonic = self._broker.scheduler.monotonic()
        over = monotonic - session.used > self._idle_us or monotonic - session.began > SESSION_US
        principal = None if over else self._broker.access.current(session.identity)
        if principal is None or session.digest not in self._by_digest:
            self._by_digest.pop(session.digest, None)
            raise AuthError("the session has ended", hint="log in again")
        if use:
            session.used = monotonic
            self._by_digest.move_to_end(session.digest)
        return principal

    def log_out(self, session: Session, principal: Principal, peer: str) -> None:
        """The token is worth nothing from now on."""
        self._by_digest.pop(session.digest, None)
        self._broker.audit.record("auth.logout", principal.name, "", "success", peer, "logout")


class Rates:
    """Requests of each address, of the last ADDRESSES_MAX that asked."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def allow(self, address: str, monotonic: int) -> bool:
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = self._buckets[address] = Bucket(self._per_second, monotonic)
            if len(self._buckets) > ADDRESSES_MAX:
                self._buckets.popitem(last=False)
        if bucket.wait(monotonic):
            return False
        bucket.take(1, monotonic)
        return True
