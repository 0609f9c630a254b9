"""Handlers: how many run at a time, what becomes of those that fail, the order of a key, and the stop."""

import asyncio
import logging
import threading
from collections import Counter

import pytest

import quintet
from quintet.client.consuming import Retry
from quintet.client.core.errors import Unsupported
from quintet.client.manage import Manage
from tests.client.fake import until
from tests.client.server import Server

SOON = Retry(times=2, delay=0.01, factor=1.0)
DOORS = [("fly", {"group": "g", "start": "earliest"}), ("url", {}), ("felix", {"durable": "d"})]


@pytest.mark.parametrize(("door", "options"), DOORS, ids=["fly", "blip", "felix"])
def test_failures_come_again_and_end_as_dead_letters(
    server: Server, door: str, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    topic, tried = f"consume/{door}/letters", Counter[str]()

    async def handle(msg: quintet.Message) -> None:
        tried[msg.text()] += 1
        if msg.text() == "bad" or (msg.text() == "slow to please" and tried[msg.text()] < 3):
            raise RuntimeError("no")
        if msg.text() == "malformed":
            msg.decode(int)

    async def scenario() -> None:
        async with quintet.connect(getattr(server, door)) as bus, quintet.connect(server.fly) as admin:
            async with bus.consumer(topic, handle, retry=SOON, dead_letter=True, **options) as consumer:  # type: ignore[arg-type]
                await bus.publish_batch(topic, ["good", "bad", "slow to please", "malformed"])
                await until(lambda: consumer.handled + consumer.given_up == 4)
            assert tried == {"good": 1, "bad": 3, "slow to please": 3, "malformed": 1}
            assert (consumer.handled, consumer.given_up) == (2, 2)
            async with asyncio.timeout(60):
                while len(dead := await Manage(admin).dead_letters(topic)) < 2:
                    await asyncio.sleep(0.02)
            assert sorted(letter.value for letter in dead) == [b"bad", b"malformed"]

    asyncio.run(scenario())


def test_what_is_given_up_without_dead_letters_is_gone(server: Server, topic: str) -> None:
    async def fail(msg: quintet.Message) -> None:
        raise RuntimeError("no")

    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish(topic, "bad")
            options = {"group": "g", "start": "earliest"}
            async with bus.consumer(topic, fail, retry=0, dead_letter=False, **options) as consumer:  # type: ignore[arg-type]
                await until(lambda: consumer.given_up == 1)
            assert await Manage(bus).dead_letters(topic) == []
            assert (await Manage(bus).lag(topic, "g"))[0].lag == 0

    asyncio.run(scenario())


def test_workers_are_bounded(server: Server, topic: str) -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def handle(msg: quintet.Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    async def scenario() -> None:
        async with quintet.connect(server.url) as bus, bus.consumer(topic, handle, workers=3) as consumer:
            await bus.publish_batch(topic, range(20))
            await until(lambda: running == 3)
            for _ in range(20):
                await asyncio.sleep(0)
            assert (running, most) == (3, 3)
            go.set()
            await until(lambda: consumer.handled == 20)
            assert most == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("ordered", [True, False])
def test_messages_of_a_key_are_handled_in_order(server: Server, topic: str, ordered: bool) -> None:
    """Without `ordered` they are not: the control."""
    done: dict[bytes, list[int]] = {}
    failed: set[int] = set()

    async def handle(msg: quintet.Message) -> None:
        number = msg.json()
        if number % 5 == 0 and number not in failed:
            failed.add(number)
            raise RuntimeError("the first attempt fails")
        await asyncio.sleep(0.002 if number % 2 else 0)
        done.setdefault(msg.key or b"", []).append(number)

    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish_batch(topic, range(60), keys=[f"k{number % 3}" for number in range(60)])
            options = {"group": "g", "start": "earliest"}
            async with bus.consumer(topic, handle, retry=SOON, ordered=ordered, **options) as consumer:  # type: ignore[arg-type]
                await until(lambda: consumer.handled == 60)

    asyncio.run(scenario())
    in_order = {f"k{key}".encode(): [n for n in range(60) if n % 3 == key] for key in range(3)}
    assert (done == in_order) == ordered
    assert {key: sorted(numbers) for key, numbers in done.items()} == in_order


def test_a_stop_waits_for_handlers_and_leaves_the_rest(server: Server, topic: str) -> None:
    begun, finished, go = asyncio.Event(), [], asyncio.Event()

    async def handle(msg: quintet.Message) -> None:
        begun.set()
        await go.wait()
        finished.append(msg.text())

    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish_batch(topic, ["a", "b", "c"])
            task = asyncio.create_task(bus.consume(topic, handle, workers=1, group="g", start="earliest"))
            await begun.wait()
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert finished == ["a"]
            async with bus.subscribe(topic, group="g") as sub:
                assert (await sub.get(timeout=30)).text() == "b"

    asyncio.run(scenario())


def test_a_handler_that_does_not_end_is_cancelled_and_comes_again(server: Server, topic: str) -> None:
    begun = asyncio.Event()

    async def handle(msg: quintet.Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish(topic, "a")
            async with bus.consumer(topic, handle, group="g", start="earliest", grace=0.01):
                await begun.wait()
            async with bus.subscribe(topic, group="g") as sub:
                assert (await sub.get(timeout=30)).text() == "a"

    asyncio.run(scenario())


def test_an_ended_subscription_ends_consume_with_its_error(server: Server) -> None:
    begun = asyncio.Event()

    async def handle(msg: quintet.Message) -> None:
        begun.set()

    async def scenario() -> None:
        async with quintet.connect(server.felix) as bus:
            first = asyncio.create_task(bus.consume("a/b/taken", handle, durable="d"))
            async with asyncio.timeout(60):
                while not begun.is_set():  # whoever subscribes later takes it from the first
                    await bus.publish("a/b/taken", b"are you there?")
                    await asyncio.sleep(0.01)
            async with bus.subscribe("a/b/taken", durable="d"):
                with pytest.raises(quintet.errors.SubscriptionEnded):
                    await asyncio.wait_for(first, 60)

    asyncio.run(scenario())


def test_where_nothing_comes_again_it_is_tried_here(server: Server) -> None:
    tried: list[str] = []

    async def handle(msg: quintet.Message) -> None:
        tried.append(msg.text())
        raise RuntimeError("no")

    async def scenario() -> None:
        async with quintet.connect(server.fast) as bus:
            await bus.request("CREATE", topic="consumed-by-fast", durable=True)
            with pytest.raises(Unsupported, match="no dead letters"):
                await bus.consumer("consumed-by-fast", handle, dead_letter=True).open()
            async with bus.consumer("consumed-by-fast", handle, retry=SOON) as consumer:
                await bus.publish("consumed-by-fast", "x")
                await until(lambda: consumer.given_up == 1)
        assert tried == ["x"] * 3

    asyncio.run(scenario())


def test_the_blocking_twin_calls_plain_functions_in_threads(server: Server, topic: str) -> None:
    seen: list[tuple[str, str]] = []
    full = threading.Event()

    def handle(msg: quintet.sync.Message) -> None:
        seen.append((msg.text(), threading.current_thread().name))
        if len(seen) == 5:
            full.set()

    with quintet.sync.connect(server.fly) as bus, bus.consumer(topic, handle, group="g", start="earliest") as consumer:
        bus.publish_batch(topic, [f"{number}" for number in range(5)])
        assert full.wait(60)
    assert sorted(text for text, _ in seen) == list("01234")
    assert all(name.startswith("quintet-consumer") for _, name in seen)
    assert consumer.handled == 5


def test_retries_wait_longer_each_time() -> None:
    retry = Retry(times=5, delay=1, factor=2, delay_max=5)
    assert [retry.pause(attempt) for attempt in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]
    assert Retry(delay=1).pause(10_000) == 60
    with pytest.raises(ValueError, match="factor"):
        Retry(factor=0.5)
