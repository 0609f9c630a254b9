"""Several topics as one subscription: lists at every door, patterns over FlyMQ, topics that come and go."""

import asyncio

import pytest

import quintet
from quintet.client.core.errors import BadName, BadRequest, LimitExceeded, Unsupported
from quintet.client.manage import Manage
from quintet.client.sources import many
from tests.client.server import Server

FAST_LOOK_S = 0.02


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "LOOK_S", FAST_LOOK_S)


async def take(sub: quintet.Subscription, count: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _ in range(count):
        msg = await sub.get(timeout=20)
        found.setdefault(msg.topic, []).append(msg.text())
        await msg.ack()
    return found


@pytest.mark.parametrize(
    ("door", "options"),
    [
        ("url", {}),
        ("fly", {"start": "earliest"}),
        ("fly", {"group": "g", "start": "earliest"}),
        ("felix", {"durable": "d"}),
    ],
)
def test_a_list_is_one_subscription(server: Server, door: str, options: dict[str, str]) -> None:
    one, two = (f"list/{door}{len(options)}/{name}" for name in ("one", "two"))

    async def scenario() -> None:
        async with quintet.connect(getattr(server, door)) as bus, bus.subscribe([one, two, one], **options) as sub:  # type: ignore[arg-type]
            assert sub.topics == (one, two)
            await bus.publish_batch(one, ["a", "b"])
            await bus.publish_batch(two, ["c"])
            assert await take(sub, 3) == {one: ["a", "b"], two: ["c"]}
            await sub.flush()
            assert sub.refused == 0

    asyncio.run(scenario())


def test_a_group_on_a_pattern_takes_topics_made_later(server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish("shop1.a", "1")
            await bus.publish("shop1.b", "2")
            await bus.publish("shopping", "no")
            async with bus.subscribe("shop1.*", group="g", start="earliest") as sub:
                assert await take(sub, 2) == {"shop1.a": ["1"], "shop1.b": ["2"]}
                await bus.publish_batch("shop1.later", ["3", "4"])  # before anybody joined it
                assert await take(sub, 2) == {"shop1.later": ["3", "4"]}
                await sub.flush()
            async with bus.subscribe("regex:shop1[.](a|later)", group="g") as sub:  # the group of each topic goes on
                await bus.publish("shop1.b", "not mine")
                await bus.publish("shop1.a", "5")
                assert await take(sub, 1) == {"shop1.a": ["5"]}

    asyncio.run(scenario())


def test_members_of_a_group_share_a_pattern(server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, quintet.connect(server.fly) as other:
            for name in ("a", "b"):
                await Manage(bus).create_topic(f"shop2.{name}", 2)
            async with bus.subscribe("shop2.*", group="g") as one, other.subscribe("shop2.*", group="g") as two:
                async with asyncio.timeout(20):
                    for sub in (one, two):
                        while [len(part.source.assigned) for part in sub.source._parts.values()] != [1, 1]:  # type: ignore[attr-defined]
                            await asyncio.sleep(0.05)

    asyncio.run(scenario())


def test_a_deleted_topic_leaves_and_the_others_go_on(server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish("shop3.a", "1")
            await bus.publish("shop3.b", "2")
            async with bus.subscribe("shop3.*", start="earliest") as sub:
                await take(sub, 2)
                await Manage(bus).delete_topic("shop3.a")
                async with asyncio.timeout(20):
                    while sub.topics != ("shop3.b",):
                        await asyncio.sleep(0.01)
                await bus.publish("shop3.b", "3")
                assert await take(sub, 1) == {"shop3.b": ["3"]}
                await bus.publish("shop3.a", "again")
                assert await take(sub, 1) == {"shop3.a": ["again"]}

    asyncio.run(scenario())


def test_dead_letters_of_a_pattern_are_not_consumed_by_it(server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            await bus.publish("shop4.a", "bad")

            async def fail(msg: quintet.Message) -> None:
                raise RuntimeError("no")

            options = {"group": "g", "start": "earliest"}
            async with bus.consumer("shop4.*", fail, retry=0, dead_letter=True, **options) as consumer:  # type: ignore[arg-type]
                async with asyncio.timeout(20):
                    while not consumer.given_up:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(5 * FAST_LOOK_S)
                assert consumer.given_up == 1
            assert len(await Manage(bus).dead_letters("shop4.a")) == 1

    asyncio.run(scenario())


def test_patterns_are_bounded_and_refused_with_reasons(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, quintet.connect(server.url) as blip:
            with pytest.raises(Unsupported, match="FlyMQ"):
                blip.subscribe("shop.*")
            with pytest.raises(BadName, match="empty"):
                bus.subscribe([])
            with pytest.raises(BadRequest, match="RE2"):
                await bus.subscribe("regex:(").open()
            with pytest.raises(Unsupported, match="one topic"):
                blip.subscribe(["a", "b"], resume=1)
            await bus.publish("shop5.a", "")
            await bus.publish("shop5.b", "")
            monkeypatch.setattr(many, "TOPICS_MAX", 1)
            with pytest.raises(LimitExceeded, match="2 topics; the limit is 1"):
                await bus.subscribe("shop5.*").open()

    asyncio.run(scenario())


def test_the_blocking_twin_reads_patterns(server: Server) -> None:
    with quintet.sync.connect(server.fly) as bus:
        bus.publish("shop6.a", "1")
        with bus.subscribe("shop6.*", start="earliest") as sub:
            assert sub.get(timeout=20).text() == "1"
            assert sub.topics == ("shop6.a",)
