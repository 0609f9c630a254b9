"""Keeps access rules (ACLs) in a table: sets, deletes and lists them.

The table `__acls` holds what is known; `Access` holds what is live, and follows every change at once.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import msgspec

from quintet.broker.identity.access import GROUP_PREFIX, INTERNAL_PREFIX, Access, Acl, Principal, check_user_name
from quintet.broker.identity.changes import Changes, write
from quintet.broker.slices import in_order
from quintet.broker.table import Table, TableLog
from quintet.model import limits
from quintet.model.errors import AclNotFound, BadName, Forbidden, LimitExceeded

ACLS_TABLE: Final = (5, "__acls")
ACLS_MAX: Final = 10_000
ACL_NAMES_MAX: Final = 1_000  # users and roles in one ACL


class AclRow(msgspec.Struct, frozen=True):
    """What `__acls` keeps."""

    pattern: str
    public: bool
    users: tuple[str, ...]
    roles: tuple[str, ...]


class AccessRules:
    """The verbs."""

    def __init__(self, log: TableLog, access: Access, changes: Changes) -> None:
        self._access = access
        self._changes = changes
        self._table = Table(log, *ACLS_TABLE, AclRow)

    def load(self) -> None:
        """Fold the table and make it live. Blocks: only used at start."""
        self._table.load()
        for row in self._table:
            self._follow(row.pattern)

    def follow(self) -> None:
        """Of a follower: make live what the leader wrote since the last call."""
        self.take(self._table.follow())

    def take(self, changed: Collection[bytes]) -> None:
        """Make live what the rows of these keys say, which somebody else wrote."""
        for key in changed:
            self._follow(key.decode())

    @property
    def table(self) -> Table[AclRow]:
        return self._table

    def get(self, pattern: str) -> Acl | None:
        row = self._table.get(pattern.encode("utf-8", "replace"))
        return None if row is None else Acl(row.pattern, row.public, row.users, row.roles)

    def list(self) -> Sequence[Acl]:
        return [acl for acl in self.walk() if acl is not None]

    def walk(self) -> Iterator[Acl | None]:
        """All access rules by pattern; None is a pause."""
        for row in in_order(tuple(self._table), lambda row: row.pattern):
            yield None if row is None else Acl(row.pattern, row.public, row.users, row.roles)

    async def set(self, actor: Principal, acl: Acl, *, peer: str = "") -> Acl:
        """Make this the rule of its pattern, in place of the one there was; with its names in their one spelling."""
        users, roles = ",".join(acl.users), ",".join(acl.roles)
        async with self._changes.audited(
            "acl.set", actor.name, acl.pattern, peer, public=acl.public, users=users, roles=roles
        ):
            self._check(actor, acl)
            async with self._changes.alone(actor.name):
                clean = self._check(actor, acl)
                key = clean.pattern.encode()
                if self._table.get(key) is None and len(self._table) >= ACLS_MAX:
                    raise LimitExceeded(
                        f"there are {ACLS_MAX} access rules already", hint="delete one, or use prefix patterns"
                    )
                written = self._table.put(key, AclRow(clean.pattern, clean.public, clean.users, clean.roles))
                await write(written, lambda: self._follow(clean.pattern))
        return clean

    async def delete(self, actor: Principal, pattern: str, *, peer: str = "") -> str:
        """Remove the rule of this pattern, and return it; AclNotFound."""
        async with self._changes.audited("acl.delete", actor.name, pattern, peer):
            self._check(actor, Acl(pattern))
            async with self._changes.alone(actor.name):
                if self.get(pattern) is None:
                    raise AclNotFound(f"there is no access rule for {pattern!r}")
                await write(self._table.delete(pattern.encode()), lambda: self._follow(pattern))
        return pattern

    def _follow(self, pattern: str) -> None:
        acl = self.get(pattern)
        if acl is None:
            self._access.drop_acl(pattern)
        else:
            self._access.set_acl(acl)

    def _check(self, actor: Principal, acl: Acl) -> Acl:
        """The rule with its names in their one spelling; only who administers what it speaks of may set it."""
        pattern = acl.pattern
        raw = pattern.encode("utf-8", "replace")
        size = len(raw.removeprefix(GROUP_PREFIX.encode()))
        if not 1 <= size <= limits.TOPIC_NAME_BYTES_MAX:
            raise BadName(f"an access rule's name has 1 to {limits.TOPIC_NAME_BYTES_MAX} bytes, this one has {size}")
        if raw.decode() != pattern or "*" in pattern[:-1] or "\0" in pattern or pattern.startswith(INTERNAL_PREFIX):
            raise BadName(
                f"no access rule can be named {pattern!r}",
                hint=f"it is a topic's name or a prefix ending in *, and does not begin with {INTERNAL_PREFIX}",
            )
        if not self._access.allowed(actor, "admin", pattern):
            raise Forbidden(f"{actor.name} may not administer {pattern!r}")
        if len(acl.users) + len(acl.roles) > ACL_NAMES_MAX:
            raise LimitExceeded(
                f"the access rule of {pattern!r} names too many users and roles; the limit is {ACL_NAMES_MAX}"
            )
        self._access.check_roles(acl.roles)
        users = tuple(dict.fromkeys(check_user_name(name) for name in acl.users))
        return Acl(pattern, acl.public, users, tuple(dict.fromkeys(acl.roles)))
