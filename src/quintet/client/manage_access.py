"""Manages who may use a broker, and asks its audit: users, API keys, roles, access rules, events. Part of manage.Manage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quintet.client.bus import Bus
from quintet.client.core.base import Fields


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. Times are seconds since 1970; `expires_s` 0: never. Configured ones have no id."""

    id: str
    user: str
    name: str
    created_s: int
    expires_s: int
    configured: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One rule that was asked on the way to a decision: `outcome` is yes, no, or next."""

    topic: str
    rule: str
    outcome: str
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether somebody may, and why. `kind` is what the name was taken for: user, key, or subject (of a token)."""

    allowed: bool
    kind: str
    name: str
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class User:
    name: str
    roles: list[str]
    permissions: list[str]
    enabled: bool
    created_s: int
    updated_s: int


@dataclass(frozen=True, slots=True)
class Quota:
    """What a user or a tenant (`kind`) may have (0: no limit), and what it uses. `set`: not only by the configuration; `held`: it waits
    for its rate right now. Bytes are those of connections that have a rate."""

    kind: str
    name: str
    tenant: str
    set: bool
    publish_bytes_per_second_max: int
    read_bytes_per_second_max: int
    connections_max: int
    topics_max: int
    storage_bytes_max: int
    connections: int
    topics: int
    storage_bytes: int
    received_bytes: int
    sent_bytes: int
    pauses: int
    paused_ms: int
    refused: int
    held: bool


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may use the topics of a name or prefix (`orders*`), or a group (`group:NAME`)."""

    topic: str
    public: bool
    users: list[str]
    roles: list[str]


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    permissions: list[str]
    description: str


@dataclass(frozen=True, slots=True)
class Event:
    id: str
    ts_ms: int
    type: str
    user: str
    client_ip: str
    resource: str
    action: str
    result: str
    details: dict[str, str]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events of the audit; zero and empty ask for nothing in particular."""

    start_s: int = 0
    end_s: int = 0
    types: Sequence[str] = ()
    user: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""
    limit: int = 0

    def fields(self, skip: int = 0) -> Fields:
        return {
            "start_s": self.start_s,
            "end_s": self.end_s,
            "types": list(self.types),
            "user": self.user,
            "resource": self.resource,
            "result": self.result,
            "search": self.search,
            "limit": self.limit,
            "skip": skip,
        }


class ManageAccess:
    """Each method is one request; a refusal is raised as one of the errors of errors.py."""

    def __init__(self, bus: Bus) -> None:
        self._ask = bus.request

    # -- who -------------------------------------------------------------------------------------------------------

    async def users(self) -> list[User]:
        return [_user(row) for row in (await self._ask("USER_LIST"))["users"]]

    async def user(self, name: str) -> User:
        return _user(await self._ask("USER_GET", user=name))

    async def create_user(self, name: str, password: str, roles: Sequence[str]) -> User:
        return _user(await self._ask("USER_CREATE", **_user_fields(name, password, roles)))

    async def update_user(self, name: str, roles: Sequence[str], enabled: bool, password: str = "") -> None:
        """Set roles and enabled, and the password if one is given."""
        await self._ask("USER_UPDATE", **_user_fields(name, password, roles, enabled=enabled))

    async def delete_user(self, name: str) -> None:
        await self._ask("USER_DELETE", user=name)

    async def change_password(self, name: str, new: str, old: str = "") -> None:
        """One's own, with the old one; an administrator changes anybody's without."""
        await self._ask("PASSWORD_CHANGE", **_user_fields(name, new, (), old=old))

    async def keys(self, user: str = "", *, everyone: bool = False) -> list[Key]:
        """One's own API keys; an administrator sees those of another user, or of everyone."""
        return [_key(row) for row in (await self._ask("KEY_LIST", user=user, everyone=everyone))["keys"]]

    async def create_key(self, user: str = "", name: str = "", expires_s: int = 0) -> tuple[Key, str]:
        """A new API key of one's own, or as an administrator of another user, and its secret: the broker keeps a hash."""
        row = await self._ask("KEY_CREATE", user=user, name=name, expires_s=expires_s)
        return _key(row), str(row["secret"])

    async def remove_key(self, id: str, user: str = "") -> None:
        """It stops working at once; connections that came with it are closed."""
        await self._ask("KEY_REMOVE", user=user, id=id)

    async def explain(self, who: str, action: str, topic: str) -> Explanation:
        """Whether a user, a key or the subject of a token may publish, subscribe or admin, rule by rule."""
        row = await self._ask("ACL_EXPLAIN", who=who, action=action, topic=topic)
        return Explanation(row["allowed"], row["kind"], row["name"], [Step(**step) for step in row["steps"]])

    async def whoami(self) -> tuple[str, list[str], list[str]]:
        """(name, roles, permissions)"""
        found = await self._ask("WHOAMI")
        return found["username"], [role for role in found["roles"] if role], found["permissions"]

    async def roles(self) -> list[Role]:
        rows = (await self._ask("ROLE_LIST"))["roles"]
        return [Role(row["name"], row["permissions"], row["description"]) for row in rows]

    async def rules(self) -> list[Rule]:
        rows = (await self._ask("ACL_LIST"))["rules"]
        return [Rule(row["topic"], row["public"], row["users"], row["roles"]) for row in rows]

    async def rule(self, topic: str) -> Rule | None:
        row = await self._ask("ACL_GET", topic=topic)
        return Rule(row["topic"], row["public"], row["users"], row["roles"]) if row["exists"] else None

    async def set_rule(self, rule: Rule) -> None:
        await self._ask("ACL_SET", topic=rule.topic, public=rule.public, users=rule.users, roles=rule.roles)

    async def delete_rule(self, topic: str) -> None:
        await self._ask("ACL_DELETE", topic=topic)

    async def quotas(self) -> list[Quota]:
        """Of all that have any."""
        return [Quota(**row) for row in (await self._ask("QUOTA_LIST"))["quotas"]]

    async def set_quota(self, kind: str, name: str, changes: Mapping[str, int], tenant: str | None = None) -> Quota:
        """Change these bounds of a user or tenant: -1 as configured, 0 no limit. `tenant`: whom a user counts for, too."""
        rows = [{"quota": quota, "value": value} for quota, value in changes.items()]
        more: Fields = {} if tenant is None else {"tenant": tenant}
        return Quota(**await self._ask("QUOTA_SET", kind=kind, name=name, changes=rows, **more))

    async def clear_quota(self, kind: str, name: str) -> Quota:
        """Forget what was set: the configuration counts again."""
        return Quota(**await self._ask("QUOTA_CLEAR", kind=kind, name=name))

    # -- audit -----------------------------------------------------------------------------------------------------

    async def audit(self, asked: Asked, skip: int = 0) -> tuple[list[Event], int]:
        """Events, newest first, and how many there are in all."""
        found = await self._ask("AUDIT_QUERY", **asked.fields(skip))
        rows = [
            Event(
                row["id"],
                row["ts_ms"],
                row["type"],
                row["user"],
                row["client_ip"],
                row["resource"],
                row["action"],
                row["result"],
                {detail["key"]: detail["value"] for detail in row["details"]},
            )
            for row in found["events"]
        ]
        return rows, found["total"]

    async def export_audit(self, asked: Asked, format: str) -> bytes:
        """The same as one json or csv text."""
        return bytes((await self._ask("AUDIT_EXPORT", query=asked.fields(), format=format))["data"])


def _user(row: Fields) -> User:
    return User(row["user"], row["roles"], row["permissions"], row["enabled"], row["created_s"], row["updated_s"])


def _key(row: Fields) -> Key:
    return Key(row["id"], row["user"], row["name"], row["created_s"], row["expires_s"], row["configured"])


def _user_fields(name: str, password: str, roles: Sequence[str], *, old: str = "", enabled: bool = True) -> Fields:
    return {"user": name, "password": password, "old_password": old, "roles": list(roles), "enabled": enabled}
