"""Whom a signed token speaks of: the user of that name as it is now, or somebody with rights of its own."""

import pytest

from quintet.broker.access import ANONYMOUS, Access, Acl, Principal
from quintet.model.errors import AuthError


def test_a_subject_without_a_user_may_use_what_no_rule_closes() -> None:
    access = Access()
    identity, principal = access.subject("worker-7")
    assert (identity, principal) == ("subject:worker-7", Principal("worker-7"))
    assert access.current(identity) == principal
    assert access.allowed(principal, "publish", "orders") and access.allowed(principal, "subscribe", "orders")
    assert not access.allowed(principal, "admin", "orders")
    access.set_acl(Acl("orders", users=("ann",)))
    assert not access.allowed(principal, "publish", "orders")
    access.set_acl(Acl("orders", users=("worker-7",)))
    assert access.allowed(principal, "publish", "orders")


def test_a_subject_that_is_a_user_has_its_rights_and_no_others() -> None:
    access = Access()
    access.set_user("ann", 1, ("consumer",))
    identity, principal = access.subject("ann")
    assert principal == access.current("user:ann:1")
    assert not access.allowed(principal, "publish", "orders")
    access.set_user("ann", 2, ("producer",))  # another password and other roles: the token says the name alone
    assert access.current(identity) == access.current("user:ann:2")


def test_a_disabled_user_is_no_subject_and_a_deleted_one_is_unknown() -> None:
    access = Access()
    access.set_user("ann", 1, ("producer",))
    identity, _ = access.subject("ann")
    epoch = access.epoch
    access.disable_user("ann")
    assert access.epoch > epoch
    assert access.current(identity) is None
    with pytest.raises(AuthError, match="disabled"):
        access.subject("ann")
    access.set_user("ann", 1, ("producer",))
    assert access.current(identity) is not None
    access.drop_user("ann")
    assert access.current(identity) == Principal("ann")


@pytest.mark.parametrize("twin", ["Ann", "ANN", "ａnn"])
def test_nobody_is_a_subject_that_looks_like_a_user(twin: str) -> None:
    access = Access()
    access.disable_user("ann")
    assert access.current(f"subject:{twin}") is None
    with pytest.raises(AuthError, match="looks the same as the user 'ann'"):
        access.subject(twin)


@pytest.mark.parametrize("name", ["", ANONYMOUS, "(configuration)", " ann", "an\u200bn", "a" * 256, "p\u0430ul"])
def test_subjects_that_are_no_names(name: str) -> None:
    with pytest.raises(AuthError, match="no name"):
        Access().subject(name)


def test_two_spellings_are_one_subject() -> None:
    assert Access().subject("o\u0308rn") == Access().subject("örn")
