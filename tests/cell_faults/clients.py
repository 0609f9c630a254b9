"""The load on a cell: clients of all five protocols, transactions, groups, a cache, rows by Flight as Spark's sink sends them.

The clients of the crash campaigns, put together, and three of their own:

    stager     stages rows and commits them, batch after batch, as the sink of Spark does; what was not answered is done again
    register   one writer, and a reader at every node: a read shows all that was acknowledged before it was asked
    owners     asks all nodes who leads: never two at once

Stories live as long as the data directories. A `Load` lasts until the leader is gone or it is stopped. judge.py judges.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import wire as flight
from quintet.model.errors import QuintetError
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.cell_faults.nodes import Addresses, Cell, Node
from tests.crash import doors_load, groups, load
from tests.crash import transactions as fly
from tests.crash.doors_judge import doors_of
from tests.crash.felix_load import FelixClients, FelixDoor
from tests.wire import blipmq, connection, felix, flymq

STAGED, WRITER, STAGED_ROWS = "staged", "sink", 200
MEMBERS = 3
READ_S = 0.05  # between two reads of one reader
RETRY_S = "3"  # of the stager
AGAIN_S = 0.3  # until somebody who lost a connection tries again
PATIENCE_S = 120.0  # a leader that is stopped answers when it is woken, or ends
JOIN_S = 150.0
IDLE_S = 5.0  # a member of a group whose way to the leader is gone keeps its partitions for so long
OWNERS_S = 0.2
FED_S = 0.02
PAUSE_S = 0.02  # between two turns of a client: about as long as an answer takes, so that half of them have something under way


@dataclass
class Stages:
    """What the stager did: so many batches are committed, and one may be."""

    committed: int = 0
    attempted: int = 0


@dataclass
class Register:
    """One topic that only grows, in its cell."""

    topic: str
    length: int = 0  # acknowledged
    paused: bool = False  # nothing is written, so that files can be compared
    reads: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Stories:
    """All that was done to one cell, and what was promised."""

    history: load.History
    ca: Path
    doors: doors_load.Story = field(default_factory=doors_load.Story)
    transactions: fly.Story = field(default_factory=fly.Story)
    book: groups.Book = field(default_factory=groups.Book)
    stages: Stages = field(default_factory=Stages)
    registers: list[Register] = field(default_factory=list)  # by cell
    looks: int = 0  # at who leads
    members: int = 0

    def felix(self, at: Addresses) -> FelixDoor:
        return FelixDoor(at.felix, self.ca)


def begin(stories: Stories, at: Addresses, cells: int) -> None:
    """What must be there before anything else."""
    stories.registers = [Register(f"register-{cell}") for cell in range(cells)]
    stories.history.subscribe(at.address)
    # Nodes are compared by topics that have records. On a slow machine one had none by chance.
    stories.history.probe(at.address)
    doors = doors_of(at)
    for name, mailbox in stories.doors.peers.items():
        doors.peer(name).close()
        mailbox.registered = True
    with flymq.Client(at.flymq).login() as wire:
        fly.make_topics(wire)
        wire.create(groups.TOPIC, groups.PARTITIONS)
        for register in stories.registers:
            wire.create(register.topic, 1)


def be_patient() -> None:
    """For as long as this process lives. Three nodes, three brokers and thirty clients share a machine."""
    for kind in (load.Load, doors_load.Clients, FelixClients, fly.Clients):
        kind.pause_s = PAUSE_S
    connection.Connection.hang_s = blipmq.Client.hang_s = felix.Session.hang_s = PATIENCE_S
    felix.Session.idle_s = IDLE_S


class Load:
    """Everybody at once. entry: where those of the doors connect; leader: where Flight does."""

    def __init__(self, stories: Stories, entry: Addresses, leader: Addresses, seed: int) -> None:
        self._stop = threading.Event()
        self._stories = stories
        self._blip = load.Load(stories.history, entry.address)
        self._doors = doors_load.Clients(stories.doors, doors_of(entry), seed)
        self._felix = FelixClients(stories.doors.felix, stories.felix(entry), seed + 1)
        self._transactions = fly.Clients(stories.transactions, entry.flymq, seed + 2)
        self._members = []
        for _ in range(MEMBERS):
            stories.members += 1
            self._members.append(groups.Member(stories.members, entry.flymq, stories.book))
        work: list[Callable[[], None]] = [lambda: self._feed(entry.flymq), lambda: self._stage(leader.flight)]
        self._own = [threading.Thread(target=call, daemon=True) for call in work]
        for thread in self._own:
            thread.start()

    def ask_to_stop(self) -> None:
        """Nothing new is begun, also by those whom nobody answers; does not wait."""
        self._stop.set()
        for member in self._members:
            member.leave.set()
        for clients in (self._blip, self._doors, self._felix, self._transactions):
            clients.ask_to_stop()

    def stop(self) -> None:
        """Returns when all that was asked is answered, or whoever was asked is gone."""
        self.ask_to_stop()
        self._blip.stop()
        self._doors.stop(JOIN_S)
        self._felix.stop(JOIN_S)
        self._transactions.stop(JOIN_S)
        for thread in (*self._members, *self._own):
            thread.join(JOIN_S)
            assert not thread.is_alive(), f"{thread.name} hangs"

    def _feed(self, address: str) -> None:
        """What the groups read."""
        number = 0
        try:
            with flymq.Client(address).login() as wire:
                while not self._stop.wait(FED_S):
                    number += 1
                    wire.produce(groups.TOPIC, b"%d" % number, number % groups.PARTITIONS)
        except flymq.Closed:
            return
        except (flymq.Refused, AssertionError) as error:
            self._stories.book.problems.append(f"feeder: {error!r}")

    def _stage(self, address: str) -> None:
        stages = self._stories.stages
        try:
            # The next load goes on with this batch, so this one need not wait for a leader.
            link = FlightConnection.of(target({"url": f"flight://admin:admin@{address}", "retrySeconds": RETRY_S}))
            while not self._stop.is_set():
                number = stages.committed
                stages.attempted = number + 1
                values = pa.array([b"%d/%d" % (number, row) for row in range(STAGED_ROWS)], pa.binary())
                batch = pa.record_batch({"value": values})
                staged = link.stage(flight.StageRequest(WRITER, number, STAGED), batch.schema, [batch])
                link.stage_commit(flight.StageCommit(WRITER, number, (staged.stage,), STAGED_ROWS))
                stages.committed = number + 1
        except (QuintetError, pa.ArrowException, OSError):
            return  # as Spark does, the next one stages this batch again and commits it under the same number


class Watch:
    """The registers, and who leads: for as long as the cell is there, through every fault."""

    def __init__(self, stories: Stories, cell: Cell) -> None:
        self._stop = threading.Event()
        self._stories = stories
        self._cell = cell
        nodes = list(cell.nodes.values())
        work: list[Callable[[], None]] = [self._look]
        work += [partial(self._write, register, nodes) for register in stories.registers]
        work += [partial(self._read, register, node) for register in stories.registers for node in nodes]
        self._threads = [threading.Thread(target=call, daemon=True) for call in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)

    def _again(self, node: Node, work: Callable[[flymq.Client], None]) -> None:
        """Work on one connection until it ends."""
        try:
            with flymq.Client(node.at.flymq).login() as wire:
                while not self._stop.wait(READ_S):
                    work(wire)
        except (flymq.Closed, flymq.Hang, flymq.Refused, AssertionError):
            self._stop.wait(AGAIN_S)

    def _write(self, register: Register, nodes: list[Node]) -> None:
        chance = random.Random(1)

        def write(wire: flymq.Client) -> None:
            if register.paused:
                return
            offset = wire.produce(register.topic, b"%d" % register.length, 0)
            register.length = max(register.length, offset + 1)

        while not self._stop.is_set():
            self._again(chance.choice(nodes), write)

    def _read(self, register: Register, node: Node) -> None:
        def read(wire: flymq.Client) -> None:
            before = register.length
            if before:
                found, _ = wire.fetch(register.topic, 0, before - 1)
                register.reads += 1
                if not found:
                    register.problems.append(
                        f"a read of {register.topic} at n{node.number} shows less than {before}, which was acknowledged"
                    )

        while not self._stop.is_set():
            self._again(node, read)

    def _look(self) -> None:
        while not self._stop.wait(OWNERS_S):
            self._stories.looks += 1
            for cell, register in enumerate(self._stories.registers):
                first = [(node, epoch) for node in self._cell.nodes.values() if (epoch := node.leads(cell))]
                if len(first) > 1:
                    again = [(node.number, epoch) for node, before in first if (epoch := node.leads(cell)) == before]
                    if len(again) > 1:
                        register.problems.append(f"two nodes lead cell {cell} (number, epoch): {again}")
