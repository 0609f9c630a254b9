"""A turn that begins without a lease does not serve anybody."""

import asyncio

import pytest

from quintet.net.leased_turns import LeasedTurns


class Lapsed(Exception):
    """What a process would end with."""


def lapse() -> None:
    raise Lapsed


async def test_a_turn_without_a_lease_serves_nobody() -> None:
    turns, served, leased = LeasedTurns(asyncio.get_running_loop()), list[int](), [True]
    turns.run(served.append, 1)  # no node leads yet: there is nothing to guard
    turns.guard(lambda: leased[0], lapse)
    turns.run(served.append, 2)
    leased[0] = False
    with pytest.raises(Lapsed):
        turns.run(served.append, 3)
    assert served == [1, 2]
