"""Measures what the kernel alone takes of a turn over many partitions: appending by FlyMQ's PRODUCE, sealing, committing.

    .venv/bin/python bench/turn_kernel.py [--partitions 1000] [--turns 300]

One process, no sockets and no files: 16 reads of 64 PRODUCE of 128 B, each message to another partition, then the end of the turn. The
figure is the tenth percentile of the processor time of many turns, a message: it hardly moves with the load of the machine, so
two versions can be compared (PYTHONPATH=OTHER/src for one of them, in turn).
"""

import argparse
from time import process_time_ns

from quintet import kernel

READS, IN_READ, SIZE = 16, 64, 128
NOW = 1_000_000
KEPT_BYTES = 1 << 28
FLUSHED_EVERY = 50  # turns: what is late is taken then, as a broker does after a second


def p10(times: list[int]) -> str:
    return f"{sorted(times)[len(times) // 10] / (READS * IN_READ):.0f} ns"


def measure(lent: bool, partitions: int, turns: int) -> str:
    tails: kernel.Tails[bytes] = kernel.Tails(bytes, KEPT_BYTES, 100, 100)
    tails.set_lending(True, KEPT_BYTES)
    slots = [tails.open_lent() if lent else tails.open(KEPT_BYTES) for _ in range(partitions)]
    for slot in slots if lent else []:
        tails.lend(slot, True, (16, slot, 0, 7, 100, 512, 1 << 40, 0, 0), b"", b"")
    routes: kernel.Routes[str] = kernel.Routes()
    routes.add(b"t", tails.add_topic(slots, lent), "t", True)
    counts = {b"t": partitions}
    reads = [
        b"".join(
            kernel.fly_produce(b"t", None, [bytes(SIZE)], (first + number) % partitions, 0, 0, 1)
            for number in range(IN_READ)
        )
        for first in range(0, READS * IN_READ, IN_READ)
    ]
    appending, sealing, committing = list[int](), list[int](), list[int]()
    for turn in range(turns):
        began = process_time_ns()
        for read in reads:
            kernel.fly_append(tails, routes, read, 0, 1 << 20, counts, b"flymq:a", NOW + turn, 1)
        appended = process_time_ns()
        sealed = tails.seal_lent(True, KEPT_BYTES, 1 << 20) if lent else tails.seal(NOW + turn)
        ended = process_time_ns()
        if lent:
            tails.commit_lent(True, turn)
            committing.append(process_time_ns() - ended)
        del sealed
        appending.append(appended - began)
        sealing.append(ended - appended)
        if lent and turn % FLUSHED_EVERY == FLUSHED_EVERY - 1:
            for slot in tails.tardy_lent(turn, partitions):
                tails.take_late(slot)
    committed = f", commit {p10(committing)}" if lent else ""
    return f"append{'' if lent else ' and answer'} {p10(appending)}, seal {p10(sealing)}{committed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=300)
    wanted = parser.parse_args()
    for lent in (True, False):
        where = "lent, not synced" if lent else "memory"
        print(f"{where}: {measure(lent, wanted.partitions, wanted.turns)} a message", flush=True)


if __name__ == "__main__":
    main()
