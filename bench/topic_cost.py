"""Measures what very many topics with one small message each cost: disk by kind of file, memory, processor time of a start.

    .venv/bin/python bench/topic_cost.py --topics 20000 [--starts 3] [--settle 75]

A real broker is filled over the FlyMQ door, looked at while it runs, stopped cleanly and started again; an empty broker of the same
settings is subtracted. Processor time and resident memory hardly depend on what else the machine does, so this is the part of
`many_topics` that can be run on a busy machine, for comparing two versions. Bytes of disk are by blocks and, in brackets, by length.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.harness import OURS, Side
from bench.loads_many import MANY_BYTES, SETTINGS, fill, stop
from bench.loads_own import START_WITHIN_S

from bench import peers
from quintet.bench.flymq import FlymqWire
from quintet.bench.machine import open_files, processor_seconds, resident_bytes

SETTLE_S = 3.0  # after which an idle broker is looked at; after a minute it has given back what a start and its compaction freed
BLOCK_BYTES = 512  # of st_blocks, whatever the file system has


class Look(NamedTuple):
    """What a broker holds: bytes by kind of file, in blocks and by length; memory; open files; processor seconds until now."""

    blocks: Counter[str]
    lengths: Counter[str]
    memory: int
    files: int
    processor: float


def look(server: peers.Server, settle_s: float = SETTLE_S) -> Look:
    processor = processor_seconds(server.pid)
    time.sleep(settle_s)
    data = server.directory / "data"
    blocks, lengths = Counter[str](), Counter[str]()
    for entry in data.rglob("*"):
        if entry.is_file():
            kind = entry.relative_to(data).parts[0]
            found = entry.stat()
            blocks[kind] += found.st_blocks * BLOCK_BYTES
            lengths[kind] += found.st_size
    return Look(blocks, lengths, resident_bytes(server.pid), open_files(server.pid), processor)


def started(folder: Path, settings: dict[str, str], settle_s: float = SETTLE_S) -> Look:
    """A start on what is there, and a clean stop."""
    with peers.quintet(folder, settings, START_WITHIN_S, "flymq") as server:
        found = look(server, settle_s)
        stop(Side(OURS, FlymqWire(), server, True))
    return found


def show(what: str, found: Look, empty: Look, topics: int) -> None:
    used, long = (
        sum((one - other).values()) for one, other in ((found.blocks, empty.blocks), (found.lengths, empty.lengths))
    )
    each = found.blocks - empty.blocks
    parts = ", ".join(f"{kind} {size / topics:,.0f}" for kind, size in each.most_common() if size >= topics)
    print(
        f"{what}: disk {used / topics - MANY_BYTES:,.0f} ({long / topics - MANY_BYTES:,.0f}) B each beyond its data: {parts}"
    )
    print(
        f"{what}: memory {(found.memory - empty.memory) / topics:,.0f} B each, {found.files - empty.files} more open files"
    )


def measure(topics: int, starts: int, settle_s: float, folder: Path) -> None:
    started(folder / "none", SETTINGS)  # the first start makes keys and certificates
    empty = started(folder / "none", SETTINGS, settle_s)
    with peers.quintet(folder / "many", SETTINGS, START_WITHIN_S, "flymq") as server:
        side = Side(OURS, FlymqWire(), server, True)
        before = processor_seconds(server.pid)
        fill(side, topics, MANY_BYTES)
        filled = processor_seconds(server.pid) - before
        print(f"to make and fill {topics:,} topics: {filled / topics * 1e6:,.1f} us of processor each", flush=True)
        show("after writing", look(server), empty, topics)
        before = processor_seconds(server.pid)
        stop(side)
    seconds = []
    for _ in range(starts):
        found = started(folder / "many", SETTINGS, settle_s)
        seconds.append(found.processor - empty.processor)
    show("after a start", found, empty, topics)
    each = ", ".join(f"{one:.2f}" for one in sorted(seconds))
    print(
        f"a start: {statistics.median(seconds):.2f} s of processor more than {empty.processor:.2f} s of an empty one ({each})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--topics", type=int, default=20_000, help="a multiple of 100")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument(
        "--settle", type=float, default=SETTLE_S, help="seconds from the ready line of a start to the look at it"
    )
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quintet-topics-") as folder:
        measure(wanted.topics, wanted.starts, wanted.settle, Path(folder))


if __name__ == "__main__":
    main()
