"""Decides whether a peer is read from, who waits for its room and when it is cut: of a TCP connection and of a QUIC stream alike.

Reading is paused while any of these stands:

    reason     stands from                                                  until
    held       the session left whole frames: until a late answer, room     it has taken them; `ahead`: a little may be read
               of its peer, or a later turn of the loop                     meanwhile, by which TCP notices that its peer left
    choked     the peer has not taken CHOKE_BYTES of its answers            there is room again
    stalling   what the session publishes to is behind (congestion)         it has caught up; if a slow subscriber is the reason,
                                                                            at most STALL_STEPS_MAX checks: then that one loses (D6)
    charged    its user, or tenant, sent or was sent more than its rate     that is paid back (ADR 41)

A peer for which more than WRITE_HIGH_BYTES wait is watched until there is room again. What it must take, or be cut:

    nobody waits for the bound of all connections, or this one is below its mark     one byte in WRITE_STALL_US
    somebody waits (ADR 16)                                                          PRESSED_BYTES_MIN in PRESSED_STALL_US

Those that have something to deliver ask for room, and park where there is none. This knows no socket and no endpoint: its
owner measures, pauses, and cuts. How much may wait in all is net/output.py's; what one stream of many may hold, net/quic/streams.py's.
"""

from collections.abc import Callable
from typing import Final

from quintet.model import limits
from quintet.net.output import OWN_BYTES_MAX
from quintet.protocols.base import STALL, WAIT

LARGE_REST_BYTES = 64 * limits.KIB  # of an unfinished frame: above this it is collected in a buffer of its own
CHOKE_BYTES: Final = OWN_BYTES_MAX  # of answers the peer does not take: above this it may not ask for more
STALL_STEP_S = 0.001  # how long reading from a congested publisher stops before the next check ...
STALL_STEPS_MAX = 10  # ... and how often, when the reason is a slow subscriber and not the disk
STALL_STEPS_EVEN = 16  # checks at the same interval; then the interval grows up to ...
STALL_STEP_MAX_S = 0.02  # ... this: thousands of connections may wait for one slow disk
PRESSED_STALL_US = 2_000_000  # while others wait, a reader must take PRESSED_BYTES_MIN in this time
PRESSED_BYTES_MIN = 128 * limits.KIB

READS_NOTHING: Final = f"the peer has read nothing for {limits.WRITE_STALL_US // 1_000_000} seconds"
READS_TOO_SLOWLY: Final = (
    f"the peer took less than {PRESSED_BYTES_MIN // limits.KIB} KiB of its answers in {PRESSED_STALL_US // 1_000_000} "
    "seconds while others waited (limits.output_bytes_max)"
)


class FlowControl:
    """The state of one stream of bytes. All of it belongs to the loop."""

    __slots__ = (
        "_untaken",
        "_watched_since",
        "ahead",
        "charged",
        "choked",
        "held",
        "parked",
        "paused",
        "stalling",
        "watched",
    )

    def __init__(self) -> None:
        self.held = self.ahead = self.choked = self.stalling = self.charged = False
        self.paused = False  # what the owner was last told
        self.parked: list[Callable[[], None]] | None = None  # calls that wait for room
        self.watched = False
        self._watched_since = 0
        # Bytes not taken at the last check, plus those added since: fewer now means that the peer reads.
        self._untaken = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """No reason stands, see `changed`."""
        return not (self.choked or self.stalling or self.charged or (self.held and not self.ahead))

    def changed(self) -> bool:
        """Whether the owner has to pause reading (`paused`) or to read on now."""
        paused = self.choked or self.stalling or self.charged or (self.held and not self.ahead)
        if paused == self.paused:
            return False
        self.paused = paused
        return True

    def stall(self, congestion: int, step: int) -> float | None:
        """How long until the next check of a congested publisher; None: it is read on. `step` counts the checks before."""
        self.stalling = congestion == WAIT or (congestion == STALL and step < STALL_STEPS_MAX)
        return min(STALL_STEP_S * (1 + step // STALL_STEPS_EVEN), STALL_STEP_MAX_S) if self.stalling else None

    def choke(self, unsent: int) -> bool:
        """Whether it is choked from now on. Deliveries stop by themselves (room), so only answers come this far."""
        if not self.watched or self.choked or unsent <= CHOKE_BYTES:
            return False
        self.choked = True
        return True

    # -- room ------------------------------------------------------------------------------------------------------

    def park(self, call: Callable[[], None]) -> None:
        if self.parked is None:
            self.parked = []
        self.parked.append(call)

    def wake(self, room: Callable[[], int], park: Callable[[Callable[[], None]], None]) -> None:
        """Call those that are parked, in their order, as long as there is room. The others `park` again."""
        parked = self._take_parked()
        for number, call in enumerate(parked, 1):
            call()
            if number < len(parked) and room() <= 0:
                for later in (*parked[number:], *self._take_parked()):  # callers that parked again go last
                    park(later)
                return

    def _take_parked(self) -> list[Callable[[], None]]:
        parked, self.parked = self.parked, None
        return parked or []

    # -- the peer takes its answers --------------------------------------------------------------------------------

    def watch(self, monotonic: int, untaken: int) -> None:
        """From now on the peer has to take something."""
        self.watched, self._watched_since, self._untaken = True, monotonic, untaken

    def unwatch(self) -> None:
        """There is room again."""
        self.watched = False

    def added(self, size: int) -> None:
        """So much more waits for a watched peer: otherwise that would hide that it reads."""
        self._untaken += size

    def overdue(self, monotonic: int, untaken: int, pressed: bool) -> str:
        """Why a watched peer is cut; empty: it is not. `pressed`: others wait, and it holds more than its mark."""
        assert self.watched
        if self._untaken - untaken >= (PRESSED_BYTES_MIN if pressed else 1):
            self.watch(monotonic, untaken)
        elif monotonic - self._watched_since >= (PRESSED_STALL_US if pressed else limits.WRITE_STALL_US):
            return READS_TOO_SLOWLY if pressed else READS_NOTHING
        return ""
