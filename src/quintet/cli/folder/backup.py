"""`quintet backup` and `quintet restore`: copies of a data folder that are consistent, also while the broker runs.

The work is done by quintet.log.embedded.backup (ADR 38); this file opens places, asks for times and prints.
"""

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from quintet.cli.folder.stores import open_store, storage_option
from quintet.cli.operate.status import human_bytes
from quintet.cli.terminal.common import confirm, json_option, lasting, say_json, say_table, when
from quintet.cli.terminal.output import echo
from quintet.model.errors import BackupError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from quintet.log.embedded.backup.manifest import Manifest, Store

DAMAGED: Final = 1  # exit code
ID_BYTES: Final = 3  # random, behind the time

DATA = click.option(
    "--data", "folder", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder."
)
PLACE = click.argument("place", metavar="PLACE")


@click.group()
def backup() -> None:
    """Back up a data folder, also while its broker runs. PLACE is a folder or s3://BUCKET/NAME (gs, abfss).

    \b
    quintet backup create /mnt/backups --data /var/lib/quintet
    quintet backup list /mnt/backups
    quintet backup verify s3://backups/quintet
    quintet backup prune /mnt/backups --keep 7
    quintet restore /mnt/backups --data /var/lib/quintet-restored

    A backup holds every message acknowledged before it began. It stores what the newest backup in PLACE does not have. It
    contains messages and hashes of passwords in the clear: keep PLACE as private as the data folder. Keys and certificates
    are not in it.
    """


@backup.command()
@PLACE
@DATA
@click.option(
    "--anchors", metavar="FILE", type=click.Path(path_type=Path), help="The anchors, if not in the data folder."
)
@click.option("--no-verify", is_flag=True, help="Do not read back what was stored.")
@storage_option
@json_option
@click.pass_context
def create(
    ctx: click.Context,
    place: str,
    folder: Path,
    anchors: Path | None,
    no_verify: bool,
    storage: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a backup. Run it as the broker's user, on the broker's machine.

    Exit code 1 also if the data folder itself is damaged: the backup is complete, and holds the damage as it is.
    """
    from quintet.log.embedded.backup import create as creating
    from quintet.log.embedded.backup.cut import Clocks
    from quintet.log.embedded.files.disk import OsDisk

    _check_apart(place, folder)
    clocks = Clocks(lambda: time.time_ns() // 1000, lambda: time.monotonic_ns() // 1000, time.sleep)
    id = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{os.urandom(ID_BYTES).hex()}"
    made = creating.create(
        folder.absolute(),
        open_store(place, storage),
        OsDisk(),
        clocks,
        id,
        anchors=anchors,
        verify=not no_verify,
        progress=_progress("stored"),
    )
    if as_json:
        say_json(_fields(made))
    else:
        took = lasting((made.finished - made.begun) / 1e6)
        echo(
            f"backup {id}: {len(made.parts)} files, {human_bytes(made.size)}, of which {human_bytes(made.stored_bytes)} are new;"
            f" {made.records:,} offsets of topics; {took}"
        )
    for what in made.damaged:
        echo(f"damaged in the data folder, and stored as it is: {what}", err=True)
    ctx.exit(DAMAGED if made.damaged else 0)


@backup.command("list")
@PLACE
@storage_option
@json_option
def list_backups(place: str, storage: tuple[str, ...], as_json: bool) -> None:
    """Show the backups in PLACE, oldest first, and those that were cut short."""
    from quintet.log.embedded.backup import manifest as manifests

    store = open_store(place, storage)
    found: list[dict[str, object]] = []
    for id in manifests.complete(store):
        try:
            found.append(_fields(manifests.load(store, id)) | {"state": "complete"})
        except BackupError as error:
            found.append({"id": id, "state": f"damaged: {error}"})
    found += [{"id": id, "state": "cut short, or being made"} for id in manifests.cut_short(store)]
    if as_json:
        say_json(found)
        return
    rows = [
        (
            one["id"],
            when(int(str(one["cut_us"])) // 1000) if "cut_us" in one else "-",
            human_bytes(float(str(one["bytes"]))) if "bytes" in one else "-",
            human_bytes(float(str(one["stored_bytes"]))) if "stored_bytes" in one else "-",
            one.get("written_by", "-"),
            one["state"],
        )
        for one in found
    ]
    say_table(
        ("backup", "holds all until", "size", "added", "made by", "state"), rows, f"there is no backup in {place}"
    )


@backup.command()
@PLACE
@click.argument("id", required=False)
@storage_option
@json_option
@click.pass_context
def verify(ctx: click.Context, place: str, id: str | None, storage: tuple[str, ...], as_json: bool) -> None:
    """Read every piece of a backup, of all without an ID, and compare checksums. Exit code 1: something is damaged."""
    from quintet.log.embedded.backup import manifest as manifests
    from quintet.log.embedded.backup import restore as restoring

    store = open_store(place, storage)
    ids = [id] if id is not None else manifests.complete(store)
    if not ids:
        raise BackupError(f"there is no backup in {place}")
    damaged: dict[str, list[str]] = {}
    for one in ids:
        try:
            damaged[one] = restoring.verify(store, manifests.load(store, one))
        except BackupError as error:
            damaged[one] = [str(error)]
    if as_json:
        say_json(damaged)
    else:
        for one, what in damaged.items():
            echo(f"{one}: sound" if not what else f"{one}: damaged: {'; '.join(what)}")
    ctx.exit(DAMAGED if any(damaged.values()) else 0)


@backup.command()
@PLACE
@click.option("--keep", type=click.IntRange(min=1), required=True, help="How many of the newest backups stay.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@storage_option
def prune(place: str, keep: int, yes: bool, storage: tuple[str, ...]) -> None:
    """Remove all but the newest backups, and what only they needed."""
    from quintet.log.embedded.backup import create as creating

    confirm(f"Remove all but the newest {keep} backups in {place}?", yes)
    gone, bundles = creating.prune(open_store(place, storage), keep)
    echo(f"removed {len(gone)} backups and {bundles} bundles")


@click.command()
@PLACE
@DATA
@click.option("--id", "id", help="Which backup [the newest complete one].")
@click.option("--no-verify", is_flag=True, help="Do not check every batch of the restored folder.")
@storage_option
def restore(place: str, folder: Path, id: str | None, no_verify: bool, storage: tuple[str, ...]) -> None:
    """Restore a backup into a new data folder, and check it as `quintet log verify` does.

    \b
    quintet restore /mnt/backups --data /var/lib/quintet-restored
    quintet restore s3://backups/quintet --id 20261117T105140Z-1a2b3c --data /var/lib/quintet

    The folder is the same log. Readers that keep positions of their own (Spark checkpoints, consumers outside of groups) may be ahead
    of it: let them begin anew.
    """
    from quintet.log.embedded.backup import manifest as manifests
    from quintet.log.embedded.backup import restore as restoring
    from quintet.log.embedded.files.disk import OsDisk
    from quintet.log.embedded.inspect import Summary
    from quintet.log.embedded.inspect import verify as verify_log

    store, disk, folder = open_store(place, storage), OsDisk(), folder.absolute()
    found = manifests.load(store, id) if id is not None else _newest(store, place)
    restoring.restore(store, found, folder, disk, _progress("restored"))
    summary = Summary()
    known = len(found.damaged)
    if not no_verify:
        for finding in verify_log(disk, str(folder), summary):
            echo(str(finding), err=True)
        if summary.status and not known:
            raise BackupError(
                f"{folder} does not check out although backup {found.id} does, and was not made startable",
                hint="report this; --no-verify restores it as it is",
            )
    restoring.finish(disk, found, folder)
    checked = "not checked" if no_verify else f"{summary.records:,} records checked"
    echo(
        f"restored {found.id} into {folder}: all until {when(found.cut // 1000)}, {human_bytes(found.size)}, {checked}"
    )


def _newest(store: "Store", place: str) -> "Manifest":
    from quintet.log.embedded.backup import manifest as manifests

    ids, broken = manifests.complete(store), manifests.cut_short(store)
    if not ids:
        more = f"; {', '.join(broken)} was cut short" if broken else ""
        if "://" not in place and not Path(place).is_dir():
            more = ": there is no such folder"
        raise BackupError(f"there is no complete backup in {place}{more}")
    later = [id for id in broken if id > ids[-1]]
    if later:
        echo(f"backup {later[-1]} is newer and was cut short; restoring {ids[-1]}", err=True)
    return manifests.load(store, ids[-1])


def _check_apart(place: str, folder: Path) -> None:
    """A backup inside of the folder would be lost with it."""
    if "://" not in place and folder.absolute().resolve() in [
        Path(place).absolute().resolve(),
        *Path(place).absolute().resolve().parents,
    ]:
        raise ConfigError(f"{place} is inside of the data folder {folder}", hint="name a place on another disk")


def _fields(made: "Manifest") -> dict[str, object]:
    return {
        "id": made.id,
        "log": made.log,
        "cut_us": made.cut,
        "seconds": (made.finished - made.begun) / 1e6,
        "files": len(made.parts),
        "bytes": made.size,
        "stored_bytes": made.stored_bytes,
        "offsets": made.records,
        "format": made.format,
        "written_by": made.written_by,
        "damaged": made.damaged,
    }


def _progress(word: str) -> "Callable[[int], None]":
    def show(count: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{word} {human_bytes(count)}   ", nl=False, err=True)

    return show
