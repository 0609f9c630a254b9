"""Describes the machine that a figure was measured on."""

import datetime
import os
import platform
import time
from pathlib import Path

import quintet

PROCESS_CLOCK = 2  # of the clocks that Linux makes of a process id: what was on a processor, by the scheduler's count


def _first(path: str, key: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    except OSError:
        return "unknown"
    return "unknown"


def _kernel_kind() -> str:
    try:
        import quintet.kernel._native  # noqa: F401
    except ImportError:
        return "pure Python"
    return "native"


def facts() -> dict[str, str | int | float]:
    """What a reader needs to judge the figures."""
    memory_kib = _first("/proc/meminfo", "MemTotal").split(" ")[0]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": _first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(int(memory_kib) / 1024 / 1024, 1) if memory_kib.isdigit() else 0,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "quintet": quintet.__version__,
        "kernel": _kernel_kind(),
        "load_average": os.getloadavg()[0],
    }


def headline(found: dict[str, str | int | float]) -> str:
    """The facts in one line."""
    return (
        f"{found['date']} · {found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB · {found['system']} · "
        f"{found['python']} · quintet {found['quintet']} ({found['kernel']} kernel) · load {found['load_average']:.2f}"
    )


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(_first(f"/proc/{pid}/status", "VmRSS").split(" ")[0]) * 1024


def processor_seconds(pid: int) -> float:
    """Processor time that a process has taken, all its threads, to the nanosecond: Linux has a clock for each."""
    return time.clock_gettime(~pid << 3 | PROCESS_CLOCK)


def thread_seconds(pid: int) -> float:
    """Processor time of the first thread of a process: in our broker that is the loop's."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def open_files(pid: int) -> int:
    """How many files and sockets a process holds open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
