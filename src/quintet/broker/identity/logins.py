"""Verifies the passwords of logins: at the same cost for every name, each password once, not for closed connections.

- The cost is even. Stored hashes may have other costs than ours (a configuration brings its own), so each login pays for
  one hash of every cost that is in use, whoever asks: a user, a disabled one, an empty name, a name that nobody has.
- Logins of one name with one password that come together are one hash: after a restart all workers of a service log in
  at once.
- A password that was right is remembered for REMEMBERED_US, as its HMAC-SHA256 under a key that is random, made anew by
  each process and in no file. Only the right password is answered faster by it, and who sends that knows it; every wrong
  one costs the whole hash, also for a remembered user, so guessing is as slow as before and the time of an answer tells
  nothing of who logged in lately. The HMAC covers the version of the user, which is another with every password; a user
  that is changed is forgotten at once.
"""

import hmac
from collections import Counter, OrderedDict
from functools import partial
from typing import Final

from quintet.broker.identity.passwords import OUR_COSTS, Costs, Entropy, Hashing, costs_of, verify_evenly
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, next_turn, start_alone

REMEMBERED_US: Final = 600 * 1_000_000
REMEMBERED_MAX: Final = 10_000  # users
SECRET_BYTES: Final = 32


class _Check:
    """One hash under way, and how many wait for it."""

    __slots__ = ("turn", "verified", "waiting")

    def __init__(self, turn: Promise[None]) -> None:
        self.turn = turn  # in the line of hashes
        self.verified: Promise[bool] = Promise()
        self.waiting = 0


class Logins:
    """`follow` must be called for each change of a user."""

    def __init__(self, hashing: Hashing, scheduler: Scheduler, entropy: Entropy) -> None:
        self._hashing = hashing
        self._scheduler = scheduler
        self._entropy = entropy
        self._secret = b""
        self._checks: dict[bytes, _Check] = {}
        self._remembered: OrderedDict[str, tuple[bytes, int]] = OrderedDict()
        self._costs: dict[str, Costs] = {}  # of who can log in
        self._in_use: Counter[Costs] = Counter()

    def follow(self, name: str, stored: str) -> None:
        """A user has this hash from now on; empty: it cannot log in."""
        self._remembered.pop(name, None)
        before = self._costs.pop(name, None)
        if before is not None:
            self._in_use[before] -= 1
            if not self._in_use[before]:
                del self._in_use[before]
        if stored:
            costs = self._costs[name] = costs_of(stored)
            self._in_use[costs] += 1

    async def verify(self, name: str, version: int, stored: str, password: bytes) -> bool:
        """Is it right? No, if that could not be computed. `stored` is empty if nobody of this name can log in. Raises Busy if
        too many wait. A task that is cancelled leaves the line, if nobody else waits for the same hash."""
        if not self._secret:
            self._secret = self._entropy(SECRET_BYTES)
        word = name.encode("utf-8", "replace")
        proof = hmac.digest(self._secret, b"%d:%s%d:%s" % (len(word), word, version, password), "sha256")
        known, since = self._remembered.get(name, (b"", 0))
        fresh = self._scheduler.monotonic() - since < REMEMBERED_US
        if stored and fresh and hmac.compare_digest(known, proof):
            await next_turn(self._scheduler)
            return True
        check = self._checks.get(proof)
        if check is None:
            check = self._checks[proof] = _Check(self._hashing.line_up())
            start_alone(self._scheduler, self._run(check, name, proof, stored, password))
        check.waiting += 1
        try:
            return await check.verified
        except GeneratorExit:  # cancelled: the connection has gone
            check.waiting -= 1
            if not check.waiting and self._hashing.leave(check.turn):
                del self._checks[proof]
            raise

    async def _run(self, check: _Check, name: str, proof: bytes, stored: str, password: bytes) -> None:
        work = partial(verify_evenly, stored, password, tuple(self._in_use) or (OUR_COSTS,))
        try:
            right = await self._hashing.compute(check.turn, work)
        except Exception:
            right = False
        del self._checks[proof]
        if right:
            self._remembered[name] = (proof, self._scheduler.monotonic())
            self._remembered.move_to_end(name)
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        check.verified.resolve(right)
