"""What the kernel tests share: the two twins, and what a BlipMQ read gives. Frames are of tests/wire: no twin vouches for itself."""

import importlib
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.wire import blipmq

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "vectors/blipmq/document.json").read_text())
MAX_FRAME = 16 * 1024 * 1024
NOW = 1_000_000
MAX_U64 = (1 << 64) - 1


def native_twin() -> ModuleType:
    try:
        return importlib.import_module("quintet.kernel._native")
    except ImportError as error:
        pytest.skip(f"NATIVE KERNEL NOT BUILT, its half of these tests did not run: {error}")


def publish(topic: bytes, value: bytes, qos: int = 1, cid: int = 1, ttl_ms: int | None = None) -> bytes:
    return blipmq.publish(cid, topic, value, qos, ttl_ms)


def split(k: ModuleType, data: bytes, version: int = 1, max_frame: int = MAX_FRAME) -> Any:
    return k.blip_split(data, 0, version, max_frame, b"blipmq:c", NOW)


def values_of(k: ModuleType, batch: bytearray) -> list[bytes | None]:
    return [row[3] for row in k.rows(batch, 0, struct.unpack_from("<I", batch, 24)[0])]
