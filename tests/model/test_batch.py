"""Fields of a batch's header, read and written by name: all of them agree with the header as docs/LOG_FORMAT.md lays it out."""

import ast
import struct
from pathlib import Path

from quintet import kernel
from quintet.model import batch as fields
from quintet.model.batch import AT_MOST_ONCE, EXPIRY, RecordBatch

HEADER = struct.Struct("<4sIIHHQIIqqQIHH")


def made(**options: object) -> bytearray:
    buffer = kernel.build([b"a", b"b", b"c"], [None] * 3, **options)  # type: ignore[arg-type]
    kernel.place(buffer, 70, 123_456)
    fields.set_producer(buffer, 1 << 40, 9)
    return buffer


def test_every_field_is_where_the_format_has_it() -> None:
    buffer = made(expiries=[0, 5, 0], flags=AT_MOST_ONCE)
    magic, crc, length, flags, columns, base, count, span, timestamp, _, producer, sequence, _, _ = HEADER.unpack_from(
        buffer
    )
    assert (fields.crc_of(buffer), fields.length_of(buffer), fields.span_of(buffer)) == (crc, length, span)
    assert fields.kind_of(buffer) == (flags, columns, producer) == (AT_MOST_ONCE, EXPIRY, 1 << 40)
    assert fields.placed(buffer) == (base, timestamp) == (70, 123_456)
    assert fields.producer_of(buffer) == RecordBatch(buffer).producer == (producer, sequence) == (1 << 40, 9)
    assert fields.claimed_at(buffer, 0) == (length, columns, base)
    assert (magic, count) == (fields.BATCH_MAGIC, 3)


def test_fields_are_found_behind_other_bytes() -> None:
    buffer = b"x" * 24 + made()
    assert fields.length_of(buffer, 24) == len(buffer) - 24
    assert not fields.is_sparse(buffer, 24)
    assert fields.claimed_at(buffer, 0) is None
    claimed = fields.claimed_at(buffer, 24)
    assert claimed is not None and claimed.base_offset == 70


def test_a_compacted_batch_is_sparse_and_its_span_can_be_set() -> None:
    kept = kernel.select(made(), [2])
    assert kept is not None and fields.is_sparse(kept)
    fields.set_span(kept, 11)
    assert fields.span_of(kept) == RecordBatch(kept).span == 11
    fields.set_length(kept, 4_096)
    assert fields.length_of(kept) == 4_096


def test_expiries_are_those_of_the_records_asked_for() -> None:
    assert RecordBatch(made()).expiries(0, 3) is None
    batch = RecordBatch(made(expiries=[4, 5, 6]))
    assert batch.expiries(0, 3) == (4, 5, 6)
    assert batch.expiries(1, 2) == (5,)
    assert batch.expiries(1, 1) == ()


def test_the_broker_reads_no_header_by_itself() -> None:
    """What stands above the log asks for a field by name, and none of it knows a place in a batch."""
    root = Path(kernel.__file__).parent.parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for part in ("broker", "delivery", "flight", "admin")
        for path in (root / part).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"unpack", "unpack_from", "pack_into", "iter_unpack"}
    ]
    assert found == []
