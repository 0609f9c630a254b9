"""Publishes the PRODUCE frames of one FlyMQ connection and answers them, run by run.

A run is what one read brought: the kernel makes a batch of it for each topic and partition, a group. The reply slot of the
run is filled when the last of its groups is durable or refused. Groups are published as far as the turn has time; the rest
waits (`unfinished`) until the session offers its bytes again. A group of an idempotent producer that the partition already
holds, in whole or in part, is answered from what is there.
"""

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, cast

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.identity.access import Principal
from quintet.broker.topics.catalog import Topic
from quintet.kernel.items import DirectReader, FlyAppended, FlyGroup, FlyHeld, FlyPlaced
from quintet.model.batch import RecordBatch, placed, producer_of, set_producer
from quintet.model.errors import BadRequest, QuintetError
from quintet.protocols.base import ALL, Holds, Replies, SessionConnection
from quintet.protocols.flymq import codec, errors, frames
from quintet.protocols.records import Groups

TARGETS_MAX: Final = 20_000  # topics a connection remembers having the right to publish to

_U16: Final = struct.Struct("<H")
_ONE_GROUP: Final = struct.Struct(">IiQIqI")  # 1, partition, offset, count, time, no order

Target = Topic | QuintetError  # or why it may not be published to


class Group(NamedTuple):
    """The records of a run that go to one partition, as kernel.fly_produced answers them: by their batch or an error."""

    topic: bytes
    partition: int
    batch: bytearray | None
    error: bytes


class Run(Holds):
    """The reply slot of a run of PRODUCE frames: what became of each group, and how many are still on their way. If the kernel appended
    all of it, it has answered it, too (`made`), and the groups are asked for only when one of them comes back."""

    __slots__ = ("groups", "made", "order")

    def __init__(self, groups: list[Group], order: bytes, made: FlyAppended | None = None) -> None:
        self.data = None
        self.groups = groups
        self.order = order
        self.made = made
        self.missing = len(groups)

    def waiter(self, number: int) -> Callable[[int, Exception | None], None] | None:
        """A group came back: its offset and time may become others, or it is refused."""
        self.unpack()
        return super().waiter(number)

    def unpack(self) -> None:
        if self.made is not None:
            self.groups, self.order, self.made = cast(list[Group], self.made.groups()), self.made.order, None

    def answer(self, dialect: frames.Dialect) -> bytes:
        if self.made is not None:
            assert self.made.answers is not None, "what has groups left is unpacked"
            return self.made.answers
        return self.put_together(dialect)

    def put_together(self, dialect: frames.Dialect) -> bytes:
        """Of what became of each group."""
        return kernel.fly_produced(self.groups, self.order, frames.BINARY)


class RecordsRun(Run):
    """The same of one PRODUCE_RECORDS, which is answered as a whole: with its first error, if there is one."""

    __slots__ = ()

    def put_together(self, dialect: frames.Dialect) -> bytes:
        errors_found = [error for _, _, batch, error in self.groups if batch is None]
        if errors_found:
            return errors_found[0]
        if len(self.groups) == 1:  # by hand, as the row in the table says: most sets go to one partition
            _, partition, batch, _ = self.groups[0]
            assert batch is not None
            at = placed(batch)
            head = frames.HEADER.pack(
                frames.MAGIC, frames.VERSION, frames.PRODUCE_RECORDS, frames.BINARY, _ONE_GROUP.size
            )
            count = len(self.order) // 2
            return head + _ONE_GROUP.pack(1, partition, at.base_offset, count, at.timestamp // 1000, 0)
        rows = []
        for _, partition, batch, _ in self.groups:
            assert batch is not None
            at = placed(batch)
            rows.append({"partition": partition, "offset": at.base_offset, "timestamp_ms": at.timestamp // 1000})
            rows[-1]["count"] = RecordBatch(batch).count
        order = array("H", self.order) if len(rows) > 1 else array("H")
        if sys.byteorder == "little":
            order.byteswap()
        values = {"groups": rows, "order": order.tobytes()}
        return codec.encode_answer(frames.OPERATIONS[frames.PRODUCE_RECORDS], dialect, values, 0)


RUNS: Final[dict[int, type[Run]]] = {
    frames.PRODUCE: Run,
    frames.PRODUCE_RECORDS: RecordsRun,
}  # as the kernel splits them


class Producing:
    """Topics this connection may publish to, and its runs under way."""

    __slots__ = (
        "_broker", "_dialect", "_epoch", "_last", "_origin", "_peer", "_principal", "_reader", "_replies", "_rest", "_sink", "_targets",
        "append_sets", "counts", "routes", "tails", "unfinished",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, sink: SessionConnection, replies: Replies, dialect: frames.Dialect, peer: str
    ) -> None:
        self._broker = broker
        self._sink = sink
        self._replies = replies
        self._dialect = dialect
        self._peer = peer
        self._principal: Principal | None = None
        self._origin = b""
        self._epoch = 0
        self._targets: dict[bytes, Target] = {}
        self.counts: dict[bytes, int] = {}  # partitions of each target, as kernel.fly_split takes them; 0: refused
        self.tails = broker.tails
        self.routes: kernel.Routes[Topic] = kernel.Routes()  # where the kernel appends and answers by itself
        self._reader: DirectReader | None = None  # made of these, for the kernel
        self.append_sets = broker.traces is None  # sampled messages are looked for in headers, by TracedTopic.publish
        self._last: Topic | None = None
        # What the turn had no time for: the run, groups and their numbers in it, the first of those that are left, their targets, the
        # epoch.
        self._rest: tuple[Run, list[FlyGroup], Sequence[int], int, list[Target], int] | None = None
        self.unfinished = False  # there is such a rest

    def permit(self, principal: Principal | None, origin: bytes, epoch: int) -> None:
        """Who is on the connection, from now on."""
        self._principal, self._origin, self._epoch = principal, origin, epoch
        self.forget_targets()

    def behind(self) -> bool:
        """Must the connection not be read from, because the disk is behind?"""
        return self._last is not None and (self._last.waiting or self._broker.overloaded())

    def close(self) -> None:
        self.forget_targets()
        self._last = None
        del self._sink

    # -- targets ---------------------------------------------------------------------------------------------------

    def resolve(self, name: bytes) -> None:
        """A topic this connection has not published to yet: may it, and how many partitions are there?"""
        assert self._principal is not None
        if len(self._targets) >= TARGETS_MAX:
            self.forget_targets()
        try:
            topic = self._broker.publish_target(self._principal, name, durable=True, peer=self._peer)
            self._targets[name], self.counts[name] = topic, len(topic.partitions)
            # Somebody publishes to it already: then the kernel may.
            if not topic.bounded and (handle := topic.handle) is not None:
                self.routes.add(name, handle, topic, True)
        except QuintetError as error:
            self._targets[name], self.counts[name] = error, 0

    def _target(self, name: bytes) -> Target:
        """One that the kernel has a route to may be forgotten here."""
        if name not in self._targets:
            self.resolve(name)
        return self._targets[name]

    def partitions_of(self, name: bytes) -> int:
        """How many partitions a topic has that may be published to; raises if it may not."""
        if name not in self._targets:
            self.resolve(name)
        target, count = self._targets[name], self.counts[name]
        if not isinstance(target, Topic):
            self._forget(name)
            raise target
        return count

    def forget_targets(self) -> None:
        self._targets, self.counts, self._reader = {}, {}, None
        self.routes.clear()

    def _forget(self, name: bytes) -> None:
        """Ask again at its next use: topic and rights may not be what they were."""
        self._targets.pop(name, None)
        self.counts.pop(name, None)

    # -- reads that the kernel takes by itself ---------------------------------------------------------------------

    def direct(self, frame_bytes_max: int) -> DirectReader | None:
        if self._reader is None and self._last is not None and kernel.DirectReader is not None:
            self._reader = kernel.DirectReader.fly(
                self.tails, self.routes, frame_bytes_max, self.counts, self._origin, self.append_sets
            )
        return self._reader

    def adopt(self, unanswered: bytes | tuple[FlyAppended, int]) -> Run | None:
        if isinstance(unanswered, bytes):
            self._replies.put(unanswered)
            return None
        made, op = unanswered
        run = RUNS[op]([], b"", made)
        run.hold(1, 0, self._sink.appended)
        self._replies.add(run)
        return run

    # -- runs ------------------------------------------------------------------------------------------------------

    def appended(self, topic: Topic, answers: bytes) -> None:
        """The kernel has appended a run to memory topics, to this one last, and answered it."""
        self._last = topic
        self._replies.put(answers)
        self._broker.tails_appended()

    def held(self, topic: Topic, held: FlyHeld) -> None:
        """The kernel has appended groups of a run to partitions in files, to this topic last; the others are published here."""
        self._last = topic
        ticket, made, rest, ways, op = held
        run = RUNS[op]([], b"", made)
        run.hold(ways, len(rest), self._sink.appended)
        self._replies.add(run)
        if self._broker.tails_held(ticket, ways, run):
            self.produced(run, ALL, None)
        if rest:
            run.unpack()
            numbers = [number for number, _ in rest]
            groups = cast(list[FlyPlaced], run.groups)
            left = [(*groups[number][:3], count) for number, count in rest]
            targets = [self._target(name) for name, _, _, _ in left]
            self._publish(run, left, numbers, 0, targets, self._epoch)

    def run_records(self, name: bytes, found: Groups, producer_id: int, sequence: int) -> None:
        """The record set of one PRODUCE_RECORDS."""
        if producer_id:
            if len(found.groups) > 1:
                raise BadRequest("the records of an idempotent producer go to one partition", hint="name the partition")
            set_producer(found.groups[0][1], producer_id, sequence)
        self.run([(name, *group) for group in found.groups], found.order, RecordsRun)

    def run(self, groups: list[FlyGroup], order: bytes, kind: type[Run] = Run) -> None:
        run = kind([Group(topic, partition, batch, b"") for topic, partition, batch, _ in groups], order)
        self._replies.add(run)
        targets = [self._target(name) for name, _, _, _ in groups]  # a refusal below forgets its topic
        self._publish(run, groups, range(len(groups)), 0, targets, self._epoch)

    def go_on(self) -> None:
        assert self._rest is not None
        self._publish(*self._rest)

    def _publish(
        self, run: Run, groups: list[FlyGroup], numbers: Sequence[int], start: int, targets: list[Target], epoch: int
    ) -> None:
        """Groups of a run, as many as the turn has time for."""
        self._rest, self.unfinished = None, False
        appended = self._sink.appended
        for at in range(start, len(groups)):
            name, partition, batch, count = groups[at]
            number = numbers[at]
            try:
                target = targets[at]
                if epoch != self._epoch:  # rights changed between two turns
                    target = self._target(name)
                if not isinstance(target, Topic):
                    raise target
                if producer_of(batch).id:
                    self._publish_once(run, number, target)
                else:
                    chosen = target.publish(batch, count, True, partial(appended, (run, number)), partition)
                    if chosen != partition:
                        run.groups[number] = Group(name, chosen, batch, b"")
                    self._last = target
                    if not target.bounded and (handle := target.direct or target.lent) is not None:
                        self.routes.add(name, handle, target, True)
            except QuintetError as error:
                self.produced(run, number, error)
            if at + 1 < len(groups) and self._sink.turn_over():
                self._rest, self.unfinished = (run, groups, numbers, at + 1, targets, epoch), True
                return

    def produced(self, run: Run, number: int, error: Exception | None) -> None:
        """A group is durable, or refused."""
        if error is not None:
            topic, partition, _, _ = run.groups[number]
            run.groups[number] = Group(topic, partition, None, errors.to_frame(error, self._dialect))
            self._forget(topic)
        run.missing -= 1
        if not run.missing:
            self._replies.fill(run, run.answer(self._dialect))

    # -- idempotent producers --------------------------------------------------------------------------------------

    def _publish_once(self, run: Run, number: int, topic: Topic) -> None:
        """A group of an idempotent producer: what the partition already holds is answered, the rest appended."""
        producers = self._broker.producers
        _, partition, batch, _ = run.groups[number]
        assert batch is not None
        if partition < 0:
            raise BadRequest(
                "an idempotent message names its partition or has a key", hint="a retry must find where the first went"
            )
        topic.partition(partition)
        if producers.in_flight(topic, partition, batch):
            again = partial(self._publish_again, run, number, topic)
            completed = self._sink.completed  # the session may be closed, and without a sink, when it is called
            producers.wait(topic, partition, batch, lambda _: completed(again, None, None))
            return
        pieces = producers.plan(topic, partition, batch)
        if pieces == [(RecordBatch(batch).count, None)]:
            producers.append(topic, partition, batch, partial(self._sink.appended, (run, number)))
            self._last = topic
        elif len(pieces) == 1 and pieces[0][1] is not None:  # all of it is a retry, and may have 31 MiB
            kernel.place(batch, *pieces[0][1])
            self.produced(run, number, None)
        else:
            self._split(run, number, topic, pieces)

    def _publish_again(self, run: Run, number: int, topic: Topic, _result: object, _error: Exception | None) -> None:
        try:
            self._publish_once(run, number, topic)
        except QuintetError as error:
            self.produced(run, number, error)

    def _split(self, run: Run, number: int, topic: Topic, pieces: list[tuple[int, tuple[int, int] | None]]) -> None:
        """Part of a group is a retry: every piece becomes a group of its own, in the place of its records."""
        name, partition, batch, _ = run.groups[number]
        assert batch is not None
        producer = producer_of(batch)
        rows = RecordBatch(batch).rows()
        numbers: list[int] = []
        first = 0
        for place, (count, there) in enumerate(pieces):
            part = rows[first : first + count]
            _, _, keys, values, headers, expiries, _ = (list(column) for column in zip(*part, strict=True))
            made = kernel.build(values, keys, headers, expiries=expiries, origin=self._origin)
            set_producer(made, producer.id, producer.sequence + first)
            first += count
            target = number if place == 0 else len(run.groups)
            if place:
                run.groups.append(Group(name, partition, made, b""))
                run.missing += 1
            else:
                run.groups[number] = Group(name, partition, made, b"")
            numbers += [target] * count
            if there is not None:
                kernel.place(made, *there)
        run.order = _renumber(run.order, number, numbers)
        placed = [number, *range(len(run.groups) - len(pieces) + 1, len(run.groups))]
        for target, (_, there) in zip(placed, pieces, strict=True):
            if there is not None:
                self.produced(run, target, None)
                continue
            made_batch = run.groups[target].batch
            assert made_batch is not None
            try:
                producers_done = partial(self._sink.appended, (run, target))
                self._broker.producers.append(topic, partition, made_batch, producers_done)
            except QuintetError as error:
                self.produced(run, target, error)


def _renumber(order: bytes, number: int, numbers: list[int]) -> bytes:
    """Give the records of group `number` these group numbers, in order."""
    fresh = bytearray(order)
    following = iter(numbers)
    for at in range(0, len(order), 2):
        if _U16.unpack_from(order, at)[0] == number:
            _U16.pack_into(fresh, at, next(following))
    return bytes(fresh)
