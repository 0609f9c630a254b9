"""The loads with one message under way: every TCP door beside a server that only answers, without and with a sync of the disk.

Both sides are driven by the same program with the same bytes (dialogues.py), and the processor time of both processes is set
beside each other: it survives a busy machine better than the clock does.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from bench.dialogues import DIALOGUES, Dialogue, Learned, learn
from bench.harness import OURS, Bench, Better, Comparison, Figure
from bench.loads_doors import address_of

from bench import closed_loop, floors, peers
from quintet.bench.machine import processor_seconds
from quintet.bench.wire import Address

WARMUP_S = 0.2
ECHO_TARGETS = {"rate": 0.85, "processor": 1.5}
SYNCED_TARGETS = {"rate": 0.8, "processor": 1.3}
SYNCED_CONNECTIONS = (1, 8)
NAMED = "peerbus"  # its clients need names of their own: it is driven over one connection only


@dataclass(slots=True)
class _Measured:
    """One side's figures by kind."""

    name: str
    pid: int
    address: Address
    figures: dict[str, list[float]] = field(default_factory=lambda: {"rate": [], "p50": [], "processor": []})

    def take(self, done: closed_loop.Rounds, processor_s: float) -> None:
        self.figures["rate"].append(done.rate)
        self.figures["p50"].append(done.p50_us)
        self.figures["processor"].append(processor_s / done.total * 1e6)


def _compare(
    bench: Bench,
    name: str,
    sides: list[_Measured],
    said: Learned,
    again: Iterator[Dialogue],
    connections: int,
    targets: dict[str, float],
) -> None:
    for turn in range(-1, bench.effort.repetitions):
        for side in sides:
            before = processor_seconds(side.pid)
            script = said.options(next(again))
            done = closed_loop.scripted(name, side.address, connections, bench.effort.seconds, WARMUP_S, script)
            if turn >= 0:
                side.take(done, processor_seconds(side.pid) - before)
    kinds: tuple[tuple[str, str, str, Better], ...] = (
        ("rate", "", "msg/s", "higher"),
        ("p50", ", p50", "us", "lower"),
        ("processor", ", processor time a message", "us", "lower"),
    )
    for kind, words, unit, better in kinds:
        figures = [Figure(side.name, side.figures[kind]) for side in sides]
        bench.add(Comparison(name + words, unit, figures, better, targets.get(kind)))


def _doors(bench: Bench, durability: str, connections: tuple[int, ...], synced: bool) -> None:
    """Every door of one broker whose topics have this durability."""
    with peers.quintet(bench.directory / f"alone-{durability}", {"QUINTET_TOPICS__DURABILITY": durability}) as server:
        for door, make in DIALOGUES.items():
            address = address_of(server, door)
            said, again = learn(make(0), address), map(make, itertools.count(1))
            place = bench.directory / f"alone-{durability}-{door}"
            with (floors.synced if synced else floors.echo)(place, said.exchanges) as floor:
                for count in connections if door != NAMED else (1,):
                    each = f"{count} connections, " if count > 1 else ""
                    name = f"{'alone_fsync' if synced else 'alone'} {door}, {each}{durability}"
                    sides = [_Measured(f"{OURS} {door}", server.pid, address)]
                    sides.append(_Measured(floor.name, floor.pid, floor.address))
                    targets = SYNCED_TARGETS if synced else ECHO_TARGETS
                    _compare(bench, name, sides, said, again, count, targets)


def alone(bench: Bench) -> None:
    """One message of 128 B under way, memory and os, by every TCP door, beside a uvloop echo of the same sizes."""
    if bench.sides({OURS: True}):
        for durability in ("memory", "os"):
            _doors(bench, durability, (1,), synced=False)


def alone_fsync(bench: Bench) -> None:
    """One message under way on 1 and on 8 connections, fsync, beside a program that reads, writes, syncs and answers."""
    if bench.sides({OURS: True}):
        _doors(bench, "fsync", SYNCED_CONNECTIONS, synced=True)
