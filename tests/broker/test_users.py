"""Users and access rules: durable or refused, hashed off the loop, bounded, and never without an administrator."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from argon2 import low_level

from quintet.broker.audit.audit_log import Query
from quintet.broker.core import BrokerOptions, no_entropy
from quintet.broker.identity import access_rules, changes, passwords, users
from quintet.broker.identity.access import Acl, Principal, Role
from quintet.broker.identity.logins import REMEMBERED_US
from quintet.broker.identity.passwords import HASHES_AT_ONCE
from quintet.broker.identity.users import ConfiguredUser, UserRow
from quintet.model.errors import (
    AclNotFound,
    AuthError,
    BadName,
    BadRequest,
    Busy,
    Forbidden,
    LimitExceeded,
    StorageError,
    UserExists,
    UserNotFound,
)
from quintet.model.tasks import Verb, start
from quintet.testing.line import SimBroker
from quintet.testing.sim import SimScheduler

ROOT = Principal("root", ("*",), ("*",), ("*",), ("admin",))
PASSWORD = b"correct horse"
SECOND = 1_000_000


@pytest.fixture
def sim() -> SimBroker:
    """A broker with one administrator, root."""
    made = SimBroker()
    configure(made, [ConfiguredUser("root", ("admin",), PASSWORD)])
    return made


class Answer:
    """What a verb told, once and later."""

    def __init__(self, sim: SimBroker, verb: Callable[..., Verb[Any]], *arguments: Any, **named: Any) -> None:
        self.told: list[tuple[Any, Exception | None]] = []
        start(verb(*arguments, **named)).then(lambda result, error: self.told.append((result, error)))
        assert not self.told, "told before the turn was over"
        if not sim.scheduler.held:
            sim.scheduler.run_until_idle()
            assert len(self.told) == 1

    @property
    def result(self) -> Any:
        ((result, error),) = self.told
        assert error is None, error
        return result

    @property
    def error(self) -> Exception:
        ((result, error),) = self.told
        assert result is None
        assert error is not None
        return error


def configure(sim: SimBroker, wanted: list[ConfiguredUser], roles: tuple[Role, ...] = ()) -> Exception | None:
    told: list[Exception | None] = []
    sim.broker.configure_users(roles, wanted, told.append)
    sim.scheduler.run_until_idle()
    (error,) = told
    return error


def create(sim: SimBroker, name: str, *roles: str, password: bytes = PASSWORD) -> Answer:
    return Answer(sim, sim.broker.users.create, ROOT, name, password, roles)


def login(sim: SimBroker, name: str, password: bytes = PASSWORD) -> Answer:
    return Answer(sim, sim.broker.users.authenticate_password, name, password)


def update(sim: SimBroker, name: str, roles: tuple[str, ...] | None = None, enabled: bool | None = None) -> Answer:
    return Answer(sim, sim.broker.users.update, ROOT, name, roles, enabled, None)


def delete(sim: SimBroker, name: str, actor: Principal = ROOT) -> Answer:
    return Answer(sim, sim.broker.users.delete, actor, name)


def acl_set(sim: SimBroker, acl: Acl, actor: Principal = ROOT) -> Answer:
    return Answer(sim, sim.broker.users.rules.set, actor, acl)


def cut_power(sim: SimBroker, seed: int) -> None:
    sim.log.abandon()
    sim.disk.crash(Random(seed))
    sim.scheduler = SimScheduler()
    sim.start()


# -- logins ------------------------------------------------------------------------------------------------------------


def test_a_password_becomes_an_identity_with_the_rights_of_its_roles(sim: SimBroker) -> None:
    info = create(sim, "alice", "producer", "producer").result
    assert (info.name, info.roles, info.permissions, info.enabled) == ("alice", ("producer",), ("write",), True)
    identity, principal = login(sim, "alice").result
    assert principal == Principal("alice", ("*",), (), (), ("producer",))
    assert sim.broker.access.current(identity) == principal


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", b"wrong"),
        ("nobody", PASSWORD),
        ("Alice", PASSWORD),
        ("alice", b""),
        ("alice", bytes(1025)),
        ("a\0", b"x"),
    ],
)
def test_whatever_is_wrong_the_answer_is_the_same(sim: SimBroker, name: str, password: bytes) -> None:
    create(sim, "alice")
    error = login(sim, name, password).error
    assert isinstance(error, AuthError)
    assert str(error) == "invalid user name or password (check both, and that the user is enabled)"


OTHER_COSTS = "$argon2id$v=19$m=64,t=3,p=1$MDEyMzQ1Njc4OWFiY2RlZg$kf9UMaZH7NOWlYL7gZ4yYRONK50aIhRvG0mVu6pHQts"


def test_a_login_costs_the_same_hashes_whoever_it_is(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for names that are not there, for the empty one, and for a user whose hash has other costs."""
    create(sim, "alice")
    create(sim, "off")
    update(sim, "off", enabled=False)
    foreign = ConfiguredUser("foreign", ("admin",), b"", OTHER_COSTS)
    configure(sim, [ConfiguredUser("root", ("admin",), PASSWORD), foreign])
    hashed: list[tuple[int, int, int]] = []
    verify, raw = low_level.verify_secret, low_level.hash_secret_raw

    def verified(stored: bytes, password: bytes, kind: low_level.Type) -> bool:
        hashed.append(passwords.costs_of(stored.decode()))
        return verify(stored, password, kind)

    def made(password: bytes, salt: bytes, passes: int, memory: int, lanes: int, size: int, kind: Any) -> bytes:
        hashed.append((memory, passes, lanes))
        return raw(password, salt, passes, memory, lanes, size, kind)

    monkeypatch.setattr(low_level, "verify_secret", verified)
    monkeypatch.setattr(low_level, "hash_secret_raw", made)
    sim.scheduler.held = True
    for name, password in [
        ("alice", PASSWORD),
        ("alice", b"no"),
        ("nobody", b"no"),
        ("foreign", b"no"),
        ("", b"no"),
        ("", b""),
        ("off", PASSWORD),
        ("\0", bytes(9999)),
    ]:
        answer = Answer(sim, sim.broker.users.authenticate_password, name, password)
        assert not hashed, "hashed on the loop"
        assert len(sim.scheduler.jobs) == 1
        sim.scheduler.finish()
        assert len(answer.told) == 1
        assert sorted(hashed) == [(64, 3, 1), passwords.OUR_COSTS]
        hashed.clear()


def test_hashes_of_too_many_different_costs_are_refused(sim: SimBroker) -> None:
    users = [ConfiguredUser(f"user{cost}", (), b"", OTHER_COSTS.replace("m=64", f"m={cost}")) for cost in range(64, 69)]
    told: list[Exception | None] = []
    sim.broker.configure_users([], users, told.append)
    sim.scheduler.run_until_idle()
    assert "more than 4 different costs" in str(told[0])


def test_hashes_are_few_at_once_and_the_line_is_bounded(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "HASHES_WAITING_MAX", 20)
    sim.scheduler.run_until_idle()
    sim.scheduler.held = True
    answers = [
        Answer(sim, sim.broker.users.authenticate_password, "root", b"guess %d" % n)
        for n in range(HASHES_AT_ONCE + 20 + 5)
    ]
    assert len(sim.scheduler.jobs) == HASHES_AT_ONCE
    sim.scheduler.turn()
    refused = [answer for answer in answers if answer.told]
    assert [type(answer.error) for answer in refused] == [Busy] * 5
    assert "20 passwords wait to be checked, the limit is 20" in str(refused[0].error)
    while any(not answer.told for answer in answers):
        hashing = [job for job in sim.scheduler.jobs if getattr(job[0], "func", None) is passwords.verify_evenly]
        assert len(hashing) <= HASHES_AT_ONCE
        sim.scheduler.finish()
        sim.scheduler.turn()
    assert {type(answer.error) for answer in answers} == {Busy, AuthError}


def test_a_line_that_was_left_has_room_again(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that have gone are not hashed for."""
    monkeypatch.setattr(passwords, "HASHES_WAITING_MAX", 20)
    sim.scheduler.held = True
    told: list[object] = []
    verify = sim.broker.users.authenticate_password
    gone = [start(verify("root", b"guess %d" % n)) for n in range(HASHES_AT_ONCE + 20)]
    for login in gone:
        login.then(lambda *found: told.append(found))
        login.cancel()
    answer = Answer(sim, verify, "root", b"another")
    for _ in range(HASHES_AT_ONCE + 1):  # what had begun is finished
        sim.scheduler.finish()
    assert (len(sim.scheduler.jobs), told) == (0, [])
    assert isinstance(answer.error, AuthError)


def test_logins_with_one_password_that_come_together_are_one_hash(sim: SimBroker) -> None:
    create(sim, "alice")
    sim.scheduler.held = True
    verify = sim.broker.users.authenticate_password
    answers = [Answer(sim, verify, "alice", PASSWORD) for _ in range(500)]
    told: list[object] = []
    gone = start(verify("alice", PASSWORD))
    gone.then(lambda *found: told.append(found))
    gone.cancel()
    wrong = Answer(sim, verify, "alice", b"wrong")
    assert len(sim.scheduler.jobs) == 2
    sim.scheduler.finish()
    sim.scheduler.finish()
    assert all(answer.result[1].name == "alice" for answer in answers)
    assert isinstance(wrong.error, AuthError)
    assert told == []


def test_a_right_password_is_remembered_and_a_wrong_one_is_hashed(sim: SimBroker) -> None:
    create(sim, "alice")
    login(sim, "alice", PASSWORD)
    sim.scheduler.held = True
    verify = sim.broker.users.authenticate_password

    def hashes(password: bytes = PASSWORD) -> int:
        answer = Answer(sim, verify, "alice", password)
        sim.scheduler.turn()
        jobs = sum(getattr(work, "func", None) is passwords.verify_evenly for work, _ in sim.scheduler.jobs)
        while sim.scheduler.jobs:
            sim.scheduler.finish()
        assert answer.told
        return jobs

    assert hashes() == 0
    assert hashes(b"wrong") == 1
    assert hashes() == 0, "a wrong guess of somebody makes nobody wait"
    sim.scheduler.jump(-3600 * 1_000_000)
    assert hashes() == 0
    sim.scheduler.time += REMEMBERED_US
    assert hashes() == 1
    assert hashes() == 0
    sim.scheduler.held = False
    Answer(sim, sim.broker.users.update, ROOT, "alice", None, None, b"another one")
    sim.scheduler.held = True
    assert hashes() == 1, "the old one is not remembered"
    assert hashes(b"another one") == 1


def test_a_login_that_was_overtaken_by_a_change_is_refused(sim: SimBroker) -> None:
    for verb, arguments in ((sim.broker.users.update, (None, False, None)), (sim.broker.users.delete, ())):
        create(sim, "alice")
        sim.scheduler.held = True
        answer = login(sim, "alice")
        Answer(sim, verb, ROOT, "alice", *arguments)
        sim.scheduler.held = False
        sim.scheduler.run_until_idle()
        assert isinstance(answer.error, AuthError)
        delete(sim, "alice")


# -- revoking ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["disable", "delete", "password"])
def test_what_is_revoked_is_gone_at_once(sim: SimBroker, how: str) -> None:
    create(sim, "alice", "consumer")
    identity, _ = login(sim, "alice").result
    epoch = sim.broker.access.epoch
    sim.scheduler.held = True
    if how == "disable":
        update(sim, "alice", enabled=False)
    elif how == "delete":
        delete(sim, "alice")
    else:
        Answer(sim, sim.broker.users.change_password, ROOT, "alice", b"", b"other password")
        sim.scheduler.finish()
    assert sim.broker.access.current(identity) is None, "before the disk is asked"
    assert sim.broker.access.epoch > epoch
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    sim.restart()
    assert sim.broker.access.current(identity) is None
    if how != "password":
        assert isinstance(login(sim, "alice").error, AuthError)


def test_a_user_made_again_is_not_the_one_before(sim: SimBroker) -> None:
    create(sim, "alice")
    identity, _ = login(sim, "alice").result
    delete(sim, "alice")
    create(sim, "alice")
    assert sim.broker.access.current(identity) is None


def test_a_deleted_user_is_no_subject_of_a_token_until_it_is_made_again(sim: SimBroker) -> None:
    """Else who was deleted would be somebody of its own, that may publish and read wherever no rule says otherwise."""
    create(sim, "alice", "guest")
    identity, _ = sim.broker.access.subject("alice")
    delete(sim, "alice")
    assert sim.broker.users.get("alice") is None and sim.broker.users.born("alice") is None
    for _ in range(2):
        assert sim.broker.access.current(identity) is None
        with pytest.raises(AuthError, match="was deleted"):
            sim.broker.access.subject("alice")
        sim.restart()
        configure(sim, [ConfiguredUser("root", ("admin",), PASSWORD)])
    create(sim, "Alice", "guest")
    sim.restart()
    assert isinstance(create(sim, "alice").error, UserExists), "the living twin counts, not the one that is gone"
    delete(sim, "Alice")
    create(sim, "alice", "consumer")
    assert sim.broker.access.subject("alice")[1].roles == ("consumer",)


def test_names_of_deleted_users_are_bounded(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "GONE_MAX", 2)
    for name in ("a", "b", "c"):
        create(sim, name)
        delete(sim, name)
        sim.scheduler.advance(1)
    assert sim.broker.access.subject("a")[1].name == "a", "the oldest is nobody's again"
    for name in ("b", "c"):
        with pytest.raises(AuthError):
            sim.broker.access.subject(name)
    assert [info.name for info in sim.broker.users.list()] == ["root"]


def test_roles_change_for_whoever_is_logged_in(sim: SimBroker) -> None:
    create(sim, "alice", "producer")
    identity, _ = login(sim, "alice").result
    assert update(sim, "alice", roles=("consumer",)).result.permissions == ("read",)
    current = sim.broker.access.current(identity)
    assert current is not None
    assert (current.publish, current.subscribe) == ((), ("*",))


# -- durable or refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_what_was_told_survives_a_power_cut(seed: int, sim: SimBroker) -> None:
    info = create(sim, "alice", "producer").result
    acl = acl_set(sim, Acl("orders*", users=("alice",), roles=("guest",))).result
    cut_power(sim, seed)
    assert sim.broker.users.get("alice") == info
    assert list(sim.broker.users.rules.list()) == [acl]
    _, principal = login(sim, "alice").result
    assert sim.broker.access.allowed(principal, "publish", "orders.1")
    assert not sim.broker.access.allowed(ANY, "publish", "orders.1")


ANY = Principal("any")


def test_nothing_is_told_before_the_disk_has_it(sim: SimBroker) -> None:
    sim.scheduler.held = True
    answer = acl_set(sim, Acl("t"))
    sim.scheduler.turn()
    assert not answer.told
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert answer.result == Acl("t")


def test_what_the_disk_refuses_is_taken_back(sim: SimBroker) -> None:
    create(sim, "alice", "producer")
    identity, principal = login(sim, "alice").result
    sim.scheduler.run_until_idle()
    sim.disk.fail("fdatasync", 1, 5, times=1000)
    assert isinstance(create(sim, "bob").error, StorageError)
    assert isinstance(update(sim, "alice", roles=("admin",)).error, StorageError)
    assert isinstance(delete(sim, "alice").error, StorageError)
    assert isinstance(acl_set(sim, Acl("t", public=True)).error, StorageError)
    assert sim.broker.users.get("bob") is None
    assert sim.broker.users.rules.get("t") is None
    assert sim.broker.access.current(identity) == principal
    assert not sim.broker.access.allowed(Principal("g", (), ()), "publish", "t")
    assert isinstance(login(sim, "bob").error, AuthError)


# -- rules -------------------------------------------------------------------------------------------------------------


def test_only_administrators_change_users(sim: SimBroker) -> None:
    create(sim, "alice", "producer")
    _, alice = login(sim, "alice").result
    verbs = sim.broker.users
    for answer in (
        Answer(sim, verbs.create, alice, "bob", PASSWORD, ()),
        Answer(sim, verbs.update, alice, "alice", ("admin",), None, None),
        Answer(sim, verbs.delete, alice, "root"),
        Answer(sim, verbs.change_password, alice, "root", PASSWORD, b"new password"),
        Answer(sim, verbs.change_password, alice, "nobody", PASSWORD, b"new password"),
        Answer(sim, verbs.rules.set, alice, Acl("t", public=True)),
        Answer(sim, verbs.rules.delete, alice, "t"),
    ):
        assert isinstance(answer.error, Forbidden)
    assert [info.name for info in verbs.list()] == ["alice", "root"]
    assert verbs.list()[0].roles == ("producer",)


def test_the_last_administrator_stays(sim: SimBroker) -> None:
    other = Principal("other", admin=("*",))
    for answer in (
        delete(sim, "root", other),
        update(sim, "root", enabled=False),
        update(sim, "root", roles=("guest",)),
    ):
        assert isinstance(answer.error, Forbidden)
        assert "last enabled administrator" in str(answer.error)
    create(sim, "off", "admin")
    update(sim, "off", enabled=False)
    assert isinstance(delete(sim, "root", other).error, Forbidden), "a disabled one does not count"
    update(sim, "off", enabled=True)
    assert delete(sim, "root", other).result == "root"
    assert isinstance(update(sim, "off", enabled=False).error, Forbidden)


def test_two_administrators_can_not_remove_each_other_at_once(sim: SimBroker) -> None:
    create(sim, "two", "admin")
    sim.scheduler.held = True
    answers = [delete(sim, "two", ROOT), delete(sim, "root", Principal("two", admin=("*",)))]
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert answers[0].result == "two"
    assert isinstance(answers[1].error, Forbidden)


def test_nobody_deletes_the_own_account(sim: SimBroker) -> None:
    create(sim, "two", "admin")
    assert "own account" in str(delete(sim, "root").error)


@pytest.mark.parametrize("twin", ["root", "Root", "ＲＯＯＴ", "ⓡoot", "DEV"])
def test_twins_are_refused(sim: SimBroker, twin: str) -> None:
    error = create(sim, twin, "admin").error
    assert isinstance(error, UserExists)


def test_a_user_may_have_the_name_of_a_key_and_is_the_same_owner(sim: SimBroker) -> None:
    assert create(sim, "dev").result.name == "dev"


def test_a_name_in_two_spellings_is_one_user(sim: SimBroker) -> None:
    create(sim, "e\u0301")
    assert login(sim, "\u00e9").result[1].name == login(sim, "e\u0301").result[1].name == "\u00e9"


def test_what_is_refused_and_why(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(create(sim, "a\0").error, BadName)
    assert "there is no role 'boss'" in str(create(sim, "a", "boss").error)
    assert isinstance(create(sim, "a", password=b"1234567").error, BadRequest)
    assert isinstance(create(sim, "a", password=bytes(1025)).error, BadRequest)
    assert isinstance(update(sim, "a").error, UserNotFound)
    assert isinstance(delete(sim, "a").error, UserNotFound)
    assert isinstance(update(sim, "root", roles=("boss",)).error, BadRequest)
    monkeypatch.setattr(users, "USERS_MAX", 1)
    assert isinstance(create(sim, "a").error, LimitExceeded)


def test_changing_the_own_password_needs_the_old_one(sim: SimBroker) -> None:
    create(sim, "alice")
    _, alice = login(sim, "alice").result
    change = sim.broker.users.change_password
    assert isinstance(Answer(sim, change, alice, "alice", b"wrong", b"new password").error, AuthError)
    assert isinstance(Answer(sim, change, alice, "alice", PASSWORD, b"short").error, BadRequest)
    assert Answer(sim, change, alice, "alice", PASSWORD, b"new password").result == "alice"
    assert isinstance(login(sim, "alice").error, AuthError)
    assert login(sim, "alice", b"new password").result[1] == alice
    assert Answer(sim, change, ROOT, "alice", b"", PASSWORD).result == "alice"
    assert isinstance(Answer(sim, change, ROOT, "nobody", b"", PASSWORD).error, UserNotFound)
    assert login(sim, "alice").result[1] == alice


def test_an_administrator_sets_a_password_by_update(sim: SimBroker) -> None:
    create(sim, "alice", "guest")
    answer = Answer(sim, sim.broker.users.update, ROOT, "alice", None, None, b"set for her")
    assert answer.result.roles == ("guest",)
    assert login(sim, "alice", b"set for her").result[1].name == "alice"


# -- the configuration -------------------------------------------------------------------------------------------------


def hashes(sim: SimBroker) -> dict[str, str]:
    return {row.name: row.hash for row in sim.broker.users._table}


def end_of_table(sim: SimBroker) -> int:
    return sim.broker.users._table._partition.end


def test_a_configured_user_is_written_once(sim: SimBroker) -> None:
    identity, _ = login(sim, "root").result
    before, end = hashes(sim), end_of_table(sim)
    sim.restart()
    for _ in range(2):
        assert configure(sim, [ConfiguredUser("root", ("admin",), PASSWORD)]) is None
        assert (hashes(sim), end_of_table(sim)) == (before, end)
        assert sim.broker.access.current(identity) is not None
    assert configure(sim, [ConfiguredUser("root", ("guest",), PASSWORD)]) is None
    assert hashes(sim) == before
    current = sim.broker.access.current(identity)
    assert current is not None
    assert current.roles == ("guest",)
    assert configure(sim, [ConfiguredUser("root", ("guest",), b"x")]) is None
    assert sim.broker.access.current(identity) is None
    assert login(sim, "root", b"x").result[1].roles == ("guest",)


def test_the_configuration_owns_its_users_and_no_others(sim: SimBroker) -> None:
    create(sim, "wired")
    assert configure(sim, [ConfiguredUser("new", ("own",), b"p")], (Role("own", read=("logs*",)),)) is None
    assert [info.name for info in sim.broker.users.list()] == ["new", "wired"]
    assert login(sim, "new", b"p").result[1].subscribe == ("logs*",)


def test_a_hash_from_elsewhere_is_taken_as_it_is(sim: SimBroker) -> None:
    made = hashes(sim)["root"]
    wanted = [ConfiguredUser("root", ("admin",), PASSWORD), ConfiguredUser("copy", (), password_hash=made)]
    assert configure(sim, wanted) is None
    assert login(sim, "copy").result[1].name == "copy"
    end = end_of_table(sim)
    assert configure(sim, wanted) is None
    assert end_of_table(sim) == end


def test_a_user_disabled_on_the_wire_stays_disabled(sim: SimBroker) -> None:
    both = [ConfiguredUser("root", ("admin",), PASSWORD), ConfiguredUser("two", ("admin",), PASSWORD)]
    configure(sim, both)
    update(sim, "two", enabled=False)
    configure(sim, both)
    assert isinstance(login(sim, "two").error, AuthError)


def test_a_configuration_that_cannot_be_is_refused_whole(sim: SimBroker) -> None:
    create(sim, "wired")
    keep = ConfiguredUser("root", ("admin",), PASSWORD)
    for bad in (
        ConfiguredUser("Wired", (), b"p"),
        ConfiguredUser("Root", (), b"p"),
        ConfiguredUser("a", ("boss",), b"p"),
        ConfiguredUser("a\0", (), b"p"),
        ConfiguredUser("a", (), b""),
    ):
        assert configure(sim, [keep, bad]) is not None
        assert [info.name for info in sim.broker.users.list()] == ["root", "wired"]


def test_of_two_configurations_the_later_one_stays(sim: SimBroker) -> None:
    told: list[Exception | None] = []
    sim.scheduler.held = True
    for password in (b"first", b"second"):
        sim.broker.configure_users((), [ConfiguredUser("root", ("admin",), password)], told.append)
    while sim.scheduler.jobs or len(told) < 2:
        if sim.scheduler.jobs:
            sim.scheduler.finish(-1)
        sim.scheduler.turn()
    sim.scheduler.held = False
    assert told == [None, None]
    assert login(sim, "root", b"second").result[1].name == "root"


# -- access rules ------------------------------------------------------------------------------------------------------


def test_access_rules_are_set_seen_and_deleted(sim: SimBroker) -> None:
    acl = acl_set(sim, Acl("b", users=("e\u0301", "x", "x"), roles=("guest", "guest"))).result
    assert acl == Acl("b", users=("\u00e9", "x"), roles=("guest",))
    acl_set(sim, Acl("a*", public=True))
    assert list(sim.broker.users.rules.list()) == [Acl("a*", public=True), acl]
    assert sim.broker.users.rules.get("b") == acl
    assert sim.broker.users.rules.get("a") is None
    assert Answer(sim, sim.broker.users.rules.delete, ROOT, "b").result == "b"
    assert isinstance(Answer(sim, sim.broker.users.rules.delete, ROOT, "b").error, AclNotFound)
    sim.restart()
    assert list(sim.broker.users.rules.list()) == [Acl("a*", public=True)]
    assert sim.broker.access.allowed(Principal("g", (), ()), "publish", "abc")


def test_who_administers_a_topic_sets_its_rules(sim: SimBroker) -> None:
    lead = Principal("lead", (), (), ("orders*",))
    assert acl_set(sim, Acl("orders.eu", public=True), lead).result
    assert acl_set(sim, Acl("orders*", public=True), lead).result
    for pattern in ("order*", "*", "other", "group:orders"):
        assert isinstance(acl_set(sim, Acl(pattern, public=True), lead).error, Forbidden)


@pytest.mark.parametrize(
    ("acl", "kind"),
    [
        (Acl(""), BadName),
        (Acl("x" * 256), BadName),
        (Acl("a*b"), BadName),
        (Acl("__users"), BadName),
        (Acl("a\0"), BadName),
        (Acl("\ud800"), BadName),
        (Acl("a", users=("b\0",)), BadName),
        (Acl("a", roles=("boss",)), BadRequest),
        (Acl("a", users=("u",) * 1001), LimitExceeded),
    ],
)
def test_rules_that_are_no_rules(sim: SimBroker, acl: Acl, kind: type[Exception]) -> None:
    assert isinstance(acl_set(sim, acl).error, kind)
    assert not sim.broker.users.rules.list()


def test_access_rules_are_bounded(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_rules, "ACLS_MAX", 1)
    acl_set(sim, Acl("a"))
    assert acl_set(sim, Acl("a", public=True)).result, "an old one can still be changed"
    assert isinstance(acl_set(sim, Acl("b")).error, LimitExceeded)


def test_changes_in_line_are_bounded(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "CHANGES_WAITING_MAX", 3)
    sim.scheduler.held = True
    answers = [acl_set(sim, Acl(f"t{n}")) for n in range(6)]
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [answer.told[0][1] is None for answer in answers] == [True] * 4 + [False] * 2
    assert isinstance(answers[5].error, Busy)


# -- secrets and the audit ---------------------------------------------------------------------------------------------


def test_secrets_are_nowhere(sim: SimBroker) -> None:
    create(sim, "alice", "producer", password=b"very-secret-1")
    login(sim, "alice", b"very-secret-1")
    login(sim, "alice", b"very-secret-2")
    _, alice = login(sim, "alice", b"very-secret-1").result
    Answer(sim, sim.broker.users.change_password, alice, "alice", b"very-secret-1", b"very-secret-3")
    Answer(sim, sim.broker.users.change_password, alice, "alice", b"very-secret-4", b"very-secret-5")
    sim.advance(2 * SECOND)
    sim.stop()
    stored = b"".join(data or b"" for data in sim.disk.snapshot().values())
    assert b"very-secret" not in stored
    assert b"argon2id" in stored
    shown = repr([*sim.broker.users._table, *sim.broker.users.list(), *sim.broker.audit.query(Query())[0], sim.reports])
    shown += repr(ConfiguredUser("a", (), b"very-secret-6", "$argon2id$"))
    shown += str(UserRow("a", "$argon2id$", (), True, 1, 0, 0))
    assert "very-secret" not in shown
    assert "argon2id" not in shown


def test_changes_and_refusals_are_in_the_audit(sim: SimBroker) -> None:
    Answer(sim, sim.broker.users.create, ROOT, "alice", PASSWORD, ("producer",), peer="10.0.0.1")
    login(sim, "alice")
    login(sim, "alice", b"wrong")
    _, alice = login(sim, "alice").result
    Answer(sim, sim.broker.users.delete, alice, "root", peer="10.0.0.2")
    acl_set(sim, Acl("t"))
    Answer(sim, sim.broker.users.rules.delete, ROOT, "t")
    update(sim, "alice", roles=("guest",))
    delete(sim, "alice")
    events, _, _ = sim.broker.audit.query(Query())
    assert [(event.type, event.user, event.resource, event.result) for event in reversed(events)] == [
        ("user.create", "(configuration)", "root", "success"),
        ("user.create", "root", "alice", "success"),
        ("auth.success", "alice", "", "success"),
        ("auth.failure", "alice", "", "denied"),
        ("auth.success", "alice", "", "success"),
        ("user.delete", "alice", "root", "denied"),
        ("acl.set", "root", "t", "success"),
        ("acl.delete", "root", "t", "success"),
        ("user.update", "root", "alice", "success"),
        ("user.delete", "root", "alice", "success"),
    ]
    assert (events[-2].client_ip, events[-2].details) == ("10.0.0.1", {"roles": "producer"})


def test_a_broker_without_entropy_makes_no_passwords() -> None:
    with pytest.raises(AssertionError, match=r"BrokerOptions\.entropy was not given"):
        BrokerOptions().entropy(16)
    assert BrokerOptions().entropy is no_entropy
