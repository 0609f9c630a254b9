"""Requests and replies: answers, failures, late and second answers, strangers, responders that die."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

import quintet
from quintet.client.asking import CORRELATION_ID, REPLY_TO
from quintet.client.core.errors import RequestFailed, Timeout, Unsupported
from tests.client.server import Server


async def double(msg: quintet.Message) -> int:
    return int(msg.json()) * 2


def test_a_request_is_answered(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, quintet.connect(server.fly) as other:

            @other.respond(topic, group="g")
            async def answer(msg: quintet.Message) -> int:
                assert msg.headers.text("tenant") == "acme"
                return await double(msg)

            await other.responding()
            headers = {"tenant": "acme", REPLY_TO: "orders"}  # a name that is ours is not taken from the user
            replies = await asyncio.gather(*(bus.ask(topic, n, headers=headers, timeout=60) for n in range(50)))
            assert [reply.json() for reply in replies] == [2 * n for n in range(50)]

    asyncio.run(scenario())


def test_a_responder_that_comes_later_answers_who_still_waits(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            with pytest.raises(Timeout, match=r"nobody answered.*is a responder running"):
                await bus.ask(topic, 1, timeout=1)
            asked = asyncio.create_task(bus.ask(topic, 2, timeout=60))
            await asyncio.sleep(0.05)
            seen: list[int] = []

            async def answer(msg: quintet.Message) -> int:
                seen.append(msg.json())
                return await double(msg)

            async with bus.responder(topic, answer, group="g"):
                assert (await asked).json() == 4
            assert seen == [2]  # the first request expired

    asyncio.run(scenario())


def test_a_failure_of_the_responder_is_told(server: Server, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)

    def fail(msg: quintet.Message) -> None:
        raise ValueError("no such thing")

    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, bus.responder(topic, fail, group="g"):
            with pytest.raises(RequestFailed, match="ValueError: no such thing"):
                await bus.ask(topic, 1, timeout=60)

    asyncio.run(scenario())


def test_late_second_and_strange_replies_are_dropped(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, quintet.connect(server.fly) as stranger:
            requests: asyncio.Queue[quintet.Message] = asyncio.Queue()

            async def keep(msg: quintet.Message) -> None:
                requests.put_nowait(msg)

            async with stranger.consumer(topic, keep, group="g"):
                asked = asyncio.create_task(bus.ask(topic, 1, timeout=60))
                request = await requests.get()
                address, id = request.headers.text(REPLY_TO), request.headers[CORRELATION_ID]
                for wrong in ({CORRELATION_ID: "0" * 32}, {}, {CORRELATION_ID: b"\xff"}):
                    await stranger.publish(address, "wrong", headers=wrong)
                await stranger.publish(address, "right", headers={CORRELATION_ID: id})
                await stranger.publish(address, "twice", headers={CORRELATION_ID: id})
                assert (await asked).text() == "right"
                asked = asyncio.create_task(bus.ask(topic, 2, timeout=60))
                late = await requests.get()
                asked.cancel()  # nobody waits any more
                with pytest.raises(asyncio.CancelledError):
                    await asked
                await stranger.publish(address, "late", headers={CORRELATION_ID: late.headers[CORRELATION_ID]})
                assert bus._asker is not None
                async with asyncio.timeout(60):
                    while bus._asker.dropped < 5:
                        await asyncio.sleep(0.01)
                assert len(address) == len("reply/") + 32 and len(id or b"") == 32

    asyncio.run(scenario())


def test_a_request_cannot_make_a_responder_write_elsewhere(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            seen: list[bytes] = []

            async def answer(msg: quintet.Message) -> bytes:
                seen.append(msg.value)
                return b"stolen"

            async with bus.responder(topic, answer, group="g") as responder:
                for headers in ({REPLY_TO: "orders", CORRELATION_ID: "1"}, {}, {REPLY_TO: "reply/x"}):
                    await bus.publish(topic, b"x", headers=headers)
                async with asyncio.timeout(60):
                    while responder.handled < 3:
                        await asyncio.sleep(0.01)
            assert seen == []
            with pytest.raises(quintet.errors.TopicNotFound):
                await bus.request("METADATA", topic="orders")

    asyncio.run(scenario())


def test_when_a_responder_dies_another_one_answers(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus, quintet.connect(server.fly) as second:
            begun = asyncio.Event()

            async def hang(msg: quintet.Message) -> None:
                begun.set()
                await asyncio.Event().wait()

            async with quintet.connect(server.fly) as first, first.responder(topic, hang, group="g", grace=0.01):
                asked = asyncio.create_task(bus.ask(topic, 21, timeout=30))
                await begun.wait()
            async with second.responder(topic, double, group="g"):
                assert (await asked).json() == 42

    asyncio.run(scenario())


def test_a_lost_connection_of_the_asker_is_made_again(own_server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(own_server.fly) as bus:
            async with bus.responder(topic, double, group="g"):
                assert (await bus.ask(topic, 1, timeout=60)).json() == 2
            own_server.kill()
            own_server.start()
            await bus.wait_ready(20)
            async with bus.responder(topic, double, group="g"):
                for _ in range(30):  # the reply topic is in memory, and gone: the first questions find that out
                    try:
                        assert (await bus.ask(topic, 2, timeout=2)).json() == 4
                        return
                    except quintet.errors.QuintetError:
                        await asyncio.sleep(0.1)
            raise AssertionError("never answered again")

    asyncio.run(scenario())


@pytest.mark.parametrize("door", ["fast", "peerbus"])
def test_a_door_without_an_address_for_replies_says_so(server: Server, door: str) -> None:
    async def scenario() -> None:
        url = server.fast if door == "fast" else f"{server.peer('asker')}&verify=off"
        async with quintet.connect(url) as bus:
            with pytest.raises(Unsupported, match=rf"{door} does not support requests and replies .*FlyMQ"):
                await bus.ask("t", 1)
            with pytest.raises(Unsupported, match="requests and replies"):
                bus.responder("t", lambda msg: None)

    asyncio.run(scenario())


def test_the_blocking_twin_asks_and_answers(server: Server, topic: str) -> None:
    with quintet.sync.connect(server.fly) as bus, bus.responder(topic, lambda msg: msg.json() + 1, group="g"):
        assert bus.ask(topic, 41, timeout=60).json() == 42


def test_acknowledgements_go_out_together_and_none_is_lost(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.url) as bus:
            sub = bus.subscribe(topic)
            await sub.open()
            sub.gather_acks(60.0, 8)
            settled: list[int] = []
            plain = sub.source.settle

            async def settle(tags: Sequence[int], wait: float) -> None:
                settled.append(len(tags))
                await plain(tags, wait)

            sub.source.settle = settle  # type: ignore[method-assign,assignment]
            await bus.publish_batch(topic, [str(number) for number in range(20)])
            for _ in range(20):
                await (await sub.get(timeout=30)).ack()
            assert settled == [8, 8]
            await sub.close()
            assert settled == [8, 8, 4]
            await bus.publish(topic, "last")
            async with bus.subscribe(topic, resume=sub.id) as again:  # what was acknowledged does not come again
                assert (await again.get(timeout=30)).text() == "last"

    asyncio.run(scenario())


def test_a_request_is_answered_over_blipmq_and_felix(server: Server, topic: str) -> None:
    async def scenario() -> None:
        for url in (server.url, server.felix):
            async with quintet.connect(url) as bus, bus.responder(topic, double):
                found = await asyncio.gather(*(bus.ask(topic, number, timeout=30) for number in range(100)))
                assert [reply.json() for reply in found] == [2 * number for number in range(100)]

    asyncio.run(scenario())
