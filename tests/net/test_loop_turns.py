"""LoopScheduler: what is wanted soon while a callback gathers is done by its `run_gathered`, all of it and in order."""

import asyncio
from typing import Any

from quintet.net.loop import LoopScheduler


def test_gathered_calls_run_when_they_are_settled_although_one_fails() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        scheduler = LoopScheduler(loop, threads=0)
        said: list[Any] = []
        loop.set_exception_handler(lambda _, context: said.append(type(context["exception"])))
        scheduler.soon(lambda: said.append("before"))
        scheduler.gather()
        scheduler.soon(lambda: said.append("first"))
        scheduler.soon(lambda: said.append(said[99]))
        scheduler.soon(lambda: scheduler.soon(lambda: said.append("behind")))
        assert said == []
        scheduler.run_gathered()
        assert said == ["before", "first", IndexError]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert said == ["before", "first", IndexError, "behind"]

    asyncio.run(main())
