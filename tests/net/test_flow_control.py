"""The state that a TCP connection and a QUIC stream share: reasons not to read, calls that wait for room, a peer that is cut."""

import itertools
from collections.abc import Callable

import pytest

from quintet.model import limits
from quintet.net import connection, flow_control
from quintet.net.flow_control import (
    CHOKE_BYTES,
    PRESSED_BYTES_MIN,
    PRESSED_STALL_US,
    READS_NOTHING,
    READS_TOO_SLOWLY,
    STALL_STEP_MAX_S,
    STALL_STEPS_MAX,
    FlowControl,
)
from quintet.net.quic import streams as quic_streams
from quintet.protocols.base import STALL, WAIT


@pytest.mark.parametrize(
    ("held", "ahead", "choked", "stalling", "charged"), list(itertools.product((False, True), repeat=5))
)
def test_reading_is_paused_while_any_reason_stands(
    held: bool, ahead: bool, choked: bool, stalling: bool, charged: bool
) -> None:
    flow = FlowControl()
    flow.held, flow.ahead, flow.choked, flow.stalling, flow.charged = held, ahead, choked, stalling, charged
    expected = choked or stalling or charged or (held and not ahead)
    assert flow.readable is not expected
    assert flow.changed() is expected and flow.paused is expected
    assert not flow.changed(), "the owner is told once"
    flow.held = flow.choked = flow.stalling = flow.charged = False
    assert flow.changed() is expected and not flow.paused


def test_a_slow_disk_holds_a_publisher_back_and_a_slow_reader_does_not() -> None:
    flow = FlowControl()
    assert (flow.stall(0, 0), flow.stalling) == (None, False)
    waits = [flow.stall(WAIT, step) for step in range(1_000)]
    assert None not in waits
    assert waits == sorted(wait or 0 for wait in waits) and waits[-1] == STALL_STEP_MAX_S
    assert (flow.stall(STALL, STALL_STEPS_MAX - 1), flow.stalling) == (waits[STALL_STEPS_MAX - 1], True)
    assert (flow.stall(STALL, STALL_STEPS_MAX), flow.stalling) == (None, False)


def test_only_a_peer_that_is_watched_is_choked() -> None:
    flow = FlowControl()
    assert not flow.choke(10 * CHOKE_BYTES)
    flow.watch(0, 1)
    assert not flow.choke(CHOKE_BYTES)
    assert flow.choke(CHOKE_BYTES + 1) and flow.choked
    assert not flow.choke(CHOKE_BYTES + 1), "it is already"


@pytest.mark.parametrize(
    ("pressed", "bytes_min", "us", "why"),
    [(False, 1, limits.WRITE_STALL_US, READS_NOTHING), (True, PRESSED_BYTES_MIN, PRESSED_STALL_US, READS_TOO_SLOWLY)],
)
def test_a_peer_is_cut_when_it_takes_too_little(pressed: bool, bytes_min: int, us: int, why: str) -> None:
    flow = FlowControl()
    untaken = 10 * limits.MIB
    flow.watch(0, untaken)
    assert flow.overdue(us - 1, untaken, pressed) == ""
    flow.added(500)
    untaken += 500 - bytes_min  # what was added does not hide what was taken
    assert flow.overdue(us, untaken, pressed) == ""
    assert flow.overdue(2 * us - 1, untaken - bytes_min + 1, pressed) == ""
    assert flow.overdue(2 * us, untaken - bytes_min + 1, pressed) == why
    flow.unwatch()
    assert not flow.watched


def test_those_that_find_no_room_park_again_behind_nobody() -> None:
    flow, said, room = FlowControl(), list[str](), [2]

    def call(name: str) -> Callable[[], None]:
        def parked() -> None:
            said.append(name)
            room[0] -= 1
            if name == "a":
                flow.park(call("a again"))

        return parked

    for name in "abcd":
        flow.park(call(name))
    flow.wake(lambda: room[0], flow.park)
    assert said == ["a", "b"]
    room[0] = 10
    flow.wake(lambda: room[0], flow.park)
    assert said == ["a", "b", "c", "d", "a again"]
    assert flow.parked is None


def test_bounds_of_flow_control_stand_in_one_module() -> None:
    bounds = {name for name in vars(flow_control) if name.startswith(("STALL_", "PRESSED_", "CHOKE_", "READS_"))}
    assert len(bounds) >= 8
    for module in (connection, quic_streams):
        assert not bounds & vars(module).keys(), f"{module.__name__} decides by itself"
