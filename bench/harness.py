"""What every load of the side-by-side run shares: sides, figures, repetitions taken in turn, and the servers.

A load asks the Bench for sides, measures each of them in turn (so that a slow minute of the machine hits all alike),
and adds a Comparison. Reports are made from comparisons alone (report.py).
"""

import contextlib
import shutil
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from bench.peer_wires import JetStreamWire, KafkaWire, MqttWire, NatsWire, RabbitWire, RedisWire
from rich.console import Console

from bench import peers
from quintet.bench.blipmq import BlipmqWire
from quintet.bench.flymq import FlymqWire
from quintet.bench.run import Outcome
from quintet.bench.wire import Address, BenchError, Wire

OURS = "quintet"
FLY = f"{OURS} flymq"  # the same server by its other door, started for the loads of that door
INFORMATION_REPETITIONS = 2  # of sides that do not count for the ratio
DURABLE_TOPIC = "bench.durable"  # the subject of the JetStream stream

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long a run takes: --quick is a smoke test whose figures mean nothing."""

    repetitions: int
    seconds: float  # of one repetition
    idle_connections: int
    log_bytes: int
    topics: int
    subscribers: int
    fetch_bytes: int
    fly_topics: int
    many_topics: int


FULL = Effort(5, 1.5, 5_000, 10 << 30, 10_000, 1_000, 1 << 30, 1_000, 100_000)
QUICK = Effort(2, 0.2, 200, 256 << 20, 200, 50, 64 << 20, 40, 400)


@dataclass(slots=True)
class Side:
    """A server as one load sees it."""

    name: str
    wire: Wire
    server: peers.Server
    counts: bool  # whether the ratio is taken against it; otherwise it is shown for information

    @property
    def address(self) -> Address:
        return self.server.address


@dataclass(slots=True)
class Figure:
    """One side's measurements in one load."""

    side: str
    values: list[float] = field(default_factory=list)
    counts: bool = True
    busy: list[float] = field(default_factory=list)  # shares of the time that the generator was on a processor

    @property
    def note(self) -> str:
        """How busy the generator was, where it was measured: near 100 % it and not the server is the limit."""
        return f"generator {statistics.median(self.busy) * 100:.0f} % busy" if self.busy else ""

    def take(self, measured: float | Outcome) -> None:
        """Add a repetition: a figure, or a run whose rate is the figure."""
        if isinstance(measured, Outcome):
            self.busy.append(measured.busy)
            measured = measured.rate
        self.values.append(measured)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Highest less lowest, as a share of the median."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0


@dataclass(slots=True)
class Comparison:
    """One row group of the report. The ratio is ours / peer where more is better, and likewise where less is."""

    load: str
    unit: str
    figures: list[Figure]
    better: Better = "higher"
    target: float | None = None  # least ratio where more is better, greatest where less is; None: for information
    absolute: bool = False  # the target is a value of ours and not a ratio
    command: str = ""
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @property
    def ours(self) -> Figure | None:
        return next((figure for figure in self.figures if figure.side.startswith(OURS)), None)

    @property
    def peer(self) -> Figure | None:
        """The better of the peers that count."""
        rivals = [figure for figure in self.figures if figure.counts and not figure.side.startswith(OURS)]
        if not rivals:
            return None
        return (max if self.better == "higher" else min)(rivals, key=lambda figure: figure.median)

    @property
    def ratio(self) -> float | None:
        ours, peer = self.ours, self.peer
        return ours.median / peer.median if ours and peer and peer.median else None

    @property
    def reached(self) -> bool | None:
        ours = self.ours
        value = (ours.median if ours else None) if self.absolute else self.ratio
        if self.target is None or value is None:
            return None
        return value >= self.target if self.better == "higher" else value <= self.target


class Counts:
    """How many messages a side sends per repetition: the sides that count all send the same number."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rates: dict[str, float] = {}

    def probed(self, side: Side, outcome: Outcome, per_message: int = 1) -> None:
        self._rates[side.name] = outcome.rate / per_message

    def of(self, side: Side, sides: list[Side]) -> int:
        rivals = [self._rates[other.name] for other in sides if other.counts and other.name in self._rates]
        rate = max(rivals) if side.counts else self._rates[side.name]
        return max(1000, int(rate * self._seconds))


class Bench:
    """The servers of a run, started when first asked for and all stopped at the end."""

    def __init__(self, directory: Path, effort: Effort, console: Console, sides: set[str]) -> None:
        self.directory = directory
        self.effort = effort
        self.console = console
        self.comparisons: list[Comparison] = []
        self.skipped: list[str] = []
        self._sides = sides
        self._stack = contextlib.ExitStack()
        self._servers: dict[str, peers.Server | None] = {}

    def __enter__(self) -> Self:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        if self.skipped:
            self._keep_logs()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _keep_logs(self) -> None:
        """What was left out says to look at a server's log: the data go, the logs do not."""
        kept = self.directory.with_name(f"{self.directory.name}-logs")
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for log in sorted(self.directory.glob("*/server.log")):
            shutil.copy(log, kept / f"{log.parent.name}.log")
        self.console.print(f"the servers' logs: {kept}", highlight=False)

    def skip(self, what: str, why: str) -> None:
        """Leave something out, loudly."""
        self.skipped.append(f"{what}: {why}")
        self.console.print(f"[bold red]SKIPPED {what}[/]: {why}", highlight=False)

    def _start(self, key: str) -> peers.Server | None:
        place = self.directory / key.replace(" ", "-")
        starters: dict[str, Callable[[], contextlib.AbstractContextManager[peers.Server]]] = {
            OURS: lambda: peers.quintet(place),
            f"{OURS} idle": lambda: peers.quintet(place),
            FLY: lambda: peers.quintet(place, door="flymq"),
            "kafka": lambda: peers.kafka(place),
            "nats core": lambda: peers.nats(place, jetstream=False),
            "nats idle": lambda: peers.nats(place, jetstream=False),
            "nats jetstream": lambda: peers.nats(place, jetstream=True),
            "redis memory": lambda: peers.redis(place, durable=False),
            "redis durable": lambda: peers.redis(place, durable=True),
            "mosquitto": lambda: peers.mosquitto(place),
            "rabbitmq quorum": lambda: peers.rabbitmq(place),
        }
        if key.split(" ", maxsplit=1)[0] not in self._sides:
            return None
        try:
            server = self._stack.enter_context(starters[key]())
            if key == "nats jetstream":
                JetStreamWire().create_stream(server.address, DURABLE_TOPIC)
        except (BenchError, OSError) as error:
            self.skip(key, str(error))
            return None
        return server

    def sides(self, wanted: dict[str, bool]) -> list[Side]:
        """Sides by server key, with whether each counts for the ratio; missing ones are left out, as was said."""
        wires: dict[str, Wire] = {
            OURS: BlipmqWire(),
            f"{OURS} idle": BlipmqWire(),
            FLY: FlymqWire(),
            "kafka": KafkaWire(),
            "nats core": NatsWire(),
            "nats idle": NatsWire(),
            "nats jetstream": JetStreamWire(),
            "redis memory": RedisWire(),
            "redis durable": RedisWire(),
            "mosquitto": MqttWire(),
            "rabbitmq quorum": RabbitWire(),
        }
        found = []
        for key, counts in wanted.items():
            if key not in self._servers:
                self._servers[key] = self._start(key)
            server = self._servers[key]
            if server is not None:
                found.append(Side(key, wires[key], server, counts))
        return found

    def in_turn(
        self,
        load: str,
        sides: list[Side],
        warm: Callable[[Side], object],
        measure: Callable[[Side, int], float | Outcome],
    ) -> list[Figure]:
        """Warm every side up, then measure them in turn, repetition by repetition."""
        figures = {side.name: Figure(side.name, counts=side.counts) for side in sides}
        failed: set[str] = set()
        for turn in range(-1, self.effort.repetitions):
            for side in sides:
                if side.name in failed or (not side.counts and turn >= INFORMATION_REPETITIONS):
                    continue
                try:
                    if turn < 0:
                        warm(side)
                    else:
                        figures[side.name].take(measure(side, turn))
                except (BenchError, OSError) as error:
                    failed.add(side.name)
                    self.skip(f"{load} / {side.name}", str(error))
        return [figure for figure in figures.values() if figure.values]

    def add(self, comparison: Comparison) -> None:
        """Keep a result and say it at once."""
        if not comparison.figures:
            return
        self.comparisons.append(comparison)
        said = ", ".join(f"{figure.side} {figure.median:,.4g}" for figure in comparison.figures)
        ratio = f", ratio {comparison.ratio:.2f}" if comparison.ratio is not None else ""
        self.console.print(f"[bold]{comparison.load}[/]: {said} {comparison.unit}{ratio}", highlight=False)

    @contextlib.contextmanager
    def fresh(
        self,
        name: str,
        settings: dict[str, str] | None = None,
        ready_within_s: float = 60.0,
        door: Literal["blipmq", "flymq"] = "blipmq",
    ) -> Iterator[Side]:
        """A server of ours for one load alone, with its own data directory (kept until the run ends)."""
        wire = BlipmqWire() if door == "blipmq" else FlymqWire()
        with peers.quintet(self.directory / name, settings, ready_within_s, door) as server:
            yield Side(OURS, wire, server, True)
