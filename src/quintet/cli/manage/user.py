"""`quintet user`, `quintet acl` and `quintet role`: manage users, their roles, and access rules of topics.

Passwords are typed, piped or read from a file; never an argument, which every user of the machine can see. API keys are
made by the broker and printed once.
"""

from pathlib import Path
from typing import Final

import click

from quintet.cli.terminal import common
from quintet.cli.terminal.common import (
    json_option,
    manage,
    plain,
    plain_fields,
    read_password,
    say,
    say_json,
    say_table,
    url_option,
    when,
    yes_option,
)
from quintet.cli.terminal.output import echo
from quintet.client.manage import Manage
from quintet.client.manage_access import Explanation, Rule, User
from quintet.model.errors import AclNotFound, QuintetError

EXPLAIN_REFUSED: Final = 1  # exit codes of `quintet acl explain`
EXPLAIN_FAILED: Final = 2

name_argument: Final = click.argument("name")
password_option: Final = click.option(
    "--password-file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File with the password, or - for stdin. Without it, the password is asked for, or read from a pipe.",
)


# -- users ------------------------------------------------------------------------------------------------------------


@click.group()
def user() -> None:
    """Users and their passwords.

    \b
    quintet user list
    quintet user create ann --role producer --role consumer       asks for the password
    quintet user update ann --role consumer --disable
    quintet user password ann < password.txt
    quintet user key add ann --name laptop                         an API key, for other protocols
    """


@user.command("list")
@url_option
@json_option
def list_users(url: str, as_json: bool) -> None:
    """List all users.

    \b
    quintet user list
    """
    found = manage(url, Manage.users)
    if as_json:
        say_json(plain(found))
        return
    rows = [
        (each.name, ", ".join(each.roles) or "-", each.enabled, when(each.created_s * 1000)[:19], _updated(each))
        for each in found
    ]
    say_table(("user", "roles", "enabled", "created", "changed"), rows, "no users")


def _updated(user: User) -> str:
    return when(user.updated_s * 1000)[:19] if user.updated_s != user.created_s else "-"


@user.command()
@url_option
@name_argument
@click.option(
    "--role", "roles", multiple=True, help="Role of the user; repeatable. `quintet role list` shows all roles."
)
@password_option
@json_option
def create(url: str, name: str, roles: tuple[str, ...], password_file: Path | None, as_json: bool) -> None:
    """Create a user.

    \b
    quintet user create ann --role producer
    pwgen 20 1 | tee ann.txt | quintet user create ann --role consumer
    """
    password = read_password(password_file, f"Password of {name}", True)
    found = manage(url, lambda broker: broker.create_user(name, password, roles))
    say_user(as_json, found, f"{name}: created, roles {', '.join(found.roles) or 'none'}")


def say_user(as_json: bool, found: User, text: str) -> None:
    say(as_json, plain_fields(found), text)


@user.command()
@url_option
@name_argument
@click.option("--role", "roles", multiple=True, help="New role, in place of those it has; repeatable.")
@click.option("--no-roles", is_flag=True, help="Take all roles away.")
@click.option("--enable/--disable", "enabled", default=None, help="A disabled user cannot log in.")
@json_option
def update(url: str, name: str, roles: tuple[str, ...], no_roles: bool, enabled: bool | None, as_json: bool) -> None:
    """Change roles, or whether a user may log in. Options that are not given change nothing.

    \b
    quintet user update ann --role consumer
    quintet user update ann --disable
    """
    if roles and no_roles:
        raise click.UsageError("--role and --no-roles exclude each other.")
    if not roles and not no_roles and enabled is None:
        raise click.UsageError("Nothing to change: give --role, --no-roles, --enable or --disable.")

    async def work(broker: Manage) -> User:
        now = await broker.user(name)
        chosen = list(roles) if roles else [] if no_roles else now.roles
        await broker.update_user(name, chosen, now.enabled if enabled is None else enabled)
        return await broker.user(name)

    found = manage(url, work)
    state = "enabled" if found.enabled else "disabled"
    say_user(as_json, found, f"{name}: {state}, roles {', '.join(found.roles) or 'none'}")


@user.command()
@url_option
@name_argument
@yes_option
@json_option
def delete(url: str, name: str, yes: bool, as_json: bool) -> None:
    """Delete a user; its connections are closed.

    \b
    quintet user delete ann
    """
    common.confirm(f"Delete the user {name}?", yes)
    manage(url, lambda broker: broker.delete_user(name))
    say(as_json, {"user": name, "deleted": True}, f"{name}: deleted")


@user.command()
@url_option
@click.argument("name", required=False)
@password_option
@json_option
def password(url: str, name: str | None, password_file: Path | None, as_json: bool) -> None:
    """Change a password: your own (with the old one in the URL), or as an administrator that of NAME.

    \b
    quintet user password ann
    quintet user password ann --password-file new.txt
    """
    mine = common.endpoint_of(url)
    who = name or mine.user
    if not who:
        raise click.UsageError("The URL names no user: give the NAME of the user whose password changes.")
    old = mine.secret if who == mine.user else ""
    new = read_password(password_file, f"New password of {who}", True)
    manage(url, lambda broker: broker.change_password(who, new, old))
    say(as_json, {"user": who, "changed": True}, f"{who}: has a new password; connections with the old one end")


# -- keys -------------------------------------------------------------------------------------------------------------


@user.group()
def key() -> None:
    """API keys of users, for BlipMQ, peerbus (as its token) and Flight.

    \b
    quintet user key add --name laptop               one of your own
    quintet user key add ann --expires 90d           of ann, as an administrator
    quintet user key list ann
    quintet user key remove qk_1a2b3c4d
    """


@key.command("add")
@url_option
@click.argument("name", required=False, default="")
@click.option("--name", "label", default="", help="Label of the key, to tell it from others.")
@click.option("--expires", type=common.Duration(), help="Time until it stops working: 12h, 90d. Not given: never.")
@json_option
def add_key(url: str, name: str, label: str, expires: int | None, as_json: bool) -> None:
    """Create an API key for yourself, or as an administrator for the user NAME. It is printed only once.

    \b
    quintet user key add --name laptop > key.txt
    quintet user key add ann --expires 90d
    """
    until = 0 if expires is None else (common.now_ms() + expires) // 1000
    made, secret = manage(url, lambda broker: broker.create_key(name, label, until))
    if as_json:
        say_json(plain_fields(made) | {"secret": secret})
        return
    echo(f"quintet: {made.id} of {made.user}; the broker keeps only a hash of it", err=True)
    echo(secret)


@key.command("list")
@url_option
@click.argument("name", required=False, default="")
@click.option("--all", "everyone", is_flag=True, help="Keys of all users, and of the configuration.")
@json_option
def list_keys(url: str, name: str, everyone: bool, as_json: bool) -> None:
    """List your keys, or as an administrator those of the user NAME.

    \b
    quintet user key list
    quintet user key list --all
    """
    found = manage(url, lambda broker: broker.keys(name, everyone=everyone))
    if as_json:
        say_json(plain(found))
        return
    rows = [
        (each.id or "(configured)", each.user or "-", each.name or "-", _day(each.created_s), _day(each.expires_s))
        for each in found
    ]
    say_table(("key", "user", "name", "created", "expires"), rows, "no keys")


def _day(seconds: int) -> str:
    return when(seconds * 1000)[:19] if seconds else "-"


@key.command("remove")
@url_option
@click.argument("id")
@click.option("--user", "name", default="", help="Owner of the key; administrators may leave it out.")
@yes_option
@json_option
def remove_key(url: str, id: str, name: str, yes: bool, as_json: bool) -> None:
    """Revoke a key: it stops working at once, and its connections are closed.

    \b
    quintet user key remove qk_1a2b3c4d
    """
    common.confirm(f"Revoke the key {id}?", yes)

    async def work(broker: Manage) -> str:
        owner = name or await _owner_of(broker, id)
        await broker.remove_key(id, owner)
        return owner

    owner = manage(url, work)
    say(as_json, {"id": id, "user": owner, "removed": True}, f"{id}: revoked")


async def _owner_of(broker: Manage, id: str) -> str:
    me, _, may = await broker.whoami()
    everyone = "admin" in may
    found = await broker.keys(everyone=everyone)
    return next((each.user for each in found if each.id == id), me)


# -- rules ------------------------------------------------------------------------------------------------------------


@click.group()
def acl() -> None:
    """Access rules of topics and groups.

    \b
    quintet acl list
    quintet acl set orders --user ann --role billing
    quintet acl set 'logs.*' --public                a prefix
    quintet acl set group:billing --user ann         a consumer group
    quintet acl get orders
    quintet acl explain ann publish orders           yes or no, and why
    """


@acl.command("list")
@url_option
@json_option
def list_rules(url: str, as_json: bool) -> None:
    """List all rules.

    \b
    quintet acl list
    """
    found = manage(url, Manage.rules)
    if as_json:
        say_json(plain(found))
        return
    say_table(("name", "public", "users", "roles"), [_row(each) for each in found], "no rules: roles alone decide")


def _row(rule: Rule) -> tuple[object, ...]:
    return rule.topic, rule.public, ", ".join(rule.users) or "-", ", ".join(rule.roles) or "-"


@acl.command("set")
@url_option
@click.argument("topic", shell_complete=common.complete_topic)
@click.option("--user", "users", multiple=True, help="User who may use it; repeatable.")
@click.option("--role", "roles", multiple=True, help="Role whose users may use it; repeatable.")
@click.option("--public", is_flag=True, help="Everybody may read and write it.")
@json_option
def set_rule(url: str, topic: str, users: tuple[str, ...], roles: tuple[str, ...], public: bool, as_json: bool) -> None:
    """Say who may use a topic, a prefix (NAME*), or a group (group:NAME).

    \b
    quintet acl set orders --user ann --role billing
    quintet acl set 'logs.*' --public

    It replaces the rule of that name. A topic's rule denies everybody it does not list, except administrators; those
    it lists still need a role that may read or write. --public opens a topic to all, to read and to write.
    """
    rule = Rule(topic, public, list(users), list(roles))

    async def make(broker: Manage) -> list[str]:
        await broker.set_rule(rule)
        known = {each.name for each in await broker.users()} if users else set()
        return [name for name in users if name not in known]

    for name in manage(url, make):
        echo(f"quintet: there is no user {name!r} yet; `quintet user list` shows them", err=True)
    who = "everybody" if public else ", ".join([*users, *(f"role {each}" for each in roles)]) or "administrators"
    say(as_json, plain_fields(rule), f"{topic}: for {who}")


@acl.command("get")
@url_option
@click.argument("topic", shell_complete=common.complete_topic)
@json_option
def get_rule(url: str, topic: str, as_json: bool) -> None:
    """Show the rule of one name.

    \b
    quintet acl get orders
    """
    found = manage(url, lambda broker: broker.rule(topic))
    if found is None:
        raise AclNotFound(f"there is no rule for {topic!r}", hint="`quintet acl list` shows them, also of prefixes")
    if as_json:
        say_json(plain(found))
        return
    say_table(("name", "public", "users", "roles"), [_row(found)], "")


@acl.command("delete")
@url_option
@click.argument("topic", shell_complete=common.complete_topic)
@yes_option
@json_option
def delete_rule(url: str, topic: str, yes: bool, as_json: bool) -> None:
    """Delete a rule; access is then decided by roles, or by the rule of a prefix.

    \b
    quintet acl delete orders
    """
    common.confirm(f"Delete the rule of {topic}?", yes)
    manage(url, lambda broker: broker.delete_rule(topic))
    say(as_json, {"topic": topic, "deleted": True}, f"{topic}: rule deleted")


@acl.command()
@url_option
@click.argument("who", metavar="USER")
@click.argument("action", type=click.Choice(["publish", "subscribe", "admin"]))
@click.argument("topic", shell_complete=common.complete_topic)
@json_option
@click.pass_context
def explain(context: click.Context, url: str, who: str, action: str, topic: str, as_json: bool) -> None:
    """Say whether USER is allowed to, and why, rule by rule. Exit code 0: yes, 1: no, 2: the question failed.

    \b
    quintet acl explain ann publish orders
    quintet acl explain key:sensors subscribe orders-dlq      an API key, by its name or id
    quintet acl explain subject:worker-7 publish orders       the subject of a token
    """
    try:
        found = manage(url, lambda broker: broker.explain(who, action, topic))
    except QuintetError as error:
        echo(f"quintet: {error}", err=True)
        context.exit(EXPLAIN_FAILED)
    if as_json:
        say_json(plain(found))
    else:
        what = "administer" if action == "admin" else f"{action} on"
        echo(f"{'yes' if found.allowed else 'no'}: the {found.kind} {found.name} {_may(found)} {what} {topic}")
        rows = [(each.topic or "-", each.rule, each.outcome, each.why) for each in found.steps]
        say_table(("topic", "rule", "says", "because"), rows, "")
    context.exit(0 if found.allowed else EXPLAIN_REFUSED)


def _may(found: Explanation) -> str:
    return "may" if found.allowed else "may not"


# -- roles ------------------------------------------------------------------------------------------------------------


@click.group()
def role() -> None:
    """Roles and their permissions.

    \b
    quintet role list

    Define your own roles in the configuration: `quintet config explain roles`.
    """


@role.command("list")
@url_option
@json_option
def list_roles(url: str, as_json: bool) -> None:
    """List all roles.

    \b
    quintet role list
    """
    found = manage(url, Manage.roles)
    if as_json:
        say_json(plain(found))
        return
    rows = [(each.name, ", ".join(each.permissions) or "-", each.description or "-") for each in found]
    say_table(("role", "may", "what it is for"), rows, "no roles")
