"""The audit: what is kept and found again, that it has a rate, and that a bad disk does not stop the broker."""

import csv
import io
import json

import pytest

from quintet.broker.audit import audit_log as module
from quintet.broker.audit.audit_log import EVENTS_PER_SECOND_MAX, Event, Query
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Principal
from quintet.broker.sections import LimitSection
from quintet.model.errors import AuthError, BadRequest, Forbidden, TooLarge
from quintet.testing.line import SimBroker

SECOND = 1_000_000


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker()


def found(sim: SimBroker, query: Query | None = None) -> list[Event]:
    return sim.broker.audit.query(query or Query(limit=1000))[0]


def fill(sim: SimBroker) -> int:
    """Six events, one a second; the time of the first in seconds."""
    first = sim.scheduler.now() // SECOND
    for number in range(6):
        sim.broker.audit.record(
            "topic.create" if number % 2 else "acl.set",
            f"user{number % 3}",
            f"t{number}",
            "success",
            "10.0.0.1",
            "do",
            n=number,
        )
        sim.advance(SECOND)
    return first


def ids(events: list[Event]) -> list[int]:
    return [event.id for event in events]


def test_an_event_has_all_its_fields(sim: SimBroker) -> None:
    sim.broker.audit.record("topic.create", "alice", "t", "success", "10.0.0.1", "create", partitions=3)
    (event,) = found(sim)
    assert event == Event(
        sim.scheduler.now() // 1000, "topic.create", "alice", "10.0.0.1", "t", "create", "success", "quintet",
        {"partitions": "3"}, id=0,
    )  # fmt: skip


def test_events_are_found_again_newest_first(sim: SimBroker) -> None:
    first = fill(sim)
    assert ids(found(sim)) == [5, 4, 3, 2, 1, 0]
    assert ids(found(sim, Query(start_s=first + 2, end_s=first + 3))) == [3, 2]
    assert ids(found(sim, Query(types=("topic.create",)))) == [5, 3, 1]
    assert ids(found(sim, Query(types=("topic.create", "acl.set"), user="user1"))) == [4, 1]
    assert ids(found(sim, Query(resource="t2"))) == [2]
    assert ids(found(sim, Query(result="denied"))) == []
    assert ids(found(sim, Query(search="USER2"))) == [5, 2]
    assert ids(found(sim, Query(search="10.0.0"))) == [5, 4, 3, 2, 1, 0]


def test_pages(sim: SimBroker) -> None:
    fill(sim)
    query = sim.broker.audit.query
    assert [(ids(events), total, more) for events, total, more in (
        query(Query(limit=4)), query(Query(limit=4, offset=4)), query(Query(limit=2, offset=4)), query(Query(offset=9)),
        query(Query(limit=-1, offset=-1)),
    )] == [
        ([5, 4, 3, 2], 6, True), ([1, 0], 6, False), ([1, 0], 6, False), ([], 6, False), ([5, 4, 3, 2, 1, 0], 6, False),
    ]  # fmt: skip


def test_a_restart_keeps_the_latest_and_numbers_stay_dense(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(sim)
    before = found(sim)
    sim.restart()
    assert found(sim) == before
    sim.broker.audit.record("acl.delete", "a", "t", "success")
    assert ids(found(sim)) == [6, 5, 4, 3, 2, 1, 0]
    monkeypatch.setattr(module, "EVENTS_KEPT_MAX", 3)
    sim.restart()
    assert ids(found(sim)) == [6, 5, 4]
    sim.broker.audit.record("acl.delete", "a", "t", "success")
    assert ids(found(sim)) == [7, 6, 5]


def test_refusals_have_a_rate_and_the_rest_is_counted(sim: SimBroker) -> None:
    sim.scheduler.advance(SECOND - sim.scheduler.now() % SECOND)
    for number in range(EVENTS_PER_SECOND_MAX + 50):
        sim.broker.audit.record("access.denied", "mallory", f"t{number}", "denied")
    sim.broker.audit.record("user.create", "root", "new", "success")
    assert len(found(sim)) == EVENTS_PER_SECOND_MAX + 1, "a change is never left out"
    sim.advance(SECOND)
    summary = found(sim)[0]
    assert (summary.type, summary.action, summary.details) == ("access.denied", "summary", {"left_out": "50"})
    sim.advance(3 * SECOND)
    assert len(found(sim)) == EVENTS_PER_SECOND_MAX + 2
    assert sim.broker.audit.left_out == 50


def test_logins_have_a_rate_of_their_own(sim: SimBroker) -> None:
    sim.scheduler.advance(SECOND - sim.scheduler.now() % SECOND)
    for _ in range(2 * EVENTS_PER_SECOND_MAX):
        sim.broker.audit.record("auth.failure", "mallory", "", "denied")
    for _ in range(EVENTS_PER_SECOND_MAX + 1):
        sim.broker.audit.record("auth.success", "alice", "", "success")
    assert len(found(sim, Query(types=("auth.success",), limit=1000))) == EVENTS_PER_SECOND_MAX
    assert sim.broker.audit.left_out == EVENTS_PER_SECOND_MAX + 1


def test_the_verbs_of_the_broker_are_audited(sim: SimBroker) -> None:
    with pytest.raises(AuthError):
        sim.broker.authenticate(b"very-secret", "10.0.0.9")
    reader = Principal("r", publish=())
    with pytest.raises(Forbidden):
        sim.broker.publish_target(reader, b"t", True)
    denied, failure = found(sim)
    assert (failure.type, failure.client_ip, failure.result) == ("auth.failure", "10.0.0.9", "denied")
    assert (denied.type, denied.user, denied.resource, denied.action) == ("access.denied", "r", "t", "publish")
    assert "very-secret" not in repr([denied, failure])


def test_what_a_peer_sent_is_clipped(sim: SimBroker) -> None:
    sim.broker.audit.record("auth.failure", "é" * 1000, "\ud800", "denied", **{f"d{n}": "x" * 999 for n in range(20)})
    (event,) = found(sim)
    assert len(event.user.encode()) <= 255
    assert event.resource == "?"
    assert len(event.details) == 8
    assert all(len(value) == 255 for value in event.details.values())
    sim.scheduler.run_until_idle()
    sim.restart()
    assert found(sim) == [event]


def test_the_topic_is_bounded_in_bytes() -> None:
    sim = SimBroker(options=BrokerOptions(limits=LimitSection(audit_bytes=8 * 65_536)))
    for number in range(3000):
        sim.broker.audit.record("acl.set", "x" * 255, "y" * 255, "success", n=number)
        if number % 100 == 0:
            sim.advance(SECOND)
    sim.advance(5 * SECOND)
    folder = "/data/topics/00000012/0"
    size = sum(len(sim.disk.read_file(f"{folder}/{name}") or b"") for name in sim.disk.listdir(folder))
    assert size < 11 * 65_536
    sim.restart()
    assert found(sim)[0].details == {"n": "2999"}


def test_a_bad_disk_is_reported_and_stops_nothing(sim: SimBroker) -> None:
    sim.broker.audit.record("acl.set", "a", "before", "success")
    sim.scheduler.run_until_idle()
    sim.disk.fail("fdatasync", 1, 5, times=1000)
    sim.broker.audit.record("acl.set", "a", "during", "success")
    sim.scheduler.run_until_idle()
    sim.broker.audit.record("acl.set", "a", "after", "success")
    sim.scheduler.run_until_idle()
    assert [event.resource for event in found(sim)] == ["before"]
    lost = [fields["resource"] for event, fields in sim.reports if event == "audit_lost"]
    assert lost == ["during", "after"]
    assert sim.broker.audit.lost == 2


def test_a_full_disk_is_reported_and_heals(sim: SimBroker) -> None:
    sim.broker.audit.record("acl.set", "a", "before", "success")
    sim.scheduler.run_until_idle()
    sim.disk.fail("pwritev", 1, 28)
    sim.broker.audit.record("acl.set", "a", "during", "success")
    sim.scheduler.run_until_idle()
    sim.disk.heal()
    sim.advance(3 * SECOND)
    sim.broker.audit.record("acl.set", "a", "after", "success")
    sim.scheduler.run_until_idle()
    sim.restart()
    assert [event.resource for event in found(sim)] == ["after", "before"]
    assert [fields["resource"] for event, fields in sim.reports if event == "audit_lost"] == ["during"]


def test_export(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(sim)
    sim.broker.audit.record("auth.failure", "=cmd()", 'quote " and, comma', "denied", note="@x")
    events = json.loads(sim.broker.audit.export(Query(), "json"))
    assert [event["id"] for event in events] == [6, 5, 4, 3, 2, 1, 0]
    assert events[0]["user"] == "=cmd()"
    rows = list(csv.DictReader(io.StringIO(sim.broker.audit.export(Query(limit=2, offset=0), "csv").decode())))
    assert [row["id"] for row in rows] == ["6", "5"]
    assert (rows[0]["user"], rows[0]["resource"]) == ("'=cmd()", 'quote " and, comma')
    assert json.loads(rows[0]["details"]) == {"note": "@x"}
    with pytest.raises(BadRequest, match="json or csv"):
        sim.broker.audit.export(Query(), "xml")
    monkeypatch.setattr(module, "EXPORT_BYTES_MAX", 100)
    with pytest.raises(TooLarge):
        sim.broker.audit.export(Query(), "json")


def test_only_known_types() -> None:
    sim = SimBroker()
    with pytest.raises(AssertionError, match="no type of audit event"):
        sim.broker.audit.record("user.crate", "a", "b", "success")
