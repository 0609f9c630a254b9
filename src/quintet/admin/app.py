"""The admin door's HTTP application: `/livez`, `/readyz` and `/metrics`; `/health/live` and `/health/ready` as FlyMQ has them."""

from typing import Annotated

from fastapi import FastAPI, Header, Query
from fastapi.responses import PlainTextResponse, Response

from quintet import __version__
from quintet.admin.health import Health, report
from quintet.admin.metrics import Exposition, MetricsSource

UNAVAILABLE = 503


def create_app(health: Health, metrics: MetricsSource) -> FastAPI:
    """The application over one broker's health and figures."""
    app = FastAPI(title="Quintet admin", version=__version__)
    exposition = Exposition(metrics)

    @app.get("/livez", response_class=PlainTextResponse)
    @app.get("/health/live", response_class=PlainTextResponse, include_in_schema=False)
    async def livez() -> str:
        """The loop turns: this answer is the proof. Restart the process only if it does not come."""
        return "alive\n"

    @app.get("/readyz", response_class=PlainTextResponse, responses={UNAVAILABLE: {"description": "Not ready"}})
    @app.get("/health/ready", response_class=PlainTextResponse, include_in_schema=False)
    async def readyz(verbose: Annotated[str | None, Query(description="List every check.")] = None) -> Response:
        """Whether traffic should be sent here; 503 names what is not as it must be."""
        ready, text = report(health.checks(), verbose is not None)
        return PlainTextResponse(text, status_code=200 if ready else UNAVAILABLE)

    @app.get("/metrics", response_class=Response)
    async def figures(accept: Annotated[str, Header()] = "") -> Response:
        """Prometheus text format, or OpenMetrics if asked for."""
        body, content_type = exposition.render(accept)
        return Response(body, headers={"content-type": content_type})

    return app
