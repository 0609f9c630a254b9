"""The Spark campaign in small: the worst moments once, and a sink without a fence that must be found out."""

import os
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.crash.spark import Campaign

LONG = "QUINTET_TEST_LONG"  # set: a third kill, and the control, which every campaign has, too
pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]


def test_a_query_killed_at_its_worst_moments_copies_every_row_once(tmp_path: Path) -> None:
    """`rollback` kills the driver after the sink's commit, too, and takes back one more note of the checkpoint."""
    kinds = ("after commit", "broker", "rollback") if LONG in os.environ else ("broker", "rollback")
    verdict = Campaign(tmp_path, seed=1, rows=9_000, kills=len(kinds), kinds=kinds).run()
    assert verdict.good, verdict.facts()
    assert verdict.kills.total() == len(kinds), verdict.facts()


@pytest.mark.skipif(LONG not in os.environ, reason=f"two more sessions of Spark: {LONG}=1, or make campaign, runs it")
def test_a_sink_without_a_fence_is_found_out(tmp_path: Path) -> None:
    """Positive control."""
    verdict = Campaign(tmp_path, seed=2, rows=5_000, kills=1, kinds=("after commit",), sabotage=True).run()
    assert verdict.duplicates > 0, verdict.facts()
    assert not verdict.missing
