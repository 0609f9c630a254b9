"""Makes a Delta table of a Parquet table, where it is: no file is copied, and its writers go on where they were.

    quintet spark convert s3://bucket/orders        writers are stopped meanwhile; done again, it does what was left

The files stay, Delta's log names them, and has the fence of every writer in the same entry: a batch that Spark replays after
it is dropped as before. For a directory this is a choice. In an object store it is the only way: Parquet tables were written
there until November 2026, as follows, and are not written or read any more (ADR 28).

    TABLE/_quintet/commits/WRITER/EPOCH-NONCE.pending     a manifest: files to come, files to go
    TABLE/_quintet/claims                                 a Delta log without files; `txn` of a writer is its last manifest
                                                          that counts: EPOCH << 20 | NONCE
    TABLE/_quintet/commits/WRITER/BATCH.json              it is carried out

A manifest that counts and is still there was cut off, and is carried out first.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

import msgspec
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import Transaction

from quintet.spark.lake import meta
from quintet.spark.lake.delta import LABEL, Delta, added
from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.opening import split
from quintet.spark.lake.parquet import ParquetTable, hidden
from quintet.spark.lake.schema import text
from quintet.spark.lake.storage.files import OWN, STAGING, File, opened
from quintet.spark.lake.storage.journal import NONE
from quintet.spark.lake.storage.objects import ObjectPath, TablePath, located
from quintet.spark.lake.storage.options import plain
from quintet.spark.lake.table import COMPACTOR, ONCE, relative

CLAIMS: Final = f"{OWN}/claims"
NONCE_BITS: Final = 20
PENDING: Final = ".pending"
CONVERTER: Final = "converted"


class Converted(msgspec.Struct, frozen=True):
    """What Delta's log has now."""

    files: int
    rows: int
    writers: int


class Manifest(msgspec.Struct, frozen=True):
    """What a commit in a store was about to do."""

    files: tuple[File, ...]
    gone: tuple[str, ...] = ()


def convert(path: str, options: Mapping[str, str] | None = None) -> Converted:
    """`options`: storage.*. LakeError if there is no Parquet table."""
    storage, _ = split(options or {})
    where = located(path, storage)
    known = meta.load(where)
    if known is None or known.format != "parquet":
        there = f"a {known.format} table" if known is not None else "no lake table"
        raise LakeError(f"there is {there} at {path}", hint="only a Parquet table can be converted")
    table = Delta(path, known.partition_by, storage)
    paths, fences = _recovered(where) if isinstance(where, ObjectPath) else _listed(ParquetTable(path))
    with table.journal.locked():
        files = [_file(each, where, known.partition_by) for each in paths]
        if table.schema() is None:
            table._prepare(None, known.schema)
        log = table.load()
        if not log.file_uris():  # else it was cut off right before the next line but one
            properties = CommitProperties(
                custom_metadata={LABEL: CONVERTER},
                app_transactions=[Transaction(writer, batch_id) for writer, batch_id in fences.items()],
            )
            table.write(log, [added(file, True) for file in files], properties)
        meta.save(where, Delta.format, known.partition_by, known.schema)
    if isinstance(where, ObjectPath):
        (where / CLAIMS).remove_tree()
        (where / STAGING).remove_tree()
    return Converted(len(files), sum(file.rows for file in files), len(fences))


def _file(path: TablePath, table: TablePath, columns: Sequence[str]) -> File:
    """A file as Delta's log has it. The values are those of its first row: all rows of a file share them."""
    name = str(relative(path, table))
    with plain(path), opened(path) as file:
        rows = file.metadata.num_rows
        first = next(file.iter_batches(1, columns=list(columns)), None) if columns else None
    values = {column: text(first.column(column)[0].as_py()) for column in columns} if first is not None else {}
    return File(name, name, rows, path.stat().st_size, values, msgspec.json.encode({"numRecords": rows}).decode())


def _listed(table: ParquetTable) -> tuple[Sequence[TablePath], dict[str, int]]:
    """The files and the fences of a table in a directory."""
    _, paths = table.listing()
    return paths, {writer: table.fence(writer) for writer in table.journal.writers() if _comes_again(writer)}


def _comes_again(writer: str) -> bool:
    return not writer.startswith(ONCE) and writer != COMPACTOR


# -- object stores ----------------------------------------------------------------------------------------------------


def _recovered(at: ObjectPath) -> tuple[Sequence[TablePath], dict[str, int]]:
    """The files and the fences of a table in a store, after what was cut off is carried out."""
    with plain(at, TableNotFoundError):
        try:
            log: DeltaTable | None = DeltaTable(
                str(at / CLAIMS), storage_options=at.storage.delta(at.store, at.authority)
            )
        except TableNotFoundError:
            log = None

    def claimed(writer: str) -> tuple[int, int]:
        found = None if log is None else log.transaction_version(writer)
        return (NONE, 0) if found is None else divmod(found, 1 << NONCE_BITS)

    writers = {unquote(path.parent.name) for path in (at / OWN / "commits").walk()}
    fences = {writer: claimed(writer)[0] for writer in writers if _comes_again(writer)}
    for path in [path for path in (at / OWN / "commits").walk() if path.name.endswith(PENDING)]:
        writer = unquote(path.parent.name)
        batch_id, _, nonce = path.name.removesuffix(PENDING).partition("-")
        once = writer.startswith(ONCE)
        if claimed(ONCE)[1] == int(nonce) if once else claimed(writer) == (int(batch_id), int(nonce)):
            _carry_out(at, path)
        path.unlink(missing_ok=True)
    found = [path for path in at.walk() if path.name.endswith(".parquet") and not hidden(path.relative_to(at))]
    return sorted(found), {writer: batch_id for writer, batch_id in fences.items() if batch_id != NONE}


def _carry_out(at: ObjectPath, path: ObjectPath) -> None:
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    for file in manifest.files:
        if not (at / file.staged).exists() and not (at / file.path).exists():
            raise LakeError(
                f"the file {file.staged} of {at} is gone, and with it {file.rows} rows that were committed",
                hint=f"restore it, or remove {path} to go on without them",
            )
    for name in manifest.gone:
        (at / name).unlink(missing_ok=True)
    for file in manifest.files:
        (at / file.staged).move_to(at / file.path)
