"""What a read far from the end of the log costs: the engine opened on a stopped directory, random places of every topic.

No door offers random reads yet, so the log is asked directly. The first look at a place warms the system's page cache,
the second is timed: the question is whether finding and checking costs more in a longer log, not how fast the disk is.
"""

import asyncio
import random
import time
from pathlib import Path

from quintet.bench.wire import BenchError
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.model.batch import RecordBatch
from quintet.model.limits import TOPIC_ID_FIRST_USER
from quintet.net.loop import LoopScheduler

READ_BYTES = 256 * 1024
READS = 400
SEED = 7


async def _fetch(partition: Partition, offset: int) -> int:
    """Fetch about READ_BYTES from an offset; how many records came."""
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def done(batches: list[RecordBatch], error: Exception | None) -> None:
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(sum(batch.count for batch in batches))

    partition.fetch(offset, READ_BYTES, done)
    return await answer


async def _reads(data: Path, repetitions: int) -> list[float]:
    scheduler = LoopScheduler(asyncio.get_running_loop())
    log = EmbeddedLog(data, OsDisk(), scheduler, lambda event, facts: None)
    log.recover()
    try:
        chance = random.Random(SEED)
        # Not the first topic: the append load has put small records among its large ones.
        topics = [topic for topic in log.topic_ids() if topic > TOPIC_ID_FIRST_USER]
        partitions = [log.open_topic(TopicSpec(id=topic, name=f"read{topic}"))[0] for topic in topics]
        found = []
        for _ in range(repetitions):
            places = [(part, chance.randrange(part.visible)) for part in chance.choices(partitions, k=READS)]
            for partition, offset in places:
                await _fetch(partition, offset)
            start = time.monotonic()
            records = 0
            for partition, offset in places:
                records += await _fetch(partition, offset)
            if not records:
                raise BenchError(f"{data.name}: reads of the log gave no records")
            found.append((time.monotonic() - start) * 1e9 / records)
        return found
    finally:
        closed = asyncio.Event()
        log.close(closed.set)
        await closed.wait()
        scheduler.close()


def read_costs(data: Path, repetitions: int) -> list[float]:
    """Nanoseconds per record read, one figure per repetition."""
    return asyncio.run(_reads(data, repetitions))
