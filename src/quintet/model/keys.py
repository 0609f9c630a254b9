"""Which partition a key belongs to: the one rule that broker and clients must share. It is the kernel's: a key may have 31 MiB,
which would take seconds here."""

from quintet.kernel import fnv1a

__all__ = ["fnv1a"]
