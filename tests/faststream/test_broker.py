"""The FastStream broker: by FastStream's own test broker, against a real one, and its AsyncAPI page."""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from faststream.exceptions import NackMessage, SubscriberNotFound

import quintet
from faststream import AckPolicy, FastStream
from quintet.client.manage import Manage
from quintet.faststream import QuintetBroker, QuintetRouter, TestQuintetBroker
from quintet.faststream.annotations import QuintetMessage
from quintet.faststream.testing import matches
from tests.client.server import Server, running
from tests.faststream import app as service
from tests.faststream.app import Order

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


def test_handlers_run_without_a_broker() -> None:
    async def scenario() -> None:
        async with TestQuintetBroker(service.broker) as broker:
            await broker.publish(Order(id=7), "fs.orders", key="ann")
            service.bill.mock.assert_called_once_with({"id": 7, "customer": "ann"})
            await broker.publish("hello", "shop.anything")
            service.watch.mock.assert_called_once_with("hello")
            await broker.publish("hello", "elsewhere")
            service.watch.mock.assert_called_once_with("hello")
            answer = await broker.request({"id": 8}, "fs.orders", timeout=30)
            assert await answer.decode() == "bill 8"
            with pytest.raises(SubscriberNotFound):
                await broker.request({"id": 8}, "elsewhere")

    asyncio.run(scenario())


def test_a_message_that_does_not_fit_is_not_handled() -> None:
    async def scenario() -> None:
        async with TestQuintetBroker(service.broker) as broker:
            with pytest.raises(Exception, match="id"):
                await broker.publish({"id": "x"}, "fs.orders")

    asyncio.run(scenario())


@pytest.mark.parametrize(("door", "options"), [("fly", {"group": "g"}), ("url", {}), ("felix", {"durable": "d"})])
def test_an_application_on_a_real_broker(server: Server, door: str, options: dict[str, str]) -> None:
    topic, bills = f"fs/{door}/orders", f"fs/{door}/bills"

    async def scenario() -> None:
        broker = QuintetBroker(getattr(server, door))
        billed: asyncio.Queue[str] = asyncio.Queue()

        @broker.subscriber(topic, **options)  # type: ignore[arg-type]
        @broker.publisher(bills)
        async def bill(order: Order, message: QuintetMessage) -> str:
            assert message.raw_message.topic == topic
            return f"bill {order.id}"

        @broker.subscriber(bills, max_workers=2)
        async def take(text: str) -> None:
            billed.put_nowait(text)

        async with broker:
            await broker.start()
            assert await broker.ping()
            await asyncio.gather(*(broker.publish(Order(id=number), topic) for number in range(5)))
            async with asyncio.timeout(60):
                assert sorted([await billed.get() for _ in range(5)]) == [f"bill {number}" for number in range(5)]
        assert not await broker.ping()

    asyncio.run(scenario())


def test_a_failed_message_is_a_dead_letter_that_says_why(server: Server) -> None:
    async def scenario() -> None:
        broker, tries = QuintetBroker(server.fly, logger=None), Counter[str]()

        @broker.subscriber("fs.failing", group="g", start="earliest")
        async def fail(body: str) -> None:
            tries["fail"] += 1
            raise RuntimeError("no ink")

        @broker.subscriber("fs.rejecting", group="g", start="earliest", ack_policy=AckPolicy.REJECT_ON_ERROR)
        async def reject(body: str) -> None:
            raise RuntimeError("never")

        @broker.subscriber("fs.once", group="g", start="earliest", retry=1, max_workers=2)
        async def later(body: str) -> None:
            tries["later"] += 1
            try:
                raise OSError("paper jam")
            except OSError as error:
                raise NackMessage(delay=0.05) from error

        async def letter(admin: quintet.Bus, topic: str) -> tuple[str, int]:
            while not (found := await Manage(admin).dead_letters(topic)):
                await asyncio.sleep(0.05)
            return found[0].error, found[0].attempts

        async with broker, quintet.connect(server.fly) as admin:
            await broker.start()
            for topic in ("fs.failing", "fs.rejecting", "fs.once"):
                await broker.publish("bad", topic)
            async with asyncio.timeout(60):
                assert await letter(admin, "fs.failing") == ("RuntimeError: no ink", 4)
                assert await letter(admin, "fs.rejecting") == ("RuntimeError: never", 1)
                assert await letter(admin, "fs.once") == ("OSError: paper jam", 2)
        assert tries == {"fail": 4, "later": 2}

    asyncio.run(scenario())


@pytest.mark.parametrize(("door", "options"), [("url", {}), ("felix", {"durable": "d"})])
def test_retry_is_counted_where_the_broker_delivers_again(server: Server, door: str, options: dict[str, str]) -> None:
    topic, tries = f"fs/{door}/retried", asyncio.Queue[str]()

    async def scenario() -> None:
        broker = QuintetBroker(getattr(server, door), logger=None)

        @broker.subscriber(topic, retry=1, **options)  # type: ignore[arg-type]
        async def fail(body: str) -> None:
            tries.put_nowait(body)
            raise NackMessage(delay=0.05)

        async with broker, quintet.connect(server.fly) as admin:
            await broker.start()
            await broker.publish("bad", topic)
            async with asyncio.timeout(60):
                while not await Manage(admin).dead_letters(topic):
                    await asyncio.sleep(0.05)
        assert tries.qsize() == 2

    asyncio.run(scenario())


def test_patterns_routers_and_single_messages(server: Server) -> None:
    async def scenario() -> None:
        broker, router, seen = QuintetBroker(server.fly), QuintetRouter("fs.area."), asyncio.Queue[str]()

        @router.subscriber("*", group="g", start="earliest")
        async def take(body: str) -> None:
            seen.put_nowait(body)

        broker.include_router(router)
        single = broker.subscriber("fs.single", start="earliest")
        async with broker:
            await broker.publish("one", "fs.area.x")
            await broker.start()
            async with asyncio.timeout(60):
                assert await seen.get() == "one"
            await broker.publish({"n": 1}, "fs.single")
            message = await single.get_one(timeout=60)
            assert message is not None and await message.decode() == {"n": 1}
            assert await single.get_one(timeout=0.05) is None

    asyncio.run(scenario())


def test_the_asyncapi_page_is_made_and_shows_no_secret(tmp_path: Path) -> None:
    out = tmp_path / "api.json"
    command = [sys.executable, "-m", "faststream", "docs", "gen", "tests.faststream.app:app", "--out", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True, timeout=60)
    page = json.loads(out.read_text())
    assert "never-shown" not in out.read_text()
    server = page["servers"]["development"]
    assert (server["protocol"], server["host"]) == ("flymq", "127.0.0.1:9092")
    addresses = {channel["address"] for channel in page["channels"].values()}
    assert addresses == {"fs.orders", "fs.bills", "shop.*"}
    assert "Order" in page["components"]["schemas"]


def test_a_wrong_url_is_known_before_the_start() -> None:
    with pytest.raises(quintet.errors.BadUrl, match="did you mean flymq"):
        FastStream(QuintetBroker("flymg://127.0.0.1"))


@pytest.mark.parametrize(
    ("pattern", "topic", "is_one"),
    [
        ("a", "a", True),
        ("a*", "ab", True),
        ("a?", "ab", False),
        ("a?", "a?", True),
        ("regex:a.", "ab", True),
        ("a[b]", "ab", False),
    ],
)
def test_the_test_broker_knows_the_patterns(pattern: str, topic: str, is_one: bool) -> None:
    assert matches(pattern, topic) == is_one
