"""A leader of a cell is killed or stopped, a follower takes over. Run: python tests/crash/cells.py --take-overs 20 --seed 1 [--sabotage]

Two nodes over one Kafka broker (from bench/.peers; one replica, no flush: what is shown is the protocol, not Kafka's durability). After
each take-over the load goes on at the new leader; the old one comes back as a follower. In the end both data directories are read by
tests/crash/reader.py: all that was acknowledged is in both, once, in order; both have the same; `quintet audit verify` is
satisfied with each. A leader that is woken late answers nothing. With --sabotage it
acknowledges without looking at gaps and answers without a lease: the run succeeds only if that is found.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import peers
from tests.crash import load, reader
from tests.crash.brokers import ROOT, SETTINGS
from tests.crash.load import History, Load, Verdict
from tests.wire.blipmq import PING, Client, Closed, frame

LEASE_MS = 4_000  # a busy machine takes seconds from a process
SILENCES_MS = (5_500, 6_500)
LEAD_S = 90.0  # until some node leads, on a busy machine
PROMISES = 300  # before each fault
STARTS_MAX = 20  # of one node between two leaders
SMALL_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class NoLeader(Exception):
    """No node led within LEAD_S, or one ended again and again. The text is what they said."""


class NodeProcess:
    """One node, started again whenever it ended, as a supervisor would."""

    def __init__(self, folder: Path, number: int, wal: tuple[str, str], sabotage: bool) -> None:
        self.data = folder / f"data{number}"
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        program = [str(Path(__file__).with_name("cell_node.py"))]
        if sabotage:
            program = ["-c", SABOTAGE]
        self._command = [sys.executable, *program, *wal, f"n{number}", str(LEASE_MS), str(SILENCES_MS[number]),
                         "serve", "--dev", "--data", str(self.data), "--print-ready"]  # fmt: skip
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        environment |= SETTINGS | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        with self._out.open("wb") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=err, env=environment)

    def supervise(self) -> None:
        if self.process.poll() is not None:
            self.start()

    @property
    def address(self) -> str:
        """Of its BlipMQ door; "" while it does not lead."""
        line = self._out.read_bytes()
        if self.process.poll() is not None or not line.endswith(b"\n"):
            return ""
        return str(json.loads(line)["listeners"]["blipmq"])

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self._err.read_text(errors="replace")


class Cell:
    """Two nodes, and all that was promised."""

    def __init__(self, folder: Path, servers: str, topic: str, seed: int, sabotage: bool = False) -> None:
        self.chance = random.Random(seed)
        self.history = History(seed)
        self.nodes = [NodeProcess(folder, number, (servers, topic), sabotage) for number in range(2)]
        self.take_overs = self.stops = self.stale_answers = 0
        self.slowest_s = 0.0

    def leader(self, other_than: NodeProcess | None = None) -> NodeProcess:
        began, starts = time.monotonic(), max(node.starts for node in self.nodes)
        while time.monotonic() < began + LEAD_S and max(node.starts for node in self.nodes) < starts + STARTS_MAX:
            for node in self.nodes:
                if node is not other_than:
                    node.supervise()
                    if node.address:
                        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                        return node
            time.sleep(0.05)
        raise NoLeader("\n".join(node.said()[-2000:] for node in self.nodes))

    def take_over(self, stop: bool) -> None:
        """The leader is killed under load, or stopped and woken when another one has written."""
        leader = self.leader()
        running = Load(self.history, leader.address, consume=False)
        running.wait_for(PROMISES)
        peer = Client(leader.address).login()
        leader.process.send_signal(signal.SIGSTOP if stop else signal.SIGKILL)
        if stop:
            peer.send(frame(PING, 1))  # it waits in the socket until the node is woken
        else:
            leader.process.wait()
        successor = self.leader(other_than=leader)
        again = Load(self.history, successor.address, consume=False)
        again.wait_for(PROMISES)
        if stop:
            leader.process.send_signal(signal.SIGCONT)
            self.stale_answers += self._answers(peer)
        else:
            leader.start()
        peer.close()
        running.stop()
        again.stop()
        self.take_overs += 1
        self.stops += stop

    @staticmethod
    def _answers(peer: Client) -> bool:
        """Does a node that was woken answer what it would have answered before?"""
        try:
            peer.read()
        except (Closed, ConnectionError):
            return False
        return True

    def judge(self) -> Verdict:
        """Both directories, when a follower has had the time to read the rest."""
        leader = self.leader()
        self.history.probe(leader.address)
        until = time.monotonic() + LEAD_S
        while True:
            found = [reader.read(node.data) for node in self.nodes]
            verdicts = [load.judge(self.history, each) for each in found]
            same = _users(found[0]) == _users(found[1])
            if (same and not any(verdict.bad for verdict in verdicts)) or time.monotonic() > until:
                break
            for node in self.nodes:
                node.supervise()
            time.sleep(0.5)
        verdict = verdicts[0]
        verdict.add(verdicts[1])
        if not same:
            verdict.wrong += 1
            verdict.notes.append("the two directories differ")
        return verdict

    def end(self) -> None:
        for node in self.nodes:
            node.end()

    def verified(self) -> list[int]:
        """Exit codes of `quintet audit verify` and `quintet log verify` on each directory."""
        kinds = (("audit", "verify", "--data"), ("log", "verify"))
        commands = [[sys.executable, "-m", "quintet", *kind, str(node.data)] for node in self.nodes for kind in kinds]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        runs = [subprocess.run(command, capture_output=True, check=False, env=environment) for command in commands]
        return [run.returncode for run in runs]


def _users(found: dict[str, reader.Found]) -> dict[str, tuple[dict[int, bytes], bytes]]:
    """Values and last link of the topics of users: the broker's own are compacted by each node when it likes."""
    return {name: (each.values, each.link) for name, each in found.items() if name in load.TOPICS}


SABOTAGE = """
import runpy
from quintet.log.replicated.replica import Replica

def _settle(self, monotonic):
    while self._flying and (offset := next(iter(self._flying.values())).offset) >= 0:
        self.fold.next = max(self.fold.next, offset + 1)
        self._confirm(next(iter(self._flying)), monotonic)

Replica._settle = _settle
Replica.may_answer = lambda self, monotonic: self.leads
runpy.run_module("tests.crash.cell_node", run_name="__main__")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--take-overs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="quintet-cells-"))
    with peers.kafka(folder / "kafka", SMALL_JAVA) as kafka:
        cell = Cell(folder, f"{kafka.address[0]}:{kafka.address[1]}", "cell", arguments.seed, arguments.sabotage)
        try:
            for number in range(arguments.take_overs):
                cell.take_over(stop=number % 2 == 1)
            verdict = cell.judge()
        finally:
            cell.end()
        codes = cell.verified()
    wrong = verdict.bad or any(codes) or cell.stale_answers
    load.say(seed=arguments.seed, take_overs=cell.take_overs, stops=cell.stops, stale_answers=cell.stale_answers, starts=sum(node.starts for node in cell.nodes),
             slowest_s=round(cell.slowest_s, 1), verify=codes, sabotage=arguments.sabotage, **verdict.counts())  # fmt: skip
    if not wrong:
        shutil.rmtree(folder)
    return int(bool(wrong) != arguments.sabotage)


if __name__ == "__main__":
    sys.exit(main())
