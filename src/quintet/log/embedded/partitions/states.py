"""Defines the states of a partition in files, and what every event means in each of them. No code of a partition lives here.

Two machines run beside each other. The first is about what is appended, staged and written; one job at a time:

    IDLE --append--> ARMED --end of turn--> IDLE --offer--> OFFERED --write--> WRITING --done--> IDLE
                                                               +---------done (journal)---------> IDLE

The second is about what was written: whether it is synced in the segment itself.

    CLEAN --written--> DIRTY --begin--> SYNCING --end--> CLEAN
                         ^                 +--written--> SYNCING_DIRTY --end--> DIRTY
                         +--written with its sync--> CLEAN

What else is true of a partition is no state: what it holds (pending, chunks, segments), why it refuses (its failure), whether
zeros are written ahead of it and whether retention works on it. Those go on beside any state.
"""

from enum import IntEnum
from typing import Final


class State(IntEnum):
    """Of what is appended and written."""

    IDLE = 0  # nothing is scheduled; chunks may wait for the end of a sync or an extension
    ARMED = 1  # something was appended: it is staged at the end of this turn
    OFFERED = 2  # the committer has it: it waits there, or is in a record of the journal
    WRITING = 3  # a disk job of its own is under way


class Event(IntEnum):
    APPENDED = 0
    APPENDED_MUCH = 1  # and what is pending has just become so much that it is sealed while a write is under way
    TURN_ENDED = 2
    CHUNKS_WAIT = 3  # something staged could be written
    PENDING_WAITS = 4  # nothing is staged, and something was appended
    OFFERED = 5  # to the committer
    BEGUN = 6  # a disk job begins
    PUT_OFF = 7  # none can begin now
    DONE = 8  # it ended, however it ended; or the record of the journal did


class Action(IntEnum):
    NONE = 0
    ARM = 1  # be called at the end of this turn
    STAGE = 2  # merge and seal what is pending, and have it written
    STAGE_EARLY = 3  # merge and seal it if it is much: more would only make the next write longer
    WRITE = 4  # offer to the committer, or write at once what promises no sync


class SyncState(IntEnum):
    """Of what was written to the last segment."""

    CLEAN = 0
    DIRTY = 1
    SYNCING = 2
    SYNCING_DIRTY = 3  # and more was written since the sync began


class SyncEvent(IntEnum):
    WRITTEN = 0
    WRITTEN_DURABLY = 1
    BEGUN = 2
    ENDED = 3


_I, _A, _O, _W = State
STEPS: Final[dict[tuple[State, Event], tuple[Action, State]]] = {
    (_I, Event.APPENDED): (Action.ARM, _A),
    (_A, Event.APPENDED): (Action.NONE, _A),
    (_O, Event.APPENDED): (Action.NONE, _O),
    (_W, Event.APPENDED): (Action.NONE, _W),
    (_I, Event.APPENDED_MUCH): (Action.ARM, _A),
    (_A, Event.APPENDED_MUCH): (Action.NONE, _A),
    (_O, Event.APPENDED_MUCH): (Action.ARM, _O),
    (_W, Event.APPENDED_MUCH): (Action.ARM, _W),
    (_I, Event.TURN_ENDED): (Action.NONE, _I),  # staged meanwhile, or refused
    (_A, Event.TURN_ENDED): (Action.STAGE, _I),
    (_O, Event.TURN_ENDED): (Action.STAGE_EARLY, _O),
    (_W, Event.TURN_ENDED): (Action.STAGE_EARLY, _W),
    (_I, Event.CHUNKS_WAIT): (Action.WRITE, _I),
    (_A, Event.CHUNKS_WAIT): (Action.WRITE, _A),
    (_O, Event.CHUNKS_WAIT): (Action.NONE, _O),
    (_W, Event.CHUNKS_WAIT): (Action.NONE, _W),
    (_I, Event.PENDING_WAITS): (Action.ARM, _A),
    (_A, Event.PENDING_WAITS): (Action.NONE, _A),
    (_O, Event.PENDING_WAITS): (Action.NONE, _O),
    (_W, Event.PENDING_WAITS): (Action.NONE, _W),
    (_I, Event.OFFERED): (Action.NONE, _O),
    (_A, Event.OFFERED): (Action.NONE, _O),
    (_I, Event.BEGUN): (Action.NONE, _W),
    (_A, Event.BEGUN): (Action.NONE, _W),
    (_O, Event.BEGUN): (Action.NONE, _W),
    (_I, Event.PUT_OFF): (Action.NONE, _I),
    (_A, Event.PUT_OFF): (Action.NONE, _A),
    (_O, Event.PUT_OFF): (Action.NONE, _I),
    (_I, Event.DONE): (Action.NONE, _I),  # written at once, without a job
    (_A, Event.DONE): (Action.NONE, _A),
    (_O, Event.DONE): (Action.NONE, _I),
    (_W, Event.DONE): (Action.NONE, _I),
}

Row = tuple[tuple[Action, State] | None, ...]


def row(event: Event) -> Row:
    """What the event means in each state, to be indexed by it. To look a member up in its enum takes 0.6 us in Python 3.11 and a
    step is taken five times for each write, so who takes them keeps the rows."""
    return tuple(STEPS.get((state, event)) for state in State)


# What is not here cannot happen: nothing is written durably, and no second sync begins, while one is under way.
SYNC_STEPS: Final[dict[tuple[SyncState, SyncEvent], SyncState]] = {
    (SyncState.CLEAN, SyncEvent.WRITTEN): SyncState.DIRTY,
    (SyncState.DIRTY, SyncEvent.WRITTEN): SyncState.DIRTY,
    (SyncState.SYNCING, SyncEvent.WRITTEN): SyncState.SYNCING_DIRTY,
    (SyncState.SYNCING_DIRTY, SyncEvent.WRITTEN): SyncState.SYNCING_DIRTY,
    (SyncState.CLEAN, SyncEvent.WRITTEN_DURABLY): SyncState.CLEAN,
    (SyncState.DIRTY, SyncEvent.WRITTEN_DURABLY): SyncState.CLEAN,
    (SyncState.DIRTY, SyncEvent.BEGUN): SyncState.SYNCING,
    (SyncState.SYNCING, SyncEvent.ENDED): SyncState.CLEAN,
    (SyncState.SYNCING_DIRTY, SyncEvent.ENDED): SyncState.DIRTY,
}
