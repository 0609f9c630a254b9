"""The states of a partition: the table is whole, and says what the flags it stands for say (armed, busy, offered; dirty, syncing)."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from quintet.log.embedded.partitions.states import (
    STEPS,
    SYNC_STEPS,
    Action,
    Event,
    State,
    SyncEvent,
    SyncState,
)

Steps = dict[tuple[State, Event], tuple[Action, State]]
IMPOSSIBLE = {(State.OFFERED, Event.OFFERED), (State.WRITING, Event.OFFERED), (State.WRITING, Event.BEGUN),
              (State.WRITING, Event.PUT_OFF)}  # fmt: skip


@dataclass(frozen=True)
class Flags:
    """What a partition used to keep, and what each event did to it."""

    armed: bool = False
    busy: bool = False
    offered: bool = False

    def step(self, event: Event) -> tuple[Action, "Flags"]:
        unbusy = replace(self, busy=False, offered=False)
        if event in (Event.APPENDED, Event.PENDING_WAITS):
            waits = self.armed or self.busy  # who is busy looks again when it is done
            return (Action.NONE, self) if waits else (Action.ARM, replace(self, armed=True))
        if event is Event.APPENDED_MUCH:
            return (Action.NONE, self) if self.armed else (Action.ARM, replace(self, armed=not self.busy))
        if event is Event.TURN_ENDED:
            if self.busy:
                return Action.STAGE_EARLY, self
            return (Action.STAGE if self.armed else Action.NONE), replace(self, armed=False)
        if event is Event.CHUNKS_WAIT:
            return (Action.NONE if self.busy else Action.WRITE), self
        if event is Event.OFFERED:
            return Action.NONE, Flags(busy=True, offered=True)
        if event is Event.BEGUN:
            return Action.NONE, Flags(busy=True)
        return Action.NONE, unbusy

    @property
    def state(self) -> State:
        if self.busy:
            return State.OFFERED if self.offered else State.WRITING
        return State.ARMED if self.armed else State.IDLE


def first_difference(steps: Steps, seed: int, events: int = 400) -> tuple[State, Event] | None:
    """Where the table and the flags part in a random history, if they do."""
    rng, flags, state = Random(seed), Flags(), State.IDLE
    for _ in range(events):
        event = rng.choice(list(Event))
        if (state, event) in IMPOSSIBLE:
            continue
        action, flags = flags.step(event)
        if steps[state, event] != (action, flags.state):
            return state, event
        state = flags.state
    return None


def test_every_event_that_can_happen_has_one_step_in_every_state() -> None:
    assert set(STEPS) == {(state, event) for state in State for event in Event} - IMPOSSIBLE
    assert {state for _, state in STEPS.values()} == set(State)
    assert {action for action, _ in STEPS.values()} == set(Action)


@pytest.mark.parametrize("seed", range(20))
def test_the_table_says_what_the_flags_say_over_random_histories(seed: int) -> None:
    assert first_difference(STEPS, seed) is None


@pytest.mark.parametrize("row", list(STEPS), ids=lambda row: f"{row[0].name}-{row[1].name}")
def test_a_row_that_was_changed_is_found(row: tuple[State, Event]) -> None:
    action, state = STEPS[row]
    other = State.WRITING if state is not State.WRITING else State.IDLE
    assert any(first_difference(STEPS | {row: (action, other)}, seed) == row for seed in range(20))


def test_dirty_and_syncing_follow_writes_and_syncs() -> None:
    def flags(state: SyncState) -> tuple[bool, bool]:
        return state in (SyncState.DIRTY, SyncState.SYNCING_DIRTY), state >= SyncState.SYNCING

    for (state, event), following in SYNC_STEPS.items():
        dirty, syncing = flags(state)
        expected = {
            SyncEvent.WRITTEN: (True, syncing),
            SyncEvent.WRITTEN_DURABLY: (False, syncing),
            SyncEvent.BEGUN: (False, True),
            SyncEvent.ENDED: (dirty, False),
        }[event]
        assert flags(following) == expected, (state, event)
    for state in SyncState:
        dirty, syncing = flags(state)
        assert ((state, SyncEvent.BEGUN) in SYNC_STEPS) == (dirty and not syncing)
        assert ((state, SyncEvent.ENDED) in SYNC_STEPS) == syncing
        assert (state, SyncEvent.WRITTEN) in SYNC_STEPS
