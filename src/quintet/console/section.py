"""Defines the section of the console's listener."""

from typing import Annotated

from pydantic import Field

from quintet.model.sections import Count, PerSecond, Port, Seconds
from quintet.protocols.options import TlsListener


class ConsoleListener(TlsListener):
    """The web console."""

    enabled: bool = Field(default=False, description="Whether this listener is opened; `--dev` opens it.")
    port: Port = Field(default=8090, description="TCP port; 0 picks a free one, which --print-ready reports.")
    names: tuple[str, ...] = Field(
        default=(),
        description="Host names that browsers may call the console by without TLS, beside localhost and IP addresses: a page of "
        "another site whose name leads here is refused. With TLS the certificate decides.",
    )
    idle_seconds: Annotated[Seconds, Field(ge=60, le=86_400)] = Field(
        default=1800, description="Time without a request after which a person has to log in again, in seconds."
    )
    sessions_max: Count = Field(
        default=1_000, description="People logged in at once; one more ends the session that was not used for longest."
    )
    requests_per_second_max: Annotated[PerSecond, Field(ge=10)] = Field(
        default=100, description="Requests per second from one address; more are refused with 429."
    )
