"""Keeps users in a table: changes them, and turns a name and a password into an identity.

The table `__users` holds what is known; `Access` holds what is live, and follows every change at once. Changes are made one
at a time (changes.py).

    verb -> (hash the password, elsewhere) -> line of changes -> check, write, live -> durable: the verb returns
                                                                                   -> refused: taken back, the verb raises

An unknown or disabled user costs the same hashes (logins.py), so the time of an answer tells nothing. Passwords and
hashes are in no repr, no log and no error.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from quintet.broker.audit.audit_log import Recorder
from quintet.broker.identity.access import Access, Principal, Role, check_user_name, twin_key, user_identity
from quintet.broker.identity.access_rules import AccessRules
from quintet.broker.identity.changes import CONFIGURATION, Changes, write
from quintet.broker.identity.logins import Logins
from quintet.broker.identity.passwords import HASH_COSTS_MAX, NOBODY_HASH, Entropy, Hashing, costs_of
from quintet.broker.slices import in_order
from quintet.broker.table import Table, TableLog
from quintet.model import limits
from quintet.model.errors import (
    AuthError,
    BadName,
    BadRequest,
    Busy,
    Forbidden,
    LimitExceeded,
    QuintetError,
    UserExists,
    UserNotFound,
)
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Mutex, gather, next_turn

USERS_TABLE: Final = (4, "__users")

USERS_MAX: Final = 10_000
GONE_MAX: Final = 10_000  # names of deleted users that are remembered


class UserRow(msgspec.Struct, frozen=True):
    """What `__users` keeps. `version` is another with every password, also after the user was deleted and made again. So is
    `created_us`, the first version, which tells users of one name apart for good: keys belong to one of them."""

    name: str
    hash: str
    roles: tuple[str, ...]
    enabled: bool
    version: int
    created_us: int
    updated_us: int
    configured: bool = False
    gone: bool = False  # deleted: only the name is kept, so that no token makes it somebody with rights of its own

    def __repr__(self) -> str:
        return f"<UserRow {self.name!r} roles={self.roles} enabled={self.enabled}>"


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user as others may see it. Times are seconds since 1970."""

    name: str
    roles: tuple[str, ...]
    permissions: tuple[str, ...]
    enabled: bool
    created_s: int
    updated_s: int


@dataclass(frozen=True, slots=True)
class ConfiguredUser:
    """A user of the configuration, with its password or the argon2id hash of it."""

    name: str
    roles: tuple[str, ...] = ()
    password: bytes = field(default=b"", repr=False)
    password_hash: str = field(default="", repr=False)


class Users:
    """The verbs."""

    def __init__(
        self,
        log: TableLog,
        scheduler: Scheduler,
        access: Access,
        audit: Recorder,
        entropy: Entropy,
        password_bytes_min: int = limits.PASSWORD_BYTES_MIN_DEFAULT,
    ) -> None:
        self._scheduler = scheduler
        self._access = access
        self._audit = audit
        self._password_bytes_min = password_bytes_min
        self._hashing = Hashing(scheduler, entropy)
        self._logins = Logins(self._hashing, scheduler, entropy)
        self._table = Table(log, *USERS_TABLE, UserRow)
        self._changes = self.changes = Changes(scheduler, audit)
        self._reloads = Mutex()
        self._twins: dict[str, str] = {}
        self._last_version = 0
        self.rules = AccessRules(log, access, self._changes)
        self.on_deleted: Callable[[str], None] | None = (
            None  # a user is gone, durably: what belonged to it should follow
        )

    def load(self) -> None:
        """Fold the tables and make them live. Blocks: only used at start."""
        self._table.load()
        for row in self._table:
            self._last_version = max(self._last_version, row.version)
            self._follow(row.name)
        self.rules.load()

    def follow(self) -> None:
        """Of a follower: make live what the leader wrote since the last call."""
        self.take(self._table.follow())
        self.rules.follow()

    def take(self, changed: Collection[bytes]) -> None:
        """Make live what the rows of these keys say, which somebody else wrote."""
        for key in changed:
            self._follow(key.decode())

    @property
    def table(self) -> Table[UserRow]:
        return self._table

    # -- who -------------------------------------------------------------------------------------------------------

    async def authenticate_password(self, name: str, password: bytes, *, peer: str = "") -> tuple[str, Principal]:
        """(identity, principal); AuthError or Busy. To be cancelled when the connection has gone."""
        row = self._find(name)
        if row is None or not row.enabled or not 1 <= len(password) <= limits.PASSWORD_BYTES_MAX:
            row = None
        clean, version, stored = (row.name, row.version, row.hash) if row is not None else (name, 0, "")
        try:
            right = await self._logins.verify(clean, version, stored, password[: limits.PASSWORD_BYTES_MAX])
        except Busy:
            self._audit.record("auth.failure", name, "", "failure", peer, "login", reason="busy")
            await next_turn(self._scheduler)
            raise
        if row is not None and right:
            identity = user_identity(row.name, row.version)
            principal = self._access.current(identity)  # it may have changed while the hash was computed
            if principal is not None:
                self._audit.record("auth.success", row.name, "", "success", peer, "login")
                return identity, principal
        self._audit.record("auth.failure", name, "", "denied", peer, "login")
        raise AuthError("invalid user name or password", hint="check both, and that the user is enabled")

    # -- reads -----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> UserInfo | None:
        row = self._find(name)
        return None if row is None else self._info(row)

    def born(self, name: str) -> int | None:
        """When this user was made, which no other user of this name was, in microseconds; None: there is none."""
        row = self._find(name)
        return None if row is None else row.created_us

    def list(self) -> Sequence[UserInfo]:
        return [info for info in self.walk() if info is not None]

    def walk(self) -> Iterator[UserInfo | None]:
        """All users by name; None is a pause."""
        for row in in_order(tuple(self._table), lambda row: row.name):
            yield None if row is None or row.gone else self._info(row)

    def roles(self) -> Sequence[Role]:
        return self._access.roles()

    # -- users -----------------------------------------------------------------------------------------------------

    async def create(
        self, actor: Principal, name: str, password: bytes, roles: Iterable[str], *, peer: str = ""
    ) -> UserInfo:
        """A new user, enabled."""
        chosen = tuple(dict.fromkeys(roles))
        async with self._changes.audited("user.create", actor.name, name, peer, roles=",".join(chosen)):
            self._check_administrator(actor)
            self._check_password(password)
            self._check_new(name)
            self._access.check_roles(chosen)
            hashed = await self._hashing.hash(password)
            async with self._changes.alone(actor.name):
                clean = self._check_new(name)
                self._access.check_roles(chosen)
                born = self._next_version()
                row = UserRow(clean, hashed, chosen, True, born, born, born)
                info = self._info(row)
                await self._put(row)
        return info

    async def update(
        self,
        actor: Principal,
        name: str,
        roles: Iterable[str] | None,
        enabled: bool | None,
        password: bytes | None,
        *,
        peer: str = "",
    ) -> UserInfo:
        """Change what is not None."""
        chosen = None if roles is None else tuple(dict.fromkeys(roles))
        details: dict[str, object] = {"password": password is not None}
        if chosen is not None:
            details["roles"] = ",".join(chosen)
        if enabled is not None:
            details["enabled"] = enabled
        async with self._changes.audited("user.update", actor.name, name, peer, **details):
            self._check_administrator(actor)
            self._existing(name)
            if password is not None:
                self._check_password(password)
            hashed = "" if password is None else await self._hashing.hash(password)
            async with self._changes.alone(actor.name):
                row = self._existing(name)
                if chosen is not None:
                    self._access.check_roles(chosen)
                fresh = msgspec.structs.replace(
                    row,
                    roles=row.roles if chosen is None else chosen,
                    enabled=row.enabled if enabled is None else enabled,
                    hash=hashed or row.hash,
                    version=self._next_version() if hashed else row.version,
                    updated_us=self._scheduler.now(),
                )
                self._check_not_last(row, fresh)
                info = self._info(fresh)
                await self._put(fresh)
        return info

    async def delete(self, actor: Principal, name: str, *, peer: str = "") -> str:
        """Remove a user, and return its name. What it owned (subscriptions, groups) stays with its name."""
        async with self._changes.audited("user.delete", actor.name, name, peer):
            self._check_administrator(actor)
            async with self._changes.alone(actor.name):
                row = self._existing(name)
                if row.name == actor.name:
                    raise Forbidden("you cannot delete your own account", hint="another administrator can do it")
                self._check_not_last(row, None)
                await self._bury(row)
        return row.name

    async def change_password(self, actor: Principal, name: str, old: bytes, new: bytes, *, peer: str = "") -> str:
        """A new password, for the user whose name is returned. Sessions with the old one end. Only administrators need not
        know the old."""
        async with self._changes.audited("user.password", actor.name, name, peer):
            before = self._find(name)
            administrator = self._access.may_administer(actor)
            if not administrator and (before is None or before.name != actor.name):
                raise Forbidden("only an administrator may change the password of another user")
            self._check_password(new)
            if before is None:
                raise UserNotFound(f"there is no user {name!r}")
            if not administrator:
                usable = before.enabled and 1 <= len(old) <= limits.PASSWORD_BYTES_MAX
                stored, given = (before.hash, old) if usable else (NOBODY_HASH, b"nobody")
                if not await self._hashing.verify(stored, given):
                    raise AuthError("the old password is wrong")
            hashed = await self._hashing.hash(new)
            async with self._changes.alone(actor.name):
                row = self._existing(name)
                if not administrator and (row.version != before.version or not row.enabled):
                    raise AuthError("the user was changed meanwhile")
                now = self._scheduler.now()
                await self._put(msgspec.structs.replace(row, hash=hashed, version=self._next_version(), updated_us=now))
        return row.name

    # -- users of the configuration --------------------------------------------------------------------------------

    async def configure(self, users: Iterable[ConfiguredUser]) -> None:
        """Make the table agree with the configuration: its users are written where they differ, those that are no longer
        in it are removed, users made on the wire stay. A user disabled on the wire stays disabled. Raises the first error."""
        chosen = tuple(users)
        async with self._reloads:  # of two configurations the later one must be written last
            try:
                wanted = self._check_configuration(chosen)
            except QuintetError:
                await next_turn(self._scheduler)
                raise
            gone = [row.name for row in self._table if row.configured and row.name not in wanted]
            deleted = [self._delete_configured(name) for name in gone]
            written = [self._configure(name, user) for name, user in wanted.items()]
            await gather(*deleted, *written, next_turn(self._scheduler))

    async def _configure(self, name: str, user: ConfiguredUser) -> None:
        """Nothing is written where nothing differs."""
        row = self._find(name)
        hashed = user.password_hash
        if row is not None:
            if not hashed and await self._hashing.verify(row.hash, user.password, must=True):
                hashed = row.hash
            if row.configured and row.hash == hashed and row.roles == user.roles:
                return
        kind = "user.create" if row is None else "user.update"
        async with self._changes.audited(kind, CONFIGURATION, name, "", roles=",".join(user.roles)):
            hashed = hashed or await self._hashing.hash(user.password, must=True)
            async with self._changes.alone(CONFIGURATION):
                await self._put(self._configured(self._find(name), name, user.roles, hashed))

    def _configured(self, row: UserRow | None, name: str, roles: tuple[str, ...], hashed: str) -> UserRow:
        if row is None:
            born = self._next_version()
            return UserRow(name, hashed, roles, True, born, born, born, True)
        version = row.version if row.hash == hashed else self._next_version()
        now = self._scheduler.now()
        return msgspec.structs.replace(row, hash=hashed, roles=roles, version=version, updated_us=now, configured=True)

    async def _delete_configured(self, name: str) -> None:
        async with self._changes.audited("user.delete", CONFIGURATION, name, ""), self._changes.alone(CONFIGURATION):
            await self._bury(self._existing(name))

    # -- small parts -----------------------------------------------------------------------------------------------

    async def _put(self, row: UserRow) -> None:
        await write(self._table.put(row.name.encode(), row), lambda: self._follow(row.name))

    async def _bury(self, row: UserRow) -> None:
        """Delete a user. Its name stays, of as many as GONE_MAX; the oldest is nobody's again."""
        gone = [row for row in self._table if row.gone]
        if len(gone) >= GONE_MAX:
            oldest = min(gone, key=lambda row: row.updated_us).name
            self._table.delete(oldest.encode())
            self._follow(oldest)
        now = self._scheduler.now()
        await self._put(UserRow(row.name, "", (), False, row.version, row.created_us, now, gone=True))
        if self.on_deleted is not None:
            self.on_deleted(row.name)

    def _follow(self, name: str) -> None:
        """Access, logins and twins say what the table says."""
        row = self._table.get(name.encode())
        self._logins.follow(name, row.hash if row is not None and row.enabled and not row.gone else "")
        if row is not None and not row.gone:
            self._twins[twin_key(name)] = name
        elif self._twins.get(twin_key(name)) == name:
            del self._twins[twin_key(name)]
        if row is None:
            self._access.drop_user(name)
        elif row.enabled:
            self._access.set_user(name, row.version, row.roles)
        else:
            self._access.disable_user(name)

    def _next_version(self) -> int:
        self._last_version = max(self._last_version + 1, self._scheduler.now())
        return self._last_version

    def _find(self, name: str) -> UserRow | None:
        try:
            row = self._table.get(check_user_name(name).encode())
        except BadName:
            return None
        return None if row is None or row.gone else row

    def _existing(self, name: str) -> UserRow:
        row = self._find(name)
        if row is None:
            raise UserNotFound(f"there is no user {name!r}")
        return row

    def _info(self, row: UserRow) -> UserInfo:
        permissions = self._access.principal(row.name, row.roles).permissions
        return UserInfo(
            row.name, row.roles, permissions, row.enabled, row.created_us // 1_000_000, row.updated_us // 1_000_000
        )

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_administrator(self, actor: Principal) -> None:
        if not self._access.may_administer(actor):
            raise Forbidden(f"{actor.name} may not administer users", hint="the role admin may")

    def _check_not_last(self, before: UserRow, after: UserRow | None) -> None:
        def administers(row: UserRow) -> bool:
            return row.enabled and self._access.may_administer(self._access.principal(row.name, row.roles))

        if not administers(before) or (after is not None and administers(after)):
            return
        if not any(administers(row) for row in self._table if row.name != before.name):
            raise Forbidden(
                f"{before.name} is the last enabled administrator", hint="make another user an administrator first"
            )

    def _check_new(self, name: str) -> str:
        clean = check_user_name(name)
        if sum(not row.gone for row in self._table) >= USERS_MAX:
            raise LimitExceeded(f"there are {USERS_MAX} users, which is the limit: delete one first")
        twin = self._twin_of(clean)
        if twin is not None:
            raise UserExists(
                f"user {clean!r} exists" if twin == clean else f"user {clean!r} was not made: {twin!r} looks the same"
            )
        return clean

    def _twin_of(self, clean: str) -> str | None:
        """Who has this name or one that looks the same. A key of exactly this name has the same owner."""
        folded = twin_key(clean)
        twin = self._twins.get(folded)
        if twin is not None:
            return twin
        return next((key for key in self._access.key_names() if key != clean and twin_key(key) == folded), None)

    def _check_password(self, password: bytes) -> None:
        least = max(self._password_bytes_min, 1)
        if not least <= len(password) <= limits.PASSWORD_BYTES_MAX:
            raise BadRequest(
                f"a password has {least} to {limits.PASSWORD_BYTES_MAX} bytes, this one has {len(password)}"
            )

    def _check_configuration(self, users: Sequence[ConfiguredUser]) -> dict[str, ConfiguredUser]:
        wanted = {self._check_configured(user): user for user in users}
        if len({twin_key(name) for name in wanted}) < len(users):
            raise UserExists("two configured users have the same name, or names that look the same")
        if len({costs_of(user.password_hash) for user in users}) > HASH_COSTS_MAX:
            raise BadRequest(
                f"the hashes of the configured users have more than {HASH_COSTS_MAX} different costs (m, t, p)",
                hint="each login pays for all of them: hash the passwords again with the same costs",
            )
        return wanted

    def _check_configured(self, user: ConfiguredUser) -> str:
        clean = check_user_name(user.name)
        twin = self._twin_of(clean)
        found = None if twin is None else self._find(twin)
        if twin not in (None, clean) and not (found is not None and found.configured):
            raise UserExists(f"the configured user {clean!r} looks the same as {twin!r}, which is there")
        self._access.check_roles(user.roles)
        if not user.password_hash and not 1 <= len(user.password) <= limits.PASSWORD_BYTES_MAX:
            raise BadRequest(
                f"the password of the configured user {clean!r} has not 1 to {limits.PASSWORD_BYTES_MAX} bytes"
            )
        return clean
