"""`quintet log verify` and `dump`: what they find, what they leave alone."""

from pathlib import Path

from quintet.log.embedded.disk import OsDisk
from quintet.log.embedded.inspect import Summary, dump, verify
from quintet.log.embedded.partition import FilePartition
from quintet.testing.sim import SimDisk
from tests.log.support import PARTITION, TOPIC, Harness, Rows

SEGMENT = f"{PARTITION}/{0:020d}.seg"


def make(harness: Harness, clean: bool = True) -> Rows:
    partition = harness.open()
    rows = harness.write(partition, 20)
    assert isinstance(partition, FilePartition)
    partition.seal_active()
    rows += harness.write(partition, 5, seed=2)
    if clean:
        harness.close()
    return rows


def test_a_sound_directory_is_clean_and_dumped_whole(tmp_path: Path) -> None:
    harness = Harness(OsDisk(), tmp_path / "data")
    rows = make(harness)
    summary = Summary()
    assert list(verify(OsDisk(), str(tmp_path / "data"), summary)) == []
    assert (summary.status, summary.records, summary.segments) == (0, 25, 2)
    dumped = list(dump(OsDisk(), str(tmp_path / "data")))
    assert [(row[0], row[2], row[3]) for _, _, row in dumped] == rows
    assert {(topic, number) for topic, number, _ in dumped} == {(TOPIC, 0)}
    assert list(dump(OsDisk(), str(tmp_path / "data"), topic_id=TOPIC + 1)) == []


def test_every_kind_of_damage_is_named_with_file_and_position() -> None:
    harness = Harness()
    make(harness)
    files = harness.sim.snapshot()
    cases = (
        (SEGMENT, 20, 0),
        (SEGMENT, 700, 512),
        (SEGMENT.replace(".seg", ".idx"), 40, 0),
        ("/data/checkpoint.a", 3, 0),
    )
    for path, byte, position in cases:
        data = bytearray(files[path] or b"")
        data[byte] ^= 4
        disk = SimDisk()
        disk.restore(files | {path: bytes(data)})
        before = disk.snapshot()
        summary = Summary()
        findings = list(verify(disk, "/data", summary))
        assert summary.status == 1
        assert findings[0].file == path
        assert findings[0].position <= byte
        assert findings[0].position >= position
        assert path in str(findings[0])
        assert disk.snapshot() == before


def test_a_torn_tail_is_a_note_and_a_missing_end_is_corruption() -> None:
    harness = Harness()
    make(harness, clean=False)
    disk = harness.sim
    disk.kill()
    path = f"{PARTITION}/{20:020d}.seg"
    files = disk.snapshot()
    data = files[path]
    assert data is not None
    disk.restore(files | {path: data[:600]})
    summary = Summary()
    assert [finding.corrupt for finding in verify(disk, "/data", summary)] == [False]
    assert summary.status == 0
    sealed = files[SEGMENT]
    assert sealed is not None
    disk.restore(files | {SEGMENT: sealed[:-8]})
    summary = Summary()
    assert any(finding.corrupt for finding in verify(disk, "/data", summary))
    assert summary.status == 1
