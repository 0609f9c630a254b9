"""Defines the section of the Arrow Flight door. It needs no pyarrow: a broker without it reads its configuration, too."""

from pathlib import Path

from pydantic import Field

from quintet.model.sections import Count, Port, Renamed
from quintet.protocols.options import TlsListener


class FlightListener(TlsListener):
    """The Arrow Flight door."""

    renamed = (Renamed("max_calls", "calls_max"),)

    enabled: bool = Field(
        default=True,
        description="Whether this listener is opened; it needs the packages of the extra `flight`, and stays shut without.",
    )
    port: Port = Field(default=8815, description="TCP port; 0 picks a free one, which --print-ready reports.")
    tls_cert: Path | None = Field(
        default=None,
        description="PEM file with the certificate chain; read at start, a reload does not reach this door.",
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the private key; read at start, a reload does not reach this door."
    )
    calls_max: Count = Field(default=256, description="Calls and streams under way at once; more are refused.")
    map_files: bool = Field(
        default=True,
        description="Whether readers on this machine are told where the segment files are, to read them in place.",
    )
