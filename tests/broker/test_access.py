"""Rights: the decision against an oracle written from the rules alone, identities, names that look alike."""

import os
import re
from collections.abc import Callable
from random import Random

import pytest

from quintet.broker.identity.access import (
    BUILT_IN_ROLES,
    Access,
    Acl,
    Action,
    Credential,
    Principal,
    Role,
    check_user_name,
    hash_secret,
    twin_key,
    user_identity,
)
from quintet.model.errors import AuthError, BadName, Forbidden

SUFFIX = "-dlq"
ACTIONS: tuple[Action, ...] = ("publish", "subscribe", "admin")
STEMS = (
    "orders",
    "Orders",
    "orders.eu",
    "o",
    "örder",
    "o\u0308rder",
    "ORDERS",
    "..",
    "a*b",
    "__topics",
    "_x",
    SUFFIX,
    "日本",
    "ｏrders",
    "\u043erders",
    "../orders",
    "orders/../orders",
    "orders\u200b",
)
LONG = "QUINTET_TEST_LONG"  # set: ten times as many
CASES = 1_000_000 if os.environ.get(LONG) else 100_000


# -- the oracle: the rules again, in another shape ---------------------------------------------------------------------


def fits(pattern: str, name: str) -> bool:
    if pattern[-1:] == "*":
        return re.match(re.escape(pattern[:-1]), name) is not None
    return pattern == name


def oracle(principal: Principal, action: str, topic: str, acls: list[Acl]) -> bool:
    if topic[:2] == "__":
        return False
    if (
        topic[-len(SUFFIX) :] == SUFFIX
        and topic != SUFFIX
        and not oracle(principal, action, topic[: -len(SUFFIX)], acls)
    ):
        return False
    if [pattern for pattern in principal.admin if fits(pattern, topic)]:
        return True
    if action == "admin":
        return False
    matching = [acl for acl in acls if fits(acl.pattern, topic)]
    exact = [acl for acl in matching if acl.pattern == topic and not acl.pattern.endswith("*")]
    chosen = exact or sorted(matching, key=lambda acl: -len(acl.pattern))
    if chosen and chosen[0].public:
        return True
    if chosen and principal.name not in chosen[0].users and not set(principal.roles) & set(chosen[0].roles):
        return False
    return bool([p for p in {"publish": principal.publish, "subscribe": principal.subscribe}[action] if fits(p, topic)])


def some_name(rng: Random) -> str:
    return (
        rng.choice(STEMS) + rng.choice(("", "", ".new", "2")) + rng.choice(("", "", SUFFIX, SUFFIX * 2, SUFFIX.upper()))
    )


def some_pattern(rng: Random) -> str:
    name = some_name(rng).replace("*", "")
    return rng.choice((name, name, name[: rng.randint(0, len(name))] + "*", "*")) or "*"


def some_patterns(rng: Random) -> tuple[str, ...]:
    return tuple(some_pattern(rng) for _ in range(rng.choice((0, 1, 1, 3))))


def test_the_decision_agrees_with_the_oracle() -> None:
    rng = Random(20261115)
    seen: dict[bool, int] = {True: 0, False: 0}
    by_acl = 0
    for _ in range(CASES // 20):
        acls = list({acl.pattern: acl for acl in (
            Acl(some_pattern(rng), rng.random() < 0.3, rng.choice(((), ("a",), ("a", "é"))), rng.choice(((), ("r",))))
            for _ in range(rng.choice((0, 1, 4))))}.values())  # fmt: skip
        access = Access(dead_letter_suffix=SUFFIX)
        for acl in acls:
            access.set_acl(acl)
        for _ in range(20):
            admin = some_patterns(rng) if rng.random() < 0.3 else ()
            name = rng.choice(("a", "A", "é", "b"))
            principal = Principal(
                name, some_patterns(rng), some_patterns(rng), admin, rng.choice(((), ("r",), ("s", "r")))
            )
            action, topic = rng.choice(ACTIONS), some_name(rng)
            expected = oracle(principal, action, topic, acls)
            assert access.allowed(principal, action, topic) is expected, (principal, action, topic, acls)
            explained, steps = access.explain(principal, action, topic)
            assert explained is expected and steps[-1].outcome == ("yes" if expected else "no"), steps
            seen[expected] += 1
            by_acl += expected is not oracle(principal, action, topic, [])
    assert min(seen.values()) > CASES // 10
    assert by_acl > CASES // 50


# -- the rows of the table, one by one ---------------------------------------------------------------------------------

ADMIN = Principal("root", (), (), ("*",))
READER = Principal("r", (), ("*",))


def test_nobody_uses_the_brokers_own_topics() -> None:
    access = Access()
    access.set_acl(Acl("__users", public=True))
    for action in ACTIONS:
        assert not access.allowed(ADMIN, action, "__users")
        assert not access.allowed(ADMIN, action, "__users-dlq")


def test_an_admin_pattern_gives_everything_it_covers_and_nothing_else() -> None:
    access = Access()
    partial = Principal("p", (), (), ("orders*",))
    access.set_acl(Acl("orders", users=("somebody",)))
    for action in ACTIONS:
        assert access.allowed(partial, action, "orders")
        assert not access.allowed(partial, action, "other")
    assert not access.may_administer(partial)
    assert access.may_administer(ADMIN)


def test_an_acl_narrows_and_a_public_one_widens() -> None:
    access = Access()
    guest = Principal("g", (), ())
    access.set_acl(Acl("secret*", users=("x",), roles=("auditor",)))
    access.set_acl(Acl("secret.open", public=True))
    assert not access.allowed(READER, "subscribe", "secret")
    assert access.allowed(Principal("x", (), ("*",)), "subscribe", "secret")
    assert access.allowed(Principal("y", (), ("*",), (), ("auditor",)), "subscribe", "secret")
    assert not access.allowed(Principal("x", (), ()), "subscribe", "secret"), "being listed gives no right by itself"
    for action in ("publish", "subscribe"):
        assert access.allowed(guest, action, "secret.open")
    assert not access.allowed(guest, "admin", "secret.open")
    access.drop_acl("secret*")
    assert access.allowed(READER, "subscribe", "secret")


def test_dead_letters_are_as_secret_as_their_topic() -> None:
    access = Access()
    access.set_acl(Acl("orders", users=("x",)))
    for name in ("orders", "orders-dlq", "orders-dlq-dlq"):
        assert not access.allowed(READER, "subscribe", name)
        assert access.allowed(Principal("x", (), ("*",)), "subscribe", name)
    only = Principal("d", (), ("other-dlq",), ("third-dlq",))
    assert not access.allowed(only, "subscribe", "other-dlq")
    assert not access.allowed(only, "admin", "third-dlq")
    assert access.allowed(READER, "subscribe", "-dlq"), "a name that is nothing but the suffix belongs to no topic"


def test_groups_are_listed_by_entries_of_their_own() -> None:
    access = Access()
    access.set_acl(Acl("*", public=True))
    assert not access.listed(READER, "group:billing"), "a rule about topics says nothing of groups"
    access.set_acl(Acl("group:bill*", users=("r",)))
    assert access.listed(READER, "group:billing")
    assert not access.listed(Principal("s"), "group:billing")
    access.set_acl(Acl("group:billing", public=True))
    assert access.listed(Principal("s"), "group:billing")
    assert access.listed(READER, "anything")


def test_a_refusal_says_who_what_and_where_and_is_told() -> None:
    access = Access()
    told: list[tuple[str, str, str, str]] = []
    access.on_refused = lambda principal, action, topic, peer: told.append((principal.name, action, topic, peer))
    access.require(READER, "subscribe", "t")
    with pytest.raises(Forbidden, match="r may not publish on topic 't'"):
        access.require(READER, "publish", "t", "10.0.0.1")
    with pytest.raises(Forbidden, match="r may not administer topic 't'"):
        access.require(READER, "admin", "t")
    assert told == [("r", "publish", "t", "10.0.0.1"), ("r", "admin", "t", "")]


# -- identities --------------------------------------------------------------------------------------------------------


def test_a_key_is_an_identity_until_it_is_gone() -> None:
    access = Access([Credential("a", hash_secret(b"key-a"))])
    identity, principal = access.authenticate(b"key-a")
    assert principal.name == "a"
    assert access.current(identity) == principal
    with pytest.raises(AuthError):
        access.authenticate(b"key-b")
    before = access.epoch
    access.replace([])
    assert access.current(identity) is None
    assert access.epoch > before


def test_a_user_is_an_identity_of_one_version() -> None:
    access = Access()
    access.set_user("a:1", 7, ("producer",))
    identity = user_identity("a:1", 7)
    assert access.current(identity) == Principal("a:1", ("*",), (), (), ("producer",))
    assert access.current(user_identity("a:1", 8)) is None
    assert access.current(user_identity("a", 7)) is None
    assert access.current("user:") is None
    assert access.current("") is None
    access.set_user("a:1", 8, ("producer",))
    assert access.current(identity) is None
    access.drop_user("a:1")
    assert access.current(user_identity("a:1", 8)) is None


def test_roles_add_up_and_change_for_live_users() -> None:
    access = Access()
    access.set_roles([Role("audit", read=("logs*",), admin=("logs*",))])
    access.set_user("a", 1, ("audit", "producer", "gone"))
    identity = user_identity("a", 1)
    assert access.current(identity) == Principal("a", ("*",), ("logs*",), ("logs*",), ("audit", "producer", "gone"))
    access.set_roles([])
    assert access.current(identity) == Principal("a", ("*",), (), (), ("audit", "producer", "gone"))
    assert [role.name for role in access.roles()] == ["admin", "producer", "consumer", "guest"]


def test_every_change_raises_the_epoch() -> None:
    access = Access()
    seen = {access.epoch}
    changes: list[Callable[[], None]] = [
        lambda: access.replace([]),
        lambda: access.set_roles([]),
        lambda: access.set_user("a", 1, ()),
        lambda: access.drop_user("a"),
        lambda: access.set_acl(Acl("a*")),
        lambda: access.drop_acl("a*"),
        lambda: access.set_acl(Acl("a")),
        lambda: access.drop_acl("a"),
    ]
    for change in changes:
        change()
        assert access.epoch > max(seen)
        seen.add(access.epoch)


def test_rights_in_words() -> None:
    assert {role.name: role.permissions for role in BUILT_IN_ROLES} == {
        "admin": ("read", "write", "admin"), "producer": ("write",), "consumer": ("read",), "guest": (),
    }  # fmt: skip
    assert Principal("p", ("a", "b*"), ()).permissions == ("write:a", "write:b*")


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", "x" * 256, "é" * 128, "a\0", "a\n", "a\x7f", "a\u200b", "a\u202eb", "\ud800", "\u2028", " a", "a ", "аdmin", "αdmin", "(anonymous)"],
)  # fmt: skip
def test_names_that_are_no_names(name: str) -> None:
    with pytest.raises(BadName):
        check_user_name(name)


@pytest.mark.parametrize("name", ["a", "x" * 255, "José Ñ", "администратор", "日本", "a:b@c/d", "user 1", "\U0001f600"])
def test_names_that_are(name: str) -> None:
    assert check_user_name(name) == name


@pytest.mark.parametrize("twin", ["Admin", "ADMIN", "ａｄｍｉｎ", "𝐚𝐝𝐦𝐢𝐧", "ⓐⓓⓜⓘⓝ"])
def test_twins_have_one_key(twin: str) -> None:
    assert twin_key(twin) == twin_key("admin")
    assert twin_key("admin2") != twin_key("admin")


def test_composed_and_decomposed_are_one_name() -> None:
    assert check_user_name("e\u0301") == check_user_name("\u00e9") == "\u00e9"
