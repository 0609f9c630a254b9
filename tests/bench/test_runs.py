"""Every shape of load against a real broker, small: what is counted must be exact."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import peers
from quintet.bench import run
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.generators import Load
from quintet.bench.wire import Address, BenchError
from quintet.cli.bench import bench


def test_pipelined_publishes_are_all_taken(address: Address) -> None:
    outcome = run.pipelined(Load(BlipmqWire(), address, "runs.pipelined", 128), 10_001)
    assert outcome.messages == 10_001
    assert outcome.rate > 0


def test_topics_in_turn(address: Address) -> None:
    outcome = run.rotating(Load(BlipmqWire(), address, "runs.turn", 16), topics=20, run=3, passes=2)
    assert outcome.messages == 120


def test_windows_end_with_the_count(address: Address) -> None:
    seen: list[int] = []
    load = Load(BlipmqWire(), address, "runs.windows", 128, 1)
    outcome = run.windows(load, connections=4, in_flight=8, depth=2, count=1600, progress=seen.append)
    assert outcome.messages == 1600
    assert len(outcome.latencies) == 200
    assert seen == sorted(seen)


@pytest.mark.parametrize("qos", [0, 1])
def test_every_subscriber_gets_every_message(address: Address, qos: int) -> None:
    load = Load(BlipmqWire(), address, f"runs.flow{qos}", 128, qos)
    outcome = run.flow(load, 2_000, subscribers=3, processes=2, sample=True)
    assert outcome.messages == 6_000
    assert outcome.loop == "closed"
    assert len(outcome.latencies) > 0


@pytest.mark.parametrize("qos", [0, 1])
def test_a_schedule_measures_every_message(address: Address, qos: int) -> None:
    load = Load(BlipmqWire(), address, f"runs.schedule{qos}", 64, qos)
    outcome = run.scheduled_flow(load, 2_000, 500, subscribers=2)
    assert (outcome.loop, len(outcome.latencies)) == ("open", 1_000)
    assert min(outcome.latencies) > 0


def test_a_wrong_key_is_an_error_in_words(address: Address) -> None:
    with pytest.raises(BenchError, match="invalid API key"):
        run.pipelined(Load(BlipmqWire(key="wrong"), address, "t", 16), 10)


def test_nobody_listening_is_an_error_in_words() -> None:
    with pytest.raises(BenchError, match="cannot connect to"):
        run.pipelined(Load(BlipmqWire(), ("127.0.0.1", peers.free_port()), "t", 16), 10)


def test_the_command_writes_json_and_a_picture(address: Address, tmp_path: Path) -> None:
    url = f"blipmq://:dev-key@{address[0]}:{address[1]}"
    result, drawing = tmp_path / "result.json", tmp_path / "result.svg"
    arguments = ["e2e", url, "--rate", "1000", "--count", "200", "--json", str(result), "--picture", str(drawing)]
    said = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert said.exit_code == 0, said.output
    found = json.loads(result.read_text())
    assert (found["messages"], found["latency_us"]["count"], found["latency_us"]["loop"]) == (200, 200, "open")
    assert {"cpu", "cores", "python", "date"} <= set(found["machine"])
    assert drawing.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    "arguments",
    [
        ["e2e", "--size", "4"],
        ["pub", "--count", "1", "--duration", "1"],
        ["fanout", "--duration", "1"],
        ["pub", "--rate", "10", "--connections", "2"],
    ],
)
def test_contradictions_are_usage_errors(arguments: list[str]) -> None:
    assert CliRunner().invoke(bench, arguments).exit_code == 2
