"""A18: faults of nodes and of Kafka's brokers amid clients of everything. Run: python tests/cell_faults/campaign.py --faults 300 --seed 1

Three brokers of Kafka and three nodes, in a network of their own (world.py; needs root and nft, and says so). A round is one cell: a new
topic of Kafka, new data directories, and FAULTS_PER_ROUND faults, one of each kind. In each a client of every kind is at work, at
the leader's doors or at those of a node that forwards:

    kill     kill -9 of the leader, of a follower, of a broker (the one that leads the WAL's partition, mostly)
    stop     SIGSTOP for 4 to 8 s, or until another node leads and was written to; then it is woken
    cut      all that a node sends to Kafka is lost; a broker loses the others, or the nodes, too
    full     not a byte is left on the disk of a node, which is freed some seconds later
    process  with --cells 2: kill -9 of the process of one cell, which the node starts again

With --spark a real query of Spark runs through the faults of a round (spark_query.py).
With --cells 2 every node has a process for each of two cells, and the leader that is meant is that of either one.

After each fault what was promised is judged (judge.py), all nodes must come to have the same files, and at the end of a round
`log verify` and `audit verify` must be satisfied with each. --results FILE keeps one line for each round; a run with the same file and seed
goes on behind them. With --sabotage NAME the nodes break one rule, and the run succeeds only if that is found out:

    gap      acknowledges without looking at the gap
    lease    answers as long as it believes to lead
    local    writes its files, and so acknowledges, before the WAL confirms
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import peers
from tests.cell_faults import clients, world
from tests.cell_faults.clients import Load, Stories, Watch
from tests.cell_faults.judge import Found, Judge
from tests.cell_faults.kafka_brokers import KafkaBroker, KafkaCluster
from tests.cell_faults.nodes import DISK_BYTES, Cell, Node, NoLeader, certificate
from tests.cell_faults.spark_query import SparkQuery
from tests.crash import load
from tests.wire.connection import Closed, Hang

FAULTS_PER_ROUND = (
    11  # one of each kind, before a cell is begun anew: a start and six verifies take as long as two faults
)
LOAD_S = (1.0, 3.0)  # before a fault
HELD_S = (4.0, 8.0)  # of a stop, a cut, a full disk
DEAD_S = (0.2, 2.0)  # until what was killed is started again
SUCCESSOR_S = 45.0  # for which a fault is held until another node leads
QUIET_S = 0.5  # until who was asked to stop has stopped
MORE_S = 1.5  # of load at the successor while the fault is there
IN_SYNC_S = 60.0  # until all of Kafka's brokers have the WAL again
SUCCESSORS = 0.6  # share of a leader's stops and cuts that last until another node leads
FORWARDED = 0.3  # share of loads at the doors of a follower
LEADING_BROKER = 0.6
KINDS = (
    "kill leader", "kill follower", "kill broker", "stop leader", "stop follower", "stop broker",
    "cut leader", "cut follower", "cut broker", "full leader", "full follower",
)  # fmt: skip

SABOTAGES = {
    "gap": """
def _confirm_answered(self, monotonic):
    while self._flying and (offset := next(iter(self._flying.values())).offset) >= 0:
        self.fold.next = max(self.fold.next, offset + 1)
        self._confirm(next(iter(self._flying)), monotonic)
Replica._confirm_answered = _confirm_answered
Replica.may_answer = lambda self, monotonic: self.leads  # else the lease ends it before it acknowledges
""",
    "lease": """
Replica.may_answer = lambda self, monotonic: self.leads
""",
    "local": """
from quintet.log.replicated.shipping import Shipment, Shipping
def _send(self, shipment):
    self._under_way[self.ship(shipment.entries)] = Shipment()
    for partition in shipment.partitions:
        partition.confirm()
    for call in shipment.calls:
        call()
Shipping._send = _send
""",
}
SABOTAGED = 'import runpy\nfrom quintet.log.replicated.replica import Replica\n{0}\nrunpy.run_module("quintet", run_name="__main__")\n'
SABOTAGED_KINDS = ("stop leader", "cut leader")  # where a leader that should not be one is reached
SILENT_MS = (3_000, 9_000)  # of a broker of Kafka, before another one leads its partitions; odd seeds have Kafka's own
CELLS_KINDS = ("process leader", "process follower")
NOT_HERE = 77
KAFKA_BYTES = 8 << 30  # at most: about 20 MB a round for each broker


class Campaign:
    """Rounds over one Kafka."""

    def __init__(self, folder: Path, seed: int, sabotage: str = "", cells: int = 1, spark: bool = False) -> None:
        self.found = Found()
        self.faults: Counter[str] = Counter()
        self.take_overs = 0
        self.slowest_s = 0.0
        self._seed = seed
        self._chance = random.Random(seed)
        self._folder = folder
        self._sabotage = sabotage
        self._cells = cells
        self._spark = spark
        self._program = ["-c", SABOTAGED.format(SABOTAGES[sabotage])] if sabotage else ["-m", "quintet"]
        self._network = world.Network()
        self._disks = {number: world.SmallDisk(folder / f"disk{number}", DISK_BYTES) for number in world.NODES}
        # In memory, too: nothing here cuts the power, and a disk that all share makes every write wait for those of others.
        self._kafka = KafkaCluster(
            world.SmallDisk(folder / "kafka", KAFKA_BYTES).place, SILENT_MS[seed % len(SILENT_MS)]
        )
        self._ca = certificate(folder)
        self._deck: list[str] = []
        self._spent: dict[str, float] = {}  # seconds of this fault, by what they were spent on

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._spent[what] = time.monotonic() - began

    def close(self) -> None:
        self._kafka.end()

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, number: int, faults: int) -> None:
        """One cell and so many faults. Ends early when something is found."""
        self._chance = random.Random(f"{self._seed} {number}")
        topic = f"cell-{self._seed}-{number}"
        cell = Cell(self._folder, self._disks, topic, self._program, self._cells)
        stories = Stories(load.History(self._chance.getrandbits(32)), self._ca)
        judge = Judge(cell, stories, self._chance)
        watch: Watch | None = None
        query: SparkQuery | None = None
        try:
            if not self._begun(cell, stories):
                return
            judge.writers += stories.registers
            watch = Watch(stories, cell)
            if self._spark:
                query = SparkQuery(self._folder / f"spark-{number}", cell, cell.leaders().home.at)
                judge.writers.append(query)
            for _ in range(faults):
                if query is not None:
                    query.wait_for_progress()
                self._fault(cell, stories, judge)
                if judge.found.bad:
                    break
            watch.stop()
            self._judge_query(query, judge)
            judge.look(time.monotonic())
            judge.compare()
            codes = cell.end(signal.SIGTERM)
            if not {*codes} <= {0, -signal.SIGTERM}:  # the latter: it had just been started, and had nothing to end yet
                judge.found.note("wrong", f"nodes that were told to stop ended with {codes}")
            judge.verify()
        except (NoLeader, AssertionError) as error:
            judge.found.note("hang", f"{type(error).__name__}: {str(error)[-3000:]}")
        finally:
            if watch is not None:
                watch.stop()
            if query is not None:
                query.stop()
            cell.end()
            for node in cell.nodes.values():
                if judge.found.bad:
                    shutil.copytree(node.data, self._folder / "failed" / topic / f"n{node.number}")
                shutil.rmtree(node.data)
        judge.total()
        self.found.add(judge.found)
        self.found.seen["starts"] += sum(node.starts for node in cell.nodes.values())

    @staticmethod
    def _judge_query(query: SparkQuery | None, judge: Judge) -> None:
        if query is None:
            return
        for text in query.judge():
            judge.found.note(*text.split(": ", 1))
        judge.found.seen.update(spark_rows=query.fed, spark_batches=query.batches(), spark_lives=query.lives)
        load.say(spark_rows=query.fed, batches=query.batches(), lives=query.lives, failures=query.failures[-5:])
        query.stop()

    def _begun(self, cell: Cell, stories: Stories) -> bool:
        """Whether the first leader lasted until all was there that clients need. If not, the round is not counted."""
        try:
            clients.begin(stories, cell.leaders().home.at, cell.cells)
        except (Closed, Hang) as error:
            load.say(not_begun=repr(error), topic=cell.topic)
            return False
        return True

    def _draw(self) -> str:
        """Every kind in turn, in a new order each time."""
        if not self._deck:
            kinds = SABOTAGED_KINDS if self._sabotage else KINDS if self._cells == 1 else (*KINDS, *CELLS_KINDS)
            self._deck = self._chance.sample(kinds, len(kinds))
        return self._deck.pop()

    def _fault(self, cell: Cell, stories: Stories, judge: Judge) -> None:
        chance, kind = self._chance, self._draw()
        leaders, which = cell.leaders(), chance.randrange(cell.cells)
        leader = leaders.nodes[which]
        followers = cell.followers(leader)
        entry = chance.choice(followers) if chance.random() < FORWARDED and not self._sabotage else leader
        running = [Load(stories, entry.at, leaders.home.at, chance.getrandbits(32))]
        time.sleep(chance.uniform(*LOAD_S))
        what, _, whom = kind.partition(" ")
        victim = leader if whom == "leader" else chance.choice(followers)
        began = time.monotonic()
        self._spent.clear()
        with self._timed("fault"):
            heal = self._begin(what, whom, victim, cell, which)
            try:
                if whom == "leader" and what in ("stop", "cut") and (self._sabotage or chance.random() < SUCCESSORS):
                    running += self._at_successor(cell, stories, judge, victim, running[0], began)
                elif what in ("kill", "process"):
                    time.sleep(chance.uniform(*DEAD_S))
                else:
                    time.sleep(chance.uniform(*HELD_S))
            finally:
                heal()
        with self._timed("clients"):
            for each in running:
                each.stop()
        with self._timed("leader"):
            cell.leaders()
        with self._timed("look"):
            judge.look(began)
        with self._timed("compare"):
            judge.compare()
        with self._timed("kafka"):  # last: a broker that was killed starts meanwhile
            self._whole_again(cell)
        self.faults[kind] += 1
        epochs = cell.leaders().epochs
        self.take_overs += sum(now > before for now, before in zip(epochs, leaders.epochs, strict=True))
        load.say(
            fault=kind, took_s=round(time.monotonic() - began, 1),
            spent={what: round(seconds, 1) for what, seconds in self._spent.items()}, epochs=epochs, cell=which, victim=victim.number,
            entry=entry.number, bad=dict(judge.found.bad), notes=judge.found.notes[:4],
        )  # fmt: skip

    def _at_successor(
        self, cell: Cell, stories: Stories, judge: Judge, victim: Node, before: Load, began: float
    ) -> list[Load]:
        """While the old leader is stopped or cut off: what was promised is there, and more is promised."""
        try:
            successor = cell.leaders(other_than=victim, within_s=SUCCESSOR_S).home
        except NoLeader:
            return []
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        before.ask_to_stop()  # who needs no answer sends on to the old leader
        time.sleep(QUIET_S)
        judge.look(began)
        more = Load(stories, successor.at, successor.at, self._chance.getrandbits(32))
        time.sleep(MORE_S)
        self.found.seen["successors"] += 1
        return [more]

    def _whole_again(self, cell: Cell) -> None:
        """All brokers are there and in sync, or as many as come back in time."""
        self._kafka.wait()
        until = time.monotonic() + IN_SYNC_S
        while self._kafka.in_sync(cell.topic) < len(world.BROKERS) and time.monotonic() < until:
            time.sleep(0.5)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _begin(self, what: str, whom: str, victim: Node, cell: Cell, which: int) -> Callable[[], None]:
        """Does it, and returns what ends it. which: the number of the cell that the victim leads or follows."""
        if whom == "broker":
            return self._begin_broker(what, cell, which)
        if what == "process":
            victim.kill_one(which)
            return lambda: None
        if what == "kill":
            victim.held = True
            victim.signal(signal.SIGKILL)
            return lambda: setattr(victim, "held", False)
        if what == "stop":
            victim.signal(signal.SIGSTOP)
            return lambda: victim.signal(signal.SIGCONT)
        if what == "cut":
            self._network.cut_node(victim.number)
            return self._network.heal
        victim.disk.fill()
        return victim.disk.free

    def _begin_broker(self, what: str, cell: Cell, which: int) -> Callable[[], None]:
        leading = self._kafka.leader(cell.topic, which)
        number = leading if leading and self._chance.random() < LEADING_BROKER else self._chance.choice(world.BROKERS)
        broker: KafkaBroker = self._kafka.brokers[number]
        if what == "kill":
            broker.kill()
            return broker.start
        if what == "stop":
            broker.stop()
            return broker.wake
        self._network.cut_broker(number, from_nodes=self._chance.random() < 0.5)
        return self._network.heal


def earlier(results: Path | None, seed: int) -> list[dict[str, Any]]:
    """Rounds of this seed that are done already."""
    if results is None or not results.exists():
        return []
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    return [line for line in lines if line["seed"] == seed]


def run(campaign: Campaign, faults: int, seed: int, results: Path | None) -> tuple[Counter[str], Counter[str], int]:
    """(faults by kind, what was seen, faults in all), with those of earlier runs."""
    kinds, seen, done = Counter[str](), Counter[str](), 0
    rounds = earlier(results, seed)
    for line in rounds:
        kinds += Counter(line["kinds"])
        seen += Counter(line["seen"])
    number = len(rounds)
    while (done := kinds.total()) < faults and not campaign.found.bad:
        before, before_seen = Counter(campaign.faults), Counter(campaign.found.seen)
        began = time.monotonic()
        campaign.round(number, min(FAULTS_PER_ROUND, faults - done))
        number += 1
        new, new_seen = campaign.faults - before, campaign.found.seen - before_seen
        kinds += new
        seen += new_seen
        if results is not None and not campaign.found.bad:
            with results.open("a") as file:
                file.write(json.dumps({"seed": seed, "round": number, "kinds": new, "seen": new_seen}) + "\n")
        seconds = round(time.monotonic() - began)
        load.say(round=number, faults=kinds.total(), seconds=seconds, bad=dict(campaign.found.bad))
    return kinds, seen, kinds.total()


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--faults", type=int, default=300)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--results", type=Path)
    options.add_argument("--cells", type=int, choices=(1, 2), default=1)
    options.add_argument("--spark", action="store_true", help="a query runs through the faults")
    options.add_argument("--sabotage", choices=sorted(SABOTAGES), default="")
    chosen = options.parse_args()
    try:
        if not peers.has_kafka():
            raise world.NotHere("Kafka is not installed (python bench/peers.py --install kafka)")
        world.enter(sys.argv)
    except world.NotHere as error:
        load.say(campaign="cells", result=f"NOT PROVEN HERE: {error}")
        return NOT_HERE
    threading.excepthook = lambda found: load.say(thread=str(found.thread), error=repr(found.exc_value))
    folder = Path(tempfile.mkdtemp(prefix="quintet-cell-faults-"))
    folder.chmod(0o755)
    clients.be_patient()
    started = time.monotonic()
    campaign = Campaign(folder, chosen.seed, chosen.sabotage, chosen.cells, chosen.spark)
    try:
        kinds, seen, done = run(campaign, chosen.faults, chosen.seed, chosen.results)
    finally:
        campaign.close()
    bad = campaign.found.bad
    good = bool(bad) == bool(chosen.sabotage)
    load.say(
        campaign="cells", seed=chosen.seed, cells=chosen.cells, spark=chosen.spark, sabotage=chosen.sabotage, faults=done, kinds=kinds, take_overs=campaign.take_overs,
        slowest_s=round(campaign.slowest_s, 1), seen=seen, bad=bad, notes=campaign.found.notes[:8],
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
