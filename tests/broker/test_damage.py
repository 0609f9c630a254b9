"""Damage in the broker's own tables (ADR 15): every bit of their last batches is flipped once. Either the start is refused, or
everything is as it was: an older row never counts again. The same for checkpoints, indexes and journals beside them.

QUINTET_DAMAGE_STRIDE: each how manieth bit is flipped in the tables beside the first (default 31; 1 flips all).
"""

import os
from collections.abc import Iterator

import msgspec
import pytest

from quintet.broker.core import GROUPS_TABLE
from quintet.broker.identity.access_rules import ACLS_TABLE
from quintet.broker.identity.keys import CREDENTIALS_TABLE
from quintet.broker.identity.users import USERS_TABLE
from quintet.broker.repair import LOGS, MEANS
from quintet.broker.table import Table
from quintet.log.base import TopicSpec
from quintet.log.embedded.files.segment import HEADER_BYTES, segment_name
from quintet.log.embedded.recovery import directories as recovery
from quintet.model.errors import TableDamaged
from quintet.testing.line import SimBroker
from quintet.testing.sim import SimDisk
from tests.log.support import Harness

TABLES = [table for table in MEANS if table not in LOGS]
STRIDE = int(os.environ.get("QUINTET_DAMAGE_STRIDE", "31"))
ENDINGS = ("stopped", "killed", "killed at once")


class Row(msgspec.Struct, frozen=True):
    """Of any table: what was said last of a key."""

    text: str


class Image:
    """A table that was written to and left: three keys, of which one was changed and one removed by the last batches."""

    def __init__(self, table: tuple[int, str], ending: str) -> None:
        self.table = table
        self.path = f"/data/topics/{table[0]:08d}/0/{segment_name(0)}"
        harness = Harness()
        rows = Table(harness.log, *table, Row)
        starts = [HEADER_BYTES]
        for key, text in ((b"ann", "may"), (b"bob", "may"), (b"eve", "x" * 600), (b"ann", "may not"), (b"bob", "")):
            rows.put(key, Row(text)) if text else rows.delete(key)
            harness.scheduler.run_until_idle()
            starts.append(rows.partition.segments[-1].end)  # type: ignore[attr-defined]
            if key == b"eve":
                harness.tick()
        if ending == "killed":
            harness.tick()
        elif ending == "stopped":
            harness.close()
        harness.sim.kill()
        self.files = harness.sim.snapshot()
        self.last = range(starts[-3], starts[-1])  # bytes of the last two batches
        self.rows = {b"ann": Row("may not"), b"eve": Row("x" * 600)}

    def start(self, disk: SimDisk, path: str, data: bytes) -> tuple[dict[bytes, Row] | None, Harness]:
        """What the table says on a disk with this damage; None: the start is refused."""
        disk.restore(self.files)
        disk.damage(path, data)
        harness = Harness(disk)
        rows = Table(harness.log, *self.table, Row)
        try:
            rows.load()
        except TableDamaged:
            return None, harness
        return rows._rows, harness

    def flipped(self, path: str, bits: range) -> Iterator[tuple[int, bytes]]:
        data = bytearray(self.files[path] or b"")
        for bit in bits:
            data[bit >> 3] ^= 1 << (bit & 7)
            yield bit, bytes(data)
            data[bit >> 3] ^= 1 << (bit & 7)


def test_every_topic_of_the_brokers_own_is_among_them() -> None:
    own = {(topic.spec.id, topic.spec.name) for [topic] in SimBroker().log._topics.values()}
    assert own == set(MEANS)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("table", TABLES, ids=[name for _, name in TABLES])
def test_a_flipped_bit_never_lets_an_older_row_count_again(table: tuple[int, str], ending: str) -> None:
    image = Image(table, ending)
    disk = SimDisk()
    refused = 0
    stride = 1 if table == ACLS_TABLE else STRIDE
    bits = range(8 * image.last.start + table[0] % stride, 8 * image.last.stop, stride)
    for bit, data in image.flipped(image.path, bits):
        found, harness = image.start(disk, image.path, data)
        assert found in (None, image.rows), bit
        refused += found is None
        assert found is not None or "table_damaged" in harness.kinds()
    assert refused == len(bits)  # nothing in a batch may change unseen


def test_without_the_check_the_older_row_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a start that takes every damaged end for a torn one."""
    monkeypatch.setattr(recovery, "is_torn", lambda rest, position, seed: True)
    image = Image(ACLS_TABLE, "killed at once")
    bits = range(8 * image.last.start, 8 * image.last.stop, 101)
    found = [image.start(SimDisk(), image.path, data)[0] for _, data in image.flipped(image.path, bits)]
    assert image.rows | {b"bob": Row("may")} in found


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_flipped_bit_in_the_header_of_a_table_loses_nothing(ending: str) -> None:
    image = Image(USERS_TABLE, ending)
    disk = SimDisk()
    for bit, data in image.flipped(image.path, range(0, 8 * HEADER_BYTES, 7)):
        found, harness = image.start(disk, image.path, data)
        assert found == image.rows, bit
        assert "corrupt_range" in harness.kinds()


@pytest.mark.parametrize("ending", ENDINGS)
def test_checkpoints_that_are_flipped_cut_or_gone_lose_nothing(ending: str) -> None:
    image = Image(CREDENTIALS_TABLE, ending)
    disk = SimDisk()
    names = [path for path in image.files if "/checkpoint." in path]
    for path in names:
        whole = image.files[path] or b""
        cases = [data for _, data in image.flipped(path, range(0, 8 * len(whole), 5))]
        for data in [*cases, *(whole[:size] for size in range(0, len(whole), 9))]:
            found, harness = image.start(disk, path, data)
            assert found == image.rows
            assert "checkpoint_rejected" in harness.kinds()
    disk.restore({path: data for path, data in image.files.items() if path not in names})
    rows = Table(Harness(disk).log, *CREDENTIALS_TABLE, Row)
    rows.load()
    assert rows._rows == image.rows


def test_a_stale_checkpoint_of_a_compacted_table_is_no_damage() -> None:
    harness = Harness()
    table = Table(harness.log, *GROUPS_TABLE, Row)
    rows = {}

    def change(key: bytes, count: int) -> None:
        for number in range(count):
            rows[key] = Row(f"{number} " + "x" * 3000)
            table.put(key, rows[key])
            harness.scheduler.run_until_idle()

    change(b"a", 40)
    change(b"b", 40)
    harness.tick()
    stale = {path: data for path, data in harness.sim.snapshot().items() if "/checkpoint." in path}
    partition = table.partition
    partition.seal_active()  # type: ignore[attr-defined]
    for key in (b"c", b"a"):
        change(key, 40)
        partition.seal_active()  # type: ignore[attr-defined]
    change(b"d", 1)
    for _ in range(4):
        harness.tick(2_000_000)
    assert harness.log.stats()["compactions"], "nothing was compacted"
    harness.sim.kill()
    disk = SimDisk()
    disk.restore({path: data for path, data in harness.sim.snapshot().items() if "/checkpoint." not in path} | stale)
    harness = Harness(disk)
    table = Table(harness.log, *GROUPS_TABLE, Row)
    table.load()
    assert table._rows == rows
    assert "corrupt_range" not in harness.kinds()


def test_a_table_that_lost_its_newest_file_is_refused() -> None:
    image = Image(ACLS_TABLE, "stopped")
    disk = SimDisk()
    for gone in (image.path, os.path.dirname(os.path.dirname(image.path))):
        disk.restore({path: data for path, data in image.files.items() if not path.startswith(gone)})
        with pytest.raises(TableDamaged, match="offsets 0 to 4"):
            Table(Harness(disk).log, *ACLS_TABLE, Row).load()


def test_a_flipped_journal_never_lets_an_older_row_count_again() -> None:
    harness = Harness(journal=1 << 16)
    tables = [Table(harness.log, *table, Row) for table in (ACLS_TABLE, USERS_TABLE)]
    for text in ("may", "may not", "may not at all"):
        for table in tables:
            table.put(b"ann", Row(text))
            harness.scheduler.run_until_idle()
    harness.sim.kill()
    image = harness.sim.snapshot()
    cut = {path: file.durable if file is not None else None for path, file in harness.sim._durable_names.items()}
    [path] = [path for path, data in image.items() if "/journal." in path and data and data[512:].strip(b"\0")]
    whole = image[path] or b""
    last = whole.rindex(b"QNTJRN1")
    used = [*range(512), *range(512, last)]  # not the last record: it cannot be told from one that was never finished
    disk = SimDisk()
    refused = 0
    for number, byte in enumerate(used[::7]):
        data = bytearray(whole)
        data[byte] ^= 1 << number % 8
        for files in (image, cut):
            disk.restore(files | {path: bytes(data)})
            for _ in range(2):  # a second start knows it, too
                harness = Harness(disk)
                rows = Table(harness.log, *ACLS_TABLE, Row)
                try:
                    rows.load()
                    assert rows._rows == {b"ann": Row("may not at all")}, byte
                except TableDamaged:
                    refused += 1
                harness.log.abandon()
    assert refused > 2 * len(used[::7])


@pytest.mark.parametrize("topic", LOGS, ids=["__audit", "__events"])
def test_a_flipped_bit_at_the_end_of_the_audit_is_not_cut_off(topic: tuple[int, str]) -> None:
    harness = Harness()
    spec = TopicSpec(*topic)
    harness.write(harness.open(spec), 3)
    harness.sim.kill()
    image = harness.sim.snapshot()
    path = f"/data/topics/{topic[0]:08d}/0/{segment_name(0)}"
    data = bytearray(image[path] or b"")
    end = len(bytes(data).rstrip(b"\0"))
    disk = SimDisk()
    for bit in range(8 * (end - 200), 8 * end, 3):
        data[bit >> 3] ^= 1 << (bit & 7)
        disk.restore(image | {path: bytes(data)})
        data[bit >> 3] ^= 1 << (bit & 7)
        harness = Harness(disk)
        partition = harness.open(spec)
        assert len(harness.read_all(partition)) == 2
        assert partition.end >= 3, bit
        assert len(harness.log.losses(topic[0])) == 1, bit
