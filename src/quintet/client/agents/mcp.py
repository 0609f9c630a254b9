"""Serves a peer over MCP: four tools by which a model uses the bus. The protocol itself is the package `mcp`.

    in    one object a line, or with a Content-Length header before each (as in LSP); which of them, each message shows
    out   one object a line

    tools/list, tools/call      bus.send {to, body}, bus.broadcast {body}, bus.peers {}, bus.drain {max?}

`mcp` negotiates the version, answers the other methods and cancels calls. Three things are ours, because its own transport has
no bound, drops what it cannot read, and cannot say when an answer was written:

    Frames   bytes to messages, each at most MESSAGE_BYTES_MAX
    Pipe     what is no request is answered with an error; at most CALLS_MAX calls run at once; when the host has closed its
             end, the calls under way are answered before the server ends
    Answer   what bus.drain hands over is acknowledged when the answer is written, so that what never reached the host comes
             again. Bodies go out as they came in: one that Python cannot hold (1e400) takes no other with it

While the peer is not registered, every tool says why (client/agents/presence.py); an empty list means that there is nothing.
Calls run side by side, and their answers may overtake each other. stdin and stdout belong to the command (cli/messages/mcp.py).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from msgspec import DecodeError, Raw, json
from pydantic import ValidationError

from quintet import __version__
from quintet.client.agents.peer import PeerMessage
from quintet.client.agents.presence import Presence
from quintet.client.core.errors import ConnectionLost
from quintet.client.core.message import log
from quintet.model.errors import QuintetError
from quintet.model.json_value import JsonObject

MESSAGE_BYTES_MAX: Final = 2 * 1024 * 1024  # of one request
HEADER_BYTES_MAX: Final = 4 * 1024
CALLS_MAX: Final = 32  # under way at once; then nothing is read
DRAIN_MAX: Final = 100  # messages of one answer ...
DRAIN_BYTES_MAX: Final = 1024 * 1024  # ... and the bytes after which no further one is taken

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


class Pipe:
    """The host's end as `mcp` wants it: the stream it reads requests from, and the one it writes answers to."""

    def __init__(self, chunks: AsyncIterator[bytes], write: Callable[[bytes], None]) -> None:
        self._chunks = chunks
        self._write = write
        self._frames = Frames()
        self._arrived: deque[types.JSONRPCMessage] = deque()
        self._under_way: set[types.RequestId] = set()
        self._fewer = asyncio.Event()  # a request was answered, or will never be
        self._answers: dict[types.RequestId, tuple[Raw, tuple[PeerMessage, ...]]] = {}

    def answer(self, id: types.RequestId, result: Raw, taken: tuple[PeerMessage, ...]) -> None:
        """Write this as the structured result of a request, and acknowledge `taken` then."""
        self._answers[id] = result, taken

    # -- requests --------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            await self._at_most(CALLS_MAX - 1)
            while not self._arrived:
                data = await anext(self._chunks, b"")
                if not data:
                    await self._at_most(0)
                    raise StopAsyncIteration
                for frame in self._frames.feed(data):
                    self._take(frame)
            message = self._arrived.popleft()
            if not isinstance(message, types.JSONRPCRequest):
                return SessionMessage(message)
            if message.id in self._under_way:
                self._refuse(message.id, types.INVALID_REQUEST, "this id belongs to a call that is under way")
                continue
            self._under_way.add(message.id)
            return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=partial(self._end, message.id)))

    async def receive(self) -> SessionMessage | Exception:
        return await anext(self)

    def _take(self, frame: bytes | None) -> None:
        """One frame to one message, or to the error that JSON-RPC has for it."""
        if frame is None:
            said = f"a message is longer than {MESSAGE_BYTES_MAX} bytes, or its header is wrong"
            return self._refuse(None, types.PARSE_ERROR, said)
        try:
            found = json.decode(frame)
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._refuse(None, types.PARSE_ERROR, f"not one JSON text: {error}")
        try:
            message = types.jsonrpc_message_adapter.validate_python(found, by_name=False)
        except ValidationError:
            said = 'a request is one object with "jsonrpc": "2.0", a method and, if it has params, an object of them'
            return self._refuse(None, types.INVALID_REQUEST, said)
        if isinstance(message, types.JSONRPCNotification) and "id" in found:
            return self._refuse(None, types.INVALID_REQUEST, "the id of a request is a string or a whole number")
        self._arrived.append(message)
        return None

    async def _at_most(self, calls: int) -> None:
        while len(self._under_way) > calls:
            self._fewer.clear()
            await self._fewer.wait()

    async def _end(self, id: types.RequestId) -> None:
        self._under_way.discard(id)
        self._answers.pop(id, None)
        self._fewer.set()

    # -- answers ---------------------------------------------------------------------------------------------------

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        said = message.model_dump(by_alias=True, exclude_unset=True)
        taken: tuple[PeerMessage, ...] = ()
        if isinstance(message, types.JSONRPCResponse) and message.id in self._answers:
            said["result"]["structuredContent"], taken = self._answers[message.id]
        self._write(json.encode(said) + b"\n")
        for one in taken:
            await one.ack()
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            await self._end(message.id)

    def _refuse(self, id: types.RequestId | None, code: int, text: str) -> None:
        self._write(json.encode({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}) + b"\n")

    # -- both are closed by whoever made the chunks ----------------------------------------------------------------

    async def aclose(self) -> None:
        """Nothing of it is ours to close."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class McpServer:
    """One host, one peer."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._tools: dict[str, Callable[[dict[str, Any]], Awaitable[Answer]]] = {
            "bus.send": self._send,
            "bus.broadcast": self._broadcast,
            "bus.peers": self._peers,
            "bus.drain": self._drain,
        }

    async def run(self, chunks: AsyncIterator[bytes], write: Callable[[bytes], None]) -> None:
        """Answer what the host wrote until `chunks` end; `write` takes whole lines."""
        pipe = Pipe(chunks, write)
        server = Server(
            "quintet-peerbus",
            version=__version__,
            instructions=f"You are the peer {self._presence.name}. bus.drain hands over what others have sent you.",
            on_list_tools=self._list,
            on_call_tool=partial(self._call, pipe),
        )
        await server.run(pipe, pipe, server.create_initialization_options())

    async def _list(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=about,
                    input_schema={"type": "object", "properties": properties, "required": list(required)},
                )
                for name, (about, properties, required) in TOOLS.items()
            ]
        )

    async def _call(
        self, pipe: Pipe, context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        name, arguments = params.name, params.arguments or {}
        if name not in TOOLS:
            raise _invalid(f"there is no such tool; there are {', '.join(TOOLS)}")
        missing = [each for each in TOOLS[name][2] if each not in arguments]
        if missing:
            raise _invalid(f"{name} needs {', '.join(missing)}")
        try:
            answer = await self._tools[name](arguments)
        except QuintetError as error:  # the model is told, and may do something about it
            text = str(error)
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        except MCPError:
            raise
        except Exception:
            log.exception("%s failed", name)
            raise MCPError(types.INTERNAL_ERROR, "internal error") from None
        said = json.encode(answer.result)
        assert context.request_id is not None, "a tool is called by a request"
        pipe.answer(context.request_id, Raw(said), answer.taken)
        return types.CallToolResult(content=[types.TextContent(text=said.decode())], structured_content={})

    # -- tools -----------------------------------------------------------------------------------------------------

    async def _send(self, arguments: JsonObject) -> Answer:
        to = arguments["to"]
        if not isinstance(to, str) or not to or to == "*":
            raise _invalid("to is the name of one peer; bus.broadcast sends to all")
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
            raise _invalid(f"max is a number from 1 to {DRAIN_MAX}")
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


def _invalid(text: str) -> MCPError:
    return MCPError(types.INVALID_PARAMS, text)
