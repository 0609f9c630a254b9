"""Whom a signed token speaks of: the user of that name as it is now, or somebody with rights of its own."""

import pytest

from quintet.broker.identity.access import ANONYMOUS, NO_SUBJECT, Access, Acl, Credential, Principal, hash_secret
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
    with pytest.raises(AuthError, match="not a user name"):
        Access().subject(name)


def test_two_spellings_are_one_subject() -> None:
    assert Access().subject("o\u0308rn") == Access().subject("örn")


# -- subjects and keys of one name -------------------------------------------------------------------------------------


def limited() -> Access:
    return Access([Credential("reader", hash_secret(b"r"), publish=(), subscribe=("public.*",))])


@pytest.mark.parametrize("name", ["reader", "READER", "\uff52eader"])
def test_a_subject_named_like_a_key_is_another_principal(name: str) -> None:
    access = limited()
    identity, token = access.subject(name)
    _, key = access.authenticate(b"r")
    assert token.name == f"(token) {name}" != key.name, "what one of them makes is not the other's"
    assert access.current(identity) == token
    for action, topic in (("publish", "public.x"), ("subscribe", "secret"), ("admin", "public.x")):
        assert not access.allowed(token, action, topic)  # type: ignore[arg-type]
    assert access.allowed(token, "subscribe", "public.x")
    access.set_acl(Acl("public.private", users=("reader",)))
    assert access.allowed(key, "subscribe", "public.private")
    assert not access.allowed(token, "subscribe", "public.private"), "the rule names the key"


def test_a_later_key_limits_live_tokens_and_one_that_goes_frees_them() -> None:
    access = Access()
    identity, before = access.subject("reader")
    assert before == Principal("reader")
    epoch = access.epoch
    access.set_key(Credential("reader", hash_secret(b"r"), publish=(), subscribe=("a*", "b")))
    assert access.epoch > epoch
    assert access.current(identity) == Principal("(token) reader", (), ("a*", "b"))
    access.set_key(Credential("Reader", hash_secret(b"s"), publish=("x",), subscribe=("ab", "c")))
    assert access.current(identity) == Principal("(token) reader", (), ("ab",)), "no more than each of them"
    for secret in (b"r", b"s"):
        access.drop_key(hash_secret(secret))
    assert access.current(identity) == before


def test_a_key_of_a_user_does_not_limit_its_subject() -> None:
    access = Access([Credential("laptop", hash_secret(b"l"), user="ann")])
    access.set_user("ann", 1, ("admin",))
    assert access.subject("laptop")[1] == Principal("laptop")
    assert access.subject("ann")[1].roles == ("admin",)


def test_a_token_that_names_nobody_is_nobody_in_particular() -> None:
    access = Access()
    identity, principal = access.no_subject()
    assert principal == Principal(NO_SUBJECT) == access.current(identity)
    access.set_acl(Acl("orders", users=("ann",)))
    assert not access.allowed(principal, "publish", "orders") and access.allowed(principal, "publish", "other")
