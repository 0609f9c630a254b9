"""The Spark campaign in small: each worst moment once, and a sink without a fence that must be found out."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.crash.spark import Campaign

pytestmark = [pytest.mark.crash, pytest.mark.timeout(400)]


def test_a_query_that_is_killed_at_its_worst_moments_copies_every_row_once(tmp_path: Path) -> None:
    kinds = ("after commit", "broker", "worker", "rollback")
    verdict = Campaign(tmp_path, seed=1, rows=12_000, kills=len(kinds), kinds=kinds).run()
    assert verdict.good, verdict.facts()
    assert verdict.kills.total() == len(kinds), verdict.facts()


def test_a_sink_without_a_fence_is_found_out(tmp_path: Path) -> None:
    """Positive control."""
    verdict = Campaign(tmp_path, seed=2, rows=5_000, kills=1, kinds=("after commit",), sabotage=True).run()
    assert verdict.duplicates > 0, verdict.facts()
    assert not verdict.missing
