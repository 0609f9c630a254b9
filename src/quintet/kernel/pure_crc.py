"""CRC-32C for the pure twin (google_crc32c when it is installed, else a table), and FNV-1a of keys. Nothing else lives here."""

from quintet.kernel.buffer import Buffer

POLYNOMIAL = 0x82F63B78
MAX_U32 = 0xFFFFFFFF
FNV_START, FNV_PRIME = 0x811C9DC5, 0x01000193


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = tuple(_table_entry(byte) for byte in range(256))


def crc32c_by_table(data: Buffer, value: int = 0) -> int:
    """The same checksum without any package, some 10 MB/s."""
    crc = value ^ MAX_U32
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ MAX_U32


try:
    from google_crc32c import extend as _extend
except ImportError:
    _extend = None


def crc32c(data: Buffer, value: int = 0) -> int:
    if not 0 <= value <= MAX_U32:
        raise OverflowError("a CRC-32C value is an unsigned 32-bit number")
    if _extend is None:
        return crc32c_by_table(data, value)
    return int(_extend(value, data if isinstance(data, bytes) else bytes(data)))


def fnv1a(key: Buffer) -> int:
    """FNV-1a, 32 bit."""
    value = FNV_START
    for byte in memoryview(key).cast("B"):
        value = (value ^ byte) * FNV_PRIME & MAX_U32
    return value
