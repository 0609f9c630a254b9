"""Runs one measurement: starts the generator processes together and turns their counts into a rate.

Used by the CLI and by the side-by-side harness alike, so that both measure the same thing. What is printed or drawn is
decided elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from quintet.bench.clock import Nanoseconds, nanoseconds
from quintet.bench.generators import (
    AHEAD_BYTES_MAX,
    Load,
    Received,
    Sent,
    publish_flow,
    publish_pipelined,
    publish_rotating,
    publish_scheduled,
    publish_windows,
)
from quintet.bench.histogram import Loop
from quintet.bench.processes import Counters, Crew, counters
from quintet.bench.subscribers import receive, receive_scheduled
from quintet.bench.wire import BenchError

RUN_S_MAX = 600.0
SCHEDULE_SLACK_S = 60.0
WINDOWS_UNDER_WAY = 4  # an in-flight amount is cut into so many windows, so that the line never runs dry

Progress = Callable[[int], None]


@dataclass(slots=True)
class Outcome:
    """What one run gave. `messages` are those published, or for flows those delivered over all subscribers."""

    messages: int
    seconds: float
    size: int
    loop: Loop
    latencies: Nanoseconds = field(default_factory=nanoseconds)
    busy: float = 0.0  # share of the time the publishing generator was itself on a processor, where it is measured

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def bytes_rate(self) -> float:
        return self.rate * self.size


def _watch(seen: Counters, progress: Progress | None) -> Callable[[], None] | None:
    if progress is None:
        return None
    return lambda: progress(min(seen))


def pipelined(load: Load, count: int, progress: Progress | None = None) -> Outcome:
    """Publish on one connection without waiting, to the answer of a final barrier."""
    seen = counters(1)
    with Crew() as crew:
        crew.add("publisher", publish_pipelined, load, count, seen, 0)
        crew.line_up()
        crew.go()
        sent: Sent = crew.results(RUN_S_MAX, _watch(seen, progress))[0]
    return Outcome(sent.messages, sent.seconds, load.size, "closed", busy=sent.busy_s / sent.seconds)


def rotating(load: Load, topics: int, run: int, passes: int) -> Outcome:
    """Publish over many topics, `run` messages to each in turn."""
    with Crew() as crew:
        crew.add("publisher", publish_rotating, load, topics, run, passes)
        crew.line_up()
        crew.go()
        sent: Sent = crew.results(RUN_S_MAX)[0]
    return Outcome(sent.messages, sent.seconds, load.size, "closed", busy=sent.busy_s / sent.seconds)


def windows(
    load: Load,
    connections: int,
    in_flight: int,
    depth: int = 1,
    seconds: float = 0.0,
    count: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Publish with `depth` windows of in_flight messages per connection, for so long or so many."""
    if not seconds and not count:
        raise BenchError("a run needs an end: give a duration or a count.")
    seen = counters(1)
    with Crew() as crew:
        crew.add("publisher", publish_windows, load, connections, in_flight, depth, seconds, count, seen)
        crew.line_up()
        crew.go()
        sent: Sent = crew.results(seconds + RUN_S_MAX, _watch(seen, progress))[0]
    return Outcome(sent.messages, sent.seconds, load.size, "closed", sent.latencies, sent.busy_s / sent.seconds)


def scheduled(load: Load, rate: float, count: int, progress: Progress | None = None) -> Outcome:
    """Publish at a fixed rate whatever the server does; latency is from the due time to the barrier's answer."""
    seen = counters(1)
    with Crew() as crew:
        crew.add("publisher", publish_scheduled, load, rate, count, True, seen)
        crew.line_up()
        crew.go()
        sent: Sent = crew.results(count / rate + SCHEDULE_SLACK_S, _watch(seen, progress))[0]
    return Outcome(sent.messages, sent.seconds, load.size, "open", sent.latencies)


def flow(
    load: Load,
    count: int,
    subscribers: int = 1,
    processes: int = 1,
    sample: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """One publisher to so many subscribers, as fast as the slowest takes it; first write to last delivery."""
    if subscribers < processes:
        raise BenchError(f"{processes} reader processes cannot share {subscribers} subscribers.")
    seen = counters(processes)
    frame = len(load.wire.delivered(load.topic, bytes(load.size), load.qos))
    ahead = max(1, AHEAD_BYTES_MAX // frame)
    share = [subscribers // processes + (number < subscribers % processes) for number in range(processes)]
    with Crew() as crew:
        crew.add("publisher", publish_flow, load, count, ahead, seen, sample)
        for slot, connections in enumerate(share):
            crew.add(f"subscriber {slot}", receive, load, connections, count, sample, seen, slot)
        crew.line_up()
        crew.go()
        results = crew.results(RUN_S_MAX, _watch(seen, progress))
    sent: Sent = results[0]
    received: list[Received] = results[1:]
    latencies = nanoseconds()
    for part in received:
        latencies.extend(part.latencies)
    elapsed = (max(part.end for part in received) - sent.start) / 1e9
    return Outcome(sum(part.messages for part in received), elapsed, load.size, "closed", latencies)


def scheduled_flow(
    load: Load, rate: float, count: int, subscribers: int = 1, progress: Progress | None = None
) -> Outcome:
    """One publisher at a fixed rate; latency is from the time a message was due to the time each subscriber read it."""
    seen = counters(subscribers)
    with Crew() as crew:
        crew.add("publisher", publish_scheduled, load, rate, count, False)
        for slot in range(subscribers):
            crew.add(f"subscriber {slot}", receive_scheduled, load, count, seen, slot)
        crew.line_up()
        crew.go()
        results = crew.results(count / rate + SCHEDULE_SLACK_S, _watch(seen, progress))
    sent: Sent = results[0]
    latencies = nanoseconds()
    for part in results[1:]:
        latencies.extend(part.latencies)
    elapsed = (max(part.end for part in results[1:]) - sent.start) / 1e9
    return Outcome(count * subscribers, elapsed, load.size, "open", latencies)
