"""Which partition a key belongs to: the one rule that broker and clients must share. The kernel has its own copy, and a
test holds the two together."""


def fnv1a(key: bytes) -> int:
    """FNV-1a, 32 bits; modulo the number of partitions it is the partition."""
    value = 0x811C9DC5
    for byte in key:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value
