"""Record batches that no Arrow library makes, sent over the wire: refused before anything reads where they point to."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import columns, writing
from quintet.model.errors import BadRequest, LimitExceeded, TooLarge
from tests.flight.client import Client, refused, rows

pa = pytest.importorskip("pyarrow")


def column(offsets: list[int], data: bytes, kind: Any = None, valid: bytes | None = None) -> Any:
    """A column with these offsets, whatever they are."""
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    bits = None if valid is None else pa.py_buffer(valid)
    return pa.Array.from_buffers(
        kind or pa.binary(), len(offsets) - 1, [bits, pa.py_buffer(packed), pa.py_buffer(data)]
    )


def headers(offsets: list[int]) -> Any:
    pairs = pa.array([{"key": "a", "value": b"1"}], columns.SCHEMA.field("headers").type.value_type)
    packed = pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets))
    kind = columns.SCHEMA.field("headers").type
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, packed], children=[pairs])


TWO = pa.array([b"a", b"b"])
HOSTILE: dict[str, Callable[[], dict[str, Any]]] = {
    "far": lambda: {"value": column([0, 1 << 30, 2], b"xy")},
    "falling": lambda: {"value": column([0, 2, 1], b"xy")},
    "negative": lambda: {"value": column([0, -(1 << 20), 2], b"xy")},
    "key": lambda: {"value": TWO, "key": column([0, 1 << 30, 2], b"xy")},
    "text": lambda: {"value": TWO, "key": column([0, 1, 2], b"\xff\xfe", pa.string())},
    "lists": lambda: {"value": TWO, "headers": headers([0, 1 << 20, 1])},
    "index": lambda: {
        "value": pa.DictionaryArray.from_arrays(pa.array([0, 1 << 20], pa.int32()), pa.array([b"a"]), safe=False)
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_batch_that_points_outside_of_itself_is_refused(client: Client, topic: str, name: str) -> None:
    given = HOSTILE[name]()
    given["topic"] = pa.array([topic, f"{topic}-2"])  # the rows are taken apart, which touches all of them
    batch = pa.RecordBatch.from_arrays(list(given.values()), list(given))
    descriptor = flight.FlightDescriptor.for_command(json.dumps({"writer": topic, "epoch": 0}))
    with refused("E1101", "does not add up"):
        writer, _ = client.flight.do_put(descriptor, batch.schema, client.options)
        with writer:
            writer.write_batch(batch)
    client.put(topic, rows(b"alive"))
    assert client.values(topic) == [b"alive"]


def test_a_row_that_other_doors_could_not_hand_out_is_refused(client: Client, topic: str) -> None:
    """Not only its value counts."""
    big = "v" * (17 << 20)
    pairs = pa.array([[{"key": "a", "value": big.encode()}]], columns.SCHEMA.field("headers").type)
    with refused("E1402", "a row has 17,825,793 bytes of headers, the limit is 65,536"):
        client.put(topic, rows(big.encode(), headers=pairs))
    with refused("E1402", "a row of"):
        client.put(topic, rows(big.encode(), key=pa.array([big.encode()])))


def test_few_bytes_that_stand_for_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "DECODED_BYTES_MAX", 1000)
    long = b"x" * 100
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 11, pa.int8()), pa.array([long]))
    views = pa.array([long] * 12, pa.binary_view()).slice(1)
    for many in (once, views):
        with pytest.raises(TooLarge, match="1100 bytes once it is decoded"):
            columns.from_batch(pa.record_batch({"value": many}))
        assert columns.from_batch(pa.record_batch({"value": many.slice(1)})).rows == 10
    nested = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([long], pa.binary_view()))
    with pytest.raises(BadRequest, match="must be binary or string"):
        columns.from_batch(pa.record_batch({"value": nested}))


def test_views_are_not_sorted_by_topic(client: Client, topic: str) -> None:
    """Arrow cannot; that is said, and is no fault of the broker."""
    with refused("E1101", "cannot be sorted by topic"):
        client.put(
            {"writer": topic, "epoch": 0}, pa.table({"value": pa.array([b"a"], pa.binary_view()), "topic": [topic]})
        )


def test_rows_without_bytes_and_topics_have_a_limit() -> None:
    with pytest.raises(TooLarge, match="rows, the limit is"):
        writing.check(pa.record_batch({"value": pa.nulls(writing.PUT_BATCH_ROWS_MAX + 1)}))
    names = pa.array([f"t{number}" for number in range(writing.TOPICS_OF_PUT_MAX + 1)])
    batch = pa.record_batch({"value": pa.nulls(len(names)), "topic": names})
    with pytest.raises(LimitExceeded, match="topics in one record batch"):
        list(writing._by_topic("", batch))


def test_a_refusal_that_repeats_what_was_sent_is_cut(client: Client) -> None:
    """It would not fit into the headers of the answer, and the client would learn nothing at all."""
    for name in ("a" * 100_000, "\u00e4" * 100_000):
        with refused("E1330", "no stage", " ..."):
            client.act("stage_commit", writer="w", epoch=0, stages=[name], rows=1)
        with refused("E1301", " ..."):
            client.read(name)
