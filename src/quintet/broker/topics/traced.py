"""Defines TracedTopic: a topic of a broker that follows sampled messages. Without telemetry there is none of them."""

from quintet.broker.topics.catalog import ANY, Topic, TopicCommon
from quintet.delivery.traces import Traces
from quintet.log.base import Appended, Partition, TopicSpec


class TracedTopic(Topic):
    """Looks for sampled messages in what is published (delivery/traces.py). Sessions let the kernel append by itself only what has no
    headers while messages are followed, so nothing is missed there."""

    __slots__ = ("_traces",)

    def __init__(
        self, traces: Traces, spec: TopicSpec, partitions: list[Partition], common: TopicCommon, ready: bool
    ) -> None:
        super().__init__(spec, partitions, common, ready)
        self._traces = traces

    def publish(
        self, batch: bytearray, count: int, must_keep: bool, done: Appended | None, partition: int = ANY
    ) -> int:
        watch = self._traces.watch(self.name, self.spec.durability, batch, count, done)
        chosen = super().publish(batch, count, must_keep, done if watch is None else watch, partition)
        if watch is not None:
            watch.partition = chosen
        return chosen

    def publish_read(self, batch: bytearray, count: int, done: Appended, partition: int) -> int:
        self.publish(batch, count, True, done, partition)
        return -1

    def forget(self, error: Exception) -> None:
        super().forget(error)
        self._traces.forget(self.name, len(self.partitions))
