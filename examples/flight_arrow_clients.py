"""A topic as a table, with nothing of Quintet on the client's side: Arrow Flight, DuckDB, Polars.

    python examples/flight_arrow_clients.py [PORT [USER PASSWORD]]

Writes a few orders, then asks the same question three times. What is not installed is said and passed over:
pip install pyarrow duckdb polars
"""

import importlib.util
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import compute, flight

TOPIC = "shop.orders"


def connect(port: int, user: str, password: str) -> tuple[flight.FlightClient, flight.FlightCallOptions]:
    """Log in once: the token goes with every call."""
    client = flight.FlightClient(f"grpc://127.0.0.1:{port}")
    token = client.authenticate_basic_token(user, password)
    return client, flight.FlightCallOptions(headers=[token])


def write(client: flight.FlightClient, options: flight.FlightCallOptions, table: pa.Table) -> None:
    """All rows or none. The columns are those of a topic; a `value` is enough."""
    writer, answer = client.do_put(flight.FlightDescriptor.for_path(TOPIC), table.schema, options)
    with writer:
        writer.write_table(table)
        writer.done_writing()
        answer.read()  # when it comes, everything is on disk and visible


def read(client: flight.FlightClient, options: flight.FlightCallOptions) -> pa.RecordBatchReader:
    """All partitions, as a stream: a topic may be larger than the memory."""
    info = client.get_flight_info(flight.FlightDescriptor.for_path(TOPIC), options)

    def batches() -> Iterator[pa.RecordBatch]:
        for endpoint in info.endpoints:
            for chunk in client.do_get(endpoint.ticket, options):
                yield chunk.data

    return pa.RecordBatchReader.from_batches(info.schema, batches())


def main(port: int, user: str, password: str) -> None:
    client, options = connect(port, user, password)
    keys = [b"ann", b"bob", b"ann"]
    write(client, options, pa.table({"key": keys, "value": [b"10", b"20", b"12"]}))

    table = read(client, options).read_all().select(["key", "value"])
    paid = table.set_column(1, "paid", compute.cast(compute.cast(table["value"], pa.string()), pa.int64()))
    for row in paid.group_by("key").aggregate([("paid", "sum")]).sort_by("key").to_pylist():
        print("pyarrow", row["key"].decode(), row["paid_sum"])

    if importlib.util.find_spec("duckdb"):
        import duckdb

        orders = read(client, options)  # DuckDB finds it by the name of the variable
        asked = "select decode(key), sum(decode(value)::bigint) from orders group by 1 order by 1"
        for name, total in duckdb.sql(asked).fetchall():
            print("duckdb", name, total)
        del orders
    else:
        print("duckdb is not installed: pip install duckdb")

    if importlib.util.find_spec("polars"):
        import polars as pl

        frame = pl.from_arrow(read(client, options).read_all())
        asked = frame.group_by(pl.col("key").cast(pl.String)).agg(pl.col("value").cast(pl.String).cast(pl.Int64).sum())
        for name, total in asked.sort("key").iter_rows():
            print("polars", name, total)
    else:
        print("polars is not installed: pip install polars")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(int(given[0]) if given else 8815, *(given[1:3] if len(given) > 2 else ("admin", "admin")))
