"""Topics in Spark beside Parquet, tuples, Kafka's connector and our own doors, on this machine, in one run.

    python bench/spark_side_by_side.py                      everything: 5 million rows of about 100 B in 4 partitions
    python bench/spark_side_by_side.py --quick              a smoke run; its figures mean nothing
    python bench/spark_side_by_side.py --only kafka         one load; may be given more than once
    python bench/spark_side_by_side.py --list               the names of the loads

Results go to bench/results/ and to the terminal; bench/README.md tells the method.
"""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.harness import FULL, OURS, QUICK, Bench
from bench.side_by_side import BUSY_LOAD_AVERAGE, FILE_COLUMNS
from bench.spark_loads import LOADS, Run
from rich.console import Console

from bench import peers, report, spark_peers
from quintet.bench.machine import facts

HERE = Path(__file__).resolve().parent
ROWS, QUICK_ROWS = 5_000_000, 50_000
ROWS_MIN = 1_000
RESULT_PREFIX = "spark-"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure topics in Spark beside their peers and print ratios.")
    parser.add_argument("--only", action="append", choices=list(LOADS), help="run this load only (repeatable)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: figures mean nothing")
    parser.add_argument("--rows", type=int, help=f"rows of the topic ({ROWS}; quick: {QUICK_ROWS})")
    parser.add_argument("--repetitions", type=int, help="measure each side so often; for looking, not for the README")
    parser.add_argument("--install", action="store_true", help="get Kafka and Spark's connector for it first")
    parser.add_argument("--list", action="store_true", help="name the loads and stop")
    parser.add_argument("--dir", type=Path, default=HERE / ".peers" / "spark-run", help="where everything is kept")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where results are written")
    return parser.parse_args()


def versions() -> dict[str, str | None]:
    """What is measured beside us."""
    from pyspark import __version__

    return {
        "spark": __version__,
        "kafka": peers.versions()["kafka"],
        "kafka connector": spark_peers.connector_version(),
    }


def install(console: Console) -> None:
    """Kafka itself and the connector."""
    broker = next(peer for peer in peers.PEER_TABLE if peer.name == "kafka")
    if peers.version(broker) is None:
        console.print(peers.install(broker))
    if spark_peers.connector_version() is None:
        console.print(spark_peers.install_connector())


def main() -> int:
    wanted = arguments()
    console = Console() if sys.stdout.isatty() else Console(width=FILE_COLUMNS)
    if wanted.list:
        for name, load in LOADS.items():
            console.print(f"{name:12} {load.__doc__}", highlight=False)
        return 0
    if wanted.install:
        install(console)
    machine = facts()
    if os.getloadavg()[0] > BUSY_LOAD_AVERAGE:
        console.print(f"[bold red]this machine is busy[/] (load {os.getloadavg()[0]:.2f}): figures will suffer")
    effort = QUICK if wanted.quick else FULL
    if wanted.repetitions:
        effort = replace(effort, repetitions=wanted.repetitions)
    rows = max(ROWS_MIN, wanted.rows or (QUICK_ROWS if wanted.quick else ROWS))
    found = versions()
    with Bench(wanted.dir.resolve(), effort, console, {OURS}) as bench, Run(bench, rows) as run:
        for name in wanted.only or LOADS:
            try:
                LOADS[name](run)
            except Exception as error:  # a load of Spark's may raise anything; the others still count
                bench.skip(name, str(error))
    console.print(report.table(bench.comparisons, machine | {"rows": rows}, found))
    for line in bench.skipped:
        console.print(f"[bold red]SKIPPED[/] {line}", highlight=False)
    if wanted.quick:
        console.print("[yellow]a quick run: these figures mean nothing[/]")
    report.save(
        wanted.results, bench.comparisons, machine | {"rows": rows}, found, bench.skipped, console, RESULT_PREFIX
    )
    missed = [comparison.load for comparison in bench.comparisons if comparison.reached is False]
    if missed:
        console.print(f"targets missed: {', '.join(missed)}", highlight=False)
    return 1 if bench.skipped else 0


if __name__ == "__main__":
    sys.exit(main())
