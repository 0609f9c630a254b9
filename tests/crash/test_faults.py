"""S7 and A8, thin: failing calls and full disks lose nothing, are told, and heal; a broker deaf to errors is found out."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import faults, load, reader, wire
from tests.crash.brokers import Launcher
from tests.crash.load import History, Load

pytestmark = pytest.mark.crash
INJECTIONS = 40
CYCLES = 3
CONTROLS = 2
SAVED_S = 1.5  # by when the broker has saved a consumer's progress: it does so every 200 ms


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    started = Launcher(tmp_path_factory.mktemp("faults"))
    if started.plan is None:
        started.close()
        pytest.skip("NOT PROVEN HERE: the fault shim needs gcc (apt install gcc libc6-dev)")
    yield started
    started.close()


def test_failing_calls_lose_nothing(launcher: Launcher, tmp_path: Path) -> None:
    campaign = faults.Campaign(launcher, tmp_path, seed=1)
    campaign.run(INJECTIONS)
    assert not campaign.verdict.bad, campaign.verdict
    assert campaign.fired * 2 > INJECTIONS, "most injections must have happened"
    assert campaign.refused, "some publishes must have been refused"
    assert campaign.restarted and campaign.healed, "both kinds of faults must have been met"


@pytest.mark.parametrize("seed", range(CYCLES))
def test_a_full_disk_refuses_and_resumes(launcher: Launcher, tmp_path: Path, seed: int) -> None:
    try:
        verdict, refused = faults.full_cycle(launcher, tmp_path, seed)
    except OSError as error:
        if os.geteuid() == 0:
            raise
        pytest.skip(f"NOT PROVEN HERE: {error}")
    assert not verdict.bad, verdict
    assert refused


def test_progress_of_consumers_is_saved_again_after_a_full_disk(launcher: Launcher, tmp_path: Path) -> None:
    """What was acknowledged by the consumer after space came back is not delivered again after a crash."""
    assert launcher.plan is not None
    data = tmp_path / "data"
    history = History(1)
    broker = launcher.start(data)
    history.subscribe(broker.address)
    running = Load(history, broker.address)
    running.wait_for(200)
    launcher.plan.arm(data, ("pwritev",), faults.ERRORS["ENOSPC"], 1, 0)
    time.sleep(SAVED_S)
    running.stop()
    launcher.plan.disarm()
    assert not faults.heals(history, broker, curable=True)
    disk = reader.read(data)
    assert not load.drain(history, broker.address, disk, load.unsettled(disk, history.settled)).bad
    time.sleep(SAVED_S)
    broker.end()
    broker = launcher.start(data)
    with wire.Wire(broker.address) as peer:
        load.attach(peer, history)
        again = peer.barrier()
    broker.end()
    assert not again, f"{len(again)} messages came again that were acknowledged {SAVED_S} s before the crash"


def test_a_broker_that_does_not_hear_errors_is_caught(launcher: Launcher, tmp_path: Path) -> None:
    assert all(faults.control(launcher, tmp_path, seed) for seed in range(CONTROLS))
