"""Runs nodes of several cells over a real Kafka, each a group of processes that is killed as a whole, as a machine would be."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import peers
from quintet.cli.operate import scrape
from quintet.client.core.errors import ConnectionLost
from quintet.model.cells import CellMap
from tests.crash.brokers import ROOT, SETTINGS
from tests.crash.cells import HOSTS, LEAD_S, settings_of, shared_port

CELLS = 2
CLUSTER_PORTS = range(30_000, 32_000, 8)


class CellNode:
    """`quintet serve` of one node, which has a process for each cell. program: in place of `-m quintet`."""

    def __init__(
        self, folder: Path, number: int, wal: tuple[str, str], ports: dict[str, int], program: str = ""
    ) -> None:
        self.name, self.host = f"n{number}", HOSTS[number]
        self.data = folder / f"data{number}"
        self.doors = {name: f"{self.host}:{port}" for name, port in ports.items() if name != "cluster"}
        self._out, self._err = folder / f"{number}.out", folder / f"{number}.err"
        way = ["-c", program] if program else ["-m", "quintet"]
        self._command = [sys.executable, *way, "serve", "--dev", "--data", str(self.data), "--print-ready"]
        self.admin = f"http://127.0.0.1:{peers.free_port()}"
        near = [f"{host}:{ports['cluster']}" for host in HOSTS[:2]]
        self.settings = settings_of(wal, self.name, self.host) | {
            "QUINTET_CELL__CELLS": str(CELLS),
            "QUINTET_CLUSTER__LISTEN": f"{self.host}:{ports['cluster']}",
            "QUINTET_CLUSTER__PEERS": json.dumps(near),
            "QUINTET_LISTENERS__ADMIN__ENABLED": "true",
            "QUINTET_LISTENERS__ADMIN__PORT": self.admin.rpartition(":")[2],
        }
        for name in self.doors:
            self.settings |= {
                f"QUINTET_LISTENERS__{name.upper()}__ENABLED": "true",
                f"QUINTET_LISTENERS__{name.upper()}__HOST": self.host,
                f"QUINTET_LISTENERS__{name.upper()}__PORT": str(ports[name]),
            }
        self.start()

    def environment(self) -> dict[str, str]:
        found = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
        return found | SETTINGS | self.settings | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}

    def start(self) -> None:
        with self._out.open("wb") as out, self._err.open("ab") as err:
            self.process = subprocess.Popen(
                self._command, stdout=out, stderr=err, env=self.environment(), start_new_session=True
            )

    def kill(self) -> None:
        """Every process of it, at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> int:
        self.process.terminate()
        return self.process.wait(LEAD_S)

    def said(self) -> str:
        return self._err.read_text(errors="replace")

    def roles(self) -> dict[int, tuple[str, str]]:
        """By cell: what this node is, and who leads, as it says."""
        try:
            now = scrape.scrape(self.admin)
        except ConnectionLost:
            return {}
        found = now.by("quintet_cell_info", "cell", "role", "leader")
        return {int(cell): (role, leader) for cell, role, leader in found}


class Nodes:
    """Two nodes over one broker of Kafka."""

    def __init__(self, folder: Path, servers: str, topic: str, program: str = "") -> None:
        cluster = random.choice(CLUSTER_PORTS)
        doors = ("blipmq", "flymq", "felix", "peerbus", "flight", "console")
        ports = {"cluster": cluster, **{door: shared_port() for door in doors}}
        self.cells = CellMap(CELLS, dead_letter_suffix=".dlq")
        self.all = [CellNode(folder, number, (servers, topic), ports, program) for number in range(2)]

    def topics(self, prefix: str) -> list[str]:
        """A topic of each cell."""
        found = {self.cells.cell_of(f"{prefix}{number}".encode()): f"{prefix}{number}" for number in range(100)}
        return [found[cell] for cell in range(CELLS)]

    def leaders(self) -> list[str]:
        """Who leads each cell by its own word; empty: nobody says so."""
        roles = [(node.name, node.roles()) for node in self.all if node.process.poll() is None]
        return [
            next((name for name, said in roles if said.get(cell, ("",))[0] == "leader"), "") for cell in range(CELLS)
        ]

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LEAD_S
        while not done():
            if time.monotonic() > deadline:
                said = "\n".join(node.said()[-3000:] for node in self.all)
                raise AssertionError(f"{what}; leaders {self.leaders()}\n{said}")
            time.sleep(0.1)

    def named(self, name: str) -> CellNode:
        return next(node for node in self.all if node.name == name)

    def end(self) -> None:
        for node in self.all:
            if node.process.poll() is None:
                node.kill()
