"""Keeps users and ACLs in tables: changes them one at a time, and turns a name and a password into an identity.

The tables `__users` and `__acls` hold what is known; `Access` holds what is live, and follows every change at once. A
change is made one at a time: its turn comes, it is checked against what is true then, written, and its `done` is called
when it is durable, or with the error after it was taken back. So two changes can not each take one of the last two
administrators away.

    verb -> (hash the password, elsewhere) -> queue of changes -> check, write, live -> durable: done(result, None)
                                                                                    -> refused: taken back, done(None, error)

An unknown or disabled user costs the same hashes (logins.py), so the time of an answer tells nothing. Passwords and
hashes are in no repr, no log and no error.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from quintet.broker.audit.audit_log import Audit, Result
from quintet.broker.identity.access import (
    GROUP_PREFIX,
    INTERNAL_PREFIX,
    Access,
    Acl,
    Principal,
    Role,
    check_user_name,
    twin_key,
    user_identity,
)
from quintet.broker.identity.logins import Logins
from quintet.broker.identity.passwords import HASH_COSTS_MAX, NOBODY_HASH, Entropy, Hashing, costs_of
from quintet.broker.slices import in_order
from quintet.broker.table import Table
from quintet.log.base import Log
from quintet.model import limits
from quintet.model.errors import (
    AclNotFound,
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

USERS_TABLE: Final = (4, "__users")
ACLS_TABLE: Final = (5, "__acls")

USERS_MAX: Final = 10_000
GONE_MAX: Final = 10_000  # names of deleted users that are remembered
ROLES_OF_USER_MAX: Final = 100
ACLS_MAX: Final = 10_000
ACL_NAMES_MAX: Final = 1_000  # users and roles in one ACL
CHANGES_WAITING_MAX: Final = 1_000

CONFIGURATION: Final = "(configuration)"  # the user of changes that the configuration made, for the audit

Told = Callable[[Any, Exception | None], None]


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


class AclRow(msgspec.Struct, frozen=True):
    """What `__acls` keeps."""

    pattern: str
    public: bool
    users: tuple[str, ...]
    roles: tuple[str, ...]


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


# -- changes ----------------------------------------------------------------------------------------------------------

Finish = Callable[[Exception | None], None]
Follow = Callable[[], None]
# Checks against what is true now and writes, with `Finish` as the table's done; the str is the hashed password, if any.
Step = Callable[[str, Finish], tuple[Any, Follow]]


@dataclass(frozen=True, slots=True, repr=False)
class _Note:
    """Who asked for what, for the answer and the audit."""

    type: str
    actor: str
    resource: str
    peer: str
    done: Told
    details: dict[str, object] = field(default_factory=dict)


class Users:
    """The verbs. Reads answer at once; every other verb calls `done(result, error)` exactly once, later."""

    def __init__(
        self,
        log: Log,
        scheduler: Scheduler,
        access: Access,
        audit: Audit,
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
        self._acls = Table(log, *ACLS_TABLE, AclRow)
        self._twins: dict[str, str] = {}
        self._last_version = 0
        self._waiting: deque[tuple[_Note, Callable[[Finish], tuple[Any, Follow]]]] = deque()
        self._under_way: tuple[_Note, Any, Follow] | None = None
        self._reloads: deque[tuple[tuple[ConfiguredUser, ...], Finish]] = deque()
        self.on_deleted: Callable[[str], None] | None = (
            None  # a user is gone, durably: what belonged to it should follow
        )

    def load(self) -> None:
        """Fold the tables and make them live. Blocks: only used at start."""
        self._table.load()
        self._acls.load()
        for row in self._table:
            self._last_version = max(self._last_version, row.version)
            self._follow_user(row.name)
        for acl in self._acls:
            self._follow_acl(acl.pattern)

    # -- who -------------------------------------------------------------------------------------------------------

    def authenticate_password(self, name: str, password: bytes, done: Told, *, peer: str = "") -> Callable[[], None]:
        """done((identity, principal), None), or done(None, AuthError or Busy). What is returned gives up, for a connection
        that has gone: then `done` is not called any more."""
        row = self._find(name)
        if row is None or not row.enabled or not 1 <= len(password) <= limits.PASSWORD_BYTES_MAX:
            row = None
        told = partial(self._authenticated, name, row, peer, done)
        version, stored = (row.version, row.hash) if row is not None else (0, "")
        try:
            clean = row.name if row is not None else name
            return self._logins.verify(clean, version, stored, password[: limits.PASSWORD_BYTES_MAX], told)
        except Busy as error:
            self._audit.record("auth.failure", name, "", "failure", peer, "login", reason="busy")
            self._scheduler.soon(partial(done, None, error))
            return lambda: None

    def _authenticated(
        self, name: str, row: UserRow | None, peer: str, done: Told, result: bool | BaseException
    ) -> None:
        if row is not None and result is True:
            identity = user_identity(row.name, row.version)
            principal = self._access.current(identity)  # it may have changed while the hash was computed
            if principal is not None:
                self._audit.record("auth.success", row.name, "", "success", peer, "login")
                done((identity, principal), None)
                return
        self._audit.record("auth.failure", name, "", "denied", peer, "login")
        done(None, AuthError("invalid user name or password", hint="check both, and that the user is enabled"))

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

    def acl_get(self, pattern: str) -> Acl | None:
        row = self._acls.get(pattern.encode("utf-8", "replace"))
        return None if row is None else Acl(row.pattern, row.public, row.users, row.roles)

    def acl_list(self) -> Sequence[Acl]:
        return [acl for acl in self.acl_walk() if acl is not None]

    def acl_walk(self) -> Iterator[Acl | None]:
        """All access rules by pattern; None is a pause."""
        for row in in_order(tuple(self._acls), lambda row: row.pattern):
            yield None if row is None else Acl(row.pattern, row.public, row.users, row.roles)

    def roles(self) -> Sequence[Role]:
        return self._access.roles()

    # -- users -----------------------------------------------------------------------------------------------------

    def create(
        self, actor: Principal, name: str, password: bytes, roles: Iterable[str], done: Told, *, peer: str = ""
    ) -> None:
        """A new user, enabled: done(UserInfo, None)."""
        chosen = tuple(dict.fromkeys(roles))
        note = _Note("user.create", actor.name, name, peer, done, {"roles": ",".join(chosen)})

        def check() -> None:
            self._check_administrator(actor)
            self._check_password(password)
            self._check_new(name)
            self._check_roles(chosen)

        self._begin(note, check, password, partial(self._create, name, chosen))

    def _create(self, name: str, roles: tuple[str, ...], hashed: str, finish: Finish) -> tuple[UserInfo, Follow]:
        clean = self._check_new(name)
        self._check_roles(roles)
        born = self._next_version()
        row = UserRow(clean, hashed, roles, True, born, born, born)
        return self._info(row), self._put(row, finish)

    def update(
        self,
        actor: Principal,
        name: str,
        roles: Iterable[str] | None,
        enabled: bool | None,
        password: bytes | None,
        done: Told,
        *,
        peer: str = "",
    ) -> None:
        """Change what is not None: done(UserInfo, None)."""
        chosen = None if roles is None else tuple(dict.fromkeys(roles))
        details: dict[str, object] = {"password": password is not None}
        if chosen is not None:
            details["roles"] = ",".join(chosen)
        if enabled is not None:
            details["enabled"] = enabled
        note = _Note("user.update", actor.name, name, peer, done, details)

        def check() -> None:
            self._check_administrator(actor)
            self._existing(name)
            if password is not None:
                self._check_password(password)

        self._begin(note, check, password, partial(self._update, name, chosen, enabled))

    def _update(
        self, name: str, roles: tuple[str, ...] | None, enabled: bool | None, hashed: str, finish: Finish
    ) -> tuple[UserInfo, Follow]:
        row = self._existing(name)
        if roles is not None:
            self._check_roles(roles)
        fresh = msgspec.structs.replace(
            row,
            roles=row.roles if roles is None else roles,
            enabled=row.enabled if enabled is None else enabled,
            hash=hashed or row.hash,
            version=self._next_version() if hashed else row.version,
            updated_us=self._scheduler.now(),
        )
        self._check_not_last(row, fresh)
        return self._info(fresh), self._put(fresh, finish)

    def delete(self, actor: Principal, name: str, done: Told, *, peer: str = "") -> None:
        """Remove a user: done(name, None). What it owned (subscriptions, groups) stays with its name."""
        note = _Note("user.delete", actor.name, name, peer, done)
        self._begin(note, partial(self._check_administrator, actor), None, partial(self._delete, actor.name, name))

    def _delete(self, actor: str, name: str, _hashed: str, finish: Finish) -> tuple[str, Follow]:
        row = self._existing(name)
        if row.name == actor:
            raise Forbidden("you cannot delete your own account", hint="another administrator can do it")
        self._check_not_last(row, None)
        return row.name, self._bury(row, finish)

    def change_password(
        self, actor: Principal, name: str, old: bytes, new: bytes, done: Told, *, peer: str = ""
    ) -> None:
        """A new password: done(name, None). Sessions with the old one end. Only administrators need not know the old."""
        note = _Note("user.password", actor.name, name, peer, done)
        row = self._find(name)
        try:
            administrator = self._access.may_administer(actor)
            if not administrator and (row is None or row.name != actor.name):
                raise Forbidden("only an administrator changes the password of another user")
            self._check_password(new)
            if administrator:
                self._existing(name)
                self._hashing.hash(new, partial(self._hashed, note, partial(self._set_password, name, None)))
                return
            assert row is not None, "a name that is not there is not the actor's"
            step = partial(self._set_password, name, row.version)
            usable = row.enabled and 1 <= len(old) <= limits.PASSWORD_BYTES_MAX
            told = partial(self._old_verified, note, step, new)
            self._hashing.verify(row.hash if usable else NOBODY_HASH, old if usable else b"nobody", told)
        except QuintetError as error:
            self._refuse_later(note, error)

    def _old_verified(self, note: _Note, step: Step, new: bytes, result: bool | BaseException) -> None:
        try:
            if result is not True:
                raise AuthError("the old password is not right")
            self._hashing.hash(new, partial(self._hashed, note, step))
        except QuintetError as error:
            self._refuse(note, error)

    def _set_password(self, name: str, version: int | None, hashed: str, finish: Finish) -> tuple[str, Follow]:
        row = self._existing(name)
        if version is not None and (row.version != version or not row.enabled):
            raise AuthError("the user was changed meanwhile")
        now = self._scheduler.now()
        fresh = msgspec.structs.replace(row, hash=hashed, version=self._next_version(), updated_us=now)
        return row.name, self._put(fresh, finish)

    # -- users of the configuration --------------------------------------------------------------------------------

    def configure(self, users: Iterable[ConfiguredUser], done: Finish) -> None:
        """Make the table agree with the configuration: its users are written where they differ, those that are no longer
        in it are removed, users made on the wire stay. A user disabled on the wire stays disabled. done(first error)."""
        self._reloads.append((tuple(users), done))
        if len(self._reloads) == 1:
            self._reload()

    def _reload(self) -> None:
        """One after the other: of two configurations the later one must be written last."""
        users, done = self._reloads[0]
        wanted: dict[str, ConfiguredUser] = {}
        refused: Exception | None = None
        try:
            for user in users:
                wanted[self._check_configured(user)] = user
            if len({twin_key(name) for name in wanted}) < len(users):
                raise UserExists("two configured users have the same name, or names that look the same")
            if len({costs_of(user.password_hash) for user in users}) > HASH_COSTS_MAX:
                raise BadRequest(
                    f"the hashes of the configured users have more than {HASH_COSTS_MAX} different costs (m, t, p)",
                    hint="each login pays for all of them: hash the passwords again with the same costs",
                )
        except QuintetError as error:
            refused = error
        if refused is not None:
            self._scheduler.soon(partial(self._reloaded, done, refused))
            return
        gone = [row.name for row in self._table if row.configured and row.name not in wanted]
        errors: deque[Exception] = deque()
        left = len(wanted) + len(gone) + 1

        def one(_result: Any, error: Exception | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                errors.append(error)
            if left == 0:
                self._reloaded(done, errors[0] if errors else None)

        for name in gone:
            self._enqueue(_Note("user.delete", CONFIGURATION, name, "", one), partial(self._delete_configured, name))
        for name, user in wanted.items():
            self._configure(name, user, one)
        self._scheduler.soon(partial(one, None, None))

    def _reloaded(self, done: Finish, error: Exception | None) -> None:
        self._reloads.popleft()
        if self._reloads:
            self._reload()
        done(error)

    def _configure(self, name: str, user: ConfiguredUser, one: Told) -> None:
        row = self._find(name)
        note = _Note(
            "user.update" if row else "user.create", CONFIGURATION, name, "", one, {"roles": ",".join(user.roles)}
        )
        step = partial(self._write_configured, name, user.roles)
        if user.password_hash:
            self._settle(note, step, user.password_hash, row)
        elif row is None:
            self._hashing.hash(user.password, partial(self._hashed, note, step), must=True)
        else:
            told = partial(self._compared, note, step, user.password, row)
            self._hashing.verify(row.hash, user.password, told, must=True)

    def _compared(self, note: _Note, step: Step, password: bytes, row: UserRow, result: bool | BaseException) -> None:
        if result is True:
            self._settle(note, step, row.hash, row)
        else:
            self._hashing.hash(password, partial(self._hashed, note, step), must=True)

    def _settle(self, note: _Note, step: Step, hashed: str, row: UserRow | None) -> None:
        """Nothing is written where nothing differs."""
        same = row is not None and row.configured and row.hash == hashed
        if same and row is not None and ",".join(row.roles) == note.details["roles"]:
            self._scheduler.soon(partial(note.done, None, None))
        else:
            self._enqueue(note, partial(step, hashed))

    def _write_configured(self, name: str, roles: tuple[str, ...], hashed: str, finish: Finish) -> tuple[None, Follow]:
        row = self._find(name)
        now = self._scheduler.now()
        if row is None:
            born = self._next_version()
            fresh = UserRow(name, hashed, roles, True, born, born, born, True)
        else:
            version = row.version if row.hash == hashed else self._next_version()
            fresh = msgspec.structs.replace(
                row, hash=hashed, roles=roles, version=version, updated_us=now, configured=True
            )
        return None, self._put(fresh, finish)

    def _delete_configured(self, name: str, finish: Finish) -> tuple[None, Follow]:
        return None, self._bury(self._existing(name), finish)

    # -- ACLs ------------------------------------------------------------------------------------------------------

    def acl_set(self, actor: Principal, acl: Acl, done: Told, *, peer: str = "") -> None:
        """Make this the rule of its pattern, in place of the one there was: done(Acl, None)."""
        words: dict[str, object] = {
            "public": acl.public, "users": ",".join(acl.users), "roles": ",".join(acl.roles),
        }  # fmt: skip
        note = _Note("acl.set", actor.name, acl.pattern, peer, done, words)
        self._begin(note, partial(self._check_acl, actor, acl), None, partial(self._acl_set, actor, acl))

    def _acl_set(self, actor: Principal, acl: Acl, _hashed: str, finish: Finish) -> tuple[Acl, Follow]:
        clean = self._check_acl(actor, acl)
        key = clean.pattern.encode()
        if self._acls.get(key) is None and len(self._acls) >= ACLS_MAX:
            raise LimitExceeded(f"there are {ACLS_MAX} access rules already", hint="delete one, or use prefix patterns")
        self._acls.put(key, AclRow(clean.pattern, clean.public, clean.users, clean.roles), finish)
        return clean, partial(self._follow_acl, clean.pattern)

    def acl_delete(self, actor: Principal, pattern: str, done: Told, *, peer: str = "") -> None:
        """Remove the rule of this pattern: done(pattern, None), or AclNotFound."""
        note = _Note("acl.delete", actor.name, pattern, peer, done)
        self._begin(note, partial(self._check_acl, actor, Acl(pattern)), None, partial(self._acl_delete, pattern))

    def _acl_delete(self, pattern: str, _hashed: str, finish: Finish) -> tuple[str, Follow]:
        if self.acl_get(pattern) is None:
            raise AclNotFound(f"there is no access rule for {pattern!r}")
        self._acls.delete(pattern.encode(), finish)
        return pattern, partial(self._follow_acl, pattern)

    # -- the queue of changes --------------------------------------------------------------------------------------

    def _begin(self, note: _Note, check: Callable[[], object], password: bytes | None, step: Step) -> None:
        """Refuse what is wrong before it costs anything, hash if need be, then stand in line."""
        try:
            check()
            if password is not None:
                self._hashing.hash(password, partial(self._hashed, note, step))
                return
        except QuintetError as error:
            self._refuse_later(note, error)
            return
        self._enqueue(note, partial(step, ""))

    def _hashed(self, note: _Note, step: Step, result: str | BaseException) -> None:
        if isinstance(result, BaseException):
            self._refuse(note, Busy("the password could not be hashed", hint="is there memory left? try again"))
        else:
            self._enqueue(note, partial(step, result))

    def _enqueue(self, note: _Note, step: Callable[[Finish], tuple[Any, Follow]]) -> None:
        if len(self._waiting) >= CHANGES_WAITING_MAX and note.actor != CONFIGURATION:
            self._refuse_later(note, Busy(f"{len(self._waiting)} changes wait already", hint="try again in a moment"))
            return
        self._waiting.append((note, step))
        self._next()

    def _next(self) -> None:
        while self._waiting and self._under_way is None:
            note, step = self._waiting.popleft()
            try:
                result, follow = step(self._written)
            except QuintetError as error:
                self._refuse_later(note, error)
                continue
            self._under_way = (note, result, follow)
            follow()

    def _written(self, error: Exception | None) -> None:
        assert self._under_way is not None, "only the change under way has given this as its done"
        note, result, follow = self._under_way
        self._under_way = None
        if error is not None:
            follow()  # the table took it back
        elif note.type == "user.delete" and self.on_deleted is not None:
            self.on_deleted(check_user_name(note.resource))
        self._next()
        if error is not None:
            self._refuse(note, error)
            return
        self._audit.record(
            note.type, note.actor, note.resource, "success", note.peer, note.type.partition(".")[2], **note.details
        )
        note.done(result, None)

    def _refuse_later(self, note: _Note, error: Exception) -> None:
        self._scheduler.soon(partial(self._refuse, note, error))

    def _refuse(self, note: _Note, error: Exception) -> None:
        result: Result = "denied" if isinstance(error, Forbidden | AuthError) else "failure"
        action = note.type.partition(".")[2]
        self._audit.record(note.type, note.actor, note.resource, result, note.peer, action, reason=str(error))
        note.done(None, error)

    # -- small parts -----------------------------------------------------------------------------------------------

    def _put(self, row: UserRow, finish: Finish) -> Follow:
        self._table.put(row.name.encode(), row, finish)
        return partial(self._follow_user, row.name)

    def _bury(self, row: UserRow, finish: Finish) -> Follow:
        """Delete a user. Its name stays, of as many as GONE_MAX; the oldest is nobody's again."""
        gone = [row for row in self._table if row.gone]
        if len(gone) >= GONE_MAX:
            oldest = min(gone, key=lambda row: row.updated_us).name
            self._table.delete(oldest.encode())
            self._follow_user(oldest)
        now = self._scheduler.now()
        return self._put(UserRow(row.name, "", (), False, row.version, row.created_us, now, gone=True), finish)

    def _follow_user(self, name: str) -> None:
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

    def _follow_acl(self, pattern: str) -> None:
        acl = self.acl_get(pattern)
        if acl is None:
            self._access.drop_acl(pattern)
        else:
            self._access.set_acl(acl)

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
            raise LimitExceeded(f"there are {USERS_MAX} users already")
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

    def _check_roles(self, roles: Sequence[str]) -> None:
        if len(roles) > ROLES_OF_USER_MAX:
            raise BadRequest(f"{len(roles)} roles, the limit is {ROLES_OF_USER_MAX}")
        for role in roles:
            if not self._access.has_role(role):
                known = ", ".join(sorted(found.name for found in self._access.roles()))
                raise BadRequest(f"there is no role {role!r}", hint=f"the roles are {known}")

    def _check_password(self, password: bytes) -> None:
        least = max(self._password_bytes_min, 1)
        if not least <= len(password) <= limits.PASSWORD_BYTES_MAX:
            raise BadRequest(
                f"a password has {least} to {limits.PASSWORD_BYTES_MAX} bytes, this one has {len(password)}"
            )

    def _check_configured(self, user: ConfiguredUser) -> str:
        clean = check_user_name(user.name)
        twin = self._twin_of(clean)
        found = None if twin is None else self._find(twin)
        if twin not in (None, clean) and not (found is not None and found.configured):
            raise UserExists(f"the configured user {clean!r} looks the same as {twin!r}, which is there")
        self._check_roles(user.roles)
        if not user.password_hash and not 1 <= len(user.password) <= limits.PASSWORD_BYTES_MAX:
            raise BadRequest(
                f"the password of the configured user {clean!r} has not 1 to {limits.PASSWORD_BYTES_MAX} bytes"
            )
        return clean

    def _check_acl(self, actor: Principal, acl: Acl) -> Acl:
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
            raise LimitExceeded(f"an access rule names at most {ACL_NAMES_MAX} users and roles")
        self._check_roles(acl.roles)
        users = tuple(dict.fromkeys(check_user_name(name) for name in acl.users))
        return Acl(pattern, acl.public, users, tuple(dict.fromkeys(acl.roles)))
