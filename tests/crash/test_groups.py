"""A11, thin: 40 rebalances with members that die, freeze and storm in, and a broker that does not fence is found out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.brokers import Launcher
from tests.crash.groups import Campaign

pytestmark = pytest.mark.crash
REBALANCES = 40


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("groups"))
    yield started
    started.close()


def test_one_owner_per_partition_and_generation(launcher: Launcher, tmp_path: Path) -> None:
    campaign = Campaign(launcher, tmp_path, seed=1)
    campaign.run(REBALANCES)
    assert not campaign.violations, campaign.violations[:5]
    assert campaign.book.commits
    assert campaign.book.fenced, "some commits must have come too late"


def test_a_broker_that_does_not_fence_is_caught(launcher: Launcher, tmp_path: Path) -> None:
    campaign = Campaign(launcher, tmp_path, seed=1, sabotage="no-fence")
    campaign.run(REBALANCES)
    assert campaign.violations
