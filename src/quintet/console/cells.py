"""Lets the console of cell 0 show topics of every cell (ADR 48): questions about a topic are asked of its cell, lists of all of them.

    browser -> Console (cell 0) -> Elsewhere -> a socket between processes -> Answering (the topic's cell) -> the same handler there

Who asks was found out in cell 0; the other cell is told the identity and asks its own gate for the right. One request is one
connection: a u32 length and the question in MessagePack, then the answer up to the end. Over nodes the socket may lead to the node that
leads the cell (ADR 53). Streams (a tail, a search) are cell 0's: of another cell's topic they are refused with a sentence.
"""

import asyncio
import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from quintet.console import wire
from quintet.console.call import Call, Operation
from quintet.console.operations import BY_PLACE
from quintet.console.paging import PAGE_MAX, page
from quintet.console.parts import Parts
from quintet.console.sessions import Session
from quintet.model import errors
from quintet.model.cells import CellMap
from quintet.model.client_address import ClientAddress
from quintet.model.errors import AuthError, BadRequest, QuintetError, ShuttingDown
from quintet.net.cells.sockets import console_path

ANSWER_S: Final = 30.0
ANSWER_BYTES_MAX: Final = 256 << 20
QUESTION_BYTES_MAX: Final = 64 << 20
LENGTH: Final = struct.Struct(">I")
LISTED_MAX: Final = 10_000  # rows of a list over all cells that can be paged through
# Lists that are joined, and what each is sorted by unless the question says otherwise.
LISTS: Final = {"/api/topics": "name", "/api/readers": "topic", "/api/dead": "topic", "/api/schemas": "name"}
_BY_CODE: Final = {
    kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, QuintetError)
}


class Question(msgspec.Struct, frozen=True):
    """What is said to another cell."""

    identity: str
    peer: str
    request: str
    method: Literal["GET", "POST"]
    path: str
    ask: bytes  # JSON of the operation's own record


class Said(msgspec.Struct, frozen=True):
    """The answer: JSON, a file, or an error."""

    body: bytes = b""
    file: str | None = None
    code: str = ""
    message: str = ""
    hint: str = ""


class Elsewhere:
    """Cell 0's side."""

    def __init__(self, cells: CellMap, own: int, links: Path) -> None:
        self._cells = cells
        self._own = own
        self._links = links

    async def answer(self, operation: Operation, call: Call, ask: Any) -> object:
        """As the operation's own handler, in the cell that it is about."""
        assert operation.answer is not None
        if operation.path in LISTS:
            return await self._listed(operation, call, ask)
        topic = getattr(ask, "topic", "")
        cell = self._cells.cell_of(topic.encode(errors="replace")) if topic else self._own
        return await (operation.answer(call, ask) if cell == self._own else self._asked(cell, operation, call, ask))

    async def _asked(self, cell: int, operation: Operation, call: Call, ask: Any) -> object:
        request = getattr(call.peer, "request", "")
        question = Question(
            call.session.identity, str(call.peer), str(request), operation.method, operation.path, msgspec.json.encode(ask)
        )  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(console_path(self._links, cell))
                try:
                    said_as = msgspec.msgpack.encode(question)
                    writer.writelines((LENGTH.pack(len(said_as)), said_as))
                    said = msgspec.msgpack.decode(await reader.read(-1), type=Said)
                finally:
                    writer.close()
        except (OSError, TimeoutError, msgspec.MsgspecError):
            raise ShuttingDown(f"cell {cell} of this broker does not answer", hint="try again in a moment") from None
        if said.code:
            raise _BY_CODE.get(said.code, QuintetError)(said.message, hint=said.hint)
        return msgspec.json.decode(said.body) if said.file is None else wire.Download(said.file, said.body)

    async def _listed(self, operation: Operation, call: Call, ask: Any) -> object:
        """A page of what all cells have: the first rows of each, joined in the same order."""
        first, last = page(ask.skip, ask.limit)
        if last > LISTED_MAX:
            raise BadRequest(f"rows {first} to {last}: a list over all cells has {LISTED_MAX}", hint="use the filter")
        parts = await asyncio.gather(
            *(self._first(cell, operation, call, ask, last) for cell in range(self._cells.count))
        )
        rows = [row for _, found in parts for row in found]
        sort, down = getattr(ask, "sort", LISTS[operation.path]), getattr(ask, "down", False)
        by_name = LISTS[operation.path]
        rows.sort(key=lambda row: str(row.get(by_name, "")))
        if sort != by_name:
            rows.sort(key=lambda row: -float(row.get(sort, 0)))
        if down:
            rows.reverse()
        return {"total": sum(total for total, _ in parts), "skip": first, "rows": rows[first:last]}

    async def _first(
        self, cell: int, operation: Operation, call: Call, ask: Any, count: int
    ) -> tuple[int, list[dict[str, Any]]]:
        """(how many there are, the first `count`) of one cell."""
        rows: list[dict[str, Any]] = []
        while True:
            part = msgspec.structs.replace(ask, skip=len(rows), limit=min(count - len(rows), PAGE_MAX))
            assert operation.answer is not None
            made: Any = await (
                operation.answer(call, part) if cell == self._own else self._asked(cell, operation, call, part)
            )
            rows += made["rows"]
            if not made["rows"] or len(rows) >= min(count, made["total"]):
                return made["total"], rows


class Answering:
    """The socket of another cell, for the console of cell 0."""

    def __init__(self, parts: Parts, report: Callable[[str, dict[str, object]], None]) -> None:
        self._parts = parts
        self._report = report
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of this cell before it was started again
        self._server = await asyncio.start_unix_server(self._serve, path, limit=ANSWER_BYTES_MAX)

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = int(LENGTH.unpack(await reader.readexactly(LENGTH.size))[0])
            asked = msgspec.msgpack.decode(await reader.readexactly(min(size, QUESTION_BYTES_MAX)), type=Question)
            try:
                said = await self._answer(asked)
            except QuintetError as error:
                said = Said(code=error.code, message=error.message, hint=error.hint)
            writer.write(msgspec.msgpack.encode(said))
            await writer.drain()
        except (OSError, EOFError, msgspec.MsgspecError):
            pass  # cell 0 says that this cell does not answer
        except Exception as fault:
            self._report("console_failed", {"path": "of another cell", "error": repr(fault)})
        finally:
            writer.close()

    async def _answer(self, asked: Question) -> Said:
        operation = BY_PLACE[asked.method, asked.path]
        principal = self._parts.broker.access.current(asked.identity)
        if principal is None:
            raise AuthError("the session has ended", hint="log in again")
        ask = msgspec.json.decode(asked.ask, type=operation.asks)
        call = Call(
            self._parts, principal, ClientAddress(asked.peer, request=asked.request), Session(asked.identity, "", 0, 0)
        )
        call.permit(operation, getattr(ask, "topic", ""))
        self._parts.sampler.watched()
        assert operation.answer is not None
        made = await operation.answer(call, ask)
        if isinstance(made, wire.Download):
            return Said(made.body, file=made.name)
        return Said(wire.encode(made))
