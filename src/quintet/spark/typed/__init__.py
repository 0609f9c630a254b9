"""Decodes message values by a registered schema into Arrow columns: whole batches in, whole batches out, no Spark session.

    decode = decoder("json", definition)
    batch, causes = decode.decode(values)      # len(batch) == len(values); causes is None when every row decoded

A row that does not decode has nulls in every column and its cause in `causes`; a null value (a tombstone) has nulls and
no cause. Values are bare, as the broker's schema registry checks them (JSON text, Avro's plain binary encoding, Protobuf's
message bytes), or have Confluent's prefix in front (prefix.py).

`older` are the definitions of earlier versions, newest first. A row that the newest version does not read is tried with them in turn.
Its values go into the newest version's columns by the rules of the kind: fields by name (Avro: or alias), numbers widened, missing
fields null (Avro: their default). An older version whose columns cannot become the newest's is not tried. A plain Avro value does not
say which version wrote it: bytes of an old version that are valid in the newest are read as the newest.
"""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.model.errors import SchemaInvalid
from quintet.spark.source.options import OptionError
from quintet.spark.typed.columns import Align, Aligned, Columns, Evolution, Rows, align
from quintet.spark.typed.prefix import Messages, Prefixed

KINDS = ("json", "avro", "protobuf")
# Kind -> a module and the package that has it, that reads definitions; the Python of Spark's workers may lack it. Not
# google.protobuf itself: one of Spark's jars, which is on the workers' path, has an empty folder of that name.
PACKAGES: Final = {"avro": ("fastavro", "fastavro"), "protobuf": ("google.protobuf.descriptor", "protobuf")}
OLDER_MAX = 100  # earlier versions that a row is tried with

__all__ = ["KINDS", "OLDER_MAX", "Decoder", "decoder"]


class Decoder(Protocol):
    """Values of one schema to columns. Pickles as its definition."""

    schema: pa.Schema

    def decode(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, pa.StringArray | None]:
        """A batch of exactly len(values) rows, and the cause of each row that did not decode (None: all did)."""
        ...


def decoder(
    kind: str,
    definition: str | bytes,
    older: Sequence[str | bytes] = (),
    *,
    prefix: str = "none",
    ids: Sequence[tuple[int, str | bytes]] = (),
) -> Decoder:
    """The decoder of a definition; SchemaInvalid with the reason when it cannot become columns. `prefix` and `ids` are
    prefix.py's."""
    newest, evolution = _compile(kind, definition)
    plans: list[tuple[Rows, Align]] = []
    for earlier in older[:OLDER_MAX]:
        if earlier == definition:
            continue
        try:
            rows, _ = _compile(kind, earlier)
        except SchemaInvalid:
            continue
        plan = align(rows.schema, newest.schema, evolution)
        if plan is not None:
            plans.append((rows, plan))
    plain = Columns(newest, plans, (decoder, (kind, definition, tuple(older))))
    if prefix == "none":
        return plain
    by_id = {id: _version(kind, newest, evolution, written) for id, written in ids}
    source = (partial(decoder, prefix=prefix, ids=tuple(ids)), (kind, definition, tuple(older)))
    messages = newest if isinstance(newest, Messages) else None
    return Prefixed(plain, prefix, by_id, kind, messages, source)


def _version(kind: str, newest: Rows, evolution: Evolution, definition: str | bytes) -> Columns:
    """A decoder of values of one version that gives the newest version's columns."""
    rows, _ = _compile(kind, definition)
    plan = align(rows.schema, newest.schema, evolution)
    if plan is None:
        raise SchemaInvalid("its columns cannot become those of the newest version")
    return Columns(Aligned(rows, plan, newest.schema), (), (Columns, ()))


def _require(kind: str) -> None:
    """OptionError if the package is not installed in this Python, which on a cluster is not the one of the user's program."""
    module, package = PACKAGES[kind]
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise OptionError(
            "schema",
            f"values of kind {kind} need the package {package}, which the Python of Spark's workers, {sys.executable}, does not "
            f"have; install it there on every machine (pip install {package}), or read with schema=raw",
        ) from error


def _compile(kind: str, definition: str | bytes) -> tuple[Rows, Evolution]:
    text = definition
    if kind in PACKAGES:
        _require(kind)
    if kind in ("json", "avro") and isinstance(definition, bytes):
        try:
            text = definition.decode()
        except UnicodeDecodeError as error:
            raise SchemaInvalid(f"the definition is not UTF-8 at byte {error.start}") from error
    if kind == "json":
        from quintet.spark.typed.json_rows import JsonRows

        return JsonRows(str(text)), Evolution()
    if kind == "avro":
        from quintet.spark.typed.avro_rows import AvroRows

        rows = AvroRows(str(text))
        return rows, rows.evolution
    if kind == "protobuf":
        from quintet.spark.typed.protobuf_rows import ProtobufRows

        return ProtobufRows(definition), Evolution()
    raise SchemaInvalid(f"{kind!r} is no type of schema; there are {', '.join(KINDS)}")
