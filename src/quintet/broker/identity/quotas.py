"""Holds users and tenants to their quotas: bytes a second, connections, topics, storage (ADR 41).

    quota                           counts                                      above it
    publish_bytes_per_second_max    bytes its connections send                  they are not read from until it is paid back
    read_bytes_per_second_max       bytes its connections are sent              nothing is pushed to them, no request is read
    connections_max                 connections that logged in, Flight streams  the login is refused
    topics_max                      topics that it made; of a tenant: by name   a new topic is refused
    storage_bytes_max               what those topics keep, counted every 5 s   publishes to them are refused

A bound is the row's of `__quotas` (set while the broker runs), else that of the configuration: `[quotas]` for every user, `[[tenants]]` for a
tenant. 0 is no bound. Administrators have only bounds that name them. A user counts for the tenant that its row names, and the stricter of
the two holds; a connection of Felix counts for the tenant of its token.

Connections ask a Meter, and only those have one whose user or tenant has a rate. There is no clock here: who asks says the time. Rates are
by connection and not by message, because the kernel appends without asking anybody (ADR 29).
"""

import heapq
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec

from quintet.broker.identity.access import Access, Principal, check_user_name
from quintet.broker.identity.changes import Changes, write
from quintet.broker.identity.metering import VALUE_MAX, Account, Bounds, Kind, Meter
from quintet.broker.identity.tenants import Tenants
from quintet.broker.sections import QUOTA_RATE_MIN, QuotaSection, Tenant
from quintet.broker.slices import in_order
from quintet.broker.table import Table, TableLog
from quintet.model.errors import BadName, BadRequest, Forbidden, LimitExceeded
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import next_turn, start_alone

QUOTAS_TABLE: Final = (0, "__quotas")
QUOTAS_MAX: Final = 10_000
STORAGE_US: Final = 5_000_000  # how old the count of what topics keep may be
TOPICS_AT_ONCE: Final = 256  # counted in one turn, about 1 us for each partition
FORGET_US: Final = 60_000_000  # an account that nobody uses is kept so long: to connect again does not pay
TENANT_BYTES_MAX: Final = 200
AS_CONFIGURED: Final = -1


class QuotaRow(msgspec.Struct, frozen=True):
    """What `__quotas` keeps. A bound of -1 is as configured, 0 is none. `tenant`: whom a user counts for, too."""

    kind: Kind
    name: str
    tenant: str = ""
    publish_bytes_per_second_max: int = AS_CONFIGURED
    read_bytes_per_second_max: int = AS_CONFIGURED
    connections_max: int = AS_CONFIGURED
    topics_max: int = AS_CONFIGURED
    storage_bytes_max: int = AS_CONFIGURED


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """The bounds that count for a user or a tenant, and what it uses."""

    kind: Kind
    name: str
    tenant: str
    set: bool  # by a row, in whole or in part
    bounds: Bounds
    connections: int
    topics: int
    storage_bytes: int
    received_bytes: int
    sent_bytes: int
    pauses: int
    paused_us: int
    refused: int
    held: bool  # right now


class Metered(Protocol):
    """A connection, of which one sets whether and how it is metered."""

    meter: Meter | None


class Owned(Protocol):
    """A topic, as far as it is somebody's."""

    @property
    def owner(self) -> str: ...

    @property
    def tenant(self) -> str: ...


class CountedTopics(Protocol):
    """The catalog of topics, as far as it is counted here."""

    def owned_by(self, owner: str) -> int: ...

    def count_of(self, tenant: str) -> int: ...

    def sizes(self) -> Iterator[tuple[str, str, int]]:
        """(owner, tenant, bytes) of each topic."""


class _Member(NamedTuple):
    sink: Metered
    user: Account
    tenant: Account | None
    charges_tenant: bool  # for what it publishes: Felix does so by itself, with each publish


class Quotas:
    """All accounts, and the verbs."""

    def __init__(
        self, log: TableLog, access: Access, changes: Changes, scheduler: Scheduler, tenants: Tenants, defaults: QuotaSection,
        topics: CountedTopics,
    ) -> None:  # fmt: skip
        self._access = access
        self._changes = self.changes = changes
        self._scheduler = scheduler
        self._tenants = tenants
        self._topics = topics
        self._defaults = bounds_of(defaults)
        self._table = Table(log, *QUOTAS_TABLE, QuotaRow)
        self._accounts: dict[tuple[Kind, str], Account] = {}
        self._members: dict[int, _Member] = {}  # by the id of their connection
        self._counted_at = -STORAGE_US
        self._counting = False
        self._full: dict[tuple[Kind, str], int] = {}  # those above their storage, and what they keep

    def load(self) -> None:
        """Fold the table. Blocks: only used at start."""
        self._table.load()
        for row in self._table:
            self._follow(row.kind, row.name)

    def follow(self) -> None:
        """Of a follower: make live what the leader wrote since the last call."""
        self.take(self._table.follow())

    def take(self, changed: Collection[bytes]) -> None:
        """Make live what the rows of these keys say, which somebody else wrote."""
        for key in changed:
            kind, _, name = key.decode().partition(":")
            self._changed_live("tenant" if kind == "tenant" else "user", name)

    @property
    def table(self) -> Table[QuotaRow]:
        return self._table

    # -- bounds ----------------------------------------------------------------------------------------------------

    def bounds(self, kind: Kind, name: str) -> Bounds:
        """What counts for this user or tenant."""
        row = self._row(kind, name)
        if kind == "tenant":
            return tenant_bounds(self._tenants.quota(name))  # with what the row says: see _follow
        exempt = (found := self._access.of_name(name)) is not None and self._access.may_administer(found)
        below = Bounds() if exempt else self._defaults
        if row is None:
            return below
        return Bounds(*(mine if mine >= 0 else given for mine, given in zip(_bounds_in(row), below, strict=True)))

    def configure(self, defaults: QuotaSection) -> None:
        """The configuration was read again; the tenants' tables, too."""
        self._defaults = bounds_of(defaults)
        for row in self._table:
            self._follow(row.kind, row.name)
        self._refresh()

    def _row(self, kind: Kind, name: str) -> QuotaRow | None:
        return self._table.get(_key(kind, name))

    def _follow(self, kind: Kind, name: str) -> None:
        """What is live says what the table says."""
        if kind == "tenant":
            row = self._row(kind, name)
            given = (
                {}
                if row is None
                else {each: n for each, n in zip(Bounds._fields, _bounds_in(row), strict=True) if n >= 0}
            )
            if "topics_max" in given:
                given["streams_max"] = given.pop("topics_max")
            self._tenants.adjust(name, given)

    def _refresh(self, kind: Kind | None = None, name: str = "") -> None:
        """Bounds changed, of one user or tenant or of all: those of accounts, and the meters of connections. Who is above a new
        bound keeps what it has."""
        for account in self._accounts.values():
            if kind is None or (account.kind, account.name) == (kind, name):
                account.set_bounds(self.bounds(account.kind, account.name))
        for number, member in list(self._members.items()):
            whose = member.user if kind != "tenant" else member.tenant
            if kind is None or (whose is not None and whose.name == name):
                tenant = self._tenant_of(member.user.name) if member.charges_tenant else member.tenant
                self._members[number] = member = self._move(member, tenant)
                self._meter(member)
        self._counted_at = -STORAGE_US
        self._access.look_again()

    def _move(self, member: _Member, tenant: Account | None) -> _Member:
        """Its user counts for another tenant now."""
        if tenant is member.tenant:
            return member
        if member.tenant is not None:
            self._tenants.connection_closed(member.tenant.name)
            member.tenant.connections -= 1
        if tenant is not None:
            self._tenants.connection_opened(tenant.name, must=True)
            tenant.connections += 1
        return member._replace(tenant=tenant)

    # -- connections -----------------------------------------------------------------------------------------------

    def join(self, sink: Metered, user: str, tenant: str = "") -> None:
        """A connection is this user's from now on. LimitExceeded: it has too many. `tenant`: that of its token, which Felix
        counts and charges by itself."""
        before = self._members.get(id(sink))
        if before is not None and before.user.name == user:
            return
        account = self._account("user", user)
        self._check(account, "connections_max", account.connections)
        other = self._account("tenant", tenant) if tenant else self._tenant_of(user)
        if other is not None and not tenant:
            self._tenants.connection_opened(other.name)
        if before is not None:
            self.leave(sink)
        account.connections += 1
        if other is not None:
            other.connections += 1
        member = self._members[id(sink)] = _Member(sink, account, other, not tenant)
        self._meter(member)

    def leave(self, sink: Metered) -> None:
        """The connection is gone, whoever it was; it may never have joined."""
        member = self._members.pop(id(sink), None)
        if member is None:
            return
        member.user.connections -= 1
        self._forget(member.user)
        if member.tenant is not None:
            member.tenant.connections -= 1
            if member.charges_tenant:
                self._tenants.connection_closed(member.tenant.name)
            self._forget(member.tenant)

    def _meter(self, member: _Member) -> None:
        """Only who has a rate has a meter. One that stays goes on with what it has used."""
        user, tenant = member.user, member.tenant
        publish, read = [user] if user.publish is not None else [], [user] if user.read is not None else []
        if tenant is not None:
            publish += [tenant] if tenant.publish is not None and member.charges_tenant else []
            read += [tenant] if tenant.read is not None else []
        if publish or read:
            member.sink.meter = Meter(publish, read, member.sink.meter)
        elif member.sink.meter is not None:
            member.sink.meter = None

    def _account(self, kind: Kind, name: str) -> Account:
        found = self._accounts.get((kind, name))
        if found is None:
            found = self._accounts[kind, name] = Account(kind, name)
            if kind == "tenant":
                found.bucket_of = lambda: self._tenants.bucket(name, self._scheduler.monotonic())
            found.set_bounds(self.bounds(kind, name))
        return found

    def _tenant_of(self, user: str) -> Account | None:
        row = self._row("user", user)
        return self._account("tenant", row.tenant) if row is not None and row.tenant else None

    def _forget(self, account: Account) -> None:
        """Nobody is connected: keep it only while it is of use."""
        if not account.connections and account.publish is None and account.read is None and not account.refused:
            self._accounts.pop((account.kind, account.name), None)
        else:
            account.unused_since = self._scheduler.monotonic()

    # -- topics and storage ----------------------------------------------------------------------------------------

    def check_topic(self, owner: str, tenant: str) -> None:
        """LimitExceeded unless this user may make one more topic, and the tenant of its name may have one."""
        if tenant:
            self._tenants.check_topic(tenant)
        bound = self.bounds("user", owner).topics_max
        if bound:
            self._check(self._account("user", owner), "topics_max", self._topics.owned_by(owner))

    def check_storage(self, topic: Owned) -> None:
        """LimitExceeded if the owner of a topic, or the tenant of its name, keeps more than it may."""
        if not self._full:
            return
        whose: tuple[tuple[Kind, str], ...] = (("user", topic.owner), ("tenant", topic.tenant))
        for kind, name in whose:
            used = self._full.get((kind, name))
            if used is not None:
                account = self._account(kind, name)
                account.refused += 1
                raise LimitExceeded(
                    f"{kind} {name!r} keeps {used} bytes; the limit is {account.bounds.storage_bytes_max} (quota storage_bytes_max)",
                    hint=f"purge or delete topics, shorten their retention, or ask an administrator: quintet quota set {kind} {name}",
                )

    def _check(self, account: Account, quota: str, has: int) -> None:
        bound = getattr(account.bounds, quota)
        if bound and has >= bound:
            account.refused += 1
            what = quota.removesuffix("_max")
            raise LimitExceeded(
                f"{account.kind} {account.name!r} has {has} {what}; the limit is {bound} (quota {quota})",
                hint=f"give one up, or ask an administrator: quintet quota set {account.kind} {account.name}",
            )

    def tick(self, monotonic: int) -> None:
        """Count storage now and then, if anybody has a bound on it; forget accounts that are of no use."""
        if monotonic - self._counted_at < STORAGE_US or self._counting:
            return
        self._counted_at = monotonic
        for key, account in list(self._accounts.items()):
            if not account.connections and monotonic - account.unused_since >= FORGET_US:
                del self._accounts[key]
        if self._bounds_storage():
            self._counting = True
            start_alone(self._scheduler, self._count())
        elif self._full:
            self._full = {}

    def _bounds_storage(self) -> bool:
        return bool(
            self._defaults.storage_bytes_max
            or any(row.storage_bytes_max > 0 for row in self._table)
            or any(self._tenants.quota(name).storage_bytes_max for name in self._tenants.names)
        )

    async def _count(self) -> None:
        """What each owner and each tenant keeps, a few topics a turn."""
        found: dict[tuple[Kind, str], int] = {}
        try:
            for number, (owner, tenant, size) in enumerate(self._topics.sizes(), 1):
                if owner:
                    found["user", owner] = found.get(("user", owner), 0) + size
                if tenant:
                    found["tenant", tenant] = found.get(("tenant", tenant), 0) + size
                if number % TOPICS_AT_ONCE == 0:
                    await next_turn(self._scheduler)
            full = {}
            for (kind, name), used in found.items():
                bound = self.bounds(kind, name).storage_bytes_max
                account = self._accounts.get((kind, name))
                if account is not None:
                    account.storage_bytes = used
                if bound and used >= bound:
                    full[kind, name] = used
            before, self._full = self._full, full
            if full.keys() - before.keys():
                self._access.look_again()  # sessions remember where they publish: now they ask again
        finally:
            self._counting = False

    # -- verbs -----------------------------------------------------------------------------------------------------

    async def set(
        self, actor: Principal, kind: str, name: str, tenant: str | None, changes: dict[str, int], *, peer: str = ""
    ) -> QuotaInfo:
        """Set these bounds (-1: as configured, 0: none) of a user or tenant; the others stay. `tenant` None: as it is."""
        said: dict[str, object] = {**changes} | ({} if tenant is None else {"tenant": tenant})
        async with self._changes.audited("quota.set", actor.name, f"{kind}:{name}", peer, **said):
            self._check_administrator(actor)
            async with self._changes.alone(actor.name):
                self._check_administrator(actor)
                who, clean = self._check_name(kind, name)
                fresh = self._changed(who, clean, tenant, changes)
                await write(self._table.put(_key(who, clean), fresh), lambda: self._changed_live(who, clean))
        return self.info(who, clean)

    async def clear(self, actor: Principal, kind: str, name: str, *, peer: str = "") -> QuotaInfo:
        """Forget all that was set: what the configuration says counts."""
        async with self._changes.audited("quota.clear", actor.name, f"{kind}:{name}", peer):
            self._check_administrator(actor)
            async with self._changes.alone(actor.name):
                self._check_administrator(actor)
                who, clean = self._check_name(kind, name)
                if self._row(who, clean) is None:
                    raise BadRequest(
                        f"no quota is set for {who} {clean!r}", hint="`quintet quota show` lists those that are"
                    )
                await write(self._table.delete(_key(who, clean)), lambda: self._changed_live(who, clean))
        return self.info(who, clean)

    def _changed_live(self, kind: Kind, name: str) -> None:
        self._follow(kind, name)
        self._refresh(kind, name)

    def _changed(self, kind: Kind, name: str, tenant: str | None, changes: dict[str, int]) -> QuotaRow:
        row = self._row(kind, name)
        if row is None and len(self._table) >= QUOTAS_MAX:
            raise LimitExceeded(
                f"quotas are set for {QUOTAS_MAX} users and tenants, which is the limit", hint="clear one first"
            )
        for quota, value in changes.items():
            if quota not in Bounds._fields:
                raise BadRequest(f"there is no quota {quota!r}", hint=f"the quotas are {', '.join(Bounds._fields)}")
            least = QUOTA_RATE_MIN if quota.endswith("_per_second_max") else 1
            if not (value in (AS_CONFIGURED, 0) or least <= value <= VALUE_MAX):
                raise BadRequest(
                    f"{quota} is {value}; it is {least} to {VALUE_MAX}, 0 for no limit, or -1 for what the configuration says"
                )
        if tenant is not None and (kind == "tenant" or len(tenant.encode()) > TENANT_BYTES_MAX or "/" in tenant):
            raise BadRequest(
                f"tenant is {tenant!r}: a user counts for one tenant, whose name has at most {TENANT_BYTES_MAX} bytes and no /"
            )
        old = row or QuotaRow(kind, name)
        update: dict[str, object] = {**changes}
        if tenant is not None:
            update["tenant"] = tenant
        return msgspec.structs.replace(old, **update)

    def _check_name(self, kind: str, name: str) -> tuple[Kind, str]:
        if kind == "user":
            # Owners that are no users have words of the broker's own: (anonymous), (no subject), (token) NAME.
            return "user", name if name.startswith("(") and name.isprintable() and len(
                name
            ) <= TENANT_BYTES_MAX else check_user_name(name)
        if kind != "tenant":
            raise BadRequest(f"quotas are of a user or a tenant, not of a {kind!r}")
        if not 1 <= len(name.encode("utf-8", "replace")) <= TENANT_BYTES_MAX or "/" in name or not name.isprintable():
            raise BadName(f"a tenant's name has 1 to {TENANT_BYTES_MAX} bytes and no /, this is {name!r}")
        return "tenant", name

    def _check_administrator(self, actor: Principal) -> None:
        if not self._access.may_administer(actor):
            raise Forbidden(f"{actor.name} may not administer quotas", hint="the role admin may")

    # -- what is known ---------------------------------------------------------------------------------------------

    def info(self, kind: Kind, name: str) -> QuotaInfo:
        account, row = self._accounts.get((kind, name)) or Account(kind, name), self._row(kind, name)
        connections = self._tenants.connections[name] if kind == "tenant" else account.connections
        topics = self._topics.count_of(name) if kind == "tenant" else self._topics.owned_by(name)
        received = account.received + (self._tenants.published_bytes[name] if kind == "tenant" else 0)
        refused = account.refused + (self._tenants.refused[name] if kind == "tenant" else 0)
        return QuotaInfo(
            kind, name, row.tenant if row is not None else "", row is not None, self.bounds(kind, name), connections, topics,
            account.storage_bytes, received, account.sent, account.pauses, account.paused_us, refused,
            account.held_until > self._scheduler.monotonic(),
        )  # fmt: skip

    def walk(self) -> Iterator[QuotaInfo | None]:
        """All that have a quota, set or configured, by kind and name; None is a pause."""
        known: set[tuple[Kind, str]] = {(row.kind, row.name) for row in self._table} | {
            ("tenant", name) for name in self._tenants.names
        }
        known |= {key for key, account in self._accounts.items() if any(account.bounds)}
        for key in in_order(tuple(known), lambda key: key):
            yield None if key is None else self.info(*key)

    def busiest(self, most: int) -> list[QuotaInfo]:
        """Up to so many that have a quota: first who waits now or waited often, then who uses most, then others that are set."""
        live = [account for account in self._accounts.values() if any(account.bounds)]
        live = heapq.nlargest(most, live, lambda each: (each.held_until, each.pauses, each.received + each.sent))
        keys = {(account.kind, account.name): None for account in live}
        configured = ((kind, name) for kind, name in self._set() if (kind, name) not in keys)
        return [self.info(*key) for key in (*keys, *islice(configured, most - len(keys)))]

    def _set(self) -> Iterator[tuple[Kind, str]]:
        for row in self._table:
            yield row.kind, row.name
        for name in self._tenants.names:
            if self._row("tenant", name) is None:
                yield "tenant", name

    @property
    def in_use(self) -> bool:
        """Whether anybody has one."""
        return bool(len(self._table) or any(self._defaults) or self._tenants.names)


def bounds_of(section: QuotaSection) -> Bounds:
    return Bounds(*(getattr(section, name) for name in Bounds._fields))


def tenant_bounds(tenant: Tenant) -> Bounds:
    return Bounds(
        tenant.publish_bytes_per_second_max, tenant.read_bytes_per_second_max, tenant.connections_max, tenant.streams_max,
        tenant.storage_bytes_max,
    )  # fmt: skip


def _bounds_in(row: QuotaRow) -> tuple[int, ...]:
    return tuple(getattr(row, name) for name in Bounds._fields)


def _key(kind: Kind, name: str) -> bytes:
    return f"{kind}:{name}".encode("utf-8", "replace")
