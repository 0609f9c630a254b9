"""S7 and A8, thin: failing calls and full disks lose nothing, are told, and heal; a broker deaf to errors is found out."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.crash import faults, load, reader, wire
from tests.crash.brokers import Launcher
from tests.crash.load import History, Load

pytestmark = pytest.mark.crash
INJECTIONS = 40
CYCLES = 3
CONTROLS = 2
SILENCE_S = 0.5
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
        with pytest.raises(wire.Hang):  # silence: nothing that was acknowledged 1.5 s before the crash comes again
            pytest.fail(f"came again: {peer.read(SILENCE_S)}")
    broker.end()


@pytest.mark.parametrize("when", range(1, 8))
def test_no_space_at_any_write_of_a_new_topic_heals_and_loses_nothing(
    launcher: Launcher, tmp_path: Path, when: int
) -> None:
    """One write fails while a topic, its row, its subscription and its first segment are made."""
    assert launcher.plan is not None
    data = tmp_path / "data"
    broker = launcher.start(data)
    launcher.plan.arm(data, ("pwritev",), faults.ERRORS["ENOSPC"], when)
    with wire.Wire(broker.address).greet() as peer:
        peer.send(wire.publish(1, b"new", b"first"))
        peer.barrier()
        subscription = until(lambda: peer.ask(wire.subscribe(2, b"new")), lambda found: found.kind == wire.ACK).number
        until(lambda: publish_one(peer, b"second"), lambda refused: not refused)
    launcher.plan.disarm()
    broker.end()
    broker = launcher.start(data)
    with wire.Wire(broker.address).greet(version=2) as peer:
        peer.send(wire.number(wire.POLL, 1, subscription))
        assert wire.delivery(peer.read())[1:] == ("new", b"second"), "it was acknowledged after the subscription was"
    broker.end()


def publish_one(peer: wire.Wire, message: bytes) -> list[wire.Frame]:
    peer.send(wire.publish(3, b"new", message))
    return peer.barrier()


T = TypeVar("T")


def until(attempt: Callable[[], T], good: Callable[[T], bool]) -> T:
    """What is curable is cured within HEAL_S."""
    deadline = time.monotonic() + faults.HEAL_S
    while not good(found := attempt()):
        assert time.monotonic() < deadline, f"not cured after {faults.HEAL_S} s: {found}"
        time.sleep(0.1)
    return found


def test_a_broker_that_does_not_hear_errors_is_caught(launcher: Launcher, tmp_path: Path) -> None:
    assert all(faults.control(launcher, tmp_path, seed) for seed in range(CONTROLS))
