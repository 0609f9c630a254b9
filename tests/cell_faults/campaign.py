"""A18: faults of nodes and of Kafka's brokers amid clients of everything. Run: python tests/cell_faults/campaign.py --faults 300 --seed 1

Three brokers of Kafka and three nodes, in a network of their own (world.py; needs root and nft, and says so). A round is one cell: a new
topic of Kafka, new data directories, and FAULTS_PER_ROUND faults, of each kind in turn. In each a client of every kind is at work, at
the leader's doors or at those of a node that forwards:

    kill     kill -9 of the leader, of a follower, of a broker (the one that leads the WAL's partition, mostly)
    stop     SIGSTOP for 4 to 8 s, or until another node leads and was written to; then it is woken
    cut      all that a node sends to Kafka is lost; a broker loses the others, or the nodes, too
    full     not a byte is left on the disk of a node, which is freed some seconds later

After each fault what was promised is judged (judge.py), all nodes must come to have the same files, and at the end of a round
`log verify` and `audit verify` must be satisfied with each. --results FILE keeps one line for each round; a run with the same file and seed
goes on behind them. With --sabotage NAME the nodes break one rule, and the run succeeds only if that is found out.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import peers
from tests.cell_faults import clients, world
from tests.cell_faults.clients import Load, Stories, Watch
from tests.cell_faults.judge import Found, Judge
from tests.cell_faults.kafka_brokers import KafkaBroker, KafkaCluster
from tests.cell_faults.nodes import DISK_BYTES, Cell, Node, NoLeader, certificate
from tests.crash import load
from tests.wire.connection import Closed, Hang

FAULTS_PER_ROUND = 6
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
}
SABOTAGED = 'import runpy\nfrom quintet.log.replicated.replica import Replica\n{0}\nrunpy.run_module("quintet", run_name="__main__")\n'
SABOTAGED_KINDS = ("stop leader", "cut leader")  # where a leader that should not be one is reached
NOT_HERE = 77


class Campaign:
    """Rounds over one Kafka."""

    def __init__(self, folder: Path, seed: int, sabotage: str = "") -> None:
        self.found = Found()
        self.faults: Counter[str] = Counter()
        self.take_overs = 0
        self.slowest_s = 0.0
        self._seed = seed
        self._chance = random.Random(seed)
        self._folder = folder
        self._sabotage = sabotage
        self._program = ["-c", SABOTAGED.format(SABOTAGES[sabotage])] if sabotage else ["-m", "quintet"]
        self._network = world.Network()
        self._disks = {number: world.SmallDisk(folder / f"disk{number}", DISK_BYTES) for number in world.NODES}
        self._kafka = KafkaCluster(folder)
        self._ca = certificate(folder)
        self._deck: list[str] = []

    def close(self) -> None:
        self._kafka.end()

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, number: int, faults: int) -> None:
        """One cell and so many faults. Ends early when something is found."""
        self._chance = random.Random(f"{self._seed} {number}")
        topic = f"cell-{self._seed}-{number}"
        cell = Cell(self._folder, self._disks, topic, self._program)
        stories = Stories(load.History(self._chance.getrandbits(32)), self._ca)
        judge = Judge(cell, stories, self._chance)
        watch: Watch | None = None
        try:
            if not self._begun(cell, stories):
                return
            watch = Watch(stories, cell)
            for _ in range(faults):
                self._fault(cell, stories, judge)
                if judge.found.bad:
                    break
            watch.stop()
            judge.look(time.monotonic())
            judge.compare()
            codes = cell.end(signal.SIGTERM)
            if any(codes):
                judge.found.note("wrong", f"nodes that were told to stop ended with {codes}")
            judge.verify()
        except (NoLeader, AssertionError) as error:
            judge.found.note("hang", f"{type(error).__name__}: {str(error)[-3000:]}")
        finally:
            if watch is not None:
                watch.stop()
            cell.end()
            for node in cell.nodes.values():
                if judge.found.bad:
                    shutil.copytree(node.data, self._folder / "failed" / topic / f"n{node.number}")
                shutil.rmtree(node.data)
        judge.total()
        self.found.add(judge.found)
        self.found.seen["starts"] += sum(node.starts for node in cell.nodes.values())

    def _begun(self, cell: Cell, stories: Stories) -> bool:
        """Whether the first leader lasted until all was there that clients need. If not, the round is not counted."""
        try:
            clients.begin(stories, cell.leader()[0].at)
        except (Closed, Hang) as error:
            load.say(not_begun=repr(error), topic=cell.topic)
            return False
        return True

    def _draw(self) -> str:
        """Every kind in turn, in a new order each time."""
        if not self._deck:
            kinds = SABOTAGED_KINDS if self._sabotage else KINDS
            self._deck = self._chance.sample(kinds, len(kinds))
        return self._deck.pop()

    def _fault(self, cell: Cell, stories: Stories, judge: Judge) -> None:
        chance, kind = self._chance, self._draw()
        leader, epoch = cell.leader()
        followers = cell.followers(leader)
        entry = chance.choice(followers) if chance.random() < FORWARDED and not self._sabotage else leader
        running = [Load(stories, entry.at, leader.at, chance.getrandbits(32))]
        time.sleep(chance.uniform(*LOAD_S))
        what, _, whom = kind.partition(" ")
        victim = leader if whom == "leader" else chance.choice(followers)
        began = time.monotonic()
        heal = self._begin(what, whom, victim, cell)
        try:
            if whom == "leader" and what in ("stop", "cut") and (self._sabotage or chance.random() < SUCCESSORS):
                running += self._at_successor(cell, stories, judge, victim, running[0], began)
            elif what == "kill":
                time.sleep(chance.uniform(*DEAD_S))
            else:
                time.sleep(chance.uniform(*HELD_S))
        finally:
            heal()
        for each in running:
            each.stop()
        self._whole_again(cell)
        judge.look(began)
        judge.compare()
        self.faults[kind] += 1
        self.take_overs += cell.leader()[1] > epoch
        load.say(
            fault=kind, took_s=round(time.monotonic() - began, 1), epoch=cell.leader()[1], victim=victim.number,
            entry=entry.number, bad=dict(judge.found.bad), notes=judge.found.notes[:4],
        )  # fmt: skip

    def _at_successor(
        self, cell: Cell, stories: Stories, judge: Judge, victim: Node, before: Load, began: float
    ) -> list[Load]:
        """While the old leader is stopped or cut off: what was promised is there, and more is promised."""
        try:
            successor, _ = cell.leader(other_than=victim, within_s=SUCCESSOR_S)
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
        while self._kafka.place(cell.topic)[1] < len(world.BROKERS) and time.monotonic() < until:
            time.sleep(0.5)

    # -- faults --------------------------------------------------------------------------------------------------------

    def _begin(self, what: str, whom: str, victim: Node, cell: Cell) -> Callable[[], None]:
        """Does it, and returns what ends it."""
        if whom == "broker":
            return self._begin_broker(what, cell)
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

    def _begin_broker(self, what: str, cell: Cell) -> Callable[[], None]:
        leading = self._kafka.place(cell.topic)[0]
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
    campaign = Campaign(folder, chosen.seed, chosen.sabotage)
    try:
        kinds, seen, done = run(campaign, chosen.faults, chosen.seed, chosen.results)
    finally:
        campaign.close()
    bad = campaign.found.bad
    good = bool(bad) == bool(chosen.sabotage)
    load.say(
        campaign="cells", seed=chosen.seed, sabotage=chosen.sabotage, faults=done, kinds=kinds, take_overs=campaign.take_overs,
        slowest_s=round(campaign.slowest_s, 1), seen=seen, bad=bad, notes=campaign.found.notes[:8],
        seconds=round(time.monotonic() - started), result="good" if good else "BAD",
    )  # fmt: skip
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
