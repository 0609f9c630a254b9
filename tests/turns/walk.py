"""Measures how long each operation of each door keeps the broker's loop: `python -m tests.turns.walk` writes docs/TURNS.md.

The broker is a process of its own (measured.py). A row that is above the bound is measured again, with a new connection, up to
ATTEMPTS times, and the best counts: processor time is a fair measure on a busy machine, but a cold cache is not the code's fault.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.turns import fly_inputs
from tests.turns.inputs import Row, rows
from tests.turns.wires import Felix, Fly

BOUND_MS: Final = 20.0
ATTEMPTS: Final = 3
ROOT: Final = Path(__file__).parents[2]


class Result(NamedTuple):
    """What a row took: the longest turn of the best attempt, and which callback it was."""

    row: Row
    ms: float
    callback: str
    refused: str = ""  # what the last refusal said, if the door's answers are read


class Walk:
    """A broker under measurement."""

    def __init__(self, folder: Path, planted: bool = False) -> None:
        self.data = folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        if planted:
            environment["QUINTET_TEST_PLANT"] = "1"
        with (folder.parent / "stderr").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.turns.measured", str(folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment,
            )  # fmt: skip
        self.listeners: dict[str, str] = json.loads(self._said())["listeners"]

    def _said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                "the broker under measurement ended: " + (self.data.parent / "stderr").read_text()[-2_000:]
            )
        return line

    def mark(self) -> tuple[float, str]:
        """The longest turn since the last mark, in milliseconds, and its callback."""
        return self._ordered("mark")

    def _ordered(self, order: str) -> tuple[float, str]:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._said())
        return found["ms"], found["what"]

    def connect(self, row: Row) -> Any:
        wire: Any = row.wire
        return wire(self.listeners[row.door], self.data) if issubclass(wire, Felix) else wire(self.listeners[row.door])

    def prepare(self, scale: float, partitions: int) -> None:
        wire = Fly(self.listeners["flymq"])
        for requests in fly_inputs.prepare(scale, partitions):
            wire.run(requests)
        wire.close()

    def measure(self, row: Row) -> Result:
        best = Result(row, float("inf"), "")
        for _ in range(ATTEMPTS):
            wire = self.connect(row)
            try:
                data = row.make(wire)
                if row.cold:
                    self._ordered("forget")
                self.mark()
                if issubclass(row.wire, Felix):
                    wire.run(data, row.streams)
                else:
                    wire.run(data)
            finally:
                wire.close()
            best = min(best, Result(row, *self.mark(), getattr(wire, "refused", "")), key=lambda result: result.ms)
            if best.ms <= BOUND_MS:
                break
        return best

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@contextmanager
def walking(planted: bool = False) -> Iterator[Walk]:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        walk = Walk(data, planted)
        try:
            yield walk
        finally:
            walk.close()


def table(results: list[Result]) -> str:
    lines = ["| door | operation | input | longest turn, ms |", "|---|---|---|---|"]
    for (door, operation, what, *_), ms, *_ in results:
        lines.append(
            f"| {door} | {operation} | {what} | {'**' if ms > BOUND_MS else ''}{ms:.1f}{'**' if ms > BOUND_MS else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3_000, help="small requests at once")
    parser.add_argument("--mib", type=int, default=31, help="of the largest message")
    parser.add_argument("--partitions", type=int, default=1_000, help="of the widest topic")
    parser.add_argument("--scale", type=float, default=1.0, help="of what the broker holds")
    parser.add_argument("--only", default="", help="rows whose door, operation and input have this in them")
    parser.add_argument("--write", type=Path, help="the file to write the table into")
    options = parser.parse_args()
    results = []
    with walking() as walk:
        walk.prepare(options.scale, options.partitions)
        for row in rows(options.count, options.mib << 20, options.partitions):
            if options.only in f"{row.door} {row.operation}: {row.what}":
                results.append(walk.measure(row))
                _, ms, callback, refused = results[-1]
                sys.stdout.write(f"{ms:8.1f} ms  {row.door} {row.operation}: {row.what}   {callback} {refused[:100]}\n")
                sys.stdout.flush()
    above = sum(result.ms > BOUND_MS for result in results)
    sys.stdout.write(f"{len(results)} rows, {above} above {BOUND_MS:.0f} ms\n")
    if options.write is not None:
        head = options.write.read_text().partition("| door |")[0]
        options.write.write_text(head + table(results) + "\n")


if __name__ == "__main__":
    main()
