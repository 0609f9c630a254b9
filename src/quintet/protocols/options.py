"""What the options of a door are made of: bytes with units, ports, and the sections that listeners share.

The section of a door is a class in its own folder (door.py); config/ joins them to one tree. Only a broker loads this: a client
has no pydantic.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from quintet.model import limits

GIB: Final = 1024 * limits.MIB
_UNITS: Final = {"": 1, "B": 1, "KIB": limits.KIB, "MIB": limits.MIB, "GIB": GIB, "TIB": 1024 * GIB}


def _parse_bytes(value: object) -> object:
    """'16 MiB' and the like as a number of bytes; anything else is left for pydantic to judge."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("expected a number of bytes, or a text like '16 MiB' (B, KiB, MiB, GiB, TiB)")
    return int(match[1]) * _UNITS[match[2].upper()]


Bytes = Annotated[int, BeforeValidator(_parse_bytes), Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the file. Frozen, and an unknown key is an error."""

    # defer_build: only the whole tree is ever checked, so no part of it needs a validator of its own (25 ms of a start).
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Listener(Section):
    """Where one door listens."""

    enabled: bool = Field(default=True, description="Whether this listener is opened.")
    host: str = Field(default="127.0.0.1", description="Address to bind: an IP address or localhost.", min_length=1)
    port: Port = Field(default=0, description="TCP port; 0 picks a free one, which --print-ready reports.")
    insecure: bool = Field(default=False, description="Allow plaintext on an address other machines can reach.")

    @property
    def encrypted(self) -> bool:
        return False

    @property
    def lets_in(self) -> str:
        """The role of clients that say nothing of who they are; empty: there is no such role."""
        return ""

    @model_validator(mode="after")
    def _plaintext_stays_home(self) -> Self:
        if self.enabled and not (is_loopback(self.host) or self.encrypted or self.insecure):
            how = "set tls_cert and tls_key, or " if "tls_cert" in type(self).model_fields else "set "
            raise ValueError(f"plaintext on {self.host!r}, which other machines can reach; {how}insecure = true")
        return self


class TlsListener(Listener):
    """What the doors with TLS share."""

    tls_cert: Path | None = Field(
        default=None, description="PEM file with the certificate chain; read again on SIGHUP."
    )
    tls_key: Path | None = Field(default=None, description="PEM file with the private key; read again on SIGHUP.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file with the authorities of client certificates: then every client must show one of theirs.",
    )

    @property
    def encrypted(self) -> bool:
        return self.tls_cert is not None

    @model_validator(mode="after")
    def _whole_identity(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together; only one of them is set")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: client certificates are shown within TLS")
        return self


class TcpListener(TlsListener):
    """What the doors over TCP share."""

    max_connections: Count = Field(default=10_000, description="Connections open at once on this listener.")
