"""The model of docs/SCALE.md: it follows from its figures, they are those of bench/README.md, and the document shows what it computes."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench.scale import TARGETS, Assumed, Measured, Target, need, tables

ROOT = Path(__file__).parents[2]
README = (ROOT / "bench" / "README.md").read_text()
# Figure of the model -> the row of bench/README.md that it is from, and the number in that row.
SOURCES = {
    "durable_alone_per_s": (r"qos1_durable 64 connections x 1 in flight, 128 B \| ([\d.]+) k/s", 1_000),
    "durable_batched_per_s": (r"qos1_durable 16 connections x 64 in flight, 128 B \| ([\d.]+) k/s", 1_000),
    "fanout_per_s": (r"fanout 1 to 16, 128 B \| ([\d.]+) M/s", 1_000_000),
    "idle_connection_bytes": (r"memory per idle connection, 5,000 open \| ([\d,]+) B", 1),
}
BASE = Target("base", 10_000, 1_000_000, 128, 10)


def shown_in(text: str, table: str) -> bool:
    return table.strip() in text


@pytest.mark.parametrize("name", SOURCES)
def test_figures_are_those_that_were_measured(name: str) -> None:
    pattern, unit = SOURCES[name]
    found = re.search(pattern, README)
    assert found is not None
    assert getattr(Measured(), name) == pytest.approx(float(found[1].replace(",", "")) * unit)


def test_the_document_shows_what_the_model_computes() -> None:
    text = (ROOT / "docs" / "SCALE.md").read_text()
    assert shown_in(text, tables()), "run bench/scale.py and put its tables into docs/SCALE.md"


def test_a_document_with_another_figure_is_caught() -> None:
    text = (ROOT / "docs" / "SCALE.md").read_text()
    cells = f"{need(TARGETS[-1]).cells:,}"
    assert cells in text
    assert not shown_in(text.replace(cells, "7"), tables())


def test_the_two_costs_give_the_measured_rates_again() -> None:
    known = Measured()
    assert 1 / (known.write_s + known.publish_s) == pytest.approx(known.durable_alone_per_s)
    batched = known.write_s / known.batched_messages + known.publish_s
    assert 1 / batched == pytest.approx(known.durable_batched_per_s)
    assert known.write_s > 0
    assert known.publish_s > 0


@pytest.mark.parametrize(
    "more",
    [
        {"messages_per_s": 2_000_000.0},
        {"value_bytes": 4_096},
        {"readers": 20.0},
        {"messages_per_write": 1},
        {"connections": 10_000_000},
    ],
)
def test_more_of_anything_never_takes_less(more: dict[str, float]) -> None:
    little, much = need(BASE), need(replace(BASE, **more))  # type: ignore[arg-type]
    assert (much.cells, much.nodes, much.brokers, much.disks) >= (
        little.cells,
        little.nodes,
        little.brokers,
        little.disks,
    )
    for name in ("cells", "cores", "nodes", "brokers", "disks", "wal_bytes_per_s", "cluster_bytes_per_s"):
        assert getattr(much, name) >= getattr(little, name), name
    assert much != little


def test_what_is_needed_carries_what_is_wanted() -> None:
    """Recomputed the other way round: no core, disk or network is busier than it may be."""
    given, known = Assumed(), Measured()
    for target in TARGETS:
        found = need(target)
        each = target.messages_per_s / found.cells
        leader = (known.write_s / target.messages_per_write + known.publish_s) * known.shipping_ratio
        assert each * (leader + known.delivery_s * target.readers) <= given.busy_max + 1e-9
        assert target.connections / found.cells <= given.connections_per_cell
        assert found.nodes * given.cores_per_node >= found.cores
        assert found.nodes * given.connections_per_node >= target.connections
        written = found.wal_bytes_per_s * (given.replicas + given.kafka_replicas)
        assert found.disks * given.disk_bytes_per_s * given.busy_max >= written - 1
        assert min(found.nodes, found.brokers) >= 3


def test_clients_that_batch_take_fewer_cells() -> None:
    counts = [need(replace(BASE, messages_per_s=1e8, messages_per_write=batch)).cells for batch in (1, 4, 16, 64)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 10 * counts[-1]


def test_forwarding_costs_network() -> None:
    target = replace(BASE, messages_per_s=1e8, messages_per_write=64)
    direct, detour = need(target), need(target, assumed=Assumed(forwarded_ratio=2 / 3))
    assert detour.nodes > direct.nodes
    assert detour.cluster_bytes_per_s > direct.cluster_bytes_per_s


def test_nothing_wanted_takes_the_least_there_is() -> None:
    found = need(Target("nothing", 0, 0))
    assert (found.cells, found.nodes, found.brokers, math.ceil(found.cores)) == (1, 3, 3, 0)


@pytest.mark.parametrize(
    ("target", "assumed", "says"),
    [
        (replace(BASE, connections=-1), Assumed(), "connections is -1"),
        (replace(BASE, messages_per_write=0), Assumed(), "1 message or more"),
        (BASE, Assumed(busy_max=1.5), "busy_max is a share above 0 and up to 1, not 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(target: Target, assumed: Assumed, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        need(target, assumed=assumed)
