"""S6, A10, A12, thin: 12 kills amid transactions, delays, replays and retries, and a broker without intents is found out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.brokers import Launcher
from tests.crash.transactions import Campaign

pytestmark = pytest.mark.crash
KILLS = 12
CONTROLS = 20


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("transactions"))
    yield started
    started.close()


def test_nothing_is_torn_lost_or_doubled(launcher: Launcher, tmp_path: Path) -> None:
    campaign = Campaign(launcher, tmp_path, seed=1)
    campaign.run(KILLS)
    counts = campaign.counts
    assert not counts.bad, counts
    assert counts.committed and counts.rolled_back and counts.delayed and counts.replayed and counts.idempotent, counts


def test_commits_without_intents_are_caught(launcher: Launcher, tmp_path: Path) -> None:
    campaign = Campaign(launcher, tmp_path, seed=2, sabotage="no-intents")
    campaign.run(CONTROLS)
    assert campaign.counts.bad
