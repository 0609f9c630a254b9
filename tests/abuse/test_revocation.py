"""What was revoked is over: keys, users, passwords and rights, on every door, under load, and after a restart.

A revoked client writes and reads as fast as it can while the administrator revokes what it came with. From the broker's
answer on it has WITHIN_S to be told off; nothing of it is accepted or delivered later, and it does not come back. Clients
beside it that nobody revoked must not notice.
"""

import os
from collections.abc import Iterator
from time import monotonic

import pytest

from tests.abuse.revocation import DOORS, QUIET_S, WITHIN_S, Client, Loop, Office, Person, connects, ends, topic_of
from tests.client.server import Server, running

pytest.importorskip("pyarrow")

LONG = "QUINTET_TEST_LONG"  # set: a hundred revocations of every kind
ROUNDS = 100 if os.environ.get(LONG) else 2
ROTATIONS = 100 if os.environ.get(LONG) else 10
# What a client of this door came with, and what can be taken away from it.
WAYS = {
    "blipmq": ("key", "disabled", "deleted", "rule"),
    "flymq": ("password", "disabled", "deleted", "rule"),
    "fast": ("disabled", "deleted", "rule"),
    "peerbus": ("key", "disabled", "deleted", "rule"),
    "flight": ("key", "disabled", "deleted", "rule"),
    "felix": ("key", "disabled", "deleted", "rule"),
    "felix-token": ("disabled", "deleted", "rule"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(QUINTET_LISTENERS__FELIX__OPEN="false") as made:
        yield made


@pytest.fixture
def office(server: Server) -> Iterator[Office]:
    made = Office(server)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def at_work() -> Iterator[list[Loop]]:
    """Whoever was started is stopped, whatever a test found."""
    yield LOOPS
    while LOOPS:
        stopped(LOOPS.pop())


LOOPS: list[Loop] = []


def started(door: str, server: Server, person: Person) -> Loop:
    loop = Loop(DOORS[door](server, person), person.name)
    LOOPS.append(loop)
    loop.start()
    assert loop.going.wait(WITHIN_S * 4) and loop.told_off is None, (door, loop.told_off)
    return loop


def stopped(loop: Loop) -> None:
    loop.stopping.set()
    loop.join(WITHIN_S * 4)
    loop.client.close()


def leftovers(client: Client) -> list[bytes]:
    try:
        return client.read(QUIET_S)
    except ends():
        return []


@pytest.mark.timeout(60 * ROUNDS)
@pytest.mark.parametrize("door", DOORS)
def test_a_revoked_client_is_told_off_and_does_not_come_back(door: str, server: Server, office: Office) -> None:
    steady = started(door, server, office.hire(f"steady-{door}"))
    for number in range(ROUNDS):
        for how in WAYS[door]:
            person = office.hire(f"{door}-{how}-{number}")
            loop = started(door, server, person)
            office.revoke(how, person)
            at = monotonic()
            loop.join(WITHIN_S)
            assert loop.told_off is not None, f"{how}: still at work after {WITHIN_S} s"
            assert loop.last - at <= WITHIN_S
            leftovers(loop.client)  # what was on its way when it was told off
            office.ask("PRODUCE", topic=topic_of(door, person), key=b"", value=b"after", partition=0)
            assert b"after" not in leftovers(loop.client), how
            loop.client.close()
            assert not connects(door, server, person), how
    stopped(steady)
    assert steady.told_off is None


def test_it_is_so_after_a_restart(server: Server, office: Office) -> None:
    people: list[tuple[str, str, Person]] = []
    for door in DOORS:
        valid = office.hire(f"valid-{door}")
        people.append((door, "", valid))
        for how in WAYS[door]:
            person = office.hire(f"later-{door}-{how}")
            assert connects(door, server, person), (door, how)
            office.revoke(how, person)
            people.append((door, how, person))
    office.close()
    assert server.stop() == 0
    server.start()
    for door, how, person in people:
        assert connects(door, server, person) is (not how), (door, how)
    office.bus = Office(server).bus


@pytest.mark.timeout(30 * ROTATIONS)
@pytest.mark.parametrize("door", ["blipmq", "peerbus", "flight", "felix"])
def test_a_key_that_is_replaced_with_overlap_costs_no_operation(door: str, server: Server, office: Office) -> None:
    person = office.hire(f"rotates-{door}")
    old = started(door, server, person)
    for _ in range(ROTATIONS):
        fresh = office.key_for(person.name)
        if door == "peerbus":  # one connection per name: the one with the new key takes the name over
            stopped(old)
        new = started(door, server, fresh)
        if door != "peerbus":
            assert old.told_off is None
            stopped(old)
        assert old.told_off is None
        office.revoke("key", person)
        assert not connects(door, server, person)
        person, old = fresh, new
    stopped(old)
    assert old.told_off is None
