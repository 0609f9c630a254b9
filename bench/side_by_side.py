"""Quintet beside real peers, on this machine, in one run.

    python bench/side_by_side.py                     everything (about 45 minutes, 25 GiB of free disk)
    python bench/side_by_side.py --quick             a smoke run of some minutes; its figures mean nothing
    python bench/side_by_side.py --only fanout       one load; may be given more than once
    python bench/side_by_side.py --append            the loads of the append path (APPEND), in one table
    python bench/side_by_side.py --list              the names of the loads

Peers come from bench/peers.py. Results go to bench/results/ and to the terminal; bench/README.md tells the method.
"""

import argparse
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.harness import FULL, OURS, QUICK, Bench
from rich.console import Console

from bench import (
    loads,
    loads_alone,
    loads_append,
    loads_doors,
    loads_felix,
    loads_fly,
    loads_fly_own,
    loads_many,
    loads_open,
    loads_own,
    peers,
    report,
)
from quintet.bench.machine import facts
from quintet.bench.wire import BenchError

HERE = Path(__file__).resolve().parent
FILE_COLUMNS = 160  # of the table when it goes to a file
BUSY_LOAD_AVERAGE = 0.5  # above this something else is running, and figures are worth less

LOADS: dict[str, Callable[[Bench], None]] = {
    "qos0_publish": loads.qos0_publish,
    "qos0_e2e": loads.qos0_e2e,
    "fanout": loads.fanout,
    "qos1_durable": loads.qos1_durable,
    "qos1_bytes": loads.qos1_bytes,
    "latency": loads.latency,
    "idle": loads_own.idle,
    "start": loads_own.start,
    "flat_topics": loads_own.flat_topics,
    "flat_subscribers": loads_own.flat_subscribers,
    "flat_log": loads_own.flat_log,
    "fly_durable": loads_fly.fly_durable,
    "fly_kafka": loads_fly.fly_kafka,
    "fly_sync": loads_fly.fly_sync,
    "fly_fetch": loads_fly.fly_fetch,
    "fly_topics": loads_fly_own.fly_topics,
    "fly_group": loads_fly_own.fly_group,
    "fast_publish": loads_doors.fast_publish,
    "fast_fanout": loads_doors.fast_fanout,
    "peerbus_acked": loads_doors.peerbus_acked,
    "peerbus_idle": loads_doors.peerbus_idle,
    "felix_bytes": loads_felix.felix_bytes,
    "felix_fanout": loads_felix.felix_fanout,
    "felix_acked": loads_felix.felix_acked,
    "felix_cache": loads_felix.felix_cache,
    "felix_idle": loads_felix.felix_idle,
    "spread_publish": loads_append.spread_publish,
    "spread_partitions": loads_append.spread_partitions,
    "alone": loads_alone.alone,
    "alone_fsync": loads_alone.alone_fsync,
    "open_durable": loads_open.open_durable,
    "many_topics": loads_many.many_topics,
}
# What the append path is judged by: many topics, one message alone, durable rates and bytes, an open loop.
APPEND = (
    "spread_publish",
    "spread_partitions",
    "flat_topics",
    "alone",
    "alone_fsync",
    "qos1_durable",
    "qos1_bytes",
    "fly_kafka",
    "felix_acked",
    "felix_cache",
    "open_durable",
    "many_topics",
)
SIDES = (OURS, "nats", "redis", "mosquitto", "kafka", "rabbitmq")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Quintet beside its peers and print ratios.")
    parser.add_argument("--only", action="append", choices=list(LOADS), help="run this load only (repeatable)")
    parser.add_argument("--append", action="store_true", help="run the loads of the append path only")
    parser.add_argument("--side", action="append", choices=SIDES, help="run these servers only (repeatable)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: figures mean nothing")
    parser.add_argument("--repetitions", type=int, help="measure each side so often; for looking, not for the README")
    parser.add_argument("--many", type=int, metavar="TOPICS", help="so many topics in many_topics; for looking")
    parser.add_argument("--install", action="store_true", help="get missing peers first")
    parser.add_argument("--list", action="store_true", help="name the loads and stop")
    parser.add_argument("--dir", type=Path, default=HERE / ".peers" / "run", help="where servers keep their data")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where results are written")
    return parser.parse_args()


def main() -> int:
    wanted = arguments()
    console = Console() if sys.stdout.isatty() else Console(width=FILE_COLUMNS)
    if wanted.list:
        for name, load in LOADS.items():
            console.print(f"{name:18} {load.__doc__}", highlight=False)
        return 0
    if wanted.install:
        for peer in peers.PEER_TABLE:
            if peers.version(peer) is None:
                console.print(peers.install(peer))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    machine = facts()
    if os.getloadavg()[0] > BUSY_LOAD_AVERAGE:
        console.print(f"[bold red]this machine is busy[/] (load {os.getloadavg()[0]:.2f}): figures will suffer")
    found = peers.versions()
    effort = QUICK if wanted.quick else FULL
    if wanted.repetitions:
        effort = replace(effort, repetitions=wanted.repetitions)
    if wanted.many:
        effort = replace(effort, many_topics=wanted.many)
    with Bench(wanted.dir, effort, console, set(wanted.side or SIDES)) as bench:
        for name in wanted.only or (APPEND if wanted.append else LOADS):
            try:
                LOADS[name](bench)
            except (BenchError, OSError) as error:
                bench.skip(name, str(error))
    console.print(report.table(bench.comparisons, machine, found))
    for line in bench.skipped:
        console.print(f"[bold red]SKIPPED[/] {line}", highlight=False)
    if wanted.quick:
        console.print("[yellow]a quick run: these figures mean nothing[/]")
    report.save(
        wanted.results, bench.comparisons, machine, found, bench.skipped, console, "append-" if wanted.append else ""
    )
    missed = [comparison.load for comparison in bench.comparisons if comparison.reached is False]
    if missed:
        console.print(f"targets missed: {', '.join(missed)}", highlight=False)
    return 1 if bench.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
