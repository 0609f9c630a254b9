"""Defines the states of a node in a cell, and what every event means in each of them. No code of a node lives here.

    FOLLOWING --silence--> CLAIMING --answered--> DRAINING --own claim read--> WAITING --lease over--> LEADING <--> CHECKING
        ^                     |                       |                           |                      |             |
        +-------- another claim is in force, or ours was lost -------------------+                       +--> FENCED <-+

FOLLOWING  reads the WAL and applies what counts.
CLAIMING   has sent a claim and does not know its place.
DRAINING   knows its place and reads up to it: only then does it know what its log holds.
WAITING    has read up to its claim, and waits until the lease of the leader before is over.
LEADING    takes writes. It does not read the WAL.
CHECKING   leads, and reads a gap: somebody wrote between two of its own records.
FENCED     must refuse all that is unconfirmed, and end. The process comes back as a follower.
"""

from enum import IntEnum
from typing import Final


class State(IntEnum):
    FOLLOWING = 0
    CLAIMING = 1
    DRAINING = 2
    WAITING = 3
    LEADING = 4
    CHECKING = 5
    FENCED = 6


class Event(IntEnum):
    SILENCE = 0  # nothing that counts was read for longer than a lease
    CLAIM_ANSWERED = 1
    CLAIM_UNANSWERED = 2  # it may be in the WAL or not
    OWN_CLAIM = 3  # read, and in force
    OTHER_CLAIM = 4  # read, in force, and at or above the epoch that this node claims or has
    LEASE_OVER = 5  # of the leader before
    GAP = 6  # the answer to a write names a later offset than the next one
    GAP_READ = 7
    WRITE_FAILED = 8  # it may be in the WAL or not


_F, _C, _D, _W, _L, _G, _X = State
STEPS: Final[dict[tuple[State, Event], State]] = {
    (_F, Event.SILENCE): _C,
    (_F, Event.OTHER_CLAIM): _F,
    (_F, Event.OWN_CLAIM): _W,  # it was given up as unanswered, and is in force after all
    (_F, Event.CLAIM_ANSWERED): _F,
    (_F, Event.CLAIM_UNANSWERED): _F,
    (_C, Event.CLAIM_ANSWERED): _D,
    (_C, Event.CLAIM_UNANSWERED): _F,
    (_C, Event.OWN_CLAIM): _W,  # read before it was answered
    (_C, Event.OTHER_CLAIM): _F,
    (_D, Event.OWN_CLAIM): _W,
    (_D, Event.OTHER_CLAIM): _F,
    (_W, Event.CLAIM_ANSWERED): _W,
    (_W, Event.CLAIM_UNANSWERED): _W,
    (_W, Event.OTHER_CLAIM): _F,  # it has written nothing
    (_W, Event.LEASE_OVER): _L,
    (_L, Event.CLAIM_ANSWERED): _L,
    (_L, Event.CLAIM_UNANSWERED): _L,
    (_L, Event.GAP): _G,
    (_L, Event.OTHER_CLAIM): _X,
    (_L, Event.WRITE_FAILED): _X,
    (_G, Event.CLAIM_ANSWERED): _G,
    (_G, Event.CLAIM_UNANSWERED): _G,
    (_G, Event.GAP_READ): _L,
    (_G, Event.OTHER_CLAIM): _X,
    (_G, Event.WRITE_FAILED): _X,
    (_X, Event.CLAIM_ANSWERED): _X,
    (_X, Event.CLAIM_UNANSWERED): _X,
    (_X, Event.WRITE_FAILED): _X,
}
