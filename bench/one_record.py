"""What a FETCH of one record costs that is not in the tail cache: the read, its check and the answer, without network and session.

    .venv/bin/python bench/one_record.py [--batches 60] [--records 1000] [--size 100]

An engine of its own on a fresh folder; the files are in the page cache and nothing is in the tail cache. Processor time, the least
of some repetitions: at random places, and one after the other. For comparing two versions on one machine.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from quintet import kernel
from quintet.broker.topics import reads
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.batch import RecordBatch
from quintet.model.limits import TOPIC_ID_FIRST_USER
from quintet.model.tasks import start
from quintet.net.loop import LoopScheduler
from quintet.protocols.flymq import frames

ANSWER_BYTES = 4 << 20
READS = 200
REPETITIONS = 5
SEED = 7


async def fetch_one(partition: Partition, offset: int) -> None:
    answer: asyncio.Future[list[RecordBatch]] = asyncio.get_running_loop().create_future()

    def done(batches: list[RecordBatch] | None, error: Exception | None) -> None:
        assert batches is not None, error
        answer.set_result(batches)

    start(reads.fetch(partition, offset, 1, ANSWER_BYTES)).then(done)
    buffers = [batch.buffer for batch in await answer]
    _, count, _ = kernel.fly_fetch(buffers, offset, 1, ANSWER_BYTES, 0, frames.FETCH, frames.BINARY, False)
    assert count == 1, "the record was not in the answer"


async def timed(partition: Partition, offsets: Sequence[int]) -> float:
    """Microseconds of processor time for each, with one or two passes of the loop."""
    found = []
    for _ in range(REPETITIONS):
        before = time.thread_time()
        for offset in offsets:
            await fetch_one(partition, offset)
        found.append((time.thread_time() - before) / len(offsets) * 1e6)
    return min(found)


async def fill(partition: Partition, batches: int, records: int, size: int) -> None:
    chance = random.Random(SEED)
    for _ in range(batches):
        appended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        values = [chance.randbytes(size) for _ in range(records)]
        partition.append(kernel.build(values), lambda _, error, told=appended: told.set_result(error))  # type: ignore[misc]
        assert await appended is None


async def measure(batches: int, records: int, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scheduler = LoopScheduler(asyncio.get_running_loop())
        log = EmbeddedLog(Path(folder) / "data", OsDisk(), scheduler, lambda event, facts: None)
        log.recover()
        partition = log.open_topic(TopicSpec(TOPIC_ID_FIRST_USER, "one", durability="os"))[0]
        await fill(partition, batches, records, size)
        assert isinstance(partition, FilePartition)
        partition.cache.clear()
        chance = random.Random(SEED)
        scattered = await timed(partition, [chance.randrange(batches * records) for _ in range(READS)])
        following = await timed(partition, range(records, records + READS))
        print(f"at random {scattered:.1f} us, one after the other {following:.1f} us")
        log.abandon()
        scheduler.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--records", type=int, default=1_000)
    parser.add_argument("--size", type=int, default=100)
    wanted = parser.parse_args()
    asyncio.run(measure(wanted.batches, wanted.records, wanted.size))
