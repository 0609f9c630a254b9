"""Why somebody may or may not: every row of the table in access.py says so in words, and the last one decided."""

import pytest

from quintet.broker.identity.access import Access, Acl, Action, Principal, Role, covering


def access_of(*acls: Acl) -> Access:
    access = Access()
    access.set_roles([Role("ops", admin=("ops.*",)), Role("billing", read=("orders*",), write=("orders",))])
    for acl in acls:
        access.set_acl(acl)
    return access


CASES: list[tuple[tuple[str, ...], Action, str, list[str], str]] = [
    (("admin",), "publish", "__users", ["internal name: no"], "reserved for the broker"),
    (("ops",), "publish", "ops.x", ["internal name: next", "admin pattern: yes"], "'ops.*', by the role ops"),
    (("billing",), "admin", "orders", ["internal name: next", "admin pattern: no"], "administers nothing"),
    (("billing",), "publish", "open", ["internal name: next", "admin pattern: next", "access rule: yes"], "public"),
    (("billing",), "publish", "shut", ["internal name: next", "admin pattern: next", "access rule: no"], "lists neither"),
    (
        ("billing",), "subscribe", "orders.eu",
        ["internal name: next", "admin pattern: next", "access rule: next", "role or key pattern: yes"],
        "'orders*', by the role billing",
    ),
    (
        ("billing",), "publish", "orders.eu",
        ["internal name: next", "admin pattern: next", "access rule: next", "role or key pattern: no"],
        "may publish on 'orders'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("roles", "action", "topic", "rows", "words"), CASES)
def test_the_row_that_decides_is_the_last(
    roles: tuple[str, ...], action: Action, topic: str, rows: list[str], words: str
) -> None:
    access = access_of(Acl("open", public=True), Acl("shut*", users=("bob",)))
    principal = access.principal("ann", roles)
    allowed, steps = access.explain(principal, action, topic)
    assert [f"{step.rule}: {step.outcome}" for step in steps] == rows
    assert words in steps[-1].why
    assert allowed is access.allowed(principal, action, topic) is (steps[-1].outcome == "yes")


def test_a_rule_says_how_it_matches_and_how_it_lists() -> None:
    access = access_of(Acl("orders", users=("ann",)), Acl("ord*", roles=("billing",)))
    ann = access.principal("ann", ("billing",))
    exact, prefix = access.explain(ann, "publish", "orders")[1][2], access.explain(ann, "subscribe", "orders2")[1][2]
    assert exact.why == "the rule of 'orders' (exact) lists it by name"
    assert prefix.why == "the rule of 'ord*' (prefix) lists its role billing"


def test_dead_letters_are_explained_down_to_the_topic_that_refuses() -> None:
    access = access_of(Acl("orders", users=("bob",)))
    allowed, steps = access.explain(Principal("ann"), "subscribe", "orders-dlq-dlq")
    assert not allowed
    assert [step.topic for step in steps if step.rule == "dead letters"] == ["orders-dlq", "orders"]
    assert (steps[-1].topic, steps[-1].rule, steps[-1].outcome) == ("orders", "access rule", "no")


def test_which_pattern_covers() -> None:
    assert covering(("a", "b*", "*"), "x") == "*"
    assert covering(("b*", "bx"), "bx") == "bx", "the exact one explains more"
    assert covering(("a", "b*"), "bx") == "b*"
    assert covering(("a", "b*"), "x") is None
