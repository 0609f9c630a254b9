"""`quintet log verify` and `dump`: what they find, what they leave alone."""

import json
from pathlib import Path

from quintet.log.base import TopicSpec
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.inspect import Summary, dump, verify
from quintet.log.embedded.partitions.partition import FilePartition
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


def named(harness: Harness, rows: dict[int, str]) -> None:
    """A row of `__topics` for each of these topics."""
    table = harness.open(TopicSpec(1, "__topics", compact=True))
    for number, name in rows.items():
        row = json.dumps({"id": number, "name": name}).encode()
        harness.append(table, [row], [name.encode()])
    harness.scheduler.run_until_idle()


def test_segments_in_the_folder_of_another_topic_are_corrupt() -> None:
    harness = Harness()
    named(harness, {TOPIC: "t", TOPIC + 1: "u"})
    make(harness, clean=False)
    for partition in harness.log.open_topic(TopicSpec(TOPIC + 1, "u", partitions=2)):
        harness.write(partition, 3)
    harness.close()
    files = harness.sim.snapshot()
    assert list(verify(harness.sim, "/data", Summary())) == []
    first = f"/data/topics/{TOPIC + 1:08d}/0/{0:020d}.seg"
    second = first.replace("/0/", "/1/")
    for path, data in ((SEGMENT, files[first]), (first, files[SEGMENT]), (second, files[first])):
        disk = SimDisk()
        disk.restore(files | {path: data})
        found = [finding for finding in verify(disk, "/data", Summary()) if "lies in the folder" in finding.what]
        assert [(finding.file, finding.corrupt) for finding in found] == [(path, True)]
        assert all(row[3] is not None for _, _, row in dump(disk, "/data", TOPIC))
    harness = Harness(SimDisk())
    named(harness, {TOPIC: "another"})
    make(harness)
    assert [f.corrupt for f in verify(harness.sim, "/data", Summary()) if "lies in" in f.what] == [True, True]


def test_folders_and_rows_that_do_not_go_together_are_named() -> None:
    harness = Harness()
    named(harness, {TOPIC + 1: "u"})
    make(harness, clean=False)
    harness.write(harness.open(TopicSpec(TOPIC + 1, "u")), 3)
    harness.close()
    files = harness.sim.snapshot()
    summary = Summary()
    [orphan] = verify(harness.sim, "/data", summary)
    assert (orphan.corrupt, "no row in __topics" in orphan.what) == (False, True)
    gone = f"/data/topics/{TOPIC + 1:08d}"
    disk = SimDisk()
    disk.restore({path: data for path, data in files.items() if not path.startswith(gone)})
    assert any("'u' is gone" in finding.what and finding.corrupt for finding in verify(disk, "/data", Summary()))


def test_a_damaged_end_of_a_table_is_no_torn_tail() -> None:
    harness = Harness()
    named(harness, {TOPIC: "t"})
    harness.sim.kill()
    path = f"/data/topics/00000001/0/{0:020d}.seg"
    data = bytearray(harness.sim.snapshot()[path] or b"")
    data[600] ^= 1
    harness.sim.damage(path, bytes(data))
    assert [finding.corrupt for finding in verify(harness.sim, "/data", Summary())] == [True]
