"""Holds the files of the page, as they were built from console/ in the repository and came with the package."""

import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

FILES: Final = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file, ready to be sent."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


def load() -> dict[str, File]:
    """All files by name; FileNotFoundError if the package is not whole."""
    folder = resources.files("quintet.console") / "static"
    found = {}
    for name, kind in FILES.items():
        body = (folder / name).read_bytes()
        packed = gzip.compress(body, 9, mtime=0)
        found[name] = File(kind, body, packed, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
