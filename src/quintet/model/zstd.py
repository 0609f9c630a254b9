"""Gives zstd by one name: the standard library's from Python 3.14 on, before that the same module as a package."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import DecompressionParameter, ZstdDecompressor, ZstdError, compress
else:
    from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError, compress

__all__ = ["DecompressionParameter", "ZstdDecompressor", "ZstdError", "compress"]
