"""Hashes passwords with argon2id through the scheduler's `offload`, never on the loop.

At most HASHES_AT_ONCE at a time, which leaves disk threads to the log; the others wait in a line of bounded length, until
it is their turn or they give up. Nothing here keeps a password longer than its hash takes.
"""

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from quintet.model.errors import BadRequest, Busy
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, offload, start

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

T = TypeVar("T")
Entropy = Callable[[int], bytes]
Costs = tuple[int, int, int]  # memory in KiB, passes, lanes

OUR_COSTS: Final[Costs] = (HASH_MEMORY_KIB, HASH_PASSES, HASH_LANES)
_COSTS: Final = re.compile(r"\$m=(\d+),t=(\d+),p=(\d+)\$")


def _hash(password: bytes, salt: bytes) -> str:
    from argon2 import low_level  # late: 4 ms with cffi, in a thread and for the first password

    return low_level.hash_secret(
        password, salt, HASH_PASSES, HASH_MEMORY_KIB, HASH_LANES, HASH_BYTES, low_level.Type.ID
    ).decode()


def _verify(stored: str, password: bytes) -> bool:
    from argon2 import low_level  # late: as above
    from argon2.exceptions import VerifyMismatchError

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
    from argon2 import low_level  # late: as above

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


class Hashing:
    """Slow hashes elsewhere, a few at once, the others in line."""

    def __init__(self, scheduler: Scheduler, entropy: Entropy) -> None:
        self._scheduler = scheduler
        self._entropy = entropy
        self._line: deque[Promise[None]] = deque()
        self._running = 0

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def hash(self, password: bytes, must: bool = False) -> str:
        """Raises Busy if too many wait, unless it must be: what the configuration asks for is not turned away."""
        work = partial(_hash, password, self._entropy(SALT_BYTES))
        turn = self.line_up(must)
        try:
            return await self.compute(turn, work)
        except Exception as error:
            raise Busy("the password could not be hashed", hint="is there memory left? try again") from error

    async def verify(self, stored: str, password: bytes, must: bool = False) -> bool:
        """Is it right? No, if that could not be computed. Raises Busy as `hash` does."""
        turn = self.line_up(must)
        try:
            return await self.compute(turn, partial(_verify, stored, password))
        except Exception:
            return False

    def line_up(self, must: bool = False) -> Promise[None]:
        """A place in the line, completed when its turn has come: to be handed to `compute`, or to `leave`. Raises Busy."""
        if len(self._line) >= HASHES_WAITING_MAX and not must:
            raise Busy(
                f"{len(self._line)} passwords wait to be checked, the limit is {HASHES_WAITING_MAX}: the broker is busy",
                hint="try again in a moment",
            )
        turn: Promise[None] = Promise()
        self._line.append(turn)
        self._let_in()
        return turn

    async def compute(self, turn: Promise[None], work: Callable[[], T]) -> T:
        """Wait for the turn, and do this work. The place is taken until the thread is done, whoever still waits for it."""
        await turn
        computed = start(offload(self._scheduler, work))
        computed.then(self._let_out)
        return await computed

    def leave(self, turn: Promise[None]) -> bool:
        """Leave the line; False if the turn has come: then it is computed."""
        if turn.pending:
            self._line.remove(turn)
            return True
        return False

    def _let_in(self) -> None:
        while self._line and self._running < HASHES_AT_ONCE:
            self._running += 1
            self._line.popleft().resolve(None)

    def _let_out(self, _result: object, _error: Exception | None) -> None:
        self._running -= 1
        self._let_in()
