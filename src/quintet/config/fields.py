"""Defines types of configuration fields beside those of protocols/options.py: patterns, secrets in files."""

import os
import stat
from pathlib import Path
from typing import Literal

Durability = Literal["fsync", "interval", "os", "memory"]


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
