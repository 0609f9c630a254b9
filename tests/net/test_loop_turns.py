"""LoopScheduler: what is wanted soon while a callback gathers is done by its `finish`, all of it and in order."""

import asyncio
from functools import partial
from typing import Any

from quintet.net.loop import LoopScheduler
from quintet.net.turns import FINISH_ROUNDS_MAX


def test_gathered_calls_run_when_they_are_settled_although_one_fails() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop, threads=0)
        said: list[Any] = []
        loop.set_exception_handler(lambda _, context: said.append(type(context["exception"])))

        def again(left: int) -> None:
            scheduler.soon(partial(count_down, left))

        def count_down(left: int) -> None:
            said.append(left)
            if left:
                again(left - 1)

        scheduler.soon(lambda: said.append("before"))
        scheduler.turns.gather()
        scheduler.soon(lambda: said.append("first"))
        scheduler.soon(lambda: said.append(said[99]))
        scheduler.soon(lambda: scheduler.soon(lambda: said.append("behind")))
        again(FINISH_ROUNDS_MAX)
        assert said == []
        scheduler.turns.finish()
        rounds = list(range(FINISH_ROUNDS_MAX, 0, -1))
        assert said == ["before", "first", IndexError, rounds[0], "behind", *rounds[1:]]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert said[-1] == 0

    asyncio.run(main())
