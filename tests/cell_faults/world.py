"""A network and disks of their own for a cell and its Kafka, in which connections are cut and disks are filled. Needs root, ip and nft.

    enter()     starts this program again in new namespaces of network, mounts and processes: whatever it leaves ends with it
    Network     every node and every broker of Kafka runs in a group of its own, and nft drops packets by who sends them and where to
    SmallDisk   a tmpfs for the files of one node

Nothing here knows what runs in it.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

INSIDE = "QUINTET_CELL_WORLD"  # set for the program that was started again
NODES = range(1, 4)
BROKERS = range(1, 4)
FIRST_GROUP = 61_000  # of nodes; those of brokers follow
BALLAST_STEP_BYTES = 1 << 20
TABLE = "table inet cuts {\nchain sent {\ntype filter hook output priority 0; policy accept;\n}\n}\n"


class NotHere(Exception):
    """This machine cannot do it. The text says what is missing."""


def node_host(number: int) -> str:
    return f"127.0.1.{number}"


def broker_host(number: int) -> str:
    return f"127.0.2.{number}"


def node_group(number: int) -> int:
    return FIRST_GROUP + number


def broker_group(number: int) -> int:
    return FIRST_GROUP + 100 + number


def enter(arguments: Sequence[str]) -> None:
    """Returns inside; outside it is replaced. Raises NotHere."""
    missing = [program for program in ("unshare", "ip", "nft", "mount") if shutil.which(program) is None]
    if os.geteuid() != 0:
        raise NotHere("network namespaces, nft and small disks need root")
    if missing:
        raise NotHere(f"{', '.join(missing)} not installed (apt install nftables iproute2 util-linux)")
    if os.environ.get(INSIDE):
        _run("ip", "link", "set", "lo", "up")
        return
    own = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.environ[INSIDE] = "yes"
    os.execvp("unshare", [*own, sys.executable, *arguments])


def _run(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, input=text)
    if done.returncode:
        raise NotHere(f"{' '.join(command)}: {done.stderr.strip()}")


class Network:
    """Loopback, with cuts. What is cut is dropped without a word, also of connections that are there."""

    def __init__(self) -> None:
        _run("nft", "-f", "-", text=TABLE)

    def cut_node(self, number: int) -> None:
        """All that a node sends to Kafka is lost. Clients still reach it."""
        self._drop([node_group(number)], map(broker_host, BROKERS))

    def cut_broker(self, number: int, from_nodes: bool) -> None:
        """Nothing goes between this broker and the others; from_nodes: and what nodes send to it is lost, too."""
        others = [other for other in BROKERS if other != number]
        self._drop([broker_group(number)], map(broker_host, others))
        senders = [broker_group(other) for other in others] + [node_group(node) for node in NODES if from_nodes]
        self._drop(senders, [broker_host(number)])

    def heal(self) -> None:
        _run("nft", "flush", "chain", "inet", "cuts", "sent")

    @staticmethod
    def _drop(groups: Iterable[int], hosts: Iterable[str]) -> None:
        senders, places = ", ".join(map(str, groups)), ", ".join(hosts)
        rule = f"add rule inet cuts sent meta skgid {{ {senders} }} ip daddr {{ {places} }} drop\n"
        _run("nft", "-f", "-", text=rule)


class SmallDisk:
    """A file system in memory for one node."""

    def __init__(self, place: Path, size_bytes: int) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0755", "quintet", str(place))
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Until not a byte is left."""
        with self._ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                try:
                    file.write(bytes(BALLAST_STEP_BYTES))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    file.write(b"x" * 4096)  # the last pages; raises when there is none

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)
