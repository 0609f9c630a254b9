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
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from bench import peers
from quintet.cli.operate import scrape
from quintet.client.core.errors import ConnectionLost
from quintet.flight import wire
from quintet.model.errors import QuintetError
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.crash import load, reader
from tests.crash.brokers import ROOT, SETTINGS
from tests.crash.load import History, Load, Verdict
from tests.wire.blipmq import PING, Client, Closed, frame

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")  # doors of all nodes have the same ports, so their hosts differ
NODES = 2
LEASE_S = 4  # a busy machine takes seconds from a process
LEAD_S = 90.0  # until some node leads, on a busy machine
PROMISES = 300  # before each fault
ASKS_MAX = 10
STAGED, STAGED_ROWS = "staged", 5_000
STARTS_MAX = 20  # of one node between two leaders
SMALL_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


T = TypeVar("T")


class NoLeader(Exception):
    """No node led within LEAD_S, or one ended again and again. The text is what they said."""


def shared_port() -> int:
    """A port for the same door of every node, below those that the system hands out to whoever asks for any."""
    for port in random.sample(range(20_000, 30_000), 1_000):
        try:
            for host in HOSTS:
                with socket.socket() as probe:
                    probe.bind((host, port))
        except OSError:
            continue
        return port
    raise AssertionError("1,000 ports are taken")


def settings_of(wal: tuple[str, str], node: str, host: str) -> dict[str, str]:
    """A node over one broker of Kafka, which keeps one replica and does not flush."""
    servers, topic = wal
    options = {"NODE": node, "SERVERS": json.dumps([servers]), "TOPIC": topic, "LEASE_SECONDS": str(LEASE_S)}
    options |= {"REPLICAS_MIN": "1", "IN_SYNC_REPLICAS_MIN": "1", "FLUSHED": "false", "WEAKER_ALLOWED": "true"}
    options |= {"ADVERTISED_HOST": host}
    return {"QUINTET_ENGINE": "kafka"} | {f"QUINTET_CELL__{name}": value for name, value in options.items()}


class NodeProcess:
    """One node, started again whenever it ended, as a supervisor would."""

    def __init__(
        self, folder: Path, number: int, wal: tuple[str, str], port: int, sabotage: bool, flight_port: int = 0
    ) -> None:
        """flight_port 0: any, and the follower's is closed."""
        self.flight = f"{HOSTS[number]}:{flight_port}"
        self.door = f"{HOSTS[number]}:{port}"  # its BlipMQ door, which is the leader's while it follows
        self.data = folder / f"data{number}"
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        program = ["-c", SABOTAGE] if sabotage else ["-m", "quintet"]
        self._command = [sys.executable, *program, "serve", "--dev", "--data", str(self.data), "--print-ready"]
        self.admin = ""
        self._settings = settings_of(wal, f"n{number}", HOSTS[number]) | {
            "QUINTET_LISTENERS__BLIPMQ__HOST": HOSTS[number],
            "QUINTET_LISTENERS__BLIPMQ__PORT": str(port),
            "QUINTET_LISTENERS__ADMIN__ENABLED": "true",
            "QUINTET_LISTENERS__FLIGHT__ENABLED": "true",
            "QUINTET_LISTENERS__FLIGHT__HOST": HOSTS[number] if flight_port else "127.0.0.1",
            "QUINTET_LISTENERS__FLIGHT__PORT": str(flight_port),
        }
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        port = peers.free_port()  # of a follower nobody says which one it has
        self.admin, self._settings["QUINTET_LISTENERS__ADMIN__PORT"] = f"127.0.0.1:{port}", str(port)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        environment |= SETTINGS | self._settings | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        with self._out.open("wb") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=err, env=environment)

    def supervise(self) -> None:
        if self.process.poll() is not None:
            self.start()

    @property
    def address(self) -> str:
        """Of its BlipMQ door; "" while it does not lead."""
        return self.listener("blipmq")

    def listener(self, name: str) -> str:
        line = self._out.read_bytes()
        if self.process.poll() is not None or not line.endswith(b"\n"):
            return ""
        return str(json.loads(line)["listeners"][name])

    def ready(self) -> tuple[int, str]:
        """What its admin listener says; (0, "") if it says nothing."""
        try:
            return scrape.get(f"http://{self.admin}", "/readyz?verbose")
        except ConnectionLost:
            return 0, ""

    def status(self) -> dict[str, Any]:
        """What `quintet status --json` says of the cell."""
        command = [
            sys.executable,
            "-m",
            "quintet",
            "status",
            "--json",
            "--interval",
            "0.1",
            "--admin",
            f"http://{self.admin}",
        ]
        run = subprocess.run(
            command, capture_output=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}
        )
        found: dict[str, Any] = json.loads(run.stdout)["cell"]
        return found

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(LEAD_S)

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self._err.read_text(errors="replace")


class Cell:
    """Two nodes, and all that was promised."""

    node_type = NodeProcess

    def __init__(self, folder: Path, servers: str, topic: str, seed: int, sabotage: bool = False) -> None:
        self.chance = random.Random(seed)
        self.history = History(seed)
        port = shared_port()
        self.nodes = [self.node_type(folder, number, (servers, topic), port, sabotage) for number in range(NODES)]
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

    def stage(self) -> str:
        """Rows handed to the leader by Flight, as Spark does it, and not committed."""
        values = pa.array([b"row %d" % number for number in range(STAGED_ROWS)], pa.binary())
        batch = pa.record_batch({"value": values})
        ask = wire.StageRequest("writer", 0, STAGED)
        return str(self._ask(lambda link: link.stage(ask, batch.schema, [batch])).stage)

    def commit(self, stage: str) -> None:
        """At whoever leads now."""
        self._ask(lambda link: link.stage_commit(wire.StageCommit("writer", 0, (stage,), STAGED_ROWS)))

    def _ask(self, call: Callable[[FlightConnection], T]) -> T:
        """As Spark does."""
        return self._at_leader(
            lambda leader: call(
                FlightConnection.of(target({"url": f"flight://admin:admin@{leader.listener('flight')}"}))
            )
        )

    def _at_leader(self, call: Callable[[NodeProcess], T]) -> T:
        """Again if the leader ended meanwhile: on a busy machine a lease may lapse."""
        for tries_left in reversed(range(ASKS_MAX)):
            leader = self.leader()
            try:
                return call(leader)
            except (
                QuintetError,
                pa.ArrowException,
                KeyError,
                OSError,
                ValueError,
            ):  # the last: it has no address any more
                if not tries_left:
                    raise
            time.sleep(1)
        raise AssertionError("not reached")

    def staged_rows(self) -> list[list[bytes]]:
        """What each directory has of them."""
        return [[*reader.read(node.data)[STAGED].values.values()] for node in self.nodes]

    def judge(self) -> Verdict:
        """Both directories, when a follower has had the time to read the rest."""
        self._at_leader(lambda leader: self.history.probe(leader.address))
        until = time.monotonic() + LEAD_S
        while True:
            found = [reader.read(node.data) for node in self.nodes]
            for each in found:
                each.pop(STAGED, None)  # not of this load
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

def _confirm_answered(self, monotonic):
    while self._flying and (offset := next(iter(self._flying.values())).offset) >= 0:
        self.fold.next = max(self.fold.next, offset + 1)
        self._confirm(next(iter(self._flying)), monotonic)

Replica._confirm_answered = _confirm_answered
Replica.may_answer = lambda self, monotonic: self.leads
runpy.run_module("quintet", run_name="__main__")
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
        verdict = Verdict()
        try:
            for number in range(arguments.take_overs):
                cell.take_over(stop=number % 2 == 1)
            verdict = cell.judge()
        except NoLeader as error:  # nodes that find the WAL against their files take no part
            verdict.wrong += 1
            verdict.notes.append(str(error)[-2000:])
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
