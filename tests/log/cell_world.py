"""Simulates a cell: a WAL, three nodes with clocks that drift, clients, and faults by a seed. Nothing here waits.

Faults: requests to the WAL that are lost, answers that are lost, records that are appended twice, foreign bytes in the WAL, followers
whose reads are slow or cut off, nodes that are killed, paused and woken later, power cuts, a WAL that is away for everybody. Leaders also
leave by themselves, for a node that they name or for any.

While it runs: no two nodes may answer at the same moment; a read by whoever may answer shows all that was acknowledged before. At the
end, when all faults are over: one node leads, all nodes have read everything, their files are what the WAL comes to, every
acknowledged write is in it at its place, and no write is in it twice.

    python -m tests.log.cell_world --seeds 100000 [--first 0]          Ctrl-C: the verdict on those that are done
"""

import argparse
import heapq
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from quintet.log.replicated.fold import WalReplaced
from quintet.log.replicated.records import (
    Entry,
    EntryKind,
    WalRecord,
    begun,
    purged,
    stage_part,
    stage_sealed,
    stages_removed,
    topic_deleted,
)
from quintet.log.replicated.replica import Replica, Timing
from tests.log.cell_files import INTENTS, Files, Place, Wrong, batch_entry, truth

LEASE: Final = 1_000
TIMING: Final = Timing(LEASE, LEASE * 5 // 4, LEASE * 3 // 2, LEASE // 3)
TICK: Final = LEASE // 4
STORM: Final = 14 * LEASE  # with faults and clients
CALM: Final = 10 * LEASE  # without
DRIFT: Final = 0.05  # of a clock's rate
NODES: Final = 3
PRODUCE_TIMEOUT: Final = 2 * LEASE


class Weather:
    """How often things go wrong in one history."""

    def __init__(self, rng: Random) -> None:
        self.lost_requests = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.lost_answers = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.doubled = rng.choice((0.0, 0.05, 0.2))
        self.delay = rng.choice((5, 40, LEASE // 4))
        self.poll = rng.choice((20, LEASE // 4, LEASE // 2))
        self.cut_reads = rng.choice((0.0, 0.05, 0.15))
        self.faults = rng.randint(0, 6)
        self.leaves = rng.choice((0, 0, 2, 4))


class Node:
    """One process after another on the same files; the host of each one's replica."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.rate = 1 + world.rng.uniform(-DRIFT, DRIFT)
        self.files = Files()
        self.life = 0  # which process: events for one that ended are dropped
        self.paused_to = 0
        self.replica: Replica | None = None
        self.reader = 0  # which reading: a later one makes the deliveries of the one before void
        self.arrives = 0  # requests of one process reach the WAL in their order
        self.waiting: dict[int, tuple[tuple[Entry, ...], list[Callable[[], None]]]] = {}
        self.ends: dict[Place, tuple[int, bytes]] = {}
        self.topics: set[int] = set()
        self.leaving = False

    def clock(self) -> int:
        return int(self.world.time * self.rate)

    def start(self) -> None:
        self.life += 1
        self.waiting, self.arrives, self.leaving = {}, self.world.time, False
        self.files.restart()
        instance = self.world.rng.randbytes(8)
        self.replica = self.world.replica(self.name, instance, self.files.fold.copy(), TIMING, self)
        self.replica.start(self.clock())
        self.world.at(0, self, self.tick)

    def stop(self) -> None:
        self.life += 1
        self.reader += 1
        self.replica = None

    def tick(self) -> None:
        assert self.replica is not None
        self.replica.tick(self.clock())
        self.world.at(TICK, self, self.tick)

    # -- what the replica asks for -------------------------------------------------------------------------------------

    def claim(self, record: bytes) -> None:
        replica = self.replica
        assert replica is not None
        self._send(record, replica.claim_answered, lambda: replica.claim_unanswered(self.clock()))

    def produce(self, sequence: int, record: bytes) -> None:
        replica = self.replica
        assert replica is not None
        self._send(
            record,
            lambda offset: replica.answered(sequence, offset, self.clock()),
            lambda: replica.write_failed(sequence, "timed out"),
        )

    def _send(self, record: bytes, answered: Callable[[int], None], failed: Callable[[], None]) -> None:
        world, weather, rng, life = self.world, self.world.weather, self.world.rng, self.life
        self.arrives = max(self.arrives, world.time + rng.randint(0, weather.delay))
        if world.calm or rng.random() >= weather.lost_requests:
            world.at(self.arrives - world.time, None, lambda: world.append(self, life, record, answered, failed))
        else:
            world.counts["lost requests"] += 1
            world.at(PRODUCE_TIMEOUT, self, failed)

    def read_from(self, offset: int) -> None:
        self.reader += 1
        self._poll(self.reader, offset)

    def stop_reading(self) -> None:
        self.reader += 1

    def _poll(self, reader: int, offset: int) -> None:
        world = self.world
        if offset >= len(world.wal):
            world.readers.append((self, self.life, reader, offset))
            return
        delay = world.rng.randint(1, world.weather.poll)
        if not world.calm and world.rng.random() < world.weather.cut_reads:
            delay += world.rng.randint(LEASE, 3 * LEASE)
            world.counts["cut reads"] += 1
        found = world.wal[offset : offset + 50]  # as it is now: it is delivered later
        world.at(delay, self, lambda: self._deliver(reader, offset, found))

    def wake(self, life: int, reader: int, offset: int) -> None:
        if life == self.life and reader == self.reader:
            self._poll(reader, offset)

    def _deliver(self, reader: int, offset: int, found: list[bytes]) -> None:
        for number, data in enumerate(found):
            if reader != self.reader or self.replica is None:
                return
            try:
                self.replica.read(offset + number, data, self.clock())
            except WalReplaced as error:
                raise Wrong(f"{self.name} takes the WAL for a replaced one: {error.message}") from error
        if reader == self.reader:
            self._poll(reader, offset + len(found))

    def apply(self, offset: int, record: WalRecord) -> None:
        assert self.replica is not None
        self.files.apply(record.entries, self.replica.fold)
        if self.world.rng.random() < 0.1:
            self.files.mark(self.replica.fold)

    def confirmed(self, sequence: int) -> None:
        assert self.replica is not None
        if sequence not in self.waiting:
            return  # a heartbeat
        entries, acknowledge = self.waiting.pop(sequence)
        self.files.apply(entries, self.replica.fold)
        for call in acknowledge:
            call()
        if self.world.rng.random() < 0.1:
            self.files.mark(self.replica.fold)

    def lead(self) -> None:
        self.world.counts["take-overs"] += 1
        self.ends = {place: self.files.end(place) for place in self.files.partitions}
        self.topics = {place[0] for place in self.files.partitions}

    def leave(self) -> None:
        """An operator moves the cell to another node, or to any: it answers nothing more, ends what is under way, and says so last."""
        replica = self.replica
        if replica is None or self.leaving or not replica.may_answer(self.clock()) or self.paused_to > self.world.time:
            return
        self.world.counts["releases"] += 1
        self.leaving = True
        replica.release(self.world.rng.choice(["", *(node.name for node in self.world.nodes)]), self.clock())
        self.world.at(self.world.rng.randint(LEASE, 3 * LEASE), self, lambda: self.world.restart(self))

    def step_down(self, reason: str) -> None:
        self.world.counts["fenced"] += 1
        self.world.restart(self)

    # -- what clients ask for ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Some clients' requests, shipped in one record."""
        world, rng = self.world, self.world.rng
        entries: list[Entry] = []
        acknowledge: list[Callable[[], None]] = []
        for _ in range(rng.randint(1, 3)):
            luck = rng.random()
            users = sorted(self.topics - {INTENTS})
            if luck < 0.1 or not users:
                self._make_topic(entries)
            elif luck < 0.13:
                gone = rng.choice(users)
                entries.append(topic_deleted(gone))
                self.topics.discard(gone)
                self.ends = {place: end for place, end in self.ends.items() if place[0] != gone}
            elif luck < 0.25:
                self._commit_stage(entries, acknowledge)
            elif luck < 0.3:
                place = rng.choice([place for place in self.ends if place[0] != INTENTS])
                entries.append(purged(*place, self.ends[place][0]))
                acknowledge.append(partial(world.purged, place, self.ends[place][0]))
            else:
                self._write(
                    rng.choice([place for place in self.ends if place[0] != INTENTS]),
                    world.value(),
                    entries,
                    acknowledge,
                )
        self.ship(entries, acknowledge)

    def ship(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        assert self.replica is not None
        sequence = self.replica.ship(entries, self.clock())
        self.waiting[sequence] = (tuple(entries), acknowledge)

    def _make_topic(self, entries: list[Entry]) -> None:
        topic_id = self.world.topic_id()
        entries.append(Entry(EntryKind.TOPIC, topic_id, 2, b""))
        self.topics.add(topic_id)
        base = self.world.rng.choice((0, 0, 7))  # some were in memory before
        if base:
            entries.append(begun(topic_id, 0, base))
        self.ends |= {(topic_id, 0): (base, b""), (topic_id, 1): (0, b"")}

    def _commit_stage(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        """Its parts, its seal, the intent; each may be in a record of its own. It is removed when the intent is carried out."""
        value, parts = self.world.value(), self.world.rng.randint(1, 3)
        stage = value.decode()
        for number in range(parts):
            entries.append(stage_part(stage, number, b"part"))
            if self.world.rng.random() < 0.3:
                self.ship([*entries], [*acknowledge])
                entries.clear()
                acknowledge.clear()
        entries.append(stage_sealed(stage, parts))
        self._write((INTENTS, 0), value, entries, acknowledge)
        if self.world.rng.random() < 0.5:
            entries.append(stages_removed([stage]))

    def _write(self, place: Place, value: bytes, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        base, before = self.ends[place]
        entry = batch_entry(place, base, value, before)
        self.ends[place] = (base + 1, entry.body[8:16])
        entries.append(entry)
        acknowledge.append(lambda: self.world.acknowledged(place, base, value))


class World:
    """One history."""

    def __init__(self, seed: int, replica: type[Replica] = Replica, node: type[Node] = Node) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.weather = Weather(self.rng)
        self.replica = replica
        self.time = 0
        self.calm = False
        self.away_to = 0
        self.wal: list[bytes] = []
        self.readers: list[tuple[Node, int, int, int]] = []  # that wait for more
        self.counts: Counter[str] = Counter()
        self.acks: list[tuple[Place, int, bytes]] = []
        self.length: dict[Place, int] = {}  # acknowledged so far
        self.purges: dict[Place, int] = {}  # the same
        self._events: list[tuple[int, int, Node | None, int, Callable[[], None]]] = []
        self._number = self._values = self._topics = 0
        self._topics = INTENTS
        self.nodes = [node(self, f"n{number}") for number in range(NODES)]

    def at(self, delay: int, node: Node | None, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.time + delay, self._number, node, node.life if node else 0, call))

    def value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    def topic_id(self) -> int:
        self._topics += 1
        return self._topics

    def append(
        self, node: Node, life: int, record: bytes, answered: Callable[[int], None], failed: Callable[[], None]
    ) -> None:
        """A request reached the WAL."""
        weather, rng = self.weather, self.rng
        if self.time < self.away_to:
            self._answer(node, life, PRODUCE_TIMEOUT, failed)
            return
        offset = len(self.wal)
        self.wal.append(record)
        if not self.calm and rng.random() < weather.doubled:
            if rng.random() < 0.2:
                self.wal.append(b"not of a cell")
            self.wal.append(record)
            offset = rng.choice((offset, len(self.wal) - 1))
            self.counts["doubled"] += 1
        readers, self.readers = self.readers, []
        for reader in readers:
            reader[0].wake(*reader[1:])
        if not self.calm and rng.random() < weather.lost_answers:
            self.counts["lost answers"] += 1
            self._answer(node, life, PRODUCE_TIMEOUT, failed)
        else:
            self._answer(node, life, rng.randint(0, weather.delay), lambda: answered(offset))

    def _answer(self, node: Node, life: int, delay: int, call: Callable[[], None]) -> None:
        if node.life == life:
            self.at(delay, node, call)

    def acknowledged(self, place: Place, base: int, value: bytes) -> None:
        self.acks.append((place, base, value))
        self.length[place] = max(self.length.get(place, 0), base + 1)
        self.counts["acknowledged"] += 1

    def purged(self, place: Place, end: int) -> None:
        self.purges[place] = max(self.purges.get(place, 0), end)

    def restart(self, node: Node) -> None:
        node.stop()
        self.at(self.rng.randint(1, LEASE), None, lambda: node.start() if node.replica is None else None)

    # -- the history ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Wrong."""
        rng = self.rng
        for node in self.nodes:
            node.start()
        for _ in range(self.weather.faults):
            self.at(rng.randint(0, STORM), None, self._fault)
        for _ in range(self.weather.leaves):
            self.at(rng.randint(0, STORM), None, self._leave)
        for time in range(2 * LEASE, STORM, LEASE // 8):
            self.at(time + rng.randint(0, LEASE // 8), None, self._client)
        self.at(STORM, None, self._calm_down)
        while self._events and self._events[0][0] <= STORM + CALM:
            self.time, number, target, life, call = heapq.heappop(self._events)
            if target is None:
                call()
            elif target.life == life:
                if target.paused_to > self.time:
                    heapq.heappush(self._events, (target.paused_to, number, target, life, call))
                else:
                    call()
        self._judge()

    def _fault(self) -> None:
        rng = self.rng
        leaders = [node for node in self.nodes if node.replica is not None and node.replica.leads]
        node = rng.choice(leaders if leaders and rng.random() < 0.7 else self.nodes)
        kind = rng.choice(("kill", "kill", "power", "pause", "pause", "away"))
        self.counts[kind] += 1
        if kind == "away":
            self.away_to = self.time + rng.randint(1, 3 * LEASE)
        elif kind == "pause":
            node.paused_to = self.time + rng.randint(1, 4 * LEASE)
        elif node.replica is not None:
            if kind == "power":
                node.files.cut_power(rng)
            self.restart(node)

    def _leave(self) -> None:
        for node in self.nodes:
            node.leave()

    def _calm_down(self) -> None:
        self.calm = True
        self.weather.delay = self.weather.poll = 10
        self.away_to = 0
        for node in self.nodes:
            node.paused_to = 0

    def _client(self) -> None:
        """To every node that takes requests, also one that should not any more."""
        for node in self.nodes:
            replica = node.replica
            if replica is None or not replica.leads or node.paused_to > self.time:
                continue
            if replica.may_answer(node.clock()):
                self._read(node)
            if node.replica is not None and not node.leaving and self.rng.random() < 0.7:
                node.turn()

    def _read(self, node: Node) -> None:
        owners = [
            other.name for other in self.nodes if other.replica is not None and other.replica.may_answer(other.clock())
        ]
        if len(owners) > 1:
            raise Wrong(f"{' and '.join(owners)} may answer at {self.time}")
        for place, rows in node.files.partitions.items():
            if len(rows) < self.length.get(place, 0):
                raise Wrong(f"{node.name} reads {len(rows)} of {place}, {self.length[place]} were acknowledged before")
        self.counts["reads"] += 1

    def _judge(self) -> None:
        leaders = [node for node in self.nodes if node.replica is not None and node.replica.may_answer(node.clock())]
        if len(leaders) != 1:
            raise Wrong(f"{len(leaders)} nodes lead after {CALM} without faults")
        expected = truth(self.wal)
        for node in self.nodes:
            assert node.replica is not None
            if node.replica.fold.next < len(self.wal) - 3:  # the last heartbeats may be under way
                raise Wrong(f"{node.name} has read {node.replica.fold.next} of {len(self.wal)} records")
            if node.files.partitions != expected.partitions:
                raise Wrong(f"{node.name} has other files than the WAL comes to")
            if node.files.starts != expected.starts:
                raise Wrong(f"{node.name} has other purges than the WAL comes to")
            if missing := expected.stages - expected.removed - node.files.stages:
                raise Wrong(f"{node.name} has not the stages {sorted(missing)[:3]} that the WAL has")
        for place, end in self.purges.items():
            if place in expected.partitions and expected.starts.get(place, 0) < end:
                raise Wrong(f"{place} was purged below {end}, and has what is from {expected.starts.get(place, 0)} on")
        values = Counter(value for rows in expected.partitions.values() for value, _ in rows if value)
        if values and max(values.values()) > 1:
            raise Wrong(f"written twice: {values.most_common(3)}")
        for place, base, value in self.acks:
            rows = expected.partitions.get(place)  # None: its topic was deleted
            if rows is not None and (base >= len(rows) or rows[base][0] != value):
                raise Wrong(f"lost: {value!r} was acknowledged at offset {base} of {place}")
        self.counts["records"] += len(self.wal)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong: dict[int, str] = {}
    done = 0
    with suppress(KeyboardInterrupt):  # what was done until then counts
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            world = World(seed)
            try:
                world.run()
            except Wrong as error:
                wrong[seed] = str(error)
            counts += world.counts
            done += 1
    verdict = {"first": arguments.first, "seeds": done, "wrong": len(wrong), **counts}
    sys.stdout.write(json.dumps(verdict | {"seeds_wrong": dict(list(wrong.items())[:10])}) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
