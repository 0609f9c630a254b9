"""Keeps API keys: makes random secrets, stores their hashes with an owner, and explains what a key may do.

One thing has several names: BlipMQ's AUTH sends it, peerbus calls it a bearer token, the Flight door takes it as `Bearer`.

    configured     [[keys]] of the configuration: replaced by every reload; its own rights, or those of a user
    of a user      made on the wire: stays until it is removed, expires, or its user is deleted; the rights of that user,
                   as they are now

A key made here is `qk_1a2b3c4d_` and 256 random bits in hexadecimal. `qk_1a2b3c4d` is its public id; the whole is shown
once, in the answer, and only its SHA-256 is kept: of a random secret that is as good as a slow hash. `Access` holds what is
live and follows every change at once. `explain` says what somebody may do and why, whatever it logs in with.
"""

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal, cast, get_args

import msgspec

from quintet.broker.audit.audit_log import Recorder, Result
from quintet.broker.identity.access import (
    Access,
    Action,
    Credential,
    Principal,
    Step,
    check_user_name,
    hash_secret,
)
from quintet.broker.identity.changes import CONFIGURATION, Audited, write
from quintet.broker.identity.passwords import Entropy
from quintet.broker.identity.users import Users
from quintet.broker.slices import in_order
from quintet.broker.table import Table
from quintet.model.errors import (
    AuthError,
    BadName,
    BadRequest,
    Forbidden,
    KeyNotFound,
    LimitExceeded,
    UserNotFound,
    message_of,
)
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import next_turn, start, start_alone

CREDENTIALS_TABLE: Final = (2, "__credentials")
ID_PREFIX: Final = "qk_"
ID_BYTES: Final = 4
SECRET_BYTES: Final = 32
KEYS_OF_USER_MAX: Final = 100
KEYS_MAX: Final = 20_000
KEY_NAME_BYTES_MAX: Final = 100
SECOND_US: Final = 1_000_000


class CredentialRow(msgspec.Struct, frozen=True):
    """What `__credentials` keeps: never the secret. `id` is empty for configured keys; `born_us` is when the user was made,
    so that a later user of the same name does not inherit the keys."""

    name: str
    secret_sha256: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    user: str = ""
    id: str = ""
    created_us: int = 0
    expires_us: int = 0
    born_us: int = 0

    @property
    def credential(self) -> Credential:
        return Credential(self.name, self.secret_sha256, self.publish, self.subscribe, self.user)


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key as its owner may see it. Times are seconds since 1970; `expires_s` 0: never."""

    id: str
    user: str
    name: str
    created_s: int
    expires_s: int
    configured: bool


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. The secret is nowhere else, and not in a repr."""

    info: KeyInfo
    secret: str = field(repr=False)


Kind = Literal["user", "key", "subject"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether somebody may, who that is, and what decided."""

    allowed: bool
    kind: Kind
    name: str
    steps: tuple[tuple[str, str, str, str], ...]  # (topic, rule, yes / no / next, why)


class _Audited(Audited):
    """A change of a key. Whoever may not make it is recorded as at any other gate."""

    def refused(self, error: Exception) -> None:
        if isinstance(error, Forbidden):
            self._audit.record("access.denied", self.actor, self.resource, "denied", self.peer, self.type)
        else:
            self.record("failure", {"reason": message_of(error)} | self.details)


class Keys:
    """The verbs."""

    def __init__(
        self,
        table: Table[CredentialRow],
        users: Users,
        access: Access,
        audit: Recorder,
        scheduler: Scheduler,
        entropy: Entropy,
    ) -> None:
        self._table = table
        self._users = users
        self._access = access
        self._audit = audit
        self._scheduler = scheduler
        self._entropy = entropy
        self._due: float = inf  # no live key expires before this, in microseconds since 1970
        self._ended: set[str] = set()  # digests of keys that have expired, and are still in the table
        users.on_deleted = self._forget_user

    @property
    def table(self) -> Table[CredentialRow]:
        return self._table

    def load(self) -> None:
        """Make live what the table holds; what expired or lost its user meanwhile goes. Needs the users loaded."""
        now = self._scheduler.now()
        for row in list(self._table):
            expired = row.expires_us and row.expires_us <= now
            if row.id and (expired or self._users.born(row.user) != row.born_us):
                self._table.delete(row.secret_sha256.encode())
        self._due = self._next_due(now)
        self._access.replace(row.credential for row in self._table)

    def follow(self) -> None:
        """Of a follower: make live what the leader wrote since the last call. It deletes nothing: `tick` with 0 as the trusted time does
        not either."""
        self.take(self._table.follow())

    def take(self, changed: Collection[bytes]) -> None:
        """Make live what the rows of these keys say, which somebody else wrote."""
        for key in changed:
            self._follow(key.decode())
        if changed:
            self._due = self._next_due(self._scheduler.now())

    # -- the configuration's ---------------------------------------------------------------------------------------

    def configure(self, credentials: Iterable[Credential]) -> None:
        """Make these the configured keys, durably; configured ones that are gone stop working at once."""
        wanted = {c.secret_sha256.encode(): c for c in credentials}
        for row in list(self._table):
            if not row.id and row.secret_sha256.encode() not in wanted:
                self._table.delete(row.secret_sha256.encode())
        for key, found in wanted.items():
            fresh = CredentialRow(found.name, found.secret_sha256, found.publish, found.subscribe, found.user)
            if self._table.get(key) != fresh:
                self._table.put(key, fresh)
        self._access.replace(row.credential for row in self._table)

    # -- the users' ------------------------------------------------------------------------------------------------

    async def create(self, actor: Principal, user: str, name: str, expires_s: int, *, peer: str = "") -> NewKey:
        """A new key of this user ("": the actor's own), called `name`, until `expires_s` (0: for good)."""
        audited = self._audited("key.create", actor, user, peer, name=name)
        async with audited:
            self._users.changes.check()
            owner = self._owner(actor, user)
            self._check_new(owner, name, expires_s)
            born = self._users.born(owner)
            assert born is not None, "_owner has found the user"
            id = self._fresh_id()
            audited.details = {"id": id, "name": name}
            secret = f"{id}_{self._entropy(SECRET_BYTES).hex()}"
            digest, now = hash_secret(secret.encode()), self._scheduler.now()
            row = CredentialRow(name, digest, (), (), owner, id, now, expires_s * SECOND_US, born)
            self._due = min(self._due, row.expires_us or inf)
            await self._write(digest, row)
        return NewKey(_info(row), secret)

    def list(self, actor: Principal, user: str, everyone: bool, peer: str = "") -> Iterator[KeyInfo]:
        """As walk, without pauses."""
        return (info for info in self.walk(actor, user, everyone, peer) if info is not None)

    def walk(self, actor: Principal, user: str, everyone: bool, peer: str = "") -> Iterator[KeyInfo | None]:
        """The keys of this user ("": the actor's own), or of everyone; the oldest first. None is a pause."""
        if everyone and not self._access.may_administer(actor):
            self._deny("key.list", actor, "", peer)
            raise Forbidden(f"{actor.name} may not see the keys of everyone", hint="the role admin may")
        try:
            owner = "" if everyone else self._owner(actor, user)
        except Forbidden:
            self._deny("key.list", actor, user, peer)
            raise
        rows = in_order(tuple(self._table), lambda row: (row.user, row.created_us, row.name))
        return (_info(row) if row is not None and (everyone or row.user == owner) else None for row in rows)

    async def remove(self, actor: Principal, user: str, id: str, *, peer: str = "") -> KeyInfo:
        """The key of this id stops working, at once. The user is whose it is ("": the actor's)."""
        async with self._audited("key.delete", actor, user, peer, id=id):
            self._users.changes.check()
            owner = self._owner(actor, user)
            row = next((row for row in self._table if row.id == id and row.user == owner), None) if id else None
            if row is None:
                raise KeyNotFound(
                    f"{owner} has no key {id!r}", hint="`quintet user key list`; those of [[keys]] are removed there"
                )
            await self._write(row.secret_sha256, None)
        return _info(row)

    def tick(self, now: int, trusted: int) -> None:
        """Keys whose time is over are refused at once, and deleted when that is sure: a clock that was set ahead may be set
        back. One that the disk will not let go of goes at the next start."""
        if now >= self._due:
            ended = [row.secret_sha256 for row in self._table if self._due <= row.expires_us <= now]
            self._ended.update(ended)
            for digest in ended:
                self._follow(digest)
            self._due = self._next_due(now)
        for digest in tuple(self._ended):
            row = self._table.get(digest.encode())
            if row is None or row.expires_us <= trusted:
                self._ended.discard(digest)
                if row is not None:
                    start_alone(self._scheduler, self._expire(row))
            elif row.expires_us > now:
                self._ended.discard(digest)
                self._follow(digest)
                self._due = min(self._due, row.expires_us)

    def _next_due(self, now: int) -> float:
        return min((row.expires_us for row in self._table if row.expires_us > now), default=inf)

    async def _expire(self, row: CredentialRow) -> None:
        result: Result = "success"
        try:
            await self._write(row.secret_sha256, None)
        except Exception:
            await next_turn(self._scheduler)
            result = "failure"
        self._audit.record("key.expire", CONFIGURATION, row.user, result, "", "expire", id=row.id, name=row.name)

    # -- who may what ----------------------------------------------------------------------------------------------

    def explain(self, who: str, action: str, topic: str) -> Explanation:
        """What this user, key or subject of a token may do, and why. `user:`, `key:` or `subject:` before the name says
        which is meant; without it, it is the first of them that there is."""
        if action not in get_args(Action):
            raise BadRequest(f"there is no action {action!r}", hint=f"one of {', '.join(get_args(Action))}")
        kind, name, principal = self._who(who)
        if principal is None:
            whose = "the user" if kind == "user" else "the user it belongs to"
            why = f"{whose} is disabled, or was deleted"
            return Explanation(False, kind, name, (("", "disabled", "no", why),))
        allowed, steps = self._access.explain(principal, cast(Action, action), topic)
        told = [_words(step) for step in steps]
        if kind == "subject" and not who.startswith(
            "subject:"
        ):  # a slip in a user's name must not pass for an answer about the user
            why = f"there is no user and no key {name!r}: this is what a token with that subject may"
            told.insert(0, ("", "no such user", "next", why))
        return Explanation(allowed, kind, name, tuple(told))

    def _who(self, who: str) -> tuple[Kind, str, Principal | None]:
        kind, _, name = who.partition(":")
        if kind not in get_args(Kind) or not name:
            kind, name = "", who
        if kind in ("", "user"):
            found = self._access.of_name(name)
            if found is not None or self._access.disabled(name):
                return "user", name, found
            if kind:
                raise UserNotFound(f"there is no user {name!r}")
        if kind in ("", "key"):
            row = next((row for row in self._table if name == row.id or (not row.id and name == row.name)), None)
            if row is not None:
                return "key", name, self._access.current(f"key:{row.secret_sha256}")
            if kind:
                raise KeyNotFound(f"there is no key {name!r}", hint="by its name in [[keys]], or by its id")
        try:
            return "subject", name, self._access.subject(name)[1]
        except AuthError as error:
            raise BadName(message_of(error)) from error

    # -- small parts -----------------------------------------------------------------------------------------------

    def _owner(self, actor: Principal, user: str) -> str:
        """Whose keys this is about; only administrators ask about others. A stranger is not told who there is."""
        clean = check_user_name(user) if user else actor.name
        if clean != actor.name and not self._access.may_administer(actor):
            raise Forbidden(f"{actor.name} may not use the keys of another user", hint="the role admin may")
        if self._users.born(clean) is None:
            raise UserNotFound(f"there is no user {clean!r}", hint="keys belong to users; [[keys]] need none")
        return clean

    def _check_new(self, owner: str, name: str, expires_s: int) -> None:
        size = len(name.encode("utf-8", "replace"))
        if size > KEY_NAME_BYTES_MAX or any(unicodedata.category(letter)[0] == "C" for letter in name):
            raise BadName(f"the name of a key has at most {KEY_NAME_BYTES_MAX} bytes and no control characters")
        if expires_s < 0 or (expires_s and expires_s * SECOND_US <= self._scheduler.now()):
            raise BadRequest("the key would have expired already", hint="give a time to come, or 0 for none")
        if sum(row.user == owner for row in self._table) >= KEYS_OF_USER_MAX:
            raise LimitExceeded(f"{owner} has {KEYS_OF_USER_MAX} keys already", hint="remove one that is not used")
        if len(self._table) >= KEYS_MAX:
            raise LimitExceeded(f"there are {KEYS_MAX} keys already")

    def _fresh_id(self) -> str:
        taken = {row.id for row in self._table}
        while True:
            id = ID_PREFIX + self._entropy(ID_BYTES).hex()
            if id not in taken:
                return id

    async def _write(self, digest: str, row: CredentialRow | None) -> None:
        """Write the row of a key, or delete it: live at once, taken back if the disk refuses."""
        key = digest.encode()
        await write(self._table.delete(key) if row is None else self._table.put(key, row), lambda: self._follow(digest))

    def _forget_user(self, name: str) -> None:
        """Deleted, durably: a user of the same name that is made later must not inherit its keys."""
        for row in [row for row in self._table if row.id and row.user == name]:
            start(self._write(row.secret_sha256, None))  # what the disk refuses goes at the next start

    def _follow(self, digest: str) -> None:
        """Access says what the table says, and the clock."""
        row = self._table.get(digest.encode())
        if row is None or 0 < row.expires_us <= self._scheduler.now():
            self._access.drop_key(digest)
        else:
            self._access.set_key(row.credential)

    def _audited(self, type: str, actor: Principal, user: str, peer: str, **details: object) -> _Audited:
        spread = self._users.changes.spread
        return _Audited(self._audit, self._scheduler, type, actor.name, user or actor.name, peer, details, spread)

    def _deny(self, type: str, actor: Principal, user: str, peer: str) -> None:
        self._audit.record("access.denied", actor.name, user, "denied", peer, type)


def _info(row: CredentialRow) -> KeyInfo:
    return KeyInfo(
        row.id, row.user, row.name, row.created_us // SECOND_US, row.expires_us // SECOND_US, configured=not row.id
    )


def _words(step: Step) -> tuple[str, str, str, str]:
    return step.topic, step.rule, step.outcome, step.why
