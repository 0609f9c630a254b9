"""Latency histograms: requests of every door, appends, syncs and pushes are counted in the right bucket."""

import asyncio

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

import quintet
from quintet.client.links.fast import Queues
from quintet.config import DEV_PEERBUS_SECRET
from quintet.model.histogram import BOUNDS_S, OTHER, SAMPLED, Histogram, Histograms
from quintet.net import latencies
from quintet.net.latencies import Latencies
from tests.cli.conftest import Commands
from tests.client.server import running

Counts = dict[tuple[str, str, str], float]  # metric, door, operation


class Asked:
    """What `measure` looks at of a session."""

    def __init__(self) -> None:
        self.unanswered = 0
        self.operation = "PUBLISH"


def test_a_duration_is_counted_up_to_its_bound() -> None:
    found = Histogram()
    for seconds in (-1.0, 0.0, 0.0001, 0.00011, 9.9, 11.0):
        found.observe(seconds)
    found.observe(0.2, count=3)
    counts = dict(zip((*BOUNDS_S, "more"), found.cells.classic(found.counts), strict=True))
    assert (counts[0.0001], counts[0.00025], counts[0.25], counts[10.0], counts["more"]) == (3, 4, 7, 8, 9)
    assert found.seconds == pytest.approx(0.0001 + 0.00011 + 9.9 + 11.0 + 0.6)


def test_label_sets_are_bounded() -> None:
    found = Histograms(2)
    for number in range(5):
        found.observe("flymq", f"OP{number}", 0.1)
    assert set(found.by_labels) == {("flymq", "OP0"), ("flymq", "OP1"), (OTHER, OTHER)}
    assert sum(found.by_labels[OTHER, OTHER].counts) == 3


def test_a_request_lasts_until_nothing_is_left_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found, session = Latencies(), Asked()
    clock = iter((10.3, 10.4))
    monkeypatch.setattr(latencies, "perf_counter", lambda: next(clock))
    session.unanswered = 1
    assert found.measure("flymq", session, 10.0) == 10.0  # type: ignore[arg-type]
    session.unanswered = 0
    assert found.measure("flymq", session, 10.0) == 0.0  # type: ignore[arg-type]
    assert found.requests.by_labels["flymq", "PUBLISH"].seconds == pytest.approx(0.3)
    session.operation = ""
    assert found.measure("flymq", session, 10.0) == 0.0  # type: ignore[arg-type]
    assert set(found.requests.by_labels) == {("flymq", "PUBLISH")}, "a read without a request is not one"


def test_one_read_in_sixteen_is_measured() -> None:
    found = Latencies()
    assert [number for number in range(3 * SAMPLED) if found.sampled()] == [0, SAMPLED, 2 * SAMPLED]


def scraped(admin: str) -> Counts:
    text = httpx2.get(f"{admin}/metrics", trust_env=False, timeout=60).text
    return {
        (family.name, sample.labels.get("door", ""), sample.labels.get("operation", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.endswith("_count")
    }


def test_every_door_appends_syncs_and_pushes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_PEERBUS_SECRET", DEV_PEERBUS_SECRET)

    async def use(url: str, topic: str) -> None:
        async with quintet.connect(url) as bus:
            if url.startswith("fast"):
                await Queues(bus).create(topic)
            for _ in range(SAMPLED + 1):  # each is a read of its own, and one of them is measured
                await bus.publish(topic, b"hello")

    async def register(url: str) -> None:
        async with quintet.peer(url) as peer:
            for _ in range(SAMPLED + 1):
                await peer.peers()

    with running() as server:
        urls = {"flymq": server.fly, "blipmq": server.url, "fast": server.fast, "felix": server.felix}
        for door, url in urls.items():
            asyncio.run(use(url, f"of-{door}"))
        asyncio.run(register(server.peer("ann")))
        Commands(server.fly)("sub", "of-felix", "--from", "earliest", "--count", "1", url=server.felix)
        found = scraped(f"http://127.0.0.1:{server.ports['admin']}")
    doors = {door for name, door, _ in found if name == "quintet_request_seconds"}
    assert set(urls) | {"peerbus"} <= doors
    assert all(operation for name, _, operation in found if name == "quintet_request_seconds")
    for name in ("quintet_append_durable_seconds", "quintet_disk_sync_seconds", "quintet_delivery_age_seconds"):
        assert found[name, "", ""] >= 1, name
