"""Answers who is on a connection and by which credential, for doors whose clients send tenant tokens or API keys.

A token of a tenant says more than who: its tenant and its permissions bound every request, and the subject needs the right to
the topic besides (broker/identity/access.py). What is asked here is looked up again whenever access changes, so whoever holds a Bearer
may hold it as long as `valid` says so.
"""

from typing import TYPE_CHECKING, Final

from quintet.broker.identity.access import Action, Principal
from quintet.broker.identity.tenant_tokens import TenantClaims
from quintet.model.errors import AuthError, Forbidden

if TYPE_CHECKING:
    from quintet.broker.core import Broker

TOKEN_CHECK_US: Final = 5_000_000  # a token's expiry is looked at again after this: the clock may have been set

Scope = tuple[str, str, str]  # tenant, namespace, and a stream or a cache


class TenantMismatch(Forbidden):
    """A token of one tenant, and a request about another."""


class Bearer:
    """Who is on a stream, by which credential, as of which epoch of access. Shared with the feeds it asked for."""

    __slots__ = ("_token", "broker", "claims", "epoch", "identity", "peer", "principal", "tenant")

    def __init__(
        self, broker: "Broker", peer: str, tenant: str, identity: str, principal: Principal, token: bytes,
        claims: TenantClaims | None,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.peer = peer
        self.tenant = tenant
        self.identity = identity
        self.principal = principal
        self.claims = claims
        self.epoch = broker.access.epoch
        self._token = token

    def valid(self, now: int) -> bool:
        """Whether it still is who it was; what it may do is looked up again after a change."""
        if self.expired(now):
            return False
        if self.epoch == self.broker.access.epoch:
            return True
        principal = self.broker.access.current(self.identity)
        try:
            if self.claims is not None:
                self.claims = self.broker.tenant_tokens.verify(self._token, now)
        except AuthError:
            return False
        if principal is None:
            return False
        self.principal, self.epoch = principal, self.broker.access.epoch
        return True

    def expired(self, now: int) -> bool:
        return self.claims is not None and now >= self.claims.expires

    def check_at(self) -> int | None:
        """When to ask `expired` next, by the monotonic clock; None: never, it does not expire."""
        if self.claims is None:
            return None
        scheduler = self.broker.scheduler
        left = self.claims.expires - scheduler.now()
        return scheduler.monotonic() + min(max(left, 0), TOKEN_CHECK_US)

    @property
    def owner(self) -> str:
        """Under which name its subscriptions and groups are kept. A tenant that signs its own tokens can name anybody as
        their subject, so what its tokens make is the tenant's; no user's name begins with a bracket."""
        return self.principal.name if self.claims is None else f"({self.claims.tenant}/{self.claims.subject}"

    def acts_for(self, resource: str) -> bool:
        """Whether it may act for the owner of a group: an administrator, or whom a rule lists, and never a tenant's token."""
        access, principal = self.broker.access, self.principal
        return self.claims is None and (access.may_administer(principal) or access.listed(principal, resource))

    def require(self, action: Action, permission: str, scope: Scope, name: str) -> None:
        """Refused or Forbidden, and a row in the audit, unless token and rights both allow it."""
        self.require_token(permission, scope, name)
        self.broker.access.require(self.principal, action, name, self.peer)

    def require_token(self, permission: str, scope: Scope, name: str) -> None:
        claims = self.claims
        if claims is None:
            return
        if scope[0] != claims.tenant:
            self._deny(name, "tenant")
            raise TenantMismatch(f"the token is of tenant {claims.tenant!r}, not {scope[0]!r}")
        if not self._permits(permission, scope):
            self._deny(name, permission)
            raise Forbidden(f"the token does not permit {permission} on {'/'.join(scope)}")

    def _permits(self, permission: str, scope: Scope) -> bool:
        kind = permission.partition(".")[0]
        return self.claims is None or self.claims.allows(permission, f"{kind}:{'/'.join(scope)}")

    def may(self, action: Action, permission: str, scope: Scope, name: str) -> bool:
        return self._permits(permission, scope) and self.broker.access.allowed(self.principal, action, name)

    def may_see(self, scope: Scope, name: str) -> bool:
        """Whether it may subscribe to this stream, asked in silence: a token sees its own tenant only."""
        own = self.claims is None or scope[0] == self.claims.tenant
        return own and self.may("subscribe", "stream.subscribe", scope, name)

    def _deny(self, name: str, what: str) -> None:
        self.broker.audit.record("access.denied", self.principal.name, name, "denied", self.peer, what)
