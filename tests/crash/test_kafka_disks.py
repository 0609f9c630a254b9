"""Disks of Kafka: one that is full, and one that was restored from an old backup. A node says so, loses nothing, and goes on where it can.

Other troubles of Kafka are in test_kafka_trouble.py and test_cells.py; what a restored WAL does to a node in memory in tests/log/test_cell_log.py.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import peers
from quintet.log.replicated import kafka
from quintet.log.replicated.kafka import KafkaWal
from tests.cell_faults.world import NotHere, SmallDisk
from tests.crash import load, reader
from tests.crash.cells import SMALL_JAVA, NodeProcess, shared_port
from tests.crash.load import History
from tests.crash.test_kafka_trouble import ANSWER_S, Reports, leading, options, publish_when_it_leads

pytestmark = pytest.mark.crash
PROMISES = 200
DISK_BYTES = 64 << 20
TOPICS = 4  # Kafka shares partitions out over its folders in turn


@pytest.fixture(autouse=True)
def kafka_is_here() -> None:
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")


def fill(history: History, address: str) -> None:
    running = load.Load(history, address, consume=False)
    running.wait_for(PROMISES)
    running.stop()


def check(history: History, node: NodeProcess) -> None:
    """All that was acknowledged is in the node's files, once and in order."""
    verdict = load.judge(history, load.topics_of(reader.read(node.data)))
    assert not verdict.bad, verdict
    assert verdict.acked > PROMISES


def ended(node: NodeProcess, code: int) -> str:
    """What a node said that ends by itself."""
    before = len(node.said())
    node.start()
    assert node.process.wait(ANSWER_S) == code, node.said()[-2000:]
    return node.said()[before:]


# -- full ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        yield SmallDisk(tmp_path / "small", DISK_BYTES)
    except NotHere as error:
        pytest.skip(f"NOT PROVEN HERE: small disks need root: {error}")
    finally:
        subprocess.run(["umount", "-l", str(tmp_path / "small")], check=False, capture_output=True)


@contextmanager
def two_folders(tmp_path: Path) -> Iterator[str]:
    """A broker with a folder on the small disk and one beside it, so that it lives on when the small one is full."""
    large, small = tmp_path / "kafka", tmp_path / "small"
    peers._format(small / "data", 1)
    more = f"log.dirs={large}/data,{small}/data\nmetadata.log.dir={large}/data\n"
    with peers.kafka(large, SMALL_JAVA, more) as server:
        yield f"127.0.0.1:{server.address[1]}"


def topic_on(folder: Path, servers: str) -> str:
    """A topic whose partition is in this folder of Kafka."""
    for number in range(TOPICS):
        KafkaWal(options(servers, f"full{number}"), lambda call: None).prepare(None)
        if (folder / f"full{number}-0").exists():
            return f"full{number}"
    raise AssertionError(f"none of {TOPICS} topics is in {folder}")


@pytest.mark.timeout(600)
def test_a_full_disk_of_kafka_is_said_to_be_and_nothing_is_lost(
    disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "DELIVERY_MS", 3_000)
    history = History(1)
    with two_folders(tmp_path) as servers:
        topic = topic_on(disk.place / "data", servers)
        loop, answers = Reports(), list[tuple[int, str]]()
        wal = KafkaWal(options(servers, topic), loop.calls.put, loop.report)
        wal.open()
        node = NodeProcess(tmp_path, 0, (servers, topic), shared_port(), sabotage=False)
        try:
            running = load.Load(history, leading(node), consume=False)
            running.wait_for(PROMISES)
            disk.fill()
            assert node.process.wait(ANSWER_S) == 75
            running.stop()
            assert "node n0 left its cell: E151" in node.said()
            wal.produce(b"not a claim of this test's node", lambda offset, error: answers.append((offset, error)))
            loop.until(lambda: bool(answers) and bool(loop.said))
            assert answers[0][0] == -1
            assert loop.troubles()[-1].startswith("E1514: "), loop.troubles()
            said = ended(node, 1)
            assert f'quintet: E1514: no broker of Kafka at {servers} leads topic "{topic}"' in said
            assert "look at the disks of its brokers" in said
        finally:
            wal.close()
            node.end()
    disk.free()
    with two_folders(tmp_path):
        node.start()
        try:
            publish_when_it_leads(history, node)
            assert node.terminate() == 0
        finally:
            node.end()
    check(history, node)


# -- restored ------------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_a_kafka_restored_from_an_old_backup_takes_nothing_from_a_node(tmp_path: Path) -> None:
    folder, backup, port = tmp_path / "kafka", tmp_path / "backup", shared_port()
    history, later = History(1), History(2)
    with peers.kafka(folder, SMALL_JAVA) as server:
        servers = f"127.0.0.1:{server.address[1]}"
        node = NodeProcess(tmp_path, 0, (servers, "restored"), port, sabotage=False)
        try:
            fill(history, leading(node))
            assert node.terminate() == 0
        finally:
            node.end()
    shutil.copytree(folder, backup)
    with peers.kafka(folder, SMALL_JAVA):
        node.start()
        try:
            fill(history, leading(node))
            assert node.terminate() == 0
        finally:
            node.end()
    shutil.rmtree(folder)
    backup.rename(folder)
    with peers.kafka(folder, SMALL_JAVA):
        other = None
        try:
            said = ended(node, 75)
            # The second one if the backup lacks exactly one record: the node's own claim takes its place.
            lacking = (
                'E1512: topic "restored" no longer has WAL offset',
                "E1511: the WAL has another record at offset",
            )
            assert any(sentence in said for sentence in lacking), said
            other = NodeProcess(tmp_path, 1, (servers, "restored"), port, sabotage=False)
            for _ in range(3):  # it has more than the node had read
                fill(later, leading(other))
            said = ended(node, 75)
            assert "E1511: the WAL has another record at offset" in said
            assert other.address, "it leads on"
            assert other.terminate() == 0
        finally:
            node.end()
            if other is not None:
                other.end()
    check(history, node)
    verdict = load.judge(later, load.topics_of(reader.read(other.data)))
    assert not verdict.lost
