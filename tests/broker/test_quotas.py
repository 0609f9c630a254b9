"""Quotas of users and tenants: which bound counts, rates over simulated time, what is refused, who may change them."""

from collections.abc import Callable
from random import Random

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Principal
from quintet.broker.identity.metering import CONTROL_BYTES_PER_SECOND, WAIT_US_MIN, Account, Bounds, Meter
from quintet.broker.identity.quotas import STORAGE_US, QuotaInfo
from quintet.broker.identity.users import ConfiguredUser
from quintet.broker.sections import QuotaSection, Tenant
from quintet.model.errors import BadName, BadRequest, Forbidden, LimitExceeded, QuintetError
from quintet.model.rate import Bucket
from quintet.model.tasks import Verb, start
from quintet.testing.line import SimBroker

SECOND = 1_000_000
ADMIN = Principal("root", admin=("*",))
ANN = Principal("ann")


class Wire:
    """A connection as quotas see it."""

    meter: Meter | None = None


def run(sim: SimBroker, verb: Verb[QuotaInfo]) -> QuotaInfo:
    found: list[QuotaInfo | Exception] = []
    start(verb).then(lambda result, error: found.append(error or result))  # type: ignore[arg-type]
    sim.scheduler.run_until_idle()
    (answer,) = found
    if isinstance(answer, Exception):
        raise answer
    return answer


def given(sim: SimBroker, kind: str, name: str, tenant: str | None = None, **bounds: int) -> QuotaInfo:
    return run(sim, sim.broker.quotas.set(ADMIN, kind, name, tenant, bounds))


def filled(sim: SimBroker, name: bytes, size: int, who: Principal = ANN) -> None:
    sim.broker.publish_target(who, name, durable=True).publish(kernel.build([bytes(size)]), 1, True, None)
    sim.scheduler.run_until_idle()


def metered(rate: int, connections: int) -> tuple[Account, list[Meter]]:
    account = Account("user", "ann")
    account.set_bounds(Bounds(publish_bytes_per_second_max=rate, read_bytes_per_second_max=rate))
    account.connections = connections
    return account, [Meter([account], [account]) for _ in range(connections)]


# -- which bound counts -----------------------------------------------------------------------------------------------


def test_without_quotas_nobody_has_a_meter_or_a_bound() -> None:
    sim = SimBroker()
    wires = [Wire() for _ in range(100)]
    for wire in wires:
        sim.broker.quotas.join(wire, "ann")
    assert not any(wire.meter for wire in wires)
    assert not sim.broker.quotas.in_use
    assert [info for info in sim.broker.quotas.walk() if info is not None] == []
    for wire in wires:
        sim.broker.quotas.leave(wire)
        sim.broker.quotas.leave(wire)  # one that is gone may be told so twice
    assert sim.broker.quotas.info("user", "ann").connections == 0


def test_a_row_counts_before_the_configuration_bound_by_bound() -> None:
    section = QuotaSection(connections_max=5, publish_bytes_per_second_max=4096)
    sim = SimBroker(
        options=BrokerOptions(quotas=section, tenants={"t": Tenant(name="t", connections_max=7, streams_max=3)})
    )
    quotas = sim.broker.quotas
    assert quotas.bounds("user", "ann") == Bounds(4096, 0, 5, 0, 0)
    assert given(sim, "user", "ann", connections_max=9, publish_bytes_per_second_max=0).bounds == Bounds(0, 0, 9, 0, 0)
    assert given(sim, "user", "ann", connections_max=-1, topics_max=2).bounds == Bounds(0, 0, 5, 2, 0)
    assert quotas.bounds("user", "ben") == Bounds(4096, 0, 5, 0, 0)
    assert given(sim, "tenant", "t", connections_max=1).bounds == Bounds(0, 0, 1, 3, 0)
    sim.restart()
    quotas = sim.broker.quotas
    assert quotas.bounds("user", "ann") == Bounds(0, 0, 5, 2, 0)
    assert quotas.bounds("tenant", "t") == Bounds(0, 0, 1, 3, 0)
    run(sim, quotas.clear(ADMIN, "user", "ann"))
    run(sim, quotas.clear(ADMIN, "tenant", "t"))
    assert quotas.bounds("user", "ann") == Bounds(4096, 0, 5, 0, 0)
    assert quotas.bounds("tenant", "t") == Bounds(0, 0, 7, 3, 0)
    quotas.configure(QuotaSection())
    assert quotas.bounds("user", "ann") == Bounds()


def test_administrators_have_only_bounds_that_name_them() -> None:
    sim = SimBroker(options=BrokerOptions(quotas=QuotaSection(connections_max=1)))
    sim.broker.configure_users([], [ConfiguredUser("boss", ("admin",), b"a-long-password")], lambda _: None)
    sim.scheduler.run_until_idle()
    assert sim.broker.quotas.bounds("user", "boss") == Bounds()
    assert sim.broker.quotas.bounds("user", "ann").connections_max == 1
    assert given(sim, "user", "boss", connections_max=3).bounds.connections_max == 3


def test_the_stricter_of_user_and_tenant_holds() -> None:
    sim = SimBroker()
    given(sim, "user", "ann", "t", connections_max=3)
    given(sim, "user", "ben", "t")
    given(sim, "tenant", "t", connections_max=2, publish_bytes_per_second_max=2048)
    wires = [Wire() for _ in range(3)]
    sim.broker.quotas.join(wires[0], "ann")
    sim.broker.quotas.join(wires[1], "ben")
    with pytest.raises(LimitExceeded, match=r"tenant 't' has 2 connections, its limit is 2"):
        sim.broker.quotas.join(wires[2], "ann")
    assert sim.broker.quotas.info("user", "ann").connections == 1, "who was refused is not counted"
    ann, ben = wires[0].meter, wires[1].meter
    assert ann is not None and ben is not None
    assert ann.received(2048, 0) == 0
    assert ben.received(4096, 0) == 2 * SECOND, "both use up the rate of their tenant"
    given(sim, "user", "ann", "")  # no more of this tenant
    assert wires[0].meter is None
    assert sim.broker.quotas.info("tenant", "t").connections == 1


def test_what_is_open_is_counted_in_any_order_while_bounds_change() -> None:
    sim, rng = SimBroker(), Random(7)
    quotas = sim.broker.quotas
    open_now: list[tuple[str, Wire]] = []
    for _ in range(1_500):
        if open_now and rng.random() < 0.45:
            quotas.leave(open_now.pop(rng.randrange(len(open_now)))[1])
        elif rng.random() < 0.02:
            given(sim, "user", rng.choice("ab"), rng.choice(["", "t", "u"]), connections_max=rng.choice([0, 3, 9]))
        else:
            name, wire = rng.choice("ab"), Wire()
            bound, has = quotas.bounds("user", name).connections_max, sum(each == name for each, _ in open_now)
            if bound and has >= bound:
                with pytest.raises(LimitExceeded, match=f"user '{name}' has {has} connections; the limit is {bound}"):
                    quotas.join(wire, name)
            else:
                quotas.join(wire, name)
                open_now.append((name, wire))
        for name in "ab":
            assert quotas.info("user", name).connections == sum(each == name for each, _ in open_now)
    for _, wire in open_now:
        quotas.leave(wire)
    assert not sim.broker.tenants.connections


# -- rates ------------------------------------------------------------------------------------------------------------


def flood(meters: list[Meter], seconds: int) -> int:
    """Every connection sends as fast as it is read from; the bytes that were read."""
    taken, due, now = 0, dict.fromkeys(range(len(meters)), 0), 0
    while now < seconds * SECOND:
        number = min(due, key=lambda each: due[each])
        now = due[number]
        size = min(meters[number].read_bytes_max, 65_536)
        taken += size
        due[number] = now + max(meters[number].received(size, now), 10)
    return taken


def check_rate(rate: int, connections: int, seconds: int = 60) -> None:
    taken = flood(metered(rate, connections)[1], seconds)
    slack = 2 * rate + connections * CONTROL_BYTES_PER_SECOND  # a full bucket, and what was read before it was known
    assert rate * (seconds - 2) <= taken <= rate * seconds + slack, taken / seconds


@pytest.mark.parametrize("rate", [16_384, 1 << 20, 300 << 20])
@pytest.mark.parametrize("connections", [1, 7])
def test_over_a_long_time_the_rate_holds_over_all_connections(rate: int, connections: int) -> None:
    check_rate(rate, connections, 60 if rate < 1 << 24 else 5)


def test_a_bucket_that_takes_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bucket, "take", lambda *_: None)
    with pytest.raises(AssertionError):
        check_rate(16_384, 1, 5)


def test_heartbeats_never_wait_while_another_connection_floods() -> None:
    account, (flooding, quiet) = metered(16_384, 2)
    assert flooding.received(1 << 20, SECOND) > 10 * SECOND
    now = SECOND
    for _ in range(60):
        now += SECOND
        assert quiet.received(200, now) == 0
        assert quiet.answered(200, now) == 0
    assert flooding.received(200, now) > WAIT_US_MIN, "they were charged all the same, and who floods waits on"
    assert account.pauses == 2


def test_a_wait_stays_short_because_reads_are_small() -> None:
    _, meters = metered(65_536, 4)
    longest, now = 0, 0
    for step in range(4_000):
        meter = meters[step % 4]
        wait = meter.received(meter.read_bytes_max, now)
        longest = max(longest, wait)
        now += wait // 4
    assert 0 < longest <= SECOND


def test_pushes_are_withheld_until_they_are_paid_for() -> None:
    account, (meter,) = metered(10_000, 1)
    assert meter.withheld(SECOND) == 0
    meter.delivered(30_000, SECOND)
    assert meter.withheld(SECOND) == 2 * SECOND
    assert meter.withheld(2 * SECOND) == SECOND
    assert meter.withheld(3 * SECOND) == 0
    assert (account.sent, account.pauses, account.paused_us) == (30_000, 1, 2 * SECOND)


def test_a_large_answer_delays_requests_by_seconds_at_most() -> None:
    _, (meter,) = metered(10_000, 1)
    assert meter.answer_bytes_max == 10_000
    assert meter.answered(10 << 20, 0) == 5 * SECOND, "a member of a group would be taken for dead"
    assert meter.answered(1, 5 * SECOND) == 5 * SECOND, "it still owes the rest"


def test_a_bound_that_changes_counts_for_connections_at_once() -> None:
    sim, wire = SimBroker(), Wire()
    sim.broker.quotas.join(wire, "ann")
    given(sim, "user", "ann", publish_bytes_per_second_max=4096)
    meter = wire.meter
    assert meter is not None and meter.received(8192, 0) == SECOND
    given(sim, "user", "ann", connections_max=1)
    assert wire.meter is not None and wire.meter.received(4096, 0) == 2 * SECOND, "a rate that stays goes on"
    given(sim, "user", "ann", publish_bytes_per_second_max=0)
    assert wire.meter is None


# -- topics and storage -----------------------------------------------------------------------------------------------


def test_topics_are_counted_for_who_made_them_also_after_a_restart() -> None:
    sim = SimBroker()
    given(sim, "user", "ann", topics_max=2)
    filled(sim, b"one", 1)
    sim.broker.create_topic(b"two", 1, owner="ann")
    sim.scheduler.run_until_idle()
    for _ in range(2):
        said = r"user 'ann' has 2 topics; the limit is 2 \(quota topics_max\)"
        with pytest.raises(LimitExceeded, match=said) as refused:
            sim.broker.publish_target(ANN, b"three", durable=True)
        assert "quintet quota set user ann" in refused.value.hint
        filled(sim, b"one", 1)  # those there are go on
        sim.broker.publish_target(Principal("ben"), b"of-ben", durable=True)
        sim.scheduler.run_until_idle()
        sim.restart()
    start(sim.broker.delete_topic(b"two"))
    sim.scheduler.run_until_idle()
    filled(sim, b"three", 1)


def test_storage_above_its_bound_refuses_until_there_is_room() -> None:
    sim = SimBroker()
    given(sim, "user", "ann", storage_bytes_max=50_000)
    given(sim, "tenant", "t", storage_bytes_max=50_000)
    epoch = sim.broker.access.epoch
    for name in (b"mine", b"t/n/theirs"):
        filled(sim, name, 60_000, ANN if name == b"mine" else Principal("ben"))
        sim.advance(STORAGE_US + 100_000)
        said = r"keeps 6\d+ bytes; the limit is 50000 \(quota storage_bytes_max\)"
        with pytest.raises(LimitExceeded, match=said):
            sim.broker.publish_target(ANN, name, durable=True)
    assert sim.broker.access.epoch > epoch, "sessions that remember where they publish ask again"
    filled(sim, b"of-ben", 60_000, Principal("ben"))
    filled(sim, b"of-ben", 60_000, Principal("ben"))
    start(sim.broker.purge_topic(b"mine"))
    sim.advance(STORAGE_US + 100_000)
    filled(sim, b"mine", 10)
    assert sim.broker.quotas.info("tenant", "t").refused == 1


def test_a_tenant_is_held_to_its_topics_whoever_makes_them() -> None:
    sim = SimBroker()
    given(sim, "tenant", "t", topics_max=1)
    filled(sim, b"t/n/one", 1)
    with pytest.raises(LimitExceeded, match="tenant 't' has 1 streams, its limit is 1"):
        sim.broker.publish_target(Principal("ben"), b"t/n/two", durable=True)


# -- who may change them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda q: q.set(ADMIN, "user", "ann", None, {"publish_bytes_per_second_max": 5}), BadRequest, "1024 to"),
        (lambda q: q.set(ADMIN, "user", "ann", None, {"connections_max": -2}), BadRequest, "-2"),
        (lambda q: q.set(ADMIN, "user", "ann", None, {"connections_max": 1 << 60}), BadRequest, "1 to"),
        (lambda q: q.set(ADMIN, "user", "ann", None, {"wishes": 5}), BadRequest, "no quota 'wishes'"),
        (lambda q: q.set(ADMIN, "user", "ann", "a/b", {}), BadRequest, "'a/b'"),
        (lambda q: q.set(ADMIN, "tenant", "t", "u", {}), BadRequest, "'u'"),
        (lambda q: q.set(ADMIN, "tenant", "a/b", None, {}), BadName, "no /"),
        (lambda q: q.set(ADMIN, "user", "a\x1bb", None, {}), BadName, "U\\+001B"),
        (lambda q: q.set(ADMIN, "group", "ann", None, {}), BadRequest, "'group'"),
        (lambda q: q.clear(ADMIN, "user", "ann"), BadRequest, "no quota is set for user 'ann'"),
        (lambda q: q.set(ANN, "user", "ann", None, {"connections_max": 0}), Forbidden, "may not administer quotas"),
        (lambda q: q.clear(ANN, "user", "ann"), Forbidden, "may not administer quotas"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    change: Callable[[object], Verb[QuotaInfo]], kind: type[QuintetError], said: str
) -> None:
    sim = SimBroker()
    with pytest.raises(kind, match=said):
        run(sim, change(sim.broker.quotas))
    assert not sim.broker.quotas.in_use


def test_every_change_and_every_refusal_is_in_the_audit() -> None:
    sim = SimBroker()
    given(sim, "user", "ann", connections_max=4)
    run(sim, sim.broker.quotas.clear(ADMIN, "user", "ann"))
    with pytest.raises(Forbidden):
        run(sim, sim.broker.quotas.set(ANN, "user", "ann", None, {"connections_max": 0}, peer="10.0.0.9:1"))
    sim.scheduler.run_until_idle()
    found = [row for batch in sim.broker.audit.partition.read_now(0) for row in batch.rows()]
    said = b"\n".join(row[3] or b"" for row in found)
    assert said.count(b"quota.set") == 2 and said.count(b"quota.clear") == 1
    assert b"connections_max" in said and b"denied" in said
