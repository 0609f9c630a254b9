"""How fast the kernel's twins are: M frames/s of the BlipMQ functions, GB/s of CRC-32C, microseconds of a merge.

Run `python bench/kernel.py`. Prints only; it judges nothing and writes nothing.
"""

import time
from collections.abc import Callable
from types import ModuleType

from quintet.kernel import pure

READ_BYTES = 1024 * 1024
MAX_FRAME_BYTES = 16 * 1024 * 1024
VALUE_SIZES_BYTES = (16, 128, 1024)
INTERLEAVED_TOPICS = 8
MERGED_BATCHES = 64
CRC_BYTES = 16 * 1024 * 1024
ROUND_SECONDS = 0.25
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


def frames_line(name: str, twin: ModuleType, label: str, frames: int, size: int, call: Callable[[], object]) -> None:
    seconds = per_call(call)
    print(
        f"{name:6} {label:26} {size:5} B  {frames / seconds / 1e6:9.2f} M frames/s {frames * size / seconds / 1e9:8.2f} GB/s"
    )


def bench(name: str, twin: ModuleType) -> None:
    for size in VALUE_SIZES_BYTES:
        value = bytes(size)
        n = READ_BYTES // (size + 16 + len(TOPIC))
        read = bytearray(twin.blip_publish(TOPIC, 1, [value] * n, 1, 0))
        mixed = bytearray(
            b"".join(twin.blip_publish(b"bench/%d" % (i % INTERLEAVED_TOPICS), 1, [value], i + 1, 0) for i in range(n))
        )
        uneven = [bytes(size + i * 7 % 5) for i in range(n)]
        ragged = bytearray(twin.blip_publish(TOPIC, 1, uneven, 1, 0))

        def split(data: bytearray) -> object:
            return twin.blip_split(data, 0, 1, MAX_FRAME_BYTES, ORIGIN, 0)

        batch = twin.build([value] * n, origin=ORIGIN)
        delivered = twin.blip_deliver(2, TOPIC, 1, batch, 0, n, 1, b"", 0)[0]
        values = [value] * n
        cases: tuple[tuple[str, Callable[[], object]], ...] = (
            ("split, one topic", lambda data=read: split(data)),
            ("split, uneven sizes", lambda data=ragged: split(data)),
            ("split, 8 topics in turn", lambda data=mixed: split(data)),
            ("deliver v1", lambda: twin.blip_deliver(1, TOPIC, 1, batch, 0, n, 1, b"", 0)),
            ("deliver v2", lambda: twin.blip_deliver(2, TOPIC, 1, batch, 0, n, 1, b"", 0)),
            ("publish", lambda: twin.blip_publish(TOPIC, 1, values, 1, 0)),
            ("received", lambda: twin.blip_received(delivered, 0, MAX_FRAME_BYTES)),
        )
        for label, call in cases:
            frames_line(name, twin, label, n, size, call)
    ones = [twin.build([bytes(16)], origin=b"blipmq:%d" % (i % 4)) for i in range(MERGED_BATCHES)]
    print(
        f"{name:6} merge of {MERGED_BATCHES} one-record batches  {per_call(lambda: twin.merge(ones, 0)) * 1e6:9.1f} us"
    )
    block = bytes(CRC_BYTES)
    print(f"{name:6} crc32c of 16 MiB            {CRC_BYTES / per_call(lambda: twin.crc32c(block)) / 1e9:9.2f} GB/s")
    sealed = twin.build([bytes(1024)] * 1000, origin=ORIGIN)
    length = len(sealed)
    print(
        f"{name:6} seal of a 1 MB batch        {length / per_call(lambda: twin.seal(sealed, 0, 0, 7)) / 1e9:9.2f} GB/s"
    )
    print(f"{name:6} check of a 1 MB batch       {length / per_call(lambda: twin.check(sealed, 0, 7)) / 1e9:9.2f} GB/s")


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
