"""DiskThreads of the native kernel: what is submitted is in the file, and every failure comes back with its step and errno."""

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quintet import kernel

if TYPE_CHECKING:
    from quintet.kernel._native import DiskThreads

pytestmark = pytest.mark.skipif(
    kernel.DiskThreads is None, reason="THE NATIVE KERNEL IS NOT BUILT, or not for Linux: nothing here was tested"
)


@pytest.fixture
def threads() -> "Iterator[DiskThreads]":
    assert kernel.DiskThreads is not None
    made = kernel.DiskThreads(2)
    yield made
    made.close()


def finished(threads: "DiskThreads", count: int) -> list[tuple[int, int, int]]:
    done: list[tuple[int, int, int]] = []
    while len(done) < count:
        assert select.select([threads.fileno()], [], [], 30)[0], "a write did not end within 30 s"
        done += threads.take()
    return sorted(done)


def test_buffers_are_written_one_behind_the_other_at_their_place(threads: "DiskThreads", tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"." * 10)
    with path.open("r+b") as file:
        many = [bytearray(b"%05d" % number) for number in range(3000)]  # more than one pwritev takes
        threads.submit(7, [], file.fileno(), [b"", bytearray(b"ab"), memoryview(b"cd"), *many], 4)
        assert finished(threads, 1) == [(7, 1, 0)]
    assert path.read_bytes() == b"....abcd" + b"".join(many)
    assert threads.take() == []


def test_writes_of_many_files_all_come_back(threads: "DiskThreads", tmp_path: Path) -> None:
    files = [(tmp_path / str(number)).open("w+b") for number in range(20)]
    for number, file in enumerate(files):
        threads.submit(number, [], file.fileno(), [b"%d" % number], 0)
    assert finished(threads, 20) == [(number, 1, 0) for number in range(20)]
    for number, file in enumerate(files):
        assert file.read() == b"%d" % number
        file.close()


@pytest.mark.parametrize(
    ("path", "failure"), [("/dev/full", (0, errno.ENOSPC)), ("/dev/null", (1, errno.EINVAL))], ids=["write", "sync"]
)
def test_a_failure_says_whether_the_write_or_the_sync_failed(
    threads: "DiskThreads", path: str, failure: tuple[int, int]
) -> None:
    handle = os.open(path, os.O_RDWR)
    threads.submit(1, [], handle, [b"x"], 0)
    assert finished(threads, 1) == [(1, *failure)]
    os.close(handle)


def test_a_buffer_cannot_be_resized_while_it_is_written(threads: "DiskThreads", tmp_path: Path) -> None:
    buffer = bytearray(b"x" * 100)
    with (tmp_path / "file").open("w+b") as file:
        threads.submit(1, [], file.fileno(), [buffer], 0)
        with pytest.raises(BufferError):
            buffer.append(1)
        assert finished(threads, 1) == [(1, 1, 0)]
    buffer.append(1)  # let go by take


def test_places_of_other_files_are_written_before_the_one_that_is_synced(
    threads: "DiskThreads", tmp_path: Path
) -> None:
    with (tmp_path / "a").open("w+b") as a, (tmp_path / "b").open("w+b") as b, (tmp_path / "c").open("w+b") as c:
        places = [(a.fileno(), [b"1", b"2"], 1), (b.fileno(), [b"3"], 0)]
        threads.submit(1, places, c.fileno(), [b"45"], 0)
        assert finished(threads, 1) == [(1, 3, 0)]
        assert (a.read(), b.read(), c.read()) == (b"\x0012", b"3", b"45")


def test_nothing_is_written_behind_a_place_that_failed(threads: "DiskThreads", tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    with (tmp_path / "a").open("w+b") as a, (tmp_path / "c").open("w+b") as c:
        threads.submit(1, [(a.fileno(), [b"1"], 0), (full, [b"2"], 0)], c.fileno(), [b"3"], 0)
        assert finished(threads, 1) == [(1, 1, errno.ENOSPC)]
        assert (a.read(), c.read()) == (b"1", b"")
    os.close(full)
