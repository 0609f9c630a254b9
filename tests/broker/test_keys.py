"""API keys of users: made, listed, revoked, expired; with the rights of their user as they are; and kept as hashes."""

from typing import Any

import pytest

from quintet.broker.audit.audit_log import Query
from quintet.broker.identity import keys as module
from quintet.broker.identity.access import ANONYMOUS, Acl, Credential, Principal, hash_secret
from quintet.broker.identity.keys import KeyInfo, NewKey
from quintet.broker.identity.users import ConfiguredUser
from quintet.model.errors import (
    AuthError,
    BadName,
    BadRequest,
    Forbidden,
    KeyNotFound,
    LimitExceeded,
    QuintetError,
    StorageError,
    UserNotFound,
)
from quintet.testing.line import SimBroker
from tests.broker.test_users import ROOT, Answer, acl_set, configure, create, cut_power, delete, sim, update

__all__ = ["sim"]  # the fixture
SECOND = 1_000_000
ANN = Principal("ann", ("*",), (), (), ("producer",))


@pytest.fixture
def ann(sim: SimBroker) -> SimBroker:
    create(sim, "ann", "producer")
    return sim


def add(sim: SimBroker, user: str = "", *, actor: Principal = ANN, name: str = "", expires_s: int = 0) -> Answer:
    return Answer(sim, sim.broker.keys.create, actor, user, name, expires_s)


def made(sim: SimBroker, user: str = "", **options: Any) -> NewKey:
    found = add(sim, user, **options).result
    assert isinstance(found, NewKey)
    return found


def remove(sim: SimBroker, id: str, user: str = "", actor: Principal = ANN) -> Answer:
    return Answer(sim, sim.broker.keys.remove, actor, user, id)


def listed(sim: SimBroker, user: str = "", actor: Principal = ANN, everyone: bool = False) -> list[KeyInfo]:
    return list(sim.broker.keys.list(actor, user, everyone))


def who(sim: SimBroker, key: NewKey) -> Principal | None:
    try:
        return sim.broker.authenticate(key.secret.encode())[1]
    except AuthError:
        return None


# -- what a key is -----------------------------------------------------------------------------------------------------


def test_a_key_is_its_user(ann: SimBroker) -> None:
    key = made(ann, name="laptop")
    assert key.secret.startswith(key.info.id + "_") and len(key.secret) - len(key.info.id) - 1 == 64, "256 bits"
    assert (key.info.user, key.info.name, key.info.expires_s, key.info.configured) == ("ann", "laptop", 0, False)
    assert listed(ann) == [key.info]
    identity, principal = ann.broker.authenticate(key.secret.encode())
    assert principal == ann.broker.access.of_name("ann")
    update(ann, "ann", ("consumer",))
    now = ann.broker.access.current(identity)
    assert now is not None and (now.name, now.roles) == ("ann", ("consumer",)), "the rights are those of this moment"


def test_keys_are_told_apart_and_each_is_revoked_alone(ann: SimBroker) -> None:
    first, second = made(ann), made(ann)
    assert len({first.secret, second.secret, first.info.id, second.info.id}) == 4
    identity, _ = ann.broker.authenticate(first.secret.encode())
    epoch = ann.broker.access.epoch
    remove(ann, first.info.id)
    assert ann.broker.access.epoch > epoch and ann.broker.access.current(identity) is None
    assert who(ann, first) is None and who(ann, second) is not None
    assert listed(ann) == [second.info]
    assert isinstance(remove(ann, first.info.id).error, KeyNotFound)


def test_a_disabled_user_has_no_keys_until_it_is_enabled(ann: SimBroker) -> None:
    key = made(ann)
    update(ann, "ann", enabled=False)
    with pytest.raises(AuthError, match="'ann' of this key is disabled"):
        ann.broker.authenticate(key.secret.encode())
    update(ann, "ann", enabled=True)
    assert who(ann, key) is not None


def test_a_later_user_of_the_name_does_not_inherit_keys(ann: SimBroker) -> None:
    key = made(ann)
    delete(ann, "ann")
    assert who(ann, key) is None
    create(ann, "ann", "admin")
    assert who(ann, key) is None and listed(ann) == []


@pytest.mark.parametrize("seed", range(4))
def test_not_even_when_the_power_was_cut_between_user_and_keys(seed: int, ann: SimBroker) -> None:
    key = made(ann)
    ann.broker.users.on_deleted = None  # the rows of the keys were not deleted yet
    delete(ann, "ann")
    create(ann, "ann", "admin")
    cut_power(ann, seed)
    assert who(ann, key) is None and listed(ann) == []


# -- durable -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_what_was_told_survives_a_power_cut(seed: int, ann: SimBroker) -> None:
    kept, gone = made(ann, name="kept"), made(ann)
    remove(ann, gone.info.id)
    cut_power(ann, seed)
    assert listed(ann) == [kept.info]
    found = who(ann, kept)
    assert found is not None and found.name == "ann"
    assert who(ann, gone) is None


def test_nothing_is_told_before_the_disk_has_it(ann: SimBroker) -> None:
    ann.scheduler.held = True
    answer = add(ann)
    ann.scheduler.turn()
    assert not answer.told
    ann.scheduler.held = False
    ann.scheduler.run_until_idle()
    assert who(ann, answer.result) is not None


def test_what_the_disk_refuses_is_taken_back(ann: SimBroker) -> None:
    key = made(ann)
    ann.disk.fail("fdatasync", 1, 5, times=1000)
    refused = add(ann)
    assert isinstance(refused.error, StorageError)
    assert isinstance(remove(ann, key.info.id).error, StorageError)
    assert listed(ann) == [key.info] and who(ann, key) is not None, "it was not revoked, and the answer said so"


def test_configuration_replaces_its_own_keys_only(ann: SimBroker) -> None:
    key = made(ann)
    ann.broker.set_credentials([Credential("sensors", hash_secret(b"s"), ("s.*",), ())])
    assert who(ann, key) is not None
    ann.broker.set_credentials([])
    assert who(ann, key) is not None
    with pytest.raises(AuthError):
        ann.broker.authenticate(b"s")
    ann.keys = {}
    ann.restart()
    assert who(ann, key) is not None


def test_a_configured_key_may_belong_to_a_user(ann: SimBroker) -> None:
    ann.broker.set_credentials([Credential("of ann", hash_secret(b"s"), user="ann")])
    _, principal = ann.broker.authenticate(b"s")
    assert principal == ann.broker.access.of_name("ann")
    (info,) = listed(ann)
    assert (info.id, info.name, info.configured) == ("", "of ann", True)
    assert isinstance(remove(ann, "").error, KeyNotFound), "the configuration has it, and nobody else removes it"
    ann.broker.set_credentials([Credential("of bob", hash_secret(b"s"), user="bob")])
    with pytest.raises(AuthError, match="'bob'"):
        ann.broker.authenticate(b"s")
    create(ann, "bob", "consumer")
    assert ann.broker.authenticate(b"s")[1].roles == ("consumer",)


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_key_ends_at_its_time(ann: SimBroker) -> None:
    now = ann.scheduler.now() // SECOND
    short, long = made(ann, expires_s=now + 10), made(ann, expires_s=now + 60)
    epoch = ann.broker.access.epoch
    ann.advance(9 * SECOND)
    assert who(ann, short) is not None and ann.broker.access.epoch == epoch
    ann.advance(2 * SECOND)
    assert who(ann, short) is None and ann.broker.access.epoch > epoch, "sessions look again"
    assert listed(ann) == [long.info]
    (event,) = ann.broker.audit.query(Query(types=("key.expire",)))[0]
    assert (event.resource, event.details["id"]) == ("ann", short.info.id)
    ann.stop()
    ann.scheduler.advance(60 * SECOND)
    ann.start()
    assert who(ann, long) is None and listed(ann) == [], "it ended while the broker was stopped"


# -- who may -----------------------------------------------------------------------------------------------------------


def test_one_has_ones_own_and_an_administrator_all(ann: SimBroker) -> None:
    create(ann, "bob", "consumer")
    bob = Principal("bob")
    key = made(ann, "ann", actor=ROOT, name="by root")
    assert listed(ann) == [key.info] == listed(ann, "ann", ROOT)
    assert [info.user for info in listed(ann, actor=ROOT, everyone=True)] == ["", "ann"]
    assert listed(ann, actor=bob) == []
    for refused in (add(ann, "ann", actor=bob), remove(ann, key.info.id, "ann", bob), add(ann, "nobody", actor=bob)):
        assert isinstance(refused.error, Forbidden)
    for user, everyone in (("ann", False), ("", True)):
        with pytest.raises(Forbidden):
            listed(ann, user, bob, everyone)
    assert isinstance(remove(ann, key.info.id, "", bob).error, KeyNotFound), "an id of another is no key of mine"
    assert who(ann, key) is not None
    denied = ann.broker.audit.query(Query(types=("access.denied",), user="bob"))[0]
    assert sorted(event.action for event in denied) == [
        "key.create",
        "key.create",
        "key.delete",
        "key.list",
        "key.list",
    ]
    remove(ann, key.info.id, "ann", ROOT)
    assert who(ann, key) is None


def test_what_is_refused(ann: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    past = ann.scheduler.now() // SECOND - 1
    wrong: list[tuple[Answer, type[QuintetError]]] = [
        (add(ann, "nobody", actor=ROOT), UserNotFound),
        (add(ann, actor=Principal("dev")), UserNotFound),
        (add(ann, actor=Principal(ANONYMOUS)), UserNotFound),
        (add(ann, name="x" * 101), BadName),
        (add(ann, name="a\nb"), BadName),
        (add(ann, expires_s=past), BadRequest),
        (add(ann, expires_s=-1), BadRequest),
    ]
    monkeypatch.setattr(module, "KEYS_OF_USER_MAX", 2)
    made(ann), made(ann)
    wrong.append((add(ann), LimitExceeded))
    monkeypatch.setattr(module, "KEYS_OF_USER_MAX", 100)
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    wrong.append((add(ann), LimitExceeded))
    for answer, kind in wrong:
        assert type(answer.error) is kind
    assert len(listed(ann)) == 2


def test_secrets_are_nowhere(ann: SimBroker) -> None:
    key = made(ann, name="laptop")
    ann.broker.authenticate(key.secret.encode())
    remove(ann, "qk_none")
    secret = key.secret.rpartition("_")[2]
    assert secret not in repr(key) + repr(ann.reports)
    rows = ann.broker.audit.query(Query())[0]
    assert {"key.create", "key.delete"} <= {event.type for event in rows}
    assert secret not in repr(rows)
    ann.stop()
    stored = b"".join(data or b"" for data in ann.disk.snapshot().values())
    assert secret.encode() not in stored
    assert hash_secret(key.secret.encode()).encode() in stored


# -- why ---------------------------------------------------------------------------------------------------------------


def test_explain_says_that_a_name_is_of_no_user(ann: SimBroker) -> None:
    explain = ann.broker.keys.explain
    first = explain("annn", "publish", "orders").steps[0]
    assert first[1:3] == ("no such user", "next") and "there is no user and no key 'annn'" in first[3]
    for meant in ("ann", "subject:annn"):
        assert all(step[1] != "no such user" for step in explain(meant, "publish", "orders").steps)


def test_explain_finds_users_keys_and_subjects(ann: SimBroker) -> None:
    ann.broker.set_credentials(
        [Credential("sensors", hash_secret(b"s"), ("s.*",), ()), Credential("ann", "0" * 64, ())]
    )
    key = made(ann)
    explain = ann.broker.keys.explain
    cases = {
        "ann": ("user", True), "user:ann": ("user", True), "key:ann": ("key", False), key.info.id: ("key", True),
        f"key:{key.info.id}": ("key", True), "sensors": ("key", False), "worker": ("subject", True),
        "subject:sensors": ("subject", False), "subject:other": ("subject", True), "subject:ann": ("subject", True),
    }  # fmt: skip
    for name, (kind, allowed) in cases.items():
        found = explain(name, "publish", "orders")
        assert (found.kind, found.allowed) == (kind, allowed), name
        assert found.steps[-1][2] == ("yes" if allowed else "no")
    assert explain("sensors", "publish", "s.1").steps[-1][3] == "it may publish on 's.*'"
    acl_set(ann, Acl("orders", users=("bob",)))
    assert not explain("worker", "publish", "orders").allowed
    update(ann, "ann", enabled=False)
    for name in ("ann", key.info.id):
        found = explain(name, "publish", "orders")
        assert not found.allowed and [step[1] for step in found.steps] == ["disabled"]


@pytest.mark.parametrize(
    ("name", "action", "kind"),
    [
        ("user:bob", "publish", UserNotFound),
        ("key:bob", "publish", KeyNotFound),
        ("subject:Root", "publish", BadName),
        ("(anonymous)", "publish", BadName),
        ("root", "fly", BadRequest),
    ],
)
def test_explain_refuses_what_it_cannot_know(sim: SimBroker, name: str, action: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        sim.broker.keys.explain(name, action, "orders")


def test_a_reload_of_users_takes_their_keys_along(sim: SimBroker) -> None:
    root, carl = ConfiguredUser("root", ("admin",), b"correct horse"), ConfiguredUser("carl", ("producer",), b"x")
    assert configure(sim, [root, carl]) is None
    key = made(sim, "carl", actor=ROOT)
    assert who(sim, key) is not None
    assert configure(sim, [root]) is None
    assert who(sim, key) is None and listed(sim, actor=ROOT, everyone=True)[0].user == ""
