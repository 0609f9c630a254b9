"""Answers an administrator about users, roles and access rules, and changes them by the verbs of the wire; a person's own password, too.

The verbs check the rights once more and write each change and each refusal to the audit themselves, so nothing here does.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final, Literal

import msgspec

from quintet.broker.identity.access import Acl
from quintet.console.call import Call, Operation
from quintet.console.paging import List, Row, listed
from quintet.model.errors import AuthError, BadRequest, Forbidden

NAMES_MAX: Final = 1_000  # in one rule, or roles of one user


class NewUser(msgspec.Struct, forbid_unknown_fields=True):
    """A user with a password."""

    name: str
    password: str
    roles: list[str] = []


class ChangedUser(msgspec.Struct, forbid_unknown_fields=True):
    """What is not named stays as it is."""

    name: str
    roles: list[str] | None = None
    enabled: bool | None = None
    password: str | None = None


class Deleted(msgspec.Struct, forbid_unknown_fields=True):
    """Delete the user or the rule of this name; `typed` is the name, as the person wrote it."""

    name: str
    typed: str


class NewPassword(msgspec.Struct, forbid_unknown_fields=True):
    """One's own password."""

    old: str
    new: str


class Rule(msgspec.Struct, forbid_unknown_fields=True):
    """Who may use a topic, a prefix (`orders-*`), or a group (`group:NAME`)."""

    name: str
    public: bool = False
    users: list[str] = []
    roles: list[str] = []


class Explain(msgspec.Struct, forbid_unknown_fields=True):
    """May somebody do this with a topic (`resource`), and why?"""

    who: str
    action: Literal["publish", "subscribe", "admin"]
    resource: str


def _secret(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _bounded(what: str, names: list[str]) -> list[str]:
    if len(names) > NAMES_MAX:
        raise BadRequest(f"{len(names)} {what}; the limit is {NAMES_MAX}")
    return names


async def _users(call: Call, ask: List) -> object:
    def rows() -> Iterator[Row | None]:
        for info in call.broker.users.walk():
            yield None if info is None else asdict(info) | {"me": info.name == call.owner}

    return await listed(call, ask, rows(), ("name", "roles"))


async def _rules(call: Call, ask: List) -> object:
    rows = (None if rule is None else asdict(rule) for rule in call.broker.users.rules.walk())
    return await listed(call, ask, rows, ("pattern", "users", "roles"))


async def _roles(call: Call, ask: List) -> object:
    rows = (asdict(role) | {"permissions": role.permissions} for role in call.broker.users.roles())
    return await listed(call, ask, rows, ("name", "description"))


async def _create(call: Call, ask: NewUser) -> object:
    roles = _bounded("roles", ask.roles)
    created = call.broker.users.create(call.principal, ask.name, _secret(ask.password), roles, peer=call.peer)
    return asdict(await call.run(created))


async def _update(call: Call, ask: ChangedUser) -> object:
    roles = None if ask.roles is None else _bounded("roles", ask.roles)
    password = None if ask.password is None else _secret(ask.password)
    changed = call.broker.users.update(call.principal, ask.name, roles, ask.enabled, password, peer=call.peer)
    return asdict(await call.run(changed))


def _check_typed(ask: Deleted) -> None:
    if ask.typed != ask.name:
        raise BadRequest(f"the name that was typed is not {ask.name!r}: nothing was deleted")


async def _delete(call: Call, ask: Deleted) -> object:
    _check_typed(ask)
    return {"name": await call.run(call.broker.users.delete(call.principal, ask.name, peer=call.peer))}


async def _password(call: Call, ask: NewPassword) -> object:
    """The old one is asked for, of administrators too: an unattended page must not be enough. Every session ends with it."""
    try:
        await call.console.sessions.prove(call.owner, ask.old, call.peer)
    except AuthError:
        raise Forbidden("the old password is wrong", hint="nothing was changed") from None
    old, new = _secret(ask.old), _secret(ask.new)
    await call.run(call.broker.users.change_password(call.principal, call.owner, old, new, peer=call.peer))
    return {}


async def _set_rule(call: Call, ask: Rule) -> object:
    users, roles = _bounded("users", ask.users), _bounded("roles", ask.roles)
    acl = Acl(ask.name, ask.public, tuple(users), tuple(roles))
    return asdict(await call.run(call.broker.users.rules.set(call.principal, acl, peer=call.peer)))


async def _delete_rule(call: Call, ask: Deleted) -> object:
    _check_typed(ask)
    return {"name": await call.run(call.broker.users.rules.delete(call.principal, ask.name, peer=call.peer))}


async def _explain(call: Call, ask: Explain) -> object:
    found = call.broker.keys.explain(ask.who, ask.action, ask.resource)
    steps = [dict(zip(("topic", "rule", "outcome", "why"), step, strict=True)) for step in found.steps]
    return {"allowed": found.allowed, "kind": found.kind, "name": found.name, "steps": steps}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/users", right="admin", asks=List, answer=_users, live=True),
    Operation(method="GET", path="/api/rules", right="admin", asks=List, answer=_rules, live=True),
    Operation(method="GET", path="/api/roles", right="admin", asks=List, answer=_roles),
    Operation(method="GET", path="/api/explain", right="admin", asks=Explain, answer=_explain),
    Operation(method="POST", path="/api/user/create", right="admin", asks=NewUser, answer=_create),
    Operation(method="POST", path="/api/user/update", right="admin", asks=ChangedUser, answer=_update),
    Operation(method="POST", path="/api/user/delete", right="admin", asks=Deleted, answer=_delete),
    Operation(method="POST", path="/api/rule/set", right="admin", asks=Rule, answer=_set_rule),
    Operation(method="POST", path="/api/rule/delete", right="admin", asks=Deleted, answer=_delete_rule),
    Operation(method="POST", path="/api/password", right="known", asks=NewPassword, answer=_password),
)
