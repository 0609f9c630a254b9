"""Runs the declarative pipeline of this folder (spark-pipeline.yml) once, and prints what came out of it.

    quintet serve --dev                                    # in another terminal
    quintet pub shop.orders 10 --key ann
    quintet pub shop.orders 20 --key bob
    python examples/declarative/run.py [FOLDER]            # twice, if you like: with new orders between

FOLDER (var/declarative) keeps the tables, the catalog and the checkpoints, so that the next run goes on. Needs
pip install 'quintet[spark,declarative]', and 'quintet[java]' on a machine without Java 17. The broker is that of
QUINTET_FLIGHT_URL. Port 15002, that of Spark Connect, must be free. A run takes about a minute, most of it to start.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset as ds
import yaml

from quintet.flight import wire
from quintet.spark.sessions import java, start
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target

HERE = Path(__file__).parent
URL = os.environ.get("QUINTET_FLIGHT_URL", "flight://admin:admin@127.0.0.1:8815")
MASTER = "local[2]"
DONE = "Run is COMPLETED."


def prepare(folder: Path) -> Path:
    """The pipeline's files and Spark's settings, with all places in the folder. The spec; the rest stands beside it."""
    shutil.copytree(HERE / "transformations", folder / "transformations", dirs_exist_ok=True)
    spec = yaml.safe_load((HERE / "spark-pipeline.yml").read_text())
    made = folder / "spark-pipeline.yml"
    made.write_text(yaml.safe_dump({**spec, "storage": (folder / "state").as_uri()}))
    settings = {
        **start.defaults(MASTER),
        "spark.sql.catalogImplementation": "hive",  # the default forgets its tables, and a second run fails over them
        "spark.sql.warehouse.dir": str(folder / "tables"),
    }
    # In a file, since of many settings given by --conf Spark Connect takes only the last few (pyspark 4.3.0).
    (folder / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
    return made


def run(spec: Path) -> None:
    """Start `spark-pipelines run` with a Java that it can start, and with what workers need to find this package."""
    environment = {
        **start.machine_environment({}),
        "SPARK_CONF_DIR": str(spec.parent),
        "SPARK_SUBMIT_OPTS": " ".join([*os.environ.get("SPARK_SUBMIT_OPTS", "").split(), *start.logging_flags()]),
        "JAVA_HOME": str(start.wrapper(java.find())),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore::UserWarning",  # Spark Connect warns of each setting that only counts at the start
        "QUINTET_FLIGHT_URL": URL,
    }
    # It takes no --master: declarative pipelines speak Spark Connect, and a local remote is a server of their own.
    command = [start.spark_home() / "bin" / "spark-pipelines", "run", "--spec", spec, "--remote", MASTER]
    done = False
    with subprocess.Popen(
        command, cwd=spec.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            done = done or DONE in line
            print(line, end="", file=sys.stderr)
    # Spark 4.2 and 4.3 may exit with 1 behind a run in which Python read or wrote: then its last word counts.
    if not done:
        sys.exit(f"the run did not complete (exit code {process.returncode}); what Spark said stands above")


def results(folder: Path) -> None:
    """What each customer paid, by the table and by the topic."""
    for row in sorted(ds.dataset(folder / "tables" / "totals").to_table().to_pylist(), key=lambda row: row["customer"]):
        print("table", row["customer"], row["paid"], row["orders"])
    newest: dict[str, dict[str, int]] = {}
    with FlightConnection(target({"url": URL})) as link:
        for topic in link.topics(wire.Selection(("shop.totals",))).topics:
            for partition in range(len(topic.partitions)):
                for batch in link.read(wire.Ticket(topic.name, partition, columns=("key", "value"))):
                    newest |= {row["key"].decode(): json.loads(row["value"]) for row in batch.to_pylist()}
    for customer, total in sorted(newest.items()):
        print("topic", customer, total["paid"], total["orders"])


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run(prepare(folder))
    results(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "var/declarative").absolute())
