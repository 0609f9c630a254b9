"""What the kernel tests share: the two twins, and frames made by hand so that no twin vouches for itself."""

import importlib
import json
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent.parent / "vectors/blipmq/document.json").read_text())
MAX_FRAME = 16 * 1024 * 1024
NOW = 1_000_000
MAX_U64 = (1 << 64) - 1


def native_twin() -> ModuleType:
    try:
        return importlib.import_module("quintet.kernel._native")
    except ImportError as error:
        pytest.skip(f"NATIVE KERNEL NOT BUILT, its half of these tests did not run: {error}")


def frame(kind: int, cid: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBQ", 9 + len(payload), kind, cid) + payload


def publish(topic: bytes, value: bytes, qos: int = 1, cid: int = 1, ttl: bytes = b"") -> bytes:
    return frame(3, cid, bytes((qos,)) + ttl + struct.pack(">H", len(topic)) + topic + value)


def u64(number: int) -> bytes:
    return struct.pack(">Q", number)


def split(k: ModuleType, data: bytes, version: int = 1, max_frame: int = MAX_FRAME) -> Any:
    return k.blip_split(data, 0, version, max_frame, b"blipmq:c", NOW)


def values_of(k: ModuleType, batch: bytearray) -> list[bytes | None]:
    return [row[3] for row in k.rows(batch, 0, struct.unpack_from("<I", batch, 24)[0])]
