"""The audit chain in trouble: it does not break by itself, no verifier accuses a sound log, none misses what was done."""

import errno
from collections.abc import Callable
from typing import Any

import pytest

from quintet import kernel
from quintet.log import anchors, chain, pieces
from quintet.log.anchors import Anchored, AnchorsBroken, pack_line
from quintet.log.base import TopicSpec
from quintet.log.chain import verify_directory
from quintet.log.embedded import anchoring
from quintet.log.embedded.anchoring import Anchoring
from quintet.log.embedded.files.segment import HEADER_BYTES, Header, pack_header, parse_header, segment_name
from quintet.model.batch import RecordBatch
from quintet.model.errors import StorageError
from quintet.testing.sim import SimDisk
from tests.log.support import PARTITION, TOPIC, Harness
from tests.log.test_chain import anchored, file_of, sound, verify

ANCHORS = "/data/anchors"
SEGMENT = f"{PARTITION}/{segment_name(0)}"
SMALL = TopicSpec(TOPIC, "t", segment_bytes=4096)
KEY = bytes(range(32))
HOUR_US = 3_600_000_000


def in_pieces(disk: SimDisk) -> pieces.Chains:
    found = pieces.prepare("/data", disk=disk)
    found.conclude([pieces.follow(each, found.keys, disk) for each in found.pieces])
    return found


# -- a chain must not break by itself ----------------------------------------------------------------------------------


def test_a_batch_that_is_too_large_leaves_no_hole_in_the_offsets() -> None:
    harness = anchored()
    partition = harness.open()
    harness.write(partition, 1)
    with pytest.raises(StorageError, match="too large"):
        partition.append(kernel.build([bytes((64 << 20) - 96)]), None)
    harness.write(partition, 1, seed=2)
    assert (partition.visible, partition.end) == (2, 2)
    harness.close()
    assert sound(harness.sim).rows == 2


def test_an_old_log_that_nobody_writes_to_is_not_accused() -> None:
    harness = anchored(chain="off")
    harness.write(harness.open(), 5)
    harness.close()
    harness.options["chain"] = "durable"
    harness.start()
    harness.open()
    harness.tick(20_000_000)
    harness.close()
    sound(harness.sim)
    assert in_pieces(harness.sim).ok
    harness.options["chain"] = "off"  # and a change of mind: nothing was promised yet
    harness.start()
    harness.write(harness.open(), 5, seed=2)
    harness.close()
    sound(harness.sim)


@pytest.mark.parametrize(("before", "after"), [({"chain": "off"}, {"chain": "durable"}), ({}, {"chain_key": KEY})])
@pytest.mark.parametrize("rows", [0, 5])
def test_a_segment_just_begun_is_taken_over_by_a_chain_of_another_kind(
    before: dict[str, Any], after: dict[str, Any], rows: int
) -> None:
    """A kill between the making of a file and its first batch, and then another configuration."""
    harness = anchored(**before)
    harness.write(harness.open(), 10)
    partition: Any = harness.open()
    harness.close()
    last = partition.segments[-1]
    data = file_of(harness.sim, last.path)
    header = parse_header(data)
    assert header is not None
    link = partition.links.durable.link or bytes(32)
    begun = header._replace(base=10, seed=77, chain=header.chain._replace(link=link))
    path = f"{PARTITION}/{segment_name(10)}"
    handle = harness.sim.open(path, create=True, write=True)
    harness.sim.pwritev(handle, [pack_header(begun), bytes(8192)], 0)
    harness.sim.fdatasync(handle)
    harness.sim.close(handle)
    harness.sim.fsync_dir(PARTITION)
    harness.options |= after
    harness.start()
    partition = harness.open()
    assert partition.visible == 10
    if rows:
        harness.write(partition, rows, seed=2)
        assert partition.failure is None
    assert len(harness.read_all(partition)) == 10 + rows
    harness.close()
    found = sound(harness.sim, *[key for key in (harness.options.get("chain_key"),) if key])
    assert found.partitions[0].next_offset == 10 + rows


# -- a verifier must not cry wolf --------------------------------------------------------------------------------------


def test_tables_are_not_accused_while_compaction_is_at_work() -> None:
    """It renames the new file over the first one and then removes the others: a kill, or a look, may come between."""
    harness = anchored()
    spec = TopicSpec(TOPIC, "t", segment_bytes=4096, compact=True)
    partition: Any = harness.open(spec)
    for number in range(60):
        harness.append(partition, [bytes(200)], [b"%d" % (number % 3)])
        harness.scheduler.run_until_idle()
    kept = {segment.path: file_of(harness.sim, segment.path) for segment in partition.segments[:-1]}
    assert len(kept) > 2
    harness.tick()
    assert harness.log.stats()["compactions"] == 1
    gone = [path for path in kept if harness.sim.read_file(path) is None]
    assert gone
    harness.close()
    for path in gone:  # as if it had been killed before it removed them
        handle = harness.sim.open(path, create=True, write=True)
        harness.sim.pwritev(handle, [kept[path]], 0)
        harness.sim.close(handle)
    sound(harness.sim)
    assert in_pieces(harness.sim).ok


def test_a_topic_that_is_being_deleted_is_not_accused() -> None:
    harness = anchored()
    harness.write(harness.open(SMALL), 90)
    harness.tick(20_000_000)
    disk = harness.sim
    paths = [f"{PARTITION}/{name}" for name in disk.listdir(PARTITION) if name.endswith(".seg")]
    assert len(paths) > 4
    harness.log._anchors.before_removal(TOPIC, -1, 0, lambda: None)  # type: ignore[union-attr]
    harness.scheduler.run_until_idle()

    class Deleting(SimDisk):
        """Before each look at a file, one more is gone."""

        def __init__(self) -> None: ...

        def __getattribute__(self, name: str) -> Any:
            if name == "open" and paths:
                disk.unlink(paths.pop(0))
            return getattr(disk, name)

    found = verify_directory(Deleting(), "/data", {}, lambda: anchors.load(disk, ANCHORS, {}))
    assert (found.status, found.broken) == (0, None)


def small_anchors(harness: Harness, bytes_max: int = 1000) -> Anchoring:
    harness.log._anchors = small = Anchoring(harness.log._shared, ANCHORS, 1, file_bytes_max=bytes_max)
    small.open()
    harness.log._shared.before_removal = small.before_removal
    return small


def test_anchors_that_change_files_while_they_are_read_are_whole() -> None:
    harness = anchored(anchor_us=1)
    small_anchors(harness)
    partition = harness.open()
    disk = harness.sim
    plain = disk.read_file
    rolled: list[bytes] = []
    written = 0

    def read(path: str) -> bytes | None:
        """The broker goes on to the next file just after the old one was read."""
        nonlocal written
        data = plain(path)
        if path == ANCHORS + ".old" and reading and not rolled:
            before = plain(ANCHORS)
            while plain(path) == data and written < 100:
                written += 1
                harness.write(partition, 1, seed=written)
                harness.tick()
            rolled.append(before or b"")
        return data

    reading = False
    for number in range(12):
        harness.write(partition, 1, seed=1000 + number)
        harness.tick()
    disk.read_file = read  # type: ignore[method-assign]
    reading = True
    found = verify(disk)
    assert rolled
    assert (found.status, found.broken) == (0, None)


def test_what_goes_while_pieces_are_planned_is_not_accused() -> None:
    """Retention, and the deletion of a topic, between a look at the anchors and a look at the files."""
    harness = anchored()
    spec = TopicSpec(TOPIC, "t", segment_bytes=4096, retention_bytes=4096)
    other = harness.open(TopicSpec(TOPIC + 1, "u"))
    harness.write(other, 5)
    partition = harness.open(spec)
    harness.write(partition, 60)
    harness.log._anchors.maintain(harness.scheduler.monotonic() + 20_000_000)  # type: ignore[union-attr]
    harness.scheduler.run_until_idle()
    assert partition.start == 0
    disk = harness.sim
    plain, went = disk.listdir, False

    def listdir(path: str) -> list[str]:
        nonlocal went
        if not went:
            went = True
            harness.tick()
            harness.log.delete_topic(TOPIC + 1)
            harness.scheduler.run_until_idle()
        return plain(path)

    disk.listdir = listdir  # type: ignore[method-assign]
    found = in_pieces(disk)
    assert partition.start > 0
    assert (found.broken, found.cannot) == ([], "")


def test_notes_that_cannot_be_written_do_not_pile_up() -> None:
    harness = anchored()
    harness.write(harness.open(), 1)
    harness.tick(20_000_000)
    keeper = harness.log._anchors
    assert keeper is not None
    plain = harness.sim.pwritev
    harness.sim.pwritev = lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))  # type: ignore[method-assign]
    for start in range(100):
        keeper.before_removal(TOPIC, 0, start, lambda: None)
        harness.scheduler.run_until_idle()
    assert keeper._notes == [(TOPIC, 0, 99)]
    harness.sim.pwritev = plain  # type: ignore[method-assign]
    keeper.before_removal(TOPIC, -1, 0, lambda: None)
    harness.scheduler.run_until_idle()
    found = anchors.load(harness.sim, ANCHORS, {})
    assert found is not None
    assert (found.heads, found.deleted) == ({}, {TOPIC})


def test_a_roll_of_the_anchors_that_failed_late_is_done_again() -> None:
    harness = anchored(anchor_us=1)
    small_anchors(harness)
    partition = harness.open()
    disk = harness.sim
    plain = disk.fsync_dir
    failed = 0

    def fsync_dir(path: str) -> None:
        nonlocal failed
        if path == "/data" and not failed and disk.read_file(ANCHORS + ".old") is not None:
            failed += 1
            raise OSError(errno.EIO, "injected")
        plain(path)

    disk.fsync_dir = fsync_dir  # type: ignore[method-assign]
    head = ""
    for number in range(30):
        harness.write(partition, 1, seed=number)
        harness.tick(20_000_000)
        sound(disk, head=head)
        head = harness.log.anchor_head
    assert failed == 1
    harness.close()
    sound(disk, head=head)


def test_a_clock_set_back_does_not_stop_the_anchors() -> None:
    harness = anchored()
    partition = harness.open()
    harness.write(partition, 1)
    harness.tick(20_000_000)
    before = harness.log.stats()["anchors"]
    harness.scheduler.jump(-HOUR_US)
    harness.write(partition, 1, seed=2)
    for _ in range(30):
        harness.tick(1_000_000)
    assert harness.log.stats()["anchors"] == before + 1


# -- nor miss what was done --------------------------------------------------------------------------------------------


def test_all_heads_are_anchored_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchoring, "HEADS_AT_ONCE_MAX", 3)
    harness = anchored()
    for partition in harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=10)):
        harness.write(partition, 1)
    harness.close()
    found = sound(harness.sim)
    assert found.anchors is not None
    assert sorted(found.anchors.heads) == [(TOPIC, number) for number in range(10)]


def test_a_number_that_is_given_again_is_anchored_again() -> None:
    """Should a topic ever get the number of a deleted one, its own anchors count."""
    harness = anchored()
    harness.write(harness.open(), 5)
    harness.tick(20_000_000)
    harness.log.delete_topic(TOPIC)
    harness.scheduler.run_until_idle()
    harness.write(harness.open(), 7, seed=2)
    harness.close()
    found = sound(harness.sim)
    assert found.partitions[0].anchored == 1
    data = file_of(harness.sim, SEGMENT)
    first = RecordBatch(data[HEADER_BYTES:])
    harness.sim.damage(SEGMENT, data[: HEADER_BYTES + first.length])
    assert verify(harness.sim).status == 1
    assert not in_pieces(harness.sim).ok


@pytest.mark.parametrize("killed", [False, True])
def test_the_number_of_a_deleted_topic_is_not_given_again(killed: bool) -> None:
    """After a restart, too: anchors, groups and subscriptions know a topic by its number."""
    harness = anchored()
    harness.write(harness.open(TopicSpec(TOPIC, "a")), 1)
    harness.write(harness.open(TopicSpec(TOPIC + 1, "b")), 1)
    harness.log.delete_topic(TOPIC + 1)
    harness.scheduler.run_until_idle()
    harness.tick(2_000_000)
    for _ in range(2):
        if killed:
            harness.sim.kill()
        else:
            harness.close()
        harness.start()
        assert harness.log.last_topic_id == TOPIC + 1
        harness.write(harness.open(TopicSpec(TOPIC, "a")), 1)
        harness.tick(2_000_000)


def unchained(disk: SimDisk, path: str) -> None:
    """The same records in a file without links."""
    data = file_of(disk, path)
    header = parse_header(data)
    assert header is not None
    made = bytearray(pack_header(Header(*header[:6])))
    at = HEADER_BYTES
    while at < len(data) and data[at : at + 4] == b"QRB1":
        batch = RecordBatch(data[at:])
        at += batch.length
        fresh = kernel.build([b"forged"] * batch.count, origin=b"test:1")
        kernel.seal(fresh, batch.base_offset, batch.timestamp, header.seed)
        made += fresh
    disk.damage(path, bytes(made))


def test_anchored_rows_made_anew_without_links_are_found() -> None:
    """The first file loses its links, and what came behind the last anchor begins a chain of its own."""
    harness = anchored()
    partition: Any = harness.open(SMALL)
    harness.write(partition, 5)
    harness.tick(20_000_000)
    while len(partition.segments) < 2:
        harness.write(partition, 1)
    disk = harness.sim
    disk.kill()  # before the next anchor
    first, second = (segment.path for segment in partition.segments)
    sound(disk)
    unchained(disk, first)
    data = file_of(disk, second)
    header = parse_header(data)
    assert header is not None
    link = chain.genesis(TOPIC, 0)
    made = bytearray(pack_header(header._replace(chain=header.chain._replace(link=link))))
    batch = RecordBatch(data[HEADER_BYTES:])
    whole = bytearray(data[HEADER_BYTES : HEADER_BYTES + batch.length])
    kernel.chain(whole, batch.base_offset, batch.timestamp, header.seed, link, b"")
    disk.damage(second, bytes(made + whole))
    found = verify(disk)
    assert found.broken is not None
    assert found.broken.kind == "rewritten"
    assert not in_pieces(disk).ok


# -- odd anchors -------------------------------------------------------------------------------------------------------

ODD: list[Callable[[str], dict[str, Any]]] = [
    lambda prev: {"heads": 5},
    lambda prev: {"heads": [[TOPIC, 0]]},
    lambda prev: {"heads": [["x", 0, 1, "00"]]},
    lambda prev: {"heads": [[TOPIC, 0, 1, 7]]},
    lambda prev: {"gone": [[1]]},
    lambda prev: {"gone": [[TOPIC, 0, "x"]]},
    lambda prev: {"time": None},
    lambda prev: {"seq": True},
    lambda prev: {"prev": []},
]


@pytest.mark.parametrize("odd", ODD)
def test_anchors_of_another_shape_stop_nobody(odd: Callable[[str], dict[str, Any]]) -> None:
    """Lines with a right hash and senseless fields: a verdict, and a broker that starts."""
    harness = anchored()
    harness.write(harness.open(), 5)
    harness.close()
    disk = harness.sim
    found = anchors.load(disk, ANCHORS, {})
    assert found is not None
    fields: dict[str, Any] = {"seq": found.seq + 1, "time": 1, "heads": [], "gone": [], "prev": found.prev}
    line, _ = pack_line(**(fields | odd(found.prev)))
    disk.damage(ANCHORS, file_of(disk, ANCHORS) + line)
    assert verify(disk).status == 1
    harness.start()
    harness.write(harness.open(), 1, seed=2)
    harness.close()


@pytest.mark.parametrize("text", [b"[]", b"7", b'{"seq":0}', b"[" * 100_000, b'{"seq":0,"hash":7}', b"\xff"])
def test_lines_that_are_no_anchors(text: bytes) -> None:
    with pytest.raises(AnchorsBroken):
        anchors.parse(text + b"\n", Anchored(), {})
    anchors.parse(text + b"\n", Anchored(), None)
