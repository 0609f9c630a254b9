"""S1, thin: 15 kills of a broker under load lose nothing, and a broker that acknowledges early is found out."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.brokers import Launcher
from tests.crash.kill import Campaign, sabotaged

pytestmark = pytest.mark.crash
KILLS = 15
STRACE_KILLS = 2
CONTROLS = 4


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("kill"))
    yield started
    started.close()


def test_kills(launcher: Launcher, tmp_path: Path) -> None:
    campaign = Campaign(launcher, tmp_path, seed=1)
    campaign.run(KILLS)
    assert not campaign.verdict.bad, campaign.verdict
    assert campaign.kills >= KILLS
    assert campaign.recovery_kills, "some kills must fall into recovery"
    assert campaign.verdict.acked > KILLS, "a campaign in which nothing was acknowledged proves nothing"
    if launcher.plan is not None:
        assert campaign.call_kills, "some kills must fall on a chosen call"


def test_nothing_is_lost_when_strace_kills_at_a_system_call(launcher: Launcher, tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("NOT PROVEN HERE: strace is missing (apt install strace)")
    campaign = Campaign(launcher, tmp_path, seed=2, strace_share=1.0)
    campaign.run(STRACE_KILLS)
    assert not campaign.verdict.bad, campaign.verdict
    assert campaign.strace_kills, "strace must have killed at least one broker"


def test_a_broker_that_acknowledges_before_it_writes_is_caught(launcher: Launcher, tmp_path: Path) -> None:
    assert sabotaged(launcher, tmp_path, seed=3, kills=CONTROLS) == CONTROLS
