"""Topics with known contents for the tests of source and sink: what a test wants in which partition, it stages there."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

import quintet
from quintet.client.manage import Manage
from quintet.flight import wire
from quintet.log.embedded.files.packs import PACKED_BYTES, place_of
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.spark.conftest import FlightServer

T = TypeVar("T")
START_US = 1_700_000_000_000_000  # the time of the first record of every partition; each is a second later
SECOND_US = 1_000_000


def link_to(broker: FlightServer) -> FlightConnection:
    return FlightConnection.of(target({"url": broker.flight, "retrySeconds": "5"}))


def manage(broker: FlightServer, use: Callable[[Manage], Coroutine[Any, Any, T]]) -> T:
    """Ask the broker over its FlyMQ door."""

    async def main() -> T:
        async with quintet.connect(broker.fly) as bus:
            return await use(Manage(bus))

    return asyncio.run(main())


def create(broker: FlightServer, topic: str, partitions: int = 1, **options: Any) -> None:
    manage(broker, lambda admin: admin.create_topic(topic, partitions, **options))


def publish(broker: FlightServer, topic: str, value: bytes) -> None:
    """One message over the FlyMQ door."""

    async def main() -> None:
        async with quintet.connect(broker.fly) as bus:
            await bus.publish(topic, value)

    asyncio.run(main())


def put(broker: FlightServer, topic: str, columns: dict[str, Sequence[object]]) -> None:
    """Publish rows of these columns, all at once."""
    kinds = {
        "key": pa.binary(),
        "value": pa.binary(),
        "partition": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    }
    batch = pa.RecordBatch.from_pydict(columns, schema=pa.schema([(name, kinds[name]) for name in columns]))
    link = link_to(broker)
    staged = link.stage(wire.StageRequest("tests", -1, topic), batch.schema, [batch])
    link.stage_commit(wire.StageCommit("tests", -1, (staged.stage,), staged.rows))


def fill(broker: FlightServer, topic: str, partitions: int = 1, rows: int = 10, begin: int = 0) -> None:
    """Rows `begin` to `begin + rows - 1` of each partition; every column says which row it is."""
    places = [(partition, row) for partition in range(partitions) for row in range(begin, begin + rows)]
    put(
        broker,
        topic,
        {
            "key": [f"k{row}".encode() for _, row in places],
            "value": [f"{partition}-{row}".encode() for partition, row in places],
            "headers": [[{"key": "row", "value": str(row).encode()}] for _, row in places],
            "partition": [partition for partition, _ in places],
            "timestamp": [START_US + row * SECOND_US for _, row in places],
        },
    )


def filled(broker: FlightServer, topic: str, partitions: int = 1, rows: int = 10) -> str:
    """A new topic with known rows."""
    create(broker, topic, partitions)
    fill(broker, topic, partitions, rows)
    return topic


def change_segment(path: str, change: Callable[[bytes], bytes]) -> None:
    """Change the bytes of a segment as they are on disk: those of a small one are in a pack (ADR 31)."""
    file, begin, size = Path(path), 0, None
    if not file.exists():
        place = place_of(path)
        assert place is not None
        file, begin, size = Path(place.pack), place.position, PACKED_BYTES
    data = file.read_bytes()
    end = len(data) if size is None else begin + size
    changed = change(data[begin:end])
    assert len(changed) == len(data[begin:end])
    file.write_bytes(data[:begin] + changed + data[end:])
