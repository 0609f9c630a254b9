"""Describes the admin door by OpenAPI: `/docs`, `/openapi.json`, and the refusals of what is not there.

app.py answers the paths below itself and loads this file late; here they have their descriptions only.
"""

from typing import Annotated, NoReturn

from fastapi import FastAPI, Header, Query
from fastapi.responses import PlainTextResponse, Response

from quintet import __version__

UNAVAILABLE = 503


def create_api() -> FastAPI:
    """The description of the admin door as an application."""
    app = FastAPI(title="Quintet admin", version=__version__)

    @app.get("/livez", response_class=PlainTextResponse)
    @app.get("/health/live", response_class=PlainTextResponse, include_in_schema=False)
    async def livez() -> str:
        """The loop turns: this answer is the proof. Restart the process only if it does not come."""
        _elsewhere()

    @app.get("/readyz", response_class=PlainTextResponse, responses={UNAVAILABLE: {"description": "Not ready"}})
    @app.get("/health/ready", response_class=PlainTextResponse, include_in_schema=False)
    async def readyz(verbose: Annotated[str | None, Query(description="List every check.")] = None) -> Response:
        """Whether traffic should be sent here; 503 names what is not as it must be."""
        _elsewhere(verbose)

    @app.get("/metrics", response_class=Response)
    async def figures(accept: Annotated[str, Header()] = "") -> Response:
        """Prometheus text format; OpenMetrics, or protobuf with native histograms, if asked for."""
        _elsewhere(accept)

    return app


def _elsewhere(*_asked: object) -> NoReturn:
    raise AssertionError("app.py answers this path")
