"""Runs one node of a cell: the broker as shipped, on a log whose WAL is in Kafka. `quintet serve` has no option for that yet (ADR 39).

    cell_node.py SERVERS TOPIC NODE LEASE_MS SILENCE_MS [arguments of quintet]

The node follows until it leads; only then are its doors open and its ready line printed. It ends with code 75 when it is fenced.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial

from quintet import server
from quintet.cli.main import main
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.replicated.engine import ReplicatedLog
from quintet.log.replicated.kafka import KafkaWal, WalOptions
from quintet.log.replicated.replica import Timing
from quintet.net.leased_turns import LeasedTurns
from quintet.net.loop import LoopScheduler
from quintet.net.turns import Turns

FENCED_CODE = 75
LOOK_S = 0.02
OPTIONS = sys.argv[1:6]


class CellServer(server.Server):
    def _make_turns(self, loop: asyncio.AbstractEventLoop) -> Turns:
        return LeasedTurns(loop, server._report)

    def _make_log(self, scheduler: LoopScheduler, make: Callable[..., EmbeddedLog] = EmbeddedLog) -> EmbeddedLog:
        servers, topic, node, lease, silence = OPTIONS
        loop, lease_us = asyncio.get_running_loop(), int(lease) * 1_000
        wal = KafkaWal(
            WalOptions(servers, topic, replication=1, min_insync=1, flush_messages=0),
            loop.call_soon_threadsafe,  # not as a turn: it is what renews the lease
        )
        timing = Timing(lease_us, lease_us * 5 // 4, int(silence) * 1_000, lease_us // 4)
        return super()._make_log(scheduler, partial(ReplicatedLog, wal=wal, node=node, timing=timing))

    async def _until_leading(self) -> None:
        assert isinstance(self.log, ReplicatedLog)
        leading = asyncio.get_running_loop().create_future()
        self.log.take_part(partial(leading.set_result, None), end)
        await leading

    async def _open_doors(self) -> None:
        """The broker's start kept the loop, so the lease may be over: it is renewed before anybody is answered."""
        assert isinstance(self.log, ReplicatedLog)
        assert isinstance(self.turns, LeasedTurns)
        while not self.log.may_answer():
            await asyncio.sleep(LOOK_S)
        self.turns.guard(self.log.may_answer, partial(end, "its lease is over"))
        await super()._open_doors()


def end(reason: str) -> None:
    sys.stderr.write(f"node ended: {reason}\n")
    sys.stderr.flush()
    os._exit(FENCED_CODE)


if __name__ == "__main__":
    server.Server = CellServer  # type: ignore[misc]
    sys.argv[1:] = sys.argv[6:]
    main()
