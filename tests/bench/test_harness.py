"""The side-by-side harness without its peers: ratios, verdicts, reports, and what happens when a server is missing."""

import json
from pathlib import Path

import pytest
from bench.harness import OURS, QUICK, Bench, Comparison, Figure
from bench.report import markdown, save, table
from rich.console import Console

from bench import loads, peers
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.generators import Load
from quintet.bench.machine import facts
from quintet.bench.subscribers import receive
from quintet.bench.wire import Address, BenchError


def comparison(better: str, ours: float, peers: dict[str, float], target: float) -> Comparison:
    figures = [Figure(OURS, [ours]), *(Figure(name, [value]) for name, value in peers.items())]
    return Comparison("a load", "msg/s", figures, better, target)  # type: ignore[arg-type]


def test_the_ratio_is_against_the_better_peer() -> None:
    assert comparison("higher", 30, {"a": 10, "b": 20}, 2.0).ratio == 1.5
    assert comparison("lower", 30, {"a": 10, "b": 20}, 2.0).ratio == 3.0


def test_peers_for_information_do_not_count() -> None:
    made = comparison("higher", 30, {"a": 10}, 2.0)
    made.figures.append(Figure("fast", [1000], counts=False))
    assert made.ratio == 3.0


@pytest.mark.parametrize(
    ("better", "ours", "target", "reached"),
    [("higher", 30, 3.0, True), ("higher", 29, 3.0, False), ("lower", 20, 2.0, True), ("lower", 21, 2.0, False)],
)
def test_verdicts(better: str, ours: float, target: float, reached: bool) -> None:
    assert comparison(better, ours, {"peer": 10}, target).reached is reached


def test_an_absolute_target_needs_no_peer() -> None:
    made = Comparison("memory", "B", [Figure(OURS, [9000])], "lower", 8192, absolute=True)
    assert made.reached is False
    assert made.ratio is None


def test_the_median_is_of_the_repetitions() -> None:
    figure = Figure("x", [10, 1000, 12])
    assert figure.median == 12
    assert figure.spread == 82.5


def test_reports_keep_what_was_missed(tmp_path: Path) -> None:
    made = [comparison("higher", 10, {"peer": 20}, 1.0), comparison("lower", 5, {"peer": 10}, 2.0)]
    made[1].curves = {OURS: [(0.0, 1.0), (50.0, 2.0), (99.0, 9.0)]}
    versions = {"nats": "2.0", "redis": None}
    assert "MISSED" in markdown(made, facts(), versions)
    console = Console(width=160, record=True, file=(tmp_path / "out").open("w"))
    console.print(table(made, facts(), versions))
    assert "redis MISSING" in console.export_text()
    save(tmp_path / "results", made, facts(), versions, ["mosquitto: gone"], console)
    console.file.close()
    written = {path.suffix: path for path in (tmp_path / "results").iterdir()}
    assert set(written) == {".json", ".md", ".png"}
    kept = json.loads(written[".json"].read_text())
    assert [row["reached"] for row in kept["results"]] == [False, True]
    assert kept["skipped"] == ["mosquitto: gone"]
    assert written[".png"].read_bytes().startswith(b"\x89PNG")


def test_a_missing_peer_is_skipped_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find", lambda program: None)
    console = Console(record=True, width=160, file=(tmp_path / "out").open("w"))
    with Bench(tmp_path / "run", QUICK, console, {"mosquitto"}) as bench:
        assert bench.sides({"mosquitto": False, "nats core": True}) == []
    assert "SKIPPED mosquitto" in console.export_text()
    assert len(bench.skipped) == 1
    console.file.close()


def test_one_load_of_the_harness_runs_on_us_alone(tmp_path: Path) -> None:
    console = Console(file=(tmp_path / "out").open("w"))
    with Bench(tmp_path / "run", QUICK, console, {OURS}) as bench:
        loads.qos0_e2e(bench)
    console.file.close()
    [made] = bench.comparisons
    assert made.ours is not None
    assert len(made.ours.values) == QUICK.repetitions
    assert bench.skipped == []
    assert not (tmp_path / "run").exists()


def test_a_message_too_many_fails_the_count(address: Address) -> None:
    """The control for exact counting: two messages come where one is owed."""

    class Publishing:
        def ready(self) -> None:
            with BlipmqWire().connect(address) as sock:
                sock.sendall(load.wire.encode(load.topic, bytes(16), 0, 2))

    load = Load(BlipmqWire(), address, "harness.surplus", 16)
    with pytest.raises(BenchError, match="bytes more than"):
        receive(Publishing(), load, 1, 1, False, None, 0)  # type: ignore[arg-type]
