"""Keeps the identity of a log: 128 random bits in the file `identity` of its data directory, written once, at its first start.

    quintet-log 3fa94c0b6d1e47f2a8c5d90e1b7f6a23 8c1d2e3f        the identity and crc32c of it, in hexadecimal

Whoever remembers a position of a log (a checkpoint of Spark, first of all) keeps it beside the position: another log behind
the same address has another one (ADR 20). A copy of the directory is the same log. A directory without the file is new, or
from before there were identities, and gets one.
"""

from typing import Final

from quintet import kernel
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.model.errors import DataDirError

NAME: Final = "identity"
PREFIX: Final = "quintet-log"
WORDS: Final = 4  # random numbers of 32 bits
DIGITS: Final = 8 * WORDS  # hexadecimal


def read(disk: Disk, directory: str) -> str:
    """The identity of a directory, "" if it has none yet. DataDirError if it is damaged."""
    data = disk.read_file(f"{directory}/{NAME}")
    if data is not None and not parse(data):
        raise DataDirError(
            f"{directory}/{NAME}: does not hold the identity of a log: restore it from a copy of the directory",
            hint="or remove it: the log gets another identity, and checkpoints of Spark that know the old one are refused",
        )
    return parse(data) if data is not None else ""


def make(disk: Disk, directory: str) -> str:
    """A new one, durable when this returns. The directory is locked."""
    made = "".join(f"{disk.entropy():08x}" for _ in range(WORDS))
    replace_file(disk, directory, NAME, text(made))
    return made


def text(identity: str) -> bytes:
    """The line of the file."""
    return f"{PREFIX} {identity} {kernel.crc32c(identity.encode()):08x}\n".encode()


def parse(data: bytes) -> str:
    """The identity in a line; "" if it does not check out."""
    words = data.decode(errors="replace").split(" ")
    identity = words[1] if len(words) == 3 else ""
    return identity if len(identity) == DIGITS and text(identity) == data else ""
