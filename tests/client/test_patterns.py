"""Several topics as one subscription: lists at every door, patterns at those that match, topics that come and go."""

import asyncio

import pytest

import quintet
from quintet.client.core.errors import BadName, BadRequest, LimitExceeded, Unsupported
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.client.manage import Manage
from quintet.client.sources import many
from quintet.model.errors import QuintetError
from tests.client.server import Server

FAST_LOOK_S = 0.02


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "LOOK_S", FAST_LOOK_S)


async def take(sub: quintet.Subscription, count: int) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for _ in range(count):
        msg = await sub.get(timeout=60)
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
                async with asyncio.timeout(60):
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
                async with asyncio.timeout(60):
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
                async with asyncio.timeout(60):
                    while not consumer.given_up:
                        await asyncio.sleep(0.01)
                await asyncio.sleep(5 * FAST_LOOK_S)
                assert consumer.given_up == 1
            assert len(await Manage(bus).dead_letters("shop4.a")) == 1

    asyncio.run(scenario())


def test_patterns_are_bounded_and_refused_with_reasons(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, quintet.connect(server.url) as blip:
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


MATCHING = [("url", {}), ("fly", {"start": "earliest"}), ("felix", {"durable": "d"}), ("felix", {})]


@pytest.mark.parametrize(("door", "options"), MATCHING)
def test_a_pattern_takes_topics_made_later_at_every_door(server: Server, door: str, options: dict[str, str]) -> None:
    base = f"later/{door}{len(options)}/"

    async def scenario() -> None:
        async with quintet.connect(getattr(server, door)) as bus, quintet.connect(server.fly) as other:
            await other.publish(f"{base}a", "before")
            async with bus.subscribe(f"{base}*", **options) as sub:  # type: ignore[arg-type]
                assert sub.topics == (f"{base}a",)
                if "start" in options:
                    await take(sub, 1)
                await other.publish(f"{base}a", "1")
                assert await take(sub, 1) == {f"{base}a": ["1"]}
                await other.publish_batch(f"{base}b", ["2", "3"])  # before anybody joined it
                assert await take(sub, 2) == {f"{base}b": ["2", "3"]}
                await Manage(other).delete_topic(f"{base}a")
                async with asyncio.timeout(30):
                    while sub.topics != (f"{base}b",):
                        await asyncio.sleep(0.01)
                await other.publish(f"{base}b", "4")
                assert await take(sub, 1) == {f"{base}b": ["4"]}
                await sub.flush()
                assert sub.refused == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("door", ["url", "fly", "felix"])
def test_bad_patterns_are_refused_alike_at_every_door(
    server: Server, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with quintet.connect(getattr(server, door)) as bus:
            for text, why in (("regex:(", r"RE2: missing \)"), ("*" * 18, "the limit is 16")):
                with pytest.raises(QuintetError, match=why) as refused:
                    await bus.subscribe(text).open()
                assert isinstance(refused.value, BadRequest), refused.value
            await bus.publish(f"bound/{door}/a", "")
            await bus.publish(f"bound/{door}/b", "")
            monkeypatch.setattr(many, "TOPICS_MAX", 1)
            with pytest.raises(LimitExceeded, match="2 topics; the limit is 1"):
                await bus.subscribe(f"bound/{door}/*").open()

    asyncio.run(scenario())


def test_doors_that_do_not_match_say_which_do(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "0123456789abcdef0123456789abcdef")

    async def scenario() -> None:
        for url in (server.fast, server.peer("pattern.reader")):
            async with quintet.connect(url) as bus:
                with pytest.raises(Unsupported, match="BlipMQ, FlyMQ and Felix"):
                    bus.subscribe("shop.*")

    asyncio.run(scenario())


def test_a_pattern_over_felix_stays_in_the_namespace_of_its_url(server: Server) -> None:
    async def scenario() -> None:
        url = f"{server.felix}&tenant=t7&namespace=shop"
        async with quintet.connect(url) as bus, quintet.connect(server.fly) as other:
            await other.publish("t7/shop/seven.a", "")
            await other.publish("seven.b", "not in this namespace")
            for pattern in ("seven.*", "regex:seven[.].", "t7/shop/seven.*"):
                async with bus.subscribe(pattern) as sub:
                    assert sub.topics == ("seven.a",), pattern
                    await bus.publish("seven.a", pattern)
                    assert await take(sub, 1) == {"seven.a": [pattern]}
            async with bus.subscribe("regex:(t7/shop/)?seven[.].") as sub:  # bare names are not to be had here
                assert sub.topics == ("seven.a",)

    asyncio.run(scenario())


def test_the_blocking_twin_reads_patterns(server: Server) -> None:
    with quintet.sync.connect(server.fly) as bus:
        bus.publish("shop6.a", "1")
        with bus.subscribe("shop6.*", start="earliest") as sub:
            assert sub.get(timeout=60).text() == "1"
            assert sub.topics == ("shop6.a",)
