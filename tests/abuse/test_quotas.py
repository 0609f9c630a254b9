"""Every quota on every door, over real sockets: rates make clients wait and lose nothing, the others refuse and say why.

Time is asserted in one direction only: a client above its rate cannot be done before its bytes are paid for, however slow the machine is.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import pytest

from quintet import sync
from tests.abuse.revocation import DOORS, Blip, Client, Office, Person, Refused, connects, ends
from tests.client.server import Server, running
from tests.wire import blipmq, flymq

pytest.importorskip("pyarrow")
pytestmark = pytest.mark.timeout(180)

RATE = 128 << 10
# Of a door, in all more than 1.5 seconds above what the bucket holds. They are few and large: a slow machine that needs those 1.5 seconds
# to send them is never above the rate.
VALUE_BYTES = 60 << 10
VALUES = 6
WAIT_S = 40.0
POLL_S = 0.1


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(QUINTET_LISTENERS__FELIX__OPEN="false") as made:
        yield made


@pytest.fixture
def office(server: Server) -> Iterator[Office]:
    made = Office(server)
    yield made
    made.close()


@pytest.fixture
def person(office: Office) -> Person:
    return office.hire(f"p{uuid4().hex[:8]}")


def account(door: str, person: Person) -> str:
    """What a tenant's own token makes is the tenant's: it cannot use up what a user of that name has."""
    return f"(t/{person.name}" if door == "felix-token" else person.name


def give(office: Office, name: str, **bounds: int) -> dict[str, Any]:
    changes = [{"quota": quota, "value": value} for quota, value in bounds.items()]
    return office.ask("QUOTA_SET", kind="user", name=name, changes=changes)


def quota_of(office: Office, name: str) -> dict[str, Any]:
    return next((row for row in office.ask("QUOTA_LIST")["quotas"] if row["name"] == name), {"pauses": 0})


@contextmanager
def client_of(door: str, server: Server, person: Person) -> Iterator[Client]:
    client = DOORS[door](server, person)
    try:
        yield client
    finally:
        client.close()


def value(number: int, size: int = VALUE_BYTES) -> bytes:
    return f"{number:06d}".encode().ljust(size, b".")


def read_all(client: Client, wanted: set[bytes]) -> None:
    until = monotonic() + WAIT_S
    missing = set(wanted)
    while missing:
        assert monotonic() < until, f"{len(missing)} of {len(wanted)} never came"
        missing.difference_update(client.read(POLL_S))


def check_waited(office: Office, name: str, took: float) -> None:
    """It waited, and was not faster than its rate."""
    found = quota_of(office, name)
    assert found["pauses"] > 0, "nobody waited"
    least = (
        VALUES * VALUE_BYTES - 2 * RATE
    ) / RATE  # less a full bucket, and one that was overdrawn before it was known
    assert took >= least, f"done in {took:.2f} s, the rate allows {least:.2f} s"


def refused(call: Any) -> BaseException | None:
    try:
        call()
    except ends() as error:
        return error
    return None


# -- rates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_publishing_above_the_rate_waits_and_loses_nothing(
    door: str, server: Server, office: Office, person: Person
) -> None:
    with client_of(door, server, person) as client:
        give(office, account(door, person), publish_bytes_per_second_max=RATE)
        began = monotonic()
        for number in range(VALUES):
            client.write(value(number))
        check_waited(office, account(door, person), monotonic() - began)
        if door != "peerbus":  # whose `write` is over when it was read
            read_all(client, {value(number) for number in range(VALUES)})


@pytest.mark.parametrize("door", DOORS)
def test_reading_above_the_rate_waits_and_loses_nothing(
    door: str, server: Server, office: Office, person: Person
) -> None:
    with client_of(door, server, person) as client:
        give(office, account(door, person), read_bytes_per_second_max=RATE)
        began = monotonic()
        for number in range(VALUES):
            client.write(value(number))
        if door != "peerbus":
            read_all(client, {value(number) for number in range(VALUES)})
        check_waited(office, account(door, person), monotonic() - began)


def test_a_client_without_a_quota_fails_the_same_check(server: Server, office: Office, person: Person) -> None:
    with client_of("blipmq", server, person) as client:
        for number in range(VALUES):
            client.write(value(number))
        with pytest.raises(AssertionError, match="nobody waited"):
            check_waited(office, person.name, WAIT_S)


@pytest.mark.parametrize("door", [door for door in DOORS if door != "flight"])
def test_a_flood_is_held_back_and_its_neighbours_go_on(
    door: str, server: Server, office: Office, person: Person
) -> None:
    """One user sends without end and reads nothing; a neighbour on each door does its work meanwhile."""
    neighbour = office.hire(f"n{uuid4().hex[:8]}")
    give(office, person.name, publish_bytes_per_second_max=RATE)
    over = threading.Event()
    with ExitStack() as stack:
        quiet = stack.enter_context(blipmq.Client(f"127.0.0.1:{server.port}"))
        quiet.login(person.key.encode())
        flooding = [threading.Thread(target=flood, args=(server, person, over)) for _ in range(2)]
        for thread in flooding:
            thread.start()
        try:
            until = monotonic() + WAIT_S
            while not quota_of(office, person.name)["pauses"]:
                assert monotonic() < until, "the flood never had to wait"
                sleep(POLL_S)
            with client_of(door, server, neighbour) as client:
                for number in range(50):
                    client.write(b"of a neighbour %d" % number)
            assert quiet.barrier() == [], "a quiet connection of the user that floods is answered"
            found = quota_of(office, person.name)
            assert found["held"] or found["pauses"] > 1
            assert found["connections"] == 3, "a connection that waits is not cut"
        finally:
            over.set()
            for thread in flooding:
                thread.join(WAIT_S)
    assert quota_of(office, neighbour.name)["pauses"] == 0


def flood(server: Server, person: Person, over: threading.Event) -> None:
    with blipmq.Client(f"127.0.0.1:{server.port}") as client:
        client.login(person.key.encode())
        data = blipmq.publish(1, f"flood.{person.name}".encode(), bytes(64 << 10), 0) * 4
        client.socket.settimeout(POLL_S)
        rest = memoryview(b"")
        while not over.is_set():
            rest = rest or memoryview(data)
            try:
                rest = rest[client.socket.send(rest) :]
            except TimeoutError:
                continue
        client.socket.shutdown(socket.SHUT_RDWR)


def test_fetches_above_the_rate_wait_and_get_everything(server: Server, office: Office, person: Person) -> None:
    rate = 16 << 10
    values = [value(number, rate) for number in range(8)]
    give(office, person.name, read_bytes_per_second_max=rate)
    with ExitStack() as stack:
        writer, reader = (stack.enter_context(flymq.Client(f"127.0.0.1:{server.ports['flymq']}")) for _ in range(2))
        for each in (writer, reader):
            each.login(person.name, person.password)
        for each_value in values:
            assert writer.ask(flymq.produce(person.topic, each_value)).code != flymq.ERROR
        seen: list[bytes] = []
        offset = 0
        while len(seen) < len(values):
            reply = reader.ask(flymq.fetch(person.topic, offset, partition=0))
            assert reply.code != flymq.ERROR, reply
            found, offset = flymq.values_of(reply.payload)
            seen += found
    assert seen == values
    assert quota_of(office, person.name)["pauses"] > 0


def test_a_group_member_held_by_its_quota_keeps_its_partitions() -> None:
    """For three times as long as a silent member is remembered; one record alone costs half of that."""
    timeout_s, rate, size = 2.0, 16 << 10, 16 << 10
    with running(QUINTET_DELIVERY__GROUP_TIMEOUT_SECONDS=str(timeout_s)) as server:
        office = Office(server)
        person = office.hire("held")
        give(office, person.name, read_bytes_per_second_max=rate)
        values = [value(number, size) for number in range(round(3 * timeout_s * rate / size) + 2)]
        office.bus.publish_batch("paced", values)
        url = f"flymq://{person.name}:{person.password}@127.0.0.1:{server.ports['flymq']}"
        with sync.connect(url) as bus, bus.subscribe("paced", group="g", start="earliest") as sub:
            began, seen, places = monotonic(), [], set()
            for _ in values:
                message = sub.get(timeout=WAIT_S)
                seen.append(message.value)
                message.ack()
                found = office.ask("DESCRIBE_GROUP", topic="paced", group="g")
                places.add((found["generation"], len(found["assigned"])))
            took = monotonic() - began
        pauses = quota_of(office, person.name)["pauses"]
        office.close()
    assert seen == values and sub.refused == 0, "each once, in order, and every acknowledgement counted"
    assert len(places) == 1 and places.pop()[1] == 1, "one generation, and the member has the partition"
    assert pauses > 0 and took > 2 * timeout_s, "it was held for longer than a silent member is remembered"


# -- connections, topics, storage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_one_connection_too_many_is_refused_on_every_door(
    door: str, server: Server, office: Office, person: Person
) -> None:
    name = account(door, person)
    with client_of("blipmq" if name == person.name else door, server, person) as first:
        assert give(office, name, connections_max=2)["connections"] == 2
        assert not connects(door, server, person)
        first.write(b"goes on")
        assert quota_of(office, name)["refused"] > 0
    until = monotonic() + WAIT_S
    while quota_of(office, name)["connections"]:  # the broker notices that they are gone
        assert monotonic() < until
        sleep(POLL_S)
    assert connects(door, server, person)


@pytest.mark.parametrize("door", [door for door in DOORS if door != "felix-token"])
def test_one_topic_too_many_is_refused_on_every_door(door: str, server: Server, office: Office, person: Person) -> None:
    with flymq.Client(f"127.0.0.1:{server.ports['flymq']}") as client:
        client.login(person.name, person.password)
        assert client.ask(flymq.produce(f"first.{person.name}", b"x")).code != flymq.ERROR
    assert give(office, person.name, topics_max=1)["topics"] == 1
    assert not connects(door, server, person)
    give(office, person.name, topics_max=2)
    assert connects(door, server, person)


@pytest.mark.parametrize("door", DOORS)
def test_publishes_above_the_storage_are_refused_on_every_door(
    door: str, server: Server, office: Office, person: Person
) -> None:
    with client_of(door, server, person) as client:
        client.write(b"while there is room")
        client.read(POLL_S)
        give(office, account(door, person), storage_bytes_max=1)
        until = monotonic() + WAIT_S
        while (error := refused(lambda: client.write(f"one more at {monotonic()}".encode()))) is None:
            assert monotonic() < until, "it was never refused"
            sleep(POLL_S)
        if door in ("fast", "felix", "felix-token", "flight"):  # clients that tell what the answer said
            assert "limit is 1 (quota storage_bytes_max)" in str(error)
    give(office, account(door, person), storage_bytes_max=0)
    until = monotonic() + WAIT_S
    while not connects(door, server, person):
        assert monotonic() < until, "it is refused for ever"
        sleep(POLL_S)


def test_each_wire_says_which_quota_and_what_its_bound_is(server: Server, office: Office, person: Person) -> None:
    said = f"user '{person.name}' has 2 connections; the limit is 2 (quota connections_max)"
    with client_of("blipmq", server, person):
        give(office, person.name, connections_max=2)
        with flymq.Client(f"127.0.0.1:{server.ports['flymq']}") as client:
            answer = client.ask(flymq.auth(person.name, person.password)).payload
            assert said.encode() in answer
        with blipmq.Client(f"127.0.0.1:{server.port}") as other:
            assert other.ask(blipmq.hello(1, 1)).kind == blipmq.ACK
            refusal = other.ask(blipmq.auth(2, person.key.encode()))
            assert refusal.kind == blipmq.NACK and said.encode() in refusal.payload
        with pytest.raises((AssertionError, Refused), match="connections_max"):
            Blip(server, person)
