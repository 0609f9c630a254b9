"""Every program about Spark in README.md and docs/SPARK.md runs as it stands there, against a real broker."""

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from quintet.flight import wire
from tests.spark.conftest import FlightServer
from tests.spark.data import create, fill, link_to

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text() + (ROOT / "docs/SPARK.md").read_text()
PROGRAMS = [program for program in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "quintet.spark" in program]
URL = "flight://admin:admin@127.0.0.1:8815"


def test_programs(
    spark: SparkSession, broker: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create(broker, "orders", 2)
    fill(broker, "orders", 2, rows=3)
    for program in PROGRAMS:
        assert URL in program
        program = program.replace(URL, broker.flight).replace("state/", f"{tmp_path}/")
        exec(compile(program, "docs", "exec"), {})
    for name in ("sql", "table"):  # session(url=...) lets them find topics; the other tests share this session
        vars(spark).pop(name, None)
    shown = capsys.readouterr().out
    assert "|       k0|" in shown or "[6B 30]" in shown, shown
    shouted = [
        row for p in range(1) for batch in link_to(broker).read(wire.Ticket("shouted", p)) for row in batch.to_pylist()
    ]
    assert len(shouted) == 6
    written = [row for batch in link_to(broker).read(wire.Ticket("written", 0)) for row in batch.to_pylist()]
    assert sorted((row["key"], row["value"]) for row in written) == [(b"k1", b"a value"), (b"k2", None)]
    assert len(PROGRAMS) == 3
