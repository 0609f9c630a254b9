"""A2, A3, A13, thin: 6 kills amid Fast, peerbus, Felix and BlipMQ clients; broken promises and tampered logs are found out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import doors, tamper
from tests.crash.brokers import Launcher

pytestmark = pytest.mark.crash
KILLS = 6
CONTROL_KILLS = 8


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("doors"))
    yield started
    started.close()


def test_what_the_new_doors_promise_survives_kills(launcher: Launcher, tmp_path: Path) -> None:
    campaign = doors.Campaign(launcher, tmp_path, seed=1)
    campaign.run(KILLS)
    counts = campaign.counts
    assert not counts.bad, counts
    assert counts.published and counts.rotations and counts.delivered and counts.replays and counts.verified, counts
    assert counts.streamed and counts.consumed and counts.committed and counts.cached and counts.increments, counts
    assert campaign.last is not None
    caught = tamper.controls(campaign.last, tmp_path / "tampered", doors.verdict(launcher))
    assert all(caught.values()), caught


@pytest.mark.parametrize("sabotage", doors.SABOTAGES)
def test_a_broken_promise_is_caught(launcher: Launcher, tmp_path: Path, sabotage: str) -> None:
    campaign = doors.Campaign(launcher, tmp_path, seed=2, sabotage=sabotage, verify=False)
    campaign.run(CONTROL_KILLS)
    assert campaign.counts.bad
