"""Says on stderr how far a long campaign is: every half a minute a line, so that whoever waits knows that it goes on, and how long for."""

import sys
import time

EVERY_S = 30.0


class Progress:
    """Of one campaign; `at` is called as often as it likes."""

    def __init__(self, name: str, total: int) -> None:
        self._name = name
        self._total = total
        self._began = self._said = time.monotonic()

    def at(self, done: int, wrong: object = 0) -> None:
        """So much is done; what was found wrong, if anything was."""
        monotonic = time.monotonic()
        if monotonic - self._said < EVERY_S or not done:
            return
        self._said = monotonic
        took = monotonic - self._began
        left = took / done * max(self._total - done, 0)
        found = f"WRONG: {wrong}" if wrong else "nothing wrong"
        sys.stderr.write(
            f"{self._name}: {done:,} of {self._total:,} in {took:,.0f} s, {found}, about {left:,.0f} s to go\n"
        )
