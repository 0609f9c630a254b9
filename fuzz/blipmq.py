"""BlipMQ: the codec and the batch readers of the kernel, and live sessions (blipmq_live.py).

Codec: only ValueError; consumed is whole frames; every chunking gives the same items; native == pure on a sample.
The planted fault: a frame whose length field says 8 is skipped as if it were a PING.
"""

import random
import struct
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fuzz.blipmq_live import NEW_BROKER_EVERY_FRAMES, Live
from fuzz.driver import BrokenError, Fuzzer, Half, Target, cuts, guarded, mutated

from quintet import kernel
from quintet.kernel import pure
from tests.kernel import generate
from tests.wire import blipmq

FRAMES_PER_READ = 60
SAMPLE_EVERY_READS = 8
BATCH_EVERY_READS = 4
MAX_CHUNKS = 6
MAX_FRAME_BYTES = 1 << 20
NOW = 100
SEED_CRC = 7
SETS = {
    bytes((qos,)) + blipmq.text(topic): 3 for topic in generate.TOPICS[:3] for qos in (0, 1)
}  # whose sets are split
FATALS = {"blip_split": (0, 1, 2, 3), "blip_received": (0, 1, 2, 3, 4)}

Split = Callable[[bytes, int, int], tuple[list[Any], int, int]]


def splitter(twin: ModuleType) -> Split:
    def split(data: bytes, start: int, version: int) -> tuple[list[Any], int, int]:
        items, consumed, fatal = twin.blip_split(data, start, version, MAX_FRAME_BYTES, b"o", NOW, SETS)
        return list(items), consumed, fatal

    return split


def skipping(split: Split) -> Split:
    """The planted fault: a frame whose length field says 8 is skipped as if it were a PING."""

    def wrong(data: bytes, start: int, version: int) -> tuple[list[Any], int, int]:
        items, consumed, fatal = split(data, start, version)
        if fatal == 1 and data[consumed : consumed + 4] == b"\0\0\0\x08" and len(data) >= consumed + 12:
            return [*items, (7, 0, b"")], consumed + 12, 0
        return items, consumed, fatal

    return wrong


def frames_in(data: bytes, end: int) -> int:
    """An independent look at what was consumed: how many whole frames of at least 9 bytes, one behind the other."""
    start = count = 0
    while start < end:
        (length,) = struct.unpack_from(">I", data, start)
        if not 9 <= length <= MAX_FRAME_BYTES:
            raise BrokenError(f"a frame of length {length} was consumed at {start}")
        start += 4 + length
        count += 1
    if start != end:
        raise BrokenError(f"consumed ends at {end}, inside a frame that ends at {start}")
    return count


def flat(twin: ModuleType, items: list[Any]) -> list[Any]:
    """Items as single frames in an order that does not depend on how a read was cut.

    A cut parts groups and runs, so a group is taken apart into its records; publishes between two other items are put
    in the order of their topics, each topic in wire order.
    """
    out: list[Any] = []
    window: dict[bytes, list[Any]] = {}

    def flush() -> None:
        for topic in sorted(window):
            out.extend(window[topic])
        window.clear()

    for item in items:
        if item[0] == 3:
            _, qos, topic, batch, ids = item
            rows = twin.rows(batch, 0, len(ids) // 8)
            numbers = struct.unpack(f"<{len(ids) // 8}Q", ids)
            records = [(3, qos, topic, row[3], row[5], number) for row, number in zip(rows, numbers, strict=True)]
            window.setdefault(topic, []).extend(records)
            continue
        flush()
        if item[0] == 5:
            out.extend((5, item[1], first + i) for first, count in item[2] for i in range(count))
        elif item[0] == 9:
            out.extend((9, item[1], number) for number in item[2])
        else:
            out.append(item)
    flush()
    return out


def in_chunks(split: Split, data: bytes, version: int, cuts: list[int]) -> tuple[list[Any], int, int]:
    """What a session sees whose reads end at these cuts."""
    items: list[Any] = []
    position = fatal = 0
    for cut in [*cuts, len(data)]:
        while not fatal:
            got, consumed, fatal = split(data[:cut], position, version)
            items += got
            stuck, position = consumed == position, consumed
            if stuck:
                break
    return items, position, fatal


class Codec(Target):
    """Runs inputs through the codec and counts what came of them."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        super().__init__(counts, sabotaged)
        self.split = skipping(splitter(kernel)) if sabotaged else splitter(kernel)

    def read(self, r: random.Random, number: int) -> int:
        version = r.choice((1, 2, 3))
        data = make_read(r, r.randrange(1, FRAMES_PER_READ), version == 3)
        done = self.requests(data, version, r)
        self.received(data)
        if number % BATCH_EVERY_READS == 0:
            self.batch(make_batch(r), r)
        if number % SAMPLE_EVERY_READS == 0:
            self.twins_agree(data, version)
        return done

    def raw(self, data: bytes, r: random.Random) -> None:
        self.requests(data, 1 + len(data) % 2, r)
        self.received(data)
        self.batch(data, r)
        self.twins_agree(data, 1)

    def requests(self, data: bytes, version: int, r: random.Random) -> int:
        """Frames the codec took or refused."""
        result = guarded("blip_split", lambda: self.split(data, 0, version))
        if result is None:
            raise BrokenError("blip_split refused a read with good arguments")
        items, consumed, fatal = result
        if not 0 <= consumed <= len(data) or fatal not in FATALS["blip_split"]:
            raise BrokenError(f"blip_split consumed {consumed} of {len(data)}, fatal {fatal}")
        frames_in(data, consumed)
        for item in items:
            self.counts[f"item {item[0]}" if item[0] else f"error {item[2]}"] += 1
        self.counts[f"fatal {fatal}"] += 1
        at = cuts(r, len(data), MAX_CHUNKS)
        whole = in_chunks(self.split, data, version, [])
        parts = in_chunks(self.split, data, version, at)
        if whole[1:] != parts[1:] or flat(kernel, whole[0]) != flat(kernel, parts[0]):
            raise BrokenError(f"cutting the read at {at} changed what came out of it")
        return frames_in(data, whole[1]) + (whole[2] > 0)

    def received(self, data: bytes) -> None:
        result = guarded("blip_received", lambda: kernel.blip_received(data, 0, MAX_FRAME_BYTES))
        if result is None:
            raise BrokenError("blip_received refused a read with good arguments")
        _, consumed, fatal = result
        if not 0 <= consumed <= len(data) or fatal not in FATALS["blip_received"]:
            raise BrokenError(f"blip_received consumed {consumed} of {len(data)}, fatal {fatal}")
        frames_in(data, consumed)

    def batch(self, data: bytes, r: random.Random) -> None:
        length = guarded("check", lambda: kernel.check(data, 0, SEED_CRC))
        if length is None or not -4 <= length <= len(data):
            raise BrokenError(f"check said {length} of {len(data)} bytes")
        self.counts["batch sound" if length > 0 else f"batch {length}"] += 1
        where = guarded("layout", lambda: kernel.layout(data))
        if where is not None and (where[-1] > len(data) or any(not 0 <= at <= where[-1] for at in where[:10])):
            raise BrokenError("layout points outside the batch")
        count = struct.unpack_from("<I", data, 24)[0] if len(data) >= 28 else 0
        last = count if length > 0 else r.randrange(10)
        rows = guarded("rows", lambda: kernel.rows(data, 0, last))
        if length > 0 and (where is None or rows is None):
            raise BrokenError("check calls a batch sound that layout or rows refuse")

    def twins_agree(self, data: bytes, version: int) -> None:
        self.counts["compared with pure"] += 1
        if self.split(data, 0, version) != splitter(pure)(data, 0, version):
            raise BrokenError("blip_split and its pure twin differ")
        for name, args in (("blip_received", (data, 0, MAX_FRAME_BYTES)), ("check", (data, 0, SEED_CRC))):
            if getattr(kernel, name)(*args) != getattr(pure, name)(*args):
                raise BrokenError(f"{name} and its pure twin differ")


def make_batch(r: random.Random) -> bytes:
    batch = kernel.build(**generate.batch_columns(r))
    kernel.seal(batch, r.randrange(1 << 40), 5, SEED_CRC)
    if r.random() < 0.3:
        return bytes(batch)
    wrong = bytearray(mutated(r, bytes(batch)))
    if len(wrong) >= 12 and r.random() < 0.8:
        (length,) = struct.unpack_from("<I", wrong, 8)
        struct.pack_into("<I", wrong, 4, pure.crc32c(bytes(wrong[8:length]), SEED_CRC))
    return bytes(wrong)


def make_read(r: random.Random, count: int, sets: bool) -> bytes:
    """Frames, half of the time with something wrong in them; sometimes a length that is nearly right."""
    frames = generate.frames(r, count, sets)
    if r.random() < 0.2:
        near = r.choice((0, 8, 8, 9, MAX_FRAME_BYTES, MAX_FRAME_BYTES + 1, (1 << 32) - 1))
        frames.insert(r.randrange(count + 1), struct.pack(">IB", near, r.randrange(1, 10)) + r.randbytes(8))
    data = b"".join(frames)
    return mutated(r, data) if r.random() < 0.4 else data


FUZZER = Fuzzer(
    Half(Codec, "length 8 is taken as valid"),
    Half(Live, "the owner of a subscription is not compared", NEW_BROKER_EVERY_FRAMES),
)
