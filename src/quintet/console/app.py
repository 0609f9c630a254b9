"""Answers the console's requests: files of the page, the API, and its streams; holds the rules that every request has to pass.

In this order: the address has a rate; the name in `Host` is ours (a foreign name that was led here could use the password that
`--dev` gives everybody); a change comes from our own page (Sec-Fetch-Site, or Origin); a session's cookie says who it is; the
gate of `call.py` says whether that person may. Handlers are in the modules that `OPERATIONS` joins.
"""

import asyncio
import contextlib
import ipaddress
import itertools
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from quintet.admin.app import OnDemand, Receive, Scope, Send
from quintet.broker.core import Broker
from quintet.broker.slices import Unwanted
from quintet.console import static, wire
from quintet.console.call import DOOR, Call, Operation, answer, status_of
from quintet.console.operations import BY_PLACE
from quintet.console.parts import Parts
from quintet.console.sampler import Sampler
from quintet.console.section import ConsoleListener
from quintet.console.sessions import Rates, Session, Sessions
from quintet.console.surroundings import Surroundings
from quintet.model.client_address import ClientAddress, ids_of
from quintet.model.errors import AuthError, Busy, QuintetError

COOKIE: Final = "quintet-console"
STREAMS_MAX: Final = 200  # live pages, tails and searches at once
STREAMS_OF_SESSION_MAX: Final = 12
TAKE_S: Final = 20.0  # a reader of a stream that takes nothing for so long is gone
RUN_BYTES: Final = 4
REQUEST_HEADER: Final = b"x-request-id"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = [
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]

Report = Callable[[str, dict[str, object]], None]
Head = Mapping[bytes, bytes]


class Refused(Exception):
    """A request that is answered before anybody is asked who it is from."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Console:
    """The application over one broker."""

    def __init__(
        self,
        surroundings: Surroundings,
        options: ConsoleListener,
        entropy: Callable[[int], bytes],
        report: Report,
        *,
        failures_per_minute: int,
        elsewhere: Any = None,
    ) -> None:
        self.broker: Broker = surroundings.broker
        self.options = options
        self.sessions = Sessions(
            self.broker,
            entropy,
            idle_us=options.idle_seconds * 1_000_000,
            sessions_max=options.sessions_max,
            failures_per_minute=failures_per_minute,
        )
        self.sampler = Sampler(self.broker, lambda: surroundings.watched)
        self.parts = Parts(
            self.broker, surroundings, options, self.sessions, self.sampler, entropy, elsewhere=elsewhere
        )
        self._report = report
        self._run = entropy(RUN_BYTES).hex()  # ids of requests differ from those of the start before
        self._requests = itertools.count(1)
        self._rates = Rates(options.requests_per_second_max)
        self._files = OnDemand(static.load)
        self._streams: dict[str, int] = {}
        self.closing = asyncio.Event()

    # -- one request -----------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        head = dict(scope["headers"])
        peer = _peer(scope, f"{self._run}-{next(self._requests)}")
        send = _with_id(send, peer.request)
        try:
            if not self._rates.allow(peer.rpartition(":")[0], self.broker.scheduler.monotonic()):
                raise Refused(429, f"more than {self.options.requests_per_second_max} requests a second")
            self._check_host(head)
            if scope["path"].startswith("/api/"):
                await self._api(scope, head, peer, receive, send)
            else:
                await self._page(scope, head, send)
        except Refused as refused:
            await _answer(send, refused.status, wire.encode({"error": str(refused), "request": peer.request}))
        except QuintetError as error:
            await _answer(send, status_of(error), wire.encode(_error(error) | {"request": peer.request}))
        except (Unwanted, ConnectionError):
            pass
        except Exception as fault:  # ours: the browser is told that much, the log the rest
            self._report("console_failed", {"path": scope["path"], "request": peer.request, "peer": peer, "error": repr(fault),
                                            "trace": traceback.format_exc(limit=-6)})  # fmt: skip
            said = {"error": "a fault of the broker: its log says more", "request": peer.request}
            with contextlib.suppress(Exception):
                await _answer(send, 500, wire.encode(said))

    def _check_host(self, head: Head) -> None:
        if self.options.encrypted:
            return
        host = head.get(b"host", b"").decode("latin-1")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if name.lower() in ("localhost", *self.options.names):
            return
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            raise Refused(421, f"the console is not called {name!r} (listeners.console.names)") from None

    async def _page(self, scope: Scope, head: Head, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise Refused(405, "the page is read with GET")
        files = await self._files.get()
        name = scope["path"].removeprefix("/static/") if scope["path"].startswith("/static/") else "index.html"
        if name not in files:
            raise Refused(404, "there is no such file")
        file = files[name]
        headers = [(b"content-type", file.kind.encode()), (b"etag", file.tag.encode()), (b"cache-control", b"no-cache"),
                   (b"vary", b"accept-encoding")]  # fmt: skip
        if head.get(b"if-none-match") == file.tag.encode():
            await _answer(send, 304, b"", headers)
            return
        body = file.body
        if b"gzip" in head.get(b"accept-encoding", b""):
            body = file.packed
            headers.append((b"content-encoding", b"gzip"))
        await _answer(send, 200, b"" if scope["method"] == "HEAD" else body, headers)

    # -- the API ---------------------------------------------------------------------------------------------------

    async def _api(self, scope: Scope, head: Head, peer: ClientAddress, receive: Receive, send: Send) -> None:
        operation = BY_PLACE.get((scope["method"], scope["path"]))
        if operation is None:
            raise Refused(404, f"there is no {scope['method']} {scope['path'][:200]}")
        if operation.method == "POST":
            self._check_origin(head)
            ask = wire.asked_by_body(await _body(receive), operation.asks)
        else:
            ask = wire.asked_by_query(scope["query_string"], operation.asks)
        if operation.answer is None and operation.stream is None:
            await self._log_in(ask, head, peer, send)
            return
        try:
            session, principal = self.sessions.find(_token(head))
        except AuthError:
            if operation.right != "open":
                raise
            await _answer(send, 200, b"null")
            return
        call = Call(self.parts, principal, peer, session)
        call.permit(operation, getattr(ask, "topic", ""))
        self.sampler.watched()
        if operation.stream is not None:
            scope["state"]["connection"].stream()
            await self._stream(operation.stream(call, ask), call, session, receive, send)
            return
        assert operation.answer is not None, "an operation has an answer or a stream"
        made = await self._until_gone(operation, call, ask, receive)
        if isinstance(made, wire.Download):
            await _answer(send, 200, made.body, made.headers())
            return
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if operation.path == "/api/logout":
            headers.append(self._cookie(""))
        await _answer(send, 200, wire.encode(made), headers)

    async def _until_gone(self, operation: Operation, call: Call, ask: Any, receive: Receive) -> object:
        """The answer of a handler. A change is carried out whoever waits for it; a question ends with its asker."""
        assert operation.answer is not None
        if operation.method == "POST":
            return await answer(operation, call, ask)
        work = asyncio.ensure_future(answer(operation, call, ask))
        hung_up = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait({work, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Unwanted
            return work.result()
        finally:
            call.gone = not work.done()
            hung_up.cancel()
            work.cancel()

    async def _log_in(self, ask: Any, head: Head, peer: str, send: Send) -> None:
        with contextlib.suppress(QuintetError):  # a new login ends the session that this browser had
            before, principal = self.sessions.find(_token(head))
            self.sessions.log_out(before, principal, peer)
        try:
            token, principal = await self.sessions.log_in(ask.name, ask.password, peer)
        except AuthError:
            self._report("authentication_failed", {"door": DOOR, "peer": peer, **ids_of(peer)})
            raise
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"),
                   self._cookie(token)]  # fmt: skip
        await _answer(send, 200, wire.encode({"name": principal.name}), headers)

    def _cookie(self, token: str) -> tuple[bytes, bytes]:
        """It ends with the browser, or with the session, whichever is first."""
        secure = "; Secure" if self.options.encrypted else ""
        ends = "" if token else "; Max-Age=0"
        return b"set-cookie", f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{ends}".encode()

    def _check_origin(self, head: Head) -> None:
        """A change comes from our own page. Who sends neither header is no browser, and has to say that it means this."""
        site, origin = head.get(b"sec-fetch-site"), head.get(b"origin")
        if head.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
            raise Refused(415, "a change is sent as application/json")
        if site is not None and site != b"same-origin":
            raise Refused(403, f"a change from another site ({site.decode('latin-1')[:20]}) is not taken")
        scheme = b"https" if self.options.encrypted else b"http"
        if origin is not None and origin != scheme + b"://" + head.get(b"host", b""):
            raise Refused(403, "a change from a page of another origin is not taken")
        if site is None and origin is None:
            raise Refused(403, "a change says where it comes from: Origin, or Sec-Fetch-Site")

    # -- streams ---------------------------------------------------------------------------------------------------

    async def _stream(
        self, events: AsyncIterator[tuple[str, object]], call: Call, session: Session, receive: Receive, send: Send
    ) -> None:
        """Server-sent events until the browser closes, the session ends, or the broker stops."""
        mine = self._streams.get(session.digest, 0)
        if mine >= STREAMS_OF_SESSION_MAX or sum(self._streams.values()) >= STREAMS_MAX:
            raise Busy(f"{mine} live pages are open in this session; the limit is {STREAMS_OF_SESSION_MAX}")
        self._streams[session.digest] = mine + 1
        pump = asyncio.ensure_future(self._pump(events, session, send))
        others = {asyncio.ensure_future(_hung_up(receive)), asyncio.ensure_future(self.closing.wait())}
        try:
            await asyncio.wait({pump, *others}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.gone = True
            left = self._streams.pop(session.digest) - 1
            if left:
                self._streams[session.digest] = left
            for task in (pump, *others):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError, TimeoutError):
                await pump

    async def _pump(self, events: AsyncIterator[tuple[str, object]], session: Session, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), *HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for event, data in events:
                self.sessions.check(session)
                self.sampler.watched()
                await self._send_event(send, event, data)
        except QuintetError as error:
            await self._send_event(send, "refused", _error(error) | {"status": status_of(error)})
        except Unwanted:
            return
        await self._send_event(send, "end", {})
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _send_event(send: Send, event: str, data: object) -> None:
        body = b"event: %b\ndata: %b\n\n" % (event.encode(), wire.encode(data))
        await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": True}), TAKE_S)

    async def stop(self) -> None:
        self.closing.set()
        await self.sampler.stop()


def _error(error: QuintetError) -> dict[str, object]:
    return {"error": error.message, "hint": error.hint, "code": error.code}


def _peer(scope: Scope, request: str) -> ClientAddress:
    client = scope.get("client")
    return ClientAddress(f"{client[0]}:{client[1]}" if client else "local:0", request=request)


def _with_id(send: Send, request: str) -> Send:
    """The same, but every answer says the id of its request, by which it is found in log and audit."""
    header = (REQUEST_HEADER, request.encode())

    async def sent(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], header]
        await send(message)

    return sent


def _token(head: Head) -> str:
    """The session's token from the cookies; the first of that name counts."""
    for part in head.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Unwanted
        body += message.get("body", b"")
        if len(body) > wire.BODY_BYTES_MAX:
            raise Refused(413, f"the request has more than {wire.BODY_BYTES_MAX} bytes")
        if not message.get("more_body"):
            return bytes(body)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    chosen = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")] if headers is None else headers
    length = [(b"content-length", b"%d" % len(body))] if status != 304 else []
    await send({"type": "http.response.start", "status": status, "headers": [*chosen, *length, *HEADERS]})
    await send({"type": "http.response.body", "body": body})
