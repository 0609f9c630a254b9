"""How fast the kernel's twins are: M frames/s of the BlipMQ and FlyMQ functions, M rows/s to and from Arrow, GB/s of CRC-32C,
microseconds of a merge.

Run `python bench/kernel.py`. Prints only; it judges nothing and writes nothing.
"""

import os
import struct
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

from quintet.kernel import pure

READ_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 16 * 1024 * 1024
VALUE_SIZES_BYTES = (16, 128, 1024)
INTERLEAVED_TOPICS = 8
FLY_TOPICS = 10
FLY_PARTITIONS = 8
MERGED_BATCHES = 64
ARROW_ROWS = {"native": 200_000, "pure": 2_000}
ARROW_VALUE_BYTES = 100
ARROW_BATCH_ROWS = (8_000, 500, 10, 1)  # of the log batches that are gathered
ARROW_COLUMNS = (("all columns", 63), ("offset only", 1))
GATHER_ROWS = 20_000  # of one result, as the Spark reader asks for
GATHER_BYTES = 8 * 1024 * 1024
SCATTER_VALUE_BYTES = 128
SCATTER_PARTITIONS = 4
SCATTER_BATCH_BYTES = 1024 * 1024
CRC_BYTES = 16 * 1024 * 1024
ROUND_SECONDS = 0.1
ROUNDS = 3
TOPIC = b"bench"
ORIGIN = b"blipmq:bench"


def per_call(function: Callable[[], object]) -> float:
    """Seconds of one call, the best of some rounds: the others were disturbed."""
    function()
    best = float("inf")
    for _ in range(ROUNDS):
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < ROUND_SECONDS:
            function()
            calls += 1
        best = min(best, spent / calls)
    return best


def frame_cases(twin: ModuleType, size: int, n: int) -> list[tuple[str, Callable[[], object]]]:
    """What is measured with n frames of this value size."""
    values = [bytes(size)] * n
    read = bytearray(twin.blip_publish(TOPIC, 1, values, 1, 0))
    ragged = bytearray(twin.blip_publish(TOPIC, 1, [bytes(size + i * 7 % 5) for i in range(n)], 1, 0))
    topics = [b"bench/%d" % i for i in range(INTERLEAVED_TOPICS)]
    mixed = bytearray(
        b"".join(twin.blip_publish(topics[i % INTERLEAVED_TOPICS], 1, values[:1], i + 1, 0) for i in range(n))
    )
    batch = twin.build(values, origin=ORIGIN)
    delivered = twin.blip_deliver(2, TOPIC, 1, batch, 0, n, 1, b"", 0)[0]
    return [
        ("split, one topic", lambda: twin.blip_split(read, 0, 1, MAX_FRAME_BYTES, ORIGIN, 0)),
        ("split, uneven sizes", lambda: twin.blip_split(ragged, 0, 1, MAX_FRAME_BYTES, ORIGIN, 0)),
        ("split, 8 topics in turn", lambda: twin.blip_split(mixed, 0, 1, MAX_FRAME_BYTES, ORIGIN, 0)),
        ("deliver v1", lambda: twin.blip_deliver(1, TOPIC, 1, batch, 0, n, 1, b"", 0)),
        ("deliver v2", lambda: twin.blip_deliver(2, TOPIC, 1, batch, 0, n, 1, b"", 0)),
        ("publish", lambda: twin.blip_publish(TOPIC, 1, values, 1, 0)),
        ("received", lambda: twin.blip_received(delivered, 0, MAX_FRAME_BYTES)),
    ]


def fly_cases(twin: ModuleType, size: int, n: int) -> list[tuple[str, Callable[[], object]]]:
    """The same for FlyMQ."""
    values, keys = [bytes(size)] * n, [b"key%05d" % i for i in range(n)]
    topics = [b"bench/%d" % i for i in range(FLY_TOPICS)]
    counts = {TOPIC: FLY_PARTITIONS, **dict.fromkeys(topics, 1)}
    read = bytearray(twin.fly_produce(TOPIC, None, values, -1, 0, 0, 1))
    keyed = bytearray(twin.fly_produce(TOPIC, keys, values, -1, 0, 0, 1))
    mixed = bytearray(
        b"".join(twin.fly_produce(topics[i % FLY_TOPICS], None, values[:1], -1, 0, 0, 1) for i in range(n))
    )
    batch, order = twin.build(values, origin=ORIGIN), bytes(2 * n)
    reply = twin.fly_fetch([batch], 0, n, MAX_FRAME_BYTES, 0, 7, 1, False)[0]

    def split(data: bytearray) -> Callable[[], object]:
        return lambda: twin.fly_split(data, 0, MAX_FRAME_BYTES, counts, ORIGIN, 0)

    return [
        ("fly split, one topic", split(read)),
        ("fly split, keys choose", split(keyed)),
        ("fly split, 10 topics", split(mixed)),
        ("fly produced", lambda: twin.fly_produced([(TOPIC, 0, batch, b"")], order, 1)),
        ("fly fetch", lambda: twin.fly_fetch([batch], 0, n, MAX_FRAME_BYTES, 0, 7, 1, False)),
        ("fly produce", lambda: twin.fly_produce(TOPIC, None, values, -1, 0, 0, 1)),
        ("fly received, a fetch", lambda: twin.fly_received(reply, 0, MAX_FRAME_BYTES, False)),
    ]


def gather_all(twin: ModuleType, data: bytes, rows: int, columns: int) -> None:
    position = offset = reason = 0
    while offset < rows and reason == 0:
        _, _, position, offset, reason = twin.gather(
            data, position, len(data), 7, offset, rows, GATHER_ROWS, GATHER_BYTES, columns, 0
        )


def bench_arrow(name: str, twin: ModuleType) -> None:
    """Log batches with keys and times to Arrow, and Arrow to log batches by key."""
    rows = ARROW_ROWS[name]
    for size in ARROW_BATCH_ROWS:
        size = min(size, rows)
        values, keys = [os.urandom(ARROW_VALUE_BYTES) for _ in range(size)], [b"key%05d" % i for i in range(size)]
        data = bytearray()
        for offset in range(0, rows, size):
            batch = twin.build(values, keys, None, list(range(size)), origin=ORIGIN)
            twin.seal(batch, offset, 0, 7)
            data += batch
        for label, columns in ARROW_COLUMNS:
            spent = per_call(partial(gather_all, twin, bytes(data), rows, columns))
            print(f"{name:6} gather, {label}, {size:5} rows a batch {rows / spent / 1e6:9.2f} M rows/s")
    ends = range(0, SCATTER_VALUE_BYTES * (rows + 1), SCATTER_VALUE_BYTES)
    value = (None, struct.pack(f"<{rows + 1}i", *ends), os.urandom(SCATTER_VALUE_BYTES * rows))
    key = (
        None,
        struct.pack(f"<{rows + 1}i", *range(0, 8 * (rows + 1), 8)),
        b"".join(b"key%05d" % (i % 1000) for i in range(rows)),
    )
    for label, count, by in (("4 partitions by key", SCATTER_PARTITIONS, key), ("1 partition", 1, None)):
        spent = per_call(
            partial(twin.scatter, rows, value, by, None, None, None, count, 0, ORIGIN, 0, SCATTER_BATCH_BYTES)
        )
        print(f"{name:6} scatter, {label:24} {rows / spent / 1e6:9.2f} M rows/s")


def bench(name: str, twin: ModuleType) -> None:
    for size in VALUE_SIZES_BYTES:
        n = READ_BYTES // (size + 16 + len(TOPIC))
        for label, call in (*frame_cases(twin, size, n), *fly_cases(twin, size, n)):
            rate = n / per_call(call)
            print(f"{name:6} {label:26} {size:5} B {rate / 1e6:9.2f} M frames/s {rate * size / 1e9:8.2f} GB/s")
    ones = [twin.build([bytes(16)], origin=b"blipmq:%d" % (i % 4)) for i in range(MERGED_BATCHES)]
    print(f"{name:6} merge of 64 one-record batches   {per_call(lambda: twin.merge(ones, 0)) * 1e6:9.1f} us")
    block = bytes(CRC_BYTES)
    print(
        f"{name:6} crc32c of 16 MiB                 {CRC_BYTES / per_call(lambda: twin.crc32c(block)) / 1e9:9.2f} GB/s"
    )
    sealed = twin.build([bytes(1024)] * 1000, origin=ORIGIN)
    for label, call in (("seal", lambda: twin.seal(sealed, 0, 0, 7)), ("check", lambda: twin.check(sealed, 0, 7))):
        print(f"{name:6} {label:5} of a 1 MB batch            {len(sealed) / per_call(call) / 1e9:9.2f} GB/s")
    bench_arrow(name, twin)


def main() -> None:
    try:
        from quintet.kernel import _native
    except ImportError as error:
        print(f"native: not built ({error}); run `pip install -e .` with a Rust compiler")
    else:
        bench("native", _native)
    bench("pure", pure)


if __name__ == "__main__":
    main()
