"""What a start reads of an idempotent producer in a partition whose batches were compacted."""

import struct
from collections import OrderedDict

from quintet import kernel
from quintet.broker.atomic.producers import ProducerRow, Producers
from quintet.model.batch import RecordBatch
from quintet.testing.line import SimBroker

ID = 7


def numbered(count: int, sequence: int, base: int) -> bytearray:
    batch = kernel.build([b"v"] * count, [b"k"] * count, origin=b"test:1")
    struct.pack_into("<QI", batch, 48, ID, sequence)
    kernel.seal(batch, base, 1_000_000, 0)
    return batch


def test_a_compacted_batch_is_as_wide_as_it_was() -> None:
    """Ten messages of one key, of which compaction left the last: the next one is the eleventh, and retries are known."""
    kept = kernel.select(numbered(10, 0, 0), [9])
    assert kept is not None
    compacted = RecordBatch(kept)
    sim = SimBroker()
    topic = sim.broker.topics.ensure(b"t", durable=True)
    sim.scheduler.run_until_idle()

    class Compacted:
        start, visible = 0, 10

        def read_now(self, _offset: int) -> list[RecordBatch]:
            return [compacted]

    topic.partitions[0] = Compacted()  # type: ignore[call-overload]
    producers = Producers(sim.broker.producers._table, sim.broker.topics)
    known = producers._known[topic.spec.id, 0] = OrderedDict()
    producers._read_since(known, topic, ProducerRow("t", topic.spec.id, 0, 0, []))
    assert producers.plan(topic, 0, numbered(1, 10, 0)) == [(1, None)]
    assert producers.plan(topic, 0, numbered(5, 5, 0)) == [(5, (5, compacted.timestamp))]
