"""Defines TracedTopic: a topic of a broker that follows sampled messages. Without telemetry there is none of them."""

from quintet import kernel
from quintet.broker.topics.catalog import ANY, Low, Topic
from quintet.broker.topics.policy import TopicPolicy
from quintet.delivery.traces import Traces
from quintet.log.base import Appended, Partition, TopicSpec
from quintet.model.batch import RecordBatch


class TracedTopic(Topic):
    """Looks for sampled messages in what is published (delivery/traces.py). Sessions let the kernel append by itself only what has no
    headers while messages are followed, so nothing is missed there."""

    __slots__ = ("_traces",)

    def __init__(
        self,
        traces: Traces,
        spec: TopicSpec,
        partitions: list[Partition],
        policy: TopicPolicy,
        ready: bool,
        tails: kernel.Tails[RecordBatch],
        low: Low,
    ) -> None:
        super().__init__(spec, partitions, policy, ready, tails, low)
        self._traces = traces

    def publish(
        self, batch: bytearray, count: int, must_keep: bool, done: Appended | None, partition: int = ANY
    ) -> int:
        watch = self._traces.watch(self.name, self.spec.durability, batch, count, done)
        chosen = super().publish(batch, count, must_keep, done if watch is None else watch, partition)
        if watch is not None:
            watch.partition = chosen
        return chosen

    def forget(self, error: Exception) -> None:
        super().forget(error)
        self._traces.forget(self.name, len(self.partitions))
