"""Topics and consumer groups on a simulated disk, without the rest of the broker: what the tests of groups share."""

from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from quintet import kernel
from quintet.broker.consumers.coordinator import Groups
from quintet.broker.consumers.group import Assignment, GroupRow
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.broker.topics.specs import TopicRow
from quintet.log.base import Durability
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.tasks import Verb, start
from quintet.testing.sim import SimDisk, SimScheduler

DATA = Path("/data")
SECOND = 1_000_000
T = TypeVar("T")


class Answers:
    """What a verb's `done` was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, Exception | None]] = []

    def __call__(self, result: Any, error: Exception | None) -> None:
        self.told.append((result, error))


def at_once(verb: Verb[T]) -> T:
    """What a verb returns, or raises, that does not wait."""
    answers = Answers()
    start(verb).then(answers)
    ((result, error),) = answers.told
    if error is not None:
        raise error
    return cast(T, result)


class GroupBroker:
    """Groups that can be run turn by turn, stopped, cut off and started again on the same disk."""

    def __init__(self, durability: Durability = "fsync", **limits: int) -> None:
        self.disk = SimDisk()
        self.scheduler = SimScheduler()
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.limits: dict[str, Any] = limits
        self.policy = TopicPolicy([TopicRule("memory*", durability="memory", partitions=2), TopicRule("*")], durability)
        self.start()

    def start(self) -> None:
        def report(event: str, fields: dict[str, object]) -> None:
            self.reports.append((event, fields))

        self.log = EmbeddedLog(DATA, self.disk, self.scheduler, report)
        self.log.recover()
        topics_table = Table(self.log, 1, "__topics", TopicRow)
        topics_table.load()
        self.topics = Topics(self.log, topics_table, self.policy, Random(0).randbytes)
        self.topics.load()
        table = Table(self.log, 6, "__groups", GroupRow)
        table.load()
        self.groups = Groups(table, self.topics, self.scheduler, report, **self.limits)
        self.groups.load()
        self.scheduler.run_until_idle()

    def restart(self) -> None:
        closed: list[bool] = []
        self.log.close(lambda: closed.append(True))
        self.scheduler.run_until_idle()
        assert closed
        self.start()

    def cut_power(self, seed: int = 0) -> None:
        self.log.abandon()
        self.disk.crash(Random(seed))
        now = self.scheduler.now()
        self.scheduler = SimScheduler()
        self.scheduler.time = now
        self.start()

    def topic(self, name: str = "t", partitions: int = 0) -> Topic:
        found = self.topics.get(name.encode())
        if found is None:
            if name.startswith("memory"):
                found = self.topics.ensure(name.encode(), durable=False)
            else:
                found = self.topics.create(name.encode(), partitions)[0]
            self.scheduler.run_until_idle()
        return found

    def publish(self, topic: Topic, partition: int, count: int, timestamps: list[int] | None = None) -> None:
        """Records one second apart, or with these times in microseconds."""
        for number in range(count):
            times = None if timestamps is None else [timestamps[number]]
            topic.publish(kernel.build([b"v"], timestamps=times, origin=b"test:1"), 1, True, None, partition)
            self.scheduler.run_until_idle()
            if timestamps is None:
                self.scheduler.advance(SECOND)

    # -- verbs, each until it is answered ------------------------------------------------------------------------------

    def answer(self, answers: Answers) -> Any:
        self.scheduler.run_until_idle()
        assert len(answers.told) == 1, "done is called exactly once"
        result, error = answers.told[0]
        if error is not None:
            raise error
        return result

    def run(self, verb: Verb[T]) -> T:
        answers = Answers()
        start(verb).then(answers)
        return cast(T, self.answer(answers))

    def subscribe(
        self,
        topic: Topic,
        partition: int = -1,
        mode: str = "earliest",
        member: object = "m",
        name: str = "",
        group: str = "g",
        actor: str = "ann",
        privileged: bool = False,
    ) -> Assignment:
        return self.run(self.groups.subscribe(actor, privileged, topic, group, partition, mode, member, name))

    def commit(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        generation: int | None = None,
        member: object = "m",
        group: str = "g",
        actor: str = "ann",
        privileged: bool = False,
    ) -> None:
        self.run(
            self.groups.offsets.commit(
                actor, privileged, topic, group, partition, offset, generation, member, door="flymq"
            )
        )

    def committed(self, topic: Topic, partition: int = 0, group: str = "g", actor: str = "ann") -> int:
        return self.groups.offsets.get_offset(actor, False, topic, group, partition)

    def tick(self, delta_us: int) -> None:
        self.scheduler.advance(delta_us)
        self.groups.tick(self.scheduler.monotonic())
        self.scheduler.run_until_idle()
