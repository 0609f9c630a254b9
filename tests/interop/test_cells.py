"""A broker of two processes: every connection reaches every topic, in order, or is told in a sentence why not. Real sockets.

Which process accepts a connection is the system's choice, so each pair of doors is walked for a topic of each cell: one of them is
always another process's.
"""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any
from urllib.request import urlopen

import pytest

import quintet
from quintet.client.core.errors import OtherCell, TransactionNotFound
from quintet.client.links.fast import Queues
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.config import DEV_PEERBUS_SECRET
from quintet.model.cells import CellMap
from quintet.protocols.blipmq import codec, frames
from tests.client.server import Server, running_cells
from tests.interop.test_sockets import url_of

WAIT_S = 30.0
CELLS = 2
MESSAGES = 5
ROUNDS = 40
SHARED = ("blipmq", "flymq", "fast")
SUBSCRIBED: dict[str, dict[str, Any]] = {
    "flymq": {"group": "g", "start": "earliest"},
    "felix": {"start": "earliest"},
}
QUERY = {
    "start_s": 0, "end_s": 0, "types": [], "user": "", "resource": "", "result": "", "search": "", "limit": 1, "skip": 0
}  # fmt: skip
_names = count()


def topic_of(cell: int) -> str:
    """A new name that belongs to this cell."""
    cells = CellMap(CELLS, (), "-dlq")
    return next(name for name in (f"cells.{number}" for number in _names) if cells.cell_of(name.encode()) == cell)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS) as found:
        yield found


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)


async def exchange(server: Server, writer: str, reader: str, topic: str) -> list[bytes]:
    """What `reader` gets of what `writer` publishes."""
    got: list[bytes] = []
    async with AsyncExitStack() as stack:
        out = await stack.enter_async_context(quintet.connect(url_of(server, writer)))
        into = await stack.enter_async_context(quintet.connect(url_of(server, reader, topic.rpartition("/")[2])))
        fast = {"fast": out if writer == "fast" else into}.get("fast") if "fast" in (writer, reader) else None
        if fast is not None:
            await Queues(fast).create(topic, durable=True)
        subscription = await stack.enter_async_context(into.subscribe(topic, **SUBSCRIBED.get(reader, {})))
        for number in range(MESSAGES):
            await out.publish(topic, str(number).encode())
        async with asyncio.timeout(WAIT_S):
            async for message in subscription:
                got.append(message.value)
                await message.ack()
                if len(got) == MESSAGES:
                    break
    return got


@pytest.mark.parametrize("cell", range(CELLS))
@pytest.mark.parametrize("reader", SHARED)
@pytest.mark.parametrize("writer", SHARED)
async def test_what_a_door_publishes_every_door_reads(server: Server, writer: str, reader: str, cell: int) -> None:
    assert await exchange(server, writer, reader, topic_of(cell)) == [str(n).encode() for n in range(MESSAGES)]


@pytest.mark.parametrize("other", ["blipmq", "flymq"])
async def test_topics_of_felix_are_reached_from_every_process(server: Server, other: str) -> None:
    expected = [str(n).encode() for n in range(MESSAGES)]
    assert await exchange(server, "felix", other, f"t/n/from-felix-{other}") == expected
    assert await exchange(server, other, "felix", f"t/n/to-felix-{other}") == expected


async def test_mailboxes_are_reached_from_every_process(server: Server) -> None:
    for number in range(4):  # over both processes, by the system's choice
        name = f"bob{number}"
        async with (
            quintet.connect(url_of(server, "peerbus", name)) as bob,
            quintet.connect(server.url) as bus,
            bob.subscribe(f"peerbus/{name}") as mailbox,
        ):
            await bus.publish(f"peerbus/{name}", b'"hello"')
            async with asyncio.timeout(WAIT_S):
                assert (await anext(aiter(mailbox))).json() == "hello"


# -- order ------------------------------------------------------------------------------------------------------------


def blip(server: Server) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), WAIT_S)
    made.sendall(codec.hello(1, 2) + codec.auth(2, b"dev-key"))
    _frames(made, 2)
    return made


def _frames(of: socket.socket, number: int) -> list[tuple[int, int]]:
    """(type, correlation id) of the next frames."""
    found: list[tuple[int, int]] = []
    data = b""
    while len(found) < number:
        data += of.recv(65_536)
        while len(data) >= 4 and len(data) >= 4 + struct.unpack_from(">I", data)[0]:
            _, kind, id = frames.HEADER.unpack_from(data)
            found.append((kind, id))
            data = data[4 + struct.unpack_from(">I", data)[0] :]
    assert not data
    return found


def publish(topic: str, id: int, value: bytes) -> bytes:
    return codec.encode(frames.PUBLISH, id, b"\x01" + struct.pack(">H", len(topic)) + topic.encode() + value)


async def test_answers_keep_the_order_of_requests_over_cells(server: Server) -> None:
    """One write with publishes to both cells, in turn and refused ones among them: every answer in its place."""
    topics = [topic_of(0), topic_of(1)]
    for _ in range(3):  # connections of both processes
        asked, expected = b"", []
        for number in range(ROUNDS):
            id = 10 + 3 * number
            asked += publish(topics[number % 2], id, b"x") + codec.poll(id + 1, 0) + codec.ping(id + 2)
            expected += [(frames.NACK, id + 1), (frames.PONG, id + 2)]
        with blip(server) as connection:
            connection.sendall(asked)
            assert await asyncio.to_thread(_frames, connection, len(expected)) == expected
    async with quintet.connect(server.fly) as bus:
        for topic in topics:
            assert len(await bus.fetch(topic, offset=0, max=1_000)) == 3 * ROUNDS / 2


async def test_a_request_sees_what_the_one_before_did(server: Server) -> None:
    """FlyMQ promises it; here the two are in different cells, and behind each other in one write."""
    async with quintet.connect(server.fly) as bus:
        for number in range(10):
            one, other = topic_of(0), topic_of(1)
            answers = await asyncio.gather(
                bus.request("PRODUCE", topic=one, key=b"", value=b"v", partition=0),
                bus.request("PRODUCE", topic=other, key=b"", value=b"v", partition=0),
                bus.request("FETCH", topic=one, partition=0, offset=0, max=10),
                bus.request("FETCH", topic=other, partition=0, offset=0, max=10),
            )
            assert [len(answer["messages"]) for answer in answers[2:]] == [1, 1], number


# -- lists ------------------------------------------------------------------------------------------------------------


async def test_lists_have_what_is_in_every_cell(server: Server) -> None:
    topics = sorted([topic_of(0), topic_of(1)])
    async with quintet.connect(server.fly) as bus, quintet.connect(server.url) as blipmq:
        for topic in topics:
            await bus.publish(topic, b"x")
            await bus.request("COMMIT", topic=topic, group=f"g-{topic}", partition=0, offset=1)
        listed = (await bus.request("LIST_TOPICS"))["topics"]
        assert set(topics) <= set(listed) and listed == sorted(listed)
        groups = (await bus.request("LIST_GROUPS"))["groups"]
        assert {f"g-{topic}" for topic in topics} <= {group["group"] for group in groups}
        first = await bus.request("MATCH_TOPICS", patterns=["cells.*"], version=0)
        assert set(topics) <= set(first["topics"])
        again = await bus.request("MATCH_TOPICS", patterns=["cells.*"], version=first["version"])
        assert (again["changed"], again["topics"]) == (False, [])
        async with blipmq.subscribe("cells.*") as subscription:
            for topic in topics:
                await bus.publish(topic, topic.encode())
            async with asyncio.timeout(WAIT_S):
                found = {(await anext(aiter(subscription))).value for _ in topics}
        assert found == {topic.encode() for topic in topics}


# -- what spans cells -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", range(CELLS))
async def test_a_transaction_of_one_cell_is_whole(server: Server, cell: int) -> None:
    topic, second = topic_of(cell), topic_of(cell)
    async with quintet.connect(server.fly) as bus:
        async with bus.transaction() as transaction:
            await transaction.publish(topic, b"a")
            await transaction.publish(second, b"b")
        for number in range(2):
            with pytest.raises(RuntimeError, match="no"):
                async with bus.transaction() as transaction:
                    await transaction.publish(topic, b"never")
                    raise RuntimeError(f"no {number}")
        assert [message.value for message in await bus.fetch(topic, offset=0)] == [b"a"]
        assert [message.value for message in await bus.fetch(second, offset=0)] == [b"b"]


async def test_a_transaction_over_two_cells_is_refused_with_a_sentence(server: Server) -> None:
    one, other = topic_of(0), topic_of(1)
    async with quintet.connect(server.fly) as bus:
        with pytest.raises(OtherCell, match=f"topic '{other}' is in cell 1, and this transaction is of cell 0"):
            async with bus.transaction() as transaction:
                await transaction.publish(one, b"a")
                await transaction.publish(other, b"b")
        await bus.publish(one, b"c")
        assert [message.value for message in await bus.fetch(one, offset=0)] == [b"c"]
        with pytest.raises(TransactionNotFound):
            await bus.request("TXN_COMMIT", txn_id="txn-00|txn-00")


@pytest.mark.parametrize("cell", range(CELLS))
async def test_offsets_of_another_connection_are_part_of_a_transaction(server: Server, cell: int) -> None:
    source, target = topic_of(cell), topic_of(cell)
    foreign = topic_of(1 - cell)
    commit: dict[str, Any] = {"group": "g", "partition": 0, "offset": 1, "generation": 0}
    async with quintet.connect(server.fly) as bus, quintet.connect(server.fly) as other:
        for topic in (source, foreign):
            await bus.publish(topic, b"in")
        begun = (await bus.request("TXN_BEGIN"))["txn_id"]
        await other.request("COMMIT", topic=source, txn_id=begun, **commit)
        with pytest.raises(OtherCell):
            await other.request("COMMIT", topic=foreign, txn_id=begun, **commit)
        await bus.request("TXN_PRODUCE", txn_id=begun, topic=target, data=b"out")
        assert (await bus.request("GET_OFFSET", topic=source, group="g", partition=0))["offset"] == 0
        await other.request("TXN_COMMIT", txn_id=begun)
        assert (await bus.request("GET_OFFSET", topic=source, group="g", partition=0))["offset"] == 1
        assert [message.value for message in await bus.fetch(target, offset=0)] == [b"out"]
        assert (await bus.request("TXN_COMMIT", txn_id=begun))["success"], "an end may be repeated"


@pytest.mark.parametrize(
    ("operation", "fields", "said"),
    [
        ("AUDIT_EXPORT", {"query": QUERY, "format": "json"}, "audit of its own"),
        ("DESCRIBE_GROUP", {"topic": "", "group": "g"}, "in the cell of its topic"),
    ],
)
async def test_what_no_cell_can_answer_alone_is_refused(
    server: Server, operation: str, fields: dict[str, Any], said: str
) -> None:
    async with quintet.connect(server.fly) as bus:
        with pytest.raises(OtherCell, match=said):
            await bus.request(operation, **fields)
        assert (await bus.request("WHOAMI"))["username"] == "admin"  # the connection goes on


@pytest.mark.parametrize("cell", range(CELLS))
@pytest.mark.parametrize("other", [*SHARED, "felix"])
async def test_felix_reaches_topics_of_every_cell(server: Server, other: str, cell: int) -> None:
    expected = [str(n).encode() for n in range(MESSAGES)]
    assert await exchange(server, "felix", other, topic_of(cell)) == expected
    assert await exchange(server, other, "felix", topic_of(cell)) == expected


async def test_a_schema_of_another_cell_is_refused_with_a_sentence(server: Server) -> None:
    schema, topic = topic_of(0), topic_of(1)
    async with quintet.connect(server.fly) as bus:
        for name in (schema, topic):
            await bus.request("REGISTER_SCHEMA", name=name, type="json", schema='{"type": "object"}')
        await bus.publish(topic, {"n": 1}, schema=topic)
        with pytest.raises(OtherCell, match=f"schema '{schema}' in cell 0"):
            await bus.publish(topic, {"n": 1}, schema=schema)


# -- operating it -----------------------------------------------------------------------------------------------------


def scraped(server: Server, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{server.ports['admin']}{path}", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


async def test_a_connection_is_moved_to_the_process_of_its_first_topic(server: Server) -> None:
    topic = topic_of(1)
    async with AsyncExitStack() as stack:
        for url in [server.url] * 8:
            bus = await stack.enter_async_context(quintet.connect(url))
            await bus.publish(topic, b"x")
        found = ""
        async with asyncio.timeout(WAIT_S):
            while 'quintet_connections{cell="1",door="blipmq"} 8.0' not in found:
                found = await asyncio.to_thread(scraped, server, "/metrics")
                await asyncio.sleep(0.2)
        assert 'quintet_connections{cell="0",door="blipmq"} 0.0' in found
        assert 'quintet_connections{cell="1",door="cells"} 1.0' in found, "the leg of identity, and none of them"


async def test_what_is_sent_while_a_connection_moves_keeps_its_place(server: Server) -> None:
    """One message a write and no answer waited for: some are in the socket when another process takes it over."""
    for _ in range(10):
        topic = topic_of(1)
        async with quintet.connect(server.url) as bus:
            for number in range(MESSAGES):
                await bus.publish(topic, str(number).encode(), qos=0)
                await asyncio.sleep(0)
            await bus.ping()
        async with quintet.connect(server.fly) as reader:
            found = [message.value for message in await reader.fetch(topic, offset=0, max=100)]
        assert found == [str(number).encode() for number in range(MESSAGES)]


async def test_metrics_and_health_are_those_of_every_cell(server: Server) -> None:
    async with quintet.connect(server.fly) as bus:
        for cell in range(CELLS):
            await bus.publish(topic_of(cell), b"x")
    async with asyncio.timeout(WAIT_S):
        while 'quintet_cell_up{cell="1"} 1.0' not in (found := await asyncio.to_thread(scraped, server, "/metrics")):
            await asyncio.sleep(0.2)
    for cell in range(CELLS):
        assert f'quintet_topics{{cell="{cell}"}}' in found
        assert f'quintet_connections{{cell="{cell}",door="blipmq"}}' in found
    ready = await asyncio.to_thread(scraped, server, "/readyz?verbose")
    assert "[+] cell:0:log" in ready and "[+] cell:1:log" in ready and ready.endswith("ready\n")
