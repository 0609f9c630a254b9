"""S2, thin: 8 power cuts lose nothing that was acknowledged, and a broker that does not sync is found out."""

from collections.abc import Iterator

import pytest

from tests.crash.brokers import Launcher
from tests.crash.power import Bench, Campaign, Unable

pytestmark = pytest.mark.crash
CUTS = 8
CONTROLS = 8


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launcher, Bench]]:
    folder = tmp_path_factory.mktemp("power")
    try:
        bench = Bench(folder)
    except Unable as error:
        pytest.skip(f"NOT PROVEN HERE: power cuts need root, loop devices and XFS: {error}")
    launcher = Launcher(folder)
    yield launcher, bench
    launcher.close()
    bench.close()


def test_power_cuts(stage: tuple[Launcher, Bench]) -> None:
    campaign = Campaign(*stage, seed=1)
    campaign.run(CUTS)
    assert not campaign.verdict.bad, campaign.verdict
    assert campaign.cuts == CUTS
    assert campaign.verdict.acked > CUTS, "a campaign in which nothing was acknowledged proves nothing"


def test_a_broker_that_does_not_sync_is_caught(stage: tuple[Launcher, Bench]) -> None:
    campaign = Campaign(*stage, seed=2, sabotage="no-fsync")
    campaign.run(CONTROLS)
    assert campaign.with_loss * 100 >= campaign.cuts * 95, campaign.verdict
