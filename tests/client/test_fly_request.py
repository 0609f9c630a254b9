"""bus.request: every operation by its name, in both dialects, compressed or not, and its errors with their types."""

import asyncio

import pytest

import quintet
from quintet.client.core import errors
from quintet.client.links.flymq import BY_NAME, encode
from tests.client.server import Server


@pytest.fixture(params=["document", "sdk"])
def fly(request: pytest.FixtureRequest, server: Server) -> str:
    return server.fly if request.param == "document" else server.fly_sdk


async def test_ask(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        assert (await bus.request("WHOAMI"))["username"] == "admin"
        made = await bus.request("CREATE_TOPIC", topic=topic, partitions=3)
        assert made == {"success": True, "message": "created"}
        record = await bus.request("PRODUCE", topic=topic, key=b"k", value="text", partition=2)
        assert record["topic"] == topic
        assert (record["partition"], record["offset"], record["key_size"], record["value_size"]) == (2, 0, 1, 4)
        found = await bus.request("FETCH", topic=topic, partition=2, offset=0, max=10)
        assert found == {"messages": [{"offset": 0, "key": b"k", "value": b"text"}], "next_offset": 1}
        metadata = await bus.request("METADATA", topic=topic)
        assert [row["newest"] for row in metadata["partitions"]] == [0, 0, 1]
        users = await bus.request("USER_LIST")
        assert "admin" in [user["user"] for user in users["users"]]


async def test_many_at_once_are_answered_in_order(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        asked = [bus.request("PRODUCE", topic=topic, key=b"", value=str(n), partition=0) for n in range(200)]
        answers = await asyncio.gather(*asked, bus.request("METADATA", topic=topic))
        assert [answer["offset"] for answer in answers[:-1]] == list(range(200))
        assert answers[-1]["partitions"][0]["newest"] == 200


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
async def test_compressed(fly: str, topic: str, codec: str) -> None:
    async with quintet.connect(fly + ("&" if "?" in fly else "?") + f"compression={codec}") as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        value = b"abc" * 10_000
        await bus.request("PRODUCE", topic=topic, key=b"", value=value, partition=0)
        found = await bus.request("FETCH", topic=topic, partition=0, offset=0, max=1)
        assert found["messages"][0]["value"] == value
        assert (await bus.request("CONSUME", topic=topic, partition=0, offset=0))["value"] == value


async def test_errors(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        with pytest.raises(errors.TopicNotFound) as caught:
            await bus.request("METADATA", topic=topic)
        assert caught.value.code == "E1301"
        assert "E1301" not in str(caught.value)
        assert caught.value.hint
        await bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        with pytest.raises(errors.PartitionNotFound):
            await bus.request("CONSUME", topic=topic, partition=7, offset=0)
        with pytest.raises(errors.OffsetNotFound):
            await bus.request("CONSUME", topic=topic, partition=0, offset=7)
        with pytest.raises(errors.TransactionNotFound):
            await bus.request("TXN_COMMIT", txn_id="none")
        assert (await bus.request("WHOAMI"))["success"]


async def test_a_wrong_password(server: Server) -> None:
    for url in (server.fly, server.fly_sdk):
        with pytest.raises(errors.AuthError, match="invalid user name or password"):
            async with quintet.connect(url.replace("admin:admin", "admin:wrong")):
                pass
        with pytest.raises(errors.AuthError, match="authenticate first"):
            async with quintet.connect(url.replace("admin:admin@", "")):
                pass


async def test_what_cannot_be_asked(server: Server, url: str) -> None:
    async with quintet.connect(server.fly) as bus:
        with pytest.raises(ValueError, match="did you mean METADATA"):
            await bus.request("METDATA", topic="t")
        with pytest.raises(ValueError, match="missing: topic"):
            await bus.request("METADATA")
        with pytest.raises(ValueError, match="not known: colour"):
            await bus.request("METADATA", topic="t", colour="red")
        with pytest.raises(ValueError, match="cannot hold"):
            await bus.request("CONSUME", topic="t", partition=1 << 40, offset=0)
        with pytest.raises(errors.TooLarge, match="70000 bytes"):
            await bus.request("METADATA", topic="t" * 70_000)
    async with quintet.connect(url) as bus:
        with pytest.raises(errors.Unsupported, match="blipmq") as caught:
            await bus.request("METADATA", topic="t")
        assert "FlyMQ" in caught.value.hint


def test_brackets_are_filled_up() -> None:
    def tail(name: str, **fields: object) -> bytes:
        return encode(name, fields)[1]

    fetch = {"topic": "t", "partition": 0, "offset": 0, "max": 1}
    assert tail("FETCH", **fetch, wait_ms=5) == tail("FETCH", **fetch, filter="", wait_ms=5)
    data = {"topic": "t", "data": b"x", "ttl_ms": 1}
    assert tail("PRODUCE_WITH_TTL", **data, key=b"k") == tail("PRODUCE_WITH_TTL", **data, key=b"k", partition=-1)
    assert tail("REPLAY_DLQ", topic="t", offset=1) != tail("REPLAY_DLQ", topic="t", message_id="1")


def test_every_code_of_the_model_has_its_error() -> None:
    from quintet.model import errors as model

    of_servers_only = {
        "E1000",
        "E1504",
        "E1505",
        "E1506",
        "E1600",
    }  # nameless, and four that no connection lives to see
    kinds = [kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, model.QuintetError)]
    assert {kind.code for kind in kinds} - of_servers_only == set(errors.BY_CODE)
    for kind in kinds:
        if kind.code in errors.BY_CODE:
            error = errors.from_server(kind.code, "why")
            assert (type(error), error.code, error.retryable) == (kind, kind.code, kind.retryable)
    told = errors.from_server("E1301", "topic not found: x; create it")
    assert (told.message, told.hint) == ("topic not found: x", "create it")  # once, and not in our words too
    assert "into the URL" in errors.from_server("E1200", "authenticate first; send AUTH (0x70)").hint
    unknown = errors.from_server("E9999", "why")
    assert (type(unknown), unknown.code) == (errors.ServerError, "E9999")
    assert BY_NAME["PRODUCE"].code == 1
