"""Three nodes of one or several cells as processes, each on a small disk of its own, started again whenever they end, as systemd would.

`Cell.leaders` says who leads, by what the nodes say: cell 0 at the admin listener, the others each at its own socket, for what the admin
listener has of them is a second old. Nothing here knows what a right answer is.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trustme

from tests.cell_faults.kafka_brokers import SERVERS
from tests.cell_faults.world import NODES, SmallDisk, node_group, node_host
from tests.crash.brokers import ROOT

PORTS: Final = {
    "BLIPMQ": 7001, "FLYMQ": 7002, "FAST": 7003, "PEERBUS": 7004, "PEERBUS_TCP": 7005, "FELIX": 7006, "FLIGHT": 7007,
    "ADMIN": 7008,
}  # fmt: skip
OTHERS: Final = ("CONSOLE", "FLYMQ_SDK")
CLUSTER_PORT: Final = 7790  # and those behind it: two for each cell
# What clients use together is in one cell; of other topics the hash of their names decides.
TOGETHER: Final = ("left", "right", "third", "numbered", "later", "work")  # topics of transactions.py
PLACES: Final = ("staged=0", "register-0=0", "register-1=1", *(f"{topic}=1" for topic in TOGETHER))
DISK_BYTES: Final = 384 << 20
LEAD_S: Final = 180.0  # until some node leads: Kafka may have to find a leader first
AGAIN_S: Final = 0.5  # until a node that ended is started again
LOOK_S: Final = 0.1
ANSWER_S: Final = 2.0  # a node that is stopped does not answer
STOP_S: Final = 60.0
LEADS = re.compile(r"is leader in epoch (\d+)")


class NoLeader(Exception):
    """A cell had no leader for LEAD_S. The text is what the nodes said."""


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


def settings_of(number: int, topic: str, certificates: Path, cells: int) -> dict[str, str]:
    host = node_host(number)
    cell = {"NODE": f"n{number}", "ADVERTISED_HOST": host, "SERVERS": json.dumps(SERVERS.split(",")), "TOPIC": topic}
    if cells > 1:
        cell |= {"CELLS": str(cells), "PLACES": json.dumps(PLACES)}
    found = {"QUINTET_ENGINE": "kafka"} | {f"QUINTET_CELL__{name}": value for name, value in cell.items()}
    if cells > 1:
        near = [f"{node_host(each)}:{CLUSTER_PORT}" for each in NODES]
        found |= {"QUINTET_CLUSTER__LISTEN": f"{host}:{CLUSTER_PORT}", "QUINTET_CLUSTER__PEERS": json.dumps(near)}
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
        "QUINTET_DELIVERY__GROUP_TIMEOUT_SECONDS": "6",  # a judge on a busy machine is a slow member
        "QUINTET_LIMITS__DISK_FREE_BYTES_MIN": "0",  # a full disk is met where it hurts: in a write that was confirmed
        "QUINTET_PEERS__REPLAY_WINDOW_SECONDS": "7200",  # longer than a round
        "QUINTET_LOG__FORMAT": "json",
    }


class Node:
    """One node, with a process for each cell if there are several. `held`: it is not started again for now."""

    def __init__(self, number: int, folder: Path, disk: SmallDisk, topic: str, program: list[str], cells: int) -> None:
        self.number = number
        self.cells = cells
        self.at = addresses_of(number)
        self.disk = disk
        self.data = disk.place / topic
        self.held = False
        self.starts = 0
        self.codes: list[int] = []
        self._err = folder / f"{topic}-n{number}.err"
        self._command = [sys.executable, *program, "serve", "--dev", "--data", str(self.data)]
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        self._environment |= settings_of(number, topic, folder, cells)
        self._environment["HOME"] = str(disk.place)
        self._links = folder / f"run{number}"  # of its processes: not on the disk that is filled
        self._links.mkdir(exist_ok=True)
        self._environment["TMPDIR"] = str(self._links)
        self._environment["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.starts += 1
        group = node_group(self.number)
        with self._err.open("ab") as err:
            self._process = subprocess.Popen(
                self._command, stdout=err, stderr=err, env=self._environment, cwd=self.disk.place, group=group,
                start_new_session=True,
            )  # fmt: skip

    def supervise(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            self.codes.append(code)
            self._process = None
        if self._process is None and not self.held:
            self.start()

    def data_of(self, cell: int) -> Path:
        return self.data if self.cells == 1 else self.data / f"cell-{cell}"

    def signal(self, number: int) -> None:
        """Every process of it."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def kill_one(self, cell: int) -> None:
        """The process of one cell; the node starts it again."""
        assert self._process is not None and self.cells > 1
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(OSError):
                files = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
                if any(Path(name).is_relative_to(self.data_of(cell)) for name in files):
                    os.kill(pid, signal.SIGKILL)

    def leads(self, cell: int = 0) -> int:
        """In which epoch it leads this cell and is ready; 0: it does not, or does not say so in time."""
        try:
            checks = self._checks() if cell == 0 else self._checks_of(cell)
        except (OSError, HTTPException, msgspec.MsgspecError):
            return 0
        found = [LEADS.search(text) for text in checks]
        return max((int(one[1]) for one in found if one is not None), default=0)

    def _checks(self) -> list[str]:
        """What cell 0 says; nothing if it is not ready."""
        link = HTTPConnection(node_host(self.number), PORTS["ADMIN"], timeout=ANSWER_S)
        try:
            link.request("GET", "/readyz?verbose")
            said = link.getresponse().read().decode(errors="replace").splitlines()
        finally:
            link.close()
        own = [line for line in said if self.cells == 1 or "cell:0:" in line]
        return own if all(line.startswith("[+]") for line in own if line.startswith("[")) else []

    def _checks_of(self, cell: int) -> list[str]:
        """The same of another cell."""
        sockets = sorted(self._links.glob(f"quintet-*/figures-{cell}"), key=lambda path: path.stat().st_mtime)
        if not sockets:
            return []
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(ANSWER_S)
            link.connect(str(sockets[-1]))
            told = b""
            while part := link.recv(1 << 20):
                told += part
        checks = msgspec.msgpack.decode(told)["checks"]
        return [detail for _, _, detail in checks] if all(good for _, good, _ in checks) else []

    def end(self, number: int) -> int:
        """Its exit code, of this signal."""
        self.held = True
        if self._process is None:
            return 0
        self.signal(signal.SIGCONT)
        if number == signal.SIGKILL:
            self.signal(number)
        else:
            self._process.send_signal(number)
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()
            return -1

    def said(self) -> str:
        return self._err.read_text(errors="replace")


class Leaders(NamedTuple):
    """Who leads, and in which epoch, by cell."""

    nodes: tuple[Node, ...]
    epochs: tuple[int, ...]

    @property
    def home(self) -> Node:
        """Of cell 0, which has the doors of Felix, peerbus and Flight."""
        return self.nodes[0]


class Cell:
    """The nodes over one topic of Kafka, which has a partition for each cell, and a thread that starts them again."""

    def __init__(
        self, folder: Path, disks: dict[int, SmallDisk], topic: str, program: list[str], cells: int = 1
    ) -> None:
        self.topic = topic
        self.cells = cells
        self.nodes = {number: Node(number, folder, disk, topic, program, cells) for number, disk in disks.items()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        while not self._ended.wait(AGAIN_S):
            for node in self.nodes.values():
                node.supervise()

    def leaders(self, other_than: Node | None = None, within_s: float = LEAD_S) -> Leaders:
        """When every cell has one."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            found = [self._leader(cell, other_than) for cell in range(self.cells)]
            nodes = tuple(node for node, _ in found if node is not None)
            if len(nodes) == self.cells:
                return Leaders(nodes, tuple(epoch for _, epoch in found))
            time.sleep(LOOK_S)
        raise NoLeader("\n".join(f"n{node.number}: {node.said()[-1500:]}" for node in self.nodes.values()))

    def _leader(self, cell: int, other_than: Node | None) -> tuple[Node | None, int]:
        for node in self.nodes.values():
            if node is not other_than and (epoch := node.leads(cell)):
                return node, epoch
        return None, 0

    def followers(self, leader: Node) -> list[Node]:
        return [node for node in self.nodes.values() if node is not leader]

    def end(self, number: int = signal.SIGKILL) -> list[int]:
        """Exit codes."""
        self._ended.set()
        self._thread.join()
        return [node.end(number) for node in self.nodes.values()]
