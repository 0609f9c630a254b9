"""A Flight client as anybody could write it: pyarrow and JSON, nothing of Quintet's Spark link."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from pyarrow import flight

TIMEOUT_S = 30.0


class Client:
    """Logs in by the handshake when a user is named; `header` is sent as it is."""

    def __init__(
        self, port: int, user: str = "", password: str = "", *, header: str = "", host: str = "127.0.0.1"
    ) -> None:
        # Otherwise gRPC lets all clients of a process share one connection, and what ends one would end all.
        alone = [("grpc.use_local_subchannel_pool", 1)]
        self.flight = flight.FlightClient(f"grpc://{host}:{port}", generic_options=alone)
        self._headers = [(b"authorization", header.encode())] if header else []
        if user:
            try:
                self._headers = [self.flight.authenticate_basic_token(user, password)]
            except BaseException:
                self.flight.close()
                raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.flight.close()

    @property
    def options(self) -> Any:
        return flight.FlightCallOptions(timeout=TIMEOUT_S, headers=self._headers)

    @property
    def token(self) -> str:
        return str(self._headers[0][1].decode())

    def act(self, name: str, /, **fields: Any) -> Any:
        return self.act_raw(name, json.dumps(fields).encode())

    def act_raw(self, name: str, body: bytes) -> Any:
        (result,) = list(self.flight.do_action(flight.Action(name, body), self.options))
        return json.loads(result.body.to_pybytes())

    def open(self, topic: str, partition: int = 0, **fields: Any) -> Any:
        ticket = json.dumps({"topic": topic, "partition": partition} | fields).encode()
        return self.flight.do_get(flight.Ticket(ticket), self.options)

    def read(self, topic: str, partition: int = 0, **fields: Any) -> Any:
        return self.open(topic, partition, **fields).read_all()

    def values(self, topic: str, partition: int = 0, **fields: Any) -> list[bytes | None]:
        found: list[bytes | None] = self.read(topic, partition, **fields).column("value").to_pylist()
        return found

    def put(self, where: str | dict[str, Any], table: Any) -> Any:
        if isinstance(where, str):
            descriptor = flight.FlightDescriptor.for_path(where)
        else:
            descriptor = flight.FlightDescriptor.for_command(json.dumps(where).encode())
        writer, reader = self.flight.do_put(descriptor, table.schema, self.options)
        with writer:
            writer.write_table(table)
            writer.done_writing()
            answer = reader.read()
            return json.loads(answer.to_pybytes()) if answer is not None else None


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def rows(*values: bytes | None, **columns: Any) -> Any:
    return pa.table({"value": pa.array(values, pa.binary()), **columns})


def refusal(call: Callable[[], Any]) -> tuple[type, dict[str, Any]]:
    """The kind of the Flight error of this call, and the problem it carries."""
    with pytest.raises(flight.FlightError) as caught:
        call()
    return caught.type, json.loads(caught.value.extra_info)


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """The block ends with a Flight error of this code, whose text has these words."""
    with pytest.raises(flight.FlightError) as caught:
        yield
    problem = json.loads(caught.value.extra_info)
    assert problem["code"] == code, problem
    assert str(caught.value).startswith(f"{code}: {problem['message'][:20]}")
    for word in words:
        assert word in problem["message"] + problem["hint"], problem
