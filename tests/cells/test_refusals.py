"""Starts that are refused, in a sentence and before anything is written or accepted."""

import os
import socket
from pathlib import Path

import pytest

from quintet.cells.folder import open_folder
from quintet.model.cells import CellMap
from tests import forks

WAIT_S = 60


def start(tmp_path: Path, *arguments: str, **settings: str) -> tuple[int, str]:
    """Exit code of `quintet serve --dev ...` and what it said."""
    with (tmp_path / "said").open("wb") as said:
        process = forks.start(
            ["serve", "--dev", "--data", str(tmp_path / "data"), *arguments],
            env={**os.environ, **settings},
            cwd=tmp_path,
            stderr=said,
        )
        assert process.stdout is not None
        process.stdout.close()
        code = process.wait(WAIT_S)
    return code, (tmp_path / "said").read_text()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """The folder of a broker with two cells."""
    open_folder(tmp_path / "data", CellMap(2), "-dlq")
    return tmp_path


def test_another_number_of_cells_is_refused(made: Path) -> None:
    code, said = start(made, "--cells", "3")
    assert code == 1 and "was made with --cells 2, not 3: topics would be looked for in other cells" in said
    assert sorted(os.listdir(made / "data")) == ["cells.json"]


def test_a_folder_of_cells_is_not_served_without_them(made: Path) -> None:
    code, said = start(made)
    assert code == 1 and "holds the folders of several cells" in said and "start it with --cells" in said
    assert sorted(os.listdir(made / "data")) == ["cells.json"]


def test_cells_over_kafka_are_refused(tmp_path: Path) -> None:
    cell = {"QUINTET_CELL__NODE": "n1", "QUINTET_CELL__SERVERS": '["127.0.0.1:1"]'}
    code, said = start(tmp_path, "--cells", "2", QUINTET_ENGINE="kafka", **cell)
    assert code == 1 and "--cells shares out an embedded log, and engine is 'kafka'" in said


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("--place", "a=1"), "--place is of no use without --cells"),
        (("--cells", "2", "--place", "a"), "is not PREFIX=CELL"),
        (("--cells", "2", "--place", "a=2"), "there is no such cell"),
        (("--cells", "1"), "2<=x<=64"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, arguments: tuple[str, ...], wrong: str) -> None:
    code, said = start(tmp_path, *arguments)
    assert code != 0 and wrong in said
    assert not (tmp_path / "data").exists()


def test_an_address_that_somebody_has_is_named(tmp_path: Path) -> None:

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, said = start(tmp_path, "--cells", "2", QUINTET_LISTENERS__BLIPMQ__PORT=port)
    assert code == 1 and f"cannot listen on 127.0.0.1:{port} for blipmq" in said


def test_a_cell_that_cannot_start_ends_the_others(tmp_path: Path) -> None:
    ports = {
        f"QUINTET_LISTENERS__{name}__PORT": "0"
        for name in ("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FAST", "FELIX", "PEERBUS", "PEERBUS_TCP", "FLIGHT", "ADMIN")
    }
    open_folder(tmp_path / "data", CellMap(2), "-dlq")
    (tmp_path / "data" / "cell-1").write_text("a file where its folder should be")
    code, said = start(tmp_path, "--cells", "2", **ports)
    assert code == 1 and "cell_not_started" in said
