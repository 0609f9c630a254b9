"""The broker's spans, on a simulated clock and disk: which messages are followed, what is told of them, and every bound."""

import errno
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec.structs import replace

from quintet import kernel
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.traced import TracedTopic
from quintet.delivery.traces import READERS_MAX, Context, Span, Traces, parse
from quintet.model.batch import AT_MOST_ONCE
from quintet.model.tasks import start
from quintet.testing.line import Peer, SimBroker
from tests.protocols.blipmq.helpers import ready, subscribed, tags_of
from tests.wire import blipmq as wire

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
PARENT = 0xB7AD6B7169203331
SECOND_US = 1_000_000


def traceparent(trace_id: int = TRACE, flags: str = "01") -> bytes:
    return f"00-{trace_id:032x}-{PARENT:016x}-{flags}".encode()


@dataclass
class World:
    """A broker that follows messages, one reader over BlipMQ, and what was told."""

    sim: SimBroker
    traces: Traces
    spans: list[Span] = field(default_factory=list)

    def publish(
        self, *parents: bytes | None, topic: bytes = b"t", durable: bool = True, flags: int = 0
    ) -> list[tuple[int, Exception | None]]:
        """One record for each header; what the publisher was told."""
        headers = [() if parent is None else ((b"a", b"b"), (b"traceparent", parent)) for parent in parents]
        batch = kernel.build([b"v"] * len(parents), None, headers, origin=b"flymq:ann", flags=flags)
        told: list[tuple[int, Exception | None]] = []
        target = self.sim.broker.topics.ensure(topic, durable)
        target.publish(batch, len(parents), durable, lambda offset, error: told.append((offset, error)))
        self.sim.scheduler.run_until_idle()
        return told

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def one(self, name: str) -> Span:
        (found,) = [span for span in self.spans if span.name == name]
        return found


def world(
    ratio: float = 1.0, spans_per_second_max: int = 1_000, messages_max: int = 100, sim: SimBroker | None = None
) -> World:
    sim = sim or SimBroker()
    spans: list[Span] = []
    traces = Traces(
        sim.scheduler,
        Random(1).randbytes,
        spans.append,
        ratio=ratio,
        spans_per_second_max=spans_per_second_max,
        messages_max=messages_max,
    )
    sim.options = replace(sim.options, traces=traces)
    sim.restart()
    return World(sim, traces, spans)


def reader(made: World, topic: bytes = b"t") -> tuple[Peer, int]:
    peer = ready(made.sim, 2)
    return peer, subscribed(peer, topic)


# -- which are followed -----------------------------------------------------------------------------------------------

SOUND = traceparent()
UNSOUND = {
    "not sampled": traceparent(flags="00"),
    "no trace": b"00-" + b"0" * 32 + SOUND[35:],
    "no parent": SOUND[:36] + b"0" * 16 + b"-01",
    "capitals": SOUND.upper(),
    "a version that never is": b"ff" + SOUND[2:],
    "more behind the flags": SOUND + b"-x",
    "short": SOUND[:-1],
    "long": SOUND + b"0",
    "not hexadecimal": SOUND.replace(b"a", b"g"),
    "empty": b"",
    "a newline": SOUND + b"\n",
}


def test_a_sampled_context_is_read() -> None:
    assert parse([(b"x", b"y"), (b"traceparent", SOUND)]) == Context(TRACE, PARENT)
    assert parse([(b"traceparent", b"?"), (b"traceparent", SOUND)]) == Context(TRACE, PARENT), "the last of a name"
    assert parse([(b"traceparent", SOUND), (b"tracestate", b"a=1")]) == Context(TRACE, PARENT, "a=1")
    assert parse([(b"traceparent", b"cc" + SOUND[2:] + b"-more")]) == Context(TRACE, PARENT), "a later version"
    assert parse([(b"traceparent", SOUND), (b"tracestate", b"a=" + b"1" * 511)]) == Context(TRACE, PARENT)
    assert parse([(b"traceparent", SOUND), (b"tracestate", b"\xff")]) == Context(TRACE, PARENT)


@pytest.mark.parametrize("why", UNSOUND)
def test_an_unsound_or_unsampled_context_is_passed_over(why: str) -> None:
    assert parse([(b"traceparent", UNSOUND[why])]) is None
    made = world()
    assert made.publish(UNSOUND[why], None) == [(0, None)]
    assert made.spans == []


def test_only_sampled_records_of_a_batch_are_followed() -> None:
    made = world()
    assert made.publish(None, SOUND, traceparent(flags="00"), traceparent(7)) == [(0, None)]
    assert [span.attributes["messaging.message.id"] for span in made.spans if span.name == "append t"] == [
        "t/0/1",
        "t/0/3",
    ]
    assert made.traces.followed == 2


def test_a_ratio_chooses_by_the_trace_id() -> None:
    made = world(ratio=0.25)
    for trace_id in (1, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 64) - 1, 1 << 127):
        made.publish(traceparent(trace_id))
    assert [span.context.trace_id for span in made.spans if span.name == "append t"] == [
        1,
        1 << 61,
        (1 << 62) - 1,
        1 << 127,
    ], "by its lower 64 bits"
    assert world(ratio=0.0).publish(SOUND) == [(0, None)]


# -- what is told -----------------------------------------------------------------------------------------------------


def test_one_trace_shows_append_fsync_deliver_and_ack() -> None:
    made = world()
    peer, id = reader(made)
    peer.take()
    made.publish(SOUND)
    (tag,) = tags_of(peer.take())
    made.sim.scheduler.time += 3_000
    peer.exchange(wire.ack(tag, id))
    append, fsync, deliver, ack = (made.one(f"{what} t") for what in ("append", "fsync", "deliver", "ack"))
    assert made.names() == ["append t", "fsync t", "deliver t", "ack t"]
    assert {span.context.trace_id for span in made.spans} == {TRACE}
    assert len({span.context.span_id for span in made.spans}) == 4
    assert (append.parent_id, deliver.parent_id) == (PARENT, PARENT)
    assert fsync.parent_id == append.context.span_id and ack.parent_id == deliver.context.span_id
    assert append.begin <= append.end == fsync.begin <= fsync.end == deliver.begin <= deliver.end == ack.begin
    assert ack.end == ack.begin + 3_000
    assert append.attributes == {
        "messaging.system": "quintet",
        "messaging.operation.name": "append",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "0",
        "messaging.message.id": "t/0/0",
        "messaging.batch.message_count": 1,
        "quintet.door": "flymq",
        "quintet.principal": "ann",
        "quintet.durability": "fsync",
    }
    assert (deliver.attributes["quintet.door"], deliver.attributes["quintet.principal"]) == ("blipmq", "dev")
    assert deliver.attributes["quintet.attempt"] == 1
    assert ack.attributes["messaging.operation.type"] == "settle"


def test_without_telemetry_nothing_follows() -> None:
    """The control of the test above: the same traffic."""
    sim = SimBroker()
    made = World(sim, world().traces)
    peer, id = reader(made)
    made.publish(SOUND)
    (tag,) = tags_of(peer.take())
    peer.exchange(wire.ack(tag, id))
    assert made.spans == []
    assert type(sim.broker.topics.find(b"t")) is Topic
    assert all(lane.traces is None for each in sim.broker.subscriptions.all() for lane in each.lanes)
    followed = world().sim
    followed.broker.topics.ensure(b"t", True)
    assert type(followed.broker.topics.find(b"t")) is TracedTopic


def test_a_memory_topic_has_no_fsync() -> None:
    made = world()
    reader(made)[0].take()
    made.publish(SOUND, durable=False, topic=b"m", flags=AT_MOST_ONCE)
    assert made.names() == ["append m"]
    assert made.one("append m").attributes["quintet.durability"] == "memory"


def test_a_publisher_that_waits_for_nothing_is_followed() -> None:
    made = world()
    batch = kernel.build([b"v"], None, [((b"traceparent", SOUND),)], origin=b"fast:x")
    made.sim.broker.topics.ensure(b"t", True).publish(batch, 1, False, None)
    made.sim.scheduler.run_until_idle()
    assert made.names() == ["append t", "fsync t"]


def test_a_merged_batch_keeps_the_places_of_its_records() -> None:
    made = world()
    target = made.sim.broker.topics.ensure(b"t", True)
    for _ in range(3):  # in one turn: one batch in the log
        batch = kernel.build([b"v", b"w"], None, [(), ((b"traceparent", SOUND),)], origin=b"fast:x")
        target.publish(batch, 2, True, None)
    made.sim.scheduler.run_until_idle()
    places = [span.attributes["messaging.message.id"] for span in made.spans if span.name == "append t"]
    assert places == ["t/0/1", "t/0/3", "t/0/5"]


def test_a_refused_append_is_told() -> None:
    made = world()
    made.publish(SOUND)
    made.spans.clear()
    made.sim.disk.fail("fdatasync", 1, errno.EIO)
    ((_, error),) = made.publish(SOUND)
    assert error is not None
    append = made.one("append t")
    assert append.error == str(error) and "messaging.message.id" not in append.attributes
    assert made.names() == ["append t"]


def test_what_times_out_is_due_again_and_then_buried() -> None:
    made = world()
    attempts = made.sim.broker.subscriptions._policy.attempts_max
    peer, _ = reader(made)
    made.publish(SOUND)
    made.sim.advance(SECOND_US * 30 * (2**attempts), step_us=SECOND_US)
    peer.take()
    names = made.names()
    assert names.count("deliver t") == attempts and names.count("retry t") == attempts - 1
    bury = made.one("bury t")
    assert bury.attributes["quintet.attempt"] == attempts
    last = [span for span in made.spans if span.name == "deliver t"][-1]
    assert bury.parent_id == last.context.span_id and last.attributes["quintet.attempt"] == attempts
    (letter,) = [name for name in names if name.startswith("append t") and name != "append t"]
    assert made.one(letter).context.trace_id == TRACE, "the dead letter is in the same trace"
    retries = [span for span in made.spans if span.name == "retry t"]
    assert all(span.end - span.begin >= 29 * SECOND_US for span in retries), "from the delivery to the time-out"


def test_a_reader_that_leaves_gives_back() -> None:
    made = world()
    peer, _ = reader(made)
    made.publish(SOUND)
    peer.close()
    assert made.names() == ["append t", "fsync t", "deliver t", "retry t"]


def test_an_explicit_rejection_is_a_burial() -> None:
    made = world()
    made.publish(SOUND)
    start(made.sim.broker.dead.reject(made.sim.broker.topics.find(b"t"), 0, 0, "bad"))
    made.sim.scheduler.run_until_idle()
    bury = made.one("bury t")
    assert bury.attributes["quintet.cause"] == "rejected by a consumer"
    assert bury.parent_id == made.one("append t").context.span_id


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_the_rate_bounds_spans_and_counts_the_rest() -> None:
    made = world(spans_per_second_max=8)
    made.publish(*[SOUND] * 50)
    assert len(made.spans) <= 8 and made.traces.left_out >= 47
    followed = made.traces.followed
    made.sim.advance(2 * SECOND_US)
    made.publish(SOUND)
    assert made.traces.followed == followed + 1, "a second later there is room again"


def test_many_readers_are_bounded_too() -> None:
    made = world(spans_per_second_max=40)
    made.publish(SOUND)
    for number in range(100):
        made.traces.delivered("flymq", f"r{number}", "t", 0, 0, 1)
    assert len(made.spans) <= 41
    (followed,) = [found for place in made.traces._places.values() for found in place.values()]
    assert len(followed.given) == READERS_MAX


def test_the_oldest_message_is_forgotten() -> None:
    made = world(messages_max=3)
    for _ in range(5):
        made.publish(SOUND)
    assert made.traces.followed == 3
    made.spans.clear()
    made.traces.delivered("flymq", "ann", "t", 0, 0, 5)
    assert [span.attributes["messaging.message.id"] for span in made.spans] == ["t/0/2", "t/0/3", "t/0/4"]


def test_a_deleted_topic_leaves_nothing() -> None:
    made = world()
    made.publish(SOUND)
    start(made.sim.broker.delete_topic(b"t"))
    made.sim.scheduler.run_until_idle()
    assert made.traces.followed == 0
    made.spans.clear()
    made.publish(None)
    made.traces.delivered("flymq", "ann", "t", 0, 0, 1)
    assert made.spans == []


def test_a_clock_set_back_makes_no_span_that_ends_before_it_begins() -> None:
    made = world()
    made.publish(SOUND)
    made.sim.scheduler.jump(-10 * SECOND_US)
    made.traces.delivered("flymq", "ann", "t", 0, 0, 1)
    deliver = made.one("deliver t")
    assert deliver.begin == deliver.end
