"""`quintet audit verify` and `quintet audit head`: check that the log was not changed. Works on files, beside a running broker or without.

The work is done by quintet.log.chain; this file chooses, prints, and turns the verdict into an exit code.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from quintet.cli.terminal.common import json_option, say_json, shown
from quintet.cli.terminal.output import echo
from quintet.model.errors import ConfigError, DataDirError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quintet.log.anchors import Anchored
    from quintet.log.chain import PartitionVerdict, Verdict
    from quintet.log.embedded.files.disk import Disk

RACES_MAX: Final = 3
HEAD_CHARS_MAX: Final = 100  # SEQ:HASH, 64 of them the hash
UNANCHORED: Final = "there are no anchors, so a cut end or a whole new log would not show"
UNHELD: Final = "the anchors are as new as this disk says: give --head to compare with one kept elsewhere"

FOLDER = click.option(
    "--data", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder."
)
ANCHORS = click.option(
    "--anchors", "file", metavar="FILE", type=click.Path(path_type=Path), help="The anchors, if not in the data folder."
)


@click.command()
@FOLDER
@ANCHORS
@click.option("--head", default="", metavar="SEQ:HASH", help="An anchor that was kept elsewhere (quintet audit head).")
@click.option(
    "--key-file",
    "key_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="The key of the chain, if it has one; repeatable, after a change of keys.",
)
@json_option
@click.option("--progress", is_flag=True, help="Say on stderr which partition was followed, as JSON lines.")
@click.pass_context
def verify(
    ctx: click.Context, folder: Path, file: Path | None, head: str, key_files: tuple[Path, ...], as_json: bool, progress: bool
) -> None:  # fmt: skip
    """Follow the chain of every topic and compare it with the anchors.

    \b
    quintet audit verify --data /var/lib/quintet
    quintet audit verify --data /var/lib/quintet --head 812:9f3c... --key-file chain.key
    quintet audit verify --data backup --anchors /mnt/other/anchors --json

    Exit codes: 0 sound, 1 broken (the first broken batch is named), 2 it cannot be checked.
    """
    from quintet.log import anchors, chain
    from quintet.log.embedded.files.disk import OsDisk

    directory = _folder(folder)
    keys = _keys(key_files)
    disk = OsDisk()
    names = {chain.key_name(key): key for key in keys}
    path = _anchors(folder, file)

    def read_anchors() -> "Anchored | None":
        return anchors.load(disk, path, names)

    numbered = {chain.key_id(key): key for key in keys}
    try:
        mended = _mended(disk, directory)
    except OSError as error:
        raise ConfigError(f"{error.filename or directory}: cannot be read: {error.strerror or error}") from error
    say = _progress_lines(mended, directory) if progress else _progress(as_json)
    found = chain.verify_directory(mended, directory, numbered, read_anchors, head, say)
    if as_json:
        say_json(_as_json(found))
    else:
        echo(_sentence(found, bool(head)))
    ctx.exit(found.status)


@click.command()
@FOLDER
@ANCHORS
@json_option
def head(folder: Path, file: Path | None, as_json: bool) -> None:
    """Print SEQ:HASH of the last anchor. Keep it where it cannot be changed by anyone who can write to this disk.

    \b
    quintet audit head --data /var/lib/quintet >> /mnt/elsewhere/heads
    """
    from quintet.log import anchors
    from quintet.log.embedded.files.disk import OsDisk

    _folder(folder)
    found = anchors.load(OsDisk(), _anchors(folder, file), None)
    if found is None or found.seq < 0:
        raise DataDirError(
            f"{folder}: nothing is anchored yet", hint="the broker does it every few seconds and at its stop"
        )
    if as_json:
        say_json({"seq": found.seq, "hash": found.prev, "time_us": found.time})
    else:
        echo(shown(found.head.encode(), HEAD_CHARS_MAX))


def _folder(folder: Path) -> str:
    if not (folder / "format").is_file():
        raise ConfigError(f"{folder}: not a Quintet data folder", hint="the file `format` is not in it")
    return str(folder)


def _anchors(folder: Path, file: Path | None) -> str:
    from quintet.log.anchors import ANCHORS_NAME

    if file is not None and not file.is_file():
        raise ConfigError(f"{file}: no such file of anchors")
    return str(file if file is not None else folder / ANCHORS_NAME)


def _keys(files: tuple[Path, ...]) -> list[bytes]:
    from quintet.config.fields import read_secret
    from quintet.log.chain import derive_key

    try:
        return [derive_key(read_secret(file).encode()) for file in files]
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _mended(disk: "Disk", directory: str) -> "Disk":
    """The files as the next start leaves them: after a power cut batches may be in the journal only. A running broker may take
    a file away just then; it does not take many."""
    from quintet.log.embedded.inspect import healed

    for _ in range(RACES_MAX):
        try:
            return healed(disk, directory, [])
        except FileNotFoundError:
            continue
    return disk


def _progress(quiet: bool) -> "Callable[[PartitionVerdict], None]":
    if quiet or not sys.stderr.isatty():
        return lambda verdict: None

    def show(verdict: "PartitionVerdict") -> None:
        state = "broken" if verdict.broken is not None else "sound"
        echo(
            f"{shown(verdict.name.encode()) or verdict.topic_id} {verdict.partition}: {verdict.rows:,} records, {state}",
            err=True,
        )

    return show


def _progress_lines(disk: "Disk", directory: str) -> "Callable[[PartitionVerdict], None]":
    """For programs: one line of JSON for each partition, with how many there are."""
    from quintet.log.chain import partition_count

    total = partition_count(disk, directory)

    def show(verdict: "PartitionVerdict") -> None:
        line = {"topic": verdict.name, "partition": verdict.partition, "records": verdict.rows, "bytes": verdict.size,
                "broken": verdict.broken is not None, "of": total}  # fmt: skip
        echo(json.dumps(line), err=True)

    return show


def _sentence(found: "Verdict", compared: bool) -> str:
    chained = [each for each in found.partitions if each.segments > each.unchained]
    followed = f"{found.rows:,} records in {len(chained):,} partitions"
    if found.broken is not None:
        return f"broken: {found.broken}"
    if found.cannot:
        return f"cannot be checked: {found.cannot}"
    if found.anchors is None or found.anchors.seq < 0:
        return f"sound as far as can be seen: {followed} follow from each other; {UNANCHORED}"
    agree = f"sound: {followed} follow from each other and agree with anchor {found.anchors.seq}"
    return agree if compared else f"{agree}; {UNHELD}"


def _as_json(found: "Verdict") -> dict[str, object]:
    broken = found.broken
    return {
        "status": ("sound", "broken", "cannot be checked")[found.status],
        "records": found.rows,
        "bytes": sum(each.size for each in found.partitions),
        "partitions": [
            {
                "topic_id": each.topic_id,
                "topic": each.name,
                "partition": each.partition,
                "chained": each.segments > each.unchained,
                "start": each.start,
                "next_offset": each.next_offset,
                "link": each.link.hex(),
                "anchored_heads": each.anchored,
                "broken": each.broken is not None,
            }
            for each in found.partitions
        ],
        "anchor": found.anchors.head if found.anchors is not None else None,
        "broken": None
        if broken is None
        else {
            "file": broken.file,
            "position": broken.position,
            "first_offset": broken.first,
            "next_offset": broken.last,
            "kind": broken.kind,
            "what": broken.what,
        },
        "cannot": found.cannot or None,
    }
