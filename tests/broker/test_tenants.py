"""The quotas of tenants: counts that are exact in any order, rates, and a configuration that changes."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Principal
from quintet.broker.identity.tenants import Tenants
from quintet.broker.sections import CacheSection, Tenant
from quintet.config import Settings
from quintet.model.errors import LimitExceeded
from quintet.model.tasks import start
from quintet.server import broker_options
from quintet.testing.line import SimBroker

SECOND = 1_000_000
ANY = Principal("any", ("*",), ("*",))


@pytest.mark.parametrize("what", ["connection", "subscription"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_open_is_counted_exactly_in_any_order(what: str, seed: int) -> None:
    rng = Random(seed)
    limits = {"a": 3, "b": 7, "c": 0}
    tenants = Tenants(
        {name: Tenant(name="t", connections_max=most, subscriptions_max=most) for name, most in limits.items()}
    )
    opened, closed = getattr(tenants, f"{what}_opened"), getattr(tenants, f"{what}_closed")
    open_now: list[str] = []
    refused: Counter[str] = Counter()
    for _ in range(2_000):
        if open_now and rng.random() < 0.5:
            closed(open_now.pop(rng.randrange(len(open_now))))
        else:
            tenant = rng.choice(("a", "b", "c", "nobody"))
            most = limits.get(tenant, 0)
            if most and open_now.count(tenant) == most:
                with pytest.raises(LimitExceeded, match=f"tenant '{tenant}' has {most} {what}s, its limit is {most}"):
                    opened(tenant)
                refused[tenant] += 1
            else:
                opened(tenant)
                open_now.append(tenant)
        assert getattr(tenants, f"{what}s") == Counter(open_now)
    for tenant in open_now:
        closed(tenant)
    assert not getattr(tenants, f"{what}s")
    assert tenants.refused == refused
    assert refused["a"]


def test_closing_what_was_never_opened_is_our_own_mistake() -> None:
    tenants = Tenants({})
    tenants.connection_opened("t")
    tenants.connection_closed("t")
    with pytest.raises(AssertionError, match="more was closed than opened"):
        tenants.connection_closed("t")


def test_the_topics_of_a_tenant_are_those_of_its_name() -> None:
    sim = SimBroker(options=BrokerOptions(tenants={"t": Tenant(name="t", streams_max=2)}))
    tenants = sim.broker.tenants
    for name in (b"t/n/one", b"t/n", b"t", b"t/n/one/more", b"other/n/one", b"tt/n/one"):
        tenants.check_topic("t")
        sim.broker.publish_target(ANY, name, durable=True)
    sim.scheduler.run_until_idle()
    assert tenants.streams("t") == 1
    tenants.check_topic("t")
    sim.broker.publish_target(ANY, b"t/m/two", durable=True)
    sim.scheduler.run_until_idle()
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="has 2 streams, its limit is 2"):
            sim.broker.tenants.check_topic("t")
        sim.broker.tenants.check_topic("other")
        sim.restart()
    start(sim.broker.delete_topic(b"t/n/one"))
    sim.broker.tenants.check_topic("t")
    sim.scheduler.run_until_idle()
    assert sim.broker.tenants.streams("t") == 1


def test_a_tenant_that_publishes_too_fast_rests() -> None:
    tenants = Tenants({"t": Tenant(name="t", publish_bytes_per_second_max=1_000)})
    assert tenants.published("t", 1_000, 0) == 0
    assert tenants.published("t", 500, 0) == SECOND // 2
    assert tenants.published("t", 0, SECOND // 4) == SECOND // 4
    assert tenants.published("t", 0, SECOND // 2) == 0
    assert tenants.published("other", 1 << 40, 0) == 0
    assert tenants.published_bytes == Counter({"t": 1_500})


def test_over_a_long_time_the_rate_holds_exactly() -> None:
    tenants = Tenants({"t": Tenant(name="t", publish_bytes_per_second_max=10_000)})
    rng, now, sent = Random(3), 0, 0
    while now < 60 * SECOND:
        size = rng.randrange(1, 5_000)
        sent += size
        now += tenants.published("t", size, now)
        now += 10
    assert 60 * 10_000 <= sent <= 61 * 10_000 + 5_000


def test_new_quotas_count_what_is_open() -> None:
    tenants = Tenants({"t": Tenant(name="t", connections_max=3, publish_bytes_per_second_max=10)})
    for _ in range(3):
        tenants.connection_opened("t")
        tenants.connection_opened("new")
    tenants.published("t", 1_000, 0)
    tenants.replace({"t": Tenant(name="t", connections_max=2), "new": Tenant(name="t", connections_max=3)})
    assert tenants.names == ["t", "new"]
    assert tenants.published("t", 1_000, 0) == 0, "there is no rate any more"
    with pytest.raises(LimitExceeded, match="tenant 'new' has 3 connections"):
        tenants.connection_opened("new")
    tenants.connection_closed("t")
    with pytest.raises(LimitExceeded, match="tenant 't' has 2 connections"):
        tenants.connection_opened("t")
    tenants.connection_closed("t")
    tenants.connection_opened("t")
    tenants.replace({"t": Tenant(name="t", publish_bytes_per_second_max=10)})
    assert tenants.published("t", 10, 0) == 0, "a rate that is new begins full"
    tenants.published("t", 100, 0)
    tenants.replace({"t": Tenant(name="t", publish_bytes_per_second_max=10, streams_max=5)})
    assert tenants.published("t", 0, 0) == 10 * SECOND, "one that stays goes on"


def test_quotas_and_caches_come_from_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(
        """
        [cache]
        durability = "os"
        memory_bytes = "1 MiB"
        eviction = "refuse"
        key_bytes_max = 1
        value_bytes_max = 2
        caches_max = 3

        [[tenants]]
        name = "t"
        connections_max = 4
        streams_max = 5
        subscriptions_max = 6
        caches_max = 7
        cache_bytes = 8
        publish_bytes_per_second_max = 9

        [[tenants]]
        name = "free"
        """
    )
    options = broker_options(Settings.load(file, {}, {}))
    caches = CacheSection(
        durability="os", memory_bytes=1 << 20, eviction="refuse", key_bytes_max=1, value_bytes_max=2, caches_max=3
    )
    assert options.caches == caches
    quotas = Tenant(
        name="t",
        connections_max=4,
        streams_max=5,
        subscriptions_max=6,
        caches_max=7,
        cache_bytes=8,
        publish_bytes_per_second_max=9,
    )
    assert options.tenants == {"t": quotas, "free": Tenant(name="free")}
