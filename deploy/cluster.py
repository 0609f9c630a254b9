"""Runs a cell on this machine: three brokers of Kafka, three nodes of Quintet, all on loopback. `make cluster` starts it.

    python deploy/cluster.py [--cells 2] [--folder .quintet/cluster] [--seconds 60]

Nodes listen on 127.0.0.1, 127.0.0.2 and 127.0.0.3, with the ports of `quintet serve --dev` (Linux has these addresses; elsewhere
they must be configured). A node that ends is started again, as systemd would. Ctrl-C stops nodes first, then Kafka. What was
published stays in the folder, and the next run goes on with it. This is for trying it out: one machine protects from nothing.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import peers
from quintet.cli.operate import cluster_files, scrape
from quintet.cli.operate.cluster import DAYS_DEFAULT, PORT_DEFAULT
from quintet.client.core.errors import ConnectionLost
from quintet.protocols.doors import DOORS

SMALL_JAVA: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
BROKERS: Final = 3
HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
ADMIN_PORT: Final = 8080
LOOK_S: Final = 1.0
STOP_S: Final = 30.0
LISTENERS: Final = (*(door.key for door in DOORS), "flight", "console", "admin")


class Stopped(Exception):
    """Somebody pressed Ctrl-C, or sent SIGTERM."""


class Node:
    """One node, started again whenever it ends."""

    def __init__(self, number: int, folder: Path, servers: Sequence[str], cells: int) -> None:
        self.name, self.host = f"n{number}", HOSTS[number - 1]
        self._folder = folder / self.name
        self._folder.mkdir(parents=True, exist_ok=True)
        cell = {"NODE": self.name, "SERVERS": json.dumps([*servers]), "ADVERTISED_HOST": self.host, "CELLS": str(cells)}
        self._cells = cells
        self._settings = {f"QUINTET_CELL__{name}": value for name, value in cell.items()} | {"QUINTET_ENGINE": "kafka"}
        self._settings |= {f"QUINTET_LISTENERS__{name.upper()}__HOST": self.host for name in LISTENERS}
        cluster = self._cluster(folder / "certs", servers)
        self._settings |= {f"QUINTET_CLUSTER__{name}": value for name, value in cluster.items()}
        self.start()

    def _cluster(self, certificates: Path, servers: Sequence[str]) -> dict[str, str]:
        """How nodes reach each other, with files as `quintet cluster init` makes them."""
        own, addresses = certificates / self.name, [f"{host}:{PORT_DEFAULT}" for host in HOSTS]
        place = cluster_files.NodePlace(self.name, self.host)
        (own / cluster_files.SETTINGS).unlink(missing_ok=True)  # Kafka has other ports each time
        settings: dict[str, object] = {"node": self.name, "advertised_host": self.host, "topic": "quintet-wal"}
        settings |= {"listen": f"{self.host}:{PORT_DEFAULT}", "peers": addresses, "servers": [*servers]}
        settings |= {"cells": self._cells} if self._cells > 1 else {}
        pair = cluster_files.issue(cluster_files.authority(certificates)[0], place, DAYS_DEFAULT)
        cluster_files.write_node(own, str(own), settings, pair)
        files = {"CERT": cluster_files.CERTIFICATE, "KEY": cluster_files.KEY, "CA": cluster_files.CA}
        found = {f"TLS_{name}": str(own / file) for name, file in files.items()}
        return found | {"LISTEN": f"{self.host}:{PORT_DEFAULT}", "PEERS": json.dumps(addresses)}

    def start(self) -> None:
        command = [sys.executable, "-m", "quintet", "serve", "--dev", "--data", str(self._folder / "data")]
        with (self._folder / "log").open(
            "ab"
        ) as log:  # of its own session: Ctrl-C is for this program, which tells them in order
            self.process = subprocess.Popen(
                command, env=os.environ | self._settings, stdout=log, stderr=log, start_new_session=True
            )

    def said(self) -> str:
        """One line: what its admin listener says of the cell."""
        code = self.process.poll()
        if code is not None:
            self.start()
            return f"{self.name} ended with code {code} and is started again (see {self._folder / 'log'})"
        try:
            _, text = scrape.get(f"http://{self.host}:{ADMIN_PORT}", "/readyz?verbose")
        except ConnectionLost:
            return f"{self.name} is starting"
        found = re.findall(r"^\[.\] (?:cell:(\d+):)?cell: ([^;]*)", text, re.MULTILINE)
        said = "; ".join(f"cell {number}: {role}" if number else role for number, role in found)
        return f"{said or f'{self.name}: {text.strip()}'} (pid {self.process.pid})"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)  # somebody may have tried what SIGSTOP does
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hints(folder: Path, cells: int) -> str:
    """What to try next."""
    quintet = Path(sys.executable).with_name("quintet")
    config = folder / "certs" / "n1" / cluster_files.SETTINGS
    own = f"\n  {quintet} cell list --config {config}" if cells > 1 else ""
    return (
        f"  {quintet} cluster status --admin http://{HOSTS[0]}:{ADMIN_PORT}\n"
        f"  {quintet} cluster doctor --admin http://{HOSTS[0]}:{ADMIN_PORT} --config {config}{own}\n"
        "  kill -9 -- -PID of the leader to see a take-over: its processes are one group\n"
    )


def watch(nodes: Sequence[Node], seconds: float) -> None:
    """Say what changes, until it is stopped."""
    until, before = time.monotonic() + (seconds or float("inf")), list[str]()
    while time.monotonic() < until:
        now = [node.said() for node in nodes]
        if now != before:
            say("\n".join(f"  {line}" for line in now) + "\n")
            before = now
        time.sleep(LOOK_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", type=int, default=1, help="each node has a process for each of them")
    parser.add_argument("--folder", type=Path, help=".quintet/cluster, with several cells .quintet/cluster-CELLS")
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long; 0: at Ctrl-C")
    arguments = parser.parse_args()
    if not peers.has_kafka():
        say("Kafka is not installed: python bench/peers.py --install kafka (needs Java, Maven and Maven Central)")
        return 1

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    cells = arguments.cells
    own = arguments.folder or Path(f".quintet/cluster-{cells}" if cells > 1 else ".quintet/cluster")
    folder, nodes = own.resolve(), list[Node]()
    say(f"starting {BROKERS} brokers of Kafka and {len(HOSTS)} nodes in {folder} (half a minute)")
    try:
        with peers.kafka_cluster(folder, BROKERS, SMALL_JAVA) as brokers:
            servers = [f"{broker.address[0]}:{broker.address[1]}" for broker in brokers]
            say(f"Kafka: {', '.join(servers)}")
            try:
                nodes += [Node(number, folder, servers, cells) for number in range(1, len(HOSTS) + 1)]
                say(hints(folder, cells))
                watch(nodes, arguments.seconds)
            except Stopped:
                say("stopping")
            for node in nodes:
                node.stop()
    except Stopped:  # while Kafka started
        say("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
