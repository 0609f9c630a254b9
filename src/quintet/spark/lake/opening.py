"""Opens lake tables: splits the options, finds the format of what is at a path, and makes the table object."""

from collections.abc import Mapping, Sequence
from typing import Final

from quintet.model.extras import load
from quintet.spark.lake import meta
from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.storage.objects import ObjectPath, TablePath, located
from quintet.spark.lake.storage.options import NOTHING, Storage, parse
from quintet.spark.lake.table import LakeTable

STORAGE: Final = "storage."
CATALOG: Final = "catalog."
# Format -> module and class, imported when it is used: the packages of the formats are large.
FORMATS: Final = {
    "parquet": ("quintet.spark.lake.parquet", "ParquetTable"),
    "delta": ("quintet.spark.lake.delta", "Delta"),
    "iceberg": ("quintet.spark.lake.iceberg", "Iceberg"),
}


SPARKS_OWN: Final = ("checkpointlocation", "queryname", "outputmode", "paths")


def table_of(
    path: str,
    format: str,
    partition_by: Sequence[str] | None = None,
    storage: Storage = NOTHING,
    catalog: Mapping[str, str] | None = None,
) -> LakeTable:
    """The table at a path; the packages of its format must be installed."""
    if format not in FORMATS:
        raise LakeError(f"format {format!r} is not known", hint=f"there are {', '.join(FORMATS)}")
    where = located(path, storage)
    if format == "parquet" and isinstance(where, ObjectPath):
        raise _not_in_a_store(where)
    module, name = FORMATS[format]
    kind = getattr(load(module, f"a table of format {format}", "lake"), name)
    made = kind(path, partition_by, storage, catalog)
    assert isinstance(made, LakeTable)
    return made


def _not_in_a_store(where: ObjectPath) -> LakeError:
    """Without a log, whoever lists the files of a store sees those that nobody committed."""
    known = meta.load(where)
    if known is None or known.format != "parquet":
        return LakeError(
            f"a Parquet table cannot be in an object store, as at {where}", hint="write format=delta or format=iceberg"
        )
    return LakeError(
        f"there is a Parquet table at {where}, and such tables in object stores are not written or read any more",
        hint=f"stop its writers and convert it with `quintet spark convert {where}`; then go on with format=delta",
    )


def split(options: Mapping[str, str]) -> tuple[Storage, dict[str, str]]:
    """The storage.* and the catalog.* options, without their prefixes."""
    under = {prefix: {name[len(prefix) :]: value for name, value in options.items() if name.lower().startswith(prefix)}
             for prefix in (STORAGE, CATALOG)}  # fmt: skip
    return parse(under[STORAGE]), under[CATALOG]


def directory(path: str, options: Mapping[str, str]) -> TablePath:
    """The path of a table; LakeError if it is neither a directory nor a name in an object store."""
    return located(path, split(options)[0])


def kind(path: str, options: Mapping[str, str]) -> str:
    """The format of the table at a path; LakeError if there is none."""
    where = directory(path, options)
    known = meta.load(where)
    if known is not None:
        return known.format
    if (where / "_delta_log").is_dir():
        return "delta"
    if isinstance(where, ObjectPath):
        where.check_bucket()
    raise LakeError(f"there is no lake table at {path}", hint="check the path, and that something was written to it")
