"""Three nodes of a cell as processes, each on a small disk of its own, started again whenever they end, as systemd would.

`Cell.leader` says who leads, by what the nodes' admin listeners say. Nothing here knows what a right answer is.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

import trustme

from tests.cell_faults.kafka_brokers import SERVERS
from tests.cell_faults.world import NODES, SmallDisk, node_group, node_host
from tests.crash.brokers import ROOT

PORTS: Final = {
    "BLIPMQ": 7001, "FLYMQ": 7002, "FAST": 7003, "PEERBUS": 7004, "PEERBUS_TCP": 7005, "FELIX": 7006, "FLIGHT": 7007,
    "ADMIN": 7008,
}  # fmt: skip
OTHERS: Final = ("CONSOLE", "FLYMQ_SDK")
DISK_BYTES: Final = 384 << 20
LEAD_S: Final = 180.0  # until some node leads: Kafka may have to find a leader first
AGAIN_S: Final = 0.5  # until a node that ended is started again
LOOK_S: Final = 0.1
ANSWER_S: Final = 2.0  # a node that is stopped does not answer
STOP_S: Final = 60.0
LEADS = re.compile(r"(n\d) is leader in epoch (\d+)")


class NoLeader(Exception):
    """No node led within LEAD_S. The text is what they said."""


@dataclass
class Addresses:
    """Where a node listens. While it follows, its doors lead to the leader's."""

    address: str  # of BlipMQ
    flymq: str
    fast: str
    peerbus: str
    peerbus_tcp: str
    felix: str
    flight: str
    admin: str


def addresses_of(number: int) -> Addresses:
    return Addresses(*(f"{node_host(number)}:{port}" for port in PORTS.values()))


def certificate(folder: Path) -> Path:
    """For the Felix doors of all nodes; returns the certificate of who signed it."""
    authority = trustme.CA()
    issued = authority.issue_cert(*(node_host(number) for number in NODES))
    issued.private_key_pem.write_to_path(folder / "felix.key")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    (folder / "felix.pem").write_bytes(chain)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return folder / "ca.pem"


def settings_of(number: int, topic: str, certificates: Path) -> dict[str, str]:
    host = node_host(number)
    cell = {"NODE": f"n{number}", "ADVERTISED_HOST": host, "SERVERS": json.dumps(SERVERS.split(",")), "TOPIC": topic}
    found = {"QUINTET_ENGINE": "kafka"} | {f"QUINTET_CELL__{name}": value for name, value in cell.items()}
    for name, port in PORTS.items():
        found[f"QUINTET_LISTENERS__{name}__ENABLED"] = "true"
        found[f"QUINTET_LISTENERS__{name}__HOST"] = host
        found[f"QUINTET_LISTENERS__{name}__PORT"] = str(port)
    found |= {f"QUINTET_LISTENERS__{name}__ENABLED": "false" for name in OTHERS}
    return found | {
        "QUINTET_LISTENERS__FELIX__TLS_CERT": str(certificates / "felix.pem"),
        "QUINTET_LISTENERS__FELIX__TLS_KEY": str(certificates / "felix.key"),
        "QUINTET_LISTENERS__FAST__AUTH_FAILURES_MAX": "0",
        "QUINTET_AUDIT__ANCHOR_SECONDS": "1",
        "QUINTET_TOPICS__SEGMENT_BYTES": "131072",
        "QUINTET_DELIVERY__ATTEMPTS_MAX": "1000",
        "QUINTET_DELIVERY__GROUP_TIMEOUT_SECONDS": "2",
        "QUINTET_LIMITS__DISK_FREE_BYTES_MIN": "0",  # a full disk is met where it hurts: in a write that was confirmed
        "QUINTET_LOG__FORMAT": "json",
    }


class Node:
    """One node. `held`: it is not started again for now."""

    def __init__(self, number: int, folder: Path, disk: SmallDisk, topic: str, program: list[str]) -> None:
        self.number = number
        self.at = addresses_of(number)
        self.disk = disk
        self.data = disk.place / topic
        self.held = False
        self.starts = 0
        self.codes: list[int] = []
        self._err = folder / f"{topic}-n{number}.err"
        self._command = [sys.executable, *program, "serve", "--dev", "--data", str(self.data)]
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        self._environment |= settings_of(number, topic, folder)
        self._environment["HOME"] = str(disk.place)
        self._environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        group = node_group(self.number)
        with self._err.open("ab") as err:
            self._process = subprocess.Popen(
                self._command, stdout=err, stderr=err, env=self._environment, cwd=self.disk.place, group=group
            )

    def supervise(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            self.codes.append(code)
            self._process = None
        if self._process is None and not self.held:
            self.start()

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def leads(self) -> int:
        """In which epoch it leads and is ready; 0: it does not, or does not say so in time."""
        link = HTTPConnection(node_host(self.number), PORTS["ADMIN"], timeout=ANSWER_S)
        try:
            link.request("GET", "/readyz?verbose")
            answer = link.getresponse()
            found = LEADS.search(answer.read().decode(errors="replace"))
        except (OSError, HTTPException):
            return 0
        finally:
            link.close()
        return int(found[2]) if found is not None and answer.status == 200 else 0

    def end(self, number: int) -> int:
        """Its exit code, of this signal."""
        self.held = True
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return -1

    def said(self) -> str:
        return self._err.read_text(errors="replace")


class Cell:
    """The nodes over one topic of Kafka, and a thread that starts them again."""

    def __init__(self, folder: Path, disks: dict[int, SmallDisk], topic: str, program: list[str]) -> None:
        self.topic = topic
        self.nodes = {number: Node(number, folder, disk, topic, program) for number, disk in disks.items()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        while not self._ended.wait(AGAIN_S):
            for node in self.nodes.values():
                node.supervise()

    def leader(self, other_than: Node | None = None, within_s: float = LEAD_S) -> tuple[Node, int]:
        """Who leads, and in which epoch."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for node in self.nodes.values():
                if node is not other_than and (epoch := node.leads()):
                    return node, epoch
            time.sleep(LOOK_S)
        raise NoLeader("\n".join(f"n{node.number}: {node.said()[-1500:]}" for node in self.nodes.values()))

    def followers(self, leader: Node) -> list[Node]:
        return [node for node in self.nodes.values() if node is not leader]

    def end(self, number: int = signal.SIGKILL) -> list[int]:
        """Exit codes."""
        self._ended.set()
        self._thread.join()
        return [node.end(number) for node in self.nodes.values()]
