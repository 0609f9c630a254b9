"""The Spark side-by-side run without Spark: its rows, its turns, its verdicts, its processor time and its report."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from bench.harness import OURS, Comparison
from bench.report import markdown, save
from bench.spark_loads import LOADS, Job, Timed, in_turn
from bench.spark_tuples import tuples
from rich.console import Console

from bench import spark_peers, spark_rows
from quintet.bench.machine import facts
from quintet.log.mapped import Gathered


def table(rows: int, **more: int) -> pa.Table:
    return pa.Table.from_batches(list(spark_rows.batches(rows, **more)), spark_rows.SCHEMA)


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, spark_rows.BATCH_ROWS, 2 * spark_rows.BATCH_ROWS + 7])
def test_as_many_rows_as_were_asked_for(rows: int) -> None:
    assert table(rows).num_rows == rows


def test_rows_are_the_same_for_the_same_seed() -> None:
    assert table(500) == table(500)
    assert table(500) != table(500, seed=spark_rows.SEED + 1)


def test_rows_have_the_sizes_and_the_spread_that_the_targets_speak_of() -> None:
    made = table(40_000)
    assert pc.unique(pc.binary_length(made["value"])).to_pylist() == [spark_rows.VALUE_BYTES]
    assert pc.unique(pc.binary_length(made["key"])).to_pylist() == [spark_rows.KEY_BYTES]
    assert len(pc.unique(made["key"])) == spark_rows.KEYS
    shares = made.group_by("partition").aggregate([([], "count_all")])["count_all"].to_pylist()
    assert len(shares) == spark_rows.PARTITIONS
    assert min(shares) > 0.9 * max(shares)
    steps = pc.pairwise_diff(made["timestamp"].combine_chunks().cast(pa.int64()))
    assert pc.unique(steps.drop_null()).to_pylist() == [spark_rows.STEP_US]


def test_a_key_is_in_one_partition_only() -> None:
    places = table(40_000).group_by("key").aggregate([("partition", "count_distinct")])
    assert pc.max(places["partition_count_distinct"]).as_py() == 1


def test_values_do_not_compress() -> None:
    made = table(5_000)["value"].combine_chunks().buffers()[2]
    assert len(pa.compress(made, "zstd", asbytes=True)) > 0.99 * len(made)


def packed(kind: str, *numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)


def test_the_peer_yields_what_was_gathered() -> None:
    """The reader that yields tuples must do the whole work, or the ratio against it would flatter us."""
    values = [b"one", b"three"]
    buffers: list[bytes | None] = [None] * 15
    buffers[0], buffers[1] = packed("q", 7, 8), packed("q", 1_000_000, 2_500_000)
    buffers[3], buffers[4] = packed("i", 0, 3, 8), b"".join(values)
    buffers[6], buffers[7] = packed("i", 0, 1, 2), b"ab"
    buffers[13], buffers[14] = packed("i", 0, 5, 10), b"a:onea:two"
    rows = list(tuples(Gathered(2, tuple(buffers)), "t", 3))
    assert [row[:6] for row in rows] == [(b"a", b"one", [], "t", 3, 7), (b"b", b"three", [], "t", 3, 8)]
    assert [row[6].timestamp() for row in rows] == [1.0, 2.5]  # type: ignore[attr-defined]
    assert [row[7] for row in rows] == ["a:one", "a:two"]


# -- turns ------------------------------------------------------------------------------------------------------------


class Clock:
    """Goes on only when a job says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def job(self, side: str, rows: int, *seconds: float) -> Job:
        left = iter(seconds)

        def call() -> None:
            self.order.append(side)
            self.now += next(left)

        return Job(side, rows, call)

    def measured(self, jobs: list[Job], repetitions: int, skip: Callable[[str, str], None]) -> list[Timed]:
        found = in_turn(jobs, repetitions, skip, lambda: self.now, lambda: 2 * self.now)
        assert all(isinstance(figure, Timed) for figure in found)
        return [figure for figure in found if isinstance(figure, Timed)]


def loudly(side: str, why: str) -> None:
    raise AssertionError(f"{side}: {why}")


def test_sides_are_warmed_up_and_then_measured_in_turn() -> None:
    clock = Clock()
    jobs = [clock.job(OURS, 100, 50.0, 1.0, 2.0), clock.job("peer", 100, 70.0, 4.0, 4.0)]
    ours, peer = clock.measured(jobs, 2, loudly)
    assert clock.order == [OURS, "peer"] * 3
    assert ours.values == [100.0, 50.0]
    assert (ours.wall, ours.cpu) == ([1.0, 2.0], [2.0, 4.0])
    assert peer.values == [25.0, 25.0]


def test_a_job_that_knows_its_own_rate_is_believed() -> None:
    [figure] = in_turn([Job("door", 0, lambda: 123.0)], 1, loudly, cpu=lambda: 0.0)
    assert figure.values == [123.0]
    assert figure.note == ""


def test_a_job_that_fails_is_left_out_loudly_and_the_others_go_on() -> None:
    clock, skipped = Clock(), list[tuple[str, str]]()

    def breaks() -> None:
        raise ValueError("\nno such thing\n  at java.lang")

    jobs = [Job("peer", 100, breaks), clock.job(OURS, 100, 1.0, 1.0, 1.0)]
    [figure] = clock.measured(jobs, 2, lambda side, why: skipped.append((side, why)))
    assert figure.side == OURS
    assert skipped == [("peer", "no such thing")]


def test_processor_time_stands_beside_the_clock() -> None:
    figure = Timed(OURS, [2e6], rows=4_000_000, wall=[2.0], cpu=[4.0])
    assert figure.note == "2.00 s, 4.00 cpu-s, 1.00 Mrow/cpu-s"


# -- reports ----------------------------------------------------------------------------------------------------------


def test_sides_of_ours_may_bear_longer_names_and_a_missed_target_is_kept(tmp_path: Path) -> None:
    ours = Timed(f"{OURS} over Flight", [40.0], rows=80, wall=[2.0], cpu=[3.0])
    made = Comparison("over Flight", "row/s", [ours, Timed("mapped segments", [100.0])], target=0.5)
    assert (made.ratio, made.reached) == (0.4, False)
    assert "2.00 s, 3.00 cpu-s" in markdown([made], facts(), {})
    with (tmp_path / "out").open("w") as out:
        save(tmp_path / "results", [made], facts(), {}, [], Console(file=out), "spark-")
    names = {path.suffix: path.name for path in (tmp_path / "results").iterdir()}
    assert all(name.startswith("spark-") for name in names.values())
    kept = json.loads((tmp_path / "results" / names[".json"]).read_text())["results"][0]
    assert kept["reached"] is False
    assert kept["figures"][0]["cpu"] == [3.0]


def test_every_load_says_what_it_is() -> None:
    assert all(load.__doc__ for load in LOADS.values())


# -- processor time ---------------------------------------------------------------------------------------------------


def test_the_time_of_a_tree_is_that_of_all_below_its_root() -> None:
    found = {1: (0, 100.0), 5: (1, 1.0), 6: (5, 2.0), 7: (6, 4.0), 8: (1, 50.0)}
    assert spark_peers.tree_seconds(found, 5) == 7.0
    assert spark_peers.tree_seconds(found, 99) == 0.0


def test_work_of_this_process_is_seen() -> None:
    before = spark_peers.cpu_seconds()
    used = sum(os.times()[:2])
    while sum(os.times()[:2]) < used + 0.1:
        sum(range(10_000))
    assert spark_peers.cpu_seconds() > before
