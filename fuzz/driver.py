"""Runs a fuzz target: random input from a printed seed, counts, a verdict, and an exit code (0 held, 1 broken).

A protocol's file (blipmq.py, fast.py, ...) has a `FUZZER`: what is run through its codec, and through live sessions of a
broker if it has such a half. Each half is a `Target`, which makes one read from a seeded source and checks what came of it;
BrokenError says which invariant does not hold, and the driver says with which read of which seed. `--sabotage` plants the
fault that the half names. It must be caught: the exit code is 0 only then. A check that cannot fail fails this one.
"""

import argparse
import gc
import importlib
import random
import resource
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from quintet import kernel
from quintet.kernel import pure
from tests.kernel import generate
from tests.kernel.generate import mutated

__all__ = ["mutated"]

SAMPLE_EVERY_READS = 8  # of a TwinCodec: the pure twin is slow
GROWTH_MAX_MIB = 1024  # of the process in one half: the disk of a simulated broker is memory here


class BrokenError(Exception):
    """An invariant does not hold."""


class Target(ABC):
    """What is fuzzed, and the model that judges it."""

    def __init__(self, counts: Counter[str], sabotaged: bool) -> None:
        self.counts = counts
        self.sabotaged = sabotaged

    @abstractmethod
    def read(self, r: random.Random, number: int) -> int:
        """Make one read, run it, judge it; the frames it had."""

    def raw(self, data: bytes, r: random.Random) -> None:
        """Judge bytes that somebody else chose."""
        raise NotImplementedError

    def notes(self) -> str:
        """What else is worth a line at the end."""
        return ""

    def close(self) -> None:
        """Let go of it; another may follow."""
        return


class TwinCodec(Target):
    """Random requests and replies, half of the time damaged, through both twins of a codec."""

    @abstractmethod
    def make(self, r: random.Random) -> tuple[bytes, bytes]:
        """The bytes of requests, and of replies."""

    @abstractmethod
    def judge(self, data: bytes, answer: bytes, r: random.Random) -> int:
        """Check both; the frames of the requests."""

    @abstractmethod
    def compare(self, data: bytes, r: random.Random) -> None:
        """Check that native and pure do the same."""

    def read(self, r: random.Random, number: int) -> int:
        data, answer = self.make(r)
        if r.random() < 0.5:
            data, answer = mutated(r, data), mutated(r, answer)
            self.counts["damaged reads"] += 1
        done = self.judge(data, answer, r)
        if number % SAMPLE_EVERY_READS == 0:
            self.counts["compared with pure"] += 1
            self.compare(data, r)
        return done

    def raw(self, data: bytes, r: random.Random) -> None:
        self.judge(data, data, r)
        self.compare(data, r)


class Half(NamedTuple):
    """The codec, or live sessions."""

    target: Callable[[Counter[str], bool], Target]
    fault: str  # what `sabotaged` plants
    frames_each: int = 0  # so many frames through one target, then a fresh one; 0: all


class Fuzzer(NamedTuple):
    """What the file of a protocol exports."""

    codec: Half
    live: Half | None = None


# -- mutation ----------------------------------------------------------------------------------------------------------


def cuts(r: random.Random, size: int, most: int) -> list[int]:
    """Where a read of so many bytes is cut: rising places, fewer than `most`."""
    return sorted(r.randrange(size + 1) for _ in range(r.randrange(most)))


def guarded(name: str, call: Callable[[], Any], expected: tuple[type[Exception], ...] = (ValueError,)) -> Any:
    """The result of a call, or None if it refused as it may; anything else that is raised breaks an invariant."""
    try:
        return call()
    except BrokenError:
        raise
    except expected:
        return None
    except Exception as error:
        raise BrokenError(f"{name} raised {type(error).__name__}: {error}") from error


def compare_deliveries(name: str, r: random.Random, deliver: Callable[[Any, bytes, int], Any]) -> None:
    """`deliver(twin, batch, records)` gives the same, or is refused, for a damaged batch."""
    batch = mutated(r, bytes(kernel.build(**generate.batch_columns(r))))
    count = struct.unpack_from("<I", batch, 24)[0] if len(batch) >= 28 else 1
    results: list[Any] = []
    for twin in (kernel, pure):
        try:
            results.append(deliver(twin, batch, min(count, 99)))
        except ValueError:
            results.append(None)
    if results[0] != results[1]:
        raise BrokenError(f"{name} and its pure twin differ")


# -- running -----------------------------------------------------------------------------------------------------------


def resident_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def run(half: Half, frames: int, seed: int, counts: Counter[str], sabotaged: bool) -> str:
    """How many were run, and how they went; BrokenError says with which read it broke."""
    done = number = 0
    start, before, notes = time.perf_counter(), resident_mib(), ""
    while done < frames:
        target = half.target(counts, sabotaged)
        renew = done + half.frames_each if half.frames_each else frames
        try:
            while done < min(frames, renew):
                try:
                    done += target.read(random.Random(seed * 1_000_003 + number), number)
                except BrokenError as error:
                    raise BrokenError(f"read {number} of seed {seed}: {error}") from error
                number += 1
            notes = target.notes()
        finally:
            target.close()
        del target
        gc.collect()  # the disk of its broker
    counts["reads"] += number
    grown = resident_mib() - before
    if grown > GROWTH_MAX_MIB:
        raise BrokenError(f"the process grew by {grown} MiB")
    return f"{done} frames in {time.perf_counter() - start:.1f} s, {grown} MiB more at most{notes and ', '}{notes}"


def run_atheris(target: Target) -> int:
    """Let atheris choose the input."""
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        sys.exit("atheris is not installed: install it, or leave out --atheris for the seeded run")
    atheris.Setup(sys.argv[:1], lambda data: target.raw(data, random.Random(len(data))))
    atheris.Fuzz()
    return 0


def main(name: str, fuzzer: Fuzzer, arguments: list[str]) -> int:
    halves = {half: made for half, made in fuzzer._asdict().items() if made is not None}
    faults = ", ".join(f"{half}: {made.fault}" for half, made in halves.items())
    parser = argparse.ArgumentParser(prog=f"fuzz {name}", description=sys.modules[__name__].__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="through the codec")
    parser.add_argument("--live", type=int, default=0, help="through live sessions")
    parser.add_argument("--seed", type=int, default=time.time_ns() & 0xFFFFFFFF)
    parser.add_argument("--sabotage", choices=halves, help=f"plant a fault, which must be caught ({faults})")
    parser.add_argument("--atheris", action="store_true", help="let atheris choose the input of the codec")
    options = parser.parse_args(arguments)
    if options.live and fuzzer.live is None:
        parser.error(f"{name} has no live half")
    print(f"{name}: seed {options.seed}, twin {'native' if kernel.NATIVE else 'pure'}")
    counts: Counter[str] = Counter()
    if options.atheris:
        return run_atheris(fuzzer.codec.target(counts, options.sabotage == "codec"))
    try:
        for half, frames in (("codec", options.frames), ("live", options.live)):
            if frames:
                print(f"{half}: {run(halves[half], frames, options.seed, counts, options.sabotage == half)}")
    except BrokenError as error:
        print(f"BROKEN: {error}")
        print("verdict: planted fault caught" if options.sabotage else "verdict: an invariant does not hold")
        return 0 if options.sabotage else 1
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    print("verdict: PLANTED FAULT MISSED" if options.sabotage else "verdict: all invariants held")
    return 1 if options.sabotage else 0
