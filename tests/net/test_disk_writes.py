"""Durable writes of the running broker: on the loop thread only while nobody else wants it, by the kernel's threads otherwise,
with the same outcome either way and by Python's threads."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from quintet import kernel
from quintet.log.embedded.files.disk import DurableWrite, OsDisk, SyncFailed
from quintet.net import disk_writes
from quintet.net.disk_writes import LoneWrites
from quintet.net.loop import LoopScheduler


class Told(OsDisk):
    """Notes the thread in which Python made a write; none if it was not Python."""

    def __init__(self, native: bool) -> None:
        super().__init__()
        self.native = native
        self.threads: list[threading.Thread] = []

    def fdatasync(self, handle: int) -> None:
        self.threads.append(threading.current_thread())
        super().fdatasync(handle)


def small(size: int = 100, waiters: int = 1) -> DurableWrite:
    return DurableWrite(OsDisk(), 0, [bytes(size)], 0, size, waiters)


def written(disk: Told, paths: list[Path | str]) -> list[BaseException | None]:
    """Write once to each path in one turn."""

    async def main() -> list[BaseException | None]:
        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop, threads=2)
        results: dict[int, BaseException | None] = {}
        ended = loop.create_future()

        def done(number: int) -> Callable[[BaseException | None], None]:
            def call(error: BaseException | None) -> None:
                assert threading.current_thread() is threading.main_thread()
                results[number] = error
                if len(results) == len(paths):
                    ended.set_result(None)

            return call

        handles = [os.open(path, os.O_RDWR | os.O_CREAT) for path in paths]
        for number, handle in enumerate(handles):
            scheduler.write(DurableWrite(disk, handle, [b"ab", b"c"], 1, 3, 1), done(number))
        assert not results, "done was called before write returned"
        await ended
        scheduler.close()
        for handle in handles:
            os.close(handle)
        return [results[number] for number in range(len(paths))]

    return asyncio.run(main())


def test_a_lone_small_write_is_made_on_the_loop_thread(tmp_path: Path) -> None:
    disk = Told(native=True)
    assert written(disk, [tmp_path / "file"]) == [None]
    assert disk.threads == [threading.main_thread()]
    assert (tmp_path / "file").read_bytes() == b"\0abc"


@pytest.mark.skipif(kernel.DiskThreads is None, reason="THE NATIVE KERNEL IS NOT BUILT: its threads were not tested")
def test_two_writes_of_a_turn_are_made_by_threads_of_the_kernel(tmp_path: Path) -> None:
    disk = Told(native=True)
    assert written(disk, [tmp_path / "a", tmp_path / "b"]) == [None, None]
    assert disk.threads == []
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"\0abc"


def test_two_writes_to_a_simulated_disk_are_made_by_our_threads(tmp_path: Path) -> None:
    disk = Told(native=False)
    assert written(disk, [tmp_path / "a", tmp_path / "b"]) == [None, None]
    assert len(disk.threads) == 2
    assert threading.main_thread() not in disk.threads


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("count", [1, 2])
def test_a_failed_sync_is_told_from_a_failed_write_in_every_way(native: bool, count: int) -> None:
    for error in written(Told(native), ["/dev/full"] * count):
        assert isinstance(error, OSError)
        assert error.errno == errno.ENOSPC
    for error in written(Told(native), ["/dev/null"] * count):
        assert isinstance(error, SyncFailed)


def test_the_loop_writes_only_what_is_small_quick_and_alone() -> None:
    lone = LoneWrites()
    assert lone.allow(small(), 2, 0.0, 0.0)
    assert lone.allow(small(disk_writes.BYTES_MAX), 2, 0.0, 0.0)
    assert not lone.allow(small(disk_writes.BYTES_MAX + 1), 2, 0.0, 0.0)
    assert not lone.allow(small(), 3, 0.0, 0.0)  # a callback that was for somebody else
    assert lone.allow(small(), 3, 0.0, 0.001)  # one in a millisecond is no matter
    assert lone.allow(small(waiters=8), 9, 0.0, 0.0)  # eight reads for eight appends
    assert not lone.allow(small(waiters=1000), 17, 0.0, 0.0)  # many appends do not excuse many callbacks
    assert not lone.allow(small(), 2, 0.0011, 0.0)  # the loop had much to do
    lone.begin(2, 0.001, 0.0)
    assert lone.allow(small(), 4, 0.002, 0.0)


def test_the_loop_writes_again_after_a_write_by_a_thread() -> None:
    lone = LoneWrites()
    lone.begin(2, 0.0, 0.0)
    lone.made(0.0002, callbacks=1)  # the third callback: a thread made it
    assert lone.allow(small(), 5, 0.0, 0.0)
    assert not lone.allow(small(), 6, 0.0, 0.0)


def test_one_long_sync_keeps_the_next_ones_off_the_loop() -> None:
    lone = LoneWrites()
    for _ in range(20):
        lone.made(0.0002)
    assert lone.allow(small(), 0, 0.0, 0.0)
    lone.made(0.05)
    quick = 0
    while not lone.allow(small(), 0, 0.0, 0.0):
        lone.made(0.0002)
        quick += 1
    assert 10 <= quick <= 30
