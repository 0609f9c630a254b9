"""Measures how the processes of `quintet` start and end, beside `python -c pass`.

Processor time (of all threads) is what counts: wall time on a shared machine is mostly waiting for the processor. All rows run in
turn, and the median of each is shown. A start is from exec to the ready line on an empty folder; an end from SIGTERM to exit.
Modules are compiled before the first run that counts, as they are wherever a package was installed; `--compile` compiles them in
each run, which is half of a start and happens where Python cannot or may not write its bytecode (PYTHONDONTWRITEBYTECODE).

    .venv/bin/python bench/start.py [--runs 15] [--compile]
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from quintet.protocols.doors import DOORS

QUINTET = ("-m", "quintet")
SERVE = (*QUINTET, "serve", "--data", "data", "--print-ready")
PORTS = {
    f"QUINTET_LISTENERS__{name}__PORT": "0"
    for name in ("ADMIN", "CONSOLE", "FLIGHT", *(door.key.upper() for door in DOORS))
}
NO_FLIGHT = {"QUINTET_LISTENERS__FLIGHT__ENABLED": "false"}  # pyarrow is an extra
ROWS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "`python -c pass`": (("-c", "pass"), {}),
    "`quintet --version`": ((*QUINTET, "--version"), {}),
    "`quintet --help`": ((*QUINTET, "--help"), {}),
    "`quintet pub --help`": ((*QUINTET, "pub", "--help"), {}),
    "`quintet serve`": (SERVE, NO_FLIGHT),
    "`quintet serve --dev`": ((*SERVE, "--dev"), NO_FLIGHT),
    "`quintet serve --dev`, Flight too": ((*SERVE, "--dev"), {}),
}


class Cost(NamedTuple):
    """Seconds: of processors and by the clock, to the end of a command or the ready line of a broker; the same for its end."""

    cpu: float
    wall: float
    end_cpu: float = 0.0
    end_wall: float = 0.0


def used(pid: int) -> float:
    """Processor seconds of a process until now."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def environment(bytecode: str) -> dict[str, str]:
    """Of all runs: their bytecode is kept in this folder; "": nowhere."""
    kept = {"PYTHONPYCACHEPREFIX": bytecode} if bytecode else {"PYTHONDONTWRITEBYTECODE": "1"}
    dropped = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in dropped} | PORTS | kept


def cost(arguments: tuple[str, ...], around: dict[str, str]) -> Cost:
    """Of one process in a new folder."""
    with tempfile.TemporaryDirectory(prefix="quintet-start-") as folder:
        began = time.monotonic()
        with subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env=around,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            served = "serve" in arguments
            if served:
                assert json.loads(process.stdout.readline())["ready"]
                ready, cpu = time.monotonic(), used(process.pid)
                process.send_signal(signal.SIGTERM)
            process.stdout.read()
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            ended, total = time.monotonic(), usage.ru_utime + usage.ru_stime
            assert process.returncode == 0, f"{' '.join(arguments)} ended with {process.returncode}"
    return Cost(cpu, ready - began, total - cpu, ended - ready) if served else Cost(total, ended - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how the processes of quintet start and end.")
    parser.add_argument("--runs", type=int, default=15, help="of each row")
    parser.add_argument("--compile", action="store_true", help="every module in every run")
    asked = parser.parse_args()
    found: dict[str, list[Cost]] = {name: [] for name in ROWS}
    with tempfile.TemporaryDirectory(prefix="quintet-bytecode-") as bytecode:
        around = environment("" if asked.compile else bytecode)
        for turn in range(asked.runs + 1):
            for name, (arguments, settings) in ROWS.items():
                taken = cost(arguments, around | settings)
                if turn:  # the first finds cold files, and no bytecode
                    found[name].append(taken)
    medians = {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in found.items()}
    bare = next(iter(medians.values())).cpu
    print("| process | processor time | beside `python -c pass` | wall time | end: processor, wall |")
    print("|---|---|---|---|---|")
    for name, each in medians.items():
        end = f"{each.end_cpu * 1e3:.0f} ms, {each.end_wall * 1e3:.0f} ms" if each.end_wall else ""
        print(f"| {name} | {each.cpu * 1e3:.0f} ms | {each.cpu / bare:.1f}x | {each.wall * 1e3:.0f} ms | {end} |")


if __name__ == "__main__":
    main()
