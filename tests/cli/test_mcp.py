"""`quintet mcp` as a host of a model sees it: a process with pipes, against a real broker; and its framing, byte by byte."""

import asyncio
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import quintet
from quintet.client.agents import mcp
from quintet.client.agents.mcp import Frames
from quintet.client.agents.presence import Presence
from quintet.client.links.peerbus import SECRET_VARIABLE
from tests import forks
from tests.client.server import Server, running

SECRET = "0123456789abcdef0123456789abcdef"
WAIT_S = 60
TURNS_TO_REGISTER = 40
NUMBERS = itertools.count()  # of the names, so that no test gets what was sent to another one


class Host:
    """One `quintet mcp` process."""

    def __init__(self, url: str) -> None:
        self.name = url.partition("?name=")[2]
        self.process = forks.command(
            ["mcp", "--url", url], env={**os.environ, SECRET_VARIABLE: SECRET}, ahead=forks.MCP
        )
        self._next = 0
        self._greeted = False

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        self._next += 1
        asked = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        self.write(json.dumps(asked).encode() + b"\n")
        answer = self.read()
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", self._next)
        return answer

    def hello(self, version: str = "2025-11-25") -> Any:
        client = {"name": "t", "version": "1"}
        answer = self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo=client)
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        self._greeted = True
        return answer["result"]

    def tool(self, name: str, **arguments: Any) -> Any:
        if not self._greeted:
            self.hello()
        result = self.ask("tools/call", name=name, arguments=arguments)["result"]
        if not result["isError"]:
            assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        return result

    def end(self) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.wait(WAIT_S), out, err


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)


@pytest.fixture
def host(broker: Server) -> Iterator[Host]:
    host = Host(broker.peer(f"mcp.model{next(NUMBERS)}"))
    try:
        yield host
    finally:
        host.process.kill()
        host.process.communicate()


def test_a_session(host: Host, broker: Server) -> None:
    hello = host.hello("2025-06-18")
    assert hello["protocolVersion"] == "2025-06-18"
    assert hello["capabilities"] == {"tools": {"listChanged": False}}
    assert hello["serverInfo"] == {"name": "quintet-peerbus", "version": quintet.__version__}
    assert host.name in hello["instructions"]
    assert host.ask("ping")["result"] == {}
    tools = host.ask("tools/list")["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["bus.send", "bus.broadcast", "bus.peers", "bus.drain"]
    assert tools[0]["inputSchema"]["required"] == ["to", "body"]

    assert host.tool("bus.drain")["structuredContent"] == {"messages": [], "more": False}
    with quintet.sync.peer(broker.peer("mcp.friend")) as friend:
        assert host.tool("bus.peers")["structuredContent"] == {
            "self": host.name,
            "peers": ["mcp.friend", host.name],
        }
        sent = host.tool("bus.send", to="mcp.friend", body={"text": "hi"})["structuredContent"]["id"]
        got = friend.receive(timeout=WAIT_S)
        assert (got.id, got.sender, got.body) == (sent, host.name, {"text": "hi"})
        got.ack()
        host.tool("bus.broadcast", body=[1])
        got = friend.receive(timeout=WAIT_S)
        assert (got.kind, got.body) == ("broadcast", [1])
        got.ack()
        for n in range(3):
            friend.send(host.name, {"n": n}, id=f"m{n}")
    two = drained(host, 2)
    assert two == [{"id": f"m{n}", "from": "mcp.friend", "source": "peer-bus", "body": {"n": n}} for n in range(2)]
    code, out, err = host.end()
    assert (code, out, err) == (0, b"", b"")

    again = Host(broker.peer(host.name))
    try:
        assert [row["id"] for row in drained(again, 1)] == ["m2"], "what was handed over was acknowledged, and no more"
        assert again.end()[0] == 0
    finally:
        again.process.kill()
        again.process.communicate()


def texts(result: Any) -> str:
    return "".join(part["text"] for part in result["content"])


def until(host: Host, holds: Callable[[Any], bool], name: str = "bus.peers", **arguments: Any) -> Any:
    """The first answer of a tool of which this holds."""
    deadline = time.monotonic() + WAIT_S
    while not holds(result := host.tool(name, **arguments)):
        assert time.monotonic() < deadline, texts(result)
        time.sleep(0.05)
    return result


def ok(result: Any) -> bool:
    return not result["isError"]


@asynccontextmanager
async def running_task(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextmanager
def hosts(*urls: str) -> Iterator[list[Host]]:
    found = [Host(url) for url in urls]
    try:
        yield found
    finally:
        for host in found:
            host.process.kill()
            host.process.communicate()


def test_it_starts_without_a_broker_and_registers_when_there_is_one() -> None:
    with running() as server:
        url = server.peer("mcp.early")
        server.kill()
        with hosts(url) as (host,):
            assert host.hello()["serverInfo"]["name"] == "quintet-peerbus"
            for tool, arguments in (("bus.drain", {}), ("bus.peers", {}), ("bus.broadcast", {"body": 1})):
                result = host.tool(tool, **arguments)
                assert result["isError"] and "nobody listens there" in texts(result), "and not an empty list"
            server.start()
            assert until(host, ok)["structuredContent"]["peers"] == ["mcp.early"]
            assert host.tool("bus.drain")["structuredContent"] == {"messages": [], "more": False}


def open_sockets() -> int:
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder's own
            found += os.readlink(path).startswith("socket:")
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors by /proc, which this system has not")
def test_a_registration_that_is_cancelled_leaves_no_socket_open(
    broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled after every number of turns of the loop that it can take."""
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    unheard: list[dict[str, Any]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))
        before = open_sockets()
        for turns in range(TURNS_TO_REGISTER):
            presence = Presence(lambda turns=turns: quintet.peer(broker.peer(f"mcp.cancelled{turns}")))  # type: ignore[misc]
            task = asyncio.create_task(presence.run())
            for _ in range(turns):
                await asyncio.sleep(0 if turns % 2 else 0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for _ in range(10):  # a transport closes its socket one turn later
                await asyncio.sleep(0)
            assert open_sockets() == before, f"cancelled after {turns} turns"

    asyncio.run(scenario())
    gc.collect()
    assert not unheard


def test_it_registers_again_when_its_name_was_freed(broker: Server) -> None:
    with hosts(broker.peer("mcp.freed")) as (host,), quintet.sync.peer(broker.peer("mcp.sender")) as sender:
        until(host, ok)
        sender.send("mcp.freed", 1)
        drained(host, 1)
        with quintet.sync.connect(broker.fly) as admin:
            admin.request("DELETE_TOPIC", topic="peerbus/mcp.freed")
        deadline = time.monotonic() + WAIT_S
        rows: list[Any] = []
        while not rows and time.monotonic() < deadline:  # what is sent while the name is nobody's goes nowhere
            sender.send("mcp.freed", 2)
            rows = until(host, ok, "bus.drain")["structuredContent"]["messages"]
        assert [row["body"] for row in rows[:1]] == [2]


def test_two_of_one_name_do_not_fight_for_ever(broker: Server) -> None:
    with hosts(broker.peer("mcp.twin"), broker.peer("mcp.twin")) as (first, second):
        for host in (first, second):
            until(host, ok)
        deadline = time.monotonic() + WAIT_S
        while True:
            said = [host.tool("bus.drain") for host in (first, second)]
            gave_way = [result for result in said if "another process uses this name" in texts(result)]
            if len(gave_way) == 1:
                break
            assert not gave_way and time.monotonic() < deadline, [texts(result) for result in said]
            time.sleep(0.05)
        stays = first if said[1] in gave_way else second
        until(stays, ok)
        with quintet.sync.peer(broker.peer("mcp.third")) as friend:
            friend.send("mcp.twin", "who has it")
            assert [row["body"] for row in drained(stays, 1)] == ["who has it"]


def drained(host: Host, count: int) -> list[dict[str, Any]]:
    """So many messages, as they come in."""
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        result = until(host, ok, "bus.drain", max=count - len(rows))
        rows += result["structuredContent"]["messages"]
    return rows


def test_errors(host: Host) -> None:
    host.hello()
    cases: list[tuple[bytes, int, Any]] = [
        (b"hello\n", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"\n', -32700, None),
        (b"\xff\xfe\n", -32700, None),
        (b"[" * 100_000 + b"\n", -32700, None),
        (b"[]\n", -32600, None),
        (b'{"id":1,"method":"ping"}\n', -32600, None),
        (b'{"jsonrpc":"2.0","id":1}\n', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600, None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}\n', -32600, None),
        (b'{"jsonrpc":"2.0","id":"a","method":"resources/list"}\n', -32601, "a"),
        (b'{"jsonrpc":"2.0","id":2,"method":"ping","params":[]}\n', -32600, None),
        (b'{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"rm"}}\n', -32602, 3),
        (b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"bus.send"}}\n', -32602, 4),
        (
            b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"bus.send","arguments":{"to":7,"body":1}}}\n',
            -32602,
            5,
        ),
        (
            b'{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"bus.drain","arguments":{"max":0}}}\n',
            -32602,
            6,
        ),
        (b"x" * (mcp.MESSAGE_BYTES_MAX + 10) + b"\n", -32700, None),
    ]
    for data, code, id in cases:
        host.write(data)
        answer = host.read()
        assert (answer["error"]["code"], answer["id"]) == (code, id), data[:80]
    for silent in (b'{"jsonrpc":"2.0","method":"no/such"}\n', b'{"jsonrpc":"2.0","id":9,"result":{}}\n', b"\n  \n"):
        host.write(silent)
    assert host.ask("ping")["result"] == {}
    large = host.tool("bus.send", to="x", body="<" * 400_000)
    assert large["isError"] is True
    assert "split it" in large["content"][0]["text"]
    code, out, _ = host.end()
    assert (code, out) == (0, b"")


def test_content_length_framing(host: Host) -> None:
    for end in (b"\r\n", b"\n"):
        body = b'{"jsonrpc":"2.0","id":"x","method":\n"ping"}'
        host.write(b"Content-Length: %d%bContent-Type: json%b%b%b" % (len(body), end, end, end, body))
        assert host.read() == {"jsonrpc": "2.0", "id": "x", "result": {}}
    assert host.ask("ping")["result"] == {}


def test_a_refused_peer_is_an_error_on_stderr(broker: Server) -> None:
    host = Host(broker.peer("mcp.x", token="wrong"))
    code, out, err = host.end()
    assert (code, out) == (1, b"")
    assert b"invalid bearer token" in err


def test_frames_byte_by_byte() -> None:
    whole = (
        b'{"a":1}\n\nContent-Length: 4\r\n\r\n[\n2]{"b":2}\r\ncontent-length:2\n\n{}Content-Length: x\r\n\r\n{"c":3}\n'
    )
    wanted = [b'{"a":1}', b"[\n2]", b'{"b":2}\r', b"{}", None, b'{"c":3}']
    assert Frames().feed(whole) == wanted
    frames, found = Frames(), []
    for at in range(len(whole)):
        found += frames.feed(whole[at : at + 1])
    assert found == wanted


def test_what_is_too_long_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "MESSAGE_BYTES_MAX", 10)
    frames = Frames()
    assert frames.feed(b"x" * 8) == []
    assert frames.feed(b"x" * 8) == [None]
    assert frames.feed(b"x" * 800) == []
    assert frames.feed(b"x\n{}\n") == [b"{}"]
    assert frames.feed(b"Content-Length: 11\n\n" + b"y" * 5) == [None]
    assert frames.feed(b"y" * 6 + b"{}\n") == [b"{}"]
    assert frames.feed(b"Content-Length: " + b"1" * mcp.HEADER_BYTES_MAX) == [None]


def test_a_call_can_be_cancelled_and_others_overtake_it(broker: Server) -> None:
    async def session() -> list[Any]:
        said: list[Any] = []
        slow = asyncio.Event()

        async def never(arguments: dict[str, Any]) -> mcp.Answer:
            await slow.wait()
            return mcp.Answer({})

        async def chunks() -> AsyncIterator[bytes]:
            client = b'"clientInfo":{"name":"t","version":"1"}'
            hello = b'{"protocolVersion":"2025-11-25","capabilities":{},%b}' % client
            yield b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":%b}\n' % hello
            call = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"bus.peers"}}\n'
            yield call % 1 + call % 2 + call % 1 + b'{"jsonrpc":"2.0","id":3,"method":"ping"}\n'
            while len(said) < 3:
                await asyncio.sleep(0)
            yield b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}\n'
            slow.set()

        presence = Presence(lambda: quintet.peer(broker.peer("mcp.inner")))
        async with running_task(presence.run()):
            await presence.started()
            server = mcp.McpServer(presence)
            server._tools["bus.peers"] = never
            await server.run(chunks(), lambda line: said.append(json.loads(line)))
        return said

    said = asyncio.run(session())
    assert [(row["id"], row.get("error", {}).get("code")) for row in said] == [
        (0, None),
        (1, -32600),
        (3, None),
        (2, None),
    ]


def test_no_more_than_so_many_calls_run_at_once(broker: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "CALLS_MAX", 3)
    most = 0

    async def session() -> list[Any]:
        said: list[Any] = []
        running = 0

        async def slow(arguments: dict[str, Any]) -> mcp.Answer:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(50):
                await asyncio.sleep(0)
            running -= 1
            return mcp.Answer({})

        async def chunks() -> AsyncIterator[bytes]:
            for id in range(10):
                meta = {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
                    "io.modelcontextprotocol/clientCapabilities": {},
                }
                params = {"name": "bus.peers", "arguments": {}, "_meta": meta}
                asked = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
                yield json.dumps(asked).encode() + b"\n"

        presence = Presence(lambda: quintet.peer(broker.peer("mcp.many")))
        server = mcp.McpServer(presence)
        server._tools["bus.peers"] = slow
        await server.run(chunks(), lambda line: said.append(json.loads(line)))
        return said

    said = asyncio.run(session())
    assert sorted(row["id"] for row in said) == list(range(10)), "those under way are answered when the host is gone"
    assert all("result" in row for row in said)
    assert most == 3


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-11-25", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),  # has no handshake, so the newest that does
        ("1999-01-01", "2025-11-25"),
    ],
)
def test_the_version_is_one_that_is_spoken(host: Host, asked: str, got: str) -> None:
    assert host.hello(asked)["protocolVersion"] == got
    assert host.tool("bus.drain")["structuredContent"] == {"messages": [], "more": False}


def test_the_official_client_uses_the_bus(broker: Server) -> None:
    """By the newest version, which has no handshake, and by one that has."""
    from mcp import Client, StdioServerParameters

    async def session(mode: Any) -> None:
        started = StdioServerParameters(
            command=sys.executable,
            args=["-m", "quintet", "mcp", "--url", broker.peer("mcp.official")],
            env={**os.environ, SECRET_VARIABLE: SECRET},
        )
        async with Client(started, mode=mode) as client:
            tools = await client.list_tools()
            assert [tool.name for tool in tools.tools] == list(mcp.TOOLS)
            sent = await client.call_tool("bus.send", {"to": "mcp.official", "body": {"mode": mode}})
            assert not sent.is_error
            rows: list[Any] = []
            while not rows:
                rows = (await client.call_tool("bus.drain", {})).structured_content["messages"]
            assert [row["body"] for row in rows] == [{"mode": mode}]

    for mode in ("auto", "legacy"):
        asyncio.run(session(mode))


def test_a_number_that_python_cannot_hold_takes_no_other_message_with_it(host: Host, broker: Server) -> None:
    assert host.name in host.tool("bus.peers")["structuredContent"]["peers"]  # from here on it is known
    with quintet.sync.peer(broker.peer("mcp.odd")) as friend:
        for id, body in (("o1", b"1"), ("o2", b'{"a":1e400}'), ("o3", b"1" * 5_000), ("o4", b'"last"')):
            friend.send(host.name, Raw(body), id=id)
    rows: list[dict[str, Any]] = []
    while len(rows) < 4:
        host.write(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bus.drain","arguments":{"max":%d}}}\n'
            % (4 - len(rows))
        )
        assert host.process.stdout is not None
        answer = json.loads(host.process.stdout.readline(), parse_int=str)
        assert "error" not in answer and not answer["result"]["isError"]
        rows += answer["result"]["structuredContent"]["messages"]
    assert [row["id"] for row in rows] == ["o1", "o2", "o3", "o4"]
    assert rows[2]["body"] == "1" * 5_000 and rows[3]["body"] == "last"
