"""A chain followed file by file says what following it in one go says, whatever was done to the files."""

from collections.abc import Callable
from random import Random

import msgspec
import pytest

from quintet import kernel
from quintet.log import anchors, chain, pieces
from quintet.log.base import TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.segment import HEADER_BYTES, pack_header, parse_header, segment_name
from quintet.log.embedded.recovery.directories import segment_bases
from quintet.log.pieces import Chains, Followed
from quintet.model.errors import DataDirError
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler

SECRET = b"a secret of the chain, long enough for it"
KEY = chain.derive_key(SECRET)
ANCHORS = f"{DATA}/anchors"
HERE = f"{DATA}/topics/00000020/0"
Change = Callable[[SimDisk], None]


def made(key: bytes = b"", batches: int = 40) -> SimDisk:
    """A log of one topic in several files, anchored and closed."""
    disk, scheduler = SimDisk(seed=1), SimScheduler()
    log = EmbeddedLog(DATA, disk, scheduler, lambda *_: None, chain_key=key, anchor_file=ANCHORS, anchor_us=1)
    log.recover()
    (partition,) = log.open_topic(TopicSpec(20, "t", segment_bytes=64 << 10))
    for number in range(batches):
        partition.append(kernel.build([b"%03d" % number * 2000]), None)
        scheduler.run_until_idle()
        scheduler.advance(100_000)
        log.maintain(scheduler.now())
        scheduler.run_until_idle()
    log.close(lambda: None)
    scheduler.run_until_idle()
    return disk


def followed(disk: SimDisk, secret: bytes = b"", seed: int = 0, anchor_file: str = "") -> Chains:
    """The pieces in any order, each through the bytes that Spark would carry."""
    found = pieces.prepare(str(DATA), anchor_file, secret, disk)
    work = list(found.pieces)
    Random(seed).shuffle(work)
    answers = [msgspec.msgpack.encode(pieces.follow(piece, found.keys, disk)) for piece in work]
    found.conclude(msgspec.msgpack.decode(answer, type=Followed) for answer in answers)
    return found


def verdict(disk: SimDisk, key: bytes = b"") -> chain.Verdict:
    keys, names = ({chain.key_id(key): key}, {chain.key_name(key): key}) if key else ({}, {})
    return chain.verify_directory(disk, str(DATA), keys, lambda: anchors.load(disk, ANCHORS, names))


@pytest.fixture(scope="module")
def whole() -> dict[str, bytes | None]:
    return made().snapshot()


def files(disk: SimDisk) -> list[str]:
    return [f"{HERE}/{segment_name(base)}" for base in segment_bases(disk, HERE)]


def rewritten(disk: SimDisk, path: str, change: Callable[[bytearray, list[tuple[int, int]]], bytearray]) -> None:
    data = bytearray(disk.read_file(path) or b"")
    entries = kernel.walk(data, HEADER_BYTES, len(data), 0, False)[0]
    disk.damage(path, bytes(change(data, [(entry[0], entry[1]) for entry in entries])))


def edited(disk: SimDisk) -> None:
    """One byte of a value in the middle of the second file, with a checksum that is right."""

    def change(data: bytearray, entries: list[tuple[int, int]]) -> bytearray:
        header = parse_header(bytes(data[:HEADER_BYTES]))
        assert header is not None
        at, length = entries[len(entries) // 2]
        batch = data[at : at + length]
        batch[batch.index(b"0") if b"0" in batch[64:] else 100] ^= 1
        kernel.reseal(batch, header.seed)
        return data[:at] + batch + data[at + length :]

    rewritten(disk, files(disk)[1], change)


def without_the_last(disk: SimDisk) -> None:
    def change(data: bytearray, entries: list[tuple[int, int]]) -> bytearray:
        at, length = entries[-1]
        data[at : at + length] = bytes(length)
        return data

    rewritten(disk, files(disk)[-1], change)


def another_beginning(disk: SimDisk) -> None:
    path = files(disk)[2]
    data = disk.read_file(path) or b""
    header = parse_header(data[:HEADER_BYTES])
    assert header is not None
    begins = header.chain._replace(link=bytes(32))
    disk.damage(path, pack_header(header._replace(chain=begins)) + data[HEADER_BYTES:])


def without_a_file(disk: SimDisk) -> None:
    disk.unlink(files(disk)[1])


def without_the_first_file(disk: SimDisk) -> None:
    disk.unlink(files(disk)[0])


def without_all_files(disk: SimDisk) -> None:
    for path in files(disk):
        disk.unlink(path)


def a_flipped_byte(disk: SimDisk) -> None:
    def change(data: bytearray, entries: list[tuple[int, int]]) -> bytearray:
        data[entries[1][0] + 100] ^= 1
        return data

    rewritten(disk, files(disk)[0], change)


def another_anchor(disk: SimDisk) -> None:
    disk.damage(ANCHORS, (disk.read_file(ANCHORS) or b"").replace(b'"seq":1,', b'"seq":2,', 1))


CHANGES: list[Change] = [
    edited, without_the_last, another_beginning, without_a_file, without_the_first_file, without_all_files, a_flipped_byte,
    another_anchor,
]  # fmt: skip


def test_what_is_sound_is_sound_in_any_order(whole: dict[str, bytes | None]) -> None:
    disk = SimDisk()
    disk.restore(whole)
    expected = verdict(disk)
    assert expected.status == 0 and expected.rows == 40
    for seed in range(5):
        found = followed(disk, seed=seed)
        assert found.ok and len(found.pieces) >= 4
        assert sum(each.rows for each in found.partitions) == 40
        assert [each.link for each in found.partitions] == [each.link for each in expected.partitions]
        assert sum(each.anchored for each in found.partitions) == sum(each.anchored for each in expected.partitions) > 3
    assert found.notes[0].startswith("chains: 40 records in ") and "anchored heads" in found.notes[0]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_broken_is_broken_in_pieces_too(whole: dict[str, bytes | None], change: Change) -> None:
    disk = SimDisk()
    disk.restore(whole)
    change(disk)
    expected = verdict(disk).broken
    assert expected is not None
    found = followed(disk, seed=3)
    assert not found.ok and found.notes[0].startswith("chain broken: ")
    one = found.broken[0]
    assert (one.kind, one.file, one.first, one.last) == (expected.kind, expected.file, expected.first, expected.last)


def test_keys(whole: dict[str, bytes | None]) -> None:
    disk = made(KEY, 10)
    assert followed(disk, SECRET).ok
    assert "key" in followed(disk).cannot
    disk.restore(whole)
    assert [each.kind for each in followed(disk, SECRET).broken] == ["rewritten"], "all of it was made without the key"


def test_what_went_meanwhile_has_no_verdict(whole: dict[str, bytes | None]) -> None:
    disk = SimDisk()
    disk.restore(whole)
    found = pieces.prepare(str(DATA), disk=disk)
    disk.unlink(files(disk)[0])
    found.conclude([pieces.follow(piece, {}, disk) for piece in found.pieces])
    assert not found.ok and "run it again" in found.notes[0]


def test_without_anchors_it_is_said(whole: dict[str, bytes | None]) -> None:
    disk = SimDisk()
    disk.restore(whole)
    assert followed(disk, anchor_file="/nowhere").cannot == "there are no anchors in /nowhere"
    disk.unlink(ANCHORS)
    found = followed(disk)
    assert found.ok and found.notes[0].endswith("there are no anchors to hold them to")
    with pytest.raises(DataDirError):
        pieces.prepare("/nowhere", disk=disk)
