"""Notices that this node was kept from its work, and says when it may claim again.

A follower that was stopped for a while (SIGSTOP, a paused machine) has heard nothing because it read nothing: what the leader wrote
meanwhile waits for it. To claim at once would cost a leader its role that is well. Only delays claims: safety does not depend on it.
"""


class Pauses:
    """Asked at every tick of a node. Times are monotonic microseconds."""

    def __init__(self, longest_us: int) -> None:
        """longest_us: between two ticks of a node that runs; and for how long one that did not reads before it claims."""
        self._longest_us = longest_us
        self._ticked: int | None = None
        self._claims_from = 0

    def may_claim(self, monotonic: int) -> bool:
        if self._ticked is not None and monotonic - self._ticked > self._longest_us:
            self._claims_from = monotonic + self._longest_us
        self._ticked = monotonic
        return monotonic >= self._claims_from
