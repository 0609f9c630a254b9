"""Decides which columns a read has: those of every record, and with schema=registry the fields of the topic's schema.

    raw        key, value, headers, topic, partition, offset, timestamp, origin     `columns` names some of them
    registry   the same without value, then one column for each field of the schema, then with onDecodeError=null
               decode_error: null, or why the value of this row does not decode

With schema=registry, `columns` chooses among the source's own columns as before; value is read only if it is named. If it names fields
of the schema (with typedPrefix, if that is set), only these fields are read. A field with the name of one of the source's columns is
refused until typedPrefix is set: renaming it silently would break queries when a schema gains a field.

All topics of one read have the same columns. So their schemas must be the same, or `subject` names the one to use. Tasks also get
older versions of the schema, because records of these are still in the topic. A version that is registered while a query runs does not
change its columns, but its records must be read: each plan looks for `newer` ones.
"""

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quintet.client.core.errors import SchemaNotFound
from quintet.flight.wire import COLUMNS, SchemaAnswer
from quintet.model.errors import SchemaInvalid
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import OptionError, ReadOptions
from quintet.spark.typed import decoder

DECODE_ERROR: Final = "decode_error"
OLDER_MAX: Final = 64  # versions of a schema that are fetched beside the newest
HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": HEADERS,
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "origin": StringType(),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """How values become columns: the schema, older versions, and which fields are read under which names."""

    subject: str
    version: int
    kind: str
    definition: str
    older: tuple[str, ...]
    fields: tuple[str, ...]
    names: tuple[str, ...]
    on_error: str = "null"
    prefix: str = "auto"
    ids: tuple[tuple[int, str], ...] = ()  # schema ids in prefixes, and the definitions they mean


@dataclass(frozen=True, slots=True)
class ReadColumns:
    """The columns of a read. `schema` has all of them as Spark's types, in order."""

    columns: tuple[str, ...]
    schema: StructType
    typed: Typed | None = None
    causes: bool = False  # the last column is DECODE_ERROR

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns to fetch: decoding needs the value, and rejecting a row its offset."""
        wanted = self.columns if self.typed is None else (*self.columns, "value", "offset")
        return tuple(name for name in COLUMNS if name in wanted)

    @property
    def arrow(self) -> pa.Schema:
        """The schema that Spark requires of each record batch, exactly."""
        return to_arrow_schema(self.schema, timezone="UTC")


def raw_table(options: ReadOptions) -> ReadColumns:
    columns = tuple(name for name in COLUMNS if not options.columns or name in options.columns)
    return ReadColumns(columns, StructType([StructField(name, TYPES[name]) for name in columns]))


def typed_table(options: ReadOptions, connection: FlightConnection, topics: Sequence[str]) -> ReadColumns:
    """The columns of a read with schema=registry; the schema is fetched now and used for the whole query."""
    answer = _answer(options, connection, topics)
    older = _definitions(
        connection, answer.subject, range(answer.version - 1, max(0, answer.version - 1 - OLDER_MAX), -1)
    )
    made = decoder(answer.type, answer.definition, older)
    given = {options.typed_prefix + field: field for field in made.schema.names}
    told = (DECODE_ERROR,) if options.on_decode_error == "null" else ()
    unknown = [name for name in options.columns if name not in (*COLUMNS, *told) and name not in given]
    if unknown:
        known = ", ".join(dict.fromkeys((*COLUMNS, *given, *told)))
        raise OptionError("columns", f"{unknown[0]!r} is neither a column nor a field of the schema; there are {known}")
    causes = bool(told) and (not options.columns or DECODE_ERROR in options.columns)
    named = [name for name in options.columns if name in given and name not in (*COLUMNS, *told)]
    names = tuple(name for name in given if not named or name in named)
    chosen = tuple(given[name] for name in names)
    ours = tuple(name for name in COLUMNS if (name in options.columns if options.columns else name != "value"))
    taken = {name.lower() for name in (*ours, *(told if causes else ()))}
    for one, other in itertools.pairwise(sorted(names, key=str.lower)):
        if one.lower() == other.lower():
            raise OptionError(
                "columns",
                f"the schema of {answer.subject} has the fields {one!r} and {other!r}, which Spark does not tell apart; "
                "name those to read with the option columns",
            )
    for name in names:
        if name.lower() in taken:
            raise OptionError(
                "typedPrefix",
                f"the schema of {answer.subject} has a field {name!r}, which is also a column of the source; "
                "set typedPrefix (for example data_), or leave the column out with the option columns",
            )
    spark = from_arrow_schema(pa.schema([made.schema.field(name) for name in chosen]))
    ours_spark = [StructField(name, TYPES[name]) for name in ours]
    theirs = [StructField(name, field.dataType) for name, field in zip(names, spark.fields, strict=True)]
    typed = Typed(
        answer.subject, answer.version, answer.type, answer.definition, older, chosen, names,
        options.on_decode_error, options.value_prefix, _by_id(options, connection, answer),
    )  # fmt: skip
    last = [StructField(DECODE_ERROR, StringType())] if causes else []
    return ReadColumns(ours, StructType(ours_spark + theirs + last), typed, causes)


def _by_id(options: ReadOptions, connection: FlightConnection, answer: SchemaAnswer) -> tuple[tuple[int, str], ...]:
    """The definitions that schemaIds names."""
    found = []
    for id, version in options.schema_ids:
        try:
            known = connection.schema(answer.subject, version)
        except SchemaNotFound:
            raise OptionError(
                "schemaIds", f"the id {id} stands for version {version} of {answer.subject}, which does not exist"
            ) from None
        try:
            decoder(answer.type, answer.definition, prefix="confluent", ids=((id, known.definition),))
        except SchemaInvalid as error:
            raise OptionError("schemaIds", f"version {version} of {answer.subject} cannot be used: {error}") from None
        found.append((id, known.definition))
    return tuple(found)


def newer(table: ReadColumns, connection: FlightConnection) -> tuple[str, ...]:
    """The definitions of the schema that were registered since the columns were decided, newest first."""
    if table.typed is None:
        return ()
    latest = connection.schema(table.typed.subject).version
    return _definitions(
        connection, table.typed.subject, range(latest, max(table.typed.version, latest - OLDER_MAX), -1)
    )


def _definitions(connection: FlightConnection, subject: str, versions: Iterable[int]) -> tuple[str, ...]:
    """The definitions of these versions. A deleted version is left out."""
    found = []
    for version in versions:
        with contextlib.suppress(SchemaNotFound):
            found.append(connection.schema(subject, version).definition)
    return tuple(found)


def _answer(options: ReadOptions, connection: FlightConnection, topics: Sequence[str]) -> SchemaAnswer:
    subjects = [options.subject] if options.subject else list(topics)
    if not subjects:
        raise OptionError("schema", "no topic matches yet, so there is no schema to read; set subject")
    found: list[SchemaAnswer] = []
    for subject in subjects:
        try:
            found.append(connection.schema(subject))
        except SchemaNotFound:
            raise OptionError(
                "subject" if options.subject else "schema",
                f"there is no schema named {subject!r}; register one, name another with subject, or read with schema=raw",
            ) from None
    for answer in found[1:]:
        if (answer.type, answer.definition) != (found[0].type, found[0].definition):
            raise OptionError(
                "schema",
                f"topics {found[0].subject} and {answer.subject} have different schemas; read them one by one, "
                "or set subject to decode all of them by one schema",
            )
    return found[0]
