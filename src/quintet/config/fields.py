"""Defines the types of configuration fields: bytes with units, ports, patterns, secrets in files."""

import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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
Durability = Literal["fsync", "interval", "os", "memory"]


class Section(BaseModel):
    """A table of the file. Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def matches(pattern: str, name: str) -> bool:
    """Whether a topic name falls under a pattern: equal, or a prefix if the pattern ends in *."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def read_secret(path: Path) -> str:
    """The one line in a key file. ValueError if others may read it, or if there is nothing in it."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise ValueError(f"{path} can be read by others (mode {mode:04o}); chmod 600 {path}")
            secret = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not secret:
        raise ValueError(f"{path} is empty; it must hold the key")
    return secret
