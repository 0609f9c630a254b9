"""What the loop's thread spends on one acknowledged publish of a Felix stream to a topic in memory, in one process, without packets.

    .venv/bin/python bench/acked_cost.py

As bench/gets_cost.py, for a publish of 100 B as JSON and as 0x0009.
"""

import base64
import json
import logging
import struct
import sys
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.gets_cost import HEADER, MAGIC, VALUE, VERSION, cost_of, serve

import quintet

ACKED = 0x0009
PER_MESSAGE = 1
NAMES = ("t", "n", "s")


def frame(flags: int, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, flags, len(payload)) + payload


def as_json() -> bytes:
    names = dict(zip(("tenant_id", "namespace", "stream"), NAMES, strict=True))
    ask = {
        "type": "publish",
        **names,
        "payload": base64.b64encode(VALUE).decode(),
        "request_id": 7,
        "ack": "per_message",
    }
    return frame(0, json.dumps(ask, separators=(",", ":")).encode())


def as_batch() -> bytes:
    names = b"".join(struct.pack(">H", len(name)) + name.encode() for name in NAMES)
    return frame(ACKED, struct.pack(">QB", 7, PER_MESSAGE) + names + struct.pack(">II", 1, len(VALUE)) + VALUE)


def measure(listener: Any) -> None:
    (connection,) = listener.connections
    stream = next(stream for stream in connection._streams.values() if stream._session._targets)
    cost_of("an acknowledged publish, JSON", listener, stream, as_json())
    cost_of("an acknowledged publish, binary", listener, stream, as_batch())


async def prepare(bus: quintet.Bus) -> None:
    await bus.publish("/".join(NAMES), VALUE)


if __name__ == "__main__":
    logging.disable()
    uvloop.run(serve(prepare, measure))
