"""Consumer groups against a real broker: sharing, committing, moving on, and what a failed message becomes."""

import asyncio
from functools import partial

import pytest

import quintet
from quintet.client.bus import Bus
from quintet.client.core import errors
from quintet.client.core.subscription import Subscription
from tests.client.fake import until
from tests.client.server import Server


@pytest.fixture(params=["document", "sdk", "zstd"])
def fly(request: pytest.FixtureRequest, server: Server) -> str:
    return {"document": server.fly, "sdk": server.fly_sdk, "zstd": f"{server.fly}?compression=zstd"}[request.param]


async def made(bus: Bus, topic: str, partitions: int = 1) -> None:
    await bus.request("CREATE_TOPIC", topic=topic, partitions=partitions)


async def committed(bus: Bus, topic: str, group: str, partition: int = 0) -> int:
    answer = await bus.request("GET_OFFSET", topic=topic, group=group, partition=partition)
    return int(answer["offset"])


async def test_read_and_commit(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        await made(bus, topic, 2)
        await bus.publish_batch(topic, [f"{n}" for n in range(100)], keys=[f"k{n % 7}" for n in range(100)])
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            assert sub.assigned == (0, 1)
            seen: list[int] = []
            while len(seen) < 100:
                msg = await sub.get()
                assert msg.key == f"k{int(msg.text()) % 7}".encode()
                assert msg.partition in (0, 1)
                assert msg.redelivered is False
                seen.append(int(msg.text()))
                await msg.ack()
            await sub.flush()
            assert sorted(seen) == list(range(100))
            assert await committed(bus, topic, "g", 0) + await committed(bus, topic, "g", 1) == 100
            await bus.publish(topic, "live")
            assert (await sub.get()).text() == "live"
        async with bus.subscribe(topic, group="g") as again:
            assert (await again.get()).text() == "live"


async def test_only_what_has_no_gap_is_committed(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        await bus.publish_batch(topic, range(10))
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            messages = [await sub.get() for _ in range(10)]
            for number in (0, 1, 3, 4):
                await messages[number].ack()
            await sub.flush()
            assert await committed(bus, topic, "g") == 2
            await messages[2].ack()
            await sub.flush()
            assert await committed(bus, topic, "g") == 5
        async with bus.subscribe(topic, group="g") as sub:
            batch = await sub.get_batch()
            assert [int(value) for value in batch.values] == [5, 6, 7, 8, 9]
            assert batch.keys == [None] * 5
            await batch.ack()
        assert await committed(bus, topic, "g") == 10


async def test_start(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        await bus.publish(topic, "before")
        async with bus.subscribe(topic, group="late", start="latest") as late, bus.subscribe(topic) as plain:
            await bus.publish(topic, "after")
            assert (await late.get()).text() == "after"
            msg = await plain.get()
            assert (msg.text(), msg.offset) == ("after", 1)
            await msg.ack()
            await plain.flush()
        async with bus.subscribe(topic, start="earliest") as all_of_it:
            assert (await all_of_it.get()).text() == "before"
        with pytest.raises(ValueError, match="start"):
            bus.subscribe(topic, group="g", start="somewhere")
        with pytest.raises(ValueError, match="group="):
            bus.subscribe(topic, member="m")


async def drain(sub: Subscription, into: list[int], stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            msg = await sub.get(timeout=0.2)
        except errors.Timeout:
            continue
        into.append(msg.json())
        await msg.ack()


async def test_members_share_and_move_on(server: Server, topic: str) -> None:
    """A second member takes half, and gives it back when it leaves; everything arrives."""
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic, 4)
        seen: list[int] = []
        stop = asyncio.Event()
        async with bus.subscribe(topic, group="g", start="earliest") as first:
            tasks = [asyncio.create_task(drain(first, seen, stop))]
            await bus.publish_batch(topic, range(200))
            async with bus.subscribe(topic, group="g", start="earliest") as second:
                tasks.append(asyncio.create_task(drain(second, seen, stop)))
                assert len(second.assigned) == 2
                await until(lambda: len(first.assigned) == 2)
                assert set(first.assigned) | set(second.assigned) == {0, 1, 2, 3}
                await bus.publish_batch(topic, range(200, 400))
                await until(lambda: set(seen) == set(range(400)))
                stop.set()
                await asyncio.gather(*tasks)
            stop.clear()
            task = asyncio.create_task(drain(first, seen, stop))
            await until(lambda: len(first.assigned) == 4)
            await bus.publish_batch(topic, range(400, 500))
            await until(lambda: set(seen) == set(range(500)))
            stop.set()
            await task
            await first.flush()
        total = sum([await committed(bus, topic, "g", number) for number in range(4)])
        assert total == 500


async def test_a_fenced_commit_joins_again(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic, 2)
        async with bus.subscribe(topic, group="g", start="earliest") as first:
            await bus.publish(topic, "x", partition=0)
            await bus.publish(topic, "y", partition=1)
            messages = [await first.get(), await first.get()]
            async with bus.subscribe(topic, group="g", start="earliest") as second:
                for msg in messages:
                    await msg.ack()
                await first.flush()
                assert len(first.assigned) == 1
                mine = first.assigned[0]
                assert await committed(bus, topic, "g", mine) == 1
                assert (await second.get()).partition == 1 - mine


async def test_a_static_member_is_taken_over(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic, 2)
        async with (
            bus.subscribe(topic, group="g", member="m") as first,
            bus.subscribe(topic, group="g", member="m") as second,
        ):
            assert second.assigned == (0, 1)
            with pytest.raises(errors.Fenced, match="newer connection"):
                await first.get(timeout=60)


async def test_retries_and_dead_letters(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        await bus.publish_batch(topic, ["good", "bad", "better"])
        seen: list[tuple[str, bool | None]] = []
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            while len(seen) < 5:
                msg = await sub.get()
                seen.append((msg.text(), msg.redelivered))
                async with msg.process(retry=2):
                    if msg.text() == "bad":
                        raise RuntimeError("cannot do it")
            await sub.flush()
            assert seen == [("good", False), ("bad", False), ("better", False), ("bad", True), ("bad", True)]
            assert await committed(bus, topic, "g") == 3
        found = await bus.request("FETCH_DLQ", topic=topic, max=10)
        dead = [(row["data"], row["error"], row["retries"]) for row in found["messages"]]
        assert dead == [(b"bad", "RuntimeError: cannot do it", 3)]
        await bus.publish(topic, "worse")
        async with bus.subscribe(topic, group="g") as sub:
            batch = await sub.get_batch()
            with pytest.raises(RuntimeError):
                async with batch.process(retry=0, dead_letter=False, reraise=True):
                    raise RuntimeError("never mind")
            await sub.flush()
            assert await committed(bus, topic, "g") == 4
        assert len((await bus.request("FETCH_DLQ", topic=topic, max=10))["messages"]) == 1


async def test_a_cancelled_block_leaves_the_message(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        await bus.publish(topic, "x")
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            msg = await sub.get()

            async def work() -> None:
                async with msg.process():
                    await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await sub.get()).text() == "x"


async def test_a_filter(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        await bus.publish_batch(
            topic, [{"n": n} for n in range(50)], keys=["odd" if n % 2 else "even" for n in range(50)]
        )
        async with bus.subscribe(topic, group="g", start="earliest", filter="key:odd") as sub:
            got = [(await sub.get()).json()["n"] for _ in range(25)]
            assert got == list(range(1, 50, 2))
            await bus.publish(topic, {"n": 98}, key="even")
            await bus.publish(topic, {"n": 99}, key="odd")
            msg = await sub.get()
            assert msg.json() == {"n": 99}


async def test_a_full_queue_stops_fetching(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        await bus.publish_batch(topic, [str(n) for n in range(1_000)])
        async with bus.subscribe(topic, group="g", start="earliest", prefetch=100) as sub:
            await until(lambda: sub.queued == 100)
            total = 0
            async for batch in sub.batches(max=70, wait=0.01):
                assert sub.queued <= 100
                total += len(batch)
                await batch.ack()
                if total == 1_000:
                    break


async def test_across_a_restart(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.fly, timeout=30) as bus:
        await made(bus, topic, 2)
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            seen: list[int] = []
            for round in range(2):
                await bus.publish_batch(topic, range(round * 100, round * 100 + 100), retry=True)
                while len(set(seen)) < round * 100 + 60:
                    msg = await sub.get()
                    seen.append(msg.json())
                    await msg.ack()
                own_server.kill()
                own_server.start()
            while not set(range(200)) <= set(seen):
                msg = await sub.get()
                seen.append(msg.json())
                await msg.ack()
            await sub.flush()
            assert sub.reconnects >= 1
            total = await committed(bus, topic, "g", 0) + await committed(bus, topic, "g", 1)
            assert total >= 200


async def test_what_each_door_lacks(server: Server, url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        asked = (
            partial(bus.subscribe, topic, group="g"),
            partial(bus.subscribe, topic, start="latest"),
            partial(bus.subscribe, topic, filter="x"),
        )
        for ask in asked:
            with pytest.raises(errors.Unsupported) as caught:
                ask()
            assert "FlyMQ" in caught.value.hint
        async with bus.subscribe(topic) as sub:
            await bus.publish(topic, "x")
            msg = await sub.get()
            assert (msg.partition, msg.offset, msg.redelivered) == (None, None, None)
            async with msg.process(retry=1):
                pass
    async with quintet.connect(server.fly) as bus:
        with pytest.raises(errors.Unsupported, match="resume"):
            bus.subscribe(topic, resume=1)
        await made(bus, topic)
        async with bus.subscribe(topic) as sub:
            with pytest.raises(errors.Unsupported, match="no id"):
                sub.id  # noqa: B018
