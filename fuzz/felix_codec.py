"""Invariants: only ValueError; consumed is whole frames; every chunking gives what the bytes say; native == pure.

A structure-aware fuzz target for the Felix functions of the kernel. `python fuzz/felix_codec.py --frames N --seed S` runs N
frames from a printed seed and ends with a verdict and an exit code (0 held, 1 broken). What a read says is found by a plain
reader in this file, which shares no code with the kernel; what is wrong with a text by the json module. `--sabotage` plants
a fault (an unacknowledged batch right behind another is taken for the other's stream), which must be caught. It fuzzes the
codec only, no session.
"""

import argparse
import copy
import random
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from quintet import kernel
from quintet.kernel import pure
from tests.kernel import felix_frames, generate
from tests.kernel.felix_frames import DEPTH, FRAME_MAX, KNOWN, NOW, ORIGIN, Fields

FRAMES_PER_READ = 40
SAMPLE_EVERY_READS = 8
MAX_CUTS = 6
MAX_RECORDS = 1 << 20
GROUP_BYTES_MAX = 32 << 20
MAGIC = 0x464C5831


class BrokenError(Exception):
    """An invariant does not hold."""


class Sabotaged:
    """The native twin with the planted fault."""

    rows = staticmethod(kernel.rows)

    @staticmethod
    def felix_split(*args: Any) -> tuple[list[Fields], int, int]:
        split, consumed, fatal = kernel.felix_split(*args)
        items: list[Fields] = list(split)
        for i in range(1, len(items)):
            if items[i][0] == items[i - 1][0] == 1 and items[i][4] == items[i - 1][4] == -1:
                items[i] = (1, items[i - 1][1], *items[i][2:])
        return items, consumed, fatal


class Reader:
    """Takes fields off the front of bytes; EOFError when they are not in."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        if self.left() < size:
            raise EOFError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def frame(self) -> tuple[int, bytes]:
        """(flags, payload) of the next frame; OverflowError with the number of what is fatal."""
        if self.number(4) != MAGIC:
            raise OverflowError(1)
        if self.number(2) != 1:
            raise OverflowError(2)
        flags, length = self.number(2), self.number(4)
        if length > FRAME_MAX:
            raise OverflowError(3)
        return flags, self.take(length)


def batch(payload: bytes, acked: bool, keyed: bool) -> list[Fields]:
    """What a batch says: its records, the whole of it if it is acknowledged, or what is wrong."""
    reader = Reader(payload)
    request_id, ack_mode, key = -1, 0, None
    try:
        if acked:
            request_id = reader.number(8)
            ack_mode = reader.number(1)
            if ack_mode not in (1, 2):
                return [(2, 4, request_id)]
        if keyed:
            key = reader.take(reader.number(2))
        start = reader.at
        for _ in range(3):
            reader.take(reader.number(2)).decode()
        where, count = payload[start : reader.at], reader.number(4)
        if count > min(reader.left() // 4, MAX_RECORDS):
            return [(2, 2 if count > reader.left() // 4 else 6, request_id)]
        values = [reader.take(reader.number(4)) for _ in range(count)]
    except EOFError:
        return [(2, 1, request_id)]
    except UnicodeDecodeError:
        return [(2, 5, request_id)]
    if reader.left():
        return [(2, 3, request_id)]
    if sum(map(len, values)) + len(key or b"") * count > GROUP_BYTES_MAX:
        return [(2, 7, request_id)]
    if acked:
        return [(1, where, values, request_id, ack_mode, key)]
    return [("record", where, value, key) for value in values]


def plainly(data: bytes, known: int, strict: bool) -> tuple[list[Fields], int, int, int]:
    """(what it says, consumed, fatal, frames) of a read, one frame after the other."""
    reader = Reader(data)
    out: list[Fields] = []
    frames = 0
    while True:
        start = reader.at
        try:
            flags, payload = reader.frame()
        except EOFError:
            return out, start, 0, frames
        except OverflowError as error:
            return out, start, error.args[0], frames
        frames += 1
        meant = flags if strict else flags & known
        kind = meant & ~felix_frames.KEY_FLAG
        if meant & ~known or (meant and kind not in (1, 9, 0x41, 0x49)):
            out.append((3, flags, felix_frames.acked_id(flags, payload)))
        elif kind in (1, 9):
            out += batch(payload, kind == 9, kind != meant)
        else:
            out.append((0, payload) if meant == 0 else (4, meant, payload))


def check_read(twin: Any, data: bytes, r: random.Random) -> int:
    """The frames of a read whose split held what it owes, in one piece and in some."""
    known, strict = r.choice((KNOWN, KNOWN, 0x003F, 0x0001)), r.random() < 0.7
    *want, frames = plainly(data, known, strict)
    cuts = sorted(r.randrange(len(data) + 1) for _ in range(r.randrange(MAX_CUTS)))
    for chunking in ([], cuts):
        try:
            got = felix_frames.read_all(twin, data, chunking, known, strict)
        except Exception as error:
            raise BrokenError(f"felix_split raised {type(error).__name__}: {error}") from error
        if list(got) != want:
            raise BrokenError(f"cut at {chunking}, known {known:#x}, the split differs from what the bytes say")
    return frames


def check_replies(data: bytes, r: random.Random) -> None:
    items, consumed, fatal = kernel.felix_received(data, 0, FRAME_MAX)
    if not 0 <= consumed <= len(data) or fatal not in range(6):
        raise BrokenError("felix_received ends outside the read, or with an unknown number")
    cut = r.randrange(len(data) + 1)
    before, position, early = kernel.felix_received(data[:cut], 0, FRAME_MAX)
    behind = ([], position, early) if early else kernel.felix_received(data, position, FRAME_MAX)
    if (items, consumed, fatal) != (before + behind[0], *behind[1:]):
        raise BrokenError(f"cut at {cut}, felix_received gives something else")
    if (items, consumed, fatal) != pure.felix_received(data, 0, FRAME_MAX):
        raise BrokenError("felix_received and its pure twin differ")


def check_text(r: random.Random) -> None:
    data, depth = felix_frames.json_soup(r), r.randrange(1, DEPTH + 2)
    if r.random() < 0.3:
        data = generate.mutated(r, data)
    if kernel.json_fault(data, depth) not in felix_frames.json_faults(data, depth):
        raise BrokenError(f"json_fault and the json module differ about {data!r} of at most {depth}")


def check_gets(r: random.Random) -> None:
    scopes, texts = felix_frames.entries(r), []
    for _ in range(r.randrange(1, 12)):
        odd = r.random() < 0.05
        texts.append(felix_frames.odd_get(r) if odd else felix_frames.get_text(r, felix_frames.get_fields(r)))
    data = b"".join(felix_frames.frame(0, text) for text in texts)
    if r.random() < 0.4:
        data = generate.mutated(r, data)
    other, args = copy.deepcopy(scopes), (NOW, r.choice((1, 1 << 30)), r.random() < 0.5)
    got = kernel.felix_gets(data, 0, FRAME_MAX, scopes, *args)
    if got != pure.felix_gets(data, 0, FRAME_MAX, other, *args) or scopes != other:
        raise BrokenError("felix_gets and its pure twin differ")
    if len(felix_frames.split_frames(got[0])) != got[2] + got[3]:
        raise BrokenError("felix_gets gives more or fewer answers than it counts")


def check_sample(data: bytes, r: random.Random) -> None:
    args = (
        data,
        r.randrange(len(data) + 1),
        r.choice((1, 60, FRAME_MAX)),
        r.choice((KNOWN, 1)),
        r.random() < 0.5,
        ORIGIN,
        NOW,
        r.choice((0, 0x0040, 0x0100)),
    )
    if kernel.felix_split(*args) != pure.felix_split(*args):
        raise BrokenError("felix_split and its pure twin differ")
    damaged = generate.mutated(r, bytes(kernel.build(**generate.batch_columns(r))))
    count = struct.unpack_from("<I", damaged, 24)[0] if len(damaged) >= 28 else 1
    most, offsets, keys = r.choice((1, 50, FRAME_MAX)), r.random() < 0.5, r.random() < 0.5
    results: list[Any] = []
    for twin in (kernel, pure):
        try:
            sent = twin.felix_deliver(damaged, 0, min(count, 99), 100, offsets, 5 << 48, most, keys)
            results.append((sent, twin.felix_events(damaged, 0, min(count, 99), 100, b'"stream":"s"', most)))
        except ValueError:
            results.append(None)
    if results[0] != results[1]:
        raise BrokenError("felix_deliver or felix_events and its pure twin differ")


def run(twin: Any, frames: int, seed: int, counts: Counter[str]) -> int:
    """Frames that were run; BrokenError says with which read it broke."""
    done = number = 0
    while done < frames:
        r = random.Random(seed * 1_000_003 + number)
        data = b"".join(map(felix_frames.wire, felix_frames.requests(r, r.randrange(1, FRAMES_PER_READ))))
        answer = b"".join(felix_frames.replies(r, r.randrange(1, FRAMES_PER_READ)))
        if r.random() < 0.5:
            data, answer = generate.mutated(r, data), generate.mutated(r, answer)
            counts["damaged reads"] += 1
        try:
            done += check_read(twin, data, r)
            check_replies(answer, r)
            check_text(r)
            check_gets(r)
            if number % SAMPLE_EVERY_READS == 0:
                counts["compared with pure"] += 1
                check_sample(data, r)
        except BrokenError as error:
            raise BrokenError(f"read {number} of seed {seed}: {error}") from error
        number += 1
    counts["reads"] = number
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the Felix codec of the kernel.")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument("--sabotage", action="store_true", help="plant a fault that must be caught")
    options = parser.parse_args()
    print(f"seed {options.seed}, twin {'native' if kernel.NATIVE else 'pure'}, frames {options.frames}")
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    try:
        done = run(Sabotaged if options.sabotage else kernel, options.frames, options.seed, counts)
    except BrokenError as error:
        print(f"BROKEN: {error}")
        print("verdict: planted fault caught" if options.sabotage else "verdict: an invariant does not hold")
        return 0 if options.sabotage else 1
    print(f"{done} frames in {time.perf_counter() - start:.1f} s")
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))
    print("verdict: PLANTED FAULT MISSED" if options.sabotage else "verdict: all invariants held")
    return 1 if options.sabotage else 0


if __name__ == "__main__":
    sys.exit(main())
