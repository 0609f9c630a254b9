"""Holds the streams of the Flight door to the quotas of their users: in the thread of the call, which waits (ADR 41).

A stream under way counts as a connection. Of a reader, what is not asked for stays with the broker; of a writer, what is not taken stays
with its client, which gRPC's flow control holds back. A wait ends early when the door closes. Reading segment files on the same machine
(`listeners.flight.map_files`) passes by here, and is not charged.
"""

import threading
from typing import Final

from quintet.broker.core import Broker
from quintet.broker.follower import FollowerBroker
from quintet.broker.identity.metering import Meter
from quintet.flight.bridge import Bridge

STEP_S: Final = 0.25  # between looks whether the quota was changed meanwhile


class StreamQuota:
    """One stream as quotas know it. `meter` is set on the loop thread, and read by the thread of the call."""

    def __init__(self, broker: Broker | FollowerBroker, bridge: Bridge, closing: threading.Event) -> None:
        self.meter: Meter | None = None
        self._broker = broker
        self._bridge = bridge
        self._closing = closing

    def join(self, user: str) -> None:
        """LimitExceeded: this user has too many connections and streams."""
        self._bridge.ask(lambda: self._broker.quotas.join(self, user))

    def leave(self) -> None:
        """May be called from any thread, and more than once."""
        self._bridge.tell(lambda: self._broker.quotas.leave(self))

    def taken(self, size: int) -> None:
        """So much came from its client: wait until that is paid for."""
        if self.meter is not None:
            self._wait(self._bridge.ask(lambda: self._received(size)))

    def handed(self, size: int) -> None:
        """So much went to its client: wait until that is paid for."""
        if self.meter is not None:
            self._wait(self._bridge.ask(lambda: self._delivered(size)))

    def _received(self, size: int) -> int:
        return 0 if self.meter is None else self.meter.received(size, self._broker.scheduler.monotonic())

    def _delivered(self, size: int) -> int:
        meter, monotonic = self.meter, self._broker.scheduler.monotonic()
        if meter is None:
            return 0
        meter.delivered(size, monotonic)
        return meter.withheld(monotonic)

    def _wait(self, wait_us: int) -> None:
        left = wait_us / 1e6
        while left > 0 and self.meter is not None and not self._closing.wait(min(left, STEP_S)):
            left -= STEP_S
