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
from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.broker.identity.passwords import OUR_COSTS, Costs, Entropy, Hashing, Waiting, costs_of, verify_evenly
from quintet.model.scheduler import Scheduler

REMEMBERED_US: Final = 600 * 1_000_000
REMEMBERED_MAX: Final = 10_000  # users
SECRET_BYTES: Final = 32

Verified = Callable[[bool | BaseException], None]


class _Check:
    """One hash under way, and all who wait for it."""

    __slots__ = ("place", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Verified] = []
        self.place: Waiting


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

    def verify(self, name: str, version: int, stored: str, password: bytes, done: Verified) -> Callable[[], None]:
        """`done(right)` later, or an exception if it could not be computed; never after what is returned was called.
        `stored` is empty if nobody of this name can log in. Raises Busy if too many wait."""
        if not self._secret:
            self._secret = self._entropy(SECRET_BYTES)
        word = name.encode("utf-8", "replace")
        proof = hmac.digest(self._secret, b"%d:%s%d:%s" % (len(word), word, version, password), "sha256")
        known, since = self._remembered.get(name, (b"", 0))
        fresh = self._scheduler.monotonic() - since < REMEMBERED_US
        if stored and fresh and hmac.compare_digest(known, proof):
            check = _Check()
            check.waiting.append(done)
            self._scheduler.soon(partial(self._tell, check, True))
            return check.waiting.clear
        found = self._checks.get(proof)
        if found is None:
            found = _Check()
            work = partial(verify_evenly, stored, password, tuple(self._in_use) or (OUR_COSTS,))
            found.place = self._hashing.run(work, partial(self._verified, name, proof, found))
            self._checks[proof] = found
        found.waiting.append(done)
        return partial(self._leave, proof, found, done)

    def _leave(self, proof: bytes, check: _Check, done: Verified) -> None:
        if done in check.waiting:
            check.waiting.remove(done)
            if not check.waiting and check.place.give_up():
                del self._checks[proof]

    def _verified(self, name: str, proof: bytes, check: _Check, result: bool | BaseException) -> None:
        del self._checks[proof]
        if result is True:
            self._remembered[name] = (proof, self._scheduler.monotonic())
            self._remembered.move_to_end(name)
            if len(self._remembered) > REMEMBERED_MAX:
                self._remembered.popitem(last=False)
        self._tell(check, result)

    @staticmethod
    def _tell(check: _Check, result: bool | BaseException) -> None:
        waiting, check.waiting = check.waiting, []
        for done in waiting:
            done(result)
