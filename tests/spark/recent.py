"""Topics whose records are of now: retention does not take them while a test looks at them, however slow the machine is."""

import time

from tests.spark.conftest import FlightServer
from tests.spark.data import create, put


def add(broker: FlightServer, topic: str, partitions: int = 1, rows: int = 10, begin: int = 0) -> None:
    """Rows `begin` to `begin + rows - 1` of each partition, as one batch each; values say which they are."""
    places = [(partition, row) for partition in range(partitions) for row in range(begin, begin + rows)]
    now = time.time_ns() // 1000
    put(
        broker,
        topic,
        {
            "key": [f"k{row}".encode() for _, row in places],
            "value": [f"{partition}-{row}".encode() for partition, row in places],
            "headers": [[{"key": "row", "value": str(row).encode()}] for _, row in places],
            "partition": [partition for partition, _ in places],
            "timestamp": [now + row for _, row in places],
        },
    )


def made(broker: FlightServer, topic: str, partitions: int = 1, rows: int = 10) -> None:
    """A new topic with these rows."""
    create(broker, topic, partitions)
    add(broker, topic, partitions, rows)
