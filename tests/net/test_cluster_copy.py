"""A new node of a cell gets its files from another one that goes on writing: logs on real disks, a WAL in memory, a real connection."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintet.cell_cluster import CellCluster
from quintet.config import Settings
from quintet.log.base import TopicSpec
from quintet.log.embedded.backup.cut import Clocks
from quintet.log.embedded.files.disk import Disk, OsDisk
from quintet.log.embedded.files.segment import HEADER_BYTES
from quintet.log.embedded.inspect import Summary, verify
from quintet.log.replicated.mark import NAME
from quintet.log.replicated.records import stage_part, stage_sealed
from quintet.log.replicated.trimming import WalTrimmed
from quintet.model.errors import BackupError
from quintet.net.cluster.copying import FOLDER, NoCopy, finish_move, receive_copy, send_copy
from quintet.net.cluster.peers import Link
from quintet.net.cluster.wire import Hello, Kind, PeerRefused, expect, send
from tests.log.cell_nodes import FAST, LEASE_US, ORDERS, Cell, CellNode

CLOCKS = Clocks(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000, time.sleep)
GONE = TopicSpec(19, "gone", segment_bytes=4096)


class FileNode(CellNode):
    """A node on a real disk."""

    def __init__(self, cell: Cell, name: str, silence_us: int, directory: Path) -> None:
        self.directory = directory
        super().__init__(cell, name, silence_us)

    def storage(self) -> Disk:
        return OsDisk()

    def kill(self) -> None:
        self.client.close()
        self.log._over = True
        self.log.abandon()


class Sender:
    """The other end of a connection, in a thread: sends a copy of a node when it is asked."""

    def __init__(self, node: FileNode) -> None:
        self.error: BaseException | None = None
        ours, theirs = socket.socketpair()
        self._theirs = theirs
        self.link = Link.__new__(Link)
        self.link.socket, self.link.hello = ours, Hello(node.name, "x", node.log.identity, "")
        self._thread = threading.Thread(target=self._run, args=(node,))
        self._thread.start()

    def _run(self, node: FileNode) -> None:
        try:
            expect(self._theirs, Kind.COPY)
            anchors = node.directory / "anchors"
            send_copy(self._theirs, node.directory, anchors, CLOCKS, "copy-1", node.log.hold_removals)
        except (OSError, BackupError) as error:
            self.error = error
            if isinstance(error, BackupError):
                send(self._theirs, Kind.REFUSED, str(error).encode())
        finally:
            self._theirs.close()

    def close(self) -> None:
        self.link.close()
        self._thread.join()


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    found = Cell(0)
    found.nodes = [
        FileNode(found, f"n{number}", LEASE_US * (3 + number) // 2, tmp_path / f"n{number}") for number in (0, 1)
    ]
    found.run(3 * LEASE_US)
    yield found
    for node in found.nodes:
        node.kill()


def node_of(cell: Cell, number: int) -> FileNode:
    node = cell.nodes[number]
    assert isinstance(node, FileNode)
    return node


def trimmed(cell: Cell) -> None:
    """Everything that both nodes have synced goes."""
    cell.run(3 * LEASE_US)
    cell.nodes[0].client.trim(min(node.log.synced for node in cell.nodes))
    assert cell.wal.begin > 10


def copied(source: FileNode, directory: Path) -> int:
    directory.mkdir()
    sender = Sender(source)
    try:
        return receive_copy(sender.link, directory, lambda received: None)
    finally:
        sender.close()


def added(cell: Cell, directory: Path) -> FileNode:
    node = FileNode(cell, "n2", 4 * LEASE_US, directory)
    cell.nodes.append(node)
    cell.run(3 * LEASE_US)
    return node


@pytest.mark.parametrize("source", [0, 1], ids=["first", "second"])
def test_a_copy_and_the_rest_of_the_wal_are_what_all_have(cell: Cell, tmp_path: Path, source: int) -> None:
    rng = Random(1)
    cell.load(cell.leader(), 150, rng)
    trimmed(cell)
    with pytest.raises(WalTrimmed):
        FileNode(cell, "n2", 4 * LEASE_US, tmp_path / "empty")
    offset = copied(node_of(cell, source), tmp_path / "n2")
    assert offset >= cell.wal.begin
    cell.load(cell.leader(), 50, rng)
    node = added(cell, tmp_path / "n2")
    assert node.client.read_first[0] == offset - 1, "the record before the mark is read again"
    cell.check()
    summary = Summary()
    assert [*verify(OsDisk(), str(tmp_path / "n2"), summary)] == []
    assert summary.records > 0
    for other in cell.nodes[:2]:
        other.kill()
    cell.nodes = [node]
    cell.run(6 * LEASE_US)
    assert cell.leader() is node, "it takes over as any other"
    cell.check()


def test_a_copy_is_whole_while_topics_come_and_go(cell: Cell, tmp_path: Path) -> None:
    """The leader writes, makes and deletes topics while its files are linked and sent."""
    leader, rng = cell.leader(), Random(2)
    assert isinstance(leader, FileNode)
    cell.load(leader, 100, rng)
    leader.append(GONE, 0, b"goes")
    trimmed(cell)
    (tmp_path / "n2").mkdir()
    sender, offsets = Sender(leader), list[int]()
    receiving = threading.Thread(
        target=lambda: offsets.append(receive_copy(sender.link, tmp_path / "n2", lambda received: None))
    )
    receiving.start()
    leader.log.delete_topic(GONE.id)
    while receiving.is_alive():
        cell.load(leader, 5, rng)
    sender.close()
    assert offsets, sender.error
    cell.load(leader, 20, rng)
    node = added(cell, tmp_path / "n2")
    assert GONE.id not in node.log._topics
    cell.check()


def test_a_copy_has_the_parts_of_a_stage_that_is_not_sealed(cell: Cell, tmp_path: Path) -> None:
    leader = cell.leader()
    leader.log.ship_stage(stage_part("s1", 0, b"first "), lambda: None)
    cell.load(leader, 30, Random(3))
    trimmed(cell)
    [follower] = [node for node in cell.nodes if node is not leader]
    assert isinstance(follower, FileNode)
    copied(follower, tmp_path / "n2")
    leader.log.ship_stage(stage_part("s1", 6, b"second"), lambda: None)
    leader.log.ship_stage(stage_sealed("s1", 12), lambda: None)
    node = added(cell, tmp_path / "n2")
    assert node.reasons == []
    assert (tmp_path / "n2" / "stages" / "s1.stage").read_bytes() == b"first second"


def test_a_mark_that_says_more_than_the_files_is_caught(cell: Cell, tmp_path: Path) -> None:
    """Control: a copy that took the mark after the files would have a hole, and the node would not go on over it."""
    cell.load(cell.leader(), 60, Random(4))
    trimmed(cell)
    copied(node_of(cell, 0), tmp_path / "n2")
    for number in range(3):
        cell.leader().append(ORDERS, number, b"in the hole")
    cell.run(3 * LEASE_US)
    shutil.copy(node_of(cell, 0).directory / NAME, tmp_path / "n2" / NAME)
    node = added(cell, tmp_path / "n2")
    for number in range(3):
        cell.leader().append(ORDERS, number, b"behind it")
    cell.run(LEASE_US)
    assert "files are missing" in node.reasons[0]


def test_a_copy_that_is_cut_short_leaves_no_log_and_is_made_anew(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell.load(cell.leader(), 60, Random(5))
    trimmed(cell)
    into = tmp_path / "n2"
    renames = 0
    rename = os.rename

    def fail_at(stop: int) -> Callable[[Any, Any], None]:
        def renamed(old: Any, new: Any) -> None:
            nonlocal renames
            renames += Path(new).parent == into
            if renames == stop:
                raise OSError("the power went")
            rename(old, new)

        return renamed

    sender = Sender(node_of(cell, 0))
    sender.link.socket.shutdown(socket.SHUT_RDWR)
    into.mkdir()
    with pytest.raises((OSError, PeerRefused)):
        receive_copy(sender.link, into, lambda received: None)
    sender.close()
    assert not (into / "format").exists()
    finish_move(into)
    assert [*into.iterdir()] == []
    into.rmdir()
    monkeypatch.setattr(os, "rename", fail_at(3))
    with pytest.raises(OSError, match="the power went"):
        copied(node_of(cell, 0), into)
    assert not (into / "format").exists(), "it is no log until all of it is there"
    monkeypatch.setattr(os, "rename", rename)
    finish_move(into)
    assert not (into / FOLDER).exists()
    added(cell, into)
    cell.check()


def test_a_node_with_damaged_files_gives_no_copy(cell: Cell, tmp_path: Path) -> None:
    cell.load(cell.leader(), 150, Random(6))
    trimmed(cell)
    node = node_of(cell, 0)
    file = min((node.directory / "topics" / f"{FAST.id:08d}").rglob("*.seg"))  # sealed: others are behind it
    data = bytearray(file.read_bytes())
    data[HEADER_BYTES + 40] ^= 1
    file.write_bytes(data)
    with pytest.raises(PeerRefused, match="damaged"):
        copied(node, tmp_path / "n2")
    assert not (tmp_path / "n2" / "format").exists()


class Clusters:
    """The cluster's side of nodes, as a server makes it; plain, on loopback."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, str, dict[str, object]]] = []
        self.made: list[CellCluster] = []

    def of(self, node: FileNode, *peers: str, **more: Any) -> CellCluster:
        flags: dict[str, Any] = {
            "engine": "kafka",
            "cell.node": node.name,
            "cell.servers": ["k:1"],
            "data": node.directory,
        }
        flags |= {"cluster.listen": "127.0.0.1:0", "cluster.peers": list(peers)} | more
        settings = Settings.load(None, {}, flags)

        def report(event: str, fields: dict[str, object]) -> None:
            self.reports.append((node.name, event, fields))

        self.made.append(CellCluster(settings, node.log, b"", CLOCKS.now, lambda call: call(), report))
        return self.made[-1]

    def serving(self, node: FileNode) -> CellCluster:
        made = self.of(node)
        made.introduce(node.log.identity)
        made.start()
        made.look()
        return made

    def said(self, event: str) -> list[str]:
        return [name for name, each, _ in self.reports if each == event]


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    found = Clusters()
    yield found
    for made in found.made:
        made.stop()


def test_a_new_node_asks_all_and_copies_from_a_follower(cell: Cell, tmp_path: Path, clusters: Clusters) -> None:
    cell.load(cell.leader(), 60, Random(7))
    trimmed(cell)
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    served = [clusters.serving(node_of(cell, number)) for number in (0, 1)]
    new = FileNode.__new__(FileNode)
    new.name, new.directory, new.log = (
        "n2",
        tmp_path / "n2",
        leader.log,
    )  # its log is not made yet: who it is does not matter here
    addresses = [each.address for each in served]
    joining = clusters.of(new, "127.0.0.1:1", *addresses, **{"audit.anchor_file": tmp_path / "elsewhere"})
    joining._instance = "another"
    with pytest.raises(NoCopy) as caught:
        joining.join(leader.log.identity, cell.wal.begin + 1_000)
    text = str(caught.value)
    assert "127.0.0.1:1: " in text and "has synced" in text and "[E1518]" in text
    assert not (tmp_path / "n2" / "format").exists()
    joining.join(leader.log.identity, cell.wal.begin)
    assert clusters.said("copy_asked") == [follower.name]
    assert clusters.said("copied") == ["n2"]
    assert (tmp_path / "elsewhere").exists() == (node_of(cell, 0).directory / "anchors").exists()
    joining.join(leader.log.identity, cell.wal.begin)  # a start on files that are there
    assert clusters.said("copied") == ["n2"]
    added(cell, tmp_path / "n2")
    cell.check()
