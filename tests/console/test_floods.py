"""Too much of everything: a flood of requests, a million topics behind a filter, a filter that names a million of them."""

import asyncio
import json
import os
import socket
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from quintet.broker.slices import SORTED_AT_ONCE
from quintet.console.app import Console
from quintet.console.call import Call
from quintet.console.pages.topics import Topics, _names
from quintet.console.paging import FILTER_CHARS_MAX, arranged
from quintet.console.section import ConsoleListener
from quintet.console.wire import QUERY_BYTES_MAX
from quintet.testing.line import SimBroker
from tests.console.conftest import Browser

MINUTE_US = 60_000_000
REQUESTS_A_MINUTE = 100_000
SECONDS = 6  # of that minute
PER_SECOND = 100
TOPICS = 1_000_000 if os.environ.get("QUINTET_TEST_LONG") else 100_000


class Around:
    """What a console sees of its server: a broker, and nothing else."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.listeners: dict[str, Any] = {}


async def console_of(sim: SimBroker) -> Console:
    around: Any = Around(sim.broker)
    options = ConsoleListener(requests_per_second_max=PER_SECOND)
    return Console(around, options, Random(1).randbytes, lambda *_: None, failures_per_minute=3)


def test_a_hundred_thousand_requests_a_minute_are_refused_clearly() -> None:
    sim = SimBroker()

    async def flood() -> Counter[int]:
        console, found = await console_of(sim), Counter[int]()
        body = json.dumps({"topic": "made-by-a-flood"}).encode()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                found[message["status"]] += 1
            elif found[429] == 1:
                assert json.loads(message["body"])["error"] == f"more than {PER_SECOND} requests a second"

        head = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"sec-fetch-site", b"same-origin")]
        scope = {"type": "http", "method": "POST", "path": "/api/topic/create", "query_string": b"", "headers": head, "state": {}}  # fmt: skip
        for number in range(REQUESTS_A_MINUTE * SECONDS // 60):
            await console(scope | {"client": ("10.0.0.1", number % 60_000)}, receive, send)
            sim.scheduler.advance(MINUTE_US // REQUESTS_A_MINUTE)
        await console(scope | {"client": ("10.0.0.2", 1)}, receive, send)
        return found

    found = asyncio.run(flood())
    taken = found[401]
    assert PER_SECOND * SECONDS <= taken <= PER_SECOND * (SECONDS + 2), (
        "nobody is logged in: what is taken is refused, too"
    )
    assert found[429] == REQUESTS_A_MINUTE * SECONDS // 60 + 1 - taken
    assert sim.broker.topics.get(b"made-by-a-flood") is None
    assert set(found) == {401, 429}


def test_a_filter_over_a_million_topics_never_keeps_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimBroker()
    names = [f"topic-{number}" for number in range(TOPICS)]
    Random(2).shuffle(names)
    topics = [SimpleNamespace(name=name, partitions=(), subscriptions=()) for name in names]
    monkeypatch.setattr(sim.broker.topics, "all", lambda: topics)
    session: Any = None

    async def walk() -> tuple[int, list[Any]]:
        console = await console_of(sim)
        call = Call(console.parts, sim.broker.authenticate(b"dev-key")[1], "10.0.0.1:5", session)
        pauses, steps = 0, _names(call, Topics(filter="TOPIC", sort="name"))
        while True:
            try:
                next(steps)
                pauses += 1
            except StopIteration as end:
                return pauses, end.value

    pauses, found = asyncio.run(walk())
    assert [name for _, name in found] == sorted(names)
    assert pauses >= 2 * TOPICS, "a pause after each topic that is looked at, and after each that is put in order"


def test_sorting_in_steps_looks_at_few_names_in_each() -> None:
    looked, most = 0, 0

    def key(number: int) -> int:
        nonlocal looked
        looked += 1
        return number

    numbers = list(range(20 * SORTED_AT_ONCE, 0, -1))
    for _ in arranged(numbers, key):
        looked, most = 0, max(most, looked)
    assert 0 < most <= SORTED_AT_ONCE
    looked = 0
    sorted(numbers, key=key)  # the control: all at once
    assert looked > SORTED_AT_ONCE


def test_a_filter_that_names_a_million_topics_is_refused(address: str, admin: Browser) -> None:
    long = admin.get("/api/topics", filter="x" * (FILTER_CHARS_MAX + 1))
    assert (long.status_code, f"the limit is {FILTER_CHARS_MAX}" in long.json()["error"]) == (400, True)
    longer = admin.get("/api/topics", filter="x" * QUERY_BYTES_MAX)
    assert (longer.status_code, f"the limit is {QUERY_BYTES_MAX}" in longer.json()["error"]) == (400, True)
    host, port = address.rsplit(":", 1)
    names = b",".join(b"topic-%d" % number for number in range(1_000_000))
    with socket.create_connection((host, int(port)), timeout=60) as client:
        try:
            client.sendall(b"GET /api/topics?filter=" + names + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = client.recv(4096)
        except ConnectionError:  # it was hung up on before it had said all
            answer = b"HTTP/1.1 400"
    assert answer.startswith(b"HTTP/1.1 400")
    body = {"topic": ",".join(f"topic-{number}" for number in range(100_000))}
    refused = admin.post("/api/topic/create", **body)
    assert refused.status_code == 400 and refused.json()["error"]
    assert admin.ask("/api/me")["name"] == "admin"


def test_a_cookie_of_another_start_is_worth_nothing(address: str, admin: Browser) -> None:
    """The token has the form of a real one: it was issued, by another console."""

    async def issued() -> str:
        sim = SimBroker()
        return (await console_of(sim)).sessions._issue(sim.broker.authenticate(b"dev-key")[0])

    foreign = asyncio.run(issued())
    own = admin.client.cookies["quintet-console"]
    assert len(foreign) == len(own)
    for token in (foreign, own.upper(), own[:-1] + ("0" if own[-1] != "0" else "1"), f"{own}x", f" {own} x"):
        answer = httpx2.get(
            f"http://{address}/api/topics", headers={"cookie": f"quintet-console={token}"}, trust_env=False
        )
        assert (answer.status_code, token == own) == (401, False)
