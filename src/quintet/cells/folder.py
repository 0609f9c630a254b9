"""Keeps the folder of a broker with several cells: data/cell-0 and so on, and a file that says how topics are shared out among them.

The number of cells and the places of prefixes decide where a topic is. They are written down when the folder is made; a start with
others is refused, because topics would be looked for where they are not.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from quintet.model.cells import CellMap, NamePlace
from quintet.model.errors import ConfigError, DataDirError
from quintet.server import CELLS_FILE

VERSION: Final = 1
_OWN_LOG: Final = "it holds the log of a broker without cells"


def cell_folder(data: Path, cell: int) -> Path:
    return data / f"cell-{cell}"


def open_folder(data: Path, cells: CellMap, dead_letter_suffix: str) -> None:
    """Make the folder, or check that it was made for these cells. ConfigError or DataDirError says what is wrong."""
    asked = {
        "version": VERSION,
        "cells": cells.count,
        "places": {place.prefix: place.cell for place in cells.places},
        "dead_letter_suffix": dead_letter_suffix,
    }
    file = data / CELLS_FILE
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        _make(data, file, asked)
        return
    except (OSError, ValueError) as error:
        raise DataDirError(f"{file}: cannot be read: {error}") from None
    if found == asked:
        return
    for name, what in (
        ("version", "is of version {}, and this is version {}"),
        ("cells", "was made with --cells {}, not {}"),
        ("places", "was made with the places {}, not {}"),
        ("dead_letter_suffix", "was made with the dead letter suffix {!r}, not {!r}"),
    ):
        if found.get(name) != asked[name]:
            raise ConfigError(
                f"{data}: {what.format(_shown(found.get(name)), _shown(asked[name]))}: topics would be looked for in other cells",
                hint="start it as it was made, or copy its messages to a new folder",
            )
    raise DataDirError(f"{file}: says more than this version knows")


def _shown(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return " ".join(f"{prefix}={cell}" for prefix, cell in value.items()) or "(none)"


def _make(data: Path, file: Path, asked: dict[str, object]) -> None:
    try:
        data.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in os.scandir(data))
        if others:
            raise DataDirError(
                f"{data}: is not empty and has no {CELLS_FILE} ({', '.join(others[:3])}): {_OWN_LOG}, or something else",
                hint="name an empty folder for --cells",
            )
        _write(data, file, json.dumps(asked, indent=1).encode())
    except OSError as error:
        raise DataDirError(f"{data}: {error.strerror or error}") from None


def _write(data: Path, file: Path, content: bytes) -> None:
    """All of it or nothing, also if the power goes."""
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(fresh, file)
    handle = os.open(data, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def places_of(data: Path) -> Sequence[NamePlace]:
    """Those that are written down: they need not be given again. None if the folder is new."""
    try:
        found = json.loads((data / CELLS_FILE).read_text())
        return [NamePlace(prefix, cell) for prefix, cell in found["places"].items()]
    except (OSError, ValueError, KeyError, AttributeError):
        return ()
