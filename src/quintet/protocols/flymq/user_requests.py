"""Answers FlyMQ's requests about who may do what, and who did it: users, API keys, access rules, the audit."""

from collections.abc import Callable
from typing import Final

from quintet.broker.audit.audit_log import FIELD_BYTES_MAX, TYPES, Event, Query
from quintet.broker.identity.access import ANONYMOUS, Acl, Role
from quintet.broker.identity.keys import Explanation, KeyInfo
from quintet.broker.identity.quotas import QuotaInfo
from quintet.broker.identity.users import UserInfo
from quintet.model.errors import BadRequest, UserNotFound
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.call import Call, Handler, Values, each, success


def _whoami(call: Call, _ask: Values) -> Values:
    roles = list(call.principal.roles)
    if call.options.dialect == "sdk":
        roles += [""] * len(roles)  # one published client reads str16 here, the other str8: both can read this
    permissions = list(call.principal.permissions)
    return {"success": call.owner != ANONYMOUS, "username": call.owner, "roles": roles, "permissions": permissions}


def _fields(info: UserInfo | KeyInfo | Explanation | Role | QuotaInfo) -> Values:
    return {name: getattr(info, name) for name in info.__slots__}


def _user(info: UserInfo) -> Values:
    return _fields(info) | {"user": info.name}


def _user_create(call: Call, ask: Values) -> None:
    users, password = call.broker.users, ask["password"].encode()
    call.run(users.create(call.principal, ask["user"], password, ask["roles"], peer=call.peer), _user)


def _echo(ask: Values, field: str) -> Callable[[object], Values]:
    """The reply that says whom, or what, was changed."""
    return lambda _: {"success": True, field: ask[field]}


def _user_delete(call: Call, ask: Values) -> None:
    call.run(call.broker.users.delete(call.principal, ask["user"], peer=call.peer), _echo(ask, "user"))


def _user_update(call: Call, ask: Values) -> None:
    roles, enabled, password = ask["roles"], ask["enabled"], ask["password"].encode() or None
    update = call.broker.users.update(call.principal, ask["user"], roles, enabled, password, peer=call.peer)
    call.run(update, _echo(ask, "user"))


def _user_list(call: Call, _ask: Values) -> Values:
    return {"users": each(_user, call.broker.users.walk())}


def _user_get(call: Call, ask: Values) -> Values:
    info = call.broker.users.get(ask["user"])
    if info is None:
        raise UserNotFound(f"user not found: {ask['user']}")
    return _user(info)


def _password_change(call: Call, ask: Values) -> None:
    old, new = ask["old_password"].encode(), ask["password"].encode()
    change = call.broker.users.change_password(call.principal, ask["user"], old, new, peer=call.peer)
    call.run(change, _echo(ask, "user"))


def _role_list(call: Call, _ask: Values) -> Values:
    return {"roles": [_fields(role) | {"permissions": role.permissions} for role in call.broker.users.roles()]}


def _acl(acl: Acl) -> Values:
    users, roles = list(acl.users), list(acl.roles)
    return {"topic": acl.pattern, "exists": True, "public": acl.public, "users": users, "roles": roles}


def _acl_set(call: Call, ask: Values) -> None:
    acl = Acl(ask["topic"], ask["public"], tuple(ask["users"]), tuple(ask["roles"]))
    call.run(call.broker.users.rules.set(call.principal, acl, peer=call.peer), _echo(ask, "topic"))


def _acl_get(call: Call, ask: Values) -> Values:
    acl = call.broker.users.rules.get(ask["topic"])
    found = _acl(acl) if acl else {"topic": ask["topic"], "exists": False, "public": False, "users": [], "roles": []}
    return found | {"default_public": False}


def _acl_delete(call: Call, ask: Values) -> None:
    call.run(call.broker.users.rules.delete(call.principal, ask["topic"], peer=call.peer), _echo(ask, "topic"))


def _acl_list(call: Call, _ask: Values) -> Values:
    return {"rules": each(_acl, call.broker.users.rules.walk()), "default_public": False}


def _acl_explain(call: Call, ask: Values) -> Values:
    found = call.broker.keys.explain(ask["who"], ask["action"], ask["topic"])
    steps = [dict(zip(("topic", "rule", "outcome", "why"), step, strict=True)) for step in found.steps]
    return _fields(found) | {"steps": steps}


def _key_create(call: Call, ask: Values) -> None:
    create = call.broker.keys.create(call.principal, ask["user"], ask["name"], ask["expires_s"], peer=call.peer)
    call.run(create, lambda key: _fields(key.info) | {"secret": key.secret})


def _key_list(call: Call, ask: Values) -> Values:
    found = call.broker.keys.walk(call.principal, ask["user"], ask["everyone"], call.peer)
    return {"keys": each(_fields, found)}


def _key_remove(call: Call, ask: Values) -> None:
    remove = call.broker.keys.remove(call.principal, ask["user"], ask["id"], peer=call.peer)
    call.run(remove, lambda _: success())


def _quota(info: QuotaInfo) -> Values:
    values = _fields(info) | info.bounds._asdict()
    return values | {"paused_ms": info.paused_us // 1000}


def _quota_set(call: Call, ask: Values) -> None:
    changes = {change["quota"]: change["value"] for change in ask["changes"]}
    quotas = call.broker.quotas
    call.run(quotas.set(call.principal, ask["kind"], ask["name"], ask.get("tenant"), changes, peer=call.peer), _quota)


def _quota_clear(call: Call, ask: Values) -> None:
    call.run(call.broker.quotas.clear(call.principal, ask["kind"], ask["name"], peer=call.peer), _quota)


def _quota_list(call: Call, _ask: Values) -> Values:
    return {"quotas": each(_quota, call.broker.quotas.walk())}


# -- audit ------------------------------------------------------------------------------------------------------------


def _query(ask: Values) -> Query:
    """What is asked for. Of unknown types it keeps one, so that nothing is found and not everything."""
    if len(ask["search"]) > FIELD_BYTES_MAX:
        raise BadRequest(
            f"the search text has {len(ask['search'])} characters; the limit is {FIELD_BYTES_MAX}, as no field of an event has more"
        )
    same = {name: ask[name] for name in ("start_s", "end_s", "user", "resource", "result", "search", "limit")}
    types = tuple(TYPES.intersection(ask["types"])) or tuple(ask["types"][:1])
    return Query(types=types, offset=ask["skip"], **same)


def _audit_query(call: Call, ask: Values) -> None:
    made = call.then(lambda found: {"events": each(Event.fields, iter(found[0])), "total": found[1], "more": found[2]})
    call.broker.slices.finish(call.broker.audit.query_steps(_query(ask)), call.wanted).then(made)


def _audit_export(call: Call, ask: Values) -> None:
    made = call.then(lambda data: {"format": ask["format"], "data": data})
    steps = call.broker.audit.export_steps(_query(ask.get("query", ask)), ask["format"])
    call.broker.slices.finish(steps, call.wanted).then(made)


HANDLERS: Final[dict[int, Handler]] = {
    frames.WHOAMI: _whoami, frames.USER_CREATE: _user_create, frames.USER_DELETE: _user_delete,
    frames.USER_UPDATE: _user_update, frames.USER_LIST: _user_list, frames.USER_GET: _user_get,
    frames.ACL_SET: _acl_set, frames.ACL_GET: _acl_get, frames.ACL_DELETE: _acl_delete, frames.ACL_LIST: _acl_list,
    frames.PASSWORD_CHANGE: _password_change, frames.ROLE_LIST: _role_list, frames.AUDIT_QUERY: _audit_query,
    frames.AUDIT_EXPORT: _audit_export, frames.AUDIT_QUERY_SDK: _audit_query, frames.AUDIT_EXPORT_SDK: _audit_export,
    frames.ACL_EXPLAIN: _acl_explain, frames.KEY_CREATE: _key_create, frames.KEY_LIST: _key_list,
    frames.KEY_REMOVE: _key_remove, frames.QUOTA_SET: _quota_set, frames.QUOTA_CLEAR: _quota_clear,
    frames.QUOTA_LIST: _quota_list,
}  # fmt: skip
