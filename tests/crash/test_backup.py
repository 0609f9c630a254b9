"""Backups made amid clients on all doors hold what was acknowledged before; one that leaves something out is found out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.backup import Campaign
from tests.crash.brokers import Launcher

pytestmark = pytest.mark.crash
BACKUPS = 2


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("backup"))
    yield started
    started.close()


def test_backups_amid_clients_and_kills_hold_what_was_promised(launcher: Launcher, tmp_path: Path) -> None:
    campaign = Campaign(launcher, tmp_path, seed=1)
    campaign.run(BACKUPS)
    assert not campaign.bad, campaign.bad
    assert campaign.acked > 0, "a backup of nothing proves nothing"
    assert campaign.caught == BACKUPS, "the sabotaged backups must be found out"
