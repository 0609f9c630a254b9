"""Nodes of a cell that know each other, over a real Kafka: the WAL is trimmed, and a node whose disk is gone copies from the other."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from quintet.cli.operate import cluster_view, scrape
from quintet.cli.operate.cluster_files import NodePlace, authority, issue, write_node
from quintet.client.core.errors import ConnectionLost
from quintet.config import Settings
from quintet.log.replicated.kafka import KafkaWal, WalOptions
from tests.crash.brokers import ROOT
from tests.crash.cells import HOSTS, LEAD_S, NODES, PROMISES, Cell, NodeProcess, shared_port
from tests.crash.load import Load

pytestmark = pytest.mark.crash
ANY = {"advertised_host": "", "servers": [], "topic": "", "node": "", "listen": "", "peers": []}


class ClusterProcess(NodeProcess):
    """A node that listens for the other one, with certificates, and keeps nothing in the WAL that both have."""

    ports: ClassVar = [shared_port() for _ in range(NODES)]  # never one that the system gave to somebody meanwhile

    def start(self) -> None:
        name = self.data.name.replace("data", "n")
        number, files = int(name[1:]), self.data.parent / "certs" / name
        if not files.exists():
            signer, _ = authority(files.parent)
            write_node(files, "", ANY, issue(signer, NodePlace(name, HOSTS[number]), 30))
        addresses = [f"{host}:{port}" for host, port in zip(HOSTS[:NODES], self.ports, strict=True)]
        options = {"LISTEN": addresses[number], "PEERS": str(addresses).replace("'", '"'), "WAL_KEPT_SECONDS": "0"}
        options |= {f"TLS_{key}": str(files / file) for key, file in
                    (("CERT", "node.pem"), ("KEY", "node-key.pem"), ("CA", "ca.pem"))}  # fmt: skip
        self._settings |= {f"QUINTET_CLUSTER__{name}": value for name, value in options.items()}
        super().start()

    def figure(self, name: str) -> float:
        """Of its metrics; -1: it does not answer."""
        try:
            return scrape.scrape(f"http://{self.admin}").one(name)
        except ConnectionLost:
            return -1.0


class ClusterCell(Cell):
    node_type = ClusterProcess


def until(cell: Cell, done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LEAD_S
    while not done():
        assert time.monotonic() < end, what + "\n" + "\n".join(node.said()[-3000:] for node in cell.nodes)
        for node in cell.nodes:
            node.supervise()
        time.sleep(0.2)


def published(cell: Cell) -> ClusterProcess:
    leader = cell.leader()
    running = Load(cell.history, leader.address, consume=False)
    running.wait_for(PROMISES)
    running.stop()
    assert isinstance(leader, ClusterProcess)
    return leader


def quintet(node: NodeProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "quintet", "cluster", *arguments, "--json", "--admin", f"http://{node.admin}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def whole(node: NodeProcess) -> bool:
    """Does one node say that both are there, and find nothing that fails?"""
    said, found = quintet(node, "status"), quintet(node, "doctor")
    if said.returncode or found.returncode:
        return False
    told = json.loads(said.stdout)
    assert sorted(each["role"] for each in told["nodes"]) == ["follower", "leader"]
    assert len(told["weaker"]) == 3
    return {finding["subject"] for finding in json.loads(found.stdout)} >= {"leader", "lease", "certificate", "clock"}


@pytest.mark.timeout(600)
def test_a_node_without_its_disk_copies_from_the_other(servers: str, tmp_path: Path) -> None:
    cell = ClusterCell(tmp_path, servers, "cluster", seed=1)
    try:
        leader = published(cell)
        [lost] = [node for node in cell.nodes if node is not leader]
        assert leader.figure("quintet_cell_take_over_seconds") > 0
        until(cell, lambda: leader.figure("quintet_cell_wal_begin") > PROMISES // 10, "the WAL is not trimmed")
        until(cell, lambda: whole(leader), "the nodes do not know each other")
        lost.process.kill()
        lost.process.wait()
        shutil.rmtree(lost.data)
        published(cell)  # and starts the lost one again, as a supervisor would
        until(cell, lambda: '"copied"' in lost.said(), "it did not copy")
        verdict = cell.judge()
        codes = [node.terminate() for node in cell.nodes]
    finally:
        cell.end()
    assert codes == [0, 0]
    assert not verdict.bad, verdict
    assert verdict.acked > PROMISES
    assert cell.verified() == [0, 0, 0, 0], "links are equal, and both folders are sound"


def examined(servers: str, topic: str, **more: object) -> list[tuple[str, str]]:
    flags: dict[str, object] = {"engine": "kafka", "cell.node": "n1", "cell.servers": [servers], "cell.topic": topic}
    weak = {"replicas_min": 1, "in_sync_replicas_min": 1, "flushed": False, "weaker_allowed": True} | more
    settings = Settings.load(None, {}, flags | {f"cell.{name}": value for name, value in weak.items()})
    return [(finding.verdict, finding.text) for finding in cluster_view.kafka(settings)]


def test_the_doctor_examines_kafka_and_makes_nothing(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [("warn", 'there is no topic "examined" yet')]
    assert examined(servers, "examined") == missing
    assert examined(servers, "examined") == missing, "it was not made"
    KafkaWal(WalOptions(servers, "examined", 1, 1, 0), lambda call: None).prepare(None)
    found = examined(servers, "examined")
    assert found[0][0] == "ok" and "is as it must be; it begins at 0" in found[0][1]
    assert [verdict for verdict, _ in found[1:]] == ["warn"] * 3, "a weaker choice is named"
    assert examined(servers, "examined", flushed=True)[0][0] == "fail"
    monkeypatch.setattr("quintet.log.replicated.kafka.ASK_S", 1.0)
    assert "does not answer" in examined("127.0.0.1:1", "examined")[0][1]
