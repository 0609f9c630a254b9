"""A batch is Arrow's own layout: pyarrow takes the columns where they lie, without a copy (decision D2)."""

from typing import Any

import pytest

from quintet import kernel

pa = pytest.importorskip("pyarrow")

VALUES = [b"one", None, b"", b"four"]
KEYS = [b"k1", b"k2", None, b"k4"]
HEADERS = [[(b"a", b"1"), (b"b", b"2")], [], [(b"c", b"")], []]
TIMES = [10, 20, 30, 40]


def test_every_column_is_read_by_pyarrow_in_place() -> None:
    batch = kernel.build(VALUES, KEYS, HEADERS, TIMES, origin=b"blipmq:dev")
    kernel.seal(batch, 100, 5, 7)
    buffer = pa.py_buffer(batch)
    at = kernel.layout(batch)
    count = len(VALUES)

    def bytes_column(bitmap: int, offsets: int, data: int, size: int) -> Any:
        valid = buffer.slice(bitmap) if bitmap else None
        return pa.Array.from_buffers(pa.binary(), size, [valid, buffer.slice(offsets), buffer.slice(data)])

    values = bytes_column(at[3], at[4], at[5], count)
    assert values.to_pylist() == VALUES
    assert values.buffers()[2].address == buffer.address + at[5], "a copy was made"
    assert bytes_column(at[6], at[7], at[8], count).to_pylist() == KEYS
    names, headers = bytes_column(0, at[11], at[12], at[10]), bytes_column(0, at[13], at[14], at[10])
    entries = pa.StructArray.from_arrays([names, headers], ["name", "value"])
    lists = pa.ListArray.from_buffers(pa.list_(entries.type), count, [None, buffer.slice(at[9])], children=[entries])
    assert [[(e["name"], e["value"]) for e in row] for row in lists.to_pylist()] == HEADERS
    times = pa.Array.from_buffers(pa.int64(), count, [None, buffer.slice(at[15])])
    assert times.to_pylist() == TIMES
