"""The admin door's ASGI application: `/livez`, `/readyz`, `/metrics`; `/health/live` and `/health/ready` as FlyMQ has them.

Every other request goes to the FastAPI application of api.py, which describes these (`/docs`, `/openapi.json`). What only a
request needs is loaded by the first that needs it, in a thread (`OnDemand`): FastAPI takes as long to load as half of the
broker, and probes never need it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import parse_qs

from quintet.admin.health import Health, report
from quintet.admin.metrics import MetricsSource

if TYPE_CHECKING:
    from quintet.admin.exposition import Exposition

T = TypeVar("T")
Scope = Any  # of ASGI, as are the two callables
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UNAVAILABLE = 503
TEXT = "text/plain; charset=utf-8"


class OnDemand(Generic[T]):
    """What the first user loads, in a thread: an import must not hold up the loop. The others wait for the same one."""

    def __init__(self, load: Callable[[], T]) -> None:
        self._load = load
        self._loading: asyncio.Future[T] | None = None

    async def get(self) -> T:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        return await asyncio.shield(self._loading)  # one who hangs up does not end it for the others


class AdminApp:
    """Answers for one broker's health and figures."""

    def __init__(self, health: Health, metrics: MetricsSource) -> None:
        self._health = health
        self._metrics = metrics
        self._exposition = OnDemand(self._load_exposition)
        self._api = OnDemand(self._load_api)
        self._answers = {
            "/livez": self._alive,
            "/health/live": self._alive,
            "/readyz": self._ready,
            "/health/ready": self._ready,
            "/metrics": self._figures,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "GET" else None
        if answer is None:
            await (await self._api.get())(scope, receive, send)
            return
        status, body, content_type = await answer(scope)
        headers = [(b"content-length", b"%d" % len(body)), (b"content-type", content_type.encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _alive(self, _scope: Scope) -> tuple[int, bytes, str]:
        return 200, b"alive\n", TEXT

    async def _ready(self, scope: Scope) -> tuple[int, bytes, str]:
        asked = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        ready, text = report(self._health.checks(), "verbose" in asked)
        return 200 if ready else UNAVAILABLE, text.encode(), TEXT

    async def _figures(self, scope: Scope) -> tuple[int, bytes, str]:
        accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
        body, content_type = (await self._exposition.get()).render(accept)
        return 200, body, content_type

    def _load_exposition(self) -> "Exposition":
        from quintet.admin.exposition import Exposition  # late: prometheus-client, 17 ms

        return Exposition(self._metrics)

    def _load_api(self) -> App:
        from quintet.admin.api import create_api  # late: FastAPI, 200 ms

        return create_api()


def create_app(health: Health, metrics: MetricsSource) -> AdminApp:
    """The application over one broker's health and figures."""
    return AdminApp(health, metrics)
