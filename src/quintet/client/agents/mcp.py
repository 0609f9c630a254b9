"""Serves a peer over MCP: JSON-RPC 2.0 in and out, and four tools by which a model uses the bus.

    in    one object a line, or with a Content-Length header before each (as in LSP); which of them, each message shows
    out   one object a line

    initialize                  echoes the version that is asked for
    notifications/initialized   nothing to do
    ping                        {}
    tools/list, tools/call      bus.send {to, body}, bus.broadcast {body}, bus.peers {}, bus.drain {max?}

What bus.drain hands over is acknowledged when the answer is written, so that what never reached the host comes again. While
the peer is not registered, every tool says why (client/agents/presence.py); an empty list means that there is nothing.
Calls run side by side, and their answers may overtake each other. stdin and stdout belong to the command (cli/messages/mcp.py).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from msgspec import DecodeError, Raw, json

from quintet import __version__
from quintet.client.agents.peer import PeerMessage
from quintet.client.agents.presence import Presence
from quintet.client.core.errors import ConnectionLost
from quintet.client.core.message import log
from quintet.model.errors import QuintetError
from quintet.model.json_value import Json, JsonObject

VERSION: Final = "2025-06-18"  # of MCP, where the host does not say one
MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024  # of one request
HEADER_BYTES_MAX: Final = 4 * 1024
CALLS_MAX: Final = 32  # under way at once; then nothing is read
DRAIN_MAX: Final = 100  # messages of one answer ...
DRAIN_BYTES_MAX: Final = 1024 * 1024  # ... and the bytes after which no further one is taken

PARSE: Final = -32700
INVALID_REQUEST: Final = -32600
NO_METHOD: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603

_LENGTH: Final = b"content-length:"
_BODY: Final[JsonObject] = {"description": "Anything JSON can say."}
TOOLS: Final[dict[str, tuple[str, JsonObject, tuple[str, ...]]]] = {
    "bus.send": (
        "Send a message to one peer by name. It is kept for a peer that is away.",
        {"to": {"type": "string", "description": "The peer's name."}, "body": _BODY},
        ("to", "body"),
    ),
    "bus.broadcast": ("Send a message to every other connected peer.", {"body": _BODY}, ("body",)),
    "bus.peers": ("The own name, and the names of all peers that are connected.", {}, ()),
    "bus.drain": (
        "Take the messages that have arrived since the last call. Each is handed over once.",
        {
            "max": {
                "type": "integer",
                "minimum": 1,
                "maximum": DRAIN_MAX,
                "description": f"At most so many [{DRAIN_MAX}].",
            }
        },
        (),
    ),
}


class Refused(Exception):
    """An answer that is an error of JSON-RPC."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Frames:
    """From bytes to messages, in either framing. What is too long is passed over and reported as None, once."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0  # bytes of a body that is too long
        self._deaf = False  # within a line that is too long

    def feed(self, data: bytes) -> list[bytes | None]:
        """The messages that are whole with these bytes."""
        self._buffer += data
        found: list[bytes | None] = []
        while (one := self._next(found)) is not None:
            if one.strip():
                found.append(one)
        return found

    def _next(self, found: list[bytes | None]) -> bytes | None:
        buffer = self._buffer
        if self._skip:
            gone = min(self._skip, len(buffer))
            del buffer[:gone]
            self._skip -= gone
        if buffer[: len(_LENGTH)].lower() == _LENGTH:
            return self._with_header(found)
        end = buffer.find(b"\n")
        if end < 0:
            if len(buffer) > MESSAGE_BYTES_MAX:
                if not self._deaf:
                    found.append(None)
                self._deaf = True
                buffer.clear()
            return None
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        if self._deaf:
            self._deaf = False
            return b""
        if len(line) > MESSAGE_BYTES_MAX:
            found.append(None)
            return b""
        return line

    def _with_header(self, found: list[bytes | None]) -> bytes | None:
        buffer = self._buffer
        at = min((place for place in (buffer.find(b"\r\n\r\n"), buffer.find(b"\n\n")) if place >= 0), default=-1)
        if at < 0:
            if len(buffer) > HEADER_BYTES_MAX:
                found.append(None)
                buffer.clear()
            return None
        start = at + (4 if buffer[at] == 0x0D else 2)
        number = bytes(buffer[len(_LENGTH) : at]).split(b"\n", 1)[0].strip()
        if not number.isdigit() or len(number) > 12:
            found.append(None)
            del buffer[:start]
            return b""
        size = int(number)
        if size > MESSAGE_BYTES_MAX:
            found.append(None)
            del buffer[:start]
            self._skip = size
            return b""
        if len(buffer) < start + size:
            return None
        body = bytes(buffer[start : start + size])
        del buffer[: start + size]
        return body


class Answer(NamedTuple):
    """A tool's result, and what to acknowledge when it is written."""

    result: dict[str, object]
    taken: tuple[PeerMessage, ...] = ()


class McpServer:
    """One host, one peer. `write` takes whole lines."""

    def __init__(self, presence: Presence, write: Callable[[bytes], None]) -> None:
        self._presence = presence
        self._write = write
        self._frames = Frames()
        self._calls: dict[str | int, asyncio.Task[None]] = {}
        self._tools: dict[str, Callable[[JsonObject], Awaitable[Answer]]] = {
            "bus.send": self._send,
            "bus.broadcast": self._broadcast,
            "bus.peers": self._peers,
            "bus.drain": self._drain,
        }

    async def feed(self, data: bytes) -> None:
        """Act on what the host wrote. Calls that take a while go on behind this."""
        for message in self._frames.feed(data):
            if message is None:
                self._fail(None, PARSE, f"a message is longer than {MESSAGE_BYTES_MAX} bytes, or its header is wrong")
            else:
                await self._message(message)

    async def close(self) -> None:
        """Let the calls under way end."""
        await asyncio.gather(*self._calls.values(), return_exceptions=True)

    # -- JSON-RPC --------------------------------------------------------------------------------------------------

    async def _message(self, data: bytes) -> None:
        try:
            message: Json = json.decode(data)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._fail(None, PARSE, f"not one JSON text: {error}")
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            return self._fail(None, INVALID_REQUEST, 'a request is one object with "jsonrpc": "2.0"')
        method, id = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            return None  # an answer: this server asks nothing
        if not isinstance(method, str) or ("id" in message and (isinstance(id, bool) or not isinstance(id, str | int))):
            return self._fail(None, INVALID_REQUEST, "a request has a method, and an id that is a string or a number")
        params = message.get("params", {})
        if "id" not in message:
            return self._noted(method, params)
        assert isinstance(id, str | int)
        if not isinstance(params, dict):
            return self._fail(id, INVALID_PARAMS, "params is an object")
        if method == "tools/call":
            return await self._call(id, params)
        try:
            self._say(id, self._answer(method, params))
        except Refused as refused:
            self._fail(id, refused.code, str(refused))
        return None

    def _noted(self, method: str, params: Json) -> None:
        """A notification has no answer, whatever is wrong with it."""
        if method == "notifications/cancelled" and isinstance(params, dict):
            asked = params.get("requestId")
            call = self._calls.get(asked) if isinstance(asked, str | int) else None
            if call is not None:
                call.cancel()

    def _answer(self, method: str, params: JsonObject) -> dict[str, object]:
        if method == "initialize":
            asked = params.get("protocolVersion")
            return {
                "protocolVersion": asked if isinstance(asked, str) and asked else VERSION,
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": "quintet-peerbus", "version": __version__},
                "instructions": f"You are the peer {self._presence.name}. bus.drain hands over what others have sent you.",
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return {
                "tools": [
                    {
                        "name": name,
                        "description": about,
                        "inputSchema": {"type": "object", "properties": properties, "required": list(required)},
                    }
                    for name, (about, properties, required) in TOOLS.items()
                ]
            }
        raise Refused(NO_METHOD, f"there is no method {method[:100]}")

    async def _call(self, id: str | int, params: JsonObject) -> None:
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in TOOLS:
            return self._fail(id, INVALID_PARAMS, f"there is no such tool; there are {', '.join(TOOLS)}")
        if not isinstance(arguments, dict):
            return self._fail(id, INVALID_PARAMS, "arguments is an object")
        missing = [each for each in TOOLS[name][2] if each not in arguments]
        if missing:
            return self._fail(id, INVALID_PARAMS, f"{name} needs {', '.join(missing)}")
        if id in self._calls:
            return self._fail(id, INVALID_REQUEST, "this id belongs to a call that is under way")
        while len(self._calls) >= CALLS_MAX:
            await asyncio.wait(self._calls.values(), return_when=asyncio.FIRST_COMPLETED)
        task = self._calls[id] = asyncio.get_running_loop().create_task(self._run(id, name, arguments))
        task.add_done_callback(lambda _: self._calls.pop(id, None))
        return None

    async def _run(self, id: str | int, name: str, arguments: JsonObject) -> None:
        try:
            answer = await self._tools[name](arguments)
        except Refused as refused:
            self._fail(id, refused.code, str(refused))
        except QuintetError as error:  # the model is told, and may do something about it
            text = f"{error} ({error.hint})" if error.hint else str(error)
            self._say(id, {"content": [{"type": "text", "text": text}], "isError": True})
        except Exception:
            log.exception("%s failed", name)
            self._fail(id, INTERNAL, "internal error")
        else:
            text = json.encode(answer.result).decode()
            said = {"content": [{"type": "text", "text": text}], "structuredContent": answer.result, "isError": False}
            self._say(id, said)
            for message in answer.taken:
                await message.ack()

    def _say(self, id: str | int, result: dict[str, object]) -> None:
        self._write(json.encode({"jsonrpc": "2.0", "id": id, "result": result}) + b"\n")

    def _fail(self, id: str | int | None, code: int, text: str) -> None:
        self._write(json.encode({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}) + b"\n")

    # -- tools -----------------------------------------------------------------------------------------------------

    async def _send(self, arguments: JsonObject) -> Answer:
        to = arguments["to"]
        if not isinstance(to, str) or not to or to == "*":
            raise Refused(INVALID_PARAMS, "to is the name of one peer; bus.broadcast sends to all")
        peer = await self._presence.peer()
        return Answer({"id": await peer.send(to, arguments["body"])})

    async def _broadcast(self, arguments: JsonObject) -> Answer:
        peer = await self._presence.peer()
        return Answer({"id": await peer.broadcast(arguments["body"])})

    async def _peers(self, arguments: JsonObject) -> Answer:
        peer = await self._presence.peer()
        return Answer({"self": peer.name, "peers": await peer.peers()})

    async def _drain(self, arguments: JsonObject) -> Answer:
        most = arguments.get("max", DRAIN_MAX)
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= DRAIN_MAX:
            raise Refused(INVALID_PARAMS, f"max is a number from 1 to {DRAIN_MAX}")
        peer = await self._presence.peer()
        taken: list[PeerMessage] = []
        size = 0
        while len(taken) < most and size < DRAIN_BYTES_MAX and (some := await peer.drain(max=1)):
            taken += some
            size += len(some[0].raw)
        if not taken and not peer.connected:
            raise ConnectionLost("there is no connection to the broker now", hint="messages are kept; ask again later")
        # Bodies as they are: one that cannot be decoded (1e400) would take all that were taken with it.
        rows = [{"id": one.id, "from": one.sender, "source": one.source, "body": Raw(one.raw)} for one in taken]
        return Answer({"messages": rows, "more": peer.queued > 0}, tuple(taken))
