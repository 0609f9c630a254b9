"""Bounds the bytes that wait for their readers, over all connections of all listeners (ADR 16).

A holder is a connection. It holds what its peer has not taken, once that is above the socket's own mark, and what it has
claimed for an answer that is being made. Nothing here knows sockets or sessions; it only counts, and calls who waited.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from quintet.model import limits

OWN_BYTES_MAX: Final = 4 * limits.WRITE_HIGH_BYTES  # held by one connection: above this its next claim waits


class OutputBudget:
    """`used` of `bytes_max` are held. A single claim is granted whatever its size when nothing else is held."""

    def __init__(self, bytes_max: int = limits.OUTPUT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.waited = 0  # claims that had to wait, for the metrics
        self._held: dict[object, int] = {}
        self._making: set[object] = set()  # holders whose claimed answer is being made
        self._claims: deque[tuple[object, int, Callable[[], None]]] = deque()
        self._passed: deque[tuple[object, int, Callable[[], None]]] = deque()  # claims that were checked and do not fit
        self._parked: dict[object, Callable[[], None]] = {}
        self._waking = False
        self._freed = False  # bytes were returned since the waiting claims were last checked

    @property
    def full(self) -> bool:
        """Nothing more may be pushed to anybody who already has something unsent."""
        return self.used >= self.bytes_max

    @property
    def pressed(self) -> bool:
        """Somebody waits: who holds output without reading is in the way."""
        return bool(self._claims or self._passed or self._parked)

    def hold(self, holder: object, size: int) -> None:
        """The holder has this many bytes from now on; 0: none."""
        before = self._held.pop(holder, 0)
        if size:
            self._held[holder] = size
        self.used += size - before
        if size <= before and self.pressed:
            self._wake()

    def held(self, holder: object) -> int:
        return self._held.get(holder, 0)

    def claim(self, holder: object, size: int, granted: Callable[[], None]) -> bool:
        """True: `size` more bytes are the holder's until `answered`. False: it waits, and `granted` is called when they
        are. A holder has one claim at a time."""
        if not self._claims and self._fits(holder, size):
            self._grant(holder, size)
            return True
        self.waited += 1
        self._claims.append((holder, size, granted))
        self._wake()  # other claims that wait may all belong to one holder
        return False

    def answered(self, holder: object, unsent: int) -> None:
        """What was claimed was made, and handed to the socket: `unsent` of it is left."""
        self._making.discard(holder)
        self.hold(holder, unsent)

    def park(self, holder: object, call: Callable[[], None]) -> None:
        """Call once when there is room again, unless the holder is gone by then. A holder has one such call."""
        self._parked[holder] = call

    def drop(self, holder: object) -> None:
        """The holder is gone, with all it held or waited for."""
        for claims in (self._claims, self._passed):
            if any(waiting[0] is holder for waiting in claims):
                left = [waiting for waiting in claims if waiting[0] is not holder]
                claims.clear()
                claims.extend(left)
        self._parked.pop(holder, None)
        self.answered(holder, 0)

    def _fits(self, holder: object, size: int) -> bool:
        return self._may_ask(holder) and (not self.used or self.used + size <= self.bytes_max)

    def _may_ask(self, holder: object) -> bool:
        return holder not in self._making and self.held(holder) < OWN_BYTES_MAX

    def _grant(self, holder: object, size: int) -> None:
        self._making.add(holder)
        self.hold(holder, self.held(holder) + size)

    def _wake(self) -> None:
        """Bytes were returned: grant claims, then run parked calls. A call from within only sets a flag."""
        self._freed = True
        if self._waking:
            return
        self._waking = True
        try:
            while self._freed:
                self._freed = False
                self._grant_all()
                # A call that parks again has used up the room, or waits for a later turn.
                while self._parked and not self.full:
                    self._parked.pop(next(iter(self._parked)))()
        finally:
            self._waking = False

    def _grant_all(self) -> None:
        """Grant in order what fits. A holder that has enough does not keep back those behind it."""
        try:
            while self._claims:
                holder, size, granted = waiting = self._claims.popleft()
                if self._fits(holder, size):
                    self._grant(holder, size)
                    granted()
                else:
                    self._passed.append(waiting)
                    if self._may_ask(holder):
                        break
        finally:
            self._claims.extendleft(reversed(self._passed))
            self._passed.clear()
