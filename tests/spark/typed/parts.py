"""What the tests of typed columns share: values in, rows and causes out, with everything checked that holds for any kind."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.typed import Decoder

SPARK_TYPES = (
    pa.types.is_boolean,
    pa.types.is_int32,
    pa.types.is_int64,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
    pa.types.is_decimal128,
)


def binary(values: Iterable[bytes | None]) -> pa.BinaryArray:
    return pa.array(list(values), pa.binary())


def check_type(type: pa.DataType) -> None:
    """Only what Spark takes, at every depth."""
    if pa.types.is_struct(type):
        assert type.num_fields
        for field in type:
            assert field.nullable
            check_type(field.type)
    elif pa.types.is_map(type):
        check_type(type.key_type)
        check_type(type.item_type)
    elif pa.types.is_list(type):
        check_type(type.value_type)
    elif pa.types.is_timestamp(type):
        assert (type.unit, type.tz) == ("us", "UTC")
    else:
        assert any(is_type(type) for is_type in SPARK_TYPES), type


def decoded(decoder: Decoder, values: pa.BinaryArray | Sequence[bytes | None]) -> tuple[list[Any], list[str | None]]:
    """Rows (None: all columns null) and causes; the promises of any decoder are checked on the way."""
    array = values if isinstance(values, pa.Array) else binary(values)
    batch, causes = decoder.decode(array)
    batch.validate(full=True)
    assert batch.schema.equals(decoder.schema)
    for field in batch.schema:
        assert field.nullable
        check_type(field.type)
    assert batch.num_rows == len(array)
    if causes is None:
        reasons: list[str | None] = [None] * len(array)
    else:
        assert causes.type == pa.string() and len(causes) == len(array) and causes.null_count < len(array)
        reasons = causes.to_pylist()
    rows = batch.to_pylist()
    for row, cause, value in zip(rows, reasons, array, strict=True):
        if cause is not None or not value.is_valid:
            assert set(row.values()) == {None}
        if not value.is_valid:
            assert cause is None
    return rows, reasons


def good(decoder: Decoder, *values: bytes) -> list[Any]:
    """Rows that must all decode."""
    rows, causes = decoded(decoder, values)
    assert causes == [None] * len(values)
    return rows


def cause(decoder: Decoder, value: bytes) -> str:
    """Why one row does not decode; the same among good company is checked by test_any_kind.py."""
    _, (reason,) = decoded(decoder, [value])
    assert reason is not None
    return reason
