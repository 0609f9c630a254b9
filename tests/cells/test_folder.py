"""The folder of a broker with several cells is opened as it was made, or not at all."""

from pathlib import Path

import pytest

from quintet.cells.folder import open_folder, places_of
from quintet.model.cells import CellMap, NamePlace
from quintet.model.errors import ConfigError, DataDirError


def test_a_folder_opens_again_as_it_was_made(tmp_path: Path) -> None:
    data, cells = tmp_path / "data", CellMap(3, (NamePlace("a", 1),))
    open_folder(data, cells, "-dlq")
    open_folder(data, cells, "-dlq")
    assert list(places_of(data)) == [NamePlace("a", 1)]


@pytest.mark.parametrize(
    ("cells", "suffix", "said"),
    [
        (CellMap(4, (NamePlace("a", 1),)), "-dlq", "was made with --cells 3, not 4"),
        (CellMap(3), "-dlq", r"was made with the places a=1, not \(none\)"),
        (CellMap(3, (NamePlace("a", 1),)), ".dead", "was made with the dead letter suffix '-dlq', not '.dead'"),
    ],
)
def test_a_start_that_would_look_elsewhere_is_refused(tmp_path: Path, cells: CellMap, suffix: str, said: str) -> None:
    open_folder(tmp_path / "data", CellMap(3, (NamePlace("a", 1),)), "-dlq")
    with pytest.raises(ConfigError, match=said):
        open_folder(tmp_path / "data", cells, suffix)


def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "00000001").mkdir()
    with pytest.raises(DataDirError, match="is not empty and has no cells"):
        open_folder(tmp_path, CellMap(2), "-dlq")
    (tmp_path / "cells.json").write_text("{")
    with pytest.raises(DataDirError, match="cannot be read"):
        open_folder(tmp_path, CellMap(2), "-dlq")
