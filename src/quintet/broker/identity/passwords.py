"""Hashes passwords with argon2id through the scheduler's `offload`, never on the loop.

At most HASHES_AT_ONCE at a time, which leaves disk threads to the log; the others wait in a line of bounded length, until
it is their turn or they give up. Nothing here keeps a password longer than its hash takes.
"""

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from argon2 import low_level
from argon2.exceptions import VerifyMismatchError

from quintet.model.errors import BadRequest, Busy
from quintet.model.scheduler import Scheduler

HASHES_AT_ONCE: Final = 2
HASHES_WAITING_MAX: Final = 1_000  # some ten seconds of work; further logins get Busy
HASH_MEMORY_KIB: Final = 19 * 1024
HASH_PASSES: Final = 2
HASH_LANES: Final = 1
HASH_BYTES: Final = 32
SALT_BYTES: Final = 16
# Hash of a random password that was thrown away: an unknown user's login is verified against it, at the same cost.
NOBODY_HASH: Final = "$argon2id$v=19$m=19456,t=2,p=1$cXVpbnRldC1uby11c2VyLg$82drlqSiSYFMOde50c83FicOk5LG7neGu+L5srPw+yA"
HASH_COSTS_MAX: Final = 4  # different costs of stored hashes: each login pays for all of them
# The most a hash made elsewhere may ask of every login.
FOREIGN_MEMORY_KIB_MAX: Final = 256 * 1024
FOREIGN_PASSES_MAX: Final = 10
FOREIGN_LANES_MAX: Final = 4
_FOREIGN: Final = re.compile(
    r"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$[A-Za-z0-9+/]{11,64}\$[A-Za-z0-9+/]{22,128}"
)

Entropy = Callable[[int], bytes]
Costs = tuple[int, int, int]  # memory in KiB, passes, lanes

OUR_COSTS: Final[Costs] = (HASH_MEMORY_KIB, HASH_PASSES, HASH_LANES)
_COSTS: Final = re.compile(r"\$m=(\d+),t=(\d+),p=(\d+)\$")


def _hash(password: bytes, salt: bytes) -> str:
    return low_level.hash_secret(
        password, salt, HASH_PASSES, HASH_MEMORY_KIB, HASH_LANES, HASH_BYTES, low_level.Type.ID
    ).decode()


def _verify(stored: str, password: bytes) -> bool:
    try:
        return low_level.verify_secret(stored.encode(), password, low_level.Type.ID)
    except VerifyMismatchError:
        return False


def costs_of(stored: str) -> Costs:
    """What verifying against this hash takes."""
    found = _COSTS.search(stored)
    return OUR_COSTS if found is None else (int(found[1]), int(found[2]), int(found[3]))


def verify_evenly(stored: str, password: bytes, costs: tuple[Costs, ...]) -> bool:
    """Is it right? Takes one hash of each of these costs, whatever the stored one has; `stored` may be empty."""
    own = costs_of(stored) if stored else None
    right = _verify(stored, password) if stored else False
    for memory_kib, passes, lanes in costs:
        if (memory_kib, passes, lanes) != own:
            low_level.hash_secret_raw(
                password, bytes(SALT_BYTES), passes, memory_kib, lanes, HASH_BYTES, low_level.Type.ID
            )
    return right


def check_hash(text: str) -> str:
    """A hash made elsewhere that this broker is willing to compute at every login, or BadRequest."""
    match = _FOREIGN.fullmatch(text)
    if match is None:
        raise BadRequest("expected an argon2id hash like $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH")
    memory_kib, passes, lanes = map(int, match.groups())
    if memory_kib > FOREIGN_MEMORY_KIB_MAX or passes > FOREIGN_PASSES_MAX or lanes > FOREIGN_LANES_MAX:
        most = f"m={FOREIGN_MEMORY_KIB_MAX}, t={FOREIGN_PASSES_MAX}, p={FOREIGN_LANES_MAX}"
        raise BadRequest(f"the hash costs more than a login may; the limits are {most}")
    return text


class Waiting:
    """A place in the line."""

    __slots__ = ("_hashing", "done", "work")

    def __init__(self, hashing: "Hashing", work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._hashing = hashing
        self.work: Callable[[], Any] | None = work
        self.done = done

    def give_up(self) -> bool:
        """Leave the line; False if its turn has come: then it is hashed, and told."""
        return self._hashing.leave(self)


class Hashing:
    """Slow hashes elsewhere, a few at once, the others in line."""

    def __init__(self, scheduler: Scheduler, entropy: Entropy) -> None:
        self._scheduler = scheduler
        self._entropy = entropy
        self._line: deque[Waiting] = deque()  # those that left it are there until their turn would have come
        self._running = 0
        self.waiting = 0

    def hash(self, password: bytes, done: Callable[[str | BaseException], None], must: bool = False) -> None:
        """Raises Busy if too many wait, unless it must be: what the configuration asks for is not turned away."""
        self.run(partial(_hash, password, self._entropy(SALT_BYTES)), done, must)

    def verify(
        self, stored: str, password: bytes, done: Callable[[bool | BaseException], None], must: bool = False
    ) -> None:
        self.run(partial(_verify, stored, password), done, must)

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], must: bool = False) -> Waiting:
        if self.waiting >= HASHES_WAITING_MAX and not must:
            raise Busy(
                f"{self.waiting} passwords wait to be checked, the limit is {HASHES_WAITING_MAX}: the broker is busy",
                hint="try again in a moment",
            )
        place = Waiting(self, work, done)
        self._line.append(place)
        self.waiting += 1
        self._start()
        return place

    def leave(self, place: Waiting) -> bool:
        if place.work is None:
            return False
        place.work = None
        self.waiting -= 1
        return True

    def _start(self) -> None:
        while self._line and self._running < HASHES_AT_ONCE:
            place = self._line.popleft()
            work, place.work = place.work, None
            if work is not None:
                self.waiting -= 1
                self._running += 1
                self._scheduler.offload(work, partial(self._finished, place.done))

    def _finished(self, done: Callable[[Any], None], result: Any) -> None:
        self._running -= 1
        self._start()
        done(result)
