"""A13: whoever changes the files of a log is found out, at every row of a thousand, however well checksums were mended.

The attacker knows the format, not the key: every tampering here leaves sound batches with right checksums, and where it helps,
right offsets and a right header. Eight ways, each at each of 1,000 rows. Then the controls: what links alone cannot show (a
cut end, a whole new log) is not found without an anchor, so the anchors are what finds it; and bytes that were not touched
are never accused.
"""

import random
import struct
from collections.abc import Callable

import pytest

from quintet import kernel
from quintet.log import anchors, chain
from quintet.log.anchors import Anchored
from quintet.log.base import TopicSpec
from quintet.log.chain import PartitionVerdict, verify_directory, verify_partition
from quintet.log.embedded.files.segment import HEADER_BYTES, ChainStart, Header, pack_header
from quintet.testing.sim import SimDisk
from tests.log.support import PARTITION, TOPIC, Harness

ROWS = 1_000
STEP = 1 if kernel.NATIVE else 53  # the pure twin would take minutes
SEGMENT = f"{PARTITION}/{0:020d}.seg"
ANCHORS = "/data/anchors"
SEED = 0xC0FFEE
TIME = 1_700_000_000_000_000
KEY = bytes(range(32))
OLD = 700  # rows that were there when the older of the two anchors was taken


class Log:
    """One segment of 1,000 batches of one row, and the link behind each."""

    def __init__(self, key: bytes = b"") -> None:
        self.key = key
        kind = (chain.KEYED, chain.key_id(key)) if key else (chain.PLAIN, 0)
        first = chain.genesis(TOPIC, 0)
        self.header = pack_header(Header(SEED, TOPIC, 0, 0, TIME, "t", ChainStart(*kind, first)))
        self.links = [first]
        self.batches: list[bytes] = []
        for number in range(ROWS):
            batch = kernel.build([b"row %d" % number], origin=b"test:1")
            self.links.append(kernel.chain(batch, number, TIME, SEED, self.links[-1], key))
            self.batches.append(bytes(batch))
        # The same rows one offset further up or down, with right checksums and their old links.
        self.higher = [mended(batch, number + 1) for number, batch in enumerate(self.batches)]
        self.lower = [mended(batch, max(number - 1, 0)) for number, batch in enumerate(self.batches)]

    @property
    def heads(self) -> list[tuple[int, str]]:
        return [(OLD, self.links[OLD].hex()), (ROWS, self.links[ROWS].hex())]

    def verify(self, batches: list[bytes], heads: list[tuple[int, str]] | None = None) -> PartitionVerdict:
        disk = SimDisk()
        disk.restore({"/": None, PARTITION: None, SEGMENT: self.header + b"".join(batches) + bytes(4096)})
        keys = {chain.key_id(self.key): self.key} if self.key else {}
        return verify_partition(disk, PARTITION, TOPIC, 0, keys, self.heads if heads is None else heads)


@pytest.fixture(scope="module")
def log() -> Log:
    return Log()


@pytest.fixture(scope="module")
def keyed() -> Log:
    return Log(KEY)


# -- what an attacker does ---------------------------------------------------------------------------------------------


def mended(batch: bytes, offset: int, value: bytes | None = None) -> bytes:
    """A batch at another offset or with another value of the same length, with a right checksum and its old link."""
    changed = bytearray(batch)
    struct.pack_into("<Q", changed, 16, offset)
    if value is not None:
        at = changed.index(b"row ")
        changed[at : at + len(value)] = value
    kernel.reseal(changed, SEED)
    return bytes(changed)


def linked(batches: list[bytes], start: int, before: bytes) -> list[bytes]:
    """Batches from `start` on with links made anew, as anybody without a key can."""
    out = batches[:start]
    for number, batch in enumerate(batches[start:], start):
        fresh = bytearray(batch)
        before = kernel.chain(fresh, number, TIME, SEED, before, b"")
        out.append(bytes(fresh))
    return out


def edit(log: Log, row: int) -> list[bytes]:
    batches = list(log.batches)
    batches[row] = mended(batches[row], row, b"ROW ")
    return batches


def delete(log: Log, row: int) -> list[bytes]:
    """Taken out; in every second row the offsets behind it are closed up, and the last row is made up again."""
    rest = log.batches[row + 1 :]
    if row % 2 and rest:
        rest = [*log.lower[row + 1 :], log.batches[-1]]
    return log.batches[:row] + rest


def insert(log: Log, row: int) -> list[bytes]:
    """A row of one's own, with a right link; everything behind it moves up, and the last row goes."""
    forged = kernel.build([b"row of mine"], origin=b"test:1")
    kernel.chain(forged, row, TIME, SEED, log.links[row], b"")
    return [*log.batches[:row], bytes(forged), *log.higher[row:-1]]


def swap(log: Log, row: int) -> list[bytes]:
    """With a neighbour; in every second row their offsets are exchanged too."""
    first = min(row, ROWS - 2)
    a, b = log.batches[first], log.batches[first + 1]
    pair = [mended(b, first), mended(a, first + 1)] if row % 2 else [b, a]
    return [*log.batches[:first], *pair, *log.batches[first + 2 :]]


def duplicate(log: Log, row: int) -> list[bytes]:
    """Once more behind itself; in every second row under the next offset, with all others moved up."""
    return [*log.batches[: row + 1], *(log.higher if row % 2 else log.batches)[row:]]


def truncate(log: Log, row: int) -> list[bytes]:
    return log.batches[:row]


def rewrite(log: Log, row: int) -> list[bytes]:
    """One row changed, and every link from there on made anew."""
    return linked(edit(log, row), row, log.links[row])


WAYS: dict[str, Callable[[Log, int], list[bytes]]] = {
    "edit": edit,
    "delete": delete,
    "insert": insert,
    "swap": swap,
    "duplicate": duplicate,
    "truncate": truncate,
    "rewrite": rewrite,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_tampering_at_every_row_is_found(log: Log, way: str) -> None:
    assert log.verify(log.batches).broken is None
    for row in range(0, ROWS, STEP):
        found = log.verify(WAYS[way](log, row))
        assert found.broken is not None, row
        # What is named lies at the row, or in the anchored stretch that it belongs to.
        first, last = (row - 1, row + 2) if way not in ("truncate", "rewrite") else (0, ROWS)
        assert first <= found.broken.first <= max(last, first + 1), (row, found.broken)


def test_a_log_rolled_back_with_its_anchors_is_found_by_a_kept_head() -> None:
    """Eighth way: at every row the whole folder goes back to what it was then, anchors and all."""
    harness = Harness(anchor_file=ANCHORS, anchor_us=1)
    partition = harness.open()
    older: list[bytes] = []
    for number in range(ROWS):
        harness.append(partition, [b"row %d" % number])
        harness.scheduler.run_until_idle()
        harness.log.maintain(harness.scheduler.now())
        harness.scheduler.advance(10)
        harness.scheduler.run_until_idle()
        older.append(harness.sim.read_file(ANCHORS) or b"")
    harness.close()
    head = harness.log.anchor_head
    files = harness.sim.snapshot()
    data, end = files[SEGMENT] or b"", HEADER_BYTES
    disk = SimDisk()
    disk.restore(files)
    assert directory(disk, head).status == 0
    for number in range(ROWS - 1):
        end += struct.unpack_from("<I", data, end + 8)[0]
        disk.damage(SEGMENT, data[:end])
        disk.damage(ANCHORS, older[number])
        if number % 100 == 0:
            assert directory(disk, "").status == 0  # nothing on this disk can tell
        found = quick_head(disk, head)
        assert "is gone" in found, number
    disk.restore(files)
    assert directory(disk, head).status == 0


def directory(disk: SimDisk, head: str) -> chain.Verdict:
    return verify_directory(disk, "/data", {}, lambda: anchors.load(disk, ANCHORS, {}), head)


def quick_head(disk: SimDisk, head: str) -> str:
    """What the verdict says before any partition is looked at."""
    found = verify_directory(disk, "/data", {}, lambda: last_only(disk), head)
    return found.broken.what if found.broken is not None else ""


def last_only(disk: SimDisk) -> Anchored | None:
    found = Anchored()
    whole = disk.read_file(ANCHORS) or b""
    anchors.parse(whole[whole.rfind(b"\n", 0, -1) + 1 :], found, {})
    return found


# -- controls: what must not be found ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["truncate", "rewrite"])
def test_without_an_anchor_a_cut_end_and_a_new_log_are_not_found(log: Log, way: str) -> None:
    for row in range(0, ROWS, 37):
        assert log.verify(WAYS[way](log, row), heads=[]).broken is None, row


@pytest.mark.parametrize("way", ["edit", "delete", "swap", "duplicate"])
def test_without_an_anchor_changes_within_are_found_all_the_same(log: Log, way: str) -> None:
    for row in range(0, ROWS - 2, 37):
        assert log.verify(WAYS[way](log, row), heads=[]).broken is not None, row


def test_behind_the_last_anchor_only_a_key_helps(log: Log, keyed: Log) -> None:
    for made, found in ((log, False), (keyed, True)):
        for row in range(OLD + 1, ROWS, 17):
            verdict = made.verify(rewrite(made, row), heads=made.heads[:1])
            assert (verdict.broken is not None) is found, row
            assert verdict.anchored == 1
    assert keyed.verify(keyed.batches).broken is None


def test_bytes_that_nobody_touched_are_never_accused(log: Log) -> None:
    for row in range(0, ROWS, 29):
        link = log.links[row].hex()
        found = log.verify(log.batches[:row], heads=[(row, link)] if row else [])
        assert (found.broken, found.rows, found.tail) == (None, row, 0)


# -- names and places --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "row", "kind"),
    [
        ("edit", 500, "edited"),
        ("delete", 500, "missing"),
        ("delete", 501, "edited"),
        ("insert", 500, "edited"),
        ("swap", 500, "swapped"),
        ("duplicate", 500, "duplicated"),
        ("truncate", 500, "truncated"),
        ("rewrite", 500, "rewritten"),
    ],
)
def test_what_was_done_is_named(log: Log, way: str, row: int, kind: str) -> None:
    found = log.verify(WAYS[way](log, row)).broken
    assert found is not None
    assert found.kind == kind
    assert SEGMENT in str(found)


def test_a_forged_row_with_a_right_link_shows_at_the_next(log: Log) -> None:
    forged = kernel.build([b"row of mine"], origin=b"test:1")
    kernel.chain(forged, 500, TIME, SEED, log.links[500], b"")
    found = log.verify([*log.batches[:500], bytes(forged), *log.batches[501:]]).broken
    assert found is not None
    assert (found.kind, found.first) == ("edited", 501)


def test_links_taken_away_altogether_show(log: Log) -> None:
    bare: list[bytes] = []
    for number, batch in enumerate(log.batches):
        plain = kernel.build([kernel.rows(batch, 0, 1)[0][3]], origin=b"test:1")
        kernel.seal(plain, number, TIME, SEED)
        bare.append(bytes(plain))
    assert log.verify(bare).broken is not None
    assert log.verify(bare, heads=[]).broken is not None  # the header still says that they were chained
    unchained = Log()
    unchained.header = pack_header(Header(SEED, TOPIC, 0, 0, TIME, "t"))
    found = unchained.verify(bare)
    assert found.broken is not None
    assert found.broken.what == "an anchor says that they were chained"


def test_files_taken_away_or_put_elsewhere_show() -> None:
    harness = Harness(anchor_file=ANCHORS)
    first, second = harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=2, segment_bytes=4096))
    harness.write(first, 60)
    harness.write(second, 60)
    harness.close()
    files = harness.sim.snapshot()
    names = sorted(path for path in files if path.startswith(PARTITION) and path.endswith(".seg"))
    assert len(names) >= 4
    disk = SimDisk()
    disk.restore(files)
    assert directory(disk, "").status == 0
    for name in names:
        disk.restore({path: data for path, data in files.items() if path != name})
        broken = directory(disk, "").broken
        assert broken is not None, name
        assert broken.kind in ("missing", "truncated")
    disk.restore(files | {names[0]: files[names[0].replace("/0/", "/1/")]})
    broken = directory(disk, "").broken
    assert broken is not None
    assert broken.kind == "swapped"
    disk.restore({path: data for path, data in files.items() if not path.startswith(PARTITION)})
    assert directory(disk, "").status == 1


# -- the anchors themselves --------------------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_line_taken_from_the_anchors_is_found() -> None:
    for key in (b"", KEY):
        lines, prev, name = [], anchors.Anchored().prev, chain.key_name(key)
        for seq in range(6):
            heads = [(TOPIC, 0, 10 * seq + 10, f"{seq:064x}")]
            line, prev = anchors.pack_line(seq, TIME + seq, heads, [(TOPIC, 0, seq)], prev, key, name)
            lines.append(line)
        keys = {name: key} if key else {}
        whole = b"".join(lines)
        anchors.parse(whole, kept := Anchored(), keys)
        assert (kept.seq, kept.starts) == (5, {(TOPIC, 0): 5})
        rng = random.Random(3)
        for bit in rng.sample(range(8 * len(whole)), 1500):
            data = bytearray(whole)
            data[bit >> 3] ^= 1 << (bit & 7)
            assert differs(bytes(data), keys, kept), bit
        for number in range(6):
            assert differs(b"".join(lines[:number] + lines[number + 1 :]), keys, kept) or number in (0, 5)
        for number in range(5):
            swapped = [*lines[:number], lines[number + 1], lines[number], *lines[number + 2 :]]
            assert differs(b"".join(swapped), keys, kept)


def differs(data: bytes, keys: dict[str, bytes], kept: Anchored) -> bool:
    found = Anchored()
    try:
        anchors.parse(data, found, keys)
    except (anchors.AnchorsBroken, anchors.KeyMissing):
        return True
    return found.head != kept.head  # the last line went: shows against a head kept elsewhere


def test_anchors_made_anew_without_the_key_are_found() -> None:
    name = chain.key_name(KEY)
    first, prev = anchors.pack_line(0, TIME, [(TOPIC, 0, 10, "00")], [], anchors.Anchored().prev, KEY, name)
    forged, _ = anchors.pack_line(1, TIME, [(TOPIC, 0, 5, "11")], [], prev)
    with pytest.raises(anchors.AnchorsBroken, match="without the key"):
        anchors.parse(first + forged, Anchored(), {name: KEY})
    with pytest.raises(anchors.KeyMissing):
        anchors.parse(first, Anchored(), {})
