"""Decodes message values by a registered schema into Arrow columns: whole batches in, whole batches out, no Spark session.

    decode = decoder("json", definition)
    batch, causes = decode.decode(values)      # len(batch) == len(values); causes is None when every row decoded

A row that does not decode has nulls in every column and its cause in `causes`; a null value (a tombstone) has nulls and
no cause. Values are the bare message as the broker's registry judges it (JSON text, Avro's plain binary encoding, Protobuf's
message bytes), or that behind Confluent's prefix (prefix.py).

`older` are earlier versions' definitions, newest first. A row that the newest does not read is tried with them in turn
and becomes the newest's columns by the kind's own rules: fields by name (Avro: or alias), numbers widened, what is not
there null (Avro: its default). An older version that cannot become the newest's columns is not tried. Mind that a plain
Avro value does not say who wrote it: bytes of an old version that happen to be sound in the newest are read as the newest.
"""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.model.errors import SchemaInvalid
from quintet.spark.source.options import OptionError
from quintet.spark.typed.columns import Align, Aligned, Columns, Evolution, Rows, align
from quintet.spark.typed.prefix import Prefixed

KINDS = ("json", "avro", "protobuf")
# Kind -> a module and the package that has it, to read definitions with; the Python of Spark's workers may lack it. Not
# google.protobuf itself: one of Spark's jars, which is on the path of its workers, has an empty folder of that name.
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
    messages = cast(Any, newest) if kind == "protobuf" else None
    return Prefixed(plain, prefix, by_id, kind, messages, source)


def _version(kind: str, newest: Rows, evolution: Evolution, definition: str | bytes) -> Columns:
    """A decoder of what one version wrote, with the newest's columns."""
    rows, _ = _compile(kind, definition)
    plan = align(rows.schema, newest.schema, evolution)
    if plan is None:
        raise SchemaInvalid("its columns cannot become those of the newest version")
    return Columns(Aligned(rows, plan, newest.schema), (), (Columns, ()))


def _require(kind: str) -> None:
    """Say in a sentence what is not installed in this Python, which is seldom the one of the user's own program."""
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
