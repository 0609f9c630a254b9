"""Invariants: only ValueError; consumed is whole packets; every chunking gives what the bytes say; native == pure.

A structure-aware fuzz target for fast_split, fast_received and fast_deliver. `python fuzz/fast_codec.py --frames N --seed S`
runs N packets from a printed seed and ends with a verdict and an exit code (0 held, 1 broken). What a read says is found
by a plain reader in this file, which shares no code with the kernel. `--sabotage` plants a fault (a PUBLISH right behind
another to the same topic is taken under the other's token), which must be caught. It fuzzes the codec only, no session.
"""

import argparse
import random
import struct
import sys
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from quintet import kernel
from quintet.kernel import pure
from tests.kernel import fast_packets, generate
from tests.kernel.fast_packets import NOW, PAYLOAD_MAX, SAMES, TOPICS, Fields

PACKETS_PER_READ = 40
SAMPLE_EVERY_READS = 8
MAX_CUTS = 6
KNOWN = {jwt: fast_packets.origin_of(jwt) for jwt in fast_packets.TOKENS}


class BrokenError(Exception):
    """An invariant does not hold."""


class Sabotaged:
    """The native twin with the planted fault."""

    rows = staticmethod(kernel.rows)

    @staticmethod
    def fast_split(*args: Any) -> tuple[list[Fields], int, int, bytes | None, bytes | None]:
        split, consumed, fatal, unknown, same = kernel.fast_split(*args)
        items: list[Fields] = list(split)
        for i in range(1, len(items)):
            if items[i][0] == items[i - 1][0] == 3 and items[i][2] == items[i - 1][2]:
                items[i] = (3, items[i - 1][1], *items[i][2:])
        return items, consumed, fatal, unknown, same


class Reader:
    """Takes fields off the front of a read; EOFError when they are not in."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if len(self.data) - self.at < size:
            raise EOFError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def request(self) -> Fields:
        """The next request's fields; KeyError for an unknown type, OverflowError for a long payload."""
        kind = self.number(1)
        if kind not in (1, 2, 3, 5, 7, 0x70):
            raise KeyError(kind)
        if kind == 0x70:
            return kind, self.number(1)
        jwt = self.take(self.number(1))
        if kind == 1:
            return kind, jwt, self.take(self.number(1)), self.number(1)
        topic_id = self.number(4)
        if kind == 7:
            return kind, jwt, topic_id, self.take(self.number(1))
        if kind != 3:
            return kind, jwt, topic_id
        length = self.number(4)
        if length > PAYLOAD_MAX:
            raise OverflowError
        return kind, jwt, topic_id, self.take(length)


def plainly(data: bytes) -> tuple[list[Fields], int, int]:
    """(requests, consumed, fatal) of a read, one by one."""
    reader = Reader(data)
    out: list[Fields] = []
    while True:
        start = reader.at
        try:
            out.append(reader.request())
        except EOFError:
            return out, start, 0
        except KeyError:
            return out, start, 1
        except OverflowError:
            return out, start, 2


def check_read(twin: ModuleType, data: bytes, r: random.Random) -> int:
    """The packets of a read whose split held what it owes, in one piece and in some."""
    fields, consumed, fatal = plainly(data)
    same = r.choice(SAMES)
    want = fast_packets.expected(fields, same), consumed, fatal
    cuts = sorted(r.randrange(len(data) + 1) for _ in range(r.randrange(MAX_CUTS)))
    for chunking in ([], cuts):
        try:
            got = fast_packets.read_all(twin, data, chunking, same)
        except Exception as error:
            raise BrokenError(f"fast_split raised {type(error).__name__}: {error}") from error
        if got != want:
            raise BrokenError(f"cut at {chunking}, same {same!r}, the split differs from what the bytes say")
    return len(fields)


def check_replies(data: bytes, r: random.Random) -> None:
    items, consumed, fatal = kernel.fast_received(data, 0, PAYLOAD_MAX)
    if not 0 <= consumed <= len(data) or fatal not in (0, 1, 2, 3):
        raise BrokenError("fast_received ends outside the read, or with an unknown number")
    cut = r.randrange(len(data) + 1)
    _, position, early = kernel.fast_received(data[:cut], 0, PAYLOAD_MAX)
    if (consumed, fatal) != ((position, early) if early else kernel.fast_received(data, position, PAYLOAD_MAX)[1:]):
        raise BrokenError(f"cut at {cut}, fast_received ends elsewhere")
    if (items, consumed, fatal) != pure.fast_received(data, 0, PAYLOAD_MAX):
        raise BrokenError("fast_received and its pure twin differ")


def check_sample(data: bytes, r: random.Random) -> None:
    args = data, r.randrange(len(data) + 1), r.choice((1, 60, PAYLOAD_MAX)), KNOWN, TOPICS, NOW, r.choice(SAMES)
    if kernel.fast_split(*args) != pure.fast_split(*args):
        raise BrokenError("fast_split and its pure twin differ")
    batch = generate.mutated(r, bytes(kernel.build(**generate.batch_columns(r))))
    count = struct.unpack_from("<I", batch, 24)[0] if len(batch) >= 28 else 1
    results: list[Any] = []
    for twin in (kernel, pure):
        try:
            results.append(twin.fast_deliver(7, batch, 0, min(count, 99), 100))
        except ValueError:
            results.append(None)
    if results[0] != results[1]:
        raise BrokenError("fast_deliver and its pure twin differ")


def run(twin: Any, packets: int, seed: int, counts: Counter[str]) -> int:
    """Packets that were run; BrokenError says with which read it broke."""
    done = number = 0
    while done < packets:
        r = random.Random(seed * 1_000_003 + number)
        data = b"".join(map(fast_packets.request, fast_packets.requests(r, r.randrange(1, PACKETS_PER_READ))))
        answer = b"".join(fast_packets.replies(r, r.randrange(1, PACKETS_PER_READ)))
        if r.random() < 0.5:
            data, answer = generate.mutated(r, data), generate.mutated(r, answer)
            counts["damaged reads"] += 1
        try:
            done += check_read(twin, data, r)
            check_replies(answer, r)
            if number % SAMPLE_EVERY_READS == 0:
                counts["compared with pure"] += 1
                check_sample(data, r)
        except BrokenError as error:
            raise BrokenError(f"read {number} of seed {seed}: {error}") from error
        number += 1
    counts["reads"] = number
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the Fast TCP codec of the kernel.")
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
